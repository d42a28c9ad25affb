"""Deletes at the target what was deleted here, after the deletions themselves were purged.

A document of the target that this node does not have was deleted here, if it was first accepted
here: every version that was accepted up to the present high seqno of this history has been in the
vBucket, so if it has gone without a tombstone, that was purged. A document that was first accepted
elsewhere is a change that this node may not know, and is kept.

The target deletes a document only if it still has the CAS that was read. The deletion has a
revision above the document's, at least that of each deletion that was purged here, and the
document's origin: so no link sends it back here, and a document that is created here again wins.

vBuckets are compared one after the other. One is repaired when its deletions are on the target's
disk, because nothing sends them again to a target that has lost them. Of each, what is in memory is
what `FarDocuments` hands over at a time. If a connection is lost, the vBucket is begun again when
the link is connected.

Rows X06 and X08.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from uprmc.engine.tombstones import shown
from uprmc.engine.vbucket import VBucket
from uprmc.errors import NotResident, RemoteProtocolError, TemporaryFailure
from uprmc.model import SEQNO_MAX, FailoverLog, Origin
from uprmc.ports import Dialled, Session
from uprmc.protocol.binary import decode_observe_seqno
from uprmc.protocol.header import Frame, RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode, Status, StreamFlag, status_text
from uprmc.protocol.origins import ORIGIN_META, ORIGIN_META_BYTES, ORIGIN_META_HEAD, decode_origin
from uprmc.protocol.upr import MUTATION_EXTRAS, STREAM_END_EXTRAS, StreamRequest
from uprmc.record import KIND_AT, LIFE_BITS
from uprmc.remote import features
from uprmc.remote.conversation import acknowledgement
from uprmc.remote.login import Login
from uprmc.remote.ranges import named
from uprmc.remote.requests import IN_TIME
from uprmc.remote.retry import Backoff, RetryPolicy
from uprmc.rollback import ends_of_branches
from uprmc.xdcr.reading import PREFIX
from uprmc.xdcr.target import Target, TargetSession

if TYPE_CHECKING:
    from uprmc.xdcr.link import Link

# --- compared -------------------------------------------------------------------------------------
# What a reconciliation has found in one vBucket, however often it had to begin with it.
#
# What was deleted at the target is not read there again, so it goes on counting. So does a deletion
# whose answer was lost with the connection, if the document is not there the next time.


@dataclass(slots=True)
class ReconciledVBucket:
    """What became of one vBucket."""

    vbucket: int  # its number
    documents: int = 0  # documents that the target has
    deleted: int = 0  # of these, those that were deleted there, or would be
    kept: int = 0  # those that this node does not have and that were first accepted elsewhere
    # those that were changed or deleted at the target meanwhile, and so left alone.
    changed: int = 0
    # the first keys of those that were deleted, or would be.
    keys: list[str] = field(default_factory=list)


class ReconcileTally:
    """The findings of a reconciliation in one vBucket."""

    def __init__(self, number: int, listed_keys: int) -> None:
        self.row = ReconciledVBucket(number)
        self.unanswered: set[bytes] = set()  # keys of deletions that the target was sent
        self._listed_keys = listed_keys
        self._doubtful: set[bytes] = set()
        self._history = 0
        self._most = 0

    @property
    def has_deleted(self) -> bool:
        """Whether the target was sent deletions that it has carried out, perhaps or certainly."""
        return bool(self.row.deleted or self._doubtful)

    def begin(self, history: int, *, dry_run: bool) -> None:
        """Begin, perhaps again; a target with another history may have all its documents again.

        Args:
            history: uuid of the newest branch of the vBucket at the target.
            dry_run: nothing is deleted.
        """
        row = self.row
        if dry_run or history != self._history:
            self.row = ReconciledVBucket(row.vbucket)
            self._doubtful.clear()
        else:
            row.documents, row.kept, row.changed = row.deleted, 0, 0
        self._history = history

    def read(self, keys: Collection[bytes]) -> bool:
        """Count documents of the target; return whether there are more than ever before."""
        self._doubtful.difference_update(keys)
        self.row.documents += len(keys)
        more = self.row.documents > self._most
        self._most = max(self._most, self.row.documents)
        return more

    def deleted(self, key: bytes) -> None:
        """Count a document that was deleted, or would be."""
        self.row.deleted += 1
        if len(self.row.keys) < self._listed_keys:
            self.row.keys.append(shown(key) or "")

    def lose_answers(self) -> None:
        """Take note that the connection was lost."""
        self._doubtful |= self.unanswered
        self.unanswered.clear()

    def finish(self) -> ReconciledVBucket:
        """Count what is not there any more, and return what was found."""
        self.row.documents += len(self._doubtful)
        for key in sorted(self._doubtful):
            self.deleted(key)
        return self.row


# --- far documents --------------------------------------------------------------------------------
# Reads which documents the target has, and where each was first accepted: one vBucket at a time.
#
# It is an ordinary UPR stream without values, from zero up to what the vBucket has when it begins.
# What was read is acknowledged only when the owner is through with it, so no more than
# `BUFFER_BYTES` of a vBucket are in memory.


#: As much as is read in one turn at most.
BUFFER_BYTES = 16 * 1024

_FLAGS = int(StreamFlag.LATEST | StreamFlag.ACTIVE_ONLY)


class FarDocument(NamedTuple):
    """A document of the target."""

    key: bytes
    rev: int
    cas: int
    origin: Origin | None  # where the version was first accepted; ``None`` = at the target


class FarDocuments(TargetSession):
    """A connection that reads the keys of one node of the target.

    It is not that of the link: flow control would hold up what the link sends as well.
    """

    def __init__(
        self,
        place: str,
        owner: Reconciliation,
        link: Link,
        login: Login | None,
        wake: Callable[[], None],
    ) -> None:
        self._owner = owner
        # Links of other nodes may have the same name.
        self._name = PREFIX + f"{link.spec.name}:{link.spec.id}:reconcile".encode()
        self._stream = 0
        self._documents: list[FarDocument] = []
        self._unacknowledged = 0
        self._owner_is_busy = self._ended = self._hung_up = False
        handshake = features.COMPARER
        super().__init__(place, handshake.features, login, link.bucket.settings, link.clock, wake)

    # --- the handshake --------------------------------------------------------------------------

    def _welcomed(self) -> None:
        handshake = features.COMPARER
        self._shake(handshake.open(self._name))
        for control in handshake.controls(buffer_bytes=BUFFER_BYTES):
            self._shake(control)

    def _shake(self, asked: RequestFrame) -> None:
        def answered(reply: ResponseFrame) -> None:
            if features.COMPARER.is_fatal(asked, reply.status):
                why = "it tells no origins of documents, so nothing can be compared"
                if reply.status == Status.ACCESS_DENIED:
                    why = f"it refuses: {reply.reason}"
                self._fail(why, final=True)
            elif asked.key == features.COMPARER.asks[-1]:
                self._owner.ready(self)

        self._ask(asked.opcode, answered, extras=asked.extras, key=asked.key, value=asked.value)

    # --- a vBucket ------------------------------------------------------------------------------

    def read(self, number: int) -> None:
        """Begin with a vBucket; the one before is done."""
        request = StreamRequest(_FLAGS, 0, SEQNO_MAX, 0, 0, 0)
        self._ended = False
        self._stream = self._ask(
            Opcode.UPR_STREAM_REQUEST, self._begun, vbucket=number, extras=request.encode()
        )

    def _begun(self, reply: ResponseFrame) -> None:
        if reply.status:
            self._fail(f"it does not let its vBucket be read: {reply.reason}")

    def go_on(self) -> None:
        """Take note that the owner is through with what it was given."""
        self._owner_is_busy = False
        if not self.closing:
            self._acknowledge()
            self._hand_over()

    def receive_data(self, data: bytes) -> None:
        """See `ports.Session`."""
        super().receive_data(data)
        if not self.closing:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._owner_is_busy or not (self._documents or self._ended):
            if not self._owner_is_busy:
                self._acknowledge()
            return
        documents, self._documents = self._documents, []
        done, self._ended = self._ended, False
        self._owner_is_busy = True
        self._owner.take(self, documents, done=done)

    def _acknowledge(self) -> None:
        size, self._unacknowledged = self._unacknowledged, 0
        if size:
            self._frames.append(acknowledgement(size))
            self.wake()

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, ResponseFrame):
            super()._take(frame)
            return
        if frame.opcode in _COUNTED:
            size = HEADER_BYTES + len(frame.extras) + len(frame.key) + len(frame.value)
            self._unacknowledged += size
        if frame.opaque != self._stream:
            super()._take(frame)
        elif frame.opcode == Opcode.UPR_MUTATION:
            self._documents.append(_document(frame))
        elif frame.opcode == Opcode.UPR_STREAM_END:
            (reason,) = STREAM_END_EXTRAS.unpack(frame.extras)
            if reason:
                self._fail("its vBucket has moved or has changed its history meanwhile")
            self._ended = True

    # --- the end --------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """See `TargetSession`; nothing more comes."""
        self._hung_up = True
        super().hang_up()

    def _fail(self, why: str, *, final: bool = False) -> None:
        self.hang_up()
        self._owner.far_failed(self.place, why, final=final)

    def _lost(self) -> None:
        if not self._hung_up:
            self._owner.far_failed(self.place, "the connection is lost")


#: Frames that flow control counts.
_COUNTED = frozenset(
    {
        Opcode.UPR_SNAPSHOT_MARKER,
        Opcode.UPR_MUTATION,
        Opcode.UPR_DELETION,
        Opcode.UPR_EXPIRATION,
        Opcode.UPR_STREAM_END,
    }
)


def _document(frame: RequestFrame) -> FarDocument:
    """Read a mutation; raises `RemoteProtocolError`."""
    if len(frame.extras) != MUTATION_EXTRAS.size:
        raise RemoteProtocolError(f"a mutation with {len(frame.extras)} bytes of extras")
    _, rev, _, _, _, nmeta, _ = MUTATION_EXTRAS.unpack(frame.extras)
    meta = frame.value[len(frame.value) - nmeta :] if nmeta else b""
    if len(meta) == ORIGIN_META_BYTES and meta.startswith(ORIGIN_META_HEAD):
        origin: Origin | None = Origin(*ORIGIN_META.unpack(meta)[3:])
    else:
        origin = decode_origin(meta)
    return FarDocument(frame.key, rev, frame.cas, origin)


# --- durable --------------------------------------------------------------------------------------
# Waiting until a target has on its disk what it has acknowledged of a vBucket.
#
# A target that is killed forgets what was acknowledged and not yet written. What is only known
# here, and not sent again, must not count before it is written there.


#: A node that answers so does not know the question.
_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})

#: Waits between two questions. The first question makes a node of ours write at once.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 1.0


class _UntilDurable:
    """Asks again and again, for `kv.persistence_timeout_s` at most; it ends with the connection."""

    def __init__(
        self, link: Link, target: Target, number: int, done: Callable[[str], None]
    ) -> None:
        """Begin to wait for what the target has acknowledged until now.

        `done` is called with an empty text, or with why it is not known. A node that cannot say how
        far its disk is counts as durable. It is never called if the connection ends.
        """
        self._link = link
        self._target = target
        self._number = number
        self._done = done
        self._clock = link.clock
        self._policy = RetryPolicy(
            Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S),
            self._clock.monotonic(),
            patience_s=link.bucket.settings.kv.persistence_timeout_s,
        )
        there = None if target.active is None else target.active.get(number)
        self._uuid = 0 if there is None else there.uuid
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
            self._link.world.later(wait_s, self._ask)


# --- reconcile ------------------------------------------------------------------------------------


#: VBuckets that are shown at a time.
SHOWN_AT_ONCE = 16

#: How often a document that is refused for now is tried again, and after how many seconds.
_TRIES, _PAUSE_S = 100, 0.1

#: A document has another CAS than before, or has gone.
_CHANGED = (Status.KEY_EXISTS, Status.KEY_NOT_FOUND)


class _Portion:
    """Documents that were handed over together."""

    __slots__ = ("_tries", "done", "far", "open")

    def __init__(self, far: FarDocuments, done: bool) -> None:
        self.far = far  # when it has hung up, the vBucket is begun again without them
        self.done = done  # they are the last ones of their vBucket
        self.open = 1  # how much of them is still to be waited for
        self._tries = _TRIES

    def may_try(self) -> bool:
        """Tell whether what could not be done may be tried again."""
        self._tries -= 1
        return self._tries > 0


class Reconciliation:
    """One run of ``uprmc xdcr reconcile``."""

    def __init__(self, link: Link, numbers: Iterable[int], *, dry_run: bool) -> None:
        """Prepare it for some vBuckets."""
        self.dry_run = dry_run  # nothing is deleted, and the link goes on waiting
        self.running = True
        self.error = ""  # why it has ended too early
        self.compared: list[ReconciledVBucket] = []  # the vBuckets that are done, in their order
        self._link = link
        self._bucket = link.bucket
        self._left = deque(numbers)
        self._number_of_all = len(self._left)
        self._pattern = link.spec.pattern()
        self._fars: dict[str, FarDocuments] = {}  # by node
        self._dialled: dict[str, Dialled] = {}
        settings = link.bucket.settings.xdcr
        self._policy = RetryPolicy(
            Backoff(_PAUSE_S, settings.redial_max_s), patience_s=settings.reconcile_wait_s
        )
        self._waits = False
        self._why = ""  # it waits, or has waited since there was progress
        self._target: Target | None = None
        self._vbucket: VBucket | None = None
        self._log: FailoverLog = ()
        self._purged = 0
        self._ours: dict[int, int] = {}
        self._listed_keys = settings.listed_keys
        self._tally = ReconcileTally(0, self._listed_keys)

    def shown(self, first: int) -> dict[str, Any]:
        """Return how far it is, and what became of some vBuckets from a place in `compared` on."""
        rows = self.compared[first : first + SHOWN_AT_ONCE]
        return {
            "name": self._link.spec.name,
            "dry_run": self.dry_run,
            "running": self.running,
            "error": self.error,
            "done": len(self.compared),
            "of": self._number_of_all,
            "vbuckets": [asdict(row) for row in rows],
        }

    # --- from vBucket to vBucket ----------------------------------------------------------------

    def go_on(self) -> None:
        """Begin with the next vBucket that is active here."""
        active = self._bucket.active
        while self._left and self._left[0] not in active:
            self._left.popleft()
        if not self._left:
            self._end()
            return
        self._vbucket = active[self._left[0]]
        self._tally = ReconcileTally(self._left[0], self._listed_keys)
        self._note_progress()
        self._begin()

    def _begin(self) -> None:
        """Begin with a vBucket, perhaps again."""
        vbucket = self._vbucket
        assert vbucket is not None
        self._log = vbucket.failover_log
        if not self._is_same():
            return
        number = vbucket.id
        target, why = self._link.nodes.holder(number)
        if target is None:
            self._begin_later(why or "no node of the target is connected")
            return
        if self._tally.unanswered:
            self._begin_later(f"{target.place}: it has not answered whether it has deleted all")
            return
        if number in self._link.stopped:
            self._link.keep_all(number)  # what is deleted from now on is not purged
        self._target = target
        self._purged = vbucket.purge_seqno
        self._ours = ends_of_branches(self._log, vbucket.high_seqno)
        history = 0 if target.active is None else target.active[number].uuid
        self._tally.begin(history, dry_run=self.dry_run)
        self._read(target.place, number)

    def _read(self, place: str, number: int) -> None:
        """Read a vBucket of a node; `ready` is called first if there is no connection."""
        far = self._fars.get(place)
        if far is not None:
            far.read(number)
            return
        make, failed = partial(self._make, place), partial(self.far_failed, place)
        unusable = partial(failed, final=True)
        self._dialled[place] = self._link.nodes.reach(place, make, failed, unusable)

    def _make(self, place: str, login: Login | None, wake: Callable[[], None]) -> Session:
        far = self._fars[place] = FarDocuments(place, self, self._link, login, wake)
        return far

    def _hang_up(self, place: str) -> None:
        """End the connection to a node, if there is one; nothing more comes of it."""
        far, dialled = self._fars.pop(place, None), self._dialled.pop(place, None)
        if far is not None:
            far.hang_up()
        if dialled is not None:
            dialled.abandon()

    def _begin_later(self, why: str) -> None:
        """Begin with the vBucket again after a while, or end if there was no progress for long."""
        if self._waits or not self.running:
            return
        self._why = self._why or why
        wait_s = self._policy.wait_s(self._link.clock.monotonic())
        if wait_s is None:
            self.abort(self._why)
            return
        self._waits = True
        self._link.world.later(wait_s, self._begin_again)

    def _begin_again(self) -> None:
        self._waits = False
        self._begin()

    def _note_progress(self) -> None:
        self._why = ""
        self._policy.good(self._link.clock.monotonic())

    def ready(self, far: FarDocuments) -> None:
        """Read the vBucket: a connection to its node has come about."""
        if self.running:
            far.read(self._left[0])

    def far_failed(self, place: str, why: str, *, final: bool = False) -> None:
        """Take note that a node cannot be read; `final` = by another connection neither."""
        self._hang_up(place)
        if self._target is None or self._target.place != place:
            return
        if final:
            self.abort(f"{place}: {why}")
        else:
            self._begin_later(f"{place}: {why}")

    def lost(self, target: Target) -> None:
        """Take note that a connection of the link has ended."""
        if target is self._target:
            self._tally.lose_answers()
            self.far_failed(target.place, "the connection is lost")

    def abort(self, why: str) -> None:
        """End it. The vBuckets that are done stay so."""
        if self.running:
            self.error = f"{why}; left: {named(self._left)}"
            self._end()

    def _end(self) -> None:
        self.running = False
        for place in list(self._dialled):
            self._hang_up(place)

    # --- the documents of a vBucket -------------------------------------------------------------

    def take(self, far: FarDocuments, documents: list[FarDocument], *, done: bool) -> None:
        """Look at documents, and call `go_on` of `far` then; `done` = there are no more."""
        if not self._is_same():
            return
        assert self._vbucket is not None
        find, ours, pattern = self._vbucket.table.get, self._ours, self._pattern
        if self._tally.read([document.key for document in documents]):
            self._note_progress()
        row = self._tally.row
        suspects = []
        for document in documents:
            key, _, _, origin = document
            here = find(key)
            if pattern is not None and pattern.search(key) is None:
                continue
            if origin is None or origin.seqno > ours.get(origin.uuid, 0):
                row.kept += here is None or bool(here[KIND_AT] & LIFE_BITS)
            elif here is None:
                suspects.append(document)
        portion = _Portion(far, done)
        self._look_up(portion, suspects)
        self._close(portion)

    def _is_same(self) -> bool:
        """Tell whether the vBucket is what it was when it was begun with; if not, end."""
        vbucket = self._vbucket
        if not self.running or vbucket is None:
            return False
        if self._bucket.active.get(vbucket.id) is not vbucket:
            self.abort(f"vBucket {vbucket.id} is not active here any more")
        elif vbucket.failover_log is not self._log:
            self.abort(f"vBucket {vbucket.id} has another history now")
        return self.running

    def _is_current(self, portion: _Portion) -> bool:
        """Tell whether a portion still counts."""
        return not portion.far.closing and self._is_same()

    def _close(self, portion: _Portion) -> None:
        """Take note that one thing of a portion is done, and perhaps all of it."""
        portion.open -= 1
        if portion.open or not self._is_current(portion):
            return
        portion.far.go_on()
        if portion.done and self._tally.has_deleted and not self.dry_run:
            assert self._target is not None
            on_disk = partial(self._on_disk, portion, self._target.place)
            _UntilDurable(self._link, self._target, self._left[0], on_disk)
        elif portion.done:
            self._vbucket_done()

    def _on_disk(self, portion: _Portion, place: str, why: str) -> None:
        if not self._is_current(portion):
            return
        if why:
            self.abort(f"{place}: {why}")
        else:
            self._vbucket_done()

    def _vbucket_done(self) -> None:
        row = self._tally.finish()
        self._left.popleft()
        self.compared.append(row)
        if not self.dry_run:
            self._link.counters.docs_reconciled += row.deleted
            fields = {"link": self._link.spec.name, "vbucket": row.vbucket}
            fields |= {"deleted": row.deleted, "kept": row.kept}
            self._link.world.on_event("xdcr_reconciled", fields)
            self._link.resuming.release(row.vbucket, self._purged)
        self.go_on()

    # --- what is not here -----------------------------------------------------------------------

    def _look_up(self, portion: _Portion, suspects: list[FarDocument]) -> None:
        """Find out which of these documents have no tombstone on disk either."""
        if suspects:
            portion.open += 1
            wanted = [(self._left[0], document.key) for document in suspects]
            looked_up = partial(self._looked_up, portion, suspects)
            self._bucket.fetcher.want(wanted, looked_up)

    def _looked_up(self, portion: _Portion, suspects: list[FarDocument], ok: bool) -> None:
        if not self._is_current(portion):
            return
        again = [document for document in suspects if not self._judged(portion, document)]
        if again and not (ok and portion.may_try()):
            self.abort(f"vBucket {self._left[0]}: its deletions cannot be read from disk")
            return
        if again:
            portion.open += 1
            self._link.world.later(_PAUSE_S, partial(self._look_up_again, portion, again))
        self._close(portion)

    def _look_up_again(self, portion: _Portion, suspects: list[FarDocument]) -> None:
        if self._is_current(portion):
            self._look_up(portion, suspects)
            self._close(portion)

    def _judged(self, portion: _Portion, document: FarDocument) -> bool:
        """Delete a document if it was deleted here; return whether that is known."""
        vbucket = self._vbucket
        assert vbucket is not None
        if vbucket.table.get(document.key) is not None:
            return True
        try:
            tombstone = self._bucket.fetcher.tombstone(vbucket, document.key)
        except (NotResident, TemporaryFailure):
            return False
        if tombstone is None and self.dry_run:
            self._tally.deleted(document.key)
        elif tombstone is None:
            self._delete(portion, document)
        return True

    # --- deleting -------------------------------------------------------------------------------

    def _delete(self, portion: _Portion, document: FarDocument) -> None:
        vbucket, target = self._vbucket, self._target
        assert vbucket is not None
        assert target is not None
        rev = max(document.rev + 1, vbucket.max_deleted_rev)
        cas = max(document.cas + 1, self._bucket.account.next_cas())
        assert document.origin is not None
        portion.open += 1
        self._tally.unanswered.add(document.key)
        answered = partial(self._answered, portion, document)
        target.delete(vbucket.id, document.key, (rev, cas), document.origin, document.cas, answered)

    def _answered(self, portion: _Portion, document: FarDocument, reply: ResponseFrame) -> None:
        status = reply.status
        self._tally.unanswered.discard(document.key)
        if status == Status.SUCCESS:
            self._tally.deleted(document.key)
        if not self._is_current(portion):
            return
        if status in _CHANGED:
            self._tally.row.changed += 1
        elif status in IN_TIME and portion.may_try():
            again = partial(self._delete_again, portion, document)
            self._link.world.later(_PAUSE_S, again)
            return
        elif status:
            key = shown(document.key)
            self.abort(f"key {key!r}: the target refuses to delete it: {status_text(status)}")
            return
        self._close(portion)

    def _delete_again(self, portion: _Portion, document: FarDocument) -> None:
        if self._is_current(portion):
            self._delete(portion, document)
            self._close(portion)
