"""The program that runs JavaScript for an index: frames in, frames out, and nothing else.

A frame is four bytes of length, big-endian, and that many bytes. The first has the configuration as
JSON (see `process.Config`), or functions to be checked; each later one is ``m`` and a batch of
documents, or ``r`` and a reduction. Once it has begun it may open no file and take no more memory
than it was given; when it is stopped or runs out of memory it says how far it came, and ends.

It is run by its path: it must not import from uprmc, whose modules it does not need.
"""

from __future__ import annotations

import json
import os
import re
import resource
import struct
import sys
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct(">I")

#: Seconds of processor time beyond the time limit of a request: for what surrounds its functions.
_SPARE_S = 30

#: V8 stops a function when its heap has grown to this share of the process's memory. It notices a
#: little later, needs memory itself for that, and does not count buffers: the kernel's limit does.
_HEAP_SHARE = 0.5

_PLACE = re.compile(r"<anonymous>:(\d+): (.*)\n(.*)\n([ \t]*)\^")


def main() -> None:
    """Serve frames until the pipe is closed."""
    pipe_in, pipe_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)  # nothing that a library prints gets between frames
    config = json.loads(_read(pipe_in) or b"{}")
    try:
        engine = JavaScriptEngine(config)
    except Exception as error:
        _write(pipe_out, b"!" + f"{type(error).__name__}: {error}"[:500].encode(errors="replace"))
        return
    if "check" in config:
        _write(pipe_out, engine.check(config["check"]))
        return
    _write(pipe_out, engine.start(config))
    _no_files()
    while (request := _read(pipe_in)) is not None:
        answer, well = engine.answer(request)
        _write(pipe_out, answer)
        if not well:
            return


class JavaScriptEngine:
    """V8, with the limits of this process around it."""

    def __init__(self, config: dict[str, Any]) -> None:
        import py_mini_racer as racer

        harness = Path(__file__).with_name("harness.js").read_text(encoding="utf-8")
        self._racer = racer
        self._timeout: float = config["timeout_s"]
        self._v8 = racer.MiniRacer()
        _limit_process(config["memory"])
        self._v8.set_hard_memory_limit(int(config["memory"] * _HEAP_SHARE))
        self._harness: Any = self._v8.eval(harness)
        self._map, self._progress = self._harness["mapBatch"], self._harness["progress"]
        self._reduce = self._harness["reduce"]

    def start(self, config: dict[str, Any]) -> bytes:
        """Compile the functions; return ``=``, or ``!`` and why that failed."""
        try:
            self._call(self._harness["start"], json.dumps(config))
        except self._racer.JSEvalException as error:
            return b"!" + str(error).partition("\n")[0].encode(errors="replace")
        return b"="

    def check(self, sources: list[str]) -> bytes:
        """Return for each function ``null``, or why it is none with line and column, as JSON."""
        return json.dumps([self._check(source) for source in sources]).encode()

    def _check(self, source: str) -> dict[str, Any] | None:
        try:
            _allow_time(self._timeout)
            kind = self._v8.eval(f"typeof ({source}\n)", timeout_sec=self._timeout)
        except self._racer.JSTimeoutException:
            return {"message": "it does not end"}
        except Exception as error:
            return _place(str(error), source)
        return None if kind == "function" else {"message": f"it is no function but {kind}"}

    def answer(self, request: bytes) -> tuple[bytes, bool]:
        """Return the answer of a request, and whether another one can follow."""
        text = request[1:].decode()
        function = self._map if request[:1] == b"m" else self._reduce
        try:
            made = self._call(function, text)
        except self._racer.JSTimeoutException:
            kind = b"t"
        except Exception as error:
            kind = b"o"
            if not self._v8.was_hard_memory_limit_reached():
                return b"!" + f"{type(error).__name__}: {error}"[:500].encode(
                    errors="replace"
                ), False
        else:
            if function is self._map and not self._rests():
                return b"s", False
            return b"=" + made.encode(), True
        lines = self._how_far()
        return (b"!it ran out of memory" if lines is None else kind + lines), False

    def _rests(self) -> bool:
        """Whether nothing runs any more: promises do, after the request that made them."""
        try:
            self._v8.eval("0", timeout_sec=self._timeout)
        except self._racer.JSTimeoutException:
            return False
        return True

    def _how_far(self) -> bytes | None:
        """Return milliseconds of the stopped document, its map, and the lines before it."""
        self._v8.set_hard_memory_limit(0)  # the kernel's limit stays
        try:
            return self._call(self._progress).encode()
        except Exception:  # no memory left even for that
            return None

    def _call(self, function: Any, *texts: str) -> str:
        _allow_time(self._timeout)
        return str(function(*texts, timeout_sec=self._timeout))


def _place(error: str, source: str) -> dict[str, Any]:
    """Return message, line and column of an error of V8's, in the function as it was written."""
    found = _PLACE.search(error)
    if found is None:
        return {"message": error.partition("\n")[0][:500]}
    line, column = int(found[1]), len(found[4]) + 1
    lines = source.split("\n")
    if line > len(lines):  # the bracket that we put behind it
        message = "the function is not complete"
        return {"message": message, "line": len(lines), "column": len(lines[-1]) + 1}
    if line == 1:
        column -= len("typeof (")
    return {"message": found[2][:500], "line": line, "column": max(1, column)}


def _limit_process(memory: int) -> None:
    """Take from this process what it does not need: files, cores, memory."""
    in_use = _data_bytes()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if in_use is not None:
        # Not the address space: V8 reserves a terabyte of it that it never uses.
        limit = in_use + memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _data_bytes() -> int | None:
    """Bytes that this process has mapped as its own data; ``None`` where /proc is missing."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(r"VmData:\s+(\d+) kB", status)
    return None if found is None else int(found[1]) * 1024


def _no_files() -> None:
    """Let this process open nothing any more."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def _allow_time(seconds: float) -> None:
    """Allow processor time for one more request; beyond it the kernel ends this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + _SPARE_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _read(pipe: int) -> bytes | None:
    """Return the next frame; ``None`` when the pipe is closed."""
    head = _read_exactly(pipe, _LENGTH.size)
    return None if head is None else _read_exactly(pipe, _LENGTH.unpack(head)[0])


def _read_exactly(pipe: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(pipe, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(pipe: int, payload: bytes) -> None:
    rest = memoryview(_LENGTH.pack(len(payload)) + payload)
    while rest:
        rest = rest[os.write(pipe, rest) :]


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        pass
    finally:
        sys.stderr.flush()
        os._exit(0)  # V8's threads may still run
