"""Following, failing over and taking over: what transcripts do not show."""

from __future__ import annotations

import gc
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kv.harness import CountingEntropy
from tests.upr.replication_rig import A, B, FakeLink, World
from uprmc.errors import InvalidArguments, RangeExceeded
from uprmc.model import SnapshotRange, VBucketState
from uprmc.protocol import control
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.replication import Outcome
from uprmc.upr import replication
from uprmc.upr.source import FIRST_PAUSE_S, Pause, Source

ACTIVE, REPLICA, PENDING, DEAD = VBucketState
MOST_S = 15.0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def document(world: World) -> object:
    stored = world.rig.store.local(replication.FOLLOWED)
    return stored and json.loads(stored)


def source(world: World, place: str = A) -> Source:
    return world.replication.sources[place]


def linked(world: World, numbers: list[int] | None = None) -> FakeLink:
    """Follow and let the connection come about."""
    world.follow(A, numbers)
    return world.calls[-1].opens()


# --- commands -----------------------------------------------------------------------------------


def test_the_waiter_is_told_when_it_is_on_disk_and_not_before(world: World) -> None:
    told: list[bool] = []
    world.replication.follow(A, [0], demote=False, done=told.append)
    assert (told, document(world)) == ([], None)
    world.rig.fail_flush()
    assert told == [False]
    world.rig.flush()
    assert document(world) == {"version": 1, "sources": {A: [[0, 0]]}}


@pytest.mark.parametrize(
    "place",
    [
        *("", "host", ":11210", "host:", "host:0", "host:65536", "host:1e3", "a b:1", "a:1:2"),
        *("[::1]", "::1:11210", "http://a:80", "host:123456", "x" * 300 + ":1"),
    ],
)
def test_what_is_no_place_is_refused(world: World, place: str) -> None:
    with pytest.raises(InvalidArguments, match="use HOST:PORT"):
        world.follow(place)
    with pytest.raises(InvalidArguments, match="use HOST:PORT"):
        world.take_over(place)
    assert world.states() == [ACTIVE] * 4


@pytest.mark.parametrize("place", ["a:1", "10.0.0.1:65535", "[::1]:11210", "[fe80::1%eth0]:1"])
def test_a_host_and_a_port_are_a_place(world: World, place: str) -> None:
    world.follow(place)
    assert world.calls[0].place == place


def test_a_node_does_not_follow_itself(world: World) -> None:
    world.replication.is_own = lambda place: place == A
    with pytest.raises(InvalidArguments, match="is this node itself"):
        world.follow(A)
    assert world.states() == [ACTIVE] * 4


def test_the_new_state_and_the_end_of_following_are_in_one_commit(world: World) -> None:
    world.follow(A, [0])
    world.bucket.set_state(0, ACTIVE)
    flush = world.bucket.flusher.begin()
    assert flush is not None
    assert flush.batch.local == {replication.FOLLOWED: None}
    assert [change.vbucket for change in flush.batch.changes] == [0]


def test_a_flush_of_everything_ends_nothing(world: World) -> None:
    world.follow(A, [0, 1])
    world.bucket.flush(0, lambda _: None)
    world.bucket.flush(0, lambda _: None)
    assert world.followed() == {A: [0, 1]}
    world.bucket.set_state(0, ACTIVE)
    assert world.followed() == {A: [1]}


def test_nothing_of_it_stays_at_a_vbucket(world: World) -> None:
    watchers = world.bucket.vbuckets[0].watchers
    world.follow(A, [0])
    world.stop([0])
    assert world.bucket.vbuckets[0].watchers == watchers == []


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (b"", "Expecting value"),
        (b"\xff", "codec"),
        (b"[]", "form"),
        (b"{}", "form"),
        (b"[" * 100_000, "form|Expecting"),
        (b'{"version": 2, "sources": {}}', "version 2 and this uprmc knows 1"),
        (b'{"version": 1, "sources": [1]}', "form"),
        (b'{"version": 1, "sources": {"a:1": [[1]]}}', "form|unpack"),
        (b'{"version": 1, "sources": {"a:1": [[1, 0]]}}', "form"),
        (b'{"version": 1, "sources": {"a:1": [[0, 65536]]}}', "form"),
        (b'{"version": 1, "sources": {"a:1": [["0", "1"]]}}', "form"),
    ],
)
def test_a_document_that_makes_no_sense_is_told_and_kept(
    world: World, stored: bytes, why: str
) -> None:
    told: list[bool] = []
    world.bucket.flusher.write_local(replication.FOLLOWED, stored, told.append)
    world.rig.flush()
    world.replication.resume()
    assert world.followed() == {}
    ((place, trouble),) = world.troubles
    assert place == ""
    assert "nothing is followed" in trouble
    with pytest.raises(ValueError, match=why):
        replication.decode_followed(stored)
    assert world.rig.store.local(replication.FOLLOWED) == stored


