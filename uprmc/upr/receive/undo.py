"""Taking a vBucket back to what it shares with its source, without starting over.

The source says to what seqno. Every key that has a version above it here is asked for there, one by
one; the versions that come back are what was overwritten (`engine.rewind`). The source's failover
log is read before and after: as long as it is the same one, all versions are of one history.

Anything that speaks against it (a source that has no GET_VERSION, too many keys, too little memory)
makes the vBucket start over; that is always right, only dear. What changed meanwhile makes us ask
for the stream again, which brings a new decision of the source.

Source: design, decision 10; UPR reference 3.4; row D13.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from uprmc.consume.undo import question, version
from uprmc.engine.memory_account import ITEM_OVERHEAD_BYTES
from uprmc.engine.rewind import Rewind, lost_keys, roll_back, target
from uprmc.errors import InvalidArguments, RemoteProtocolError, StoreError
from uprmc.model import SEQNO_MAX, FailoverEntry, Item
from uprmc.protocol.opcodes import DataType, Opcode, Status
from uprmc.protocol.upr import decode_term
from uprmc.rollback import shared_until
from uprmc.upr.hub import Hub
from uprmc.upr.peer import Reply
from uprmc.upr.receive.replica_stream import ReplicaStream

#: So many vBuckets of a connection are taken back at the same time, others wait.
_AT_ONCE = 8

#: So many documents a connection asks for ahead of the answers.
_AHEAD = 256

#: Versions that wait to be put to use may take this share of the memory quota, however full it is.
_LEAST_SHARE = 0.1

_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})


class UndoDesk:
    """The rollbacks of one connection: some at a time, with common limits.

    Attributes:
        asked: documents that were asked for and have not come.
        held_bytes: what versions take that came and are not put to use yet.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.held_bytes = 0
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
        """Ask for as many documents as the limit allows."""
        for undo in list(self._running.values()):
            while self.asked < _AHEAD and undo.ask_for_one():
                self.asked += 1

    def close(self) -> None:
        """Forget all of them."""
        self._running.clear()
        self._waiting.clear()

    def _next(self) -> None:
        while self._waiting and len(self._running) < _AT_ONCE:
            stream = next(iter(self._waiting))
            undo = self._running[stream] = self._waiting.pop(stream)
            undo.start()


class Filler(Protocol):
    """Who fills vBuckets, as far as it is needed here; see `Receiver`."""

    hub: Hub
    undos: UndoDesk

    def ask(
        self,
        opcode: int,
        answered: Callable[[Reply], None],
        *,
        vbucket: int = 0,
        extras: bytes = b"",
        key: bytes = b"",
    ) -> None:
        """Send a request; `answered` gets the reply."""

    def read_log(self, value: bytes) -> tuple[FailoverEntry, ...]:
        """Read a failover log; raises `RemoteProtocolError`."""

    def request(self, stream: ReplicaStream) -> None:
        """Ask for a stream, once what was rolled back is on disk."""

    def start_over(self, stream: ReplicaStream) -> None:
        """Forget what the vBucket holds and ask for all of it."""

    def refused(self, stream: ReplicaStream, status: int, why: str) -> None:
        """Learn that a stream cannot begin."""


