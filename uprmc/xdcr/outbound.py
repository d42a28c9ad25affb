"""Items that were read and are not sent yet: of other nodes, or not on the disks they must be on.

One producer feeds all nodes of a target, so what is read for one of them may belong to another.
And with ``ship=persisted`` or ``replicated``, what is read waits until no crash or failover of this
node can lose it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from uprmc.engine.vbucket import VBucket
from uprmc.model import SnapshotRange
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode
from uprmc.protocol.origins import ORIGIN_META, ORIGIN_META_BYTES, ORIGIN_META_ID
from uprmc.protocol.upr import MUTATION_FRAME
from uprmc.remote.batch import Batch, deletion_numbers
from uprmc.upr.hub import Hub
from uprmc.xdcr.frames import delete_frame, look_up_frame, set_frame
from uprmc.xdcr.reading import replicated_seqno
from uprmc.xdcr.shipment import Counters, LinkPosition, Shipment, position_in
from uprmc.xdcr.spec import ACCEPTED, PERSISTED, Pattern
from uprmc.xdcr.windows import Windows

# --- shipping -------------------------------------------------------------------------------------
# Items of a run into batches: filtered, sent at once, or looked up at the target first.
#
# This is the hot path of a link. Documents up to a size are sent at once and the target decides
# between the versions; of a larger one the target's metadata is asked for first, which is less to
# send if it loses. Deletions have no body and are always sent at once. A version that was first
# accepted in the target's own history is not sent back, unless it is a deletion that the target may
# have purged before an older version came (`Shipment.is_needed`). An item that is not sent counts
# as done.


_unpack = MUTATION_FRAME.unpack_from
_BODY_AT = MUTATION_FRAME.size
_TAIL_AT = 8
_unpack_tail = struct.Struct(">LLQ").unpack_from  # body length, opaque and CAS of a header
_pack_origin, _unpack_origin = ORIGIN_META.pack, ORIGIN_META.unpack
_EXPIRATION = int(Opcode.UPR_EXPIRATION)


class OutboundPart(NamedTuple):
    """Items of one vBucket that follow one another.

    Attributes:
        data: the bytes that the batch was read from.
        batch: has the items, from `first` to below `last`.
        first, last: indices in the batch, from `first` to below `last`.
        done: the end of the snapshot, if these are its last items.
        snapshot: the snapshot that they lie in, as it was announced when they were read. The stream
            may be in a later one by the time they are sent.
    """

    data: bytes
    batch: Batch
    first: int
    last: int
    done: int | None
    snapshot: SnapshotRange

    @property
    def size(self) -> int:
        """Bytes of the items as they were read."""
        if self.first == self.last:
            return 0
        positions, end = self.batch.positions, self.batch.positions[self.last - 1]
        size, _, _ = _unpack_tail(self.data, end + _TAIL_AT)
        return end + HEADER_BYTES + int(size) - positions[self.first]

    def split(self, count: int) -> tuple[OutboundPart, OutboundPart | None]:
        """Return the first items, no more than `count`, and those that follow."""
        middle = self.first + count
        if middle >= self.last:
            return self, None
        return self._replace(last=middle, done=None), self._replace(first=middle)

    def cut(self, seqno: int) -> tuple[OutboundPart | None, OutboundPart | None]:
        """Return the items up to a seqno, and those above it."""
        data, batch, first, last, done, snapshot = self
        middle = bisect_right(batch.seqnos, seqno, first, last)
        if middle == last and (done is None or done <= seqno):
            return self, None
        if middle == first:
            return None, self
        return (
            OutboundPart(data, batch, first, middle, None, snapshot),
            OutboundPart(data, batch, middle, last, done, snapshot),
        )


#: Steps of a filter, for each key of a part, that fit between two looks at the clock: a key has 250
#: bytes, and a step with a byte takes about 3 ns, so this is below 2 ms.
FILTER_STEPS = 2_500


@dataclass(slots=True)
class OutboundRules:
    """How a link's items are sent.

    Attributes:
        pattern: keys in which it is not found are not sent.
        batch_items, batch_bytes: where a batch ends.
        optimistic_bytes: larger values are looked up first.
        deletions, expirations: whether these are sent.
    """

    pattern: Pattern | None = None
    batch_items: int = 500
    batch_bytes: int = 2 * 1024 * 1024
    optimistic_bytes: int = 256
    deletions: bool = True
    expirations: bool = True

    @property
    def most_items(self) -> int | None:
        """How many items are sent at a time, ``None`` = as many as there are."""
        return None if self.pattern is None else max(1, FILTER_STEPS // self.pattern.programsize)


def ship(
    rules: OutboundRules,
    counters: Counters,
    windows: Windows,
    out: list[bytes],
    shipment: Shipment,
    part: OutboundPart,
) -> int:
    """Send items of a vBucket; return how many bytes of requests were added to `out`.

    Args:
        rules: how items are sent.
        counters: of the link.
        windows: of the node; the batch that is being filled has the last item afterwards.
        out: gets the requests.
        shipment: whose items they are.
        part: the items.
    """
    data, batch, first, last, done, snapshot = part
    vbucket, theirs, arrived = shipment.vbucket.id, shipment.theirs, shipment.arrived
    history_of = shipment.stream.history_of
    keys, positions, ends = batch.keys, batch.positions, batch.ends
    pattern, limit, most_bytes = rules.pattern, rules.batch_items, rules.batch_bytes
    owed = shipment.debts
    sent = 0
    window = windows.current
    for index in range(first, last):
        key, position, end = keys[index], positions[index], ends[index]
        if pattern is not None and pattern.search(key) is None:
            counters.docs_filtered += 1
            continue
        looked_up = False
        if end:
            _, _, place, _, _, cas, seqno, rev, flags, expiry, _, nmeta, _ = _unpack(data, position)
            origin_at = end
        else:
            expired = data[position + 1] == _EXPIRATION
            if not (rules.expirations if expired else rules.deletions):
                counters.docs_filtered += 1
                continue
            extras_at = position + HEADER_BYTES
            origin_at = extras_at + data[position + 4] + len(key)
            seqno, rev, _ = deletion_numbers(data[extras_at : extras_at + data[position + 4]])
            size, _, cas = _unpack_tail(data, position + _TAIL_AT)
            nmeta = extras_at + size - origin_at
        if nmeta == ORIGIN_META_BYTES:
            origin = data[origin_at : origin_at + nmeta]
            _, _, _, uuid, first_seqno = _unpack_origin(origin)
        else:
            uuid, first_seqno = history_of(seqno), seqno
            origin = _pack_origin(1, ORIGIN_META_ID, 16, uuid, seqno)
        if uuid in theirs and first_seqno <= theirs[uuid]:
            if end or not shipment.is_needed(first_seqno):
                counters.echoes_stopped += 1
                if owed and key in owed:
                    shipment.paid(key)  # the target has something newer itself
                continue
        elif seqno <= arrived:
            continue
        told = origin if shipment.tells_origins else b""
        if end:
            rest = data[position + _BODY_AT : end]
            meta = (flags, expiry, rev, cas)
            datatype = place >> 16 & 0xFF
            frame = set_frame(vbucket, windows.opaque, rest, len(key), meta, datatype, told)
            looked_up = len(rest) - len(key) > rules.optimistic_bytes
        else:
            tells = expired and shipment.tells_expirations
            frame = delete_frame(vbucket, windows.opaque, key, (rev, cas), told, expired=tells)
        if len(window.frames) >= limit or window.bytes + len(frame) > most_bytes:
            if index > first:
                shipment.sent(window, position_in(snapshot, batch.seqnos[index - 1]))
            sent += windows.close(out)
            window = windows.current
        if looked_up:
            counters.docs_checked += 1
            question = look_up_frame(vbucket, windows.opaque, key)
            out.append(question)
            sent += len(question)
        else:
            counters.docs_opt_repd += bool(end)
            out.append(frame)
            sent += len(frame)
        windows.add(window, frame, looked_up=looked_up)
        if owed and key in owed:
            owed[key].replaced_in = window  # only this version matters from now on
    if done is not None:
        shipment.sent(window, LinkPosition(done, SnapshotRange(done, done)))
    elif last > first:
        shipment.sent(window, position_in(snapshot, batch.seqnos[last - 1]))
    counters.data_bytes += sent
    return sent


# --- outbound -------------------------------------------------------------------------------------


_Parts = deque[tuple[Shipment, OutboundPart]]


class Outbound:
    """The items of one link that are read and not sent.

    Attributes:
        ship: when a change may be sent, see `LinkSettings`.
        withheld: what must not be sent yet, by vBucket.
    """

    def __init__(self, hub: Hub, queued: Callable[[str], None], wake: Callable[[], None]) -> None:
        """Begin with nothing.

        Args:
            hub: of the node.
            queued: called with the place of a node that something waits for.
            wake: called when something may be sent by now.
        """
        self.ship = ACCEPTED
        self.withheld: dict[int, _Parts] = {}
        self._hub = hub
        self._queued = queued
        self._wake = wake
        self._queues: dict[str, _Parts] = {}
        self._settings = hub.bucket.settings.xdcr
        self._parts = self._bytes = 0
        self._waits_for_disk = False

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be read now."""
        settings = self._settings
        return self._parts >= settings.queued_parts or self._bytes >= settings.queued_bytes

    def has(self, place: str) -> bool:
        """Tell whether something may be sent to a node."""
        return bool(self._queues.get(place))

    def take(self, place: str, most_items: int | None = None) -> tuple[Shipment, OutboundPart]:
        """Return what may be sent next to a node that `has` something; the rest stays."""
        parts = self._queues[place]
        shipment, part = self._pop(parts)
        if most_items is not None:
            part, rest = part.split(most_items)
            if rest is not None:
                self._append(parts, shipment, rest)
                parts.rotate(1)
        return shipment, part

    def add(self, shipment: Shipment, part: OutboundPart) -> None:
        """Take items that were read."""
        number = shipment.vbucket.id
        if self.ship != ACCEPTED or number in self.withheld:
            self._append(self.withheld.setdefault(number, deque()), shipment, part)
        else:
            self._put(shipment, part)

    def _put(self, shipment: Shipment, part: OutboundPart) -> None:
        self._append(self._queues.setdefault(shipment.place, deque()), shipment, part)
        self._queued(shipment.place)

    def _append(self, parts: _Parts, shipment: Shipment, part: OutboundPart) -> None:
        self._parts += 1
        self._bytes += part.size
        parts.append((shipment, part))

    def _pop(self, parts: _Parts) -> tuple[Shipment, OutboundPart]:
        shipment, part = parts.popleft()
        self._parts -= 1
        self._bytes -= part.size
        return shipment, part

    def release(self) -> bool:
        """Queue what may be sent by now; return whether there was anything."""
        released = False
        for number, parts in list(self.withheld.items()):
            released = self._release(parts) or released
            if not parts:
                del self.withheld[number]
        if self.withheld and not released and not self._waits_for_disk:
            self._waits_for_disk = True
            self._hub.bucket.flusher.when_durable(self._on_disk)
        return released

    def _release(self, parts: _Parts) -> bool:
        released = False
        while parts:
            shipment, part = self._pop(parts)
            ready, rest = part.cut(self._safe_seqno(shipment.vbucket))
            if ready is not None:
                self._put(shipment, ready)
                released = True
            if rest is not None:
                self._append(parts, shipment, rest)
                parts.rotate(1)
                break
        return released

    def _on_disk(self, _: bool) -> None:
        self._waits_for_disk = False
        self._wake()

    def _safe_seqno(self, vbucket: VBucket) -> int:
        """Return up to where changes may be sent."""
        if self.ship == ACCEPTED:
            return vbucket.high_seqno
        durable = self._hub.bucket.flusher.durable_seqno(vbucket)
        if self.ship == PERSISTED:
            return durable
        return min(durable, replicated_seqno(self._hub, vbucket.id))

    def forget_node(self, place: str) -> None:
        """Forget what waits for a node: its streams have ended."""
        self._drop(self._queues.pop(place, deque()))

    def forget_vbucket(self, number: int) -> None:
        """Forget what must not be sent yet of a vBucket: its stream has ended."""
        self._drop(self.withheld.pop(number, deque()))

    def _drop(self, parts: _Parts) -> None:
        while parts:
            self._pop(parts)

    def clear(self) -> None:
        """Forget everything."""
        self._queues.clear()
        self.withheld.clear()
        self._parts = self._bytes = 0
