"""Documents that come and go beside registered clients, by raw frames: what purging is for.

Source: rows X03, X04, X18; `reference/upr.md` 7.
"""

from __future__ import annotations

import struct
from typing import Self

from interop.server_process import Address
from interop.wire import DELETE, OK, SET, Wire, frame, store, vbucket_of

UPR_OPEN, UPR_CONTROL, HWT_REPORT, HWT_REPORTS = 0x50, 0x5E, 0xED, 0xDD
_PRODUCER = 1
_PORTION = 500


class RegisteredClient:
    """A client that is registered for all vBuckets, under its own connection.

    Attributes:
        wire: the connection.
        lifetime_s: for how long a report holds; 0 = as long as the server likes.
        many: whether one frame reports for all vBuckets.
    """

    def __init__(
        self,
        address: Address,
        name: bytes,
        vbuckets: int,
        lifetime_s: int = 0,
        *,
        many: bool = False,
    ) -> None:
        self._name = name
        self.many = many
        self._vbuckets = vbuckets
        self.lifetime_s = lifetime_s
        self.wire = Wire(address, 60.0)
        opened = frame(UPR_OPEN, name, extras=struct.pack(">II", 0, _PRODUCER))
        ask(self.wire, opened, frame(UPR_CONTROL, b"uprmc_hwt", b"true"))
        if many:
            ask(self.wire, frame(UPR_CONTROL, b"uprmc_hwt_reports", b"true"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def report(self, seqnos: list[int]) -> None:
        """Say that everything up to these seqnos, one for each vBucket, is durable here."""
        if self.many:
            self._report_at_once(seqnos)
            return
        for start in range(0, self._vbuckets, _PORTION):
            numbers = range(start, min(start + _PORTION, self._vbuckets))
            extras = [struct.pack(">QIBBH", seqnos[at], self.lifetime_s, 0, 0, 0) for at in numbers]
            reports = zip(extras, numbers, strict=True)
            frames = [frame(HWT_REPORT, self._name, extras=e, vbucket=at) for e, at in reports]
            ask(self.wire, *frames)

    def _report_at_once(self, seqnos: list[int]) -> None:
        rows = b"".join(struct.pack(">HHQQ", at, 0, seqno, 0) for at, seqno in enumerate(seqnos))
        extras = struct.pack(">IBBH", self.lifetime_s, 0, 0, 0)
        self.wire.send(frame(HWT_REPORTS, self._name, rows, extras=extras))
        follows = True
        while follows:
            reply = self.wire.reply()
            assert (reply.status, reply.value) == (OK, b""), reply
            follows = reply.extras[4:] != bytes(4)


def ask(wire: Wire, *frames: bytes) -> None:
    """Send requests; all must succeed."""
    wire.send(*frames)
    refused = [reply for _ in frames if (reply := wire.reply()).status != OK]
    assert not refused, refused[0]


def create_and_delete(wire: Wire, first: int, count: int, vbuckets: int) -> None:
    """Make documents that nobody had before, and delete them."""
    for start in range(first, first + count, _PORTION):
        keys = [
            b"brief-%d" % number for number in range(start, min(start + _PORTION, first + count))
        ]
        places = [(key, vbucket_of(key, vbuckets)) for key in keys]
        frames = [store(SET, key, bytes(100), vbucket=at) for key, at in places]
        frames += [frame(DELETE, key, vbucket=at) for key, at in places]
        ask(wire, *frames)


def high_seqnos(wire: Wire, vbuckets: int, what: bytes = b"high_seqno") -> list[int]:
    """Return a seqno of each vBucket."""
    told = wire.statistics(b"vbucket-seqno")
    return [int(told[b"vb_%d:%s" % (number, what)]) for number in range(vbuckets)]
