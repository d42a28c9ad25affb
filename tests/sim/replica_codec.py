"""Commands that operate replicas, written a second time on purpose; see `upr_codec`.

Source: ``docs/extensions.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

REPLICATE, TAKEOVER, FAILOVER = 0xD7, 0xD8, 0xD9
STOP, DEMOTE = 0x01, 0x02
TAKEN, REFUSED, INTERRUPTED = 0, 1, 2


def numbers(vbuckets: Iterable[int]) -> bytes:
    """Return vBucket numbers as a value."""
    return b"".join(struct.pack(">H", number) for number in vbuckets)


def outcomes(value: bytes) -> dict[int, int]:
    """Return what became of each vBucket."""
    return dict(struct.iter_unpack(">HH", value))  # type: ignore[arg-type]


def branches(value: bytes) -> dict[int, tuple[int, int]]:
    """Return the newest (uuid, seqno) of each vBucket."""
    return {number: (uuid, seqno) for number, uuid, seqno in struct.iter_unpack(">HQQ", value)}
