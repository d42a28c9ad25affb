"""Commands of the binary protocol about the connection and the server: HELLO, STAT and others.

Source: memcached reference 2.3 to 2.9; UPR reference 6.
"""

from __future__ import annotations

from collections.abc import Iterator

from uprmc.errors import InvalidArguments
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.kv.door import require, require_statistics
from uprmc.kv.services import StatGroup, StatRows
from uprmc.login.users import Role
from uprmc.protocol.binary import (
    ERROR_MAP_VERSION,
    VERBOSITY_EXTRAS,
    decode_hello,
    encode_hello,
)
from uprmc.protocol.error_map import error_map
from uprmc.protocol.header import encode_response
from uprmc.protocol.opcodes import DataType, Feature, Opcode, Status

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


def noop(session: BinaryConversation, request: Request) -> None:
    """Confirm that everything before has been answered."""
    session.reply(request)


def version(session: BinaryConversation, request: Request) -> None:
    """Answer the version."""
    session.reply(request, value=session.services.version)


def quit_(session: BinaryConversation, request: Request) -> None:
    """Close the connection; quitq sends no reply."""
    session.succeed(request)
    session.close()


def verbosity(session: BinaryConversation, request: Request) -> None:
    """Change how much is logged."""
    session.services.set_verbosity(VERBOSITY_EXTRAS.unpack(request.extras)[0])
    session.reply(request)


def hello(session: BinaryConversation, request: Request) -> None:
    """Grant the features we have, in the order asked, each once."""
    asked = dict.fromkeys(decode_hello(request.value))
    granted = [number for number in asked if number in _GRANTED]
    json = Feature.JSON in granted or Feature.DATATYPE in granted
    session.greeted = True
    session.datatypes = int(DataType.JSON) if json else 0
    session.with_seqnos = Feature.MUTATION_SEQNO in granted
    session.with_lock_errors = Feature.XERROR in granted
    session.with_terms = Feature.TERMS in granted
    session.with_origins = Feature.ORIGINS in granted
    session.reply(request, value=encode_hello(granted))


def get_error_map(session: BinaryConversation, request: Request) -> None:
    """Tell what each status means for a program."""
    if len(request.value) != ERROR_MAP_VERSION.size:
        raise InvalidArguments
    (newest,) = ERROR_MAP_VERSION.unpack(request.value)
    if not newest:
        raise InvalidArguments
    session.reply(request, value=error_map(newest), datatype=DataType.JSON)


def stat(session: BinaryConversation, request: Request) -> None:
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
