"""What is new of many streams, in one go.

Streams that keep up are each ready with a few items that still wait in memory. `send_news` serves
all of them in one loop, without a turn for each. On a connection that asked for SNAPSHOTS, one
frame announces the snapshots of all of them; otherwise each has its own marker.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from uprmc.protocol.upr_many import ANNOUNCED_SNAPSHOT, SNAPSHOTS_HEAD_BYTES, snapshots_head
from uprmc.upr.produce.stream import Stream


class Sent(NamedTuple):
    """What one call has put out.

    Attributes:
        size: bytes.
        frames: how many.
        full: whether the next stream has news, for which there was no room.
    """

    size: int
    frames: int
    full: bool


def send_news(
    turns: deque[Stream], out: list[bytes], limit: int, *, shared: bool, pausing: bool
) -> Sent:
    """Serve streams from the front of `turns`, up to one that needs a reading, or to the limit.

    Args:
        turns: streams that are ready; those that are served rest afterwards.
        out: where frames are appended.
        limit: bytes.
        shared: whether one frame announces all snapshots.
        pausing: whether the limit is the peer's buffer, so that the rest may take long to come.
    """
    rows: list[bytes] | None = [] if shared else None
    pieces: list[bytes] = [] if shared else out
    room = limit - SNAPSHOTS_HEAD_BYTES if shared else limit
    size = frames = facts = 0
    full = False
    while turns:
        stream = turns[0]
        news = stream.news(room)
        if not news:
            full = news is not None and size > 0
            break
        turns.popleft().queued = False
        before = stream.frames
        if shared:
            told = stream.markers.tell_facts(stream.vbucket.purge_seqno, out)
            if told:
                facts += told
                stream.frames += 1
        sent = stream.send_news(news, pieces, rows)
        size += sent
        room -= sent + ANNOUNCED_SNAPSHOT.size
        frames += stream.frames - before
        stream.rest()
        stream.end_if_complete()
    if rows:
        head = snapshots_head(rows, size, more=full and not pausing)
        out.append(head)
        out += pieces
        return Sent(len(head) + size + facts, frames + 1, full)
    return Sent(size, frames, full)
