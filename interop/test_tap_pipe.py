"""Two nodes and a legacy replication between them: a pipe as vbucketmigrator is one.

The source is a TAP producer, the destination a TAP consumer, and neither knows UPR of the other.

Proves: with every set of flags vbucketmigrator has, all documents cross with value, flags, expiry,
CAS and revision while a load writes; vBuckets are taken over under load without losing a write;
a registered client loses nothing and is not filled again however often the pipe is killed, over a
restart of the source in order and after ``kill -9``; flush_all crosses; a destination that has
followed by TAP can itself be followed, by UPR and by TAP.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop import tap_pipe
from interop import tap_wire as t
from interop import upr_wire as u
from interop import wire as w
from interop.load import Load
from interop.replica_pair import DEMOTE, Node, replicate, wait_until_level
from interop.replica_steps import after
from interop.tap_nodes import (
    active_at,
    documents_of,
    fill,
    lost,
    make,
    states,
    wait_until_same,
    write_unpersisted,
)
from interop.tap_pipe import KeptPipe, Pipe
from interop.upr_wire import UprWire
from interop.waiting import wait_until
from interop.wire import frame

pytestmark = pytest.mark.acceptance("D56")

VBUCKETS = 16
ALL = tuple(range(VBUCKETS))
SOME = (2, 5, 11)
OPTIONS = ("--vbuckets", str(VBUCKETS), "--set", "tap.backoff_s=0.2")


@pytest.fixture
def nodes(tmp_path: Path, peer: str) -> Iterator[tuple[Node, Node]]:
    """A source, active, and a destination whose vBuckets are replicas and empty."""
    if peer != "uprmc":
        pytest.skip("memcached does not speak TAP")
    made = Node(tmp_path / "source", *OPTIONS), Node(tmp_path / "destination", *OPTIONS)
    try:
        for node in made:
            node.start()
        make(made[1], u.REPLICA, ALL)
        yield made
        for node in made:
            if node.running:
                node.stop()
    finally:
        for node in made:
            node.end()


@pytest.fixture
def source(nodes: tuple[Node, Node]) -> Node:
    return nodes[0]


@pytest.fixture
def destination(nodes: tuple[Node, Node]) -> Node:
    return nodes[1]


def texts(node: Node, group: bytes = b"tap") -> dict[str, str]:
    with node.wire() as wire:
        return wire.texts(group)


# --- replication --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [tap_pipe.REPLICATE, tap_pipe.REGISTER, tap_pipe.PLAIN],
    ids=["with-acks", "registered", "plain"],
)
def test_everything_crosses_while_a_load_writes(
    source: Node, destination: Node, flags: int
) -> None:
    fill(source, ALL, 200)
    load = Load([source.upr], VBUCKETS, rate=1_500)
    with load:
        after(load, 500)
        with Pipe(source.upr, destination.upr, b"replica1", flags, ALL) as pipe:
            after(load, 3_000)
            load.finish()
            held = wait_until_same(source.upr, destination.upr, ALL)
            assert pipe.is_alive()
            assert pipe.complaints == []
            assert set(pipe.answers) <= {w.OK}
    assert lost(load, held) == []
    assert pipe.kinds[t.OPAQUE, t.INITIAL] == VBUCKETS
    assert pipe.kinds[t.OPAQUE, t.CLOSE_BACKFILL] == VBUCKETS
    assert bool(pipe.kinds[t.CHECKPOINT_START]) == bool(flags & t.CHECKPOINT)
    assert pipe.kinds[t.OPAQUE, t.AUTO_NACK] == bool(flags & t.SUPPORT_ACK)
    assert states(destination, ALL) == dict.fromkeys(ALL, u.REPLICA)


def test_some_vbuckets_cross_and_others_stay(source: Node, destination: Node) -> None:
    fill(source, ALL, 20)
    with Pipe(source.upr, destination.upr, b"some", tap_pipe.REPLICATE, SOME):
        wait_until_same(source.upr, destination.upr, SOME)
    assert {number for number, _ in documents_of(destination.upr, ALL)} == set(SOME)


def test_flags_of_documents_are_what_they_were(source: Node, destination: Node) -> None:
    """The pipe never asks for flags in order; both ends swap them and so agree."""
    with source.wire() as wire:
        wire.command(w.store(w.SET, b"key", b"value", flags=0x11223344, vbucket=3))
    with Pipe(source.upr, destination.upr, b"", tap_pipe.REPLICATE, (*SOME, 3)):
        held = wait_until_same(source.upr, destination.upr, (3,))
    assert held[3, b"key"].flags == 0x11223344


@pytest.mark.parametrize("flags", [tap_pipe.REPLICATE, tap_pipe.REGISTER])
def test_a_flush_of_the_source_empties_the_destination(
    source: Node, destination: Node, flags: int
) -> None:
    fill(source, ALL, 20)
    with Pipe(source.upr, destination.upr, b"flushed", flags, ALL):
        wait_until_same(source.upr, destination.upr, ALL)
        with source.wire() as wire:
            wire.command(frame(w.FLUSH))
            wire.put(3, b"new")
        assert len(wait_until_same(source.upr, destination.upr, ALL)) == 1


def test_a_second_pipe_of_the_same_name_ends_the_first(source: Node, destination: Node) -> None:
    fill(source, SOME, 20)
    with Pipe(source.upr, destination.upr, b"twice", tap_pipe.REPLICATE, SOME) as first:
        wait_until_same(source.upr, destination.upr, SOME)
        with Pipe(source.upr, destination.upr, b"twice", tap_pipe.REPLICATE, SOME) as second:
            assert first.wait() == tap_pipe.BROKEN
            with source.wire() as wire:
                wire.put(SOME[0], b"later")
            wait_until_same(source.upr, destination.upr, SOME)
            assert second.is_alive()


def test_a_destination_that_is_not_there_for_a_vbucket_ends_the_stream(
    source: Node, destination: Node
) -> None:
    """Any error but a temporary one: the producer hangs up."""
    fill(source, SOME, 5)
    make(destination, u.DEAD, SOME)
    with Pipe(source.upr, destination.upr, b"refused", tap_pipe.REPLICATE, SOME) as pipe:
        assert pipe.wait() == tap_pipe.BROKEN
        assert u.NOT_MY_VBUCKET in pipe.answers


# --- takeover -----------------------------------------------------------------------------------


def test_vbuckets_are_taken_over_under_load(source: Node, destination: Node) -> None:
    fill(source, ALL, 100)
    load = Load([source.upr, destination.upr], VBUCKETS, rate=1_500)
    with load:
        after(load, 500)
        with Pipe(source.upr, destination.upr, b"mv_0", tap_pipe.TAKE_OVER, SOME) as pipe:
            assert pipe.wait() == tap_pipe.DONE, pipe.complaints
        after(load, 1_000)
        load.finish()
    assert states(source, SOME) == dict.fromkeys(SOME, u.DEAD)
    assert active_at(destination, ALL) == list(SOME)
    assert active_at(source, ALL) == [number for number in ALL if number not in SOME]
    rest = [number for number in ALL if number not in SOME]
    held = documents_of(source.upr, rest) | documents_of(destination.upr, SOME)
    assert lost(load, held) == []
    assert pipe.kinds[t.VBUCKET_SET] == 2 * len(SOME)


def test_one_vbucket_after_the_other_is_taken_over(source: Node, destination: Node) -> None:
    fill(source, ALL, 50)
    before = documents_of(source.upr, ALL)
    for number in ALL:
        name = b"mv_%d" % number
        with Pipe(source.upr, destination.upr, name, tap_pipe.TAKE_OVER, [number]) as pipe:
            assert pipe.wait() == tap_pipe.DONE, pipe.complaints
    assert active_at(destination, ALL) == list(ALL)
    assert active_at(source, ALL) == []
    assert documents_of(destination.upr, ALL) == before


def test_a_takeover_whose_pipe_dies_leaves_one_active_copy_at_most(
    source: Node, destination: Node
) -> None:
    fill(source, SOME, 100)
    before = documents_of(source.upr, SOME)
    for kill_after in (5, 60, 200):
        pipe = Pipe(
            source.upr, destination.upr, b"mv", tap_pipe.TAKE_OVER, SOME, kill_after=kill_after
        )
        with pipe:
            pipe.join(30)
        here, there = states(source, SOME), states(destination, SOME)
        assert all((here[n], there[n]).count(u.ACTIVE) <= 1 for n in SOME), (here, there)
        assert all(here[n] == u.ACTIVE for n in SOME), here
    with Pipe(source.upr, destination.upr, b"mv", tap_pipe.TAKE_OVER, SOME) as pipe:
        assert pipe.wait() == tap_pipe.DONE, pipe.complaints
    assert documents_of(destination.upr, SOME) == before


# --- registered clients -------------------------------------------------------------------------


def test_a_killed_pipe_goes_on_where_it_was(source: Node, destination: Node) -> None:
    fill(source, ALL, 100)
    load = Load([source.upr], VBUCKETS, rate=1_500)
    ends = source.upr, destination.upr, b"reg1", tap_pipe.REGISTER, ALL
    with load:
        with Pipe(*ends, kill_after=40) as pipe:
            pipe.join(30)
        with Pipe(*ends) as pipe:
            pipe.wait_until(lambda: pipe.kinds[t.OPAQUE, t.CLOSE_BACKFILL] == VBUCKETS)
            after(load, 100)
        for kill_after in (700, 1_500, 3, 300):
            with Pipe(*ends, kill_after=kill_after) as pipe:
                pipe.join(30)
                assert not pipe.is_alive()
            after(load, 200)
            assert pipe.kinds[t.OPAQUE, t.INITIAL] == 0, "it was filled again"
        with Pipe(*ends) as pipe:
            after(load, 500)
            load.finish()
            held = wait_until_same(source.upr, destination.upr, ALL)
    assert lost(load, held) == []
    assert pipe.kinds[t.OPAQUE, t.INITIAL] == 0, "it was filled again"


def test_what_was_resumed_is_not_sent_again(source: Node, destination: Node) -> None:
    fill(source, ALL, 200)
    with Pipe(source.upr, destination.upr, b"reg2", tap_pipe.REGISTER, ALL):
        wait_until_same(source.upr, destination.upr, ALL)
        idle(source, "reg2")
    fill(source, SOME, 10, size=50)
    with Pipe(source.upr, destination.upr, b"reg2", tap_pipe.REGISTER, ALL) as pipe:
        wait_until_same(source.upr, destination.upr, ALL)
    assert pipe.kinds[t.OPAQUE, t.INITIAL] == 0
    assert pipe.kinds[t.MUTATION] <= 10 * len(SOME) * 2


def idle(node: Node, name: str) -> None:
    """Wait until a client has acknowledged everything, the ends of backfills too."""

    def level() -> bool:
        found = texts(node)
        return found.get(f"eq_tapq:{name}:idle") == "true"

    wait_until(level, lambda: str(texts(node)))


def test_a_client_that_was_deregistered_begins_anew(source: Node, destination: Node) -> None:
    fill(source, SOME, 50)
    with Pipe(source.upr, destination.upr, b"reg3", tap_pipe.REGISTER, SOME):
        wait_until_same(source.upr, destination.upr, SOME)
    with source.wire() as wire:
        wire.command(frame(t.DEREGISTER, b"reg3"))
    with Pipe(source.upr, destination.upr, b"reg3", tap_pipe.REGISTER, SOME) as pipe:
        wait_until_same(source.upr, destination.upr, SOME)
        pipe.wait_until(lambda: pipe.kinds[t.OPAQUE, t.INITIAL] == len(SOME))


def test_a_name_that_is_not_registered_begins_anew(source: Node, destination: Node) -> None:
    fill(source, SOME, 50)
    for _ in range(2):
        with Pipe(source.upr, destination.upr, b"plain", tap_pipe.REPLICATE, SOME) as pipe:
            pipe.wait_until(lambda: pipe.kinds[t.OPAQUE, t.CLOSE_BACKFILL] == len(SOME))
            wait_until_same(source.upr, destination.upr, SOME)
            assert pipe.kinds[t.OPAQUE, t.INITIAL] == len(SOME)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_the_source_is_started_again(source: Node, destination: Node, how: str) -> None:
    fill(source, ALL, 100)
    with Pipe(source.upr, destination.upr, b"reg4", tap_pipe.REGISTER, ALL) as pipe:
        wait_until_same(source.upr, destination.upr, ALL)
        idle(source, "reg4")
        # A batch leaves when the client's place with it is on disk: all backfills have ended there.
        fill(source, SOME[:1], 1, size=10)
        wait_until_same(source.upr, destination.upr, ALL)
        persist(source)
        source.stop() if how == "stop" else source.kill()
        assert pipe.wait() == tap_pipe.BROKEN
    source.start()
    fill(source, SOME, 10, size=50)
    with Pipe(source.upr, destination.upr, b"reg4", tap_pipe.REGISTER, ALL) as pipe:
        wait_until_same(source.upr, destination.upr, ALL)
    assert pipe.kinds[t.OPAQUE, t.INITIAL] == 0


def persist(node: Node) -> None:
    """Wait until everything is on disk."""
    with node.wire() as wire:
        for number, seqno in wire.high_seqnos().items():
            wire.wait_until_persisted(number, seqno)


@pytest.fixture
def active(tmp_path: Path) -> Iterator[Node]:
    """A node before the source: the source follows it by UPR."""
    node = Node(tmp_path / "active", *OPTIONS)
    try:
        node.start()
        yield node
    finally:
        node.end()


@pytest.mark.parametrize("rollback", ["rewind", "restart"])
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "away"])
def test_a_source_that_was_rolled_back_takes_back_what_it_has_sent(
    active: Node, source: Node, destination: Node, rollback: str, connected: bool
) -> None:
    """The node that the source follows was killed before its disk had what it had sent."""
    source.stop()
    source.options = (
        *OPTIONS,
        "--set",
        f"tap.rollback={rollback}",
        "--set",
        "upr.redial_max_s=0.3",
    )
    source.start()
    fill(active, ALL, 50)
    persist(active)
    replicate(source, active.upr, flags=DEMOTE)
    wait_until_level(active, source)
    ends = source.upr, destination.upr, b"reg5", tap_pipe.REGISTER, ALL
    with KeptPipe(*ends) as pipe:
        wait_until_same(active.upr, destination.upr, ALL)
        write_unpersisted(active, SOME)
        wait_until_same(active.upr, destination.upr, ALL)
        active.kill()
        if connected:
            came_back(active, source)
            held = wait_until_same(active.upr, destination.upr, ALL)
    resets = pipe.counted((t.OPAQUE, t.INITIAL)) - VBUCKETS
    if not connected:
        came_back(active, source)
        with KeptPipe(*ends) as pipe:
            held = wait_until_same(active.upr, destination.upr, ALL)
        resets += pipe.counted((t.OPAQUE, t.INITIAL))
    assert (SOME[0], b"forgotten") not in held
    assert held[SOME[0], b"later"]
    assert resets == (0 if rollback == "rewind" else len(SOME))


def came_back(active: Node, source: Node) -> None:
    """The killed node starts, takes a change, and the other one follows it again."""
    active.start()
    with active.wire() as wire:
        for number in SOME:
            wire.put(number, b"later")
    wait_until_level(active, source)


def test_a_load_over_kills_of_the_source(source: Node, destination: Node) -> None:
    fill(source, ALL, 50)
    load = Load([source.upr], VBUCKETS, rate=800)
    with load:
        for _ in range(3):
            with Pipe(source.upr, destination.upr, b"reg6", tap_pipe.REGISTER, ALL) as pipe:
                after(load, 500)
                source.kill()
                pipe.wait()
            source.start()
        with Pipe(source.upr, destination.upr, b"reg6", tap_pipe.REGISTER, ALL):
            after(load, 300)
            load.finish()
            wait_until_same(source.upr, destination.upr, ALL)


# --- what is behind the destination -------------------------------------------------------------


@pytest.mark.parametrize("flags", [tap_pipe.REPLICATE, tap_pipe.REGISTER])
def test_a_node_that_is_fed_by_tap_feeds_consumers_of_upr(
    source: Node, destination: Node, flags: int
) -> None:
    """Whole snapshots only: `Mirror` judges the order of what it is sent.

    A checkpoint is whole when the next one begins, so there a last change is needed; and one more
    for the change that is looked for.
    """
    fill(source, SOME, 100)
    load = Load([source.upr], VBUCKETS, rate=1_000)
    mirror = u.Mirror()
    with (
        load,
        UprWire(destination.upr, 30) as consumer,
        Pipe(source.upr, destination.upr, b"chain", flags, ALL) as pipe,
    ):
        pipe.wait_until(lambda: pipe.kinds[t.OPAQUE, t.CLOSE_BACKFILL] == VBUCKETS)
        consumer.open(b"behind")
        for number in ALL:
            consumer.request_stream(number, opaque=number)
        after(load, 1_000)
        load.finish()
        held = wait_until_same(source.upr, destination.upr, ALL)
        for _ in range(2):
            nudge(source)
            wait_until_same(source.upr, destination.upr, ALL)
        while not all((number, b"nudge") in mirror.values() for number in ALL):
            found = consumer.frame()
            if found.is_reply:
                mirror.begin(found.opaque, found)
            else:
                mirror.take(found)
    values = {name: each[0] for name, each in mirror.values().items() if name in held}
    assert values == {name: each.value for name, each in held.items()}


def nudge(node: Node) -> None:
    """A change in every vBucket, of a key that nobody else writes."""
    with node.wire() as wire:
        for number in ALL:
            wire.put(number, b"nudge")


def test_a_chain_of_pipes(source: Node, destination: Node, tmp_path: Path) -> None:
    last = Node(tmp_path / "last", *OPTIONS)
    fill(source, SOME, 100)
    try:
        last.start()
        make(last, u.REPLICA, ALL)
        with (
            Pipe(source.upr, destination.upr, b"one", tap_pipe.REGISTER, SOME),
            Pipe(destination.upr, last.upr, b"two", tap_pipe.REGISTER, SOME),
        ):
            with source.wire() as wire:
                wire.put(SOME[0], b"new")
                wire.delete(SOME[1], b"fill-%d-0" % SOME[1])
            wait_until_same(source.upr, destination.upr, SOME)
            wait_until_same(source.upr, last.upr, SOME)
        last.stop()
    finally:
        last.end()
