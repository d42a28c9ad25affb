"""A writer that never waits for a reply before it sends on, and asks what is persisted.

It keeps a pipeline of sets and deletions on one connection to the ``upr`` listener, in bursts with
short pauses between them, so that a kill can hit the server anywhere: reading, flushing, idle. An
OBSERVE in the same pipeline tells about exactly the versions sent before it, because the requests
of one connection are carried out in order.
"""

from __future__ import annotations

import selectors
import struct
import time
from collections import deque
from dataclasses import dataclass
from random import Random

from interop import wire as w
from interop.server_process import Address
from interop.wire import Reply, Wire, frame, split_replies, store, vbucket_of
from tests.crash.judge import Judge, value_of

PERSISTED, NOT_PERSISTED, MISSING, DELETION_NOT_PERSISTED = 1, 0, 0x80, 0x81

_PIPELINE = 3_000  # requests without reply
_RECENT = 1_500  # keys whose state is worth asking about
_HEAD = struct.Struct(">HH")


@dataclass(frozen=True, slots=True)
class _Stored:
    opcode: int
    key: bytes
    version: int


@dataclass(frozen=True, slots=True)
class _Observed:
    asked: list[tuple[bytes, int, bool]]  # key, version at that point, whether that is a value


def observe(keys: list[bytes]) -> bytes:
    """A request that asks whether keys are persisted."""
    body = b"".join(_HEAD.pack(vbucket_of(key), len(key)) + key for key in keys)
    return frame(w.OBSERVE, value=body)


def observed(value: bytes) -> list[tuple[bytes, int, int]]:
    """Its answer as ``(key, state, cas)``."""
    found = []
    while value:
        _, length = _HEAD.unpack_from(value)
        key, rest = value[4 : 4 + length], value[4 + length :]
        state, cas = struct.unpack_from(">BQ", rest)
        found.append((key, state, cas))
        value = rest[9:]
    return found


def read_all(address: Address, keys: list[bytes]) -> dict[bytes, bytes | None]:
    """Every key's value, ``None`` for a miss; any other answer is an error."""
    found: dict[bytes, bytes | None] = {}
    with Wire(address, timeout_s=30) as wire:
        for start in range(0, len(keys), 500):
            batch = keys[start : start + 500]
            wire.send(*(frame(w.GET, key, vbucket=vbucket_of(key)) for key in batch))
            for key in batch:
                reply = wire.reply()
                assert reply.status in (w.OK, w.NOT_FOUND), (key, reply)
                found[key] = reply.value if reply.status == w.OK else None
    return found


