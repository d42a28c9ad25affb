"""Each rule of the TAP adapter broken on purpose is noticed, by the right judge.

See `test_upr_judges_speak`; a break that no longer breaks fails here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.sim import tap_codec as tap
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.noticing import notice
from tests.sim.tap_kinds import BUSY, DUMPER, LIVE, PLAIN, REGISTERED, REPLICA, TapKind
from tests.sim.tap_master import Manners
from tests.sim.tap_plan import SETTINGS, TapPlan
from tests.sim.tap_push_run import PushPlan, PushRun
from tests.sim.tap_run import TapRun
from uprmc.errors import TemporaryFailure
from uprmc.protocol.opcodes import Opcode
from uprmc.tap_adapter import consumer as consumer_module
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

Patch = Callable[[pytest.MonkeyPatch], None]

#: How many seeds a broken rule may hide from; most are noticed within the first three.
_SEEDS = 60


# --- window and gates -----------------------------------------------------------------------------


def _ignore_the_window(patch: pytest.MonkeyPatch) -> None:
    """Send whatever there is."""
    patch.setattr(TapWindow, "room", 1_000_000)


def _ignore_the_gates(patch: pytest.MonkeyPatch) -> None:
    """Send items after an OPAQUE that nobody has acknowledged."""
    patch.setattr(TapWindow, "gated", False)


def _end_checkpoints_early(patch: pytest.MonkeyPatch) -> None:
    """Send a checkpoint's end before its items are acknowledged."""
    patch.setattr(SendQueue, "_may_leave", lambda queue, control: True)


def _ask_too_seldom(patch: pytest.MonkeyPatch) -> None:
    """Do not ask for an answer at every interval."""
    made = SendQueue.__init__

    def careless(queue: SendQueue, window: TapWindow, interval: int, *, acks: bool) -> None:
        made(queue, window, interval * 2, acks=acks)

    patch.setattr(SendQueue, "__init__", careless)


def _leave_the_last_unasked(patch: pytest.MonkeyPatch) -> None:
    """Do not ask for an answer when nothing follows."""
    release = SendQueue.release
    patch.setattr(SendQueue, "release", lambda queue, out, *, ask: release(queue, out, ask=False))


def _close_a_backfill_early(patch: pytest.MonkeyPatch) -> None:
    """Tell its end while items are unacknowledged."""
    patch.setattr(TapWindow, "holds", lambda window, vbucket: False)


# --- answers --------------------------------------------------------------------------------------


def _go_on_after_a_refusal(patch: pytest.MonkeyPatch) -> None:
    """Take a refused item as acknowledged."""

    def careless(window: TapWindow, sequence: int) -> TapRefused | None:
        settled = window.acknowledge(sequence)
        return None if settled is None else TapRefused(settled, [], None)

    patch.setattr(TapWindow, "refuse", careless)


def _skip_what_is_unacknowledged(patch: pytest.MonkeyPatch) -> None:
    """Go on after what was sent, not after what was acknowledged."""
    begin = Openings._course_of

    def careless(openings: Openings, number: int, standing: Any) -> TapCursor:
        cursor = begin(openings, number, standing)
        if cursor.sent > cursor.acked:
            cursor.acked = cursor.sent
            cursor.snapshot = cursor.snapshot._replace(start=cursor.sent, end=cursor.sent)
        return cursor

    patch.setattr(Openings, "_course_of", careless)


def _forget_the_end_of_a_backfill(patch: pytest.MonkeyPatch) -> None:
    """Never tell it."""
    post = SendQueue.post

    def careless(queue: SendQueue, control: TapControl) -> None:
        if (control.opcode, control.word) != (Opcode.TAP_OPAQUE, tap.CLOSE_BACKFILL):
            post(queue, control)

    patch.setattr(SendQueue, "post", careless)


# --- history --------------------------------------------------------------------------------------


def _say_nothing_of_the_beginning(patch: pytest.MonkeyPatch) -> None:
    """Give everything anew without having the client empty its vBucket."""
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


def _correct_nothing(patch: pytest.MonkeyPatch) -> None:
    """Say that no key of the lost branch was sent."""
    patch.setattr(Openings, "_keys_above", lambda openings, stream, seqno: [])


def _save_too_late(patch: pytest.MonkeyPatch) -> None:
    """Send first, write down where the client stands some other time."""

    def careless(batch: SavedBatch, out: list[bytes], budget: int) -> int:
        return batch._feed.fill(out, budget)

    patch.setattr(SavedBatch, "fill", careless)


def _remember_a_name_that_is_deregistered(patch: pytest.MonkeyPatch) -> None:
    """Do nothing."""
    patch.setattr(Names, "deregister", lambda names, name: None)


def _number_checkpoints_anew(patch: pytest.MonkeyPatch) -> None:
    """Begin with 1 again and again."""
    opened = TapCursor.open_checkpoint
    patch.setattr(
        TapCursor, "open_checkpoint", lambda cursor, checkpoint_id, after: opened(cursor, 1, after)
    )


