"""``uprmc tap-adapter``: the TAP adapter as a process of its own, before a node that has TAP off.

Proves: a load crosses it into a legacy replica with all metadata; what the node forgot is taken
back; a dump through it is complete. What becomes of a registered client when the adapter is killed
is tested in `tests/cli/test_tap_adapter.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop import tap_pipe
from interop import tap_wire as t
from interop import upr_wire as u
from interop.load import Load
from interop.proxy import LastingPort
from interop.replica_pair import Node
from interop.replica_steps import after
from interop.server_process import ServerProcess
from interop.tap_copy import TapReader
from interop.tap_nodes import (
    apart,
    documents_of,
    fill,
    lost,
    make,
    wait_until_same,
    write_unpersisted,
)
from interop.tap_pipe import KeptPipe, Pipe

pytestmark = pytest.mark.acceptance("D56")

VBUCKETS = 16
ALL = tuple(range(VBUCKETS))
SOME = (2, 5, 11)
OPTIONS = ("--vbuckets", str(VBUCKETS), "--set", "tap.enabled=no")
INITIAL = (t.OPAQUE, t.INITIAL)


class Adapter:
    """The process on a port and a state file of its own; it may be killed and started again."""

    def __init__(self, upstream: Node, directory: Path, *options: str) -> None:
        self._port = LastingPort()
        self.address = self._port.address
        state = ("--state", str(directory / "positions.db"))
        where = ("--upstream", str(upstream.upr), "--listen", str(self.address))
        program = [sys.executable, "-m", "uprmc", "tap-adapter"]
        self._command = [*program, *where, *state, *options]
        self._process: ServerProcess | None = None

    def start(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("UPRMC_")}
        self._process = ServerProcess("tap-adapter", self._command, environment)
        line = self._process._wait_for_line(30)
        assert line.startswith(f"uprmc ready tap={self.address} "), line

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process = None

    def end(self) -> None:
        """SIGTERM, in order, if it runs."""
        process, self._process = self._process, None
        try:
            if process is not None:
                with process:
                    process.stop()
        finally:
            self._port.give_back()


@pytest.fixture
def source(tmp_path: Path, peer: str) -> Iterator[Node]:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    yield from running(Node(tmp_path / "source", *OPTIONS))


@pytest.fixture
def destination(tmp_path: Path, peer: str) -> Iterator[Node]:
    """A legacy replica, played by a node that is pushed into."""
    for node in running(Node(tmp_path / "destination", "--vbuckets", str(VBUCKETS))):
        make(node, u.REPLICA, ALL)
        yield node


def running(node: Node) -> Iterator[Node]:
    try:
        node.start()
        yield node
    finally:
        node.end()


@pytest.fixture
def adapt(source: Node, tmp_path: Path) -> Iterator[Callable[..., Adapter]]:
    """``adapt(*options)``: an adapter in front of the source, that runs."""
    made: list[Adapter] = []

    def run(*options: str) -> Adapter:
        made.append(Adapter(source, tmp_path, *options))
        made[-1].start()
        return made[-1]

    yield run
    for adapter in made:
        adapter.end()


Adapt = Callable[..., Adapter]


@pytest.mark.parametrize("flags", [tap_pipe.REPLICATE, tap_pipe.REGISTER, tap_pipe.PLAIN])
def test_a_load_crosses_it(source: Node, destination: Node, adapt: Adapt, flags: int) -> None:
    fill(source, ALL, 100)
    load = Load([source.upr], VBUCKETS, rate=1_000)
    with load, Pipe(adapt().address, destination.upr, b"far", flags, ALL) as pipe:
        after(load, 1_500)
        load.finish()
        held = wait_until_same(source.upr, destination.upr, ALL)
        assert pipe.is_alive()
    assert lost(load, held) == []


def test_a_dump_is_complete(source: Node, adapt: Adapt) -> None:
    fill(source, ALL, 300)
    request = t.connect(b"dump", t.DUMP | t.SUPPORT_ACK | t.FIX_FLAGS)
    with TapReader(adapt().address, request) as reader:
        copy = reader.until_closed()
    assert apart(documents_of(source.upr, ALL), copy.documents) == []


@pytest.mark.parametrize("rollback", ["rewind", "restart"])
def test_what_the_node_forgot_is_taken_back(
    source: Node, destination: Node, adapt: Adapt, rollback: str
) -> None:
    """Killed before it could persist; the adapter remembers what it has sent."""
    fill(source, ALL, 50)
    with source.wire() as wire:
        for number, seqno in wire.high_seqnos().items():
            wire.wait_until_persisted(number, seqno)
    adapter = adapt("--on-rollback", rollback)
    with KeptPipe(adapter.address, destination.upr, b"back", tap_pipe.REGISTER, ALL) as pipe:
        wait_until_same(source.upr, destination.upr, ALL)
        write_unpersisted(source, SOME)
        wait_until_same(source.upr, destination.upr, ALL)
        source.kill()
        source.start()
        with source.wire() as wire:
            for number in SOME:
                wire.put(number, b"later")
        held = wait_until_same(source.upr, destination.upr, ALL)
    assert (SOME[0], b"forgotten") not in held
    assert held[SOME[0], b"later"]
    assert pipe.counted(INITIAL) == VBUCKETS + (len(SOME) if rollback == "restart" else 0)


def test_vbuckets_are_taken_over_through_it(source: Node, destination: Node, adapt: Adapt) -> None:
    fill(source, SOME, 100)
    wanted = documents_of(source.upr, SOME)
    ends = adapt().address, destination.upr, b"move", tap_pipe.TAKE_OVER, SOME
    with Pipe(*ends) as pipe:
        assert pipe.wait() == tap_pipe.DONE, pipe.complaints
    assert documents_of(destination.upr, SOME) == wanted
