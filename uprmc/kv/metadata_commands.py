"""Commands that read and write documents together with their metadata, for replication by others.

Source: UPR reference, section 6; systems reference (b) for conflict resolution.
"""

from __future__ import annotations

from uprmc.kv.binary_commands import Handler

METADATA_COMMANDS: dict[int, Handler] = {}
