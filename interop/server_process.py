"""Start, watch and stop a server as a user would: by its command line.

Under pytest most starts are quick ones, see `interop.nursery`.

`start_uprmc` runs ``uprmc serve`` and reads its ready line; `start_memcached` runs the stock
memcached in the same role, so that every script and benchmark can be tried on both. Nothing here
imports `uprmc`; the interop scripts, the crash tests and the benchmarks all lean on it.

Three promises: a process that was started is always reaped, whatever the caller does; waiting for
it is always bounded, and running out of time says what the server wrote; standard output holds
the ready line and nothing else.

``UPRMC_SERVE_COMMAND`` replaces ``python -m uprmc serve`` (for a server that is installed
elsewhere). No other ``UPRMC_`` variable reaches the server, which would take it for a setting.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from interop.nursery import popen

ANY_PORT = "127.0.0.1:0"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
_STDERR_SHOWN = 6_000


class ServerFailedError(Exception):
    """The server did not start, or did not stop, as it should; the message holds its log."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener accepts: host and port, or a path for a unix socket (then port is 0)."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        if text.startswith("unix:"):
            return cls(text.removeprefix("unix:"), 0)
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]"), int(port))

    @property
    def is_unix(self) -> bool:
        return self.port == 0

    def connect(self, timeout_s: float = 10.0) -> socket.socket:
        """Open a connection; every later operation on it is bounded by ``timeout_s`` too."""
        if not self.is_unix:
            return socket.create_connection((self.host, self.port), timeout=timeout_s)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(self.host)
        except OSError:
            connection.close()
            raise
        return connection

    def __str__(self) -> str:
        return f"unix:{self.host}" if self.is_unix else f"{self.host}:{self.port}"


class ServerProcess:
    """A running server. Use it in a ``with`` statement; leaving it kills what still runs.

    ``memcached`` is the listener for memcached clients. ``upr``, ``http`` and ``views`` are
    ``None`` for a peer that has no such thing; ``durable`` tells whether a restart is expected to
    keep the data. ``login`` is NAME:PASSWORD where a server wants one, else empty.
    """

    def __init__(
        self,
        kind: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        start: Callable[..., subprocess.Popen[bytes]] = popen,
    ) -> None:
        self.kind = kind
        self.command = list(command)
        self.durable = kind == "uprmc"
        self.upr: Address | None = None
        self.http: Address | None = None
        self.views: Address | None = None
        self.login = ""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _reap
        try:
            self._process = start(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=dict(environment),
            )
        except OSError:
            self._stderr.close()
            raise
        self._memcached: Address | None = None
        self._final_log = ""

    @property
    def memcached(self) -> Address:
        assert self._memcached is not None, "the server is not ready yet"
        return self._memcached

    @memcached.setter
    def memcached(self, address: Address) -> None:
        self._memcached = address

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """What the server wrote to standard error, its end if that is long."""
        if self._stderr.closed:
            return self._final_log
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(0, size - _STDERR_SHOWN)
        return os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace")

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Send SIGTERM and wait. Raises `ServerFailedError` unless the exit code is 0."""
        code = self.terminate(timeout_s)
        if code != 0:
            raise self._failure(f"ended with exit code {code} after SIGTERM instead of 0")

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM and give the exit code; raises `ServerFailedError` if it does not end."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure(f"had not ended {timeout_s:g} s after SIGTERM") from None
        stray = self._rest_of_stdout()
        code = self._reap()
        if stray:
            raise self._failure(f"wrote more than the ready line to standard output: {stray!r}")
        return code

    def kill(self) -> None:
        """End it with SIGKILL: no warning, no cleaning up; returns when it is gone."""
        self._process.kill()
        self._reap()

    def memory_kib(self, field: str = "RssAnon") -> int:
        """Read one of the memory fields of ``/proc/PID/status``, in KiB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
        raise LookupError(field)

    def cpu_s(self) -> float:
        """CPU seconds its living threads have used, by the scheduler's nanosecond count."""
        total_ns = 0
        for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            try:
                total_ns += int(path.read_text().split()[0])
            except FileNotFoundError:  # the thread ended meanwhile
                continue
        return total_ns / 1e9

    def _rest_of_stdout(self) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        return b"" if stdout.closed else stdout.read()

    def _reap(self) -> int:
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if not self._stderr.closed:
            self._final_log = self.log()
            self._stderr.close()
        return code

    def _failure(self, what: str) -> ServerFailedError:
        command = shlex.join(self.command)
        log = self.log().strip() or "(nothing)"
        return ServerFailedError(f"{self.kind} {what}\ncommand: {command}\nits log:\n{log}")

    def _wait_for_line(self, timeout_s: float) -> str:
        """The first line on standard output, without its end."""
        deadline = time.monotonic() + timeout_s
        stdout = self._process.stdout
        assert stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                self.kill()
                raise self._failure(f"printed no ready line within {timeout_s:g} s, only {line!r}")
            if not select.select([stdout], [], [], left)[0]:
                continue
            piece = os.read(stdout.fileno(), 1)
            if not piece:
                code = self._reap()
                raise self._failure(f"ended with exit code {code} before it was ready")
            line += piece
        return line.decode().rstrip("\n")

    def _wait_until(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Poll: for peers that announce nothing."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                code = self._reap()
                raise self._failure(f"ended with exit code {code} before it was ready")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"{what} within {timeout_s:g} s")
            time.sleep(0.01)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.running:
            self._process.kill()
        self._reap()


