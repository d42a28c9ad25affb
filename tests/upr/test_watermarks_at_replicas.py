"""Watermarks at replicas: what a source tells, what a replica keeps, and how far it may purge.

Source: `docs/extensions.md`, HWT_REPLICATE; `reference/systems.md` a.6.
"""

from __future__ import annotations

import struct

import pytest

from tests.kv.harness import Rig
from tests.upr.link_rig import Pair, Script, name_node, replica_rig
from tests.upr.peer import (
    DELETION,
    MARKER,
    OK,
    ROLLBACK,
    STREAM_REQUEST,
    Frame,
    Peer,
    fill,
    frame,
    items,
    kinds,
    only,
    split,
    stream_request,
    upr_rig,
    uuid_of,
    write,
)
from tests.upr.test_watermarks_on_the_wire import (
    accepted,
    ask_stream,
    connected,
    delete,
    limit,
    purge,
    records,
    report,
)
from uprmc.engine.watermarks.rows import Kind, Limit, WatermarkReport
from uprmc.engine.watermarks.table import MANAGER
from uprmc.model import VBucketState
from uprmc.remote import features

HWT_REPORT, HWT_REPORTS, HWT_REPLICATE = 0xED, 0xDD, 0xEF
REPLICA_KIND, XDCR = 3, 1


def seqnos(rig: Rig) -> dict[bytes, int]:
    """The rows of a node, as its present history sees them."""
    return {row.id: row.watermark for row in rig.bucket.watermarks.rows(rig.bucket.vbuckets[0])}


def purge_seqno(rig: Rig) -> int:
    return rig.bucket.vbuckets[0].purge_seqno


def followed(source: Rig, name: bytes) -> Pair:
    """A replica of a node, level with it."""
    pair = Pair(source, name_node(replica_rig(), name))
    pair.run()
    pair.link.follow([0])
    settle(pair)
    return pair


def settle(*pairs: Pair) -> None:
    """Let a few intervals pass, in which everybody tells what there is."""
    for _ in range(4):
        for pair in pairs:
            pair.tick(1.5)
            pair.run()


@pytest.fixture
def source() -> Rig:
    return upr_rig()


# --- the message ----------------------------------------------------------------------------------


def told(peer: Peer) -> list[tuple[int, int, list[tuple[int | bytes, ...]]]]:
    """What HWT_REPLICATE has told since the last time."""
    found = only(peer.drain(), HWT_REPLICATE)
    return [(*struct.unpack(">QI", each.extras), records(each.value)) for each in found]  # type: ignore[misc]


def replica_at(source: Rig, seqno: int) -> Peer:
    """A replica on the wire that has everything up to a seqno on disk, and streams."""
    peer = connected(source, b"replica")
    accepted(peer, report(seqno, b"n1", kind=REPLICA_KIND))
    ask_stream(peer, seqno)
    peer.drain()
    return peer


@pytest.mark.acceptance("X25")
def test_a_row_ahead_of_the_replica_comes_once_it_is_not(source: Rig) -> None:
    fill(source, 0, 2048)
    peer, client = replica_at(source, 1024), connected(source, b"client")
    accepted(client, report(1000, b"x", meta=b"old"))
    accepted(client, report(2048, b"x", meta=b"new"))
    peer.session.tick(2)
    ((_, rows, (row,)),) = told(peer)
    assert (rows, row[:3], row[5]) == (1, (b"x", XDCR, 1000), b"old")
    accepted(peer, report(2048, b"n1", kind=REPLICA_KIND))
    peer.session.tick(4)
    ((_, rows, (row,)),) = told(peer)
    assert (rows, row[:3], row[5]) == (1, (b"x", XDCR, 2048), b"new")


@pytest.mark.acceptance("X25")
def test_a_row_that_was_never_within_reach_is_counted_and_not_shown(source: Rig) -> None:
    fill(source, 0, 2048)
    peer, client = replica_at(source, 1024), connected(source, b"client")
    accepted(client, report(2048, b"x"))
    peer.session.tick(2)
    assert told(peer) == [(0, 1, [])]


