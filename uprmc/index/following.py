"""How an index follows its source: over and over until it is stopped.

One life: open the files, follow, and when something has failed for good (a full disk, a damaged
file), close them after a pause and begin again at the newest header; until then what was indexed
last is shown. The fault is over when a header could be written.

Following is one run of the client library for the vBuckets that are followed at present; a change
of these, or a fall back to an older header, ends that run and begins another. Each run begins by
catching up: a barrier over its streams, after which a first build is loaded, and pending vBuckets
become active.

All of this is the reactor's thread; the store belongs to the updater's.

Source: systems reference c.4, c.5, c.7; acceptance rows I02 to I06, I15 to I20.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock, ensureDeferred

from uprmc.client.errors import ClientError
from uprmc.client.twisted_client import TwistedUprClient
from uprmc.client.twisted_link import MakeEndpoint
from uprmc.config import IndexSettings
from uprmc.consume.retry import Backoff
from uprmc.index.bitmaps import bitmap, numbers
from uprmc.index.errors import Damaged, GivenUp
from uprmc.index.index_file import States
from uprmc.index.moving import moved
from uprmc.index.news import OnEvent, counts_of, tell_news
from uprmc.index.source import Source
from uprmc.index.store import IndexStore
from uprmc.index.updater import Stopped, Updater
from uprmc.index.upr_handler import IndexHandler, IndexState, WentBack
from uprmc.index.vbucket_sets import caught_up, follow_source
from uprmc.index.waiting import Signal

#: After a failure the next attempt comes after this long, then twice as long each time, up to this.
_RETRY_S, _RETRY_MAX_S = 0.1, 5.0

#: The rows of a vBucket that its source has lost are kept this long: it may come back.
_LOST_S = 10.0

#: When an index is stopped, the documents under way may be mapped for this long.
_MAPS_END_S = 2.0

#: It is looked this often whether the file before a compaction is still needed, and after a fault
#: whether a header can be written.
_LOOK_S = 1.0

#: So much of a design's name is in the id under which its index is registered.
_NAME_CHARACTERS = 30

#: A file that was found to be damaged this often, one time after the other, is given up.
_DAMAGES = 2

_LOG = logging.getLogger("uprmc.index")


class Following:
    """See the module docstring.

    Args:
        reactor: whose.
        name: of the design.
        open_store: opens the files; called in the updater's thread.
        source: what nodes say they have.
        endpoint: how they are reached.
        settings: of the index.
        on_event: is told what happens to it.
        replica: the index of vBuckets that are replicas at the source, ``None`` = there is none.
        of_replicas: it is that index.

    Attributes:
        progress: fires when anything has changed.
        at_end: are called when it is told to stop.
        store: what is indexed, ``None`` = it is not open at present.
        failure: why the source is not followed, empty = it is.
        fault: what has ended the last life, until a header could be written; empty = nothing.
        faults: how many lives have ended so.
        ready: it has been level with its source since it was started.
        runs: of the client library.
    """

    def __init__(
        self,
        reactor: Any,
        name: str,
        open_store: Callable[[], IndexStore],
        source: Source,
        endpoint: MakeEndpoint,
        settings: IndexSettings,
        on_event: OnEvent,
        *,
        replica: Following | None = None,
        of_replicas: bool = False,
    ) -> None:
        self.replica, self._of_replicas = replica, of_replicas
        self._taking = DeferredLock()
        self._reactor, self._name, self._open_store = reactor, name, open_store
        self._source, self._endpoint, self._settings = source, endpoint, settings
        self._on_event = on_event
        self.progress = Signal()
        self.at_end: list[Callable[[], None]] = []
        self.store: IndexStore | None = None
        self.failure = self.fault = ""
        self._fault_kind: tuple[Any, ...] = ()
        self._backoff = Backoff(_RETRY_S, _RETRY_MAX_S)
        self.faults = self._damages = 0
        self.ready = False
        self.runs = 0
        self._updater: Updater | None = None
        self._opened: IndexStore | None = None
        self._client: TwistedUprClient | None = None
        self._followed = self._leaving = 0
        self._lost: dict[int, float] = {}
        self._taken: tuple[IndexStore, int] | None = None
        self._timer: Any = None
        self._stopping = False
        self._life: Deferred[None] | None = None

    def start(self) -> None:
        """Begin."""
        if self.replica is not None:
            self.replica.start()
        self._life = ensureDeferred(self._live())

    @property
    def has_ended(self) -> bool:
        """Whether it was told to stop: whoever waits waits in vain."""
        return self._stopping

    async def stop(self) -> None:
        """End in order: what is indexed is written."""
        self._stopping = True
        for tell in self.at_end:
            tell()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self.progress.fire()
        if self._client is not None:
            self._client.stop()
        giving_up = self._reactor.callLater(_MAPS_END_S, self._give_up_maps)
        if self._life is not None:
            await self._life
        if giving_up.active():
            giving_up.cancel()
        if self.replica is not None:
            await self.replica.stop()

    def _give_up_maps(self) -> None:
        """End maps that take too long; what they are about to give is indexed the next time."""
        if self._opened is not None:
            self._opened.give_up()

    # --- lives ----------------------------------------------------------------------------------

    async def _live(self) -> None:
        while not self._stopping:
            try:
                await self._one_life()
            except Exception as error:  # the index could not be opened, or not be closed
                self._has_fault(error)
                await self._pause(self._backoff.next())

    def _has_fault(self, error: BaseException) -> None:
        """Say once what is wrong, and keep it for whoever asks."""
        if isinstance(error, GivenUp):
            return
        kind = (type(error), getattr(error, "errno", None))
        self.fault = f"{type(error).__name__}: {error}"
        self.faults += 1
        if kind != self._fault_kind:
            self._on_event("index_failed", {"design": self._name, "reason": self.fault})
        self._fault_kind = kind

    def _is_well(self) -> None:
        if self.fault:
            self._on_event("index_works_again", {"design": self._name})
        self.fault, self._fault_kind = "", ()
        self._backoff.good()

    async def _pause(self, pause_s: float) -> None:
        until = time.monotonic() + pause_s
        while not self._stopping and (left_s := until - time.monotonic()) > 0:
            await self.progress.wait(self._reactor, left_s)

    async def _one_life(self) -> None:
        settings = self._settings
        updater = Updater(
            self._reactor,
            f"uprmc-index-{self._name}",
            self._open_store,
            settings.queue_bytes,
            settings.batch_changes,
            self.progress.fire,
        )
        failures: list[Any] = []
        updater.failed.addErrback(self._has_failed, failures)
        await updater.started
        self._updater, self.store, self.failure = updater, updater.store, ""
        self._opened = updater.store
        try:
            await self._follow(updater, failures)
        except Stopped:
            await self._until_failed(failures)
        finally:
            told = bool(failures)
            self._updater, self.ready = None, False
            if told:
                self._has_fault(failures[0].value)
                await self._pause(self._backoff.next())  # what was indexed last is shown meanwhile
                self._give_up_damaged(updater.store, failures[0].value)
            self.store = None
            await updater.stop(orderly=not failures)
            if failures and not told:
                self._has_fault(failures[0].value)

    def _give_up_damaged(self, store: IndexStore, error: BaseException) -> None:
        """Begin at zero when the same file cannot be read time and again."""
        self._damages = self._damages + 1 if isinstance(error, Damaged) else 0
        if self._damages >= _DAMAGES:
            self._on_event("index_damaged", {"design": self._name, "reason": str(error)})
            store.files.remove()
            self._damages = 0

    async def _until_failed(self, failures: list[Any]) -> None:
        """Wait for the failure that has stopped the updater: it is told right afterwards."""
        while not failures and not self._stopping:
            await self.progress.wait(self._reactor, _RETRY_MAX_S)

    def _has_failed(self, failure: Any, failures: list[Any]) -> None:
        failures.append(failure)
        self.progress.fire()
        if self._client is not None:
            self._client.stop()

    async def _follow(self, updater: Updater, failures: list[Any]) -> None:
        store: IndexStore = updater.store
        store.on_work = updater.look
        ensureDeferred(self._look_at_files(store)).addErrback(_unheard)
        if not store.instance:
            instance = f"index-{self._name[:_NAME_CHARACTERS]}-{os.urandom(8).hex()}"
            await updater.do(lambda: store.name_instance(_ascii(instance)))
        await self.take_source()
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S)
        while not self._stopping and not failures:
            followed = store.view.states.followed
            if not followed:
                await self.progress.wait(self._reactor, _RETRY_MAX_S)
                continue
            began = time.monotonic()
            ended_well = await self._run(updater, store, followed)
            if ended_well or time.monotonic() - began > _RETRY_MAX_S:
                backoff.good()
            if not ended_well:
                await self._pause(backoff.next())

    async def _run(self, updater: Updater, store: IndexStore, followed: int) -> bool:
        """Follow some vBuckets until that ends; return whether it may begin again at once."""
        self._followed = followed
        self.runs += 1
        try:
            await updater.begin()
            client = self._client = self._new_client(updater, store, followed)
            running = client.run()
            ensureDeferred(self._catch_up(updater, client, followed)).addErrback(_unheard)
            await running
        except WentBack:
            return True  # `tell_news` says so
        except Stopped:
            return False
        except ClientError as error:
            if not self._stopping:
                self.failure = str(error)
                _LOG.warning("the index of %r is cut off: %s", self._name, error)
            return False
        finally:
            self._client, self._followed = None, 0
            store.may_swap = False
            self.progress.fire()
        return True

    def _new_client(self, updater: Updater, store: IndexStore, followed: int) -> TwistedUprClient:
        return TwistedUprClient(
            self._source.places,
            IndexHandler(updater),
            state=IndexState(updater),
            name=f"index-{_ascii(self._name)[:_NAME_CHARACTERS]}",
            vbuckets=numbers(followed),
            endpoint=self._endpoint,
            credentials=self._source.credentials,
            patience_s=None,
            register="index",
            instance=store.instance,
            replicas=self._of_replicas,
            reactor=self._reactor,
        )

    # --- being level ----------------------------------------------------------------------------

    async def _catch_up(self, updater: Updater, client: TwistedUprClient, followed: int) -> None:
        while self._client is client:
            try:
                await client.barrier()
                await self._level(updater)
            except ClientError:
                await self.progress.wait(self._reactor, _RETRY_S)
                continue
            await self.change_states(lambda states: caught_up(states, followed))
            if self._client is client:
                self._forget_left(client)
                self.ready, self.failure = True, ""
                updater.store.may_swap = True
                updater.look()
                self.progress.fire()
            return

    def _forget_left(self, client: TwistedUprClient) -> None:
        """Have nodes keep no deletions of vBuckets that are no longer indexed here."""
        left, self._leaving = self._leaving, 0
        if left:
            client.forget(numbers(left), tls=self._source.tls).addErrback(_unheard)

    async def _level(self, updater: Updater) -> None:
        """Return when everything that was handed over is in the trees."""
        store: IndexStore = updater.store
        await updater.level(store.finish_build)

    async def level(self) -> None:
        """Return when all that was acknowledged before is in the trees.

        Raises:
            ClientError, Stopped: it cannot be said now; ask again.
        """
        await self.take_source()
        updater, client = self._updater, self._client
        if updater is None or not self._source.is_known:
            raise Stopped
        followed = updater.store.view.states.followed
        if followed != self._followed or (followed and client is None):
            raise Stopped  # a run for these is about to begin
        if client is not None:
            await client.barrier()
        await self._level(updater)

    async def _look_at_files(self, store: IndexStore) -> None:
        """Have the file before a compaction dropped as soon as no rollback can need it.

        After a fault, find out whether the one in use can be written now. Tell what has happened.
        """
        counts = counts_of(store)
        while self.store is store and not self._stopping:
            await self._pause(_LOOK_S)
            counts = tell_news(counts, store, self._on_event, self._name)
            if self.store is store and self.fault and not store.is_building:
                await self.do(IndexStore.write_header)
                self._is_well()
            if self.store is store and store.files.old is not None:
                persisted = await self._source.persisted()
                await self.do(partial(IndexStore.drop_old_file, persisted=persisted))

    # --- states of vBuckets ---------------------------------------------------------------------

    async def take_source(self) -> None:
        """Follow what the source has active, unless `_set_states` decides."""
        if self.replica is not None:
            await self.replica.take_source()
        await self._taking.acquire()
        try:
            await self._take_source()
        finally:
            self._taking.release()

    async def _take_source(self) -> None:
        store = self.store
        if store is None or self._updater is None or not self._source.is_known:
            return
        version = self._source.version
        if (store, version) == self._taken and not self._lost:
            return
        at_source, kept = bitmap(self._at_source), self._kept(store.view.states)
        first = store.is_building
        states = store.view.states
        if self.replica is not None and not states.managed:
            await moved(self.replica, self, numbers(at_source & ~states.indexed))
        await self.change_states(lambda states: follow_source(states, at_source, kept, first=first))
        self._taken = (store, version)

    async def take_over(self, vbuckets: int) -> None:
        """Take the rows of vBuckets that `_set_states` adds from the replica index, if it has them.

        Those that the source does not have active yet are left out: they are indexed from zero when
        it has.
        """
        await self._taking.acquire()
        try:
            store = self.store
            if self.replica is not None and store is not None and self._updater is not None:
                added = vbuckets & bitmap(self._source.active) & ~store.view.states.indexed
                await moved(self.replica, self, numbers(added))
        finally:
            self._taking.release()

    @property
    def _at_source(self) -> frozenset[int]:
        """The vBuckets that are followed by default."""
        return self._source.replicas if self._of_replicas else self._source.active

    async def pause(self, vbuckets: int) -> None:
        """Follow some vBuckets no longer; returns when everything of them is in the trees."""
        await self.change_states(lambda s: s._replace(paused=s.paused | vbuckets & s.indexed))
        while self._client is not None and self._followed & vbuckets:
            await self.progress.wait(self._reactor, _RETRY_S)
        if self._updater is not None:
            await self._updater.level()

    def _kept(self, states: States) -> int:
        """Return the vBuckets that the source has lost so recently that their rows stay."""
        now, active = time.monotonic(), self._at_source
        missing = [vbucket for vbucket in numbers(states.indexed) if vbucket not in active]
        self._lost = {vbucket: self._lost.get(vbucket, now + _LOST_S) for vbucket in missing}
        left = [until for until in self._lost.values() if until > now]
        if left and (self._timer is None or not self._timer.active()) and not self._stopping:
            self._timer = self._reactor.callLater(min(left) - now + 0.01, self._look_at_lost)
        return bitmap(vbucket for vbucket, until in self._lost.items() if until > now)

    def _look_at_lost(self) -> None:
        ensureDeferred(self.take_source()).addErrback(_unheard)

    async def change_states(self, change: Callable[[States], States]) -> States | None:
        """Do something else with vBuckets from now on; returns what, ``None`` = not now."""
        updater = self._updater
        if updater is None:
            return None
        store: IndexStore = updater.store
        before = store.view.states.indexed
        states = await updater.do(lambda: store.change_states(change))
        self._leaving = (self._leaving | before) & ~states.indexed
        client = self._client
        if client is not None and states.followed != self._followed:
            client.stop()
        elif client is not None and states.pending and self.ready:
            again = self._catch_up(updater, client, states.followed)
            ensureDeferred(again).addErrback(_unheard)
        self.progress.fire()
        return states

    async def do(self, what: Callable[[IndexStore], Any]) -> Any:
        """Do something with the store in its thread.

        Raises:
            Stopped: it is not open.
        """
        updater = self._updater
        if updater is None:
            raise Stopped
        return await updater.do(lambda: what(updater.store))

    @property
    def instances(self) -> list[str]:
        """As what it and its replica index are registered with nodes."""
        own = [self.store.instance] if self.store is not None else []
        return own if self.replica is None else own + self.replica.instances


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode()


def _unheard(failure: Any) -> None:
    """Nothing is to be done: those who wait ask again."""
    failure.trap(ClientError, Stopped)
