"""REPLICATE, TAKEOVER, FAILOVER: replicas operated by commands, on any binary connection.

VBUCKET_FACTS as a request is here too: a restore reports the same facts to an active vBucket as an
active vBucket reports to its replicas.

Commands are answered when their effect is done and on disk. Refusals contain a text that says what
to do; see `upr.follow.replication`.

Source: issue "Replicas, failover"; the bytes are our own, see ``docs/extensions.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from uprmc.engine.replica import outrank
from uprmc.errors import InvalidArguments, KeyExists, NotSupported, RemoteProtocolError
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.kv.refusals import REFUSALS
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.replication import (
    REPLICATE_EXTRAS,
    Branch,
    Outcome,
    ReplicateFlag,
    decode_vbuckets,
    encode_branches,
    encode_outcomes,
)
from uprmc.protocol.upr_extensions import VBUCKET_FACTS_EXTRAS
from uprmc.remote.ranges import named
from uprmc.upr.replication import Replication

_KNOWN_FLAGS = int(ReplicateFlag.STOP | ReplicateFlag.DEMOTE)

_NOT_ON_DISK = (
    b"done, but not on disk yet: the disk refuses (see the log), or persistence is stopped"
)


def replicate(session: BinaryConversation, request: Request) -> None:
    """Follow a source from now on, or stop following; answered when that is stored."""
    replication = _replication(session, request)
    (flags,) = REPLICATE_EXTRAS.unpack(request.extras)
    if flags & ~_KNOWN_FLAGS:
        raise InvalidArguments(f"unknown flags {flags:#x}: only {_KNOWN_FLAGS:#x} are known")
    numbers = decode_vbuckets(request.value) or None
    place = _place(request.key)
    if flags & ReplicateFlag.STOP:
        if place:
            raise InvalidArguments("STOP takes vBuckets, not a source")
        with _suspended(session) as resume:
            replication.stop(numbers, _durable_answer(session, request, resume))
        return
    demote = bool(flags & ReplicateFlag.DEMOTE)
    with _suspended(session) as resume:
        replication.follow(
            place, numbers, demote=demote, done=_durable_answer(session, request, resume)
        )


def take_over(session: BinaryConversation, request: Request) -> None:
    """Take vBuckets over from their active node; answered when each is decided."""
    replication = _replication(session, request)
    place, numbers = _place(request.key), decode_vbuckets(request.value)
    with _suspended(session) as resume:

        def answer(outcomes: dict[int, Outcome], why: str) -> None:
            if set(outcomes.values()) == {Outcome.REFUSED}:
                text = f"{place}: {why}".encode()
                session.reply(request, Status.TEMPORARY_FAILURE, value=text)
            else:
                session.reply(request, value=encode_outcomes(sorted(outcomes.items())))
            resume()

        replication.take_over(place, numbers, answer)


def fail_over(session: BinaryConversation, request: Request) -> None:
    """Make vBuckets active here; answered when their new branches are on disk."""
    replication = _replication(session, request)
    numbers = decode_vbuckets(request.value)
    with _suspended(session) as resume:

        def answer(branches: list[Branch], durable: bool) -> None:
            deposed = {*numbers} - {branch.vbucket for branch in branches}
            if durable and deposed:
                text = f"{named(sorted(deposed))}: another node was promoted in the meantime"
                session.reply(request, Status.TEMPORARY_FAILURE, value=text.encode())
                resume()
                return
            value = encode_branches(branches)
            _durable_answer(session, request, resume, value)(durable)

        replication.fail_over(numbers, answer)


def raise_revision_floor(session: BinaryConversation, request: Request) -> None:
    """Make new keys in an active vBucket outrank deletions that it never had."""
    _check_token(session, request)
    vbucket = session.locate(request)
    purge_seqno, rev_floor = VBUCKET_FACTS_EXTRAS.unpack(request.extras)
    if purge_seqno:
        raise InvalidArguments("the purge seqno of an active vBucket cannot be set: use 0")
    outrank(vbucket, rev_floor)
    with _suspended(session) as resume:
        answer = _durable_answer(session, request, resume)
        session.bucket.flusher.when_durable(answer, patient=False)


@contextmanager
def _suspended(session: BinaryConversation) -> Iterator[Callable[[], None]]:
    """Make the commands behind this one wait until the function that is passed here is called.

    If the command is refused at once they continue.
    """
    resume = session.suspend()
    try:
        yield resume
    except REFUSALS:
        resume()
        raise


def _durable_answer(
    session: BinaryConversation, request: Request, resume: Callable[[], None], value: bytes = b""
) -> Callable[[bool], None]:
    def answer(durable: bool) -> None:
        if durable:
            session.reply(request, value=value)
        else:
            session.reply(request, Status.TEMPORARY_FAILURE, value=_NOT_ON_DISK)
        resume()

    return answer


def _replication(session: BinaryConversation, request: Request) -> Replication:
    """Return the object that carries it out, if this manager may ask for it."""
    _check_token(session, request)
    replication = session.services.replication
    if replication is None:
        raise NotSupported("this node opens no connections")
    return replication


def _check_token(session: BinaryConversation, request: Request) -> None:
    try:
        session.services.control.check_token(request.cas)
    except KeyExists:
        raise KeyExists("another manager has set a session token: use that one") from None


def _place(key: bytes) -> str:
    try:
        return key.decode("ascii")
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"{key!r} is not a source: use HOST:PORT") from None


REPLICATION_COMMANDS: dict[int, Handler] = {
    Opcode.REPLICATE: replicate,
    Opcode.TAKEOVER: take_over,
    Opcode.FAILOVER: fail_over,
    Opcode.VBUCKET_FACTS: raise_revision_floor,
}
