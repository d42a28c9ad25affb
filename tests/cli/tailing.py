"""A verb, mostly ``uprmc tail``, that runs beside a test, and what it has printed so far."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from interop.nursery import popen
from interop.server_process import ServerProcess
from tests.cli.support import TIMEOUT_S, Ended

_STEP_S = 0.1


class Running:
    """One process; it is killed at the end of the ``with`` at the latest."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "uprmc"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("UPRMC_")}
        self.process = popen(
            [*command, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean,
        )
        self._out = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def follows(self, write: Callable[[int], object]) -> str:
        """Call `write` with 0, 1, ... until a line comes, which is returned.

        So a test learns that the streams are there, which nothing else on the outside shows.
        """
        deadline = time.monotonic() + TIMEOUT_S
        count = 0
        while time.monotonic() < deadline:
            write(count)
            count += 1
            if self._more(_STEP_S):
                return self.line()
        raise AssertionError(f"tail printed nothing, exit code {self.process.poll()}")

    def line(self) -> str:
        """Return the next line without its end."""
        while b"\n" not in self._out:
            assert self._more(TIMEOUT_S), f"no more lines; unfinished: {self._out!r}"
        line, _, self._out = self._out.partition(b"\n")
        return line.decode()

    def _more(self, timeout_s: float) -> bool:
        stdout = self.process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], timeout_s)[0]:
            return False
        data = os.read(stdout.fileno(), 1 << 16)
        self._out += data
        return bool(data)

    def interrupt(self) -> Ended:
        """Do what Ctrl-C does, and return how it ended."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> Ended:
        """Wait until it has ended by itself; `out` is what was not read before."""
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return Ended(self.process.returncode, (self._out + out).decode(), err.decode())


class Tailing(Running):
    """``uprmc tail`` of one server."""

    def __init__(self, server: ServerProcess, *options: object) -> None:
        super().__init__("tail", "--node", server.upr, *options)
