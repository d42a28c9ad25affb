"""Whatever goes wrong, TAP clients end with what their nodes hold, and a TAP master's copy is true.

Judges look at every message (`tap_judges`), at every end of a dump or a takeover, and at rest; a
seed that fails says how to run it again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.seeds import seeds
from tests.sim import tap_codec as tap
from tests.sim.cluster_run import TAP
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.noticing import Break, broken, cases, happens, instead, notice, skip, swap
from tests.sim.plan import TAP as SETTINGS
from tests.sim.plan import Plan
from tests.sim.push import PUSH, Manners, PushPlan
from tests.sim.tap_client import (
    BACKUP,
    BUSY,
    DUMPER,
    KINDS,
    LIVE,
    PLAIN,
    REGISTERED,
    REPLICA,
    TapKind,
)
from uprmc.errors import TemporaryFailure
from uprmc.protocol.opcodes import Opcode
from uprmc.tap_adapter import consumer as consumer_module
from uprmc.tap_adapter import conversation as conversation_module
from uprmc.tap_adapter import feed as feed_module
from uprmc.tap_adapter.consumer import Boundaries, TapConsumer
from uprmc.tap_adapter.conversation import SendQueue, TapStream
from uprmc.tap_adapter.cursor import TapCursor
from uprmc.tap_adapter.feed import TapFeed
from uprmc.tap_adapter.local import LocalUpstream
from uprmc.tap_adapter.names import Names
from uprmc.tap_adapter.openings import Openings
from uprmc.tap_adapter.producer import SavedBatch
from uprmc.tap_adapter.translate import TapForm
from uprmc.tap_adapter.window import TapControl, TapRefused, TapWindow

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", seeds(default=10))
@pytest.mark.acceptance("D01", "D56")
def test_every_tap_client_ends_equal_to_its_node(seed: int) -> None:
    """Random kinds, topologies, faults, failovers, hand-overs; see `plan`."""
    TAP.story(seed)


@pytest.mark.parametrize("seed", seeds(default=10))
@pytest.mark.acceptance("D56")
def test_what_a_tap_master_pushes_is_there_and_downstream(seed: int) -> None:
    """Random masters and faults; a node that follows by UPR shows only whole states."""
    PUSH.story(seed)


_MATRIX: dict[str, tuple[Faults, dict[str, int]]] = {
    "broken network": (Faults(cut_s=0.15), {}),
    "nodes killed with their machines": (Faults(power_s=0.8, write_back_s=0.3), {}),
    "disks broken and unreadable": (Faults(broken_s=0.8, unreadable_s=0.5), {}),
    "failovers and hand-overs": (Faults(cut_s=1.0), {"failover": 2, "takeover": 1}),
}


@pytest.mark.parametrize("fault", list(_MATRIX))
@pytest.mark.acceptance("D56")
def test_every_kind_bears_each_fault(fault: str) -> None:
    """All kinds at once."""
    faults, operating = _MATRIX[fault]
    TAP.random(0, Plan("pair", faults, operating, steps=3_000, tap_clients=KINDS, tap=SETTINGS))


@pytest.mark.acceptance("D56")
def test_registered_clients_go_on_after_crashes_without_loss() -> None:
    """They are not told everything again, and still nothing is missing."""
    total: Counter[str] = Counter()
    clients = (REGISTERED, REGISTERED, REGISTERED)
    for seed in range(4):
        plan = Plan("pair", Faults(crash_s=0.5), {}, steps=3_000, tap_clients=clients, tap=SETTINGS)
        total.update(TAP.random(seed, plan).account())
    assert total["crashes"]
    assert total["tap resumed"]


@pytest.mark.parametrize("rollback", ["rewind", "restart"])
@pytest.mark.acceptance("D56")
def test_branches_of_history_reach_clients_either_way(rollback: str) -> None:
    """By corrections, or from zero, as is set."""
    total: Counter[str] = Counter()
    for seed in range(3):
        plan = Plan(
            "star",
            NO_FAULTS,
            {"failover": 2, "twice": 1},
            operator_s=0.2,
            steps=3_000,
            tap_clients=(PLAIN, REPLICA, REGISTERED),
            tap=replace(SETTINGS, rollback=rollback),
        )
        total.update(TAP.random(seed, plan).account())
    assert total["rollbacks"]
    assert total["tap items"]


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens; else the judges have nothing to judge."""

    def accounts(seed: int) -> Iterator[dict[str, int]]:
        plan = Plan(
            "pair",
            Faults(cut_s=1.0, crash_s=2.0),
            {"tap_takeover": 3, "failover": 1},
            operator_s=0.2,
            steps=4_000,
            tap_clients=(BACKUP, BUSY, DUMPER, REPLICA),
            tap=SETTINGS,
        )
        yield TAP.random(seed, plan).account()
        push = PushPlan(Faults(cut_s=0.3, crash_s=1.5, broken_s=0.5), Manners(flushes=0.02))
        yield PUSH.random(seed, push).account()

    wanted = {"checkpoints", "deletions", "deregistered", "dumps", "from zero", "items", "left"}
    wanted = {f"tap {each}" for each in (*wanted, "refused", "resumed", "takeover taken")}
    wanted |= {f"push {each}" for each in ("begun", "crashes", "flushes", "refused", "resumed")}
    happens(wanted, (each for seed in range(12) for each in accounts(seed)))


