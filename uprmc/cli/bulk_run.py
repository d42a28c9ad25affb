"""Runs the work of a bulk verb: progress, report, and what goes wrong in one line.

A package that is missing becomes a sentence that says what to install. Ctrl-C, SIGTERM and a node
that is lost become one line that says whether the same command goes on where it stopped.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import click

from uprmc.cli.bulk_progress import Shown
from uprmc.columnar.errors import BadOption, MissingPackage, Unreachable
from uprmc.errors import Interrupted
from uprmc.jobs.files import write_whole
from uprmc.jobs.progress import Step

_PACKAGES = ("pyspark", "pyarrow", "numpy", "pandas", "py4j", "grpc", "google")


class Report(Protocol):
    """What every verb comes to."""

    def to_json(self) -> str:
        """Return it as one line of JSON."""

    def summary(self) -> str:
        """Return it for people."""


#: Says, from the newest step, what happens when the same command runs again.
Afterwards = Callable[[Step | None], str]


@contextmanager
def running(
    *, progress: str, as_json: bool, report: Path | None, afterwards: Afterwards
) -> Iterator[Run]:
    """Yield a `Run` whose progress is shown and whose report is printed.

    Raises:
        Interrupted: by Ctrl-C or SIGTERM.
        MissingPackage: an import failed that an extra would have brought.
        BadOption: the report cannot be written where it is to go.
    """
    if report is not None and not os.access(report.resolve().parent, os.W_OK):
        raise BadOption(f"--report {report}: no such directory, or it cannot be written")
    shown = Shown("none" if as_json and progress == "auto" else progress)
    with _terminated_like_interrupted():
        try:
            with shown:
                run = Run(shown)
                yield run
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted: {afterwards(shown.last)}") from None
        except Unreachable as error:
            if shown.last is not None:
                error.text += f"; {afterwards(shown.last)}"
            raise
        except ImportError as error:
            raise _missing(error) from error
    if run.report is not None:
        _tell(run.report, as_json, report)


class Run:
    """One piece of work.

    Attributes:
        progress: takes its steps.
        report: what it came to, once that is set.
    """

    def __init__(self, progress: Shown) -> None:
        self.progress = progress
        self.report: Report | None = None


def _missing(error: ImportError) -> Exception:
    package = (error.name or "").partition(".")[0]
    if package not in _PACKAGES:
        # pyspark's own checks raise their errors without a name.
        package = next((name for name in _PACKAGES if name in str(error)), "")
        if not package:
            return error
    extra, hint = "spark", ", or say --engine local"
    if package in ("pyarrow", "numpy"):
        extra, hint = "arrow", " (in a source tree: pip install -e '.[arrow]')"
    return MissingPackage(f"{package} is missing: pip install 'uprmc[{extra}]'{hint}")


def _tell(report: Report, as_json: bool, path: Path | None) -> None:
    text = report.to_json()
    if path is not None:
        _written(path, text + "\n")
    click.echo(text if as_json else report.summary())


def _written(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise BadOption(f"--report {path}: {error.strerror}") from None


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Have SIGTERM end the work in the same order as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