def test_a_refusal_names_32_vbuckets_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for count in (32, 33, 32_768):
        with pytest.raises(RangeExceeded) as refusal:
            world.replication.fail_over(range(4, 4 + 2 * count, 2), lambda *_: None)
        text = str(refusal.value)
        assert len(text) < 250
        assert text.startswith("vBuckets 4,6,8,10,")
        assert ("66: this" in text) is (count == 32)
        assert (f"66... ({count} in all): this" in text) is (count > 32)


def test_a_source_of_300_characters_is_one_and_a_longer_one_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    place = "a" * 298 + ":1"
    assert world.follow(place, [0]) == [True]
    with pytest.raises(InvalidArguments, match="use HOST:PORT"):
        world.follow("a" + place, [1])


# --- failover -----------------------------------------------------------------------------------


@pytest.mark.acceptance("P17")
def test_each_failover_of_a_replica_is_one_entry_more_and_is_answered_from_disk(
    world: World,
) -> None:
    world.follow(A, [0, 1])
    before = [world.bucket.vbuckets[number].failover_log for number in (0, 1)]
    told = []
    world.replication.fail_over([0, 1], lambda *said: told.append(said))
    assert told == []
    world.rig.flush()
    ((branches, durable),) = told
    assert durable
    logs = [world.bucket.vbuckets[number].failover_log for number in (0, 1)]
    assert [log[1:] for log in logs] == before
    assert [(branch.uuid, branch.seqno) for branch in branches] == [log[0] for log in logs]
    assert (world.states()[:2], world.followed()) == ([ACTIVE, ACTIVE], {})
    assert document(world) is None


def test_a_failover_that_is_not_on_disk_yet_says_so(world: World) -> None:
    world.follow(A, [0])
    told = []
    world.replication.fail_over([0], lambda *said: told.append(said))
    world.rig.fail_flush()
    ((branches, durable),) = told
    assert not durable
    assert branches[0].uuid == world.bucket.vbuckets[0].failover_log[0].uuid


@pytest.mark.acceptance("D53")
def test_a_failover_in_the_middle_of_a_snapshot_branches_where_the_last_complete_one_ended(
    world: World,
) -> None:
    world.follow(A, [0])
    vbucket = world.bucket.vbuckets[0]
    vbucket.high_seqno, vbucket.receiving = 110, SnapshotRange(90, 120)
    ((branches, _),) = world.fail_over(0)
    assert [branch.seqno for branch in branches] == [90]
    assert vbucket.failover_log[0].seqno == 90


# --- lines --------------------------------------------------------------------------------------


def test_a_source_that_tells_no_number_is_followed(world: World) -> None:
    world.follow(A, [0])
    link = world.calls[-1].connects()
    link.granted = {control.VERSIONS}
    link.opens()
    ((opcode, answered),) = link.questions
    answered(ResponseFrame(opcode, status=Status.ACCESS_DENIED))
    assert link.asked == [[0]]


def test_each_connection_has_a_name_that_the_source_knows_again(world: World) -> None:
    first = linked(world)
    first.closes()
    world.redialled_after()
    again = world.calls[-1].opens()
    world.stop([3])
    world.take_over(B, [3])
    world.follow(B, [2])
    others = [call.connects().name for call in world.calls[2:]]
    assert again.name == first.name
    assert len({first.name, *others}) == 1 + len(others)


def test_pauses_double_up_to_the_longest(world: World) -> None:
    world.follow(A, [0])
    world.calls[0].failed("connection refused")
    pauses = []
    for _ in range(12):
        pauses.append(world.redialled_after())
        world.calls[-1].failed("connection refused")
    assert pauses[0] <= FIRST_PAUSE_S + 0.02
    assert pauses[-1] <= MOST_S + 0.02
    assert pauses[-1] >= MOST_S / 2
    assert [round(each, 1) for each in pauses] == sorted(round(each, 1) for each in pauses)
    assert (source(world).attempts, source(world).last_error) == (13, "connection refused")
    assert world.troubles[0] == (A, "connection refused")


def test_what_held_for_a_while_is_dialled_again_soon(world: World) -> None:
    world.follow(A, [0])
    for _ in range(8):
        world.calls[-1].failed("refused")
        world.redialled_after()
    world.calls[-1].opens()
    world.wait(MOST_S)
    link = source(world)._open_link()
    assert link is not None
    link.closes()
    assert world.redialled_after() <= FIRST_PAUSE_S + 0.02


def test_a_source_that_breaks_every_connection_at_once_is_dialled_ever_more_rarely(
    world: World,
) -> None:
    """One that sends nonsense must not be asked for it ten times a second."""
    world.follow(A, [0])
    pauses = []
    for _ in range(9):
        link = world.calls[-1].opens()
        link.begins(0)
        link.closes("falling seqnos")
        pauses.append(world.redialled_after())
    assert pauses[-1] >= MOST_S / 2


