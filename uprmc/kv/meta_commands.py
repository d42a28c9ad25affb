"""Meta commands: ``mn mg ms md ma me``, each a function from a line to its reply.

Where memcached 1.6.18 and its manual differ, these commands do what 1.6.18 does (measured), with
these exceptions:

* ``l`` and ``la=`` (seconds since the last access) return -1, "not known": the time of a read is
  not kept, so that reads stay cheap.
* ``h`` and ``fetch=`` (read since it was written) are taken from the evictor's "recently used"
  mark: 1 is certain, 0 may also mean that the read was long ago.
* A key that was sent in base64 is returned in base64; whether the document was *stored* that way is
  not recorded.
* An ``ms`` that is too large removes the old document only in the mode that replaces it.
* ``T`` and ``N`` take effect before the other flags, at any position; if both are present, the
  later one is the expiry time of a new document.
* The marks (stale, won) are gone when the document changes in any way; see `engine.bucket`.

Refusals of the engine that have no meta reply of their own are raised.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.engine.bucket import STALE, WON, Bucket
from uprmc.engine.memory import absolute_expiry
from uprmc.engine.vbucket import StoreMode, VBucket
from uprmc.errors import CommandError, KeyExists, KeyNotFound, Locked, NotResident, NotStored
from uprmc.kv import operations
from uprmc.kv.roles import require
from uprmc.kv.services import ITEM_HEADER_BYTES, Services
from uprmc.kv.text_commands import compared_cas, most_value_bytes
from uprmc.login.users import Role
from uprmc.model import Item
from uprmc.protocol.text_meta import ARITHMETIC_MODES, STORE_MODES, MetaFlags, MetaLine, parse_meta
from uprmc.protocol.text_replies import BAD_LINE_FORMAT, META_MISS, META_NOOP

#: By command: the flags that its reply may contain.
_GET_RETURNS = b"fcstkhlO"
_STORE_RETURNS = b"kOc"
_DELETE_RETURNS = b"kO"
_ARITHMETIC_RETURNS = b"tckO"
_ALWAYS_RETURNS = b"kO"

_NOT_KNOWN = -1


# --- replies ------------------------------------------------------------------------------------


def _reply(status: bytes, tokens: list[bytes]) -> bytes:
    return b" ".join([status, *tokens]) + b"\r\n"


def _with_data(tokens: list[bytes], data: bytes) -> bytes:
    return _reply(b"VA %d" % len(data), tokens) + data + b"\r\n"


def _echoes(line: MetaLine, letters: bytes = _ALWAYS_RETURNS) -> list[bytes]:
    """Return the flags of a reply without a document."""
    tokens: list[bytes] = []
    for wanted in line.flags.returns:
        if wanted[0] in letters:
            tokens += _echo(line, wanted)
    return tokens


def _echo(line: MetaLine, wanted: bytes) -> list[bytes]:
    if wanted == b"k":
        key = b"k" + line.sent_key
        return [key, b"b"] if line.flags.base64_key else [key]
    return [b"c0"] if wanted == b"c" else [wanted]


def _tokens(
    line: MetaLine,
    letters: bytes,
    bucket: Bucket,
    vbucket: VBucket,
    item: Item,
    was_read: bool = False,
) -> list[bytes]:
    """Return the flags of a reply about `item`, in the order of the request."""
    tokens: list[bytes] = []
    for wanted in line.flags.returns:
        if wanted[0] not in letters:
            continue
        if wanted[:1] in (b"k", b"O"):
            tokens += _echo(line, wanted)
        elif wanted == b"c":
            tokens.append(b"c%d" % vbucket.visible_cas(item.key, item.cas))
        elif wanted == b"h":
            tokens.append(b"h%d" % was_read)
        else:
            number = (
                _seconds_left(vbucket, item, bucket.steady.now())
                if wanted == b"t"
                else _NUMBERS[wanted](item)
            )
            tokens.append(wanted + b"%d" % number)
    return tokens


def _seconds_left(vbucket: VBucket, item: Item, now: float) -> int:
    return max(0, vbucket.due(item.expiry, item.seqno) - int(now)) if item.expiry else -1


_NUMBERS: dict[bytes, Callable[[Item], int]] = {
    b"f": lambda item: item.flags,
    b"s": lambda item: len(item.value or b""),
    b"l": lambda item: _NOT_KNOWN,
}


# --- mn, me -------------------------------------------------------------------------------------


def noop(services: Services, words: list[bytes]) -> bytes:
    """Answer; everything sent before has been answered by then."""
    return META_NOOP


def debug(services: Services, words: list[bytes]) -> bytes:
    """Show an item for people, without counting as a use of it."""
    if len(words) < 2:
        return BAD_LINE_FORMAT
    line = parse_meta(words)
    bucket = services.bucket
    bucket.stats.cmd_meta += 1
    vbucket = bucket.of_key(line.key)
    item = vbucket.find(line.key)
    if item is None:
        return META_MISS
    if item.value is None:
        raise NotResident(vbucket.id, (line.key,))
    return b"ME %b exp=%d la=%d cas=%d fetch=%b cls=1 size=%d\r\n" % (
        line.sent_key,
        _seconds_left(vbucket, item, bucket.steady.now()),
        _NOT_KNOWN,
        vbucket.visible_cas(item.key, item.cas),
        b"no" if item.nru else b"yes",
        len(item.key) + len(item.value) + ITEM_HEADER_BYTES,
    )


# --- mg -----------------------------------------------------------------------------------------


def get(services: Services, words: list[bytes]) -> bytes:
    """Carry out ``mg``: read, touch, create on a miss, grant the right to recompute."""
    line = parse_meta(words)
    flags = line.flags
    if not (flags.ttl is None and flags.vivify_ttl is None and flags.recache_ttl is None):
        require(services.door, Role.WRITE, "mg")
    may_win = services.door is None or Role.WRITE in (services.door.roles or ())
    bucket = services.bucket
    vbucket = bucket.of_key(line.key)
    item = vbucket.find(line.key)
    was_read = item is not None and not item.nru
    if item is not None:
        item = _looked_at(bucket, vbucket, item, flags)
        verdict = _verdict(bucket, vbucket, item, flags, may_win=may_win)
    elif flags.vivify_ttl is None:
        operations.count_get(bucket.stats, hit=False)
        return b"" if flags.quiet else _reply(b"EN", _echoes(line))
    else:
        item = operations.create(bucket, vbucket, line.key, _expiry(bucket, flags.vivify_ttl))
        bucket.marks.put(item, WON)  # who has asked may fill it
        verdict = [b"W"]
        count = operations.count_get if flags.ttl is None else operations.count_touch
        count(bucket.stats, hit=True)
    tokens = _tokens(line, _GET_RETURNS, bucket, vbucket, item, was_read) + verdict
    if not flags.wants_value:
        return _reply(b"HD", tokens)
    assert item.value is not None
    return _with_data(tokens, item.value)


def _looked_at(bucket: Bucket, vbucket: VBucket, item: Item, flags: MetaFlags) -> Item:
    """Return the item after it was read, touched if requested, with its value if needed."""
    if item.value is None and (flags.wants_value or b"s" in flags.returns):
        raise NotResident(vbucket.id, (item.key,))
    if flags.ttl is not None:
        item = operations.touch(bucket, vbucket, item.key, _expiry(bucket, flags.ttl), item.nru)
    else:
        operations.count_get(bucket.stats, hit=True)
    if not flags.no_update:
        vbucket.note_read(item.key)
    return item


def _verdict(
    bucket: Bucket, vbucket: VBucket, item: Item, flags: MetaFlags, *, may_win: bool
) -> list[bytes]:
    """Return whether the item is stale and who recomputes it; at most one client gets ``W``.

    That is one who may store what it recomputes.
    """
    marks = bucket.marks.of(item)
    ends_soon = (
        flags.recache_ttl is not None
        and item.expiry != 0
        and vbucket.due(item.expiry, item.seqno) < _expiry(bucket, flags.recache_ttl)
    )
    verdict: list[bytes] = []
    if marks & WON:
        verdict.append(b"Z")
    if marks & STALE:
        verdict.append(b"X")
    if may_win and not marks & WON and (ends_soon or marks & STALE):
        verdict.append(b"W")
        bucket.marks.put(item, marks | WON)
    return verdict


# --- ms -----------------------------------------------------------------------------------------


def store(services: Services, line: MetaLine, value: bytes) -> bytes:
    """Carry out ``ms``; its data block has arrived and has the announced length."""
    flags = line.flags
    bucket = services.bucket
    mode = STORE_MODES[flags.mode or b"S"]
    vbucket = bucket.of_key(line.key)
    try:
        if mode in (b"append", b"prepend"):
            item = _extend(services, vbucket, line, value, front=mode == b"prepend")
        else:
            item = _put(bucket, vbucket, line, value, _STORE_MODES[mode])
    except (KeyExists, KeyNotFound, NotStored, Locked) as error:
        return _reply(_store_refusal(error, mode, flags), _echoes(line, _STORE_RETURNS))
    return b"" if flags.quiet else _done(line, _STORE_RETURNS, bucket, vbucket, item)


_STORE_MODES = {b"set": StoreMode.SET, b"add": StoreMode.ADD, b"replace": StoreMode.REPLACE}


def _extend(
    services: Services, vbucket: VBucket, line: MetaLine, value: bytes, *, front: bool
) -> Item:
    most = most_value_bytes(services, line.key)
    cas = line.flags.cas or 0
    bucket = services.bucket
    return operations.extend(bucket, vbucket, line.key, value, cas, front=front, limit_bytes=most)


def _put(bucket: Bucket, vbucket: VBucket, line: MetaLine, value: bytes, mode: StoreMode) -> Item:
    """Store, and mark the document as stale if it is based on an older version (``I``).

    A stale document keeps the time at which the one before it expires.
    """
    flags = line.flags
    expiry = _expiry(bucket, flags.ttl or 0)
    cas = 0 if mode == StoreMode.ADD else _cas(flags)
    marks = 0
    if flags.invalidate and cas:
        old = vbucket.find(line.key)
        if old is not None and cas < old.cas:
            marks = STALE | (bucket.marks.of(old) & WON)
            cas = old.cas
            expiry = vbucket.due(old.expiry, old.seqno)
    item = operations.store(
        bucket, vbucket, line.key, value, flags.client_flags, expiry, cas, mode=mode
    )
    bucket.marks.put(item, marks)
    return item


def _store_refusal(error: CommandError, mode: bytes, flags: MetaFlags) -> bytes:
    if isinstance(error, KeyNotFound):
        return b"NS" if flags.cas is None else b"NF"
    if isinstance(error, NotStored) or (isinstance(error, KeyExists) and mode == b"add"):
        return b"NS"
    return b"EX"


# --- md -----------------------------------------------------------------------------------------


def delete(services: Services, words: list[bytes]) -> bytes:
    """Carry out ``md``: delete, or with ``I`` mark as stale under a new CAS."""
    line = parse_meta(words)
    flags = line.flags
    bucket = services.bucket
    vbucket = bucket.of_key(line.key)
    try:
        if flags.invalidate:
            expiry = None if flags.ttl is None else _expiry(bucket, flags.ttl)
            item = operations.mark_stale(bucket, vbucket, line.key, _cas(flags), expiry)
            bucket.marks.put(item, STALE)
        else:
            operations.delete(bucket, vbucket, line.key, _cas(flags), meta=True)
    except KeyNotFound:
        status = b"NF"
    except (KeyExists, Locked):
        status = b"EX"
    else:
        status = b"HD"
    if status == b"HD" and flags.quiet:
        return b""
    return _reply(status, _echoes(line, _DELETE_RETURNS))


# --- ma -----------------------------------------------------------------------------------------


def arithmetic(services: Services, words: list[bytes]) -> bytes:
    """Carry out ``ma``: count; with ``N`` create the counter, which is answered even if quiet."""
    line = parse_meta(words)
    flags = line.flags
    if flags.wants_value:
        require(services.door, Role.READ, "ma")
    bucket = services.bucket
    vbucket = bucket.of_key(line.key)
    down = ARITHMETIC_MODES[flags.mode or b"I"] == b"decr"
    try:
        number, item, existed = operations.add_delta(
            bucket,
            vbucket,
            line.key,
            flags.delta,
            flags.cas or 0,
            down=down,
            initial=None if flags.vivify_ttl is None else flags.initial,
            expiry=_expiry(bucket, flags.vivify_ttl or 0),
            padded=services.pads_counters,
        )
    except (KeyNotFound, KeyExists, Locked) as error:
        return _reply(b"NF" if isinstance(error, KeyNotFound) else b"EX", _echoes(line))
    if existed and flags.ttl is not None:
        item = vbucket.touch(line.key, _expiry(bucket, flags.ttl))
    if flags.quiet and existed:
        return b""
    if not flags.wants_value:
        return _done(line, _ARITHMETIC_RETURNS, bucket, vbucket, item)
    tokens = _tokens(line, _ARITHMETIC_RETURNS, bucket, vbucket, item)
    return _with_data(tokens, b"%d" % number)


# --- shared -------------------------------------------------------------------------------------


def _done(line: MetaLine, letters: bytes, bucket: Bucket, vbucket: VBucket, item: Item) -> bytes:
    return _reply(b"HD", _tokens(line, letters, bucket, vbucket, item))


def _expiry(bucket: Bucket, ttl: int) -> int:
    return absolute_expiry(ttl, bucket.steady.now())


def _cas(flags: MetaFlags) -> int:
    """Return the CAS to compare with in the engine's form, 0 for none.

    ``C0`` matches nothing here; for append, prepend and arithmetic it does not compare (measured).
    """
    return 0 if flags.cas is None else compared_cas(flags.cas)


#: First word -> command; ``ms`` has a data block and is called by the session with it.
COMMANDS: dict[bytes, Callable[[Services, list[bytes]], bytes]] = {
    b"mn": noop,
    b"me": debug,
    b"mg": get,
    b"md": delete,
    b"ma": arithmetic,
}
