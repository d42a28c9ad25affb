"""The wait of SEQNO_PERSISTENCE: one conversation pauses until a seqno is on disk.

It checks after each flush, and now and then by the clock, which also ends the wait. A seqno that
has not been assigned yet is waited for too; replicas are asked for those.
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
        """Answer if the seqno is on disk; otherwise arrange for another check."""
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
        """Check again, and time out eventually; the time begins at the first tick."""
        session, vbucket = self._session, self._vbucket
        if session is None:
            return
        if self._deadline is None:
            self._deadline = now + session.services.settings.persistence_timeout_s
        self.look()
        if now >= self._deadline or vbucket.state == VBucketState.DEAD:
            self._answer(Status.TEMPORARY_FAILURE)

    def abandon(self) -> None:
        """Release the conversation, because it no longer waits."""
        self._session = None
        self._vbucket.unwatch(self)

    def changed(self) -> None:
        """Check again: the vBucket has a new seqno."""
        self.look()

    def interrupted(self, why: Interruption) -> None:
        """Do nothing yet: the next tick checks the state of the vBucket."""

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
