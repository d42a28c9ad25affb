"""Commands of the binary protocol about the connection: HELLO, STAT and others, SASL, OPEN.

SASL on a binary connection: SASL_LIST_MECHS, SASL_AUTH and SASL_STEP.

Where logins are off, all three are unknown commands, so that clients continue without a login.
After a success another session carries the conversation on, which knows what the user may do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING

from uprmc.engine.vbucket import VBucket
from uprmc.errors import ConfigError, InvalidArguments, NotMyVBucket, OutOfPlace
from uprmc.kv.roles import Door, require, require_statistics
from uprmc.kv.services import StatGroup, StatRows
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import (
    MECHANISM_MAX_BYTES,
    LoginRefused,
    Mechanism,
    listed,
    mechanism_named,
)
from uprmc.login.users import Role
from uprmc.protocol.binary import ERROR_MAP_VERSION, VERBOSITY_EXTRAS, decode_hello, encode_hello
from uprmc.protocol.error_map import error_map
from uprmc.protocol.header import encode_response
from uprmc.protocol.opcodes import DataType, Feature, Opcode, OpenFlag, Status
from uprmc.protocol.upr import OPEN_EXTRAS, TERM_EXTRAS, encode_failover_log
from uprmc.upr.peer import Negotiated

if TYPE_CHECKING:
    from uprmc.kv.binary import BinarySession, Handler
    from uprmc.protocol.header import RequestFrame

    _AtDoor = Callable[[BinarySession, RequestFrame, Door], None]

# --- the connection and the server --------------------------------------------------------------


#: Commands are not counted by key prefix: the switch is accepted, the dump is empty.
_STATS_DETAIL: dict[str, StatGroup] = {
    "detail on": [],
    "detail off": [],
    "detail dump": [("detailed", "END\r\n")],
}

#: Features that HELLO grants.
_GRANTED = frozenset(
    {
        Feature.TCP_NODELAY,
        Feature.MUTATION_SEQNO,
        Feature.XERROR,
        Feature.SELECT_BUCKET,
        Feature.JSON,
        Feature.DATATYPE,
        Feature.TERMS,
        Feature.ORIGINS,
        Feature.CHECKPOINTS,
    }
)


def noop(session: BinarySession, request: RequestFrame) -> None:
    """Confirm that everything before has been answered."""
    session.reply(request)


def version(session: BinarySession, request: RequestFrame) -> None:
    """Answer the version."""
    session.reply(request, value=session.services.version)


def quit_(session: BinarySession, request: RequestFrame) -> None:
    """Close the connection; quitq sends no reply."""
    session.succeed(request)
    session.close()


def verbosity(session: BinarySession, request: RequestFrame) -> None:
    """Change how much is logged."""
    session.services.set_verbosity(VERBOSITY_EXTRAS.unpack(request.extras)[0])
    session.reply(request)


def hello(session: BinarySession, request: RequestFrame) -> None:
    """Grant the features we have, in the order asked, each once."""
    asked = dict.fromkeys(decode_hello(request.value))
    granted = [number for number in asked if number in _GRANTED]
    json = Feature.JSON in granted or Feature.DATATYPE in granted
    session.negotiated = Negotiated(
        greeted=True,
        datatypes=int(DataType.JSON) if json else 0,
        lock_errors=Feature.XERROR in granted,
        terms=Feature.TERMS in granted,
        origins=Feature.ORIGINS in granted,
    )
    session.with_seqnos = Feature.MUTATION_SEQNO in granted
    session.reply(request, value=encode_hello(granted))


def get_error_map(session: BinarySession, request: RequestFrame) -> None:
    """Tell what each status means for a program."""
    if len(request.value) != ERROR_MAP_VERSION.size:
        raise InvalidArguments
    (newest,) = ERROR_MAP_VERSION.unpack(request.value)
    if not newest:
        raise InvalidArguments
    session.reply(request, value=error_map(newest), datatype=DataType.JSON)


def stat(session: BinarySession, request: RequestFrame) -> None:
    """Answer one packet for each statistic of a group, then an empty one."""
    words = " ".join(request.key.decode("latin-1").split())
    rows: StatRows | None
    if words == "reset":
        require(session.services.door, Role.MANAGE, "STAT reset")
        session.services.reset_stats()
        rows = []
    elif words in _STATS_DETAIL:
        rows = _STATS_DETAIL[words]
    else:
        require_statistics(session.services.door, words)
        rows = session.services.stats(words)
    if rows is None:
        session.reply(request, Status.KEY_NOT_FOUND)
    else:
        session.send_from(_stat_packets(request.opaque, rows))


def _stat_packets(opaque: int, rows: StatRows) -> Iterator[bytes]:
    for row in rows:
        if row is None:
            yield b""
            continue
        name, value = row
        yield encode_response(
            Opcode.STAT,
            key=name.encode(),
            value=value.encode("utf-8", "surrogateescape"),
            opaque=opaque,
        )
    yield encode_response(Opcode.STAT, opaque=opaque)


CONNECTION_COMMANDS: dict[int, Handler] = {
    Opcode.NOOP: noop,
    Opcode.VERSION: version,
    Opcode.QUIT: quit_,
    Opcode.VERBOSITY: verbosity,
    Opcode.HELLO: hello,
    Opcode.GET_ERROR_MAP: get_error_map,
    Opcode.STAT: stat,
}


# --- SASL ---------------------------------------------------------------------------------------


_AUTHENTICATED = b"Authenticated"


def _at_the_door(command: _AtDoor) -> Handler:
    @wraps(command)
    def handler(session: BinarySession, request: RequestFrame) -> None:
        door = session.services.door
        if door is None:
            session.reply(request, Status.UNKNOWN_COMMAND)
        elif len(request.key) > MECHANISM_MAX_BYTES:
            session.reply(request, Status.INVALID_ARGUMENTS)
        else:
            command(session, request, door)

    return handler


@_at_the_door
def list_mechanisms(session: BinarySession, request: RequestFrame, door: Door) -> None:
    """Answer the mechanisms that this connection may use."""
    session.reply(request, value=listed(plain=door.plain))


@_at_the_door
def authenticate(session: BinarySession, request: RequestFrame, door: Door) -> None:
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
def step(session: BinarySession, request: RequestFrame, door: Door) -> None:
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


def _check_plain(session: BinarySession, request: RequestFrame, door: Door) -> None:
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
    session: BinarySession,
    request: RequestFrame,
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
            session.admit()

    done = door.admit(name, admitted, lambda: _put_off(session, request, door, *waits))
    if not (done or waits):
        waits.append(session.suspend())


def _put_off(
    session: BinarySession,
    request: RequestFrame,
    door: Door,
    resume: Callable[[], None],
) -> None:
    """Answer that too many try to log in now, whatever the password was."""
    if not session.lost:
        session.reply(request, Status.TEMPORARY_FAILURE)
        _stay_out(session, door, resume)


def _stay_out(session: BinarySession, door: Door, resume: Callable[[], None]) -> None:
    """End the login before this one: who shares a connection must not act as another user."""
    if door.roles is None:
        resume()
    else:
        door.leave()
        session.admit()


def _refuse(
    session: BinarySession,
    request: RequestFrame,
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


# --- opening for UPR ----------------------------------------------------------------------------


#: Longest name of a connection, in bytes.
NAME_MAX_BYTES = 200

_KNOWN_FLAGS = (
    OpenFlag.PRODUCER
    | OpenFlag.NOTIFIER
    | OpenFlag.XATTRS
    | OpenFlag.NO_VALUE
    | OpenFlag.DELETE_TIMES
    | OpenFlag.NO_VALUE_KEEP_DATATYPE
)


def open_(session: BinarySession, request: RequestFrame) -> None:
    """Turn the connection into a UPR connection."""
    _, flags = OPEN_EXTRAS.unpack(request.extras)
    if len(request.key) > NAME_MAX_BYTES:
        raise InvalidArguments("the name is too long")
    if session.negotiated.greeted and flags & ~int(
        _KNOWN_FLAGS
    ):  # ~ of flags drops bits without a name
        raise InvalidArguments(f"flags {flags:#x} are not supported")
    session.open_upr(request, flags)


def get_failover_log(session: BinarySession, request: RequestFrame) -> None:
    """Answer a vBucket's failover log; before OPEN only to modern peers."""
    if not session.negotiated.greeted:
        raise OutOfPlace("a failover log was requested before OPEN")
    vbucket = session.bucket.vbuckets.get(request.vbucket)
    if vbucket is None:
        raise NotMyVBucket(request.vbucket)
    send_failover_log(session, request, vbucket)


def send_failover_log(session: BinarySession, request: RequestFrame, vbucket: VBucket) -> None:
    """Answer a vBucket's failover log, with its term if terms were granted."""
    extras = TERM_EXTRAS.pack(vbucket.term) if session.negotiated.terms else b""
    session.reply(request, extras=extras, value=encode_failover_log(vbucket.failover_log))


def out_of_place(session: BinarySession, request: RequestFrame) -> None:
    """Close the connection, because the peer has not sent OPEN."""
    raise OutOfPlace(f"opcode {request.opcode:#04x} before OPEN")


UPR_COMMANDS: dict[int, Handler] = {
    **{
        opcode: out_of_place
        for opcode in Opcode
        if Opcode.UPR_OPEN <= opcode <= Opcode.UPR_SEQNO_ACKNOWLEDGED
    },
    Opcode.UPR_OPEN: open_,
    Opcode.UPR_GET_FAILOVER_LOG: get_failover_log,
}
