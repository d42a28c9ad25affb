"""SASL on a binary connection: SASL_LIST_MECHS, SASL_AUTH and SASL_STEP.

Where nobody logs in, all three are unknown commands, so that clients continue without a login.
After a success another session carries the conversation on, which knows what the user may do.

Source: memcached reference 2.10; SDK reference 1.1; RFC 4616, 5802, 7677.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from uprmc.errors import ConfigError
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.kv.door import Door
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import (
    MECHANISM_MAX_BYTES,
    LoginRefused,
    Mechanism,
    listed,
    mechanism_named,
)
from uprmc.protocol.opcodes import Opcode, Status

_AUTHENTICATED = b"Authenticated"

_AtDoor = Callable[[BinaryConversation, Request, Door], None]


def _at_the_door(command: _AtDoor) -> Handler:
    @wraps(command)
    def handler(session: BinaryConversation, request: Request) -> None:
        door = session.services.door
        if door is None:
            session.reply(request, Status.UNKNOWN_COMMAND)
        elif len(request.key) > MECHANISM_MAX_BYTES:
            session.reply(request, Status.INVALID_ARGUMENTS)
        else:
            command(session, request, door)

    return handler


@_at_the_door
def list_mechanisms(session: BinaryConversation, request: Request, door: Door) -> None:
    """Answer the mechanisms that this connection may use."""
    session.reply(request, value=listed(plain=door.plain))


@_at_the_door
def authenticate(session: BinaryConversation, request: Request, door: Door) -> None:
    """Begin a login; with PLAIN that is all of it."""
    door.exchange = None
    mechanism = mechanism_named(request.key)
    if mechanism is Mechanism.PLAIN and door.plain:
        _check_plain(session, request, door)
    elif mechanism is None or mechanism is Mechanism.PLAIN:
        _refuse(session, request, door, "", f"the mechanism {request.key!r} is not offered")
    else:
        exchange = door.begin(mechanism)
        try:
            challenge = exchange.first(request.value)
        except LoginRefused as error:
            _refuse(session, request, door, exchange.username, str(error))
        else:
            door.exchange = mechanism, exchange
            session.reply(request, Status.AUTH_CONTINUE, value=challenge)


@_at_the_door
def step(session: BinaryConversation, request: Request, door: Door) -> None:
    """Take the proof of a login by SCRAM."""
    begun, door.exchange = door.exchange, None
    mechanism = mechanism_named(request.key)
    if begun is None or mechanism is not begun[0]:
        _refuse(session, request, door, "", "a step without its beginning")
        return
    exchange = begun[1]
    try:
        proof = exchange.final(request.value)
    except LoginRefused as error:
        _refuse(session, request, door, exchange.username, str(error))
    else:
        _admit(session, request, door, exchange.username, proof)


def _check_plain(session: BinaryConversation, request: Request, door: Door) -> None:
    parts = request.value.split(b"\0")
    try:
        acts_for, name, password = (part.decode() for part in parts)
        credentials = Credentials(name, password)
    except (ValueError, ConfigError):
        _refuse(session, request, door, "", "no name and password of PLAIN")
        return
    if acts_for not in ("", name):
        _refuse(session, request, door, name, "wants to act for another user")
        return
    resume = session.suspend()

    def checked(right: bool | None) -> None:
        if session.lost:
            return
        if right:
            _admit(session, request, door, name, _AUTHENTICATED, resume)
        elif right is None:
            _put_off(session, request, door, resume)
        else:
            _refuse(session, request, door, name, "wrong name or password", resume)

    door.check(credentials, checked)


def _admit(
    session: BinaryConversation,
    request: Request,
    door: Door,
    name: str,
    value: bytes,
    resume: Callable[[], None] | None = None,
) -> None:
    """Let a user in, now or later; `resume` continues a session that waits."""
    session.stats.auth_cmds += 1
    waits = [] if resume is None else [resume]

    def admitted() -> None:
        if not session.lost:
            session.reply(request, value=value)
            session.begin_anew()

    done = door.admit(name, admitted, lambda: _put_off(session, request, door, *waits))
    if not (done or waits):
        waits.append(session.suspend())


def _put_off(
    session: BinaryConversation,
    request: Request,
    door: Door,
    resume: Callable[[], None],
) -> None:
    """Answer that too many try to log in now, whatever the password was."""
    if not session.lost:
        session.reply(request, Status.TEMPORARY_FAILURE)
        _stay_out(session, door, resume)


def _stay_out(session: BinaryConversation, door: Door, resume: Callable[[], None]) -> None:
    """End the login before this one: who shares a connection must not act as another user."""
    if door.roles is None:
        resume()
    else:
        door.leave()
        session.begin_anew()


def _refuse(
    session: BinaryConversation,
    request: Request,
    door: Door,
    name: str,
    reason: str,
    resume: Callable[[], None] | None = None,
) -> None:
    """Answer that the login failed, after a while that grows with each failure."""
    session.stats.auth_cmds += 1
    session.stats.auth_errors += 1
    go_on = resume or session.suspend()

    def answer() -> None:
        if session.lost:
            return
        session.reply(request, Status.AUTH_ERROR)
        _stay_out(session, door, go_on)

    door.refuse(name, reason, answer, lambda: _put_off(session, request, door, go_on))


LOGIN_COMMANDS: dict[int, Handler] = {
    Opcode.SASL_LIST_MECHS: list_mechanisms,
    Opcode.SASL_AUTH: authenticate,
    Opcode.SASL_STEP: step,
}
