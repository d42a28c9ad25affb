"""What one stream that fills a vBucket asks for and takes.

A stream is nearly nothing but mutations, one behind the other. `ReplicaStream.take_run` makes
records of them, in the compiled core where that runs, as long as there is nothing to think about;
the first frame that is anything else ends the run and is looked at alone (`mutation_of`,
`deletion_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from uprmc.core.form import COMPILED, FORM
from uprmc.engine.replica import NUMBER_MAX, apply, apply_all, outrank, take_history
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.errors import InvalidArguments, RangeExceeded, RemoteProtocolError
from uprmc.model import SEQNO_MAX, FailoverEntry, Item, Life, Origin, SnapshotRange
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import HEADER_BYTES, KEY_MAX_BYTES, DataType, MarkerFlag, Opcode
from uprmc.protocol.origins import ORIGIN_META_BYTES, ORIGIN_META_HEAD, decode_origin
from uprmc.protocol.upr import (
    DELETION_EXTRAS,
    EXPIRATION_EXTRAS,
    MUTATION_EXTRAS,
    MUTATION_FRAME,
    TIMED_DELETION_EXTRAS,
    Marker,
    StreamRequest,
    check_deletion,
    frame_head,
    frame_place,
)
from uprmc.record import FRONT, ORIGIN, ORIGIN_BYTES, RECORD_VERSION, TAIL, UNREAD

_DISK = int(MarkerFlag.DISK)
_MUTATION = frame_head(Opcode.UPR_MUTATION)
_PLACE = frame_place(MUTATION_EXTRAS.size, 0)
_JSON = int(DataType.JSON)
_AS_JSON = frame_place(0, 0, _JSON)
_FRAME_BYTES = MUTATION_FRAME.size
_NO_NUMBER = bytes(8)
_KEY_MAX_BYTES, _NUMBER_MAX = KEY_MAX_BYTES, NUMBER_MAX
_unpack = MUTATION_FRAME.unpack_from
_pack_front, _pack_tail = FRONT.pack, TAIL.pack


class ReplicaState(Enum):
    """Where it stands; the texts are those of statistics."""

    PENDING = "pending"
    READING = "reading"
    TAKEOVER_WAIT = "takeover-wait"
    DEAD = "dead"


class ReplicaStream:
    """Fills a vBucket from a stream.

    It watches the vBucket, and ends when something else changes that.
    """

    __slots__ = (
        "_died",
        "_floor",
        "_silent_disk",
        "asked",
        "asked_by",
        "bare",
        "flags",
        "items",
        "kind",
        "opaque",
        "purge_seqno",
        "rollbacks",
        "snapshot",
        "state",
        "stranger",
        "told_purge_seqno",
        "told_seqno",
        "vbucket",
    )

    def __init__(
        self,
        vbucket: VBucket,
        flags: int,
        opaque: int,
        asked_by: int,
        died: Callable[[ReplicaStream, Interruption], None],
    ) -> None:
        """Prepare a stream; `died` is called when something else changes the vBucket."""
        self.vbucket = vbucket
        self.flags = flags  # of the request
        self.opaque = opaque  # of its frames
        self.asked_by = asked_by  # opaque of the ADD_STREAM that waits for it, 0 = none
        self.state = ReplicaState.PENDING
        #: The one that was announced last; before the first nothing fits into it.
        self.snapshot = SnapshotRange(vbucket.high_seqno, vbucket.high_seqno)
        self.kind = 0  # its marker's type bits
        self.purge_seqno = 0  # deletions up to here may be missing from it
        self.told_purge_seqno: int | None = None  # what VBUCKET_FACTS said last of that
        self.items = 0  # taken so far
        self.rollbacks = 0  # how often the source has sent us back before it granted it
        self.told_seqno = 0  # what the source knows to be on our disk
        self.bare = False  # asked for without known versions, which the source has refused
        self.stranger = False  # the source's history is none of ours, so our term says nothing
        self._silent_disk = False
        self._floor: int | None = None
        self.asked = self._request()  # of its source, last
        self._died: Callable[[ReplicaStream, Interruption], None] | None = died
        vbucket.watchers.append(self)

    def request(self) -> StreamRequest:
        """Return what to ask for: everything after what the vBucket holds."""
        self.asked = self._request()
        self._floor = self.asked.snapshot_start + 1
        return self.asked

    def _request(self) -> StreamRequest:
        vbucket = self.vbucket
        high, snapshot = vbucket.high_seqno, vbucket.snapshot
        return StreamRequest(self.flags, high, SEQNO_MAX, vbucket.failover_log[0].uuid, *snapshot)

    def accepted(self, log: tuple[FailoverEntry, ...], term: int) -> None:
        """The producer has agreed; its history is ours from now on, with its term."""
        self.change_state(lambda: take_history(self.vbucket, log, term))
        self.vbucket.may_start_over = False
        high = self.vbucket.high_seqno
        self.snapshot = SnapshotRange(high, high)
        self.kind = self.purge_seqno = 0
        self.state = ReplicaState.READING

    @property
    def whole(self) -> bool:
        """Whether everything that was announced has come."""
        return self.vbucket.high_seqno >= self.snapshot.end

    def told(self, purge_seqno: int, rev_floor: int) -> None:
        """Learn what goes with the snapshots that follow.

        Raises:
            InvalidArguments: no vBucket has such a revision.
        """
        outrank(self.vbucket, rev_floor)
        self.told_purge_seqno = purge_seqno

    def announce(self, marker: Marker, *, told: bool) -> None:
        """A snapshot begins; it counts from its first item on.

        The first one goes on with what was asked for, whatever its own start says. `told` says
        whether the marker says up to where deletions may be missing. A source that says nothing of
        it may have dropped any deletion from what it reads off its disk. Of that the stream's first
        counts, however often it is announced: what comes later was changed since it began.

        Raises:
            RangeExceeded: more is purged than there is.
        """
        purged = 0
        if told or self.told_purge_seqno is not None:
            purged = max(marker.purge_seqno, self.told_purge_seqno or 0)
        elif marker.kind & _DISK and not (self._silent_disk and self.whole):
            self._silent_disk = True
            purged = marker.end_seqno
        if purged > marker.end_seqno:
            raise RangeExceeded(f"a snapshot to {marker.end_seqno}, purged to {purged}")
        start, floor = marker.start_seqno, self._floor
        if floor is not None:
            start, self._floor = min(start, floor), None
        self.snapshot = SnapshotRange(start, marker.end_seqno)
        self.kind = marker.kind
        self.purge_seqno = purged

    def take(self, item: Item) -> None:
        """Apply a version.

        Raises:
            RangeExceeded: it is out of order.
            InvalidArguments: its numbers leave no room for our own.
        """
        apply(self.vbucket, item, self.snapshot, self.purge_seqno)
        self.items += 1

    def take_run(self, data: bytes, position: int, max_value_bytes: int) -> tuple[int, int]:
        """Apply the mutations from `position` on that can be taken as they are.

        They end at the end of `data`, and before the first frame that is not whole, of another kind
        or stream, out of order, outside of the snapshot, or strange in any other way.

        Returns:
            how many; the position behind the last.
        """
        vbucket, snapshot = self.vbucket, self.snapshot
        end_seqno = min(snapshot.end, NUMBER_MAX)
        last = max(vbucket.high_seqno, snapshot.start - 1)
        if last >= end_seqno:
            return 0, position
        records: list[bytes] = []
        end, highest_cas = take_versions(
            data, position, self.opaque, vbucket.id, last, end_seqno, max_value_bytes, records
        )
        if records:
            apply_all(vbucket, records, highest_cas, snapshot, self.purge_seqno)
            self.items += len(records)
        return len(records), end

    def change_state(self, change: Callable[[], object]) -> None:
        """Let `change` put the vBucket into another state without ending this stream."""
        self.vbucket.unwatch(self)
        try:
            change()
        finally:
            if self.state is not ReplicaState.DEAD:
                self.vbucket.watchers.append(self)

    # --- what the vBucket tells -----------------------------------------------------------------

    def changed(self) -> None:
        """It is us who change it."""

    def interrupted(self, why: Interruption) -> None:
        """Learn that something else has changed the vBucket's state, or that it is gone."""
        died = self._died
        self.close()
        if died is not None:
            died(self, why)

    def close(self) -> None:
        """Let go of the vBucket."""
        self.vbucket.unwatch(self)
        self.state = ReplicaState.DEAD
        self._died = None


