"""The keys that one TAP client was sent."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from uprmc.tap_adapter.names import Ring


def test_the_keys_of_runs_above_a_seqno_come_in_the_order_they_were_sent() -> None:
    ring = Ring(10)
    ring.add(3, 0, 5, [b"one", b"two"])
    ring.add(3, 5, 9, [b"three", b""])
    assert ring.above(3, 5) == [b"three", b""]
    assert ring.above(3, 0) == [b"one", b"two", b"three", b""]
    assert ring.above(3, 9) == []


def test_a_run_that_reaches_above_is_taken_whole() -> None:
    ring = Ring(10)
    ring.add(3, 0, 5, [b"one", b"two"])
    assert ring.above(3, 4) == [b"one", b"two"]


def test_a_key_that_was_sent_twice_comes_once() -> None:
    ring = Ring(10)
    ring.add(3, 0, 5, [b"k", b"k"])
    ring.add(3, 5, 6, [b"k"])
    assert ring.above(3, 0) == [b"k"]


def test_vbuckets_do_not_mix() -> None:
    ring = Ring(10)
    ring.add(65_535, 0, 1, [b"a"])
    ring.add(0, 0, 1, [b"b"])
    assert (ring.above(65_535, 0), ring.above(0, 0)) == ([b"a"], [b"b"])


def test_nothing_is_said_of_a_vbucket_of_which_nothing_was_sent() -> None:
    assert Ring(10).above(3, 0) is None


def test_below_where_the_stream_began_nothing_is_known() -> None:
    ring = Ring(10)
    ring.add(3, 100, 105, [b"k"])
    assert ring.above(3, 99) is None
    assert ring.above(3, 100) == [b"k"]


def test_as_many_keys_as_allowed_are_held_and_one_more_pushes_the_oldest_run_out() -> None:
    ring = Ring(4)
    ring.add(3, 0, 2, [b"a", b"b"])
    ring.add(7, 0, 2, [b"c", b"d"])
    assert ring.above(3, 0) == [b"a", b"b"]
    ring.add(7, 2, 3, [b"e"])
    assert ring.above(3, 0) is None
    assert ring.above(3, 2) == []
    assert ring.above(7, 0) == [b"c", b"d", b"e"]
    assert len(ring) == 3


def test_a_run_of_all_the_keys_allowed_fits_and_one_key_more_is_lost_at_once() -> None:
    ring = Ring(3)
    ring.add(3, 0, 3, [b"a", b"b", b"c"])
    assert ring.above(3, 0) == [b"a", b"b", b"c"]
    ring.add(3, 3, 7, [b"a", b"b", b"c", b"d"])
    assert ring.above(3, 6) is None
    assert ring.above(3, 7) == []


def test_a_ring_of_no_keys_never_reaches_back() -> None:
    ring = Ring(0)
    ring.add(3, 0, 5, [b"a"])
    assert ring.above(3, 4) is None
    assert ring.above(3, 5) == []


def test_what_an_earlier_process_has_sent_is_lost() -> None:
    ring = Ring(10)
    ring.lost(3, 50)
    ring.add(3, 40, 60, [b"k"])  # sent again from what was acknowledged
    assert ring.above(3, 49) is None
    assert ring.above(3, 50) == [b"k"]


def test_a_gap_between_runs_counts_as_lost() -> None:
    ring = Ring(10)
    ring.add(3, 0, 5, [b"a"])
    ring.add(3, 8, 9, [b"b"])
    assert ring.above(3, 7) is None
    assert ring.above(3, 8) == [b"b"]


def test_what_is_sent_again_is_there_twice_and_losing_one_loses_what_both_reach() -> None:
    ring = Ring(4)
    ring.add(3, 0, 9, [b"a", b"b"])
    ring.add(3, 4, 7, [b"b"])
    assert ring.above(3, 5) == [b"a", b"b"]
    ring.add(3, 9, 12, [b"c", b"d"])
    assert ring.above(3, 8) is None
    assert ring.above(3, 9) == [b"c", b"d"]


def test_what_is_sent_again_leaves_no_gap_before_what_follows() -> None:
    ring = Ring(10)
    ring.add(3, 0, 9, [b"a", b"b"])
    ring.add(3, 4, 7, [b"b"])
    ring.add(3, 9, 12, [b"c"])
    assert ring.above(3, 0) == [b"a", b"b", b"c"]


def test_a_ring_goes_round_many_times() -> None:
    ring, keys = Ring(100), [b"%d" % number for number in range(5_000)]
    for number, key in enumerate(keys):
        ring.add(number % 2, number // 2, number // 2 + 1, [key])
        if number % 97 == 0:
            newest = keys[max(0, number - 99) : number + 1]
            assert len(ring) == len(newest)
            floor = max(0, number - 99) // 2 + 1
            assert ring.above(0, floor) == [
                key for key in newest if int(key) // 2 >= floor and int(key) % 2 == 0
            ]


def test_a_vbucket_that_is_emptied_after_a_restart_begins_anew() -> None:
    ring = Ring(4)
    ring.lost(3, 50)
    ring.forget(3)
    ring.add(3, 0, 4, [b"c"])
    assert ring.above(3, 0) == [b"c"]


def test_a_correction_reaches_to_the_version_that_was_sent() -> None:
    ring = Ring(10)
    ring.add(3, 0, 150, [b"a", b"b"])
    ring.add(3, 100, 180, [b"b"])
    assert ring.above(3, 160) == [b"b"]


def test_an_emptied_vbucket_holds_nothing_and_begins_anew() -> None:
    ring = Ring(4)
    ring.add(3, 0, 9, [b"a", b"b"])
    ring.forget(3)
    assert ring.above(3, 9) is None
    ring.add(3, 0, 4, [b"c"])
    assert ring.above(3, 0) == [b"c"]
    ring.add(7, 0, 4, [b"x", b"y", b"z"])  # pushes out what was forgotten, and that costs nothing
    assert ring.above(3, 0) == [b"c"]


def test_forgetting_what_was_never_sent_is_fine() -> None:
    ring = Ring(4)
    ring.forget(3)
    assert ring.above(3, 0) is None


def test_a_run_without_keys_moves_the_stream_on() -> None:
    ring = Ring(4)
    ring.add(3, 0, 9, [])
    ring.add(3, 9, 10, [b"a"])
    assert ring.above(3, 0) == [b"a"]


def test_a_key_of_255_bytes_is_held_and_a_longer_one_is_lost() -> None:
    ring = Ring(4)
    ring.add(3, 0, 1, [b"k" * 255])
    assert ring.above(3, 0) == [b"k" * 255]
    ring.add(3, 1, 2, [b"k" * 256])
    assert ring.above(3, 1) is None
    assert ring.above(3, 2) == []


def test_fifty_clients_that_never_acknowledge_hold_little() -> None:
    keys = [b"%040d" % number for number in range(500)]
    tracemalloc.start()
    try:
        rings = [Ring(10_000) for _ in range(50)]
        for ring in rings:
            for turn in range(24):  # 12,000 keys, so the front was given up as well
                ring.add(turn % 8, turn // 8 * 500, turn // 8 * 500 + 500, keys)
        used, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, rings)) == 500_000
    assert used < most < 30 * 2**20


# --- a ring is a list -----------------------------------------------------------------------------


class PlainRing:
    """The same as a list of runs."""

    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self.runs: list[tuple[int | None, int, list[bytes]]] = []
        self.floors: dict[int, int] = {}
        self.ends: dict[int, int] = {}

    def add(self, vbucket: int, first_after: int, last_seqno: int, keys: list[bytes]) -> None:
        if vbucket not in self.ends or first_after > self.ends[vbucket]:
            self.raise_floor(vbucket, first_after)
        self.ends[vbucket] = max(self.ends.get(vbucket, 0), last_seqno)
        if len(keys) > self.keys_max:
            self.raise_floor(vbucket, last_seqno)
            return
        self.runs.append((vbucket, last_seqno, keys))
        while sum(len(run) for _, _, run in self.runs) > self.keys_max:
            owner, last, _ = self.runs.pop(0)
            if owner is not None:
                self.raise_floor(owner, last)

    def raise_floor(self, vbucket: int, seqno: int) -> None:
        self.floors[vbucket] = max(seqno, self.floors.get(vbucket, 0))

    def forget(self, vbucket: int) -> None:
        self.runs = [(None if run[0] == vbucket else run[0], *run[1:]) for run in self.runs]
        self.floors.pop(vbucket, None)
        self.ends.pop(vbucket, None)

    def above(self, vbucket: int, seqno: int) -> list[bytes] | None:
        if vbucket not in self.floors or seqno < self.floors[vbucket]:
            return None
        found = [
            key
            for owner, last, run in self.runs
            if owner == vbucket and last > seqno
            for key in run
        ]
        return list(dict.fromkeys(found))


_VBUCKET = st.integers(0, 3)
_ADD = st.tuples(
    st.just("add"),
    _VBUCKET,
    st.integers(-3, 3),
    st.integers(0, 9),
    st.lists(st.binary(max_size=3), min_size=1, max_size=6),
)
_FORGET = st.tuples(st.just("forget"), _VBUCKET)


@given(st.integers(0, 12), st.lists(st.one_of(_ADD, _ADD, _ADD, _ADD, _FORGET), max_size=150))
def test_a_ring_is_a_list_of_runs(keys_max: int, steps: list[tuple[object, ...]]) -> None:
    ring, plain = Ring(keys_max), PlainRing(keys_max)
    for step in steps:
        if step[0] == "add":
            _, vbucket, shift, count, keys = step
            after = max(0, plain.ends.get(vbucket, 0) + shift)  # type: ignore[call-overload,operator]
            last = max(1, after + count)  # type: ignore[operator]
            ring.add(vbucket, after, last, keys)  # type: ignore[arg-type]
            plain.add(vbucket, after, last, keys)  # type: ignore[arg-type]
        else:
            ring.forget(step[1])  # type: ignore[arg-type]
            plain.forget(step[1])  # type: ignore[arg-type]
        assert len(ring) == sum(len(run) for _, _, run in plain.runs) <= keys_max
    for vbucket in range(4):
        for seqno in range(plain.ends.get(vbucket, 0) + 2):
            assert ring.above(vbucket, seqno) == plain.above(vbucket, seqno)


@given(st.lists(st.tuples(_VBUCKET, st.lists(st.binary(max_size=3), max_size=4)), max_size=80))
def test_what_a_client_may_hold_above_a_seqno_is_found_or_the_ring_says_it_is_lost(
    batches: list[tuple[int, list[bytes]]],
) -> None:
    ring = Ring(20)
    sent: dict[int, list[bytes]] = {}
    for vbucket, keys in batches:
        before = sent.setdefault(vbucket, [])
        ring.add(vbucket, len(before), len(before) + len(keys), keys)
        before.extend(keys)
    for vbucket, keys in sent.items():
        for seqno in range(len(keys) + 1):
            found = ring.above(vbucket, seqno)
            assert found is None or set(found) >= set(keys[seqno:])
        assert ring.above(vbucket, len(keys)) == []
