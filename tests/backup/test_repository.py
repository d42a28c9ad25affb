"""The directory of a backup: whatever is missing, torn, exchanged or of elsewhere is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.server_process import ServerProcess
from tests.bulk.here import contents, numbered
from tests.bulk.world import HERE, access_to, start, store
from uprmc.backup.backups import backup
from uprmc.backup.checking import check_increments
from uprmc.backup.manifest import _digest_of
from uprmc.backup.repository import RUN_FILE, Repository
from uprmc.backup.restoring import restore
from uprmc.backup.verifying import verify
from uprmc.cli.main import run
from uprmc.columnar.errors import BackupBusy, BackupDamaged, BackupForeign, BackupIncomplete
from uprmc.jobs.progress import unseen
from uprmc.remote.errors import ClientError
from uprmc.spark.offsets import starting_at

FULL, FIRST, SECOND = "chain-0001/0000-full", "chain-0001/0001-incr", "chain-0001/0002-incr"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start(tmp_path_factory.mktemp("node") / "data", vbuckets=4) as node:
        yield node


@pytest.fixture(scope="module")
def made(node: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain of three, and another directory of the same node beside it."""
    home = tmp_path_factory.mktemp("made")
    for number in range(3):
        store(node, numbered(40, value=f"value{number}"))
        backup(access_to(node), home / "one", engine=HERE, groups=2)
        backup(access_to(node), home / "other", engine=HERE, groups=2)
    return home


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start(tmp_path_factory.mktemp("empty") / "data", vbuckets=4) as node:
        yield node


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "one", tmp_path / "b")
    return tmp_path / "b"


def files_of(directory: Path, increment: str) -> list[Path]:
    return sorted((directory / increment).rglob("*.parquet"))


def assert_refused(
    directory: Path, target: ServerProcess, error: type[ClientError], words: str
) -> None:
    """A restore says so in one line, and has written nothing."""
    with pytest.raises(error, match=words) as caught:
        restore(directory, access_to(target), engine=HERE)
    assert str(caught.value).startswith(error.code)
    assert "\n" not in str(caught.value)
    assert contents(target) == {}


def test_a_directory_that_is_whole_is_read(directory: Path) -> None:
    chain = Repository(directory).chain()
    assert [each.manifest.number for each in chain.increments] == [0, 1, 2]
    assert [each.manifest.number for each in chain.until(1)] == [0, 1]


def test_a_torn_file(directory: Path, empty: ServerProcess) -> None:
    file = files_of(directory, FIRST)[0]
    file.write_bytes(file.read_bytes()[:-1])
    assert_refused(directory, empty, BackupDamaged, f"{file} has .* bytes, not")


def test_exchanged_files(directory: Path, empty: ServerProcess) -> None:
    one, other = files_of(directory, FULL)
    one.rename(directory / "x")
    other.rename(one)
    (directory / "x").rename(other)
    assert_refused(directory, empty, BackupDamaged, r"\(and 1 more\)")


def test_a_missing_file(directory: Path, empty: ServerProcess) -> None:
    file = files_of(directory, SECOND)[0]
    file.unlink()
    assert_refused(directory, empty, BackupDamaged, f"{file} is missing")


def test_a_torn_manifest(directory: Path, empty: ServerProcess) -> None:
    file = directory / FIRST / "manifest.json"
    file.write_text(file.read_text()[:-20])
    assert_refused(directory, empty, BackupDamaged, str(file))


def test_a_manifest_of_another_directory(directory: Path, made: Path, empty: ServerProcess) -> None:
    shutil.copy(made / "other" / SECOND / "manifest.json", directory / SECOND / "manifest.json")
    assert_refused(directory, empty, BackupForeign, "belongs to another backup directory")


def test_a_manifest_of_another_chain(
    directory: Path, node: ServerProcess, empty: ServerProcess
) -> None:
    backup(access_to(node), directory, kind="full", engine=HERE)
    backup(access_to(node), directory, engine=HERE)
    shutil.rmtree(directory / FIRST)
    shutil.copytree(directory / "chain-0002/0001-incr", directory / FIRST)
    with pytest.raises(BackupForeign, match="belongs to another chain"):
        restore(directory, access_to(empty), chain="chain-0001", engine=HERE)


