"""A client's conversation in the text protocol: lines and data blocks in, reply lines out.

Job: find the commands in the input, carry out each, collect the replies. A ``get`` of one key and a
plain ``set``, which are nearly all of the traffic, are recognised by one regular expression and
done directly in the loop; everything else goes through the tables of `text_commands` and
`meta_commands`.

Neighbours: `conversation` has buffers and backpressure; `text_retrieval` answers many keys.

Note: a command whose value is only on disk changes nothing and is not consumed; its line (and data
block) stays in the input and is carried out again once the value has been read. A retrieval is the
exception: its line is consumed, and a `Retrieval` remembers its progress.

Source: memcached reference, section 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

from uprmc.core.serving import Serving, text_serving
from uprmc.engine.expiry import absolute_expiry
from uprmc.errors import CommandError, NotResident
from uprmc.kv import meta_commands, text_commands
from uprmc.kv.conversation import Conversation
from uprmc.kv.roles import MANAGEMENT_WORDS, denied_words
from uprmc.kv.services import Services
from uprmc.kv.text_commands import (
    most_value_bytes,
    refusal_line,
    remove,
    storage_refusal,
)
from uprmc.kv.text_crawler import crawl
from uprmc.kv.text_retrieval import COPIED_BYTES, Retrieval
from uprmc.kv.text_statistics import statistics
from uprmc.protocol.text import (
    StorageLine,
    TextSyntaxError,
    parse_flush_all,
    parse_retrieval,
    parse_storage,
    parse_touch_and_get,
    split_words,
)
from uprmc.protocol.text_meta import STORE_MODES, MetaLine, parse_meta
from uprmc.protocol.text_replies import (
    BAD_DATA_CHUNK,
    END,
    ERROR,
    NOT_AUTHORIZED,
    OK,
    STORED,
    TEMPORARY_FAILURE,
    TOO_LARGE,
)
from uprmc.record import (
    READ_PLAIN_FOREVER,
    RECORD_OVERHEAD_BYTES,
    TAIL,
    TAIL_BYTES,
    tail_at,
)

_LINE_END = b"\r\n"
_unpack_tail = TAIL.unpack_from
#: Records that are copied into their reply are not longer than this.
_COPIED_RECORD_BYTES = COPIED_BYTES + RECORD_OVERHEAD_BYTES
_HIT = b"VALUE %b %d %d\r\n%b\r\nEND\r\n"

#: Pages of a retrieval that are answered before other connections have their turn.
_PAGES_A_TURN = 4

#: Spaces that may precede a long ``get``, as in memcached.
_INDENT_MOST = 100

#: Commands for the fast path. Numbers are short enough to be always in range.
_short_way = re.compile(
    rb"get ([^ \r\n]{1,250}+)\r\n"
    rb"|set ([^ \r\n]{1,250}+) ([0-9]{1,9}+) ([0-9]{1,9}+) ([0-9]{1,8}+)( noreply)?\r\n"
).match
_GET_GROUP = 1

#: What the loop carries out by itself, so that it may only run for those who may do both.
_DIRECT = frozenset({b"get", b"set"})
_NOTHING: frozenset[bytes] = frozenset()


class TextSession(Conversation):
    """See the module docstring.

    A text command names no vBucket, so the vBucket is always computed from the key, on any
    listener.
    """

    __slots__ = ("_active", "_bucket", "_denied", "_direct", "_in_line", "_mask", "_retrieval")

    def __init__(self, services: Services, wake: Callable[[], None]) -> None:
        super().__init__(services, wake)
        self._bucket = services.bucket
        self._active = services.bucket.active
        self._mask = services.bucket.settings.engine.vbuckets - 1
        self._in_line = False
        self._retrieval: Retrieval | None = None
        bucket = services.bucket
        door = services.door
        self._denied = denied_words(door.roles) if door is not None else _NOTHING
        self._direct = not self._denied & _DIRECT
        if self._direct:
            self._serving = text_serving(bucket.lookups, bucket.active, bucket.account)

    def connection_lost(self) -> None:
        """Release everything."""
        super().connection_lost()
        self._retrieval = None

    # --- input ----------------------------------------------------------------------------------

    def _receive_slowly(self, data: bytes) -> None:
        if self._in_line and b"\n" in data:
            self._wanted = 1
        super()._receive_slowly(data)

    def _run(self, data: bytes) -> None:
        self._running = True
        self._in_line = False
        position, wanted = 0, 0
        try:
            if self._retrieval is not None:
                self._retrieve(self._retrieval)
            if self._retrieval is None or not self._halted():
                position, wanted = self._carry_out(data)
        finally:
            self._running = False
        self._fetch_failed = False
        self._wanted = wanted
        if position < len(data) and not self.closing:
            self._keep(data[position:] if position else data, wanted)

    def _halted(self) -> bool:
        if self._retrieval is not None and not self.closing:
            self.input_full = True
            return True
        return super()._halted()

    def _serve(
        self, serving: Serving, data: bytes, position: int, out: list[bytes], limit: int
    ) -> int:
        """See `Conversation`."""
        return serving.serve(
            data,
            position,
            out,
            limit,
            self._mask,
            int(self._bucket.clock.now()),
            self._services.most_value_bytes(0),
        )

    def _carry_out(self, data: bytes) -> tuple[int, int]:
        """Carry out commands; return how much was used and how much the next one needs.

        The fast paths are inlined here, because a call for each would cost a fifth more. Everything
        else is done by `_one`.
        """
        active, vbuckets, mask = self._active.get, self._active, self._mask
        lookups = self._bucket.lookups.get
        most = self._services.most_value_bytes(0)
        out = self._out
        unsent, limit = self._unsent, self._max_unsent
        position, size, wanted = 0, len(data), 0
        gets = hits = sets = stored = 0
        serving = self._serving
        while position < size and unsent <= limit:
            if serving is not None and self._bucket.account.unlocked(self._bucket.clock):
                serving.unsent = unsent
                position = self._serve(serving, data, position, out, limit)
                self._count_served(serving)
                unsent = serving.unsent
                if position == size or unsent > limit:
                    break
            match = _short_way(data, position) if self._direct else None
            if match is not None and match.lastindex == _GET_GROUP:
                key = match[1]
                lookup = lookups((crc32(key) >> 16) & mask)
                if lookup is not None:
                    record = lookup(key)
                    if record is None:
                        gets += 1
                        out.append(END)
                        unsent += 5
                        position = match.end()
                        continue
                    if not record.startswith(READ_PLAIN_FOREVER):
                        record = vbuckets[(crc32(key) >> 16) & mask].readable(key, record)
                    if record is not None and len(record) <= _COPIED_RECORD_BYTES:
                        gets += 1
                        hits += 1
                        tail = tail_at(record)
                        _, value_flags = _unpack_tail(record, tail)
                        value = record[tail + TAIL_BYTES :]
                        reply = _HIT % (key, value_flags, len(value), value)
                        out.append(reply)
                        unsent += len(reply)
                        position = match.end()
                        continue
            elif match is not None:
                _, key, flags, exptime, digits, noreply = match.groups()
                start = match.end()
                end = start + int(digits)
                vbucket = active((crc32(key) >> 16) & mask)
                complete = data[end : end + 2] == _LINE_END
                if complete and vbucket is not None and end - start + len(key) <= most:
                    expiry = 0 if exptime == b"0" else self._expiry(int(exptime))
                    sets += 1
                    try:
                        vbucket.store_record(key, data[start:end], int(flags), expiry)
                        stored += 1
                        reply = STORED
                    except CommandError as error:
                        reply = storage_refusal(b"set", error)
                    if noreply is None:
                        out.append(reply)
                        unsent += len(reply)
                    position = end + 2
                    continue
            if gets or sets:
                self._count(gets, hits, sets, stored)
                gets = hits = sets = stored = 0
            self._unsent = unsent
            reached = self._one(data, position)
            unsent = self._unsent
            if reached < 0:
                wanted = -reached
                break
            position = reached
            if self._waiting or self.closing or self._retrieval is not None:
                break
        self._unsent = unsent
        if gets or sets:
            self._count(gets, hits, sets, stored)
        return position, 0 if self._halted() else wanted

    def _count(self, gets: int, hits: int, sets: int, stored: int) -> None:
        stats = self._bucket.stats
        stats.cmd_get += gets
        stats.get_hits += hits
        stats.get_misses += gets - hits
        stats.cmd_set += sets
        stats.total_items += stored

    def _expiry(self, exptime: int) -> int:
        return absolute_expiry(exptime, self._bucket.clock.now())

    # --- one command, the long way ----------------------------------------------------------------

    def _one(self, data: bytes, position: int) -> int:
        """Carry out the command at `position`.

        Returns:
            The position of the next one; `position` itself when this one must be carried out again;
            the negative number of bytes that are needed first when it is not complete.
        """
        end = data.find(b"\n", position)
        if end < 0:
            return -self._line_wanted(data, position)
        words = split_words(data[position:end])
        after = end + 1
        word = words[0] if words else b""
        if word in self._denied:
            return self._deny(words, data, after)
        try:
            if word in MANAGEMENT_WORDS and self._services.door is not None:
                self._services.door.managed(word.decode())
            if word in _BLOCKS:
                parse, act = _BLOCKS[word]
                return self._with_block(parse(words), act, data, position, after)
            if word in text_commands.COMMANDS:
                parse, act = text_commands.COMMANDS[word]
                line = parse(words)
                return self._answer(act, (line,), line.noreply, position, after)
            if word in _ALWAYS_ANSWERED:
                return self._answer(_ALWAYS_ANSWERED[word], (words,), False, position, after)
            own = _OWN.get(word)
            if own is not None:
                own(self, words)
            elif _is_http(words):
                self._close("the peer speaks HTTP")
            else:
                self._send(ERROR)
        except TextSyntaxError as error:
            if error.reply:
                self._send(error.reply)
            return self._swallow(data, after + error.swallow)
        return after

    def _answer(
        self,
        act: Callable[..., bytes],
        arguments: tuple[Any, ...],
        noreply: bool,
        position: int,
        after: int,
    ) -> int:
        """Carry out `act` and send its reply; what is returned is as for `_one`."""
        try:
            reply = act(self._services, *arguments)
        except NotResident as missing:
            if not self._fetch_failed:
                self._fetch(missing)
                return position
            self._fetch_failed = False
            reply = TEMPORARY_FAILURE
        except CommandError as error:
            reply = refusal_line(error)
        if reply and not noreply:
            self._send(reply)
        return after

    def _with_block(
        self,
        line: StorageLine | MetaLine,
        act: Callable[..., bytes],
        data: bytes,
        position: int,
        start: int,
    ) -> int:
        """Carry out a command whose data block begins at `start`."""
        noreply = isinstance(line, StorageLine) and line.noreply
        end = start + line.length
        if line.length > most_value_bytes(self._services, line.key):
            self._bucket.stats.store_too_large += 1
            if _sets(line):
                remove(self._services, line.key)
            if not noreply:
                self._send(TOO_LARGE)
            if line.length > self._services.settings.max_frame_bytes:
                self._close(f"a data block of {line.length} bytes is announced")
            return self._swallow(data, end + 2)
        if len(data) < end + 2:
            return position - (end + 2)
        if not data.startswith(_LINE_END, end):
            if not noreply:
                self._send(BAD_DATA_CHUNK)
            return end + 2
        return self._answer(act, (line, data[start:end]), noreply, position, end + 2)

    def _deny(self, words: list[bytes], data: bytes, after: int) -> int:
        """Refuse a command that the user may not use, together with its data block."""
        door = self._services.door
        assert door is not None
        door.denied(words[0].decode())
        self._send(NOT_AUTHORIZED)
        if words[0] not in _BLOCKS:
            return after
        try:
            length = _BLOCKS[words[0]][0](words).length
        except TextSyntaxError as error:
            return self._swallow(data, after + error.swallow)
        if length > self._services.settings.max_frame_bytes:
            self._close(f"a data block of {length} bytes is announced")
        return self._swallow(data, after + length + 2)

    def _swallow(self, data: bytes, until: int) -> int:
        """Skip to `until`; bytes that have not arrived yet are dropped when they do."""
        self._discard = max(0, until - len(data))
        return min(until, len(data))

    def _line_wanted(self, data: bytes, position: int) -> int:
        """Return the number of bytes at which a line without an end is checked again."""
        held = len(data) - position
        limit = self._services.settings.max_line_bytes
        if held > limit:
            head = data[position : position + _INDENT_MOST + 5].lstrip(b" ")
            limit = self._services.settings.max_retrieval_line_bytes
            if held > limit or not head.startswith((b"get ", b"gets ")):
                self._close("text line too long")
        self._in_line = True
        return limit + 1

    # --- commands that change the conversation ----------------------------------------------------

    def _stats(self, words: list[bytes]) -> None:
        try:
            self._send_made(statistics(self._services, words))
        except CommandError as error:
            self._send(refusal_line(error))

    def _crawl(self, words: list[bytes]) -> None:
        self._send_made(crawl(self._services, words))

    def _send_made(self, reply: bytes | Iterator[bytes]) -> None:
        if isinstance(reply, bytes):
            self._send(reply)
        else:
            self._send_from(reply)

    def _get(self, words: list[bytes]) -> None:
        self._begin(parse_retrieval(words), words[0] == b"gets", None)

    def _gat(self, words: list[bytes]) -> None:
        line = parse_touch_and_get(words)
        self._begin(line.keys, words[0] == b"gats", self._expiry(line.exptime))

    def _begin(self, keys: list[bytes], with_cas: bool, expiry: int | None) -> None:
        self._retrieval = Retrieval(self._bucket, keys, with_cas=with_cas, expiry=expiry)
        self._retrieve(self._retrieval)

    def _retrieve(self, retrieval: Retrieval) -> None:
        """Continue a retrieval until it is done or nothing more may be sent now."""
        turns = 0
        while not retrieval.done:
            if self._waiting or self._unsent > self._max_unsent:
                return
            if turns == _PAGES_A_TURN:
                self._wake()
                return
            turns += 1
            try:
                self._send(*retrieval.answer(self._max_unsent - self._unsent))
            except NotResident:
                if self._fetch_failed:
                    self._fetch_failed = False
                    self._send(TEMPORARY_FAILURE)
                    break
                self._waiting = True
                self._bucket.fetcher.want(retrieval.missing(), self._fetched)
            except CommandError as error:
                self._send(refusal_line(error))
                break
        self._retrieval = None

    def _flush_all(self, words: list[bytes]) -> None:
        line = parse_flush_all(words)
        bucket = self._bucket
        if not bucket.traffic:
            if not line.noreply:
                self._send(TEMPORARY_FAILURE)
            return
        bucket.stats.cmd_flush += 1
        now = bucket.clock.now()
        at = absolute_expiry(line.number, now) if line.number > 0 else now
        if line.noreply:
            bucket.flush(at, _ignore)
            return
        resume = self._suspend()

        def done(ok: bool) -> None:
            if not self._lost:
                self._send(OK if ok else TEMPORARY_FAILURE)
            resume()

        bucket.flush(at, done)

    def _quit(self, words: list[bytes]) -> None:
        self._close()


def _is_http(words: list[bytes]) -> bool:
    """Tell whether an unknown command is a line of HTTP, whose body must not be executed.

    memcached checks the last word; the first words are those for which Redis closes the connection,
    in case a request line passes for a command.
    """
    return bool(words) and (
        words[-1].startswith(b"HTTP/") or words[0].lower() in (b"post", b"host:")
    )


def _ignore(ok: bool) -> None:
    """Ignore the result."""


def _sets(line: StorageLine | MetaLine) -> bool:
    """Tell whether the command replaces any existing document."""
    if isinstance(line, StorageLine):
        return line.command == b"set"
    return STORE_MODES[line.flags.mode or b"S"] == b"set"


_BLOCKS: dict[bytes, tuple[Callable[[list[bytes]], Any], Callable[..., bytes]]] = {
    **dict.fromkeys(
        (b"set", b"add", b"replace", b"append", b"prepend", b"cas"),
        (parse_storage, text_commands.store),
    ),
    b"ms": (parse_meta, meta_commands.store),
}

_ALWAYS_ANSWERED = {**text_commands.ALWAYS_ANSWERED, **meta_commands.COMMANDS}

_OWN: dict[bytes, Callable[[TextSession, list[bytes]], None]] = {
    b"get": TextSession._get,
    b"gets": TextSession._get,
    b"gat": TextSession._gat,
    b"gats": TextSession._gat,
    b"flush_all": TextSession._flush_all,
    b"quit": TextSession._quit,
    b"stats": TextSession._stats,
    b"lru_crawler": TextSession._crawl,
}
