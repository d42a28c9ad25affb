"""Each rule of links broken on purpose is noticed, by the right judge where only one can.

See `test_upr_judges_speak`; a break that no longer breaks fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import mul
from typing import Any

import pytest

from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.noticing import notice
from tests.sim.test_xdcr_converges import RUNS, small_links
from tests.sim.xdcr_plan import Plan, Route, routes
from tests.sim.xdcr_run import XdcrRun
from uprmc.model import SEQNO_MAX
from uprmc.remote.stream import StreamState
from uprmc.xdcr import checkpoint, outbound, reading, received, resuming, sender
from uprmc.xdcr.checkpoint import Record
from uprmc.xdcr.link import Link, Progress
from uprmc.xdcr.outbound import Outbound
from uprmc.xdcr.reconcile import Reconciliation
from uprmc.xdcr.resuming import Resuming
from uprmc.xdcr.run import LinkRun
from uprmc.xdcr.sender import Sender
from uprmc.xdcr.shipment import LinkPosition, Shipment
from uprmc.xdcr.spec import LinkSpec

pytestmark = pytest.mark.sim

__all__ = ["small_links"]

Patch = Callable[[pytest.MonkeyPatch], None]

_SEEDS = 60


# --- sending --------------------------------------------------------------------------------------


def _echo(patch: pytest.MonkeyPatch) -> None:
    """Send versions back to where they come from."""
    patch.setattr(resuming, "ends_of_branches", lambda *_: {})


def _with_rules(patch: pytest.MonkeyPatch, **changes: object) -> None:
    apply = Sender.apply_settings

    def apply_settings(self: Sender) -> None:
        apply(self)
        for name, value in changes.items():
            setattr(self.rules, name, value)

    patch.setattr(Sender, "apply_settings", apply_settings)


def _send_no_deletions(patch: pytest.MonkeyPatch) -> None:
    """Leave them out."""
    _with_rules(patch, deletions=False)


def _send_what_is_filtered(patch: pytest.MonkeyPatch) -> None:
    """Forget the filter."""
    _with_rules(patch, pattern=None)


def _send_what_is_to_be_left_out(patch: pytest.MonkeyPatch) -> None:
    """Send deletions although the link is to leave them out."""
    _with_rules(patch, deletions=True, expirations=True)


def _wait_for_no_replica(patch: pytest.MonkeyPatch) -> None:
    """Send what only this node has on its disk."""
    patch.setattr(outbound, "replicated_seqno", lambda *_: SEQNO_MAX)


def _wait_for_no_disk(patch: pytest.MonkeyPatch) -> None:
    """Send what no disk has."""
    patch.setattr(Outbound, "_safe_seqno", lambda _, vbucket: vbucket.high_seqno)


def _take_links_for_complete(patch: pytest.MonkeyPatch) -> None:
    """Take records of links that leave deletions out for those of links that do not."""
    patch.setattr(LinkSpec, "filter_hash", property(lambda spec: spec.filter_key))


def _give_equal_versions_up(patch: pytest.MonkeyPatch) -> None:
    """Do not send a version that was looked up and differs in its origin only."""
    looked_up = Sender.looked_up

    def strict(self: Sender, target: Any, item: Any, theirs: Any) -> bool:
        wins = looked_up(self, target, item, theirs)
        if wins and theirs is not None:
            fields = sender.WITH_META_FRAME.unpack_from(target.windows.frame(item))
            flags, expiry, rev, cas = fields[-4:]
            return (rev, cas, expiry, flags) != tuple(theirs[1])
        return wins

    patch.setattr(Sender, "looked_up", strict)


def _count_what_is_refused_as_done(patch: pytest.MonkeyPatch) -> None:
    """Pass what the target refuses for good."""
    patch.setattr(Sender, "_owe", lambda *_: None)


def _know_nothing_of_trimmed_branches(patch: pytest.MonkeyPatch) -> None:
    """Give what is older than all branches of a log no origin, so that the target refuses it."""
    whole = StreamState.history_of

    def history_of(stream: StreamState, seqno: int) -> int:
        return whole(stream, seqno) if seqno > stream.log[-1].seqno else 0

    patch.setattr(StreamState, "history_of", history_of)
    _count_what_is_refused_as_done(patch)


def _leave_debts_out(patch: pytest.MonkeyPatch) -> None:
    """Say that nothing is left although some of it is refused."""
    patch.setattr(
        Progress, "changes_left", property(lambda self: sum(map(mul, (1, -1), self._totals())))
    )
    patch.setattr(Link, "error", property(lambda self: self._halted))


def _begin_again_at_the_front(patch: pytest.MonkeyPatch) -> None:
    """Remember debts as arrived when a stream ends."""
    drop = LinkRun.drop

    def forgetful(self: LinkRun, shipments: Any, *, remember: bool = True) -> None:
        dropped = list(shipments)
        for shipment in dropped:
            shipment.through = shipment.front
        drop(self, dropped, remember=remember)

    patch.setattr(LinkRun, "drop", forgetful)


def _take_the_range_when_it_is_sent(patch: pytest.MonkeyPatch) -> None:
    """Call an item part of the snapshot that is being read by the time it leaves."""
    ship = Sender._ship

    def late(self: Sender, target: Any, shipment: Shipment, part: Any, out: list[bytes]) -> int:
        now = reading._snapshot_of(shipment.stream)
        return ship(self, target, shipment, part._replace(snapshot=now), out)

    patch.setattr(Sender, "_ship", late)


# --- what has arrived -----------------------------------------------------------------------------


def _take_sent_for_arrived(patch: pytest.MonkeyPatch) -> None:
    """Do not wait for answers."""
    sent = Shipment.sent

    def hasty(self: Shipment, window: Any, position: LinkPosition) -> None:
        sent(self, window, position)
        self.through = position

    patch.setattr(Shipment, "sent", hasty)


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


def _go_on_where_it_was(patch: pytest.MonkeyPatch) -> None:
    """Do not mind that the target may have lost something meanwhile."""
    patch.setattr(checkpoint, "is_at_target", lambda *_: True)
    patch.setattr(Resuming, "_memory", lambda self, vbucket, _: self._run.memory.get(vbucket.id))


def _ask_the_target_too_early(patch: pytest.MonkeyPatch) -> None:
    """Note a seqno of the target's that does not cover what has arrived."""
    record = Shipment.record

    def early(self: Shipment, position: LinkPosition, target_seqno: int, created: int) -> Record:
        return record(self, position, 0, created)

    patch.setattr(Shipment, "record", early)


