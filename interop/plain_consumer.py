"""Keep a copy of a node's documents in SQLite, as a stranger would: a whole UPR consumer.

    python plain_consumer.py --node 127.0.0.1:11210 --copy copy.sqlite

Written from ``docs/streams.md`` (and the pages it names) alone, with the standard library alone.
Documents and the place in every vBucket are stored in the same transactions, so this process may
be killed at any moment, and so may the node. ``--node @FILE`` reads the address from a file before
every attempt to connect, for a node that changes it. The table ``tally`` counts what has happened.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import heapq
import itertools
import signal
import socket
import sqlite3
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

OPEN, STREAM_REQUEST, STREAM_END, SNAPSHOT_MARKER = 0x50, 0x53, 0x55, 0x56
MUTATION, DELETION, EXPIRATION, NOOP, BUFFER_ACK, CONTROL = 0x57, 0x58, 0x59, 0x5C, 0x5D, 0x5E
#: Seconds between two attempts to connect, at most; a connection that lived longer was a good one.
LONGEST_WAIT = 1

HELLO, GET_ALL_VB_SEQNOS, OBSERVE_SEQNO = 0x1F, 0x48, 0x91
SUCCESS, NOT_MY_VBUCKET, ROLLBACK, TEMPORARY_FAILURE = 0x00, 0x07, 0x23, 0x86
PRODUCER_THAT_TELLS_DELETION_TIMES = 0x21
NEVER = 0xFFFFFFFFFFFFFFFF

ITEMS = {MUTATION: "mutations", DELETION: "deletions", EXPIRATION: "expirations"}

HEADER = struct.Struct(">BBHBBHIIQ")
MUTATION_EXTRAS = struct.Struct(">QQIIIHB")  # seqno, rev, flags, expiry, lock time, nmeta, nru
LOG_ENTRY = struct.Struct(">QQ")  # vb_uuid, the seqno after which it begins

SCHEMA = """
CREATE TABLE IF NOT EXISTS document (
    vbucket INTEGER, key BLOB, value BLOB, flags INTEGER, expiry INTEGER, cas INTEGER,
    rev INTEGER, datatype INTEGER, PRIMARY KEY (vbucket, key)) WITHOUT ROWID;
-- Where each vBucket stands. floor: the lowest seqno above 0 that can be returned to, 0 = none.
CREATE TABLE IF NOT EXISTS place (
    vbucket INTEGER PRIMARY KEY, log BLOB, seqno INTEGER, snap_start INTEGER, snap_end INTEGER,
    floor INTEGER);
