"""The driver of a stream: asks the nodes, decides by `batch_planner`, plans tasks.

Spark's stream reader and the local feed both drive one of these, in the same order: `initial` once,
then again and again `latest` for the end of the next batch, `plan` for its tasks (again, when a
batch is repeated), and `committed`, which may come late or never. What has to outlive the process
is in the offsets; the object only keeps leases alive and ends them when no batch needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import uuid4

from uprmc.columnar.errors import LeaseEnded, NoVBucket
from uprmc.columnar.lease import KeptLease, acquire, of_token
from uprmc.columnar.nodes import BulkNodes, NodeStanding
from uprmc.columnar.registration import BulkRegistration
from uprmc.remote.errors import ClientError, NodeUnreachable
from uprmc.remote.registering import Instance, kind_number
from uprmc.spark import batch_planner
from uprmc.spark.batch_planner import Seen, SettledBatch, Slice
from uprmc.spark.offsets import Offset, starting_at
from uprmc.spark.options import ReadOptions
from uprmc.spark.partitions import groups, tasks_for
from uprmc.spark.starting import begins, latest
from uprmc.spark.stream_task import BatchTask, rules_of, seen_of

#: Attempts to take a lease when history branches at the same moment.
_LEASES_MAX = 5

#: Bytes of a document where a node tells nothing.
_DOCUMENT_BYTES = 512


class SparkFollower:
    """See the module docstring. Used by one thread; not to be pickled."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._rules = rules_of(options)
        self._nodes: BulkNodes | None = None
        self._initial: Offset | None = None
        self._kept: dict[str, KeptLease] = {}
        self._superseded: set[str] = set()
        self._until_now = self._has_seen_now = False
        self._instance: str | None = None
        self._registration: BulkRegistration | None = None

    # --- offsets --------------------------------------------------------------------------------

    def initial(self) -> Offset:
        """Return where a new stream begins; the same each time.

        Raises:
            BadOption, VBucketsChanged: the place that the user names makes no sense here.
        """
        if self._initial is None:
            self._initial = self._named(self._beginning())
        return self._initial

    def _beginning(self) -> Offset:
        nodes = self._asked()
        if self._options.starting_timestamp is not None:
            found = begins(self._options, self._standings(nodes))
            return _origins(Offset(nodes.vbuckets, {n: each.position for n, each in found.items()}))
        named = starting_at(self._options.starting_offsets, nodes.vbuckets)
        if named is None:
            return _origins(latest(nodes.vbuckets, self._standings(nodes)))
        batch_planner.checked(named, nodes.vbuckets)
        wanted = self._options.vbuckets
        positions = {
            number: each
            for number, each in named.positions.items()
            if wanted is None or number in wanted
        }
        return replace(named, positions=positions)

    def stop_at_now(self) -> None:
        """From now on `latest` ends with what there is when it is next asked."""
        self._until_now, self._has_seen_now = True, False

    def latest(self, start: Offset, rows: int | None = None) -> Offset:
        """Return the end of the batch that begins at `start`; the same text = there is none.

        It has about as many rows, or all there are.

        Raises:
            RolledBack, DataLost, NoVBucket, VBucketsChanged: see ``docs/spark.md``.
            NodeUnreachable, LeaseRefused, ...
        """
        end = self._end(self._named(start), rows)
        if start.lease is not None and end.lease != start.lease:
            self._superseded.add(start.lease)
        return end

    def _end(self, start: Offset, rows: int | None) -> Offset:
        nodes = self._asked()
        batch_planner.checked(start, nodes.vbuckets)
        standings = self._standings(nodes)
        self._register(start, {number: each.place for number, each in standings.items()})
        places = self._places(start)
        live = self._lives_on(start, places, standings)
        if live and start.under_way:
            return batch_planner.carried_on(start, rows, self._count)
        here = batch_planner.settled(start, live, places, self._rules)
        seen = {number: _seen(each) for number, each in standings.items()}
        if batch_planner.unchanged(here, seen, self._rules):
            return batch_planner.at_rest(here)
        if self._has_seen_now and not start.under_way:
            return here.offset if live or start.lease is None else start
        return self._advanced(here, standings, rows)

    def _advanced(
        self, here: SettledBatch, standings: Mapping[int, NodeStanding], rows: int | None
    ) -> Offset:
        kept, seen = self._held(standings, here.offset.instance)
        seen = {number: self._with_reason(number, each) for number, each in seen.items()}
        try:
            end = batch_planner.advanced(here, seen, kept.token, self._rules, rows, self._count)
        except BaseException:
            kept.close()
            kept.lease.release()
            raise
        self._kept[kept.token] = kept
        self._has_seen_now = self._until_now
        return end

    def _count(self, opened: Offset, wanted: batch_planner.Wanted) -> batch_planner.Reached | None:
        assert opened.lease is not None
        try:
            return of_token(self._options.access, opened.lease).reached(wanted)
        except NodeUnreachable:
            return None  # what it does not tell now is estimated

    # --- tasks ----------------------------------------------------------------------------------

    def plan(self, start: Offset, end: Offset) -> list[BatchTask]:
        """Return the tasks of a batch; none if there is nothing to read.

        Raises:
            RolledBack, DataLost: the batch is repeated, and its history is gone.
        """
        parts = batch_planner.slices(start, end)
        if not parts:
            return []
        nodes = self._asked()
        if self._registration is None and end.instance is not None:
            places = {each.vbucket: nodes.owners.get(each.vbucket) for each in parts}
            known = {number: place for number, place in places.items() if place is not None}
            self._register(replace(start, instance=end.instance), known)
        lease, owners = end.lease, self._places(end)
        if lease is None or not self._renewed(lease):
            lease, owners = None, self._without_lease(nodes, parts)
        weights = {each.vbucket: max(0, each.end - each.start) for each in parts}
        by_number = {each.vbucket: each for each in parts}
        reader = self._reader(end.instance)
        return [
            BatchTask(tuple(by_number[number] for number in group), lease, reader)
            for group in groups(weights, owners, tasks_for(self._options.partitions, weights))
        ]

    def _without_lease(self, nodes: BulkNodes, parts: Iterable[Slice]) -> dict[int, str]:
        """Return who has the vBuckets now; what tasks would fail for is raised here."""
        standings = nodes.standings(each.vbucket for each in parts)
        for each in parts:
            each.found_again(_seen(standings[each.vbucket]), self._rules)
        return {number: each.place for number, each in standings.items()}

    def rows_of(self, size_bytes: int) -> int:
        """Return about how many documents have this size together, by what the nodes say."""
        nodes = self._asked()
        held_bytes = items = 0
        for place in set(nodes.owners.values()):
            told = nodes.at(place, lambda connection: connection.statistics(""))
            held_bytes += int(told.get("bytes", 0))
            items += int(told.get("curr_items", 0))
        return max(
            1, size_bytes * items // held_bytes if held_bytes else size_bytes // _DOCUMENT_BYTES
        )

    # --- leases ---------------------------------------------------------------------------------

    def committed(self, end: Offset) -> None:
        """The batch that ends here is over, and the end of the next one may be written down.

        The nodes hear how far it is, and older leases are not needed any more.
        They may be of a process that was killed: without this a feed that is started again and
        again would use up what a node grants.
        """
        if self._registration is not None:
            self._registration.committed(partial(_durable, end))
        while self._superseded:
            token = self._superseded.pop()
            kept = self._kept.pop(token, None)
            if kept is not None:
                kept.close()
            of_token(self._options.access, token).release()

    def close(self) -> None:
        """Stop asking and renewing. Leases live on: the last batch may have to be repeated."""
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()
        if self._registration is not None:
            self._registration.close()
            self._registration = None
        if self._nodes is not None:
            self._nodes.close()
            self._nodes = None

    def _held(
        self, standings: Mapping[int, NodeStanding], instance: str | None
    ) -> tuple[KeptLease, dict[int, Seen]]:
        """Take a lease over all vBuckets."""
        options, reader = self._options, self._reader(instance)
        for _ in range(_LEASES_MAX):
            lease = acquire(options.access, standings, options.lease_s, reader)
            try:
                seen = seen_of(self._asked(), lease.held)
            except BaseException as error:
                lease.release()
                if not isinstance(error, LeaseEnded):
                    raise
                continue
            kept = KeptLease(options.access, lease=lease, release=False)
            kept.__enter__()
            return kept, seen
        raise NodeUnreachable("history branches again and again")

    def _reader(self, instance: str | None) -> bytes:
        """Return the id under which the stream is registered, empty if it is not."""
        return (instance or "").encode() if self._options.register else b""

    def _places(self, offset: Offset) -> dict[int, str]:
        """Return the nodes of an offset's lease, by vBucket."""
        if offset.lease is None:
            return {}
        return of_token(self._options.access, offset.lease).places

    def _lives_on(
        self, offset: Offset, places: Mapping[int, str], standings: Mapping[int, NodeStanding]
    ) -> bool:
        """Return whether an offset's lease is as good as ever.

        It may live on at a node that is cut off, while tasks found the vBucket elsewhere.
        """
        concerned = (n for n, each in offset.positions.items() if each.moved or each.snapshot)
        return (
            offset.lease is not None
            and all(n in standings and standings[n].place == places.get(n) for n in concerned)
            and self._renewed(offset.lease)
        )

    def _renewed(self, token: str) -> bool:
        kept = self._kept.get(token)
        if kept is not None and kept.ended:
            return False
        try:
            of_token(self._options.access, token).renew()
        except (LeaseEnded, NodeUnreachable):
            return False
        return True

    # --- registration ---------------------------------------------------------------------------

    def _named(self, offset: Offset) -> Offset:
        """Return an offset with the id that the nodes know the stream by."""
        if not self._options.register or offset.instance is not None:
            return offset
        if self._instance is None:
            self._instance = uuid4().hex
        return replace(offset, instance=self._instance)

    def _register(self, committed: Offset, places: Mapping[int, str]) -> None:
        """Have deletions kept before a lease is taken; what is registered already is reported."""
        options = self._options
        if not options.register or committed.instance is None:
            return
        if self._registration is None:
            self._registration = BulkRegistration(
                options.access,
                Instance(committed.instance.encode(), kind_number("spark"), options.register_s),
                restarts=not self._rules.fail_on_purge,
            )
        self._registration.begin(partial(_durable, committed), places)

    def _with_reason(self, number: int, seen: Seen) -> Seen:
        told = "" if self._registration is None else self._registration.told(number)
        return replace(seen, told=told)

    # --- nodes ----------------------------------------------------------------------------------

    def _asked(self) -> BulkNodes:
        if self._nodes is None:
            self._nodes = BulkNodes(self._options.access)
        return self._nodes

    def _standings(self, nodes: BulkNodes) -> dict[int, NodeStanding]:
        """Return how far the wanted vBuckets are, those that are active.

        What ends with the present is never silently less than all: there is no later batch.
        """
        try:
            nodes.refresh()
            chosen = self._options.vbuckets
            if chosen is None and not self._until_now:
                return nodes.standings()
            wanted = range(nodes.vbuckets) if chosen is None else chosen
            missing = [number for number in wanted if number not in nodes.owners]
            if missing and self._options.fail_on_data_loss:
                raise NoVBucket(nodes.absent(missing))
            return nodes.standings(number for number in wanted if number in nodes.owners)
        except ClientError:
            with suppress(Exception):
                nodes.close()
            self._nodes = None
            raise


def _origins(found: Offset) -> Offset:
    """Return a place at or below which nothing was handed over."""
    positions = {n: replace(each, origin=each.seqno) for n, each in found.positions.items()}
    return replace(found, positions=positions)


def _seen(now: NodeStanding) -> Seen:
    return Seen(now.log, now.high_seqno, 0, now.place)


def _durable(offset: Offset, number: int) -> tuple[int, int]:
    """Return the newest complete state of a vBucket in an offset, and its history."""
    position = offset.at(number)
    return (position.boundary, position.uuid) if position.boundary else (0, 0)
