"""A text conversation before its login, which is a ``set`` whose data are name and password.

    set any 0 0 16
    alice her secret
    STORED

Key, flags and expiry time may be anything, and are ignored. Everything else is refused until then,
except ``version`` and ``quit``. As with SASL PLAIN, nobody must be able to listen.

Source: memcached's protocol.txt, section "Authentication", and its option ``-Y``.
"""

from __future__ import annotations

from uprmc.errors import ConfigError
from uprmc.kv.conversation import Conversation
from uprmc.kv.door import STRANGER_MAX_BYTES, Door
from uprmc.kv.text_session import TextSession
from uprmc.login.credentials import Credentials
from uprmc.protocol.text import parse_login, split_words
from uprmc.protocol.text_replies import (
    BAD_DATA_CHUNK,
    NOT_AUTHENTICATED,
    NOT_IN_CLEAR,
    STORED,
    TEMPORARY_FAILURE,
    WRONG_PASSWORD,
    version_line,
)


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
                self._close("a text line too long before a login")
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
            self._send(version_line(self._services.version))
        elif word == b"quit":
            self._close()
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
        self._services.bucket.stats.auth_cmds += 1

        def admitted() -> None:
            if not self._lost:
                self._send(STORED)
                self._become(TextSession(self._services, self._wake))

        self._door.admit(name, admitted, self._put_off)

    def _put_off(self) -> None:
        """Answer that too many try to log in now, whatever the password was."""
        if not self._lost:
            self._send(TEMPORARY_FAILURE)
            self._resume()

    def _refuse(self, name: str, reason: str, line: bytes = WRONG_PASSWORD) -> None:
        stats = self._services.bucket.stats
        stats.auth_cmds += 1
        stats.auth_errors += 1
        self._waiting = True

        def answer() -> None:
            if not self._lost:
                self._send(line)
                self._resume()

        self._door.refuse(name, reason, answer, self._put_off)

    @property
    def _door(self) -> Door:
        door = self._services.door
        assert door is not None
        return door
