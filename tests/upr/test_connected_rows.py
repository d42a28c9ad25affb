"""Clients that know nothing of watermarks are registered by what they acknowledge.

Source: contracts of the systems to come, section 2 (`upr.register`); `reference/systems.md` a.2.
"""

from __future__ import annotations

import pytest

from tests.upr.peer import ROLLBACK, Peer, Rig, ack, fill, stream_request, upr_rig, uuid_of
from tests.upr.test_watermarks_on_the_wire import XDCR, delete, limit, purge, report
from uprmc.engine.watermarks.rows import Kind, Row


@pytest.fixture
def rig() -> Rig:
    rig = upr_rig(upr__register="connected")
    fill(rig, 0, 10)
    rig.flush()
    return rig


def connected(rig: Rig, name: bytes = b"stock", buffer: int = 100_000) -> Peer:
    peer = Peer.open(rig, name)
    if buffer:
        peer.controls(connection_buffer_size=b"%d" % buffer)
    return peer


def row(rig: Rig) -> Row:
    (found,) = rig.bucket.watermarks.rows(rig.bucket.vbuckets[0])
    return found


def tick(peer: Peer, seconds: float = 1.0) -> None:
    peer.rig.clock.time += seconds
    peer.session.tick(peer.rig.clock.monotonic())


def read_all(peer: Peer, start: int = 0) -> int:
    """Stream to the present; return the bytes that came."""
    before = peer.side.feed.bytes_sent
    peer.say(stream_request(0, start, uuid=uuid_of(peer.rig)))
    peer.drain()
    return int(peer.side.feed.bytes_sent - before)


def test_a_stream_has_a_row_whose_watermark_is_what_was_acknowledged_as_a_whole(rig: Rig) -> None:
    peer = connected(rig)
    size = read_all(peer)
    assert row(rig)[:3] == (b"stock", Kind.OTHER, 0)
    assert row(rig).floor == 10
    tick(peer)
    peer.send(ack(size - 1))
    tick(peer)
    assert row(rig).watermark == 0
    peer.send(ack(1))
    tick(peer)
    assert (row(rig).watermark, row(rig).floor) == (10, None)


def test_its_deletions_are_kept_until_it_has_acknowledged_them(rig: Rig) -> None:
    peer = connected(rig)
    size = read_all(peer)
    tick(peer)
    peer.send(ack(size))
    tick(peer)
    delete(rig, b"key000001")
    fill(rig, 0, 1)
    assert purge(rig) == 0
    before = peer.side.feed.bytes_sent
    peer.drain()
    tick(peer)
    peer.send(ack(peer.side.feed.bytes_sent - before))
    tick(peer)
    assert limit(rig).seqno == 12
    assert purge(rig) == 11


def test_the_row_expires_when_its_connection_has_been_closed_for_long(rig: Rig) -> None:
    peer = connected(rig)
    read_all(peer)
    for _ in range(500):
        tick(peer, 11)
    lifetime_s = row(rig).lifetime_s
    peer.lose()
    rig.clock.time += lifetime_s
    assert row(rig).watermark == 0
    rig.clock.time += 1.5
    assert rig.bucket.watermarks.rows(rig.bucket.vbuckets[0]) == []


def test_the_same_name_goes_on_where_it_was_and_begins_at_zero_if_it_was_outpaced(rig: Rig) -> None:
    peer = connected(rig)
    read_all(peer, 8)
    peer.lose()
    delete(rig, b"key000001")
    fill(rig, 0, 1)
    assert purge(rig) == 0
    again = connected(rig)
    read_all(again, 8)
    assert row(rig).watermark == 8
    again.lose()
    rig.clock.time += 4_000
    assert purge(rig) == 11
    answer = connected(rig).say(stream_request(0, 8, uuid=uuid_of(rig)))[0]
    assert (answer.status, answer.value) == (ROLLBACK, bytes(8))


def test_without_flow_control_or_with_a_row_of_its_own_a_client_gets_none(rig: Rig) -> None:
    read_all(connected(rig, buffer=0))
    assert rig.bucket.watermarks.rows(rig.bucket.vbuckets[0]) == []
    peer = connected(rig)
    peer.controls(uprmc_hwt=b"true")
    peer.say(report(4, kind=XDCR))
    rig.flush()
    read_all(peer, 4)
    assert row(rig)[:3] == (b"instance", Kind.XDCR, 4)


def test_a_long_name_is_shortened_the_same_way_each_time(rig: Rig) -> None:
    peer = connected(rig, b"n" * 200)
    read_all(peer, 8)
    first = row(rig).id
    assert len(first) == 64
    peer.lose()
    read_all(connected(rig, b"n" * 200), 9)
    assert row(rig)[:3] == (first, Kind.OTHER, 9)


def test_by_default_no_connection_is_registered() -> None:
    rig = upr_rig()
    fill(rig, 0, 10)
    read_all(connected(rig))
    assert rig.bucket.watermarks.rows(rig.bucket.vbuckets[0]) == []