def test_a_manifest_in_the_wrong_place(directory: Path, empty: ServerProcess) -> None:
    shutil.rmtree(directory / SECOND)
    shutil.copytree(directory / FIRST, directory / SECOND)
    assert_refused(directory, empty, BackupForeign, "is of increment 1, not 2")


def test_a_parent_that_was_made_again(
    directory: Path, node: ServerProcess, empty: ServerProcess
) -> None:
    shutil.move(directory / SECOND, directory / "second")
    shutil.rmtree(directory / FIRST)
    backup(access_to(node), directory, engine=HERE)
    shutil.move(directory / "second", directory / SECOND)
    assert_refused(directory, empty, BackupForeign, "was added to another increment 1")


def test_a_missing_increment(directory: Path, empty: ServerProcess) -> None:
    shutil.rmtree(directory / FIRST)
    assert_refused(directory, empty, BackupIncomplete, "increment 1 is missing, 2 is there")


def test_a_missing_full_backup(directory: Path, empty: ServerProcess) -> None:
    shutil.rmtree(directory / FULL)
    assert_refused(directory, empty, BackupIncomplete, "increment 0 is missing, 1 is there")


@pytest.mark.parametrize("increment", [FULL, FIRST, SECOND])
def test_a_manifest_that_is_gone(directory: Path, empty: ServerProcess, increment: str) -> None:
    (directory / increment / "manifest.json").unlink()
    assert_refused(directory, empty, BackupIncomplete, "manifest")


def test_what_was_never_finished_is_not_there(directory: Path) -> None:
    third = directory / "chain-0001/0003-incr"
    third.mkdir()
    (third / RUN_FILE).write_text("{}")
    repository = Repository(directory)
    assert len(repository.chain().increments) == 3
    assert repository.unfinished() == [third]
    repository.remove_unfinished()
    assert not third.exists()


def test_what_is_not_ours_is_never_removed(directory: Path) -> None:
    third = directory / "chain-0001/0003-incr"
    third.mkdir()
    (third / "thesis.txt").write_text("precious")
    repository = Repository(directory)
    repository.remove_unfinished()
    assert (third / "thesis.txt").exists()
    with pytest.raises(BackupIncomplete, match=r"0003-incr has no manifest\.json"):
        repository.chain()


def test_a_finished_increment_stays_though_its_run_file_was_left(directory: Path) -> None:
    (directory / SECOND / RUN_FILE).write_text("{}")
    Repository(directory).remove_unfinished()
    assert (directory / SECOND / "manifest.json").exists()
    assert not (directory / SECOND / RUN_FILE).exists()


def test_a_chain_that_has_nothing_gives_way_to_the_one_before(directory: Path) -> None:
    (directory / "chain-0002/0000-full").mkdir(parents=True)
    (directory / "chain-0002/0000-full" / RUN_FILE).write_text("{}")
    repository = Repository(directory)
    assert repository.chain().name == "chain-0001"
    with pytest.raises(BackupIncomplete, match="never finished"):
        repository.chain("chain-0002")
    assert repository.next_chain_name() == "chain-0003"
    repository.remove_unfinished()
    assert repository.chain_names() == ["chain-0001"]


def test_an_increment_or_chain_that_is_not_there(directory: Path) -> None:
    repository = Repository(directory)
    for number in (3, -1):
        with pytest.raises(BackupIncomplete, match=f"no increment {number}: it has 0 to 2"):
            repository.chain().until(number)
    with pytest.raises(BackupIncomplete, match="it has chain-0001"):
        repository.chain("chain-0007")


SAID = '{"format": 1, "kind": "uprmc backup", "id": %s}'


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', SAID % 0, SAID % "[]"])
def test_a_torn_repo_file(directory: Path, text: str) -> None:
    (directory / "repo.json").write_text(text)
    with pytest.raises(BackupDamaged, match=r"repo\.json"):
        Repository(directory)


