"""A node that does what a script says: for the writing side's tests of trouble.

It keeps documents in a dict, one vBucket map for all peers, and speaks through one end of a socket
pair, so nothing listens anywhere. Before each request the script is asked: carry it out, answer
with a status instead, or hang up - before or after it was carried out.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from uprmc.columnar.access import Access
from uprmc.columnar.nodes import NodeStanding
from uprmc.model import vbucket_of
from uprmc.protocol.binary import (
    OBSERVE_SEQNO_FAILOVER_REPLY,
    OBSERVE_SEQNO_REPLY,
    OBSERVE_SEQNO_REQUEST,
    STORE_EXTRAS,
)
from uprmc.protocol.header import (
    HEADER_BYTES,
    RequestFrame,
    ResponseFrame,
    decode_frame,
    unpack_request,
)
from uprmc.protocol.management import decode_with_meta
from uprmc.protocol.opcodes import QUIET, Opcode, Status
from uprmc.remote.errors import NodeNonsense, NodeUnreachable

#: What a script may say: carry it out; a status; hang up before or after.
DO, LOSE_BEFORE, LOSE_AFTER = "do", "lose before", "lose after"
Verdict = str | Status
Script = Callable[[RequestFrame], Verdict]

ACCESS = Access(("peer-0:1",), read_timeout_s=20)


@dataclass
class Cluster:
    """What all peers share, and a stand-in for `Nodes`.

    Attributes:
        vbuckets: how many there are.
        script: asked for each request that changes something.
        places: the peers; vBucket n is at `moved[n]`, or at n modulo their number.
        documents: key -> (value, flags) or with metadata.
        versions: key -> (rev, cas, deleted) of append-meta.
        seqnos, persisted, uuids: by vBucket; `persist` and `crash` change them.
    """

    vbuckets: int = 8
    script: Script = lambda _frame: DO
    places: tuple[str, ...] = ("peer-0:1",)
    moved: dict[int, str] = field(default_factory=dict)
    documents: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    versions: dict[bytes, tuple[int, int, bool]] = field(default_factory=dict)
    seqnos: dict[int, int] = field(default_factory=dict)
    uuids: dict[int, int] = field(default_factory=dict)
    requests: list[RequestFrame] = field(default_factory=list)
    refreshes: int = 0
    dials: int = 0
    on_observe: Callable[[Cluster], None] = lambda _cluster: None
    _disk: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    _lines: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _seen: dict[int, str] = field(default_factory=dict)
    _open: dict[str, Line] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _persisted: dict[int, int] = field(default_factory=dict)

    # --- what `Nodes` does ----------------------------------------------------------------------

    def nodes(self, _access: Access) -> Any:
        """Make what `Writer(nodes=...)` wants."""
        self.refresh()
        return self

    @property
    def owners(self) -> dict[int, str]:
        return self._seen

    def refresh(self) -> None:
        self.refreshes += 1
        self._seen = {number: self.owner(number) for number in range(self.vbuckets)}

    def owner(self, number: int) -> str:
        return self.moved.get(number, self.places[number % len(self.places)])

    def connection(self, place: str) -> Line:
        if place not in self._open:
            self.dials += 1
            ours, theirs = socket.socketpair()
            self._lines += [ours, theirs]
            self._open[place] = Line(ours, place)
            thread = threading.Thread(target=self._serve, args=(theirs, place), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self._open[place]

    def at(self, place: str, ask: Callable[[Any], Any]) -> Any:
        return ask(self.connection(place))

    def drop(self, place: str) -> None:
        line = self._open.pop(place, None)
        if line is not None:
            line.socket.close()

    def close(self) -> None:
        for place in list(self._open):
            self.drop(place)
        for thread in self._threads:
            thread.join(10)
        for line in self._lines:
            line.close()
        self._lines, self._threads = [], []

    def standings(self, vbuckets: Any = None) -> dict[int, NodeStanding]:
        numbers = range(self.vbuckets) if vbuckets is None else vbuckets
        return {
            n: NodeStanding(n, self.owner(n), self.seqnos.get(n, 0), ((self.uuid(n), 0),))
            for n in numbers
        }

    # --- disks and crashes ----------------------------------------------------------------------

    def uuid(self, number: int) -> int:
        return self.uuids.setdefault(number, 1000 + number)

    def persist(self) -> None:
        """Write all to disk."""
        with self._lock:
            self._disk = dict(self.documents)
            self._persisted = dict(self.seqnos)

    def crash(self) -> None:
        """Lose what is not on disk; every vBucket begins a new history."""
        with self._lock:
            self.documents = dict(self._disk)
            self.seqnos = dict(self._persisted)
            for number in range(self.vbuckets):
                self.uuids[number] = self.uuid(number) + 100_000

    # --- serving --------------------------------------------------------------------------------

    def _serve(self, line: socket.socket, place: str) -> None:
        data = b""
        try:
            while piece := line.recv(65536):
                data += piece
                answers: list[bytes] = []
                data, going_on = self._eat(data, place, answers)
                line.sendall(b"".join(answers))
                if not going_on:
                    break
        except OSError:
            pass
        line.close()

    def _eat(self, data: bytes, place: str, answers: list[bytes]) -> tuple[bytes, bool]:
        while len(data) >= HEADER_BYTES:
            size = HEADER_BYTES + unpack_request(data, 0)[6]
            if len(data) < size:
                break
            frame = decode_frame(data[:size])
            assert isinstance(frame, RequestFrame)
            data = data[size:]
            with self._lock:
                if not self._answer(frame, place, answers):
                    return b"", False
        return data, True

    def _answer(self, frame: RequestFrame, place: str, answers: list[bytes]) -> bool:
        if frame.opcode == Opcode.NOOP:
            answers.append(ResponseFrame(frame.opcode, opaque=frame.opaque).encode())
            return True
        if frame.opcode != Opcode.OBSERVE_SEQNO:
            assert frame.vbucket == vbucket_of(frame.key, self.vbuckets)
        self.requests.append(frame)
        if self.owner(frame.vbucket) != place:
            answers.append(_status(frame, Status.NOT_MY_VBUCKET))
            return True
        verdict = self.script(frame)
        if verdict == LOSE_BEFORE:
            return False
        if isinstance(verdict, Status):
            answers.append(_status(frame, verdict))
            return True
        answer = self._carry_out(frame)
        if verdict == LOSE_AFTER:
            return False
        if answer is not None:
            answers.append(answer)
        return True

    def _carry_out(self, frame: RequestFrame) -> bytes | None:
        opcode = QUIET.get(frame.opcode, frame.opcode)
        if opcode == Opcode.OBSERVE_SEQNO:
            return self._observe(frame)
        if opcode == Opcode.GET:
            if frame.key not in self.documents:
                return _status(frame, Status.KEY_NOT_FOUND)
            value, flags = self.documents[frame.key]
            extras = flags.to_bytes(4, "big")
            return ResponseFrame(
                frame.opcode, extras=extras, value=value, opaque=frame.opaque
            ).encode()
        status = self._change(frame, opcode)
        if status:
            return _status(frame, status)
        self.seqnos[frame.vbucket] = self.seqnos.get(frame.vbucket, 0) + 1
        return None

    def _change(self, frame: RequestFrame, opcode: int) -> Status:
        if opcode in (Opcode.SET_WITH_META, Opcode.DEL_WITH_META):
            meta = decode_with_meta(frame.extras)
            deleted = opcode == Opcode.DEL_WITH_META
            present = self.versions.get(frame.key, (0, 0, True))
            if (meta.rev, meta.cas) <= present[:2] and not meta.options & 8:
                return Status.KEY_EXISTS
            self.versions[frame.key] = (meta.rev, meta.cas, deleted)
            self.documents[frame.key] = (frame.value, meta.flags)
            if deleted:
                del self.documents[frame.key]
            return Status.SUCCESS
        if opcode == Opcode.DELETE:
            found = self.documents.pop(frame.key, None)
            return Status.KEY_NOT_FOUND if found is None else Status.SUCCESS
        if opcode == Opcode.ADD and frame.key in self.documents:
            return Status.KEY_EXISTS
        flags, _ = STORE_EXTRAS.unpack(frame.extras)
        self.documents[frame.key] = (frame.value, flags)
        return Status.SUCCESS

    def _observe(self, frame: RequestFrame) -> bytes:
        self.on_observe(self)
        number = frame.vbucket
        (asked,) = OBSERVE_SEQNO_REQUEST.unpack(frame.value)
        uuid = self.uuid(number)
        if asked % 100_000 != uuid % 100_000:
            return _status(frame, Status.KEY_NOT_FOUND)
        numbers = (number, uuid, self._persisted.get(number, 0), self.seqnos.get(number, 0))
        if asked == uuid:
            value = OBSERVE_SEQNO_REPLY.pack(0, *numbers)
        else:
            value = OBSERVE_SEQNO_FAILOVER_REPLY.pack(1, *numbers, asked, 0)
        return ResponseFrame(frame.opcode, value=value, opaque=frame.opaque).encode()


class Line:
    """What the writing side needs of a `Connection`."""

    def __init__(self, line: socket.socket, place: str) -> None:
        self.socket, self.place = line, place

    def statistics(self, _group: str) -> dict[str, str]:
        return {}

    def failure(self, what: str) -> NodeUnreachable:
        return NodeUnreachable(f"{self.place} {what}")

    def protocol_error(self, what: str) -> NodeNonsense:
        return NodeNonsense(f"{self.place} sent {what}")


def troubled(seed: int, share: float = 0.2, *, verdicts: tuple[Verdict, ...]) -> Script:
    """Return a script that says one of `verdicts` for a share of the requests, by a seed."""
    chance = random.Random(seed)

    def script(_frame: RequestFrame) -> Verdict:
        return chance.choice(verdicts) if chance.random() < share else DO

    return script


def _status(frame: RequestFrame, status: Status) -> bytes:
    return ResponseFrame(frame.opcode, status, opaque=frame.opaque).encode()
