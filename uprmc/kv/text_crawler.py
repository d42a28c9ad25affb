"""``lru_crawler``: dumps of all keys, as tools list and copy them, and the switches around them.

There is no crawler: documents expire by a timetable, whatever is set here. Documents are in class
1, as in ``stats``. A dump makes a slice of documents in each turn, and only as fast as its client
reads. Lines end as in memcached: those of ``metadump`` in a bare newline.

Source: measurements of 1.6.18; ``mgdump``, which that version lacks, from memcached's protocol.txt.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote_from_bytes

from uprmc.engine.memory import slices
from uprmc.engine.vbucket import VBucket
from uprmc.kv.control import Crawler
from uprmc.kv.door import require
from uprmc.kv.services import ITEM_HEADER_BYTES, Services
from uprmc.kv.text_statistics import SLAB_CLASSES, THE_SLAB_CLASS
from uprmc.login.users import Role
from uprmc.model import Item
from uprmc.protocol.text import parse_flags
from uprmc.protocol.text_replies import (
    BAD_CLASS,
    BAD_LINE_FORMAT,
    CRAWLER_BUSY,
    CRAWLER_DISABLED,
    CRAWLER_STARTED,
    END,
    ERROR,
    META_MISS,
    OK,
    SLEEP_TOO_LONG,
)
from uprmc.record import unpack

#: Dumps that may run at the same time. A client that stops reading keeps its dump for as long as
#: its connection lasts, and nobody should wait for that.
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
