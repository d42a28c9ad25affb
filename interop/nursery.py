"""Starts Python programs by forking a process that has imported `uprmc` already.

Hundreds of tests start a node, a verb or a client. Most of such a start is Python importing the
same modules, so each test process keeps one nursery that has done so and forks it. Everything else
is as in a process of its own: arguments, environment, directory, standard streams, signals and exit
code; the test is the parent, and waits for it and kills it by `subprocess.Popen`'s own means.

`popen` does so after `keep`, which the plugin `tests.interrupts` calls, and only on Linux. Else it
is `subprocess.Popen`. Benchmarks measure real starts; the tests of `uprmc serve`, and of what an
import brings with it, make them.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_MODULES = (
    "uprmc.cli.index_process",
    "uprmc.cli.index_serve",
    "uprmc.cli.main",
    "uprmc.cli.serve",
    "uprmc.cli.observe",
    "uprmc.cli.replicas",
    "uprmc.cli.tail",
    "uprmc.cli.tap_adapter",
    "uprmc.cli.tap_process",
    "uprmc.cli.process",
    "uprmc.cli.stats",
    "uprmc.server.system",
    "uprmc.server.node",
    "uprmc.server.system",
    "uprmc.server.log",
    "uprmc.server.net.transport",
    "uprmc.client.kv",
    "uprmc.client.sqlite_state",
    "uprmc.storage.directory",
)

_ROOT = str(Path(__file__).parents[1])

_LENGTH = struct.Struct(">I")
_SET_CHILD_SUBREAPER = 36  # of prctl: orphans below this process become its children


class _Nursery:
    """This side of one nursery.

    Attributes:
        python: with which of Python's own variables it has started.
    """

    def __init__(self) -> None:
        self.python = _of_python(os.environ)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(
        self, words: Sequence[str], env: Mapping[str, str], place: Any, streams: Sequence[int]
    ) -> int:
        """Run Python with these words; returns the process id of what is now our child."""
        request = json.dumps([list(words), dict(env), str(place)]).encode()
        with self._lock:
            ours = self._socket or self._open()
            socket.send_fds(ours, [_LENGTH.pack(len(request))], list(streams))
            ours.sendall(request)
            (number,) = _LENGTH.unpack(ours.recv(_LENGTH.size, socket.MSG_WAITALL))
        return int(number)

    def _open(self) -> socket.socket:
        assert ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "interop.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        return self._socket

    def end(self) -> None:
        if self._socket and self._process:
            self._socket.close()
            self._process.wait(60)


_nursery: _Nursery | None = None


def keep() -> None:
    """Let `popen` fork from now on, where the system can."""
    global _nursery
    if sys.platform == "linux" and _nursery is None:
        _nursery = _Nursery()


def end() -> None:
    """Undo `keep`."""
    global _nursery
    if _nursery is not None:
        _nursery.end()
        _nursery = None


class _Forked(subprocess.Popen[Any]):
    """A child that the nursery has forked."""

    def _execute_child(self, *given: Any) -> None:
        of = _EXECUTE_CHILD.bind(self, *given).arguments
        ends = of["p2cread"], of["c2pwrite"], of["errwrite"]
        streams = [number if end == -1 else end for number, end in enumerate(ends)]
        assert _nursery is not None
        env = os.environ if of["env"] is None else of["env"]
        self.pid = _nursery.start(of["args"][1:], env, of["cwd"] or os.getcwd(), streams)
        self._child_created = True
        self._close_pipe_fds(
            *(of["p2cread"], of["p2cwrite"]),
            *(of["c2pread"], of["c2pwrite"]),
            *(of["errread"], of["errwrite"]),
        )


_EXECUTE_CHILD = inspect.signature(getattr(subprocess.Popen, "_execute_child"))  # noqa: B009


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen`, from the nursery where that can make no difference."""
    known = options.keys() <= {"stdin", "stdout", "stderr", "env", "cwd", "text"}
    python = _of_python(options.get("env") or os.environ)
    is_ours = command[0] == sys.executable and _is_program(command[1])
    if _nursery is not None and known and python == _nursery.python and is_ours:
        return _Forked(list(command), **options)
    return subprocess.Popen(command, **options)


def run(command: Sequence[str], timeout: float = 60.0, **options: Any) -> tuple[int, Any, Any]:
    """Run a program to its end; returns its exit code and what it wrote to each stream."""
    with popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, out, err


def _is_program(word: str) -> bool:
    return word in ("-m", "-c") or word.endswith(".py")


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which Python itself starts otherwise."""
    found = {name: value for name, value in environment.items() if name.startswith("PYTHON")}
    found.pop("PYTHONUNBUFFERED", None)  # is heeded
    path = found.pop("PYTHONPATH", "").split(os.pathsep)
    return {**found, "path": os.pathsep.join(sorted({*path} - {_ROOT, ""}))}


# --- the nursery itself -------------------------------------------------------------------------


def _serve(ours: socket.socket) -> None:
    """Fork for each request until the other side is gone."""
    while True:
        header, streams, _, _ = socket.recv_fds(ours, _LENGTH.size, 3)
        if not header:
            return
        (size,) = _LENGTH.unpack(header)
        request = json.loads(ours.recv(size, socket.MSG_WAITALL))
        # The one in between ends at once, so that the test process inherits the child.
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                os.close(reading)
                os.close(writing)
                ours.close()
                _become(*request, streams)
            os.write(writing, _LENGTH.pack(child))
            os._exit(0)
        os.waitpid(between, 0)
        ours.sendall(os.read(reading, _LENGTH.size))
        for each in (reading, writing, *streams):
            os.close(each)


def _become(words: list[str], env: dict[str, str], place: str, streams: list[int]) -> NoReturn:
    """Be a new process of Python's."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    for stream in streams:
        os.close(stream)
    at_once = "PYTHONUNBUFFERED" in env
    sys.stdin = _text(0, sys.stdin, "r", at_once)
    sys.stdout = _text(1, sys.stdout, "w", at_once)
    sys.stderr = _text(2, sys.stderr, "w", at_once)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(place)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.unfreeze()
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")
    raise SystemExit


def _text(number: int, like: Any, mode: str, at_once: bool) -> Any:
    """A text stream over a descriptor, as Python makes it at its start."""
    raw = open(number, mode + "b", closefd=False)  # noqa: SIM115 - it stays open
    lines = number == 2 or os.isatty(number)
    return io.TextIOWrapper(
        raw, like.encoding, like.errors, line_buffering=lines or at_once, write_through=at_once
    )


if __name__ == "__main__":
    for _name in _MODULES:
        importlib.import_module(_name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as _ours:
        _serve(_ours)