def serve_command() -> list[str]:
    """The words that start our server, without options."""
    replaced = os.environ.get("UPRMC_SERVE_COMMAND")
    return shlex.split(replaced) if replaced else [sys.executable, "-m", "uprmc", "serve"]


#: Options that are other words for a setting.
_SETTINGS = {
    **{f"--{name}": f"server.{name}" for name in ("memcached", "upr", "http", "views")},
    "--vbuckets": "engine.vbuckets",
    "--memory": "memory.quota",
    "--no-sync": "--sync",
}


def last_of_each(options: Sequence[str]) -> list[str]:
    """What was said last of each option and each setting: the server wants each once."""
    found: dict[str, list[str]] = {}
    words = list(options)
    while words:
        option, value = words.pop(0), []
        if words and not words[0].startswith("-"):
            value = [words.pop(0)]
        name = value[0].partition("=")[0] if option == "--set" else _SETTINGS.get(option, option)
        found.pop(name, None)
        found[name] = [option, *value]
    return [word for said in found.values() for word in said]


def start_uprmc(
    data: Path,
    *options: str,
    memcached: str = ANY_PORT,
    timeout_s: float = START_TIMEOUT_S,
) -> ServerProcess:
    """Start ``uprmc serve`` on a data directory, free ports, and wait for its ready line."""
    listeners = ["--memcached", memcached, "--upr", ANY_PORT, "--http", ANY_PORT]
    listeners += ["--set", f"server.views={ANY_PORT}"]
    said = last_of_each(["--data", str(data), *listeners, *options])
    command = [*serve_command(), *said]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name == "UPRMC_CORE" or not name.startswith("UPRMC_")
    }
    server = ServerProcess("uprmc", command, environment)
    try:
        line = server._wait_for_line(timeout_s)
        words = line.split()
        if words[:2] != ["uprmc", "ready"]:
            raise server._failure(f"printed {line!r} where the ready line belongs")
        facts = dict(word.partition("=")[::2] for word in words[2:])
        if facts.get("pid") != str(server.pid):
            raise server._failure(f"has pid {server.pid}, but the ready line is {line!r}")
        server.memcached = Address.parse(facts["memcached"])
        server.upr = Address.parse(facts["upr"])
        server.http = Address.parse(facts["http"]) if ":" in facts.get("http", "") else None
        server.views = Address.parse(facts["views"]) if ":" in facts.get("views", "") else None
    except BaseException:
        server.__exit__(None, None, None)
        raise
    return server


def memcached_program() -> str | None:
    """Where the stock memcached is, or ``None``."""
    return shutil.which("memcached", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")


def start_memcached(
    *options: str, unix_path: Path | None = None, timeout_s: float = START_TIMEOUT_S
) -> ServerProcess:
    """Start the stock memcached on a free port, or on a unix socket, and wait until it accepts."""
    program = memcached_program()
    if program is None:
        raise FileNotFoundError("memcached is not installed")
    user = ["-u", "root"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as directory:
        port_file = Path(directory) / "port"
        environment = {**os.environ, "MEMCACHED_PORT_FILENAME": str(port_file)}
        where = ["-s", str(unix_path)] if unix_path else ["-l", "127.0.0.1", "-p", "-1"]
        server = ServerProcess("memcached", [program, *user, *where, *options], environment)
        try:
            if unix_path:
                server.memcached = Address(str(unix_path), 0)
            else:
                server._wait_until(port_file.exists, timeout_s, "wrote no port file")
                tcp = [line for line in port_file.read_text().splitlines() if "TCP" in line]
                server.memcached = Address("127.0.0.1", int(tcp[0].rpartition(":")[2]))
            server._wait_until(
                lambda: _accepts(server.memcached), timeout_s, "accepted no connection"
            )
        except BaseException:
            server.__exit__(None, None, None)
            raise
    return server


def _accepts(address: Address) -> bool:
    try:
        address.connect(1.0).close()
    except OSError:
        return False
    return True
