"""Restores: what wins, what is chosen, what is done twice, what is interrupted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from interop.server_process import ServerProcess
from tests.bulk.here import contents, numbered, remove
from tests.bulk.world import (
    HERE,
    access_to,
    documents,
    flush,
    start,
    states,
    store,
)
from uprmc.backup import restoring
from uprmc.backup.backups import backup
from uprmc.backup.restoring import RestoreReport, restore
from uprmc.cli.main import run
from uprmc.client.kv import KvClient, Meta
from uprmc.columnar.access import Access
from uprmc.columnar.errors import BadFile, BadOption
from uprmc.columnar.report import TaskReport
from uprmc.columnar.write_options import WriteOptions
from uprmc.errors import InvalidArguments
from uprmc.jobs.engines import LocalEngine
from uprmc.jobs.progress import Step
from uprmc.remote.errors import ClientError, NodeUnreachable


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start(tmp_path_factory.mktemp("source") / "data") as node:
        yield node


@pytest.fixture(scope="module")
def made(source: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 documents; then 30 new versions and 20 deletions."""
    directory = tmp_path_factory.mktemp("made") / "b"
    store(source, numbered(200))
    backup(access_to(source), directory, engine=HERE, groups=4)
    store(source, numbered(30, value="new"))
    remove(source, *[b"key-%d" % n for n in range(100, 120)])
    backup(access_to(source), directory, engine=HERE)
    return directory


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node with another number of vBuckets."""
    with start(tmp_path_factory.mktemp("other") / "data", vbuckets=4) as node:
        yield node


@pytest.fixture
def target(other: ServerProcess) -> ServerProcess:
    flush(other)
    return other


def again(directory: Path, target: ServerProcess, **options: Any) -> RestoreReport:
    return restore(directory, access_to(target), **{"engine": HERE, **options})


def test_a_node_with_another_number_of_vbuckets_gets_all_of_it(
    made: Path, source: ServerProcess, target: ServerProcess
) -> None:
    report = again(made, target)
    assert states(target) == states(source)
    assert report.complete
    assert (report.written.rows, report.written.applied, report.at) == (200, 200, 1)


def test_the_same_restore_again_applies_nothing(made: Path, target: ServerProcess) -> None:
    again(made, target)
    before = states(target)
    report = again(made, target)
    assert (report.written.applied, report.written.conflicts) == (0, 200)
    assert report.complete
    assert states(target) == before


def test_an_earlier_increment_is_an_earlier_state(made: Path, target: ServerProcess) -> None:
    report = again(made, target, at=0)
    assert report.at == 0
    assert contents(target) == numbered(200)


def test_going_on_from_an_earlier_state_brings_the_deletions(
    made: Path, source: ServerProcess, target: ServerProcess
) -> None:
    again(made, target, at=0)
    report = again(made, target)
    assert (report.written.applied, report.written.conflicts) == (50, 150)
    assert states(target) == states(source)


def newer_and_older(target: ServerProcess) -> None:
    """A version of one document that wins over the backup's, and one that loses."""
    with KvClient(str(target.upr)) as kv:
        kv.set_with_meta(b"key-50", b"newer", Meta(0, 0, 9, 9_000))
        kv.set_with_meta(b"key-51", b"older", Meta(0, 0, 1, 1))
        kv.set_with_meta(b"mine", b"stays", Meta(0, 0, 1, 1))


def test_newer_versions_of_the_target_win(made: Path, target: ServerProcess) -> None:
    newer_and_older(target)
    report = again(made, target)
    found = contents(target)
    assert (found[b"key-50"], found[b"key-51"], found[b"mine"]) == (b"newer", b"value-51", b"stays")
    assert (report.written.applied, report.written.conflicts) == (199, 1)
    assert report.complete, "the target has nothing that is older than the backup's"
    assert report.check is not None
    assert (report.check.differ, report.check.only_b, report.check.behind) == (1, 1, 0)
    assert report.superseded == 1
    assert "--force" in report.summary()


def test_with_force_the_backup_wins_by_a_version_that_wins_everywhere(
    made: Path, source: ServerProcess, target: ServerProcess
) -> None:
    newer_and_older(target)
    report = again(made, target, force=True)
    found = contents(target)
    assert (found[b"key-50"], found[b"key-51"], found[b"mine"]) == (
        b"value-50",
        b"value-51",
        b"stays",
    )
    assert (report.written.applied, report.written.conflicts, report.overwritten) == (200, 0, 1)
    assert (report.complete, report.superseded) == (True, 0)
    assert documents(target)[b"key-50"].rev > 9, "or it would lose in every other cluster"
    assert documents(target)[b"key-51"].rev == documents(source)[b"key-51"].rev
    once_more = again(made, target, force=True)
    assert (once_more.written.applied, once_more.overwritten) == (0, 0)
    assert again(made, target).superseded == 0, "the same contents are no difference"


