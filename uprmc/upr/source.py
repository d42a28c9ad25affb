"""One node that vBuckets are followed from: a line to it that is kept open, and its streams.

A lost line is dialled again, a stream that ended is asked for again, each after a pause that
doubles up to ``upr.redial_max_s``; what lasted for a while begins with the shortest pause again. A
stream that only an operator can help is asked for again on the next line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.model import Item, VBucketState
from uprmc.ports import Dial, Entropy
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import DataType, Opcode, Status
from uprmc.remote import features
from uprmc.remote.retry import Backoff
from uprmc.remote.undo import question, version
from uprmc.upr.hub import Hub
from uprmc.upr.link import LinkCall, ReplicaLink, other_count

#: The first pause, in seconds; each is up to half shorter, by chance, so that nodes spread out.
FIRST_PAUSE_S = 0.1

#: After a connection that lasted this long, the next one may be tried soon.
_PROVEN_S = 1.0

#: How often it is looked whether we have fallen behind.
_LOOK_S = 1.0

#: The local document with the uuid of the data that a source had when it was followed first.
_SOURCE_NAME = b"uprmc/source:%s"
_UUID_MAX_BYTES = 64

#: States in which a vBucket may be filled by another node.
FILLED = frozenset({VBucketState.REPLICA, VBucketState.PENDING})


class Pause:
    """How long to wait before trying again."""

    __slots__ = ("_backoff", "_entropy")

    def __init__(self, entropy: Entropy, most_s: float) -> None:
        self._entropy = entropy
        self._backoff = Backoff(FIRST_PAUSE_S, most_s)

    def next(self, lasted_s: float) -> float:
        """Return seconds to wait after what lasted for `lasted_s`, 0 for what never did."""
        if lasted_s >= max(_PROVEN_S, self._backoff.length_s):
            self._backoff.good()
        return self._backoff.next((self._entropy.uuid48() & 0xFFFF) / 0x10000)


class LineState(Enum):
    """Where a source stands; the texts are those of statistics."""

    CONNECTING = "connecting"
    OPEN = "open"
    WAITING = "waiting"


class StreamStanding(Enum):
    """Where one followed vBucket stands; the texts are those of statistics."""

    WAITING = "waiting"
    ASKED = "asked"
    STREAMING = "streaming"
    REFUSED = "refused"
    HANDOVER = "handover"


class Followed:
    """One vBucket that is followed. Watches it: who makes it active or dead ends the following."""

    __slots__ = (
        "_lost",
        "ask_at",
        "began_at",
        "error",
        "pause",
        "source_seqno",
        "standing",
        "vbucket",
    )

    def __init__(self, vbucket: VBucket, pause: Pause, lost: Callable[[int], None]) -> None:
        """See the class; `lost` is called with the number when it is followed no more."""
        self.vbucket = vbucket  # what is filled
        self.pause = pause
        self.standing = StreamStanding.WAITING  # see `StreamStanding`
        self.error = ""  # why the last stream was refused or ended, ``""`` while all is well
        #: The source's highest seqno as it said last, ``None`` before it has.
        self.source_seqno: int | None = None
        self.ask_at = 0.0  # when to ask for a stream again
        self.began_at = 0.0  # when the stream began
        self._lost: Callable[[int], None] | None = lost
        self.watch()

    @property
    def lag_items(self) -> int:
        """How many seqnos the source is ahead, as far as known."""
        return max(0, (self.source_seqno or 0) - self.vbucket.high_seqno)

    def watch(self) -> None:
        """Learn what others make of the vBucket."""
        self.vbucket.watchers.append(self)

    def close(self) -> None:
        """Let go of the vBucket."""
        self._lost = None
        self.vbucket.unwatch(self)

    def changed(self) -> None:
        """Nothing: it is us who change it."""

    def interrupted(self, why: Interruption) -> None:
        """Go on with what is still to be filled."""
        if self.vbucket.state in FILLED:
            self.watch()
            return
        lost = self._lost
        self.close()
        if lost is not None:
            lost(self.vbucket.id)


class ReceivedTotals(NamedTuple):
    """What came over one or several connections, in numbers."""

    items: int = 0  # versions
    rollbacks: int = 0  # how often a vBucket was sent back
    backoffs: int = 0  # how often acknowledging was put off for lack of memory

    def plus(self, other: ReceivedTotals) -> ReceivedTotals:
        """Return both together."""
        return ReceivedTotals(*map(sum, zip(self, other, strict=True)))


class Source:
    """One node that vBuckets are followed from. Implements `LinkOwner`."""

    def __init__(self, hub: Hub, dial: Dial, place: str, name: bytes, now: float) -> None:
        self.place = place  # HOST:PORT, as it is dialled
        self.followed: dict[int, Followed] = {}  # by number
        self.attempts = 0  # how often it was dialled
        self.last_error = ""  # why there is no line, or why the last one ended
        self.on_open: Callable[[], None] = _nothing
        self.on_trouble: Callable[[str], None] = _say_nothing
        self._hub = hub
        self._dial = dial
        self._name = name
        self._now = now
        self._call: LinkCall | None = None
        self._opened = self._compared = False
        self._began_at = now
        self._pause = self._new_pause()
        self._dial_at = now
        self._level_at = self._looked_at = now
        self._past = ReceivedTotals()

    def _new_pause(self) -> Pause:
        return Pause(self._hub.bucket.entropy, self._hub.settings.redial_max_s)

    # --- what is so -----------------------------------------------------------------------------

    @property
    def state(self) -> LineState:
        """Where it stands."""
        if self._call is None:
            return LineState.WAITING
        return LineState.OPEN if self._open_link() is not None else LineState.CONNECTING

    @property
    def streaming(self) -> int:
        """How many vBuckets have a stream."""
        return sum(one.standing is StreamStanding.STREAMING for one in self.followed.values())

    @property
    def lag_items(self) -> int:
        """How many seqnos the source is ahead in all, as far as known."""
        self._learn_seqnos()
        return sum(one.lag_items for one in self.followed.values())

    @property
    def lag_s(self) -> float:
        """Seconds since we last had all that the source was known to have."""
        self._look()
        return self._now - self._level_at

    @property
    def received(self) -> ReceivedTotals:
        """What came over this line and those before."""
        link = self._call.link if self._call is not None else None
        if link is None:
            return self._past
        return self._past.plus(ReceivedTotals(link.items, link.rollbacks, link.window.backoffs))

    def _open_link(self) -> ReplicaLink | None:
        link = self._call.link if self._call is not None else None
        return link if link is not None and link.open else None

    def ask_version(self, number: int, key: bytes, done: Callable[[Item | None], None]) -> bool:
        """Ask for a key's newest version, if there is a stream of its vBucket.

        `done` is called unless the line ends first. Whether it is asked is returned.
        """
        link, followed = self._open_link(), self.followed.get(number)
        streams = followed is not None and followed.standing is StreamStanding.STREAMING
        if link is None or not streams:
            return False

        def answered(answer: ResponseFrame) -> None:
            known = answer.status == Status.SUCCESS
            done(version(key, answer, DataType.JSON).item if known else None)

        asked = question(number, key)
        link.ask(asked.opcode, answered, vbucket=number, extras=asked.extras, key=key)
        return True

    # --- what is followed -----------------------------------------------------------------------

    def follow(self, vbucket: VBucket, lost: Callable[[int], None]) -> None:
        """Fill a vBucket from here; one that is already gets a stream at once, if it has none."""
        followed = self.followed.get(vbucket.id)
        if followed is None or followed.vbucket is not vbucket:
            self.leave([vbucket.id])
            followed = Followed(vbucket, self._new_pause(), lost)
            self.followed[vbucket.id] = followed
        elif followed.standing is StreamStanding.REFUSED:
            followed.standing = StreamStanding.WAITING
        followed.ask_at = self._now

    def leave(self, numbers: list[int]) -> None:
        """Follow these no more."""
        self._end_streams(numbers)
        for number in numbers:
            followed = self.followed.pop(number, None)
            if followed is not None:
                followed.close()

    def yield_to_handover(self, number: int) -> None:
        """End the stream of a vBucket that is about to be handed over, until `resume`."""
        self._end_streams([number])
        followed = self.followed[number]
        followed.standing = StreamStanding.HANDOVER
        followed.vbucket.unwatch(followed)

    def resume(self, vbucket: VBucket, lost: Callable[[int], None]) -> None:
        """Follow a vBucket again that was not handed over; it may be another one meanwhile."""
        followed = self.followed[vbucket.id]
        followed.standing = StreamStanding.WAITING
        if followed.vbucket is vbucket:
            followed.watch()
        self.follow(vbucket, lost)

    def _end_streams(self, numbers: list[int]) -> None:
        link = self._open_link()
        ended = [n for n in numbers if n in self.followed and n in link.streams] if link else []
        if link is not None and ended:
            link.leave(ended)

    def close(self) -> None:
        """Follow nothing more and hang up."""
        for followed in self.followed.values():
            followed.close()
        self.followed.clear()
        self._forget_call()

    def _forget_call(self) -> None:
        self._past = self.received
        call, self._call = self._call, None
        self._opened = self._compared = False
        if call is not None:
            call.hang_up()

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Dial, give up a call that is not answered, and ask for streams, as they are due."""
        self._now = now
        if self._call is not None and self._call.link is not None:
            self._call.link.tick(now)
        call, patience_s = self._call, self._hub.settings.dial_timeout_s
        if call is None:
            if now >= self._dial_at:
                self._dial_now()
        elif call.link is not None and call.link.open:
            if not self._compared and now - self._began_at >= patience_s:
                self._compared = True
            self._ask(call.link)
        elif call.link is not None and call.link.closing:
            pass  # it has failed; its end comes with the reason
        elif now - self._began_at >= patience_s:
            call.give_up()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._look()

    def _look(self) -> None:
        """See whether we hold all that the source is known to have."""
        if not self.lag_items and self.streaming == len(self.followed):
            self._level_at = self._now

    def _dial_now(self) -> None:
        self.attempts += 1
        self._began_at = self._now
        self._call = call = LinkCall(self._hub, self._dial, self.place, self._name, self)
        call.start()

    def _ask(self, link: ReplicaLink) -> None:
        """Ask for the streams that are due, once it is known that there is nothing against it."""
        if not self._compared:
            return
        waiting = StreamStanding.WAITING
        due = [
            number
            for number, one in self.followed.items()
            if one.standing is waiting and one.ask_at <= self._now
        ]
        for number in due:
            self.followed[number].standing = StreamStanding.ASKED
        if due:
            link.follow(due)

    def _learn_seqnos(self) -> None:
        link = self._open_link()
        if link is None:
            return
        for number, seqno in link.source_seqnos.items():
            followed = self.followed.get(number)
            if followed is not None:
                followed.source_seqno = seqno

    # --- what the link tells --------------------------------------------------------------------

    def opened(self) -> None:
        """See `LinkOwner`."""
        self._opened, self._began_at = True, self._now
        for followed in self.followed.values():
            if followed.standing is not StreamStanding.HANDOVER:
                followed.standing = StreamStanding.WAITING
                followed.ask_at = self._now
        self.on_open()
        link = self._open_link()
        if link is None:
            return
        self._compared = not features.is_ours(link.granted)
        if not self._compared:
            link.ask(Opcode.GET_CLUSTER_CONFIG, self._counted)
        self._ask(link)

    def _counted(self, answer: ResponseFrame) -> None:
        """Follow nothing if the source has another number of vBuckets: keys would be elsewhere."""
        self._compared = True
        self._compare_uuid(_uuid_in(answer.value))
        link, other = self._open_link(), other_count(answer, self._hub)
        if not other:
            if link is not None:
                self._ask(link)
            return
        why = f"{other}: none is followed"
        for followed in self.followed.values():
            followed.error, followed.standing = why, StreamStanding.REFUSED
        self.last_error = why
        self.on_trouble(why)

    def _compare_uuid(self, uuid: bytes) -> None:
        """See whether the source has the data directory that gave what is here, and remember it."""
        link, bucket = self._open_link(), self._hub.bucket
        if not uuid or link is None:
            return
        name = _SOURCE_NAME % self.place.encode()
        known = bucket.store.local(name)
        parts = [followed.vbucket for followed in self.followed.values()]
        given_up = any(each.may_start_over for each in parts)
        if known is None or given_up or not any(each.high_seqno for each in parts):
            if known != uuid:
                bucket.flusher.write_local(name, uuid, lambda _: None, patient=False)
        else:
            link.is_another = known != uuid

    def began(self, number: int) -> None:
        """See `LinkOwner`."""
        followed = self.followed.get(number)
        if followed is not None:
            followed.standing = StreamStanding.STREAMING
            followed.error = ""
            followed.began_at = self._now

    def ended(self, number: int, why: str, retry: bool) -> None:
        """See `LinkOwner`."""
        followed = self.followed.get(number)
        if followed is None or followed.standing is StreamStanding.HANDOVER:
            return
        streamed = followed.standing is StreamStanding.STREAMING
        lasted_s = self._now - followed.began_at if streamed else 0.0
        followed.error = why
        followed.standing = StreamStanding.WAITING if retry else StreamStanding.REFUSED
        followed.ask_at = self._now + followed.pause.next(lasted_s)
        self.on_trouble(f"vBucket {number}: {why}")

    def taken(self, number: int) -> None:
        """See `LinkOwner`; nothing is handed over on this line."""

    def closed(self, why: str) -> None:
        """See `LinkOwner`."""
        lasted_s = self._now - self._began_at if self._opened else 0.0
        self._forget_call()
        for followed in self.followed.values():
            if followed.standing is not StreamStanding.HANDOVER:
                followed.standing = StreamStanding.WAITING
        self.last_error = why
        self._dial_at = self._now + self._pause.next(lasted_s)
        self.on_trouble(why)


def _uuid_in(document: bytes) -> bytes:
    """Return the uuid of the data that a cluster map names, empty if it names none."""
    try:
        uuid = json.loads(document)["uuid"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return b""
    known = isinstance(uuid, str) and uuid.isascii() and uuid.strip("0")
    return uuid.encode()[:_UUID_MAX_BYTES] if known else b""


def _nothing() -> None:
    """Do nothing."""


def _say_nothing(_why: str) -> None:
    """Do nothing."""
