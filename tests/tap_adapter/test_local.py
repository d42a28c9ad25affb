"""The node as an upstream of its TAP clients: survey, streams as pulled, single documents."""

from __future__ import annotations

import pytest

from tests.kv.harness import Rig
from tests.upr.peer import DELETION, MARKER, MUTATION, Frame, split
from uprmc.errors import TemporaryFailure
from uprmc.model import SEQNO_MAX, Item, Life, SnapshotRange, VBucketState
from uprmc.protocol.opcodes import Status
from uprmc.protocol.upr import StreamRequest, decode_failover_log
from uprmc.record import pack
from uprmc.tap_adapter.local import PORTION_KEYS, PREFIX, TRIES, LocalUpstream
from uprmc.tap_adapter.upstream import Upstream, UpstreamVBucket

FROM_0 = StreamRequest(0, 0, SEQNO_MAX, 0, 0, 0)


class Local:
    """One upstream and what has come of it."""

    def __init__(self, rig: Rig, name: bytes = b"replica1", *, values: bool = True) -> None:
        self.rig = rig
        self.wakes = 0
        self.upstream: Upstream = LocalUpstream(rig.services.upr, name, values, self._wake)
        self.answers: list[tuple[int, bytes]] = []
        self.fetched: list[list[Item] | None] = []

    def _wake(self) -> None:
        self.wakes += 1

    def open(self, number: int, request: StreamRequest = FROM_0, *, opaque: int = 7) -> int:
        self.upstream.open(number, opaque, request, lambda *answer: self.answers.append(answer))
        return self.answers[-1][0]

    def pull(self, budget: int = 1 << 16) -> list[Frame]:
        pieces: list[bytes] = []
        while self.upstream.pull(pieces, budget):
            pass
        frames, rest = split(b"".join(pieces))
        assert rest == b""
        return frames

    def fetch(self, number: int, *keys: bytes) -> None:
        self.upstream.fetch(number, keys, self.fetched.append)


def put(rig: Rig, number: int, key: bytes, value: bytes = b"v") -> Item:
    return rig.bucket.vbuckets[number].store(key, value, 0, 0)


def survey(local: Local, numbers: list[int] | None) -> dict[int, UpstreamVBucket]:
    found: list[dict[int, UpstreamVBucket]] = []
    local.upstream.survey(numbers, found.append)
    return found[0]


# --- survey -------------------------------------------------------------------------------------


def test_a_survey_tells_where_each_vbucket_stands() -> None:
    rig = Rig()
    put(rig, 2, b"a")
    put(rig, 2, b"b")
    rig.bucket.set_state(3, VBucketState.REPLICA)
    found = survey(Local(rig), None)
    assert list(found) == [0, 1, 2, 3]
    assert found[2] == (VBucketState.ACTIVE, 2, rig.bucket.vbuckets[2].failover_log[0].uuid)
    assert found[3].state == VBucketState.REPLICA


def test_a_survey_leaves_out_what_is_not_there() -> None:
    assert list(survey(Local(Rig()), [1, 4, 65_535])) == [1]


def test_a_replica_in_mid_snapshot_stands_where_it_was_whole_last() -> None:
    rig = Rig()
    put(rig, 1, b"a")
    vbucket = rig.bucket.set_state(1, VBucketState.REPLICA)
    vbucket.receiving = SnapshotRange(1, 5)
    vbucket.adopt(pack(Item(b"b", b"v", 0, 0, 9, 2, 1)))
    assert survey(Local(rig), [1])[1].high_seqno == 1


# --- streams ------------------------------------------------------------------------------------


def test_a_stream_is_pulled_as_upr_frames_each_beginning_a_piece() -> None:
    rig = Rig()
    put(rig, 0, b"key", b"value")
    local = Local(rig)
    assert local.open(0) == Status.SUCCESS
    assert decode_failover_log(local.answers[0][1]) == rig.bucket.vbuckets[0].failover_log
    pieces: list[bytes] = []
    local.upstream.pull(pieces, 1 << 16)
    assert [len(piece) for piece in pieces[:2]] == [44, 55]
    marker, mutation = split(b"".join(pieces))[0]
    assert (marker.opcode, mutation.opcode, mutation.opaque) == (MARKER, MUTATION, 7)


def test_deletions_come_without_times_and_expirations_as_deletions() -> None:
    rig = Rig()
    vbucket = rig.bucket.vbuckets[0]
    put(rig, 0, b"gone")
    vbucket.delete(b"gone")
    vbucket.expire(put(rig, 0, b"old"))
    local = Local(rig)
    local.open(0)
    frames = local.pull()
    assert [each.opcode for each in frames] == [MARKER, DELETION, DELETION]
    assert {len(each.extras) for each in frames[1:]} == {18}


def test_without_values_only_keys_are_pulled() -> None:
    rig = Rig()
    put(rig, 0, b"key", b"value")
    local = Local(rig, values=False)
    local.open(0)
    assert [(each.key, each.value) for each in local.pull()[1:]] == [(b"key", b"")]


@pytest.mark.parametrize(
    ("number", "request_", "status"),
    [
        (9, FROM_0, Status.NOT_MY_VBUCKET),
        (0, FROM_0._replace(snapshot_start=5), Status.RANGE_ERROR),
        (0, FROM_0._replace(start_seqno=1, snapshot_end=1, uuid=77), Status.ROLLBACK),
    ],
)
def test_a_refused_stream_is_answered_by_its_status(
    number: int, request_: StreamRequest, status: Status
) -> None:
    rig = Rig()
    put(rig, 0, b"key")
    local = Local(rig)
    assert local.open(number, request_) == status
    if status == Status.ROLLBACK:
        assert local.answers[0][1] == bytes(8)