def test_the_same_seed_gives_the_same_run() -> None:
    for each in (TAP, PUSH):
        assert each.random(1).world.digest() == each.story(1).digest


# --- judges speak ---------------------------------------------------------------------------------

#: How many seeds a broken rule may hide from; most are noticed within the first three.
_SEEDS = 60


def _sent_for_acknowledged(whole: Any, *given: Any) -> TapCursor:
    cursor = whole(*given)
    if cursor.sent > cursor.acked:
        cursor.acked = cursor.sent
        cursor.snapshot = cursor.snapshot._replace(start=cursor.sent, end=cursor.sent)
    return cursor


def _acknowledged(_: Any, window: TapWindow, sequence: int) -> TapRefused | None:
    settled = window.acknowledge(sequence)
    return None if settled is None else TapRefused(settled, [], None)


def _start_over_in_silence(patch: pytest.MonkeyPatch) -> None:
    """Give everything again without having the client empty its vBucket."""
    start_over, empty = Openings.start_over, Openings._empty
    again: list[TapStream] = []

    def careless(openings: Openings, stream: TapStream) -> None:
        again.append(stream)
        start_over(openings, stream)
        again.clear()

    def emptied(openings: Openings, stream: TapStream) -> None:
        empty(openings, stream)
        if stream in again:
            stream.from_scratch = stream.emptying = stream.backfilling = False

    patch.setattr(Openings, "start_over", careless)
    patch.setattr(Openings, "_empty", emptied)


def _no_end_of_a_backfill(whole: Any, queue: SendQueue, control: TapControl) -> None:
    if (control.opcode, control.word) != (Opcode.TAP_OPAQUE, tap.CLOSE_BACKFILL):
        whole(queue, control)


def _no_flush(whole: Any, queue: SendQueue, control: TapControl) -> None:
    if control.opcode != Opcode.TAP_FLUSH:
        whole(queue, control)
    elif control.acked is not None:
        control.acked()


def _hand_over_too_early(patch: pytest.MonkeyPatch) -> None:
    """Make the client active while the source still is."""
    marker = TapFeed._marker

    def careless(feed: TapFeed, stream: TapStream, request: Any) -> bool:
        if feed._conversation.takeover and not stream.announced:
            control = TapControl(Opcode.TAP_VBUCKET_SET, stream.number, tap.ACTIVE)
            feed._conversation.send_queue.post(control)
        return marker(feed, stream, request)

    patch.setitem(feed_module._HANDLERS, Opcode.UPR_SNAPSHOT_MARKER, careless)


_QUICK = TapKind("quick", tap.SUPPORT_ACK | tap.BYTE_ORDER, moody=0.15, absent_s=0.1)
_STRICT = TapKind("strict", tap.SUPPORT_ACK | tap.CHECKPOINT, ack_delay_max_s=0.1)
_LISTING = TapKind("listing", tap.SUPPORT_ACK, listed=True)
_FORGETFUL = TapKind(
    "forgetful",
    tap.SUPPORT_ACK | tap.REGISTERED,
    moody=0.15,
    absent_s=0.02,
    forgets=0.5,
    think_max_s=0.02,
)
_REFUSING = TapKind("refusing", tap.SUPPORT_ACK, nack=0.1)
_HASTY = TapKind("hasty", tap.SUPPORT_ACK | tap.REGISTERED)


