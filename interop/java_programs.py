"""Java programs of ours, compiled and run as a user of Debian's libspymemcached-java would.

`compiled` puts their classes into a directory of the caller's; `JavaProgram` is one that runs:
lines in, lines out. Where there is no JDK or no library, `missing` says which package brings it.
"""

from __future__ import annotations

import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

SOURCES = Path(__file__).parent / "java"
SPYMEMCACHED = Path("/usr/share/java/spymemcached.jar")

_COMPILE_S = 120.0
_LINE_S = 60.0
_END_S = 30.0


def missing() -> str:
    """What has to be installed first, ``""`` if nothing."""
    if shutil.which("javac") is None or shutil.which("java") is None:
        return "no JDK: apt-get install default-jdk-headless"
    if not SPYMEMCACHED.exists():
        return f"no {SPYMEMCACHED}: apt-get install libspymemcached-java"
    return ""


class Classes(NamedTuple):
    """Where compiled programs are, and what they need beside themselves."""

    directory: Path

    @property
    def path(self) -> str:
        return f"{self.directory}:{SPYMEMCACHED}"


def compiled(directory: Path) -> Classes:
    """Compile every program in ``interop/java``; warnings are errors."""
    sources = sorted(map(str, SOURCES.glob("*.java")))
    command = ["javac", "-Xlint:all", "-Werror", "-d", str(directory)]
    done = subprocess.run(
        [*command, "-cp", str(SPYMEMCACHED), *sources],
        capture_output=True,
        text=True,
        timeout=_COMPILE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Classes(directory)


class JavaProgram:
    """A running program. Use it in a ``with`` statement; leaving it ends its standard input."""

    def __init__(self, classes: Classes, program: str, *words: object) -> None:
        # A machine with little memory and two cores: the JVM needs neither much heap nor threads.
        small = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        command = ["java", *small, "-cp", classes.path, program, *map(str, words)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")  # no program prints an empty line

    def line(self) -> str:
        """The next line of its output, ``""`` at the end."""
        try:
            return self._lines.get(timeout=_LINE_S)
        except queue.Empty:
            raise AssertionError(f"it says nothing: {self.errors()}") from None

    def lines(self) -> Iterator[str]:
        """All lines up to the end of its output."""
        while line := self.line():
            yield line

    def ask(self, *words: object) -> str:
        """Send a line and give the one that answers it."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        answer = self.line()
        assert answer, f"it ended: {self.errors()}"
        return answer

    def errors(self) -> str:
        """What it wrote to standard error."""
        self._errors.flush()
        place = self._errors.tell()
        self._errors.seek(0)
        text = self._errors.read()
        self._errors.seek(place)
        return text[-4_000:]

    def wait(self) -> int:
        """Wait until it ends; gives its exit code."""
        return self._process.wait(_END_S)

    def __enter__(self) -> JavaProgram:
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
            self._process.wait(_END_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_S)
        self._process.stdout.close()
        self._errors.close()
