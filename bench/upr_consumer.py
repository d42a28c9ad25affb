"""A UPR consumer in plain Python: blocking sockets, `struct`, one tuple for each item.

It is written from the protocol alone and imports nothing of `uprmc`, so it costs what a consumer
costs that somebody writes with care but without a compiler: one `unpack_from` for header and extras
of a mutation, two slices, one tuple. Flow control is on; half a buffer is acknowledged at a time.

As a program it runs in a process of its own, for `bench.upr`. It prints ``ready`` once it has asked
for everything, and its figures as one line of JSON at the end:

    python -m bench.upr_consumer backfill HOST:PORT --pid PID      until all streams have ended
    python -m bench.upr_consumer latency HOST:PORT --items N       time from write to here
    python -m bench.upr_consumer follow HOST:PORT                  until standard input ends
    python -m bench.upr_consumer live HOST:PORT --items N          CPU for each of N new changes
"""

from __future__ import annotations

import argparse
import hashlib
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

OPEN, STREAM_REQUEST, STREAM_END, MUTATION, DELETION = 0x50, 0x53, 0x55, 0x57, 0x58
BUFFER_ACK, CONTROL, ALL_SEQNOS = 0x5D, 0x5E, 0x48
BARRIER_ADD, BARRIER_REACHED = 0xE8, 0xE9
LATEST = 0x04
FOR_EVER = 2**64 - 1

BUFFER_BYTES = 10 << 20
_RECEIVE_BYTES = 256 << 10

_HEADER = struct.Struct(">BBHBBHLLQ")
_STREAM_REQUEST = struct.Struct(">LLQQQQQ")
#: Magic, opcode, key length, vBucket, body length, CAS, and of a mutation's extras: seqno,
#: revision, flags, expiration, length of the extended metadata.
_MUTATION = struct.Struct(">BBH2xHL4xQQQLL4xHx")
_DELETION = struct.Struct(">BBH2xHL4xQQQ2x")


class Change(NamedTuple):
    """What the tuples of `Consumer.batches` hold; they are plain tuples, which are cheaper."""

    vbucket: int
    seqno: int
    rev: int
    cas: int
    flags: int
    expiration: int
    key: bytes
    value: bytes | None


class RefusedError(Exception):
    """The server refused a request; the second argument is the status."""


