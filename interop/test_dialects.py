"""The table of dialects, asked of processes: memcached, which it was measured with, and ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from interop.dialects import CLOSED, COUNTED, outcome, table
from interop.server_process import ServerProcess, memcached_program, start_memcached, start_uprmc
from interop.wire import NOOP, ClosedError, Wire, frame

_MARK = 0x7FFF_FFFF
_START: dict[str, Callable[[Path], ServerProcess]] = {
    # Its own threads would count and expire beside us.
    "memcached": lambda _: start_memcached("-o", "no_lru_maintainer,no_lru_crawler"),
    "uprmc": lambda data: start_uprmc(data, "--set", "engine.vbuckets=4"),
}


class Process:
    """A connection of each dialect to one server; use it in a ``with`` statement."""

    def __init__(self, server: ServerProcess) -> None:
        self._address = server.memcached
        self._wires = {each: Wire(self._address) for each in ("text", "binary")}

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires.values():
            wire.close()

    def ask(self, dialect: str, data: bytes) -> bytes:
        said = bytearray()
        try:
            wire = self._wires[dialect]
            self._text(wire, data, said) if dialect == "text" else self._binary(wire, data, said)
        except ClosedError:
            wire.close()
            self._wires[dialect] = Wire(self._address)
            said += CLOSED
        return bytes(said)

    def _text(self, wire: Wire, data: bytes, said: bytearray) -> None:
        """The answers end with that to a command that no row has."""
        wire.send(data, b"cache_memlimit 7\r\n")
        while not (line := wire.line()).startswith(b"MEMLIMIT_TOO_SMALL"):
            said += line

    def _binary(self, wire: Wire, data: bytes, said: bytearray) -> None:
        wire.send(data, frame(NOOP, opaque=_MARK))
        while True:
            head = wire.read(24)
            body = wire.read(int.from_bytes(head[8:12], "big"))
            if int.from_bytes(head[12:16], "big") == _MARK:
                return
            said += head + body

    def counters(self) -> dict[str, int]:
        lines = self.ask("text", b"stats\r\n").decode().splitlines()
        pairs = (line.split(" ")[1:3] for line in lines[:-1])
        return {name: int(value) for name, value in pairs if COUNTED.fullmatch(name)}

    def wait(self, seconds: float) -> None:
        raise AssertionError("time passes in sessions only")


@pytest.fixture(params=sorted(_START))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    if request.param == "memcached" and memcached_program() is None:
        pytest.skip("memcached is not installed")
    with _START[request.param](tmp_path / "data") as started:
        yield started


def test_replies_and_counters_are_those_of_the_table(server: ServerProcess) -> None:
    names = count(1)
    wrong = []
    with Process(server) as process:
        for row in table():
            if row.waits or (row.state == "expired" and server.kind == "uprmc"):
                continue  # its own expiry might come first
            found = outcome(row, b"k%d" % next(names), process)
            as_told = found == (row.reply, row.counters)
            if as_told == (row.ours and server.kind == "memcached"):
                wrong.append((str(row), found))
    assert wrong == []