def _plan(
    *clients: TapKind,
    faults: Faults = NO_FAULTS,
    keys: int = 14,
    rollback: str = "rewind",
    **operating: int,
) -> Plan:
    return Plan(
        "star",
        faults,
        operating,
        operator_s=0.15,
        keys=keys,
        writer_s=0.01,
        steps=2_500,
        tap_clients=clients,
        tap=replace(SETTINGS, rollback=rollback),
    )


_PEACE = _plan(_STRICT, PLAIN, REPLICA)
#: Whoever follows checkpoints is asked at each end, and knows a backfill's end by the next one.
_SIMPLE = _plan(PLAIN, PLAIN)
_BRANCHES = _plan(PLAIN, REPLICA, REGISTERED, keys=2_000, failover=2, twice=1)  # few come again
_ALONE = replace(_PEACE, topology="pair", vbuckets=1, writer_s=0.02)

_MISSES = r"is Doc\(.*\), not|is None, not|never ends|never come to rest"

_COUNTS = itertools.count()

_BREAKS = (
    # Window and gates.
    broken(
        "send whatever there is",
        swap(TapWindow, "room", 1_000_000),
        said="was answered last",
        plan=_PEACE,
    ),
    broken(
        "send items after an OPAQUE that is not acknowledged",
        swap(TapWindow, "gated", False),
        said="is not answered yet",
        plan=_PEACE,
    ),
    broken(
        "send a checkpoint's end before its items are acknowledged",
        swap(SendQueue, "_may_leave", lambda queue, control: True),
        said="is not answered yet",
        plan=_PEACE,
    ),
    broken(
        "do not ask for an answer at every interval",
        instead(
            SendQueue,
            "__init__",
            lambda whole, queue, window, interval, **more: whole(
                queue, window, interval * 2, **more
            ),
        ),
        said="must be answered",
        plan=_PEACE,
    ),
    broken(
        "do not ask for an answer when nothing follows",
        instead(
            SendQueue, "release", lambda whole, queue, out, *, ask: whole(queue, out, ask=False)
        ),
        said="never come to rest",
        plan=_SIMPLE,
        seed=4,
    ),
    broken(
        "close a backfill while items are not acknowledged",
        swap(TapWindow, "holds", lambda window, vbucket: False),
        said="is not answered yet",
        plan=_PEACE,
    ),
    # Answers.
    broken(
        "take a refused item as acknowledged",
        instead(TapWindow, "refuse", _acknowledged),
        said=f"{_MISSES}|no initial stream",
        plan=_plan(_REFUSING, BUSY),
    ),
    broken(
        "go on after what was sent, not after what was acknowledged",
        instead(Openings, "_course_of", _sent_for_acknowledged),
        said=_MISSES,
        plan=_plan(_QUICK, _QUICK, REPLICA, keys=2_000, faults=Faults(cut_s=0.3)),
        seed=8,
    ),
    broken(
        "do not say that a backfill has ended",
        instead(SendQueue, "post", _no_end_of_a_backfill),
        said="a backfill never ends",
        plan=_SIMPLE,
    ),
    # History.
    broken(
        "give everything again without having the client empty its vBucket",
        _start_over_in_silence,
        said=f"{_MISSES}|no initial stream",
        plan=_plan(PLAIN, PLAIN, keys=2_000, rollback="restart", failover=2),
        seed=43,
    ),
    broken(
        "say that no key of the lost branch was sent",
        swap(Openings, "_keys_above", lambda openings, stream, seqno: []),
        said=_MISSES,
        plan=_BRANCHES,
        seed=3,
    ),
    broken(
        "send first, write down where the client stands some other time",
        swap(SavedBatch, "fill", lambda batch, out, budget: batch._feed.fill(out, budget)),
        said=_MISSES,
        # What a crash loses stays with the client where few keys come again, and its place was
        # saved.
        plan=replace(
            _ALONE, tap_clients=(_HASTY, _HASTY, _HASTY), keys=2_000, faults=Faults(crash_s=1.0)
        ),
    ),
    broken(
        "remember a name that is deregistered",
        skip(Names, "deregister"),
        said="no initial stream was announced",
        plan=replace(_ALONE, tap_clients=(_FORGETFUL, _FORGETFUL, _FORGETFUL), steps=4_000),
        seed=3,
    ),
    broken(
        "begin with checkpoint 1 again and again",
        instead(
            TapCursor,
            "open_checkpoint",
            lambda whole, cursor, number, after: whole(cursor, 1, after),
        ),
        said=r"checkpoint 1 (begins|ends)",
        plan=_PEACE,
        seed=2,
    ),
    # What is asked for.
    broken(
        "do not look at the list of vBuckets",
        instead(LocalUpstream, "survey", lambda whole, local, _, done: whole(local, None, done)),
        said="were asked for",
        plan=_plan(_LISTING, _LISTING, _LISTING),
    ),
    broken(
        "mix up the byte order",
        swap(
            conversation_module,
            "TapForm",
            lambda keys_only, network_byte_order: TapForm(keys_only, not network_byte_order),
        ),
        said="byte order",
        plan=_plan(PLAIN, LIVE),
    ),
    broken(
        "call a dump complete one item before its end",
        instead(
            Openings,
            "begin",
            lambda whole, openings, number, standing: whole(
                openings,
                number,
                standing._replace(high_seqno=max(standing.high_seqno - 1, 0)),
            ),
        ),
        said="a dump of vBucket|never come to rest",
        plan=_plan(DUMPER, DUMPER),
        seed=1,
    ),
    broken(
        "make the client active while the source still is",
        _hand_over_too_early,
        said="is made active by|the taker is active",
        plan=_plan(tap_takeover=1),
    ),
    broken(
        "take any end of a stream for everything being emptied",
        swap(LocalUpstream, "flushes", property(lambda _: next(_COUNTS))),
        said="nothing was flushed",
        plan=_BRANCHES,
    ),
    broken(
        "begin again after everything was emptied without a word to the client",
        instead(SendQueue, "post", _no_flush),
        said=_MISSES,
        plan=_plan(PLAIN, LIVE, keys=2_000, tap_flush=2),
    ),
    broken(
        "leave a backfill open in which there is nothing",
        skip(Openings, "_surveyed"),
        said="a backfill never ends",
        # Where little is written a vBucket stays empty for long enough.
        plan=replace(_plan(_LISTING, _LISTING, tap_flush=1), writer_s=0.5),
        seed=16,
    ),
)


