"""The streams of one consumer, vBucket by vBucket, for who opens its row on the page.

There may be 65,536 of them, so they are looked at in steps, and those furthest behind are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from uprmc.errors import StreamNotFound
from uprmc.server.consumer_lag import consumer_name, remaining
from uprmc.upr.hub import Hub
from uprmc.upr.produce.producer import Producer
from uprmc.upr.produce.stream import Stream

#: Streams that are shown.
ROWS_MAX = 256

_STREAMS_AT_ONCE = 256


class StreamRow(NamedTuple):
    """How far one stream is.

    Attributes:
        left: changes left to send at most; seqnos have holes.
        vbucket: its number.
        seqno: the last that was sent.
        high_seqno: of the vBucket.
        persisted: what the consumer says that it has on disk, 0 = it does not say.
        state: of the stream, as `stats upr` calls it.
        vbucket_state: of the vBucket here.
    """

    left: int
    vbucket: int
    seqno: int
    high_seqno: int
    persisted: int
    state: str
    vbucket_state: str


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
