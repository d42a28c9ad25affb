"""``uprmc export`` from the outside: every change once, however it is stopped."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from interop.server_process import ServerProcess
from tests.bulk.cli_run import uprmc_struck
from tests.bulk.here import numbered, put
from uprmc.cli.main import run


def fed(directory: Path) -> list[dict[str, Any]]:
    """Return all rows of the files of a feed."""
    return [
        json.loads(line)
        for path in sorted(directory.glob("[!._]*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def command(server: ServerProcess, tmp_path: Path, *more: str) -> list[str]:
    places = [str(tmp_path / "changes"), "--checkpoint", str(tmp_path / "checkpoint")]
    local = ["--engine", "local", "--parallelism", "1", "--format", "jsonl"]
    return ["export", *places, *local, "--node", str(server.upr), *more]


def test_what_there_is_now_comes_once_and_what_is_new_the_next_time(
    fresh_node: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(fresh_node, numbered(20))
    words = command(fresh_node, tmp_path, "--json")
    assert run([*words]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 20
    put(fresh_node, {b"more": b"x"})
    assert run([*words]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 1
    rows = fed(tmp_path / "changes")
    assert len(rows) == 21
    assert len({(row["_vb"], row["_seq"]) for row in rows}) == 21


@pytest.mark.parametrize(("struck_by", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_feed_that_looks_again_and_again_ends_in_order(
    fresh_node: ServerProcess, tmp_path: Path, struck_by: signal.Signals, code: int
) -> None:
    put(fresh_node, numbered(20))
    words = command(fresh_node, tmp_path, "--trigger", "0.1s")
    ended = uprmc_struck(
        *words, when=lambda: len(fed(tmp_path / "changes")) == 20, signals=(struck_by,)
    )
    assert ended.code == code, ended.err
    if code:
        assert ended.err == ("uprmc: interrupted: the same command goes on where it stopped\n")
    else:
        assert ended.out.startswith("20 changes")
    put(fresh_node, {b"more": b"x"})
    assert run([*command(fresh_node, tmp_path)]) == 0
    assert len(fed(tmp_path / "changes")) == 21


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--trigger", "soon"), "say available-now or seconds"),
        (("--on-rolback", "fail"), "--on-rollback"),
        (("--columns", "key,valu"), "UPRMC_OPTION"),
        (("--start", "yesterday"), "UPRMC_"),
    ],
)
def test_a_wrong_option_is_one_line(
    node: ServerProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    says: str,
) -> None:
    assert run([*command(node, tmp_path, *more)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("uprmc: UPRMC_")
    assert says in err
    assert err.count("\n") == 1