def accident(target: ServerProcess) -> None:
    """Of what was backed up, two documents are deleted, three overwritten, one comes back."""
    with KvClient(str(target.upr)) as kv:
        kv.delete_many([b"key-1", b"key-2"])
        kv.set_many(dict.fromkeys([b"key-3", b"key-4", b"key-50", b"key-105"], b"oops"))


@pytest.mark.parametrize("force", [False, True])
def test_a_dry_run_after_an_accident_tells_what_the_run_then_does(
    made: Path, source: ServerProcess, target: ServerProcess, force: bool
) -> None:
    again(made, target)
    accident(target)
    with KvClient(str(target.upr)) as kv:
        kv.set_with_meta(b"key-60", b"older", Meta(0, 0, 0, 1), force=True)
    before = states(target)
    told = again(made, target, force=force, dry_run=True)
    assert states(target) == before
    done = again(made, target, force=force)
    for report in (told, done):
        assert report.written.balanced
        assert report.written.rows == 200
    assert told.written.applied == done.written.applied == (7 if force else 1)
    assert told.overwritten == done.overwritten == (6 if force else 0)
    assert told.superseded == done.superseded == (0 if force else 5)
    assert done.check is not None
    assert (done.check.deleted, done.check.revived) == ((0, 0) if force else (2, 1))
    assert (contents(target) == contents(source)) is force


