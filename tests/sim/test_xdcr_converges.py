"""Whatever goes wrong with clusters and the links between them, all end with what the table says.

Judges look after every step (`xdcr_judges.ArrivalJudge`, `xdcr_judges`), and at rest; a seed that
fails says how to run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from operator import mul
from typing import Any

import pytest

from tests.seeds import seeds
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.links import LINKS, TOPOLOGIES, Plan, Route, routes
from tests.sim.noticing import Break, Patch, broken, cases, happens, instead, notice, skip, swap
from uprmc.model import SEQNO_MAX
from uprmc.remote.stream import StreamState
from uprmc.xdcr import checkpoint, checkpointing, reading, resuming, sender
from uprmc.xdcr.link import Link, Progress
from uprmc.xdcr.received import due
from uprmc.xdcr.reconcile import Reconciliation
from uprmc.xdcr.resuming import Resuming
from uprmc.xdcr.sender import Outbound, Sender
from uprmc.xdcr.shipment import LinkPosition, Shipment
from uprmc.xdcr.spec import LinkSpec

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", seeds(default=4))
@pytest.mark.acceptance("X02", "X06", "X26", "X27", "C01", "C07", "C09", "C12", "C14")
def test_clusters_end_with_what_the_table_says_whatever_goes_wrong(seed: int) -> None:
    """Random topologies, faults, failovers, restored copies, filters, clocks; see `links`."""
    LINKS.story(seed)


@pytest.mark.parametrize("topology", list(TOPOLOGIES))
@pytest.mark.acceptance("X02", "X06", "X09")
def test_without_faults_each_change_travels_once_along_each_link(topology: str) -> None:
    """In a ring, once to each other cluster."""
    LINKS.random(0, Plan(routes(topology), NO_FAULTS, varied_wires=False, steps=2_500))


_SHORT = Plan(routes("pair"), NO_FAULTS, steps=3_000)

#: What a run is for -> its plan.
RUNS: dict[str, Plan] = {
    "connections cut": replace(_SHORT, faults=Faults(cut_s=0.2)),
    "nodes killed": replace(_SHORT, faults=Faults(crash_s=1.0), routes=routes("ring")),
    "a link that is late": replace(
        _SHORT,
        routes=(*routes("line"), *(r._replace(late=1.0) for r in routes("forward")[2:])),
        operating={"checkpoint": 1},
        operator_s=0.1,
    ),
    "clocks that agree too well": replace(
        _SHORT,
        routes=routes("mesh", settings=(("optimistic_bytes", "0"),)),
        by_time=True,
        grain_s=1.0,
        keys=2,
        writer_s=0.05,
    ),
    "watermarks removed": replace(
        _SHORT,
        operating={"pause": 2, "forget": 3, "checkpoint": 2},
        operator_s=0.1,
        purge_s=0.03,
        writer_s=0.03,
        writers=(0,),
    ),
    "failovers at both ends": replace(
        _SHORT, standbys=True, operating={"failover": 1, "checkpoint": 1}, operator_s=0.5
    ),
    "two nodes of a target, one of them slow": replace(
        _SHORT,
        # What waits for the disk is in an earlier snapshot than what is read meanwhile.
        routes=(Route(0, 1, settings=(("ship", "persisted"), ("batch_items", "10"))),),
        standbys=True,
        split=True,
        operating={"failover": 1, "checkpoint": 6},
        operator_s=0.1,
        purge_s=0.0,
        keys=30,
        burst=30,
        writer_s=0.05,
        steps=4_000,
    ),
    "failovers of sources that wait for their replicas": replace(
        _SHORT,
        routes=routes("line", settings=(("ship", "replicated"),)),
        faults=Faults(crash_s=2.0),
        standbys=True,
        operating={"failover": 1, "checkpoint": 1},
        operator_s=0.3,
        purge_s=0.0,
        writer_s=0.03,
        steps=4_000,
    ),
    "failover logs that are trimmed": replace(
        _SHORT,
        routes=routes("line", settings=(("batch_items", "10"),)),
        faults=Faults(crash_s=0.6),
        operating={"recreate": 2, "checkpoint": 2},
        operator_s=0.3,
        max_failover_entries=2,
        keys=14,
        writer_s=0.05,
    ),
    "sources killed that wait for their disks": replace(
        _SHORT,
        routes=routes("line", settings=(("ship", "persisted"),)),
        faults=Faults(power_s=0.7),
        writer_s=0.03,
    ),
    "deletions left out": replace(
        _SHORT,
        routes=(*routes("line", deletions=False), *routes("forward")[2:]),
        faults=Faults(cut_s=0.5),
        operating={"pause": 1, "checkpoint": 2},
        writer_s=0.03,
    ),
    "deletions left out one way": replace(
        _SHORT,
        routes=(Route(0, 1, deletions=False), Route(1, 0)),
        operating={"pause": 1, "checkpoint": 2},
        purge_s=0.03,
        writer_s=0.03,
    ),
}


@cache
def account(what: str, seed: int) -> Mapping[str, int]:
    """Run a plan, once for all tests."""
    return LINKS.random(seed, RUNS[what]).account()


@pytest.mark.parametrize("what", list(RUNS))
@pytest.mark.acceptance("X06", "X09", "X26", "X27", "C09", "C12")
def test_clusters_bear(what: str) -> None:
    account(what, 0)


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens within the first seeds; else the judges have nothing to judge."""
    wanted = {
        "arrivals arrived",
        "arrivals began elsewhere",
        "arrivals forwarded",
        "checkpoints",
        "checkpoints in mid-snapshot",
        "dropped",
        "echoes",
        "failover",
        "failovers in mid-snapshot",
        "keys judged",
        "keys left alone",
        "logs trimmed",
        "lost at the source",
        "lost at the target",
        "pause",
        "sent safely",
    }

    def accounts(seed: int) -> Iterator[Mapping[str, int]]:
        yield account("a link that is late", seed)
        yield account("failovers at both ends", seed)
        yield account("two nodes of a target, one of them slow", seed)
        yield account("failovers of sources that wait for their replicas", seed)
        yield account("deletions left out", seed)
        yield account("deletions left out one way", seed)
        yield account("failover logs that are trimmed", seed)
        yield LINKS.story(seed).account

    happens(wanted, (each for seed in range(5) for each in accounts(seed)))


