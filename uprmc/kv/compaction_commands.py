"""COMPACT_DB.

Source: UPR reference, section 6.
"""

from __future__ import annotations

from uprmc.kv.binary_commands import Handler

COMPACTION_COMMANDS: dict[int, Handler] = {}
