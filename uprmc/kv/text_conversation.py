"""A client's conversation in the text protocol, one command at a time.

Job: cut a command and its data block out of the input, check it, carry it out by the tables of
`text_commands` and `meta_commands`, send the reply. Commands that change the conversation itself
(retrievals, ``flush_all``, statistics, ``quit``) are here.

Neighbours: `text_session` calls this for all that it cannot do directly; `text_retrieval` answers
many keys.

Note: a command whose value is only on disk changes nothing and is not consumed; its line (and data
block) stays in the input and is carried out again once the value has been read. A retrieval is the
exception: its line is consumed, and a `Retrieval` remembers its progress.

Source: memcached reference, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import Any

from uprmc.engine.memory import absolute_expiry
from uprmc.errors import CommandError, KeyNotFound, NotResident
from uprmc.kv import meta_commands, operations, text_commands
from uprmc.kv.conversation import Conversation
from uprmc.kv.roles import (
    MANAGEMENT_WORDS,
    denied_words,
    needs,
    needs_both_for_word,
    role_of_word,
)
from uprmc.kv.services import Services
from uprmc.kv.text_commands import most_value_bytes, refusal_line, remove
from uprmc.kv.text_crawler import crawl
from uprmc.kv.text_retrieval import Retrieval
from uprmc.kv.text_statistics import statistics
from uprmc.protocol.opcodes import KEY_MAX_BYTES
from uprmc.protocol.text import (
    StorageLine,
    TextSyntaxError,
    check_keys,
    parse_flush_all,
    parse_retrieval,
    parse_storage,
    parse_touch_and_get,
    split_words,
)
from uprmc.protocol.text_meta import STORE_MODES, MetaLine, parse_meta
from uprmc.protocol.text_replies import (
    BAD_DATA_CHUNK,
    ERROR,
    OK,
    TEMPORARY_FAILURE,
    TOO_LARGE,
    not_authorized,
)

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
    """A retrieval whose line is not complete, and whose keys are answered as they arrive.

    Attributes:
        with_cas: whether the replies carry CAS values.
        expiry: as `Retrieval`'s.
        has_keys: whether there has been a key.
        refused: whether it has got an error, and the rest of the line is skipped.
    """

    __slots__ = ("expiry", "has_keys", "refused", "with_cas")

    def __init__(self, with_cas: bool) -> None:
        self.with_cas = with_cas
        self.expiry: int | None = None
        self.has_keys = False
        self.refused = False


class TextConversation(Conversation):
    """Carries out single commands."""

    __slots__ = ("_bucket", "_denied", "_in_line", "_open", "_retrieval")

    def __init__(self, services: Services, wake: Callable[[], None]) -> None:
        super().__init__(services, wake)
        self._bucket = services.bucket
        self._in_line = False
        self._retrieval: Retrieval | None = None
        self._open: _OpenLine | None = None
        door = services.door
        self._denied = denied_words(door.roles) if door is not None else _NOTHING

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
        if not data.startswith(LINE_END, end):
            self._bucket.stats.cmd_set += 1
            if not noreply:
                self._send(BAD_DATA_CHUNK)
            return end + 2
        return self._answer(act, (line, data[start:end]), noreply, position, end + 2)

    def _deny(self, words: list[bytes], data: bytes, after: int) -> int:
        """Refuse a command that the user may not use, together with its data block."""
        door = self._services.door
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
        if length > self._services.settings.max_frame_bytes:
            self._close(f"a data block of {length} bytes is announced")
        return self._swallow(data, after + length + 2)

    def _swallow(self, data: bytes, until: int) -> int:
        """Skip to `until`; bytes that have not arrived yet are dropped when they do."""
        self._discard = max(0, until - len(data))
        return min(until, len(data))

    def _without_end(self, data: bytes, position: int) -> int:
        """Wait for more of a line, or begin a long retrieval before its end; return as `_one`."""
        limit = self._services.settings.max_line_bytes
        if len(data) - position > limit:
            head = data[position : position + _INDENT_MOST + 5].lstrip(b" ")
            if head.startswith(_RETRIEVALS):
                return self._open_line(data, position)
            self._close("text line too long")
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
        line, limit = self._open, self._services.settings.max_line_bytes
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
            reply = make(self._services, words)
        except CommandError as error:
            reply = refusal_line(error)
        if isinstance(reply, bytes):
            self._send(reply)
        else:
            self._send_from(reply)

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

_OWN: dict[bytes, Callable[[TextConversation, list[bytes]], None]] = {
    b"get": TextConversation._get,
    b"gets": TextConversation._get,
    b"gat": TextConversation._gat,
    b"gats": TextConversation._gat,
    b"flush_all": TextConversation._flush_all,
    b"quit": TextConversation._quit,
    b"stats": TextConversation._stats,
    b"lru_crawler": TextConversation._crawl,
}
