"""The keys that one TAP client was sent."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from uprmc.tap_adapter.names import Ring


def test_what_an_earlier_process_has_sent_is_lost() -> None:
    ring = Ring(10)
    ring.lost(3, 50)
    ring.add(3, 40, 60, [b"k"])  # sent again from what was acknowledged
    assert ring.above(3, 49) is None
    assert ring.above(3, 50) == [b"k"]


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