@pytest.mark.acceptance("X20")
def test_it_is_said_only_when_something_has_changed_and_once_an_interval(source: Rig) -> None:
    fill(source, 0, 10)
    peer, client = replica_at(source, 10), connected(source, b"client")
    accepted(client, report(3, b"x"))
    peer.session.tick(2)
    assert len(told(peer)) == 1
    accepted(client, report(4, b"x"))
    peer.session.tick(2.5)
    assert told(peer) == []
    peer.session.tick(3.5)
    assert [row[2] for _, _, rows in told(peer) for row in rows] == [4]
    peer.session.tick(10)
    assert told(peer) == []


def test_a_row_that_is_removed_vanishes(source: Rig) -> None:
    fill(source, 0, 10)
    peer, client = replica_at(source, 10), connected(source, b"client")
    accepted(client, report(3, b"x"))
    peer.session.tick(2)
    told(peer)
    accepted(client, report(3, b"x", op=1))
    peer.session.tick(4)
    assert told(peer) == [(0, 0, [])]


def test_it_never_stands_inside_of_a_snapshot(source: Rig) -> None:
    peer, client = replica_at(source, 0), connected(source, b"client")
    frames: list[Frame] = []
    for turn in range(1, 6):
        fill(source, 0, 50 * turn)
        accepted(client, report(50 * turn - 1, b"x"))
        frames += peer.say(report(0, b"n1", kind=REPLICA_KIND))
        peer.session.tick(2.0 * turn)
    left = 0
    for each in (*frames, *peer.drain()):
        if each.opcode == MARKER:
            left = struct.unpack_from(">Q", each.extras, 8)[0]
        elif items([each]):
            left = 0 if struct.unpack_from(">Q", each.extras)[0] >= left else left
        elif each.opcode == HWT_REPLICATE:
            assert not left


@pytest.mark.parametrize("kind", [XDCR, 0, 5])
def test_only_replicas_are_told(source: Rig, kind: int) -> None:
    fill(source, 0, 10)
    peer = connected(source, b"other")
    accepted(peer, report(10, b"n1", kind=kind))
    ask_stream(peer, 10)
    peer.session.tick(2)
    assert HWT_REPLICATE not in kinds(peer.drain())


def test_it_counts_for_flow_control(source: Rig) -> None:
    fill(source, 0, 10)
    peer = Peer.open(source, b"replica")
    peer.controls(uprmc_hwt=b"true", connection_buffer_size=b"1")
    accepted(peer, report(10, b"n1", kind=REPLICA_KIND))
    ask_stream(peer, 10)
    peer.session.tick(2)
    assert len(told(peer)) == 1
    client = connected(source, b"client")
    accepted(client, report(3, b"x"))
    peer.session.tick(4)
    assert told(peer) == []


# --- replicas -------------------------------------------------------------------------------------


@pytest.mark.acceptance("X20", "X21")
def test_a_replica_registers_itself_and_has_the_rows_of_its_source(source: Rig) -> None:
    fill(source, 0, 10)
    accepted(connected(source, b"client"), report(7, b"x", meta=b"m"))
    pair = followed(source, b"n1")
    assert seqnos(source) == {b"n1": 10, b"x": 7}
    assert seqnos(pair.target) == {b"x": 7}
    (row,) = pair.target.bucket.watermarks.rows(pair.target.bucket.vbuckets[0])
    assert (row.kind, row.meta, row.vb_uuid) == (Kind.XDCR, b"m", uuid_of(source))


@pytest.mark.acceptance("X22")
def test_a_replica_purges_what_its_source_has_and_no_more(source: Rig) -> None:
    fill(source, 0, 10)
    pair = followed(source, b"n1")
    client = connected(source, b"client")
    delete(source, *list(source.bucket.vbuckets[0].table)[:4])
    write(source, 0, b"more")
    accepted(client, report(source.bucket.vbuckets[0].high_seqno, b"x"))
    settle(pair)
    assert purge(pair.target) == 0
    assert limit(pair.target).limited_by == "source"
    purged = purge(source)
    assert purged > 0
    settle(pair)
    assert purge_seqno(pair.target) == purged == limit(pair.target).seqno
    assert purge(pair.target) == purged