-- What each item above the floor replaced (rev NULL: nothing); whole: it ended its snapshot.
CREATE TABLE IF NOT EXISTS undo (
    vbucket INTEGER, seqno INTEGER, whole INTEGER, key BLOB, value BLOB, flags INTEGER,
    expiry INTEGER, cas INTEGER, rev INTEGER, datatype INTEGER,
    PRIMARY KEY (vbucket, seqno)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tally (name TEXT PRIMARY KEY, count INTEGER);
"""


class ProtocolError(Exception):
    """The node did what the documentation rules out."""


class Frame(NamedTuple):
    magic: int
    opcode: int
    field: int  # the vBucket of a request, the status of an answer
    opaque: int
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
    datatype: int = 0
    cas: int = 0

    @property
    def size(self) -> int:
        return HEADER.size + len(self.extras) + len(self.key) + len(self.value)

    def encode(self) -> bytes:
        lengths = len(self.key), len(self.extras)
        header = (self.magic, self.opcode, *lengths, self.datatype, self.field)
        body = self.extras + self.key + self.value
        return HEADER.pack(*header, len(body), self.opaque, self.cas) + body


OnAnswer = Callable[[Frame], None]


def decode(data: bytes) -> tuple[list[Frame], bytes]:
    """All frames that are whole, and the rest."""
    frames, at = [], 0
    while len(data) - at >= HEADER.size:
        magic, opcode, keys, extras, datatype, field, size, opaque, cas = HEADER.unpack_from(
            data, at
        )
        key = at + HEADER.size + extras
        value, end = key + keys, at + HEADER.size + size
        if end > len(data):
            break
        body = data[key - extras : key], data[key:value], data[value:end]
        frames.append(Frame(magic, opcode, field, opaque, *body, datatype, cas))
        at = end
    return frames, data[at:]


@dataclass
class Place:
    """What a vBucket's next stream request says."""

    log: bytes = b""  # as the node sent it: newest entry first
    seqno: int = 0
    snap_start: int = 0
    snap_end: int = 0
    floor: int = 0

    @property
    def vb_uuid(self) -> int:
        return LOG_ENTRY.unpack_from(self.log)[0] if self.log else 0


class Copy:
    """The documents, and how far they go. All changes happen inside of `transaction`."""

    def __init__(self, path: str) -> None:
        self.database = sqlite3.connect(path, isolation_level=None)
        # Without a sync for each commit a power loss costs the newest ones, as a whole: harmless.
        self.database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + SCHEMA)
        self._run = self.database.execute
        self.places: dict[int, Place] = {}
        self.load()

    def load(self) -> None:
        self._changed: set[int] = set()
        self._tally: Counter[str] = Counter()
        rows = self._run("SELECT vbucket, log, seqno, snap_start, snap_end, floor FROM place")
        self.places = {vbucket: Place(*rest) for vbucket, *rest in rows}

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            for vbucket in self._changed:
                place = self.places[vbucket]
                row = (vbucket, place.log, place.seqno, place.snap_start, place.snap_end)
                self._run("REPLACE INTO place VALUES (?, ?, ?, ?, ?, ?)", (*row, place.floor))
            for name, count in self._tally.items():
                self._run("INSERT OR IGNORE INTO tally VALUES (?, 0)", (name,))
                self._run("UPDATE tally SET count = count + ? WHERE name = ?", (count, name))
            self._run("COMMIT")
        except BaseException:
            if self.database.in_transaction:
                self._run("ROLLBACK")
            self.load()
            raise
        self._changed.clear()
        self._tally.clear()

    def count(self, name: str, by: int = 1) -> None:
        self._tally[name] += by

    def change(self, vbucket: int) -> Place:
        """The place of a vBucket, which will be stored with this transaction."""
        self._changed.add(vbucket)
        return self.places.setdefault(vbucket, Place())

    def apply(self, vbucket: int, item: Frame, start: int, end: int) -> None:
        """Take one item of the snapshot that goes from start to end."""
        place = self.change(vbucket)
        (seqno,) = struct.unpack_from(">Q", item.extras)
        if not (place.seqno < seqno and start <= seqno <= end):
            raise ProtocolError(f"vb {vbucket}: {seqno} after {place}, marker {start}..{end}")
        if place.floor:  # below it there is nothing to return to but 0, and that needs no undo
            self._run(
                "INSERT INTO undo SELECT ?1, ?2, ?3, ?4, value, flags, expiry, cas, rev, datatype"
                " FROM (SELECT 1) LEFT JOIN document ON vbucket = ?1 AND key = ?4",
                (vbucket, seqno, seqno == end, item.key),
            )
        if item.opcode == MUTATION:
            _, rev, flags, expiry, _, nmeta, _ = MUTATION_EXTRAS.unpack(item.extras)
            value = item.value[: len(item.value) - nmeta]
            self._put(vbucket, item.key, value, flags, expiry, item.cas, rev, item.datatype)
        else:
            self._remove(vbucket, item.key)
        place.seqno = seqno
        place.snap_start, place.snap_end = (seqno, seqno) if seqno == end else (start, end)
        if seqno == end and not place.floor:
            place.floor = seqno

    def roll_back(self, vbucket: int, to: int) -> None:
        """Return to the newest boundary at or below ``to``; to nothing if there is none."""
        place = self.change(vbucket)
        boundary = self._boundary(vbucket, to) or (place.floor if place.floor <= to else 0)
        if not boundary:
            self._run("DELETE FROM document WHERE vbucket = ?", (vbucket,))
            self._run("DELETE FROM undo WHERE vbucket = ?", (vbucket,))
            self.places[vbucket] = Place()
            self.count("started over")
            return
        above = (vbucket, boundary)
        for key, *before in self._run(
            "SELECT key, value, flags, expiry, cas, rev, datatype FROM undo"
            " WHERE vbucket = ? AND seqno > ? ORDER BY seqno DESC",
            above,
        ).fetchall():
            if before[4] is None:
                self._remove(vbucket, key)
            else:
                self._put(vbucket, key, *before)
            self.count("items undone")
        self._run("DELETE FROM undo WHERE vbucket = ? AND seqno > ?", above)
        entries = [entry for entry in LOG_ENTRY.iter_unpack(place.log) if entry[1] <= boundary]
        place.log = b"".join(LOG_ENTRY.pack(*entry) for entry in entries)
        place.seqno = place.snap_start = place.snap_end = boundary
        self.count("rolled back")

    def forget_undo(self, vbucket: int, persisted: int) -> None:
        """Keep the newest boundary that may still be needed, and what came after it."""
        place = self.change(vbucket)
        if floor := self._boundary(vbucket, min(place.snap_start, persisted)):
            self._run("DELETE FROM undo WHERE vbucket = ? AND seqno <= ?", (vbucket, floor))
            place.floor = floor

    def _boundary(self, vbucket: int, to: int) -> int | None:
        """The newest end of a snapshot at or below ``to``, but above the floor."""
        query = "SELECT max(seqno) FROM undo WHERE vbucket = ? AND seqno <= ? AND whole"
        return self._run(query, (vbucket, to)).fetchone()[0]

    def _put(self, *row: object) -> None:
        self._run("REPLACE INTO document VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def _remove(self, vbucket: int, key: bytes) -> None:
        self._run("DELETE FROM document WHERE vbucket = ? AND key = ?", (vbucket, key))


@dataclass
class Stream:
    opaque: int
    snapshot: tuple[int, int] | None = None  # of the last marker


class Session:
    """One connection, from its first byte to its last; ``run`` ends with an exception."""

    def __init__(self, copy: Copy, sock: socket.socket, options: argparse.Namespace) -> None:
        self.copy = copy
        self.sock = sock
        self.options = options
        self._received = b""
        self._window = 0  # flow control: bytes that may be out; 0 until it is granted
        self._unacknowledged = 0
        # The node looks at its clocks once a second, so two intervals alone would be too strict.
        self._patience: float | None = 2 * options.noop_interval + 2
        self._streams: dict[int, Stream | None] = {}  # None: asked for again in a moment
        self._opaques = itertools.count(1)
        self._answers: dict[int, OnAnswer] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> None:
        self._ask(HELLO, lambda _: None, key=b"plain-consumer", value=b"\x00\x0b")
        extras = struct.pack(">II", 0, PRODUCER_THAT_TELLS_DELETION_TIMES)
        self._ask(OPEN, self._on_open, extras=extras, key=self.options.name.encode())
        for key, value, on_answer in (
            (b"connection_buffer_size", self.options.window, self._on_flow_control),
            (b"set_noop_interval", self.options.noop_interval, lambda _: None),
            (b"enable_noop", "true", self._on_noop_enabled),
            (b"enable_expiry_opcode", "true", lambda _: None),
        ):
            self._ask(CONTROL, on_answer, key=key, value=str(value).encode())
        self._list_vbuckets()
        self._later(self.options.observe_interval, self._observe)
        heard = time.monotonic()
        while True:
            frames = self._receive(heard)
            if frames:
                heard = time.monotonic()
                with self.copy.transaction():
                    for frame in frames:
                        self._take(frame)
                self._acknowledge()
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()

    def _receive(self, heard: float) -> list[Frame]:
        """Whatever has come; nothing if something is due first."""
        waits = [] if self._patience is None else [heard + self._patience]
        waits += [self._due[0][0]] if self._due else []
        self.sock.settimeout(max(0.001, min(waits) - time.monotonic()) if waits else None)
        try:
            piece = self.sock.recv(1 << 18)
        except TimeoutError:
            if self._patience is not None and time.monotonic() >= heard + self._patience:
                raise ConnectionError("the node has gone silent") from None
            return []
        if not piece:
            raise ConnectionError("the node has hung up")
        frames, self._received = decode(self._received + piece)
        return frames

    def _take(self, frame: Frame) -> None:
        if frame.magic == 0x81:
            if (on_answer := self._answers.pop(frame.opaque, None)) is not None:
                on_answer(frame)
            return
        if frame.opcode == NOOP:
            self.copy.count("keep-alives")
            self._send(frame._replace(magic=0x81, field=SUCCESS))
            return
        self._unacknowledged += frame.size
        stream = self._streams.get(frame.field)
        if stream is None or stream.opaque != frame.opaque:
            return
        if frame.opcode == SNAPSHOT_MARKER:
            self._on_marker(frame, stream)
        elif frame.opcode in ITEMS:
            if stream.snapshot is None:
                raise ProtocolError(f"vb {frame.field}: an item before the first marker")
            self.copy.apply(frame.field, frame, *stream.snapshot)
            self.copy.count(ITEMS[frame.opcode])
        elif frame.opcode == STREAM_END:
            self.copy.count(f"stream end {int.from_bytes(frame.extras)}")
            self._stream_later(frame.field, 0.2)
        else:
            raise ProtocolError(f"opcode {frame.opcode:02x} was not asked for")

    def _on_marker(self, frame: Frame, stream: Stream) -> None:
        start, end, _ = struct.unpack(">QQI", frame.extras)
        place = self.copy.places.get(frame.field, Place())
        inside = place.seqno < place.snap_end
        if start > (place.snap_start if inside else place.seqno + 1) or end <= place.seqno:
            raise ProtocolError(f"vb {frame.field}: marker {start}..{end} at {place}")
        if stream.snapshot is not None and inside:
            self.copy.count("snapshots announced again")
        stream.snapshot = start, end

    def _acknowledge(self) -> None:
        if self._window and self._unacknowledged >= self._window / 5:
            extras = struct.pack(">I", self._unacknowledged)
            self._send(Frame(0x80, BUFFER_ACK, 0, 0, extras))
            self._unacknowledged = 0

    def _on_open(self, answer: Frame) -> None:
        if answer.field != SUCCESS:
            sys.exit(f"OPEN was refused: {answer.field:04x} {answer.value.decode()}")
        self.copy.count("connections")

    def _on_flow_control(self, answer: Frame) -> None:
        self._window = self.options.window if answer.field == SUCCESS else 0

    def _on_noop_enabled(self, answer: Frame) -> None:
        if answer.field != SUCCESS:
            self._patience = None

    def _list_vbuckets(self) -> None:
        active = struct.pack(">I", 1)
        self._ask(GET_ALL_VB_SEQNOS, self._on_vbuckets, extras=active)

    def _on_vbuckets(self, answer: Frame) -> None:
        if answer.field == SUCCESS:
            for vbucket, _ in struct.iter_unpack(">HQ", answer.value):
                if vbucket not in self._streams:
                    self._request_stream(vbucket)
        # Again and again: vBuckets may be added.
        self._later(10 if answer.field == SUCCESS else 0.5, self._list_vbuckets)

    def _request_stream(self, vbucket: int) -> None:
        place = self.copy.places.get(vbucket, Place())
        numbers = (place.seqno, NEVER, place.vb_uuid, place.snap_start, place.snap_end)
        extras = struct.pack(">IIQQQQQ", 0, 0, *numbers)
        on_answer = functools.partial(self._on_stream, vbucket)
        self._streams[vbucket] = Stream(
            self._ask(STREAM_REQUEST, on_answer, vbucket, extras=extras)
        )

    def _on_stream(self, vbucket: int, answer: Frame) -> None:
        self.copy.count(f"stream answer {answer.field:04x}")
        if answer.field == SUCCESS:
            self.copy.change(vbucket).log = answer.value
        elif answer.field == ROLLBACK:
            self.copy.roll_back(vbucket, int.from_bytes(answer.value))
            self._request_stream(vbucket)
        elif answer.field in (TEMPORARY_FAILURE, NOT_MY_VBUCKET):
            self._stream_later(vbucket, 0.5 if answer.field == TEMPORARY_FAILURE else 1)
        else:
            raise ProtocolError(f"vb {vbucket}: stream request got {answer.field:04x}")

    def _stream_later(self, vbucket: int, seconds: float) -> None:
        self._streams[vbucket] = None
        self._later(seconds, functools.partial(self._request_stream, vbucket))

    def _observe(self) -> None:
        """Ask how far the node's disk is: what is there will not be rolled back."""
        for (vbucket,) in self.copy.database.execute(
            "SELECT DISTINCT vbucket FROM undo"
        ).fetchall():
            vb_uuid = struct.pack(">Q", self.copy.places[vbucket].vb_uuid)
            self._ask(OBSERVE_SEQNO, self._on_observed, vbucket, value=vb_uuid)
        self._later(self.options.observe_interval, self._observe)

    def _on_observed(self, answer: Frame) -> None:
        if answer.field == SUCCESS and answer.value[0] == 0:  # our history is the node's newest
            _, vbucket, _, persisted, _ = struct.unpack(">BHQQQ", answer.value)
            self.copy.forget_undo(vbucket, persisted)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._opaques), action))

    def _ask(self, opcode: int, on_answer: OnAnswer, vbucket: int = 0, **body: bytes) -> int:
        opaque = next(self._opaques)
        self._answers[opaque] = on_answer
        self._send(Frame(0x80, opcode, vbucket, opaque, **body))
        return opaque

    def _send(self, frame: Frame) -> None:
        self.sock.settimeout(30)
        self.sock.sendall(frame.encode())