# --- from frames to versions ----------------------------------------------------------------------


def read_versions(
    data: bytes,
    position: int,
    opaque: int,
    vbucket: int,
    last: int,
    end_seqno: int,
    max_value_bytes: int,
    records: list[bytes],
) -> tuple[int, int]:
    """Read plain mutations of a stream from `position` on, until anything else comes.

    Args:
        data: the received bytes.
        position: where to begin.
        opaque, vbucket: of the stream.
        last, end_seqno: seqnos are above the one and at most the other; both up to `NUMBER_MAX`.
        max_value_bytes: of a value.
        records: to which the versions are added.

    Returns:
        where the last one ends; the highest CAS, 0 if there is none.
    """
    append = records.append
    highest_cas = 0
    place = _PLACE | vbucket
    size = len(data)
    last_start = size - _FRAME_BYTES
    while position <= last_start:
        head, key_length, kinds, length, found, cas, seqno, rev, flags, expiry, _, nmeta, _ = (
            _unpack(data, position)
        )
        if head != _MUTATION or found != opaque or not last < seqno <= end_seqno:
            break
        key_at = position + _FRAME_BYTES
        value_at = key_at + key_length
        end = position + HEADER_BYTES + length
        if end > size or not 0 < key_length <= _KEY_MAX_BYTES:
            break
        value_end, kind, origin = end - nmeta, UNREAD, b""
        if not 0 <= value_end - value_at <= max_value_bytes:
            break
        if nmeta:
            if not _is_origin(data[value_end:end]):
                break
            kind, origin = UNREAD | ORIGIN, data[end - ORIGIN_BYTES : end]
        if cas > _NUMBER_MAX or rev > _NUMBER_MAX:
            break
        datatype = 0
        if kinds != place:
            if kinds != place | _AS_JSON:
                break
            datatype = _JSON
        append(
            _pack_front(RECORD_VERSION, kind, datatype, expiry, key_length, rev, seqno)
            + data[key_at:value_at]
            + origin
            + _pack_tail(cas, flags)
            + data[value_at:value_end]
        )
        if cas > highest_cas:
            highest_cas = cas
        last = seqno
        position = end
    return position, highest_cas