def test_the_second_stream_of_a_vbucket_is_refused() -> None:
    local = Local(Rig())
    assert [local.open(0), local.open(0)] == [Status.SUCCESS, Status.KEY_EXISTS]


def test_a_closed_stream_gives_nothing_more_and_may_be_opened_again() -> None:
    rig = Rig()
    put(rig, 0, b"key")
    local = Local(rig)
    local.open(0)
    local.upstream.close_stream(0)
    local.upstream.close_stream(0)
    assert local.pull() == []
    assert local.open(0) == Status.SUCCESS


def test_a_change_wakes_who_has_pulled_everything() -> None:
    rig = Rig()
    local = Local(rig)
    local.open(0)
    local.pull()
    woken = local.wakes
    put(rig, 0, b"new")
    assert local.wakes > woken
    assert [each.key for each in local.pull()[1:]] == [b"new"]


def test_in_statistics_it_is_a_producer_with_the_clients_name() -> None:
    rig = Rig()
    local = Local(rig)
    assert list(rig.services.upr.producers) == [PREFIX + b"replica1"]
    local.upstream.close()
    assert rig.services.upr.producers == {}


def test_a_newer_one_of_the_same_name_closes_it() -> None:
    rig = Rig()
    local = Local(rig)
    Local(rig)
    assert local.upstream.closed
    assert local.wakes


def test_a_closed_one_lets_go_of_everything_and_says_nothing_more() -> None:
    rig = Rig()
    put(rig, 0, b"key")
    rig.flush()
    local = Local(rig)
    local.open(0)
    local.upstream.close()
    local.upstream.close()
    put(rig, 0, b"other")
    assert local.pull() == []
    assert rig.services.upr.backfills.used == 0
    assert rig.bucket.vbuckets[0].watchers == []


def test_during_warm_up_there_is_none() -> None:
    with pytest.raises(TemporaryFailure):
        Local(Rig(warm=False))


# --- single documents ---------------------------------------------------------------------------


def test_documents_are_fetched_in_order_from_memory_and_from_disk() -> None:
    rig = Rig()
    keys = [b"a", b"b", b"c"]
    for key in keys:
        put(rig, 0, key, b"value of " + key)
    rig.flush()
    vbucket = rig.bucket.vbuckets[0]
    vbucket.eject(b"b")
    local = Local(rig)
    local.fetch(0, *keys)
    assert local.fetched == []
    rig.fetch()
    (found,) = local.fetched
    assert found is not None
    assert [(item.key, item.value) for item in found] == [(k, b"value of " + k) for k in keys]


def test_what_was_deleted_is_fetched_as_a_tombstone_with_its_revision() -> None:
    rig = Rig()
    put(rig, 0, b"gone")
    tombstone = rig.bucket.vbuckets[0].delete(b"gone")
    rig.flush()
    local = Local(rig)
    local.fetch(0, b"gone", b"never")
    rig.fetch()
    (found,) = local.fetched
    assert found is not None
    assert [item.life for item in found] == [Life.DELETED, Life.DELETED]
    assert [item.rev for item in found] == [tombstone.rev, 0]


@pytest.mark.parametrize("count", [0, 1, PORTION_KEYS, PORTION_KEYS + 1, 3 * PORTION_KEYS])
def test_any_number_of_documents_is_fetched_a_portion_at_a_time(count: int) -> None:
    rig = Rig()
    keys = [b"key-%d" % number for number in range(count)]
    for key in keys:
        put(rig, 0, key)
    rig.flush()
    vbucket = rig.bucket.vbuckets[0]
    for key in keys:
        vbucket.eject(key)
    local = Local(rig)
    local.fetch(0, *keys)
    sizes = []
    while wanted := rig.fetch():
        sizes.append(wanted)
    assert all(size <= PORTION_KEYS for size in sizes)
    (found,) = local.fetched
    assert found is not None
    assert [item.key for item in found] == keys


def test_a_value_that_is_ejected_again_and_again_is_given_up() -> None:
    rig = Rig()
    for key in (b"a", b"b"):
        put(rig, 0, key)
    rig.flush()
    vbucket = rig.bucket.vbuckets[0]
    vbucket.eject(b"a")
    local = Local(rig)
    rounds = 0
    local.fetch(0, b"a", b"b")
    while not local.fetched:
        vbucket.eject(b"b" if rounds % 2 == 0 else b"a")
        rig.fetch()
        rounds += 1
    assert (local.fetched, rounds) == ([None], TRIES)


def test_a_disk_that_fails_gives_nothing() -> None:
    rig = Rig()
    put(rig, 0, b"a")
    rig.flush()
    rig.bucket.vbuckets[0].eject(b"a")
    local = Local(rig)
    local.fetch(0, b"a")
    rig.fetch(ok=False)
    local.fetch(9, b"a")
    assert local.fetched == [None, None]


def test_after_close_a_fetch_answers_nobody() -> None:
    rig = Rig()
    local = Local(rig)
    local.fetch(0, b"a")
    local.upstream.close()
    rig.fetch()
    assert local.fetched == []
