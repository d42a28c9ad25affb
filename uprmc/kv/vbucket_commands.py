"""Commands that look after vBuckets and the node: states, persistence, settings, cluster map.

Source: UPR reference, section 6.
"""

from __future__ import annotations

from uprmc.kv.binary_commands import Handler

VBUCKET_COMMANDS: dict[int, Handler] = {}
