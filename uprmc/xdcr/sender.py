"""What a link sends to the nodes of its target, and what their answers to items mean.

Items are read for all nodes together, and each node takes what is its own when it has room for it.
With ``ship=persisted`` or ``replicated``, what is read waits until no crash or failover of this
node can lose it.

Neighbours: `target` is one connection, `link` connects and decides what is sent at all.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from uprmc.engine.vbucket import VBucket
from uprmc.errors import InvalidArguments
from uprmc.model import ConflictRule, SnapshotRange
from uprmc.protocol.opcodes import HEADER_BYTES, Feature, Opcode, Status, status_text
from uprmc.protocol.origins import ORIGIN_META, ORIGIN_META_BYTES, ORIGIN_META_ID
from uprmc.protocol.upr import MUTATION_FRAME
from uprmc.remote.batch import Batch, deletion_numbers
from uprmc.remote.retry import Backoff
from uprmc.xdcr.frames import (
    WITH_META_FRAME,
    LinkMeta,
    delete_frame,
    document_wins,
    key_of,
    look_up_frame,
    set_frame,
    with_opaque,
)
from uprmc.xdcr.reading import replicated_seqno
from uprmc.xdcr.shipment import (
    NOWHERE,
    Counters,
    Debt,
    LinkPosition,
    Shipment,
    position_in,
    shown,
)
from uprmc.xdcr.spec import ACCEPTED, PERSISTED, SKIP, Pattern
from uprmc.xdcr.target import Target
from uprmc.xdcr.windows import Item, LinkWindow, Windows

if TYPE_CHECKING:
    from uprmc.xdcr.link import Link

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
    """Items of one vBucket that follow one another."""

    data: bytes  # what the batch was read from
    batch: Batch  # has the items, from `first` to below `last`
    first: int
    last: int
    done: int | None  # the end of the snapshot, if these are its last items
    #: The one that they lie in, as it was announced when they were read. The stream may be in a
    #: later one by the time they are sent.
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
    """How a link's items are sent."""

    pattern: Pattern | None = None  # keys in which it is not found are not sent
    batch_items: int = 500  # where a batch ends
    batch_bytes: int = 2 * 1024 * 1024
    optimistic_bytes: int = 256  # larger values are looked up first
    deletions: bool = True  # whether these are sent
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
        sent_origin = origin if shipment.tells_origins else b""
        if end:
            rest = data[position + _BODY_AT : end]
            meta = (flags, expiry, rev, cas)
            datatype = place >> 16 & 0xFF
            frame = set_frame(vbucket, windows.opaque, rest, len(key), meta, datatype, sent_origin)
            looked_up = len(rest) - len(key) > rules.optimistic_bytes
        else:
            tells = expired and shipment.tells_expirations
            frame = delete_frame(
                vbucket, windows.opaque, key, (rev, cas), sent_origin, expired=tells
            )
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
    """The items of one link that are read and not sent."""

    def __init__(self, link: Link) -> None:
        self.withheld: dict[int, _Parts] = {}  # what must not be sent yet, by vBucket
        self._link = link
        self._hub = link.hub
        self._queues: dict[str, _Parts] = {}
        self._settings = link.bucket.settings.xdcr
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
        if self._link.spec.settings.ship != ACCEPTED or number in self.withheld:
            self._append(self.withheld.setdefault(number, deque()), shipment, part)
        else:
            self._put(shipment, part)

    def _put(self, shipment: Shipment, part: OutboundPart) -> None:
        self._append(self._queues.setdefault(shipment.place, deque()), shipment, part)
        self._link.nodes.wake_other(shipment.place)

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
        self._link.nodes.wake()

    def _safe_seqno(self, vbucket: VBucket) -> int:
        """Return up to where changes may be sent."""
        ship = self._link.spec.settings.ship
        if ship == ACCEPTED:
            return vbucket.high_seqno
        durable = self._hub.bucket.flusher.durable_seqno(vbucket)
        if ship == PERSISTED:
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


# --- sender ---------------------------------------------------------------------------------------


#: Seconds that sending takes at a time; then others have their turn.
FILL_S = 0.001

#: Bytes that are read at a time.
_PULL_BYTES = 64 * 1024

#: What the target refuses is tried again after a pause of this length, which doubles.
_AGAIN_MIN_S = 0.25

_ACCESS = frozenset({Status.AUTH_ERROR, Status.ACCESS_DENIED})
_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})


