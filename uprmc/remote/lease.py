"""Snapshot leases: what is asked and answered, and the token that names a lease over all nodes.

A token is text without blanks: who holds it may read, renew and release. It goes through options,
offsets and pickle.

See `docs/extensions.md`, leases.
"""

from __future__ import annotations

import math
import string
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from uprmc import places
from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr_extensions import (
    LEASE_ACQUIRE_EXTRAS,
    LEASE_ACQUIRE_SPARING_EXTRAS,
    LEASE_GRANT_EXTRAS,
    LEASE_RELEASE_EXTRAS,
    LEASE_RENEW_EXTRAS,
    LEASE_ROWS_EXTRAS,
    LEASE_ROWS_REPLY_EXTRAS,
    LeasedVBucket,
    decode_lease_grant,
    encode_lease_vbuckets,
)
from uprmc.remote import ranges
from uprmc.units import in_ranges

#: Renewals in the life of a lease: two of them may fail.
RENEWALS = 3

#: What a token begins with.
_FORM = "lease1"

_SECONDS_MAX = 0xFFFFFFFF

#: Digits of a grant's id in a token.
_ID_DIGITS = 16


@dataclass(frozen=True)
class Grant:
    """The lease of one node: its id there, and the vBuckets."""

    place: str
    id: int
    vbuckets: tuple[int, ...]


# --- messages -------------------------------------------------------------------------------------


def whole_seconds(lifetime_s: float) -> int:
    """Return a lifetime as it is asked for; raises `ValueError`: what was expected."""
    if not 0 < lifetime_s <= _SECONDS_MAX:
        raise ValueError(f"say 1 to {_SECONDS_MAX}")
    return math.ceil(lifetime_s)


def acquire(
    vbuckets: Iterable[int], seconds: int, reader: bytes = b"", spare: int = 0
) -> RequestFrame:
    """Ask a node to hold vBuckets.

    Args:
        vbuckets: their numbers, none = all that are active there.
        seconds: for how long.
        reader: the id of the registered client that reads them. Older nodes refuse it with
            INVALID_ARGUMENTS: then ask without.
        spare: leases that must stay free there for others.
    """
    extras, value = LEASE_ACQUIRE_EXTRAS.pack(seconds), encode_lease_vbuckets(vbuckets)
    if spare:
        extras = LEASE_ACQUIRE_SPARING_EXTRAS.pack(seconds, spare)
    return RequestFrame(Opcode.LEASE_ACQUIRE, key=reader, extras=extras, value=value)


def renew(lease: int, seconds: int) -> RequestFrame:
    """Ask for more time, from now."""
    return RequestFrame(Opcode.LEASE_RENEW, extras=LEASE_RENEW_EXTRAS.pack(lease, seconds))


def release(lease: int) -> RequestFrame:
    """End it."""
    return RequestFrame(Opcode.LEASE_RELEASE, extras=LEASE_RELEASE_EXTRAS.pack(lease))


def rows_reached(lease: int, vbucket: int, after: int, rows: int) -> RequestFrame:
    """Ask at which seqno this number of changes after `after` is reached."""
    extras = LEASE_ROWS_EXTRAS.pack(lease, after, min(rows, 2**32 - 1))
    return RequestFrame(Opcode.LEASE_ROWS, extras=extras, vbucket=vbucket)


def reached(answer: ResponseFrame) -> tuple[int, int]:
    """Return the seqno, and how many changes there are; raises `RemoteProtocolError`."""
    try:
        seqno, rows = LEASE_ROWS_REPLY_EXTRAS.unpack(answer.extras)
        return seqno, rows
    except struct.error:
        raise RemoteProtocolError("a torn number of rows") from None


def granted(answer: ResponseFrame) -> tuple[int, int, list[LeasedVBucket]]:
    """Return the id, the seconds and, of an acquired lease, what it holds.

    Raises:
        RemoteProtocolError: the answer, a success, is torn.
    """
    try:
        lease, seconds = LEASE_GRANT_EXTRAS.unpack(answer.extras)
        return lease, seconds, decode_lease_grant(answer.value)
    except (struct.error, RemoteProtocolError):
        raise RemoteProtocolError("a torn lease") from None


# --- tokens ---------------------------------------------------------------------------------------


def token_of(grants: Iterable[Grant], seconds: int) -> str:
    """Return the token of a lease that lives for this long after each renewal."""
    parts = [f"{each.place}/{each.id:016x}/{in_ranges(each.vbuckets)}" for each in grants]
    return ";".join([_FORM, str(seconds), *parts])


def parsed_token(token: str) -> tuple[list[Grant], int]:
    """Return the grants and seconds that a token names; raises `ValueError`."""
    form, *parts = token.split(";")
    if form != _FORM or not parts:
        raise ValueError(token)
    return [_parsed_grant(part) for part in parts[1:]], whole_seconds(float(parts[0]))


def _parsed_grant(part: str) -> Grant:
    place, number, vbuckets = part.rsplit("/", 2)
    places.parsed(place)
    if len(number) != _ID_DIGITS or not set(number) <= set(string.hexdigits):
        raise ValueError(part)
    return Grant(place, int(number, 16), ranges.parsed(vbuckets))
