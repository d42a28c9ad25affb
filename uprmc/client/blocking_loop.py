"""One run of the blocking client: its sockets, and the thread that owns them.

The thread calls the rules, holding the client's lock; other threads wake it by a pair of sockets.
While a handler works, or whoever runs the loop by steps, the sockets belong to the keeper, a second
thread: it answers keep-alives.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from uprmc.client.barriers import Barrier
from uprmc.client.bursts import GATHER_GAP_S
from uprmc.client.core import UprCore
from uprmc.client.errors import ClientError, MisuseError, WaitedTooLong
from uprmc.client.keeper import Keeper
from uprmc.client.node_session import NodeSession
from uprmc.client.starting import FAREWELL_S, check_patience, connection_ended
from uprmc.client.wire import Wire

#: The time is told to the rules so often, when nothing else happens.
_TURN_S = 0.1


class Loop:
    """The sockets of one `run`, and the thread that owns them; use it in a ``with`` statement.

    Args:
        core: the rules.
        lock: whoever calls the rules holds it; must be reentrant.
        stopping: when set, the run ends after the present batch.
        ended: called once at the end, with the lock held.
        tls, connect_timeout_s, patience_s: as of `blocking.UprClient`.
    """

    def __init__(
        self,
        core: UprCore,
        lock: threading.RLock,
        stopping: threading.Event,
        ended: Callable[[], None],
        *,
        tls: ssl.SSLContext | None,
        connect_timeout_s: float,
        patience_s: float | None,
    ) -> None:
        self.core = core
        self._lock = lock
        self._stopping = stopping
        self._tell_end = ended
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._patience_s = patience_s
        self._wires: dict[Wire, NodeSession | None] = {}
        self._registered: dict[Wire, tuple[int, int, int]] = {}
        self._selector = selectors.DefaultSelector()
        self._thread = 0
        self._barrier_done = threading.Condition(lock)
        self._keeper = Keeper(core.options.noop_interval_s, self._keep)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._ended = False

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        self._keeper.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keeper.stop()
        with self._lock:
            self._ended = True
            try:
                self._clean_up(error)
            finally:
                self._tell_end()
                self._barrier_done.notify_all()

    def _clean_up(self, error: BaseException | None) -> None:
        self.core.close()
        for wire in self._wires:
            wire.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
        abandon = getattr(self.core.writer.state, "abandon", None)
        if error is not None and abandon is not None:
            abandon()

    @property
    def is_ours(self) -> bool:
        """Whether this very thread runs it."""
        return threading.get_ident() == self._thread

    def wake(self) -> None:
        """Have the thread look around."""
        try:
            self._wake_in.send(b"\0")
        except OSError:
            return

    def barrier(self, text: str | None, timeout_s: float | None) -> Barrier:
        """Wait for a barrier in another thread."""
        if self.is_ours:
            raise MisuseError("a handler cannot wait for a barrier: it is what would have to run")
        with self._barrier_done:
            if self._ended:
                raise MisuseError("the client does not run")
            barrier = self.core.barrier(text)
            self.wake()
            if not self._barrier_done.wait_for(lambda: barrier.done, timeout_s):
                self.core.forget_barrier(barrier)
                raise WaitedTooLong(f"the barrier was not reached in {timeout_s} s")
            return barrier

    # --- the loop -------------------------------------------------------------------------------

    def run(self, reached: Callable[[], bool] | None, timeout_s: float | None) -> None:
        """Go on until told otherwise."""
        for _ in self.steps(reached, timeout_s):
            pass

    def steps(self, reached: Callable[[], bool] | None, timeout_s: float | None) -> Iterator[None]:
        """Go on until told otherwise; yields now and then, having saved nothing on purpose."""
        began = time.monotonic()
        while not self._stopping.is_set() and not self.core.completeness.finished:
            now = time.monotonic()
            if timeout_s is not None and now - began > timeout_s:
                raise WaitedTooLong(f"the client has run for {timeout_s:g} s")
            check_patience(self.core, self._patience_s, now - began, now)
            with self._lock:
                self._drive(self.core.turn(now))
                self._dial(now)
                self._look_after(now)
            if reached is not None and reached():
                break
            self._wait_and_read()
            with self._keeper:  # whoever steps may take its time
                yield
        with self._lock:
            self._drive(self.core.idle())
        with contextlib.suppress(ClientError):  # all is saved; it is reported when it runs again
            self._report_rest()

    def _report_rest(self) -> None:
        """Tell the nodes what is saved; wait for their answers if they send nothing else."""
        until = time.monotonic() + FAREWELL_S
        while time.monotonic() < until:
            with self._lock:
                waits = self.core.report_rest()
                self._look_after(time.monotonic())
            if not waits or not self.core.completeness.finished:
                break
            self._wait_and_read()

    def _wait_and_read(self) -> None:
        ready = self._selector.select(0)
        if not ready and not any(wire.pending for wire in self._wires):
            with self._lock:
                self._drive(self.core.idle(time.monotonic()))
            ready = self._selector.select(GATHER_GAP_S if self.core.is_gathering else _TURN_S)
        with self._lock:
            for key, events in ready:
                if isinstance(key.fileobj, Wire):
                    self._serve(key.fileobj, events)
                else:
                    self._wake_out.recv(4096)
            for wire in list(self._wires):
                if wire.pending:
                    self._serve(wire, selectors.EVENT_READ)
            self._barrier_done.notify_all()

    def _serve(self, wire: Wire, events: int) -> None:
        now = time.monotonic()
        session = self._wires.get(wire)
        try:
            if not wire.ready:
                if wire.advance():
                    self._wires[wire] = self._drive(self.core.connected(wire.place, now))
            elif session is not None:
                if events & selectors.EVENT_READ:
                    data = wire.read()
                    if data:
                        session.decoded = False  # nothing may be heard ahead of what was just read
                        self._drive(self.core.received(session, data, now))
                wire.write(session.data_to_send())
        except ClientError as error:
            self._ended_by(wire, error, now)

    def _look_after(self, now: float) -> None:
        """Send what is to be sent, hang up where need be, tell the selector what we wait for."""
        for wire, session in list(self._wires.items()):
            try:
                wire.too_late(now, ready=session is not None and session.open)
                if session is not None:
                    if session.error is not None:
                        raise session.error
                    wire.write(session.data_to_send())
            except ClientError as error:
                self._ended_by(wire, error, now)
            else:
                self._register(wire)

    def _register(self, wire: Wire) -> None:
        wanted = (wire.fileno(), wire.wants(), wire.sockets)
        known = self._registered.get(wire)
        if known == wanted:
            return
        self._unregister(wire)
        self._selector.register(wire, wanted[1])
        self._registered[wire] = wanted

    def _unregister(self, wire: Wire) -> None:
        known = self._registered.pop(wire, None)
        if known is not None:
            self._selector.unregister(known[0])

    def _dial(self, now: float) -> None:
        for place in self.core.due(now):
            try:
                wire = Wire(place, self._tls, now + self._connect_timeout_s)
            except ClientError as error:
                connection_ended(self.core, place, None, error, now)
            else:
                self._wires[wire] = None

    def _ended_by(self, wire: Wire, error: ClientError, now: float) -> None:
        """A connection is over, or never came about; some errors end the client."""
        session = self._wires.pop(wire)
        self._unregister(wire)
        wire.close()
        connection_ended(self.core, wire.place, session, error, now)

    def _drive(self, task: Any) -> Any:
        """Run rules to their end; a handler that blocks has nothing to wait for."""
        with self._keeper:
            try:
                found = next(task)
            except StopIteration as ended:
                return ended.value
        task.close()
        raise MisuseError(
            f"the handler returned {type(found).__name__}: with the blocking client its methods "
            "return nothing"
        )

    def _keep(self) -> None:
        """Answer keep-alives in the place of a thread that is with a handler."""
        sessions = [(wire, each) for wire, each in self._wires.items() if each is not None]
        if not all(session.decoded for _, session in sessions):
            return
        for wire, session in sessions:
            answers = b""
            while data := wire.read_ahead(session.room_ahead):
                answers += session.hear_ahead(data)
            with contextlib.suppress(ClientError):  # told when it is read
                wire.write(answers)
