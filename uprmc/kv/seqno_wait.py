"""SEQNO_PERSISTENCE's wait: one conversation stands still until a seqno is on disk.

It looks after each flush, and once in a while by the clock: that is also when it gives up. A seqno
that is not even there yet is waited for too; replicas are asked so.
"""

from __future__ import annotations

from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.kv.binary_conversation import BinaryConversation, Request
from uprmc.model import VBucketState
from uprmc.protocol.opcodes import Status


class SeqnoWait:
    """One wait; see the module docstring. Implements `Pending` and `Watcher`."""

    __slots__ = ("_asked", "_deadline", "_request", "_seqno", "_session", "_vbucket")

    def __init__(
        self, session: BinaryConversation, request: Request, vbucket: VBucket, seqno: int
    ) -> None:
        self._session: BinaryConversation | None = session
        self._request = request
        self._vbucket = vbucket
        self._seqno = seqno
        self._asked = False
        self._deadline: float | None = None

    def look(self) -> None:
        """Answer if the seqno is on disk, or see to it that somebody tells when to look again."""
        session, vbucket = self._session, self._vbucket
        if session is None:
            return
        flusher = session.bucket.flusher
        if flusher.durable_seqno(vbucket) >= self._seqno:
            self._answer(Status.SUCCESS)
        elif vbucket.high_seqno < self._seqno:
            if self not in vbucket.waiting:
                vbucket.waiting.append(self)
        elif not self._asked and not flusher.paused:
            self._asked = True
            flusher.when_durable(self._flushed)

    def tick(self, now: float) -> None:
        """Look again, and give up in the end; the time begins to count at the first tick."""
        session, vbucket = self._session, self._vbucket
        if session is None:
            return
        if self._deadline is None:
            self._deadline = now + session.services.settings.persistence_timeout_s
        self.look()
        if now >= self._deadline or vbucket.state == VBucketState.DEAD:
            self._answer(Status.TEMPORARY_FAILURE)

    def abandon(self) -> None:
        """Nobody waits any more: let go of the conversation."""
        self._session = None
        self._vbucket.unwatch(self)

    def changed(self) -> None:
        """Look again: the vBucket has a new seqno."""
        self.look()

    def interrupted(self, why: Interruption) -> None:
        """Nothing yet: the next tick sees what has become of the vBucket."""

    def _flushed(self, _durable: bool) -> None:
        self._asked = False
        self.look()

    def _answer(self, status: Status) -> None:
        session = self._session
        if session is None:
            return
        self.abandon()
        session.reply(self._request, status)
        session.resume()
