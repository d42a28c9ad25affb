"""How a stream of one vBucket comes about: ask, go back if need be, undo, ask again.

`Follower.follow` is a task that reads like the procedure in ``docs/streams.md``. It ends when the
node has accepted the stream, or raises `NotNow`. What it does to the handler:

- back to zero: `rollback` with 0, always; the vBucket is forgotten and streamed from the beginning;
- back to a seqno: `rollback`; unless that was enough, `undo` for every key in the ring above it,
  with the document as the active node has it now. It may be newer than the seqno: then it comes
  again in the stream, or is the same.

Before and after the documents are fetched the node's failover log must be the same: then they are
of the history that it names, and the place goes on in that one. Keys whose documents are newer than
the place stay in the ring, because that history may be lost as well before the stream has reached
them.

Rows D14, D15, D46 to D49, P09, P19.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from uprmc.client.errors import DeletionsPurged, ProducerError, RollbackRefused
from uprmc.client.handler import Document, Handler
from uprmc.client.node_session import PIPELINE_MAX, Ask, NodeSession, Task
from uprmc.client.position import PositionWriter, VBucketPlace
from uprmc.errors import RemoteProtocolError
from uprmc.model import FailoverLog, VBucketState
from uprmc.protocol import control
from uprmc.protocol.binary import GET_REPLY_EXTRAS
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import GET_META_REPLY_EXTRAS
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr import ROLLBACK_VALUE
from uprmc.remote.directory import ANY_STATE, seqno_rows, seqnos_request
from uprmc.remote.registering import Purged
from uprmc.remote.stream import StreamState
from uprmc.remote.undo import UndoRefused, question, undo, version

#: What to do about a rollback: raise, go back to the last common point, or to the beginning.
RollbackWord = Literal["fail", "rewind", "restart"]

#: Such a word, or a function of vBucket, seqno held, seqno to go to, that returns one.
OnRollback = RollbackWord | Callable[[int, int, int], RollbackWord]

#: What to do about a vBucket whose deletions were purged before they came: raise, or begin at zero.
PurgedWord = Literal["fail", "restart"]

#: Such a word, or a function of vBucket, seqno held, and why, that returns one; ``None`` = as
#: `OnRollback` says.
OnPurged = PurgedWord | Callable[[int, int, Purged], PurgedWord] | None

#: Rollbacks, changes of history while documents are fetched, and changes of a document between GET
#: and GET_META, before we wait a little.
_ATTEMPTS_MAX = 10


class NotNow(Exception):
    """The node cannot answer at present, or is not active any more: try again later."""


class Follower:
    """See the module docstring."""

    def __init__(
        self,
        handler: Handler,
        writer: PositionWriter,
        on_rollback: OnRollback,
        on_purged: OnPurged = None,
    ) -> None:
        self.rollbacks: dict[int, int] = {}  # how often each vBucket was rolled back
        self.restarts: dict[int, int] = {}  # how often back to zero
        self.undone: dict[int, int] = {}  # keys that were undone
        self._handler = handler
        self._writer = writer
        self._on_rollback = on_rollback
        self._on_purged = on_purged
        self._returned: set[int] = set()

    def follow(
        self,
        session: NodeSession,
        place: VBucketPlace,
        flags: int,
        opening: Callable[[StreamState], None],
    ) -> Task:
        """Bring a stream about.

        Args:
            session: of the node that has the vBucket active.
            place: where to begin.
            flags: of the stream request.
            opening: called with the stream before it is asked for.

        Raises:
            NotNow: the node cannot, or the vBucket is elsewhere.
            RollbackRefused: the program does not want to go back.
            ProducerError: the node's answer makes no sense.
        """
        if place.at_now and not place.log:
            yield from self._begin_now(session, place)
        elif place.unfinished_from_zero:
            yield from self._start_over(place)
        elif self._handler.native_rollback and place.vbucket not in self._returned:
            yield from self._return_native(place)
        self._returned.add(place.vbucket)
        versions = True
        for _ in range(_ATTEMPTS_MAX):
            if not place.settled:
                yield from self._settle(session, place)
            stream, question = session.stream_request(
                place.vbucket, place.asked(), flags, versions=versions
            )
            opening(stream)
            session.name_row(place.vbucket, *self._writer.watermark(place))
            (answer,) = yield Ask([question])
            named = question.options.known_versions
            if answer.status == Status.INVALID_ARGUMENTS and versions and named:
                versions = False  # the node's upr.known_versions may be lower than what we name
            elif answer.status == Status.ROLLBACK:
                yield from self._told_to_go_back(session, place, answer)
            elif answer.status != Status.SUCCESS:
                raise NotNow(
                    f"vBucket {place.vbucket}: {session.place} does not stream it: {answer.reason}"
                )
            elif not stream.log:
                raise self._nonsense(session, place, "an answer before the question")
            elif not stream.dropped:
                yield from self._tell_branch(place)
                return
            else:
                yield Ask([session.close_stream(stream)])
        raise NotNow(
            f"vBucket {place.vbucket}: its history at {session.place} does not stand still"
        )

    # --- before the first stream ----------------------------------------------------------------

    def _begin_now(self, session: NodeSession, place: VBucketPlace) -> Task:
        """Take the node's present as the place, or a seqno of its newest history.

        This happens once: what comes while there is no stream is new, too.
        """
        log = yield from self._log(session, place)
        there = yield from _high_seqno(session, place.vbucket, ANY_STATE)
        if there is None:
            raise NotNow(f"vBucket {place.vbucket} is not at {session.place}")
        seqno = there if place.begin_at is None else place.begin_at
        place.stand_at(seqno, log)

    def _return_native(self, place: VBucketPlace) -> Task:
        """After a crash the handler may hold more than is saved."""
        if place.kept and not (
            yield from awaited(self._handler.rollback(place.vbucket, place.seqno))
        ):
            yield from self._start_over(place)
        place.applied = place.seqno

    # --- going back -----------------------------------------------------------------------------

    def _told_to_go_back(
        self, session: NodeSession, place: VBucketPlace, answer: ResponseFrame
    ) -> Task:
        try:
            (seqno,) = ROLLBACK_VALUE.unpack(answer.value)
        except struct.error:
            raise self._nonsense(session, place, "a torn rollback") from None
        held, purged = place.seqno, session.purged(place.vbucket)
        if seqno >= held:
            raise self._nonsense(session, place, f"a rollback to {seqno}, we are at {held}")
        if purged is not None and not seqno:
            yield from self._outpaced(place, purged)
            return
        if place.at_now and place.begin_at is None:  # nothing was handed over that could be undone
            place.stand_at(seqno, (yield from self._log(session, place)))
            return
        words = f"the node at {session.place} shares our history only up to seqno {seqno}"
        if not seqno and len(place.log) > 1 and control.VERSIONS not in session.granted:
            # It knows nothing of the one history we named, perhaps something of an older one.
            seqno = place.agreed((yield from self._log(session, place))) or 0
        yield from self._return_to(session, place, seqno, words)

    def _outpaced(self, place: VBucketPlace, purged: Purged) -> Task:
        """Begin at zero, if the program wants to: deletions that it needs are gone."""
        wish = self._on_purged
        if callable(wish):
            wish = wish(place.vbucket, place.seqno, purged)
        if wish is None:
            wish = "fail" if self._on_rollback == "fail" else "restart"
        if wish != "restart":
            raise DeletionsPurged(place.vbucket, place.seqno, purged)
        self.rollbacks[place.vbucket] = self.rollbacks.get(place.vbucket, 0) + 1
        yield from self._start_over(place)

    def _return_to(
        self, session: NodeSession, place: VBucketPlace, shared: int, words: str
    ) -> Task:
        vbucket, native = place.vbucket, self._handler.native_rollback
        boundaries = self._writer.boundaries(vbucket)
        if native and self._handler.returns_anywhere:
            boundaries = [*boundaries, shared]
        target = place.target(shared, boundaries, native=native)
        if not self._rewinds(place, target, words):
            target = 0
        self.rollbacks[vbucket] = self.rollbacks.get(vbucket, 0) + 1
        if not target:
            yield from self._start_over(place)
            return
        self._writer.going_back(place, target)
        if (yield from awaited(self._handler.rollback(vbucket, target))):
            log = yield from self._log(session, place)
            if place.holds_until(log) < target:  # another history than when it sent us back
                raise NotNow(f"vBucket {vbucket}: its history at {session.place} has changed")
            self._writer.went_back(place, target, log)
        elif native:
            yield from self._start_over(place)
        else:
            log, put_back = yield from self._undo(session, place, target)
            self._writer.went_back(place, target, log, put_back)

    def _settle(self, session: NodeSession, place: VBucketPlace) -> Task:
        """Go back if a crash or an undo has left something of another history above the place.

        A program that was killed while it went back begins so again, with its first step.
        """
        until = place.holds_until((yield from self._log(session, place)))
        if place.seqno <= until < place.applied:
            words = f"the node at {session.place} shares our history only up to seqno {until}"
            yield from self._return_to(session, place, until, words)
        # else all of it is shared; or the place itself is not, then the node will say so

    def _undo(self, session: NodeSession, place: VBucketPlace, above: int) -> Task:
        """Put the node's documents in place of all keys above a seqno.

        Returns the log of the history they are of, and the keys with the seqnos of those documents:
        what is put back may be a version that was never handed over.
        """
        vbucket = place.vbucket
        newer: list[tuple[int, bytes]] = []

        def keys_above(log: FailoverLog) -> list[bytes] | None:
            newer.clear()
            if place.holds_until(log) < above:  # another history than when it sent us back
                return None
            return self._writer.keys_above(vbucket, above)

        def put_back(keys: Sequence[bytes]) -> Task:
            versions = yield from fetch(session, vbucket, keys)
            for key, (seqno, document) in zip(keys, versions, strict=True):
                yield from awaited(self._handler.undo(vbucket, key, document))
                if seqno > place.ring_from:
                    newer.append((seqno, key))

        log = partial(self._log, session, place)
        undone = yield from undo(
            log, keys_above, put_back, portion=PIPELINE_MAX, attempts=_ATTEMPTS_MAX
        )
        if undone is None:
            raise NotNow(f"vBucket {vbucket}: its history at {session.place} does not stand still")
        self.undone[vbucket] = self.undone.get(vbucket, 0) + undone.keys
        yield from self._make_durable()
        return undone.log, newer

    def _start_over(self, place: VBucketPlace) -> Task:
        vbucket = place.vbucket
        self._writer.going_back(place, 0)
        yield from awaited(self._handler.rollback(vbucket, 0))
        yield from self._make_durable()
        self.restarts[vbucket] = self.restarts.get(vbucket, 0) + 1
        self._writer.start_over(place)

    def _make_durable(self) -> Task:
        durable = getattr(self._handler, "durable", None)
        if durable is not None:
            yield from awaited(durable())

    def _rewinds(self, place: VBucketPlace, target: int, words: str) -> bool:
        """Return whether to go back to `target`, or else to the beginning."""
        wish = self._on_rollback
        if callable(wish):
            wish = wish(place.vbucket, place.held, target)
        if wish not in ("rewind", "restart"):
            raise RollbackRefused(place.vbucket, place.held, target, words)
        return wish == "rewind"

    # --- asking and telling ---------------------------------------------------------------------

    def _log(self, session: NodeSession, place: VBucketPlace) -> Task:
        (answer,) = yield Ask([RequestFrame(Opcode.GET_FAILOVER_LOG, vbucket=place.vbucket)])
        if answer.status:
            raise NotNow(f"vBucket {place.vbucket} at {session.place}: {answer.reason}")
        return session.decoder.log(answer, place.vbucket)

    def _tell_branch(self, place: VBucketPlace) -> Task:
        lost = place.lost or (0, 0)
        if place.lost or place.log[0].uuid != place.followed:
            known, place.followed = place.followed, place.log[0].uuid
            place.lost = None
            if known:
                yield from awaited(self._handler.branch(place.vbucket, place.followed, *lost))

    def _nonsense(self, session: NodeSession, place: VBucketPlace, what: str) -> ProducerError:
        return ProducerError(
            f"the node at {session.place} sent nonsense: vBucket {place.vbucket}: {what}. Nothing "
            "was undone; what is saved is intact. Look at the node's version and log, then start "
            "again"
        )


def awaited(result: Any) -> Task:
    """Return what a handler returned, having waited for it if it is something to wait for."""
    if result is None or result is True or result is False:
        return result
    return (yield result)


# --- documents ------------------------------------------------------------------------------------
# Documents as a node has them now, with the seqnos of their versions: what an undo puts back.
#
# A node of ours is asked by GET_VERSION, which tells a version's seqno, of a deletion, too. Another
# one is asked by GET and GET_META; then every version may be as new as the vBucket is.
#
# See `docs/protocol.md`.


class KnownVersion(NamedTuple):
    """One key's newest version: its seqno, and the document.

    Of a key that never was the seqno is that of the newest deletion which the node has dropped, for
    it may be this key's; 0 if there was none.
    """

    seqno: int
    document: Document | None


def fetch(session: NodeSession, vbucket: int, keys: Sequence[bytes]) -> Task:
    """Return the newest `KnownVersion` of each key, in order.

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
    answers = yield Ask([question(vbucket, key) for key in keys])
    session.has_versions = all(answer.status != Status.UNKNOWN_COMMAND for answer in answers)
    if not session.has_versions:
        return None
    try:
        return [_version(key, answer) for key, answer in zip(keys, answers, strict=True)]
    except UndoRefused as refusal:
        raise _refused(refusal.answer) from None