class Sender:
    """Sends the items of one link."""

    def __init__(self, link: Link) -> None:
        """Prepare it; `apply_settings` comes before the first `fill`."""
        self.rules = OutboundRules()
        self._link = link
        self._outbound = link.outbound
        self._clock = link.clock
        self._paid_until = 0.0
        self._again = Backoff(_AGAIN_MIN_S, link.bucket.settings.xdcr.redial_max_s)
        self._due: set[str] = set()

    def apply_settings(self) -> None:
        """Take over the settings of the link, which may have changed."""
        spec, rules = self._link.spec, self.rules
        settings = spec.settings
        try:
            rules.pattern = spec.pattern()
        except InvalidArguments as error:  # an older version took it
            self._link.stop(str(error))
        rules.batch_items, rules.batch_bytes = settings.batch_items, settings.batch_bytes
        rules.optimistic_bytes = settings.optimistic_bytes
        rules.deletions = not settings.filter_deletions
        rules.expirations = not settings.filter_expirations
        if settings.on_refused == SKIP:
            for number, key, _ in list(self._link.debts):
                self._link.shipments[number].paid(key)

    def fill(self, target: Target, out: list[bytes], budget: int) -> int:
        """Add what is to be sent next, by `Target.windows`; return how many bytes."""
        link, place = self._link, target.place
        if not link.may_send or link.resuming.stops:
            return 0
        if self.is_drained(place) and not target.windows.is_filling:
            return 0
        budget = self._affordable(target, budget)
        sent, windows = 0, target.windows
        outbound, monotonic = self._outbound, self._clock.monotonic
        until, late, most = monotonic() + FILL_S, False, self.rules.most_items
        if place in self._due:
            self._due.discard(place)
            sent += self._try_again(target, out)
        while sent < budget and windows.has_room and not late:
            if outbound.has(place):
                shipment, part = outbound.take(place, most)
                if not shipment.dead:
                    sent += ship(self.rules, link.counters, windows, out, shipment, part)
            elif not (outbound.release() or self._pull(budget - sent)):
                break
            late = monotonic() >= until
        if late:
            target.wake()  # what is filtered makes no bytes, and still takes its time
        elif not (outbound.has(place) and windows.has_room):
            sent += windows.close(out)
        self._pay(sent)
        return sent

    def is_drained(self, place: str) -> bool:
        """Tell whether nothing waits for a node; it is woken before there is something."""
        reading, outbound = self._link.reading, self._outbound
        idle = reading is None or reading.drained
        return idle and not (outbound.withheld or place in self._due or outbound.has(place))

    def _affordable(self, target: Target, budget: int) -> int:
        """Return how much of the budget the bandwidth allows now."""
        limit = self._link.spec.settings.bandwidth
        if not limit:
            return budget
        wait_s = self._paid_until - self._clock.monotonic()
        if wait_s <= 0:
            return min(budget, max(1, limit // 10))
        self._link.world.later(wait_s, target.wake)
        return 0

    def _pay(self, sent: int) -> None:
        limit = self._link.spec.settings.bandwidth
        if limit and sent:
            now = self._clock.monotonic()
            self._paid_until = max(now, self._paid_until) + sent / limit

    def _pull(self, budget: int) -> bool:
        """Read items into the queues of their nodes; return whether there were any."""
        assert self._link.reading is not None
        drained = self._link.reading.drained
        if drained or self._outbound.is_full or self._link.debts.is_full:
            return False
        pulled = self._link.reading.pull(min(budget, _PULL_BYTES))
        for batch in pulled.batches:
            for run in batch.runs:
                shipment = self._link.shipments.get(run.stream.vbucket)
                if shipment is not None and shipment.stream is run.stream:
                    part = OutboundPart(
                        pulled.data,
                        batch,
                        run.first,
                        run.last,
                        run.done,
                        pulled.snapshots.get(run, NOWHERE.snapshot),
                    )
                    self._outbound.add(shipment, part)
        for stream in pulled.ended:
            shipment = self._link.shipments.get(stream.vbucket)
            if shipment is not None and shipment.stream is stream:
                self._link.drop([shipment])
        return bool(pulled.data)

    # --- what the target refuses ----------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Have what was refused tried again when it is time."""
        if self._link.debts.count and self._again.at <= now:
            self._again.failed(now)
            for target in self._link.nodes.ready:
                self._due.add(target.place)
                target.wake()

    def try_again_soon(self) -> None:
        """Try again at once what was refused: it may work now."""
        self._again.good()
        self._again.at = 0.0

    def _try_again(self, target: Target, out: list[bytes]) -> int:
        """Send what a node has refused once more, in batches of its own; return the bytes."""
        windows, sent = target.windows, target.windows.close(out)
        shipments, rules = self._link.shipments, self.rules
        for number, _, debt in self._link.debts:
            if shipments[number].place != target.place or debt.trial or debt.replaced_in:
                continue
            window = debt.trial = windows.current
            window.is_trial = True
            frame = with_opaque(debt.frame, windows.opaque)
            windows.add(window, frame)
            out.append(frame)
            sent += len(frame)
            if len(window.frames) >= rules.batch_items or window.bytes >= rules.batch_bytes:
                sent += windows.close(out)
        self._link.counters.data_bytes += sent
        return sent + windows.close(out)

    def _owe(self, target: Target, item: Item, number: int, status: int) -> None:
        """Take note of a refusal for good: the vBucket does not arrive beyond it."""
        window, frame = item[0], target.windows.frame(item)
        shipment, key, why = self._link.shipments.get(number), key_of(frame), status_text(status)
        if shipment is None or shipment.place != target.place:
            return  # it begins again further back
        owed = shipment.debts.get(key)
        if window.is_trial:
            if owed is not None and owed.trial is window:
                owed.trial, owed.why = None, why
            return
        now = self._clock.monotonic()
        if not self._link.debts.count:
            self._again.good()
            self._again.failed(now)
        shipment.owe(key, Debt(frame, why, now, window, window.first + item[1]))
        self._given_up(frame, why)

    def _given_up(self, frame: bytes, why: str) -> None:
        self._link.counters.docs_refused += 1
        self._link.trouble(f"{shown(key_of(frame))}: the target refuses it: {why}")

    def _tried(self, window: LinkWindow) -> None:
        """What was tried again and not refused again is a debt no more."""
        debts = self._link.debts
        done = [(number, key) for number, key, debt in debts if debt.trial is window]
        for number, key in done:
            self._link.shipments[number].paid(key)
        if done:
            self._again.good()
            self._again.failed(self._clock.monotonic())

    # --- answers --------------------------------------------------------------------------------

    def looked_up(self, target: Target, item: Item, theirs: tuple[bool, LinkMeta] | None) -> bool:
        """Tell whether an item wins against the target's version, ``None`` = there is none."""
        if theirs is None:
            return True
        fields = WITH_META_FRAME.unpack_from(target.windows.frame(item))
        flags, expiry, rev, cas = fields[-4:]
        ours = LinkMeta(rev, cas, expiry, flags)
        # If they are equal the origin decides, which the answer does not have: the target knows it.
        equal = ours == theirs[1] and Feature.ORIGINS in target.granted
        by_time = self._link.bucket.account.conflict_rule is ConflictRule.TIMESTAMP
        wins = equal or document_wins(ours, theirs[1], by_time=by_time)
        if not wins:
            self._link.counters.docs_failed_cr_source += 1
        return wins

    def sent_later(self, size: int) -> None:
        """Take note of bytes that are sent because of a look-up."""
        self._link.counters.data_bytes += size
        self._pay(size)

    def refused(self, target: Target, item: Item, status: int) -> bool:
        """Take note that a node refuses an item; return whether to send it again later."""
        frame = target.windows.frame(item)
        number = int.from_bytes(frame[6:8], "big")
        if status == Status.KEY_EXISTS:
            self._link.counters.docs_failed_cr_target += 1
        elif status == Status.NOT_MY_VBUCKET:
            shipment = self._link.shipments.get(number)
            if shipment is not None and shipment.place == target.place:
                self._link.doubted.add(number)  # the nodes are asked again who has it
                return True
        elif status in _ACCESS:
            needed = ": needs replicate" if status == Status.ACCESS_DENIED else ""
            self._link.stop(f"{target.place} gives no access: {status_text(status)}{needed}")
        elif status in _UNKNOWN:
            self._link.stop(
                f"{target.place} does not know {Opcode(frame[1]).name}: it is no target"
            )
        elif not (status == Status.KEY_NOT_FOUND and frame[1] == Opcode.DELQ_WITH_META):
            if status == Status.TOO_LARGE or self._link.spec.settings.on_refused == SKIP:
                self._given_up(frame, status_text(status))
            else:
                self._owe(target, item, number, status)
        return False

    def settled(self, window: LinkWindow) -> None:
        """Take note that a batch is settled."""
        self._link.counters.docs_written += window.written
        self._link.counters.deletions_written += window.deleted
        if window.is_trial:
            self._tried(window)
