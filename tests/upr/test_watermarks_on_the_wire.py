"""Watermarks as frames: register, report, read, remove; and what a row means for a stream.

Source: `docs/extensions.md`, "Watermarks"; `reference/systems.md` a.2 to a.4.
"""

from __future__ import annotations

import struct

import pytest

from tests.upr.peer import (
    DELETION,
    EXISTS,
    INVALID,
    LATER,
    MUTATION,
    NOT_FOUND,
    NOT_MY_VBUCKET,
    OK,
    RANGE,
    REPLICA,
    ROLLBACK,
    STREAM_END,
    STREAM_REQUEST,
    UNKNOWN,
    Frame,
    Peer,
    Rig,
    fill,
    frame,
    items,
    kinds,
    only,
    stream_request,
    upr_rig,
    uuid_of,
    write,
)
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.watermarks.rows import Limit

HWT_REPORT, HWT_READ = 0xED, 0xEE
SET, REMOVE = 0, 1
XDCR, BACKUP = 1, 5
NAME = b"instance"


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def report(
    watermark: int,
    name: bytes = NAME,
    *,
    kind: int = XDCR,
    op: int = SET,
    lifetime: int = 0,
    unused: int = 0,
    uuid: int | None = None,
    meta: bytes = b"",
    vbucket: int = 0,
) -> bytes:
    extras = struct.pack(">QIBBH", watermark, lifetime, kind, op, unused)
    extras += b"" if uuid is None else struct.pack(">Q", uuid)
    return frame(HWT_REPORT, key=name, value=meta, extras=extras, vbucket=vbucket, opaque=7)


def read(name: bytes = b"", vbucket: int = 0) -> bytes:
    return frame(HWT_READ, key=name, vbucket=vbucket)


def records(value: bytes, *, floors: bool = False) -> list[tuple[int | bytes, ...]]:
    found: list[tuple[int | bytes, ...]] = []
    at = 0
    while at < len(value):
        (id_bytes,) = struct.unpack_from(">H", value, at)
        at += 2
        name = value[at : at + id_bytes]
        at += id_bytes
        kind, watermark, reported_at, lifetime, meta_bytes = struct.unpack_from(">BQQIH", value, at)
        at += 23
        meta = value[at : at + meta_bytes]
        at += meta_bytes
        floor = struct.unpack_from(">Q", value, at) if floors else ()
        at += 8 * floors
        found.append((name, kind, watermark, reported_at, lifetime, meta, *floor))
    return found


def connected(rig: Rig, name: bytes = b"conn", value: bytes = b"true") -> Peer:
    peer = Peer.open(rig, name)
    peer.controls(uprmc_hwt=value)
    return peer


def told(peer: Peer, request: bytes) -> Frame:
    """Send a report and write what is to be written; return the answer."""
    peer.send(request)
    peer.rig.flush()
    (answer,) = peer.drain()
    assert (answer.opcode, answer.opaque) == (HWT_REPORT, 7)
    return answer


def accepted(peer: Peer, request: bytes) -> tuple[int, ...]:
    answer = told(peer, request)
    assert answer.status == OK, hex(answer.status)
    return struct.unpack(">QQI", answer.extras)


def limit(rig: Rig) -> Limit:
    return rig.bucket.purge_limit(rig.bucket.vbuckets[0])


def delete(rig: Rig, *keys: bytes) -> None:
    for key in keys:
        rig.bucket.vbuckets[0].delete(key)


EVERY = PurgeRule(every=True)


def purge(rig: Rig, rule: PurgeRule = EVERY, *, vbucket: int = 0) -> int:
    """Compact to the end; return the purge seqno."""
    rig.flush()
    rig.bucket.compact(vbucket, rule, lambda _: None)
    compactor = rig.bucket.compactor
    while compactor.waiting or rig.bucket.flusher.pending:
        while (scan := compactor.begin()) is not None:
            compactor.read(scan)
            compactor.finish(scan)
        rig.flush()
    return rig.bucket.vbuckets[vbucket].purge_seqno


def ask_stream(peer: Peer, start: int) -> Frame:
    """Request a stream; return the answer. What follows it is in `Peer.received`."""
    return peer.say(stream_request(0, start, uuid=uuid_of(peer.rig)))[0]


# --- the messages ---------------------------------------------------------------------------------


