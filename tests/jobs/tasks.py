"""Tasks for the tests of engines; workers import them from here."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from uprmc.columnar.errors import BadRow
from uprmc.jobs.engines import current_attempt
from uprmc.remote.errors import NodeUnreachable


def squared(number: int) -> int:
    return number * number


def process_of(number: int) -> int:
    return os.getpid()


def is_imported(module: str) -> bool:
    return module in sys.modules


def attempt_of(number: int) -> int:
    return current_attempt()


def killed_at_first(marker: str) -> str:
    """Die of SIGKILL the first time; tell the attempt."""
    if not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"attempt {current_attempt()}"


def always_killed(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def unreachable_until_the_third(number: int) -> int:
    if current_attempt() < 2:
        raise NodeUnreachable("nobody answers")
    return current_attempt()


def counts_and_refuses(path: str) -> None:
    with open(path, "a") as file:
        file.write("x")
    raise BadRow(f"no good: {path}")


def counts_and_breaks(path: str) -> None:
    with open(path, "a") as file:
        file.write("x")
    raise ValueError("broken")


def prints(number: int) -> int:
    print("this is no answer" * 10_000)  # noqa: T201
    return number


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("only one argument arrives")


def raises_what_cannot_be_sent(number: int) -> None:
    raise Unpicklable(1, 2)


def waits_for(path: str) -> str:
    """Say where it runs, wait for a file that never comes."""
    Path(path).write_text(str(os.getpid()))
    signal.pause()
    return path
