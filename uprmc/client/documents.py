"""Documents as a node has them now, with the seqnos of their versions: what an undo puts back.

A node of ours is asked by GET_VERSION, which tells a version's seqno, of a deletion, too. Another
one is asked by GET and GET_META; then every version may be as new as the vBucket is.

Source: systems reference g.3, step 5; ``docs/protocol.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from uprmc.client.ask import Ask, Task
from uprmc.client.errors import ProducerError
from uprmc.client.handler import Document
from uprmc.client.node_session import NodeSession
from uprmc.errors import RemoteProtocolError
from uprmc.model import VBucketState
from uprmc.protocol.binary import GET_REPLY_EXTRAS
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import (
    GET_META_REPLY_EXTRAS,
)
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote import undo

#: A document that changes between GET and GET_META is asked for again so often.
_ATTEMPTS_MAX = 10


class NotNow(Exception):
    """The node cannot answer at present, or is not active any more: try again later."""


class Version(NamedTuple):
    """One key's newest version: its seqno, and the document.

    Of a key that never was the seqno is that of the newest deletion which the node has dropped, for
    it may be this key's; 0 if there was none.
    """

    seqno: int
    document: Document | None


def fetch(session: NodeSession, vbucket: int, keys: Sequence[bytes]) -> Task:
    """Return the newest `Version` of each key, in order.

    Raises:
        NotNow: see there.
        ProducerError: an answer makes no sense.
    """
    try:
        if session.has_versions is not False:
            found = yield from _by_version(session, vbucket, keys)
            if found is not None:
                return found
        return (yield from _by_meta(session, vbucket, keys))
    except (struct.error, RemoteProtocolError):
        raise ProducerError(f"the node at {session.place} sent a torn document") from None


def _by_version(session: NodeSession, vbucket: int, keys: Sequence[bytes]) -> Task:
    answers = yield Ask([undo.question(vbucket, key) for key in keys])
    session.has_versions = all(answer.status != Status.UNKNOWN_COMMAND for answer in answers)
    if not session.has_versions:
        return None
    try:
        return [_version(key, answer) for key, answer in zip(keys, answers, strict=True)]
    except undo.Refused as refusal:
        raise _refused(refusal.answer) from None


def _version(key: bytes, answer: ResponseFrame) -> Version:
    found = undo.version(key, answer)
    item = found.item
    if item is None or item.value is None:
        return Version(found.seqno, None)
    document = Document(key, item.value, item.rev, item.cas, item.flags, item.expiry, item.datatype)
    return Version(found.seqno, document)


def _by_meta(session: NodeSession, vbucket: int, keys: Sequence[bytes]) -> Task:
    found: dict[bytes, Document | None] = {}
    for _ in range(_ATTEMPTS_MAX):
        missing = [key for key in keys if key not in found]
        if not missing:
            high_seqno = yield from _high_seqno(session, vbucket)
            return [Version(high_seqno, found[key]) for key in keys]
        answers = yield Ask(
            [
                _question(opcode, vbucket, key)
                for key in missing
                for opcode in (Opcode.GET, Opcode.GET_META)
            ]
        )
        for key, body, meta in zip(missing, answers[::2], answers[1::2], strict=True):
            if not _found(body):
                found[key] = None
            elif _found(meta) and body.cas == meta.cas:
                found[key] = _document(key, body, meta)
    raise NotNow(f"documents of vBucket {vbucket} change all the time")


def _document(key: bytes, body: ResponseFrame, meta: ResponseFrame) -> Document:
    (flags,) = GET_REPLY_EXTRAS.unpack(body.extras)
    _, _, expiry, rev = GET_META_REPLY_EXTRAS.unpack(meta.extras)
    return Document(key, body.value, rev, body.cas, flags, expiry, body.datatype)


def _high_seqno(session: NodeSession, vbucket: int) -> Task:
    seqnos: dict[int, int] = yield from session.facts.high_seqnos(VBucketState.ACTIVE)
    if vbucket not in seqnos:
        raise NotNow(f"vBucket {vbucket} is not active at {session.place}")
    return seqnos[vbucket]


def _found(answer: ResponseFrame) -> bool:
    if answer.status not in (Status.SUCCESS, Status.KEY_NOT_FOUND):
        raise _refused(answer)
    return answer.status == Status.SUCCESS


def _refused(answer: ResponseFrame) -> NotNow:
    return NotNow(f"a document was refused: {answer.reason}")


def _question(opcode: int, vbucket: int, key: bytes, extras: bytes = b"") -> RequestFrame:
    return RequestFrame(opcode, key=key, vbucket=vbucket, extras=extras)