# --- what is asked for ----------------------------------------------------------------------------


def _send_every_vbucket(patch: pytest.MonkeyPatch) -> None:
    """Do not look at the list."""
    survey = LocalUpstream.survey
    patch.setattr(LocalUpstream, "survey", lambda local, numbers, done: survey(local, None, done))


def _mix_up_the_byte_order(patch: pytest.MonkeyPatch) -> None:
    """Swap where it is not to be swapped, and say the other."""
    patch.setattr(
        "uprmc.tap_adapter.conversation.TapForm",
        lambda keys_only, network_byte_order: TapForm(keys_only, not network_byte_order),
    )


def _cut_dumps_short(patch: pytest.MonkeyPatch) -> None:
    """Call a dump complete one item before its end."""
    began = Openings.begin

    def careless(openings: Openings, number: int, standing: Any) -> None:
        began(openings, number, standing._replace(high_seqno=max(standing.high_seqno - 1, 0)))

    patch.setattr(Openings, "begin", careless)


def _hand_over_too_early(patch: pytest.MonkeyPatch) -> None:
    """Make the client active while the source still is."""
    marker = TapFeed._marker

    def careless(feed: TapFeed, stream: TapStream, request: Any) -> bool:
        if feed._conversation.takeover and not stream.announced:
            control = TapControl(Opcode.TAP_VBUCKET_SET, stream.number, tap.ACTIVE)
            feed._conversation.send_queue.post(control)
        return marker(feed, stream, request)

    patch.setitem(feed_module._HANDLERS, Opcode.UPR_SNAPSHOT_MARKER, careless)


# --- plans ----------------------------------------------------------------------------------------


def _flush_the_client_whenever_a_stream_ends(patch: pytest.MonkeyPatch) -> None:
    """Take any end for everything being emptied."""
    counts = itertools.count()
    patch.setattr(LocalUpstream, "flushes", property(lambda _: next(counts)))


def _flush_in_silence(patch: pytest.MonkeyPatch) -> None:
    """Begin again after everything was emptied, and tell the client nothing."""
    post = SendQueue.post

    def silent(queue: SendQueue, control: TapControl) -> None:
        if control.opcode != Opcode.TAP_FLUSH:
            post(queue, control)
        elif control.acked is not None:
            control.acked()

    patch.setattr(SendQueue, "post", silent)


def _never_see_that_nothing_comes(patch: pytest.MonkeyPatch) -> None:
    """Leave a backfill open in which there is nothing."""
    patch.setattr(Openings, "_surveyed", lambda *arguments: None)


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
) -> TapPlan:
    return TapPlan(
        "star",
        faults,
        operating,
        operator_s=0.15,
        keys=keys,
        writer_s=0.01,
        steps=2_500,
        clients=clients,
        tap=replace(SETTINGS, rollback=rollback),
    )


_PEACE = _plan(_STRICT, PLAIN, REPLICA)
_BRANCHES = _plan(PLAIN, REPLICA, REGISTERED, keys=2_000, failover=2, twice=1)  # few come again
_CUTS = _plan(_QUICK, _QUICK, REPLICA, keys=2_000, faults=Faults(cut_s=0.3))

_PLANS: dict[Patch, TapPlan] = {
    # Whoever follows checkpoints is asked at each end, and knows a backfill's end by the next one.
    _leave_the_last_unasked: _plan(PLAIN, PLAIN),
    _forget_the_end_of_a_backfill: _plan(PLAIN, PLAIN),
    _go_on_after_a_refusal: _plan(_REFUSING, BUSY),
    _skip_what_is_unacknowledged: _CUTS,
    _say_nothing_of_the_beginning: _plan(PLAIN, PLAIN, keys=2_000, rollback="restart", failover=2),
    _correct_nothing: _BRANCHES,
    # What a crash loses stays with the client where few keys come again, and its place was saved.
    _save_too_late: replace(
        _plan(_HASTY, _HASTY, _HASTY, keys=2_000, faults=Faults(crash_s=1.0)),
        topology="pair",
        vbuckets=1,
        writer_s=0.02,
    ),
    _remember_a_name_that_is_deregistered: replace(
        _plan(_FORGETFUL, _FORGETFUL, _FORGETFUL),
        topology="pair",
        vbuckets=1,
        writer_s=0.02,
        steps=4_000,
    ),
    _send_every_vbucket: _plan(_LISTING, _LISTING, _LISTING),
    _mix_up_the_byte_order: _plan(PLAIN, LIVE),
    _cut_dumps_short: _plan(DUMPER, DUMPER),
    _hand_over_too_early: _plan(tap_takeover=1),
    _flush_the_client_whenever_a_stream_ends: _BRANCHES,
    _flush_in_silence: _plan(PLAIN, LIVE, keys=2_000, tap_flush=2),
    # Where little is written a vBucket stays empty for long enough.
    _never_see_that_nothing_comes: replace(_plan(_LISTING, _LISTING, tap_flush=1), writer_s=0.5),
}

