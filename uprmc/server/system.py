"""What this process is to the machine: clocks, randomness, memory, and its service manager."""

# mypy: allow-untyped-calls
from __future__ import annotations

import ctypes
import gc
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from twisted.internet.task import LoopingCall

# --- clocks and randomness ------------------------------------------------------------------------
# The real clock and the real source of identifiers; simulated ones live in ``tests/sim``.


#: A year before the last date that a record can hold, in Unix seconds.
LATEST_DATE = 2**32 - 1 - 366 * 86_400


class SystemClock:
    """The machine's clocks: `ports.Clock`."""

    def now(self) -> float:
        """Return Unix time in seconds; it follows every adjustment of the machine's clock.

        A clock that shows no date of 1970 to 2105 is read as the nearest of them: records hold
        dates in 32 bits, and a document's may lie some time after now.
        """
        return min(max(time.time(), 0.0), LATEST_DATE)

    #: Seconds since some fixed moment; it never goes back.
    monotonic = staticmethod(time.monotonic)


class SystemEntropy:
    """`ports.Entropy` from the operating system's generator, so no two nodes ever agree."""

    def uuid48(self) -> int:
        """Return a random number in ``1 .. 2**48 - 1``."""
        return int.from_bytes(os.urandom(6)) or 1


# --- allocator ------------------------------------------------------------------------------------
# How the C library's allocator keeps this process's memory: in one arena, and not for long.
#
# By default glibc gives each thread an arena of its own, so what the committing thread frees is of
# no use to the reactor; and it keeps freed memory at the top of the heap in proportion to the
# largest block that was ever freed. Both show as memory beyond the quota. The reactor's thread
# allocates nearly everything, under the interpreter's lock, so one arena costs it nothing.
#
# Where the C library is another one nothing happens, and nothing is lost but memory.


_M_TRIM_THRESHOLD, _M_ARENA_MAX = -1, -8

#: Free memory at the heap's end that is kept; less costs system calls, more is out of reach.
_KEPT_BYTES = 64 * 1_024


def keep_little_memory() -> bool:
    """Set the limits; call it before the first thread is started.

    Returns:
        whether the C library took them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, 1) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))


# --- collector ------------------------------------------------------------------------------------
# Keeping Python's cycle collector away from the data.
#
# A node holds millions of items that are in no cycle; reference counting frees them. Left alone the
# collector would walk all of them again and again, a tenth of a second for a million. So automatic
# collection is off, and a few times a second the youngest objects are looked at and whatever lives
# is moved out of the collector's sight (`gc.freeze` costs nothing).
#
# Note: a cycle that survives one such look and becomes garbage later is never freed. So
# connections, sessions and requests must not be in a cycle once they are done; ``tests/server``
# checks that with the collector off.


def take_collector_over() -> None:
    """Stop automatic collection; collect once what start-up left behind."""
    gc.disable()
    gc.collect()
    gc.freeze()


def collect_young() -> None:
    """Free young cycles, let everything else be. Call it often; costs what is new since."""
    gc.collect(0)
    gc.freeze()


def give_collector_back() -> None:
    """Return to Python's own ways: the node has stopped."""
    gc.unfreeze()
    gc.enable()


# --- the service manager --------------------------------------------------------------------------
# What a service manager such as systemd is told: starting, ready, reloading, stopping, alive.
#
# A message is one datagram of ``NAME=value`` lines to the unix socket that ``NOTIFY_SOCKET`` names
# (sd_notify(3)). Where nobody asks for them, nothing is sent.


_PULSE_S = 5.0
#: How much longer the manager waits after each pulse of a start or a stop.
_EXTENSION_S = 30
#: Messages that wait for room in the manager's socket; of more the oldest are lost.
_WAITING_MAX = 16
_USEC = 1_000_000


class ServiceManager:
    """Tells the manager of this process; harmless where there is none."""

    def __init__(self, reactor: Any, environment: Mapping[str, str]) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self._waiting: deque[bytes] = deque(maxlen=_WAITING_MAX)
        self._watchdog_s = _watchdog_s(environment)
        self._status: Callable[[], str] | None = None
        self._pulse = LoopingCall(self._beat)
        self._pulse.clock = reactor
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def starting(self, status: Callable[[], str]) -> None:
        """Tell how the start gets on, again and again; it may take as long as it needs."""
        self._busy(status)

    def ready(self, status: str) -> None:
        """Tell that it serves; from now on only the watchdog is told anything."""
        self._status = None
        self._tell("READY=1", f"STATUS={status}")
        if self._pulse.running and not self._watchdog_s:
            self._pulse.stop()

    def reloading(self) -> None:
        """Tell that settings are read again; `reloaded` ends it."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}")

    def reloaded(self) -> None:
        """Tell that it is over, whether it succeeded or not."""
        self._tell("READY=1")

    def stopping(self, status: Callable[[], str]) -> None:
        """Tell that it stops and how that gets on, until it is `closed`."""
        self._tell("STOPPING=1")
        self._busy(status)

    def close(self) -> None:
        """Tell nothing any more; harmless twice."""
        if self._pulse.running:
            self._pulse.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _busy(self, status: Callable[[], str]) -> None:
        self._status = status
        if self._socket is None:
            return
        if self._pulse.running:
            self._beat()
        else:
            self._pulse.start(min(_PULSE_S, self._watchdog_s / 2 or _PULSE_S), now=True)

    def _beat(self) -> None:
        lines = ["WATCHDOG=1"] if self._watchdog_s else []
        if self._status is not None:
            lines += [f"STATUS={self._status()}", f"EXTEND_TIMEOUT_USEC={_EXTENSION_S * _USEC}"]
        self._tell(*lines)

    def _tell(self, *lines: str) -> None:
        if self._socket is None:
            return
        self._waiting.append("\n".join(" ".join(line.split()) for line in lines).encode())
        with suppress(OSError):  # it has no room, or is gone: the next pulse tries again
            while self._waiting:
                self._socket.sendto(self._waiting[0], self._address)
                self._waiting.popleft()


def _address(name: str) -> str:
    """Return what to send to; a name that begins with ``@`` is in no file system."""
    return "\0" + name[1:] if name.startswith("@") else name if name.startswith("/") else ""


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return how long this process may be silent; 0 = for ever."""
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if pid not in ("", str(os.getpid())) or not (usec.isascii() and usec.isdecimal()):
        return 0.0
    return int(usec[:20]) / _USEC