@pytest.mark.acceptance("X22", "X25")
def test_a_source_purges_nothing_above_what_a_replica_knows_of_a_client(source: Rig) -> None:
    fill(source, 0, 2048)
    peer, client = replica_at(source, 1024), connected(source, b"client")
    accepted(client, report(1000, b"x"))
    accepted(client, report(2048, b"x"))
    peer.session.tick(2)
    peer.drain()
    assert limit(source) == Limit(1000, b"x")


def test_a_replica_of_many_vbuckets_is_told_a_part_of_its_tables_in_each_turn() -> None:
    """All have changed at the same time, as when clients report for all vBuckets."""
    vbuckets, clients = 64, 50
    source = upr_rig(engine__vbuckets=vbuckets)
    replica = connected(source, b"replica")
    watermarks = source.bucket.watermarks
    for number, vbucket in source.bucket.vbuckets.items():
        write(source, number, b"k")
        accepted(replica, report(1, b"n1", kind=REPLICA_KIND, vbucket=number))
        replica.say(stream_request(number, 1, uuid=uuid_of(source, number)))
        for client in range(clients):
            watermarks.report(
                vbucket, WatermarkReport(b"client-%02d" % client, Kind.INDEX, 1), MANAGER
            )
    replica.drain()
    replica.received.clear()
    replica.session.tick(2)
    turns: list[list[bytes]] = []
    while any(turns[-3:]) or len(turns) < 3:  # a connection that is new pauses in between
        turns.append(replica.session.data_to_send(1 << 20))
    sizes = [sum(map(len, turn)) for turn in turns]
    assert max(sizes) < 24 * 1024
    frames, rest = split(b"".join(piece for turn in turns for piece in turn))
    assert ({each.opcode for each in frames}, rest) == ({HWT_REPLICATE}, b"")
    assert sorted(each.number for each in frames) == list(range(vbuckets))  # once each
    assert all(len(records(each.value)) == clients for each in frames)


@pytest.mark.acceptance("X25")
def test_who_lacks_a_row_purges_nothing(source: Rig) -> None:
    target = name_node(replica_rig(), b"n1")
    script = Script(target)
    opaque = script.follow()
    script.say(table(opaque, 0, 1))
    assert limit(target) == Limit(0, "source")
    script.say(table(opaque, 0, 0))
    assert not target.bucket.watermarks.is_incomplete(0)


def table(opaque: int, purged: int, count: int, value: bytes = b"") -> bytes:
    extras = struct.pack(">QI", purged, count)
    return frame(HWT_REPLICATE, extras=extras, value=value, opaque=opaque)


@pytest.mark.parametrize("value", [b"x", struct.pack(">H2sBQQIHQ", 2, b"id", 9, 0, 0, 0, 0, 0)])
def test_a_table_that_makes_no_sense_ends_the_link(value: bytes) -> None:
    script = Script(name_node(replica_rig(), b"n1"))
    opaque = script.follow()
    script.say(table(opaque, 0, 1, value))
    assert script.link.closing
    assert script.link.error


def test_a_replica_acts_on_no_purge_and_keeps_no_row_beyond_what_it_holds() -> None:
    target = name_node(replica_rig(), b"n1")
    script = Script(target)
    opaque = script.follow()
    ahead = struct.pack(">H2sBQQIHQ", 2, b"id", XDCR, 5, 0, 0, 0, 0)
    script.say(table(opaque, 5, 1, ahead))
    assert (purge_seqno(target), seqnos(target)) == (0, {})
    assert target.bucket.watermarks.is_incomplete(0)


def test_a_source_without_watermarks_is_followed_all_the_same() -> None:
    target = name_node(replica_rig(), b"n1")
    script = Script(target, grant=False)
    script.greet({b"uprmc_hwt": 4})
    script.follow()
    script.link.tick(5)
    assert HWT_REPORT not in kinds(script.sent())


@pytest.mark.acceptance("X21")
def test_a_replica_says_only_what_it_has_as_a_whole_on_disk(source: Rig) -> None:
    fill(source, 0, 10)
    target = name_node(replica_rig(), b"n1")
    pair = Pair(source, target, flush=False)
    pair.run()
    pair.link.follow([0])
    settle(pair)
    source.flush()
    settle(pair)
    assert seqnos(source) == {b"n1": 0}
    target.flush()
    settle(pair)
    assert seqnos(source) == {b"n1": 10}


