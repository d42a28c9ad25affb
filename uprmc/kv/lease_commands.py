"""Snapshot leases on any binary connection: acquire, renew, release.

Source: design, decision 12; the bytes are our own, see ``docs/extensions.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

from uprmc.errors import InvalidArguments, NotMyVBucket, StoreError, TemporaryFailure
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr_extensions import (
    LEASE_ACQUIRE_EXTRAS,
    LEASE_ACQUIRE_SPARING_EXTRAS,
    LEASE_GRANT_EXTRAS,
    LEASE_RELEASE_EXTRAS,
    LEASE_RENEW_EXTRAS,
    LEASE_ROWS_EXTRAS,
    LEASE_ROWS_REPLY_EXTRAS,
    LeasedVBucket,
    decode_lease_vbuckets,
    encode_lease_grant,
)
from uprmc.protocol.watermarks import ID_MAX_BYTES

#: What LEASE_ROWS looks at in one turn: about a millisecond. Each request has a turn of its own.
SLICE_RECORDS = 1_000
SLICE_BYTES = 256 * 1024


def acquire(session: BinaryConversation, request: Request) -> None:
    """Acquire a lease of vBuckets as they are now; the answer describes them."""
    if len(request.extras) == LEASE_ACQUIRE_EXTRAS.size:
        (lifetime_s,), spare = LEASE_ACQUIRE_EXTRAS.unpack(request.extras), 0
    else:
        lifetime_s, spare = LEASE_ACQUIRE_SPARING_EXTRAS.unpack(request.extras)
    if len(request.key) > ID_MAX_BYTES:
        raise InvalidArguments(f"an id of {len(request.key)} bytes")
    numbers = decode_lease_vbuckets(request.value)
    try:
        leases = session.services.upr.leases
        lease, granted_s = leases.acquire(numbers, lifetime_s, request.key, spare)
    except StoreError as error:
        raise TemporaryFailure(str(error)) from None
    leased = [
        LeasedVBucket(number, reading.uuid, reading.end_seqno, reading.purge_seqno)
        for number, reading in lease.readings.items()
    ]
    extras = LEASE_GRANT_EXTRAS.pack(lease.id, granted_s)
    session.reply(request, extras=extras, value=encode_lease_grant(leased))


def renew(session: BinaryConversation, request: Request) -> None:
    """Change the remaining lifetime of a lease."""
    number, lifetime_s = LEASE_RENEW_EXTRAS.unpack(request.extras)
    granted_s = session.services.upr.leases.renew(number, lifetime_s)
    session.reply(request, extras=LEASE_GRANT_EXTRAS.pack(number, granted_s))


def release(session: BinaryConversation, request: Request) -> None:
    """Release a lease."""
    (number,) = LEASE_RELEASE_EXTRAS.unpack(request.extras)
    session.services.upr.leases.release(number)
    session.reply(request)


def rows(session: BinaryConversation, request: Request) -> None:
    """Tell at which seqno of a lease's vBucket a number of changes is reached."""
    number, after, wanted = LEASE_ROWS_EXTRAS.unpack(request.extras)
    lease = session.services.upr.leases.find(number)
    reading = lease.readings.get(request.number)
    if reading is None:
        raise NotMyVBucket(request.number)
    if not wanted:
        raise InvalidArguments("0 rows")
    slices = reading.reached(after, wanted, SLICE_RECORDS, SLICE_BYTES)
    session.send_from(_counted(request, slices))


def _counted(request: Request, slices: Iterator[tuple[int, int]]) -> Iterator[bytes]:
    """Yield nothing after each slice, so that others have their turn, and then the answer."""
    reached = (0, 0)
    try:
        for each in slices:
            reached = each
            yield b""
    except StoreError:  # the lease has ended meanwhile, or the disk cannot be read
        status = Status.TEMPORARY_FAILURE
        yield ResponseFrame(request.opcode, status=status, opaque=request.opaque).encode()
        return
    extras = LEASE_ROWS_REPLY_EXTRAS.pack(*reached)
    yield ResponseFrame(request.opcode, extras=extras, opaque=request.opaque).encode()


LEASE_COMMANDS: dict[int, Handler] = {
    Opcode.LEASE_ACQUIRE: acquire,
    Opcode.LEASE_RENEW: renew,
    Opcode.LEASE_RELEASE: release,
    Opcode.LEASE_ROWS: rows,
}
