"""SET_WITH_META where it is plain which version wins: compiled only.

The usual case of a restore or of another cluster: the key is not here, or its document has a lower
revision, or an equal one and a lower CAS; where the time decides, the other way about. If both are
higher, or it is the same version from the same origin, the incoming one loses. Whatever could
depend on a tombstone or on another origin goes by the rules of `uprmc.engine.with_meta`, which
also explains them.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from uprmc.core.native.fronts import AccountFront, VBucketFront
from uprmc.core.native.store import GONE_BITS, LARGE, ORIGIN, is_origin, put, u16_at, u32_at
from uprmc.core.native.table import RecordTable, tail_of

#: Flags, expiry, revision and CAS; then the length of extended metadata, if there is any.
EXTRAS_BYTES: Final[i64] = 24
NMETA_EXTRAS_BYTES: Final[i64] = 26

CAS_AHEAD_MAX_S: Final[i64] = 24 * 3600
NANOS: Final[i64] = 1_000_000_000
#: A CAS that is further from the clock is counted.
DRIFT_S: Final[i64] = 5

#: In place of a CAS: another version of the document wins.
LOST: Final[i64] = -2

_ORIGIN_BYTES: Final[i64] = 16


def accept_version(
    vbucket: VBucketFront,
    account: AccountFront,
    table: RecordTable,
    data: bytes,
    extras_at: i64,
    extras: i64,
    key_length: i64,
    value_end: i64,
    now: i64,
    hashed: i64,
) -> i64:
    """Carry out a set with metadata.

    Return its CAS; `LOST` if the document stays; or -1 if it must go by the rules.

    Args:
        vbucket: an active vBucket without live locks, whose table is `table`.
        account: the memory account.
        table: records of the vBucket.
        data: has extras, key and value one after the other.
        extras_at: where the extras begin.
        extras: their length.
        key_length: length of the key.
        value_end: where the value ends.
        now: Unix time.
        hashed: hash of the key.
    """
    rev = read_i64_be(data, extras_at + 8)
    cas = read_i64_be(data, extras_at + 16)
    if rev < 0 or cas <= 0 or cas > (now + CAS_AHEAD_MAX_S) * NANOS:
        return -1
    if account.used > account.write_limit or vbucket.high_seqno >= LARGE:
        return -1
    key_at = extras_at + extras
    if extras != EXTRAS_BYTES:
        meta_end = value_end
        value_end -= u16_at(data, extras_at + EXTRAS_BYTES)
        if value_end < key_at + key_length or not is_origin(data, value_end, meta_end):
            return -1
        origin = data[value_end + 4 : meta_end]
    else:
        origin = b""
    by_timestamp = account.by_timestamp
    old = table.find_hashed(hashed, data, key_at, key_length)
    if old is None:
        max_deleted_rev = vbucket.max_deleted_rev
        if max_deleted_rev >= LARGE:
            return -1
        if max_deleted_rev and (by_timestamp or rev <= max_deleted_rev):
            return -1
    else:
        if i64(old[1]) & GONE_BITS:
            return -1
        present = read_i64_be(old, 8)
        theirs = read_i64_be(old, tail_of(old))
        if present < 0 or theirs < 0:
            return -1
        if by_timestamp:
            if cas < theirs or (cas == theirs and rev < present):
                return LOST
        elif rev < present or (rev == present and cas < theirs):
            return LOST
        if rev == present and cas == theirs:
            return LOST if _is_same(old, data, extras_at, origin) else -1
    vbucket.know_cas(int(cas))
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
        origin,
        hashed,
    )
    return cas


def _is_same(old: bytes, data: bytes, extras_at: i64, origin: bytes) -> bool:
    """Tell whether a version of equal revision and CAS is the document that is here."""
    tail = tail_of(old)
    if u32_at(old, tail + 8) != u32_at(data, extras_at):
        return False
    if u32_at(old, 3) != u32_at(data, extras_at + 4):
        return False
    if not origin:
        return True
    return bool(i64(old[1]) & ORIGIN) and old[tail - _ORIGIN_BYTES : tail] == origin
