"""Backups of a real node: what is restored is what was there, however history went meanwhile.

The judge is the other client's lease (`world.states`): key, value, revision, CAS, flags and
expiry of every document, and revision and CAS of every deletion.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from interop.server_process import ServerProcess
from tests.bulk.here import numbered, remove
from tests.bulk.world import (
    HERE,
    VBUCKETS,
    access_to,
    compact,
    flush,
    high_seqnos,
    persist,
    start,
    states,
    stop_persistence,
    store,
)
from uprmc.backup import backups
from uprmc.backup.backups import backup
from uprmc.backup.manifest import Manifest, read_manifest
from uprmc.backup.repository import Repository
from uprmc.backup.restoring import restore
from uprmc.backup.verifying import verify
from uprmc.columnar.access import Access
from uprmc.columnar.connection import dialled
from uprmc.columnar.errors import (
    BackupBusy,
    BackupDamaged,
    BackupForeign,
    BackupIncomplete,
    BadOption,
    LeaseEnded,
    NoVBucket,
    TaskFailed,
    VBucketsChanged,
)
from uprmc.columnar.lease import of_token
from uprmc.jobs.engines import LocalEngine
from uprmc.jobs.progress import Step
from uprmc.model import vbucket_of
from uprmc.remote.errors import NodeUnreachable


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    data = tmp_path_factory.mktemp("nodes")
    with start(data / "source") as source, start(data / "target") as target:
        yield source, target


@pytest.fixture
def source(nodes: tuple[ServerProcess, ServerProcess]) -> ServerProcess:
    flush(nodes[0])
    return nodes[0]


@pytest.fixture
def target(nodes: tuple[ServerProcess, ServerProcess]) -> ServerProcess:
    flush(nodes[1])
    return nodes[1]


def add(server: ServerProcess, directory: Path, **options: Any) -> Manifest:
    """Without a row, which would keep the deletions of later tests."""
    fixed = {"engine": HERE, "groups": 4, "register": False}
    return backup(access_to(server), directory, **{**fixed, **options})


def assert_restored(directory: Path, target: ServerProcess, at: int, expected: object) -> None:
    flush(target)
    report = restore(directory, access_to(target), at=at, engine=HERE)
    assert report.complete
    assert report.check is not None
    assert report.check.same
    assert states(target) == expected


# --- what an increment has ------------------------------------------------------------------------


@pytest.mark.acceptance("D01", "P02")
def test_a_chain_restores_every_moment_exactly(
    source: ServerProcess, target: ServerProcess, tmp_path: Path
) -> None:
    moments = []
    store(source, numbered(300), flags=7)
    store(source, {b"dies": b"in a year"}, expiry=int(time.time()) + 365 * 86_400)
    store(source, {b"empty": b"", b"\xff\x00 no text": b"x" * 100_000})
    for number in range(3):
        add(source, tmp_path / "b")
        moments.append(states(source))
        store(source, numbered(10, value=f"new{number}"))
        remove(source, *[f"key-{number * 50 + n}".encode() for n in range(20)])
    for at, moment in enumerate(moments):
        assert_restored(tmp_path / "b", target, at, moment)


@pytest.mark.acceptance("P02")
def test_an_increment_has_what_changed_and_not_a_row_or_byte_more(
    source: ServerProcess, tmp_path: Path
) -> None:
    store(source, numbered(500))
    full = add(source, tmp_path)
    assert (full.kind, full.rows, full.deletes) == ("full", 500, 0)
    changed = {b"key-%d" % n: b"v" * n for n in range(20)}
    store(source, changed)
    remove(source, b"key-0", b"key-400")
    increment = add(source, tmp_path)
    assert (increment.kind, increment.rows, increment.deletes) == ("incr", 21, 2)
    keys = sum(len(key) for key in changed) + len(b"key-400")
    assert increment.bytes == keys + sum(range(20))
    nothing = add(source, tmp_path)
    assert (nothing.number, nothing.rows, nothing.bytes, nothing.files) == (2, 0, 0, ())


def test_the_manifest_names_the_exact_moment(source: ServerProcess, tmp_path: Path) -> None:
    store(source, numbered(100))
    manifest = add(source, tmp_path)
    assert {number: part.end for number, part in manifest.vb.items()} == high_seqnos(source)
    (file,) = tmp_path.glob("chain-0001/0000-full/manifest.json")
    assert read_manifest(file) == manifest
    assert all(part.log[0][0] == part.uuid for part in manifest.vb.values())
    assert sum(file.rows for file in manifest.files) == 100
    assert {file.name for file in (tmp_path / "chain-0001/0000-full").iterdir()} == {
        "manifest.json",
        "data",
    }


def test_every_file_is_sorted_by_vbucket_and_seqno(source: ServerProcess, tmp_path: Path) -> None:
    store(source, numbered(1_000))
    add(source, tmp_path, groups=1)
    (file,) = tmp_path.rglob("*.parquet")
    table = pq.read_table(file, partitioning=None)
    places = list(zip(table["_vb"].to_pylist(), table["_seq"].to_pylist(), strict=True))
    assert places == sorted(places)
    assert len(places) == 1_000


def test_large_groups_are_several_files(
    source: ServerProcess, target: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uprmc.backup.manifest.PART_BYTES", 10_000)
    monkeypatch.setattr("uprmc.backup.manifest.ROW_GROUP_BYTES", 4_000)
    monkeypatch.setattr("uprmc.columnar.reading.HOLD_BACK_BYTES", 0)
    for number in range(8):
        store(source, {b"%d-%d" % (number, n): b"v" * 5_000 for n in range(8)})
    manifest = add(source, tmp_path / "b", groups=2)
    assert {file.group for file in manifest.files} == {0, 1}
    assert_restored(tmp_path / "b", target, 0, states(source))


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "gzip", "none"])
def test_every_compression_can_be_read_again(
    source: ServerProcess, target: ServerProcess, tmp_path: Path, compression: str
) -> None:
    store(source, numbered(50))
    add(source, tmp_path / "b", compression=compression)
    assert_restored(tmp_path / "b", target, 0, states(source))


def test_several_processes_make_the_same_backup(
    source: ServerProcess, target: ServerProcess, tmp_path: Path
) -> None:
    store(source, numbered(200))
    steps: list[Step] = []
    manifest = add(source, tmp_path / "b", groups=5, engine=LocalEngine(2), progress=steps.append)
    assert manifest.rows == 200
    assert (steps[-1].done, steps[-1].of, steps[-1].rows) == (5, 5, 200)
    assert steps[-1].size_bytes == manifest.bytes
    assert_restored(tmp_path / "b", target, 0, states(source))


def test_some_vbuckets_only(source: ServerProcess, target: ServerProcess, tmp_path: Path) -> None:
    store(source, numbered(200))
    manifest = add(source, tmp_path / "b", vbuckets=[1, 3])
    assert sorted(manifest.vb) == [1, 3]
    store(source, numbered(200, value="new"))
    assert sorted(add(source, tmp_path / "b").vb) == [1, 3]
    restore(tmp_path / "b", access_to(target), engine=HERE)
    with pytest.raises(BadOption, match="vbuckets"):
        add(source, tmp_path / "b", vbuckets=[1])
    wanted = {k: s for k, s in states(source).items() if vbucket_of(k, VBUCKETS) in (1, 3)}
    assert states(target) == wanted


def test_a_full_backup_begins_a_chain_of_its_own(source: ServerProcess, tmp_path: Path) -> None:
    store(source, numbered(20))
    first = add(source, tmp_path)
    second = add(source, tmp_path, kind="full")
    assert (second.number, second.rows, second.parent) == (0, 20, None)
    assert second.chain != first.chain
    third = add(source, tmp_path, kind="incremental")
    assert (third.number, third.parent) == (1, second.id)
    assert Repository(tmp_path).chain_names() == ["chain-0001", "chain-0002"]


def test_without_deletions_nothing_is_deleted(source: ServerProcess, tmp_path: Path) -> None:
    store(source, numbered(50))
    remove(source, b"key-1", b"key-2")
    full = add(source, tmp_path, include_deletes=False)
    assert (full.rows, full.deletes) == (48, 0)
    with pytest.raises(BadOption, match="increment needs deletions"):
        add(source, tmp_path, include_deletes=False)
    remove(source, b"key-3")
    assert add(source, tmp_path).deletes == 1


def test_without_values_there_is_nothing_to_restore(
    source: ServerProcess, target: ServerProcess, tmp_path: Path
) -> None:
    store(source, numbered(50))
    manifest = add(source, tmp_path, no_value=True)
    assert not manifest.has_values
    assert "value" not in manifest.columns
    assert not add(source, tmp_path).has_values
    with pytest.raises(BackupForeign, match="without values"):
        restore(tmp_path, access_to(target), engine=HERE)


def test_an_empty_node_makes_a_backup_that_restores_nothing(
    source: ServerProcess, target: ServerProcess, tmp_path: Path
) -> None:
    manifest = add(source, tmp_path / "b")
    assert (manifest.rows, manifest.files) == (0, ())
    assert_restored(tmp_path / "b", target, 0, {})


def test_a_dry_run_tells_what_would_be_read_and_touches_nothing(
    source: ServerProcess, tmp_path: Path
) -> None:
    store(source, numbered(50))
    planned = add(source, tmp_path / "b", dry_run=True)
    assert (planned.kind, planned.files) == ("full", ())
    assert {number: part.end for number, part in planned.vb.items()} == high_seqnos(source)
    assert not (tmp_path / "b").exists()
    full = add(source, tmp_path / "b")
    planned = add(source, tmp_path / "b", dry_run=True)
    assert (planned.kind, planned.parent) == ("incr", full.id)
    assert Repository(tmp_path / "b").unfinished() == []


def test_a_rate_is_kept(source: ServerProcess, tmp_path: Path) -> None:
    store(source, numbered(100))
    began = time.monotonic()
    add(source, tmp_path, rate=200)
    assert time.monotonic() - began >= 0.45


# --- histories ------------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.acceptance("P09")
def test_what_a_killed_node_lost_is_cut_off(target: ServerProcess, tmp_path: Path) -> None:
    moments = []
    with start(tmp_path / "data") as node:
        store(node, numbered(100))
        add(node, tmp_path / "b")
        moments.append(states(node))
        store(node, numbered(40, value="kept"))
        add(node, tmp_path / "b")
        moments.append(states(node))
        store(node, numbered(10, prefix="kept", value="kept"))
        persist(node)
        on_disk = states(node)
        stop_persistence(node)
        store(node, numbered(6, value="lost"))
        remove(node, b"key-99")
        lost = add(node, tmp_path / "b")
        moments.append(states(node))
        assert lost.rows == 17
        node.kill()
    with start(tmp_path / "data") as node:
        assert states(node) == on_disk
        store(node, numbered(20, prefix="after"))
        increment = add(node, tmp_path / "b")
        moments.append(states(node))
    cut = [part for part in increment.vb.values() if part.cut is not None]
    assert 0 < len(cut) <= 7, "some vBuckets have lost something"
    assert not any(part.reset for part in increment.vb.values())
    assert 20 <= increment.rows <= 30, "what is new, and of what was cut what was not lost"
    for at, moment in enumerate(moments):
        assert_restored(tmp_path / "b", target, at, moment)


@pytest.mark.crash
def test_with_one_boundary_a_vbucket_that_lost_something_is_complete_again(
    target: ServerProcess, tmp_path: Path
) -> None:
    with start(tmp_path / "data") as node:
        store(node, numbered(100))
        persist(node)
        stop_persistence(node)
        store(node, numbered(60, value="lost"))
        add(node, tmp_path / "b")
        node.kill()
    with start(tmp_path / "data") as node:
        increment = add(node, tmp_path / "b")
        moment = states(node)
    assert any(part.reset for part in increment.vb.values())
    assert_restored(tmp_path / "b", target, 1, moment)


@pytest.mark.crash
def test_a_restart_in_order_changes_nothing(tmp_path: Path) -> None:
    with start(tmp_path / "data") as node:
        store(node, numbered(100))
        add(node, tmp_path / "b")
        node.stop()
    with start(tmp_path / "data") as node:
        assert add(node, tmp_path / "b").rows == 0


def test_deletions_that_were_dropped_make_a_vbucket_complete_again(
    source: ServerProcess, target: ServerProcess, tmp_path: Path
) -> None:
    store(source, numbered(200))
    add(source, tmp_path / "b")
    remove(source, *[f"key-{n}".encode() for n in range(100)])
    store(source, numbered(200, prefix="other"))
    compact(source)
    increment = add(source, tmp_path / "b")
    assert all(part.reset for part in increment.vb.values())
    assert_restored(tmp_path / "b", target, 1, states(source))
    remove(source, b"other-7")
    again = add(source, tmp_path / "b")
    assert again.rows == 1
    assert_restored(tmp_path / "b", target, 2, states(source))


def test_a_node_that_was_flushed_is_foreign(source: ServerProcess, tmp_path: Path) -> None:
    store(source, numbered(50))
    add(source, tmp_path)
    flush(source)
    store(source, numbered(50))
    with pytest.raises(BackupForeign, match="a full backup begins a new chain"):
        add(source, tmp_path)
    assert add(source, tmp_path, kind="full").rows == 50


def test_another_node_is_foreign(
    source: ServerProcess, target: ServerProcess, tmp_path: Path
) -> None:
    for node in (source, target):
        store(node, numbered(50))
    add(source, tmp_path)
    with pytest.raises(BackupForeign, match="another node"):
        add(target, tmp_path)
    assert add(source, tmp_path).number == 1


def test_another_number_of_vbuckets_is_told(source: ServerProcess, tmp_path: Path) -> None:
    add(source, tmp_path / "b")
    with start(tmp_path / "data", vbuckets=4) as other:
        with pytest.raises(VBucketsChanged, match="has 16 vBuckets and the bucket 4"):
            add(other, tmp_path / "b")
        assert add(other, tmp_path / "b", kind="full").vbuckets == 4


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_flush_while_it_is_planned_begins_it_again(
    source: ServerProcess, target: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(source, numbered(50))
    present, times = backups.logs_of, []

    def flushed_at_first(*given: Any) -> Any:
        if not times:
            times.append(flush(source))
            store(source, numbered(5, value="after"))
        return present(*given)

    monkeypatch.setattr(backups, "logs_of", flushed_at_first)
    assert add(source, tmp_path / "b").rows == 5
    assert_restored(tmp_path / "b", target, 0, states(source))


def test_a_lease_that_is_lost_begins_it_again(
    source: ServerProcess, target: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(source, numbered(50))
    tasks_of, times = backups.tasks_of, []

    def lost_at_first(wish: Any, draft: Any, done: Any, token: str, *rest: Any) -> Any:
        if not times:
            times.append(1)
            of_token(wish.access, token).release()
            store(source, numbered(5, value="later"))
        return tasks_of(wish, draft, done, token, *rest)

    monkeypatch.setattr(backups, "tasks_of", lost_at_first)
    add(source, tmp_path / "b")
    assert Repository(tmp_path / "b").chain_names() == ["chain-0001"]
    assert_restored(tmp_path / "b", target, 0, states(source))


def test_a_lease_that_is_lost_each_time_is_told(
    source: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(source, numbered(5))
    times: list[int] = []

    def always_lost(*_: Any) -> Any:
        times.append(1)
        raise LeaseEnded("gone")

    monkeypatch.setattr(backups, "tasks_of", always_lost)
    with pytest.raises(LeaseEnded):
        add(source, tmp_path)
    assert len(times) == backups.ATTEMPTS
    assert Repository(tmp_path).chain_names() == []


def test_two_backups_at_once_are_one_too_many(source: ServerProcess, tmp_path: Path) -> None:
    add(source, tmp_path)
    with Repository(tmp_path).locked(), pytest.raises(BackupBusy, match="is running"):
        add(source, tmp_path)


def test_an_interrupted_run_is_taken_up_while_its_lease_lives(
    source: ServerProcess, target: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(source, numbered(300))
    moment = states(source)
    token = interrupted_after(3, source, tmp_path / "b", monkeypatch)
    with pytest.raises(BackupIncomplete):
        restore(tmp_path / "b", access_to(target), engine=HERE)
    store(source, numbered(300, value="later"))
    (unfinished,) = Repository(tmp_path / "b").unfinished()
    before = set(unfinished.rglob("*.parquet"))
    assert len(before) == 3
    steps: list[Step] = []
    manifest = add(source, tmp_path / "b", progress=steps.append)
    assert steps[0].done == 3
    assert before <= set(unfinished.rglob("*.parquet"))
    assert manifest.rows == 300
    assert_restored(tmp_path / "b", target, 0, moment)
    lease = of_token(access_to(source), token)
    with pytest.raises(LeaseEnded):
        lease.renew()


def test_an_interrupted_run_begins_again_when_its_lease_is_gone(
    source: ServerProcess, target: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(source, numbered(300))
    token = interrupted_after(3, source, tmp_path / "b", monkeypatch)
    of_token(access_to(source), token).release()
    store(source, numbered(30, value="later"))
    steps: list[Step] = []
    add(source, tmp_path / "b", progress=steps.append)
    assert steps[0].done == 0
    assert_restored(tmp_path / "b", target, 0, states(source))


def interrupted_after(
    groups: int, source: ServerProcess, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Begin a backup as a process that is killed does: nothing is cleaned up, the lease stays."""

    class Killed(BaseException):
        pass

    def killed(step: Step) -> None:
        if step.done == groups:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("uprmc.columnar.lease.BulkLease.release", lambda lease: None)
        with pytest.raises(Killed):
            add(source, directory, progress=killed)
    (run,) = directory.rglob("run.json")
    return str(json.loads(run.read_text())["token"])


