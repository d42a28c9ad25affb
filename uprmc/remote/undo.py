"""How what came of a lost history is undone: log, keys above, their versions, log again.

A consumer that is sent back asks the source, for each key that it holds from above the point, which
version was the newest up to some seqno (GET_VERSION), and puts that in its place. The source's
failover log is read before and after: as long as it is the same one, all versions are of one
history. `undo` is that procedure; replicas and programs differ in what they hold above a seqno and
how they put something back. Only a node like this one knows GET_VERSION.

See `docs/extensions.md`, GET_VERSION.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from uprmc.errors import RemoteProtocolError
from uprmc.model import SEQNO_MAX, FailoverLog, Item, Life, Origin
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.replication import (
    GET_VERSION_EXTRAS,
    GET_VERSION_MISS_EXTRAS,
    GET_VERSION_ORIGIN_EXTRAS,
    GET_VERSION_REPLY_EXTRAS,
)

#: Highest seqno that a version can have: they are stored with a sign.
_SEQNO_LIMIT = 2**63 - 1

#: Yields what is to be awaited, in whatever form the caller awaits it, and is sent the outcome.
Task = Generator[Any, Any, Any]


class Undone(NamedTuple):
    """What an undo has come to."""

    log: FailoverLog  # of the source, before and after
    keys: int  # how many were undone


def undo(
    log: Callable[[], Task],
    keys_above: Callable[[FailoverLog], Sequence[bytes] | None],
    put_back: Callable[[Sequence[bytes]], Task],
    *,
    portion: int,
    attempts: int = 1,
) -> Task:
    """Put the source's versions in place of what a lost history has left; returns `Undone`.

    Returns ``None`` if the source's history does not stand still meanwhile.

    Args:
        log: asks the source for its failover log.
        keys_above: says which keys are to be undone, ``None`` = the log is not of the history any
            more of which we were sent back. Called once in each attempt, before `put_back`.
        put_back: asks for the versions of some keys and puts them in place.
        portion: keys for one call of `put_back`.
        attempts: how often to begin again when the log has changed.
    """
    for _ in range(attempts):
        before = yield from log()
        keys = keys_above(before)
        if keys is None:
            return None
        for first in range(0, len(keys), portion):
            yield from put_back(keys[first : first + portion])
        if not keys or (yield from log()) == before:
            return Undone(before, len(keys))
    return None


class UndoRefused(Exception):
    """The source does not tell; `answer` says why."""

    def __init__(self, answer: ResponseFrame) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class Version(NamedTuple):
    """What a source knows of one key."""

    # of the version; without one, that of the newest deletion which the source has dropped, for it
    # may have been this key's; 0 if there was none.
    seqno: int
    item: Item | None  # the version, which may be a deletion; ``None`` = there is none


def question(vbucket: int, key: bytes, upto_seqno: int = SEQNO_MAX) -> RequestFrame:
    """Ask for the newest version of a key up to a seqno."""
    extras = GET_VERSION_EXTRAS.pack(upto_seqno)
    return RequestFrame(Opcode.GET_VERSION, key=key, vbucket=vbucket, extras=extras)


def version(key: bytes, answer: ResponseFrame, datatypes: int = 0xFF) -> Version:
    """Read the answer, with these bits of the datatype.

    Raises:
        Refused: it is a refusal.
        RemoteProtocolError: it is no answer to such a question.
    """
    if answer.status == Status.KEY_NOT_FOUND:
        told = len(answer.extras) == GET_VERSION_MISS_EXTRAS.size
        return Version(GET_VERSION_MISS_EXTRAS.unpack(answer.extras)[0] if told else 0, None)
    if answer.status != Status.SUCCESS:
        raise UndoRefused(answer)
    try:
        origin = None
        if len(answer.extras) == GET_VERSION_ORIGIN_EXTRAS.size:
            seqno, rev, flags, expiry, number, *place = GET_VERSION_ORIGIN_EXTRAS.unpack(
                answer.extras
            )
            origin = Origin(*place)
        else:
            seqno, rev, flags, expiry, number = GET_VERSION_REPLY_EXTRAS.unpack(answer.extras)
        life = Life(number)
    except (struct.error, ValueError):
        raise RemoteProtocolError(f"{answer.extras!r} says nothing of a version") from None
    if not 0 < seqno <= _SEQNO_LIMIT:
        raise RemoteProtocolError(f"{key!r} has seqno {seqno}")
    datatype = answer.datatype & datatypes
    value = answer.value if life is Life.LIVE else None
    found = Item(key, value, flags, expiry, answer.cas, seqno, rev, datatype, life,
                 origin=origin)  # fmt: skip
    return Version(seqno, found)
