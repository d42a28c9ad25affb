"""A ``get`` of many keys: replies are created as the peer reads them.

Job: remember which keys of a retrieval are still unanswered, and answer some of them on request, in
the order of the line. A value that is only on disk raises `NotResident`; `missing` then returns it
and the missing ones among the next keys, so that one round of reading serves them all.

Neighbours: `text_conversation` decides when to go on, and waits for the disk.

Note: keys that are far from their turn are kept as one string, because a list of many short keys
takes ten times the memory of the line.

Source: memcached reference, section 3.4.
"""

from __future__ import annotations

from uprmc.engine.bucket import Bucket
from uprmc.engine.fetcher import Wanted
from uprmc.engine.vbucket import VBucket
from uprmc.errors import CommandError, KeyNotFound
from uprmc.kv import operations
from uprmc.model import Item
from uprmc.protocol.text_replies import END, value_line, value_line_with_cas

#: How many keys are examined ahead of the missing one.
READ_AHEAD_KEYS = 64

#: Keys that are split already; the rest of the line stays one string, of which this many bytes are
#: split at a time.
_PAGE_KEYS = 256
_PAGE_BYTES = 4_096

#: Up to this length a value is copied behind its line; a longer one is a separate piece.
COPIED_BYTES = 4_096


class Retrieval:
    """The progress of one retrieval.

    Args:
        bucket: where the documents are.
        keys: the requested keys, in order; repetitions are answered again.
        with_cas: whether the replies carry CAS values (gets, gats).
        expiry: new expiry of every document (gat, gats), Unix time; ``None`` = unchanged.
        ends: whether these are the last keys, which an END follows.

    Attributes:
        done: whether everything has been answered.
    """

    __slots__ = (
        *("_bucket", "_ends", "_expiry", "_later", "_next", "_page", "_place", "_with_cas"),
        "done",
    )

    def __init__(
        self,
        bucket: Bucket,
        keys: list[bytes],
        *,
        with_cas: bool,
        expiry: int | None,
        ends: bool = True,
    ) -> None:
        self.done = False
        self._ends = ends
        self._bucket = bucket
        self._with_cas = with_cas
        self._expiry = expiry
        self._page = keys
        self._next = 0
        self._later = b""
        self._place = 0
        if len(keys) > _PAGE_KEYS:
            self._page = keys[:_PAGE_KEYS]
            self._later = b" ".join(keys[_PAGE_KEYS:])

    def answer(self, budget: int) -> list[bytes]:
        """Return replies to the next keys, about `budget` bytes and at most one page.

        Raises:
            NotResident: the next key's value is on disk.
            CommandError: it cannot be served; this ends the retrieval.
        """
        if self._next == len(self._page):
            self._turn_page()
        page = self._page
        pieces: list[bytes] = []
        size = 0
        while self._next < len(page) and size <= budget:
            try:
                found = self._read(page[self._next])
            except CommandError:
                if pieces:
                    return pieces  # send these first; the error will occur again
                raise
            self._next += 1
            if found is not None:
                size += _add(pieces, *found)
        if self._next == len(page) and self._place >= len(self._later):
            if self._ends:
                pieces.append(END)
            self.done = True
        return pieces

    def missing(self) -> list[Wanted]:
        """Return the places of values on disk among the next keys."""
        bucket = self._bucket
        wanted: list[Wanted] = []
        for key in self._page[self._next : self._next + READ_AHEAD_KEYS]:
            number = bucket.vbucket_of(key)
            vbucket = bucket.active.get(number)
            item = vbucket.table.find(key) if vbucket else None
            if item is not None and item.value is None and not item.life:
                wanted.append((number, key))
        return wanted

    def _turn_page(self) -> None:
        later, start = self._later, self._place
        end = later.find(b" ", start + _PAGE_BYTES)
        if end < 0:
            end = len(later)
        self._page = later[start:end].split(b" ") if later else []
        self._next = 0
        self._place = end + 1

    def _read(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the line above the data and the data, ``None`` on a miss."""
        bucket = self._bucket
        vbucket = bucket.active.get(bucket.vbucket_of(key)) or bucket.of_key(key)
        if self._expiry is not None:
            item = self._touch(vbucket, key, self._expiry)
        else:
            item = operations.get(bucket, vbucket, key)
        if item is None:
            return None
        value = item.value
        assert value is not None
        if self._with_cas:
            cas = vbucket.visible_cas(item.key, item.cas)
            return value_line_with_cas(key, item.flags, len(value), cas), value
        return value_line(key, item.flags, len(value)), value

    def _touch(self, vbucket: VBucket, key: bytes, expiry: int) -> Item | None:
        try:
            return operations.touch(self._bucket, vbucket, key, expiry)
        except KeyNotFound:
            return None


def _add(pieces: list[bytes], line: bytes, value: bytes) -> int:
    if len(value) <= COPIED_BYTES:
        pieces.append(b"%b%b\r\n" % (line, value))
    else:
        pieces += (line, value, b"\r\n")
    return len(line) + len(value) + 2
