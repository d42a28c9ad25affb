"""How an index follows its source: one life after the other, until it is stopped.

One life: open the files, follow, and when something has failed for good (a full disk, a damaged
file), close them after a pause and begin again at the newest header; until then what was indexed
last is shown. The fault is over when a header could be written.

All of this is the reactor's thread; the store belongs to the updater's.

Rows I02 to I06, I15 to I20.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, DeferredLock, ensureDeferred

from uprmc.client.errors import ClientError
from uprmc.client.twisted_client import MakeEndpoint, TwistedUprClient
from uprmc.config import IndexSettings
from uprmc.index.errors import GivenUp, IndexDamaged, IndexRolledBack, WentBack
from uprmc.index.index_file import Facts, OpenFile
from uprmc.index.model import Entry, Token
from uprmc.index.rows import id_key, split_id_value
from uprmc.index.source import IndexSource
from uprmc.index.store import IndexStore
from uprmc.index.tree import IndexPosition
from uprmc.index.updater import IndexHandler, IndexState, Stopped, Updater
from uprmc.index.vbucket_sets import States, bitmap, caught_up, follow_source, numbers
from uprmc.index.waiting import Signal, pause
from uprmc.model import SEQNO_MAX, FailoverLog
from uprmc.remote.retry import Backoff
from uprmc.rollback import ends_of_branches, origin_here

# --- streams --------------------------------------------------------------------------------------
# The streams of an index: runs of the client library, one after the other.
#
# A run follows the vBuckets that are to be followed when it begins. A change of these, or a fall
# back to an older header, ends it, and another one begins. Each run begins by catching up: a
# barrier over its streams, after which a first build is loaded, and pending vBuckets become active.
#
# Rows I02 to I06, I15, I16.


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
        self.ready = False  # the index has been level with its source since it was opened
        self.failure = ""  # why the source is not followed, empty = it is
        self.runs = 0  # how many have begun
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


# --- tokens ---------------------------------------------------------------------------------------
# Whether a version is indexed, will be, or never can be: pure rules over failover logs.
#
# A failover log is newest first; each entry names what was written after its seqno, up to where the
# entry before it begins. A version (U, s) is part of a history if that has U, and s is not above
# the end of U's part.
#
# Rows I26, I27.


def is_of(log: FailoverLog, token: Token) -> bool:
    """Return whether a history has a version."""
    end = ends_of_branches(log, SEQNO_MAX).get(token.vb_uuid)
    return end is not None and token.seqno <= end


def is_reached(position: IndexPosition | None, log: FailoverLog, token: Token) -> bool:
    """Return whether an index that stands at `position` of this history has a version."""
    return position is not None and position.seqno >= token.seqno and is_of(log, token)


# --- fault ----------------------------------------------------------------------------------------
# What ends the lives of an index: one event when it begins and one when it is over.


#: The next life begins after this long, then twice as long each time, up to this.
_RETRY_S, _RETRY_MAX_S = 0.1, 5.0


class IndexFault:
    """What has ended the last life of an index, until a header could be written."""

    def __init__(self, design: str, on_event: OnEvent) -> None:
        self.text = ""  # of the error, empty = nothing is wrong
        self.count = 0  # how many lives have ended by an error
        self._design, self._on_event = design, on_event
        self._kind: tuple[Any, ...] = ()
        self._backoff = Backoff(_RETRY_S, _RETRY_MAX_S)

    def note(self, error: BaseException) -> None:
        """Keep an error for those who ask, and report it if it is another one than before."""
        if isinstance(error, GivenUp):
            return
        kind = (type(error), getattr(error, "errno", None))
        self.text = f"{type(error).__name__}: {error}"
        self.count += 1
        if kind != self._kind:
            self._on_event("index_failed", {"design": self._design, "reason": self.text})
        self._kind = kind

    def next_pause_s(self) -> float:
        """Return for how long the next life waits."""
        return self._backoff.next()

    def is_over(self) -> None:
        """A header was written."""
        if self.text:
            self._on_event("index_works_again", {"design": self._design})
        self.text, self._kind = "", ()
        self._backoff.good()

    def needs_new_file(self, error: BaseException) -> bool:
        """Return whether this error is damage, which no other attempt mends, and tell it."""
        if not isinstance(error, IndexDamaged) or isinstance(error, IndexRolledBack):
            return False
        self._on_event("index_damaged", {"design": self._design, "reason": str(error)})
        return True


# --- news -----------------------------------------------------------------------------------------
# What becomes of an index that an operator may want to look up, from its store's counters.
#
# The updater's thread counts; who looks now and then in another one learns what has happened in
# between. So there is at most one event of a kind for each look.


#: Tells that something happened: its name and fields, as `server.log_events` explains them.
OnEvent = Callable[[str, dict[str, object]], None]


class IndexCounts(NamedTuple):
    """Where the counters of a store stand; see `IndexStore`."""

    building: bool
    rollbacks: Mapping[str, int]
    compactions: int


def counts_of(store: IndexStore) -> IndexCounts:
    """Return where they stand now; any thread may call it."""
    return IndexCounts(store.is_building, dict(store.rollbacks), store.compacting.done)


def tell_news(
    before: IndexCounts, store: IndexStore, on_event: OnEvent, design: str
) -> IndexCounts:
    """Tell what has happened since the counters stood so; return where they stand now."""
    now = counts_of(store)
    if before.building and not now.building:
        on_event("index_built", {"design": design, "documents": store.view.trees.ids.count})
    for kind, count in now.rollbacks.items():
        more = count - before.rollbacks.get(kind, 0)
        if more:
            on_event("index_rolled_back", {"design": design, "kind": kind, "count": more})
    if now.compactions > before.compactions:
        on_event("index_compacted", {"design": design, "disk_bytes": store.files.disk_bytes})
    return now


# --- moving ---------------------------------------------------------------------------------------
# Rows of a vBucket go from the replica index into the main one, without being mapped again.
#
# Replica vBuckets are indexed in files of their own, so that reductions of what is shown never have
# to leave anything out. When one becomes active, it is paused there, its rows are copied in
# portions, then where they stand; from there on the main index follows it (row I17).


#: Documents that are moved at once.
_PORTION = 2_000


async def moved(replica: Following, main: Following, vbuckets: list[int]) -> None:
    """Move what a replica index has of vBuckets; those that it has not are left out.

    Raises:
        Stopped: an index is not open; what was moved of an unfinished vBucket is removed when the
            main one is opened.
    """
    store = replica.store
    if store is None or store.view.building or main.store is None:
        return
    if main.store.is_building and main.store.view.states.indexed:
        return  # a first build is under way: these vBuckets become part of it
    there = [vbucket for vbucket in vbuckets if vbucket in store.view.positions]
    if not there:
        return
    bits = bitmap(there)
    await main.do(IndexStore.finish_build)  # of nothing
    await replica.pause(bits)
    await main.change_states(lambda states: states._replace(cleanup=states.cleanup & ~bits))
    for vbucket in there:
        await _moved_one(replica, main, vbucket)
    await replica.change_states(
        lambda states: states._replace(
            active=states.active & ~bits,
            pending=states.pending & ~bits,
            passive=states.passive & ~bits,
            paused=states.paused & ~bits,
            cleanup=states.cleanup | bits,
        )
    )


async def _moved_one(replica: Following, main: Following, vbucket: int) -> None:
    await main.do(partial(IndexStore.drop, vbuckets=[vbucket]))  # of an earlier time
    after = b""
    while True:
        rows = await replica.do(partial(_portion, vbucket=vbucket, after=after))
        if not rows[0]:
            break
        await main.do(partial(IndexStore.imported, rows=rows))
        after = rows[0][-1].key
    position, facts = await replica.do(partial(IndexStore.standing, vbucket=vbucket))
    await main.do(partial(IndexStore.adopt, vbucket=vbucket, position=position, facts=facts))


def _portion(store: IndexStore, vbucket: int, after: bytes) -> list[list[Entry]]:
    """Return entries of the id tree behind a key, and of each view the rows of these.

    Args:
        store: of the replica index, in its thread.
        vbucket: of which documents.
        after: key of the id tree, empty = from the beginning.
    """
    trees = store.view.trees
    start = after + b"\0" if after else id_key(vbucket, b"")
    rows = trees.ids.rows(start, wanted=1 << vbucket)
    ids = list(islice((row for row in rows if row.vbucket == vbucket), _PORTION))
    keys: list[list[bytes]] = [[] for _ in trees.views]
    for entry in ids:
        for some, of_view in zip(keys, split_id_value(entry.value), strict=True):
            some += of_view
    found = [
        list(tree.get_many(some).values()) for tree, some in zip(trees.views, keys, strict=True)
    ]
    return [ids, *found]


# --- source vbuckets ------------------------------------------------------------------------------
# Which vBuckets an index follows by itself: those of its source, unless `_set_states` decides.
#
# Rows of a vBucket that becomes active are taken from the replica index, if there is one. Those of
# a vBucket that its source has lost are kept for a while, since it may come back.
#
# Rows I15 to I17.


#: The rows of a vBucket that its source has lost are kept this long.
_LOST_S = 10.0


class SourceVBuckets:
    """Has one index follow what its source has.

    Args:
        reactor: whose.
        source: what nodes say they have.
        index: which follows it.
        replica: the index of replica vBuckets, ``None`` = there is none.
        replicas: it is that index.
    """

    def __init__(
        self,
        reactor: Any,
        source: IndexSource,
        index: Following,
        replica: Following | None,
        *,
        replicas: bool,
    ) -> None:
        self._reactor, self._source, self._index = reactor, source, index
        self._replica, self._replicas = replica, replicas
        self._taking = DeferredLock()
        self._lost: dict[int, float] = {}
        self._taken: tuple[IndexStore, int] | None = None
        self._timer: Any = None
        self._stopped = False

    def stop(self) -> None:
        """Take nothing more."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    async def take(self) -> None:
        """Follow what the source has now."""
        await self._taking.run(self._take)

    async def _take(self) -> None:
        store = self._index.writable
        if store is None or not self._source.is_known:
            return
        version = self._source.version
        if (store, version) == self._taken and not self._lost:
            return
        at_source, kept = bitmap(self._at_source), self._kept(store.view.states)
        first = store.is_building
        states = store.view.states
        if self._replica is not None and not states.managed:
            await moved(self._replica, self._index, numbers(at_source & ~states.indexed))
        await self._index.change_states(
            lambda states: follow_source(states, at_source, kept, first=first)
        )
        self._taken = (store, version)

    async def take_over(self, vbuckets: int) -> None:
        """Take the rows of vBuckets that `_set_states` adds from the replica index, if it has them.

        Those that the source does not have active yet are left out: they are indexed from zero when
        it has.
        """
        await self._taking.run(self._take_over, vbuckets)

    async def _take_over(self, vbuckets: int) -> None:
        store = self._index.writable
        if self._replica is not None and store is not None:
            added = vbuckets & bitmap(self._source.active) & ~store.view.states.indexed
            await moved(self._replica, self._index, numbers(added))

    @property
    def _at_source(self) -> frozenset[int]:
        return self._source.replicas if self._replicas else self._source.active

    def _kept(self, states: States) -> int:
        """Return the vBuckets that the source has lost so recently that their rows stay."""
        now, there = time.monotonic(), self._at_source
        missing = [vbucket for vbucket in numbers(states.indexed) if vbucket not in there]
        self._lost = {vbucket: self._lost.get(vbucket, now + _LOST_S) for vbucket in missing}
        left = [until for until in self._lost.values() if until > now]
        if left and (self._timer is None or not self._timer.active()) and not self._stopped:
            self._timer = self._reactor.callLater(min(left) - now + 0.01, self._look_at_lost)
        return bitmap(vbucket for vbucket, until in self._lost.items() if until > now)

    def _look_at_lost(self) -> None:
        ensureDeferred(self.take()).addErrback(unheard)


