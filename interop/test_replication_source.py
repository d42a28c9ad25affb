"""A real node follows a source that we play: what it does with it, good and bad.

Proves: a failover in the middle of a snapshot branches at the last whole one; a source that
contradicts itself is hung up on by name, costs nothing that was held, and is tried again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop import upr_wire as u
from interop import wire as w
from interop.fake_source import FakeSource, Script
from interop.replica_pair import STOP, Node, fail_over, replicate, standing_of, wait_until
from interop.upr_wire import marker, mutation
from interop.wire import frame

VB = 0
UUID = 0xA11CE
GET_REPLICA = 0x83
KEPT = (b"k8", b"k9")


def started(data: Path, peer: str) -> Iterator[Node]:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    made = Node(data, "--vbuckets", "16", "--set", "upr.redial_max_s=0.1")
    try:
        made.start()
        yield made
        made.stop()
    finally:
        made.end()


@pytest.fixture
def node(tmp_path: Path, peer: str) -> Iterator[Node]:
    """A node without anything."""
    yield from started(tmp_path, peer)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, peer: str) -> Iterator[Node]:
    """A node for all tests that leave its vBucket 0 as a replica of nobody."""
    yield from started(tmp_path_factory.mktemp("data"), peer)


def items(opaque: int, *seqnos: int) -> bytes:
    return b"".join(mutation(VB, opaque, each, b"k%d" % each, b"v%d" % each) for each in seqnos)


def half_a_snapshot(vbucket: int, opaque: int) -> bytes:
    """0 to 90 whole, and of 91 to 120 what is up to 110."""
    whole = marker(VB, opaque, 0, 90, u.MEMORY) + items(opaque, 10, 90)
    return whole + marker(VB, opaque, 91, 120, u.MEMORY) + items(opaque, 100, 110)


def high_seqno(node: Node) -> int:
    with node.wire() as wire:
        return int(wire.texts(b"vbucket-seqno %d" % VB)[f"vb_{VB}:abs_high_seqno"])


@pytest.mark.acceptance("D53", "P06", "P18")
def test_a_failover_inside_of_a_snapshot_branches_at_the_last_whole_one(node: Node) -> None:
    with FakeSource(half_a_snapshot, [(UUID, 0)], 120) as source:
        replicate(node, source.address, [VB])
        wait_until(lambda: high_seqno(node) == 110, node.log)
        with node.wire() as wire:
            assert standing_of(wire)[VB].seqno == 90
        branch = fail_over(node, [VB])[VB]
    assert branch[1] == 90
    with node.wire() as wire:
        assert wire.texts(b"vbucket-seqno 0")["vb_0:abs_high_seqno"] == "110", (
            "nothing is thrown away"
        )
        assert standing_of(wire)[VB].log == (branch, (UUID, 0))
        wire.open(b"client of the old history")
        for seqno in (91, 100, 110):
            answer = wire.stream(VB, seqno, uuid=UUID)
            assert (answer.number, int.from_bytes(answer.value, "big")) == (u.ROLLBACK, 90)
        inside = wire.stream(VB, 100, uuid=UUID, snapshot=(91, 120))
        assert (inside.number, int.from_bytes(inside.value, "big")) == (u.ROLLBACK, 90)
        assert wire.stream(VB, 90, uuid=UUID).number == w.OK


@pytest.mark.acceptance("D51", "P16")
def test_a_replica_killed_inside_of_a_snapshot_asks_from_there(node: Node) -> None:
    with FakeSource(half_a_snapshot, [(UUID, 60), (UUID - 1, 0)], 120) as source:
        replicate(node, source.address, [VB])
        wait_until(lambda: high_seqno(node) == 110, node.log)
        with node.wire() as wire:
            wire.wait_until_persisted(VB, 110)
        source.script = lambda vbucket, opaque: b""
        node.kill()
        before = len(source.requests(u.STREAM_REQUEST))
        node.start()
        wait_until(lambda: len(source.requests(u.STREAM_REQUEST)) > before, node.log)
        _, _, start, _, uuid, first, last = struct.unpack(
            ">IIQQQQQ", source.requests(u.STREAM_REQUEST)[-1].extras
        )
        assert (start, uuid, last) == (110, UUID, 120)
        assert first in (90, 91), "the snapshot that it is inside of"
        with node.wire() as wire:
            assert standing_of(wire)[VB].log == ((UUID, 60), (UUID - 1, 0))


def bad(frames: Callable[[int], bytes]) -> Script:
    """A good snapshot, then something that contradicts it."""

    def script(vbucket: int, opaque: int) -> bytes:
        return marker(VB, opaque, 0, 9, u.MEMORY) + items(opaque, 8, 9) + frames(opaque)

    return script


def rest(vbucket: int, opaque: int) -> bytes:
    """What comes after the good snapshot when all is well."""
    return marker(VB, opaque, 10, 30, u.MEMORY) + items(opaque, 30)


CONTRADICTIONS: dict[str, Callable[[int], bytes]] = {
    "falling seqnos": lambda o: marker(VB, o, 10, 20, u.MEMORY) + items(o, 15, 14),
    "the same seqno twice": lambda o: marker(VB, o, 10, 20, u.MEMORY) + items(o, 15, 15),
    "data behind the marker": lambda o: marker(VB, o, 10, 20, u.MEMORY) + items(o, 21),
    "data before the marker": lambda o: marker(VB, o, 12, 20, u.MEMORY) + items(o, 11),
    "data without a marker": lambda o: items(o, 10),
    "a marker behind the last one": lambda o: marker(VB, o, 1, 5, u.MEMORY) + items(o, 5),
    "a marker that ends before it starts": lambda o: marker(VB, o, 20, 10, u.MEMORY),
    "a vBucket that nobody asked for": lambda o: marker(3, o, 0, 5, u.MEMORY),
    "an opaque that nobody gave": lambda o: marker(VB, o ^ 0xFF, 10, 20, u.MEMORY),
    "no frame at all": lambda o: b"GET / HTTP/1.1\r\nHost: everywhere\r\n\r\n",
}


@pytest.mark.parametrize("frames", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_source_that_contradicts_itself_is_named_and_costs_nothing(
    shared: Node, frames: Callable[[int], bytes]
) -> None:
    with shared.wire() as wire:
        wire.remake(VB, u.REPLICA)
    with FakeSource(bad(frames), [(UUID, 0)], 20) as source:
        replicate(shared, source.address, [VB])
        wait_until(lambda: source.connections > 1, shared.log)
        source.script = lambda vbucket, opaque: b""
        wait_until(lambda: high_seqno(shared) >= 9, shared.log)
        with shared.wire() as wire:
            known = wire.texts(b"replication")
            held = [wire.call(frame(GET_REPLICA, key, vbucket=VB)).number for key in KEPT]
        assert known[f"source_{source.address}:last_error"]
        assert held == [w.OK, w.OK], "what was received stays"
        source.script = rest
        source.hang_up()
        wait_until(lambda: high_seqno(shared) == 30, shared.log)
        replicate(shared, "", [VB], flags=STOP)


def test_a_failover_log_of_a_hundred_thousand_entries_is_survived(shared: Node) -> None:
    log = [(UUID + each, 100_000 - each) for each in range(100_000)]
    with shared.wire() as wire:
        wire.remake(VB, u.REPLICA)
    with FakeSource(bad(lambda opaque: b""), log, 9) as source:
        replicate(shared, source.address, [VB])
        wait_until(lambda: source.connections > 1 or high_seqno(shared) == 9, shared.log)
        with shared.wire() as wire:
            assert len(standing_of(wire)[VB].log) <= 1_000
        replicate(shared, "", [VB], flags=STOP)
    assert shared.running
