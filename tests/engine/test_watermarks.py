"""Registered clients: what they may report, how long they count, how far they let the purger go."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.support import Node, settings_of
from tests.engine.test_compaction import compact, deleted
from uprmc.config import PurgeSettings, Settings
from uprmc.engine.replica import apply, take_history
from uprmc.engine.tombstones import Amount
from uprmc.engine.watermarks.recent import KEYS_MAX, Dropped, GatheredEvents, Missed
from uprmc.engine.watermarks.rows import (
    EARLIER_REPORTS,
    Kind,
    Limit,
    Row,
    Shown,
    WatermarkReport,
    decode_rows,
    encode_rows,
    limit_of,
    newest_within,
    shown_to,
)
from uprmc.engine.watermarks.table import Outpaced
from uprmc.errors import (
    CommandError,
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    NotMyVBucket,
    OutOfMemory,
    RangeExceeded,
    RollbackRequired,
    StoreCorrupt,
)
from uprmc.model import FailoverEntry, Item, SnapshotRange, VBucketState
from uprmc.rollback import VBucketHoldings
from uprmc.storage.memory import MemoryStore

UUID = 7
OWNER, OTHER = object(), object()


def settings(**purge: int) -> Settings:
    return replace(settings_of(), purge=replace(PurgeSettings(), **purge))


def filled(high_seqno: int = 1_000, **purge: int) -> Node:
    node = Node(settings(**purge))
    for number in range(high_seqno):
        node.set(b"%d" % number)
    node.flush()
    return node


def report(
    node: Node,
    watermark: int,
    name: bytes = b"x",
    *,
    kind: Kind = Kind.XDCR,
    owner: object = OWNER,
    uuid: int | None = None,
    lifetime_s: int = 0,
    meta: bytes = b"",
) -> None:
    asked = WatermarkReport(name, kind, watermark, lifetime_s, uuid, meta)
    node.bucket.watermarks.report(node.vbucket, asked, owner)


def row(node: Node, name: bytes = b"x") -> Row:
    (found,) = [each for each in node.bucket.watermarks.rows(node.vbucket) if each.id == name]
    return found


def limit(node: Node) -> Limit:
    return node.bucket.purge_limit(node.vbucket)


def restarted(node: Node) -> Node:
    assert isinstance(node.store, MemoryStore)
    return Node(node.settings, store=node.store, clock=node.clock, entropy=node.entropy)


# --- the limit ------------------------------------------------------------------------------------


def seed_row(name: bytes, watermark: int, floor: int | None = None) -> Row:
    return Row(name, Kind.OTHER, watermark, UUID, floor, 0, 0)


@pytest.mark.acceptance("X16")
@pytest.mark.parametrize(("floor", "seqno", "by"), [(1600, 1570, b"1281"), (1200, 1200, b"ac12")])
def test_the_limit_of_the_seeds_table(floor: int, seqno: int, by: bytes) -> None:
    rows = [
        seed_row(b"1281", 1570),
        seed_row(b"ac12", 215, floor),
        seed_row(b"a12f", 2709),
        seed_row(b"de3d", 3470),
    ]
    held = VBucketHoldings((FailoverEntry(UUID, 0),), 4000, 980)
    assert limit_of(rows, held, 4000) == Limit(seqno, by)


@pytest.mark.acceptance("X15")
def test_the_slowest_of_a_hundred_clients_sets_the_limit() -> None:
    node = filled()
    for number in range(100):
        report(node, 400 + number * 37 % 100, b"%03d" % number)
    assert limit(node) == Limit(400, b"000")


def test_without_rows_the_disk_sets_the_limit() -> None:
    node = filled(10)
    assert limit(node) == Limit(10, None)
    node.set(b"unsaved")
    assert limit(node) == Limit(10, "disk")
    report(node, 11)
    assert limit(node) == Limit(10, "disk")
    report(node, 9)
    assert limit(node) == Limit(9, b"x")


@pytest.mark.acceptance("X04", "X07")
def test_nothing_above_a_watermark_is_purged_and_everything_when_all_have_seen_it() -> None:
    node = deleted(10)
    report(node, 14)
    compact(node)
    assert node.vbucket.purge_seqno == 14
    assert len(node.stored()) == 7
    report(node, 21)
    compact(node)
    assert list(node.stored()) == [b"kept-0"]


# --- reports --------------------------------------------------------------------------------------


@pytest.mark.acceptance("X10", "X11", "X14")
def test_a_report_replaces_the_one_before_it() -> None:
    node = filled()
    report(node, 100, meta=b"\x00checkpoint")
    node.clock.advance(5)
    report(node, 200, meta=b"\xff")
    (only,) = node.bucket.watermarks.rows(node.vbucket)
    now = int(node.clock.now())
    uuid = node.vbucket.failover_log[0].uuid
    assert only == Row(b"x", Kind.XDCR, 200, uuid, None, now, 3600, b"\xff")


@pytest.mark.parametrize(
    ("watermark", "uuid", "refusal", "seqno"),
    [
        (1_001, None, RangeExceeded, None),
        (100, 999, RollbackRequired, 0),
        (501, 1, RollbackRequired, 500),
        (500, 1, None, None),
    ],
)
def test_a_watermark_outside_the_history_is_refused(
    watermark: int, uuid: int | None, refusal: type[CommandError] | None, seqno: int | None
) -> None:
    node = filled()
    (first,) = node.vbucket.failover_log
    node.vbucket.failover_log = (FailoverEntry(77, 500), first)
    uuid = first.uuid if uuid == 1 else uuid
    if refusal is None:
        report(node, watermark, uuid=uuid)
        assert row(node).watermark == watermark
        return
    with pytest.raises(refusal) as raised:
        report(node, watermark, uuid=uuid)
    assert getattr(raised.value, "seqno", None) == seqno
    assert node.bucket.watermarks.rows(node.vbucket) == []


@pytest.mark.parametrize(("name", "meta"), [(b"", b""), (b"n" * 65, b""), (b"n", b"m" * 4097)])
def test_lengths_are_limited(name: bytes, meta: bytes) -> None:
    node = filled(1)
    with pytest.raises(InvalidArguments):
        report(node, 1, name, meta=meta)
    report(node, 1, b"n" * 64, meta=b"m" * 4096)


def test_only_the_owner_changes_a_row_until_its_connection_closes() -> None:
    node = filled()
    watermarks = node.bucket.watermarks
    report(node, 500)
    for watermark in (0, 400, 600):
        with pytest.raises(KeyExists):
            report(node, watermark, owner=OTHER)
    with pytest.raises(KeyExists):
        watermarks.remove(node.vbucket, b"x", OTHER)
    assert row(node).watermark == 500
    watermarks.release(0, b"x", OTHER)
    with pytest.raises(KeyExists):
        report(node, 600, owner=OTHER)
    watermarks.release(0, b"x", OWNER)
    report(node, 600, owner=OTHER)
    watermarks.remove(node.vbucket, b"x", OTHER)
    with pytest.raises(KeyNotFound):
        watermarks.remove(node.vbucket, b"x", OTHER)


def test_there_are_as_many_rows_as_allowed() -> None:
    node = filled(max_rows=2)
    for name in (b"a", b"b", b"a"):
        report(node, 1, name)
    with pytest.raises(OutOfMemory):
        report(node, 1, b"c")


def test_rows_are_kept_for_active_vbuckets() -> None:
    node = filled()
    node.bucket.set_state(0, VBucketState.REPLICA)
    with pytest.raises(NotMyVBucket):
        report(node, 1)


# --- expiry ---------------------------------------------------------------------------------------


@pytest.mark.acceptance("X18")
def test_a_row_counts_until_its_lifetime_is_over() -> None:
    node = filled()
    told: list[tuple[str, object]] = []
    node.bucket.on_event = lambda name, fields: told.append((name, fields["id"]))
    report(node, 100)
    node.clock.advance(3_599)
    assert limit(node) == Limit(100, b"x")
    node.clock.advance(2)
    assert limit(node) == Limit(1_000, None)
    node.bucket.tick()
    assert told == [("watermark_expired", "x")]
    assert node.bucket.watermarks.expired == 1
    node.flush()
    assert restarted(node).bucket.watermarks.row_count == 0


@pytest.mark.parametrize(
    ("kind", "asked", "granted"),
    [(Kind.REBALANCE, 0, 900), (Kind.REBALANCE, 60, 60), (Kind.BACKUP, 10**9, 691_200)],
)
def test_a_lifetime_is_at_most_that_of_its_kind(kind: Kind, asked: int, granted: int) -> None:
    node = filled(1)
    report(node, 1, kind=kind, lifetime_s=asked)
    assert row(node).lifetime_s == granted


@pytest.mark.parametrize("step_s", [30 * 86_400, -30 * 86_400, 5, -5])
def test_a_clock_that_is_set_ends_no_lifetime_and_prolongs_none(step_s: int) -> None:
    node = filled(1)
    report(node, 1, lifetime_s=100)
    node.clock.advance(60)
    node.clock.step(step_s)
    assert row(node).watermark == 1  # before anybody has noticed
    node.bucket.tick()
    assert row(node).reported_at == int(node.clock.now()) - 60
    node.clock.advance(39)
    assert row(node).watermark == 1
    node.clock.advance(2)
    assert node.bucket.watermarks.rows(node.vbucket) == []


def test_a_row_whose_clock_was_set_is_stored_so() -> None:
    node = filled(1)
    report(node, 1, lifetime_s=100)
    node.clock.step(30 * 86_400)
    node.bucket.tick()
    node.flush()
    assert restarted(node).bucket.watermarks.row_count == 1
    assert row(restarted(node)).reported_at == int(node.clock.now())


def test_where_a_kind_never_expires_a_client_may_ask_for_less() -> None:
    node = filled(1, expires_xdcr_s=0)
    report(node, 1)
    node.clock.advance(1e9)
    assert row(node).lifetime_s == 0
    report(node, 1, lifetime_s=10)
    assert row(node).lifetime_s == 10


@pytest.mark.acceptance("X19")
@pytest.mark.parametrize("start", [0, 13, 14])
def test_a_client_that_the_purger_has_passed_must_begin_at_zero(start: int) -> None:
    node = deleted(10)
    report(node, 14, b"other")
    compact(node)
    if start == 13:
        with pytest.raises(Outpaced) as raised:
            report(node, start)
        assert raised.value.seqno == 0
    else:
        report(node, start)
        assert row(node).watermark == start


@pytest.mark.acceptance("X08")
def test_an_outpaced_client_is_told_of_with_the_keys_that_it_missed() -> None:
    node = deleted(10)
    told: list[tuple[str, dict[str, object]]] = []
    compact(node)
    node.bucket.on_event = lambda name, fields: told.append((name, fields))
    with pytest.raises(Outpaced):
        report(node, 17)
    ((name, fields),) = told
    assert name == "watermark_outpaced"
    assert fields == {
        "vb": 0,
        "id": "x",
        "from": 17,
        "to": 20,
        "count": 3,
        "exact": True,
        "keys": ["0007", "0008", "0009"],
    }
    assert node.bucket.watermarks.outpaced == 1


def test_what_an_outpaced_client_missed_is_remembered_up_to_a_limit() -> None:
    node = deleted(5_000)
    told: list[dict[str, object]] = []
    compact(node)
    node.bucket.on_event = lambda _, fields: told.append(fields)
    for watermark in (1, 9_000):
        with pytest.raises(Outpaced):
            report(node, watermark)
    first, second = told
    assert (first["count"], first["exact"]) == (4_096, False)
    assert (second["count"], second["exact"]) == (1_000, True)
    assert second["keys"] == [f"{number:04}" for number in range(4_900, 5_000)]


@pytest.mark.acceptance("X13")
def test_an_older_watermark_is_taken_while_nothing_above_it_was_purged() -> None:
    node = deleted(10)
    report(node, 14)
    compact(node)
    report(node, 18)
    report(node, 15)
    assert limit(node) == Limit(15, b"x")
    with pytest.raises(Outpaced):
        report(node, 13)


# --- builds ---------------------------------------------------------------------------------------


def test_only_an_accepted_stream_from_zero_sets_a_floor() -> None:
    node = filled()
    watermarks = node.bucket.watermarks
    report(node, 0)
    assert row(node).floor is None
    assert limit(node) == Limit(0, b"x")
    watermarks.begin_build(node.vbucket, b"x", 1_000, OWNER)
    assert limit(node) == Limit(1_000, None)
    for _ in range(1_000):
        node.set(b"again")
    node.flush()
    report(node, 0)
    report(node, 215)
    assert (row(node).watermark, row(node).floor) == (215, 1_000)
    assert limit(node) == Limit(1_000, b"x")
    report(node, 1_000)
    assert row(node).floor is None


def test_a_client_that_says_that_it_starts_over_releases_nothing() -> None:
    node = filled()
    report(node, 600)
    for _ in range(2):
        report(node, 0)
        assert limit(node) == Limit(600, b"x")


def test_a_builder_is_not_outpaced_below_its_floor() -> None:
    node = deleted(10)
    report(node, 0)
    node.bucket.watermarks.begin_build(node.vbucket, b"x", 18, OWNER)
    compact(node)
    assert node.vbucket.purge_seqno == 18
    report(node, 3)
    assert row(node).floor == 18


def test_a_lease_that_the_purger_has_passed_gives_no_floor() -> None:
    node = deleted(10)
    compact(node)
    report(node, 0)
    node.bucket.watermarks.begin_build(node.vbucket, b"x", 19, OWNER)
    assert row(node).floor is None


# --- other histories, restarts --------------------------------------------------------------------


@pytest.mark.acceptance("X26")
def test_what_was_reported_in_a_history_counts_up_to_its_end() -> None:
    node = filled()
    report(node, 0, b"builder")
    node.bucket.watermarks.begin_build(node.vbucket, b"builder", 900, OWNER)
    report(node, 800)
    (first,) = node.vbucket.failover_log
    node.vbucket.failover_log = (FailoverEntry(77, 700), first)
    assert row(node).watermark == row(node, b"builder").floor == 700
    node.vbucket.failover_log = (FailoverEntry(78, 0),)
    assert row(node).watermark == 0
    assert row(node, b"builder").floor is None


def test_who_is_left_in_a_history_that_is_gone_keeps_no_deletion_of_the_new_one() -> None:
    node = deleted(10)
    report(node, 5)
    report(node, 0, b"builder")
    node.bucket.watermarks.begin_build(node.vbucket, b"builder", 7, OWNER)
    node.bucket.flush(0, lambda _ok: None)
    for number in range(10):
        node.set(b"%d" % number)
        node.vbucket.delete(b"%d" % number)
    node.set(b"last")
    node.flush()
    assert limit(node) == Limit(21, None)
    assert node.bucket.limits.pinned(node.vbucket) is None
    assert [each.watermark for each in node.bucket.watermarks.rows(node.vbucket)] == [0, 0]
    report(node, 0)
    node.bucket.watermarks.begin_build(node.vbucket, b"x", 12, OWNER)
    assert limit(node) == Limit(12, b"x")


def test_rows_of_many_vbuckets_are_made_ready_for_the_disk_in_short_steps() -> None:
    node = Node(replace(settings(), engine=replace(settings().engine, vbuckets=64)))
    for vbucket in node.bucket.vbuckets.values():
        for number in range(20):
            asked = WatermarkReport(b"%d" % number, Kind.XDCR, 0)
            node.bucket.watermarks.report(vbucket, asked, OWNER)
    steps = node.bucket.flusher.begin_in_slices()
    assert sum(1 for _ in steps) >= 64


@pytest.mark.acceptance("X17")
def test_rows_survive_a_restart_and_belong_to_no_connection_afterwards() -> None:
    node = deleted(10)
    report(node, 14, meta=b"meta", kind=Kind.BACKUP)
    report(node, 0, b"builder")
    node.bucket.watermarks.begin_build(node.vbucket, b"builder", 21, OWNER)
    node.flush()
    rows = node.bucket.watermarks.rows(node.vbucket)
    compact(node)
    again = restarted(node)
    assert again.bucket.watermarks.rows(again.vbucket) == rows
    assert again.vbucket.purge_seqno == 14
    report(again, 15, owner=OTHER)


def test_a_registration_is_told_when_it_is_on_disk() -> None:
    node = filled()
    told: list[bool] = []
    report(node, 100)
    node.bucket.watermarks.when_registered(told.append)
    assert told == []
    node.flush()
    assert told == [True]
    assert restarted(node).bucket.watermarks.row_count == 1


def test_a_removed_vbucket_takes_its_rows_along() -> None:
    node = filled()
    report(node, 100)
    node.flush()
    node.bucket.set_state(0, VBucketState.DEAD)
    node.bucket.remove(0, lambda _: None)
    node.flush()
    node.bucket.set_state(0, VBucketState.ACTIVE)
    node.flush()
    assert restarted(node).bucket.watermarks.row_count == 0


@pytest.mark.parametrize("damage", [b"\x03", b"\x02short", b"\x01short", b"\x01\x09" + bytes(38)])
def test_a_damaged_document_is_refused(damage: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        decode_rows(damage)


def test_a_document_that_is_cut_off_is_refused() -> None:
    whole = encode_rows([seed_row(b"x", 1, 2)._replace(meta=b"meta")])
    assert whole is not None
    assert len(decode_rows(whole)[0]) == 1
    with pytest.raises(StoreCorrupt):
        decode_rows(whole[:-1])


def test_when_many_clients_expire_in_many_vbuckets_a_part_is_told_at_a_time() -> None:
    """And the rest when the node stops."""
    told: list[tuple[str, object]] = []

    def note(name: str, fields: dict[str, object]) -> None:
        told.append((name, fields["id"]))

    gathered = GatheredEvents()
    for number in range(1_024):
        for client in range(9):
            gathered.expired(number, (f"c{client}", "index", "lifetime"), 7, Amount())
        gathered.managed(number, "m", "removed")
    counts = []
    for _ in range(3):
        gathered.tell(note)
        counts.append(len(told))
    assert counts == [4, 8, 10]
    assert told[-2:] == [("watermark_expired", "c8"), ("watermark_managed", "m")]
    gathered.expired(1, ("late", "index", "lifetime"), 7, Amount())
    gathered.expired(2, ("later", "index", "lifetime"), 7, Amount())
    gathered.tell(note, most=sys.maxsize)
    assert [who for _, who in told[10:]] == ["late", "later"]


# --- what replicas see ----------------------------------------------------------------------------


REPLICA, ACTIVE = VBucketState.REPLICA, VBucketState.ACTIVE


def told(watermark: int, name: bytes = b"x", floor: int | None = None) -> Row:
    return Row(name, Kind.XDCR, watermark, UUID, floor, 0, 0)


def show(node: Node, reach: int, name: bytes = b"n1") -> tuple[list[int], int]:
    rows, hidden = node.bucket.watermarks.show(node.vbucket, name, reach)
    return [each.watermark for each in rows], hidden


@pytest.mark.acceptance("X25")
@pytest.mark.parametrize(
    ("reports", "reach", "expected"),
    [
        ([1024], 1024, 1024),
        ([2048], 1024, None),
        ([2048, 1000, 500], 1024, 1000),
        ([2048, 1024, 1000], 1024, 1024),
        ([2048, 1000], 2048, 2048),
        ([0], 0, 0),
        ([], 10, None),
    ],
)
def test_the_newest_report_that_is_not_ahead_is_told(
    reports: list[int], reach: int, expected: int | None
) -> None:
    found = newest_within(map(told, reports), reach)
    assert (None if found is None else found.watermark) == expected


def test_a_builder_is_ahead_while_its_floor_is() -> None:
    assert newest_within([told(0, floor=1200)], 1000) is None
    assert newest_within([told(0, floor=1200)], 1200) is not None


@pytest.mark.acceptance("X25")
@given(
    st.lists(st.lists(st.integers(0, 50), max_size=5).map(sorted), max_size=5),
    st.lists(st.integers(0, 60), min_size=1, max_size=6).map(sorted),
)
def test_nothing_told_is_ahead_and_nobody_waits_for_ever(
    rows: list[list[int]], reaches: list[int]
) -> None:
    reports = [
        [told(each, b"%d" % number) for each in reversed(row)] for number, row in enumerate(rows)
    ]
    answers = [shown_to(reports, reach) for reach in reaches]
    for answer, reach in zip(answers, reaches, strict=True):
        assert all(each.effective <= reach for each in answer.rows)
        assert len(answer.rows) + answer.hidden == len(rows)
    for one, next_one in pairwise(answers):
        before = {each.id: each.watermark for each in one.rows}
        after = {each.id: each.watermark for each in next_one.rows}
        assert all(after[name] >= watermark for name, watermark in before.items())
    newest = [row[-1] for row in rows if row]
    last = shown_to(reports, 60)
    assert sorted(each.watermark for each in last.rows) == sorted(newest)


def test_what_was_told_once_is_told_again_when_its_report_is_forgotten() -> None:
    node = filled()
    report(node, 100)
    report(node, 0, b"n1", kind=Kind.REPLICA, owner=object())
    assert show(node, 100) == ([100], 0)
    for watermark in range(200, 200 + 2 * EARLIER_REPORTS):
        report(node, watermark)
    assert show(node, 150) == ([100], 0)
    assert show(node, 150, b"another") == ([], 1)


@pytest.mark.acceptance("X25")
def test_a_replica_that_starts_over_shows_no_row_above_what_it_has_again() -> None:
    node = Node()
    vbucket = node.bucket.set_state(0, REPLICA)
    take_history(vbucket, [FailoverEntry(UUID, 0)])
    apply(vbucket, Item(b"a", b"v", 0, 0, 1, 10, 1), SnapshotRange(0, 10))
    node.flush()
    node.bucket.limits.learn_table(vbucket, 0, [told(8)], incomplete=False)
    assert node.bucket.watermarks.rows(vbucket) == [told(8)]
    vbucket.reset(UUID + 1)
    take_history(vbucket, [FailoverEntry(9, 20), FailoverEntry(UUID, 0)])
    apply(vbucket, Item(b"b", b"v", 0, 0, 2, 12, 1), SnapshotRange(0, 30))
    assert node.bucket.watermarks.rows(vbucket) == [told(0)]
    assert show(node, 100) == ([], 1)


def test_replicas_and_moves_are_no_business_of_a_replica() -> None:
    node = filled()
    for number, kind in enumerate(Kind):
        report(node, number, b"%d" % number, kind=kind)
    rows = node.bucket.watermarks.show(node.vbucket, b"n1", 500).rows
    assert {each.kind for each in rows} == set(Kind) - {Kind.REPLICA, Kind.REBALANCE}


@pytest.mark.acceptance("X26")
def test_the_purge_waits_for_what_a_replica_was_told_until_the_replica_is_gone() -> None:
    node = filled()
    report(node, 400)
    report(node, 500, b"n1", kind=Kind.REPLICA)
    report(node, 900)
    assert limit(node) == Limit(500, b"n1")
    assert show(node, 500) == ([400], 0)
    assert limit(node) == Limit(400, b"x")
    node.bucket.watermarks.remove(node.vbucket, b"n1", OWNER)
    assert limit(node) == Limit(900, b"x")


# --- at the replica -------------------------------------------------------------------------------


def copy(*rows: Row, incomplete: bool = False, purge_seqno: int = 0) -> Node:
    """A replica that has learned rows."""
    node = filled(100)
    node.bucket.set_state(node.vbucket.id, REPLICA)
    uuid = node.vbucket.failover_log[0].uuid
    learned = [each._replace(vb_uuid=uuid) for each in rows]
    node.bucket.limits.learn_table(node.vbucket, purge_seqno, learned, incomplete=incomplete)
    return node


@pytest.mark.acceptance("X22")
@pytest.mark.parametrize(
    ("rows", "incomplete", "purge_seqno", "expected"),
    [
        ([], False, 0, Limit(0, "source")),
        ([], False, 60, Limit(60, "source")),
        ([told(40)], False, 60, Limit(40, b"x")),
        ([told(80)], False, 60, Limit(60, "source")),
        ([told(80)], True, 60, Limit(0, "source")),
        ([], False, 101, Limit(0, "source")),
    ],
)
def test_a_replica_purges_up_to_the_least_of_its_rows_and_its_source(
    rows: list[Row], incomplete: bool, purge_seqno: int, expected: Limit
) -> None:
    node = copy(*rows, incomplete=incomplete, purge_seqno=purge_seqno)
    assert limit(node) == expected


@pytest.mark.acceptance("X20")
@pytest.mark.parametrize("incomplete", [False, True])
@pytest.mark.parametrize("rows", [[], [told(40)]])
def test_what_a_replica_was_told_survives_a_restart(rows: list[Row], incomplete: bool) -> None:
    node = copy(*rows, incomplete=incomplete, purge_seqno=60)
    node.flush()
    again = restarted(node)
    assert again.bucket.watermarks.rows(again.vbucket) == node.bucket.watermarks.rows(node.vbucket)
    assert again.bucket.watermarks.is_incomplete(again.vbucket.id) is incomplete
    assert again.vbucket.purge_seqno == 60


def test_rows_at_a_replica_do_not_expire_by_themselves() -> None:
    node = copy(told(40)._replace(lifetime_s=1))
    node.clock.advance(1_000_000)
    assert row(node).watermark == 40


@pytest.mark.acceptance("X26")
def test_promoted_everyone_has_a_fresh_lease_and_nobody_is_ahead_of_the_branch() -> None:
    node = copy(told(40)._replace(lifetime_s=60), told(2048, b"y"), incomplete=True)
    node.clock.advance(1_000_000)
    node.bucket.set_state(node.vbucket.id, ACTIVE)
    assert (row(node).watermark, row(node).reported_at) == (40, int(node.clock.now()))
    assert row(node, b"y").watermark == 100
    for number in range(3_000):
        node.set(b"new%d" % number)
    node.flush()
    assert row(node, b"y").watermark == 100
    assert limit(node) == Limit(40, b"x")
    node.clock.advance(61)
    assert limit(node) == Limit(100, b"y")


def test_an_empty_answer_hides_nothing() -> None:
    assert shown_to([], 10) == Shown((), 0)


# --- dropped deletions ----------------------------------------------------------------------------


DROPS = st.lists(st.lists(st.integers(1, 60), min_size=1, unique=True).map(sorted), max_size=6)


def dropped(drops: list[list[int]]) -> tuple[Dropped, Any]:
    """Return what remembers these drops, each of which is by rising seqno, and the vBucket."""
    vbucket: Any = SimpleNamespace(id=0, purge_seqno=0)
    found = Dropped()
    for seqnos in drops:
        found.note(vbucket, [(b"%d" % seqno, seqno) for seqno in seqnos])
        vbucket.purge_seqno = max(vbucket.purge_seqno, seqnos[-1])
    return found, vbucket


@pytest.mark.acceptance("X08")
@given(DROPS, st.integers(0, 61), st.integers(0, 61))
def test_deletions_are_counted_in_whatever_order_they_were_dropped(
    drops: list[list[int]], low: int, high: int
) -> None:
    """Those that were kept for their age are dropped after younger ones with higher seqnos."""
    known: set[int] = set()
    fresh = []
    for drop in drops:
        fresh.append([seqno for seqno in drop if seqno not in known])
        known.update(drop)
    found, vbucket = dropped([drop for drop in fresh if drop])
    missed = found.between(vbucket, low, high)
    assert missed.number == sum(low < seqno <= high for seqno in known)
    assert missed.exact
    assert len(missed.keys) == min(KEYS_MAX, missed.number)


def test_of_very_many_the_newest_are_remembered() -> None:
    found, vbucket = dropped(
        [list(range(start, start + 2_000)) for start in range(1, 8_001, 2_000)]
    )
    assert found.between(vbucket, 4_000, 8_000)[:2] == (4_000, True)
    assert found.between(vbucket, 0, 8_000)[:2] == (4_096, False)
    assert found.between(vbucket, 8_000, 8_000) == Missed(0, True, [])
