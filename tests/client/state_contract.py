"""What every keeper of a consumer's state must do: one suite, a few lines for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from uprmc.client.state import RingChunk, Saved, StateStore
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange

LOG = (FailoverEntry(0xABC, 90), FailoverEntry(SEQNO_MAX, 0))


def at(seqno: int, *, ring_from: int = 0) -> Saved:
    """Return the position at the end of a whole snapshot."""
    return Saved(seqno, SnapshotRange(seqno, seqno), LOG, ring_from)


def chunk(vbucket: int, *seqnos: int) -> RingChunk:
    return RingChunk(vbucket, [(seqno, b"key-%d" % seqno) for seqno in seqnos])


def commit(
    state: StateStore,
    saved: Mapping[int, Saved] | None = None,
    ring: Sequence[RingChunk] = (),
    trims: Mapping[int, int] | None = None,
    cuts: Mapping[int, int] | None = None,
) -> None:
    state.commit(saved or {}, ring, trims or {}, cuts or {})


def ring_seqnos(state: StateStore, vbucket: int) -> list[int]:
    return [seqno for seqno, _ in state.ring_after(vbucket, 0)]


class StateContract:
    """Inherit from it, and give `create` and `reopen`."""

    def create(self, path: Path) -> StateStore:
        """Return a new, empty state that may use the directory `path`."""
        raise NotImplementedError

    def reopen(self, state: StateStore) -> StateStore:
        """Close `state` and return one that has what it had committed."""
        raise NotImplementedError

    @pytest.fixture
    def state(self, tmp_path: Path) -> Iterator[StateStore]:
        state = self.create(tmp_path)
        yield state
        state.close()

    # --- positions ---

    def test_a_new_state_has_nothing(self, state: StateStore) -> None:
        assert state.load() == {}
        assert state.ring_after(0, 0) == []
        assert state.ring_size(0) == 0

    @pytest.mark.acceptance("D13", "D45")
    def test_positions_come_back_as_they_were_committed(self, state: StateStore) -> None:
        whole = at(100)
        inside = Saved(110, SnapshotRange(100, 120), LOG[:1], 50, purge_seqno=7)
        no_log = Saved(0, SnapshotRange(0, 0), (), 0)
        commit(state, {0: whole, 1023: inside, 5: no_log})
        state = self.reopen(state)
        assert state.load() == {0: whole, 1023: inside, 5: no_log}
        state.close()

    def test_numbers_may_have_all_their_64_bits(self, state: StateStore) -> None:
        most = SEQNO_MAX
        edge = 2**63
        saved = Saved(most, SnapshotRange(edge, most), (FailoverEntry(most, most),), edge, most)
        commit(state, {0: saved}, [chunk(0, edge - 1, edge), chunk(0, most)])
        state = self.reopen(state)
        assert state.load() == {0: saved}
        assert ring_seqnos(state, 0) == [edge - 1, edge, most]
        commit(state, trims={0: edge - 1}, cuts={0: most - 1})
        assert ring_seqnos(state, 0) == [edge]
        state.close()

    def test_a_vbucket_that_is_not_named_keeps_its_position(self, state: StateStore) -> None:
        commit(state, {0: at(1), 1: at(2)})
        commit(state, {1: at(3)})
        assert state.load() == {0: at(1), 1: at(3)}

    def test_what_load_returns_is_the_callers_own(self, state: StateStore) -> None:
        commit(state, {0: at(1)})
        state.load().clear()
        assert state.load() == {0: at(1)}

    # --- the ring ---

    @pytest.mark.acceptance("D44")
    def test_the_ring_gives_keys_above_a_seqno_in_order(self, state: StateStore) -> None:
        commit(state, ring=[chunk(3, 1, 2), chunk(4, 9)])
        commit(state, ring=[chunk(3, 5)])
        state = self.reopen(state)
        assert state.ring_after(3, 1) == [(2, b"key-2"), (5, b"key-5")]
        assert state.ring_after(3, 5) == []
        assert state.ring_size(3) == 3
        assert ring_seqnos(state, 4) == [9]
        state.close()

    def test_a_key_may_be_any_bytes(self, state: StateStore) -> None:
        keys = [b"\x00", b"", bytes(range(256)) * 255, "ä".encode(), b"'; DROP TABLE"]
        entries = list(enumerate(keys, start=1))
        commit(state, ring=[RingChunk(0, entries)])
        assert state.ring_after(0, 0) == entries

    def test_an_empty_chunk_adds_nothing(self, state: StateStore) -> None:
        commit(state, {0: at(1)}, [RingChunk(0, [])])
        assert state.ring_after(0, 0) == []

    def test_entries_that_come_again_are_given_once(self, state: StateStore) -> None:
        """After a resumed stream, what was in the ring already is received again."""
        commit(state, ring=[chunk(0, 10, 20, 30)])
        commit(state, ring=[chunk(0, 15, 20, 40)])
        assert ring_seqnos(state, 0) == [10, 15, 20, 30, 40]
        assert state.ring_size(0) == 6

    def test_one_seqno_may_stand_for_two_keys(self, state: StateStore) -> None:
        """Histories that branched give one seqno twice; both keys have to be undone."""
        commit(state, ring=[RingChunk(0, [(10, b"ours")])])
        commit(state, ring=[RingChunk(0, [(10, b"theirs")])])
        assert state.ring_after(0, 0) == [(10, b"ours"), (10, b"theirs")]

    @pytest.mark.parametrize(
        ("limit", "left"),
        [(0, [1, 2, 3, 7, 8]), (1, [2, 3, 7, 8]), (3, [7, 8]), (6, [7, 8]), (8, []), (9, [])],
    )
    def test_trimming_forgets_up_to_its_seqno_and_not_beyond(
        self, state: StateStore, limit: int, left: list[int]
    ) -> None:
        commit(state, ring=[chunk(0, 1, 2, 3), chunk(0, 7, 8), chunk(1, 1)])
        commit(state, trims={0: limit})
        assert ring_seqnos(state, 0) == left
        assert state.ring_size(0) == len(left)
        state = self.reopen(state)
        assert ring_seqnos(state, 0) == left
        assert ring_seqnos(state, 1) == [1]
        state.close()

    @pytest.mark.acceptance("D48")
    @pytest.mark.parametrize(
        ("limit", "left"),
        [(0, []), (1, [1]), (2, [1, 2]), (6, [1, 2, 3]), (7, [1, 2, 3, 7]), (9, [1, 2, 3, 7, 8])],
    )
    def test_cutting_forgets_what_is_above_its_seqno(
        self, state: StateStore, limit: int, left: list[int]
    ) -> None:
        commit(state, ring=[chunk(0, 1, 2, 3), chunk(0, 7, 8), chunk(1, 9)])
        commit(state, cuts={0: limit})
        assert ring_seqnos(state, 0) == left
        state = self.reopen(state)
        assert ring_seqnos(state, 0) == left
        assert ring_seqnos(state, 1) == [9]
        state.close()

    def test_a_cut_comes_before_what_is_added_with_it(self, state: StateStore) -> None:
        commit(state, {0: at(9)}, [chunk(0, 1, 5, 9)])
        commit(state, {0: at(4)}, [chunk(0, 6, 7)], trims={0: 1}, cuts={0: 5})
        assert ring_seqnos(state, 0) == [5, 6, 7]
        assert state.load() == {0: at(4)}

    def test_limits_of_a_vbucket_without_a_ring_do_nothing(self, state: StateStore) -> None:
        commit(state, trims={7: 5}, cuts={8: 5})
        assert state.ring_size(7) == state.ring_size(8) == 0

    def test_hundreds_of_small_chunks_are_kept_like_one(self, state: StateStore) -> None:
        for seqno in range(1, 301):
            commit(state, ring=[chunk(0, seqno)], trims={0: max(0, seqno - 150)})
        state = self.reopen(state)
        assert ring_seqnos(state, 0) == list(range(151, 301))
        state.close()

    # --- forgetting ---

    @pytest.mark.acceptance("P19")
    def test_forgetting_drops_position_and_ring_of_those_vbuckets_only(
        self, state: StateStore
    ) -> None:
        commit(state, {0: at(1), 1: at(2), 2: at(3)}, [chunk(0, 1), chunk(1, 2), chunk(2, 3)])
        state.forget(iter([0, 2, 99]))
        assert state.load() == {1: at(2)}
        assert [state.ring_size(vbucket) for vbucket in (0, 1, 2)] == [0, 1, 0]
        state = self.reopen(state)
        assert state.load() == {1: at(2)}
        assert ring_seqnos(state, 0) == []
        commit(state, {0: at(5)}, [chunk(0, 5)])
        assert ring_seqnos(state, 0) == [5]
        state.close()

    def test_closing_twice_is_no_error(self, state: StateStore) -> None:
        state.close()
        state.close()