@pytest.mark.acceptance("X10", "X11", "X14")
def test_a_row_is_read_back_as_it_was_reported_last(rig: Rig) -> None:
    fill(rig, 0, 10)
    peer = connected(rig)
    assert accepted(peer, report(3, meta=b"first")) == (0, 10, 3600)
    rig.clock.time += 5
    assert accepted(peer, report(4, uuid=uuid_of(rig), meta=b"\x00\xff", lifetime=60)) == (
        0,
        10,
        60,
    )
    row = (NAME, XDCR, 4, int(rig.clock.time), 60, b"\x00\xff")
    assert records(peer.ask(read()).value) == [row]
    assert records(peer.ask(read(NAME)).value) == [row]
    assert peer.ask(read(b"other")).status == NOT_FOUND


def test_a_registration_is_answered_when_it_is_on_disk_and_a_report_at_once(rig: Rig) -> None:
    peer = connected(rig)
    assert peer.say(report(0)) == []
    rig.flush()
    assert kinds(peer.drain()) == [HWT_REPORT]
    assert kinds(peer.say(report(0))) == [HWT_REPORT]


def test_a_registration_that_is_repeated_before_it_is_on_disk_is_answered_no_sooner(
    rig: Rig,
) -> None:
    peer = connected(rig)
    assert peer.say(report(0)) == []
    assert peer.say(report(0)) == []
    rig.fail_flush()
    assert [answer.status for answer in peer.drain()] == [LATER, LATER]
    assert peer.say(report(0)) == []
    rig.flush()
    assert [answer.status for answer in peer.drain()] == [OK]


def test_a_registration_that_cannot_be_written_is_refused_for_now(rig: Rig) -> None:
    peer = connected(rig)
    peer.send(report(0))
    rig.fail_flush()
    (answer,) = peer.drain()
    assert answer.status == LATER


def test_an_answer_to_a_lost_connection_goes_nowhere(rig: Rig) -> None:
    peer = connected(rig)
    peer.send(report(0))
    peer.lose()
    rig.flush()
    assert peer.drain() == []
    assert rig.bucket.watermarks.row_count == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (report(11), RANGE),
        (report(1, uuid=99), ROLLBACK),
        (report(1, kind=7), INVALID),
        (report(1, op=2), INVALID),
        (report(1, unused=1), INVALID),
        (report(1, b"n" * 65), INVALID),
        (report(1, meta=b"m" * 4097), INVALID),
        (report(1, vbucket=9), NOT_MY_VBUCKET),
        (report(1, op=REMOVE), NOT_FOUND),
        (read(vbucket=9), NOT_MY_VBUCKET),
        (frame(HWT_REPORT, key=NAME, extras=bytes(20)), INVALID),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    rig: Rig, request_: bytes, status: int
) -> None:
    fill(rig, 0, 10)
    peer = connected(rig)
    assert peer.ask(request_).status == status
    assert not peer.closed
    assert rig.bucket.watermarks.row_count == 0


def test_rows_are_for_active_vbuckets(rig: Rig) -> None:
    rig.bucket.set_state(0, REPLICA)
    assert connected(rig).ask(report(0)).status == NOT_MY_VBUCKET


@pytest.mark.parametrize("request_", [report(0), read()])
def test_without_the_control_key_nobody_knows_the_messages(rig: Rig, request_: bytes) -> None:
    assert Peer.open(rig).ask(request_).status == UNKNOWN
    assert Peer(rig).ask(request_).status == UNKNOWN
    assert Peer.open(rig, b"consumer", 0).ask(request_).status == UNKNOWN


def test_a_row_belongs_to_its_connection_and_to_the_manager(rig: Rig) -> None:
    fill(rig, 0, 10)
    owner, other = connected(rig, b"a"), connected(rig, b"b")
    manager = connected(rig, b"m", b"manage")
    accepted(owner, report(5))
    for request in (report(4), report(6), report(0), report(5, op=REMOVE)):
        assert other.ask(request).status == EXISTS
    accepted(manager, report(3))
    assert accepted(owner, report(6))
    owner.lose()
    accepted(other, report(5))
    accepted(manager, report(0, op=REMOVE))
    assert rig.bucket.watermarks.row_count == 0


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.acceptance("X05", "X19")
@pytest.mark.parametrize(("start", "status"), [(11, ROLLBACK), (12, OK)])
def test_a_client_whose_row_has_expired_is_judged_by_the_purge_seqno(
    rig: Rig, start: int, status: int
) -> None:
    fill(rig, 0, 10)
    delete(rig, b"key000001", b"key000002")
    peer = connected(rig)
    accepted(peer, report(10))
    write(rig, 0, b"last")
    assert purge(rig) == 0
    rig.clock.time += 3_601
    assert purge(rig) == 12
    assert ask_stream(peer, start).status == status
    assert rig.bucket.watermarks.row_count == (status == OK)


