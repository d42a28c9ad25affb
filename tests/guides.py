"""Guides whose sessions are typed at a real node: how, and what they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.scenarios.story import parse, same
from uprmc.cli.main import run

_PAGES = Path(__file__).parent.parent / "docs"
_USUAL_NODE, _USUAL_HTTP = "127.0.0.1:11210", "127.0.0.1:8091"
_BLOCK = re.compile(
    r"^```(console|python|json|sh)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_PROGRAMS = {"python": sys.executable, "curl": "curl", "sh": "sh"}
_SERVE = re.compile(r"\$ uprmc serve --data (\S+) (.*) &\n")


def page(name: str) -> str:
    """Return the text of a page."""
    return (_PAGES / name).read_text(encoding="utf-8")


def typed(command: str, node: ServerProcess | None = None) -> list[str]:
    """Carry out a command of a page, which may mean a node; return the lines that it prints."""
    if node is not None:
        command = _of_node(command, node)
    name, *words = shlex.split(command)
    if name in _PROGRAMS:
        done = subprocess.run(
            [_PROGRAMS[name], *words], capture_output=True, text=True, timeout=120, check=False
        )
        return (done.stdout + done.stderr).splitlines()
    assert name == "uprmc", command
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        run(words)
    return printed.getvalue().splitlines()


@contextmanager
def node_of(text: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """Start the node that a page starts, in the directory in which its commands are typed."""
    begins = _SERVE.search(text)
    assert begins is not None
    monkeypatch.chdir(here)
    with start_uprmc(here / begins[1], *shlex.split(begins[2])) as server:
        monkeypatch.setenv("UPRMC_NODE", str(server.upr))
        monkeypatch.setenv("UPRMC_TIMEOUT", "60s")  # a busy machine is no reason to give up
        yield server
        server.stop()


def write_files(text: str, node: ServerProcess, here: Path) -> None:
    """Write the files of a page, which name the node that is really there."""
    for _, name, contents in _BLOCK.findall(text):
        if name:
            (here / name).write_text(_of_node(contents, node))


def _of_node(text: str, node: ServerProcess) -> str:
    """Return a text with the addresses of the node that is really there."""
    return text.replace(_USUAL_NODE, str(node.upr)).replace(_USUAL_HTTP, str(node.http))


def type_session(text: str, node: ServerProcess, here: Path) -> None:
    """Type all commands of a page, and compare what they print with what it shows."""
    write_files(text, node, here)
    for kind, _, commands in _BLOCK.findall(text):
        if kind != "console":
            continue
        for step in parse(_SERVE.sub("", commands)):
            if step.text:
                printed = [" ".join(line.split()) for line in typed(step.text[2:], node)]
                assert same(step.expected, printed), (step.text, printed)