def test_a_replica_that_starts_over_takes_its_report_back(source: Rig) -> None:
    fill(source, 0, 10)
    script = Script(name_node(replica_rig(), b"n1"))
    target = script.target
    fill_from = Pair(source, target)
    fill_from.run()
    fill_from.link.follow([0])
    settle(fill_from)
    fill_from.lose()
    target.bucket.vbuckets[0].may_start_over = True
    script.link.follow([0])
    said = script.sent()
    (asked,) = (each for each in said if each.opcode == STREAM_REQUEST)
    assert [reported(each) for each in only(said, HWT_REPORT)] == [10]
    assert script.answer(asked, ROLLBACK, value=bytes(8)) == []
    target.flush()
    said = script.sent()
    assert [reported(each) for each in only(said, HWT_REPORT)] == [0]
    assert kinds(said).index(HWT_REPORT) < kinds(said).index(STREAM_REQUEST)


def test_a_replica_reports_many_vbuckets_in_one_frame_before_it_asks_for_their_streams() -> None:
    script = Script(name_node(replica_rig(), b"n1"))
    script.link.follow([0, 1, 2])
    said = script.sent()
    assert kinds(said) == [HWT_REPORTS] + 3 * [STREAM_REQUEST]
    (asked,) = only(said, HWT_REPORTS)
    row = struct.Struct(">HHQQ")
    assert [number for number, *_ in row.iter_unpack(asked.value)] == [0, 1, 2]
    script.answer(asked, extras=struct.pack(">II", 3600, 1))  # the rows are not on disk yet
    script.answer(asked, extras=struct.pack(">II", 3600, 0))
    assert not script.link.closing
    script.link.tick(5)
    assert HWT_REPORTS not in kinds(script.sent())


def test_a_source_that_takes_no_reports_of_many_vbuckets_gets_one_for_each() -> None:
    script = Script(name_node(replica_rig(), b"n1"), grant=False)
    script.greet({b"uprmc_hwt_reports": 4})
    script.link.follow([0, 1])
    assert kinds(script.sent()) == 2 * [HWT_REPORT] + 2 * [STREAM_REQUEST]


def test_rows_of_a_replica_in_many_vbuckets_are_all_registered(source: Rig) -> None:
    fill(source, 0, 3)
    pair = Pair(source, name_node(replica_rig(), b"n1"))
    pair.run()
    pair.link.follow([*source.bucket.active])
    settle(pair)
    for vbucket in source.bucket.active.values():
        assert [row.id for row in source.bucket.watermarks.rows(vbucket)] == [b"n1"]


def reported(said: Frame) -> int:
    seqno: int = struct.unpack_from(">Q", said.extras)[0]
    return seqno


# --- chain and star -------------------------------------------------------------------------------


@pytest.mark.acceptance("X23")
def test_in_a_chain_everyone_obeys_who_is_before(source: Rig) -> None:
    fill(source, 0, 10)
    accepted(connected(source, b"client"), report(7, b"x"))
    first = followed(source, b"n1")
    second = followed(first.target, b"n2")
    assert seqnos(second.target) == {b"x": 7}
    delete(source, *list(source.bucket.vbuckets[0].table)[:3])
    write(source, 0, b"more")
    settle(first, second)
    assert purge(second.target) == purge(first.target) == 0
    high = source.bucket.vbuckets[0].high_seqno
    source.bucket.watermarks.remove(source.bucket.vbuckets[0], b"x", MANAGER)
    purged = purge(source)
    assert 0 < purged < high
    assert purge(first.target) == purge(second.target) == 0
    settle(first)
    assert (purge(first.target), purge(second.target)) == (purged, 0)
    settle(second)
    assert purge(second.target) == purged


