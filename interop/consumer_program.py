"""Programs that use the consumer's library, run as a user runs them, and what they need around.

A `Program` is started, interrupted and killed. A `Writer` gives it something to follow; what the
node's documents are in the end is read here over a raw connection (`documents_of`), independent of
the library. `lose` makes a node die with writes that it has shown to everybody and not kept.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from interop import upr_wire as u
from interop import wire as w
from interop.comparison import everything_of
from interop.nursery import popen
from interop.replica_pair import Node
from interop.wire import frame, store

VBUCKETS = 16
ALL = range(VBUCKETS)
OPTIONS = ("--vbuckets", str(VBUCKETS))
PREFIXES = (b"user", b"order", b"")

_ENDS_IN_S = 20.0

Documents = dict[tuple[int, bytes], bytes]


class Program:
    """A Python program that runs as a process. Leaving its ``with`` statement kills what runs."""

    def __init__(self, path: Path, *words: object, directory: Path | None = None) -> None:
        self.command = [sys.executable, str(path), *map(str, words)]
        self._directory = directory
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, unbuffered: bool = False) -> None:
        """Start it, or start it again."""
        assert self._process is None
        environment = {k: v for k, v in os.environ.items() if not k.startswith("UPRMC_")}
        if unbuffered:
            environment["PYTHONUNBUFFERED"] = "1"
        self._process = popen(
            self.command,
            stdout=self._said,
            stderr=self._said,
            env=environment,
            cwd=self._directory,
        )

    def kill(self) -> None:
        """``kill -9``."""
        self._end(signal.SIGKILL, -signal.SIGKILL)

    def interrupt(self) -> None:
        """As Ctrl-C does; it must end in order."""
        self._end(signal.SIGINT, 0)

    def said(self) -> str:
        """All that it printed."""
        self._said.seek(0)
        return self._said.read().decode()

    def _end(self, number: int, expected: int) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"it has ended by itself: {self.said()}"
        self._process.send_signal(number)
        code = self._process.wait(_ENDS_IN_S)
        self._process = None
        assert code == expected, f"exit code {code}: {self.said()}"

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._said.close()


def rows_of(path: Path, query: str) -> list[tuple[bytes, ...]]:
    """What a table holds, ``[]`` if there is none yet."""
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
        return database.execute(query).fetchall() if query.split()[-1] in tables else []


def documents_of(node: Node) -> Documents:
    held = everything_of(node.upr, ALL)
    return {name: version.value for name, version in held.items() if version.is_document}


class Writer:
    """Changes documents: new ones, other values, deletions; never the same value twice."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)
        self._count = 0
        self._names: list[tuple[int, bytes]] = []

    def write(self, node: Node, count: int = 400) -> None:
        """Change so many documents; returns when all are acknowledged."""
        requests = [self._request() for _ in range(count)]
        with node.wire() as wire:
            refused = wire.replies_until_noop(*requests)
        assert {each.status for each in refused} <= {w.OK, w.NOT_FOUND}

    def _request(self) -> bytes:
        self._count += 1
        vbucket = self._random.choice(ALL)
        key = b"%s:%d" % (self._random.choice(PREFIXES), self._count)
        if self._names and self._random.random() < 0.5:
            vbucket, key = self._random.choice(self._names)
        else:
            self._names.append((vbucket, key))
        if self._random.random() < 0.25:
            return frame(w.DELETE, key, vbucket=vbucket)
        return store(w.SETQ, key, b"value %d" % self._count, vbucket=vbucket)


def lose(node: Node, write: Callable[[], None], seen: Callable[[], None]) -> None:
    """Have a node acknowledge what it does not write down, show it around, and die."""
    with node.wire() as wire:
        for vbucket, seqno in wire.high_seqnos().items():
            wire.wait_until_persisted(vbucket, seqno)
        wire.command(frame(u.STOP_PERSISTENCE))
    write()
    seen()
    node.kill()
