"""A TCP proxy between two processes that makes the network as bad as a test wants it.

It passes bytes on unchanged and in order, and knows nothing of what they mean. Faults are set from
any thread, at any time, and hold for every connection: `cut` and `cut_after` reset connections,
`refuse` has nobody listening, `delay_s` is latency, `bytes_per_s` a narrow line, `silent` a peer
that neither speaks nor hangs up. One thread of its own does all the work.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections import deque
from enum import Enum
from pathlib import Path
from random import SystemRandom
from types import TracebackType

from interop.server_process import Address

_PIECE = 1 << 16  # bytes taken from a socket at once
_HELD = 1 << 18  # bytes that wait in one direction before its source is read no further
_HELD_S = 0.05  # a narrow line may send what it did not use for so long
_DIAL_S = 5.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, drop what was not sent
_HOST = "127.0.0.1"


class Way(Enum):
    """A direction, named by where the bytes go."""

    TO_TARGET = 0
    TO_CLIENT = 1


class LastingPort:
    """A free port that a listener may leave and return to, until it is given back.

    No outgoing connection is given it, and nobody who looks for a free one gets it: a socket that
    does not listen holds it, which does not hinder listeners that set ``SO_REUSEADDR``.
    """

    def __init__(self) -> None:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        never_given: list[int] = [*range(10_000, low), *range(high + 1, 1 << 16)]
        ports = never_given or [*range(10_000, 1 << 16)]
        for port in SystemRandom().sample(ports, min(1_000, len(ports))):
            self._holder = socket.socket()
            try:
                self._holder.bind((_HOST, port))
            except OSError:
                self._holder.close()
                continue
            self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.address = Address(_HOST, port)
            return
        raise OSError("no free port was found")

    def give_back(self) -> None:
        self._holder.close()


def lasting_port() -> int:
    """The number of a port where nobody listens and, as far as it can be known, nobody will."""
    port = LastingPort()
    port.give_back()
    return port.address.port


class _Flow:
    """One direction of one connection: what was read and is not sent yet."""

    def __init__(self, source: socket.socket, sink: socket.socket, way: Way) -> None:
        self.source, self.sink, self.way = source, sink, way
        self.waiting: deque[tuple[float, bytes]] = deque()  # (not before, bytes)
        self.held = 0
        self.ended = False  # the source says no more
        self.closed = False  # and the sink was told
        self.allowance = 0.0
        self.counted_at = time.monotonic()

    def wants_input(self) -> bool:
        return not self.ended and self.held < _HELD

    def due_in(self, now: float, rate: float | None) -> float | None:
        """Seconds until something may be sent; ``None``: there is nothing."""
        if not self.waiting:
            return None
        wait = max(0.0, self.waiting[0][0] - now)
        if rate is not None:
            gained = (now - self.counted_at) * rate
            most = max(1.0, rate * _HELD_S)
            self.allowance = min(most, self.allowance + gained)
            self.counted_at = now
            wait = max(wait, (1.0 - self.allowance) / rate)
        return wait

    def put_back(self, data: bytes) -> None:
        self.waiting.appendleft((0.0, data))
        self.held += len(data)

    def take(self, most: int) -> bytes:
        """The next bytes, no more than ``most``."""
        moment, data = self.waiting.popleft()
        if len(data) > most:
            self.waiting.appendleft((moment, data[most:]))
            data = data[:most]
        self.held -= len(data)
        return data


class _Pair:
    """A client's connection and the one made to the target for it."""

    def __init__(self, client: socket.socket, target: socket.socket) -> None:
        self.sockets = (client, target)
        self.flows = (_Flow(client, target, Way.TO_TARGET), _Flow(target, client, Way.TO_CLIENT))


