"""UPR commands on a connection that has not been opened for UPR: OPEN, and commands out of order.

Source: UPR reference 2, 2.1, 2.5.
"""

from __future__ import annotations

from uprmc.engine.vbucket import VBucket
from uprmc.errors import InvalidArguments, NotMyVBucket, OutOfPlace
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.protocol.opcodes import Opcode, OpenFlag
from uprmc.protocol.upr import OPEN_EXTRAS, TERM_EXTRAS, encode_failover_log

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


def open_(session: BinaryConversation, request: Request) -> None:
    """Turn the connection into a UPR connection."""
    _, flags = OPEN_EXTRAS.unpack(request.extras)
    if len(request.key) > NAME_MAX_BYTES:
        raise InvalidArguments("the name is too long")
    if session.greeted and flags & ~int(_KNOWN_FLAGS):  # ~ of flags drops bits without a name
        raise InvalidArguments(f"flags {flags:#x} are not supported")
    session.open_upr(request, flags)


def get_failover_log(session: BinaryConversation, request: Request) -> None:
    """Answer a vBucket's failover log; before OPEN only to modern peers."""
    if not session.greeted:
        raise OutOfPlace("a failover log was requested before OPEN")
    vbucket = session.bucket.vbuckets.get(request.number)
    if vbucket is None:
        raise NotMyVBucket(request.number)
    send_failover_log(session, request, vbucket)


def send_failover_log(session: BinaryConversation, request: Request, vbucket: VBucket) -> None:
    """Answer a vBucket's failover log, with its term if terms were granted."""
    extras = TERM_EXTRAS.pack(vbucket.term) if session.with_terms else b""
    session.reply(request, extras=extras, value=encode_failover_log(vbucket.failover_log))


def out_of_place(session: BinaryConversation, request: Request) -> None:
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
