"""``uprmc backup``, ``restore`` and ``verify`` from the outside: output and exit codes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.bulk.cli_run import uprmc, uprmc_struck
from tests.bulk.here import changes, numbered, put, remove
from tests.bulk.world import persist
from uprmc.cli.main import run

LOCAL = ("--engine", "local", "--parallelism", "1")


def verb(*words: object) -> int:
    """Run a verb in this process, without workers."""
    return run([*(str(word) for word in words), *LOCAL])


def at(server: ServerProcess) -> tuple[str, str]:
    return "--node", str(server.upr)


def test_versions_keep_their_metadata_through_backup_and_restore(
    fresh_node: ServerProcess, tmp_path: Path
) -> None:
    put(fresh_node, numbered(5), flags=7)
    directory = tmp_path / "backup"
    assert verb("backup", directory, *at(fresh_node)) == 0
    with start_uprmc(tmp_path / "other", "--vbuckets", "64") as other:
        assert verb("restore", directory, *at(other), "--no-check") == 0

        def versions(server: ServerProcess) -> dict[bytes, Any]:
            return {k: (c.cas, c.rev, c.flags, c.value) for k, c in changes(server).items()}

        assert versions(other) == versions(fresh_node)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("backup", "b", "--full", "--incremental"), 2, "contradict"),
        (("backup", "b", "--vbuckets", "3-1"), 2, "UPRMC_OPTION"),
        (("backup", "b", "--kompression", "none"), 2, "--compression"),
        (("backup", "b", "--incremental"), 1, "UPRMC_BACKUP_INCOMPLETE"),
        (("restore", "nothing"), 2, "does not exist"),
        (("restore", "foreign"), 1, "UPRMC_BACKUP_FOREIGN"),
        (("restore", "."), 1, "UPRMC_BACKUP"),
        (("verify", "only-one"), 2, "Missing argument"),
        (("verify", "nothing", "foreign"), 2, "neither HOST:PORT nor a directory"),
        (("verify", "HERE", "HERE", "--by", "colour"), 2, "UPRMC_OPTION"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_its_code_word(
    node: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "photo.jpg").write_text("x")
    monkeypatch.chdir(tmp_path)
    given = [str(node.upr) if word == "HERE" else word for word in words]
    place = () if words[0] == "verify" else at(node)
    assert verb(*given, *place) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.startswith("uprmc: UPRMC_")
    assert err.count("\n") == 1


def test_what_is_compared_is_checked_before_an_engine_is_started(
    node: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = (str(node.upr), str(node.upr))
    assert run(["verify", *sides, "--by", "colour", "--engine", "spark"]) == 2
    assert "by=colour: documents are compared by key, value" in capsys.readouterr().err


def test_a_backup_that_is_interrupted_does_not_exist_and_the_same_command_makes_it(
    fresh_node: ServerProcess, tmp_path: Path
) -> None:
    put(fresh_node, numbered(2_000))
    directory = tmp_path / "backup"
    command = ("backup", str(directory), *at(fresh_node), "--engine", "local", "--groups", "16")
    struck = uprmc_struck(
        *(*command, "--rate", "300"),
        when=lambda: any(directory.rglob("part-*.parquet")),
        signals=(signal.SIGINT,),
    )
    assert struck.code == 130, struck.err
    assert struck.err.startswith("uprmc: interrupted: ")
    assert "the same command" in struck.err
    assert not list(directory.rglob("manifest.json"))
    put(fresh_node, {b"key-1": b"new"})
    again = uprmc(*command, "--json")
    assert again.code == 0, again.err
    manifest = json.loads(again.out)
    assert manifest["totals"]["rows"] == 2_000
    assert len(list(directory.rglob("manifest.json"))) == 1


# --- registration ---------------------------------------------------------------------------------


def rows_of(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> dict[int, dict[str, Any]]:
    """Return the row of each vBucket, there being one at most."""
    capsys.readouterr()
    assert run(["watermarks", "list", "--json", "--node", str(server.upr)]) == 0
    listed = json.loads(capsys.readouterr().out)["vbuckets"]
    assert all(len(each["rows"]) <= 1 for each in listed)
    return {each["vbucket"]: each["rows"][0] for each in listed if each["rows"]}


@pytest.mark.acceptance("X29")
def test_nodes_keep_deletions_until_the_next_increment_has_them_or_the_directory_is_forgotten(
    fresh_node: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "backup"
    put(fresh_node, numbered(100))
    assert verb("backup", directory, *at(fresh_node)) == 0
    name = json.loads((directory / "repo.json").read_text())["id"]
    first = rows_of(fresh_node, capsys)
    assert {(row["id"], row["kind"]) for row in first.values()} == {(name, "backup")}
    assert len(first) == 64
    remove(fresh_node, *numbered(100))
    assert run(["compact", "--wait", "--node", str(fresh_node.upr)]) == 0
    assert verb("backup", directory, *at(fresh_node), "--incremental") == 0
    increment = json.loads(next(directory.glob("*/0001-incr/manifest.json")).read_text())
    assert sum(part["deletes"] for part in increment["vb"].values()) == 100
    assert not any(part["reset"] for part in increment["vb"].values())
    second = rows_of(fresh_node, capsys)
    assert sum(row["watermark"] for row in second.values()) == 200
    persist(fresh_node)
    assert run(["compact", "--wait", "--json", "--node", str(fresh_node.upr)]) == 0
    assert json.loads(capsys.readouterr().out)["dropped"]  # no age keeps them for who is registered
    assert verb("backup", "forget", directory, *at(fresh_node), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"id": name, "vbuckets": [*range(64)]}
    assert rows_of(fresh_node, capsys) == {}
    assert verb("backup", "forget", directory, *at(fresh_node)) == 0
    assert capsys.readouterr().out == f"{name}: no node keeps deletions for it\n"
    assert verb("backup", directory, *at(fresh_node), "--no-register") == 0
    assert rows_of(fresh_node, capsys) == {}


def test_a_directory_that_is_no_backup_cannot_be_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb("backup", "forget", tmp_path) == 1
    assert "UPRMC_BACKUP_FOREIGN" in capsys.readouterr().err