class Proxy:
    """Listens on a port of its own from the beginning. Leaving its ``with`` statement ends it.

    Attributes:
        address: where clients connect; it stays the same.
        target: where new connections are passed on to; may be changed.
        delay_s: seconds that all bytes are on the way.
        bytes_per_s: what each direction of each connection passes in a second; ``None``: all.
        silent: directions in which nothing is passed on; connections stay open, bytes wait.
        accepted: connections taken so far, those that the target did not take included.
        cuts: how often connections were reset by `cut` and `cut_after`.
        passed: bytes passed on so far, both directions together.
    """

    def __init__(self, target: Address) -> None:
        self.target = target
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.silent: frozenset[Way] = frozenset()
        self.accepted = 0
        self.cuts = 0
        self.passed = 0
        self._port = LastingPort()
        self.address = self._port.address
        self._left: int | None = None  # bytes until the next cut or silence
        self._then = self._cut_all
        self._cut_now = False
        self._listener: socket.socket | None = self._listen()
        self._pairs: list[_Pair] = []
        self._stopping = False
        self._changed = threading.Condition()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # --- faults ---------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset every connection; returns when that is done. New ones are accepted."""
        with self._changed:
            self._cut_now = True
            self._ring()
            self._changed.wait_for(lambda: not self._cut_now or self._stopping, 10)

    def cut_after(self, count: int) -> None:
        """Pass on ``count`` more bytes, over all connections, then reset them all; once."""
        with self._changed:
            self._left, self._then = count, self._cut_all
            self._ring()

    def silence_after(self, count: int) -> None:
        """Pass on ``count`` more bytes, over all connections, then be silent in all directions."""
        with self._changed:
            self._left, self._then = count, self._silence_all
            self._ring()

    def wait_for_cut(self, timeout_s: float = 10.0) -> bool:
        """Wait until the cut that `cut_after` asked for has happened; tell whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._left is None, timeout_s)

    def refuse(self, refused: bool = True) -> None:
        """Have nobody listening, or listen again. Connections that are open stay."""
        with self._changed:
            if refused and self._listener:
                self._listener.close()
                self._listener = None
            elif not refused and self._listener is None:
                self._listener = self._listen()
            self._ring()

    def slow(self, *, delay_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Set latency and throughput; without arguments none and all."""
        with self._changed:
            self.delay_s, self.bytes_per_s = delay_s, bytes_per_s
            self._ring()

    def silence(self, *ways: Way) -> None:
        """Pass nothing on in these directions; without arguments everything again."""
        with self._changed:
            self.silent = frozenset(ways)
            self._ring()

    @property
    def connections(self) -> int:
        """How many are open."""
        with self._changed:
            return len(self._pairs)

    def stop(self) -> None:
        """Reset every connection and end the thread."""
        with self._changed:
            self._stopping = True
            self._ring()
        self._thread.join(10)
        assert not self._thread.is_alive(), "the proxy's thread did not end"

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # --- the thread -----------------------------------------------------------------------------

    def _listen(self) -> socket.socket:
        listener = socket.create_server((self.address.host, self.address.port), backlog=64)
        listener.setblocking(False)
        return listener

    def _ring(self) -> None:
        """Have the thread look again."""
        with contextlib.suppress(OSError):
            self._bell.send(b"!")

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            with self._changed:
                self._stopping = True
                for each in [*self._pairs]:
                    self._drop(each)
                if self._listener:
                    self._listener.close()
                self._port.give_back()
                self._bell.close()
                self._ear.close()
                self._changed.notify_all()

    def _turn(self) -> bool:
        """Wait for something to do and do it; ``False`` when it is to end."""
        with selectors.DefaultSelector() as selector:
            with self._changed:
                events, wait = self._wanted(time.monotonic())
                for end, wanted in events.items():
                    selector.register(end, wanted)
            ready = {key.fd for key, _ in selector.select(wait)}
        with self._changed:
            with contextlib.suppress(BlockingIOError):
                self._ear.recv(1 << 10)
            if self._cut_now:
                self._cut_all()
            if self._listener and self._listener.fileno() in ready:
                self._accept()
            for each in [*self._pairs]:
                self._serve(each, ready)
            self._changed.notify_all()
            return not self._stopping

    def _wanted(self, now: float) -> tuple[dict[socket.socket, int], float | None]:
        """What to wait for, and how long at most."""
        events = {self._ear: selectors.EVENT_READ}
        waits: list[float] = []
        if self._listener:
            events[self._listener] = selectors.EVENT_READ
        for flow in (flow for each in self._pairs for flow in each.flows):
            if flow.wants_input():
                events[flow.source] = events.get(flow.source, 0) | selectors.EVENT_READ
            due = None if flow.way in self.silent else flow.due_in(now, self.bytes_per_s)
            if due == 0:
                events[flow.sink] = events.get(flow.sink, 0) | selectors.EVENT_WRITE
            elif due is not None:
                waits.append(due)
        return events, min(waits, default=None)

    def _accept(self) -> None:
        assert self._listener
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            self.accepted += 1
            try:
                target = self.target.connect(_DIAL_S)
            except OSError:
                _reset(client)
                return
            for end in (client, target):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs.append(_Pair(client, target))

    def _serve(self, each: _Pair, ready: set[int]) -> None:
        try:
            for flow in each.flows:
                if flow.source.fileno() in ready and flow.wants_input():
                    self._read(flow)
                self._write(flow)
        except OSError:
            self._drop(each)
            return
        if each in self._pairs and all(flow.closed for flow in each.flows):
            self._drop(each)

    def _read(self, flow: _Flow) -> None:
        try:
            data = flow.source.recv(_PIECE)
        except BlockingIOError:
            return
        if data:
            flow.waiting.append((time.monotonic() + self.delay_s, data))
            flow.held += len(data)
        else:
            flow.ended = True

    def _write(self, flow: _Flow) -> None:
        rate = self.bytes_per_s
        while flow.way not in self.silent and flow.due_in(time.monotonic(), rate) == 0:
            most = _PIECE if rate is None else int(flow.allowance)
            data = flow.take(most if self._left is None else min(most, self._left))
            try:
                sent = flow.sink.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                flow.put_back(data[sent:])
            self.passed += sent
            flow.allowance -= sent
            if self._left is not None:
                self._left -= sent
                if self._left == 0:
                    self._then()
                    return
            if sent < len(data):
                return
        if flow.ended and not flow.waiting and not flow.closed:
            flow.closed = True
            flow.sink.shutdown(socket.SHUT_WR)

    def _silence_all(self) -> None:
        self._left, self.silent = None, frozenset(Way)

    def _cut_all(self) -> None:
        self._left, self._cut_now = None, False
        self.cuts += 1
        for each in [*self._pairs]:
            self._drop(each)

    def _drop(self, each: _Pair) -> None:
        if each in self._pairs:
            self._pairs.remove(each)
            for end in each.sockets:
                _reset(end)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.close()
