"""How an index follows its source: one life after the other, until it is stopped.

One life: open the files, follow, and when something has failed for good (a full disk, a damaged
file), close them after a pause and begin again at the newest header; until then what was indexed
last is shown. The fault is over when a header could be written.

All of this is the reactor's thread; the store belongs to the updater's.

Source: systems reference c.4, c.5, c.7; acceptance rows I02 to I06, I15 to I20.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred

from uprmc.client.twisted_link import MakeEndpoint
from uprmc.config import IndexSettings
from uprmc.index.bitmaps import bitmap, numbers
from uprmc.index.errors import Damaged
from uprmc.index.fault import Fault
from uprmc.index.index_file import Facts, OpenFile, States
from uprmc.index.model import Token
from uprmc.index.news import OnEvent, counts_of, tell_news
from uprmc.index.source import Source
from uprmc.index.source_vbuckets import SourceVBuckets
from uprmc.index.store import IndexStore
from uprmc.index.streams import RETRY_MAX_S, Level, Streams, unheard
from uprmc.index.tokens import is_of
from uprmc.index.tree import Position
from uprmc.index.updater import Stopped, Updater
from uprmc.index.waiting import Signal, pause
from uprmc.model import FailoverLog
from uprmc.rollback import origin_here

#: When an index is stopped, the documents under way may be mapped for this long.
_MAPS_END_S = 2.0

#: How often `Following._look_at_files` looks.
_LOOK_S = 1.0


class Following:
    """One index of one design; there may be another one beside it, of replica vBuckets.

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
        replica: as given.
        progress: fires when anything has changed.
        at_end: are called when it is told to stop.
        store: what is indexed, ``None`` = it is not open at present.
        streams: from its source.
        fault: what has ended the last life.
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
        self.replica = replica
        self.progress = Signal()
        self.at_end: list[Callable[[], None]] = []
        self.store: IndexStore | None = None
        self.streams = Streams(reactor, name, source, endpoint, self.progress, replicas=of_replicas)
        self.fault = Fault(name, on_event)
        self._vbuckets = SourceVBuckets(reactor, source, self, replica, replicas=of_replicas)
        self._reactor, self._name, self._open_store = reactor, name, open_store
        self._source, self._settings, self._on_event = source, settings, on_event
        self._updater: Updater | None = None
        self._opened: IndexStore | None = None
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
        self._vbuckets.stop()
        self.progress.fire()
        self.streams.end()
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
                self.fault.note(error)
                await self._pause(self.fault.next_pause_s())

    async def _pause(self, pause_s: float) -> None:
        await pause(self._reactor, self.progress, pause_s, lambda: self._stopping)

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
        self._updater, self.store = updater, updater.store
        self._opened = updater.store
        try:
            await self._follow(updater, failures)
        except Stopped:
            await self._until_failed(failures)
        finally:
            told = bool(failures)
            self._updater, self.streams.ready = None, False
            if told:  # what was indexed last is shown meanwhile
                error = failures[0].value
                self.fault.note(error)
                await self._pause(self.fault.next_pause_s())
                if self.fault.needs_new_file(error):
                    updater.store.files.remove()
            self.store = None
            await updater.stop(orderly=not failures)
            if failures and not told:
                self.fault.note(failures[0].value)

    async def _until_failed(self, failures: list[Any]) -> None:
        """Wait for the failure that has stopped the updater: it is told right afterwards."""
        while not failures and not self._stopping:
            await self.progress.wait(self._reactor, RETRY_MAX_S)

    def _has_failed(self, failure: Any, failures: list[Any]) -> None:
        failures.append(failure)
        self.progress.fire()
        self.streams.stop()

    async def _follow(self, updater: Updater, failures: list[Any]) -> None:
        store: IndexStore = updater.store
        store.on_work = updater.look
        ensureDeferred(self._look_at_files(store)).addErrback(unheard)
        if not store.instance:
            instance = self.streams.instance(f"-{os.urandom(8).hex()}")
            await updater.do(lambda: store.name_instance(instance))
        await self.take_source()
        await self.streams.follow(updater, lambda: self._stopping or failures)

    async def _look_at_files(self, store: IndexStore) -> None:
        """Have the file before a compaction dropped as soon as no rollback can need it.

        After a fault, find out whether the one in use can be written now. Tell what has happened.
        """
        counts = counts_of(store)
        while self.store is store and not self._stopping:
            await self._pause(_LOOK_S)
            counts = tell_news(counts, store, self._on_event, self._name)
            if self.store is store and self.fault.text and not store.is_building:
                await self.do(IndexStore.write_header)
                self.fault.is_over()
            if self.store is store and store.files.old is not None:
                persisted = await self._source.persisted()
                await self.do(partial(IndexStore.drop_old_file, persisted=persisted))

    # --- what others ask of it ------------------------------------------------------------------

    @property
    def writable(self) -> IndexStore | None:
        """What is indexed, ``None`` = it cannot be changed now."""
        return None if self._updater is None else self._updater.store

    @property
    def instances(self) -> list[str]:
        """As what it and its replica index are registered with nodes."""
        own = [self.store.instance] if self.store is not None else []
        return own if self.replica is None else own + self.replica.instances

    async def level(self) -> Level:
        """Return when all that was acknowledged before of what is followed is in the trees.

        What is paused is part of the level if its node has nothing that is not in the trees.

        Raises:
            ClientError, Stopped: it cannot be said now; ask again.
        """
        await self.take_source()
        if self._updater is None or not (self._source.is_known and self._source.is_complete):
            raise Stopped
        updater = self._updater
        level = await self.streams.level(updater)
        return level._replace(vbuckets=level.vbuckets | await self._at_rest(updater.store))

    async def _at_rest(self, store: IndexStore) -> int:
        """Return which vBuckets are shown, not followed, and have nothing new at their nodes."""
        states = store.view.states
        paused = states.active & ~states.followed
        if not paused:
            return 0
        logs = await self._source.failover_logs(numbers(paused))
        found, seqnos = store.view, self._source.seqnos
        return bitmap(
            vb
            for vb, log in logs.items()
            if vb in seqnos
            and has_all(found.positions.get(vb), found.facts.get(vb), log, seqnos[vb])
        )

    def damaged(self, file: OpenFile, error: Damaged) -> None:
        """A reader has found a block of a file that cannot be read: it is built again."""
        updater = self._updater
        if updater is None or updater.store.files.current is not file:
            return  # it is out of use, or was told already

        def fail() -> None:
            raise error

        updater.do(fail).addErrback(unheard)

    async def take_source(self) -> None:
        """Follow what the source has, unless `_set_states` decides."""
        if self.replica is not None:
            await self.replica.take_source()
        await self._vbuckets.take()

    async def take_over(self, vbuckets: int) -> None:
        """See `SourceVBuckets.take_over`."""
        await self._vbuckets.take_over(vbuckets)

    async def pause(self, vbuckets: int) -> None:
        """Follow some vBuckets no longer; returns when everything of them is in the trees."""
        await self.change_states(lambda s: s._replace(paused=s.paused | vbuckets & s.indexed))
        await self.streams.left(vbuckets)
        if self._updater is not None:
            await self._updater.level()

    async def change_states(self, change: Callable[[States], States]) -> States | None:
        """Do something else with vBuckets from now on; returns what, ``None`` = not now."""
        if self._updater is None:
            return None
        return await self.streams.change_states(self._updater, change)

    async def do(self, what: Callable[[IndexStore], Any]) -> Any:
        """Do something with the store in its thread.

        Raises:
            Stopped: it is not open.
        """
        updater = self._updater
        if updater is None:
            raise Stopped
        return await updater.do(lambda: what(updater.store))


def has_all(position: Position | None, facts: Facts | None, log: FailoverLog, high: int) -> bool:
    """Return whether an index that stands here has all of a history up to its high seqno."""
    seqno = 0 if position is None else position.seqno
    if not seqno or facts is None or not facts.log:
        return not high
    uuid = origin_here(facts.log, seqno).uuid
    return seqno >= high and is_of(log, Token(0, uuid, seqno))
