"""One design and its index: who waits for what, and what is answered.

Rows I12, I14, I25 to I27.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred

from uprmc.client.errors import ClientError
from uprmc.config import IndexSettings
from uprmc.index.design import Design
from uprmc.index.errors import (
    IndexDamaged,
    QueryRefused,
    Replaced,
    bad_request,
    outdated,
    timed_out,
    version_lost,
)
from uprmc.index.following import Following, Level, is_of, is_reached
from uprmc.index.index_file import PublishedView, Snapshot, taken
from uprmc.index.model import Stale, Token
from uprmc.index.source import IndexSource
from uprmc.index.store import IndexStore
from uprmc.index.updater import Stopped
from uprmc.index.vbucket_sets import Wish, bitmap, contradiction, numbers, wished
from uprmc.index.waiting import Deadline, pause
from uprmc.units import in_ranges

# --- freshness ------------------------------------------------------------------------------------


#: What has to wait again waits for so long at least.
_PAUSE_S = 0.05


class Freshness:
    """`stale=false`: one run for all that wait.

    Who asks while a run is under way waits for the next one: it may have begun before what was
    written. A run waits for a barrier over the index's streams, which asks the nodes what they
    have, too, then for the trees. It is repeated as long as anyone waits, since a stream that ends
    breaks a barrier; the source is asked first then, whether streams run or not.

    Rows D16, I02.
    """

    def __init__(self, reactor: Any, following: Following, source: IndexSource) -> None:
        self.runs = 0  # how many have been made
        self._reactor, self._following, self._source = reactor, following, source
        self._waiting: list[Deferred[Level | None]] = []
        self._running: list[Deferred[Level | None]] = []
        self._busy = False
        following.at_end.append(self._give_up)

    async def wait(self, limit_s: float) -> Level | None:
        """Return when everything that was acknowledged before is indexed, and of which vBuckets.

        ``None`` = it is too late, or the index has ended.
        """
        done: Deferred[Level | None] = Deferred()
        self._waiting.append(done)
        timer = self._reactor.callLater(limit_s, self._over, done)
        if not self._busy:
            self._busy = True
            ensureDeferred(self._run())
        try:
            return await done
        finally:
            if timer.active():
                timer.cancel()

    def _over(self, done: Deferred[Level | None]) -> None:
        for waiting in (self._waiting, self._running):
            if done in waiting:
                waiting.remove(done)
        done.callback(None)

    async def _run(self) -> None:
        try:
            while self._waiting or self._running:
                if self._following.has_ended:
                    self._give_up()
                    return
                if not self._running:
                    self._running, self._waiting = self._waiting, []
                self.runs += 1
                level = await self._once()
                if level is not None:
                    found, self._running = self._running, []
                    for done in found:
                        done.callback(level)
        finally:
            self._busy = False

    def _give_up(self) -> None:
        found = self._running + self._waiting
        self._running, self._waiting = [], []
        for done in found:
            done.callback(None)

    async def _once(self) -> Level | None:
        try:
            return await self._following.level()
        except (ClientError, Stopped):
            await self._source.refresh()
            await self._following.progress.wait(self._reactor, _PAUSE_S)
            return None


# --- group ----------------------------------------------------------------------------------------


class _Again(Exception):
    """A request has to wait again; the text says for what."""


class Group:
    """See the module docstring. Its methods are for the reactor's thread.

    Args:
        reactor: whose.
        design: what is indexed.
        following: how it follows its source.
        source: what nodes say they have.
        settings: of the index.
    """

    def __init__(
        self,
        reactor: Any,
        design: Design,
        following: Following,
        source: IndexSource,
        settings: IndexSettings,
    ) -> None:
        self.design, self.following = design, following  # what is indexed
        self.waiting = 0  # requests that wait
        self._reactor, self._source, self._settings = reactor, source, settings
        self._freshness = Freshness(reactor, following, source)

    # --- queries --------------------------------------------------------------------------------

    async def snapshot(
        self,
        stale: Stale,
        at: Sequence[Token],
        vbuckets: frozenset[int] | None,
        epoch: int | None,
        timeout_s: float,
    ) -> Snapshot:
        """Return a state that is as fresh as wanted; raise `QueryRefused`."""
        self._admit()
        self.waiting += 1
        try:
            deadline = Deadline(timeout_s)
            what = "what was written before the request to be indexed"
            while True:
                await self._open(deadline)
                level = None
                if stale is Stale.FALSE:
                    level = await self._freshness.wait(deadline.left_s)
                    if level is None:
                        self._go_on()
                        raise self._too_late(what)
                for token in at:
                    await self._version(token, deadline)
                try:
                    return await self._placed(vbuckets, epoch, stale, at, level, deadline)
                except _Again as again:
                    what = str(again)
                await pause(self._reactor, self.following.progress, _PAUSE_S, self._has_ended)
        finally:
            self.waiting -= 1

    def _has_ended(self) -> bool:
        return self.following.has_ended

    def _admit(self) -> None:
        if self.waiting >= self._settings.waiting:
            raise QueryRefused(503, "busy", f"{self.waiting} requests wait for this index already")

    async def _open(self, deadline: Deadline) -> IndexStore:
        """Return the store once it is open."""
        following = self.following
        await deadline.until(
            self._reactor,
            following.progress,
            lambda: following.store is not None or following.has_ended,
            lambda: self._too_late("the index to be opened"),
        )
        self._go_on()
        assert following.store is not None
        return following.store

    def _go_on(self) -> None:
        """Raise `Replaced` if nothing is to be waited for any more."""
        if self.following.has_ended:
            raise Replaced

    def _too_late(self, what: str) -> QueryRefused:
        """Return the refusal of a request that has waited for long enough."""
        fault = self.following.fault.text
        if fault:
            return QueryRefused(503, "unavailable", f"there was no time {what}: {fault}")
        why = self._source.error or self.following.streams.failure
        if why:
            return QueryRefused(503, "source_away", f"timed out waiting for {what}: {why}")
        return timed_out(f"timed out waiting for {what}")

    async def _placed(
        self,
        vbuckets: frozenset[int] | None,
        epoch: int | None,
        stale: Stale,
        at: Sequence[Token],
        level: Level | None,
        deadline: Deadline,
    ) -> Snapshot:
        """Return a snapshot once everything that it needs is there (rows I10, I12, I14).

        Raises:
            _Again: what was waited for before is not in it.
            Refused: it will not be there in time.
        """
        asked_again = False
        while True:
            view = (await self._open(deadline)).view
            states = view.states
            if epoch is not None and states.managed and epoch < states.epoch:
                raise outdated(vbuckets or (), f"the epoch is {states.epoch}", states.epoch)
            there = states.active | states.pending
            needed = there if vbuckets is None else bitmap(vbuckets)
            if needed & ~there:
                if asked_again:
                    raise outdated(numbers(needed & ~there), "they are not active", states.epoch)
                asked_again = True
                await self._source.refresh()
                await self._take_source(deadline)
                continue
            alone = vbuckets is None and stale is not Stale.FALSE and bool(self._source.error)
            if not needed & states.pending or alone:
                shown = needed & states.active
                _check(view, shown, level, at)
                found = taken(view, shown)
                if found is not None:
                    return found
            if not deadline.left_s:
                lacking = in_ranges(numbers(needed & states.pending))
                raise self._too_late(f"vBuckets {lacking} to be indexed")
            await self.following.progress.wait(self._reactor, deadline.left_s)

    async def _take_source(self, deadline: Deadline) -> None:
        try:
            await self.following.take_source()
        except Stopped:
            await self._open(deadline)

    # --- versions -------------------------------------------------------------------------------

    async def _version(self, token: Token, deadline: Deadline) -> None:
        """Return when a version is indexed; raise `QueryRefused` when it never can be (row I27)."""
        total = self._source.total
        if token.vbucket < 0 or (total and token.vbucket >= total):
            raise bad_request(f"there is no vBucket {token.vbucket}")
        while not self._has(token):
            self._go_on()
            logs = await self._source.failover_logs([token.vbucket])
            log = logs.get(token.vbucket)
            if self._has(token):
                return
            if log and not is_of(log, token):
                raise version_lost(*token)
            if not deadline.left_s:
                raise self._too_late(
                    f"seqno {token.seqno} of vBucket {token.vbucket} to be indexed"
                )
            pause_s = min(deadline.left_s, self._settings.poll_s)
            await pause(
                self._reactor,
                self.following.progress,
                pause_s,
                lambda: self._has(token) or self._has_ended(),
            )

    def _has(self, token: Token) -> bool:
        store = self.following.store
        return store is not None and _has(store.view, token)

    async def monitor(self, vbucket: int, seqno: int, vb_uuid: int, timeout_s: float) -> None:
        """Return when a version is indexed; raise `QueryRefused`."""
        self._admit()
        self.waiting += 1
        try:
            await self._version(Token(vbucket, vb_uuid, seqno), Deadline(timeout_s))
        finally:
            self.waiting -= 1

    # --- states of vBuckets ---------------------------------------------------------------------

    async def set_states(
        self,
        *,
        active: frozenset[int] | None,
        passive: frozenset[int] | None,
        cleanup: frozenset[int] | None,
        pause: frozenset[int] | None,
        epoch: int | None,
    ) -> None:
        """Take over the states of vBuckets; ``None`` = not named. Raise `QueryRefused`."""
        wish = Wish(_bits(active), _bits(passive), _bits(cleanup), _bits(pause), epoch)
        why = contradiction(wish)
        if why is not None:
            raise bad_request(why)
        await self._open(Deadline(self._settings.connection_timeout_s))
        await self._take_over((wish.active or 0) | (wish.passive or 0))
        store = await self._open(Deadline(self._settings.connection_timeout_s))
        known = store.view.states.epoch
        if epoch is not None and epoch < known:
            reason = f"the epoch {epoch} is older than {known}, which was set before"
            raise QueryRefused(409, "old_epoch", reason, epoch=known)
        try:
            await self.following.change_states(lambda states: wished(states, wish))
            await self.following.do(lambda store: store.write_header())
        except Stopped:
            raise QueryRefused(503, "unavailable", "the index is not open; ask again") from None

    async def _take_over(self, vbuckets: int) -> None:
        """Have rows that the replica index has moved; what cannot be moved is indexed again."""
        if self.following.replica is None:
            return
        await self._source.refresh()
        with suppress(Stopped):
            await self.following.take_over(vbuckets)

    def placement(self) -> dict[str, Any]:
        """Return what a merger has to know to ask the right nodes.

        The source is asked again meanwhile: a merger that lacks a vBucket comes back.
        """
        self._source.refresh()
        store = self.following.store
        if store is None:
            return {"num_vbuckets": self._source.total, "epoch": 0, "active": {}, "pending": []}
        states, facts, terms = store.view.states, store.view.facts, self._source.terms
        active = {
            vbucket: max(terms.get(vbucket, 0), facts[vbucket].term if vbucket in facts else 0)
            for vbucket in numbers(states.active | states.pending)
        }
        return {
            "num_vbuckets": self._source.total,
            "epoch": states.epoch,
            "active": active,
            "pending": numbers(states.pending),
        }

    # --- the rest -------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """``building``, or ``ready`` once it has everything that was there when it was begun."""
        store = self.following.store
        is_ready = store is not None and not store.view.building
        return (
            "ready"
            if is_ready and (self.following.streams.ready or self._was_built())
            else "building"
        )

    def _was_built(self) -> bool:
        store = self.following.store
        return store is not None and bool(store.view.positions)

    def rows(self) -> dict[str, int]:
        """Return how many rows each view has."""
        return self._rows(self.following.store)

    def _rows(self, store: IndexStore | None) -> dict[str, int]:
        if store is None:
            return {}
        counts = [tree.count for tree in store.view.trees.views]
        return dict(zip((view.name for view in self.design.views), counts, strict=True))

    def damaged(self, snapshot: Snapshot, error: IndexDamaged) -> None:
        """What a snapshot reads is damaged."""
        self.following.damaged(snapshot.file, error)

    async def compact(self) -> None:
        """Begin to compact the file."""
        try:
            await self.following.do(lambda store: store.begin_compaction())
        except Stopped:
            raise QueryRefused(503, "unavailable", "the index is not open; ask again") from None

    def info(self) -> dict[str, Any]:
        """Return what ``_info`` shows; any thread may call it."""
        store, streams = self.following.store, self.following.streams
        found: dict[str, Any] = {
            "name": self.design.name,
            "signature": self.design.signature,
            "state": self.state,
            "progress": self.progress(),
            "waiting": self.waiting,
            "error": self.following.fault.text or streams.failure or self._source.error,
            "faults": self.following.fault.count,
            "runs": streams.runs,
            "freshness_runs": self._freshness.runs,
        }
        return found if store is None else found | self._info(store)

    def progress(self) -> float:
        """Return which part of the changes that are to be indexed is, from 0 to 1."""
        there, wanted = self._standing()
        return round(there / wanted, 4) if wanted else 1.0

    def pending(self) -> int:
        """Return how many changes the source had when it answered last that are not indexed yet."""
        there, wanted = self._standing()
        return wanted - there

    def _standing(self) -> tuple[int, int]:
        """Return how many changes are indexed, and how many the source has of these vBuckets."""
        store, seqnos = self.following.store, self._source.seqnos
        if store is None:
            return 0, sum(seqnos.values())
        indexed = frozenset(numbers(store.view.states.indexed))
        wanted = {vb: seqno for vb, seqno in seqnos.items() if vb in indexed}
        there = sum(min(store.seqno_of(vb), seqno) for vb, seqno in wanted.items())
        return there, sum(wanted.values())

    def _info(self, store: IndexStore) -> dict[str, Any]:
        view = store.view
        states = view.states
        return {
            "rows": self._rows(store),
            "documents": view.trees.ids.count,
            "map_calls": store.maps.calls,
            "docs_mapped": store.docs_mapped,
            "map_errors_total": store.maps.errors_total,
            "map_errors": [
                {"id": key, "seqno": seqno, "reason": reason}
                for key, seqno, reason in list(store.maps.errors)
            ],
            "map_log": [{"id": key, "text": text} for key, text in store.maps.log],
            **store.sizes(),
            "rollbacks": dict(store.rollbacks),
            "headers_written": store.headers_written,
            "vbuckets": {
                name: numbers(getattr(states, name))
                for name in ("active", "pending", "passive", "cleanup", "paused")
            },
            "epoch": states.epoch,
            "managed": states.managed,
            "seqnos": {str(vb): at.seqno for vb, at in sorted(view.positions.items())},
            "partition_versions": {
                str(vb): [[str(uuid), seqno] for uuid, seqno in facts.log]
                for vb, facts in sorted(view.facts.items())
            },
            "instance": store.instance,
            "replica": self._replica_info(),
            "header_age_s": round(time.monotonic() - store.header_at, 3),
        }

    def _replica_info(self) -> dict[str, Any] | None:
        """Return what there is of replica vBuckets, ``None`` = they are not indexed."""
        replica = self.following.replica
        if replica is None:
            return None
        store = replica.store
        return {
            "vbuckets": [] if store is None else numbers(store.view.states.active),
            "rows": self._rows(store),
            "map_calls": 0 if store is None else store.maps.calls,
        }


def _has(view: PublishedView, token: Token) -> bool:
    facts = view.facts.get(token.vbucket)
    position = view.positions.get(token.vbucket)
    return facts is not None and is_reached(position, facts.log, token)


def _check(view: PublishedView, shown: int, level: Level | None, at: Sequence[Token]) -> None:
    """Raise `_Again` if a view has not all of what is shown that a request has waited for."""
    if level is not None and view.course is not level.course:
        raise _Again("the index, which went back, to catch up")
    left = shown & ~level.vbuckets if level is not None else 0
    if left:
        raise _Again(f"vBuckets {in_ranges(numbers(left))}, which are paused, to go on")
    if not all(_has(view, token) for token in at):
        raise _Again("the index, which went back, to catch up")


def _bits(vbuckets: frozenset[int] | None) -> int | None:
    return None if vbuckets is None else bitmap(vbuckets)
