"""What a source may say that is not so: answers, frames and bytes, in place of the truth or beside.

Most of what is said is true, so that lies meet listeners who have something to lose.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from tests.fuzz import replication_grammar as grammar
from tests.fuzz.grammar import spoil_bytes, spoil_header
from tests.fuzz.past import KEYS
from tests.upr import peer
from tests.upr.peer import Frame, frame

#: Statuses that mean something to somebody, and some that mean nothing.
_STATUSES = (0x00, 0x01, 0x02, 0x04, 0x07, 0x0A, 0x20, 0x22, 0x23, 0x81, 0x82, 0x83, 0x86, 0xFFFF)


class Liar:
    """See the module docstring.

    Attributes:
        share: chance of a lie in an answer or frame.
        told: how many lies.
    """

    def __init__(self, random: Random, share: float) -> None:
        self.random = random
        self.share = share
        self.told = 0

    def lies(self) -> bool:
        """Whether to lie now."""
        found = self.random.random() < self.share
        self.told += found
        return found

    # --- answers --------------------------------------------------------------------------------

    def instead(self, asked: Frame, true: list[bytes]) -> list[bytes]:
        """Return what is answered; in a handshake, which is pipelined, lies are rarer."""
        if asked.opcode in (peer.HELLO, peer.OPEN, peer.CONTROL) and self.random.random() < 0.9:
            return true
        if not self.lies():
            return true
        random = self.random
        kind = random.randrange(9)
        if kind == 0:
            return []
        if kind == 1:
            return true * random.choice((2, 2, 3, 50))
        if kind == 2:
            return [self._answer(asked, asked.opaque ^ random.choice((1, 2, 2**31))), *true]
        if kind == 3:
            status = random.choice(_STATUSES)
            return [peer.response(asked.opcode, status, opaque=asked.opaque, value=self._value())]
        if kind == 4:
            return [spoil_header(random, b"".join(true))]
        return [self._answer(asked, asked.opaque)]

    def _answer(self, asked: Frame, opaque: int) -> bytes:
        """Return an answer of the right kind with any numbers."""
        random, status, extras, value = self.random, 0, b"", b""
        if asked.opcode == peer.STREAM_REQUEST:
            _, status, extras, value = grammar.answer_to_replica(random)
            if status == peer.ROLLBACK:
                value = struct.pack(">Q", self._near(struct.unpack_from(">Q", asked.extras, 8)[0]))
        elif asked.opcode == peer.GET_VERSION:
            status, extras, value = grammar.version_answer(random)
            if len(extras) == 25 and random.random() < 0.8:
                (upto,) = struct.unpack(">Q", asked.extras)
                extras = struct.pack(">QQ", self._near(upto), random.randrange(9)) + extras[16:]
        elif asked.opcode in (peer.FAILOVER_LOG, 0x96):
            value = grammar.failover_log(random)
        elif asked.opcode == 0x48:
            rows = [(random.randrange(6), grammar.any_u64(random)) for _ in range(4)]
            value = b"".join(struct.pack(">HQ", *row) for row in rows)[: random.choice((40, 39))]
        else:
            extras, value = random.choice((b"", random.randbytes(4))), self._value()
        head: dict[str, Any] = {"vbucket": status, "opaque": opaque, "magic": 0x81}
        cas = random.choice((0, 1, 1, 2**63, 2**64 - 1))
        return frame(asked.opcode, extras=extras, value=value, cas=cas, **head)

    def _value(self) -> bytes:
        return self.random.choice((b"", b"no", self.random.randbytes(16), b"[" * 100))

    def _near(self, seqno: int) -> int:
        change = self.random.choice((-30, -5, -2, -1, 0, 0, 1, 2, 30))
        near = min(max(0, seqno + change), 2**64 - 1)
        return near if self.random.random() < 0.9 else grammar.any_u64(self.random)

    # --- frames ---------------------------------------------------------------------------------

    def amid(self, flow: Any, true: list[bytes]) -> list[bytes]:
        """Return frames of a stream, with a lie among them or in their place."""
        if not self.lies():
            return true
        random = self.random
        kind = random.randrange(8)
        if kind == 0:
            return true[:-1]
        if kind == 1:
            return true[::-1] + true[:1]
        if kind == 2:
            return [spoil_header(random, one) for one in true]
        place = random.randint(0, len(true))
        return [*true[:place], self._frame(flow), *true[place:]]

    def _frame(self, flow: Any) -> bytes:
        """Return something that a source may send, with numbers near to those that fit."""
        random = self.random
        number = flow.past.number if flow and random.random() < 0.9 else random.choice((0, 1, 3, 9))
        opaque = flow.opaque if flow and random.random() < 0.9 else random.choice((0, 1, 2, 99))
        at = flow.at if flow else 0
        first, last = self._near(at), self._near(at + 5)
        kind = random.randrange(12)
        place: dict[str, Any] = {"vbucket": number, "opaque": opaque}
        if kind < 3:
            return peer.marker(number, opaque, first, last, random.choice((1, 1, 2, 8, 0, 2**31)))
        if kind < 5:
            return peer.mutation(
                *(number, opaque, self._near(at + 1), random.choice((*KEYS, b"", b"y" * 251))),
                value=random.randbytes(random.choice((0, 9, 300))),
                rev=random.choice((1, 7, 2**63)),
                cas=random.choice((0, 1, 2**64 - 1)),
                nmeta=random.choice((0, 0, 0, 3, 400)),
            )
        if kind == 5:
            layout = random.choice((">QQH", ">QQI", ">QQIB"))
            extras = struct.pack(layout, self._near(at + 1), 5, 0, *([0] * (layout == ">QQIB")))
            opcode = random.choice((peer.DELETION, peer.EXPIRATION))
            return frame(opcode, key=random.choice(KEYS), extras=extras, **place)
        if kind == 6:
            _, extras, _, value = grammar.versioned_marker(random)
            return frame(peer.MARKER, extras=extras, value=value, **place)
        if kind == 7:
            state = random.choice((b"\1", b"\1", b"\2", b"\3", b"\4", b"\0", b"\x09", b""))
            return frame(peer.SET_STATE, extras=state, **place)
        if kind == 8:
            reason = struct.pack(">I", random.randrange(9))
            return frame(peer.STREAM_END, extras=reason, **place)
        if kind == 9:
            opcode = random.choice((peer.NOOP, peer.FLUSH, 0xE9, 0xEA, 0xEC, 0x51, 0x00, 0xFE))
            extras = random.choice(
                (b"", b"", struct.pack(">QI", last, 1), struct.pack(">II", 1, 1))
            )
            return frame(opcode, extras=extras, key=random.choice((b"", b"cookie")), **place)
        if kind == 10:
            opcode, status, extras, value = grammar.answer_to_replica(random)
            head: dict[str, Any] = {"vbucket": status, "opaque": random.randrange(60)}
            return frame(opcode, extras=extras, value=value, magic=0x81, **head)
        return frame(peer.MUTATION, extras=random.randbytes(31), key=b"k1", **place)

    # --- bytes ----------------------------------------------------------------------------------

    def spoiled(self, data: bytes) -> bytes:
        """Return bytes, now and then not those that were meant."""
        if self.random.random() < self.share / 20:
            self.told += 1
            return spoil_bytes(self.random, data)
        return data
