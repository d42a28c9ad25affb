"""Reading our documents, and a node that their examples are played on.

Examples talk to a real node (LMDB in a temporary directory, all 1,024 vBuckets) whose sessions are
driven by hand: there is no socket, no time passes and no commit happens unless the example says so.
How examples are written is told in ``docs/protocol.md``, "How to read layouts and examples".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from uprmc.config import build
from uprmc.kv.session import Negotiation
from uprmc.model import VBucketState
from uprmc.ports import Session
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_RESPONSE, Opcode
from uprmc.server.node import Node

ROOT = Path(__file__).parent.parent


def _page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


PROTOCOL = _page("protocol")
MANAGEMENT = _page("management")
STREAMS = _page("streams")
EXTENSIONS = _page("extensions")
OPERATIONS = _page("operations")
INSTALL = _page("install")
SECURITY = _page("security")
BACKGROUND = _page("background")
TROUBLESHOOTING = _page("troubleshooting")
STATISTICS = _page("statistics")
TAP_MESSAGES = _page("tap-messages")

ON_DISK = "everything is written to disk"
CLOSED = "the server closes the connection"
SECONDS = re.compile(r"(\d+) seconds pass")

_UUID_EXTRAS_BYTES = 16
_LEASE_EXTRAS_BYTES = 12
_LOGS = (Opcode.UPR_STREAM_REQUEST, Opcode.UPR_GET_FAILOVER_LOG, Opcode.GET_FAILOVER_LOG)


# --- reading the documents ----------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """One fenced block; `line` is where it begins."""

    kind: str
    line: int
    lines: tuple[str, ...]


def examples(document: str) -> Iterator[Example]:
    for found in re.finditer(r"^```(hex|hex upr|memcached)\n(.*?)^```$", document, re.M | re.S):
        line = document.count("\n", 0, found.start()) + 1
        lines = chain.from_iterable(map(_expanded, found[2].splitlines()))
        yield Example(found[1], line, tuple(lines))


_STORED = re.compile(r"\* (\S.*) (?:is|are) stored(?: in vBucket (\d+))?")
_OPEN = "* a producer is open"
_CONTROL = re.compile(r"\* CONTROL (\w+) = (\S+)")
_REQUESTED = re.compile(r"\* the stream of vBucket (\d+) is requested")


def _expanded(line: str) -> list[str]:
    """Return the frames that a line of an example stands for, or the line."""
    if found := _STORED.fullmatch(line):
        return [
            part
            for pair in found[1].split(", ")
            for key, _, value in (pair.partition("="),)
            for part in _frame(
                "> 80 11", key.encode(), bytes(8), value.encode(), int(found[2] or 0)
            )
        ]
    if line == _OPEN:
        return [*_frame("> 80 50", b"idx", bytes(7) + b"\1"), *_frame("< 81 50")]
    if found := _CONTROL.fullmatch(line):
        key, value = found[1].encode(), found[2].encode()
        return [*_frame("> 80 5e", key, value=value), *_frame("< 81 5e")]
    if found := _REQUESTED.fullmatch(line):
        extras = bytes(16) + b"\xff" * 8 + bytes(24)
        accepted = "< 81 53 0000 00 00 0000 00000010 00001001 0000000000000000"
        asked = _frame("> 80 53", extras=extras, vbucket=int(found[1]), opaque=0x1001)
        return [*asked, accepted, f"< ................ {'0' * 16}"]
    return [line]


def _frame(
    start: str,
    key: bytes = b"",
    extras: bytes = b"",
    value: bytes = b"",
    vbucket: int = 0,
    opaque: int = 0,
) -> list[str]:
    body = extras + key + value
    head = f"{start} {len(key):04x} {len(extras):02x} 00 {vbucket:04x} {len(body):08x} {opaque:08x}"
    return [f"{head} {'0' * 16}", *([f"{start[0]} {body.hex()}"] if body else [])]


def identified(kind: str, **documents: str) -> list[pytest.ParameterSet]:
    """Return the examples of pages for `parametrize`, named by page and line."""
    return [
        pytest.param(example, id=f"{name}-line-{example.line}")
        for name, document in documents.items()
        for example in examples(document)
        if example.kind.startswith(kind)
    ]


def shown_opcodes(document: str, mark: str) -> set[int]:
    """Return the opcodes of requests that examples show, `mark` saying who sends them."""
    return {
        int(found[1], 16)
        for example in examples(document)
        for line in example.lines
        if (found := re.match(rf"{mark} 80 ([0-9a-f]{{2}}) [0-9a-f]{{4}} ", line))
    }


def section(document: str, heading: str) -> str:
    """Return what stands below a heading, up to the next one of its level or above."""
    level = heading.split(" ")[0]
    _, found, rest = document.partition(f"\n{heading}\n")
    assert found, f"there is no section {heading!r}"
    return re.split(rf"^#{{2,{len(level)}}} ", rest, maxsplit=1, flags=re.M)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of every table row, without heads; a column's ``\\|`` is a plain bar."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = {i - 1 for i, line in enumerate(lines) if re.fullmatch(r"[|-]+", line)}
    return [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for i, line in enumerate(lines)
        if i not in heads and i - 1 not in heads
    ]


def names(text: str) -> list[str]:
    """Return what stands in backquotes in the first column of the tables."""
    return [name for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])]


# --- a node without sockets ---------------------------------------------------------------------


class HandDrivenNode:
    """A warmed-up node; commits and compactions happen in `write_to_disk` only."""

    def __init__(self, path: Path, **changes: object) -> None:
        given = {"storage.data": str(path), "server.max_connections": 100, "flush.sync": False}
        self.node = Node(Clock(), build(given | changes))
        self.node.upr.preread = None  # whether pages are in memory is up to the machine
        for _ in self.node.warmup.steps():
            pass

    def session(self, *, by_key: bool) -> Session:
        return Negotiation(self.node._services("test"), lambda: None, by_key=by_key)

    def write_to_disk(self) -> None:
        flusher, compactor = self.node.bucket.flusher, self.node.bucket.compactor
        while flusher.pending or compactor.waiting:
            if flush := flusher.begin():
                flusher.commit(flush)
                flusher.finish(flush)
            if reading := compactor.begin():
                compactor.read(reading)
                compactor.finish(reading)

    def empty(self) -> None:
        """Begin anew: no documents, no locks, every vBucket active and at seqno 0."""
        bucket = self.node.bucket
        for number in range(bucket.settings.engine.vbuckets):
            bucket.set_state(number, VBucketState.ACTIVE)
        bucket.flush(0, lambda durable: None)
        self.write_to_disk()

    def close(self) -> None:
        self.node.bucket.store.close()


class Talk:
    """One connection: what an example sends, and what has come back and was not compared yet."""

    def __init__(self, node: HandDrivenNode, *, by_key: bool) -> None:
        self._node = node
        self._session = node.session(by_key=by_key)
        self._now = 0.0
        self.answered = b""

    @property
    def closing(self) -> bool:
        return self._session.closing

    def send(self, data: bytes) -> None:
        self._session.receive_data(data)
        while self._session.successor is not None:
            self._session = self._session.successor
        self._drain()

    def write_to_disk(self) -> None:
        self._node.write_to_disk()
        self._drain()

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self._now += 1
            self._session.tick(self._now)
            self._drain()

    def take(self) -> bytes:
        taken, self.answered = self.answered, b""
        return taken

    def hang_up(self) -> None:
        self._session.connection_lost()

    def _drain(self) -> None:
        # What begins may rest for some turns, as a count of rows does: nothing so often is nothing.
        silent = 0
        while silent < 4:
            pieces = self._session.data_to_send(1 << 20)
            self.answered += b"".join(pieces)
            silent = 0 if pieces else silent + 1


def steps(example: Example) -> Iterator[tuple[str, list[str]]]:
    """Yield runs of lines with the same mark: (``>``, ``<`` or ``*``, what stands behind it)."""
    mark, run = "", []
    for line in example.lines:
        if line[:1] != mark and run:
            yield mark, run
            run = []
        mark = line[:1]
        run.append(line[2:])
    yield mark, run


def replay(
    talk: Talk,
    example: Example,
    send: Callable[[list[str]], None],
    expect: Callable[[list[str], bytes], None],
) -> None:
    """Play an example; whatever is answered has to be in it."""
    for mark, run in steps(example):
        if mark == ">":
            assert not talk.answered, "an answer that the example does not have"
            send(run)
        elif mark == "<":
            expect(run, talk.take())
        elif run == [ON_DISK]:
            talk.write_to_disk()
        elif passed := SECONDS.fullmatch(run[0]):
            talk.wait(int(passed[1]))
        else:
            assert (mark, run) == ("*", [CLOSED])
            assert talk.closing
    assert not talk.answered, "an answer that the example does not have"
    assert talk.closing is (example.lines[-1] == f"* {CLOSED}")


class HexReader:
    """Turns the lines of one example into bytes and patterns; see `examples`."""

    def __init__(self) -> None:
        self.cas = b""
        self.uuid = b""
        self.lease = b""

    @staticmethod
    def _digits(lines: list[str]) -> str:
        return "".join(line.partition(";")[0].replace(" ", "") for line in lines)

    def request(self, lines: list[str]) -> bytes:
        digits = self._digits(lines)
        for placeholder, stands_for in (
            ("=" * 16, self.cas.hex()),
            ("u" * 16, self.uuid.hex()),
            ("U" * 32, self.uuid.hex().encode().hex()),
            ("k" * 16, self.lease.hex()),
            ("K" * 32, self.lease.hex().encode().hex()),
        ):
            assert stands_for or placeholder not in digits, "it stands for nothing yet"
            digits = digits.replace(placeholder, stands_for)
        return bytes.fromhex(digits)

    def check(self, lines: list[str], answered: bytes) -> None:
        expected = self._digits(lines)
        got = answered.hex()
        assert len(got) == len(expected), f"answered {got}, expected {expected}"
        shown = "".join("." if e == "." else g for e, g in zip(expected, got, strict=True))
        assert shown == expected
        self._remember(answered)

    def _remember(self, answered: bytes) -> None:
        while answered:
            end = HEADER_BYTES + int.from_bytes(answered[8:12], "big")
            if answered[0] == MAGIC_RESPONSE:
                self._remember_reply(answered[:HEADER_BYTES], answered[HEADER_BYTES:end])
            answered = answered[end:]

    def _remember_reply(self, header: bytes, body: bytes) -> None:
        if any(header[16:]):
            self.cas = header[16:]
        logged = header[1] in _LOGS and not any(header[6:8])
        if header[4] == _UUID_EXTRAS_BYTES or logged:
            self.uuid = body[:8]
        if header[1] == Opcode.LEASE_ACQUIRE and header[4] == _LEASE_EXTRAS_BYTES:
            self.lease = body[:8]