def _is_origin(meta: bytes) -> bool:
    """Tell whether extended metadata is one valid origin and nothing else."""
    if len(meta) != ORIGIN_META_BYTES or not meta.startswith(ORIGIN_META_HEAD):
        return False
    return _NO_NUMBER not in (meta[4:12], meta[12:])


def mutation_of(request: RequestFrame) -> Item:
    """Return the version that a MUTATION brings.

    Raises:
        InvalidArguments: the extended metadata is longer than the value.
    """
    seqno, rev, flags, expiry, _, nmeta, _ = MUTATION_EXTRAS.unpack(request.extras)
    if nmeta > len(request.value):
        raise InvalidArguments("the extended metadata is longer than the value")
    value_bytes = len(request.value) - nmeta
    value, origin = request.value[:value_bytes], _origin_in(request.value[value_bytes:])
    datatype = request.datatype & DataType.JSON
    return Item(request.key, value, flags, expiry, request.cas, seqno, rev, datatype, origin=origin)


def _origin_in(meta: bytes) -> Origin | None:
    """Return the origin in extended metadata; whatever else another producer may send says none."""
    try:
        return decode_origin(meta)
    except RemoteProtocolError:
        return None


def deletion_of(request: RequestFrame, now: int) -> Item:
    """Return the tombstone that a DELETION or EXPIRATION brings; one without a time is of `now`.

    Raises:
        InvalidArguments: it has a value.
    """
    check_deletion(request.extras, request.value)
    deleted_at = now
    if len(request.extras) == DELETION_EXTRAS.size:
        seqno, rev, _ = DELETION_EXTRAS.unpack(request.extras)
    elif len(request.extras) == TIMED_DELETION_EXTRAS.size:
        seqno, rev, deleted_at, _ = TIMED_DELETION_EXTRAS.unpack(request.extras)
    else:
        seqno, rev, deleted_at = EXPIRATION_EXTRAS.unpack(request.extras)
    expired = request.opcode == Opcode.UPR_EXPIRATION
    life = Life.EXPIRED if expired else Life.DELETED
    origin = _origin_in(request.value)
    return Item(request.key, None, 0, deleted_at, request.cas, seqno, rev, 0, life, origin=origin)


take_versions = read_versions
if FORM == COMPILED:
    from uprmc.core.native import versions

    take_versions = versions.take_versions
