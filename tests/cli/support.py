"""Running the command line: in this process where it ends by itself, as a process where not."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from interop.nursery import run
from interop.server_process import ANY_PORT, last_of_each

TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command line ended."""

    code: int
    out: str
    err: str

    def refused(self) -> str:
        """Return the one line of a refusal; fails if it was none."""
        assert self.code == 2, self
        return self.line()

    def line(self) -> str:
        """Return the only line on standard error; nothing may be on standard output."""
        assert self.out == "", self
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("uprmc: "), self.err
        return lines[0].removeprefix("uprmc: ")


def uprmc(*arguments: object, environment: Mapping[str, str] | None = None) -> Ended:
    """Run ``uprmc`` as a process until it ends."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("UPRMC_")}
    return Ended(
        *run(
            [sys.executable, "-m", "uprmc", *map(str, arguments)],
            TIMEOUT_S,
            text=True,
            env={**clean, **(environment or {})},
        )
    )


def listeners(*options: object) -> list[str]:
    """Options that let every listener pick a free port, but those that `options` name."""
    free = ["--memcached", ANY_PORT, "--upr", ANY_PORT, "--http", ANY_PORT, "--views", "off"]
    return last_of_each([*free, *map(str, options)])
