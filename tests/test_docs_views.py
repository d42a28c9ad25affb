"""The guide to views: its session is typed at a real node, and prints what the page shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from urllib.parse import quote

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.views import Views
from tests.scenarios.story import parse, same
from uprmc.cli.main import run

PAGE = (Path(__file__).parent.parent / "docs" / "views.md").read_text(encoding="utf-8")
USUAL_NODE = "127.0.0.1:11210"

_BLOCK = re.compile(r"^```(console|python|json)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SERVE = re.compile(r"\$ uprmc serve --data (\S+) (.*) &\n")
_CURL = re.compile(r"^curl 'http://127.0.0.1:8092/default/_design/(\w+)/_view/(\w+)\?(.*)'$", re.M)


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
        server.stop()


@pytest.mark.acceptance("I01", "I02")
def test_the_session_about_views_prints_what_is_shown(node: ServerProcess, tmp_path: Path) -> None:
    for kind, file, text in _BLOCK.findall(PAGE):
        if kind != "console":
            if file:
                (tmp_path / file).write_text(text.replace(USUAL_NODE, str(node.upr)))
            continue
        for step in parse(_SERVE.sub("", text)):
            if step.text:
                printed = [" ".join(line.split()) for line in typed(step.text[2:])]
                assert same(step.expected, printed), (step.text, printed)


def test_the_request_with_curl_gets_groups(node: ServerProcess, tmp_path: Path) -> None:
    """The first two files of the page, then what is asked there."""
    for _, file, text in [block for block in _BLOCK.findall(PAGE) if block[1]]:
        (tmp_path / file).write_text(text.replace(USUAL_NODE, str(node.upr)))
    typed("python fill.py")
    typed("uprmc index put people people.json")
    asked = _CURL.search(PAGE)
    assert asked is not None
    assert node.views is not None
    design, view, options = asked.groups()
    with Views(node.views) as views:
        path = f"/_design/{design}/_view/{view}?{quote(options, safe='=&')}&stale=false"
        answer = views.ask("GET", path)
    assert answer.status == 200, answer
    assert [row["key"] for row in answer.body["rows"]] == [["Berlin"], ["Brno"]]


def test_every_refusal_is_in_the_table() -> None:
    sources = (Path(__file__).parent.parent / "uprmc" / "index").rglob("*.py")
    source = "".join(path.read_text(encoding="utf-8") for path in sources)
    raised = set(re.findall(r'Refused\(\s*(\d{3}), "(\w+)"', source))
    rows = re.findall(r"^\| (\d{3})(?:, \d{3})? \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(raised) == sorted(rows)
