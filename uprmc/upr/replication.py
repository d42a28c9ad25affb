"""What this node gets from other nodes: which vBuckets follow whom, hand-overs, failovers.

Job: carry out what an operator asks for, and keep at it. What is followed is a local document of
the store, so that it goes on after a restart. A command of another kind that makes a followed
vBucket active or dead ends the following; that is in the same commit as the new state.

Neighbours: `source` keeps a line to each node; `handover` takes vBuckets over; `link` speaks. Time
comes by `tick`, connections by a `Dial`.

Note: a vBucket that is to follow a source becomes a replica at once, before the source has
answered. An active vBucket that contains changes is given up only with `demote`; changes that the
source lacks are then undone, as for every replica that is ahead.

Rows D50 to D54.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce

from uprmc.engine.flusher import Waiter
from uprmc.errors import InvalidArguments, NotMyVBucket, RangeExceeded, TemporaryFailure
from uprmc.model import Item, VBucketState
from uprmc.places import parsed
from uprmc.ports import Dial
from uprmc.protocol.replication import Branch, Outcome
from uprmc.remote.ranges import named
from uprmc.units import ranges_of
from uprmc.upr.handover import Handover, HandoverDone
from uprmc.upr.hub import Hub
from uprmc.upr.source import FILLED, ReceivedTotals, Source

#: Called with the newest branch of each vBucket that is still active, and whether they are on
#: disk. Another node's promotion can become known while they are being written.
FailoverDone = Callable[[list[Branch], bool], None]

#: Called with a source and what has become of it; ``""`` for our own document.
Report = Callable[[str, str], None]

_PLACE_MAX = 300

#: The local document that says what this node follows.
FOLLOWED = b"uprmc/replication"
_VERSION = 1
_NUMBER_MAX = 0xFFFF


def _ignore(_place: str, _what: str) -> None:
    """Do nothing."""


def _never(_place: str) -> bool:
    return False


def _can_be_dialled(place: str) -> bool:
    try:
        return place.isascii() and not parsed(place).path
    except ValueError:
        return False


class Replication:
    """All that this node gets from other nodes.

    Every command raises, before anything has changed:

    - `TemporaryFailure`: the node warms up or stops, or something else is in the way for now;
    - `RangeExceeded`: this node can have no vBucket of that number;
    - `InvalidArguments`, `NotMyVBucket`: what was asked for makes no sense, or takes more courage.

    The text says what to do.
    """

    def __init__(self, hub: Hub, dial: Dial) -> None:
        self.sources: dict[str, Source] = {}  # by place: whom vBuckets are followed from
        self.handovers: list[Handover] = []  # those under way
        self.last_handover_error = ""  # why the last vBucket that was not taken was not
        #: Whether a place is a listener of this node.
        self.is_own: Callable[[str], bool] = _never
        # Called when a line stands, when something keeps a source from it, and with what was
        # commanded: when that begins or, of hand-overs, ends.
        self.on_open: Report = _ignore
        self.on_trouble: Report = _ignore
        self.on_change: Report = _ignore
        self._hub = hub
        self._bucket = hub.bucket
        self._dial = dial
        self._id = hub.bucket.entropy.uuid48()
        self._calls = 0
        self._past = ReceivedTotals()
        self._now = 0.0
        self._closed = False
        hub.follows = self._follows
        hub.bucket.healer.ask = self.ask_version

    # --- what is so -----------------------------------------------------------------------------

    @property
    def received(self) -> ReceivedTotals:
        """What came from all sources since the start."""
        return reduce(
            ReceivedTotals.plus, (one.received for one in self.sources.values()), self._past
        )

    def source_of(self, number: int) -> Source | None:
        """Return whom a vBucket follows."""
        for source in self.sources.values():
            if number in source.followed:
                return source
        return None

    def ask_version(self, number: int, key: bytes, done: Callable[[Item | None], None]) -> bool:
        """Ask a vBucket's source, or a replica of it, for a key's newest version.

        `done` is called unless the connection ends first. Whether it is asked is returned.
        """
        source = self.source_of(number)
        if source is not None:
            return source.ask_version(number, key, done)
        return self._hub.ask_version(number, key, done)

    def _follows(self, number: int) -> bool:
        """Tell whether a vBucket is filled from another node, or is being taken over."""
        taken = any(number in handover.numbers for handover in self.handovers)
        return taken or self.source_of(number) is not None

    # --- life -----------------------------------------------------------------------------------

    def resume(self) -> None:
        """Go on with what was followed when the node ended; call it once, after warm-up.

        A vBucket that is no replica any more is left alone.
        """
        document = self._bucket.store.local(FOLLOWED)
        try:
            followed = decode_followed(document)
        except ValueError as error:
            self.on_trouble("", f"what was followed is not known: {error}; nothing is followed")
            return
        for number, place in followed.items():
            vbucket = self._bucket.vbuckets.get(number)
            if vbucket is not None and vbucket.state in FILLED:
                self._source(place).follow(vbucket, self._lost)
        if sum(len(source.followed) for source in self.sources.values()) < len(followed):
            self._save(_no_matter)
        self.tick(self._now)

    def tick(self, now: float) -> None:
        """Learn the monotonic time in seconds; call it about ten times a second."""
        self._now = now
        for source in list(self.sources.values()):
            source.tick(now)
        for handover in list(self.handovers):
            handover.tick(now)

    def close(self) -> None:
        """Hang up everywhere, and take no commands. What is followed stays written down."""
        self._closed = True
        for handover in list(self.handovers):
            handover.close("this node is stopping")
        for source in self.sources.values():
            source.close()
        self.sources.clear()

    # --- commands -------------------------------------------------------------------------------

    def follow(
        self, place: str, numbers: Iterable[int] | None, *, demote: bool, done: Waiter
    ) -> None:
        """Fill vBuckets from the node at `place` from now on.

        Args:
            place: its upr listener, HOST:PORT, as this node is to dial it.
            numbers: which; ``None`` = all that this node can have. Absent ones are made.
            demote: give up even what is active here and holds changes, or has nothing in common
                with what the source has.
            done: a waiter: it is written down.
        """
        self._check_place(place)
        wanted = self._checked(numbers)
        if not demote:
            self._check_idle(wanted, "say DEMOTE (--demote) to give them up for the source's")
        left = [s for s in self.sources.values() if not s.followed.keys() <= set(wanted)]
        if len({place, *(source.place for source in left)}) > self._hub.settings.sources:
            raise TemporaryFailure(
                f"this node follows {len(left)} nodes already: raise upr.sources, or stop one"
            )
        for number in wanted:
            source = self.source_of(number)
            if source is not None and source.place != place:
                self._leave(number)
            vbucket = self._bucket.set_state(number, VBucketState.REPLICA)
            vbucket.may_start_over = demote
            self._source(place).follow(vbucket, self._lost)
        self._save(done)
        self.on_change(place, f"{named(wanted)} follow it")
        self._source(place).tick(self._now)

    def stop(self, numbers: Iterable[int] | None, done: Waiter) -> None:
        """Follow no source any more; what is here stays, as replicas. ``None`` = all that do."""
        left = [number for number in self._checked(numbers) if self._leave(number)]
        self._save(done)
        if left:
            self.on_change("", f"{named(left)} no longer follow a source")

    def take_over(self, place: str, numbers: Iterable[int], done: HandoverDone) -> None:
        """Take vBuckets over from the node at `place`, where they are active.

        Nothing that was acknowledged there is lost. What was taken is not followed any more; what
        was not is a replica and is followed again as before. `done` waits for the disk as long as
        something was taken: it is active here by then, so no other answer would be true.
        """
        self._check_place(place)
        wanted = self._checked(numbers)
        self._check_idle(wanted, "there is nothing to take over")
        if self._bucket.flusher.paused:
            raise TemporaryFailure("persistence is stopped on this node: start it, then take over")
        if len(self.handovers) >= self._hub.settings.sources:
            raise TemporaryFailure(f"{len(self.handovers)} takeovers are going on: wait for one")
        for number in wanted:
            source = self.source_of(number)
            if source is not None:
                source.yield_to_handover(number)
            self._bucket.set_state(number, VBucketState.REPLICA)

        def on_end(handover: Handover) -> None:
            self._handed_over(handover)
            tell = partial(done, handover.outcomes, handover.error)
            flusher = self._bucket.flusher
            if Outcome.TAKEN in handover.outcomes.values():
                self._once_on_disk(tell)
            elif flusher.paused:
                tell()  # it promises only that nothing comes of it any more
            else:
                flusher.when_durable(lambda _: tell())

        name = self._new_name("takeover")
        handover = Handover(self._hub, self._dial, place, name, wanted, self._now, on_end)
        self.handovers.append(handover)
        handover.start()

    def fail_over(self, numbers: Iterable[int], done: FailoverDone) -> None:
        """Make vBuckets active here and now, whatever has become of the node they were filled from.

        Each begins a new branch after its last complete snapshot; one that is active already stays
        as it is. Hand-overs of them are given up.
        """
        wanted = self._checked(numbers, busy=False)
        absent = [number for number in wanted if number not in self._bucket.vbuckets]
        if absent:
            raise NotMyVBucket(f"{named(absent)}: not on this node, so there is nothing to promote")
        for handover in list(self.handovers):
            handover.give_up(sorted(set(wanted) & set(handover.numbers)), "failed over here")
        for number in wanted:
            self._leave(number)
        branches = []
        for number in wanted:
            entry = self._bucket.set_state(number, VBucketState.ACTIVE).failover_log[0]
            branches.append(Branch(number, entry.uuid, entry.seqno))
        self._save(lambda durable: done([*filter(self._stands, branches)], durable))
        self.on_change("", f"{named(wanted)} failed over to this node")

    def _stands(self, branch: Branch) -> bool:
        vbucket = self._bucket.active.get(branch.vbucket)
        return vbucket is not None and vbucket.failover_log[0].uuid == branch.uuid

    # --- checks ---------------------------------------------------------------------------------

    def _check_place(self, place: str) -> None:
        if len(place) > _PLACE_MAX or not _can_be_dialled(place):
            raise InvalidArguments(f"{place[:_PLACE_MAX]!r} is not a source: use HOST:PORT")
        if self.is_own(place):
            raise InvalidArguments(f"{place} is this node itself: name another one")

    def _checked(self, numbers: Iterable[int] | None, *, busy: bool = True) -> list[int]:
        if self._closed:
            raise TemporaryFailure("this node is stopping")
        if not self._bucket.warm:
            raise TemporaryFailure("warming up: try again in a few seconds")
        count = self._bucket.settings.engine.vbuckets
        wanted = sorted(set(range(count) if numbers is None else numbers))
        beyond = [number for number in wanted if number >= count]
        if beyond:
            raise RangeExceeded(f"{named(beyond)}: this node's highest is {count - 1}")
        taken = {number for each in self.handovers for number in each.numbers}
        if busy and not taken.isdisjoint(wanted):
            raise TemporaryFailure(
                f"{named(taken & set(wanted))}: a takeover is going on, wait for its end"
            )
        return wanted

    def _check_idle(self, numbers: list[int], advice: str) -> None:
        vbuckets = (self._bucket.vbuckets.get(number) for number in numbers)
        lively = [
            vbucket.id
            for vbucket in vbuckets
            if vbucket is not None and vbucket.state == VBucketState.ACTIVE and vbucket.high_seqno
        ]
        if lively:
            raise InvalidArguments(f"{named(lively)}: active here, with changes: {advice}")

    # --- steps ----------------------------------------------------------------------------------

    def _new_name(self, kind: str) -> bytes:
        self._calls += 1
        return b"uprmc-%s:%012x:%d" % (kind.encode(), self._id, self._calls)

    def _source(self, place: str) -> Source:
        source = self.sources.get(place)
        if source is None:
            name = self._new_name("replica")
            source = Source(self._hub, self._dial, place, name, self._now)
            source.on_open = lambda: self.on_open(place, "")
            source.on_trouble = lambda why: self.on_trouble(place, why)
            self.sources[place] = source
        return source

    def _leave(self, number: int) -> bool:
        """Follow a vBucket no more; return whether it was followed."""
        source = self.source_of(number)
        if source is None:
            return False
        source.leave([number])
        if not source.followed:
            del self.sources[source.place]
            source.close()
            self._past = self._past.plus(source.received)
        return True

    def _lost(self, number: int) -> None:
        """Learn that a vBucket was made active or dead by an operator, or removed."""
        if self._leave(number):
            self._save(_no_matter)
            self.on_change("", f"{named([number])} is no longer a replica and follows no source")

    def _once_on_disk(self, then: Callable[[], None]) -> None:
        """Call `then` when the states of all vBuckets are on disk: persist before promise."""
        flusher = self._bucket.flusher
        flusher.when_durable(lambda ok: then() if ok else self._once_on_disk(then))

    def _handed_over(self, handover: Handover) -> None:
        """Forget what was taken; what was not is a replica as before."""
        self.handovers.remove(handover)
        if handover.error:
            self.last_handover_error = f"{handover.place}: {handover.error}"
            self.on_trouble(handover.place, f"takeover: {handover.error}")
        taken = [n for n, outcome in handover.outcomes.items() if outcome is Outcome.TAKEN]
        left = [number for number in handover.numbers if not self._is_replica_again(number)]
        if [number for number in left if self._leave(number)]:
            self._save(_no_matter)
        if taken:
            self.on_change(handover.place, f"{named(taken)} taken over from it")

    def _is_replica_again(self, number: int) -> bool:
        """Follow a vBucket as before, if it is still one that can; return whether it is."""
        vbucket = self._bucket.vbuckets.get(number)
        if vbucket is None or vbucket.state not in FILLED:
            return False
        self._bucket.set_state(number, VBucketState.REPLICA)
        source = self.source_of(number)
        if source is not None:
            source.resume(vbucket, self._lost)
        return True

    def _save(self, done: Waiter) -> None:
        """Write down who follows whom. While persistence is stopped, no command waits for that."""
        followed = {place: list(source.followed) for place, source in self.sources.items()}
        document = encode_followed(followed)
        self._bucket.flusher.write_local(FOLLOWED, document, done, patient=False)


def _no_matter(_durable: bool) -> None:
    """Do nothing: the flusher tries again by itself."""


# --- what is followed, written down ---------------------------------------------------------------


def encode_followed(followed: Mapping[str, Iterable[int]]) -> bytes | None:
    """Return the document that says which vBuckets follow which source, ``None`` for nothing.

    JSON with a version: ``{"version": 1, "sources": {"HOST:PORT": [[0, 511], [600, 600]]}}``; the
    pairs are the first and last vBucket of each run.
    """
    sources = {place: ranges_of(numbers) for place, numbers in followed.items()}
    if not any(sources.values()):
        return None
    return json.dumps({"version": _VERSION, "sources": sources}, sort_keys=True).encode()


def decode_followed(document: bytes | None) -> dict[int, str]:
    """Return vBucket -> source; raises `ValueError`, one line, for what we have not written."""
    if document is None:
        return {}
    try:
        found = json.loads(document)
        version, sources = found["version"], found["sources"]
        if version != _VERSION:
            raise ValueError(f"it has version {version} and this uprmc knows {_VERSION}")
        return {
            number: _text(place)
            for place, ranges in sources.items()
            for first, last in ranges
            for number in _numbers(first, last)
        }
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("it does not have the form that this uprmc writes") from None


def _text(place: object) -> str:
    if not isinstance(place, str):
        raise TypeError(place)
    return place


def _numbers(first: object, last: object) -> range:
    if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last <= _NUMBER_MAX):
        raise TypeError(first, last)
    return range(first, last + 1)
