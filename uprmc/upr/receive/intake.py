"""From frames to versions: what a stream that fills a vBucket consists of.

A stream is nearly nothing but mutations, one behind the other. `read_run` makes records of them, in
the compiled core where that runs, as long as there is nothing to think about; the first frame that
is anything else ends the run and is looked at alone (`mutation_of`, `deletion_of`).

Source: UPR reference 2.8, 2.9; performance reference, section 3.
"""

from __future__ import annotations

from uprmc.core.form import COMPILED, FORM
from uprmc.engine.replica import NUMBER_MAX
from uprmc.errors import InvalidArguments, RemoteProtocolError
from uprmc.model import Item, Life, Origin
from uprmc.protocol.opcodes import HEADER_BYTES, KEY_MAX_BYTES, DataType, Opcode
from uprmc.protocol.origins import ORIGIN_META_BYTES, ORIGIN_META_HEAD, decode_origin
from uprmc.protocol.upr import (
    DELETION_EXTRAS,
    EXPIRATION_EXTRAS,
    MUTATION_EXTRAS,
    MUTATION_FRAME,
    TIMED_DELETION_EXTRAS,
    check_deletion,
    frame_head,
    frame_place,
)
from uprmc.record import FRONT, ORIGIN, ORIGIN_BYTES, RECORD_VERSION, TAIL, UNREAD
from uprmc.upr.peer import UprRequest
from uprmc.upr.receive.replica_stream import ReplicaStream

_MUTATION = frame_head(Opcode.UPR_MUTATION)
_PLACE = frame_place(MUTATION_EXTRAS.size, 0)
_JSON = int(DataType.JSON)
_AS_JSON = frame_place(0, 0, _JSON)
_FRAME_BYTES = MUTATION_FRAME.size
_NO_NUMBER = bytes(8)
_KEY_MAX_BYTES, _NUMBER_MAX = KEY_MAX_BYTES, NUMBER_MAX
_unpack = MUTATION_FRAME.unpack_from
_pack_front, _pack_tail = FRONT.pack, TAIL.pack


def read_run(
    data: bytes, position: int, stream: ReplicaStream, max_value_bytes: int
) -> tuple[list[bytes], int, int]:
    """Read the mutations of a stream from `position` on that can be taken as they are.

    It ends at the end of `data`, and before the first frame that is not whole, of another kind or
    stream, out of order, outside of the snapshot, or strange in any other way.

    Returns:
        The versions as records, by rising seqno; the position behind the last; the highest CAS.
    """
    records: list[bytes] = []
    vbucket, snapshot = stream.vbucket, stream.snapshot
    end_seqno = min(snapshot.end, NUMBER_MAX)
    last = max(vbucket.high_seqno, snapshot.start - 1)
    if last >= end_seqno:
        return records, position, 0
    end, highest_cas = take_versions(
        data, position, stream.opaque, vbucket.id, last, end_seqno, max_value_bytes, records
    )
    return records, end, highest_cas


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


def mutation_of(request: UprRequest) -> Item:
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


def deletion_of(request: UprRequest, now: int) -> Item:
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
