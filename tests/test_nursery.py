"""What is forked by the nursery is as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from interop.nursery import popen, run

VERSION = [sys.executable, "-m", "uprmc", "--version"]


def test_it_prints_and_ends_as_a_process_of_its_own() -> None:
    real = subprocess.run(VERSION, capture_output=True, text=True, timeout=30, check=True)
    assert run(VERSION, text=True) == (0, real.stdout, real.stderr)
    code, out, err = run([*VERSION[:3], "unheard-of"], text=True)
    assert (code, out) == (2, "")
    assert err.startswith("uprmc: ")


def test_environment_and_directory_are_those_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("[engine]\nvbuckets = 'many'\n")
    environment = {**os.environ, "UPRMC_FLUSH_SYNC": "perhaps"}
    code, _, err = run([*VERSION[:3], "serve"], env=environment, text=True)
    assert code == 2
    assert "perhaps" in err
    code, _, err = run([*VERSION[:3], "serve", "--config", "node.toml"], cwd=tmp_path, text=True)
    assert code == 2
    assert "vbuckets" in err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_test_is_its_parent(number: signal.Signals, tmp_path: Path) -> None:
    serve = [*VERSION[:3], "serve", "--data", str(tmp_path), "--http", "off", "--views", "off"]
    places = ["--memcached", "127.0.0.1:0", "--upr", "127.0.0.1:0"]
    with popen([*serve, *places], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert f"pid={process.pid}".encode() in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == (0 if number == signal.SIGTERM else -number)


@pytest.mark.parametrize("how", ["-c", "script"])
def test_programs_are_what_python_calls_main(how: str, tmp_path: Path) -> None:
    program = "import sys; print(__name__, sys.argv[1:], sys.stdin.read()); sys.exit(3)"
    (tmp_path / "program.py").write_text(program)
    words = ["-c", program] if how == "-c" else [str(tmp_path / "program.py")]
    command = [sys.executable, *words, "a b"]
    with popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate("told", timeout=30)[0] == "__main__ ['a b'] told\n"
    assert process.returncode == 3
