"""What the load generator sends and gets, in the binary and in the text protocol."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from uprmc.cli.node_access import NodeAccess
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.model import vbucket_of
from uprmc.places import parsed
from uprmc.protocol.binary import ARITHMETIC_EXTRAS, STORE_EXTRAS, TOUCH_EXTRAS
from uprmc.protocol.header import pack_request, unpack_response
from uprmc.protocol.opcodes import (
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    Opcode,
    Status,
    status_text,
)

GET, SET, INCR, TOUCH, DEL, PING = "get", "set", "incr", "touch", "del", "ping"
TESTS = (GET, SET, INCR, TOUCH, DEL, PING)

#: Reasons beside the words of a refusal.
DONE, MISSING = "", "missing"

#: One request: what comes before the value, and the value.
Request = tuple[bytes, bytes]

#: How many replies there were to requests of a test, by what they say.
Replies = dict[tuple[str, str], int]

_LOGIN_LINE_MAX = 4_096

_OPCODES = {
    GET: Opcode.GET,
    SET: Opcode.SET,
    INCR: Opcode.INCREMENT,
    TOUCH: Opcode.TOUCH,
    DEL: Opcode.DELETE,
    PING: Opcode.NOOP,
}

#: Lines of the text protocol: requests, their first bytes, and what replies mean.
_LINES = {
    GET: b"get %(key)s\r\n",
    SET: b"set %(key)s 0 %(expiry)d %(bytes)d\r\n",
    INCR: b"ma %(key)s N%(expiry)d J0 D1\r\n",
    TOUCH: b"touch %(key)s %(expiry)d\r\n",
    DEL: b"delete %(key)s\r\n",
    PING: b"mn\r\n",
}
_BEGINNINGS = {line[:2]: test for test, line in _LINES.items()}
_REASONS = {
    **dict.fromkeys((b"STORED", b"HD", b"MN", b"TOUCHED", b"DELETED"), DONE),
    **dict.fromkeys((b"END", b"NOT_FOUND", b"NF"), MISSING),
}
_REFUSALS = (b"SERVER_ERROR", b"CLIENT_ERROR", b"ERROR", b"NOT_STORED", b"NS")
_VALUE, _END = b"VALUE ", b"\r\nEND\r\n"


class Wire(Protocol):
    """What the generator needs of a protocol."""

    def connected(self, access: NodeAccess) -> NodeConnection:
        """Connect and log in; raises `NodeError`."""

    def request(self, test: str, key: bytes, value: bytes, expiry: int) -> Request:
        """Return a request."""

    def take(self, buffer: bytearray, sent: Sequence[Request]) -> Replies:
        """Take complete replies out of a buffer; raises `ValueError` for what is none.

        Args:
            sent: requests that are not answered yet.
        """


class Binary:
    """The binary protocol, to the listener that was named."""

    def __init__(self, vbuckets: int) -> None:
        self._vbuckets = vbuckets
        self._tests = {int(opcode): test for test, opcode in _OPCODES.items()}

    def connected(self, access: NodeAccess) -> NodeConnection:
        """See `Wire`."""
        return access.connected()

    def request(self, test: str, key: bytes, value: bytes, expiry: int) -> Request:
        """See `Wire`."""
        extras = {
            SET: STORE_EXTRAS.pack(0, expiry),
            INCR: ARITHMETIC_EXTRAS.pack(1, 0, expiry),
            TOUCH: TOUCH_EXTRAS.pack(expiry),
        }.get(test, b"")
        body_bytes = len(extras) + len(key) + len(value)
        where = vbucket_of(key, self._vbuckets) if key else 0
        head = pack_request(
            MAGIC_REQUEST,
            _OPCODES[test],
            *(len(key), len(extras), 0, where, body_bytes, 0, 0),
        )
        return head + extras + key, value

    def take(self, buffer: bytearray, sent: Sequence[Request]) -> Replies:
        """See `Wire`."""
        found: dict[tuple[int, int], int] = {}
        texts: dict[int, str] = {}
        at, end = 0, len(buffer)
        while end - at >= HEADER_BYTES:
            magic, opcode, _, _, _, status, body_bytes, _, _ = unpack_response(buffer, at)
            if magic != MAGIC_RESPONSE:
                raise ValueError(magic)
            if at + HEADER_BYTES + body_bytes > end:
                break
            at += HEADER_BYTES + body_bytes
            if status and status not in texts:
                texts[status] = buffer[at - body_bytes : at].decode("utf-8", "replace")
            kind = opcode, status
            found[kind] = found.get(kind, 0) + 1
        del buffer[:at]
        return {
            (
                self._tests.get(opcode, f"opcode {opcode}"),
                _reason(status, texts.get(status, "")),
            ): times
            for (opcode, status), times in found.items()
        }


@lru_cache
def _reason(status: int, text: str) -> str:
    if status == Status.KEY_NOT_FOUND:
        return MISSING
    if text.isprintable() and text:
        return f"{text} ({status:04x})"
    return status_text(status) if status else DONE


class Text:
    """The text protocol, to a node's listener for memcached's clients.

    Args:
        place: of that listener.
    """

    def __init__(self, place: str) -> None:
        self._place = place

    def connected(self, access: NodeAccess) -> NodeConnection:
        """See `Wire`; the password goes in clear, so only where nobody can listen."""
        credentials = access.credentials
        if credentials and not (access.tls or parsed(self._place).is_local):
            raise NodeError(
                f"{self._place}: the text protocol sends passwords in clear: use TLS, "
                "or leave --text out"
            )
        connection = NodeConnection(self._place, access.timeout_s, access.tls)
        try:
            if credentials:
                data = f"{credentials.username} {credentials.password}".encode()
                connection.send_some(memoryview(b"set login 0 0 %d\r\n%s\r\n" % (len(data), data)))
                said = b""
                while b"\n" not in said and len(said) < _LOGIN_LINE_MAX:
                    said += connection.receive_some(_LOGIN_LINE_MAX)
                if said != b"STORED\r\n":
                    words = said.decode("latin-1").strip()
                    raise NodeError(f"the node at {self._place} refuses the login: {words}")
        except BaseException:
            connection.close()
            raise
        return connection

    def request(self, test: str, key: bytes, value: bytes, expiry: int) -> Request:
        """See `Wire`."""
        fields = {b"key": key, b"expiry": expiry, b"bytes": len(value)}
        return _LINES[test] % fields, value + b"\r\n" if test == SET else b""

    def take(self, buffer: bytearray, sent: Sequence[Request]) -> Replies:
        """See `Wire`."""
        found: Replies = {}
        at = 0
        for head, _ in sent:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                break
            line = bytes(buffer[at:end])
            after, reason = end + 2, _REASONS.get(line)
            if line.startswith(_VALUE):
                last = end + 2 + int(line.rsplit(b" ", 1)[1])
                after, reason = last + len(_END), DONE
                if after > len(buffer):
                    break
                if buffer[last:after] != _END:
                    raise ValueError(line)
            elif reason is None:
                if not line.startswith(_REFUSALS):
                    raise ValueError(line)
                reason = line.decode("latin-1")
            at = after
            kind = _BEGINNINGS[head[:2]], reason
            found[kind] = found.get(kind, 0) + 1
        del buffer[:at]
        return found
