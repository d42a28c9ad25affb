"""Waiting until a target has on its disk what it has acknowledged of a vBucket.

A target that is killed forgets what was acknowledged and not yet written. What is only known here,
and not sent again, must not count before it is written there.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.errors import RemoteProtocolError
from uprmc.protocol.binary import decode_observe_seqno
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import Status, status_text
from uprmc.remote.retry import Backoff, RetryPolicy
from uprmc.xdcr.run import Run
from uprmc.xdcr.target import Target

#: A node that answers so does not know the question.
_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})

#: Waits between two questions. The first question makes a node of ours write at once.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 1.0


class UntilDurable:
    """Asks again and again, for `kv.persistence_timeout_s` at most; it ends with the connection."""

    def __init__(self, run: Run, target: Target, number: int, done: Callable[[str], None]) -> None:
        """Begin to wait for what the target has acknowledged until now.

        Args:
            run: of the link.
            target: the connection by which it was acknowledged.
            number: of the vBucket.
            done: called with an empty text, or with why it is not known. A node that cannot say
                how far its disk is counts as durable. Never called if the connection ends.
        """
        self._run = run
        self._target = target
        self._number = number
        self._done = done
        self._clock = run.hub.bucket.clock
        self._policy = RetryPolicy(
            Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S),
            self._clock.monotonic(),
            patience_s=run.hub.bucket.settings.kv.persistence_timeout_s,
        )
        held = None if target.held is None else target.held.get(number)
        self._uuid = 0 if held is None else held.uuid
        self._upto = 0
        if self._uuid:
            self._ask()
        else:
            done("")

    def _ask(self) -> None:
        if not self._target.closing:
            self._target.observe(self._number, self._uuid, self._observed)

    def _observed(self, reply: ResponseFrame) -> None:
        if reply.status in _UNKNOWN:
            self._done("")
            return
        if reply.status:
            self._done(f"its disk cannot be observed: {status_text(reply.status)}")
            return
        try:
            found = decode_observe_seqno(reply.value)
        except RemoteProtocolError as error:
            self._done(str(error))
            return
        self._upto = self._upto or found.current_seqno
        if not found.same_history:
            self._done("the vBucket has another history there now")
        elif found.persisted_seqno >= self._upto:
            self._done("")
        else:
            self._wait()

    def _wait(self) -> None:
        wait_s = self._policy.wait_s(self._clock.monotonic())
        if wait_s is None:
            self._done("what was deleted does not reach its disk")
        else:
            self._run.world.later(wait_s, self._ask)
