"""Bodies of frames that concern many streams at once: extensions of ours, like `upr_extensions`.

None of them is sent on a connection that did not enable it with its control key.
"""

from __future__ import annotations

from collections.abc import Sequence

from construct import Int32ub, Int64ub
from construct import Struct as Layout

from uprmc.protocol.derive import derive
from uprmc.protocol.header import pack_request
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, Opcode

#: Control key that asks for SNAPSHOTS.
SNAPSHOTS_KEY = b"uprmc_snapshots"

#: Flag of SNAPSHOTS: there is more, and the producer sends it as soon as others had their turn.
MORE_FOLLOWS = 0x01

#: Extras of SNAPSHOTS.
SnapshotsExtras = Layout("flags" / Int32ub, "snapshots" / Int32ub)
SNAPSHOTS_EXTRAS = derive(SnapshotsExtras)

#: A row for each snapshot, at the beginning of its value: whose, and what a marker tells. The
#: frames of all items follow in the same order, each snapshot from its first item to its last.
AnnouncedSnapshot = Layout(
    "opaque" / Int32ub,
    "kind" / Int32ub,
    "start_seqno" / Int64ub,
    "end_seqno" / Int64ub,
    "purge_seqno" / Int64ub,
)
ANNOUNCED_SNAPSHOT = derive(AnnouncedSnapshot)

#: What precedes the rows.
SNAPSHOTS_HEAD_BYTES = HEADER_BYTES + SNAPSHOTS_EXTRAS.size


def snapshots_head(rows: Sequence[bytes], item_bytes: int, *, more: bool) -> bytes:
    """Return a frame of SNAPSHOTS without its items, which have this size and follow at once."""
    extras = SNAPSHOTS_EXTRAS.pack(MORE_FOLLOWS if more else 0, len(rows))
    size = len(extras) + len(rows) * ANNOUNCED_SNAPSHOT.size + item_bytes
    head = pack_request(MAGIC_REQUEST, Opcode.SNAPSHOTS, 0, len(extras), 0, 0, size, 0, 0)
    return b"".join((head, extras, *rows))