def test_what_breaks_within_a_second_has_proven_nothing(world: World) -> None:
    world.follow(A, [0])
    pauses = []
    for _ in range(9):
        link = world.calls[-1].opens()
        world.wait(0.5)
        link.closes()
        pauses.append(world.redialled_after())
    assert pauses[-1] >= MOST_S / 2


@given(st.lists(st.floats(0, 100), max_size=30))
def test_a_pause_is_never_longer_than_the_longest_nor_half_of_the_shortest(
    held: list[float],
) -> None:
    pause = Pause(CountingEntropy(), MOST_S)
    for held_s in held:
        assert FIRST_PAUSE_S / 2 <= pause.next(held_s) <= MOST_S


def test_nodes_spread_out(world: World) -> None:
    class Chance:
        def __init__(self, number: int) -> None:
            self.number = number

        def uuid48(self) -> int:
            return self.number

    assert Pause(Chance(0), 1.0).next(0) == FIRST_PAUSE_S
    assert Pause(Chance(0xFFFF), 1.0).next(0) < FIRST_PAUSE_S * 0.51


def test_a_dialler_that_fails_in_the_call_is_no_different(world: World) -> None:
    def dial(place: str, make_session: object, failed: object) -> object:
        failed("no such host")  # type: ignore[operator]
        return world.calls

    world.replication._dial = dial  # type: ignore[assignment]
    world.follow(A, [0])
    assert (source(world).state.value, source(world).last_error) == ("waiting", "no such host")


def test_nothing_of_a_line_outlives_it_without_the_collector(world: World) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            linked(world, [0, 1]).closes()
            world.redialled_after()
            world.calls[-1].failed("refused")
            world.stop()
            told = world.take_over(A, [0])
            world.calls[-1].opens().closes()
            world.rig.flush()
            assert told
            world.wait(2)
        world.calls.clear()
        alive = [type(each).__name__ for each in gc.get_objects() if _comes_and_goes(each)]
    finally:
        gc.enable()
    assert alive == []


def _comes_and_goes(thing: object) -> bool:
    return type(thing).__name__ in {"Line", "Source", "Followed", "Handover", "FakeLink"}


def test_streams_that_end_at_once_are_asked_for_ever_more_rarely(world: World) -> None:
    link = linked(world, [0])
    asked = []
    for _ in range(9):
        link.begins(0)
        link.ends(0)
        before = len(link.asked)
        began = world.now
        while len(link.asked) == before:
            world.wait(0.1)
        asked.append(world.now - began)
    assert asked[0] <= 0.25
    assert asked[-1] >= MOST_S / 2


def test_what_is_received_counts_over_lines_and_sources(world: World) -> None:
    link = linked(world, [0])
    link.items, link.rollbacks, link.window.backoffs = 3, 1, 2
    link.closes()
    world.redialled_after()
    link = world.calls[-1].opens()
    link.items, link.rollbacks = 4, 2
    assert source(world).received == (7, 3, 2)
    world.stop()
    link = linked(world, [1])
    link.items, link.window.backoffs = 5, 1
    assert world.replication.received == (12, 3, 3)


@pytest.mark.parametrize("taking", [False, True])
@pytest.mark.parametrize("times", [0.5, 1, 2])
def test_a_source_with_another_number_of_vbuckets_is_of_no_use(
    world: World, times: float, taking: bool
) -> None:
    """A key would be in another vBucket here."""
    promised = world.take_over(A, [0, 1]) if taking else world.follow(A, [0, 1])
    link = world.calls[-1].connects()
    link.granted = {control.VERSIONS}
    link.opens()
    assert link.asked == link.taking == [], "not before it is known"
    count = int(world.bucket.settings.engine.vbuckets * times)
    document = {"vBucketServerMap": {"vBucketMap": [[0]] * count, "serverList": ["a:1"]}}
    ((opcode, answered),) = link.questions
    assert opcode == Opcode.GET_CLUSTER_CONFIG
    answered(ResponseFrame(opcode, value=json.dumps(document).encode()))
    if times == 1:
        assert link.asked + link.taking == [[0, 1]]
        return
    world.wait(60)
    world.rig.flush()
    assert link.asked == link.taking == []
    if taking:
        ((outcomes, why),) = promised
        assert set(outcomes.values()) == {Outcome.REFUSED}
        assert f"it has {count} vBuckets" in why
    else:
        assert {world.standing(number) for number in (0, 1)} == {"refused"}
        assert source(world).last_error.startswith(f"it has {count} vBuckets")


def test_once_it_has_begun_it_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, upr__dial_timeout_s=3.0)
    told = world.take_over(A, [0])
    link = world.calls[0].opens()
    link.begins(0)
    for _ in range(5):
        world.wait(59)
        link.steps += 1
    assert told == []
