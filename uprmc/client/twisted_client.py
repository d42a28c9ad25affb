"""The consumer for programs that live in Twisted's reactor: the same rules, and Deferreds.

    from uprmc.client.twisted_client import TwistedUprClient

    client = TwistedUprClient("127.0.0.1:11210", handler, state="printer.db")
    ended = client.run()

Methods of the handler may return Deferreds or coroutines. Until such a thing fires nothing more is
handed over, and sockets are read no further: the node is held back. Everything is to be called in
the reactor's thread.

The state is committed in the reactor's thread, too: one commit for each batch, some milliseconds on
a disk that syncs. Another thread would gain little, because the batch has to wait for its commit
anyway, and a state that shares the handler's SQLite connection belongs to the thread that made it.
A program for which that is too long says ``SqliteState(sync="normal")`` or runs a `blocking` client
in a thread.

Importing `uprmc.client` imports no Twisted; importing this installs no reactor.
"""

# ruff: noqa: N802  # Twisted's names
# mypy: allow-untyped-calls

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Unpack, cast
from typing import Protocol as Interface

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.internet.endpoints import (
    HostnameEndpoint,
    TCP4ClientEndpoint,
    TCP6ClientEndpoint,
    UNIXClientEndpoint,
    connectProtocol,
)
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IHandshakeListener,
    ISSLTransport,
    IStreamClientEndpoint,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.threads import deferToThreadPool
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.client.core import ClientBarrier, Metrics, UprCore
from uprmc.client.errors import (
    ClientError,
    MisuseError,
    NodeUnreachable,
    TlsFailed,
    WaitedTooLong,
    ended,
)
from uprmc.client.forgetting import forget
from uprmc.client.handler import Handler
from uprmc.client.node_session import GATHER_GAP_S, NodeSession, Task
from uprmc.client.options import (
    FAREWELL_S,
    Until,
    Wishes,
    claimed,
    ends_level,
    prepared,
)
from uprmc.client.position import Position
from uprmc.client.state import Saved
from uprmc.places import parsed, tls_refusal
from uprmc.protocol.opcodes import HEADER_BYTES
from uprmc.remote.directory import Directory

__all__ = ["TwistedUprClient", "over_tcp", "over_tls"]

# --- twisted link ---------------------------------------------------------------------------------
# Connections of the Twisted client: endpoints, TLS, bytes to and fro, and reading no further.
#
# A `TwistedLink` is one connection to one node, from the attempt to connect until nothing of it is
# left in the reactor. It keeps what it hears until its owner takes it. Failures are named:
# unreachable, TLS, lost.


#: Makes what connects to a node: of reactor, host, port.
MakeEndpoint = Callable[[Any, str, int], Any]

#: So much is read before it is dealt with: one commit of the state for so much.
BATCH_MAX_BYTES = 1024 * 1024


def over_tcp(reactor: Any, host: str, port: int) -> Any:
    """Return an endpoint without TLS; a host that begins with a slash is a unix socket.

    Addresses are not looked up: that would take a thread.
    """
    if host.startswith("/"):
        return UNIXClientEndpoint(reactor, host)
    if isIPAddress(host):
        return TCP4ClientEndpoint(reactor, host, port)
    if isIPv6Address(host):
        return TCP6ClientEndpoint(reactor, host, port)
    return HostnameEndpoint(reactor, host, port)


def over_tls(options: Callable[[str], Any]) -> MakeEndpoint:
    """Return what makes endpoints with TLS.

    Args:
        options: of a host's name, such as `twisted.internet.ssl.optionsForClientTLS`, which trusts
            what the system trusts, or one with a `trustRoot` of your own.
    """

    def endpoint(reactor: Any, host: str, port: int) -> Any:
        name = "localhost" if host.startswith("/") else host
        return _TlsEndpoint(reactor, options(name), over_tcp(reactor, host, port))

    return endpoint


@implementer(IStreamClientEndpoint)
class _TlsEndpoint:
    """Does what `wrapClientTLS` does, whose small writes would wait in the process's reactor."""

    def __init__(self, reactor: Any, options: Any, endpoint: Any) -> None:
        self._reactor = reactor
        self._options = options
        self._endpoint = endpoint

    def connect(self, factory: Any) -> Deferred[Any]:
        """See `IStreamClientEndpoint`."""
        wrapped = TLSMemoryBIOFactory(self._options, True, factory, self._reactor)
        connecting: Deferred[Any] = self._endpoint.connect(wrapped)
        return connecting.addCallback(lambda protocol: protocol.wrappedProtocol)


