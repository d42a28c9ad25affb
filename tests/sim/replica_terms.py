"""Terms in the simulation of replicas: who is told of a promotion, and what must be true of terms.

They share no code with `uprmc`. A `Herald` comes to a node as a client would that has seen a later
promotion of the same history; the judge holds the node to it from the answer on.

Source: ``docs/extensions.md``, "Terms".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tests.codec.frames import HEADER
from tests.sim import upr_codec as codec
from tests.sim.judges import complain
from tests.sim.link import FAST, Link

_TERMS = 0x5501
_PRODUCER = 1


class _Seen(NamedTuple):
    term: int
    known: int
    active: bool


class TermJudge:
    """See the module docstring.

    Attributes:
        promotions: how many it has seen.
        deposed: of how many vBuckets a node was told that it was deposed.
    """

    def __init__(self) -> None:
        self.promotions = self.deposed = 0
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._told: dict[tuple[str, int], int] = {}
        self._branches: set[tuple[int, int]] = set()
        self._began: dict[tuple[int, int], int] = {}

    def came_up(self, name: str, stored: Mapping[int, tuple[Any, Any]], found: Any) -> None:
        """A node has started: its terms are those of its disk, whatever ended it."""
        for each in [key for key in self._seen if key[0] == name]:
            del self._seen[each]
            self._told.pop(each, None)
        for vbucket in found:
            header = stored.get(vbucket.id, (None, None))[0]
            if header is not None and (vbucket.term, vbucket.known_term) != (
                header.term,
                header.known_term,
            ):
                complain(
                    f"{name}: vBucket {vbucket.id} has the term {vbucket.term} after a restart, "
                    f"and {header} on disk"
                )

    def told(self, name: str, number: int, term: int) -> None:
        """A node was told of a promotion of its own history, and has answered."""
        seen = self._seen.get((name, number))
        if seen is not None and seen.term < term:
            self.deposed += (name, number) not in self._told
            self._told[name, number] = term

    def look(self, name: str, vbuckets: Iterable[Any]) -> None:
        """Judge what a node has now."""
        for vbucket in vbuckets:
            number, state = vbucket.id, int(vbucket.state)
            now = _Seen(vbucket.term, vbucket.known_term, state == codec.ACTIVE)
            before = self._seen.get((name, number))
            if before is not None and before != now:
                self._changed(name, vbucket, before, now)
            self._seen[name, number] = now
            if now.active and now.term < max(now.known, self._told.get((name, number), 0)):
                complain(f"{name}: vBucket {number} is active in {now} and was told of more")
            self._judge_log(name, vbucket)

    def _changed(self, name: str, vbucket: Any, before: _Seen, now: _Seen) -> None:
        what = f"{name}: vBucket {vbucket.id} goes from {before} to {now}"
        if now.known < before.known:
            complain(f"{what}: what was known is forgotten")
        if now.active and not before.active:
            self.promotions += 1
            if now.term <= max(before.term, before.known):
                complain(f"{what}: a promotion is not above all that was known")
            branch = (vbucket.id, vbucket.failover_log[0].uuid)
            if branch not in self._branches:  # a hand-over goes on with the one that there is
                self._began[branch] = now.term
        elif now.active and now.term != before.term:
            complain(f"{what}: a term changed without a promotion")

    def _judge_log(self, name: str, vbucket: Any) -> None:
        """Who has the history of a promotion has its term, or a later one."""
        for entry in vbucket.failover_log:
            branch = (vbucket.id, entry.uuid)
            self._branches.add(branch)
            term = self._began.get(branch, 0)
            if vbucket.term < term:
                complain(
                    f"{name}: vBucket {vbucket.id} has the history {entry.uuid:x} of the term "
                    f"{term}, and the term {vbucket.term}"
                )


class Herald:
    """See the module docstring. It asks once for one stream and goes."""

    def __init__(self, node: Any, number: int, term: int, uuid: int) -> None:
        self._node, self._number, self._term, self._uuid = node, number, term, uuid
        self._data = b""
        self._settle: Callable[[int], None] | None = None
        self._link: Link | None = None

    def ask(self, settle: Callable[[int], None]) -> None:
        """Connect and ask; `settle` gets the status if an answer comes."""
        self._settle = settle
        self._link = self._node.connect(self, FAST, False)
        if self._link is None:
            return
        value = json.dumps({"term": self._term}).encode()
        extras = struct.pack(">IIQQQQQ", 0, 0, 0, 2**64 - 1, self._uuid, 0, 0)
        self._link.send(
            codec.frame(codec.HELLO, value=struct.pack(">H", _TERMS), vbucket=0, opaque=1)
            + codec.open_connection(b"herald", _PRODUCER, 2)
            + codec.frame(
                codec.STREAM_REQUEST, extras=extras, value=value, vbucket=self._number, opaque=3
            )
        )

    def receive(self, data: bytes) -> None:
        """Wait for the answer to the stream request, then hang up."""
        self._data += data
        while len(self._data) >= HEADER.size:
            _, opcode, _, _, _, status, size, _, _ = HEADER.unpack_from(self._data)
            if len(self._data) < HEADER.size + size:
                return
            self._data = self._data[HEADER.size + size :]
            if opcode == codec.STREAM_REQUEST and self._settle is not None:
                settle, self._settle = self._settle, None
                settle(status)
                if self._link is not None:
                    self._link.cut()
                return

    def disconnected(self) -> None:
        """The link is gone."""
        self._link = None
