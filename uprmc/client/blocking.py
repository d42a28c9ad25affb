"""The consumer for programs that block: `UprClient` with a handler, and `changes` to iterate over.

    from uprmc.client import Handler, UprClient

    class Printer(Handler):
        def mutation(self, change):
            print(change.key, change.value)

    UprClient("127.0.0.1:11210", Printer(), state="printer.db").run()

`run` calls the handler in the thread that called `run`; `start` makes a thread of its own. Other
threads may call `stop`, `barrier`, `positions`, `metrics` meanwhile.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from uprmc.client.core import ClientBarrier, Metrics, UprCore
from uprmc.client.errors import ClientError, MisuseError, WaitedTooLong
from uprmc.client.follow import OnRollback
from uprmc.client.forgetting import forget
from uprmc.client.handler import Change, Handler
from uprmc.client.lease import Lease
from uprmc.client.node_session import GATHER_GAP_S, NodeSession
from uprmc.client.options import (
    FAREWELL_S,
    Start,
    Until,
    Wishes,
    claimed,
    ends_level,
    prepared,
)
from uprmc.client.position import Position
from uprmc.client.wire import Keeper, Wire

# --- blocking loop --------------------------------------------------------------------------------
# One run of the blocking client: its sockets, and the thread that owns them.
#
# The thread calls the rules, holding the client's lock; other threads wake it by a pair of sockets.
# While a handler works, or the program that runs the loop by steps, the sockets belong to the
# keeper, a second thread: it answers keep-alives.


#: The rules get the time so often, when nothing else happens.
_TURN_S = 0.1


class Loop:
    """The sockets of one `run`, and the thread that owns them; use it in a ``with`` statement.

    Args:
        core: the rules.
        lock: taken around each call of the rules; must be reentrant.
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

    def barrier(self, text: str | None, timeout_s: float | None) -> ClientBarrier:
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
        """Go on until it is to end."""
        for _ in self.steps(reached, timeout_s):
            pass

    def steps(self, reached: Callable[[], bool] | None, timeout_s: float | None) -> Iterator[None]:
        """Go on until it is to end; yields now and then, having saved nothing on purpose."""
        began = time.monotonic()
        while not self._stopping.is_set() and not self.core.streams.finished:
            now = time.monotonic()
            if timeout_s is not None and now - began > timeout_s:
                raise WaitedTooLong(f"the client has run for {timeout_s:g} s")
            self.core.check_patience(self._patience_s, now - began, now)
            with self._lock:
                self._drive(self.core.turn(now))
                self._dial(now)
                self._look_after(now)
            if reached is not None and reached():
                break
            self._wait_and_read()
            with self._keeper:  # the caller may take its time
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
            if not waits or not self.core.streams.finished:
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
                self.core.ended(place, None, error, now)
            else:
                self._wires[wire] = None

    def _ended_by(self, wire: Wire, error: ClientError, now: float) -> None:
        """A connection is over, or never came about; some errors end the client."""
        session = self._wires.pop(wire)
        self._unregister(wire)
        wire.close()
        self.core.ended(wire.place, session, error, now)

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
            with contextlib.suppress(ClientError):  # it is raised when it is read
                wire.write(answers)


# --- blocking -------------------------------------------------------------------------------------