@pytest.mark.acceptance("X05", "X16")
def test_a_slow_builder_goes_on_and_hears_of_every_deletion_above_its_floor(rig: Rig) -> None:
    fill(rig, 0, 100)
    rig.flush()
    peer = connected(rig)
    accepted(peer, report(0))
    assert limit(rig) == Limit(0, NAME)
    peer.send(stream_request(0, 0, uuid=uuid_of(rig)))
    peer.turn(600)
    seen = peer.received[-1].seqno
    assert 0 < seen < 50
    peer.lose()

    delete(rig, b"key000099")
    delete(rig, b"key000000")
    write(rig, 0, b"last")
    assert purge(rig) == 0
    again = connected(rig)
    accepted(again, report(0))
    assert limit(rig) == Limit(100, NAME)
    answer = again.say(stream_request(0, seen, uuid=uuid_of(rig), snapshot=(0, 100)))[0]
    assert answer.status == OK
    assert [each.key for each in only(again.received, DELETION)] == [b"key000099", b"key000000"]
    assert accepted(again, report(103))
    assert purge(rig) == 102


def test_a_builder_below_the_purge_seqno_is_not_thrown_back(rig: Rig) -> None:
    fill(rig, 0, 100)
    delete(rig, b"key000050")
    write(rig, 0, b"last")
    rig.flush()
    peer = connected(rig)
    accepted(peer, report(0))
    peer.send(stream_request(0, 0, uuid=uuid_of(rig)))
    peer.turn(600)
    seen = peer.received[-1].seqno
    assert purge(rig) == 101
    assert not only(peer.drain(), STREAM_END)
    peer.lose()
    again = connected(rig)
    accepted(again, report(0))
    answer = again.say(stream_request(0, seen, uuid=uuid_of(rig), snapshot=(0, 102)))[0]
    assert answer.status == OK
    assert not only(again.received, STREAM_END)
    unnamed = Peer.open(rig, b"unnamed")
    answer = unnamed.say(stream_request(0, seen, uuid=uuid_of(rig), snapshot=(0, 102)))[0]
    assert answer.status == ROLLBACK


@pytest.mark.acceptance("X05")
def test_who_has_finished_its_build_and_comes_back_with_half_of_it_starts_over(rig: Rig) -> None:
    """It was restored from a copy that it made while it was building."""
    fill(rig, 0, 10)
    peer = connected(rig)
    accepted(peer, report(0))
    peer.say(stream_request(0, 0))
    delete(rig, b"key000001", b"key000002")
    write(rig, 0, b"last")
    peer.drain()
    accepted(peer, report(13))
    assert purge(rig) == 12
    peer.lose()
    restored = connected(rig)
    accepted(restored, report(0))
    answer = restored.say(stream_request(0, 5, uuid=uuid_of(rig), snapshot=(0, 10)))[0]
    assert answer.status == ROLLBACK
    write(rig, 0, b"last")
    assert purge(rig) == 12, "what it has not given up is still kept"
    assert ask_stream(restored, 0).status == OK


def test_a_returned_builder_whose_row_has_expired_starts_over(rig: Rig) -> None:
    fill(rig, 0, 10)
    delete(rig, b"key000001")
    write(rig, 0, b"last")
    peer = connected(rig)
    accepted(peer, report(0))
    peer.stream(0)
    peer.lose()
    rig.clock.time += 3_601
    assert purge(rig) == 11
    again = connected(rig)
    accepted(again, report(0))
    assert ask_stream(again, 5).status == ROLLBACK