class Consumer(AbstractContextManager["Consumer"]):
    """One connection that is open as a producer's peer.

    Attributes:
        socket: the connection's.
        vbuckets: the active ones, once `seqnos` has asked.
        ended: streams that have ended.
        opened: streams that have been granted.
    """

    def __init__(
        self, address: tuple[str, int], name: bytes, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self.socket = socket.create_connection(address, timeout=60.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.opened = self.ended = 0
        self.vbuckets: list[int] = []
        self._rest = b""
        self._ack_at = buffer_bytes // 2
        self._unacked = 0
        self.ask(OPEN, name, struct.pack(">LL", 0, 1))
        if buffer_bytes:
            self.control(b"connection_buffer_size", b"%d" % buffer_bytes)

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # --- requests, while no stream is open ------------------------------------------------------

    def ask(self, opcode: int, key: bytes = b"", extras: bytes = b"", value: bytes = b"") -> bytes:
        """Send a request and return the body of its reply.

        Raises:
            RefusedError: its status is not 0, or the server hung up.
        """
        self.socket.sendall(request(opcode, key, extras, value))
        header = self._exactly(_HEADER.size)
        _, answered, _, _, _, status, length, _, _ = _HEADER.unpack(header)
        body = self._exactly(length)
        if status or answered != opcode:
            raise RefusedError(opcode, status, body)
        return body

    def control(self, key: bytes, value: bytes) -> None:
        """Set an option of the connection."""
        self.ask(CONTROL, key, b"", value)

    def seqnos(self) -> dict[int, int]:
        """Return the high seqno of every active vBucket."""
        found = dict(struct.iter_unpack(">HQ", self.ask(ALL_SEQNOS, b"", struct.pack(">L", 1))))
        self.vbuckets = list(found)
        return found

    def _exactly(self, count: int) -> bytes:
        while len(self._rest) < count:
            data = self.socket.recv(_RECEIVE_BYTES)
            if not data:
                raise RefusedError("the server closed the connection")
            self._rest += data
        found, self._rest = self._rest[:count], self._rest[count:]
        return found

    # --- streams --------------------------------------------------------------------------------

    def stream(
        self, vbuckets: Iterable[int], flags: int, start: dict[int, int] | None = None
    ) -> None:
        """Ask for streams without waiting; `start` has the seqnos after which they begin, or 0."""
        frames = []
        for vbucket in vbuckets:
            seqno = start[vbucket] if start else 0
            extras = _STREAM_REQUEST.pack(flags, 0, seqno, FOR_EVER, 0, seqno, seqno)
            frames.append(
                request(STREAM_REQUEST, extras=extras, vbucket=vbucket, opaque=vbucket + 1)
            )
        self.socket.sendall(b"".join(frames))

    def await_frame(self, opcode: int) -> None:
        """Take frames until a request of the server with `opcode` has come; drop all of them.

        Raises:
            RefusedError: something was refused, or the server hung up.
        """
        while True:
            magic, found, _, _, _, status, length, _, _ = _HEADER.unpack(self._exactly(24))
            self._exactly(length)
            if magic == 0x81 and status:
                raise RefusedError(found, status)
            if (magic, found) == (0x80, opcode):
                return

    def receive(self) -> list[tuple[object, ...]]:
        """Wait for data and return the changes in it, as `Change` has them; perhaps none.

        Raises:
            RefusedError: a stream was refused, or the server hung up.
        """
        received = self.socket.recv(_RECEIVE_BYTES)
        if not received:
            raise RefusedError("the server closed the connection")
        return self._decode(self._rest + received if self._rest else received)

    def _decode(self, data: bytes) -> list[tuple[object, ...]]:
        unpack, mutation_bytes = _MUTATION.unpack_from, _MUTATION.size
        batch: list[tuple[object, ...]] = []
        append = batch.append
        position, size = 0, len(data)
        last_start = size - mutation_bytes
        replies = 0
        while position <= last_start:
            magic, opcode, key_length, vbucket, length, cas, seqno, rev, flags, expiration, meta = (
                unpack(data, position)
            )
            end = position + 24 + length
            if end > size:
                break
            if opcode == 0x57:
                key_at = position + 55
                value_at = key_at + key_length
                append(
                    (
                        vbucket,
                        seqno,
                        rev,
                        cas,
                        flags,
                        expiration,
                        data[key_at:value_at],
                        data[value_at : end - meta if meta else end],
                    )
                )
            else:
                replies += self._other(magic, opcode, data, position, end, append)
            position = end
        while size - position >= 24:  # frames shorter than a mutation, at the end of the data
            magic, opcode, _, _, _, _, length, _, _ = _HEADER.unpack_from(data, position)
            end = position + 24 + length
            if end > size:
                break
            replies += self._other(magic, opcode, data, position, end, append)
            position = end
        self._rest = data[position:]
        self._dealt_with(position - replies)
        return batch

    def _other(
        self,
        magic: int,
        opcode: int,
        data: bytes,
        position: int,
        end: int,
        append: Callable[[tuple[object, ...]], None],
    ) -> int:
        """Deal with any frame but a mutation; returns its bytes if flow control leaves it out."""
        if magic == 0x81:
            status = _HEADER.unpack_from(data, position)[5]
            if status:
                raise RefusedError(opcode, status, data[position + 24 : end])
            self.opened += opcode == STREAM_REQUEST
            return end - position
        if opcode == STREAM_END:
            self.ended += 1
        elif opcode == DELETION:
            _, _, key_length, vbucket, _, cas, seqno, rev = _DELETION.unpack_from(data, position)
            key_at = position + 42
            append((vbucket, seqno, rev, cas, 0, 0, data[key_at : key_at + key_length], None))
        return 0

    def _dealt_with(self, size: int) -> None:
        self._unacked += size
        if self._ack_at and self._unacked >= self._ack_at:
            extras = struct.pack(">L", self._unacked)
            self.socket.sendall(request(BUFFER_ACK, extras=extras))
            self._unacked = 0


def request(
    opcode: int,
    key: bytes = b"",
    extras: bytes = b"",
    value: bytes = b"",
    *,
    vbucket: int = 0,
    opaque: int = 0,
) -> bytes:
    """Return a request's frame."""
    body = extras + key + value
    header = _HEADER.pack(0x80, opcode, len(key), len(extras), 0, vbucket, len(body), opaque, 0)
    return header + body


# --- measuring ----------------------------------------------------------------------------------


def cpu_of(pid: int) -> float:
    """CPU seconds of a process's living threads, by the scheduler's nanosecond count."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


class Meter:
    """Wall time, and CPU of this process and of the server, from its making to `figures`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._server_s = cpu_of(pid)
        self._consumer_s = time.process_time()
        self._began = time.perf_counter()

    def figures(self, items: int) -> dict[str, float]:
        """Return them for each item."""
        wall = time.perf_counter() - self._began
        consumer = time.process_time() - self._consumer_s
        server = cpu_of(self._pid) - self._server_s
        return {
            "items": items,
            "items_s": items / wall,
            "consumer_us": consumer * 1e6 / items,
            "server_us": server * 1e6 / items,
            "both_us": (consumer + server) * 1e6 / items,
        }


class Digest:
    """Of keys and values in any order, to tell that two consumers got the same."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Take a pair in."""
        digest = hashlib.blake2b(key + b"\0" + value, digest_size=8).digest()
        self._sum = (self._sum + int.from_bytes(digest, "big")) & FOR_EVER

    def text(self) -> str:
        """Return it."""
        return f"{self._sum:016x}"


def quantiles(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and greatest, of microseconds."""
    ordered = sorted(values)
    return {
        "p50_us": ordered[len(ordered) // 2],
        "p99_us": ordered[len(ordered) * 99 // 100],
        "max_us": ordered[-1],
    }


def say(figures: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(figures), flush=True)


def latency_of(value: bytes) -> float:
    """Microseconds since the moment that a value of `bench.upr`'s writer begins with."""
    return (time.monotonic_ns() - int(value[:20])) / 1e3


# --- the programs -------------------------------------------------------------------------------


def backfill(consumer: Consumer, pid: int, *, check: bool) -> None:
    """Stream everything that there is, up to the ends of all streams."""
    consumer.seqnos()
    vbuckets = consumer.vbuckets
    digest, count = Digest(), 0
    print("ready", flush=True)
    meter = Meter(pid)
    consumer.stream(vbuckets, LATEST)
    while consumer.ended < len(vbuckets):
        batch = consumer.receive()
        count += len(batch)
        if check:
            for change in map(Change._make, batch):
                digest.add(change.key, change.value or b"")
    say(meter.figures(max(1, count)) | {"digest": digest.text()})


def _follow_all(consumer: Consumer) -> None:
    """Follow every vBucket, come up to date, and say so."""
    behind = {vbucket: seqno for vbucket, seqno in consumer.seqnos().items() if seqno}
    vbuckets = len(consumer.vbuckets)
    consumer.stream(consumer.vbuckets, 0)
    while behind or consumer.opened < vbuckets:
        for change in map(Change._make, consumer.receive()):
            if change.seqno >= behind.get(change.vbucket, FOR_EVER):
                del behind[change.vbucket]
    print("ready", flush=True)


def latency(consumer: Consumer, items: int) -> None:
    """Follow everything and tell how old items are when they come."""
    _follow_all(consumer)
    found: list[float] = []
    while len(found) < items:
        found += [
            latency_of(change.value or b"") for change in map(Change._make, consumer.receive())
        ]
    say(quantiles(found) | {"items": len(found)})


def follow(consumer: Consumer) -> None:
    """Take everything until standard input ends and nothing more comes for a moment."""
    _follow_all(consumer)
    count, last_at = 0, 0.0
    ending = False
    sources = [consumer.socket, sys.stdin]
    while True:
        readable = select.select(sources, [], [], 0.5 if ending else None)[0]
        if consumer.socket in readable:
            count += len(consumer.receive())
            last_at = time.monotonic()
        elif sys.stdin in readable:
            ending = True
            sources = [consumer.socket]
        elif ending:
            break
    say({"items": count, "last_at": last_at, "cpu_s": time.process_time()})


def live(consumer: Consumer, items: int) -> None:
    """Follow everything; tell what the next changes cost."""
    _follow_all(consumer)
    began, count = time.process_time(), 0
    while count < items:
        count += len(consumer.receive())
    say({"items": count, "cpu_us": (time.process_time() - began) * 1e6 / count})


def main() -> None:
    options = argparse.ArgumentParser(description="see the module")
    options.add_argument("what", choices=["backfill", "latency", "follow", "live"])
    options.add_argument("address")
    options.add_argument("--pid", type=int, default=0, help="of the server, for its CPU")
    options.add_argument("--items", type=int, default=1_000)
    options.add_argument("--buffer", type=int, default=BUFFER_BYTES, help="flow control, 0 = none")
    options.add_argument("--name", default="", help="a node keeps one connection of each name")
    options.add_argument("--check", action="store_true", help="compare contents, take no figures")
    words = options.parse_args()
    host, _, port = words.address.rpartition(":")
    name = f"bench:{words.name or words.what}".encode()
    with Consumer((host, int(port)), name, words.buffer) as consumer:
        if words.what == "backfill":
            backfill(consumer, words.pid, check=words.check)
        elif words.what == "latency":
            latency(consumer, words.items)
        elif words.what == "live":
            live(consumer, words.items)
        else:
            follow(consumer)


if __name__ == "__main__":
    main()
