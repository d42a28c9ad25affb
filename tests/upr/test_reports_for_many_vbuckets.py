"""HWT_REPORTS: the reports of one client for many vBuckets, in one frame.

Source: `docs/extensions.md`, "Watermarks"; `reference/systems.md` a.2.
"""

from __future__ import annotations

import struct

import pytest

from tests.upr.peer import (
    EXISTS,
    INVALID,
    NOT_FOUND,
    NOT_MY_VBUCKET,
    OK,
    RANGE,
    ROLLBACK,
    UNKNOWN,
    Frame,
    Peer,
    Rig,
    fill,
    frame,
    upr_rig,
    uuid_of,
    write,
)
from tests.upr.test_watermarks_on_the_wire import BACKUP, XDCR, delete, limit, purge, read, records
from uprmc.engine.watermarks.registry import RAISED_WRITTEN_S
from uprmc.kv.upr_session import UprSession, answers_to_reports
from uprmc.model import VBucketState
from uprmc.protocol.header import RequestFrame
from uprmc.upr.producer import Producer

REPORTS = 0xDD
SET, REMOVE = 0, 1
NAME = b"instance"
ROW = struct.Struct(">HHQQ")
REFUSED = struct.Struct(">HHQQQQ")

Row = tuple[int, int] | tuple[int, int, int] | tuple[int, int, int, bytes]


@pytest.fixture
def rig() -> Rig:
    rig = upr_rig()
    fill(rig, 0, 10)
    rig.flush()
    return rig


def reports(
    *rows: Row, name: bytes = NAME, kind: int = XDCR, op: int = SET, lifetime: int = 0
) -> bytes:
    pieces = []
    for vbucket, watermark, *more in rows:
        uuid, meta = [*more, *(0, b"")[len(more) :]]
        assert isinstance(meta, bytes)
        pieces += ROW.pack(vbucket, len(meta), watermark, uuid), meta
    extras = struct.pack(">IBBH", lifetime, kind, op, 0)
    return frame(REPORTS, key=NAME, extras=extras, value=b"".join(pieces), opaque=7)


def connected(rig: Rig, name: bytes = b"conn", **more: bytes) -> Peer:
    peer = Peer.open(rig, name)
    peer.controls(**({"uprmc_hwt": b"true", "uprmc_hwt_reports": b"true"} | more))
    return peer


def answers(peer: Peer, request: bytes) -> list[Frame]:
    peer.send(request)
    peer.drain()
    peer.rig.flush()
    peer.drain()
    found = [each for each in peer.received if each.opcode == REPORTS]
    peer.received.clear()
    return found


def told(peer: Peer, request: bytes) -> tuple[int, dict[int, tuple[int, ...]]]:
    """Return the lifetime that was granted, and what was refused by vBucket."""
    found = answers(peer, request)
    refused = {}
    for each in found:
        assert (each.status, each.opaque) == (OK, 7)
        lifetime, follows = struct.unpack(">II", each.extras)
        assert follows == (each is not found[-1])
        refused.update({row[0]: row[1:] for row in REFUSED.iter_unpack(each.value)})
    return lifetime, refused


def rows(peer: Peer, vbucket: int = 0) -> list[tuple[int | bytes, ...]]:
    (answer,) = peer.say(read(vbucket=vbucket))
    return records(answer.value)


def test_one_frame_registers_in_many_vbuckets_and_names_only_what_is_refused(rig: Rig) -> None:
    rig.bucket.set_state(2, VBucketState.REPLICA)
    peer = connected(rig)
    request = reports(
        (0, 4, uuid_of(rig), b"log"), (1, 0), (2, 0), (9, 0), kind=BACKUP, lifetime=60
    )
    lifetime, refused = told(peer, request)
    assert lifetime == 60
    assert refused == {2: (NOT_MY_VBUCKET, 0, 0, 0, 0), 9: (NOT_MY_VBUCKET, 0, 0, 0, 0)}
    ((name, kind, watermark, _, granted, meta),) = rows(peer)
    assert (name, kind, watermark, granted, meta) == (NAME, BACKUP, 4, 60, b"log")
    assert rows(peer, 1)[0][2] == 0


def test_refusals_are_told_at_once_and_new_rows_when_they_are_on_disk(rig: Rig) -> None:
    peer = connected(rig)
    peer.send(reports((0, 4), (9, 0)))
    (early,) = peer.drain()
    assert struct.unpack(">II", early.extras)[1] == 1
    assert len(early.value) == REFUSED.size
    assert peer.drain() == []
    rig.flush()
    (last,) = peer.drain()
    assert (struct.unpack(">II", last.extras)[1], last.value) == (0, b"")


def test_what_only_raises_watermarks_is_answered_at_once(rig: Rig) -> None:
    peer = connected(rig)
    told(peer, reports((0, 4)))
    (answer,) = peer.say(reports((0, 7)))
    assert (answer.status, answer.value) == (OK, b"")
    assert limit(rig).seqno == 7


@pytest.mark.parametrize("stop", ["time", "purge"])
def test_a_raised_watermark_is_written_after_a_while_or_with_a_purge(rig: Rig, stop: str) -> None:
    delete(rig, b"key000001")
    peer = connected(rig)
    told(peer, reports((0, 4)))
    rig.flush()
    peer.say(reports((0, 10)))
    assert not rig.bucket.flusher.pending
    if stop == "time":
        rig.clock.time += RAISED_WRITTEN_S
        rig.bucket.watermarks.tell_events()
        assert rig.bucket.flusher.pending
        rig.flush()
    else:
        delete(rig, b"key000002", b"key000003")
        peer.say(reports((0, 13)))
        assert purge(rig) > 10
    bucket = rig.bucket
    stored = type(bucket.watermarks)(
        bucket.flusher, rig.clock, bucket.steady, bucket.settings.purge
    )
    stored.load(rig.store, 0)
    assert stored.limit(rig.bucket.vbuckets[0]).seqno == limit(rig).seqno


