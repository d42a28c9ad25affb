"""Taking a vBucket back to what it shares with its source, without starting over.

The source says to what seqno. The procedure is that of `remote.undo`; the versions that come back
are what was overwritten (`engine.rewind`), and are put in place all at once in the end.

Anything that speaks against it (a source that has no GET_VERSION, too many keys, too little memory,
damaged records here) makes the vBucket start over; that is always right, but costs much. What
changed meanwhile makes us ask for the stream again, which brings a new decision of the source.

Row D13.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from uprmc.engine.replica import Rewind, lost_keys, roll_back, target
from uprmc.errors import InvalidArguments, RemoteProtocolError, StoreError
from uprmc.model import SEQNO_MAX, FailoverLog, Item
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import DataType, Opcode, Status
from uprmc.protocol.upr import decode_term
from uprmc.remote.undo import Task, UndoRefused, question, undo, version
from uprmc.rollback import shared_until
from uprmc.storage.interface import DamagedRecords
from uprmc.upr.intake import ReplicaStream

if TYPE_CHECKING:
    from uprmc.upr.receiver import Receiver

#: At most this many vBuckets of a connection are taken back at the same time; others wait.
_AT_ONCE = 8

#: At most this many questions of a connection wait for their answers.
_AHEAD = 256

#: What a decoded version takes beside its key and value, roughly.
_HELD_ITEM_BYTES = 280

#: Versions that wait to be put to use may take this share of the memory quota, however full it is.
_LEAST_SHARE = 0.1

_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})


class UndoDesk:
    """The rollbacks of one connection: some at a time, with common limits."""

    def __init__(self) -> None:
        self.asked = 0  # questions without an answer
        self.held_bytes = 0  # what versions take that came and are not put to use yet
        self._running: dict[ReplicaStream, Undo] = {}
        self._waiting: dict[ReplicaStream, Undo] = {}

    def begin(self, stream: ReplicaStream, undo: Undo) -> None:
        """Start it, now or when its turn comes."""
        self._waiting[stream] = undo
        self._next()

    def forget(self, stream: ReplicaStream) -> None:
        """Go on without a stream: it has ended, or what it asked for has come."""
        self._waiting.pop(stream, None)
        undo = self._running.pop(stream, None)
        if undo is not None:
            undo.finish()
            self._next()

    def pump(self) -> None:
        """Ask as many questions as the limit allows."""
        for each in list(self._running.values()):
            while self.asked < _AHEAD and each.ask_for_one():
                self.asked += 1

    def close(self) -> None:
        """Forget all of them."""
        for each in [*self._running.values(), *self._waiting.values()]:
            each.finish()
        self._running.clear()
        self._waiting.clear()

    def _next(self) -> None:
        while self._waiting and len(self._running) < _AT_ONCE:
            stream = next(iter(self._waiting))
            undo = self._running[stream] = self._waiting.pop(stream)
            undo.start()


class _TooMuch(Exception):
    """It cannot be undone, or not within the limits."""


class Undo:
    """One vBucket is taken back. See the module docstring."""

    def __init__(self, receiver: Receiver, stream: ReplicaStream, seqno: int) -> None:
        """Prepare it: `stream` was sent back to `seqno`, which is above 0."""
        self._receiver = receiver
        self._stream = stream
        self._seqno = seqno
        self._procedure = self._run()
        self._questions: deque[tuple[int, RequestFrame]] = deque()
        self._answers: dict[int, ResponseFrame] = {}
        self._unanswered = 0
        self._finished = False
        self._term = 0
        self._high_seqno = 0
        self._held_bytes = 0
        self._versions: list[Item] = []
        self._later_seqno = 0
        self._purge_seqno = 0

    def start(self) -> None:
        """Begin by asking for the failover log."""
        self._go_on(partial(next, self._procedure))

    def finish(self) -> None:
        """Ask for nothing more; what still comes is dropped."""
        self._finished = True
        self._questions.clear()
        self._procedure.close()
        self._hold(-self._held_bytes)

    # --- questions and answers ------------------------------------------------------------------

    def _go_on(self, step: Callable[[], Sequence[RequestFrame]]) -> None:
        """Let the procedure take a step, and ask what it wants to know then, or do as it says."""
        try:
            frames = step()
        except StopIteration as end:
            conclude = end.value
        else:
            self._ask(frames)
            return
        self._receiver.undos.forget(self._stream)
        conclude()

    def _ask(self, frames: Sequence[RequestFrame]) -> None:
        self._questions.extend(enumerate(frames))
        self._answers.clear()
        self._unanswered = len(frames)
        self._receiver.undos.pump()

    def ask_for_one(self) -> bool:
        """Ask the next question; says whether there is one."""
        if not self._questions:
            return False
        place, asked = self._questions.popleft()
        self._receiver.ask(
            asked.opcode,
            partial(self._came, place),
            vbucket=asked.vbucket,
            extras=asked.extras,
            key=asked.key,
        )
        return True

    def _came(self, place: int, answer: ResponseFrame) -> None:
        undos = self._receiver.undos
        undos.asked -= 1
        if not self._finished:
            self._take(place, answer)
        undos.pump()

    def _take(self, place: int, answer: ResponseFrame) -> None:
        """Note an answer; the procedure goes on with the last one, or at once with a bad one."""
        self._answers[place] = answer
        self._hold(len(answer.value))
        self._unanswered -= 1
        if answer.status not in (Status.SUCCESS, Status.KEY_NOT_FOUND):
            self._go_on(partial(self._procedure.throw, UndoRefused(answer)))
        elif self._receiver.undos.held_bytes > self._room():
            self._go_on(partial(self._procedure.throw, _TooMuch()))
        elif not self._unanswered:
            answers = [self._answers[each] for each in range(len(self._answers))]
            self._go_on(partial(self._procedure.send, answers))

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._receiver.undos.held_bytes += size

    def _room(self) -> int:
        account = self._receiver.hub.bucket.account
        return max(account.mutation_limit - account.used, int(account.quota * _LEAST_SHARE))

    # --- the procedure --------------------------------------------------------------------------

    def _run(self) -> Task:
        """Undo; returns what is to be done then."""
        receiver, stream = self._receiver, self._stream
        try:
            undone = yield from undo(self._log, self._keys_above, self._fetch, portion=_AHEAD)
        except _TooMuch:
            return partial(receiver.start_over, stream)
        except UndoRefused as refusal:
            answer = refusal.answer
            if answer.opcode == Opcode.GET_VERSION and answer.status in _UNKNOWN:
                return partial(receiver.start_over, stream)
            return partial(self._refuse, answer.status, f"the source answers: {refusal}")
        except DamagedRecords:
            return partial(receiver.start_over, stream)
        except StoreError:
            return self._refuse_unreadable
        if undone is None or stream.vbucket.high_seqno != self._high_seqno:
            return partial(receiver.request, stream)  # history changed, or another one fills it too
        return partial(self._roll_back, undone.log)

    def _log(self) -> Task:
        number = self._stream.vbucket.id
        (answer,) = yield [RequestFrame(Opcode.UPR_GET_FAILOVER_LOG, vbucket=number)]
        if answer.status:
            raise UndoRefused(answer)
        self._term = decode_term(answer.extras)
        return self._receiver.read_log(answer.value)

    def _keys_above(self, log: FailoverLog) -> list[bytes] | None:
        hub, vbucket = self._receiver.hub, self._stream.vbucket
        self._seqno = target(vbucket, self._seqno)
        high = self._high_seqno = vbucket.high_seqno
        shared = shared_until(log, SEQNO_MAX, vbucket.failover_log, high)
        if shared is None or shared < self._seqno:
            return None
        keys = lost_keys(hub.bucket, vbucket, self._seqno, hub.settings.rollback_keys)
        if keys is None:
            raise _TooMuch
        return keys

    def _fetch(self, keys: Sequence[bytes]) -> Task:
        number = self._stream.vbucket.id
        answers = yield [question(number, key, self._seqno) for key in keys]
        for key, answer in zip(keys, answers, strict=True):
            self._hold(-len(answer.value))
            found = version(key, answer, DataType.JSON)
            if found.item is None:
                self._purge_seqno = max(self._purge_seqno, found.seqno)
            elif found.seqno > self._seqno:
                self._later_seqno = max(self._later_seqno, found.seqno)
            else:
                self._versions.append(found.item)
                self._hold(len(key) + len(answer.value) + _HELD_ITEM_BYTES)
        if self._receiver.undos.held_bytes > self._room():
            raise _TooMuch

    # --- how it ends ----------------------------------------------------------------------------

    def _roll_back(self, log: FailoverLog) -> None:
        receiver, stream = self._receiver, self._stream
        bucket, vbucket = receiver.hub.bucket, stream.vbucket
        rewind = Rewind(
            self._seqno, log, self._versions, self._later_seqno, self._purge_seqno, self._term
        )
        try:
            stream.change_state(
                lambda: roll_back(bucket, vbucket, rewind, lambda _: receiver.request(stream))
            )
        except InvalidArguments as error:
            raise RemoteProtocolError(f"vBucket {vbucket.id}: {error}") from None
        except DamagedRecords:
            receiver.start_over(stream)
        except StoreError:
            self._refuse_unreadable()

    def _refuse_unreadable(self) -> None:
        self._refuse(Status.TEMPORARY_FAILURE, "what is on disk here cannot be read")

    def _refuse(self, status: int, why: str) -> None:
        self._receiver.refused(self._stream, status, f"it cannot be rolled back: {why}")
