"""Tokens of ``/changes``: how far a reader has each vBucket, as text that a URL can have.

A token says that the snapshots up to a seqno of a history have arrived completely. One for a few
vBuckets is short; one for 1,024 fits the head of a request, because of a history's number only
four bytes are in it. They tell the histories of one vBucket apart; what names none of a node's
starts over.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping

from uprmc.client.position import Position
from uprmc.model import FailoverLog

_SHORT = 0xFFFFFFFF

#: The widths that seqnos of a token may have; a token is as short as its highest seqno allows.
_WIDTHS = (2, 3, 4, 5, 6, 8)


def encoded(positions: Mapping[int, Position]) -> str:
    """Return the token of some positions; what is at the beginning is left out."""
    top = max((each.seqno for each in positions.values()), default=0)
    width = next(one for one in _WIDTHS if top < 1 << 8 * one)
    rows = b"".join(
        vbucket.to_bytes(2) + seqno.to_bytes(width) + (uuid & _SHORT).to_bytes(4)
        for vbucket, (seqno, uuid) in sorted(positions.items())
        if seqno
    )
    return urlsafe_b64encode(bytes([width]) + rows).rstrip(b"=").decode()


def decoded(token: str) -> dict[int, tuple[int, int]]:
    """Return the seqno and the short number of the history of each vBucket.

    Raises:
        ValueError: it is no token.
    """
    try:
        data = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (UnicodeEncodeError, Base64Error):
        raise ValueError(f"{token!r} is no token") from None
    width = data[0] if data else 0
    size = width + 6
    if width not in _WIDTHS or (len(data) - 1) % size:
        raise ValueError(f"{token!r} is no token")
    rows = (data[at : at + size] for at in range(1, len(data), size))
    return {
        int.from_bytes(row[:2]): (int.from_bytes(row[2:-4]), int.from_bytes(row[-4:]))
        for row in rows
    }


def position_of(log: FailoverLog, seqno: int, short: int) -> Position:
    """Return a position of a token in full, by a vBucket's failover log.

    A history that the log does not have gets a number that no history has, so that the node sends
    the reader back.
    """
    full = next((entry.uuid for entry in log if entry.uuid & _SHORT == short), short)
    return Position(seqno, full)
