"""What our processes import that are started by ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import uprmc
from uprmc import children
from uprmc.server.work.index import COMMAND

_TRAP = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\nraise SystemExit(9)\n"

#: What each kind imports early.
_NAMES = ("orjson", "lmdb", "click", "pyarrow", "numpy", "pickle", "twisted", "uprmc")


@pytest.mark.parametrize(
    "words",
    [
        [*COMMAND, "--help"],
        children.command("uprmc.jobs.worker"),
        children.command("uprmc", "serve", "--help"),
    ],
    ids=["index", "worker of a job", "demo"],
)
def test_a_child_imports_nothing_from_where_it_is_started(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _NAMES:
        (tmp_path / f"{name}.py").write_text(_TRAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as if by python -m
    done = subprocess.run(
        words,
        env=children.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert list(tmp_path.glob("*.ran")) == []
    assert done.returncode == 0, done.stderr


def test_a_child_finds_what_its_parent_was_told_to_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(tmp_path)])
    assert str(tmp_path) in children.environment()["PYTHONPATH"].split(os.pathsep)
    assert "" not in children.environment()["PYTHONPATH"].split(os.pathsep)


def test_no_process_is_started_without_it() -> None:
    root = Path(uprmc.__file__).parent
    found = {
        str(path.relative_to(root)): [
            line for line in path.read_text().splitlines() if "sys.executable" in line
        ]
        for path in root.rglob("*.py")
    }
    starts = {
        path: lines for path, lines in found.items() if lines and not path.startswith("spark/")
    }
    assert set(starts) == {"children.py", "index/javascript/process.py"}
    assert all('"-P"' in line for lines in starts.values() for line in lines)
