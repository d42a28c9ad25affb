"""Versions of single documents, by which what came of a lost history is undone.

Whoever is sent back asks the source, for each key that it holds from above the point, which version
was the newest up to some seqno (GET_VERSION), and puts that in its place. Only a node like this one
knows the question.

Source: UPR reference 3.4; ``docs/extensions.md``, GET_VERSION.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from uprmc.errors import RemoteProtocolError
from uprmc.model import SEQNO_MAX, Item, Life
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.replication import (
    GET_VERSION_EXTRAS,
    GET_VERSION_MISS_EXTRAS,
    GET_VERSION_REPLY_EXTRAS,
)

#: Highest seqno that a version can have: they are stored with a sign.
_SEQNO_LIMIT = 2**63 - 1


class Answer(Protocol):
    """A response, whoever has decoded it."""

    @property
    def status(self) -> int:
        """A `Status` number, or one without a name."""

    @property
    def extras(self) -> bytes:
        """Numbers of the version."""

    @property
    def value(self) -> bytes:
        """Its value."""

    @property
    def cas(self) -> int:
        """Its CAS."""

    @property
    def datatype(self) -> int:
        """Bits that say what the value is."""


class Version(NamedTuple):
    """What a source knows of one key.

    Attributes:
        seqno: of the version; without one, that of the newest deletion which the source has
            dropped, for it may have been this key's; 0 if there was none.
        item: the version, which may be a deletion; ``None`` = there is none.
    """

    seqno: int
    item: Item | None


def question(vbucket: int, key: bytes, upto_seqno: int = SEQNO_MAX) -> RequestFrame:
    """Ask for the newest version of a key up to a seqno."""
    extras = GET_VERSION_EXTRAS.pack(upto_seqno)
    return RequestFrame(Opcode.GET_VERSION, key=key, vbucket=vbucket, extras=extras)


def version(key: bytes, answer: Answer, datatypes: int = 0xFF) -> Version | None:
    """Read the answer, with these bits of the datatype; ``None`` = it is a refusal.

    Raises:
        RemoteProtocolError: it is no answer to such a question.
    """
    if answer.status == Status.KEY_NOT_FOUND:
        told = len(answer.extras) == GET_VERSION_MISS_EXTRAS.size
        return Version(GET_VERSION_MISS_EXTRAS.unpack(answer.extras)[0] if told else 0, None)
    if answer.status != Status.SUCCESS:
        return None
    try:
        seqno, rev, flags, expiry, number = GET_VERSION_REPLY_EXTRAS.unpack(answer.extras)
        life = Life(number)
    except (struct.error, ValueError):
        raise RemoteProtocolError(f"{answer.extras!r} says nothing of a version") from None
    if not 0 < seqno <= _SEQNO_LIMIT:
        raise RemoteProtocolError(f"{key!r} has seqno {seqno}")
    datatype = answer.datatype & datatypes
    value = answer.value if life is Life.LIVE else None
    found = Item(key, value, flags, expiry, answer.cas, seqno, rev, datatype, life)
    return Version(seqno, found)
