"""How far each consumer is behind: looked at about once a second, a slice at a time.

There may be fifty thousand streams, so nothing is worked out when statistics are asked. A consumer
is a UPR connection that this node sends to; TAP clients and links to other clusters are served by
such connections, too. What was sent counts as arrived.

Age is measured by marks. A mark is what all vBuckets had at one time. While a consumer has not
got all of it, it lacks something that is older than that; once it has, it gets a new mark. So what
is shown is a lower bound, and too low by about `INTERVAL_S` at most when nothing is missing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from uprmc.errors import StreamNotFound
from uprmc.tap_adapter.local import PREFIX as TAP_PREFIX
from uprmc.upr.hub import Hub
from uprmc.upr.producer import Producer
from uprmc.upr.stream import Stream
from uprmc.xdcr.reading import PREFIX as LINK_PREFIX

# --- all consumers --------------------------------------------------------------------------------


#: How often consumers are looked at.
INTERVAL_S = 1.0

#: With more streams than this they are looked at less often.
_STREAMS_PER_S = 5_000

#: Streams that are looked at in one step.
_STREAMS_AT_ONCE = 256

#: What a stream takes, and a key that it remembers of a reading, measured in the compiled form.
_STREAM_BYTES, _READING_KEY_BYTES = 1_000, 120

#: Name of the row that stands for all consumers beyond the largest.
OTHERS = "other"


class ConsumerLag(NamedTuple):
    """How far one consumer is behind."""

    name: str  # of its connection
    # ``tap``, or what it registered as (``xdcr``, ``index``, ``replica``, ``backup``, ``spark``
    # ...), or ``upr`` if it has not registered.
    kind: str
    streams: int  # that are open
    items: int  # changes left to send at most; seqnos have holes
    bytes: int  # of these, estimated by the mean size of what was sent
    seconds: float  # age of the oldest of them at least, 0 = nothing is left
    memory: int  # bytes of this node's memory that its streams take, estimated


class _Look(NamedTuple):
    """What a look at one consumer has found."""

    items: int  # left to send
    passed: bool  # whether everything up to its mark is sent
    memory: int  # that it takes


class _Mark(NamedTuple):
    """What all vBuckets had at one time."""

    at: float
    seqnos: dict[int, int]


class _Standing:
    """What is remembered of a consumer from one look to the next."""

    __slots__ = ("look", "looked_at", "mark", "seen", "took_s")

    def __init__(self, mark: _Mark) -> None:
        self.mark = mark  # what it has to get until it gets a new mark
        self.look: _Look | None = None  # what the last look has found
        # What was looked at then; as long as it is the same there is no need to look again.
        self.seen: tuple[int, ...] = ()
        self.looked_at = mark.at
        self.took_s = 0.0

    def seconds(self, look: _Look, new: _Mark) -> float:
        """Take the result of a look; return the age of what is missing."""
        before, self.looked_at = self.looked_at, new.at
        if look.passed or not look.items:
            self.took_s = before - self.mark.at
            self.mark = new
        return max(new.at - self.mark.at, self.took_s) if look.items else 0.0


class ConsumerLags:
    """Looks at the consumers of one node."""

    def __init__(self, hub: Hub, monotonic: Callable[[], float]) -> None:
        # What the last look has found, in the order in which they connected.
        self.found: list[ConsumerLag] = []
        self._hub = hub
        self._monotonic = monotonic
        self._standings: dict[Producer, _Standing] = {}
        self._due_at = 0.0

    def steps(self) -> Iterator[None]:
        """Look at every consumer, unless it is too early."""
        now = self._monotonic()
        if now < self._due_at:
            return
        mark = _Mark(now, {one.id: one.high_seqno for one in self._hub.bucket.vbuckets.values()})
        changes = sum(mark.seqnos.values())
        producers = [each for each in self._hub.producers.values() if isinstance(each, Producer)]
        known, self._standings = self._standings, {}
        found: list[ConsumerLag] = []
        for producer in producers:
            standing = known.get(producer) or _Standing(mark)
            self._standings[producer] = standing
            look = yield from _look_again(producer, standing, changes)
            found.append(self._lag(producer, look, standing.seconds(look, mark)))
        self.found = found
        streams = sum(each.streams for each in found)
        self._due_at = now + max(INTERVAL_S / 2, streams / _STREAMS_PER_S)

    def _lag(self, producer: Producer, look: _Look, seconds: float) -> ConsumerLag:
        streams, items = len(producer.feed.streams), look.items
        size = int(items * self._mean_bytes(producer)) if items else 0
        name = consumer_name(producer)
        return ConsumerLag(name, _kind(producer), streams, items, size, seconds, look.memory)

    def _mean_bytes(self, producer: Producer) -> float:
        """Return the mean size of what was sent, or of what is in memory if that is too little."""
        feed, bucket = producer.feed, self._hub.bucket
        sent = feed.all_items_sent
        if sent:
            return feed.bytes_sent / sent
        return bucket.account.used / max(1, bucket.total_item_count)


def consumer_name(producer: Producer) -> str:
    """Return the name of a connection as text; no two have the same."""
    return producer.name.decode("utf-8", "backslashreplace")


def largest(lags: Iterable[ConsumerLag], most: int) -> list[ConsumerLag]:
    """Return the `most` that are furthest behind, and the sum of the others as one more."""
    ordered = sorted(lags, key=lambda lag: (-lag.items, -lag.seconds, lag.name))
    shown, rest = ordered[:most], ordered[most:]
    if rest:
        shown.append(_together(rest))
    return shown


def _together(lags: list[ConsumerLag]) -> ConsumerLag:
    return ConsumerLag(
        OTHERS,
        OTHERS,
        sum(lag.streams for lag in lags),
        sum(lag.items for lag in lags),
        sum(lag.bytes for lag in lags),
        max(lag.seconds for lag in lags),
        sum(lag.memory for lag in lags),
    )


def remaining(stream: Stream) -> int:
    """Return how many items are left at most: seqnos have holes."""
    reach = max(stream.reach_seqno, stream.vbucket.high_seqno)
    return max(0, min(reach, stream.end_seqno) - stream.last_seqno)


def _look_again(
    producer: Producer, standing: _Standing, changes: int
) -> Generator[None, None, _Look]:
    """Look at a consumer, unless nothing has happened since the last look."""
    feed, look = producer.feed, standing.look
    seen = (changes, feed.bytes_sent, feed.frames_sent, len(feed.streams))
    if look is None or seen != standing.seen:
        look = yield from _look(producer, standing.mark)
    standing.seen = seen
    # What has passed this mark has to be looked at with the next one, if anything is left.
    standing.look = look if not (look.passed and look.items) else None
    return look


def _look(producer: Producer, mark: _Mark) -> Generator[None, None, _Look]:
    items, passed, memory = 0, True, producer.feed.waiting_bytes
    for number, stream in enumerate(list(producer.feed.streams.values()), 1):
        left = remaining(stream)
        items += left
        if left and stream.last_seqno < mark.seqnos.get(stream.vbucket.id, 0):
            passed = False
        memory += _memory(stream)
        if not number % _STREAMS_AT_ONCE:
            yield
    yield
    return _Look(items, passed, memory)


def _memory(stream: Stream) -> int:
    reading = stream.reading
    return _STREAM_BYTES + (0 if reading is None else reading.remembered * _READING_KEY_BYTES)


def _kind(producer: Producer) -> str:
    if producer.name.startswith(TAP_PREFIX):
        return "tap"
    if producer.name.startswith(LINK_PREFIX):
        return "xdcr"
    kind = producer.registration.kind
    return "upr" if kind is None else kind.name.lower()


# --- the streams of one ---------------------------------------------------------------------------
# The streams of one consumer, vBucket by vBucket, for who opens its row on the page.
#
# There may be 65,536 of them, so they are looked at in steps, and those furthest behind are shown.


#: Streams that are shown.
ROWS_MAX = 256

_STREAMS_AT_ONCE = 256


class StreamRow(NamedTuple):
    """How far one stream is."""

    left: int  # changes left to send at most; seqnos have holes
    vbucket: int  # its number
    seqno: int  # the last that was sent
    high_seqno: int  # of the vBucket
    persisted: int  # what the consumer says that it has on disk, 0 = it does not say
    state: str  # of the stream, as `stats upr` calls it
    vbucket_state: str  # of the vBucket here


def streams_of(hub: Hub, name: str) -> Generator[None, None, dict[str, object]]:
    """Return what ``/consumer.json`` shows of the consumer with this name.

    Raises:
        StreamNotFound: none has it.
    """
    streams = list(_named(hub, name).feed.streams.values())
    states: Counter[str] = Counter()
    behind, rows = 0, list[StreamRow]()
    for portion in _portions(streams):
        found = [_row(stream) for stream in portion]
        states.update(row.state for row in found)
        behind += sum(row.left > 0 for row in found)
        rows = nsmallest(ROWS_MAX, rows + found, key=lambda row: (-row.left, row.vbucket))
        yield
    return {
        "name": name,
        "streams": len(streams),
        "behind": behind,
        "states": dict(states),
        "rows": [row._asdict() for row in rows],
    }


def _named(hub: Hub, name: str) -> Producer:
    for producer in hub.producers.values():
        if isinstance(producer, Producer) and consumer_name(producer) == name:
            return producer
    raise StreamNotFound(name)


def _portions(streams: Iterable[Stream]) -> Iterator[list[Stream]]:
    left = iter(streams)
    while portion := list(islice(left, _STREAMS_AT_ONCE)):
        yield portion


def _row(stream: Stream) -> StreamRow:
    vbucket = stream.vbucket
    return StreamRow(
        remaining(stream),
        vbucket.id,
        stream.last_seqno,
        vbucket.high_seqno,
        stream.persisted_seqno,
        stream.state.value,
        vbucket.state.name.lower(),
    )
