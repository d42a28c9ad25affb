"""Single versions of documents as TAP messages, in the form that a client wants.

`translate` makes the same messages of whole runs, faster; `corrections` sends versions from here.

Note: flags of items travel with their bytes swapped unless the client asked for the opposite
(`TapForm.network_byte_order`). Old producers made this mistake and their consumers undo it, so it
has to be repeated.

Source: TAP reference, sections 2 and 8.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.model import Item
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, Opcode
from uprmc.protocol.tap import (
    TAP_DELETE_FRAME,
    TAP_EXTRAS,
    TAP_ITEM_EXTRAS,
    TAP_MUTATION_FRAME,
    TAP_MUTATION_SPECIFIC,
    TAP_REVISION_SPECIFIC,
    TTL,
    TapFlag,
)

#: Plain numbers: an enum's operations cost a microsecond each.
_ACK, _NO_VALUE, _NETWORK_BYTE_ORDER = map(
    int, (TapFlag.ACK, TapFlag.NO_VALUE, TapFlag.NETWORK_BYTE_ORDER)
)


#: A mutation's body up to its key.
BODY_BYTES_BEFORE_KEY = TAP_MUTATION_FRAME.size - HEADER_BYTES

#: Where the low byte of a message's flags stands.
_FLAGS_AT = HEADER_BYTES + 3


class TapForm(NamedTuple):
    """How a client wants its items.

    Attributes:
        keys_only: without values.
        network_byte_order: their flags as they were stored, and marked as such.
    """

    keys_only: bool = False
    network_byte_order: bool = False

    @property
    def flags(self) -> int:
        """The `TapFlag` bits of each mutation."""
        return self.keys_only * _NO_VALUE | self.network_byte_order * _NETWORK_BYTE_ORDER


def swapped_flags(flags: int) -> int:
    """Return an item's flags with their four bytes in the opposite order."""
    return int.from_bytes(flags.to_bytes(4, "little"), "big")


def version_message(
    item: Item, vbucket: int, sequence: int, form: TapForm, flags: int = 0
) -> bytes:
    """Return one version as MUTATION, or as DELETE where it is a tombstone.

    Args:
        item: the version; a document comes with its value.
        vbucket: where it lies.
        sequence: number of the message.
        form: how the client wants it.
        flags: `TapFlag` bits beside those of `form`.
    """
    if item.life:
        return deletion_message(item.key, item.rev, item.cas, vbucket, sequence, flags)
    value = b"" if form.keys_only else item.value
    assert value is not None, "a document without its value"
    head = TAP_MUTATION_FRAME.pack(
        MAGIC_REQUEST,
        Opcode.TAP_MUTATION,
        len(item.key),
        TAP_ITEM_EXTRAS.size,
        0,
        vbucket,
        BODY_BYTES_BEFORE_KEY + len(item.key) + len(value),
        sequence,
        item.cas,
        TAP_MUTATION_SPECIFIC.size,
        flags | form.flags,
        TTL,
        b"",
        item.flags if form.network_byte_order else swapped_flags(item.flags),
        item.expiry,
        item.rev,
        item.nru,
    )
    return b"".join((head, item.key, value))


def deletion_message(
    key: bytes, rev: int, cas: int, vbucket: int, sequence: int, flags: int
) -> bytes:
    """Return a deletion; the arguments are those of `version_message`, taken apart."""
    head = TAP_DELETE_FRAME.pack(
        MAGIC_REQUEST,
        Opcode.TAP_DELETE,
        len(key),
        TAP_EXTRAS.size,
        0,
        vbucket,
        TAP_DELETE_FRAME.size - HEADER_BYTES + len(key),
        sequence,
        cas,
        TAP_REVISION_SPECIFIC.size,
        flags,
        TTL,
        b"",
        rev,
    )
    return head + key


def with_ack(head: bytes) -> bytes:
    """Return a message's first piece as it asks for an answer."""
    return head[:_FLAGS_AT] + bytes((head[_FLAGS_AT] | _ACK,)) + head[_FLAGS_AT + 1 :]
