"""The shell blocks of ``docs/tap.md``, run as they stand on two real nodes.

``old.example`` and ``new.example`` become a node each, so the "old server" is one of ours: what is
tried is the commands, their order, and what has become of the data. A block that runs a pipe
without ``-t``, or the adapter, does not end by itself; it runs on until the next pipe begins.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from interop.proxy import LastingPort
from interop.replica_pair import Node
from tests.documents import section

PAGE = Path(__file__).parent.parent / "docs" / "tap.md"
TEXT = PAGE.read_text(encoding="utf-8")

VBUCKETS = 16
_LAST = 1_023
_BLOCK_S = 60.0

_PROGRAMS = {"uprmc": "uprmc", "vbucketmigrator": "interop.vbucketmigrator"}


class Block(NamedTuple):
    """One fenced block of a section."""

    kind: str
    text: str

    @property
    def is_pipe(self) -> bool:
        return "vbucketmigrator" in self.text

    @property
    def is_takeover(self) -> bool:
        return self.is_pipe and " -t " in self.text

    @property
    def is_adapter(self) -> bool:
        return "tap-adapter" in self.text

    @property
    def is_endless(self) -> bool:
        return self.is_adapter or (self.is_pipe and not self.is_takeover)


def blocks(heading: str = "") -> list[Block]:
    """The fenced blocks of a section, or of the whole page."""
    text = section(TEXT, heading) if heading else TEXT
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)]


class Story:
    """Two nodes, and a directory where blocks run. Use it in a ``with`` statement."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        common = ("--vbuckets", str(VBUCKETS))
        self.old = Node(directory / "old", *common)
        self.new = Node(directory / "new", *common, *options)
        self._adapter = LastingPort()
        self._running: list[tuple[Block, subprocess.Popen[str]]] = []
        programs = directory / "bin"
        programs.mkdir()
        for name, module in _PROGRAMS.items():
            path = programs / name
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
            path.chmod(0o755)
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("UPRMC_")}
        self._environment["PATH"] = f"{programs}:{os.environ['PATH']}"
        self._environment["PYTHONPATH"] = str(PAGE.parent.parent)

    def run(self, block: Block) -> str:
        """Run a block; gives what it printed, if it has ended. Its exit code must be 0."""
        if block.is_pipe:
            self.end_pipes()
        text = self._filled(block.text)
        process = subprocess.Popen(
            ["sh", "-euc", text if not block.is_endless else f"exec {text.strip()}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            env=self._environment,
        )
        if block.is_endless:
            self._running.append((block, process))
            if block.is_adapter:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert "ready" in line, line
            return ""
        printed, _ = process.communicate(timeout=_BLOCK_S)
        assert process.returncode == 0, f"{text}\n{printed}"
        return printed

    def end_pipes(self) -> None:
        """What Ctrl-C does."""
        for block, process in [each for each in self._running if each[0].is_pipe]:
            self._end(process, signal.SIGINT)
            self._running.remove((block, process))

    def _end(self, process: subprocess.Popen[str], number: signal.Signals) -> str:
        process.send_signal(number)
        try:
            return process.communicate(timeout=30)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0]

    def _filled(self, text: str) -> str:
        """A block with the addresses and the number of vBuckets of these nodes."""
        text = text.replace("old.example:11210", str(self.old.upr))
        text = text.replace("new.example:11210", str(self.new.upr))
        text = text.replace("127.0.0.1:11220", str(self._adapter.address))
        return text.replace(f"0-{_LAST}", f"0-{VBUCKETS - 1}").replace(
            f" 0 {_LAST})", f" 0 {VBUCKETS - 1})"
        )

    def __enter__(self) -> Story:
        try:
            self.old.start()
            self.new.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for _, process in self._running:
            said = self._end(process, signal.SIGTERM)
            if error is not None:
                print(said)
        for node in (self.old, self.new):
            node.end()
        self._adapter.give_back()
