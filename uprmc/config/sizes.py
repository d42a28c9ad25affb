"""Units of sizes, and the largest things that any wire carries."""

from __future__ import annotations

KIB = 1024


MIB = 1024 * KIB


GIB = 1024 * MIB


#: Highest value of ``kv.max_item_bytes``.
ITEM_LIMIT_MAX_BYTES = 128 * MIB


#: Largest frame on any wire: such an item, and all that can stand around its key and value.
FRAME_MAX_BYTES = ITEM_LIMIT_MAX_BYTES + 1 * MIB
