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
what `far_documents` hands over at a time. If a connection is lost, the vBucket is begun again when
the link is connected.

Source: systems reference a.8; rows X06 and X08.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

from uprmc.engine.purge_rule import shown
from uprmc.engine.vbucket import VBucket
from uprmc.errors import NotResident, TemporaryFailure
from uprmc.model import FailoverLog
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import Status, status_text
from uprmc.record import KIND_AT, LIFE_BITS
from uprmc.remote.ranges import named
from uprmc.remote.retry import Backoff, RetryPolicy
from uprmc.rollback import ends_of_branches
from uprmc.xdcr.compared import Compared, Tally
from uprmc.xdcr.durable import UntilDurable
from uprmc.xdcr.far_documents import FarDocument, FarDocuments
from uprmc.xdcr.far_nodes import FarNodes
from uprmc.xdcr.nodes import Nodes
from uprmc.xdcr.run import Run
from uprmc.xdcr.target import Target
from uprmc.xdcr.windows import LATER

#: VBuckets that are shown at a time.
SHOWN_AT_ONCE = 16

#: How often a document that is refused for now is tried again, and after how many seconds.
_TRIES, _PAUSE_S = 100, 0.1

#: A document has another CAS than before, or has gone.
_CHANGED = (Status.KEY_EXISTS, Status.KEY_NOT_FOUND)


class _Portion:
    """Documents that were handed over together.

    Attributes:
        far: who handed them over; when it has hung up, the vBucket is begun again without them.
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
        self._fars = FarNodes(run, nodes, self)
        settings = run.hub.bucket.settings.xdcr
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
        self._tally = Tally(0, self._listed_keys)

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
        self._vbucket = active[self._left[0]]
        self._tally = Tally(self._left[0], self._listed_keys)
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
        target, why = self._nodes.holder(number)
        if target is None:
            self._begin_later(why or "no node of the target is connected")
            return
        if self._tally.unanswered:
            self._begin_later(f"{target.place}: it has not answered whether it has deleted all")
            return
        if number in self._run.stopped:
            self._run.keep_all(number)  # what is deleted from now on is not purged
        self._target = target
        self._purged = vbucket.purge_seqno
        self._ours = ends_of_branches(self._log, vbucket.high_seqno)
        history = 0 if target.held is None else target.held[number].uuid
        self._tally.begin(history, dry_run=self.dry_run)
        self._fars.read(target.place, number)

    def _begin_later(self, why: str) -> None:
        """Begin with the vBucket again after a while, or end if there was no progress for long."""
        if self._waits or not self.running:
            return
        self._why = self._why or why
        wait_s = self._policy.wait_s(self._run.hub.bucket.clock.monotonic())
        if wait_s is None:
            self.abort(self._why)
            return
        self._waits = True
        self._run.world.later(wait_s, self._begin_again)

    def _begin_again(self) -> None:
        self._waits = False
        self._begin()

    def _note_progress(self) -> None:
        self._why = ""
        self._policy.good(self._run.hub.bucket.clock.monotonic())

    def ready(self, far: FarDocuments) -> None:
        """See `FarOwner`."""
        if self.running:
            far.read(self._left[0])

    def far_failed(self, place: str, why: str, *, final: bool = False) -> None:
        """See `FarOwner`."""
        self._fars.hang_up(place)
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
        self._fars.hang_up_all()

    # --- the documents of a vBucket -------------------------------------------------------------

    def take(self, far: FarDocuments, documents: list[FarDocument], *, done: bool) -> None:
        """See `FarOwner`."""
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
        if self._run.hub.bucket.active.get(vbucket.id) is not vbucket:
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
            UntilDurable(self._run, self._target, self._left[0], on_disk)
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
            wanted = [(self._left[0], document.key) for document in suspects]
            looked_up = partial(self._looked_up, portion, suspects)
            self._run.hub.bucket.fetcher.want(wanted, looked_up)

    def _looked_up(self, portion: _Portion, suspects: list[FarDocument], ok: bool) -> None:
        if not self._is_current(portion):
            return
        again = [document for document in suspects if not self._judged(portion, document)]
        if again and not (ok and portion.may_try()):
            self.abort(f"vBucket {self._left[0]}: its deletions cannot be read from disk")
            return
        if again:
            portion.open += 1
            self._run.world.later(_PAUSE_S, partial(self._look_up_again, portion, again))
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
            tombstone = self._run.hub.bucket.fetcher.tombstone(vbucket, document.key)
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
        cas = max(document.cas + 1, self._run.hub.bucket.account.next_cas())
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
        elif status in LATER and portion.may_try():
            again = partial(self._delete_again, portion, document)
            self._run.world.later(_PAUSE_S, again)
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