def test_the_same_seed_gives_the_same_run() -> None:
    assert LINKS.random(1).world.digest() == LINKS.story(1).digest


# --- judges speak ---------------------------------------------------------------------------------

_SEEDS = 60


def _with_rules(**changes: object) -> Patch:
    def apply_settings(whole: Any, link: Sender) -> None:
        whole(link)
        for name, value in changes.items():
            setattr(link.rules, name, value)

    return instead(Sender, "apply_settings", apply_settings)


def _unless_equal(whole: Any, self: Sender, target: Any, item: Any, theirs: Any) -> bool:
    wins: bool = whole(self, target, item, theirs)
    if wins and theirs is not None:
        fields = sender.WITH_META_FRAME.unpack_from(target.windows.frame(item))
        flags, expiry, rev, cas = fields[-4:]
        return (rev, cas, expiry, flags) != tuple(theirs[1])
    return wins


def _no_trimmed_branch(whole: Any, stream: StreamState, seqno: int) -> int:
    return whole(stream, seqno) if seqno > stream.log[-1].seqno else 0


def _from_the_front(whole: Any, link: Link, shipments: Any, *, remember: bool = True) -> None:
    dropped = list(shipments)
    for shipment in dropped:
        shipment.through = shipment.front
    whole(link, dropped, remember=remember)


def _in_the_present_snapshot(
    whole: Any, self: Outbound, place: str, most_items: int | None
) -> tuple[Shipment, Any]:
    shipment, part = whole(self, place, most_items)
    return shipment, part._replace(snapshot=reading._snapshot_of(shipment.stream))


def _sent_is_arrived(whole: Any, shipment: Shipment, window: Any, position: LinkPosition) -> None:
    whole(shipment, window, position)
    shipment.through = position


