"""What benchmarks of streams share: nodes on empty directories, consumers in their own processes.

A consumer's program prints ``ready`` when it has asked for everything, and its figures as one line
of JSON when its input ends or nothing more comes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import common
from bench.common import Report
from interop.server_process import Address, ServerProcess, start_uprmc

Figures = dict[str, float]


class Bench:
    """The options, the report, and what starts servers."""

    def __init__(self, words: Any, report: Report) -> None:
        self.words = words
        self.report = report
        self.rows: list[list[str]] = []

    @contextmanager
    def ours(self, vbuckets: int, *more: str) -> Iterator[ServerProcess]:
        """Our server on an empty directory."""
        with tempfile.TemporaryDirectory(prefix="uprmc-bench-") as directory:
            options = ("--vbuckets", str(vbuckets), *more, *self.words.serve)
            with start_uprmc(Path(directory), *options) as server:
                self.report.versions["ours"] = common.version_of(server)
                yield server
                server.stop()

    def rounds(
        self, what: str, contestants: dict[str, Callable[[int], Figures]]
    ) -> dict[str, list[Figures]]:
        """Run the contestants interleaved."""
        return common.interleaved(
            self.words.rounds, contestants, lambda text: common.progress(f"{what}, {text}")
        )

    def keep(self, part: str, figures: object, *rows: Sequence[str]) -> None:
        """Note what one part has found."""
        self.report.results.append({"part": part, "figures": figures})
        self.rows += [list(row) for row in rows]


def address_of(server: ServerProcess) -> tuple[str, int]:
    """Host and port of the listener for streams."""
    assert server.upr is not None
    return server.upr.host, server.upr.port


def command_of(module: str, what: str, address: Address | None, **options: object) -> list[str]:
    """Return the command that starts a consumer."""
    command = [sys.executable, "-m", module, what, str(address)]
    return command + [f"--{name}={value}" for name, value in options.items()]


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A consumer's process that has said that it is ready."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=common.HERE.parent
    ) as child:
        try:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise common.BenchError(f"{command} failed:\n{child.communicate()[1]}")
            yield child
        finally:
            child.kill()


def figures_of(child: subprocess.Popen[str]) -> Figures:
    """Close its input and read its last line."""
    try:
        out, err = child.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        raise common.BenchError(f"no end of {child.args!r}") from None
    if child.returncode:
        raise common.BenchError(f"{child.args!r} failed:\n{err}")
    found: Figures = json.loads(out.splitlines()[-1])
    return found


def compare_contents(commands: dict[str, list[str]]) -> None:
    """See that all consumers get the same items, before anything is measured."""
    digests = set()
    for command in commands.values():
        with started([*command, "--check"]) as child:
            digests.add(figures_of(child)["digest"])
    if len(digests) != 1:
        raise common.BenchError(f"the consumers got different items: {digests}")


def run_child(command: list[str], number: int) -> Figures:
    """Start a consumer and return its figures."""
    with started(command) as child:
        return figures_of(child)
