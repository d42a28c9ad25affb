"""What every store must do, whatever it is made of: one suite, a few lines for each implementation.

A subclass says how its store is made and how it comes back after the process ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random

import pytest

from tests.contents import change_of, got
from tests.contracts.store_values import (
    by_id,
    by_seq,
    contents,
    header,
    live,
    removal,
    tombstone,
    write,
)
from uprmc.errors import StoreError
from uprmc.model import (
    SEQNO_MAX,
    FailoverEntry,
    Item,
    Life,
    SnapshotRange,
    VBucketHeader,
    VBucketState,
)
from uprmc.record import pack, unpack
from uprmc.storage.interface import CommitBatch, Store, StoreView


def _replaced(batch: CommitBatch) -> dict[int, list[int]]:
    """Return what a commit says that it has replaced, by vBucket."""
    found = {
        number: sorted(int.from_bytes(place[:8]) for place in places)
        for number, places in batch.replaced.items()
    }
    return {number: seqnos for number, seqnos in found.items() if seqnos}


class StoreContract:
    """Inherit from it, and give `create` and `reopen`."""

    def create(self, path: Path) -> Store:
        """Return a new, empty store that may use the directory `path`."""
        raise NotImplementedError

    def reopen(self, store: Store) -> Store:
        """Close `store` and return one that has what it had committed."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = self.create(tmp_path / "data")
        yield store
        store.close()

    # --- an empty store ---

    def test_an_empty_store_has_nothing(self, store: Store) -> None:
        view = store.view()
        assert contents(view, [0]) == {
            "headers": {},
            "count": 0,
            "documents": {},
            "changes": {0: []},
            "back": {0: []},
        }
        assert view.header(0) is None
        assert view.get(0, b"k") is None
        assert store.local(b"doc") is None
        view.close()

    # --- what a commit tells ---

    def test_a_commit_tells_the_seqnos_of_what_it_has_replaced(self, store: Store) -> None:
        first = write(live(b"a", 1), tombstone(b"b", 2), live(b"c", 3, b"v" * 5_000))
        store.commit(first)
        assert _replaced(first) == {}
        second = write(live(b"b", 4), live(b"c", 5), live(b"d", 6))
        store.commit(second)
        assert _replaced(second) == {0: [2, 3]}
        third = CommitBatch(
            [
                change_of(0, header(6), forget=[b"a", b"none"]),
                change_of(1, header(1), [live(b"a", 1)]),
            ]
        )
        store.commit(third)
        assert _replaced(third) == {0: [1]}

    # --- records ---

    @pytest.mark.parametrize(
        "item",
        [
            live(b"k", 1),
            live(b"empty", 1, b""),
            live(b"k" * 250, 1, b"\x00\xff" * 700_000),
            Item(bytes(range(250)), b"v", 0, 0, 0, SEQNO_MAX, 1),
            Item(b"k", b"v", 2**32 - 1, 2**32 - 1, 2**64 - 1, 1, 2**64 - 1, 255, Life.LIVE),
            Item(b"k", b"v", 0, 0, 0, 1, 0),
            tombstone(b"gone", 1),
            tombstone(b"old", 1, Life.EXPIRED),
        ],
        ids=lambda item: repr(item)[:24],
    )
    def test_an_item_comes_back_as_it_was_in_every_field(self, store: Store, item: Item) -> None:
        store.commit(write(item))
        view = store.view()
        assert view.get(0, item.key) == pack(item)
        assert list(view.changes_after(0, 0)) == [item]
        assert list(view.changes_before(0, SEQNO_MAX)) == [item.with_value(None)]
        view.close()

    def test_a_rewritten_key_appears_once_at_its_new_seqno(self, store: Store) -> None:
        store.commit(write(live(b"k", 1), live(b"other", 2)))
        store.commit(write(live(b"k", 3)))
        view = store.view()
        assert by_seq(view) == [(b"other", 2), (b"k", 3)]
        assert view.count() == 2
        view.close()

    @pytest.mark.acceptance("D05")
    def test_after_many_updates_by_seq_has_one_rising_entry_for_each_key(
        self, store: Store
    ) -> None:
        random, seqno, expected = Random(5), 0, {}
        keys = [b"key-%d" % number for number in range(60)]
        for _ in range(25):
            items = []
            for key in random.sample(keys, random.randint(1, len(keys))):
                seqno += random.randint(1, 3)
                gone = random.random() < 0.2
                items.append(
                    tombstone(key, seqno) if gone else live(key, seqno, random.randbytes(9))
                )
                expected[key] = seqno
            store.commit(write(*items, vbucket=3))
        view = store.view()
        scanned = by_seq(view, vbucket=3)
        assert [number for _, number in scanned] == sorted(expected.values())
        assert dict(scanned) == expected
        assert sorted(by_id(view)) == sorted((3, key, number) for key, number in expected.items())
        view.close()

    def test_a_deletion_takes_the_place_of_its_document(self, store: Store) -> None:
        store.commit(write(live(b"k", 1)))
        store.commit(write(tombstone(b"k", 2)))
        view = store.view()
        assert list(view.changes_after(0, 0)) == [tombstone(b"k", 2)]
        assert view.count() == 1
        view.close()

    def test_a_replica_that_rolled_back_may_write_lower_seqnos(self, store: Store) -> None:
        store.commit(write(live(b"a", 5), live(b"b", 6), live(b"c", 7)))
        store.commit(write(live(b"b", 5), live(b"c", 6), live(b"a", 7)))
        store.commit(write(live(b"a", 3)))
        view = store.view()
        assert by_seq(view) == [(b"a", 3), (b"b", 5), (b"c", 6)]
        assert by_id(view) == [(0, b"a", 3), (0, b"b", 5), (0, b"c", 6)]
        view.close()

    def test_a_seqno_given_out_again_removes_the_record_of_the_lost_history(
        self, store: Store
    ) -> None:
        store.commit(write(live(b"lost", 5), live(b"kept", 6)))
        store.commit(write(live(b"new", 5), live(b"newer", 7)))
        view = store.view()
        assert by_seq(view) == [(b"new", 5), (b"kept", 6), (b"newer", 7)]
        assert view.get(0, b"lost") is None
        assert view.count() == 3
        view.close()

    def test_vbuckets_do_not_see_each_other(self, store: Store) -> None:
        store.commit(
            CommitBatch(
                [
                    change_of(number, header(1), [live(b"same", 1, b"%d" % number)])
                    for number in (1023, 0, 255, 256)
                ]
            )
        )
        view = store.view()
        for number in (0, 255, 256, 1023):
            assert list(view.changes_after(number, 0)) == [live(b"same", 1, b"%d" % number)]
            assert by_id(view, number) == [(number, b"same", 1)]
        assert [number for number, _, _ in by_id(view)] == [0, 255, 256, 1023]
        assert by_seq(view, vbucket=1) == by_id(view, 1) == []
        view.close()

    # --- reading changes ---

    @pytest.mark.acceptance("D06")
    def test_changes_after_a_seqno_are_those_above_it(self, store: Store) -> None:
        store.commit(write(*[live(b"k%d" % seqno, seqno) for seqno in (2, 4, 6)]))
        view = store.view()
        assert [seqno for _, seqno in by_seq(view, after=1)] == [2, 4, 6]
        assert [seqno for _, seqno in by_seq(view, after=2)] == [4, 6]
        assert [seqno for _, seqno in by_seq(view, after=3)] == [4, 6]
        assert by_seq(view, after=6) == []
        assert by_seq(view, after=SEQNO_MAX) == []
        view.close()

    @pytest.mark.acceptance("D06")
    def test_records_are_the_changes_as_bytes(self, store: Store) -> None:
        items = [live(b"a", 1), tombstone(b"b", 2), live(b"d", 3, b""), live(b"c", 4)]
        store.commit(write(*items))
        store.commit(write(live(b"other", 9), vbucket=1))
        view = store.view()
        for after in (0, 1, 3, 4, SEQNO_MAX):
            records = list(view.records_after(0, after))
            assert [unpack(record) for record in records] == items[min(after, 4) :]
            assert [*chain.from_iterable(view.portions_after(0, after))] == records
        assert view.records_read == 0
        view.close()

    @pytest.mark.parametrize("others", [0, 1, 70])
    @pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 200])
    def test_records_end_with_their_vbucket(self, store: Store, count: int, others: int) -> None:
        """However many are taken at a time, and whatever stands behind them."""
        items = [live(b"k%d" % seqno, seqno) for seqno in range(1, count + 1)]
        store.commit(write(*items))
        store.commit(write(*[live(b"o%d" % at, at) for at in range(1, others + 1)], vbucket=1))
        view = store.view()
        assert [unpack(record) for record in view.records_after(0, 0)] == items
        assert len(list(view.records_after(1, 0))) == others
        view.close()

    def test_a_scan_reads_what_it_returns_and_not_the_store(self, store: Store) -> None:
        store.commit(write(*[live(b"key-%04d" % seqno, seqno) for seqno in range(1, 3_001)]))
        store.commit(write(*[live(b"x%d" % seqno, seqno) for seqno in range(1, 500)], vbucket=1))
        view = store.view()
        assert len(by_seq(view, after=2_990)) == 10
        assert view.records_read == 10
        next(iter(view.changes_after(0, 0)))
        assert view.records_read == 11
        view.get(0, b"key-0001")
        view.get(0, b"absent")
        assert view.records_read == 12
        assert len(by_seq(view, 1)) == 499
        assert view.records_read == 12 + 499
        view.close()

    # --- headers ---

    def test_a_header_comes_back_as_it_was(self, store: Store) -> None:
        full = VBucketHeader(
            VBucketState.REPLICA,
            2**64 - 3,
            SnapshotRange(2**63, 2**64 - 1),
            tuple(FailoverEntry(2**48 - number, 2**60 - number) for number in range(25)),
            purge_seqno=2**62,
            max_deleted_rev=2**61,
        )
        store.commit(CommitBatch([change_of(7, full), change_of(1023, header(0))]))
        view = store.view()
        assert view.header(7) == full
        assert view.headers() == {7: full, 1023: header(0)}
        view.close()

    def test_a_header_is_replaced_by_the_newest(self, store: Store) -> None:
        store.commit(write(live(b"k", 1)))
        store.commit(CommitBatch([change_of(0, header(9, uuid=2))]))
        view = store.view()
        assert view.header(0) == header(9, uuid=2)
        assert by_seq(view) == [(b"k", 1)]
        view.close()

    # --- taking away ---

    def test_a_vbucket_without_header_is_removed_with_everything_in_it(self, store: Store) -> None:
        for vbucket in (1, 2, 3):
            store.commit(write(live(b"a", 1), tombstone(b"b", 2), vbucket=vbucket))
        store.commit(removal(2))
        view = store.view()
        assert sorted(view.headers()) == [1, 3]
        assert by_id(view, 2) == by_seq(view, vbucket=2) == []
        assert by_seq(view, vbucket=1) == by_seq(view, vbucket=3) == [(b"a", 1), (b"b", 2)]
        assert view.count() == 4
        view.close()

    def test_removing_the_last_vbucket_leaves_an_empty_store(self, store: Store) -> None:
        store.commit(write(*[live(b"k%d" % seqno, seqno) for seqno in range(1, 400)], vbucket=9))
        store.commit(removal(9))
        store.commit(removal(9))
        view = store.view()
        assert (view.count(), view.headers(), by_id(view)) == (0, {}, [])
        view.close()

    def test_a_reset_forgets_the_records_and_keeps_what_comes_with_it(self, store: Store) -> None:
        store.commit(write(live(b"a", 1), live(b"b", 2)))
        store.commit(write(live(b"other", 1), vbucket=1))
        store.commit(write(live(b"b", 1), reset=True))
        view = store.view()
        assert by_seq(view) == [(b"b", 1)]
        assert by_id(view) == [(0, b"b", 1), (1, b"other", 1)]
        view.close()

    def test_a_reset_of_all_forgets_every_vbucket_and_spares_local_documents(
        self, store: Store
    ) -> None:
        store.commit(CommitBatch(local={b"checkpoint": b"7"}))
        for vbucket in (0, 5, 1023):
            store.commit(write(live(b"k", 1), vbucket=vbucket))
        store.commit(CommitBatch([change_of(5, header(2), [live(b"new", 2)])], reset_all=True))
        view = store.view()
        assert by_id(view) == [(5, b"new", 2)]
        assert [by_seq(view, vbucket) for vbucket in (0, 5, 1023)] == [[], [(b"new", 2)], []]
        assert view.headers() == {5: header(2)}
        assert store.local(b"checkpoint") == b"7"
        view.close()

    def test_a_drop_removes_a_tombstone_for_good(self, store: Store) -> None:
        store.commit(write(tombstone(b"gone", 1), live(b"here", 2)))
        store.commit(write(drop=[(b"gone", 1), (b"never", 1)]))
        view = store.view()
        assert by_seq(view) == [(b"here", 2)]
        assert by_id(view) == [(0, b"here", 2)]
        view.close()

    def test_a_drop_leaves_a_key_alone_that_has_another_seqno(self, store: Store) -> None:
        store.commit(write(tombstone(b"k", 1), tombstone(b"j", 2)))
        store.commit(write(live(b"k", 3)))
        store.commit(write(live(b"j", 4), drop=[(b"k", 1), (b"j", 1)]))
        view = store.view()
        assert by_seq(view) == [(b"k", 3), (b"j", 4)]
        view.close()

    def test_a_drop_comes_before_the_items_of_its_commit(self, store: Store) -> None:
        store.commit(write(tombstone(b"old", 5), tombstone(b"both", 6)))
        store.commit(write(live(b"new", 5), live(b"both", 6), drop=[(b"old", 5), (b"both", 6)]))
        view = store.view()
        assert list(view.changes_after(0, 0)) == [live(b"new", 5), live(b"both", 6)]
        assert view.get(0, b"old") is None
        view.close()

    # --- going back ---

    @pytest.mark.parametrize("seqno", [0, 1, 4, 5, 6, 300, SEQNO_MAX - 1, SEQNO_MAX])
    def test_a_rewind_forgets_every_record_above_a_seqno(self, store: Store, seqno: int) -> None:
        written = [live(b"z", 1), tombstone(b"y", 5), live(b"x", 6), live(b"w" * 250, 300)]
        for vbucket in (0, 1, 2):
            store.commit(write(*written, vbucket=vbucket))
        store.commit(write(vbucket=1, rewind=seqno))
        view = store.view()
        kept = [(item.key, item.seqno) for item in written if item.seqno <= seqno]
        assert by_seq(view, vbucket=1) == kept
        assert sorted(by_id(view, 1)) == sorted((1, *each) for each in kept)
        assert len(by_seq(view, vbucket=0)) == len(by_seq(view, vbucket=2)) == 4
        view.close()

    def test_a_rewind_of_nothing_is_harmless(self, store: Store) -> None:
        store.commit(write(rewind=0))
        store.commit(write(vbucket=1023, rewind=7))
        view = store.view()
        assert view.count() == 0
        view.close()

    def test_what_a_rewind_brings_may_lie_anywhere(self, store: Store) -> None:
        store.commit(write(live(b"a", 2), live(b"b", 4), live(b"c", 9), live(b"d", 10)))
        store.commit(write(live(b"c", 1), tombstone(b"d", 3), live(b"e", 9), rewind=4))
        view = store.view()
        assert by_seq(view) == [(b"c", 1), (b"a", 2), (b"d", 3), (b"b", 4), (b"e", 9)]
        assert view.count() == 5
        assert got(view, 0, b"c") == live(b"c", 1)
        view.close()

    def test_a_forgotten_key_goes_whatever_version_is_stored(self, store: Store) -> None:
        store.commit(write(live(b"a", 1), tombstone(b"b", 2), live(b"c", 3), live(b"d", 4)))
        store.commit(write(live(b"a", 1), vbucket=1))
        store.commit(write(live(b"c", 2), rewind=3, forget=[b"a", b"b", b"c", b"d", b"never"]))
        view = store.view()
        assert by_seq(view) == [(b"c", 2)]
        assert by_id(view) == [(0, b"c", 2), (1, b"a", 1)]
        view.close()

    def test_records_are_read_backwards_too(self, store: Store) -> None:
        written = [live(b"z", 1), tombstone(b"y", 5), live(b"x", 6), live(b"w", 300)]
        for vbucket in (0, 1, 1023):
            store.commit(write(*written, vbucket=vbucket))
        view = store.view()
        for vbucket in (0, 1, 1023):
            for seqno in (0, 1, 4, 5, 300, SEQNO_MAX):
                expected = [item.with_value(None) for item in written if item.seqno <= seqno]
                assert list(view.changes_before(vbucket, seqno)) == expected[::-1]
        assert list(view.changes_before(500, SEQNO_MAX)) == []
        view.close()

    # --- local documents ---

    def test_local_documents_are_in_no_index_and_no_stream(self, store: Store) -> None:
        store.commit(CommitBatch(local={b"a": b"1", b"b": b"", b"": b"unnamed"}))
        assert [store.local(name) for name in (b"a", b"b", b"", b"c")] == [
            b"1",
            b"",
            b"unnamed",
            None,
        ]
        store.commit(CommitBatch(local={b"a": b"2", b"b": None, b"c": None}))
        assert [store.local(name) for name in (b"a", b"b", b"c")] == [b"2", None, None]
        view = store.view()
        assert view.count() == 0
        assert by_id(view) == []
        assert view.headers() == {}
        view.close()

    # --- views ---

    def test_a_view_never_shows_later_commits(self, store: Store) -> None:
        random, seqno = Random(11), 0
        views: list[tuple[StoreView, dict[str, object]]] = []
        for _ in range(20):
            seqnos = sorted(random.sample(range(seqno + 1, seqno + 40), 20))
            keys = random.sample([b"k%d" % number for number in range(40)], 20)
            seqno = seqnos[-1]
            items = [live(key, number) for key, number in zip(keys, seqnos, strict=True)]
            store.commit(write(*items, reset=random.random() < 0.2))
            view = store.view()
            views.append((view, contents(view, [0])))
        store.commit(CommitBatch(reset_all=True))
        for view, seen in views:
            assert contents(view, [0]) == seen
            view.close()

    def test_a_scan_in_progress_is_not_disturbed_by_commits(self, store: Store) -> None:
        store.commit(write(*[live(b"k%d" % seqno, seqno) for seqno in range(1, 101)]))
        view = store.view()
        changes, back = view.changes_after(0, 0), view.changes_before(0, SEQNO_MAX)
        seqnos, fallen = [next(changes).seqno], [next(back).seqno]
        for round_number in range(10):
            high = 1_000 * (round_number + 1)
            store.commit(write(*[live(b"k%d" % at, high + at) for at in range(1, 101)]))
            seqnos += [next(changes).seqno for _ in range(5)]
            fallen += [next(back).seqno for _ in range(5)]
        seqnos += [item.seqno for item in changes]
        fallen += [item.seqno for item in back]
        assert seqnos == list(range(1, 101))
        assert fallen == list(range(100, 0, -1))
        view.close()

    def test_a_view_opened_here_can_be_read_in_a_worker_while_commits_go_on(
        self, store: Store
    ) -> None:
        store.commit(write(*[live(b"k%d" % seqno, seqno) for seqno in range(1, 501)]))
        view = store.view()
        expected = contents(view, [0])
        seen: list[dict[str, object]] = []
        reader = threading.Thread(target=lambda: seen.extend(contents(view, [0]) for _ in range(5)))
        reader.start()
        for round_number in range(1, 20):
            high = 1_000 * round_number
            store.commit(write(*[live(b"k%d" % at, high + at) for at in range(1, 101)]))
        reader.join()
        assert seen == [expected] * 5
        view.close()

    def test_a_commit_in_a_worker_does_not_keep_views_from_opening(self, store: Store) -> None:
        batches = [
            write(*[live(b"k%d" % at, 100 * number + at) for at in range(1, 101)])
            for number in range(1, 40)
        ]
        writer = threading.Thread(target=lambda: [store.commit(batch) for batch in batches])
        writer.start()
        while writer.is_alive():
            view = store.view()
            seqnos = [seqno for _, seqno in by_seq(view)]
            stored = view.header(0)
            assert stored == (header(max(seqnos)) if seqnos else None)
            assert len(seqnos) in (0, 100)
            view.close()
        writer.join()

    def test_a_closed_view_refuses_to_be_read(self, store: Store) -> None:
        """A scan may have read a little ahead of what it has handed out."""
        large = bytes(10_000)
        store.commit(write(live(b"a", 1, large), live(b"b", 2, large)))
        view = store.view()
        begun = [
            view.changes_after(0, 0),
            view.changes_before(0, 9),
            view.records_after(0, 0),
        ]
        for scan in begun:
            next(scan)
        view.close()
        view.close()
        self._assert_unreadable(view)
        for scan in begun:
            with pytest.raises(StoreError):
                next(scan)

    def test_a_view_of_a_closed_store_refuses_to_be_read(self, tmp_path: Path) -> None:
        store = self.create(tmp_path / "data")
        store.commit(write(live(b"a", 1)))
        view = store.view()
        store.close()
        self._assert_unreadable(view)
        view.close()

    def _assert_unreadable(self, view: StoreView) -> None:
        readings = [
            view.headers,
            view.count,
            lambda: view.header(0),
            lambda: view.get(0, b"a"),
            lambda: list(view.changes_after(0, 0)),
            lambda: list(view.changes_before(0, SEQNO_MAX)),
            lambda: list(view.records_after(0, 0)),
            lambda: list(view.portions_after(0, 0)),
        ]
        for reading in readings:
            with pytest.raises(StoreError):
                reading()

    def test_a_closed_store_refuses_everything(self, tmp_path: Path) -> None:
        store = self.create(tmp_path / "data")
        store.close()
        uses = [
            store.view,
            store.usage,
            store.sync,
            store.grow,
            lambda: store.local(b"a"),
            lambda: store.commit(CommitBatch()),
        ]
        for use in uses:
            with pytest.raises(StoreError):
                use()

    # --- the end of a process ---

    @pytest.mark.acceptance("D21")
    def test_what_was_committed_is_there_after_reopening(self, tmp_path: Path) -> None:
        store = self.create(tmp_path / "data")
        store.commit(write(live(b"a", 1), live(b"b", 2)))
        store.commit(
            CommitBatch([change_of(0, header(3), [tombstone(b"a", 3)])], local={b"doc": b"1"})
        )
        before = store.view()
        seen = contents(before, [0])
        before.close()
        store = self.reopen(store)
        after = store.view()
        assert contents(after, [0]) == seen
        assert store.local(b"doc") == b"1"
        after.close()
        store.close()

    def test_growing_waits_until_no_view_is_open(self, store: Store) -> None:
        store.commit(write(live(b"a", 1)))
        view, second = store.view(), store.view()
        assert not store.grow()
        view.close()
        assert not store.grow()
        second.close()
        assert store.grow()
        after = store.view()
        assert by_seq(after) == [(b"a", 1)]
        after.close()

    def test_a_view_that_was_forgotten_does_not_keep_the_store_from_growing(
        self, store: Store
    ) -> None:
        store.view()
        assert store.grow()

    def test_sizes_are_told(self, store: Store) -> None:
        store.commit(write(live(b"a", 1, b"x" * 5_000)))
        usage = store.usage()
        assert 5_000 < usage.file_bytes <= usage.map_bytes
        assert 0 <= usage.free_bytes < usage.file_bytes
        store.sync()