def test_a_repo_file_of_the_future(directory: Path) -> None:
    (directory / "repo.json").write_text('{"format": 9, "kind": "uprmc backup", "id": "x"}')
    with pytest.raises(BackupForeign, match="format 9"):
        Repository(directory)


@pytest.mark.parametrize("kind", ["other", "", None, ["uprmc backup"]])
def test_a_repo_file_of_another_program(directory: Path, kind: object) -> None:
    said = {"format": 1, "kind": kind, "id": "x"}
    (directory / "repo.json").write_text(json.dumps(said))
    with pytest.raises(BackupForeign, match="is no backup"):
        Repository(directory)


@pytest.mark.parametrize("name", ["", "nothing/here", "file"])
def test_a_directory_that_is_no_backup(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BackupForeign, match="is no backup"):
        Repository(tmp_path / name)


def test_a_directory_has_one_writer(tmp_path: Path) -> None:
    first, second = Repository.made(tmp_path / "b"), Repository.made(tmp_path / "b")
    with first.locked(), pytest.raises(BackupBusy), second.locked():
        pass
    with second.locked():
        pass


# --- manifests that were changed and sealed again -------------------------------------------------


Plain = dict[str, Any]


def a_vbucket_with_rows(plain: Plain) -> Plain:
    found: Plain = next(part for _, part in sorted(plain["vb"].items()) if part["rows"])
    return found


def without_a_vbucket(plain: Plain) -> None:
    number, part = next(each for each in sorted(plain["vb"].items()) if each[1]["rows"])
    del plain["vb"][number]
    plain["files"][0]["rows"] -= part["rows"]


def without_a_file(plain: Plain) -> None:
    gone = plain["files"].pop()
    for number, part in plain["vb"].items():
        if int(number) * 2 // 4 == gone["group"]:
            part |= {"rows": 0, "deletes": 0, "digest": f"0:{0:016x}"}


def fewer_rows(plain: Plain) -> None:
    part = a_vbucket_with_rows(plain)
    part |= {"rows": part["rows"] - 1, "digest": f"{part['rows'] - 1}:{0:016x}"}
    plain["files"][0]["rows"] -= 1


def ends_earlier(plain: Plain) -> None:
    part = a_vbucket_with_rows(plain)
    part["end"] = part["start"] + 1


def begins_later(plain: Plain) -> None:
    part = a_vbucket_with_rows(plain)
    part["start"] = part["end"]


def reset(plain: Plain) -> None:
    a_vbucket_with_rows(plain)["reset"] = True


def cut(plain: Plain) -> None:
    part = a_vbucket_with_rows(plain)
    part["cut"] = part["start"] = 1


def other_groups(plain: Plain) -> None:
    plain["options"]["groups"] = 4


def other_group(plain: Plain) -> None:
    plain["files"][0]["group"], plain["files"][1]["group"] = 1, 0


def more_deletions(plain: Plain) -> None:
    a_vbucket_with_rows(plain)["deletes"] += 1


def twice_the_same_file(plain: Plain) -> None:
    plain["files"][1] = plain["files"][0]


def no_groups(plain: Plain) -> None:
    plain["options"]["groups"] = 0


def a_vbucket_too_many(plain: Plain) -> None:
    plain["vb"]["70000"] = plain["vb"]["0"] | {"rows": 0, "digest": f"0:{0:016x}", "deletes": 0}


CHANGES: list[Callable[[Plain], None]] = [
    *(without_a_vbucket, without_a_file, fewer_rows, ends_earlier, begins_later, reset, cut),
    *(other_groups, other_group, more_deletions, twice_the_same_file, no_groups),
    a_vbucket_too_many,
]


def seal_again(directory: Path, name: str, change: Callable[[Plain], None]) -> None:
    """Change a manifest, and make digests right, its own and those of the increments behind it."""
    digest = None
    for each in (FULL, FIRST, SECOND):
        file = directory / each / "manifest.json"
        plain = json.loads(file.read_text())
        if each == name:
            change(plain)
            for total in ("rows", "deletes", "bytes"):
                plain["totals"][total] = sum(part[total] for part in plain["vb"].values())
            plain["totals"]["file_bytes"] = sum(each["bytes"] for each in plain["files"])
        if digest is not None:
            plain["parent_digest"] = digest
        digest = plain["digest"] = _digest_of(plain)
        file.write_text(json.dumps(plain))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("increment", [FULL, SECOND])
