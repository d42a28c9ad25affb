"""What a TAP message means to its receiver: a table from pushed messages to changes.

=============================  ===================================================================
MUTATION with a revision       `Action.STORE`: overwrite; CAS, revision, flags, expiration are kept
MUTATION without one           the same as a client's set: CAS and revision of this node
DELETE with, without           `Action.REMOVE`, likewise; revision 0 counts as 1
FLUSH                          `Action.FLUSH`: all vBuckets
OPAQUE 1                       `Action.RESET`: empty the vBucket, a backfill follows
OPAQUE 8                       `Action.END_BACKFILL`
OPAQUE 2                       `Action.FOLLOW_CHECKPOINTS`
OPAQUE, any other              `Action.NOTHING`
VBUCKET_SET                    `Action.SET_STATE`
CHECKPOINT_START, _END         `Action.OPEN_CHECKPOINT`, `Action.CLOSE_CHECKPOINT`
=============================  ===================================================================

What a UPR consumer would be told and TAP cannot: seqnos, the name of the history, where snapshots
end unless checkpoints are used, that a deletion was an expiry, datatypes.

Note: flags of items come with their bytes swapped unless the message says otherwise;
`item_messages` swaps them on the way out.

Source: TAP reference, sections 2, 4, 8, 9 and 11.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from uprmc.errors import RemoteProtocolError
from uprmc.model import Item, Life, VBucketState
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.tap import (
    TAP_CHECKPOINT_VALUE,
    TAP_MUTATION_SPECIFIC,
    TAP_REVISION_SPECIFIC,
    TAP_WORD_SPECIFIC,
    TapFlag,
    TapMessage,
    TapOpaque,
)
from uprmc.tap_adapter.item_messages import swapped_flags


class Action(Enum):
    """What a message asks of a consumer."""

    STORE = "store"
    REMOVE = "remove"
    FLUSH = "flush"
    RESET = "reset"
    END_BACKFILL = "end of backfill"
    FOLLOW_CHECKPOINTS = "follow checkpoints"
    SET_STATE = "set state"
    OPEN_CHECKPOINT = "open checkpoint"
    CLOSE_CHECKPOINT = "close checkpoint"
    NOTHING = "nothing"


class Change(NamedTuple):
    """What a message means.

    Attributes:
        action: what to do.
        vbucket: where; FLUSH: everywhere.
        item: of STORE and REMOVE: the version, whose seqno is still to be given. Without a CAS (0)
            it gets one here.
        plain: of STORE and REMOVE: whether the sender told no revision, so that it is a client's
            ordinary set or delete, with CAS and revision of this node.
        number: of SET_STATE the `VBucketState`, of the checkpoints their id.
        deleted_rev: of OPEN_CHECKPOINT: the highest revision of a deletion in the vBucket.
    """

    action: Action
    vbucket: int
    item: Item | None = None
    plain: bool = False
    number: int = 0
    deleted_rev: int = 0


#: Plain numbers: an enum's operations cost a microsecond each.
_NO_VALUE, _NETWORK_BYTE_ORDER = int(TapFlag.NO_VALUE), int(TapFlag.NETWORK_BYTE_ORDER)

#: nru of a document whose sender tells none, and the highest there is.
_NRU_DEFAULT, _NRU_COLDEST = 2, 3

_STATES = frozenset(VBucketState)

_COMMANDS = {
    TapOpaque.INITIAL_VBUCKET_STREAM: Action.RESET,
    TapOpaque.CLOSE_BACKFILL: Action.END_BACKFILL,
    TapOpaque.ENABLE_CHECKPOINT_SYNC: Action.FOLLOW_CHECKPOINTS,
}


def change_of(message: TapMessage) -> Change:
    """Return what a message asks for; whether it may have it is the consumer's business.

    Raises:
        RemoteProtocolError: a state that is none, a checkpoint without an id, a document whose
            value was left out, or no message of TAP: hang up.
    """
    read = _CHANGES.get(message.opcode)
    if read is None:
        raise RemoteProtocolError(f"no message of TAP: {message.opcode:#04x}")
    return read(message)


def _store(message: TapMessage) -> Change:
    if message.flags & _NO_VALUE:
        raise RemoteProtocolError("a document whose value was left out cannot be stored")
    flags, specific = message.item_flags, message.specific
    if not message.flags & _NETWORK_BYTE_ORDER:
        flags = swapped_flags(flags)
    plain = len(specific) < TAP_REVISION_SPECIFIC.size
    rev = 0 if plain else TAP_REVISION_SPECIFIC.unpack_from(specific)[0]
    nru = _NRU_DEFAULT
    if len(specific) >= TAP_MUTATION_SPECIFIC.size:
        _, told = TAP_MUTATION_SPECIFIC.unpack_from(specific)
        nru = told if told <= _NRU_COLDEST else _NRU_DEFAULT
    cas = 0 if plain else message.cas
    item = Item(message.key, message.value, flags, message.expiration, cas, 0, rev, nru=nru)
    return Change(Action.STORE, message.vbucket, item, plain)


def _remove(message: TapMessage) -> Change:
    plain = len(message.specific) < TAP_REVISION_SPECIFIC.size
    rev = 0 if plain else TAP_REVISION_SPECIFIC.unpack_from(message.specific)[0] or 1
    cas = 0 if plain else message.cas
    item = Item(message.key, None, 0, 0, cas, 0, rev, life=Life.DELETED)
    return Change(Action.REMOVE, message.vbucket, item, plain)


def _flush(message: TapMessage) -> Change:
    return Change(Action.FLUSH, message.vbucket)


def _opaque(message: TapMessage) -> Change:
    action = Action.NOTHING
    if len(message.specific) == TAP_WORD_SPECIFIC.size:
        (command,) = TAP_WORD_SPECIFIC.unpack(message.specific)
        action = _COMMANDS.get(command, Action.NOTHING)
    return Change(action, message.vbucket)


def _set_state(message: TapMessage) -> Change:
    if len(message.specific) != TAP_WORD_SPECIFIC.size:
        raise RemoteProtocolError(f"a vBucket's state in {len(message.specific)} bytes")
    (state,) = TAP_WORD_SPECIFIC.unpack(message.specific)
    if state not in _STATES:
        raise RemoteProtocolError(f"{state} is no state of a vBucket")
    return Change(Action.SET_STATE, message.vbucket, number=state)


def _checkpoint(message: TapMessage) -> Change:
    if len(message.value) != TAP_CHECKPOINT_VALUE.size:
        raise RemoteProtocolError(f"a checkpoint's id in {len(message.value)} bytes")
    (checkpoint_id,) = TAP_CHECKPOINT_VALUE.unpack(message.value)
    if message.opcode == Opcode.TAP_CHECKPOINT_END:
        return Change(Action.CLOSE_CHECKPOINT, message.vbucket, number=checkpoint_id)
    rev = 0
    if len(message.specific) == TAP_REVISION_SPECIFIC.size:
        (rev,) = TAP_REVISION_SPECIFIC.unpack(message.specific)
    return Change(Action.OPEN_CHECKPOINT, message.vbucket, number=checkpoint_id, deleted_rev=rev)


_CHANGES: dict[int, Callable[[TapMessage], Change]] = {
    Opcode.TAP_MUTATION: _store,
    Opcode.TAP_DELETE: _remove,
    Opcode.TAP_FLUSH: _flush,
    Opcode.TAP_OPAQUE: _opaque,
    Opcode.TAP_VBUCKET_SET: _set_state,
    Opcode.TAP_CHECKPOINT_START: _checkpoint,
    Opcode.TAP_CHECKPOINT_END: _checkpoint,
}