# --- following ------------------------------------------------------------------------------------


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
        on_event: gets what happens to it.
        replica: the index of vBuckets that are replicas at the source, ``None`` = there is none.
        of_replicas: it is that index.
    """

    def __init__(
        self,
        reactor: Any,
        name: str,
        open_store: Callable[[], IndexStore],
        source: IndexSource,
        endpoint: MakeEndpoint,
        settings: IndexSettings,
        on_event: OnEvent,
        *,
        replica: Following | None = None,
        of_replicas: bool = False,
    ) -> None:
        self.replica = replica
        self.progress = Signal()  # fires when anything has changed
        self.at_end: list[Callable[[], None]] = []  # called when it is to stop
        # What is indexed, ``None`` = it is not open at present.
        self.store: IndexStore | None = None
        self.streams = IndexStreams(
            reactor, name, source, endpoint, self.progress, replicas=of_replicas
        )
        self.fault = IndexFault(name, on_event)  # what has ended the last life
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
        """Whether it is to stop: all waiting is in vain."""
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
            settings.worker_idle_s,
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
            has_failed = bool(failures)
            self._updater, self.streams.ready = None, False
            if has_failed:  # what was indexed last is shown meanwhile
                error = failures[0].value
                self.fault.note(error)
                await self._pause(self.fault.next_pause_s())
                if self.fault.needs_new_file(error):
                    updater.store.files.remove()
            self.store = None
            await updater.stop(orderly=not failures)
            if failures and not has_failed:
                self.fault.note(failures[0].value)

    async def _until_failed(self, failures: list[Any]) -> None:
        """Wait for the failure that has stopped the updater: it comes right afterwards."""
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
        updater = self._updater
        if updater is None:
            raise Stopped
        course = updater.store.view.course
        followed = await self.streams.barrier(updater)
        await self.take_source()
        known = self._source.is_known and self._source.is_complete
        still = self._updater is updater and updater.store.view.states.followed == followed
        if not (known and still):
            raise Stopped
        await updater.level(updater.store.finish_build)
        return Level(followed | await self._at_rest(updater.store), course)

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

    def damaged(self, file: OpenFile, error: IndexDamaged) -> None:
        """A reader has found a block of a file that cannot be read: it is built again."""
        updater = self._updater
        if updater is None or updater.store.files.current is not file:
            return  # it is out of use, or was reported already

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


def has_all(
    position: IndexPosition | None, facts: Facts | None, log: FailoverLog, high: int
) -> bool:
    """Return whether an index that stands here has all of a history up to its high seqno."""
    seqno = 0 if position is None else position.seqno
    if not seqno or facts is None or not facts.log:
        return not high
    uuid = origin_here(facts.log, seqno).uuid
    return seqno >= high and is_of(log, Token(0, uuid, seqno))
