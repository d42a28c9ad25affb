"""``stats`` in all its forms; the node supplies the content of the general groups.

Three forms are answered here because they are commands in disguise: ``reset``, ``detail`` and
``cachedump``. There are no slabs, so ``cachedump`` finds every document in class 1.

Source: memcached reference, section 3.6, and measurements of 1.6.18.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from uprmc.engine.vbucket import VBucket
from uprmc.kv.door import require, require_statistics
from uprmc.kv.services import Services, StatRows
from uprmc.login.users import Role
from uprmc.model import Item
from uprmc.protocol.text import parse_flags
from uprmc.protocol.text_replies import (
    BAD_LINE,
    BAD_LINE_FORMAT,
    END,
    ERROR,
    OK,
    RESET,
    STATS_DETAIL_USAGE,
    stat_line,
)

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