def _forget_the_row_of_a_pause(patch: pytest.MonkeyPatch) -> None:
    """Let deletions be purged while a link is paused."""
    settle = Link._settle_pause

    def forgetful(self: Link) -> None:
        if self._pausing and self._run.reading is not None:
            for number in self._bucket.active:
                self._run.reading.unregister(number)
        settle(self)

    patch.setattr(Link, "_settle_pause", forgetful)


def _never_stop(patch: pytest.MonkeyPatch) -> None:
    """Begin at zero although deletions were purged that the target lacks."""
    patch.setattr(Resuming, "_has_missed", lambda *_: False)


def _repair_nothing(patch: pytest.MonkeyPatch) -> None:
    """Delete nothing at the target of what was deleted here."""
    patch.setattr(Reconciliation, "_delete", lambda *_: None)


# --- checkpoints of others ------------------------------------------------------------------------


def _pass_on_at_once(patch: pytest.MonkeyPatch) -> None:
    """Pass records on before all is there that they speak of."""
    due = received.due
    patch.setattr(
        "uprmc.xdcr.checkpointing.due",
        lambda records, upto, *more: due(records, 2**63, *more),
    )


def _pass_on_although_deletions_were_purged(patch: pytest.MonkeyPatch) -> None:
    """Forget that the target may have missed some."""
    patch.setattr(Resuming, "_is_clean", lambda *_: True)


def _forget_what_is_filtered(patch: pytest.MonkeyPatch) -> None:
    """Take records for those of links without a filter."""
    patch.setattr(LinkSpec, "filter_hash", property(lambda _: ""))


_LATE = RUNS["a link that is late"]
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
    _LATE,
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

#: What waits for the disk is in an earlier snapshot than what is read meanwhile.
_ON_DISK = (("ship", "persisted"), ("batch_items", "10"))

