"""Text commands that do not need the conversation: a parsed line in, a reply line out.

Each returns the reply to a client that wants one; omitting it for ``noreply`` is the session's job.
Refusals of the engine are raised; `refusal_line` turns them into text.

Note: the text protocol has no word for a locked document. The storage commands answer ``EXISTS``,
as ep-engine did ("another client's CAS counts"), and the others a server error.

**lru_crawler**: dumps of all keys, as tools list and copy them, and the switches around them. There
is no crawler: documents expire by a timetable, whatever is set here. Documents are in class 1, as
in ``stats``. A dump makes a slice of documents in each turn, and only as fast as its client reads.
Lines end as in memcached: those of ``metadump`` in a bare newline.

**stats**: the node supplies the content of the general groups. Three forms are answered here
because they are commands in disguise: ``reset``, ``detail`` and ``cachedump``. There are no slabs,
so ``cachedump`` finds every document in class 1.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from urllib.parse import quote_from_bytes

from uprmc.config import MIB
from uprmc.engine.memory import absolute_expiry, slices
from uprmc.engine.vbucket import StoreMode, VBucket
from uprmc.errors import (
    AccessDenied,
    CommandError,
    DeltaBadValue,
    DiskRefuses,
    KeyExists,
    KeyNotFound,
    Locked,
    NotMyVBucket,
    NotStored,
    OutOfMemory,
    TemporaryFailure,
    TooLarge,
)
from uprmc.kv import operations
from uprmc.kv.roles import require, require_statistics
from uprmc.kv.services import ITEM_HEADER_BYTES, Crawler, Services, StatRows
from uprmc.login.users import Role
from uprmc.model import CAS_LOCKED, Item
from uprmc.protocol.text import (
    ArithmeticLine,
    DeleteLine,
    NumberLine,
    StorageLine,
    TextSyntaxError,
    TouchLine,
    parse_arithmetic,
    parse_cache_memlimit,
    parse_delete,
    parse_flags,
    parse_touch,
    parse_verbosity,
)
from uprmc.protocol.text_replies import (
    BAD_CLASS,
    BAD_LINE,
    BAD_LINE_FORMAT,
    CRAWLER_BUSY,
    CRAWLER_DISABLED,
    CRAWLER_STARTED,
    DELETED,
    END,
    ERROR,
    EXISTS,
    META_MISS,
    NOT_A_NUMBER,
    NOT_FOUND,
    NOT_STORED,
    OK,
    OUT_OF_MEMORY,
    RESET,
    SHUTDOWN_NOT_ENABLED,
    SLEEP_TOO_LONG,
    STATS_DETAIL_USAGE,
    STORED,
    TEMPORARY_FAILURE,
    TOO_LARGE,
    TOUCHED,
    not_authorized,
    number_line,
    stat_line,
    version_line,
)
from uprmc.record import unpack

# --- a line in, a line out ----------------------------------------------------------------------


NOT_MY_VBUCKET = b"SERVER_ERROR not my vbucket\r\n"
LOCKED = b"SERVER_ERROR locked\r\n"

_VERBOSITY_MOST = 2

_LINES: dict[type[CommandError], bytes] = {
    KeyNotFound: NOT_FOUND,
    KeyExists: EXISTS,
    NotStored: NOT_STORED,
    TooLarge: TOO_LARGE,
    DeltaBadValue: NOT_A_NUMBER,
    Locked: LOCKED,
    NotMyVBucket: NOT_MY_VBUCKET,
    TemporaryFailure: TEMPORARY_FAILURE,
    DiskRefuses: TEMPORARY_FAILURE,
    OutOfMemory: OUT_OF_MEMORY,
}


# --- refusals -----------------------------------------------------------------------------------


def refusal_line(error: CommandError) -> bytes:
    """Return the line that answers `error`."""
    if isinstance(error, TextSyntaxError):
        return error.reply
    if isinstance(error, AccessDenied):
        return not_authorized(str(error))
    return _LINES.get(type(error), BAD_LINE_FORMAT)


def storage_refusal(command: bytes, error: CommandError) -> bytes:
    """Return the line that answers `error` of a storage command."""
    if (command == b"add" and isinstance(error, KeyExists)) or (
        command == b"replace" and isinstance(error, KeyNotFound)
    ):
        return NOT_STORED
    return EXISTS if isinstance(error, Locked) else refusal_line(error)


def most_value_bytes(services: Services, key: bytes) -> int:
    """Return how long a value of `key` may be under the item limit."""
    return services.most_value_bytes(len(key))


def remove(services: Services, key: bytes) -> None:
    """Delete what a set could not replace, so that the old value is not taken for the new one."""
    try:
        services.bucket.of_key(key).delete(key)
    except CommandError:
        return


# --- storage ------------------------------------------------------------------------------------


def compared_cas(cas: int) -> int:
    """Return a CAS to compare with, for the engine, where 0 means "do not compare".

    A client's 0 matches no document, and neither does `CAS_LOCKED`.
    """
    return cas or CAS_LOCKED


def store(services: Services, line: StorageLine, value: bytes) -> bytes:
    """Carry out one of the six storage commands."""
    bucket, key = services.bucket, line.key
    try:
        vbucket = bucket.of_key(key)
        if line.command in _MODES:
            expiry = absolute_expiry(line.exptime, bucket.steady.now())
            cas = compared_cas(line.cas) if line.command == b"cas" else 0
            mode = _MODES[line.command]
            operations.store(bucket, vbucket, key, value, line.flags, expiry, cas, mode=mode)
        else:
            most, front = most_value_bytes(services, key), line.command == b"prepend"
            operations.extend(bucket, vbucket, key, value, front=front, limit_bytes=most)
    except (KeyExists, KeyNotFound, NotStored, Locked) as error:
        return storage_refusal(line.command, error)
    return STORED


_MODES = {
    b"set": StoreMode.SET,
    b"cas": StoreMode.SET,
    b"add": StoreMode.ADD,
    b"replace": StoreMode.REPLACE,
}


# --- single keys --------------------------------------------------------------------------------


def delete(services: Services, line: DeleteLine) -> bytes:
    """Delete a document."""
    bucket = services.bucket
    operations.delete(bucket, bucket.of_key(line.key), line.key)
    return DELETED


def incr(services: Services, line: ArithmeticLine) -> bytes:
    """Raise a counter; it wraps at 2**64 and is never created."""
    return _shift(services, line, down=False)


def decr(services: Services, line: ArithmeticLine) -> bytes:
    """Lower a counter; it stops at 0 and is never created."""
    return _shift(services, line, down=True)


def _shift(services: Services, line: ArithmeticLine, *, down: bool) -> bytes:
    if not line.noreply:
        require(services.door, Role.READ, "decr" if down else "incr")
    bucket, padded = services.bucket, services.pads_counters
    vbucket = bucket.of_key(line.key)
    number, _, _ = operations.add_delta(
        bucket, vbucket, line.key, line.delta, down=down, padded=padded
    )
    return number_line(number)


def touch(services: Services, line: TouchLine) -> bytes:
    """Give a document a new expiry time."""
    bucket = services.bucket
    expiry = absolute_expiry(line.exptime, bucket.steady.now())
    operations.touch(bucket, bucket.of_key(line.key), line.key, expiry)
    return TOUCHED


# --- administration -----------------------------------------------------------------------------


def verbosity(services: Services, line: NumberLine) -> bytes:
    """Set how much is logged; above 2 there is no more."""
    services.set_verbosity(min(line.number, _VERBOSITY_MOST))
    return OK


def cache_memlimit(services: Services, line: NumberLine) -> bytes:
    """Change the memory quota until the next start; the marks keep their shares of it."""
    bucket = services.bucket
    bucket.account.set_quota(line.number * MIB, bucket.settings.memory)
    return OK


def version(services: Services, words: list[bytes]) -> bytes:
    """Return the version, whatever follows the word."""
    return version_line(services.version)


def shutdown(services: Services, words: list[bytes]) -> bytes:
    """Refuse: stop the process with a signal."""
    return SHUTDOWN_NOT_ENABLED


# --- tables -------------------------------------------------------------------------------------

Parse = Callable[[list[bytes]], Any]
Act = Callable[[Services, Any], bytes]
Handler = Callable[[Services, list[bytes]], bytes]

#: First word -> parser and command; the parsed line has ``noreply``.
COMMANDS: dict[bytes, tuple[Parse, Act]] = {
    b"delete": (parse_delete, delete),
    b"incr": (parse_arithmetic, incr),
    b"decr": (parse_arithmetic, decr),
    b"touch": (parse_touch, touch),
    b"verbosity": (parse_verbosity, verbosity),
    b"cache_memlimit": (parse_cache_memlimit, cache_memlimit),
}

#: First word -> command that always answers and reads the words itself.
ALWAYS_ANSWERED: dict[bytes, Handler] = {
    b"version": version,
    b"shutdown": shutdown,
}


# --- lru_crawler --------------------------------------------------------------------------------


#: Dumps that may run at the same time. A client that stops reading keeps its dump for as long as
#: its connection lasts, and no peer should wait for that.
DUMPS_MOST = 64

#: Documents listed before others have their turn: below a millisecond.
_LISTED_AT_ONCE = 250

_needs_base64 = re.compile(rb"[\x00-\x20\x7f]").search

Line = Callable[[VBucket, Item], bytes]


def crawl(services: Services, words: list[bytes]) -> bytes | Iterator[bytes]:
    """Answer any form of ``lru_crawler``."""
    dumps = len(words) > 1 and words[1] in _DUMPS
    require(services.door, Role.READ if dumps else Role.MANAGE, _named(words))
    if len(words) == 2 and words[1] in _SWITCHES:
        return _switch(services.control.crawler, _SWITCHES[words[1]])
    if len(words) != 3:
        return ERROR
    if words[1] in _NUMBERS:
        return _set_number(services.control.crawler, *_NUMBERS[words[1]], parse_flags(words[2]))
    if words[1] not in _DUMPS and words[1] != b"crawl":
        return ERROR
    if not services.control.crawler.enabled:
        return CRAWLER_DISABLED
    wanted = _wants_documents(words[2])
    if wanted is None:
        return BAD_CLASS
    if words[1] == b"crawl":
        services.control.crawler.expire_now()
        return OK
    line, end = _DUMPS[words[1]]
    if not wanted:
        return end
    return _dump(services, line, end)


def _named(words: list[bytes]) -> str:
    known = words[1:] and (words[1] in {*_DUMPS, *_SWITCHES, *_NUMBERS} or words[1] == b"crawl")
    return f"lru_crawler {words[1].decode()}" if known else "lru_crawler"


def _switch(crawler: Crawler, enabled: bool) -> bytes:
    if enabled and crawler.enabled:
        return CRAWLER_STARTED  # as memcached, whose thread is there already
    crawler.enabled = enabled
    return OK


def _set_number(crawler: Crawler, name: str, most: int, number: int | None) -> bytes:
    if number is None:
        return BAD_LINE_FORMAT
    if number > most:
        return SLEEP_TOO_LONG
    setattr(crawler, name, number)
    return OK


def _wants_documents(classes: bytes) -> bool | None:
    """Tell whether class 1 is among those named; ``None`` = one of them is not a class."""
    if classes in (b"all", b"hash"):
        return True
    numbers = [parse_flags(word) for word in classes.split(b",")]
    if any(number is None or not 0 < number < SLAB_CLASSES for number in numbers):
        return None
    return THE_SLAB_CLASS in numbers


def _dump(services: Services, line: Line, end: bytes) -> Iterator[bytes]:
    """Yield the lines of a slice in one piece, then nothing to let others have their turn."""
    crawler = services.control.crawler
    if crawler.dumps >= DUMPS_MOST:
        yield CRAWLER_BUSY
        return
    crawler.dumps += 1
    try:
        for group in slices(list(services.bucket.active.values()), _LISTED_AT_ONCE):
            yield b"".join(
                line(vbucket, item)
                for vbucket, records in group
                for item in map(unpack, records)
                if vbucket.is_live(item)
            )
            yield b""
        yield end
    finally:
        crawler.dumps -= 1


def _metadata(vbucket: VBucket, item: Item) -> bytes:
    """Show what is known, without the last access and the length of a value on disk."""
    return b"key=%b exp=%d la=0 cas=%d fetch=%b cls=%d size=%d\n" % (
        quote_from_bytes(item.key, safe="").encode(),
        vbucket.due(item.expiry, item.seqno) or -1,
        vbucket.visible_cas(item.key, item.cas),
        b"no" if item.nru else b"yes",
        THE_SLAB_CLASS,
        len(item.key) + len(item.value or b"") + ITEM_HEADER_BYTES,
    )


def _meta_get(vbucket: VBucket, item: Item) -> bytes:
    """Show the meta command that reads the document."""
    if _needs_base64(item.key):
        return b"mg %b b\r\n" % base64.b64encode(item.key)
    return b"mg %b\r\n" % item.key


_DUMPS: dict[bytes, tuple[Line, bytes]] = {
    b"metadump": (_metadata, END),
    b"mgdump": (_meta_get, META_MISS),
}

_SWITCHES = {b"enable": True, b"disable": False}

#: Word -> attribute of `Crawler`, and the most that it may be.
_NUMBERS: dict[bytes, tuple[str, int]] = {
    b"sleep": ("sleep_us", 1_000_000),
    b"tocrawl": ("to_crawl", (1 << 32) - 1),
}


# --- stats --------------------------------------------------------------------------------------


#: Most items that ``stats cachedump`` shows; memcached stops at 2 MB of text.
CACHEDUMP_MOST = 10_000

ILLEGAL_SLAB = b"CLIENT_ERROR Illegal slab id\r\n"

#: memcached has classes below this one; here every document is in the first.
SLAB_CLASSES = 64
THE_SLAB_CLASS = 1


def statistics(services: Services, words: list[bytes]) -> bytes | Iterator[bytes]:
    """Answer any form of ``stats``; a group is created while it is being sent."""
    own = _OWN_STATISTICS.get(words[1]) if len(words) > 1 else None
    if own is not None:
        return own(services, words)
    name = b" ".join(words[1:]).decode("latin-1")
    require_statistics(services.door, name)
    group = services.stats(name)
    if group is None:
        return ERROR
    return _lines(group)


def _lines(group: StatRows) -> Iterator[bytes]:
    for row in group:
        yield stat_line(row[0].encode(), row[1].encode()) if row is not None else b""
    yield END


def _reset(services: Services, words: list[bytes]) -> bytes:
    require(services.door, Role.MANAGE, "stats reset")
    services.reset_stats()
    return RESET


def _detail(services: Services, words: list[bytes]) -> bytes:
    """Accept the switch; commands are not counted by key prefix, so the dump is empty."""
    switch = words[2] if len(words) > 2 else b""
    return {b"on": OK, b"off": OK, b"dump": END}.get(switch, STATS_DETAIL_USAGE)


def _sizes_tracked(services: Services, words: list[bytes]) -> bytes:
    """Say that ``stats sizes`` works, whatever was asked for: it costs nothing until it is used."""
    return stat_line(b"sizes_status", b"enabled")


def _cachedump(services: Services, words: list[bytes]) -> bytes:
    require(services.door, Role.READ, "stats cachedump")
    if len(words) < 4:
        return BAD_LINE
    number, limit = parse_flags(words[2]), parse_flags(words[3])
    if number is None or limit is None:
        return BAD_LINE_FORMAT
    if number >= SLAB_CLASSES:
        return ILLEGAL_SLAB
    most = min(limit or CACHEDUMP_MOST, CACHEDUMP_MOST) if number == THE_SLAB_CLASS else 0
    lines = [
        b"ITEM %b [%d b; %d s]\r\n"
        % (item.key, len(item.value or b""), vbucket.due(item.expiry, item.seqno))
        for vbucket, item in islice(_listed_items(services), most)
    ]
    return b"".join(lines) + END


def _listed_items(services: Services) -> Iterator[tuple[VBucket, Item]]:
    """Yield documents that a line can show; the length of a value on disk is not known (0)."""
    for vbucket in services.bucket.active.values():
        for item in vbucket.table.versions():
            if vbucket.is_live(item) and b"\n" not in item.key:
                yield vbucket, item


_OWN_STATISTICS: dict[bytes, Callable[[Services, list[bytes]], bytes]] = {
    b"reset": _reset,
    b"detail": _detail,
    b"cachedump": _cachedump,
    b"sizes_enable": _sizes_tracked,
    b"sizes_disable": _sizes_tracked,
}
