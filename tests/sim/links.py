"""Links between clusters: each has an active node and perhaps a standby; writers, an operator.

At the end everything heals; then no link may have anything to send any more, and all judges speak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import NamedTuple

from tests.sim.faults import Faults
from tests.sim.judges import complain
from tests.sim.net import Net, address
from tests.sim.node import Node, small_settings
from tests.sim.run import Run, Simulation
from tests.sim.world import Drift, World
from tests.sim.xdcr_judges import (
    ArrivalJudge,
    Book,
    Exemptions,
    FinalJudge,
    ShipJudge,
    StopJudge,
    Truth,
    Version,
    judge_hops,
    reaching,
)
from uprmc.config import PurgeSettings, Settings, UprSettings, XdcrSettings
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.watermarks.table import MANAGER
from uprmc.errors import CommandError, KeyNotFound
from uprmc.model import VBucketState

#: Name -> clusters, and the links between them: (source, target).
TOPOLOGIES: dict[str, tuple[tuple[int, int], ...]] = {
    "line": ((0, 1), (1, 2)),
    "forward": ((0, 1), (1, 2), (0, 2)),
    "pair": ((0, 1), (1, 0)),
    "ring": ((0, 1), (1, 2), (2, 0)),
    "ring of four": ((0, 1), (1, 2), (2, 3), (3, 0)),
    "star": ((0, 1), (1, 0), (0, 2), (2, 0), (0, 3), (3, 0)),
    "mesh": ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)),
}

#: What the operator does, and how often.
OPERATING = {
    "pause": 3,
    "checkpoint": 4,
    "part": 2,
    "failover": 1,
    "restore": 1,
    "recreate": 1,
    "behind": 1,
}

#: When changes are sent, if links differ in it.
_SHIPS = ("accepted", "accepted", "persisted")

FAULTS = {"cut_s": 0.5, "crash_s": 3.0, "power_s": 6.0, "stop_s": 5.0, "full_s": 3.0}


@cache
def _name(source: int, target: int) -> str:
    return f"{source}to{target}"


class Route(NamedTuple):
    """A link that there is to be."""

    source: int  # source, target: numbers of clusters
    target: int
    filtered: bool = False  # whether only keys that begin with `a` are sent
    late: float = 0.0  # how long after the others it is made; 0 = with them
    settings: tuple[tuple[str, str], ...] = ()  # see `LinkSettings`
    deletions: bool = True  # whether it sends deletions and expirations

    @property
    def name(self) -> str:
        """Return the name of the link."""
        return _name(self.source, self.target)

    @property
    def options(self) -> dict[str, str]:
        """Return all settings that are not the default."""
        filters = {} if self.deletions else {"filter_deletions": "on", "filter_expirations": "on"}
        return {**dict(self.settings), **filters}

    def lets(self, key: bytes, *, deleted: bool = False) -> bool:
        """Tell whether it sends a document with a key, or its deletion."""
        return (self.deletions or not deleted) and (not self.filtered or key.startswith(b"a"))


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module docstring."""

    routes: tuple[Route, ...]  # the links
    faults: Faults  # of each node
    # what the operator does: weight of each kind, by name
    operating: dict[str, int] = field(default_factory=dict)
    operator_s: float = 0.4  # about so much time is between two things
    standbys: bool = False  # whether each cluster has a replica that can take over
    # whether both nodes of a cluster that only receives are active, each with some vBuckets, and
    # one of them is slow
    split: bool = False
    by_time: bool = False  # the policy is `timestamp`
    purge_s: float = 0.1  # about so much time is between two purges of the same node; 0 = none
    purging: tuple[int, ...] = (0, 1, 2, 3)  # clusters where it is purged
    # places of the links that the operator deletes and makes again; empty = all
    fickle: tuple[int, ...] = ()
    drift_s: float = 0.0  # clocks are wrong by so much at most
    grain_s: float = 0.0  # resolution of the clocks
    expiring: float = 0.0  # chance that a document is to expire
    writers: tuple[int, ...] = (0, 1, 2, 3)  # clusters where documents are written
    writer_s: float = 0.1
    burst: int = 1  # so many documents are written at once sometimes: more than are read at once
    keys: int = 8
    vbuckets: int = 2
    sync: bool = True
    varied_wires: bool = True
    max_failover_entries: int = 25  # so many branches are kept in a failover log
    steps: int = 6_000

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return 1 + max(max(route[:2]) for route in self.routes)

    @property
    def loses_nothing_sent(self) -> bool:
        """Whether all links wait until nothing that goes wrong here can lose what they send."""
        ships = {route.options.get("ship", "accepted") for route in self.routes}
        if "restore" in self.operating or (self.faults.power_s and not self.sync):
            return False
        fails_over = self.standbys and "failover" in self.operating
        return ships <= ({"replicated"} if fails_over else {"persisted", "replicated"})


