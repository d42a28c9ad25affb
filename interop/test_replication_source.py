"""A real node follows a source that we play: what it does with it, good and bad.

Proves: a source that contradicts itself is named in the statistics, costs nothing that was
received, and is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from interop import upr_wire as u
from interop import wire as w
from interop.fake_source import FakeSource, Script
from interop.replica_pair import STOP, Node, replicate, standing_of
from interop.upr_wire import marker, mutation
from interop.waiting import wait_until
from interop.wire import frame

VB = 0
UUID = 0xA11CE
GET_REPLICA = 0x83
KEPT = (b"k8", b"k9")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, peer: str) -> Iterator[Node]:
    """A node for all tests that leave its vBucket 0 as a replica of nobody."""
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    data = tmp_path_factory.mktemp("data")
    made = Node(data, "--vbuckets", "16", "--set", "upr.redial_max_s=0.1")
    try:
        made.start()
        yield made
        made.stop()
    finally:
        made.end()


def items(opaque: int, *seqnos: int) -> bytes:
    return b"".join(mutation(VB, opaque, each, b"k%d" % each, b"v%d" % each) for each in seqnos)


def high_seqno(node: Node) -> int:
    with node.wire() as wire:
        return int(wire.texts(b"vbucket-seqno %d" % VB)[f"vb_{VB}:abs_high_seqno"])


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
