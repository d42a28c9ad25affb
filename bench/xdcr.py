"""What a link costs: documents per second, how late they are, what the source's clients notice.

Two nodes on this machine. The figures:

- documents of 256 bytes per second over one link, beside a program that reads the same documents
  with a waiting get and writes each to the target with a waiting set (the copy that people write);
- lateness at a steady rate of sets: from the answer to the source's client until the target has it;
- the source's p99 of sets while a link copies, against the same without a link;
- after A -> B -> C with nothing new, how long a new link A -> C takes, and what it sends.

Run with ``make bench-xdcr``; ``--documents`` and ``--vbuckets`` change the size.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import struct
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from interop.server_process import ServerProcess, start_uprmc
from uprmc.client.connection import NodeConnection
from uprmc.client.kv import KvClient
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode

VALUE = b"v" * 256
BATCH = 10_000
RATE = 2_000
SECONDS = 5.0


def command(place: str, verb: str, **given: object) -> Any:
    """Carry out a verb of ``uprmc xdcr``."""
    request = RequestFrame(Opcode.XDCR, key=verb.encode(), value=json.dumps(given).encode())
    connection = NodeConnection(place, 60.0, None)
    try:
        answer = connection.ask(request)
    finally:
        connection.close()
    assert not answer.status, answer
    return json.loads(answer.value)


def fill(place: str, count: int) -> None:
    """Store documents."""
    with KvClient([place]) as kv:
        for begin in range(0, count, BATCH):
            keys = range(begin, min(begin + BATCH, count))
            kv.set_many({b"key-%08d" % number: VALUE for number in keys})


def until_level(place: str, name: str) -> Any:
    """Wait until a link has nothing left to send."""
    while True:
        (status,) = [row for row in command(place, "list") if row["name"] == name]
        if status["state"] == "running" and not status["changes_left"]:
            return command(place, "status", name=name)
        time.sleep(0.02)


class Waiting:
    """A client that waits for each answer, with nothing around it."""

    def __init__(self, place: str, vbuckets: int) -> None:
        host, _, port = place.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._vbuckets = vbuckets

    def _ask(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        data = b""
        while len(data) < 24 or len(data) < 24 + struct.unpack_from(">I", data, 8)[0]:
            data += self._socket.recv(65_536)
        return data

    def get(self, key: bytes, vbucket: int) -> bytes:
        head = struct.pack(">BBHBBHIIQ", 0x80, 0, len(key), 0, 0, vbucket, len(key), 0, 0)
        return self._ask(head + key)[28:]

    def set(self, key: bytes, value: bytes, vbucket: int) -> None:
        size = 8 + len(key) + len(value)
        head = struct.pack(">BBHBBHIIQII", 0x80, 1, len(key), 8, 0, vbucket, size, 0, 0, 0, 0)
        self._ask(head + key + value)


def place_of(server: ServerProcess) -> str:
    return str(server.upr)


def copy_rate(a: str, b: str, count: int, vbuckets: int) -> float:
    """Return documents per second of the waiting copy."""
    source, target = Waiting(a, vbuckets), Waiting(b, vbuckets)
    with KvClient([a]) as kv:
        numbers = [kv.vbucket_of(b"key-%08d" % number) for number in range(count)]
    began = time.perf_counter()
    for number, vbucket in enumerate(numbers):
        key = b"key-%08d" % number
        target.set(key, source.get(key, vbucket), vbucket)
    return count / (time.perf_counter() - began)


def lateness(a: str, b: str, vbuckets: int) -> list[float]:
    """Return seconds from the answer of a set until the target has it, at a steady rate."""
    source, target = Waiting(a, vbuckets), Waiting(b, vbuckets)
    with KvClient([a]) as kv:
        number_of = kv.vbucket_of
    found = []
    began = time.perf_counter()
    for number in range(int(RATE * SECONDS)):
        wait = began + number / RATE - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        key = b"late-%08d" % number
        vbucket = number_of(key)
        source.set(key, VALUE, vbucket)
        if number % 20 == 0:
            answered = time.perf_counter()
            while target.get(key, vbucket)[-len(VALUE) :] != VALUE:
                pass
            found.append(time.perf_counter() - answered)
    return found


def set_p99(place: str, vbuckets: int, prefix: bytes, seconds: float = 3.0) -> float:
    """Return the p99 of waiting sets."""
    client = Waiting(place, vbuckets)
    with KvClient([place]) as kv:
        number_of = kv.vbucket_of
    times = []
    end = time.perf_counter() + seconds
    number = 0
    while (now := time.perf_counter()) < end:
        key = b"%s-%08d" % (prefix, number)
        client.set(key, VALUE, number_of(key))
        times.append(time.perf_counter() - now)
        number += 1
    return percentile(times, 0.99)


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[int(len(times) * share)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--vbuckets", type=int, default=1_024)
    parser.add_argument("--data", type=Path, help="where the nodes keep their data")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        words = ("--vbuckets", str(options.vbuckets), "--set", "memory.quota=2GB")
        a, b, c, d = (
            place_of(stack.enter_context(start_uprmc(directory / name, *words))) for name in "abcd"
        )
        fill(a, options.documents)
        idle = set_p99(a, options.vbuckets, b"idle")
        waiting = copy_rate(a, d, min(options.documents, 20_000), options.vbuckets)
        began = time.perf_counter()
        command(a, "create", name="ab", to=b)
        status = until_level(a, "ab")
        rate = status["docs_written"] / (time.perf_counter() - began)
        late = lateness(a, b, options.vbuckets)
        command(a, "create", name="ad", to=d)
        busy = set_p99(a, options.vbuckets, b"busy")
        until_level(a, "ad")
        command(a, "delete", name="ad")
        until_level(a, "ab")
        command(a, "checkpoint", name="ab")
        command(b, "create", name="bc", to=c)
        until_level(b, "bc")
        command(b, "checkpoint", name="bc")
        while records_of(c, source_of(c)) < options.vbuckets:
            time.sleep(0.1)
        began = time.perf_counter()
        command(a, "create", name="ac", to=c)
        third = until_level(a, "ac")
        took = time.perf_counter() - began
        report(rate, waiting, late, idle, busy, third, took)


def source_of(place: str) -> str:
    """Return the bucket uuid of the source whose records were passed on."""
    while not (found := command(place, "checkpoints")["transitive"]):
        time.sleep(0.1)
    return str(found[0]["source_bucket_uuid"])


def records_of(place: str, source: str) -> int:
    """Return how many checkpoints of a source a node has."""
    found, first = 0, 0
    while first is not None:
        answer = command(place, "records", source=source, first=first)
        found, first = found + len(answer["records"]), answer["next"]
    return found


def report(
    rate: float,
    waiting: float,
    late: list[float],
    idle: float,
    busy: float,
    third: dict[str, Any],
    took: float,
) -> None:
    print(f"one link                  {rate:>10,.0f} documents/s")
    print(
        f"waiting copy              {waiting:>10,.0f} documents/s; the link: {rate / waiting:.1f}x"
    )
    middle, most = statistics.median(late), percentile(late, 0.99)
    print(f"lateness at {RATE:,} sets/s  {middle * 1e3:>10.2f} ms median, {most * 1e3:.2f} ms p99")
    print(
        f"p99 of sets at the source {idle * 1e3:>10.3f} ms without a copy, {busy * 1e3:.3f} ms with"
    )
    sent = third["docs_opt_repd"] + third["docs_checked"]
    print(f"a third link              {took:>10.2f} s, {sent} documents sent")


if __name__ == "__main__":
    main()