def routes(topology: str, **more: object) -> tuple[Route, ...]:
    """Return the links of a topology, all of the same kind."""
    return tuple(Route(*pair, **more) for pair in TOPOLOGIES[topology])  # type: ignore[arg-type]


def draw_links(world: World) -> Plan:
    random = world.random
    filtered = random.choice((0.0, 0.0, 0.3, 1.0))
    late = random.choice((0.0, 0.0, 0.3))
    leaving_out = random.choice((0.0, 0.0, 0.0, 0.4, 1.0))
    standbys = random.random() < 0.3
    ships = random.choice((_SHIPS, _SHIPS, ("persisted",), ("replicated",)[:standbys] or _SHIPS))
    drawn = tuple(
        Route(
            *pair,
            filtered=random.random() < filtered,
            late=random.uniform(1, 8) if random.random() < late else 0.0,
            settings=(
                ("batch_items", random.choice(("10", "500"))),
                ("optimistic_bytes", random.choice(("0", "256"))),
                ("ship", random.choice(ships)),
            ),
            deletions=random.random() >= leaving_out,
        )
        for pair in TOPOLOGIES[random.choice(list(TOPOLOGIES))]
    )
    clusters = 1 + max(max(route[:2]) for route in drawn)
    entries = random.choice((25, 25, 3, 2))
    split = standbys and random.random() < 0.5
    return Plan(
        routes=drawn,
        faults=Faults(**{name: s for name, s in FAULTS.items() if random.random() < 0.4}),
        operating={name: s for name, s in OPERATING.items() if random.random() < 0.6},
        operator_s=random.choice((0.2, 0.5, 1.0)),
        standbys=standbys,
        split=split,
        by_time=random.random() < 0.4,
        purge_s=random.choice((0.0, 0.05, 0.05, 0.3)),
        drift_s=random.choice((0.0, 0.0, 2.0, 10.0)),
        # Versions that are equal but for their origins are told apart by names that logs forget.
        grain_s=random.choice((0.0, 0.0, 0.5)) if entries == 25 else 0.0,
        expiring=random.choice((0.0, 0.0, 0.2)),
        writers=tuple(range(clusters)) if random.random() < 0.7 else (0,),
        writer_s=random.choice((0.03, 0.1, 0.3)),
        burst=random.choice((1, 1, 12)),
        keys=random.choice((2, 6, 14)),
        vbuckets=2 if split else random.choice((1, 1, 2)),
        sync=random.random() < 0.7,
        varied_wires=random.random() < 0.5,
        max_failover_entries=entries,
        steps=random.choice((3_000, 6_000)),
    )


# --- the run
# ---------------------------------------------------------------------------------------

#: At rest for so long means at rest.
_QUIET_S = 2.0

#: Within this time after healing everything must be at rest.
_REST_S = 90.0

#: After so many checkpoints no link has anything to send any more.
_ROUNDS = 6

