"""The streams of an index: runs of the client library, one after the other.

A run follows the vBuckets that are to be followed when it begins. A change of these, or a fall back
to an older header, ends it, and another one begins. Each run begins by catching up: a barrier over
its streams, after which a first build is loaded, and pending vBuckets become active.

Rows I02 to I06, I15, I16.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.defer import ensureDeferred

from uprmc.client.errors import ClientError
from uprmc.client.twisted_client import MakeEndpoint, TwistedUprClient
from uprmc.index.errors import WentBack
from uprmc.index.source import IndexSource
from uprmc.index.updater import IndexHandler, IndexState, Stopped, Updater
from uprmc.index.vbucket_sets import States, caught_up, numbers
from uprmc.index.waiting import Signal, pause
from uprmc.remote.retry import Backoff

#: After a failure the next attempt comes after this long, then twice as long each time, up to this.
RETRY_S, RETRY_MAX_S = 0.1, 5.0

#: A barrier that is not reached in this time has the source asked what it has.
_BARRIER_S = 0.1

#: So much of a design's name is in the id under which its index is registered.
_NAME_CHARACTERS = 30

_LOG = logging.getLogger("uprmc.index")


class Level(NamedTuple):
    """What an index contains everything of that was acknowledged before some time."""

    vbuckets: int  # bitmap
    course: object  # see `View`; of another one this says nothing


class IndexStreams:
    """The streams of one design's index, over all its lives.

    Args:
        reactor: whose.
        design: its name.
        source: the nodes, and how to log in to them.
        endpoint: how they are reached.
        progress: is fired when anything has changed.
        replicas: vBuckets are followed that are replicas there.

    Attributes:
        ready: the index has been level with its source since it was opened.
        failure: why the source is not followed, empty = it is.
        runs: how many have begun.
    """

    def __init__(
        self,
        reactor: Any,
        design: str,
        source: IndexSource,
        endpoint: MakeEndpoint,
        progress: Signal,
        *,
        replicas: bool,
    ) -> None:
        self.ready = False
        self.failure = ""
        self.runs = 0
        self._reactor, self._design, self._source = reactor, design, source
        self._endpoint, self._progress, self._replicas = endpoint, progress, replicas
        self._client: TwistedUprClient | None = None
        self._followed = self._leaving = 0
        self._ended = False

    def instance(self, suffix: str = "") -> str:
        """Return the name under which nodes know the index."""
        name = self._design.encode("ascii", "replace").decode()[:_NAME_CHARACTERS]
        return f"index-{name}{suffix}"

    def stop(self) -> None:
        """End the present run; its updater takes nothing any more."""
        if self._client is not None:
            self._client.stop()

    def end(self) -> None:
        """End for good."""
        self._ended = True
        self.stop()

    # --- runs -----------------------------------------------------------------------------------

    async def follow(self, updater: Updater, is_over: Callable[[], object]) -> None:
        """Make one run after the other."""
        self.failure = ""
        backoff = Backoff(RETRY_S, RETRY_MAX_S)
        while not is_over():
            followed = updater.store.view.states.followed
            if not followed:
                await self._progress.wait(self._reactor, RETRY_MAX_S)
                continue
            began = time.monotonic()
            ended_well = await self._run(updater, followed)
            if ended_well or time.monotonic() - began > RETRY_MAX_S:
                backoff.good()
            if not ended_well:
                await pause(self._reactor, self._progress, backoff.next(), is_over)

    async def _run(self, updater: Updater, followed: int) -> bool:
        """Follow some vBuckets until that ends; return whether it may begin again at once."""
        self._followed = followed
        self.runs += 1
        try:
            await updater.begin()
            client = self._client = self._new_client(updater, followed)
            running = client.run()
            ensureDeferred(self._catch_up(updater, client, followed)).addErrback(unheard)
            await running
        except WentBack:
            return True
        except Stopped:
            return False
        except ClientError as error:
            if not self._ended:
                self.failure = str(error)
                _LOG.warning("the index of %r is cut off: %s", self._design, error)
            return False
        finally:
            self._client, self._followed = None, 0
            updater.store.may_swap = False
            self._progress.fire()
        return True

    def _new_client(self, updater: Updater, followed: int) -> TwistedUprClient:
        return TwistedUprClient(
            self._source.places,
            IndexHandler(updater),
            state=IndexState(updater),
            name=self.instance(),
            vbuckets=numbers(followed),
            endpoint=self._endpoint,
            credentials=self._source.credentials,
            patience_s=None,
            register="index",
            instance=updater.store.instance,
            replicas=self._replicas,
            reactor=self._reactor,
        )

    # --- being level ----------------------------------------------------------------------------

    async def _catch_up(self, updater: Updater, client: TwistedUprClient, followed: int) -> None:
        while self._client is client:
            try:
                await client.barrier()
                await updater.level(updater.store.finish_build)
            except ClientError:
                await self._progress.wait(self._reactor, RETRY_S)
                continue
            await self.change_states(updater, lambda states: caught_up(states, followed))
            if self._client is client:
                self._forget_left(client)
                self.ready, self.failure = True, ""
                updater.store.may_swap = True
                updater.look()
                self._progress.fire()
            return

    def _forget_left(self, client: TwistedUprClient) -> None:
        """Have nodes keep no deletions of vBuckets that are no longer indexed here."""
        left, self._leaving = self._leaving, 0
        if left:
            client.forget(numbers(left), tls=self._source.tls).addErrback(unheard)

    async def barrier(self, updater: Updater) -> int:
        """Return when all that was acknowledged before of what is followed has come, and of which.

        By then the source knows what the nodes have.

        Raises:
            ClientError, Stopped: it cannot be said now; ask again.
        """
        client, followed = self._client, updater.store.view.states.followed
        if followed != self._followed or (followed and client is None):
            raise Stopped  # a run for these is about to begin
        heard = False
        if client is not None:
            # What takes so long may wait for vBuckets that have left their nodes.
            late = self._reactor.callLater(_BARRIER_S, self._source.refresh)
            try:
                await client.barrier()
            finally:
                if late.active():
                    late.cancel()
            heard = self._source.hear(client.directory)
        if not heard:
            await self._source.refresh()
        return followed

    # --- states of vBuckets ---------------------------------------------------------------------

    async def change_states(self, updater: Updater, change: Callable[[States], States]) -> States:
        """Do something else with vBuckets from now on; returns what."""
        before = updater.store.view.states.indexed
        states = await updater.do(lambda: updater.store.change_states(change))
        self._leaving = (self._leaving | before) & ~states.indexed
        client = self._client
        if client is not None and states.followed != self._followed:
            client.stop()
        elif client is not None and states.pending and self.ready:
            again = self._catch_up(updater, client, states.followed)
            ensureDeferred(again).addErrback(unheard)
        self._progress.fire()
        return states

    async def left(self, vbuckets: int) -> None:
        """Return when none of these is followed."""
        while self._client is not None and self._followed & vbuckets:
            await self._progress.wait(self._reactor, RETRY_S)


def unheard(failure: Any) -> None:
    """Nothing is to be done: those who wait ask again."""
    failure.trap(ClientError, Stopped)
