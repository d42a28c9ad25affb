"""The checkpoints of a link: written, told to the target, passed on, and reported as watermarks.

A checkpoint is written of a vBucket that has got on. If it lies at the end of a snapshot, the
target is told, too: it has everything of ours up to there. So others can begin there.

Neighbours: `checkpoint` has the records and their rules, `received` those of others.

Source: systems reference b.4 and d.2; contracts, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from uprmc.ports import Clock
from uprmc.protocol.opcodes import Feature
from uprmc.xdcr.checkpoint import Record
from uprmc.xdcr.nodes import Nodes
from uprmc.xdcr.received import Received, due, row_of
from uprmc.xdcr.run import Run
from uprmc.xdcr.shipment import Position, Shipment
from uprmc.xdcr.target import RECORDS_AT_ONCE, Held, Target

#: VBuckets that are looked at in one call of `Checkpointing.pass_on`.
_LOOKED_AT = 100


class Checkpointing:
    """Writes the checkpoints of one link and tells others of them.

    Attributes:
        session: names this run of the link.
        registered: vBuckets that have been registered since the producer was opened.
        is_writing: whether checkpoints were asked for since this was cleared.
    """

    def __init__(self, run: Run, nodes: Nodes) -> None:
        self.session = f"{run.hub.bucket.entropy.uuid48():012x}"
        self.is_writing = False
        self.registered: set[int] = set()
        self._renewed: list[Callable[[], None]] = []
        self._run = run
        self._nodes = nodes
        self._clock: Clock = run.hub.bucket.clock
        self._changes_seen = 0

    def write(self, done: Callable[[], None] | None = None) -> None:
        """Write checkpoints of all vBuckets that have got on; `done` is called afterwards.

        Of the others it is found out whether the target still has what was sent: if nothing is
        sent, it would not be noticed that another node has taken over there and has less.

        Where the source stands is noted before the target is asked, so the target's seqno covers
        everything that had arrived.
        """
        self.is_writing = True
        shipments = self._run.shipments
        noted = {
            number: (shipment, shipment.through)
            for number, shipment in shipments.items()
            if shipment.through.seqno
        }
        asked = {
            t.place
            for t in self._nodes.ready
            if any(self._run.shipments[n].place == t.place for n in noted)
        }
        left = set(asked)

        def answered(place: str, held: dict[int, Held] | None) -> None:
            def finished() -> None:
                left.discard(place)
                if not left and done is not None:
                    done()

            self._run.slices.run(place, self._checkpoint_of(place, noted, held), finished)

        for target in self._nodes.ready:
            if target.place in asked:
                target.ask_seqnos(partial(answered, target.place))
        if not asked and done is not None:
            done()

    def _has_moved(self, number: int, shipment: Shipment) -> bool:
        records = self._run.store.records.get(number, ())
        return not records or records[0].seqno != shipment.through.seqno

    def _checkpoint_of(
        self,
        place: str,
        noted: dict[int, tuple[Shipment, Position]],
        held: dict[int, Held] | None,
    ) -> Iterator[None]:
        """Write the checkpoints of a node; others may run between any two vBuckets."""
        written = failed = 0
        told: list[dict[str, object]] = []
        for number, (shipment, position) in noted.items():
            if self._run.shipments.get(number) is not shipment or shipment.place != place:
                continue  # it has begun again, perhaps further back
            yield
            theirs = Held() if held is None else held.get(number)
            newest = 0 if theirs is None else theirs.uuid
            if theirs is None or newest != shipment.target_uuid:
                failed += 1
                self._run.drop([shipment], remember=False)  # what it has now is found out first
                continue
            if shipment.lacks(position.seqno, theirs.purged):
                failed += 1
                self._run.drop([shipment])  # it begins again at the checkpoint before
                continue
            if not self._has_moved(number, shipment):
                continue
            shipment.target_seqno = theirs.seqno
            self._may_pass_on(shipment)
            if position.is_whole:
                told.append(self._full_record(number, shipment, position))
            if len(told) == RECORDS_AT_ONCE:
                self._tell(place, told)
                told = []
            self._keep(number, shipment.record(position, theirs.seqno, int(self._clock.now())))
            written += 1
        self._tell(place, told)
        self._run.counters.checkpoints += bool(written)
        self._run.counters.failed_checkpoints += failed

    def _tell(self, place: str, records: list[dict[str, object]]) -> None:
        for target in self._nodes.ready:
            if target.place == place and records and Feature.CHECKPOINTS in target.granted:
                target.tell_records(records)

    def _full_record(
        self, number: int, shipment: Shipment, position: Position
    ) -> dict[str, object]:
        """Return what the target is to remember: it has everything of ours up to a position."""
        return {
            "vbucket": number,
            "source_bucket_uuid": f"{self._run.world.bucket_uuid:032x}",
            "via": [],
            "source_vb_uuid": str(shipment.stream.history_of(position.seqno)),
            "source_seqno": position.seqno,
            "filter_hash": self._run.spec.filter_hash,
            "link_id": self._run.spec.id,
            "session_id": self.session,
        }

    # --- checkpoints of others ------------------------------------------------------------------

    def pass_on(self) -> None:
        """Tell the target checkpoints of others that it has passed, at the end of a snapshot.

        Of the vBuckets that have got on, or have got such a checkpoint, some are looked at in each
        call.
        """
        received, moved = self._run.world.received, self._run.moved
        if received.changes != self._changes_seen:
            self._changes_seen = received.changes
            self.look_at_all()
        targets = {target.place: target for target in self._nodes.ready}
        rows: dict[str, list[dict[str, object]]] = {}
        for number in list(islice(moved, _LOOKED_AT)):
            del moved[number]
            shipment = self._run.shipments.get(number)
            target = targets.get(shipment.place) if shipment is not None else None
            if shipment is None or (target and Feature.CHECKPOINTS not in target.granted):
                continue
            if target is None:
                moved[number] = None  # it is being asked what it has
            elif self._may_pass_on(shipment):
                rows.setdefault(target.place, []).extend(self._rows_for(received, target, shipment))
        for place, told in rows.items():
            if told:
                targets[place].tell_records(told)

    def look_at_all(self) -> None:
        """Look at all vBuckets again: what may be passed on has changed."""
        self._run.moved.update(dict.fromkeys(self._run.shipments))

    def _may_pass_on(self, shipment: Shipment) -> bool:
        """Tell whether what holds for this vBucket up to its position holds for the target, too."""
        position = shipment.through
        if not position.is_whole or not position.seqno:
            return False
        if shipment.clean is None:  # of the first snapshot no deletion was purged meanwhile
            shipment.clean = not shipment.vbucket.purge_seqno
        return shipment.clean

    def _rows_for(
        self, received: Received, target: Target, shipment: Shipment
    ) -> list[dict[str, object]]:
        records = received.valid(shipment.vbucket)
        if not records:
            return []
        upto, mine = shipment.through.seqno, f"{self._run.world.bucket_uuid:032x}"
        rows = []
        for record in due(records, upto, self._run.spec.filter_hash, target.bucket_uuid):
            if shipment.told.get(record.source) == (record.uuid, record.seqno):
                continue
            shipment.told[record.source] = record.uuid, record.seqno
            row = row_of(record._replace(via=(*record.via, mine)))
            floor = shipment.vbucket.max_deleted_rev
            rows.append({**row, "vbucket": shipment.vbucket.id, "rev_floor": floor})
        return rows

    def _keep(self, number: int, record: Record) -> None:
        self._run.store.add(number, record)
        self._run.report(number, record)

    def register(self) -> None:
        """Register vBuckets that have become active."""
        if not self._run.hub.bucket.active.keys() <= self.registered and not self._renewed:
            self.renew()

    def renew(self, done: Callable[[], None] = lambda: None) -> None:
        """Register all vBuckets, or report again, so that no row expires; then call `done`."""
        self._renewed.append(done)
        self._run.slices.run("renew", self._renewals())

    def _renewals(self) -> Iterator[None]:
        active = self._run.hub.bucket.active
        self.registered &= active.keys()
        for number, vbucket in list(active.items()):
            yield
            if active.get(number) is vbucket:
                self._run.register(vbucket)
                self.registered.add(number)
        renewed, self._renewed = self._renewed, []
        for done in renewed:
            done()
