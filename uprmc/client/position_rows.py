"""Rows of positions in SQLite, each with a checksum.

SQLite's integers are signed, and ours have 64 bits without a sign.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from uprmc.client.state import Saved
from uprmc.model import FailoverEntry, SnapshotRange

_U64 = 2**64
_NUMBERS = struct.Struct("<6Q")
_SIGNED_NUMBERS = struct.Struct("<6q")
_ENTRY = struct.Struct("<QQ")
_TERM = struct.Struct("<Q")


def saved_in(row: Sequence[Any]) -> Saved:
    """Return what a row says; raises `ValueError` or `struct.error` when it is torn."""
    *numbers, log, crc, term = row
    vbucket, seqno, start, end, ring_from, purge_seqno = map(unsigned, numbers)
    packed = _NUMBERS.pack(vbucket, seqno, start, end, ring_from, purge_seqno) + log
    if crc != crc32(packed + _packed_term(term)):
        raise ValueError("a wrong checksum")
    entries = tuple(FailoverEntry(*entry) for entry in _ENTRY.iter_unpack(log))
    return Saved(seqno, SnapshotRange(start, end), entries, ring_from, purge_seqno, term)


def position_row(vbucket: int, saved: Saved) -> tuple[int | bytes, ...]:
    """Return a row for a position."""
    seqno, (start, end), log, ring_from, purge_seqno, term = saved
    numbers = (vbucket, seqno, start, end, ring_from, purge_seqno)
    packed_log = b"".join([_ENTRY.pack(*entry) for entry in log])
    packed = _NUMBERS.pack(*numbers)
    crc = crc32(packed + packed_log + _packed_term(term))
    return (*_SIGNED_NUMBERS.unpack(packed), packed_log, crc, term)


def _packed_term(term: int) -> bytes:
    """Return what a checksum covers of a term: nothing if there is none, as before terms."""
    return _TERM.pack(term) if term else b""


def signed(number: int) -> int:
    """Return a number of 64 bits as SQLite can store it."""
    return number if number < _U64 // 2 else number - _U64


def unsigned(number: int) -> int:
    """Return the number that `signed` was given."""
    return number % _U64
