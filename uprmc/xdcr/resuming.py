"""Where the stream of a vBucket begins: at the newest checkpoint that both ends still have.

If a link has no checkpoint of its own, one that others have brought to the target will do.
"""

from __future__ import annotations

from collections import deque

from uprmc.engine.vbucket import VBucket
from uprmc.errors import CommandError, RollbackRequired
from uprmc.model import SEQNO_MAX
from uprmc.protocol.opcodes import Feature
from uprmc.remote.stream import StreamState
from uprmc.rollback import ends_of_branches
from uprmc.xdcr import checkpoint
from uprmc.xdcr.checkpoint import Record
from uprmc.xdcr.run import LinkRun
from uprmc.xdcr.shipment import NOWHERE, Shipment, position_of, start_of
from uprmc.xdcr.spec import STOP
from uprmc.xdcr.target import Target, TargetVBucket

_FROM_ZERO = Record(0, 0, 0, 0, 0, 0)


class Resuming:
    """Begins the streams of one link where both ends agree.

    Attributes:
        branches: what was sent and is lost at the source, newest last.
        forwarded_from: by vBucket, where a checkpoint of others let it begin.
        has_forwarded: whether there was one since this was cleared.
        stops: why the link is to stop; empty = it is not.
        reconciled: vBuckets that may begin at zero, because the target has nothing too much of what
            was purged up to a seqno.
    """

    def __init__(self, run: LinkRun) -> None:
        self.branches: deque[dict[str, object]] = deque(
            maxlen=run.hub.bucket.settings.xdcr.branches
        )
        self.forwarded_from: dict[int, int] = {}
        self.has_forwarded = False
        self.stops = ""
        self.reconciled: dict[int, int] = {}
        self._run = run
        self._told: dict[int, tuple[int, int]] = {}  # the newest branch that was told

    def begin(self, vbucket: VBucket, target: Target) -> None:
        """Begin the stream of a vBucket where both ends agree."""
        number = vbucket.id
        if number in self._run.stopped and self._run.two_way:
            return
        held = TargetVBucket() if target.held is None else target.held[number]
        memory, candidates = self._memory(vbucket, held), self._candidates(number, held)
        echo = SEQNO_MAX if memory is None else self._run.echoes[number]
        again = echo <= held.purged  # deletions that were not sent back are needed there by now
        if memory is not None and not again:
            candidates = [memory, *candidates]
        forwards = memory is None and not candidates
        if forwards and number not in self.reconciled:
            candidates = self._transitive(vbucket, held, target)
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
            if record is None and self._has_missed(vbucket, held):
                self._stop(vbucket)
                return
            if record is None:
                self._run.note_beginning(vbucket)
                began.append(self._start(vbucket, _FROM_ZERO))
        except CommandError as error:
            self._run.trouble(f"vBucket {number}: {error or type(error).__name__}")
            return
        through = NOWHERE if record is None else position_of(record)
        shipment = self._run.shipments[number] = Shipment(
            vbucket,
            target.place,
            began[0],
            (held.uuid, held.seqno),
            through,
            self._run.moved,
            self._run.debts,
        )
        self._run.moved[number] = None
        shipment.tells_origins = Feature.ORIGINS in target.granted
        shipment.tells_expirations = Feature.TERMS in target.granted
        shipment.clean = self._is_clean(vbucket, record, held)
        shipment.purged = self._run.purged_before(vbucket)
        shipment.theirs_purged = held.purged
        if memory is not None and again and _has(vbucket, memory):
            shipment.arrived = memory.seqno
        elif memory is not None and record is memory and echo != SEQNO_MAX:
            shipment.note_echo(memory.seqno, echo)
        shipment.theirs = ends_of_branches(held.log, SEQNO_MAX)  # its newest history goes on
        self._run.memory.pop(number, None)
        self._run.stopped.discard(number)
        self.reconciled.pop(number, None)
        self._run.store.forget_above(number, through.seqno)
        if record is not None and forwards:
            self.forwarded_from[number] = record.seqno
            self.has_forwarded = True
        if lowest is not None and not purged and not forwards:
            sent = max((record.seqno for record in candidates), default=0)
            self._tell_branch(vbucket, sent, max(lowest, through.seqno))
        else:
            self._tell_branch(vbucket, *self._lost_of_others(vbucket, target))

    def _lost_of_others(self, vbucket: VBucket, target: Target) -> tuple[int, int]:
        """Return up to where the target has a history that has ended here, and where it has ended.

        This node was a replica of the one that had sent it, and has not got everything of it. Once
        the link has a checkpoint in a history that began later, this was told.
        """
        number, log = vbucket.id, vbucket.failover_log
        ends = ends_of_branches(log, vbucket.high_seqno)
        written = self._run.store.known(number)
        newer = set[int]()
        for uuid in ends:
            lost = [told.seqno for told in target.others.get(number, ()) if told.uuid == uuid]
            if any(record.seqno and record.uuid in newer for record in written):
                break
            if newer and lost and max(lost) > ends[uuid]:
                return max(lost), ends[uuid]
            newer.add(uuid)
        return 0, 0

    def _is_clean(
        self, vbucket: VBucket, record: Record | None, held: TargetVBucket
    ) -> bool | None:
        """Tell whether the target has missed no deletion; ``None`` = not known before a snapshot.

        Deletions that were purged before the link began would be missed by a target that had
        documents then. Later ones are kept by the link's watermark.
        """
        if record is not None:
            return bool(record.clean)
        if not held.seqno:
            return True
        return None if not vbucket.purge_seqno else False

    def _has_missed(self, vbucket: VBucket, held: TargetVBucket) -> bool:
        """Tell whether documents that were deleted may come back if a vBucket begins at zero.

        What was purged since the link began at zero may still be at the target.
        """
        settings = self._run.spec.settings
        if settings.filter_deletions or settings.filter_expirations:
            return False
        known = self.reconciled.get(vbucket.id)
        before = self._run.purged_before(vbucket) if known is None else known
        return self._run.two_way and bool(held.seqno) and vbucket.purge_seqno > before

    def _stop(self, vbucket: VBucket) -> None:
        """Send nothing of a vBucket until it is reconciled; no more deletions are purged."""
        number = vbucket.id
        self._run.stopped.add(number)
        self.reconciled.pop(number, None)
        fields = {
            "link": self._run.spec.name,
            "vbucket": number,
            "from": self._run.through(number),
            "to": vbucket.purge_seqno,
        }
        self._run.keep_all(number)
        self._run.world.on_event("xdcr_needs_reconcile", fields)

    def release(self, number: int, purged: int) -> None:
        """Let a vBucket begin at zero that has stopped, and was reconciled when `purged` was so."""
        if number in self._run.stopped:
            self._run.stopped.discard(number)
            self.reconciled[number] = purged

    def _candidates(self, number: int, held: TargetVBucket) -> list[Record]:
        """Return the records that the target still has, the most advanced first."""
        if number in self.reconciled:
            return []
        records = self._run.store.known(number)
        return checkpoint.at_target(records, held.log, held.seqno)

    def _memory(self, vbucket: VBucket, held: TargetVBucket) -> Record | None:
        """Return where the stream before has ended, if both ends still have all of that."""
        memory = self._run.memory.get(vbucket.id)
        if vbucket.id in self.reconciled or memory is None:
            return None
        if memory.target_uuid != held.uuid:
            return None
        return memory

    def _transitive(self, vbucket: VBucket, held: TargetVBucket, target: Target) -> list[Record]:
        """Return where others have brought the target, the most advanced place first."""
        filter_hash = self._run.spec.filter_hash
        found = [
            Record(told.uuid, told.seqno, told.seqno, told.seqno, held.uuid, told.here_seqno)
            for told in target.records.get(vbucket.id, ())
            if told.filter_hash == filter_hash and told.seqno >= vbucket.purge_seqno
            if self._run.spec.passes_on or not told.via
        ]
        return sorted(found, key=lambda record: record.seqno, reverse=True)

    def _start(self, vbucket: VBucket, record: Record) -> StreamState:
        """Register and request the stream; raises as `Reading.begin`."""
        assert self._run.reading is not None
        start = start_of(record)
        whole = position_of(record).whole
        written = [each for each in self._run.store.known(vbucket.id) if each.seqno <= record.seqno]
        meta = checkpoint.encode_one(written[0]) if written else b""
        self._run.reading.report(vbucket.id, whole, record.uuid if whole else 0, meta)
        return self._run.reading.begin(vbucket, start)

    def _tell_branch(self, vbucket: VBucket, sent: int, agreed: int) -> None:
        """Say what was sent and is not in the source's history any more, once in this life."""
        told = self._told.get(vbucket.id)
        if sent <= agreed or told == (vbucket.failover_log[0].uuid, sent):
            return
        self._told[vbucket.id] = vbucket.failover_log[0].uuid, sent
        fields: dict[str, object] = {
            "link": self._run.spec.name,
            "vbucket": vbucket.id,
            "from": agreed + 1,
            "to": sent,
        }
        self.branches.append(fields)
        self._run.world.on_event("xdcr_branch", dict(fields))
        if self._run.spec.settings.on_branch == STOP:
            text = f"vBucket {vbucket.id}: changes {agreed + 1} to {sent} were sent and are lost"
            self.stops = self.stops or text


def _has(vbucket: VBucket, record: Record) -> bool:
    """Tell whether the source still has everything of a record."""
    ends = ends_of_branches(vbucket.failover_log, vbucket.high_seqno)
    return record.seqno <= ends.get(record.uuid, 0)