_TIDY_S = 0.3

#: A link is given so long to find out about a promotion.
_PROMOTING_S = 2.0

#: Chance that many documents are written at once.
_BURSTING = 0.1

#: A node whose clock is so far behind refuses what others have made.
_BEHIND_S = 2 * 86_400

#: How long a node may be down.
_ABSENCES_S = (0.0, 0.1, 1.0)


class Site:
    """A cluster: its nodes, and which of them is to be active."""

    def __init__(self, number: int, nodes: list[Node], *, split: bool) -> None:
        self.number = number
        self.nodes = nodes
        self.active = nodes[0]  # this one; of a cluster that is split, with every second vBucket
        self.split = split  # whether the other one is to be active with the rest

    def holder(self, number: int) -> Node:
        """Return which node is to be active with a vBucket."""
        if self.split and number % 2:
            return next(node for node in self.nodes if node is not self.active)
        return self.active

    def is_right(self, vbuckets: int) -> bool:
        """Tell whether each node is active with what it is to be, and at rest with it."""
        holders = [self.holder(number) for number in range(vbuckets)]
        return all(
            node.quiet
            and set(node.bucket.active) == {n for n, each in enumerate(holders) if each is node}
            for node in holders
        )

    @property
    def places(self) -> str:
        """Return the addresses of its nodes."""
        return ",".join(address(node.name) for node in self.nodes)


