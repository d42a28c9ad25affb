"""A bucket with sessions that are fed whatever comes, and everything that must hold meanwhile."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from tests.codec import frames
from tests.codec.frames import HEADER
from tests.contents import table_of
from tests.fuzz.dialler import Dialler
from tests.fuzz.grammar import Request, Spoil, spoiled
from tests.kv.harness import ManualClock, SeededEntropy
from uprmc.config import (
    EngineSettings,
    FlushSettings,
    KvSettings,
    MemorySettings,
    Settings,
    TapSettings,
)
from uprmc.engine.bucket import Bucket
from uprmc.engine.warmup import Warmup
from uprmc.kv.services import Services, StatGroup
from uprmc.kv.session import Negotiation
from uprmc.kv.upr_session import UprSession
from uprmc.ports import Session
from uprmc.storage.memory import MemoryStore
from uprmc.tap_adapter.node_tap import NodeTap
from uprmc.tap_adapter.session import FRAME_MAX_BYTES, TapSession
from uprmc.upr.hub import Hub
from uprmc.upr.replication import Replication

SETTINGS = Settings(
    kv=KvSettings(
        max_item_bytes=4_096,
        max_frame_bytes=65_536,
        max_line_bytes=1_024,
        max_unsent_bytes=16_384,
    ),
    engine=EngineSettings(vbuckets=4),
    memory=MemorySettings(quota=400_000, pager_slice=200),
    flush=FlushSettings(batch_items=200),
    tap=TapSettings(
        ack_interval=5, ack_window=4, ack_grace_s=20.0, backoff_s=0.1, noop_interval_s=10.0, names=4
    ),
)

#: What the adapter hands over at a time.
CHUNK_BYTES = 4_096

#: A request that is not complete: the longest item or line, and the chunk that may follow
#: `input_full`.
HELD_MAX_BYTES = 8_192 + 2 * CHUNK_BYTES

#: A UPR peer also answers, and its answers are read as a whole up to 64 KiB.
HELD_ANSWER_MAX_BYTES = 24 + 65_536 + CHUNK_BYTES

#: Replies: the limit, what one chunk of requests may add behind it, one reply.
UNSENT_MAX_BYTES = 16_384 + 3 * CHUNK_BYTES + 8_192

#: Requests between two looks at everything.
_CHECK_EVERY = 100


#: What a session may ask: UPR and its extensions, TAP.
_ASKED = frozenset((*range(0x50, 0x5F), 0xD6, *range(0xE9, 0xED), 0xE7, *range(0x41, 0x48), 0x0A))

#: All documents are dropped now and then: spoiled keys are new keys, and keys stay in memory.
_EMPTY_EVERY = 4_000


class FrameReader:
    """Sees to it that what a session sends are whole frames.

    Attributes:
        sent: opcodes of the frames that were no replies.
        granted: opcodes of replies that say yes.
    """

    def __init__(self, sent: set[int], granted: set[int]) -> None:
        self.sent = sent
        self.granted = granted
        self._buffer = b""

    def feed(self, data: bytes) -> None:
        """Check the frames that are complete now; a stream sends requests beside the replies."""
        buffer = self._buffer + data
        while len(buffer) >= HEADER.size:
            magic, opcode, key, extras, _, status, body, _, _ = HEADER.unpack_from(buffer)
            assert magic in (0x80, 0x81), f"a frame begins with {magic:#04x}"
            asked = opcode in _ASKED
            assert magic == 0x81 or asked, f"a session asks {opcode:#04x}"
            assert extras + key <= body, "lengths of a frame contradict each other"
            if len(buffer) < HEADER.size + body:
                break
            if magic == 0x80:
                self.sent.add(opcode)
            elif not status:
                self.granted.add(opcode)
            buffer = buffer[HEADER.size + body :]
        self._buffer = buffer


def _stats(words: str) -> StatGroup | None:
    return [("pid", "1"), ("version", "fuzz")] if words in ("", "settings") else None


class Fuzz:
    """One bucket, one spoiled peer after the other, and a well-behaved one beside them.

    Attributes:
        sent: requests so far.
        closed: how many connections the sessions ended.
        fetches: how often somebody waited for the disk.
        streamed: opcodes of what sessions have sent by themselves.
        granted: opcodes of requests that were granted.
        dialler: reaches those whom the node is told to follow.
        last: the requests of the present connection, for whoever looks into a failure.
    """

    def __init__(
        self, seed: int, request: Request, spoil: Spoil, greeting: Request | None = None
    ) -> None:
        self.random = Random(seed)
        self.sent = self.closed = self.fetches = 0
        self.streamed: set[int] = set()
        self.granted: set[int] = set()
        self.last: list[bytes] = []
        self._request = request
        self._greeting = greeting
        self._spoil = spoil
        self._seconds = 0.0
        self._clock = ManualClock()
        self._store = MemoryStore()
        self._bucket = Bucket(SETTINGS, self._store, self._clock, SeededEntropy(self.random))
        self._hub = Hub(self._bucket, SETTINGS.upr)
        self.dialler = Dialler(self.random)
        self._replication = Replication(self._hub, self.dialler.dial)
        self._tap = NodeTap(self._hub, SETTINGS.tap, lambda: self._seconds, lambda: b"map")
        for _ in Warmup(self._bucket).steps():
            pass
        self._witness = self._connect()
        self._witnessed = 0

    def run(self, requests: int) -> None:
        """Send so many requests, on as many connections as it takes."""
        while self.sent < requests:
            self._one_connection()
            if self.sent // _EMPTY_EVERY != (self.sent - len(self.last)) // _EMPTY_EVERY:
                self._bucket.flush(0.0, lambda durable: None)
                self._work()

    # --- one connection -------------------------------------------------------------------------

    def _connect(self) -> Session:
        services = Services(
            bucket=self._bucket,
            settings=SETTINGS.kv,
            version=b"fuzz",
            stats=_stats,
            reset_stats=self._bucket.stats.reset,
            set_verbosity=lambda level: None,
            report_misuse=lambda reason: None,
            upr=self._hub,
            replication=self._replication,
            tap=self._tap,
        )
        return Negotiation(services, lambda: None, by_key=self.random.random() < 0.5)

    def _one_connection(self) -> None:
        random = self.random
        session = self._connect()
        reader = FrameReader(self.streamed, self.granted)
        self.last = []
        if self._greeting and random.random() < 0.95:
            self.last.append(self._greeting(random))
            session = self._deliver(session, self.last[0], reader)
        spoil = random.choice((0.0, 0.02, 0.3, 1.0))
        for _ in range(random.choice((1, 10, 100, 300))):
            request = self._request(random)
            if random.random() < spoil:
                request = spoiled(random, request, self._request(random), self._spoil)
            self.last.append(request)
            self.sent += 1
            session = self._deliver(session, request, reader)
            if session.closing:
                self.closed += 1
                break
            if not self.sent % _CHECK_EVERY:
                self._look_after()
                if isinstance(session, TapSession):
                    session.tick(self._seconds)
        if random.random() < 0.5:
            self._work()
        session.connection_lost()
        self._check_left()

    def _deliver(self, session: Session, request: bytes, reader: FrameReader) -> Session:
        """Hand a request over in pieces, by the rules of the adapter."""
        random = self.random
        while request and not session.closing:
            size = random.choice((1, 7, 23, 24, 100, CHUNK_BYTES, CHUNK_BYTES))
            chunk, request = request[:size], request[size:]
            session.receive_data(chunk)
            session = _current(session)
            self._check_size(session)
            if random.random() < 0.7 or session.input_full:
                session = self._pull(session, reader)
            if session.input_full and not session.closing:
                session = self._unblock(session, reader)
        return self._pull(session, reader)

    def _pull(self, session: Session, reader: FrameReader) -> Session:
        """Take what there is to send; it must be frames."""
        budget = self.random.choice((1, 500, 65_536))
        while pieces := session.data_to_send(budget):
            data = b"".join(pieces)
            if self.last and self.last[0][:1] == b"\x80":
                reader.feed(data)
            session = _current(session)
            self._check_size(session)
        return session

    def _unblock(self, session: Session, reader: FrameReader) -> Session:
        """A session that wants no input waits for the disk; when that has worked it goes on.

        Some wait for what may never come, until their time is over.
        """
        for attempt in range(10):
            self._work()
            if attempt > 1:
                self._seconds += 60.0
                session.tick(self._seconds)
                self._replication.tick(self._seconds)
            session = self._pull(session, reader)
            if not session.input_full or session.closing:
                return session
        raise AssertionError("a session does not go on though nothing is left to wait for")

    def _check_left(self) -> None:
        """Nobody is connected but the witness: no stream stays, no push."""
        streams = [known.name for known in self._tap.registry.names if known.producer is not None]
        assert not streams, f"TAP streams stay: {streams}"
        assert not self._tap.pushes.pushers, "TAP pushes stay"

    def _check_size(self, session: Session) -> None:
        inside: Any = session
        if isinstance(session, Negotiation):
            return
        if isinstance(session, TapSession):
            assert len(inside._input) <= FRAME_MAX_BYTES + CHUNK_BYTES, "too much input is held"
            assert sum(map(len, inside._out)) == inside._unsent, "it does not know what it holds"
            return
        held = sum(map(len, inside._chunks))
        unsent = sum(map(len, inside._out))
        assert held == inside._held, "the session does not know what it holds"
        assert unsent == inside._unsent, "the session does not know what it has to send"
        limit = HELD_ANSWER_MAX_BYTES if isinstance(session, UprSession) else HELD_MAX_BYTES
        assert held <= limit, f"{held} bytes of input are held"
        assert unsent <= UNSENT_MAX_BYTES, f"{unsent} bytes of output are held"

    # --- everything else ------------------------------------------------------------------------

    def _work(self) -> None:
        """Do what a node does beside its connections, all of it."""
        bucket = self._bucket
        self.dialler.work()
        self._flush()
        while bucket.compactor.waiting:
            if reading := bucket.compactor.begin():
                bucket.compactor.read(reading)
                bucket.compactor.finish(reading)
            self._flush()
        while fetch := bucket.fetcher.begin():
            self.fetches += 1
            bucket.fetcher.commit(fetch)
            bucket.fetcher.finish(fetch)

    def _flush(self) -> None:
        flusher = self._bucket.flusher
        while flush := flusher.begin():
            flusher.commit(flush)
            flusher.finish(flush)

    def _look_after(self) -> None:
        """Let time pass, eject, expire, check the engine, ask the well-behaved session."""
        bucket = self._bucket
        passed = self.random.choice((0.0, 0.1, 3.0))
        self._clock.time += passed
        self._seconds += passed
        self._replication.tick(self._seconds)
        self._work()
        bucket.tick()
        if self.random.random() < 0.2 or bucket.evictor.needed:
            self._eject()
        for steps in (bucket.expirer.run(self._clock.now()), bucket.account.leftovers.steps()):
            for _ in steps:
                pass
        for vbucket in bucket.vbuckets.values():
            vbucket.check()
        recounted = sum(vbucket.table.memory_bytes() for vbucket in bucket.vbuckets.values())
        assert recounted == bucket.account.used
        self._ask_witness()

    def _eject(self) -> None:
        """Eject some values, so that some requests have to wait."""
        for vbucket in self._bucket.vbuckets.values():
            for item in list(table_of(vbucket).values()):
                clean = item.seqno <= vbucket.persisted_seqno
                if item.value is not None and clean and self.random.random() < 0.5:
                    vbucket.eject(item.key)

    def _ask_witness(self) -> None:
        """A peer that behaves is served whatever the others do.

        It first undoes what others may: traffic and persistence are on, all vBuckets active.
        """
        self._witnessed += 1
        for frame in (
            _frame(0xAD),
            _frame(0x81),
            *(_frame(0x3D, extras=struct.pack(">I", 1), vbucket=number) for number in range(4)),
        ):
            self._witness.receive_data(frame)
            self._witness = _current(self._witness)
            self._witness.data_to_send(65_536)
        key, body = b"witness", b"%d" % self._witnessed
        for frame, expected in (
            (_frame(0x01, key, body, extras=bytes(8)), b""),
            (_frame(0x00, key), bytes(4) + body),
        ):
            self._witness.receive_data(frame)
            self._witness = _current(self._witness)
            reply = b"".join(self._witness.data_to_send(65_536))
            assert reply[24:] == expected, f"the witness got {reply!r}"
            assert reply[6:8] == bytes(2)
            assert not self._witness.closing


def _current(session: Session) -> Session:
    while session.successor is not None:
        session = session.successor
    return session


def _frame(
    opcode: int, key: bytes = b"", body: bytes = b"", *, extras: bytes = b"", vbucket: int = 2
) -> bytes:
    return frames.frame(opcode, key, body, extras, vbucket=vbucket, opaque=1)


def run(
    seed: int, requests: int, request: Request, spoil: Spoil, greeting: Request | None = None
) -> Fuzz:
    """Run, and tell how to see it again when it fails.

    Args:
        seed: decides everything.
        requests: how many.
        request: makes one.
        spoil: makes a wrong one of it.
        greeting: makes what most connections begin with.
    """
    fuzz = Fuzz(seed, request, spoil, greeting)
    try:
        fuzz.run(requests)
    except Exception as error:
        tail = b"".join(fuzz.last)[-400:]
        raise AssertionError(
            f"seed {seed}, request {fuzz.sent}: {type(error).__name__}: {error}\n"
            f"the connection ended with {tail!r}"
        ) from error
    return fuzz