class Undo:
    """One vBucket is taken back. See the module docstring."""

    def __init__(self, receiver: Filler, stream: ReplicaStream, seqno: int) -> None:
        """Prepare it: `stream` was sent back to `seqno`, which is above 0."""
        self._receiver = receiver
        self._stream = stream
        self._seqno = seqno
        self._finished = False
        self._log: tuple[FailoverEntry, ...] = ()
        self._term = 0
        self._high_seqno = 0
        self._keys: deque[bytes] = deque()
        self._unanswered = 0
        self._held_bytes = 0
        self._versions: list[Item] = []
        self._later_seqno = 0
        self._purge_seqno = 0

    def start(self) -> None:
        """Begin by asking for the failover log."""
        self._ask_for_log(self._log_came)

    def finish(self) -> None:
        """Ask for nothing more; what still comes is dropped."""
        self._finished = True
        self._keys.clear()
        self._receiver.undos.held_bytes -= self._held_bytes
        self._held_bytes = 0

    # --- the log, before and after --------------------------------------------------------------

    def _ask_for_log(self, answered: Callable[[Reply], None]) -> None:
        number = self._stream.vbucket.id
        self._receiver.ask(Opcode.UPR_GET_FAILOVER_LOG, answered, vbucket=number)

    def _log_came(self, reply: Reply) -> None:
        if self._finished:
            return
        if reply.status:
            self._give_up(reply.status, "its failover log")
            return
        vbucket = self._stream.vbucket
        self._log = self._receiver.read_log(reply.value)
        self._term = decode_term(reply.extras)
        self._seqno = target(vbucket, self._seqno)
        high = self._high_seqno = vbucket.high_seqno
        shared = shared_until(self._log, SEQNO_MAX, vbucket.failover_log, high)
        if shared is None or shared < self._seqno:
            self._ask_for_stream()  # its history has changed since it sent us back
        else:
            self._look_for_lost_keys()

    def _look_for_lost_keys(self) -> None:
        hub = self._receiver.hub
        limit = hub.settings.rollback_keys
        try:
            keys = lost_keys(hub.bucket, self._stream.vbucket, self._seqno, limit)
        except StoreError:
            self._give_up(Status.TEMPORARY_FAILURE, "what is on disk here")
            return
        if keys is None:
            self._start_over()
            return
        self._keys.extend(keys)
        self._receiver.undos.pump()
        if not keys:
            self._roll_back()

    def _log_came_again(self, reply: Reply) -> None:
        if self._finished:
            return
        if reply.status:
            self._give_up(reply.status, "its failover log")
        elif self._receiver.read_log(reply.value) == self._log:
            self._term = decode_term(reply.extras)
            self._roll_back()
        else:
            self._ask_for_stream()

    # --- the versions ---------------------------------------------------------------------------

    def ask_for_one(self) -> bool:
        """Ask for the next document; says whether there is one."""
        if not self._keys:
            return False
        key = self._keys.popleft()
        self._unanswered += 1
        asked = question(self._stream.vbucket.id, key, self._seqno)
        self._receiver.ask(
            asked.opcode,
            partial(self._version_came, key),
            vbucket=asked.vbucket,
            extras=asked.extras,
            key=key,
        )
        return True

    def _version_came(self, key: bytes, reply: Reply) -> None:
        undos = self._receiver.undos
        self._unanswered -= 1
        undos.asked -= 1
        if not self._finished:
            self._note(key, reply)
        undos.pump()
        if not (self._finished or self._keys or self._unanswered):
            self._ask_for_log(self._log_came_again)

    def _note(self, key: bytes, reply: Reply) -> None:
        found = version(key, reply, DataType.JSON)
        if found is None:
            if reply.status in _UNKNOWN:
                self._start_over()
            else:
                self._give_up(reply.status, f"the version of {key!r}")
        elif found.item is None:
            self._purge_seqno = max(self._purge_seqno, found.seqno)
        elif found.seqno > self._seqno:
            self._later_seqno = max(self._later_seqno, found.seqno)
        else:
            self._keep(found.item)

    def _keep(self, item: Item) -> None:
        self._versions.append(item)
        size = len(item.key) + len(item.value or b"") + ITEM_OVERHEAD_BYTES
        self._held_bytes += size
        undos, account = self._receiver.undos, self._receiver.hub.bucket.account
        undos.held_bytes += size
        room = max(account.mutation_limit - account.used, int(account.quota * _LEAST_SHARE))
        if undos.held_bytes > room:
            self._start_over()

    # --- how it ends ----------------------------------------------------------------------------

    def _finish(self) -> None:
        self._receiver.undos.forget(self._stream)

    def _roll_back(self) -> None:
        receiver, stream = self._receiver, self._stream
        bucket, vbucket = receiver.hub.bucket, stream.vbucket
        self._finish()
        if vbucket.high_seqno != self._high_seqno:
            receiver.request(stream)  # somebody else fills it, too
            return
        rewind = Rewind(
            self._seqno,
            self._log,
            self._versions,
            self._later_seqno,
            self._purge_seqno,
            self._term,
        )
        try:
            stream.change_state(
                lambda: roll_back(bucket, vbucket, rewind, lambda _: receiver.request(stream))
            )
        except InvalidArguments as error:
            raise RemoteProtocolError(f"vBucket {vbucket.id}: {error}") from None
        except StoreError:
            self._tell_refused(Status.TEMPORARY_FAILURE, "what is on disk here")

    def _ask_for_stream(self) -> None:
        self._finish()
        self._receiver.request(self._stream)

    def _start_over(self) -> None:
        self._finish()
        self._receiver.start_over(self._stream)

    def _give_up(self, status: int, what: str) -> None:
        self._finish()
        self._tell_refused(status, what)

    def _tell_refused(self, status: int, what: str) -> None:
        why = f"it cannot be rolled back: {what} is not to be had ({status_text(status)})"
        self._receiver.refused(self._stream, status, why)


def status_text(status: int) -> str:
    """Return a status as words."""
    try:
        return Status(status).name.lower().replace("_", " ")
    except ValueError:
        return f"status {status:#x}"
