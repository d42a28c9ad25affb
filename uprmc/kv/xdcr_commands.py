"""XDCR: verbs about links to other clusters, on any binary connection.

The key is the verb, the value a JSON object with what it takes, the answer a JSON value. A refusal
contains a text that says what to do. The bytes are our own, see ``docs/extensions.md``.
"""

from __future__ import annotations

import json
from typing import Any

from uprmc.errors import CommandError, InvalidArguments, KeyExists, NotSupported
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.kv.door import require
from uprmc.kv.refusals import REFUSALS, refusal_of
from uprmc.login.users import Role
from uprmc.protocol.opcodes import DataType, Opcode

#: Longest value of a request.
_VALUE_MAX_BYTES = 1_048_576

#: A verb is not longer in the audit log.
_WORD_MAX_BYTES = 32

#: What the source of a link says to its target; all other verbs are a manager's.
_OF_SOURCES = frozenset({b"list", b"record", b"records", b"purged"})


def xdcr(session: BinaryConversation, request: Request) -> None:
    """Carry out a verb; commands behind it wait for its answer."""
    if request.key not in _OF_SOURCES:
        word = request.key[:_WORD_MAX_BYTES].decode("latin-1")
        require(session.services.door, Role.MANAGE, f"XDCR {word}")
    try:
        session.services.control.check_token(request.cas)
    except KeyExists:
        raise KeyExists("another manager has set a session token: use that one") from None
    links = session.services.xdcr
    if links is None:
        raise NotSupported("this node opens no connections")
    given = _given(request.value)
    resume = session.suspend()

    def answered(value: Any) -> None:
        session.reply(request, value=json.dumps(value).encode(), datatype=DataType.JSON)
        resume()

    def refused(error: CommandError) -> None:
        status, text = refusal_of(error, request.opcode, with_lock_errors=session.with_lock_errors)
        session.reply(request, status, value=text)
        resume()

    try:
        links.command(request.key.decode("latin-1"), given, answered, refused)
    except REFUSALS:
        resume()
        raise


def _given(value: bytes) -> dict[str, Any]:
    if len(value) > _VALUE_MAX_BYTES:
        raise InvalidArguments(f"the request is longer than {_VALUE_MAX_BYTES} bytes")
    try:
        found = json.loads(value) if value else {}
    except (ValueError, RecursionError):
        raise InvalidArguments("the request is no JSON") from None
    if not isinstance(found, dict):
        raise InvalidArguments("the request is no JSON object")
    return found


XDCR_COMMANDS: dict[int, Handler] = {Opcode.XDCR: xdcr}
