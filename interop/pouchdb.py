"""PouchDB in a process of its own, as an oracle for views: lines of JSON in, lines of JSON out.

It is fetched by npm, in the versions that ``interop/javascript/package-lock.json`` names, when a
test needs it first. Where that cannot be done `missing` says why, and the tests skip.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

SOURCES = Path(__file__).parent / "javascript"

_INSTALL_S = 240.0
_ANSWER_S = 600.0


@cache
def missing() -> str:
    """Install it unless it is there; return why that is impossible, else ``""``."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "no Node.js with npm: apt-get install nodejs npm"
    with (SOURCES / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may need it at once
        return _installed()


def _installed() -> str:
    wanted = (SOURCES / "package-lock.json").read_bytes()
    stamp = SOURCES / "node_modules" / "installed-lock.json"
    if stamp.exists() and stamp.read_bytes() == wanted:
        return ""
    # Ready-made programs of LevelDB come with its package: no script of any package has to run.
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            command, cwd=SOURCES, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"npm has not fetched PouchDB within {_INSTALL_S:g} s"
    if done.returncode:
        return f"npm cannot fetch PouchDB: {done.stderr.strip()[-300:]}"
    stamp.write_bytes(wanted)
    return ""


class PouchError(Exception):
    """It refused a request; the message is its own."""


class Pouch:
    """A running PouchDB with one empty database. Use it in a ``with`` statement."""

    def __init__(self, adapter: str = "memory", path: str | Path = "documents") -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            ["node", str(SOURCES / "pouchdb.js")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.ask("open", adapter=adapter, path=str(path))

    def ask(self, operation: str, **given: Any) -> dict[str, Any]:
        """Carry out an operation of ``pouchdb.js``; return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": operation, **given}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"it ended: {self._errors.read()[-4_000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PouchError(answer["error"])
        return answer

    def load(self, documents: dict[str, Any]) -> None:
        """Store documents under their ids."""
        self.ask("load", docs=[{"_id": name, **body} for name, body in documents.items()])

    def design(self, name: str, views: dict[str, Any]) -> None:
        """Store a design document."""
        self.ask("design", name=name, views=views)

    def rows(self, view: str, **options: Any) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        found: list[dict[str, Any]] = self.ask("query", view=view, options=options)["rows"]
        return found

    def __enter__(self) -> Pouch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(_ANSWER_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()