def test_an_unreachable_node_leaves_nothing(tmp_path: Path) -> None:
    nobody = Access(("127.0.0.1:1",), retries=0)
    with pytest.raises(NodeUnreachable):
        backup(nobody, tmp_path / "b", engine=HERE)
    assert Repository(tmp_path / "b").chain_names() == []


def test_a_vbucket_that_is_nowhere_is_no_hole(source: ServerProcess, tmp_path: Path) -> None:
    with pytest.raises(NoVBucket):
        add(source, tmp_path, vbuckets=[0, VBUCKETS])


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "sometimes"},
        {"vbuckets": []},
        {"groups": 0},
        {"compression": "rar"},
        {"rate": 0},
        {"lease_s": 0},
    ],
)
def test_options_that_make_no_sense_are_named(
    source: ServerProcess, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(BadOption):
        add(source, tmp_path / "b", **options)


def test_an_increment_needs_a_full_backup(source: ServerProcess, tmp_path: Path) -> None:
    with pytest.raises(BackupIncomplete, match="make a full backup first"):
        add(source, tmp_path / "b", kind="incremental")


def test_a_directory_of_something_else_is_left_alone(source: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(BackupForeign, match=r"not empty: it has thesis\.txt"):
        add(source, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_disk_that_takes_nothing_leaves_no_increment(
    source: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(source, numbered(50))

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    add(source, tmp_path)
    store(source, numbered(50, value="new"))
    with monkeypatch.context() as patched:
        patched.setattr("uprmc.backup.manifest._write_parquet", lambda table, path, how: full(path))
        with pytest.raises(TaskFailed, match="No space left"):
            add(source, tmp_path)
    assert len(Repository(tmp_path).chain().increments) == 1
    assert add(source, tmp_path).rows == 50


def test_a_damaged_parent_is_not_added_to(source: ServerProcess, tmp_path: Path) -> None:
    add(source, tmp_path)
    (file,) = tmp_path.rglob("manifest.json")
    file.write_text(file.read_text()[:-30])
    with pytest.raises(BackupDamaged):
        add(source, tmp_path)


def connections_of(server: ServerProcess) -> int:
    with dialled(str(server.upr), access_to(server)) as connection:
        return int(connection.statistics("")["total_connections"])


def test_a_backup_needs_few_connections_however_many_groups_it_has(tmp_path: Path) -> None:
    with start(tmp_path / "data", vbuckets=64) as server:
        # more than flow control lets through, unless what one group leaves is counted by the next
        store(server, numbered(500, value="v" * 2_000))
        access = replace(access_to(server), flow_control_bytes=65_536)
        counts = [connections_of(server)]
        for step in (
            lambda: backup(access, tmp_path / "b", engine=HERE, groups=64),
            lambda: backup(access_to(server), tmp_path / "b", engine=HERE),
            lambda: restore(tmp_path / "b", access_to(server), engine=HERE),
            lambda: verify(tmp_path / "b", access_to(server), engine=HERE),
        ):
            step()
            counts.append(connections_of(server))
        each = connections_of(server) - counts[-1]
        assert max(after - before - each for before, after in pairwise(counts)) <= 5
