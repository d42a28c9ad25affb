"""Which node of the target gets a vBucket, and where its stream begins.

A vBucket without a stream is looked for at the target's nodes. Its stream begins at the newest
checkpoint that both ends still have. If a link has none of its own, one that others have brought to
the target will do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from uprmc.engine.vbucket import VBucket
from uprmc.errors import CommandError, RollbackRequired
from uprmc.model import SEQNO_MAX
from uprmc.protocol.opcodes import Feature
from uprmc.remote.ranges import named
from uprmc.remote.retry import Backoff
from uprmc.remote.stream import StreamState
from uprmc.rollback import ends_of_branches
from uprmc.xdcr import checkpoint
from uprmc.xdcr.checkpoint import Record
from uprmc.xdcr.shipment import NOWHERE, Shipment, position_of, start_of
from uprmc.xdcr.spec import STOP
from uprmc.xdcr.target import Target, TargetVBucket

if TYPE_CHECKING:
    from uprmc.xdcr.link import Link

#: How often vBuckets without a stream are looked at.
_LOOK_S = 0.5

_FROM_ZERO = Record(0, 0, 0, 0, 0, 0)


class Resuming:
    """Begins the streams of one link where both ends agree."""

    def __init__(self, link: Link) -> None:
        settings = link.bucket.settings.xdcr
        #: What was sent and is lost at the source, newest last.
        self.branches: deque[dict[str, object]] = deque(maxlen=settings.branches)
        self.forwarded_from: dict[int, int] = {}  # where checkpoints of others let vBuckets begin
        self.stops = ""  # why the link is to stop; empty = it is not
        #: vBuckets that may begin at zero, because the target has nothing too much of what was
        #: purged up to a seqno.
        self.reconciled: dict[int, int] = {}
        self._has_forwarded = False
        self._link = link
        self._active = link.bucket.active
        self._looked_at = link.clock.monotonic()
        self._asked_for: set[int] = set()
        self._asking = Backoff(_LOOK_S, settings.redial_max_s)
        self._absent: list[int] = []  # no node had them when all were asked last
        self._why = ""  # of one of them
        self._reported: dict[int, tuple[int, int]] = {}  # the newest branch that was reported

    # --- which node -----------------------------------------------------------------------------

    @property
    def waiting(self) -> str:
        """How many vBuckets are not sent because no node has them, and why; empty = none."""
        shipments, silent = self._link.shipments, self._link.nodes.silent
        absent = [n for n in self._absent if n in self._active and n not in shipments]
        if not (absent and silent):
            why = self._why if len(absent) == 1 else f"{named(absent)}: {self._why}"
            return why if absent else ""
        wait = "1 vBucket waits" if len(absent) == 1 else f"{len(absent)} vBuckets wait"
        return f"{silent}; {wait} for it"

    def tick(self, now: float) -> None:
        """Ask the nodes again what they have, if vBuckets have no stream."""
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        link, active = self._link, self._active.keys()
        link.stopped &= active
        link.doubted &= active
        missing = (active - link.shipments.keys() - link.stopped) | link.doubted
        if missing - self._asked_for:  # others than before: there is progress
            self._asking.good()
            self._asking.at = now
        self._asked_for &= missing
        if missing and self._asking.at <= now and "place" not in link.slices:
            self._asking.failed(now)
            self._asked_for = missing
            link.nodes.survey()
        link.drop([s for s in link.shipments.values() if s.vbucket.id not in active])

    def place(self) -> None:
        """Begin what has no stream, as soon as all nodes have said what they have."""
        link = self._link
        if link.may_send and link.nodes.are_settled and link.nodes.ready:
            link.slices.run("place", self._placements())

    def _drop_misplaced(self) -> None:
        """End the streams of vBuckets that were doubted and are elsewhere, or have changed."""
        link = self._link
        doubted = link.doubted.copy()
        link.doubted.clear()
        for number in doubted & link.shipments.keys():
            shipment = link.shipments[number]
            target, _ = link.nodes.holder(number)
            theirs = None if target is None or target.active is None else target.active.get(number)
            uuid = 0 if theirs is None else theirs.uuid
            if target is None or (target.place, uuid) != (shipment.place, shipment.target_uuid):
                link.drop([shipment])

    def _placements(self) -> Iterator[None]:
        """Begin what has no stream; others may run between any two vBuckets."""
        link, absent, why = self._link, list[int](), ""
        self._drop_misplaced()
        for number, vbucket in list(self._active.items()):
            if not link.may_send:
                return
            if number in link.shipments or self._active.get(number) is not vbucket:
                continue
            target, reason = link.nodes.holder(number)
            if target is not None:
                self._begin(vbucket, target)
                yield
            else:
                absent.append(number)
                why = reason
        self._absent, self._why = absent, why
        stops, self.stops = self.stops, ""
        if stops:
            link.stop(stops)
            return
        if self._has_forwarded:
            self._has_forwarded = False
            link.checkpointing.write()  # its own records take the place of those of others
        if absent:
            link.trouble(self.waiting)
        link.nodes.wake()

    # --- where it begins ------------------------------------------------------------------------

    def _begin(self, vbucket: VBucket, target: Target) -> None:
        """Begin the stream of a vBucket where both ends agree."""
        number = vbucket.id
        if number in self._link.stopped and self._link.two_way:
            return
        theirs = TargetVBucket() if target.active is None else target.active[number]
        memory, candidates = self._memory(vbucket, theirs), self._candidates(number, theirs)
        echo = SEQNO_MAX if memory is None else self._link.echoes[number]
        again = echo <= theirs.purged  # deletions that were not sent back are needed there by now
        if memory is not None and not again:
            candidates = [memory, *candidates]
        forwards = memory is None and not candidates
        if forwards and number not in self.reconciled:
            candidates = self._transitive(vbucket, theirs, target)
        began: list[StreamState] = []
        purged = False

        def rolled_back_to(record: Record) -> int | None:
            nonlocal purged
            try:
                began.append(self._start(vbucket, record))
            except RollbackRequired as error:
                purged = purged or 0 < record.seqno < vbucket.purge_seqno
                return error.seqno
            return None

        try:
            record, lowest = checkpoint.acceptable(candidates, rolled_back_to)
            if record is None and self._has_missed(vbucket, theirs):
                self._stop(vbucket)
                return
            if record is None:
                self._link.note_beginning(vbucket)
                began.append(self._start(vbucket, _FROM_ZERO))
        except CommandError as error:
            self._link.trouble(f"vBucket {number}: {error or type(error).__name__}")
            return
        through = NOWHERE if record is None else position_of(record)
        shipment = self._link.shipments[number] = Shipment(
            vbucket,
            target.place,
            began[0],
            (theirs.uuid, theirs.seqno),
            through,
            self._link.moved,
            self._link.debts,
        )
        self._link.moved[number] = None
        shipment.tells_origins = Feature.ORIGINS in target.granted
        shipment.tells_expirations = Feature.TERMS in target.granted
        shipment.clean = self._is_clean(vbucket, record, theirs)
        shipment.purged = self._link.purged_before(vbucket)
        shipment.theirs_purged = theirs.purged
        if memory is not None and again and _has(vbucket, memory):
            shipment.arrived = memory.seqno
        elif memory is not None and record is memory and echo != SEQNO_MAX:
            shipment.note_echo(memory.seqno, echo)
        shipment.theirs = ends_of_branches(theirs.log, SEQNO_MAX)  # its newest history goes on
        self._link.memory.pop(number, None)
        self._link.stopped.discard(number)
        self.reconciled.pop(number, None)
        self._link.store.forget_above(number, through.seqno)
        if record is not None and forwards:
            self.forwarded_from[number] = record.seqno
            self._has_forwarded = True
        if lowest is not None and not purged and not forwards:
            sent = max((record.seqno for record in candidates), default=0)
            self._report_branch(vbucket, sent, max(lowest, through.seqno))
        else:
            self._report_branch(vbucket, *self._lost_of_others(vbucket, target))

    def _lost_of_others(self, vbucket: VBucket, target: Target) -> tuple[int, int]:
        """Return up to where the target has a history that has ended here, and where it has ended.

        This node was a replica of the one that had sent it, and has not got everything of it. Once
        the link has a checkpoint in a history that began later, this was reported.
        """
        number, log = vbucket.id, vbucket.failover_log
        ends = ends_of_branches(log, vbucket.high_seqno)
        written = self._link.store.known(number)
        newer = set[int]()
        for uuid in ends:
            lost = [known.seqno for known in target.others.get(number, ()) if known.uuid == uuid]
            if any(record.seqno and record.uuid in newer for record in written):
                break
            if newer and lost and max(lost) > ends[uuid]:
                return max(lost), ends[uuid]
            newer.add(uuid)
        return 0, 0

    def _is_clean(
        self, vbucket: VBucket, record: Record | None, theirs: TargetVBucket
    ) -> bool | None:
        """Tell whether the target has missed no deletion; ``None`` = not known before a snapshot.

        Deletions that were purged before the link began would be missed by a target that had
        documents then. Later ones are kept by the link's watermark.
        """
        if record is not None:
            return bool(record.clean)
        if not theirs.seqno:
            return True
        return None if not vbucket.purge_seqno else False

    def _has_missed(self, vbucket: VBucket, theirs: TargetVBucket) -> bool:
        """Tell whether documents that were deleted may come back if a vBucket begins at zero.

        What was purged since the link began at zero may still be at the target.
        """
        settings = self._link.spec.settings
        if settings.filter_deletions or settings.filter_expirations:
            return False
        known = self.reconciled.get(vbucket.id)
        before = self._link.purged_before(vbucket) if known is None else known
        return self._link.two_way and bool(theirs.seqno) and vbucket.purge_seqno > before

    def _stop(self, vbucket: VBucket) -> None:
        """Send nothing of a vBucket until it is reconciled; no more deletions are purged."""
        number = vbucket.id
        self._link.stopped.add(number)
        self.reconciled.pop(number, None)
        fields = {
            "link": self._link.spec.name,
            "vbucket": number,
            "from": self._link.through(number),
            "to": vbucket.purge_seqno,
        }
        self._link.keep_all(number)
        self._link.world.on_event("xdcr_needs_reconcile", fields)

    def release(self, number: int, purged: int) -> None:
        """Let a vBucket begin at zero that has stopped, and was reconciled when `purged` was so."""
        if number in self._link.stopped:
            self._link.stopped.discard(number)
            self.reconciled[number] = purged

    def _candidates(self, number: int, theirs: TargetVBucket) -> list[Record]:
        """Return the records that the target still has, the most advanced first."""
        if number in self.reconciled:
            return []
        records = self._link.store.known(number)
        return checkpoint.at_target(records, theirs.log, theirs.seqno)

    def _memory(self, vbucket: VBucket, theirs: TargetVBucket) -> Record | None:
        """Return where the stream before has ended, if both ends still have all of that."""
        memory = self._link.memory.get(vbucket.id)
        if vbucket.id in self.reconciled or memory is None:
            return None
        if memory.target_uuid != theirs.uuid:
            return None
        return memory

    def _transitive(self, vbucket: VBucket, theirs: TargetVBucket, target: Target) -> list[Record]:
        """Return where others have brought the target, the most advanced place first."""
        filter_hash = self._link.spec.filter_hash
        found = [
            Record(known.uuid, known.seqno, known.seqno, known.seqno, theirs.uuid, known.here_seqno)
            for known in target.records.get(vbucket.id, ())
            if known.filter_hash == filter_hash and known.seqno >= vbucket.purge_seqno
            if self._link.spec.passes_on or not known.via
        ]
        return sorted(found, key=lambda record: record.seqno, reverse=True)

    def _start(self, vbucket: VBucket, record: Record) -> StreamState:
        """Register and request the stream; raises as `Reading.begin`."""
        assert self._link.reading is not None
        start = start_of(record)
        whole = position_of(record).whole
        written = [
            each for each in self._link.store.known(vbucket.id) if each.seqno <= record.seqno
        ]
        meta = checkpoint.encode_one(written[0]) if written else b""
        self._link.reading.report(vbucket.id, whole, record.uuid if whole else 0, meta)
        return self._link.reading.begin(vbucket, start)

    def _report_branch(self, vbucket: VBucket, sent: int, agreed: int) -> None:
        """Say what was sent and is not in the source's history any more, once in this life."""
        said = self._reported.get(vbucket.id)
        if sent <= agreed or said == (vbucket.failover_log[0].uuid, sent):
            return
        self._reported[vbucket.id] = vbucket.failover_log[0].uuid, sent
        fields: dict[str, object] = {
            "link": self._link.spec.name,
            "vbucket": vbucket.id,
            "from": agreed + 1,
            "to": sent,
        }
        self.branches.append(fields)
        self._link.world.on_event("xdcr_branch", dict(fields))
        if self._link.spec.settings.on_branch == STOP:
            text = f"vBucket {vbucket.id}: changes {agreed + 1} to {sent} were sent and are lost"
            self.stops = self.stops or text


def _has(vbucket: VBucket, record: Record) -> bool:
    """Tell whether the source still has everything of a record."""
    ends = ends_of_branches(vbucket.failover_log, vbucket.high_seqno)
    return record.seqno <= ends.get(record.uuid, 0)
