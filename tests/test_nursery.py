"""What is forked by the nursery is as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from interop.nursery import popen

VERSION = [sys.executable, "-m", "uprmc", "--version"]


def run(command: list[str], **options: object) -> tuple[int, str, str]:
    with popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    ) as process:
        out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_it_prints_and_ends_as_a_process_of_its_own() -> None:
    real = subprocess.run(VERSION, capture_output=True, text=True, timeout=30, check=True)
    assert run(VERSION) == (0, real.stdout, real.stderr)
    code, out, err = run([*VERSION[:3], "unheard-of"])
    assert (code, out) == (2, "")
    assert err.startswith("uprmc: ")


def test_environment_and_directory_are_those_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("[engine]\nvbuckets = 'many'\n")
    environment = {**os.environ, "UPRMC_FLUSH_SYNC": "perhaps"}
    code, _, err = run([*VERSION[:3], "serve"], env=environment)
    assert code == 2
    assert "perhaps" in err
    code, _, err = run([*VERSION[:3], "serve", "--config", "node.toml"], cwd=tmp_path)
    assert code == 2
    assert "vbuckets" in err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_test_is_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    serve = [*VERSION[:3], "serve", "--data", str(tmp_path), "--http", "off"]
    places = ["--memcached", "127.0.0.1:0", "--upr", "127.0.0.1:0"]
    with popen([*serve, *places], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert f"pid={process.pid}".encode() in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == (0 if number == signal.SIGTERM else -number)
