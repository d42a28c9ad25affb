"""How a bulk verb shows that it gets on: a bar, a line now and then, or nothing.

All of it goes to standard error: standard output is for the report.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from uprmc.jobs.progress import Step

LINE_EVERY_S = 10.0


class Shown:
    """Takes the steps of some work; use it in a ``with`` statement.

    Args:
        how: ``auto``, ``bar``, ``plain`` or ``none``.
        stream: where to; standard error if it is ``None``.
        every_s: between two lines.

    Attributes:
        last: the newest step, ``None`` before the first.
    """

    def __init__(
        self, how: str, stream: IO[str] | None = None, every_s: float = LINE_EVERY_S
    ) -> None:
        self.last: Step | None = None
        self._stream = stream or _own_stderr()
        self._own = stream is None and self._stream is not sys.stderr
        if how == "auto":
            how = "bar" if self._stream.isatty() else "plain"
        self._how, self._every_s = how, every_s
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._bar: Progress | None = None
        self._task: Any = None
        self._writer: threading.Thread | None = None

    def __call__(self, step: Step) -> None:
        """Take a step."""
        if self.last is None or step.what != self.last.what:
            self._began = time.monotonic()
        self.last = step
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=step.what,
                completed=step.done,
                total=step.of,
                figures=self._figures(step),
            )

    def __enter__(self) -> Shown:
        if self._how == "bar":
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=Console(file=self._stream, force_terminal=True),
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=None, figures="")
            self._bar.start()
        elif self._how == "plain":
            self._writer = threading.Thread(target=self._write_lines, daemon=True)
            self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()
        if self._writer is not None:
            self._writer.join()
        if self._own:
            self._stream.close()

    def _write_lines(self) -> None:
        while not self._ended.wait(self._every_s):
            if self.last is not None:
                self._stream.write(line_of(self.last, self._figures(self.last)) + "\n")
                self._stream.flush()

    def _figures(self, step: Step) -> str:
        seconds = max(time.monotonic() - self._began, 0.001)
        words = []
        if step.rows:
            words += [f"{step.rows:,} rows", f"{step.rows / seconds:,.0f} rows/s"]
        if step.size_bytes:
            words.append(f"{step.size_bytes / seconds / 1e6:,.1f} MB/s")
        return ", ".join(words)


def _own_stderr() -> IO[str]:
    """Return standard error as it is now: while Spark starts, its own is another one."""
    try:
        return os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
    except (OSError, ValueError):
        return sys.stderr


def line_of(step: Step, figures: str) -> str:
    """Return a step as a plain line."""
    of = f" of {step.of:,}" if step.of is not None else ""
    return f"uprmc: {step.what}: {step.done:,}{of} tasks" + (f", {figures}" if figures else "")