class Writer:
    """Writes until told to stop; tells the judge what it sent and what was confirmed."""

    def __init__(
        self, address: Address, keys: list[bytes], random: Random, judge: Judge, version: int
    ) -> None:
        self.version = version
        self.accepted = 0
        self.confirmations = 0
        self._keys = keys
        self._random = random
        self._judge = judge
        self._recent: dict[bytes, None] = {}
        self._cas: dict[bytes, tuple[int, int]] = {}
        self._expected: deque[_Stored | _Observed] = deque()
        self._unsent = bytearray()
        self._unread = b""
        self._pause_until = 0.0
        self._socket = address.connect()
        self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()

    def write_until(self, moment: float) -> None:
        """Keep the pipeline full up to ``moment`` of the monotonic clock."""
        self._run(moment, writing=True)

    def finish(self, seconds: float) -> None:
        """Send nothing new; read what is still to come."""
        self._run(time.monotonic() + seconds, writing=False)
        assert not self._expected, f"{len(self._expected)} replies are missing"

    def drain(self) -> None:
        """The server is dead: take what it had still answered."""
        try:
            while self._receive():
                pass
        except OSError:
            pass

    def _run(self, moment: float, *, writing: bool) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while (now := time.monotonic()) < moment and (writing or self._expected):
                if writing and now >= self._pause_until and len(self._expected) < _PIPELINE:
                    self._burst(now)
                wanted = selectors.EVENT_READ
                if self._unsent:
                    wanted |= selectors.EVENT_WRITE
                selector.modify(self._socket, wanted)
                wake = moment if now >= self._pause_until else min(moment, self._pause_until)
                for _, ready in selector.select(max(0.0, wake - now)):
                    if ready & selectors.EVENT_WRITE:
                        del self._unsent[: self._socket.send(self._unsent)]
                    if ready & selectors.EVENT_READ:
                        assert self._receive(), "the server closed the connection"

    def _burst(self, now: float) -> None:
        random = self._random
        for _ in range(random.choice((1, 10, 100, 400))):
            # A few keys take a third of all writes.
            key = random.choice(self._keys if random.random() > 0.3 else self._keys[:20])
            self._write(key, delete=random.random() < 0.2)
        self._ask()
        if random.random() < 0.3:
            self._pause_until = now + random.choice((0.002, 0.03, 0.08))

    def _write(self, key: bytes, *, delete: bool) -> None:
        self.version += 1
        vbucket = vbucket_of(key)
        if delete:
            self._unsent += frame(w.DELETE, key, vbucket=vbucket)
            self._expected.append(_Stored(w.DELETE, key, self.version))
        else:
            self._unsent += store(w.SET, key, value_of(key, self.version), vbucket=vbucket)
            self._expected.append(_Stored(w.SET, key, self.version))
        self._judge.sent(key, self.version, present=not delete)
        self._recent.pop(key, None)
        self._recent[key] = None
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]

    def _ask(self) -> None:
        keys = self._random.sample(list(self._recent), min(100, len(self._recent)))
        self._unsent += observe(keys)
        self._expected.append(_Observed([(key, *self._judge.latest(key)) for key in keys]))

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return True
        replies, self._unread = split_replies(self._unread + data)
        for reply in replies:
            expected = self._expected.popleft()
            if isinstance(expected, _Stored):
                self._stored(expected, reply)
            else:
                self._observed(expected, reply)
        return bool(data)

    def _stored(self, expected: _Stored, reply: Reply) -> None:
        fine = (w.OK, w.NOT_FOUND) if expected.opcode == w.DELETE else (w.OK,)
        assert reply.opcode == expected.opcode, (expected, reply)
        assert reply.status in fine, (expected, reply)
        self.accepted += 1
        if expected.opcode == w.SET:
            self._cas[expected.key] = (expected.version, reply.cas)

    def _observed(self, expected: _Observed, reply: Reply) -> None:
        assert (reply.opcode, reply.status) == (w.OBSERVE, w.OK), reply
        answers = observed(reply.value)
        assert [key for key, _, _ in answers] == [key for key, _, _ in expected.asked]
        for (key, version, present), (_, state, cas) in zip(expected.asked, answers, strict=True):
            if present:
                assert state in (PERSISTED, NOT_PERSISTED), (key, version, hex(state))
                assert (version, cas) == self._cas[key], (key, version, cas)
            else:
                assert state in (MISSING, DELETION_NOT_PERSISTED), (key, version, hex(state))
            if state in (PERSISTED, MISSING):
                self._judge.confirmed(key, version)
                self.confirmations += 1


def wait_until_persisted(address: Address, keys: list[bytes], seconds: float = 30.0) -> None:
    """Ask until every key is persisted; there is nothing to wait on but the answer."""
    deadline = time.monotonic() + seconds
    with Wire(address) as wire:
        open_keys = keys
        while open_keys:
            assert time.monotonic() < deadline, f"{len(open_keys)} keys are not persisted yet"
            reply = wire.ask(observe(open_keys))
            states = {key: state for key, state, _ in observed(reply.value)}
            open_keys = [key for key in open_keys if states[key] != PERSISTED]
            if open_keys:
                time.sleep(0.01)