def test_a_manifest_that_was_sealed_again_is_no_reason_to_leave_rows_out(
    directory: Path, empty: ServerProcess, increment: str, change: Callable[[Plain], None]
) -> None:
    seal_again(directory, increment, change)
    assert_refused(directory, empty, BackupDamaged, "chain-0001/000")


@pytest.mark.parametrize("change", CHANGES)
def test_no_verb_believes_a_manifest_that_was_sealed_again(
    directory: Path,
    node: ServerProcess,
    empty: ServerProcess,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Plain], None],
) -> None:
    seal_again(directory, FIRST, change)
    assert_refused(directory, empty, BackupDamaged, "chain-0001/000")
    with pytest.raises(BackupDamaged, match="chain-0001/000"):
        verify(access_to(node), directory, engine=HERE)
    with pytest.raises(BackupDamaged, match="chain-0001/000"):
        backup(access_to(node), directory, engine=HERE)
    assert run(["backup", "list", str(directory), "--parallelism", "1"]) == 1
    assert "damaged" in capsys.readouterr().out


@pytest.mark.parametrize("increment", [FULL, FIRST, SECOND])
def test_whoever_reads_a_backup_looks_at_its_files(
    directory: Path,
    node: ServerProcess,
    empty: ServerProcess,
    capsys: pytest.CaptureFixture[str],
    increment: str,
) -> None:
    file = files_of(directory, increment)[0]
    found = bytearray(file.read_bytes())
    found[len(found) // 2] ^= 1
    file.write_bytes(found)
    assert_refused(directory, empty, BackupDamaged, f"{file} is not the file .* SHA-256")
    for sides in ((access_to(node), directory), (directory, access_to(node))):
        with pytest.raises(BackupDamaged, match="SHA-256"):
            verify(*sides, engine=HERE)
    for dry_run in (True, False):
        with pytest.raises(BackupDamaged, match="SHA-256"):
            backup(access_to(node), directory, engine=HERE, dry_run=dry_run)
    assert run(["backup", "list", str(directory), "--parallelism", "1"]) == 1
    out, err = capsys.readouterr()
    assert "SHA-256 differs" in out
    assert err == "uprmc: UPRMC_BACKUP_DAMAGED chain-0001 cannot be restored\n"
    assert run(["backup", "list", str(directory), "--parallelism", "1", "--no-check"]) == 0
    assert "not read" in capsys.readouterr().out
    assert backup(access_to(node), directory, engine=HERE, check=False).number == 3


def test_a_stream_does_not_begin_where_a_changed_manifest_says(directory: Path) -> None:
    seal_again(directory, SECOND, cut)
    with pytest.raises(BackupDamaged, match="by its failover log"):
        starting_at(str(directory / SECOND), 4)


def test_a_directory_is_listed_with_what_was_never_finished(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / SECOND / "manifest.json").rename(directory / SECOND / RUN_FILE)
    assert run(["backup", "list", str(directory), "--parallelism", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["number"] for each in found["increments"]] == [0, 1]
    assert [Path(each).name for each in found["unfinished"]] == ["0002-incr"]
    assert run(["backup", "list", str(directory / FULL), "--parallelism", "1"]) == 1
    assert "UPRMC_BACKUP_FOREIGN" in capsys.readouterr().err


def test_what_an_attempt_left_too_late_is_no_damage_and_rows_of_others_are(
    directory: Path, made: Path, empty: ServerProcess
) -> None:
    late = directory / FULL / "data" / "vbg=0000" / "part-late.parquet"
    shutil.copy(files_of(directory, FULL)[0], late)
    check_increments(Repository(directory).chain().increments, HERE, unseen)
    shutil.copy(files_of(directory, FIRST)[0], late)
    assert_refused(directory, empty, BackupDamaged, "does not name .*part-late")