@cases(_BREAKS)
def test_a_broken_rule_of_the_producer_is_noticed(
    case: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(case, monkeypatch, TAP.random, _SEEDS)


# --- a master's copy ------------------------------------------------------------------------------


def _call_it_taken(patch: pytest.MonkeyPatch) -> None:
    """Call it a success when there is no room."""
    carry_out = TapConsumer._overwrite

    def careless(consumer: TapConsumer, change: Any) -> None:
        with suppress(TemporaryFailure):
            carry_out(consumer, change)

    actions = consumer_module._ACTIONS
    patch.setitem(actions, next(each for each in actions if actions[each] is carry_out), careless)


def _silent_now_and_then(whole: Any, consumer: TapConsumer, *given: Any) -> bytes | None:
    answer: bytes | None = whole(consumer, *given)
    return None if consumer.acks % 7 == 6 else answer


_CALM_PUSH = PushPlan(Faults(cut_s=0.3))

_PUSH_BREAKS = (
    broken(
        "begin a backfill over what is there",
        skip(consumer_module, "begin_again"),
        said="its master has|no boundary",
        plan=PushPlan(Faults(cut_s=0.2), Manners(anew=1.0)),
        seed=3,
    ),
    broken(
        "pass on whatever is there",
        swap(Boundaries, "is_inside", lambda boundaries, number: False),
        said="no boundary of its master",
        plan=_CALM_PUSH,
    ),
    broken(
        "give CAS and revision of one's own",
        instead(
            consumer_module,
            "overwrite",
            lambda whole, *given, plain, **more: whole(*given, plain=True, **more),
        ),
        said="its master has",
        plan=_CALM_PUSH,
    ),
    broken(
        "acknowledge what was not taken",
        _call_it_taken,
        said="its master has|no boundary",
        plan=PushPlan(Faults(broken_s=0.15, full_s=0.15), keys=4),
    ),
    broken(
        "be silent about a success now and then",
        instead(TapConsumer, "take", _silent_now_and_then),
        said="never come to rest|are due",
        plan=PushPlan(NO_FAULTS),
    ),
)


@cases(_PUSH_BREAKS)
def test_a_broken_rule_of_the_consumer_is_noticed(
    case: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the master, or who follows its copy, knows."""
    notice(case, monkeypatch, PUSH.random, _SEEDS)
