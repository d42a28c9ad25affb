"""Where increments begin and which rows of a chain count: rules without a node.

A property compares them with a model: a vBucket that is written, loses what was not on disk,
forgets deletions and is flushed, with backups in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop.server_process import ServerProcess
from tests.backup.test_manifest import PART, manifest_of
from tests.bulk.cli_run import uprmc
from tests.bulk.here import changes, remove
from tests.bulk.world import HERE, access_to, compact, start, store
from tests.columnar.read_peer import FakeNode, refused
from uprmc.backup.backups import backup
from uprmc.backup.increments import (
    Beginning,
    beginning,
    boundaries_of,
    check_same_bucket,
    limits,
)
from uprmc.backup.manifest import VBucketPart
from uprmc.backup.restoring import RestoreReport, restore
from uprmc.backup.revision_floors import floors_in, raise_floors
from uprmc.client.kv import KvClient, Meta
from uprmc.columnar.access import Access
from uprmc.columnar.errors import BackupForeign
from uprmc.model import FailoverEntry
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.errors import Refused
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


# --- revision floors ------------------------------------------------------------------------------
# A key that was deleted, and its deletion dropped: what a restored node begins it with.


REV = 20


def bury(node: ServerProcess, key: bytes) -> None:
    """Delete a document at revision `REV`, and drop the deletion for good."""
    with KvClient(str(node.upr)) as kv:
        kv.set_with_meta(key, b"x", Meta(0, 0, REV - 1, 1))
        others = (b"other-%d" % n for n in range(10_000))
        beside = next(each for each in others if kv.vbucket_of(each) == kv.vbucket_of(key))
    remove(node, key)
    assert changes(node)[key].rev == REV
    store(node, {beside: b"stays"})  # a vBucket's newest change is never dropped
    compact(node)
    assert key not in changes(node)


def test_a_key_purged_before_the_backup_begins_above_its_old_revision_after_the_restore(
    tmp_path: Path,
) -> None:
    directory, local = str(tmp_path / "backup"), ("--engine", "local", "--parallelism", "1")
    with start(tmp_path / "source") as source:
        bury(source, b"key")
        made = uprmc("backup", directory, "--node", str(source.upr), *local)
        assert made.code == 0, made.err
    for vbuckets in (16, 4):  # as many as the source has, and fewer
        data = tmp_path / f"target-{vbuckets}"
        with start(data, vbuckets=vbuckets) as target:
            done = uprmc("restore", directory, "--node", str(target.upr), *local)
            assert done.code == 0, done.err
            assert "revision floor" not in done.out
            target.kill()  # what it was told is on its disk
        with start(data, vbuckets=vbuckets) as target:
            store(target, {b"key": b"new"})
            assert changes(target)[b"key"].rev == REV + 1


def test_a_deletion_that_is_purged_between_two_backups_counts_too(tmp_path: Path) -> None:
    with start(tmp_path / "source") as source, start(tmp_path / "target") as target:
        store(source, {b"first": b"1"})
        backup(access_to(source), tmp_path / "backup", engine=HERE, groups=2, register=False)
        bury(source, b"key")
        backup(access_to(source), tmp_path / "backup", engine=HERE)
        restore(tmp_path / "backup", access_to(target), engine=HERE, dry_run=True)
        store(target, {b"key": b"new"})
        assert changes(target)[b"key"].rev == 1, "a dry run raises nothing"
        remove(target, b"key")
        restore(tmp_path / "backup", access_to(target), engine=HERE)
        store(target, {b"key": b"new"})
        assert changes(target)[b"key"].rev == REV + 1


# --- rules ----------------------------------------------------------------------------------------


def test_the_highest_floor_of_a_chain_counts_and_only_of_vbuckets_that_are_wanted() -> None:
    chain = [
        manifest_of(vb={5: replace(PART, rev_floor=9), 6: replace(PART, rev_floor=3), 7: PART}),
        manifest_of(vb={5: replace(PART, rev_floor=8), 6: replace(PART, rev_floor=4), 7: PART}),
    ]
    assert floors_in(chain, None) == {5: 9, 6: 4}
    assert floors_in(chain, frozenset({6, 7})) == {6: 4}


def test_a_floor_is_a_revision_and_older_manifests_have_none() -> None:
    plain = PART.to_dict()
    assert VBucketPart.of_dict(plain | {"rev_floor": 2**63 - 1}).rev_floor == 2**63 - 1
    with pytest.raises(ValueError, match="no number of something"):
        VBucketPart.of_dict(plain | {"rev_floor": 2**63})
    del plain["rev_floor"]
    assert VBucketPart.of_dict(plain) == PART


@pytest.mark.parametrize("status", [Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED])
def test_a_node_that_cannot_take_a_floor_is_named(status: Status) -> None:
    with FakeNode({0: 1, 1: 1}, vbuckets=2) as node:
        node.instead[Opcode.VBUCKET_FACTS] = lambda frame: refused(frame, status)
        assert raise_floors(Access((node.place,)), {0: 9, 1: 8}, 2) == [node.place]


def test_the_report_says_so() -> None:
    report = RestoreReport("id", "chain-0001", 0, 1, without_floor=["a:1", "b:2"])
    assert "a:1, b:2: the revision floor could not be set" in report.summary()
    assert report.to_dict()["without_floor"] == ["a:1", "b:2"]
    assert report.complete


def test_another_refusal_ends_the_restore() -> None:
    with FakeNode({0: 1}, vbuckets=1) as node:
        node.instead[Opcode.VBUCKET_FACTS] = lambda frame: refused(frame, Status.INVALID_ARGUMENTS)
        with pytest.raises(Refused, match="VBUCKET_FACTS"):
            raise_floors(Access((node.place,)), {0: 9}, 1)


def test_every_vbucket_of_another_number_gets_the_highest_floor() -> None:
    with FakeNode({0: 1, 1: 1}, vbuckets=2) as node:
        assert raise_floors(Access((node.place,)), {0: 9, 3: 8}, 4) == []
        asked = [each for each in node.asked if each.opcode == Opcode.VBUCKET_FACTS]
    assert [(each.vbucket, each.extras) for each in asked] == [
        (0, bytes(15) + b"\x09"),
        (1, bytes(15) + b"\x09"),
    ]


def test_without_floors_nobody_is_asked() -> None:
    assert raise_floors(Access(("127.0.0.1:1",), retries=0), {}, 4) == []