_MISSES = r"is Doc\(.*\), not|is None, not|never ends|never come to rest"


@pytest.mark.parametrize(
    ("break_it", "verdict"),
    [
        (_ignore_the_window, "was answered last"),
        (_ignore_the_gates, "is not answered yet"),
        (_end_checkpoints_early, "is not answered yet"),
        (_ask_too_seldom, "must be answered"),
        (_leave_the_last_unasked, "never come to rest"),
        (_close_a_backfill_early, "is not answered yet"),
        (_go_on_after_a_refusal, f"{_MISSES}|no initial stream"),
        (_skip_what_is_unacknowledged, _MISSES),
        (_forget_the_end_of_a_backfill, "a backfill never ends"),
        (_say_nothing_of_the_beginning, f"{_MISSES}|no initial stream"),
        (_correct_nothing, _MISSES),
        (_save_too_late, _MISSES),
        (_remember_a_name_that_is_deregistered, "no initial stream was announced"),
        (_number_checkpoints_anew, r"checkpoint 1 (begins|ends)"),
        (_send_every_vbucket, "were asked for"),
        (_mix_up_the_byte_order, "byte order"),
        (_cut_dumps_short, "a dump of vBucket|never come to rest"),
        (_hand_over_too_early, "is made active by|the taker is active"),
        (_flush_the_client_whenever_a_stream_ends, "nothing was flushed"),
        (_flush_in_silence, _MISSES),
        (_never_see_that_nothing_comes, "a backfill never ends"),
    ],
)
def test_a_broken_rule_of_the_producer_is_noticed(
    break_it: Patch, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a judge, and by the right one where there is only one who can."""
    break_it(monkeypatch)
    plan = _PLANS.get(break_it, _PEACE)
    notice(break_it, lambda seed: TapRun.random(seed, plan), verdict, _SEEDS)


# --- a master's copy ------------------------------------------------------------------------------


def _keep_what_is_to_be_emptied(patch: pytest.MonkeyPatch) -> None:
    """Begin a backfill over what is there."""
    patch.setattr(consumer_module, "begin_anew", lambda bucket, vbucket: None)


def _see_no_boundaries(patch: pytest.MonkeyPatch) -> None:
    """Pass on whatever is there."""
    patch.setattr(Boundaries, "is_inside", lambda boundaries, number: False)


def _lose_the_masters_numbers(patch: pytest.MonkeyPatch) -> None:
    """Give CAS and revision of one's own."""
    overwrite = consumer_module.overwrite

    def careless(*arguments: Any, plain: bool, **options: Any) -> Any:
        return overwrite(*arguments, plain=True, **options)

    patch.setattr(consumer_module, "overwrite", careless)


def _acknowledge_what_was_not_taken(patch: pytest.MonkeyPatch) -> None:
    """Call it a success when there is no room."""
    carry_out = TapConsumer._overwrite

    def careless(consumer: TapConsumer, change: Any) -> None:
        try:
            carry_out(consumer, change)
        except TemporaryFailure:
            return

    patch.setitem(
        consumer_module._ACTIONS,
        next(each for each, do in consumer_module._ACTIONS.items() if do is carry_out),
        careless,
    )


def _answer_nothing_but_errors(patch: pytest.MonkeyPatch) -> None:
    """Be silent about every second success."""
    take = TapConsumer.take

    def careless(consumer: TapConsumer, *arguments: Any) -> bytes | None:
        answer = take(consumer, *arguments)
        return None if consumer.acks % 7 == 6 else answer

    patch.setattr(TapConsumer, "take", careless)


_CALM_PUSH = PushPlan(Faults(cut_s=0.3))
_ANEW = PushPlan(Faults(cut_s=0.2), Manners(anew=1.0))
_BROKEN_DISK = PushPlan(Faults(broken_s=0.15, full_s=0.15), keys=4)


@pytest.mark.parametrize(
    ("break_it", "verdict", "plan"),
    [
        (_keep_what_is_to_be_emptied, "its master has|no boundary", _ANEW),
        (_see_no_boundaries, "no boundary of its master", _CALM_PUSH),
        (_lose_the_masters_numbers, "its master has", _CALM_PUSH),
        (_acknowledge_what_was_not_taken, "its master has|no boundary", _BROKEN_DISK),
        (_answer_nothing_but_errors, "never come to rest|are due", PushPlan(NO_FAULTS)),
    ],
)
def test_a_broken_rule_of_the_consumer_is_noticed(
    break_it: Patch, verdict: str, plan: PushPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the master, or who follows its copy, knows."""
    break_it(monkeypatch)
    notice(break_it, lambda seed: PushRun.random(seed, plan), verdict, _SEEDS)