_REFUSED = Plan(
    routes("line"), NO_FAULTS, operating={"behind": 1}, writer_s=0.03, purge_s=0.0, steps=2_000
)
#: Runs in which a rule is needed often.
_PLANS: dict[Patch, Plan] = {
    _echo: Plan(routes("ring"), NO_FAULTS, varied_wires=False, steps=2_000),
    _send_no_deletions: Plan(routes("pair"), NO_FAULTS, steps=2_000),
    _send_what_is_filtered: Plan(routes("pair", filtered=True), NO_FAULTS, steps=2_000),
    _send_what_is_to_be_left_out: RUNS["deletions left out one way"],
    _wait_for_no_replica: RUNS["failovers of sources that wait for their replicas"],
    _wait_for_no_disk: RUNS["sources killed that wait for their disks"],
    _take_links_for_complete: replace(
        _AGAIN, routes=(Route(0, 1, deletions=False), Route(1, 2), Route(0, 2))
    ),
    _give_equal_versions_up: RUNS["clocks that agree too well"],
    _count_what_is_refused_as_done: _REFUSED,
    _know_nothing_of_trimmed_branches: RUNS["failover logs that are trimmed"],
    _leave_debts_out: _REFUSED,
    _begin_again_at_the_front: replace(_REFUSED, faults=Faults(cut_s=0.2)),
    # Snapshots of many items, of which one target gets some while the other waits.
    _take_the_range_when_it_is_sent: Plan(
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
    _take_sent_for_arrived: Plan(routes("pair"), Faults(cut_s=0.2), writer_s=0.03, steps=3_000),
    _let_one_node_answer_for_all: RUNS["two nodes of a target, one of them slow"],
    _go_on_where_it_was: _KILLED,
    _ask_the_target_too_early: _KILLED,
    _forget_the_row_of_a_pause: Plan(
        routes("line"),
        NO_FAULTS,
        operating={"pause": 1},
        writers=(0,),
        writer_s=0.03,
        purge_s=0.03,
        steps=3_000,
    ),
    _never_stop: RUNS["watermarks removed"],
    _repair_nothing: RUNS["watermarks removed"],
    _pass_on_at_once: _AGAIN,
    _pass_on_although_deletions_were_purged: replace(
        _AGAIN, purge_s=0.03, purging=(1,), fickle=(1, 2)
    ),
    _forget_what_is_filtered: replace(
        _LATE, routes=(Route(0, 1), Route(1, 2, filtered=True), Route(0, 2, late=1.5))
    ),
}


@pytest.mark.parametrize(
    ("break_it", "verdict"),
    [
        (_echo, "documents were sent for"),
        (_send_no_deletions, "has everything of|is newer"),
        (_send_what_is_filtered, "must not reach it"),
        (_send_what_is_to_be_left_out, "must not reach it"),
        (_wait_for_no_replica, "was sent before its link was to send it"),
        (_wait_for_no_disk, "was sent before its link was to send it"),
        (_take_links_for_complete, "has everything of"),
        (_give_equal_versions_up, "has everything of|is newer"),
        (_count_what_is_refused_as_done, "has everything of"),
        (_know_nothing_of_trimmed_branches, "has everything of"),
        (_leave_debts_out, "has everything of"),
        (_begin_again_at_the_front, "has everything of"),
        (_take_the_range_when_it_is_sent, "has everything of"),
        (_take_sent_for_arrived, "has everything of"),
        (_let_one_node_answer_for_all, "has everything of"),
        (_go_on_where_it_was, "has everything of"),
        (_ask_the_target_too_early, "has everything of"),
        (_forget_the_row_of_a_pause, "has everything of|is newer"),
        (_never_stop, "has not stopped"),
        (_repair_nothing, "the repair of .* has left"),
        (_pass_on_at_once, "has everything of"),
        (_pass_on_although_deletions_were_purged, "has everything of"),
        (_forget_what_is_filtered, "has everything of"),
    ],
)
def test_a_broken_rule_of_links_is_noticed(
    break_it: Patch, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a judge, and by the right one where there is only one who can."""
    break_it(monkeypatch)
    plan = _PLANS[break_it]
    notice(break_it, lambda seed: XdcrRun.random(seed, plan), verdict, _SEEDS)
