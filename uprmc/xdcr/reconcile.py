"""Deletes at the target what was deleted here, after the deletions themselves were purged.

A document of the target that this node does not have was deleted here, if it was first accepted
here: every version that was accepted up to the present high seqno of this history has been in the
vBucket, so if it has gone without a tombstone, that was purged. A document that was first accepted
elsewhere is a change that this node may not know, and is kept.

The target deletes a document only if it still has the CAS that was read. The deletion has a
revision above the document's, at least that of each deletion that was purged here, and the
document's origin: so no link sends it back here, and a document that is created here again wins.

vBuckets are compared one after the other. Of each, what is in memory is what `far_documents` hands
over at a time.

Source: systems reference a.8; rows X06 and X08.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from uprmc.engine.purge_rule import shown
from uprmc.engine.vbucket import VBucket
from uprmc.errors import NotResident, TemporaryFailure
from uprmc.model import FailoverLog
from uprmc.ports import Dialled, Session
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import Status, status_text
from uprmc.record import KIND_AT, LIFE_BITS
from uprmc.rollback import ends_of_branches
from uprmc.xdcr.far_documents import FarDocument, FarDocuments
from uprmc.xdcr.node_session import Login
from uprmc.xdcr.nodes import Nodes
from uprmc.xdcr.reading import PREFIX
from uprmc.xdcr.run import Run
from uprmc.xdcr.target import Target
from uprmc.xdcr.windows import LATER

#: VBuckets that are shown at a time.
SHOWN_AT_ONCE = 16

#: What cannot be done for now is tried again so often, after so many seconds.
_TRIES, _PAUSE_S = 100, 0.1

#: A document has another CAS than before, or has gone.
_CHANGED = (Status.KEY_EXISTS, Status.KEY_NOT_FOUND)


@dataclass(slots=True)
class Compared:
    """What became of one vBucket.

    Attributes:
        vbucket: its number.
        documents: documents that the target has.
        deleted: of these, those that were deleted there, or would be.
        kept: those that this node does not have and that were first accepted elsewhere.
        changed: those that were changed or deleted at the target meanwhile, and so left alone.
        keys: the first keys of those that were deleted, or would be.
    """

    vbucket: int
    documents: int = 0
    deleted: int = 0
    kept: int = 0
    changed: int = 0
    keys: list[str] = field(default_factory=list)


class _Portion:
    """Documents that were handed over together.

    Attributes:
        far: who handed them over.
        done: whether they are the last ones of their vBucket.
        open: how much of them is still to be waited for.
    """

    __slots__ = ("_tries", "done", "far", "open")

    def __init__(self, far: FarDocuments, done: bool) -> None:
        self.far = far
        self.done = done
        self.open = 1
        self._tries = _TRIES

    def may_try(self) -> bool:
        """Tell whether what could not be done may be tried again."""
        self._tries -= 1
        return self._tries > 0


class Reconciliation:
    """One run of ``uprmc xdcr reconcile``. Implements `far_documents.FarOwner`.

    Attributes:
        dry_run: nothing is deleted, and the link goes on waiting.
        running: whether it is not over.
        error: why it has ended too early; empty = it has not.
        compared: what became of the vBuckets that are done, in their order.
    """

    def __init__(
        self,
        run: Run,
        nodes: Nodes,
        numbers: Iterable[int],
        repaired: Callable[[int, int], None],
        *,
        dry_run: bool,
    ) -> None:
        """Prepare it.

        Args:
            run, nodes: of the link.
            numbers: the vBuckets.
            repaired: called with each vBucket whose target has nothing too much any more, and its
                purge seqno when it was begun with.
            dry_run: see the class.
        """
        self.dry_run = dry_run
        self.running = True
        self.error = ""
        self.compared: list[Compared] = []
        self._run = run
        self._nodes = nodes
        self._left = deque(numbers)
        self._number_of_all = len(self._left)
        self._repaired = repaired
        self._pattern = run.spec.pattern()
        self._fars: dict[str, FarDocuments] = {}
        self._dialled: list[Dialled] = []
        self._target: Target | None = None
        self._vbucket: VBucket | None = None
        self._log: FailoverLog = ()
        self._purged = 0
        self._ours: dict[int, int] = {}
        self._row = Compared(0)

    def shown(self, first: int) -> dict[str, Any]:
        """Return how far it is, and what became of some vBuckets from a place in `compared` on."""
        rows = self.compared[first : first + SHOWN_AT_ONCE]
        return {
            "name": self._run.spec.name,
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
        active = self._run.hub.bucket.active
        while self._left and self._left[0] not in active:
            self._left.popleft()
        if not self._left:
            self._end()
            return
        number = self._left.popleft()
        target, why = self._nodes.holder(number)
        if target is None:
            self.abort(why or "no node of the target is connected")
            return
        vbucket = self._vbucket = active[number]
        if number in self._run.stopped:
            self._run.keep_all(number)  # what is deleted from now on is not purged
        self._target, self._log = target, vbucket.failover_log
        self._purged = vbucket.purge_seqno
        self._ours = ends_of_branches(self._log, vbucket.high_seqno)
        self._row = Compared(number)
        far = self._fars.get(target.place)
        if far is None:
            self._dial(target.place)
        else:
            far.read(number)

    def _dial(self, place: str) -> None:
        settings, clock = self._run.hub.bucket.settings, self._run.hub.bucket.clock
        name = PREFIX + self._run.spec.name.encode()

        def make(login: Login | None, wake: Callable[[], None]) -> Session:
            far = FarDocuments(place, self, name + b":reconcile", login, settings, clock, wake)
            self._fars[place] = far
            return far

        def failed(why: str) -> None:
            self.abort(f"{place}: {why}")

        try:
            self._dialled.append(self._nodes.reach(self._run.spec, place, make, failed))
        except Exception as error:  # files that cannot be read; the text says which
            self.abort(str(error))

    def ready(self, far: FarDocuments) -> None:
        """See `FarOwner`."""
        if self.running:
            far.read(self._row.vbucket)

    def far_failed(self, far: FarDocuments, why: str) -> None:
        """See `FarOwner`."""
        self.abort(f"{far.place}: {why}")

    def lost(self, target: Target) -> None:
        """Take note that a connection of the link has ended."""
        if target is self._target:
            self.abort(f"{target.place}: the connection is lost")

    def abort(self, why: str) -> None:
        """End it. The vBuckets that are done stay so."""
        if self.running:
            self.error = why
            self._end()

    def _end(self) -> None:
        self.running = False
        for far in self._fars.values():
            far.hang_up()
        for dialled in self._dialled:
            dialled.abandon()

    # --- the documents of a vBucket -------------------------------------------------------------

    def take(self, far: FarDocuments, documents: list[FarDocument], *, done: bool) -> None:
        """See `FarOwner`."""
        if not self._is_same():
            return
        assert self._vbucket is not None
        find, ours, pattern, row = self._vbucket.table.get, self._ours, self._pattern, self._row
        row.documents += len(documents)
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
        if self._run.hub.bucket.active.get(vbucket.id) is not vbucket:
            self.abort(f"vBucket {vbucket.id} is not active here any more")
        elif vbucket.failover_log is not self._log:
            self.abort(f"vBucket {vbucket.id} has another history now")
        return self.running

    def _close(self, portion: _Portion) -> None:
        """Take note that one thing of a portion is done, and perhaps all of it."""
        portion.open -= 1
        if portion.open or not self.running:
            return
        portion.far.go_on()
        if portion.done:
            self._vbucket_done()

    def _vbucket_done(self) -> None:
        row = self._row
        self.compared.append(row)
        if not self.dry_run:
            self._run.counters.docs_reconciled += row.deleted
            fields = {"link": self._run.spec.name, "vbucket": row.vbucket}
            fields |= {"deleted": row.deleted, "kept": row.kept}
            self._run.world.on_event("xdcr_reconciled", fields)
            self._repaired(row.vbucket, self._purged)
        self.go_on()

    # --- what is not here -----------------------------------------------------------------------

    def _look_up(self, portion: _Portion, suspects: list[FarDocument]) -> None:
        """Find out which of these documents have no tombstone on disk either."""
        if suspects:
            portion.open += 1
            wanted = [(self._row.vbucket, document.key) for document in suspects]
            looked_up = partial(self._looked_up, portion, suspects)
            self._run.hub.bucket.fetcher.want(wanted, looked_up)

    def _looked_up(self, portion: _Portion, suspects: list[FarDocument], ok: bool) -> None:
        if not self._is_same():
            return
        again = [document for document in suspects if not self._judged(portion, document)]
        if again and not (ok and portion.may_try()):
            self.abort(f"vBucket {self._row.vbucket}: its deletions cannot be read from disk")
            return
        if again:
            portion.open += 1
            self._run.world.later(_PAUSE_S, partial(self._look_up_again, portion, again))
        self._close(portion)

    def _look_up_again(self, portion: _Portion, suspects: list[FarDocument]) -> None:
        if self._is_same():
            self._look_up(portion, suspects)
            self._close(portion)

    def _judged(self, portion: _Portion, document: FarDocument) -> bool:
        """Delete a document if it was deleted here; return whether that is known."""
        vbucket = self._vbucket
        assert vbucket is not None
        if vbucket.table.get(document.key) is not None:
            return True
        try:
            tombstone = self._run.hub.bucket.fetcher.tombstone(vbucket, document.key)
        except (NotResident, TemporaryFailure):
            return False
        if tombstone is None and self.dry_run:
            self._note_deleted(document)
        elif tombstone is None:
            self._delete(portion, document)
        return True

    # --- deleting -------------------------------------------------------------------------------

    def _delete(self, portion: _Portion, document: FarDocument) -> None:
        vbucket, target = self._vbucket, self._target
        assert vbucket is not None
        assert target is not None
        rev = max(document.rev + 1, vbucket.max_deleted_rev)
        cas = max(document.cas + 1, self._run.hub.bucket.account.next_cas())
        assert document.origin is not None
        portion.open += 1
        answered = partial(self._answered, portion, document)
        target.delete(vbucket.id, document.key, (rev, cas), document.origin, document.cas, answered)

    def _answered(self, portion: _Portion, document: FarDocument, reply: ResponseFrame) -> None:
        if not self._is_same():
            return
        status = reply.status
        if status == Status.SUCCESS:
            self._note_deleted(document)
        elif status in _CHANGED:
            self._row.changed += 1
        elif status in LATER and portion.may_try():
            again = partial(self._delete_again, portion, document)
            self._run.world.later(_PAUSE_S, again)
            return
        else:
            key = shown(document.key)
            self.abort(f"key {key!r}: the target refuses to delete it: {status_text(status)}")
            return
        self._close(portion)

    def _delete_again(self, portion: _Portion, document: FarDocument) -> None:
        if self._is_same():
            self._delete(portion, document)
            self._close(portion)

    def _note_deleted(self, document: FarDocument) -> None:
        self._row.deleted += 1
        if len(self._row.keys) < self._run.hub.bucket.settings.xdcr.listed_keys:
            self._row.keys.append(shown(document.key) or "")