class LinkOwner(Interface):
    """Who deals with what links hear.

    Attributes:
        held: it is busy: links read no further.
    """

    held: bool

    def hear(self) -> None:
        """A link is ready, has heard something, or has ended."""

    def left(self, link: TwistedLink) -> None:
        """Nothing of a link is left in the reactor."""


@implementer(IHandshakeListener)
class TwistedLink(Protocol):
    """One connection to one node, from the attempt to its end."""

    def __init__(self, owner: LinkOwner, place: str, deadline: float) -> None:
        self.place = place  # HOST:PORT
        self.session: NodeSession | None = None  # the rules of it, once it is ready
        # ready: connected, TLS agreed upon.
        # gone: nothing of it is left in the reactor.
        # paused: nothing is read from it for now.
        self.ready = self.gone = self.paused = False
        self.lost: ClientError | None = None  # why it ended or never came about
        self._owner = owner
        self._deadline = deadline
        self._tls = self._answered = False
        self._connecting: Deferred[Any] | None = None
        self._pieces: list[bytes] = []
        self._size = self._heard = 0
        self._listens_ahead = False

    # --- coming and going -----------------------------------------------------------------------

    def dial(self, endpoint: Any) -> None:
        """Connect."""
        self._connecting = connectProtocol(endpoint, self)
        self._connecting.addErrback(self._unreachable)

    def _unreachable(self, reason: Failure) -> None:
        self._end(
            NodeUnreachable(
                f"no node answers at {self.place}: {_why(reason)}; is it running, and is this its "
                "upr listener?"
            )
        )

    def connectionMade(self) -> None:
        """The socket is connected."""
        self._tls = ISSLTransport.providedBy(self.transport)
        if ITCPTransport.providedBy(self.transport):
            cast(Any, self.transport).setTcpNoDelay(True)
        if not self._tls:
            self.handshakeCompleted()

    def handshakeCompleted(self) -> None:
        """Both sides agree on TLS, or there is none."""
        self.ready = True
        self._owner.hear()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The socket is closed."""
        if self._tls and not self.ready:
            self._end(TlsFailed(tls_refusal(self.place, _why(reason))))
        else:
            self._end(ended(self.place, _why(reason), doubtful=not (self._tls or self._answered)))

    def _end(self, error: ClientError) -> None:
        self.gone, self.lost = True, error
        self._owner.left(self)

    def too_late(self, now: float) -> None:
        """Raise `NodeUnreachable` if connecting takes too long."""
        if not self.ready and not self.gone and now > self._deadline:
            raise NodeUnreachable(f"no node answers at {self.place} in time; see the network")

    def hang_up(self) -> None:
        """Close the socket at once; what was not sent is dropped."""
        if self.transport is not None:
            cast(Any, self.transport).abortConnection()
        elif self._connecting is not None:
            self._connecting.cancel()

    # --- bytes ----------------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Keep what has come; while the handler is busy, answer keep-alives in it.

        No more is read than a batch, or what the node may be ahead while the handler is busy.
        """
        self._pieces.append(data)
        self._size += len(data)
        self._answered = self._answered or len(data) >= HEADER_BYTES
        if self._listens_ahead:
            self.hear_ahead()
        elif self._owner.held or self._size >= BATCH_MAX_BYTES:
            self._pause()
        self._owner.hear()

    def hear_ahead(self) -> None:
        """The handler has been busy for long: answer the keep-alives in what was read, and read on.

        No further than the node may be ahead.
        """
        session = self.session
        if session is None or self.gone or not session.room_ahead:
            self._pause()
            return
        self._listens_ahead = True
        answers = b"".join(session.hear_ahead(piece) for piece in self._pieces[self._heard :])
        self._heard = len(self._pieces)
        if answers:
            cast(Any, self.transport).write(answers)
        if not session.room_ahead:
            self._pause()
        elif self.paused:
            self.paused = False
            cast(Any, self.transport).resumeProducing()

    def _pause(self) -> None:
        if not self.paused and not self.gone and self.transport is not None:
            self.paused = True
            cast(Any, self.transport).pauseProducing()

    @property
    def held_bytes(self) -> int:
        """What has come, from the batch that is being handed over on."""
        decoder = self.session.decoder if self.session is not None else None
        handed = decoder.counted_bytes + len(decoder.begun) if decoder is not None else 0
        return self._size + handed

    def take(self) -> bytes:
        """Return what has come."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = self._heard = 0
        self._listens_ahead = False
        self.read_on()
        return data

    def read_on(self) -> None:
        """Read again, unless a batch waits."""
        if self.paused and self._size < BATCH_MAX_BYTES:
            self.paused = False
            cast(Any, self.transport).resumeProducing()


def _why(reason: Failure) -> str:
    if isinstance(reason.value, ConnectionDone):
        return "it closed the connection"
    return " ".join(str(reason.value).split()) or type(reason.value).__name__


# --- twisted loop ---------------------------------------------------------------------------------
# One run of the Twisted client: the coroutine that calls the rules, and its connections.
#
# `TwistedLoop.run` is the only one who calls the rules; links put what they hear where it looks. So
# nothing of the rules runs within anything else of them, whatever the reactor does meanwhile.
#
# A batch is what the reactor has read until nothing more was there, or until a link is full.


#: While a handler is busy, keep-alives are looked for so often in their interval.
_LOOKS = 4

#: The rules get the time so often, when nothing else happens.
_TURN_S = 0.1


class TwistedLoop:
    """One `run`: its connections, and the coroutine that calls the rules."""

    def __init__(
        self,
        core: UprCore,
        give_back: Callable[[], None],
        reactor: Any,
        endpoint: MakeEndpoint,
        connect_timeout_s: float,
        patience_s: float | None,
    ) -> None:
        self.core = core  # the rules
        # held: something that the handler returned has not fired yet.
        # ended: nothing of it is left.
        self.held = self.ended = False
        self.heard = 0  # counts what has come
        self._give_back = give_back
        self._reactor = reactor
        self._endpoint = endpoint
        self._connect_timeout_s = connect_timeout_s
        self._patience_s = patience_s
        self._links: list[TwistedLink] = []
        self._leaving: set[TwistedLink] = set()
        self._stopping = False
        self._period_s = core.options.noop_interval_s / _LOOKS
        self._looking: Any = None
        self._waiting: Deferred[None] | None = None
        self._barriers: list[tuple[ClientBarrier, Deferred[None]]] = []
        self._stopped: list[Deferred[None]] = []

    def cancelled(self, _: object) -> None:
        """Nobody waits for the end any more."""
        self.stop()

    def stop(self) -> Deferred[None]:
        """End; fires when it has ended."""
        self._stopping = True
        stopped: Deferred[None] = Deferred()
        self._stopped.append(stopped)
        self.hear()
        return stopped

    # --- barriers -------------------------------------------------------------------------------

    def barrier(self, text: str | None) -> Deferred[None]:
        """Return what fires when a barrier is reached, or broken."""
        barrier = self.core.barrier(text)
        if barrier.error is not None:
            return fail(barrier.error)
        waiting: Deferred[None] = Deferred(lambda _: self.core.forget_barrier(barrier))
        self._barriers.append((barrier, waiting))
        self.hear()
        return waiting

    def _tell_barriers(self) -> None:
        found, self._barriers = self._barriers, []
        for barrier, waiting in found:
            if waiting.called:  # nothing waits any more
                continue
            if not barrier.done:
                self._barriers.append((barrier, waiting))
            elif barrier.error is None:
                waiting.callback(None)
            else:
                waiting.errback(barrier.error)

    # --- waiting --------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the coroutine look around."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)

    def hear(self) -> None:
        """Something has come, from a connection or the program."""
        self.heard += 1
        self.wake()

    async def _wait(self, limit_s: float) -> None:
        """Wait until something happens, `limit_s` at most."""
        waiting = self._waiting = Deferred()
        timer = self._reactor.callLater(limit_s, self.wake)
        try:
            await waiting
        finally:
            if timer.active():
                timer.cancel()

    async def _gather(self) -> None:
        """Let the reactor read until nothing more is there, or a batch is full."""
        heard = -1
        while heard != self.heard and not any(link.paused for link in self._links):
            heard = self.heard
            turn: Deferred[None] = Deferred()
            self._reactor.callLater(0, turn.callback, None)
            await turn

    # --- the loop -------------------------------------------------------------------------------

    async def run(self, reached: Callable[[], bool] | None, timeout_s: float | None) -> None:
        """Go on until it is to end, then clean up."""
        self._looking = self._reactor.callLater(self._period_s, self._look)
        try:
            await self._follow(reached, timeout_s)
            await self._drive(self.core.idle())
            with suppress(ClientError):  # all is saved; it is reported when it runs again
                await self._report_rest()
        except BaseException:
            abandon = getattr(self.core.writer.state, "abandon", None)
            if abandon is not None:
                abandon()
            raise
        finally:
            await self._clean_up()

    async def _follow(self, reached: Callable[[], bool] | None, timeout_s: float | None) -> None:
        began = time.monotonic()
        while not self._stopping and not self.core.streams.finished:
            now = time.monotonic()
            if timeout_s is not None and now - began > timeout_s:
                raise WaitedTooLong(f"the client has run for {timeout_s:g} s")
            self.core.check_patience(self._patience_s, now - began, now)
            await self._drive(self.core.turn(now))
            self._dial(now)
            self._look_after(now)
            if reached is not None and reached():
                break
            await self._wait_and_serve()

    async def _report_rest(self) -> None:
        """Tell the nodes what is saved; wait for their answers if they send nothing else."""
        until = time.monotonic() + FAREWELL_S
        while time.monotonic() < until:
            waits = self.core.report_rest()
            self._look_after(time.monotonic())
            if not waits:
                return
            if not self.core.streams.finished:
                await self._wait(0)  # a turn, in which what was written leaves
                return
            await self._wait_and_serve()

    async def _wait_and_serve(self) -> None:
        heard = self.heard
        await self._gather()
        if heard == self.heard and not self._stopping:
            await self._drive(self.core.idle(time.monotonic()))
            self._tell_barriers()
            if heard == self.heard:
                await self._wait(GATHER_GAP_S if self.core.is_gathering else _TURN_S)
                await self._gather()
        for link in list(self._links):
            if self._stopping:
                return
            await self._serve(link)
        self._tell_barriers()

    async def _serve(self, link: TwistedLink) -> None:
        """Deal with what has come from a connection."""
        try:
            if link.ready and link.session is None:
                link.session = await self._drive(self.core.connected(link.place, time.monotonic()))
            data = link.take()
            if data and link.session is not None:
                await self._drive(self.core.received(link.session, data, time.monotonic()))
            if link.lost is not None:
                raise link.lost
            self._send(link)
        except ClientError as error:
            self._ended(link, error)

    def _look_after(self, now: float) -> None:
        """Send what is to be sent, hang up where need be."""
        for link in list(self._links):
            try:
                link.too_late(now)
                if link.session is not None and link.session.error is not None:
                    raise link.session.error
                self._send(link)
            except ClientError as error:
                self._ended(link, error)

    def _send(self, link: TwistedLink) -> None:
        data = link.session.data_to_send() if link.session is not None else b""
        if data:
            cast(Any, link.transport).write(data)

    def _dial(self, now: float) -> None:
        for place in self.core.due(now):
            where = parsed(place)
            endpoint = self._endpoint(self._reactor, where.path or where.host, where.port)
            link = TwistedLink(self, place, now + self._connect_timeout_s)
            self._links.append(link)
            link.dial(endpoint)

    def _ended(self, link: TwistedLink, error: ClientError) -> None:
        self._hang_up(link)
        self.core.ended(link.place, link.session, error, time.monotonic())

    # --- handlers -------------------------------------------------------------------------------

    async def _drive(self, task: Task) -> Any:
        """Run rules to their end, waiting for what the handler returns."""
        try:
            found = next(task)
            while True:
                try:
                    result = await self._result_of(found)
                except Exception as error:
                    found = task.throw(error)
                else:
                    found = task.send(result)
        except StopIteration as ended:
            return ended.value

    async def _result_of(self, found: Any) -> Any:
        try:
            waited_for = ensureDeferred(found)
        except TypeError:
            raise MisuseError(
                f"the handler returned {type(found).__name__}: its methods return nothing, a "
                "Deferred or a coroutine"
            ) from None
        if any(waited_for is waiting for _, waiting in self._barriers):
            raise MisuseError("a handler cannot wait for a barrier: it is what would have to run")
        self.held = True
        try:
            return await waited_for
        finally:
            self.held = False

    def _look(self) -> None:
        """Answer keep-alives in the place of a coroutine that waits for a handler."""
        self._looking = self._reactor.callLater(self._period_s, self._look)
        for link in self._links if self.held else ():
            link.hear_ahead()

    # --- the end --------------------------------------------------------------------------------

    async def _clean_up(self) -> None:
        """Leave no socket and no delayed call behind."""
        self._stopping = True
        self._looking.cancel()
        self.core.close()
        self._tell_barriers()
        for link in list(self._links):
            self._hang_up(link)
        while self._leaving:
            await self._wait(_TURN_S)
        self.end()
        for stopped in self._stopped:
            stopped.callback(None)

    @property
    def held_bytes(self) -> int:
        """What has come and was not handed over yet."""
        return sum(link.held_bytes for link in self._links)

    def end(self) -> None:
        """Nothing is left of it: another run may have the state."""
        self.ended = True
        self._give_back()

    def _hang_up(self, link: TwistedLink) -> None:
        self._links.remove(link)
        if not link.gone:
            self._leaving.add(link)
            link.hang_up()

    def left(self, link: TwistedLink) -> None:
        """Nothing of a connection is left in the reactor."""
        self._leaving.discard(link)
        self.hear()


# --- twisted client -------------------------------------------------------------------------------


class TwistedUprClient:
    """A consumer. See the module docstring.

    Args:
        nodes, handler, connect_timeout_s, patience_s, wishes: as of `blocking.UprClient`.
        endpoint: how nodes are reached: `over_tcp`, what `over_tls` returns, or your own.
        reactor: whose; ``None`` = the process's.

    Raises:
        MisuseError: the arguments make no sense.
        StateRefused: the state is not this consumer's, or cannot be used.
    """

    def __init__(
        self,
        nodes: str | Iterable[str],
        handler: Handler,
        *,
        endpoint: MakeEndpoint = over_tcp,
        connect_timeout_s: float = 5.0,
        patience_s: float | None = 10.0,
        reactor: Any = None,
        **wishes: Unpack[Wishes],
    ) -> None:
        if reactor is None:
            from twisted.internet import reactor
        self._reactor = reactor
        self._nodes, self._options, self._state, self._owns_state = prepared(
            nodes, handler, wishes, blocks=False, tls=endpoint is not over_tcp
        )
        self._handler = handler
        self._connections = (reactor, endpoint, connect_timeout_s, patience_s)
        self._loop: TwistedLoop | None = None

    # --- running --------------------------------------------------------------------------------

    def run(self, until: Until = None, *, timeout_s: float | None = None) -> Deferred[None]:
        """Follow the nodes until `stop` is called, or `until` is reached.

        The Deferred fires when all sockets are closed. To cancel it is to stop. It fails with what
        `blocking.UprClient.run` raises.

        Args:
            until: ``"now"`` = until everything has come that was there; or a function that is asked
                after each batch.
            timeout_s: how long at most.
        """
        try:
            loop = self._begin(until)
        except ClientError as error:
            return fail(error)
        return self._go_on(loop, until if callable(until) else None, timeout_s)

    def _begin(self, until: Until) -> TwistedLoop:
        options = replace(self._options, until_now=ends_level(until))
        if self._running is not None:
            raise MisuseError("the client runs already")
        give_back = claimed(self._state)
        try:
            core = UprCore(self._nodes, self._handler, self._state, options)
        except BaseException:
            give_back()
            raise
        self._loop = TwistedLoop(core, give_back, *self._connections)
        return self._loop

    @property
    def _running(self) -> TwistedLoop | None:
        return None if self._loop is None or self._loop.ended else self._loop

    def _go_on(
        self, loop: TwistedLoop, reached: Callable[[], bool] | None, timeout_s: float | None
    ) -> Deferred[None]:
        result: Deferred[None] = Deferred(loop.cancelled)
        Deferred.fromCoroutine(loop.run(reached, timeout_s)).chainDeferred(result)
        return result

    def stop(self) -> Deferred[None]:
        """End `run` after the present batch.

        The Deferred fires when nothing is left of it. What the handler has returned is waited for:
        a handler must not wait for this.
        """
        running = self._running
        return succeed(None) if running is None else running.stop()

    def close(self) -> Deferred[None]:
        """Stop, and close the state if its path was given."""
        stopped = self.stop()
        if self._owns_state:
            stopped.addCallback(lambda _: self._state.close())
        return stopped

    # --- while it runs --------------------------------------------------------------------------

    def barrier(self, text: str | None = None, timeout_s: float | None = None) -> Deferred[None]:
        """Fire when everything that was acknowledged by a node before this call is handed over.

        If the client does not run, it does meanwhile. The Deferred fails with `ConnectionLost` when
        a connection or stream ended meanwhile: ask again; with `WaitedTooLong`; or `MisuseError`. A
        handler must not wait for it: it is what would have to go on.
        """
        running = self._running
        try:
            waiting = (running or self._begin(None)).barrier(text)
        except ClientError as error:
            if running is None and self._loop is not None:
                self._loop.end()
            return fail(error)
        if timeout_s is not None:
            waiting.addTimeout(timeout_s, self._reactor, lambda *_: _too_long(timeout_s))
        return waiting if running else self._alone(waiting)

    def _alone(self, waiting: Deferred[None]) -> Deferred[None]:
        """Run until a barrier is done, and tell what became of it."""
        done: list[object] = []
        waiting.addBoth(done.append)
        loop = self._loop
        assert loop is not None
        running = self._go_on(loop, lambda: bool(done), None)
        return running.addCallback(lambda _: cast(None, done[0]))

    @property
    def instance(self) -> str | None:
        """The id under which it is registered with nodes, ``None`` = it is not."""
        known_as = self._options.instance
        return None if known_as is None else known_as.id.decode()

    def forget(
        self, vbuckets: Iterable[int] | None = None, *, tls: ssl.SSLContext | None = None
    ) -> Deferred[list[int]]:
        """Have the nodes keep no deletions for it any longer, because its state ends for good.

        The Deferred fires with the vBuckets in which it was registered, and fails as
        `blocking.UprClient.forget` does. It is done in a thread of the reactor's pool.

        Args:
            vbuckets: as there.
            tls: how to speak TLS, if the nodes do; `endpoint` is not used for this.
        """
        if self.instance is None:
            return fail(MisuseError("the client is not registered"))
        if vbuckets is None and self._running is not None:
            return fail(MisuseError("the client runs: stop it before it is forgotten"))
        pool = self._reactor.getThreadPool()
        return deferToThreadPool(
            self._reactor,
            pool,
            forget,
            self._nodes,
            self.instance,
            vbuckets,
            tls=tls,
            credentials=self._options.credentials,
        )

    @property
    def held_bytes(self) -> int:
        """What has come and was not handed over yet."""
        return 0 if self._loop is None else self._loop.held_bytes

    @property
    def directory(self) -> Directory | None:
        """Who has what, as nodes have told; for reading. ``None`` = it does not run."""
        running = self._running
        return None if running is None else running.core.nodes.directory

    def positions(self) -> dict[int, Position]:
        """Return the last whole snapshot of each vBucket, as `start` takes it."""
        return {} if self._loop is None else self._loop.core.positions()

    def places(self, handed: Mapping[int, int]) -> dict[int, Saved]:
        """Return where each vBucket stands, also inside of a snapshot, as a state keeps it.

        Args:
            handed: the last seqnos that the handler knows of; places are noted later.
        """
        return {} if self._loop is None else self._loop.core.places(handed)

    def metrics(self) -> Metrics:
        """Return how it goes, in numbers."""
        return Metrics({}, {}) if self._loop is None else self._loop.core.metrics(time.monotonic())


def _too_long(timeout_s: float) -> None:
    raise WaitedTooLong(f"the barrier was not reached in {timeout_s:g} s")
