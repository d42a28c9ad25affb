"""The table of dialects, asked of processes: memcached, which it was measured with, and ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from interop.dialects import COUNTED, Ask, outcome, table
from interop.server_process import ServerProcess, memcached_program, start_memcached, start_uprmc
from interop.wire import NOOP, Wire, frame

_MARK = 0x7FFF_FFFF
_START: dict[str, Callable[[Path], ServerProcess]] = {
    # Its own threads would count and expire beside us.
    "memcached": lambda _: start_memcached("-o", "no_lru_maintainer,no_lru_crawler"),
    "uprmc": lambda data: start_uprmc(data, "--set", "engine.vbuckets=4"),
}


def asking(text: Wire, binary: Wire) -> Ask:
    def ask(dialect: str, data: bytes) -> bytes:
        said = b""
        if dialect == "text":
            text.send(data, b"version\r\n")
            while not (line := text.line()).startswith(b"VERSION "):
                said += line
            return said
        binary.send(data, frame(NOOP, opaque=_MARK))
        while True:
            head = binary.read(24)
            body = binary.read(int.from_bytes(head[8:12], "big"))
            if int.from_bytes(head[12:16], "big") == _MARK:
                return said
            said += head + body

    return ask


@pytest.fixture(params=sorted(_START))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    if request.param == "memcached" and memcached_program() is None:
        pytest.skip("memcached is not installed")
    with _START[request.param](tmp_path / "data") as started:
        yield started


def test_replies_and_counters_are_those_of_the_table(server: ServerProcess) -> None:
    names = count(1)
    with Wire(server.memcached) as text, Wire(server.memcached) as binary:
        ask = asking(text, binary)

        def counters() -> dict[str, int]:
            lines = ask("text", b"stats\r\n").decode().splitlines()
            pairs = (line.split(" ")[1:3] for line in lines[:-1])
            return {name: int(value) for name, value in pairs if COUNTED.fullmatch(name)}

        wrong = []
        for row in table():
            if row.state == "expired" and server.kind == "uprmc":
                continue  # its own expiry might come first
            found = outcome(row, b"k%d" % next(names), ask, counters)
            if found != (row.reply, row.counters):
                wrong.append((str(row), found))
        assert wrong == []