def _let_one_node_answer_for_all(patch: pytest.MonkeyPatch) -> None:
    """Call arrived what is under way to other nodes, too, when one has answered."""
    begin, arrived, made = Shipment.__init__, Shipment._arrived, list[Shipment]()

    def noted(self: Shipment, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        made.append(self)

    def for_all(self: Shipment, window: Any) -> None:
        arrived(self, window)
        for each in made:
            if each.moved is self.moved and each._under_way and not each.dead:
                each.through = each._under_way[-1][1]

    patch.setattr(Shipment, "__init__", noted)
    patch.setattr(Shipment, "_arrived", for_all)


def _forget_the_row_of_a_pause(whole: Any, link: Link) -> None:
    if link._pausing and link.reading is not None:
        for number in link.bucket.active:
            link.reading.unregister(number)
    whole(link)


_NO_DEBTS = skip(Sender, "_owe")
_KILLED = replace(
    RUNS["nodes killed"],
    faults=Faults(power_s=0.5, write_back_s=0.3),
    sync=False,
    operating={"checkpoint": 1},
    operator_s=0.05,
    writer_s=0.04,
    purge_s=0.0,
)
_AGAIN = replace(
    RUNS["a link that is late"],
    routes=routes("forward"),
    operating={"recreate": 1, "checkpoint": 4},
    operator_s=0.03,
    purge_s=0.0,
    writer_s=0.02,
    writers=(0,),
    keys=6,
    vbuckets=1,
    fickle=(2,),
)
_REFUSED = Plan(
    routes("line"), NO_FAULTS, operating={"behind": 1}, writer_s=0.03, purge_s=0.0, steps=2_000
)
#: What waits for the disk is in an earlier snapshot than what is read meanwhile.
_ON_DISK = (("ship", "persisted"), ("batch_items", "10"))
_LACKS = "has everything of"

_BREAKS = (
    # Sending.
    broken(
        "send versions back to where they come from",
        swap(resuming, "ends_of_branches", lambda *_: {}),
        said="documents were sent for",
        plan=Plan(routes("ring"), NO_FAULTS, varied_wires=False, steps=2_000),
    ),
    broken(
        "leave deletions out",
        _with_rules(deletions=False),
        said=f"{_LACKS}|is newer",
        plan=Plan(routes("pair"), NO_FAULTS, steps=2_000),
    ),
    broken(
        "forget the filter",
        _with_rules(pattern=None),
        said="must not reach it",
        plan=Plan(routes("pair", filtered=True), NO_FAULTS, steps=2_000),
    ),
    broken(
        "send deletions although the link is to leave them out",
        _with_rules(deletions=True, expirations=True),
        said="must not reach it",
        plan=RUNS["deletions left out one way"],
    ),
    broken(
        "send what only this node has on its disk",
        swap(sender, "replicated_seqno", lambda *_: SEQNO_MAX),
        said="was sent before its link was to send it",
        plan=RUNS["failovers of sources that wait for their replicas"],
    ),
    broken(
        "send what no disk has",
        swap(Outbound, "_safe_seqno", lambda _, vbucket: vbucket.high_seqno),
        said="was sent before its link was to send it",
        plan=RUNS["sources killed that wait for their disks"],
        seed=8,
    ),
    broken(
        "take records of links that leave deletions out for those of others",
        swap(LinkSpec, "filter_hash", property(lambda spec: spec.filter_key)),
        said=_LACKS,
        plan=replace(_AGAIN, routes=(Route(0, 1, deletions=False), Route(1, 2), Route(0, 2))),
    ),
    broken(
        "do not send a version that was looked up and differs in its origin only",
        instead(Sender, "looked_up", _unless_equal),
        said=f"{_LACKS}|is newer",
        plan=RUNS["clocks that agree too well"],
        seed=1,
    ),
    broken("pass what the target refuses for good", _NO_DEBTS, said=_LACKS, plan=_REFUSED),
    broken(
        "give what is older than all branches of a log no origin, so that the target refuses it",
        instead(StreamState, "history_of", _no_trimmed_branch),
        _NO_DEBTS,
        said=_LACKS,
        plan=RUNS["failover logs that are trimmed"],
    ),
    broken(
        "say that nothing is left although some of it is refused",
        swap(
            Progress,
            "changes_left",
            property(lambda self: sum(map(mul, (1, -1), self._totals()))),
        ),
        swap(Link, "failure", property(lambda self: self.halted)),
        said=_LACKS,
        plan=_REFUSED,
    ),
    broken(
        "remember debts as arrived when a stream ends",
        instead(Link, "drop", _from_the_front),
        said=_LACKS,
        plan=replace(_REFUSED, faults=Faults(cut_s=0.2)),
        seed=1,
    ),
    broken(
        "call an item part of the snapshot that is being read by the time it leaves",
        instead(Outbound, "take", _in_the_present_snapshot),
        said=_LACKS,
        # Snapshots of many items, of which one target gets some while the other waits.
        plan=Plan(
            (Route(0, 1, settings=_ON_DISK), Route(0, 2, settings=_ON_DISK)),
            NO_FAULTS,
            operating={"part": 2, "pause": 1},
            operator_s=0.3,
            writers=(0,),
            writer_s=0.02,
            burst=60,
            keys=30,
            vbuckets=1,
            purge_s=0.0,
            steps=3_000,
        ),
        seed=1,
    ),
    # What has arrived.
    broken(
        "do not wait for answers",
        instead(Shipment, "sent", _sent_is_arrived),
        said=_LACKS,
        plan=Plan(routes("pair"), Faults(cut_s=0.2), writer_s=0.03, steps=3_000),
    ),
    broken(
        "let one node of the target answer for all",
        _let_one_node_answer_for_all,
        said=_LACKS,
        plan=RUNS["two nodes of a target, one of them slow"],
    ),
    broken(
        "do not mind that the target may have lost something meanwhile",
        swap(checkpoint, "is_at_target", lambda *_: True),
        swap(Resuming, "_memory", lambda self, vbucket, _: self._link.memory.get(vbucket.id)),
        said=_LACKS,
        plan=_KILLED,
    ),
    broken(
        "note a seqno of the target's that does not cover what has arrived",
        instead(
            Shipment,
            "record",
            lambda whole, shipment, position, seqno, created: whole(shipment, position, 0, created),
        ),
        said=_LACKS,
        plan=_KILLED,
        seed=3,
    ),
    broken(
        "let deletions be purged while a link is paused",
        instead(Link, "_settle_pause", _forget_the_row_of_a_pause),
        said=f"{_LACKS}|is newer",
        plan=Plan(
            routes("line"),
            NO_FAULTS,
            operating={"pause": 1},
            writers=(0,),
            writer_s=0.03,
            purge_s=0.03,
            steps=3_000,
        ),
        seed=7,
    ),
    broken(
        "begin at zero although deletions were purged that the target lacks",
        swap(Resuming, "_has_missed", lambda *_: False),
        said="has not stopped",
        plan=RUNS["watermarks removed"],
    ),
    broken(
        "delete nothing at the target of what was deleted here",
        skip(Reconciliation, "_delete"),
        said="the repair of .* has left",
        plan=RUNS["watermarks removed"],
        seed=4,
    ),
    # Checkpoints of others.
    broken(
        "pass records on before all is there that they speak of",
        swap(checkpointing, "due", lambda records, upto, *more: due(records, 2**63, *more)),
        said=_LACKS,
        plan=_AGAIN,
        seed=34,
    ),
    broken(
        "pass records on although the target may have missed deletions",
        swap(Resuming, "_is_clean", lambda *_: True),
        said=_LACKS,
        plan=replace(_AGAIN, purge_s=0.03, purging=(1,), fickle=(1, 2)),
        seed=15,
    ),
    broken(
        "take records for those of links without a filter",
        swap(LinkSpec, "filter_hash", property(lambda _: "")),
        said=_LACKS,
        plan=replace(
            RUNS["a link that is late"],
            routes=(Route(0, 1), Route(1, 2, filtered=True), Route(0, 2, late=1.5)),
        ),
    ),
)


@cases(_BREAKS)
def test_a_broken_rule_of_links_is_noticed(case: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    notice(case, monkeypatch, LINKS.random, _SEEDS)
