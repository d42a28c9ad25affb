"""Snapshot leases on any binary connection: acquire, renew, release.

Source: design, decision 12; the bytes are our own, see ``docs/extensions.md``.
"""

from __future__ import annotations

from uprmc.errors import InvalidArguments, StoreError, TemporaryFailure
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr_extensions import (
    LEASE_ACQUIRE_EXTRAS,
    LEASE_GRANT_EXTRAS,
    LEASE_RELEASE_EXTRAS,
    LEASE_RENEW_EXTRAS,
    LeasedVBucket,
    decode_lease_vbuckets,
    encode_lease_grant,
)
from uprmc.protocol.watermarks import ID_MAX_BYTES


def acquire(session: BinaryConversation, request: Request) -> None:
    """Acquire a lease of vBuckets as they are now; the answer describes them."""
    (lifetime_s,) = LEASE_ACQUIRE_EXTRAS.unpack(request.extras)
    if len(request.key) > ID_MAX_BYTES:
        raise InvalidArguments(f"an id of {len(request.key)} bytes")
    numbers = decode_lease_vbuckets(request.value)
    try:
        lease, granted_s = session.services.upr.leases.acquire(numbers, lifetime_s, request.key)
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


LEASE_COMMANDS: dict[int, Handler] = {
    Opcode.LEASE_ACQUIRE: acquire,
    Opcode.LEASE_RENEW: renew,
    Opcode.LEASE_RELEASE: release,
}
