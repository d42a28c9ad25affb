"""The bulk verbs as a user runs it: a process, what it prints, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from interop.nursery import run

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Ended:
    """What came of a process."""

    code: int
    out: str
    err: str


def _command(arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "uprmc", *arguments]


def _environment(others: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UPRMC_")}
    return {**kept, "PYTHONPATH": str(ROOT), **others}


def uprmc(
    *arguments: str, cwd: Path | None = None, stdin: IO[bytes] | None = None, **environment: str
) -> Ended:
    """Run a verb to its end."""
    command, env = _command(arguments), _environment(environment)
    return Ended(*run(command, TIMEOUT_S, cwd=cwd, stdin=stdin, env=env, text=True))


def uprmc_struck(
    *arguments: str, when: Callable[[], bool], signals: tuple[signal.Signals, ...]
) -> Ended:
    """Run a verb in a session of its own, and send its processes signals once something is true."""
    process = subprocess.Popen(
        _command(arguments),
        env=_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        give_up = time.monotonic() + TIMEOUT_S
        while process.poll() is None and not when():
            assert time.monotonic() < give_up, "it did not come so far"
            _pause(process)
        for each in signals:
            if process.poll() is None:
                # As Ctrl-C on a terminal does: the driver and all its workers.
                os.killpg(process.pid, each)
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return Ended(process.returncode, out, err)


def _pause(process: subprocess.Popen[str]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.02)