class UprClient:
    """A consumer. See the module docstring.

    Args:
        nodes: HOST:PORT of each node's upr listener, one text or several.
        handler: what to do with changes.
        state: where positions are kept: a path (a SQLite file), any `StateStore`, or ``None`` = in
            memory, which means to begin again at each start. A store that is given stays open.
        name: of this consumer; a state belongs to one name.
        vbuckets: which to follow, ``None`` = all that are active on the nodes.
        total_vbuckets: how many the documents are spread over; ``None`` = the state says, or if it
            is new, the nodes. A node with another number is refused when it is first reached.
        tls: how to speak TLS to the nodes, ``None`` = not at all.
        credentials: who logs in to the nodes, ``None`` = no user.
        connect_timeout_s: an attempt to connect is given up after so long.
        patience_s: `run` raises if no node was ever reached after so long, ``None`` = it waits.
            Once one was reached it dials for ever.
        register: as which kind of client the nodes keep deletions for this consumer until they are
            saved here: ``other``, ``xdcr``, ``index``, ``backup``, ``spark``; ``True`` = other;
            ``False`` = they do not; ``None`` = other if the state outlives the process.
        instance: the id of this registration, ``None`` = one that the state keeps.
        register_s: how long it outlives the last report; 0 = as long as the node likes.
        on_purged: where deletions were purged before they came: ``restart`` from zero, ``fail``, or
            a function of vBucket, seqno held, and why, that returns one of these words; ``None`` =
            fail if `on_rollback` does, else restart.
        wishes: `options.Wishes`; those that are not named here are described in `options.Options`.

    Raises:
        MisuseError: the arguments make no sense, or the handler has a method that is never called.
        StateRefused: the state is not this consumer's, or cannot be used.
    """

    def __init__(
        self,
        nodes: str | Iterable[str],
        handler: Handler,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = 5.0,
        patience_s: float | None = 10.0,
        **wishes: Unpack[Wishes],
    ) -> None:
        self._nodes, self._options, self._state, self._owns_state = prepared(
            nodes, handler, wishes, blocks=True, tls=tls is not None
        )
        self._handler = handler
        self._tls = tls
        self._connections: dict[str, Any] = {
            "tls": tls,
            "connect_timeout_s": connect_timeout_s,
            "patience_s": patience_s,
        }
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        self._running: Loop | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._last: UprCore | None = None

    # --- running --------------------------------------------------------------------------------

    def run(self, until: Until = None, *, timeout_s: float | None = None) -> None:
        """Follow the nodes until `stop` is called, or `until` is reached.

        Args:
            until: ``"now"`` = until everything has come that was there; or a function that is asked
                after each batch.
            timeout_s: how long at most.

        Raises:
            NodeUnavailable: no node was ever reached.
            ProducerError: a node sends nonsense; what is saved is intact.
            RollbackRefused: a node's history has left ours, and `on_rollback` is ``fail``.
            DeletionsPurged: deletions were purged before they came, and `on_purged` is ``fail``.
            StateError: the state could not be written.
            WaitedTooLong: `timeout_s` is over.
            Exception: whatever the handler raised.
        """
        with self.running_loop(until) as loop:
            loop.run(until if callable(until) else None, timeout_s)

    def start(self) -> None:
        """Run in a thread of its own; `join` tells how it ended."""
        if self._thread is not None and self._thread.is_alive():
            raise MisuseError("the client runs already")
        self._error = None
        self._thread = threading.Thread(
            target=self._run_quietly, args=[self.running_loop(None)], name="uprmc-client"
        )
        self._thread.daemon = True
        self._thread.start()

    def _run_quietly(self, loop: Loop) -> None:
        try:
            with loop:
                loop.run(None, None)
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        """End `run` after the present batch; of a thread, wait for it. From any thread."""
        self._stopping.set()
        with self._lock:
            if self._running is not None:
                self._running.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread that `start` made, and raise what it ended with."""
        if self._thread is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise WaitedTooLong(f"the client still runs after {timeout_s} s")
        self._thread = None
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop, wait for the end, and close the state if its path was given.

        Raises:
            MisuseError: the handler called it.
        """
        with self._lock:
            if self._running is not None and self._running.is_ours:
                raise MisuseError("a handler cannot close the client that calls it: say stop")
        self.stop()
        with self._ended:
            self._ended.wait_for(lambda: self._running is None)
        if self._owns_state:
            self._state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def running_loop(self, until: Until) -> Loop:
        """Return what runs the client; use it in a ``with`` statement."""
        until_now = ends_level(until)
        with self._lock:
            if self._running is not None:
                raise MisuseError("the client runs already")
            give_back = claimed(self._state)
            try:
                options = replace(self._options, until_now=until_now)
                core = UprCore(self._nodes, self._handler, self._state, options)
            except BaseException:
                give_back()
                raise
            self._stopping.clear()
            loop = self._running = Loop(
                core,
                self._lock,
                self._stopping,
                partial(self._over, give_back),
                **self._connections,
            )
            self._last = loop.core
            return loop

    def _over(self, give_back: Callable[[], None]) -> None:
        give_back()
        self._running = None
        self._ended.notify_all()

    # --- while it runs --------------------------------------------------------------------------

    def barrier(self, text: str | None = None, timeout_s: float | None = None) -> None:
        """Return when everything that was acknowledged by a node before this call is handed over.

        Called by another thread than the one that runs; if none runs, this one does meanwhile.

        Raises:
            ConnectionLost: a connection or stream ended meanwhile; ask again.
            WaitedTooLong: `timeout_s` is over.
            MisuseError: the handler called it; its text is in use, empty or too long.
        """
        with self._lock:
            loop = self._running
        if loop is None:
            with self.running_loop(None) as alone:
                barrier = alone.core.barrier(text)
                alone.run(lambda: barrier.done, timeout_s)
        else:
            barrier = loop.barrier(text, timeout_s)
        if barrier.error is not None:
            raise barrier.error

    def lease(
        self, vbuckets: Iterable[int] = (), lifetime_s: float = 60.0, *, node: str | None = None
    ) -> Lease:
        """Hold a node's vBuckets as they are at this moment, to be read as often as wanted.

        Where the client is registered, what reads the lease counts as registered, too.

        Args:
            vbuckets: which, none = all that are active there.
            lifetime_s: for how long.
            node: which, ``None`` = the first that was named.

        Raises:
            ClientError: the node does not answer, or refuses.
        """
        reader = (self.instance or "").encode()
        return Lease(
            node or self._nodes[0],
            vbuckets,
            lifetime_s,
            tls=self._tls,
            credentials=self._options.credentials,
            reader=reader,
        )

    @property
    def instance(self) -> str | None:
        """The id under which it is registered with nodes, ``None`` = it is not."""
        known_as = self._options.instance
        return None if known_as is None else known_as.id.decode()

    def forget(self, vbuckets: Iterable[int] | None = None) -> list[int]:
        """Have the nodes keep no deletions for it any longer, because its state ends for good.

        If it runs again, it is registered again.

        Args:
            vbuckets: in which, ``None`` = in all. While the client runs, only those that it does
                not follow can be forgotten.

        Returns:
            the vBuckets in which it was registered.

        Raises:
            MisuseError: it is not registered, or it runs.
            ClientError: see `forgetting.forget`.
        """
        if self.instance is None:
            raise MisuseError("the client is not registered")
        with self._lock:
            if vbuckets is None and self._running is not None:
                raise MisuseError("the client runs: stop it before it is forgotten")
        credentials = self._options.credentials
        return forget(self._nodes, self.instance, vbuckets, tls=self._tls, credentials=credentials)

    def positions(self) -> dict[int, Position]:
        """Return the last whole snapshot of each vBucket, as `start` takes it."""
        with self._lock:
            return {} if self._last is None else self._last.positions()

    def metrics(self) -> Metrics:
        """Return how it goes, in numbers."""
        with self._lock:
            return Metrics({}, {}) if self._last is None else self._last.metrics(time.monotonic())


# --- an iterator --------------------------------------------------------------------------------


class _Collector(Handler):
    """Keeps changes until they are taken."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def mutation(self, change: Change) -> None:
        self.changes.append(change)

    def deletion(self, change: Change) -> None:
        self.changes.append(change)


def changes(
    nodes: str | Iterable[str],
    *,
    start: Start = "beginning",
    until: Until = None,
    on_rollback: OnRollback = "fail",
    **options: Any,
) -> Iterator[Change]:
    """Yield the changes of nodes as they come.

    Nothing is saved, and nothing can be undone: should a node's history leave what was yielded,
    `RollbackRefused` is raised, unless `on_rollback` is ``rewind`` or ``restart``.

    Args:
        nodes, start, on_rollback, options: as of `UprClient`.
        until: as of `UprClient.run`; ``None`` = for ever.

    Raises:
        ClientError: as `UprClient.run`.
    """
    collector = _Collector()
    found = collector.changes
    with UprClient(nodes, collector, start=start, on_rollback=on_rollback, **options) as client:
        with client.running_loop(until) as loop:
            for _ in loop.steps(until if callable(until) else None, None):
                if found:
                    batch = found.copy()
                    found.clear()
                    yield from batch
        yield from found
