"""The bucket: all vBuckets of a node, and the front door for key operations.

Job: know which vBucket a key belongs to and whether clients may use it now; own what the vBuckets
share (memory account, counters) and the helpers that move data between memory and store.

Note: `active` contains the vBuckets that may serve clients *now*. It is empty until warm-up is
over, so the hot path needs a single lookup; only a failed lookup asks for the reason (`locate`).

**Marks** are what meta commands put on documents: "stale", and "a client is fetching a new value".
They are a hint among caches that recompute a document together, not data: in memory only, not
replicated, gone with the process, and bounded (the oldest mark goes first). If one is lost, two
clients may recompute a document, or a client may take a stale value for fresh. A mark belongs to
one version: it is stored with the version's CAS, so a document that is written again, flushed, or
deleted and created again has none, without any change of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from uprmc.config import Settings
from uprmc.core.numbered import Numbered
from uprmc.engine import failover_log
from uprmc.engine.cas_clock import beyond, step
from uprmc.engine.failover_log import branched, last_complete_seqno
from uprmc.engine.fetcher import Fetcher
from uprmc.engine.flusher import Flusher, Waiter
from uprmc.engine.healing import Healer
from uprmc.engine.memory import (
    RELATIVE_MAX_S,
    STEPS_MAX,
    Evictor,
    Expirer,
    MemoryAccount,
    SteadyClock,
)
from uprmc.engine.purge import Compactor, Pinning, PurgeLimits, PurgePolicy, Purger
from uprmc.engine.reading import ViewGate
from uprmc.engine.stats import Stats, Timings
from uprmc.engine.tombstones import Compacted, PurgeRule, shown
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.engine.watermarks.registry import Watermarks
from uprmc.engine.watermarks.rows import Limit
from uprmc.errors import InvalidArguments, NotMyVBucket, RangeExceeded, TemporaryFailure
from uprmc.model import ConflictRule, Item, VBucketHeader, VBucketState, conflict_rule, vbucket_of
from uprmc.ports import Clock, Entropy
from uprmc.storage.interface import Store

# --- marks of meta commands ---------------------------------------------------------------------


#: The document was invalidated; its value may be served but should be replaced.
STALE = 1

#: One client shall recompute the document; the others shall wait.
WON = 2


class MetaMarks:
    """Key -> marks of its present version.

    Args:
        limit: most marks kept.
    """

    __slots__ = ("_limit", "_marks")

    def __init__(self, limit: int = 65_536) -> None:
        self._limit = limit
        self._marks: dict[bytes, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def of(self, item: Item) -> int:
        """Return the marks of this version, `STALE` and `WON` added up, usually 0."""
        cas, marks = self._marks.get(item.key, (0, 0))
        if cas == item.cas:
            return marks
        if cas:
            del self._marks[item.key]
        return 0

    def put(self, item: Item, marks: int) -> None:
        """Give this version exactly these marks."""
        self._marks.pop(item.key, None)
        if not marks:
            return
        if len(self._marks) >= self._limit:
            del self._marks[next(iter(self._marks))]
        self._marks[item.key] = (item.cas, marks)

    def clear(self) -> None:
        """Forget every mark; worth doing at a flush, for the memory."""
        self._marks.clear()


# --- the bucket ---------------------------------------------------------------------------------


class ViewHolder(Protocol):
    """A holder of a long-lived reading of the store, which can continue from a new one."""

    def release_views(self) -> None:
        """Close the views of the store now: it cannot grow while one is open."""


class Bucket:
    """All vBuckets of a node, with what they share."""

    def __init__(self, settings: Settings, store: Store, clock: Clock, entropy: Entropy) -> None:
        assert settings.engine.vbuckets, "0 means 'as stored' and must have been resolved"
        self.settings = settings
        self.store = store
        self.clock = clock
        self.steady = SteadyClock(clock)
        self.entropy = entropy
        self.vbuckets: dict[int, VBucket] = {}  # number -> vBucket, whatever its state
        # Number -> vBucket, those that serve clients now.
        self.active: Numbered[VBucket] = Numbered()
        self.traffic = False  # whether clients are admitted
        self.warm = False  # whether warm-up is over
        self.stats = Stats()
        self.timings = Timings()  # durations, reported by callers that have a clock
        now = clock.now()
        rule = conflict_rule(settings.engine.conflict_resolution) or ConflictRule.REVISION
        self.account = MemoryAccount(settings.memory, now, rule)
        self.lookups = self.account.lookups  # the `lookups` of the memory account
        self.expirer = Expirer(self.vbuckets, self.account, self.stats)
        self.flusher = Flusher(store, self.vbuckets, self.account, self.stats, settings.flush)
        self.gate = ViewGate()  # shut while the store has to grow
        self.fetcher = Fetcher(
            store, self.vbuckets, self.stats, settings.flush.fetch_batch, self.gate
        )
        self.healer = Healer(store, self.vbuckets, self.flusher, self.stats)
        self.healer.on_event = lambda name, fields: self.on_event(name, fields)
        self.evictor = Evictor(
            self.vbuckets.values, self.account, self.stats, settings.memory.pager_slice
        )
        # The registered clients.
        self.watermarks = Watermarks(self.flusher, clock, self.steady, settings.purge)
        self.watermarks.on_event = lambda name, fields: self.on_event(name, fields)
        # Number -> uuid of the history in which a vBucket gets its seqnos from this node although
        # it is not active, until its state is set; see `replica`.
        self.numbered: dict[int, int] = {}
        # How far vBuckets may be purged, as clients and sources set it.
        self.limits = PurgeLimits(self.flusher, self.watermarks, self.numbered)
        # Returns how far a vBucket may be purged, and what holds the purger back.
        self.purge_limit: Callable[[VBucket], Limit] = self.limits.of
        # Decides which tombstones may be dropped for good.
        self.purge_policy = PurgePolicy(self.account, clock, settings.purge)
        self.compactor = Compactor(
            store,
            self.vbuckets,
            self.flusher,
            settings.purge,
            self._limit_for,
            self.purge_policy,
            self.gate,
            clock,
        )
        self.compactor.on_end = self._compacted
        self.purger = Purger(self.vbuckets, self.compactor, self.purge_policy)
        # Knows what each registered client keeps, and forgets those that keep too much.
        self.pinning = Pinning(
            self.active, self.watermarks, self.limits, settings.purge.max_pinned_bytes
        )
        # Documents that meta commands have marked as stale or being fetched.
        self.marks = MetaMarks()
        # Objects that are asked to close their views when the store must grow.
        self.view_holders: list[ViewHolder] = []
        self.flushes = 0  # number of times that all vBuckets were emptied at once
        # Number -> highest known term of a removed vBucket; a new vBucket with that number begins
        # above it.
        self.removed_terms: dict[int, int] = {}
        #: By vBucket, a higher term than its own, and the history for which it was learned.
        self._heard: dict[int, tuple[int, int]] = {}
        # Called with an active vBucket that became dead because of a higher term.
        self.on_deposed: Callable[[VBucket], None] = lambda _: None
        # Called with the name of an event and its fields.
        self.on_event: Callable[[str, dict[str, object]], None] = lambda _name, _fields: None
        self._flush_at: float | None = None
        self._mask = settings.engine.vbuckets - 1

    def vbucket_of(self, key: bytes) -> int:
        """Return the number of the vBucket that `key` belongs to (design, decision 3)."""
        return vbucket_of(key, self._mask + 1)

    def locate(self, number: int) -> VBucket:
        """Return an active vBucket, or raise the reason why clients cannot use it.

        Raises:
            TemporaryFailure: warm-up is going on.
            NotMyVBucket: absent, or in another state.
        """
        vbucket = self.active.get(number)
        if vbucket is not None:
            return vbucket
        if not self.traffic:
            raise TemporaryFailure("warming up")
        raise NotMyVBucket(number)

    def of_key(self, key: bytes) -> VBucket:
        """Return the active vBucket of `key`; raises as `locate`."""
        return self.locate(self.vbucket_of(key))

    def create(self, number: int, state: VBucketState) -> VBucket:
        """Create an empty vBucket with a new history.

        Records that the store has under that number belong to a removed vBucket. The commit that
        writes the new header also deletes them, so no crash can mix the two.
        """
        vbucket = self._new(number, state)
        vbucket.known_term = self.removed_terms.get(number, 0)
        if state == VBucketState.ACTIVE:
            vbucket.promote()
        vbucket.reset_pending = True
        vbucket.replaces = number in self.removed_terms
        vbucket.change_header()
        return vbucket

    def restore(self, number: int, header: VBucketHeader, *, clean: bool) -> VBucket:
        """Create a vBucket from its stored header; its items are installed afterwards.

        Args:
            number: its number.
            header: the stored header.
            clean: whether the node was stopped in order. If not, it cannot know what it had
                promised beyond what is stored. Then an active vBucket begins a new branch (D11) or
                waits to be made active, depending on ``engine.after_unclean_start``.
        """
        vbucket = self._new(number, header.state)
        vbucket.failover_log = header.failover_log
        vbucket.high_seqno = vbucket.persisted_seqno = header.high_seqno
        vbucket.persisted_snapshot = header.snapshot
        vbucket.queue = vbucket.queue.restarted(header.high_seqno)
        vbucket.purge_seqno = header.purge_seqno
        vbucket.max_deleted_rev = header.max_deleted_rev
        vbucket.term = header.term
        vbucket.known_term = max(header.term, header.known_term)
        vbucket.know_cas(header.max_cas)
        if header.snapshot.start < header.high_seqno < header.snapshot.end:
            vbucket.receiving = header.snapshot
        if not clean and header.state == VBucketState.ACTIVE:
            if self.settings.engine.after_unclean_start == "pending":
                vbucket.state = VBucketState.PENDING  # it branches when it is made active
            else:
                self._branch(vbucket)
                self.leave_lost_cas_behind(vbucket)
            vbucket.change_header()
        return vbucket

    def set_state(self, number: int, state: VBucketState, *, takeover: bool = False) -> VBucket:
        """Set the state of a vBucket, create it if it does not exist, and return it.

        A vBucket that becomes active gets a higher term and begins a branch, because the node
        cannot know what the last active node had promised. A takeover begins no branch: its source
        has sent everything before.

        Raises:
            RangeExceeded: the number is too high for a vBucket.
        """
        if not 0 <= number <= self._mask:
            raise RangeExceeded(number)
        self.numbered.pop(number, None)
        vbucket = self.vbuckets.get(number)
        if vbucket is None:
            vbucket = self.create(number, state)
            if state == VBucketState.ACTIVE:
                self.leave_lost_cas_behind(vbucket)  # another node may have had it before
        elif vbucket.state != state:
            if state == VBucketState.ACTIVE:
                vbucket.promote()
                if not (takeover and vbucket.receiving is None):
                    self._branch(vbucket)
                self.leave_lost_cas_behind(vbucket)
                self.watermarks.promoted(vbucket)
            vbucket.state = state
            if state != VBucketState.ACTIVE:
                vbucket.steps = []  # its seqnos may be given to other documents now
            vbucket.change_header()
            vbucket.interrupt(Interruption.STATE_CHANGED)
        self._settle_traffic(vbucket)
        return vbucket

    def leave_lost_cas_behind(self, vbucket: VBucket) -> None:
        """Make sure that a CAS which was given out for this vBucket and then lost is not reused."""
        name = vbucket.failover_log[0].uuid
        now = self.account.believed(self.clock.now())
        cas = max(self.account.last_cas, beyond(vbucket.max_cas, now, name))
        vbucket.max_cas = self.account.last_cas = cas

    def learn_term(self, vbucket: VBucket, term: int) -> None:
        """Take note of a term of another node; an active vBucket with a lower one was deposed.

        It is dead from now on, until an operator or a manager changes its state. A replica asks its
        source again, which learns the term from that: it may be the one that was deposed.
        """
        if vbucket.state == VBucketState.REPLICA and term > self.highest_term(vbucket):
            self._heard[vbucket.id] = vbucket.failover_log[0].uuid, term
            vbucket.interrupt(Interruption.STATE_CHANGED)
        if term <= vbucket.known_term:
            return
        vbucket.known_term = term
        vbucket.change_header()
        if failover_log.is_deposed(vbucket.state, vbucket.term, term):
            self.stats.vbuckets_deposed += 1
            self.set_state(vbucket.id, VBucketState.DEAD)
            self.on_deposed(vbucket)

    def highest_term(self, vbucket: VBucket) -> int:
        """Return the highest term that is known of the present history, and of what shares it.

        `VBucket.known_term` may be that of an earlier history, which has nothing to do with this.
        """
        uuid, term = self._heard.get(vbucket.id, (0, 0))
        same = uuid == vbucket.failover_log[0].uuid
        return max(vbucket.term, term) if same else vbucket.term

    def remove(self, number: int, done: Waiter) -> None:
        """Remove a dead vBucket with everything in it.

        It is gone from memory at once. `done` is called when it is gone from disk too, or with
        ``False`` if that failed or persistence is stopped; then it will be removed later.

        Raises:
            NotMyVBucket: there is none of that number.
            InvalidArguments: it is not dead.
        """
        vbucket = self.vbuckets.get(number)
        if vbucket is None:
            raise NotMyVBucket(number)
        if vbucket.state != VBucketState.DEAD:
            raise InvalidArguments(f"vBucket {number} is {vbucket.state.name.lower()}, not dead")
        del self.vbuckets[number]
        self._settle_traffic(vbucket)
        vbucket.interrupt(Interruption.STATE_CHANGED)
        vbucket.reset(self.entropy.uuid48())
        self.removed_terms[number] = vbucket.known_term
        document = failover_log.encode_removed(self.removed_terms)
        self.flusher.write_local(failover_log.REMOVED_NAME, document, lambda _: None)
        self.watermarks.forget(number)
        self.flusher.remove(vbucket, done)

    def compact(self, number: int, rule: PurgeRule, done: Waiter) -> None:
        """Purge the tombstones of a vBucket that match `rule`; see `purge`.

        `done` is called later: with ``True`` when the result is on disk, ``False`` if it was
        cancelled.

        Raises:
            TemporaryFailure: warm-up is going on, or persistence is stopped.
            NotMyVBucket: there is none of that number.
        """
        if not self.warm:
            raise TemporaryFailure("warming up")
        if self.flusher.paused:
            raise TemporaryFailure("persistence is stopped")
        if number not in self.vbuckets:
            raise NotMyVBucket(number)
        self.compactor.want(number, rule, done)

    def _limit_for(self, vbucket: VBucket, rule: PurgeRule) -> Limit:
        return self.limits.forced(vbucket) if rule.forced else self.purge_limit(vbucket)

    def _compacted(self, rule: PurgeRule, result: Compacted) -> None:
        """Tell what was dropped, and which clients a forced compaction has outpaced."""
        if not result.dropped:
            return
        fields = {"vb": result.vbucket, "from": result.start, "to": result.end}
        more = {"dropped": result.dropped, "limited_by": shown(result.limited_by)}
        self.on_event("purge", {**fields, **more})
        vbucket = self.vbuckets.get(result.vbucket)
        if rule.forced and vbucket is not None:
            rows = self.watermarks.rows(vbucket)
            outpaced = [shown(row.id) for row in rows if row.effective < result.end]
            self.on_event("purge_forced", {**fields, "outpaced": outpaced})

    def _branch(self, vbucket: VBucket) -> None:
        vbucket.failover_log = branched(
            vbucket.failover_log,
            self.entropy.uuid48(),
            last_complete_seqno(vbucket.high_seqno, vbucket.snapshot),
            self.settings.engine.max_failover_entries,
        )
        # Later seqnos were never part of this branch, so a consumer at its end lacks nothing.
        vbucket.purge_seqno = min(vbucket.purge_seqno, vbucket.high_seqno)
        vbucket.receiving = None

    def _settle_traffic(self, vbucket: VBucket) -> None:
        """Admit clients to exactly those vBuckets that may serve them."""
        number = vbucket.id
        if self.traffic and vbucket.state == VBucketState.ACTIVE:
            self.active[number] = vbucket
            self.lookups[number] = vbucket.table.get
            self.expirer.survey(number)
        else:
            self.active.pop(number, None)
            self.lookups.pop(number, None)

    def release_views(self) -> None:
        """Ask the holders of long-lived readings of the store to close them."""
        for holder in list(self.view_holders):
            holder.release_views()

    def let_traffic_in(self) -> None:
        """Admit clients: warm-up is over."""
        self.traffic = self.warm = True
        for vbucket in self.vbuckets.values():
            self._settle_traffic(vbucket)

    def shut_traffic_out(self) -> None:
        """Refuse clients: from now on commands get temporary failure."""
        self.traffic = False
        self.active.clear()
        self.lookups.clear()

    def flush(self, at: float, done: Waiter) -> None:
        """Delete every document at Unix time `at`, or now if that has passed.

        Each vBucket starts again at seqno 0 with a new history. An immediate flush calls `done`
        when it is on disk, or with ``False`` if that failed or persistence is stopped; then it will
        be on disk later. A later flush calls `done` at once, and also deletes what is stored until
        its time comes.
        """
        if at > self.steady.now():
            self._flush_at = at
            done(True)
            return
        self._flush_at = None
        self._reset_all()
        self.flusher.when_durable(done, patient=False)

    def tick(self) -> None:
        """Do whatever is due; call it a few times a second."""
        step = self.steady.look()
        now = self.clock.now()
        if step:
            self._clock_was_set(step, int(now))
        self.account.timeline.look(now, self.clock.monotonic())
        self.account.tell_time(now)
        self.watermarks.tell_events()
        if self._flush_at is not None and self._flush_at <= self.steady.now():
            self._flush_at = None
            self._reset_all()
        self.expirer.bound()
        self.healer.tick(self.clock.monotonic())

    def _clock_was_set(self, step: int, now: int) -> None:
        """Let lifetimes that were given by the earlier time go on; see `memory`."""
        latest = now - step + RELATIVE_MAX_S
        for vbucket in self.active.values():
            vbucket.steps = [*vbucket.steps, (vbucket.high_seqno, step, latest)][-STEPS_MAX:]
        self.account.back += max(0, -step)
        if self._flush_at is not None and self._flush_at <= latest:
            self._flush_at += step
        self.expirer.start_over()
        self.watermarks.clock_was_set(step)
        self.on_event("clock_set", {"seconds": step})

    @property
    def item_count(self) -> int:
        """Number of documents in active vBuckets."""
        return sum(vbucket.item_count for vbucket in self.active.values())

    @property
    def total_item_count(self) -> int:
        """Number of documents in all vBuckets."""
        return sum(vbucket.item_count for vbucket in self.vbuckets.values())

    def _new(self, number: int, state: VBucketState) -> VBucket:
        uuid = self.entropy.uuid48()
        if not self.vbuckets:
            self.account.cas_step = step(uuid)
        vbucket = VBucket(number, state, uuid, self.account, self.stats, self.steady)
        self.vbuckets[number] = vbucket
        return vbucket

    def _reset_all(self) -> None:
        """Delete every document in one turn, no matter how many there are."""
        self.marks.clear()
        self.expirer.forget_all()
        self.flushes += 1
        for vbucket in self.vbuckets.values():
            vbucket.reset(self.entropy.uuid48(), size=0)
        self.account.used = 0
