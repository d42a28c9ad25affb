"""Commands of managers from the time of TAP: clients by name, and checkpoints.

A node keeps no checkpoints: it presents a vBucket's changes as one checkpoint that is always open,
in ``stats checkpoint`` and here. Its id is 1, or one above the last checkpoint that a pushing
master has closed. No checkpoint is ever persisted as such, and none can be created: a command that
asks for one gets the present ids.

Source: TAP reference 7.
"""

from __future__ import annotations

from uprmc.errors import InvalidArguments, NotMyVBucket, TemporaryFailure, UnknownCommand
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.kv.services import TapGuest
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.tap import TAP_CHECKPOINT_VALUE, decode_filter

#: Id of the last checkpoint on disk: there is never one.
PERSISTED_CHECKPOINT = 0


def last_closed(guest: TapGuest | None, number: int) -> int:
    """Return the id of a vBucket's last closed checkpoint; the open one is the next."""
    return guest.last_closed(number) if guest is not None else 0


def deregister(session: BinaryConversation, request: Request) -> None:
    """Forget a TAP client; it is no error if there was none."""
    _guest(session).deregister(request.key)
    session.reply(request)


def change_filter(session: BinaryConversation, request: Request) -> None:
    """Change the vBuckets of a TAP client from now on."""
    guest = _guest(session)
    if not request.value:
        raise InvalidArguments("a filter without vBuckets")
    guest.change_filter(request.key, decode_filter(request.value))
    session.reply(request)


def reset_chain(session: BinaryConversation, request: Request) -> None:
    """Make every TAP client start over."""
    _guest(session).reset_chain()
    session.reply(request)


def last_closed_checkpoint(session: BinaryConversation, request: Request) -> None:
    """Answer the id of a vBucket's last closed checkpoint."""
    if not session.bucket.traffic:
        raise TemporaryFailure("warming up")
    if request.number not in session.bucket.vbuckets:
        raise NotMyVBucket(request.number)
    closed = last_closed(session.services.tap, request.number)
    session.reply(request, value=TAP_CHECKPOINT_VALUE.pack(closed))


def create_checkpoint(session: BinaryConversation, request: Request) -> None:
    """Return the ids of an active vBucket's open checkpoint and of its last persisted one."""
    session.locate(request)
    opened = last_closed(session.services.tap, request.number) + 1
    ids = [TAP_CHECKPOINT_VALUE.pack(number) for number in (opened, PERSISTED_CHECKPOINT)]
    session.reply(request, value=b"".join(ids))


def _guest(session: BinaryConversation) -> TapGuest:
    guest = session.services.tap
    if guest is None:
        raise UnknownCommand("TAP is off")
    return guest


TAP_COMMANDS: dict[int, Handler] = {
    Opcode.DEREGISTER_TAP_CLIENT: deregister,
    Opcode.CHANGE_VB_FILTER: change_filter,
    Opcode.RESET_REPLICATION_CHAIN: reset_chain,
    Opcode.LAST_CLOSED_CHECKPOINT: last_closed_checkpoint,
    Opcode.CREATE_CHECKPOINT: create_checkpoint,
}