@pytest.mark.acceptance("X24")
def test_in_a_star_all_obey_the_master_and_it_waits_for_the_slowest(source: Rig) -> None:
    fill(source, 0, 10)
    pairs = [followed(source, b"n%d" % number) for number in range(3)]
    delete(source, *list(source.bucket.vbuckets[0].table)[:3])
    write(source, 0, b"more")
    settle(*pairs[1:])
    assert (purge(source), limit(source)) == (0, Limit(10, b"n0"))
    settle(*pairs)
    purged = purge(source)
    assert purged > 10
    settle(*pairs)
    assert [purge(pair.target) for pair in pairs] == [purged] * 3


# --- promotion ------------------------------------------------------------------------------------


@pytest.mark.acceptance("X26")
def test_a_promoted_replica_keeps_what_a_client_needs_that_was_ahead(source: Rig) -> None:
    fill(source, 0, 1024)
    client = connected(source, b"client")
    accepted(client, report(1000, b"x"))
    pair = followed(source, b"n1")
    target = pair.target
    pair.lose()
    fill(source, 0, 2048)
    accepted(client, report(source.bucket.vbuckets[0].high_seqno, b"x"))
    target.clock.time += 100
    target.bucket.set_state(0, VBucketState.ACTIVE)
    (row,) = target.bucket.watermarks.rows(target.bucket.vbuckets[0])
    assert (row.id, row.watermark, row.reported_at) == (b"x", 1000, int(target.clock.time))
    keys = list(target.bucket.vbuckets[0].table)[:5]
    delete(target, *keys)
    write(target, 0, b"more")
    assert (purge(target), limit(target)) == (0, Limit(1000, b"x"))


@pytest.mark.acceptance("X05", "X26")
@pytest.mark.parametrize(("floors", "status"), [(True, OK), (False, ROLLBACK)])
def test_a_slow_builder_goes_on_at_a_promoted_replica_that_was_told_its_floor(
    source: Rig, floors: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who follows, or is followed by, a node that tells no floors throws it back."""
    if not floors:
        monkeypatch.setattr(features, "REGISTERED_REPLICA", features.REPLICA.registering())
    fill(source, 0, 100)
    delete(source, b"key000050")
    write(source, 0, b"last")
    source.flush()
    client = connected(source, b"client")
    accepted(client, report(0, b"x"))
    client.send(stream_request(0, 0, uuid=uuid_of(source)))
    client.turn(600)
    seen = client.received[-1].seqno
    assert 0 < seen < 50
    client.lose()
    pair = followed(source, b"n1")
    target = pair.target
    assert purge(source) == 101
    settle(pair)
    assert purge_seqno(target) == 101
    pair.lose()

    target.bucket.set_state(0, VBucketState.ACTIVE)
    delete(target, b"key000000", b"key000099")
    write(target, 0, b"last")
    assert purge(target) == 101, "what it has not seen is kept"
    again = connected(target, b"again")
    accepted(again, report(0, b"x"))
    asked = stream_request(0, seen, uuid=uuid_of(source), snapshot=(0, 102))
    assert again.say(asked)[0].status == status
    assert len(only(again.received, DELETION)) == 2 * floors


def test_a_floor_that_a_replica_does_not_reach_is_not_taken() -> None:
    target = name_node(replica_rig(), b"n1")
    script = Script(target)
    opaque = script.follow()
    ahead = struct.pack(">H2sBQQIHQ", 2, b"id", XDCR, 0, 0, 0, 0, 5)
    script.say(table(opaque, 0, 1, ahead))
    assert seqnos(target) == {}
    assert target.bucket.watermarks.is_incomplete(0)


def test_a_promoted_node_forgets_replicas_and_drops_what_nobody_needs(source: Rig) -> None:
    accepted(connected(source, b"replica"), report(0, b"n1", kind=REPLICA_KIND))
    source.bucket.set_state(0, VBucketState.REPLICA)
    source.bucket.set_state(0, VBucketState.ACTIVE)
    assert seqnos(source) == {}


def test_a_taken_over_vbucket_has_its_rows(source: Rig) -> None:
    fill(source, 0, 10)
    accepted(connected(source, b"client"), report(7, b"x"))
    pair = followed(source, b"n1")
    pair.link.leave([0])
    pair.run()
    pair.link.take_over([0])
    pair.run()
    assert pair.target.bucket.vbuckets[0].state == VBucketState.ACTIVE
    assert seqnos(pair.target) == {b"x": 7}
