"""The checkpoints of a link: written, sent to the target, passed on, and reported as watermarks.

A checkpoint is written of a vBucket that has got on. If it lies at the end of a snapshot, the
target gets it, too: it has everything of ours up to there. So others can begin there.

Neighbours: `checkpoint` has the records and their rules, `received` those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from uprmc.protocol.opcodes import Feature
from uprmc.xdcr.checkpoint import Record
from uprmc.xdcr.received import ReceivedRecords, due, row_of
from uprmc.xdcr.shipment import LinkPosition, Shipment
from uprmc.xdcr.target import RECORDS_AT_ONCE, Target, TargetVBucket

if TYPE_CHECKING:
    from uprmc.xdcr.link import Link

#: A checkpoint that the target has not answered after this time has failed.
_ANSWER_S = 3.5

#: VBuckets that are looked at in one call of `Checkpointing.pass_on`.
_LOOKED_AT = 100


class _Writing:
    """What is still waited for until checkpoints are written: nodes, and records sent to them."""

    def __init__(self, left: set[str], done: Callable[[str], None]) -> None:
        self.left = left
        self.done = done
        self.failed: list[str] = []


class Checkpointing:
    """Writes the checkpoints of one link and tells others of them."""

    def __init__(self, link: Link) -> None:
        self.session = f"{link.bucket.entropy.uuid48():012x}"  # names this run of the link
        self.is_writing = False  # they were asked for since this was cleared
        self.registered: set[int] = set()  # vBuckets, since the producer was opened
        self._renewed: list[Callable[[], None]] = []
        self._link = link
        self._changes_seen = 0
        self._writings: set[_Writing] = set()

    def write(self, done: Callable[[str], None] = lambda _: None) -> None:
        """Write checkpoints of all vBuckets that have got on, and tell the target.

        `done` is called when that is so, with an empty text, or with what is not so and why: at the
        latest after `_ANSWER_S`, whatever the target does.

        Of the others it is found out whether the target still has what was sent: if nothing is
        sent, it would not be noticed that another node has taken over there and has less.

        Where the source stands is noted before the target is asked, so the target's seqno covers
        everything that had arrived.
        """
        self.is_writing = True
        noted = {
            number: (shipment, shipment.through)
            for number, shipment in self._link.shipments.items()
            if shipment.through.seqno
        }
        places = {shipment.place for shipment, _ in noted.values()}
        asked = [target for target in self._link.nodes.ready if target.place in places]
        writing = _Writing({target.place for target in asked}, done)
        if not asked:
            done("")
            return
        self._writings.add(writing)
        for target in asked:
            place = target.place
            target.ask_seqnos(
                partial(self._answered, writing, place, noted),
                partial(
                    self._done, writing, place, "the connection was lost before it had answered"
                ),
            )
        self._link.world.later(_ANSWER_S, partial(self._overdue, writing))

    def _answered(
        self,
        writing: _Writing,
        place: str,
        noted: dict[int, tuple[Shipment, LinkPosition]],
        found: dict[int, TargetVBucket] | None,
    ) -> None:
        steps = self._checkpoint_of(writing, place, noted, found)
        self._link.slices.run(place, steps, partial(self._done, writing, place, ""))

    def _done(self, writing: _Writing, what: str, why: str) -> None:
        """Take note that one thing is not waited for any more."""
        writing.left.discard(what)
        if why:
            writing.failed.append(f"{what.partition(' ')[0]}: {why}")
        if not writing.left:
            self._finish(writing)

    def _overdue(self, writing: _Writing) -> None:
        if writing.left:
            places = sorted({what.partition(" ")[0] for what in writing.left})
            why = f"no answer for {_ANSWER_S:g} s"
            writing.failed += [f"{place}: {why}" for place in places]
            self._finish(writing)

    def _finish(self, writing: _Writing) -> None:
        if writing in self._writings:
            self._writings.discard(writing)
            writing.done("; ".join(dict.fromkeys(writing.failed)))

    def close(self) -> None:
        """End what waits: nothing more comes."""
        for writing in list(self._writings):
            writing.failed.append("the link has ended")
            self._finish(writing)
        self._end_renewal()

    def _has_moved(self, number: int, shipment: Shipment) -> bool:
        records = self._link.store.records.get(number, ())
        return not records or records[0].seqno != shipment.through.seqno

    def _checkpoint_of(
        self,
        writing: _Writing,
        place: str,
        noted: dict[int, tuple[Shipment, LinkPosition]],
        found: dict[int, TargetVBucket] | None,
    ) -> Iterator[None]:
        """Write the checkpoints of a node; others may run between any two vBuckets."""
        written = failed = 0
        news: list[tuple[Shipment, dict[str, object]]] = []
        for number, (shipment, position) in noted.items():
            if self._link.shipments.get(number) is not shipment or shipment.place != place:
                continue  # it has begun again, perhaps further back
            yield
            theirs = TargetVBucket() if found is None else found.get(number)
            newest = 0 if theirs is None else theirs.uuid
            if theirs is None or newest != shipment.target_uuid:
                failed += 1
                self._link.drop([shipment], remember=False)  # what it has now is found out first
                continue
            if shipment.lacks(position.seqno, theirs.purged):
                failed += 1
                self._link.drop([shipment])  # it begins again at the checkpoint before
                continue
            moved = self._has_moved(number, shipment)
            if position.is_whole and (moved or not shipment.is_known_there):
                shipment.is_known_there = True
                news.append((shipment, self._full_record(number, shipment, position)))
            if len(news) == RECORDS_AT_ONCE:
                self._tell(writing, place, news)
                news = []
            if moved:
                shipment.target_seqno = theirs.seqno
                self._may_pass_on(shipment)
                self._keep(
                    number, shipment.record(position, theirs.seqno, int(self._link.clock.now()))
                )
                written += 1
        self._tell(writing, place, news)
        self._link.counters.checkpoints += bool(written)
        self._link.counters.failed_checkpoints += failed

    def _tell(
        self, writing: _Writing, place: str, news: list[tuple[Shipment, dict[str, object]]]
    ) -> None:
        """Send the target records; those that are not sent now go with the next checkpoint."""
        target = next((each for each in self._link.nodes.ready if each.place == place), None)
        if not news or target is None or Feature.CHECKPOINTS not in target.granted:
            return
        shipments = [shipment for shipment, _ in news]
        records = [record for _, record in news]
        what = f"{place} {records[0]['vbucket']}"
        writing.left.add(what)

        def done(why: str) -> None:
            for shipment in shipments if why else ():
                shipment.is_known_there = False
            self._done(writing, what, why)

        target.send_records(records, done)

    def _full_record(
        self, number: int, shipment: Shipment, position: LinkPosition
    ) -> dict[str, object]:
        """Return what the target is to remember: it has everything of ours up to a position."""
        return {
            "vbucket": number,
            "source_bucket_uuid": f"{self._link.world.bucket_uuid:032x}",
            "via": [],
            "source_vb_uuid": str(shipment.stream.history_of(position.seqno)),
            "source_seqno": position.seqno,
            "filter_hash": self._link.spec.filter_hash,
            "link_id": self._link.spec.id,
            "session_id": self.session,
        }

    # --- checkpoints of others ------------------------------------------------------------------

    def pass_on(self) -> None:
        """Tell the target checkpoints of others that it has passed, at the end of a snapshot.

        Of the vBuckets that have got on, or have got such a checkpoint, some are looked at in each
        call.
        """
        received, moved = self._link.world.received, self._link.moved
        if not self._link.spec.passes_on:
            return
        if received.changes != self._changes_seen:
            self._changes_seen = received.changes
            self.look_at_all()
        targets = {target.place: target for target in self._link.nodes.ready}
        rows: dict[str, list[dict[str, object]]] = {}
        for number in list(islice(moved, _LOOKED_AT)):
            del moved[number]
            shipment = self._link.shipments.get(number)
            target = targets.get(shipment.place) if shipment is not None else None
            if shipment is None or (target and Feature.CHECKPOINTS not in target.granted):
                continue
            if target is None:
                moved[number] = None  # it is being asked what it has
            elif self._may_pass_on(shipment):
                rows.setdefault(target.place, []).extend(self._rows_for(received, target, shipment))
        for place, news in rows.items():
            for begin in range(0, len(news), RECORDS_AT_ONCE):
                targets[place].send_records(news[begin : begin + RECORDS_AT_ONCE])

    def look_at_all(self) -> None:
        """Look at all vBuckets again: what may be passed on has changed."""
        self._link.moved.update(dict.fromkeys(self._link.shipments))

    def _may_pass_on(self, shipment: Shipment) -> bool:
        """Tell whether what holds for this vBucket up to its position holds for the target, too."""
        position = shipment.through
        if not position.is_whole or not position.seqno:
            return False
        if shipment.clean is None:  # of the first snapshot no deletion was purged meanwhile
            shipment.clean = not shipment.vbucket.purge_seqno
        return shipment.clean

    def _rows_for(
        self, received: ReceivedRecords, target: Target, shipment: Shipment
    ) -> list[dict[str, object]]:
        records = received.valid(shipment.vbucket)
        if not records:
            return []
        upto, mine = shipment.through.seqno, f"{self._link.world.bucket_uuid:032x}"
        rows = []
        for record in due(records, upto, self._link.spec.filter_hash, target.bucket_uuid):
            if shipment.passed_on.get(record.source) == (record.uuid, record.seqno):
                continue
            shipment.passed_on[record.source] = record.uuid, record.seqno
            row = row_of(record._replace(via=(*record.via, mine)))
            floor = shipment.vbucket.max_deleted_rev
            rows.append({**row, "vbucket": shipment.vbucket.id, "rev_floor": floor})
        return rows

    def _keep(self, number: int, record: Record) -> None:
        self._link.store.add(number, record)
        self._link.report(number, record)

    def register(self) -> None:
        """Register vBuckets that have become active."""
        if not self._link.bucket.active.keys() <= self.registered and not self._renewed:
            self.renew()

    def renew(self, done: Callable[[], None] = lambda: None) -> None:
        """Register all vBuckets, or report again, so that no row expires; then call `done`."""
        self._renewed.append(done)
        self._link.slices.run("renew", self._renewals())

    def _renewals(self) -> Iterator[None]:
        active = self._link.bucket.active
        self.registered &= active.keys()
        for number, vbucket in list(active.items()):
            yield
            if active.get(number) is vbucket:
                self._link.register_one(vbucket)
                self.registered.add(number)
        self._end_renewal()

    def _end_renewal(self) -> None:
        renewed, self._renewed = self._renewed, []
        for done in renewed:
            done()