def test_a_restore_after_an_accident_names_its_remedy_and_ends_with_1(
    made: Path, target: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    again(made, target)
    accident(target)
    how = ("--node", str(target.upr), "--parallelism", "1")
    for dry in ((), ("--dry-run",)):
        assert run(["restore", str(made), *how, *dry]) == 1
        out, err = capsys.readouterr()
        assert "5 documents of the backup are newer at the nodes (3 changed and 2 deleted" in out
        assert err.startswith("uprmc: UPRMC_DIFFERENT the nodes ")
        assert err.endswith("--force has the backup win\n")
    assert run(["restore", str(made), *how, "--force"]) == 0
    assert run(["restore", str(made), *how]) == 0


def test_vbuckets_that_the_backup_does_not_have_are_refused(
    made: Path, target: ServerProcess
) -> None:
    for none in ([], [2, 99]):
        with pytest.raises(BadOption, match="is not in"):
            again(made, target, vbuckets=none)


def test_a_prefix_that_no_key_has_is_said(made: Path, target: ServerProcess) -> None:
    assert (
        "no key of the backup begins with 'kye'" in again(made, target, key_prefix="kye").summary()
    )


def test_what_is_missing_afterwards_is_told(
    made: Path, target: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = restoring.restore_group
    monkeypatch.setattr(
        restoring, "restore_group", lambda task: kept(task) if task.group else TaskReport()
    )
    report = again(made, target)
    assert not report.complete
    assert report.check is not None
    assert report.check.only_a == report.check.behind > 0
    assert f"{report.check.only_a} only in backup" in report.summary()


def test_upsert_makes_new_versions(
    made: Path, source: ServerProcess, target: ServerProcess
) -> None:
    store(target, {b"key-105": b"deleted by the backup"})
    report = again(made, target, mode="upsert")
    assert contents(target) == contents(source)
    assert report.complete
    assert {key: state.cas for key, state in documents(target).items()} != (
        {key: state.cas for key, state in documents(source).items()}
    )


def test_a_dry_run_counts_and_writes_nothing(made: Path, target: ServerProcess) -> None:
    report = again(made, target, dry_run=True)
    assert (report.written.rows, report.written.applied, report.written.dry_run) == (200, 200, True)
    assert report.check is not None
    assert report.check.only_a == 180
    assert states(target) == {}


def test_only_keys_that_begin_so(made: Path, target: ServerProcess) -> None:
    report = again(made, target, key_prefix="key-1")
    assert report.complete
    assert contents(target) == {
        key: value
        for key, value in {**numbered(200), **numbered(30, value="new")}.items()
        if key.startswith(b"key-1") and key not in [b"key-%d" % n for n in range(100, 120)]
    }


def test_only_some_vbuckets(made: Path, source: ServerProcess, target: ServerProcess) -> None:
    report = again(made, target, vbuckets=[2, 9])
    with KvClient(str(source.upr)) as kv:
        wanted = {key: s for key, s in states(source).items() if kv.vbucket_of(key) in (2, 9)}
    assert states(target) == wanted
    assert report.complete
    assert report.groups == 2


def test_several_processes_do_the_same(
    made: Path, source: ServerProcess, target: ServerProcess
) -> None:
    assert again(made, target, engine=LocalEngine(2)).complete
    assert states(target) == states(source)


# --- interruptions --------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def interrupted(directory: Path, target: ServerProcess, state: Path, **options: Any) -> None:
    """Restore two of the four groups."""

    def killed(step: Step) -> None:
        if (step.what, step.done) == ("restoring", 2):
            raise Killed

    with pytest.raises(Killed):
        again(directory, target, state=state, progress=killed, **options)


def test_a_restore_that_was_interrupted_goes_on(
    made: Path, source: ServerProcess, target: ServerProcess, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    interrupted(made, target, state)
    assert 0 < len(states(target)) < 200
    report = again(made, target, state=state)
    assert (report.groups, report.resumed) == (4, 2)
    assert (report.written.rows, report.written.applied) == (200, 200)
    assert states(target) == states(source)
    assert not state.exists(), "the target may be emptied and filled again"


@pytest.mark.parametrize("step", ["raise_floors", "verify"])
def test_the_journal_stays_until_the_target_was_compared(
    made: Path,
    source: ServerProcess,
    target: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    state = tmp_path / "state.json"
    with monkeypatch.context() as patch:
        patch.setattr(restoring, step, killed)
        with pytest.raises(Killed):
            again(made, target, state=state)
    assert state.exists()
    report = again(made, target, state=state)
    assert (report.groups, report.resumed, report.complete) == (4, 4, True)
    assert not state.exists()


def test_a_state_of_other_work_is_refused(
    made: Path, target: ServerProcess, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    interrupted(made, target, state)
    for other_work in ({"at": 0}, {"force": True}, {"key_prefix": "x"}, {"vbuckets": [1]}):
        with pytest.raises(BadFile, match="belongs to another restore"):
            again(made, target, state=state, **other_work)
    state.write_text(json.dumps({"work": {}, "done": 5}) + "\n")
    with pytest.raises(BadFile, match="is no journal of a restore"):
        again(made, target, state=state)


@pytest.mark.crash
def test_a_node_that_is_killed_in_the_middle_gets_the_rest_later(
    made: Path, source: ServerProcess, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    with start(tmp_path / "data") as node:

        def kill(step: Step) -> None:
            if (step.what, step.done) == ("restoring", 1):
                node.kill()

        impatient = Access((str(node.upr),), retries=0)
        options = WriteOptions(impatient, retry_deadline_s=0.1)
        with pytest.raises(ClientError):
            restore(made, impatient, engine=HERE, state=state, options=options, progress=kill)
    with start(tmp_path / "data") as node:
        # what the killed node had not written to its disk is sent again, because all of it is
        assert again(made, node).complete
        assert states(node) == states(source)


@pytest.mark.crash
def test_a_node_that_restarts_in_the_middle_is_waited_for(
    made: Path, source: ServerProcess, tmp_path: Path
) -> None:
    with start(tmp_path / "data") as node, ExitStack() as stack:
        place = str(node.upr)
        started: list[ServerProcess] = []

        def start_again() -> None:
            started.append(stack.enter_context(start(tmp_path / "data", "--upr", place)))

        def restart(step: Step) -> None:
            if (step.what, step.done) == ("restoring", 1) and not timer.is_alive():
                node.kill()
                timer.start()

        timer = threading.Timer(0.5, start_again)
        try:
            report = restore(made, Access((place,), retries=0), engine=HERE, progress=restart)
        finally:
            timer.join()
        assert report.complete
        assert states(started[0]) == states(source)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"mode": "insert"}, {"mode": "upsert", "force": True}, {"rate": -1}]
)
def test_options_that_make_no_sense_are_named(
    made: Path, target: ServerProcess, options: dict[str, Any]
) -> None:
    with pytest.raises(BadOption):
        again(made, target, **options)
    assert states(target) == {}


def test_a_user_who_may_not_compare_is_refused_before_anything_is_written(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users, secret = tmp_path / "users.json", tmp_path / "secret"
    secret.write_text("a password")
    for name, roles in (("writer", "replicate"), ("restorer", "replicate,stream")):
        add = ("user", "add", name, "--role", roles, "--password-file", str(secret))
        assert run([*add, "--users", str(users)]) == 0
    with start(tmp_path / "data", "--set", f"server.users={users}") as node:
        how = ("--node", str(node.upr), "--password-file", str(secret), "--parallelism", "1")
        assert run(["restore", str(made), *how, "--user", "writer"]) == 1
        assert "refuses the lease: Not authorized" in capsys.readouterr().err
        assert run(["restore", str(made), *how, "--user", "restorer"]) == 0
        assert "200 rows, 200 written" in capsys.readouterr().out


def test_an_unreachable_target_is_told(made: Path) -> None:
    nobody = Access(("127.0.0.1:1",), retries=0)
    with pytest.raises(NodeUnreachable):
        restore(made, nobody, engine=HERE)


def test_what_a_node_with_a_wrong_clock_has_written_is_restored(
    target: ServerProcess, tmp_path: Path
) -> None:
    """Its CAS is 30 days ahead of every clock, which a node refuses from others."""
    cas = (int(time.time()) + 30 * 24 * 3_600) * 1_000_000_000
    with KvClient(str(target.upr)) as kv:
        kv.set_with_meta(b"ahead", b"v", Meta(0, 0, 1, cas), force=True)
        with pytest.raises(InvalidArguments):
            kv.set_with_meta(b"refused", b"v", Meta(0, 0, 1, cas))
    before = states(target)
    backup(access_to(target), tmp_path / "b", engine=HERE)
    flush(target)
    assert again(tmp_path / "b", target).complete
    assert states(target) == before