def connect(node: str) -> socket.socket:
    if node.startswith("@"):
        node = Path(node[1:]).read_text().strip()
    host, _, port = node.rpartition(":")
    sock = socket.create_connection((host.strip("[]"), int(port)), timeout=5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def follow(copy: Copy, options: argparse.Namespace) -> None:
    wait = 0.1
    while True:
        began = time.monotonic()
        try:
            with connect(options.node) as sock:
                Session(copy, sock, options).run()
        except OSError as error:
            say(error)
            if time.monotonic() - began > LONGEST_WAIT:
                wait = 0.1
        except ProtocolError as error:  # at the same place again, probably: let it take its time
            say(error)
            with copy.transaction():
                copy.count("misunderstandings")
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)


def say(error: Exception) -> None:
    print(f"{time.strftime('%H:%M:%S')} {error!r}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--node", default="127.0.0.1:11210", help="HOST:PORT, or @FILE")
    parser.add_argument("--copy", required=True, help="an SQLite database; made if it is absent")
    parser.add_argument("--name", default="plain-consumer", help="nobody else's")
    parser.add_argument("--window", type=int, default=1 << 20, help="bytes sent ahead")
    parser.add_argument("--noop-interval", type=float, default=20, help="seconds")
    parser.add_argument("--observe-interval", type=float, default=5, help="seconds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    copy = Copy(options.copy)
    with contextlib.closing(copy.database):
        follow(copy, options)


if __name__ == "__main__":
    main()
