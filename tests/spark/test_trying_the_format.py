"""``make spark`` tries the format; what it says follows what a program elsewhere has got."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest

from uprmc.spark import session

BACKEND = Path(__file__).parents[2] / "tools" / "build_backend.py"


@pytest.mark.parametrize(
    ("out", "err", "code", "said"),
    [
        ("found\n", "WARN something\n", 0, 'format("uprmc") works'),
        ("[DATA_SOURCE_NOT_FOUND] uprmc\n", "WARN\n", 1, "does not work: [DATA_SOURCE_NOT_FOUND]"),
        ("", "no memory\n", 1, "does not work: no memory; install uprmc again"),
        ("", "", 1, "does not work: Spark said nothing"),
    ],
)
def test_what_a_trial_comes_to(
    monkeypatch: pytest.MonkeyPatch, out: str, err: str, code: int, said: str
) -> None:
    pytest.importorskip("pyspark")
    asked: list[dict[str, Any]] = []

    def ran(command: list[str], **how: Any) -> SimpleNamespace:
        asked.append(how)
        assert command[:2] == [sys.executable, "-P"]
        return SimpleNamespace(stdout=out, stderr=err)

    monkeypatch.setattr(session, "find_java", lambda: "/usr/bin/java")
    monkeypatch.setattr(subprocess, "run", ran)
    text, exit_code = session._told()
    assert (said in text, exit_code) == (True, code)
    assert "uprmc-" in asked[0]["cwd"]  # not in a source tree, where everything is found


def test_an_editable_installation_can_be_listed_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("setuptools")
    backend = run_path(str(BACKEND))
    given: list[Any] = []
    monkeypatch.setattr(backend["build_meta"], "build_editable", lambda *all_: given.append(all_))
    backend["build_editable"]("wheels")
    backend["build_editable"]("wheels", {"editable_mode": "lenient"})
    assert [each[1] for each in given] == [
        {"editable_mode": "compat"},
        {"editable_mode": "lenient"},
    ]