def test_a_stream_is_checked_again_when_its_snapshot_is_opened(rig: Rig) -> None:
    fill(rig, 0, 10)
    rig.flush()
    peer = connected(rig)
    accepted(peer, report(5))
    peer.send(stream_request(0, 5, uuid=uuid_of(rig)))
    delete(rig, b"key000001")
    write(rig, 0, b"last")
    rig.clock.time += 3_601
    assert purge(rig) == 11
    frames = peer.drain()
    assert kinds(frames) == [STREAM_REQUEST, STREAM_END]
    assert items(frames) == []


def test_a_row_that_expired_before_its_stream_began_is_registered_again(rig: Rig) -> None:
    fill(rig, 0, 10)
    peer = connected(rig)
    accepted(peer, report(0))
    rig.clock.time += 3_601
    assert limit(rig).limited_by != NAME
    peer.stream(0)
    (row,) = rig.bucket.watermarks.rows(rig.bucket.vbuckets[0])
    assert (row.watermark, row.floor) == (0, 10)


def test_a_row_that_another_connection_has_taken_is_left_alone(rig: Rig) -> None:
    fill(rig, 0, 10)
    late = connected(rig, b"late")
    accepted(late, report(4))
    rig.clock.time += 3_601
    taker = connected(rig, b"taker")
    accepted(taker, report(7))
    assert only(late.stream(0), MUTATION)
    (row,) = rig.bucket.watermarks.rows(rig.bucket.vbuckets[0])
    assert (row.watermark, row.floor) == (7, None)


def test_a_builders_floor_is_read_by_those_who_asked_for_floors(rig: Rig) -> None:
    fill(rig, 0, 10)
    builder, other = connected(rig, b"a"), connected(rig, b"b")
    accepted(builder, report(0, b"builder"))
    accepted(other, report(7, b"steady"))
    builder.stream(0)
    plain = records(other.ask(read()).value)
    other.controls(uprmc_hwt_floors=b"true")
    found = records(other.ask(read()).value, floors=True)
    assert [row[:-1] for row in found] == plain
    assert [(row[0], row[-1]) for row in found] == [(b"builder", 10), (b"steady", 0)]
    assert records(other.ask(read(b"builder")).value, floors=True) == found[:1]


def test_a_build_from_a_lease_has_the_leases_end_as_its_floor(rig: Rig) -> None:
    fill(rig, 0, 10)
    lease, _ = rig.services.upr.leases.acquire([0], 60)
    write(rig, 0, b"later")
    peer = connected(rig)
    peer.controls(uprmc_leases=b"true")
    accepted(peer, report(0))
    peer.stream(0, value={"lease": f"{lease.id:016x}"})
    (row,) = rig.bucket.watermarks.rows(rig.bucket.vbuckets[0])
    assert row.floor == 10


@pytest.mark.acceptance("X07")
def test_deletions_have_to_age_only_for_streams_without_a_row(rig: Rig) -> None:
    fill(rig, 0, 10)
    policy = rig.bucket.purge_policy
    registered = connected(rig)
    accepted(registered, report(10))
    ask_stream(registered, 10)
    rig.services.upr.tick()
    assert policy.min_age_s == 0
    other = Peer.open(rig, b"other")
    rig.services.upr.tick()
    assert policy.min_age_s == 0
    ask_stream(other, 10)
    assert policy.min_age_s == 259_200
    rig.clock.time += 300_000
    rig.services.upr.tick()
    assert policy.min_age_s == 259_200
    other.lose()
    rig.clock.time += 300_000
    rig.services.upr.tick()
    assert policy.min_age_s == 0


@pytest.mark.acceptance("X19")
def test_a_report_that_comes_too_late_is_told_what_was_purged_and_when_the_row_expired(
    rig: Rig,
) -> None:
    fill(rig, 0, 10)
    peer = connected(rig)
    accepted(peer, report(3, lifetime=60))
    reported_at = int(rig.clock.now())
    peer.lose()
    delete(rig, b"key000003", b"key000004")
    rig.flush()
    rig.clock.time += 61
    purged = purge(rig)
    answer = told(connected(rig), report(3))
    assert (answer.status, answer.value) == (ROLLBACK, bytes(8))
    assert struct.unpack(">QQQ", answer.extras) == (purged, 3, reported_at + 60)
    stranger = told(connected(rig, b"stranger"), report(3, b"stranger"))
    assert struct.unpack(">QQQ", stranger.extras) == (purged, 0, 0)
