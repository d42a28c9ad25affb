"""A client's conversation in the text protocol: lines and data blocks in, reply lines out.

A ``get`` of one key and a plain ``set``, which are nearly all of the traffic, are recognised by one
regular expression and done directly in the loop. Everything else is cut out of the input, checked,
and carried out by the tables of `text_commands` and `meta_commands`; commands that change the
conversation itself (retrievals, ``flush_all``, statistics, ``quit``) are here.

A command whose value is only on disk changes nothing and is not consumed; its line (and data block)
stays in the input and is carried out again once the value has been read. A retrieval is the
exception: its line is consumed, and a `Retrieval` remembers which of its keys are still unanswered.
It answers some of them on request, in the order of the line, as the peer reads them. A value that
is only on disk raises `NotResident`; `missing` then returns it and the missing ones among the next
keys, so that one round of reading serves them all. Keys that are far from their turn are kept as
one string, because a list of many short keys takes ten times the memory of the line.

A text conversation before its login, which is a ``set`` whose data are name and password.

    set any 0 0 16
    alice her secret
    STORED

Key, flags and expiry time may be anything, and are ignored. Everything else is refused until then,
except ``version`` and ``quit``. As with SASL PLAIN, no one may be able to listen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import Any
from zlib import crc32

from uprmc.core.serving import Serving, text_serving
from uprmc.engine.bucket import Bucket
from uprmc.engine.fetcher import Wanted
from uprmc.engine.memory import absolute_expiry
from uprmc.engine.vbucket import VBucket
from uprmc.errors import CommandError, ConfigError, KeyNotFound, NotResident
from uprmc.kv import meta_commands, operations, text_commands
from uprmc.kv.conversation import Conversation
from uprmc.kv.operations import count_refused_store
from uprmc.kv.roles import (
    MANAGEMENT_WORDS,
    STRANGER_MAX_BYTES,
    Door,
    denied_words,
    needs,
    needs_both_for_word,
    role_of_word,
)
from uprmc.kv.services import Services
from uprmc.kv.text_commands import (
    crawl,
    most_value_bytes,
    refusal_line,
    remove,
    statistics,
    storage_refusal,
)
from uprmc.login.credentials import Credentials
from uprmc.model import Item
from uprmc.protocol.opcodes import KEY_MAX_BYTES
from uprmc.protocol.text import (
    StorageLine,
    TextSyntaxError,
    check_keys,
    parse_flush_all,
    parse_login,
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
    NOT_AUTHENTICATED,
    NOT_IN_CLEAR,
    OK,
    STORED,
    TEMPORARY_FAILURE,
    TOO_LARGE,
    WRONG_PASSWORD,
    not_authorized,
    value_line,
    value_line_with_cas,
    version_line,
)
from uprmc.record import READ_PLAIN_FOREVER, RECORD_OVERHEAD_BYTES, TAIL, TAIL_BYTES, tail_at

# --- a get of many keys -------------------------------------------------------------------------


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
        self.done = False  # whether everything has been answered
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


# --- a conversation -----------------------------------------------------------------------------


LINE_END = b"\r\n"

#: Pages of a retrieval that are answered before other connections have their turn.
_PAGES_A_TURN = 4

#: Commands whose line may be longer than others, and spaces that may precede it then.
_RETRIEVALS = (b"get ", b"gets ", b"gat ", b"gats ")
_INDENT_MOST = 100

#: Words of a complete ``flush_all``.
_FLUSH_WORDS = 3

_NOTHING: frozenset[bytes] = frozenset()


class _OpenLine:
    """A retrieval whose line is not complete, and whose keys are answered as they arrive."""

    __slots__ = ("expiry", "has_keys", "refused", "with_cas")

    def __init__(self, with_cas: bool) -> None:
        self.with_cas = with_cas  # whether the replies carry CAS values
        self.expiry: int | None = None  # as `Retrieval`'s
        self.has_keys = False  # whether there has been a key
        self.refused = False  # whether it has got an error, and the rest of the line is skipped


_unpack_tail = TAIL.unpack_from
#: Records that are copied into their reply are not longer than this.
_COPIED_RECORD_BYTES = COPIED_BYTES + RECORD_OVERHEAD_BYTES
_HIT = b"VALUE %b %d %d\r\n%b\r\nEND\r\n"

#: Commands for the fast path. Numbers are short enough to be always in range.
_short_way = re.compile(
    rb"get ([^ \r\n]{1,250}+)\r\n"
    rb"|set ([^ \r\n]{1,250}+) ([0-9]{1,9}+) ([0-9]{1,9}+) ([0-9]{1,8}+)( noreply)?\r\n"
).match
_GET_GROUP = 1

#: The loop carries these out by itself, but only for users who may use both.
_DIRECT = frozenset({b"get", b"set"})


class TextSession(Conversation):
    """See the module docstring.

    A text command names no vBucket, so the vBucket is always computed from the key, on any
    listener.
    """

    __slots__ = (
        "_active",
        "_bucket",
        "_denied",
        "_direct",
        "_in_line",
        "_mask",
        "_open",
        "_retrieval",
    )

    def __init__(self, services: Services, wake: Callable[[], None]) -> None:
        super().__init__(services, wake)
        bucket = services.bucket
        self._bucket = bucket
        self._in_line = False
        self._retrieval: Retrieval | None = None
        self._open: _OpenLine | None = None
        door = services.door
        self._denied = denied_words(door.roles) if door is not None else _NOTHING
        self._active = bucket.active
        self._mask = bucket.settings.engine.vbuckets - 1
        self._direct = not self._denied & _DIRECT
        if self._direct:
            self._serving = text_serving(bucket.lookups, bucket.active, bucket.account)

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
            if self._open is not None and not self._halted():
                position, wanted = self._read_on(data)
            if self._open is None and (self._retrieval is None or not self._halted()):
                position, wanted = self._carry_out(data, position)
        finally:
            self._running = False
        self._fetch_failed = False
        self._wanted = wanted
        if position < len(data) and not self.closing:
            self._keep(data[position:] if position else data, wanted)

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
            int(self._bucket.steady.now()),
            self.services.most_value_bytes(0),
        )

    def _carry_out(self, data: bytes, position: int) -> tuple[int, int]:
        """Carry out commands; return how far it got and how much the next one needs.

        The fast paths are inlined here, because a call for each would cost a fifth more. Everything
        else is done by `_one`.
        """
        active, vbuckets, mask = self._active.get, self._active, self._mask
        lookups = self._bucket.lookups.get
        most = self.services.most_value_bytes(0)
        out = self._out
        unsent, limit = self._unsent, self._max_unsent
        size, wanted = len(data), 0
        gets = hits = sets = 0
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
                complete = data[end : end + 2] == LINE_END
                if complete and vbucket is not None and end - start + len(key) <= most:
                    expiry = 0 if exptime == b"0" else self._expiry(int(exptime))
                    try:
                        vbucket.store_record(key, data[start:end], int(flags), expiry)
                        sets += 1
                        reply = STORED
                    except CommandError as error:
                        count_refused_store(self._bucket.stats, 0, error)
                        reply = storage_refusal(b"set", error)
                    if noreply is None:
                        out.append(reply)
                        unsent += len(reply)
                    position = end + 2
                    continue
            if gets or sets:
                self._count(gets, hits, sets)
                gets = hits = sets = 0
            self._unsent = unsent
            reached = self._one(data, position)
            unsent = self._unsent
            if reached < 0:
                wanted = -reached
                break
            position = reached
            if self._waiting or self.closing or self._retrieval is not None or self._open:
                break
        self._unsent = unsent
        if gets or sets:
            self._count(gets, hits, sets)
        return position, 0 if self._halted() else wanted

    def _count(self, gets: int, hits: int, sets: int) -> None:
        stats = self._bucket.stats
        stats.cmd_get += gets
        stats.get_hits += hits
        stats.get_misses += gets - hits
        stats.cmd_set += sets
        stats.total_items += sets

    # --- one command ----------------------------------------------------------------------------

    def connection_lost(self) -> None:
        """Release everything."""
        super().connection_lost()
        self._retrieval = self._open = None

    def _halted(self) -> bool:
        if self._retrieval is not None and not self.closing:
            self.input_full = True
            return True
        return super()._halted()

    def _expiry(self, exptime: int) -> int:
        return absolute_expiry(exptime, self._bucket.steady.now())

    def _one(self, data: bytes, position: int) -> int:
        """Carry out the command at `position`.

        Returns:
            The position of the next one; `position` itself when this one must be carried out again;
            the negative number of bytes that are needed first when it is not complete.
        """
        end = data.find(b"\n", position)
        if end < 0:
            return self._without_end(data, position)
        words = split_words(data[position:end])
        after = end + 1
        word = words[0] if words else b""
        if word in self._denied:
            return self._deny(words, data, after)
        try:
            if word in MANAGEMENT_WORDS and self.services.door is not None:
                self.services.door.managed(word.decode())
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
                self.close("the peer speaks HTTP")
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
            reply = act(self.services, *arguments)
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
        if line.length > most_value_bytes(self.services, line.key):
            self._bucket.stats.store_too_large += 1
            if _sets(line):
                remove(self.services, line.key)
            if not noreply:
                self._send(TOO_LARGE)
            if line.length > self.services.settings.max_frame_bytes:
                self.close(f"a data block of {line.length} bytes is announced")
            return self._swallow(data, end + 2)
        if len(data) < end + 2:
            return position - (end + 2)
        if not data.startswith(LINE_END, end):
            self._bucket.stats.cmd_set += 1
            if not noreply:
                self._send(BAD_DATA_CHUNK)
            return end + 2
        return self._answer(act, (line, data[start:end]), noreply, position, end + 2)

    def _deny(self, words: list[bytes], data: bytes, after: int) -> int:
        """Refuse a command that the user may not use, together with its data block."""
        door = self.services.door
        assert door is not None
        door.denied(words[0].decode())
        word = words[0]
        wanted = needs(role_of_word(word), both=needs_both_for_word(word))
        self._send(not_authorized(wanted))
        if words[0] not in _BLOCKS:
            return after
        try:
            length = _BLOCKS[words[0]][0](words).length
        except TextSyntaxError as error:
            return self._swallow(data, after + error.swallow)
        if length > self.services.settings.max_frame_bytes:
            self.close(f"a data block of {length} bytes is announced")
        return self._swallow(data, after + length + 2)

    def _swallow(self, data: bytes, until: int) -> int:
        """Skip to `until`; bytes that have not arrived yet are dropped when they do."""
        self._discard = max(0, until - len(data))
        return min(until, len(data))

    def _without_end(self, data: bytes, position: int) -> int:
        """Wait for more of a line, or begin a long retrieval before its end; return as `_one`."""
        limit = self.services.settings.max_line_bytes
        if len(data) - position > limit:
            head = data[position : position + _INDENT_MOST + 5].lstrip(b" ")
            if head.startswith(_RETRIEVALS):
                return self._open_line(data, position)
            self.close("text line too long")
        self._in_line = True
        return -(limit + 1)

    # --- retrievals that are longer than a line may be --------------------------------------------

    def _open_line(self, data: bytes, position: int) -> int:
        """Begin a retrieval with those of its words that have ended; return where the rest is."""
        cut = data.rindex(b" ", position) + 1
        words = split_words(data[position:cut])
        word = words[0]
        self._open = line = _OpenLine(word in (b"gets", b"gats"))
        if word in self._denied:
            self._deny(words, data, cut)
            line.refused = True
            return cut
        keys = words[1:]
        try:
            if word in (b"gat", b"gats"):
                touching = parse_touch_and_get(words)
                keys, line.expiry = touching.keys, self._expiry(touching.exptime)
            self._begin_part(line, keys, ends=False)
        except TextSyntaxError as error:
            self._refuse_line(line, error.reply)
        return cut

    def _read_on(self, data: bytes) -> tuple[int, int]:
        """Answer the keys of the open line that have arrived.

        Returns:
            How much of `data` was used, and how much is needed to go on.
        """
        line, limit = self._open, self.services.settings.max_line_bytes
        assert line is not None
        end = data.find(b"\n")
        cut = end + 1 if end >= 0 else data.rfind(b" ") + 1
        if end >= 0:
            self._open = None
        if not line.refused:
            try:
                self._begin_part(line, split_words(data[: end if end >= 0 else cut]), ends=end >= 0)
                if end < 0:
                    check_keys([data[cut:].removesuffix(b"\r")])
            except TextSyntaxError as error:
                self._refuse_line(line, error.reply)
        if line.refused and end < 0:
            cut = len(data)
        self._in_line = end < 0
        return cut, 0 if self._halted() else limit

    def _begin_part(self, line: _OpenLine, keys: list[bytes], *, ends: bool) -> None:
        check_keys(keys)
        line.has_keys = line.has_keys or bool(keys)
        if ends and not line.has_keys and line.expiry is None:
            raise TextSyntaxError(ERROR)
        self._begin(keys, line.with_cas, line.expiry, ends=ends)

    def _refuse_line(self, line: _OpenLine, reply: bytes) -> None:
        """Answer nothing more of the open line, and skip the rest of it."""
        line.refused = True
        self._send(reply)

    # --- commands that change the conversation ----------------------------------------------------

    def _stats(self, words: list[bytes]) -> None:
        self._send_made(statistics, words)

    def _crawl(self, words: list[bytes]) -> None:
        self._send_made(crawl, words)

    def _send_made(
        self, make: Callable[[Services, list[bytes]], bytes | Iterator[bytes]], words: list[bytes]
    ) -> None:
        try:
            reply = make(self.services, words)
        except CommandError as error:
            reply = refusal_line(error)
        if isinstance(reply, bytes):
            self._send(reply)
        else:
            self.send_from(reply)

    def _get(self, words: list[bytes]) -> None:
        self._begin(self._checked(parse_retrieval(words), None), words[0] == b"gets", None)

    def _gat(self, words: list[bytes]) -> None:
        line = parse_touch_and_get(words)
        expiry = self._expiry(line.exptime)
        self._begin(self._checked(line.keys, expiry), words[0] == b"gats", expiry)

    def _checked(self, keys: list[bytes], expiry: int | None) -> list[bytes]:
        """Return the keys; as in memcached, those before one that is too long count as read.

        Raises:
            TextSyntaxError: one is too long; nothing else is answered.
        """
        try:
            return check_keys(keys)
        except TextSyntaxError:
            bucket = self._bucket
            with suppress(CommandError):
                for key in takewhile(lambda key: len(key) <= KEY_MAX_BYTES, keys):
                    vbucket = bucket.of_key(key)
                    if expiry is None:
                        operations.count_get(bucket.stats, hit=vbucket.find(key) is not None)
                        continue
                    with suppress(KeyNotFound):
                        operations.touch(bucket, vbucket, key, expiry)
            raise

    def _begin(
        self, keys: list[bytes], with_cas: bool, expiry: int | None, *, ends: bool = True
    ) -> None:
        self._retrieval = Retrieval(self._bucket, keys, with_cas=with_cas, expiry=expiry, ends=ends)
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
                    self._give_up(TEMPORARY_FAILURE)
                    break
                self._waiting = True
                self._bucket.fetcher.want(retrieval.missing(), self._fetched)
            except CommandError as error:
                self._give_up(refusal_line(error))
                break
        self._retrieval = None

    def _give_up(self, reply: bytes) -> None:
        """End a retrieval with an error."""
        self._send(reply)
        if self._open is not None:
            self._open.refused = True

    def _flush_all(self, words: list[bytes]) -> None:
        bucket = self._bucket
        # memcached counts one whose time is no number, too.
        bucket.stats.cmd_flush += bucket.traffic and len(words) <= _FLUSH_WORDS
        line = parse_flush_all(words)
        if not bucket.traffic:
            if not line.noreply:
                self._send(TEMPORARY_FAILURE)
            return
        now = bucket.steady.now()
        at = absolute_expiry(line.number, now) if line.number > 0 else now
        if line.noreply:
            bucket.flush(at, _ignore)
            return
        resume = self.suspend()

        def done(ok: bool) -> None:
            if not self._lost:
                self._send(OK if ok else TEMPORARY_FAILURE)
            resume()

        bucket.flush(at, done)

    def _quit(self, words: list[bytes]) -> None:
        self.close()


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


# --- before the login ---------------------------------------------------------------------------


class TextStranger(Conversation):
    """A text conversation with a peer that has not logged in."""

    __slots__ = ()

    def _run(self, data: bytes) -> None:
        self._running = True
        position = 0
        while position < len(data) and not (self._waiting or self.closing):
            reached = self._one(data, position)
            if reached == position:
                break
            position = reached
        self._running = False
        if self.successor is not None:
            self._hand_over(data[position:])
        elif position < len(data) and not self.closing:
            if len(data) - position > STRANGER_MAX_BYTES:
                self.close("a text line too long before a login")
            else:
                self._keep(data[position:], len(data) - position + 1)
        self._halted()

    def _one(self, data: bytes, position: int) -> int:
        """Carry out one command; return where the next begins, or `position` to wait for more."""
        end = data.find(b"\n", position)
        if end < 0:
            return position
        words = split_words(data[position:end])
        word = words[0] if words else b""
        if word == b"set":
            return self._log_in(words, data, position, end + 1)
        if word == b"version":
            self._send(version_line(self.services.version))
        elif word == b"quit":
            self.close()
        else:
            self._door.denied(word.decode("latin-1")[:32])
            self._send(NOT_AUTHENTICATED)
        return end + 1

    def _log_in(self, words: list[bytes], data: bytes, position: int, start: int) -> int:
        length = parse_login(words)
        if length is None or length > STRANGER_MAX_BYTES // 2:
            self._send(NOT_AUTHENTICATED)
            self.closing = True  # where its data end is not known, or too far away
            return start
        end = start + length
        if len(data) < end + 2:
            return position
        if not data.startswith(b"\r\n", end):
            self._send(BAD_DATA_CHUNK)
        else:
            self._check(data[start:end])
        return end + 2

    def _check(self, block: bytes) -> None:
        name, _, password = block.partition(b" ")
        try:
            credentials = Credentials(name.decode(), password.decode())
        except (UnicodeDecodeError, ConfigError):
            self._refuse("", "no name and password")
            return
        if not self._door.plain:
            self._refuse(credentials.username, "a password in clear", NOT_IN_CLEAR)
            return
        self._waiting = True

        def checked(right: bool | None) -> None:
            if self._lost:
                return
            if right:
                self._admit(credentials.username)
            elif right is None:
                self._put_off()
            else:
                self._refuse(credentials.username, "wrong name or password")

        self._door.check(credentials, checked)

    def _admit(self, name: str) -> None:
        self.services.bucket.stats.auth_cmds += 1

        def admitted() -> None:
            if not self._lost:
                self._send(STORED)
                self._become(TextSession(self.services, self._wake))

        self._door.admit(name, admitted, self._put_off)

    def _put_off(self) -> None:
        """Answer that too many try to log in now, whatever the password was."""
        if not self._lost:
            self._send(TEMPORARY_FAILURE)
            self.resume()

    def _refuse(self, name: str, reason: str, line: bytes = WRONG_PASSWORD) -> None:
        stats = self.services.bucket.stats
        stats.auth_cmds += 1
        stats.auth_errors += 1
        self._waiting = True

        def answer() -> None:
            if not self._lost:
                self._send(line)
                self.resume()

        self._door.refuse(name, reason, answer, self._put_off)

    @property
    def _door(self) -> Door:
        door = self.services.door
        assert door is not None
        return door
