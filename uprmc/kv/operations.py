"""What the commands of every dialect do to documents, and what each outcome counts as.

Binary, text and meta commands call these functions and encode what comes back. A command counts
when its outcome is certain: one that waits for a value on disk, or that memory or the disk refuse,
counts as nothing. The loops of both sessions, which do most gets and sets themselves, count in
batches, and come here with whatever was refused.

memcached 1.6.18 is the model, also where a name promises something else: a get that touches is a
touch, ``ms`` knows no CAS when it appends, and only ``me`` counts as a meta command.
"""

from __future__ import annotations

from uprmc.engine.bucket import Bucket
from uprmc.engine.stats import Stats
from uprmc.engine.vbucket import StoreMode, VBucket
from uprmc.errors import CommandError, KeyExists, KeyNotFound, Locked, NotStored
from uprmc.model import Item

#: Outcomes of a store that was carried out; other refusals say that it could not be.
_STORE_OUTCOMES = (KeyExists, KeyNotFound, NotStored, Locked)


def get(bucket: Bucket, vbucket: VBucket, key: bytes) -> Item | None:
    """Return the document with its value, ``None`` on a miss; raises as `VBucket.get`."""
    item = vbucket.get(key)
    count_get(bucket.stats, hit=item is not None)
    return item


def count_get(stats: Stats, *, hit: bool) -> None:
    """Count a key that was looked up."""
    stats.cmd_get += 1
    stats.get_hits += hit
    stats.get_misses += not hit


def touch(bucket: Bucket, vbucket: VBucket, key: bytes, expiry: int, nru: int = 0) -> Item:
    """Give a document another expiry time, for touch and for gets that touch.

    Raises:
        As `VBucket.touch`.
    """
    try:
        item = vbucket.touch(key, expiry, nru)
    except KeyNotFound:
        count_touch(bucket.stats, hit=False)
        raise
    count_touch(bucket.stats, hit=True)
    return item


def count_touch(stats: Stats, *, hit: bool) -> None:
    """Count a key that was to be touched."""
    stats.cmd_touch += 1
    stats.touch_hits += hit
    stats.touch_misses += not hit


def store(
    bucket: Bucket,
    vbucket: VBucket,
    key: bytes,
    value: bytes,
    flags: int,
    expiry: int,
    cas: int = 0,
    datatype: int = 0,
    mode: StoreMode = StoreMode.SET,
) -> Item:
    """Set, add, replace, or with a `cas` compare and swap; raises as `VBucket.store`."""
    stats = bucket.stats
    try:
        item = vbucket.store(key, value, flags, expiry, cas, datatype, mode)
    except CommandError as error:
        count_refused_store(stats, cas, error)
        raise
    stats.cmd_set += 1
    stats.total_items += 1
    stats.cas_hits += cas != 0
    return item


def count_refused_store(stats: Stats, cas: int, error: CommandError) -> None:
    """Count a store that was refused; a lock of another client is another version."""
    if not isinstance(error, _STORE_OUTCOMES):
        return
    stats.cmd_set += 1
    if cas:
        stats.cas_misses += isinstance(error, KeyNotFound)
        stats.cas_badval += isinstance(error, KeyExists | Locked)


def extend(
    bucket: Bucket,
    vbucket: VBucket,
    key: bytes,
    piece: bytes,
    cas: int = 0,
    *,
    front: bool,
    limit_bytes: int,
) -> Item:
    """Append or prepend; raises as `VBucket.extend`."""
    stats = bucket.stats
    try:
        item = vbucket.extend(key, piece, cas, front=front, limit_bytes=limit_bytes)
    except _STORE_OUTCOMES:
        stats.cmd_set += 1
        raise
    stats.cmd_set += 1
    stats.total_items += 1
    return item


def create(bucket: Bucket, vbucket: VBucket, key: bytes, expiry: int) -> Item:
    """Create the empty document that a read has asked for in place of a miss."""
    item = vbucket.store(key, b"", 0, expiry, mode=StoreMode.ADD)
    bucket.stats.total_items += 1
    return item


def add_delta(
    bucket: Bucket,
    vbucket: VBucket,
    key: bytes,
    amount: int,
    cas: int = 0,
    *,
    down: bool,
    initial: int | None = None,
    expiry: int = 0,
    padded: bool,
) -> tuple[int, Item, bool]:
    """Raise or lower a counter by `amount`; see `VBucket.add_delta`.

    Returns:
        The new number, the new version, and whether the counter existed; one that is created
        counts as a new item, and neither as a hit nor as a miss. So does, besides, the new item of
        a number that has become longer.
    """
    stats = bucket.stats
    old = vbucket.find(key)
    existed = old is not None
    try:
        number, item = vbucket.add_delta(
            key, -amount if down else amount, cas, initial=initial, expiry=expiry, padded=padded
        )
    except KeyNotFound:
        stats.decr_misses += down
        stats.incr_misses += not down
        raise
    stats.decr_hits += existed and down
    stats.incr_hits += existed and not down
    stats.total_items += old is None or len(item.value or b"") > len(old.value or b"")
    return number, item, existed


def delete(
    bucket: Bucket, vbucket: VBucket, key: bytes, cas: int = 0, *, meta: bool = False
) -> Item:
    """Delete a document and return its tombstone; raises as `VBucket.delete`.

    Another version than that of `cas` is a miss for a meta command, as in memcached.
    """
    stats = bucket.stats
    try:
        tombstone = vbucket.delete(key, cas)
    except KeyNotFound:
        stats.delete_misses += 1
        raise
    except (KeyExists, Locked):
        stats.delete_misses += meta
        raise
    stats.delete_hits += 1
    return tombstone


def mark_stale(bucket: Bucket, vbucket: VBucket, key: bytes, cas: int, expiry: int | None) -> Item:
    """Store the same document as a new version, which replaces what the old CAS could.

    Args:
        expiry: of the new version; ``None`` = unchanged.

    Raises:
        KeyNotFound, and as `VBucket.store`.
    """
    stats = bucket.stats
    old = vbucket.get(key)
    if old is None:
        stats.delete_misses += 1
        raise KeyNotFound(key)
    assert old.value is not None
    until = vbucket.due(old.expiry, old.seqno) if expiry is None else expiry
    try:
        return vbucket.store(key, old.value, old.flags, until, cas or old.cas, old.datatype)
    except (KeyExists, Locked):
        stats.delete_misses += 1
        raise
