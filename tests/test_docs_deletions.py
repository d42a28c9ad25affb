"""The guide about deletions: its session is typed at a real node, and prints what the page shows.

It is the worked case of seed 002: rows at 1570, 215, 2709, 3470 and 541, the purger at 980.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.scenarios.story import parse, same
from uprmc.cli.main import run

PAGE = (Path(__file__).parent.parent / "docs" / "deletions.md").read_text(encoding="utf-8")
USUAL_NODE = "127.0.0.1:11210"

_BLOCK = re.compile(r"^```(console|python)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SERVE = re.compile(r"\$ uprmc serve --data (\S+) (.*) &\n")


def typed(command: str) -> list[str]:
    """Carry out a command of the page; return the lines that it prints."""
    name, *words = shlex.split(command)
    if name == "python":
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, timeout=120, check=False
        )
        return (done.stdout + done.stderr).splitlines()
    assert name == "uprmc", command
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        run(words)
    return printed.getvalue().splitlines()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    begins = _SERVE.search(PAGE)
    assert begins is not None
    monkeypatch.chdir(tmp_path)
    with start_uprmc(tmp_path / begins[1], *shlex.split(begins[2])) as server:
        monkeypatch.setenv("UPRMC_NODE", str(server.upr))
        yield server


@pytest.mark.acceptance("X04", "X08", "X16", "X19")
def test_the_session_about_deletions_prints_what_is_shown(
    node: ServerProcess, tmp_path: Path
) -> None:
    for kind, file, text in _BLOCK.findall(PAGE):
        if kind == "python":
            program = text.replace(USUAL_NODE, str(node.upr))
            assert program != text
            (tmp_path / file).write_text(program)
            continue
        for step in parse(_SERVE.sub("", text)):
            if step.text:
                printed = [" ".join(line.split()) for line in typed(step.text[2:])]
                assert same(step.expected, printed), (step.text, printed)
    told = node.log()
    assert told.count("event.watermark_outpaced") == 2
    assert "from=541 to=980 count=220 exact=true" in told
