"""A child process that runs the JavaScript of a design: how it is started, asked and ended.

It gets two pipes and nothing else: no socket, no file. Requests may be sent while one is computed;
neither side ever waits for the other to read, as this one does both at once. Whatever it answers
is believed as little as what it runs: a frame that is too large ends it.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

__all__ = ["MISSING", "Child", "ChildFailed", "Config", "available"]

MISSING = "JavaScript needs the extra uprmc[javascript]"

_LENGTH = struct.Struct(">I")

#: Seconds beyond the time limit of a function, after which a child that has not said so is ended.
_GRACE_S = 10.0

#: Seconds in which a child must have started.
_START_S = 60.0

#: Bytes that a pipe may hold, where the system allows it: fewer switches between processes.
_PIPE_BYTES = 1024 * 1024

#: Seconds in which a process that has closed its pipe must have ended.
_END_S = 1.0

_SIGNALS = {number.value: number.name for number in signal.Signals}

_F_SETPIPE_SZ = 1031

_READ_BYTES = 256 * 1024


class ChildFailed(Exception):
    """The process has ended, is stuck or wrote nonsense; the text says which."""


def available() -> bool:
    """Whether the engine is installed."""
    return find_spec("py_mini_racer") is not None


@dataclass(frozen=True, slots=True)
class Config:
    """What a child runs and what it may take."""

    maps: tuple[str, ...]  # texts of functions
    reduces: tuple[str, ...]
    limits: dict[str, int]  # of characters and rows, by the harness's names
    memory: int  # bytes beyond what the engine itself needs
    timeout_s: float  # of one request

    def text(self) -> bytes:
        """Return it as the child reads it."""
        fields = {
            "maps": self.maps,
            "reduces": self.reduces,
            "limits": self.limits,
            "memory": self.memory,
            "timeout_s": self.timeout_s,
        }
        return json.dumps(fields).encode()


class Child:
    """One process. For one thread at a time."""

    def __init__(self, first: bytes, timeout_s: float, max_answer: int) -> None:
        """Start it and send the first frame."""
        program = Path(__file__).with_name("child.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            close_fds=True,
            bufsize=0,
        )
        # It ends with this object, even one that was forgotten.
        self._finish = weakref.finalize(self, _end, self._process)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        for pipe in (self._in, self._out):
            os.set_blocking(pipe, False)
            _enlarge(pipe)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._unsent = bytearray()
        self._received = bytearray()
        self._timeout_s = timeout_s
        self._max_answer = max_answer
        self.send(first)

    def kill(self) -> None:
        """End the process at once; any thread may. Who waits for it gets `ChildFailed`."""
        self._process.kill()

    @classmethod
    def start(cls, config: Config) -> Child:
        """Return a process that has compiled the functions; raise `ChildFailed`."""
        # What it may have in memory is more than it can say.
        child = cls(config.text(), config.timeout_s, config.memory)
        try:
            answer = child.receive(_START_S)
            if answer != b"=":
                raise ChildFailed(answer[1:].decode(errors="replace") or "it wrote nonsense")
        except ChildFailed as error:
            child.end()
            raise ChildFailed(f"JavaScript does not start: {error}") from None
        return child

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def send(self, payload: bytes) -> None:
        """Send a frame, as much of it as the pipe takes now; `receive` sends the rest."""
        self._unsent += _LENGTH.pack(len(payload))
        self._unsent += payload
        self._send_some()

    def receive(self, more_s: float = 0.0) -> bytes:
        """Return the next frame; raise `ChildFailed`, after which only `end` makes sense."""
        deadline = time.monotonic() + self._timeout_s + _GRACE_S + more_s
        while (frame := self._frame()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ChildFailed("the process does not answer")
            self._wait(left)
        return frame

    def _wait(self, seconds: float) -> None:
        if self._unsent:
            self._poll.register(self._in, select.POLLOUT)
        for descriptor, _ in self._poll.poll(seconds * 1_000):
            if descriptor == self._in:
                self._send_some()
            else:
                self._read_some()

    def _send_some(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._in, self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()  # it has ended; reading says so
        if not self._unsent:
            self._forget_writing()

    def _forget_writing(self) -> None:
        with suppress(KeyError):
            self._poll.unregister(self._in)

    def _read_some(self) -> None:
        try:
            part = os.read(self._out, _READ_BYTES)
        except BlockingIOError:
            return
        if not part:
            raise ChildFailed(f"the process {self._how_it_ended()}")
        self._received += part

    def _how_it_ended(self) -> str:
        """Return what ended it: V8 traps when it has no memory, the kernel kills it, and so on."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if code >= 0:
            return "ended"
        return f"was ended by {_SIGNALS.get(-code, f'signal {-code}')}"

    def _frame(self) -> bytes | None:
        received = self._received
        if len(received) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
        if end > self._max_answer:
            raise ChildFailed("the process wrote nonsense")
        if len(received) < end:
            return None
        frame = bytes(received[_LENGTH.size : end])
        del received[:end]
        return frame

    def end(self) -> None:
        """Kill it and wait for its end."""
        self._finish()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def _enlarge(pipe: int) -> None:
    with suppress(OSError):  # a limit of the system, or not Linux
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_BYTES)
