"""What answers at a place where an upr listener was meant: looked at once more, for people."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.connecting import connected
from uprmc.places import WITH_TLS, parsed, stranger
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode

#: A look takes no longer; there are three at most.
_LOOK_S = 1.0

_ANSWER_BYTES = 4_096
_QUESTION = b"GET / HTTP/1.0\r\n\r\n"

#: A node's HTTP listener answers to this which the upr listener is.
_NO_REQUEST = RequestFrame(Opcode.NOOP).encode(0)

#: Statistics of a TAP adapter begin so.
_OF_TAP_ADAPTER = "uprmc_tap_upstream"


def listener_at(place: str) -> str:
    """Return what answers at a place that was asked without TLS, or that does not speak it.

    Empty = an upr listener, or it is not known.
    """
    try:
        words = stranger(place, _answer(place, None))
    except (OSError, UnicodeError, ValueError):  # nobody says anything at all
        return ""
    if words:
        return words
    with suppress(OSError, UnicodeError, ValueError):
        words = stranger(place, _answer(place, _unverified()))
        return words or f"the listener at {place} speaks TLS: {WITH_TLS}"
    with suppress(NodeError, ValueError), NodeConnection(place, _LOOK_S) as connection:
        for name, value in connection.statistics(""):
            if name == _OF_TAP_ADAPTER:
                return (
                    f"a TAP adapter answers at {place}, which speaks no UPR: name its upstream "
                    f"{value}"
                )
    return ""


def _answer(place: str, tls: ssl.SSLContext | None) -> bytes:
    said = b""
    for question in (_QUESTION, _NO_REQUEST):
        plain = connected(parsed(place), _LOOK_S)
        with plain if tls is None else tls.wrap_socket(plain) as found:
            said += _said(found, question)
        if not said.startswith(b"HTTP/"):
            break
    return said


def _said(found: Any, question: bytes) -> bytes:
    """Return what a listener says to a question, empty = it hangs up.

    Raises:
        TimeoutError: it says nothing.
    """
    found.sendall(question)
    said = b""
    with suppress(ConnectionError, ssl.SSLError):
        while len(said) < _ANSWER_BYTES and b"\n" not in said:
            piece = found.recv(_ANSWER_BYTES)
            if not piece:
                break
            said += piece
    return said


def _unverified() -> ssl.SSLContext:
    """Return how to look at any certificate: nothing is sent that anyone may not know."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
