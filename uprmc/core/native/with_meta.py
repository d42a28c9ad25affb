"""SET_WITH_META where it is plain that nothing refuses the version: compiled only.

The usual case of a restore: the key is not here, or its document has a lower revision, or an equal
one and a lower CAS. Whatever could depend on a tombstone, or loses, goes by the rules of
`uprmc.engine.with_meta`, which also explains them.
"""

from __future__ import annotations

from typing import Any, Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from uprmc.core.native.store import GONE_BITS, LARGE, put, u32_at
from uprmc.core.native.table import FRONT_BYTES, RecordTable

#: Flags, expiry, revision and CAS.
EXTRAS_BYTES: Final[i64] = 24

CAS_AHEAD_MAX_S: Final[i64] = 24 * 3600
NANOS: Final[i64] = 1_000_000_000


def accept_version(
    vbucket: Any,
    account: Any,
    table: RecordTable,
    data: bytes,
    extras_at: i64,
    key_length: i64,
    value_end: i64,
    now: i64,
) -> i64:
    """Carry out a set with metadata; return its CAS, or -1 if it must go by the rules.

    Args:
        vbucket: an active vBucket without live locks, whose table is `table`.
        account: the memory account.
        table: records of the vBucket.
        data: has extras, key and value one after the other.
        extras_at: where the extras begin.
        key_length: length of the key.
        value_end: where the value ends.
        now: Unix time.
    """
    rev = read_i64_be(data, extras_at + 8)
    cas = read_i64_be(data, extras_at + 16)
    if rev < 0 or cas <= 0 or cas > (now + CAS_AHEAD_MAX_S) * NANOS:
        return -1
    used: i64 = account.used
    write_limit: i64 = account.write_limit
    if used > write_limit:
        return -1
    key_at = extras_at + EXTRAS_BYTES
    old = table.find(data, key_at, key_length)
    if old is None:
        max_deleted_rev: int = vbucket.max_deleted_rev
        if max_deleted_rev >= LARGE or (max_deleted_rev and rev <= max_deleted_rev):
            return -1
    else:
        if i64(old[1]) & GONE_BITS:
            return -1
        present = read_i64_be(old, 8)
        if present < 0 or rev < present:
            return -1
        if rev == present:
            theirs = read_i64_be(old, FRONT_BYTES + key_length)
            if theirs < 0 or cas <= theirs:
                return -1
    vbucket.know_cas(cas)
    put(
        vbucket,
        account,
        table,
        old,
        data,
        key_at,
        key_length,
        key_at + key_length,
        value_end,
        u32_at(data, extras_at),
        u32_at(data, extras_at + 4),
        cas,
        rev,
    )
    return cas
