"""How many tombstones are on disk is known exactly, whatever happens to them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.support import Node, settings_of
from tests.engine.test_purging import purge
from uprmc.core import form
from uprmc.engine.tombstones import Amount, PurgeRule, TombstoneIndex
from uprmc.engine.watermarks.rows import Kind, WatermarkReport
from uprmc.model import SEQNO_MAX, VBucketState
from uprmc.record import KIND_AT, LIFE_BITS, build, cas_of, seqno_of

KEYS = [b"k%d" % number for number in range(8)]


def on_disk(node: Node, number: int = 0) -> dict[int, int]:
    """Return seqno -> bytes of the tombstones in the store."""
    view = node.store.view()
    records = list(view.records_after(number, 0))
    view.close()
    return {seqno_of(each): len(each) for each in records if each[KIND_AT] & LIFE_BITS}


def check(node: Node, number: int = 0) -> None:
    index, known = node.bucket.flusher.tombstones.of(number), on_disk(node, number)
    assert (index.number, index.bytes) == (len(known), sum(known.values()))
    for seqno in range(node.vbucket.high_seqno + 1):
        above = [size for at, size in known.items() if at > seqno]
        assert index.between(seqno, 2**63) == Amount(len(above), sum(above))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "set", "delete", "delete", "flush", "purge", "reset", "crash"]),
            st.sampled_from(KEYS),
        ),
        max_size=60,
    )
)
def test_the_count_is_what_the_store_has(steps: list[tuple[str, bytes]]) -> None:
    node = Node(settings_of(purge={"min_age_s": 0}))
    for what, key in steps:
        if what == "set":
            node.vbucket.store(key, b"v", 0, 0)
        elif what == "delete" and node.vbucket.find(key) is not None:
            node.vbucket.delete(key)
        elif what == "flush":
            node.flush()
        elif what == "purge":
            node.flush()
            purge(node)
        elif what == "reset":
            node.bucket.flush(0, lambda _: None)
        elif what == "crash":
            node = node.restarted()
    node.flush()
    check(node)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "discard", "run", "some", "rewind"]), st.integers(1, 20_000)
        ),
        max_size=80,
    ),
    st.integers(0, 20_000),
    st.integers(0, 20_000),
)
def test_an_index_is_a_set_of_seqnos(steps: list[tuple[str, int]], low: int, high: int) -> None:
    index, model = TombstoneIndex(), dict[int, int]()
    for what, seqno in steps:
        if what == "add":
            index.add(seqno, seqno % 300)
            model[seqno] = seqno % 300
        elif what == "discard":
            index.discard(seqno)
            model.pop(seqno, None)
        elif what in ("run", "some"):
            gone = range(seqno, seqno + 6_000, 1 if what == "run" else 2_999)
            index.discard_all(gone)
            model = {at: size for at, size in model.items() if at not in gone}
        else:
            index.rewind(seqno)
            model = {at: size for at, size in model.items() if at <= seqno}
    assert (index.number, index.bytes) == (len(model), sum(model.values()))
    found = [size for at, size in model.items() if low < at <= high]
    assert index.between(low, high) == Amount(len(found), sum(found))


def test_a_removed_vbucket_has_none() -> None:
    node = Node(settings_of(2))
    vbucket = node.bucket.vbuckets[1]
    vbucket.store(b"a", b"v", 0, 0)
    vbucket.delete(b"a")
    node.flush()
    assert node.bucket.flusher.tombstones.total.number == 1
    node.bucket.set_state(1, VBucketState.DEAD)
    node.bucket.remove(1, lambda _: None)
    node.flush()
    assert node.bucket.flusher.tombstones.total == Amount()


# --- what one client keeps ------------------------------------------------------------------------


OWNERS = [object() for _ in range(8)]


def with_rows(*watermarks: int, cap: int = 0) -> Node:
    """Return a node with tombstones at 2, 4, ... 20 and a client at each of these watermarks."""
    node = Node(settings_of(purge={"min_age_s": 0, "max_pinned_bytes": cap}))
    for number in range(10):
        node.vbucket.store(b"%04d" % number, b"v", 0, 0)
        node.vbucket.delete(b"%04d" % number)
    node.flush()
    for at, watermark in enumerate(watermarks):
        report = WatermarkReport(b"c%d" % at, Kind.BACKUP, watermark)
        node.bucket.watermarks.report(node.vbucket, report, OWNERS[at])
    node.flush()
    return node


#: What each tombstone of `with_rows` takes.
EACH = 36 + 4


@pytest.mark.acceptance("X03", "X10")
@pytest.mark.parametrize(
    ("watermarks", "kept"),
    [
        ((6,), (b"c0", 7)),
        ((6, 12), (b"c0", 3)),
        ((12, 6), (b"c1", 3)),
        ((6, 6), None),
        ((7, 8), (b"c0", 1)),
        ((20,), None),
        ((0, 20), (b"c0", 10)),
        ((), None),
    ],
)
def test_a_client_keeps_what_no_other_needs(
    watermarks: tuple[int, ...], kept: tuple[bytes, int] | None
) -> None:
    node = with_rows(*watermarks)
    pinned = node.bucket.limits.pinned(node.vbucket)
    if kept is None:
        assert pinned is None
        return
    assert pinned is not None
    assert (pinned.row.id, pinned.amount.number) == kept
    assert pinned.amount.bytes == kept[1] * EACH


def test_a_builder_keeps_what_is_above_its_floor() -> None:
    node = with_rows(0)
    node.bucket.watermarks.begin_build(node.vbucket, b"c0", 16, OWNERS[0])
    pinned = node.bucket.limits.pinned(node.vbucket)
    assert pinned is not None
    assert pinned.amount == Amount(2, 2 * EACH)


def look(node: Node) -> list[dict[str, object]]:
    """Have it looked at who keeps what; return the events about it."""
    told: list[dict[str, object]] = []
    node.bucket.on_event = lambda name, fields: told.append({"event": name, **fields})
    for _ in node.bucket.pinning.steps():
        pass
    node.bucket.tick()
    return told


@pytest.mark.parametrize(("cap", "goes"), [(3 * EACH, False), (3 * EACH - 1, True), (0, False)])
def test_a_client_that_alone_keeps_more_than_allowed_is_forgotten_early(
    cap: int, goes: bool
) -> None:
    node = with_rows(14, cap=cap)
    told = look(node)
    rows = [row.id for row in node.bucket.watermarks.rows(node.vbucket)]
    assert rows == ([] if goes else [b"c0"])
    assert told == (
        [
            {
                "event": "watermark_expired",
                "vb": 0,
                "vbs": "0",
                "id": "c0",
                "kind": "backup",
                "watermark": 14,
                "why": "max_pinned_bytes",
                "pinned": 3,
                "pinned_bytes": 3 * EACH,
            }
        ]
        if goes
        else []
    )
    purge(node)
    assert node.vbucket.purge_seqno == (18 if goes else 14), "20 is the newest item on disk"


def test_who_is_behind_one_that_was_forgotten_is_looked_at_too() -> None:
    node = with_rows(2, 4, 18, cap=5 * EACH)
    look(node)
    assert [row.id for row in node.bucket.watermarks.rows(node.vbucket)] == [b"c0", b"c1", b"c2"]
    node = with_rows(0, 12, 18, cap=2 * EACH)
    look(node)
    assert [row.id for row in node.bucket.watermarks.rows(node.vbucket)] == [b"c2"]


def test_what_a_client_keeps_in_all_vbuckets_counts() -> None:
    node = Node(settings_of(4, purge={"max_pinned_bytes": 3 * EACH}))
    for vbucket in node.bucket.vbuckets.values():
        vbucket.store(b"key1", b"v", 0, 0)
        vbucket.delete(b"key1")
        node.bucket.watermarks.report(vbucket, WatermarkReport(b"x", Kind.OTHER, 0), object())
    node.flush()
    told = look(node)
    assert [(each["vbs"], each["pinned"]) for each in told] == [("0-3", 4)]
    assert node.bucket.watermarks.row_count == 0


# --- events ---------------------------------------------------------------------------------------


def test_a_client_that_expires_in_many_vbuckets_is_one_event() -> None:
    node = Node(settings_of(1_024))
    told: list[tuple[str, dict[str, object]]] = []
    node.bucket.on_event = lambda name, fields: told.append((name, fields))
    for number, vbucket in node.bucket.vbuckets.items():
        if number != 7:
            vbucket.store(b"a", b"v", 0, 0)
            node.bucket.watermarks.report(vbucket, WatermarkReport(b"x", Kind.OTHER, 1), object())
    node.clock.advance(3_601)
    for vbucket in node.bucket.vbuckets.values():
        node.bucket.watermarks.limit(vbucket)
    assert told == []
    node.bucket.tick()
    ((name, fields),) = told
    assert name == "watermark_expired"
    assert fields == {
        "vb": 0,
        "vbs": "0-6,8-1023",
        "id": "x",
        "kind": "other",
        "watermark": 1,
        "why": "lifetime",
        "pinned": 0,
        "pinned_bytes": 0,
    }


def test_an_expired_client_is_told_of_with_what_it_has_kept() -> None:
    node = with_rows(14)
    told: list[dict[str, object]] = []
    node.bucket.on_event = lambda _, fields: told.append(fields)
    node.clock.advance(691_201)
    purge(node)
    node.bucket.tick()
    (fields,) = [each for each in told if "why" in each]
    assert (fields["pinned"], fields["pinned_bytes"]) == (3, 3 * EACH)
    assert node.vbucket.purge_seqno == 18


# --- the rate -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "rests"), [(0, {0.0}), (100, {0.02}), (1_000, {0.002})])
def test_after_each_commit_the_purger_rests_as_long_as_its_rate_says(
    rate: int, rests: set[float]
) -> None:
    node = Node(settings_of(purge={"min_age_s": 0, "rate": rate, "batch_items": 2}))
    for number in range(7):
        node.vbucket.store(b"%04d" % number, b"v", 0, 0)
        node.vbucket.delete(b"%04d" % number)
    node.flush()
    ended: list[bool] = []
    node.bucket.compact(0, PurgeRule(every=True), ended.append)
    compactor, found = node.bucket.compactor, []
    while compactor.waiting:
        scan = compactor.begin()
        if scan is not None:
            compactor.read(scan)
            compactor.finish(scan)
        before = node.bucket.flusher.tombstones.total.number
        node.flush()
        if node.bucket.flusher.tombstones.total.number < before:
            found.append(compactor.rest_s)
    assert ended == [True]
    assert set(found[:2]) == rests
    assert len(found) == 3


def test_the_purger_is_as_fast_as_its_rate_allows_however_many_looks_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("uprmc.engine.purge._READ_RECORDS", 3)
    node = Node(settings_of(purge={"min_age_s": 0, "rate": 10, "batch_items": 5}))
    for number in range(41):
        node.vbucket.store(b"%04d" % number, b"v", 0, 0)
        if number % 2:
            node.vbucket.delete(b"%04d" % number)
    node.vbucket.store(b"last", b"v", 0, 0)
    node.flush()
    compactor, waited_s = node.bucket.compactor, 0.0
    node.bucket.compact(0, PurgeRule(every=True), lambda _: None)
    while compactor.waiting:
        waited_s += compactor.rest_s
        scan = compactor.begin()
        if scan is not None:
            compactor.read(scan)
            compactor.finish(scan)
        node.flush()
    assert node.bucket.flusher.tombstones.total.number == 0
    assert waited_s == pytest.approx(2.0, abs=0.5), "20 tombstones, 10 in a second"


# --- finding them ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[form.INTERPRETED, form.COMPILED])
def functions(request: pytest.FixtureRequest) -> Any:
    """The module in each form."""
    if request.param == form.COMPILED and form.FORM != form.COMPILED:
        pytest.skip("the compiled core is not in use: no C compiler, or UPRMC_CORE")
    spec = importlib.util.find_spec("uprmc.engine.tombstones")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "FORM", request.param)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pick(functions: Any) -> Any:
    """What picks, in each form."""
    return functions.pick


seqnos = st.integers(1, 9) | st.integers(SEQNO_MAX - 9, SEQNO_MAX)
times = st.integers(0, 9) | st.integers(2**31 - 2, 2**32 - 1)
records = st.lists(st.tuples(seqnos, st.integers(0, 2), times), unique_by=lambda each: each[0]).map(
    sorted
)


@given(
    given=records,
    limit=seqnos,
    before_s=times | st.just(1 << 32),
    upto=seqnos,
    most=st.integers(1, 5),
)
def test_old_tombstones_up_to_the_bounds_are_picked_and_the_others_remembered(
    pick: Any, given: list[tuple[int, int, int]], limit: int, before_s: int, upto: int, most: int
) -> None:
    stored = [
        build((life, 0, at, 3, 1, seqno), b"k-%d" % life, 1, 0, b"") for seqno, life, at in given
    ]
    found: list[tuple[bytes, int]] = []
    start = (0, SEQNO_MAX, SEQNO_MAX)
    after, first_left, oldest_left, above = pick(
        stored, (limit, before_s, upto), most, found, start
    )
    low = [each for each in given if each[0] <= limit]
    dropped = [each for each in low if each[1] and each[2] < before_s and each[0] <= upto][:most]
    end = dropped[-1][0] if len(dropped) == most else SEQNO_MAX
    looked = [each for each in low if each[0] <= end]
    left = [each for each in looked if each[1] and each not in dropped]
    assert found == [(b"k-%d" % life, seqno) for seqno, life, _ in dropped]
    assert after == max((seqno for seqno, _, _ in looked), default=0)
    assert first_left == min((seqno for seqno, _, _ in left), default=SEQNO_MAX)
    assert oldest_left == min((at for _, _, at in left), default=SEQNO_MAX)
    assert above == (len(dropped) < most and len(low) < len(given))


numbers = st.integers(0, 9) | st.integers(2**63 - 2, 2**63 + 2) | st.integers(2**64 - 9, 2**64 - 1)


@given(st.lists(st.tuples(st.integers(0, 2), numbers, st.binary(max_size=9))))
def test_tombstones_and_the_highest_cas_are_found_among_records(
    functions: Any, given: list[tuple[int, int, bytes]]
) -> None:
    stored = [
        build((life, 0, 0, len(key), 1, seqno), key, cas, 0, b"", (1, 2) if seqno % 2 else None)
        for seqno, (life, cas, key) in enumerate(given, 1)
    ]
    assert functions.dead_among(stored) == [
        record for record, (life, _, _) in zip(stored, given, strict=True) if life
    ]
    assert functions.highest_cas(stored) == max(map(cas_of, stored), default=0)
