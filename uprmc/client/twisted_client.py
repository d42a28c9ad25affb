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

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.threads import deferToThreadPool

from uprmc.client.core import UprCore
from uprmc.client.errors import (
    ClientError,
    MisuseError,
    WaitedTooLong,
)
from uprmc.client.forgetting import forget
from uprmc.client.handler import Handler
from uprmc.client.metrics import Metrics
from uprmc.client.position import Position
from uprmc.client.starting import (
    Registration,
    Until,
    checked,
    claimed,
    ends_level,
    opened_and_registered,
)
from uprmc.client.state import Saved, StateStore
from uprmc.client.twisted_link import MakeEndpoint, over_tcp, over_tls
from uprmc.client.twisted_loop import Loop

__all__ = ["TwistedUprClient", "over_tcp", "over_tls"]


class TwistedUprClient:
    """A consumer. See the module docstring.

    Args:
        nodes, handler, state, name, vbuckets, total_vbuckets, connect_timeout_s, patience_s,
            register, instance, register_s: as of `blocking.UprClient`.
        endpoint: how nodes are reached: `over_tcp`, what `over_tls` returns, or your own.
        reactor: whose; ``None`` = the process's.
        options: ``credentials``, ``start``, ``values``, ``on_rollback``, ``on_purged``,
            ``ring_items``, ``buffer_bytes``, ``noop_interval_s``, ``poll_s``: see `core.Options`.

    Raises:
        MisuseError: the arguments make no sense.
        StateRefused: the state is not this consumer's, or cannot be used.
    """

    def __init__(
        self,
        nodes: str | Iterable[str],
        handler: Handler,
        *,
        state: StateStore | str | Path | None = None,
        name: str = "consumer",
        vbuckets: Iterable[int] | None = None,
        total_vbuckets: int | None = None,
        endpoint: MakeEndpoint = over_tcp,
        connect_timeout_s: float = 5.0,
        patience_s: float | None = 10.0,
        register: str | bool | None = None,
        instance: str | None = None,
        register_s: int = 0,
        reactor: Any = None,
        **options: Any,
    ) -> None:
        if reactor is None:
            from twisted.internet import reactor
        self._reactor = reactor
        options |= {"total_vbuckets": total_vbuckets or 0, "tls": endpoint is not over_tcp}
        self._nodes, known = checked(nodes, handler, name, vbuckets, blocks=False, **options)
        self._handler = handler
        registration = Registration(register, instance, register_s)
        self._state, self._owns_state, known_as = opened_and_registered(
            state, name, known.total_vbuckets, registration
        )
        self._options = replace(known, instance=known_as)
        self._connections = (reactor, endpoint, connect_timeout_s, patience_s)
        self._loop: Loop | None = None

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

    def _begin(self, until: Until) -> Loop:
        options = replace(self._options, until_now=ends_level(until))
        if self._running is not None:
            raise MisuseError("the client runs already")
        give_back = claimed(self._state)
        try:
            core = UprCore(self._nodes, self._handler, self._state, options)
        except BaseException:
            give_back()
            raise
        self._loop = Loop(core, give_back, *self._connections)
        return self._loop

    @property
    def _running(self) -> Loop | None:
        return None if self._loop is None or self._loop.ended else self._loop

    def _go_on(
        self, loop: Loop, reached: Callable[[], bool] | None, timeout_s: float | None
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