class LinksRun(Run):
    """See the module docstring."""

    plan: Plan

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan, _ABSENCES_S)
        self.net = Net(world, varied=plan.varied_wires)
        self.net.faulty = plan.varied_wires
        self.truth = Truth(plan.by_time)
        self.exempt = Exemptions(self.truth)
        self.arrivals = ArrivalJudge(self.truth)
        self.stops = StopJudge(self.truth)
        self.shipped = ShipJudge()
        self.final = FinalJudge(plan, self.truth, self.exempt)
        self.sites = [self._make_site(number) for number in range(plan.clusters)]
        self._add_nodes(*(node for site in self.sites for node in site.nodes))
        self.done: Counter[str] = Counter()
        self.working = False
        self.writing = False
        self._values = 0
        self._changes = 0  # of all books
        self._absent = {route.name for route in plan.routes}
        #: Links that were said to be made: node and name. Power loss may take them away.
        self._made: set[tuple[str, str]] = set()
        self._ever_stopped = False
        self._promoted_at = 0.0
        world.watchers.append(self._look)

    def _make_site(self, number: int) -> Site:
        names = [f"n{number}", *([f"s{number}"] if self.plan.standbys else [])]
        nodes = [
            Node(
                self.net,
                name,
                self._settings(),
                sync=self.plan.sync,
                has_links=True,
                instance=b"replica:" + name.encode(),
            )
            for name in names
        ]
        random, plan = self.world.random, self.plan
        for node in nodes:
            node.drift = Drift(
                random.uniform(-plan.drift_s, plan.drift_s),
                random.uniform(-0.01, 0.01) if plan.drift_s else 0.0,
                plan.grain_s,
            )
        sources = {route.source for route in plan.routes}
        split = plan.split and number not in sources
        if split:
            self.net.slow.add(nodes[-1].name)
        return Site(number, nodes, split=split)

    def _settings(self) -> Settings:
        plan = self.plan
        settings = small_settings(vbuckets=plan.vbuckets, quota=4_000_000, sync=plan.sync)
        rule = "timestamp" if plan.by_time else "revision"
        engine = replace(
            settings.engine,
            conflict_resolution=rule,
            max_failover_entries=plan.max_failover_entries,
        )
        upr = UprSettings(noop_interval_s=1.0, dial_timeout_s=1.0, redial_max_s=0.4)
        purge = PurgeSettings(min_age_s=0, batch_items=2)
        xdcr = XdcrSettings(batches=3)
        return replace(settings, engine=engine, upr=upr, purge=purge, xdcr=xdcr)

    def act(self) -> None:
        self.working = self.writing = True
        for number in self.plan.writers:
            if number < len(self.sites):
                self._write_later(self.sites[number])
        for site in self.sites:
            if self.plan.purge_s and site.number in self.plan.purging:
                for node in site.nodes:
                    self._purge_later(node)
        self._operate_later()

    # --- the beginning ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the nodes, then make the links."""
        self._start_nodes()
        for site in self.sites:
            for number in range(self.plan.vbuckets):
                site.holder(number).bucket.set_state(number, VBucketState.ACTIVE)
        self._tidy()
        for route in self.plan.routes:
            self.world.after(route.late, partial(self._make, route))
        self._until(lambda: self._running(late=False), "links", self._standing)

    def _running(self, *, late: bool) -> bool:
        return all(
            self._established(route, number)
            for route in self.plan.routes
            if late or not route.late
            for number in range(self.plan.vbuckets)
        )

    def _established(self, route: Route, number: int) -> bool:
        link = self.sites[route.source].active.xdcr.by_name.get(route.name)
        return link is not None and number in link.shipments

    def _make(self, route: Route) -> None:
        """Make a link at all nodes of its source, again and again until it is there."""
        site, target = self.sites[route.source], self.sites[route.target]
        self._absent.discard(route.name)
        made = self._made.add
        for node in site.nodes:
            given = {"name": route.name, "to": target.places, "set": route.options}
            if route.filtered:
                given["filter_key"] = "^a"
            try:
                if node.serving and not node.stopping and route.name not in node.xdcr.by_name:
                    node.command(
                        "create", lambda _, place=(node.name, route.name): made(place), **given
                    )
            except CommandError as error:
                self.world.note(f"{node.name}: create {route.name}: {error!r}")
        self.world.after(0.3, partial(self._make_again, route))

    def _make_again(self, route: Route) -> None:
        """A node that has lost power, or got an old disk, may not know its links any more."""
        if route.name not in self._absent:
            self._make(route)

    # --- who is active ----------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Let the nodes of each cluster be what they are to be, again and again."""
        for site in self.sites:
            for node in site.nodes:
                if node.serving and not node.stopping:
                    try:
                        self._tidy_node(site, node)
                    except CommandError as error:
                        self.world.note(f"{node.name}: {error!r}")
        self.world.after(_TIDY_S, self._tidy)

    def _tidy_node(self, site: Site, node: Node) -> None:
        numbers = range(self.plan.vbuckets)
        states = node.bucket.vbuckets
        for number in numbers:
            vbucket = states.get(number)
            holder = site.holder(number)
            if node is holder:
                if vbucket is not None and vbucket.state != VBucketState.ACTIVE:
                    node.replication.fail_over([number], lambda *_: None)
            else:
                source = node.replication.source_of(number) if vbucket is not None else None
                wanted = address(holder.name)
                if source is None or source.place != wanted or node.awaits_a_word(number):
                    node.replication.follow(wanted, [number], demote=True, done=lambda _: None)

    # --- clients ----------------------------------------------------------------------------------

    def _write_later(self, site: Site) -> None:
        delay_s = self.world.random.expovariate(1 / self.plan.writer_s)
        self.world.after(delay_s, partial(self._write, site))

    def _write(self, site: Site) -> None:
        if not self.writing:
            return
        for _ in range(self.plan.burst if self.world.random.random() < _BURSTING else 1):
            self.write(site)
        self._write_later(site)

    def write(self, site: Site) -> None:
        """Set or delete a document at whoever takes writes."""
        random, node = self.world.random, self.world.random.choice(site.nodes)
        place = random.randrange(self.plan.keys)
        number = place % self.plan.vbuckets
        key = (b"a%d" if place // self.plan.vbuckets % 2 else b"b%d") % place
        if not node.serving or node.stopping or number not in node.bucket.active:
            return
        vbucket = node.bucket.active[number]
        self._values += 1
        try:
            if random.random() < 0.4:
                vbucket.delete(key)
                self.done["deletions"] += 1
            else:
                expiry = 0
                if random.random() < self.plan.expiring:
                    expiry = int(node.bucket.clock.now()) + random.randint(1, 4)
                value = b"%d" % self._values + b"." * random.choice((0, 0, 300))
                vbucket.store(key, value, random.choice((0, 1)), expiry)
                self.done["writes"] += 1
        except CommandError:
            self.done["writes refused"] += 1

    # --- the operator -----------------------------------------------------------------------------

    def _purge_later(self, node: Node) -> None:
        delay_s = self.world.random.expovariate(1 / self.plan.purge_s)
        self.world.after(delay_s, partial(self._purge, node))

    def _purge(self, node: Node) -> None:
        if node.serving and not node.stopping:
            number = self.world.random.randrange(self.plan.vbuckets)
            try:
                node.bucket.compact(number, PurgeRule(every=True), lambda _: None)
            except CommandError:
                self.done["purges refused"] += 1
        if self.working:
            self._purge_later(node)

    def _operate_later(self) -> None:
        delay_s = self.world.random.expovariate(1 / self.plan.operator_s)
        self.world.after(delay_s, self._operate)

    def _operate(self) -> None:
        if not self.working:
            return
        if self.plan.operating:
            kinds, weights = list(self.plan.operating), list(self.plan.operating.values())
            kind = self.world.random.choices(kinds, weights)[0]
            self.world.note(f"operator: {kind}")
            try:
                getattr(self, f"_{kind}")()
                self.done[kind] += 1
            except CommandError as error:
                self.world.note(f"operator: {kind}: {error!r}")
        self._operate_later()

    def _route(self, places: tuple[int, ...] = ()) -> tuple[Route, Node] | None:
        routes = self.plan.routes
        route = routes[self.world.random.choice(places or range(len(routes)))]
        node = self.sites[route.source].active
        known = node.serving and not node.stopping and route.name in node.xdcr.by_name
        return (route, node) if known else None

    def _pause(self) -> None:
        found = self._route()
        if found is not None:
            route, node = found
            node.command("pause", name=route.name)
            self.world.after(self.world.between(0.1, 4), partial(self._resume, route))

    def _resume(self, route: Route) -> None:
        """Resume a link at all nodes, until it is so."""
        again = False
        for node in self.sites[route.source].nodes:
            link = node.xdcr.by_name.get(route.name) if node.serving else None
            if link is None or node.stopping:
                again = True
            elif link.spec.paused:
                again = True
                node.command("resume", name=route.name)
        if again and route.name not in self._absent:
            self.world.after(0.2, partial(self._resume, route))

    def _forget(self) -> None:
        """Remove the watermarks of a link."""
        found = self._route()
        if found is not None:
            route, node = found
            for vbucket in node.bucket.active.values():
                with suppress(KeyNotFound):
                    node.bucket.watermarks.remove(vbucket, b"xdcr:" + route.name.encode(), MANAGER)

    def _checkpoint(self) -> None:
        found = self._route()
        if found is not None:
            self.done["checkpoints in mid-snapshot"] += self._is_inside(found[0])
            found[1].command("checkpoint", name=found[0].name)

    def _is_inside(self, route: Route) -> bool:
        """Tell whether only a part of a snapshot has arrived."""
        link = self.sites[route.source].active.xdcr.by_name.get(route.name)
        places = [] if link is None else [each.through for each in link.shipments.values()]
        return any(at.snapshot.start < at.seqno < at.snapshot.end for at in places)

    def _part(self) -> None:
        if len(self.nodes) > 1:
            self.net.part_for((0.1, 3.0), [node.name for node in self.nodes])

    def _failover(self) -> None:
        """Let the other node of a cluster be active; of one that is split, both change places."""
        site = self.world.random.choice(self.sites)
        others = [node for node in site.nodes if node is not site.active and node.serving]
        if others and all(
            number in others[0].bucket.vbuckets for number in range(self.plan.vbuckets)
        ):
            self.done["failovers in mid-snapshot"] += any(map(self._is_inside, self.plan.routes))
            site.active = others[0]
            for node in site.nodes:
                numbers = [n for n in range(self.plan.vbuckets) if site.holder(n) is node]
                if numbers and node.serving:
                    node.replication.fail_over(numbers, lambda *_: None)

    def _behind(self) -> None:
        """Set the clock of a node back for a while."""
        drift = self.world.random.choice(self.nodes).drift
        drift.offset_s -= _BEHIND_S
        self.world.after(self.world.between(0.3, 2.0), partial(self._set_right, drift))

    def _set_right(self, drift: Drift) -> None:
        drift.offset_s += _BEHIND_S

    def _restore(self) -> None:
        """Keep a copy of a directory, or put one in the place of it."""
        site = self.world.random.choice(self.sites)
        node = site.active
        if not node.serving or node.stopping:
            return
        if not node.copies or len(site.nodes) > 1:
            node.keep_copy()
            return
        node.crash()
        copied = node.restore_copy()
        for route in self.plan.routes:
            if route.source == site.number:
                self.stops.forget(route)
        for number in range(self.plan.vbuckets):
            high = copied.vbuckets[number][0].high_seqno if number in copied.vbuckets else 0
            for key in self.truth.book(node.name, number).deleted_after(high):
                self.exempt.add(key, "deleted where an older copy was restored")
        self.done["restored"] += 1
        self.world.after(0.05, lambda: None if node.up else node.start())

    def _recreate(self) -> None:
        """Delete a link, and make it again later."""
        found = self._route(self.plan.fickle)
        if found is None:
            return
        route, _ = found
        site = self.sites[route.source]
        if any(not node.serving or node.stopping for node in site.nodes):
            return
        self._absent.add(route.name)
        self.stops.forget(route)
        for node in site.nodes:
            if route.name in node.xdcr.by_name:
                node.command("delete", name=route.name)
            self._made.discard((node.name, route.name))
        self.world.after(self.world.between(0.1, 3), partial(self._make, route))

    # --- looking ----------------------------------------------------------------------------------

    def _look(self) -> None:
        for site in self.sites:
            for node in site.nodes:
                if node.serving:
                    self._changes += self._look_at(site, node)
        for route in self.plan.routes:
            targets = self.sites[route.target].nodes
            for node in self.sites[route.source].nodes:
                if node.serving:
                    self.arrivals.look(node, route, targets, self._changes)

    def _look_at(self, site: Site, node: Node) -> bool:
        changed = False
        stored = node.store_judge.newest.vbuckets
        for number, vbucket in node.bucket.vbuckets.items():
            book = self.truth.book(node.name, number)
            if book.look(vbucket, stored):
                changed = True
                self.shipped.look(site.number, book)
                if book.purged:
                    self._purged(site, number, book, first=node is site.active)
        return changed

    def _purged(self, site: Site, number: int, book: Book, *, first: bool) -> None:
        """Tell who has to know what deletions were dropped; a replica drops them after its source.

        What counts for links is when the source did: a link that is made later knows nothing of it.
        """
        self.done["dropped"] += len(book.purged)
        routes, node = self.plan.routes, site.active
        known = {name for at, name in self._made if at == node.name} & node.xdcr.by_name.keys()
        absent = [r for r in routes if r.source == site.number and r.name not in known]
        book_of = partial(self._book, number=number)
        for version in book.purged:
            key, has_had = version.key, self.truth.has_had
            sources = {
                each
                for each in reaching(routes, site.number, key)
                if each not in reaching(routes, site.number, key, deleted=True)
                or site.number not in reaching(routes, each, key, deleted=True)
            }
            coming = self._coming(sources, site, number, key)
            unsent = any(
                route.lets(key, deleted=True)
                and not has_had(self._book(route.target, number), version)
                for route in absent
            )
            self.exempt.dropped(version, sources, book_of, coming, unsent=unsent)
            for route in routes:
                leads_on = any(each.source == route.target for each in routes)
                is_made = first and route.source == site.number and route not in absent
                if is_made and leads_on and route.lets(key, deleted=True):
                    theirs, told = self._book(route.target, number), self._stopped(route, number)
                    if not self.truth.has_had(theirs, version):
                        self.exempt.add(key, "dropped before it was sent")
                    if not self._is_stopped(route, number):
                        self.stops.dropped(route, theirs, number, version, told)
        book.purged.clear()

    def _is_stopped(self, route: Route, number: int) -> bool:
        """Tell whether a link has stopped with a vBucket, and was not reconciled since."""
        link = self.sites[route.source].active.xdcr.by_name.get(route.name)
        return link is not None and number in link.needs_reconcile

    def _stopped(self, route: Route, number: int) -> int:
        """Return how often a link has stopped with a vBucket."""
        wanted = {"link": route.name, "vbucket": number}
        events = (event for node in self.sites[route.source].nodes for event in node.events)
        return sum(
            name == "xdcr_needs_reconcile" and wanted.items() <= fields.items()
            for name, fields in events
        )

    def _book(self, cluster: int, number: int) -> Book:
        return self.truth.book(self.sites[cluster].holder(number).name, number)

    def _coming(self, sources: set[int], site: Site, number: int, key: bytes) -> Iterator[Version]:
        """Return versions of a key that links have read and that have not arrived at a cluster."""
        for route in self.plan.routes:
            if route.source in sources and route.target == site.number and route.lets(key):
                for node in self.sites[route.source].nodes:
                    link = node.xdcr.by_name.get(route.name)
                    if link is not None and number in link.shipments:
                        through = link.shipments[number].through.seqno
                        yield from self.truth.book(node.name, number).had_after(key, through)

    # --- the end ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Let no new fault happen, mend what is broken, let every link run."""
        self.working = False
        self._heal_nodes()
        self._until_nodes_serve()
        for route in self.plan.routes:
            if route.name in self._absent:
                self._make(route)
            self._resume(route)
        self.world.run(200)
        self.writing = False

    def rest(self) -> None:
        """Wait until no link has anything to send, also after each has written a checkpoint.

        A link that sends nothing finds out by that whether its target has lost something.
        """
        self._rest()
        for _ in range(_ROUNDS):
            before = self._messages()
            for route in self.plan.routes:
                node = self.sites[route.source].active
                if node.xdcr.by_name[route.name].shipments:
                    node.command("checkpoint", name=route.name)
            self._rest()
            if self._messages() == before:
                return
        complain(f"each checkpoint makes links send something: {self._standing()}")

    def _rest(self) -> None:
        until = self.world.now + _REST_S
        since, before = self.world.now, self._messages()
        while self.world.now - since < _QUIET_S:
            if self.world.now > until:
                complain(f"it does not come to rest: {self._standing()}")
            self.world.run(20)
            if not self._level() or self._messages() != before:
                since, before = self.world.now, self._messages()
                self._reconcile()
                self._promote_again()

    def _messages(self) -> tuple[int, int]:
        """Return how much was sent, and how many changes there were."""
        return self._sent(), sum(book.high for book in self.truth.books.values())

    def _sent(self) -> int:
        links = [link for node in self.nodes for link in node.xdcr.by_name.values()]
        return sum(
            link.counters.docs_written
            + link.counters.docs_failed_cr_target
            + link.counters.docs_failed_cr_source
            for link in links
        )

    def _level(self) -> bool:
        if not all(site.is_right(self.plan.vbuckets) for site in self.sites):
            return False
        for route in self.plan.routes:
            link = self.sites[route.source].active.xdcr.by_name.get(route.name)
            if link is None or link.state != "running" or link.progress.changes_left:
                return False
            if len(link.shipments) != self.plan.vbuckets:
                return False
        return True

    def _reconcile(self) -> None:
        """Do what an operator does where a link has stopped."""
        for route in self.plan.routes:
            node = self.sites[route.source].active
            link = node.xdcr.by_name.get(route.name)
            if link is None or link.state != "needs_reconcile":
                continue
            self._ever_stopped = True
            if link.reconciliation is None or not link.reconciliation.running:
                self.done["reconciled"] += 1
                try:
                    node.command("reconcile", name=route.name)
                except CommandError as error:
                    self.world.note(f"reconcile: {error!r}")

    def _promote_again(self) -> None:
        """Promote once more where a promotion is lost, by power loss, that a link has heard of."""
        if self.world.now < self._promoted_at + _PROMOTING_S:
            return
        for route in self.plan.routes:
            link = self.sites[route.source].active.xdcr.by_name.get(route.name)
            if link is None or not any("was promoted" in each for each in link.errors.shown()[-2:]):
                continue
            for number in range(self.plan.vbuckets):
                holder = self.sites[route.target].holder(number)
                if number not in link.shipments and number in holder.bucket.active:
                    self._promoted_at = self.world.now
                    self.done["promoted again"] += 1
                    holder.bucket.set_state(number, VBucketState.DEAD)
                    holder.replication.fail_over([number], lambda *_: None)

    def _standing(self) -> str:
        told = []
        for route in self.plan.routes:
            link = self.sites[route.source].active.xdcr.by_name.get(route.name)
            if link is None:
                told.append(f"{route.name} is not there")
            else:
                through = {n: s.through.seqno for n, s in link.shipments.items()}
                told.append(
                    f"{route.name} is {link.state}, {link.progress.changes_left} left, "
                    f"through {through}, "
                    f"{link.nodes.shown()}, {link.errors.shown()[-2:]}"
                )
        told += [f"{node.name}: {sorted(node.bucket.active)}" for node in self.nodes]
        return "; ".join(told)

    def finish(self) -> None:
        """Let the judges speak."""
        self.stops.judge(self._book, self._stopped)
        if self.plan.loses_nothing_sent:
            self.shipped.judge(
                self._book(site.number, number).log
                for site in self.sites
                for number in range(self.plan.vbuckets)
            )
        self.exempt.look_back()
        self.final.judge({site.number: partial(self._book, site.number) for site in self.sites})
        in_peace = self.plan.faults == Faults() and not self.plan.operating
        if in_peace and all(node.life == 1 for node in self.nodes):
            accepted = sum(len(versions) for versions in self.truth.known.values())
            judge_hops(self.plan, self._sent(), accepted)

    def account(self) -> dict[str, int]:
        total = Counter({**self.done, **super().account()})
        total.update({f"arrivals {name}": count for name, count in self.arrivals.counts.items()})
        total.update({f"keys {name}": count for name, count in self.final.counts.items()})
        total.update({f"keys {why}": count for why, count in self.exempt.counts.items()})
        total.update(self.shipped.counts)
        total["logs trimmed"] = sum(book.kept != book.log for book in self.truth.books.values())
        for node in self.nodes:
            total.update(event for event, _ in node.events)
            for link in node.xdcr.by_name.values():
                counters = link.counters
                total["echoes"] += counters.echoes_stopped
                total["lost at the target"] += counters.docs_failed_cr_target
                total["lost at the source"] += counters.docs_failed_cr_source
                total["checkpoints"] += counters.checkpoints
                total["refused"] += counters.docs_refused
        total["sent"] = self._sent()
        return {name: int(count) for name, count in total.items()}


LINKS = Simulation("xdcr", LinksRun, draw_links)
