"""Where increments begin and which rows of a chain count: rules without a node.

A property compares them with a model: a vBucket that is written, loses what was not on disk,
forgets deletions and is flushed, with backups in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backup.test_manifest import manifest_of
from uprmc.backup.increments import (
    Beginning,
    beginning,
    boundaries_of,
    check_same_bucket,
    limits,
)
from uprmc.backup.manifest import VBucketPart
from uprmc.columnar.errors import BackupForeign
from uprmc.model import FailoverEntry
from uprmc.rollback import VBucketHoldings

A, B, C = 0xA, 0xB, 0xC


def part(uuid: int, start: int, end: int, *log: tuple[int, int], **rest: object) -> VBucketPart:
    return VBucketPart(uuid, start, end, log=log or ((uuid, 0),), **rest)  # type: ignore[arg-type]


def now_at(high: int, purge: int, log: Sequence[tuple[int, int]]) -> VBucketHoldings:
    return VBucketHoldings(tuple(FailoverEntry(*each) for each in log), high, purge)


FULL_TO_50 = part(A, 0, 50)


def test_nothing_known_begins_at_the_beginning() -> None:
    assert beginning([], now_at(10, 0, ((A, 0),))) == Beginning()


def test_the_same_history_goes_on_at_the_end_of_the_parent() -> None:
    assert beginning([FULL_TO_50], now_at(80, 0, ((A, 0),))) == Beginning(50, A)


def test_a_new_history_that_kept_everything_goes_on_too() -> None:
    assert beginning([FULL_TO_50], now_at(60, 0, ((B, 50), (A, 0)))) == Beginning(50, A)


def test_a_history_that_lost_what_the_parent_has_begins_again_if_there_is_no_other() -> None:
    assert beginning([FULL_TO_50], now_at(60, 0, ((B, 40), (A, 0)))) == Beginning(reset=True)


@pytest.mark.acceptance("P09")
def test_the_newest_boundary_that_is_still_shared_is_gone_back_to() -> None:
    parts = [part(A, 0, 20), part(A, 20, 35), part(A, 35, 50)]
    now = now_at(60, 0, ((B, 40), (A, 0)))
    assert beginning(parts, now) == Beginning(35, A, cut=35)
    assert beginning(parts[2:], now) == Beginning(reset=True), "one known version: from 0"


@pytest.mark.acceptance("P09")
def test_two_branches_that_were_missed_do_no_more_harm_than_they_must() -> None:
    parts = [part(A, 0, 20), part(A, 20, 30), part(B, 30, 45, (B, 30), (A, 0))]
    now = now_at(60, 0, ((C, 25), (A, 0)))
    assert beginning(parts, now) == Beginning(20, A, cut=20)


def test_a_boundary_belongs_to_the_history_in_which_its_seqno_was_given() -> None:
    # B began right at 30 and died before anything was written in it: nobody knows it any more
    parts = [part(B, 0, 30, (B, 30), (A, 0))]
    assert beginning(parts, now_at(60, 0, ((C, 30), (A, 0)))) == Beginning(30, A)


def test_deletions_that_were_dropped_begin_again() -> None:
    assert beginning([FULL_TO_50], now_at(80, 50, ((A, 0),))) == Beginning(50, A)
    assert beginning([FULL_TO_50], now_at(80, 51, ((A, 0),))) == Beginning(reset=True)


def test_an_empty_parent_has_nothing_to_cut() -> None:
    assert beginning([part(A, 0, 0)], now_at(9, 0, ((B, 0),))) == Beginning()
    parts = [part(A, 0, 0), part(A, 0, 5)]
    assert beginning(parts, now_at(9, 0, ((B, 0),))) == Beginning(reset=True)


def test_boundaries_that_were_cut_off_are_none_any_more() -> None:
    parts = [part(A, 0, 20), part(A, 20, 50), part(B, 20, 60, (B, 20), (A, 0), cut=20)]
    assert boundaries_of(parts) == [(B, 60), (A, 20)]
    assert boundaries_of([*parts, part(C, 0, 7, reset=True)]) == [(C, 7)]


def test_rows_that_were_cut_off_do_not_count() -> None:
    chain = [
        manifest_of(vb={1: part(A, 0, 20), 2: part(A, 0, 9), 3: part(A, 0, 9)}),
        manifest_of(vb={1: part(A, 20, 50), 2: part(A, 9, 9), 3: part(A, 9, 12)}),
        manifest_of(
            vb={1: part(B, 20, 60, cut=20), 2: part(A, 9, 11), 3: part(C, 0, 4, reset=True)}
        ),
    ]
    assert limits(chain) == [{1: 20, 2: 9}, {}, {1: 60, 2: 11, 3: 4}]
    assert limits(chain[:2]) == [{1: 20, 2: 9, 3: 9}, {1: 50, 3: 12}]


def test_a_later_cut_that_goes_back_further_counts_for_all_before_it() -> None:
    parts = [
        part(A, 0, 20),
        part(A, 20, 40),
        part(A, 40, 60),
        part(B, 40, 50, (B, 45), (A, 0), cut=40),
        part(C, 20, 30, (C, 25), (A, 0), cut=20),
    ]
    assert limits([manifest_of(vb={1: each}) for each in parts]) == [{1: 20}, {}, {}, {}, {1: 30}]
    other_way = [*parts[:3], part(B, 20, 50, (B, 25), (A, 0), cut=20), part(B, 50, 55, cut=50)]
    chain = [manifest_of(vb={1: each}) for each in other_way]
    assert limits(chain) == [{1: 20}, {}, {}, {1: 50}, {1: 55}]


def test_a_node_that_shares_nothing_is_foreign() -> None:
    chain = [manifest_of(vb={1: part(A, 0, 20), 2: part(A, 0, 0)})]
    other = now_at(20, 0, ((C, 0),))
    with pytest.raises(BackupForeign, match="there shares no history"):
        check_same_bucket(chain, {1: other, 2: other}, "there")
    check_same_bucket(chain, {1: now_at(30, 0, ((B, 10), (A, 0))), 2: other}, "there")
    check_same_bucket([manifest_of(vb={2: part(A, 0, 0)})], {2: other}, "there")


# --- against a model ------------------------------------------------------------------------------


@dataclass
class VBucket:
    """A vBucket of one key per number: versions by seqno, what is on disk, its histories."""

    log: list[tuple[int, int]] = field(default_factory=lambda: [(1, 0)])
    rows: dict[str, tuple[int, str]] = field(default_factory=dict)
    saved: dict[str, tuple[int, str]] = field(default_factory=dict)
    high: int = 0
    saved_high: int = 0
    purge: int = 0
    uuids: int = 1

    def write(self, key: str, value: str) -> None:
        self.high += 1
        self.rows[key] = self.high, f"{value}@{self.high}.{self.uuids}"

    def delete(self, key: str) -> None:
        self.high += 1
        self.rows[key] = self.high, ""

    def save(self) -> None:
        self.saved, self.saved_high = dict(self.rows), self.high

    def crash(self) -> None:
        self.rows, self.high = dict(self.saved), self.saved_high
        self.uuids += 1
        self.log.insert(0, (self.uuids, self.high))

    def flush(self) -> None:
        self.uuids += 1
        self.log, self.rows, self.high, self.purge = [(self.uuids, 0)], {}, 0, 0
        self.save()

    def compact(self) -> None:
        self.save()
        dropped = [k for k, (seqno, value) in self.rows.items() if not value and seqno < self.high]
        for key in dropped:
            self.purge = max(self.purge, self.rows.pop(key)[0])
        self.save()

    @property
    def present(self) -> VBucketHoldings:
        return now_at(self.high, self.purge, tuple(self.log))

    def documents(self) -> dict[str, tuple[int, str]]:
        return {key: row for key, row in self.rows.items() if row[1]}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from("klmn")),
        st.tuples(st.just("delete"), st.sampled_from("klmn")),
        st.tuples(st.sampled_from(["save", "crash", "flush", "compact", "backup"])),
    ),
    max_size=60,
)


@given(steps)
def test_every_increment_restores_what_the_vbucket_had_at_its_moment(
    steps: list[tuple[str, ...]],
) -> None:
    vbucket = VBucket()
    parts: list[VBucketPart] = []
    files: list[dict[str, tuple[int, str]]] = []
    moments: list[dict[str, tuple[int, str]]] = []
    for step, *key in [*steps, ("backup",)]:
        if step == "write":
            vbucket.write(key[0], "v")
        elif step != "backup":
            getattr(vbucket, step)(*key)
        else:
            begin = beginning(parts, vbucket.present)
            new = {k: row for k, row in vbucket.rows.items() if row[0] > begin.start}
            files.append(new)
            parts.append(
                VBucketPart(
                    vbucket.log[0][0],
                    begin.start,
                    vbucket.high,
                    log=tuple(vbucket.log),
                    cut=begin.cut,
                    reset=begin.reset,
                )
            )
            moments.append(vbucket.documents())
    for at in range(len(parts)):
        assert restored(parts[: at + 1], files) == moments[at]


def restored(
    parts: list[VBucketPart], files: list[dict[str, tuple[int, str]]]
) -> dict[str, tuple[int, str]]:
    counting = limits([manifest_of(vb={1: each}) for each in parts])
    found: dict[str, tuple[int, str]] = {}
    for rows, limit in zip(files, counting, strict=False):
        found |= {key: row for key, row in rows.items() if row[0] <= limit.get(1, -1)}
    return {key: row for key, row in found.items() if row[1]}