def test_a_second_report_of_a_new_row_waits_for_the_disk_as_the_first_does(rig: Rig) -> None:
    peer = connected(rig)
    peer.send(reports((0, 4)), reports((0, 5)))
    assert peer.drain() == []
    rig.flush()
    assert [each.status for each in peer.drain()] == [OK, OK]
    assert peer.say(reports((0, 6)))[0].status == OK


def test_raised_watermarks_of_many_vbuckets_are_written_a_part_at_a_time() -> None:
    rig = upr_rig(engine__vbuckets=1_024)
    peer = connected(rig)
    for number in range(1_024):
        write(rig, number, b"k")
    told(peer, reports(*[(number, 0) for number in range(1_024)]))
    rig.flush()
    peer.say(reports(*[(number, 1) for number in range(1_024)]))
    rig.clock.time += RAISED_WRITTEN_S
    parts = []
    for _ in range(3):
        rig.bucket.watermarks.tell_events()
        parts.append(len(rig.bucket.flusher._local))
        rig.flush()
    assert parts == [1_000, 24, 0]


def test_a_report_may_say_less_than_a_higher_watermark_or_more(rig: Rig) -> None:
    peer, uuid = connected(rig), uuid_of(rig)
    told(peer, reports((0, 8, uuid)))
    assert told(peer, reports((0, 5, uuid))) == (3600, {})
    assert rows(peer)[0][2] == 5
    assert told(peer, reports((0, 6, uuid, b"new")))[1] == {}
    assert rows(peer)[0][5] == b"new"
    assert told(peer, reports((0, 6, uuid, b"new"), lifetime=30)) == (30, {})
    assert rows(peer)[0][4] == 30


def test_each_report_is_judged_as_if_it_had_come_alone(rig: Rig) -> None:
    peer, other, uuid = connected(rig), connected(rig, b"other"), uuid_of(rig)
    told(peer, reports((0, 4)))
    assert told(other, reports((0, 5)))[1][0][0] == EXISTS
    assert told(peer, reports((0, 11)))[1][0][0] == RANGE
    assert told(peer, reports((0, 5, uuid + 1_000)))[1] == {0: (ROLLBACK, 0, 0, 0, 0)}
    assert told(peer, reports((0, 5), kind=77))[1][0][0] == INVALID
    assert told(peer, reports((0, 0), op=REMOVE))[1] == {}
    assert told(peer, reports((0, 0), op=REMOVE))[1][0][0] == NOT_FOUND


@pytest.mark.acceptance("X19")
def test_an_outpaced_client_learns_how_far_where_it_was_and_when_it_expired(
    rig: Rig,
) -> None:
    peer = connected(rig)
    told(peer, reports((0, 3), lifetime=60))
    told_at = int(rig.clock.now())
    peer.lose()
    delete(rig, b"key000001", b"key000002")
    rig.flush()
    rig.clock.time += 61
    purged = purge(rig)
    assert told(connected(rig), reports((0, 3)))[1] == {0: (ROLLBACK, 0, purged, 3, told_at + 60)}


def test_it_must_be_negotiated_and_have_its_form(rig: Rig) -> None:
    assert Peer.open(rig, b"plain").say(reports((0, 4)))[0].status == UNKNOWN
    half = connected(rig, b"half", uprmc_hwt=b"false")
    assert half.say(reports((0, 4)))[0].status == UNKNOWN
    peer = connected(rig)
    torn = frame(REPORTS, key=NAME, extras=bytes(8), value=ROW.pack(0, 9, 4, 0), opaque=7)
    assert peer.say(torn)[0].status == INVALID
    assert peer.say(reports((0, 4), op=2))[0].status == INVALID
    long = frame(REPORTS, key=NAME, extras=bytes(8), value=bytes(131_073), opaque=7)
    assert peer.say(long)[0].status == INVALID
    assert rows(peer) == []


def test_a_manager_may_report_for_others(rig: Rig) -> None:
    peer = connected(rig)
    told(peer, reports((0, 4)))
    manager = connected(rig, b"manager", uprmc_hwt=b"manage")
    assert told(manager, reports((0, 9)))[1] == {}
    assert limit(rig).seqno == 9


def test_fewer_reports_are_taken_in_a_turn_if_deletions_were_purged_before_them() -> None:
    """Each is told with the keys that were missed."""
    rig = upr_rig(engine__vbuckets=64)
    for number, vbucket in rig.bucket.vbuckets.items():
        write(rig, number, b"a", b"b")
        vbucket.delete(b"a")
        vbucket.delete(b"b")
        write(rig, number, b"c")
        assert purge(rig, vbucket=number) == 4
    outpaced: list[object] = []
    rig.bucket.watermarks.on_event = lambda _, fields: outpaced.append(fields["keys"])
    session = connected(rig).session
    assert isinstance(session, UprSession)
    assert isinstance(session.peer, Producer)
    rows = b"".join(ROW.pack(number, 0, 3, 0) for number in range(64))
    request = RequestFrame(REPORTS, NAME, struct.pack(">IBBH", 0, XDCR, SET, 0), rows, opaque=7)
    *turns, answer = answers_to_reports(session.peer, request)
    assert turns == [b"", b""]
    assert len(answer) == 24 + 8 + 64 * REFUSED.size
    assert outpaced == [["b"]] * 64