def _version(key: bytes, answer: ResponseFrame) -> KnownVersion:
    found = version(key, answer)
    item = found.item
    if item is None or item.value is None:
        return KnownVersion(found.seqno, None)
    document = Document(key, item.value, item.rev, item.cas, item.flags, item.expiry, item.datatype)
    return KnownVersion(found.seqno, document)


def _by_meta(session: NodeSession, vbucket: int, keys: Sequence[bytes]) -> Task:
    found: dict[bytes, Document | None] = {}
    for _ in range(_ATTEMPTS_MAX):
        missing = [key for key in keys if key not in found]
        if not missing:
            high_seqno = yield from _high_seqno(session, vbucket, VBucketState.ACTIVE)
            if high_seqno is None:
                raise NotNow(f"vBucket {vbucket} is not active at {session.place}")
            return [KnownVersion(high_seqno, found[key]) for key in keys]
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


def _high_seqno(session: NodeSession, vbucket: int, state: int) -> Task:
    """Return how far a vBucket is, ``None`` = the node does not say that it is in this state."""
    (answer,) = yield Ask([seqnos_request(state)])
    try:
        rows = [] if answer.status else seqno_rows(answer.value, knows_terms=session.knows_terms)
    except RemoteProtocolError:
        words = f"the node at {session.place} sent a torn list of seqnos"
        raise ProducerError(words) from None
    return next((seqno for number, seqno, _ in rows if number == vbucket), None)


def _found(answer: ResponseFrame) -> bool:
    if answer.status not in (Status.SUCCESS, Status.KEY_NOT_FOUND):
        raise _refused(answer)
    return answer.status == Status.SUCCESS


def _refused(answer: ResponseFrame) -> NotNow:
    return NotNow(f"a document was refused: {answer.reason}")


def _question(opcode: int, vbucket: int, key: bytes, extras: bytes = b"") -> RequestFrame:
    return RequestFrame(opcode, key=key, vbucket=vbucket, extras=extras)
