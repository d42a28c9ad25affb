"""Snapshot leases as frames: acquire, read as often as wanted, renew, release, expire.

Source: design, decision 12; `docs/protocol.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.upr.peer import (
    ACTIVE,
    BARRIER_ADD,
    BARRIER_REACHED,
    CLOSE_STREAM,
    DEAD,
    DISK,
    EXISTS,
    INVALID,
    LATER,
    LEASE_ACQUIRE,
    LEASE_RELEASE,
    LEASE_RENEW,
    MARKER,
    MUTATION,
    NOT_FOUND,
    NOT_MY_VBUCKET,
    OK,
    PENDING,
    RANGE,
    REPLICA,
    ROLLBACK,
    STREAM_END,
    Frame,
    Peer,
    Rig,
    bystander,
    fill,
    frame,
    items,
    kinds,
    marked,
    only,
    seqnos,
    stream_request,
    upr_rig,
    uuid_of,
    write,
)
from tests.upr.test_watermarks_on_the_wire import accepted, connected, report
from uprmc.engine.vbucket import Forgetting
from uprmc.kv.vbucket_commands import SLICE_BYTES, SLICE_RECORDS
from uprmc.model import SnapshotRange, VBucketState


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def acquire(*vbuckets: int, lifetime: int = 60, reader: bytes = b"") -> bytes:
    value = struct.pack(f">{len(vbuckets)}H", *vbuckets)
    return frame(LEASE_ACQUIRE, key=reader, extras=struct.pack(">I", lifetime), value=value)


def renew(lease: int, lifetime: int) -> bytes:
    return frame(LEASE_RENEW, extras=struct.pack(">QI", lease, lifetime))


def release(lease: int) -> bytes:
    return frame(LEASE_RELEASE, extras=struct.pack(">Q", lease))


def granted(answer: Frame) -> tuple[int, int]:
    assert answer.status == OK
    lease, lifetime = struct.unpack(">QI", answer.extras)
    return lease, lifetime


def held(answer: Frame) -> Sequence[tuple[int, ...]]:
    return list(struct.iter_unpack(">HQQQ", answer.value))


def reader(rig: Rig, name: bytes = b"reader") -> Peer:
    peer = Peer.open(rig, name)
    peer.controls(uprmc_leases=b"true")
    return peer


def leased(vbucket: int, lease: int, start: int = 0, **more: Any) -> bytes:
    return stream_request(vbucket, start, value={"lease": f"{lease:016x}"}, **more)


def test_a_lease_tells_what_it_holds(rig: Rig) -> None:
    fill(rig, 1, 5)
    fill(rig, 3, 2)
    answer = Peer(rig).ask(acquire(3, 1, lifetime=7))
    lease, lifetime = granted(answer)
    assert lease > 0
    assert lifetime == 7
    assert held(answer) == [(1, uuid_of(rig, 1), 5, 0), (3, uuid_of(rig, 3), 2, 0)]


def test_no_vbucket_named_means_all_active_ones(rig: Rig) -> None:
    rig.bucket.set_state(2, REPLICA)
    answer = Peer(rig).ask(acquire())
    assert [each[0] for each in held(answer)] == [0, 1, 3]


def test_a_replica_may_be_leased_by_its_number(rig: Rig) -> None:
    rig.bucket.set_state(2, REPLICA)
    assert [each[0] for each in held(Peer(rig).ask(acquire(2)))] == [2]


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_read_from_a_lease_is_the_same_bytes_each_time(rig: Rig, on_disk: bool) -> None:
    fill(rig, 0, 50, b"x" * 100)
    rig.bucket.vbuckets[0].delete(b"key000007")
    if on_disk:
        rig.flush()
        write(rig, 0, b"queued", b"key000003")
    end = rig.bucket.vbuckets[0].high_seqno
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    first = reader(rig).say(leased(0, lease, opaque=5))[1:]
    write(rig, 0, b"key000001", b"new", value=b"changed")
    rig.bucket.vbuckets[0].delete(b"key000002")
    rig.flush()
    again = reader(rig, b"another").say(leased(0, lease, opaque=5))[1:]
    assert first == again
    assert marked(first) == [(0, end, DISK)]
    assert kinds(first)[0] == MARKER
    assert kinds(first)[-1] == STREAM_END
    assert first[-1].reason == 0
    assert len(items(first)) == 50 + on_disk
    assert seqnos(first) == sorted(seqnos(first))
    rig.bucket.set_state(1, DEAD)
    rig.services.upr.release_views()
    assert not rig.services.upr.leases.open


def lease_rows(lease: int, after: int, count: int, vbucket: int = 0) -> bytes:
    return frame(0xDC, vbucket=vbucket, extras=struct.pack(">QQI", lease, after, count))


def test_a_lease_tells_where_a_number_of_rows_is_reached(rig: Rig) -> None:
    fill(rig, 0, 2_500)
    rig.flush()
    for _ in range(3):
        write(rig, 0, b"hot")
    fill(rig, 0, 20)
    peer = Peer(rig)
    lease, _ = granted(peer.ask(acquire(0)))
    fill(rig, 0, 10)
    read = seqnos(reader(rig).say(leased(0, lease))[1:])
    for after in (0, read[10], read[-30], read[-1]):
        above = [each for each in read if each > after]
        for count in (1, 63, 64, 65, 999, 1_000, 1_001, 2_500, len(above) + 1):
            answer = peer.ask(lease_rows(lease, after, count))
            end = above[count - 1] if count <= len(above) else read[-1]
            expected = (end, min(count, len(above)))
            assert struct.unpack(">QI", answer.extras) == expected, (after, count)
    assert peer.ask(lease_rows(lease, 0, 0)).status == INVALID
    assert peer.ask(lease_rows(lease, 0, 1, vbucket=1)).status == NOT_MY_VBUCKET
    assert peer.ask(lease_rows(lease + 1, 0, 1)).status == NOT_FOUND


def test_numbers_of_rows_are_counted_a_little_in_each_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(rig, 0, 40, b"x" * 100_000)
    fill(rig, 1, 40)
    rig.flush()
    peer = Peer(rig)
    lease, _ = granted(peer.ask(acquire()))
    peer.send(*[lease_rows(lease, 0, 5, vbucket=1)] * 8)
    found = [len(peer.turn()) for _ in range(20)]
    assert (max(found), sum(found)) == (1, 8)  # however many come in one piece

    def turns() -> int:
        peer.send(lease_rows(lease, 0, 40))
        return next(number for number in range(1, 1_000) if peer.turn())

    assert turns() > 40 * 100_000 / SLICE_BYTES
    reading = rig.services.upr.leases.find(lease).readings[0]
    stale = SimpleNamespace(portions_after=lambda vbucket, after: [[]] * 1_000, close=lambda: None)
    monkeypatch.setattr(reading, "_view", stale)  # segments of which nothing is left
    assert turns() > 1_000 * 32 / SLICE_RECORDS


def test_both_readers_may_read_at_the_same_time_and_from_anywhere(rig: Rig) -> None:
    fill(rig, 0, 50, b"x" * 200)
    rig.flush()
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    write(rig, 0, b"later")
    one, two = reader(rig, b"1"), reader(rig, b"2")
    one.send(leased(0, lease))
    two.send(leased(0, lease, 20, uuid=uuid_of(rig)))
    for _ in range(50):
        one.turn(700)
        two.turn(700)
    one.drain()
    two.drain()
    assert seqnos(one.received) == list(range(1, 51))
    assert seqnos(two.received) == list(range(21, 51))


def test_a_lease_read_to_its_end_is_ended_at_once(rig: Rig) -> None:
    fill(rig, 0, 3)
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    write(rig, 0, b"later")
    peer = reader(rig)
    assert kinds(peer.say(leased(0, lease, 3, uuid=uuid_of(rig)))[1:]) == [STREAM_END]


def test_a_position_beyond_the_lease_or_of_another_history_falls_back(rig: Rig) -> None:
    fill(rig, 0, 3)
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    fill(rig, 0, 3)
    peer = reader(rig)
    ahead = peer.ask(leased(0, lease, 5, uuid=uuid_of(rig)))
    assert (ahead.status, ahead.value) == (ROLLBACK, (3).to_bytes(8, "big"))
    assert peer.ask(leased(0, lease, 2, uuid=0xDEAD)).status == ROLLBACK
    assert peer.ask(leased(0, lease, 2, uuid=uuid_of(rig), snapshot=(3, 3))).status == RANGE


def test_a_stream_from_a_lease_takes_the_place_of_a_stream(rig: Rig) -> None:
    fill(rig, 0, 50, b"x" * 500)
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    peer = reader(rig)
    peer.send(leased(0, lease))
    peer.turn(1_000)
    assert peer.say(leased(0, lease))[0].status == EXISTS
    peer.drain()
    assert peer.say(leased(0, lease))[0].status == OK


def test_a_lease_that_nobody_has_is_not_found(rig: Rig) -> None:
    undisturbed = bystander(rig)
    peer = reader(rig)
    assert peer.ask(leased(0, 0xDEAD)).status == NOT_FOUND
    assert peer.ask(renew(0xDEAD, 5)).status == NOT_FOUND
    assert peer.ask(release(0xDEAD)).status == NOT_FOUND
    undisturbed()


def test_a_vbucket_that_the_lease_does_not_hold_is_not_in_it(rig: Rig) -> None:
    lease, _ = granted(Peer(rig).ask(acquire(1, 2)))
    assert reader(rig).ask(leased(0, lease)).status == NOT_MY_VBUCKET


def test_leases_are_read_only_where_that_was_negotiated(rig: Rig) -> None:
    fill(rig, 0, 1)
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    versions_only = Peer.open(rig, b"v")
    versions_only.controls(uprmc_versions=b"true")
    assert versions_only.ask(leased(0, lease)).status == INVALID
    assert Peer.modern(rig, b"m").ask(leased(0, lease)).status == INVALID
    leases_only = reader(rig)
    known = {"known_versions": [{"id": f"{uuid_of(rig):016x}", "seq": 0}]}
    assert leases_only.ask(stream_request(0, uuid=uuid_of(rig), value=known)).status == INVALID


@pytest.mark.parametrize("how", ["release", "expire", "withdraw"])
@pytest.mark.parametrize(("modern", "reason"), [(True, 5), (False, 2)])
def test_a_lease_that_ends_while_it_is_read_ends_the_stream(
    rig: Rig, how: str, modern: bool, reason: int
) -> None:
    undisturbed = bystander(rig)
    fill(rig, 0, 50, b"x" * 500)
    rig.flush()
    manager = Peer(rig)
    lease, _ = granted(manager.ask(acquire(0, lifetime=10)))
    peer = (Peer.modern if modern else Peer.open)(rig, b"reader")
    peer.controls(uprmc_leases=b"true")
    peer.send(leased(0, lease, opaque=3))
    peer.turn(2_000)
    assert items(peer.received)
    if how == "release":
        assert manager.ask(release(lease)).status == OK
    elif how == "expire":
        rig.clock.time += 10
        rig.services.upr.tick()
    else:
        rig.services.upr.release_views()
    assert peer.side.feed.streams == {}, "it is told, before it reads on"
    (end,) = only(peer.drain(), STREAM_END)
    assert (end.reason, end.opaque) == (reason, 3)
    assert len(items(peer.received)) < 50
    assert not list(rig.store._views)
    assert peer.ask(leased(0, lease)).status == NOT_FOUND
    undisturbed()


def test_a_lease_lives_as_long_as_it_was_granted(rig: Rig) -> None:
    peer = Peer(rig)
    lease, _ = granted(peer.ask(acquire(0, lifetime=10)))
    rig.clock.time += 9.9
    rig.services.upr.tick()
    assert granted(peer.ask(renew(lease, 20))) == (lease, 20)
    rig.clock.time += 19.9
    rig.services.upr.tick()
    assert granted(peer.ask(renew(lease, 1))) == (lease, 1)
    rig.clock.time += 1
    rig.services.upr.tick()
    assert peer.ask(renew(lease, 1)).status == NOT_FOUND
    assert rig.services.upr.leases.expired == 1


def test_a_lifetime_is_cut_to_the_limit_and_never_0() -> None:
    rig = upr_rig(upr__lease_max_s=100)
    peer = Peer(rig)
    lease, lifetime = granted(peer.ask(acquire(0, lifetime=0xFFFFFFFF)))
    assert lifetime == 100
    assert granted(peer.ask(renew(lease, 101))) == (lease, 100)
    assert peer.ask(acquire(0, lifetime=0)).status == INVALID
    assert peer.ask(renew(lease, 0)).status == INVALID


def test_so_many_leases_are_held_at_a_time() -> None:
    rig = upr_rig(upr__leases=3)
    peer = Peer(rig)
    taken = [granted(peer.ask(acquire(0)))[0] for _ in range(3)]
    assert len(set(taken)) == 3
    assert peer.ask(acquire(0)).status == LATER
    assert peer.ask(release(taken[1])).status == OK
    assert peer.ask(acquire(0)).status == OK


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"\x00\x00\x00\x00", INVALID),
        (b"\x00", INVALID),
        (b"\x00\x09", NOT_MY_VBUCKET),
        (b"\xff\xff", NOT_MY_VBUCKET),
        (b"\x00\x00\x00\x03\x00\x03", INVALID),
    ],
)
def test_a_malformed_wish_is_refused(rig: Rig, value: bytes, status: int) -> None:
    undisturbed = bystander(rig)
    peer = Peer(rig)
    asked = frame(LEASE_ACQUIRE, extras=struct.pack(">I", 5), value=value)
    assert peer.ask(asked).status == status
    assert not peer.closed
    assert not list(rig.store._views)
    undisturbed()


@pytest.mark.parametrize("state", [PENDING, DEAD])
def test_what_is_not_served_is_not_leased(rig: Rig, state: Any) -> None:
    rig.bucket.set_state(1, state)
    assert Peer(rig).ask(acquire(0, 1)).status == NOT_MY_VBUCKET


def test_warming_up_there_are_no_leases() -> None:
    assert Peer(upr_rig(warm=False)).ask(acquire()).status == LATER


def test_a_store_that_opens_no_view_is_for_later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from uprmc.errors import StoreError

    def refuse() -> None:
        raise StoreError("no reader's place is left")

    monkeypatch.setattr(rig.store, "view", refuse)
    assert Peer(rig).ask(acquire(0)).status == LATER


def test_a_lease_survives_the_connection_that_took_it(rig: Rig) -> None:
    fill(rig, 0, 3)
    taker = Peer(rig)
    lease, _ = granted(taker.ask(acquire(0)))
    taker.lose()
    assert seqnos(reader(rig).say(leased(0, lease))) == [1, 2, 3]


def test_what_happens_to_the_vbucket_while_it_is_read_does_not_matter(rig: Rig) -> None:
    fill(rig, 0, 50, b"x" * 500)
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    peer = reader(rig)
    peer.send(leased(0, lease))
    peer.turn(2_000)
    rig.bucket.set_state(0, DEAD)
    frames = peer.drain()
    assert kinds(frames).count(MUTATION) + 0 < 50
    assert seqnos(peer.received) == list(range(1, 51))
    assert [each.reason for each in only(peer.received, STREAM_END)] == [0]


def hand_over(rig: Rig) -> None:
    rig.bucket.set_state(0, DEAD)


def make_pending(rig: Rig) -> None:
    rig.bucket.set_state(0, PENDING)


def remove(rig: Rig) -> None:
    rig.bucket.set_state(0, DEAD)
    rig.bucket.remove(0, lambda _: None)
    rig.flush()


def make_again(rig: Rig) -> None:
    remove(rig)
    rig.bucket.set_state(0, ACTIVE)
    write(rig, 0, b"of another history")


def roll_back(rig: Rig) -> None:
    rig.bucket.set_state(0, REPLICA).forgetting = Forgetting(3, frozenset())


def begin_a_snapshot(rig: Rig) -> None:
    vbucket = rig.bucket.set_state(0, REPLICA)
    vbucket.receiving = SnapshotRange(0, 1_000)


@pytest.mark.acceptance("D40")
@pytest.mark.parametrize(
    "meanwhile", [hand_over, make_pending, remove, make_again, roll_back, begin_a_snapshot]
)
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("rounds", [False, True])
def test_a_lease_is_served_until_it_ends_wherever_its_vbucket_has_gone(
    rig: Rig, meanwhile: Callable[[Rig], None], on_disk: bool, rounds: bool
) -> None:
    fill(rig, 0, 50, b"x" * 500)
    if on_disk:
        rig.flush()
    history = uuid_of(rig)
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    first = reader(rig).say(leased(0, lease, opaque=5))
    meanwhile(rig)
    assert reader(rig, b"again").say(leased(0, lease, opaque=5)) == first
    peer = reader(rig, b"resumed")
    if rounds:
        peer.controls(uprmc_rounds=b"true")
    peer.controls(uprmc_barrier=b"true")
    peer.send(leased(0, lease, 20, uuid=history, snapshot=(0, 50)))
    peer.turn(2_000)
    peer.send(frame(BARRIER_ADD, key=b"behind it"))
    rest = peer.drain()
    assert seqnos(peer.received) == list(range(21, 51))
    assert [each.reason for each in only(peer.received, STREAM_END)] == [0]
    reached = [at for at, each in enumerate(rest) if each.opcode == BARRIER_REACHED]
    assert reached > [at for at, each in enumerate(rest) if each.opcode == MUTATION][-1:]
    assert granted(Peer(rig).ask(renew(lease, 5))) == (lease, 5)
    assert Peer(rig).ask(release(lease)).status == OK
    assert not list(rig.store._views)


@pytest.mark.parametrize("state", [ACTIVE, REPLICA, PENDING, DEAD, None])
def test_a_released_or_unknown_lease_is_not_found_whatever_the_vbucket_is(
    rig: Rig, state: VBucketState | None
) -> None:
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    assert Peer(rig).ask(release(lease)).status == OK
    if state is None:
        remove(rig)
    else:
        rig.bucket.set_state(0, state)
    peer = reader(rig)
    assert peer.ask(leased(0, lease)).status == NOT_FOUND
    assert peer.ask(leased(0, 0xDEAD)).status == NOT_FOUND
    assert peer.ask(leased(9, 0xDEAD)).status == NOT_FOUND, "a number that no vBucket can have"


def test_a_lease_of_the_life_before_is_not_found_while_this_one_warms_up() -> None:
    assert reader(upr_rig(warm=False)).ask(leased(0, 0xDEAD)).status == NOT_FOUND


@pytest.mark.acceptance("X03")
@pytest.mark.parametrize(
    ("name", "registered"), [(b"spark", True), (b"another", False), (b"", False)]
)
def test_a_lease_is_read_for_who_is_registered_on_another_connection(
    rig: Rig, name: bytes, registered: bool
) -> None:
    fill(rig, 0, 5)
    rig.flush()
    accepted(connected(rig), report(0, b"spark"))
    lease, _ = granted(Peer(rig).ask(acquire(0, reader=name)))
    assert seqnos(reader(rig).say(leased(0, lease))) == [1, 2, 3, 4, 5]
    assert bool(rig.bucket.purge_policy.served_at) is not registered


def test_a_lease_names_no_reader_with_a_longer_id_than_a_row_may_have(rig: Rig) -> None:
    assert Peer(rig).ask(acquire(reader=b"i" * 64)).status == OK
    assert Peer(rig).ask(acquire(reader=b"i" * 65)).status == INVALID


def test_a_slow_reader_of_a_lease_keeps_its_place(rig: Rig) -> None:
    """Only the lease's own limits bound it: its reading is not the stream's to give up."""
    fill(rig, 0, 50, b"x" * 500)
    rig.flush()
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    peer = reader(rig)
    peer.controls(connection_buffer_size=b"2000")
    peer.send(leased(0, lease))
    peer.drain()
    peer.session.tick(1.0)
    peer.session.tick(1e6)
    peer.controls(connection_buffer_size=b"0")
    assert len(marked(peer.received)) == 1
    assert seqnos(peer.received) == list(range(1, 51))


def test_closing_the_stream_keeps_the_lease(rig: Rig) -> None:
    fill(rig, 0, 50, b"x" * 500)
    lease, _ = granted(Peer(rig).ask(acquire(0)))
    peer = reader(rig)
    peer.send(leased(0, lease))
    peer.turn(2_000)
    assert peer.say(frame(CLOSE_STREAM))[0].status == OK
    (open_lease,) = rig.services.upr.leases.open.values()
    assert open_lease.readers == {}
    assert open_lease.reads == 1
    assert len(seqnos(peer.say(leased(0, lease)))) == 50
    assert open_lease.reads == 2
