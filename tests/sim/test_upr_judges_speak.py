"""Each rule of streams broken on purpose is noticed, by the right judge where only one can.

As in `test_judges_speak`: if the server is changed so that a rule lives elsewhere, the break has to
move with it; a break that no longer breaks fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.noticing import notice
from tests.sim.upr_judges import RequestJudge
from tests.sim.upr_kinds import PLAIN, RARE, SLOW, VERSED
from tests.sim.upr_plan import Plan
from tests.sim.upr_run import UprRun
from tests.sim.world import WorldClock
from uprmc.engine import bucket as bucket_module
from uprmc.engine.bucket import Bucket
from uprmc.engine.flusher import Flusher
from uprmc.engine.purge import Compactor
from uprmc.engine.reading import Leases, Reading
from uprmc.engine.vbucket import VBucket
from uprmc.model import Item, VBucketState
from uprmc.record import seqno_of, unpack
from uprmc.upr import admission, frames, producer
from uprmc.upr import feed as feed_module
from uprmc.upr import stream as stream_module
from uprmc.upr.barrier import ByCycle, ByVector, RoundPlace
from uprmc.upr.feed import Feed, Readings, StreamRounds
from uprmc.upr.hub import Slots
from uprmc.upr.producer import Producer
from uprmc.upr.stream import LeaseStream, NotifierStream, Stream
from uprmc.upr.takeover import TakeoverStream

pytestmark = pytest.mark.sim

Patch = Callable[[pytest.MonkeyPatch], None]

#: How many seeds a broken rule may hide from; by far most are noticed within the first ten.
_SEEDS = 150


# --- what a reading holds -------------------------------------------------------------------------


def _lose_an_item(patch: pytest.MonkeyPatch) -> None:
    """Leave one item out of the queue's part, but not its last."""
    queued = Reading.queued

    def made(reading: Reading, after: int) -> Iterator[bytes]:
        for record in queued(reading, after):
            seqno = seqno_of(record)
            if seqno % 5 or seqno == reading.end_seqno:
                yield record

    patch.setattr(Reading, "queued", made)


def _lose_a_record(patch: pytest.MonkeyPatch) -> None:
    """Leave one record out of the store's part, but not its last."""
    records = Reading.records

    def made(reading: Reading, after: int) -> Iterator[bytes]:
        found = list(records(reading, after))
        return iter(
            [record for place, record in enumerate(found, 1) if place % 3 or place == len(found)]
        )

    patch.setattr(Reading, "records", made)


def _forget_the_queue_at_hand_over(patch: pytest.MonkeyPatch) -> None:
    """Call what is on disk the whole."""
    open_, queued = Reading.__init__, Reading.queued

    def opened(reading: Reading, *arguments: Any, **options: Any) -> None:
        open_(reading, *arguments, **options)
        reading.end_seqno = reading._handover or reading.end_seqno

    def made(reading: Reading, after: int) -> Iterator[Item]:
        return iter(()) if reading._handover else queued(reading, after)

    patch.setattr(Reading, "__init__", opened)
    patch.setattr(Reading, "queued", made)
    _do_not_insist(patch)


def _do_not_insist(patch: pytest.MonkeyPatch) -> None:
    """Take away the server's own check that a snapshot has its newest item."""
    send = Stream._send_items

    def careless(each: Stream, *arguments: Any) -> int:
        try:
            return send(each, *arguments)
        except AssertionError:
            each.last_seqno = each.snapshot_end
            each._complete_snapshot(arguments[0])
            return 0

    patch.setattr(Stream, "_send_items", careless)


def _take_the_store_view_too_late(patch: pytest.MonkeyPatch) -> None:
    """Read a newer commit than the one that the queue view was taken with."""
    records = Reading.records

    def made(reading: Reading, after: int) -> Iterator[bytes]:
        view = getattr(reading._view, "_view", None)
        if view is None or after >= reading._handover:
            return records(reading, after)
        newer = view._store.view()
        try:
            return iter(list(newer.records_after(reading.vbucket, after)))
        finally:
            newer.close()

    patch.setattr(Reading, "records", made)


def _send_a_key_at_both_places(patch: pytest.MonkeyPatch) -> None:
    """Do not look whether the queue holds a newer version."""
    open_ = Reading.__init__

    def opened(reading: Reading, *arguments: Any, **options: Any) -> None:
        open_(reading, *arguments, **options)
        reading.newer = frozenset()

    patch.setattr(Reading, "__init__", opened)


def _send_deletions_without_cas(patch: pytest.MonkeyPatch) -> None:
    """Lose a deletion's number."""
    pack = frames._pack_deletion
    patch.setattr(stream_module, "new_item_writer", frames.ItemWriter)
    patch.setattr(frames, "_pack_deletion", lambda *values: pack(*values[:5], 0, *values[6:]))


# --- markers --------------------------------------------------------------------------------------


def _announce(patch: pytest.MonkeyPatch, change: Callable[[int, int], tuple[int, int]]) -> None:
    marker = stream_module.snapshot_marker

    def changed(number: int, opaque: int, start: int, end: int, kind: int) -> bytes:
        return marker(number, opaque, *change(start, end), kind)

    patch.setattr(stream_module, "snapshot_marker", changed)


def _announce_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """Name an end that nothing has yet."""
    _announce(patch, lambda start, end: (start, end + 1))


def _announce_one_too_few(patch: pytest.MonkeyPatch) -> None:
    """Name an end before the last item."""
    _announce(patch, lambda start, end: (start, max(start, end - 1)))


def _announce_the_rest_as_new(patch: pytest.MonkeyPatch) -> None:
    """After letting go go on with a snapshot of its own."""
    release = Stream.release

    def careless(each: Stream) -> None:
        release(each)
        each._floor = None

    patch.setattr(Stream, "release", careless)


# --- whether a stream may begin -------------------------------------------------------------------


def _never_roll_back(patch: pytest.MonkeyPatch) -> None:
    """Let everybody go on."""
    patch.setattr(admission, "rollback_point", lambda *arguments, **options: None)


def _forget_what_was_purged(patch: pytest.MonkeyPatch) -> None:
    """Let those go on who missed a deletion that is gone."""
    point = admission.rollback_point

    def careless(position: Any, held: Any, **options: Any) -> int | None:
        return point(position, held._replace(purge_seqno=0), **options)

    patch.setattr(admission, "rollback_point", careless)


def _silence_requests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestJudge, "answered", lambda *arguments, **options: None)


def _never_roll_back_silently(patch: pytest.MonkeyPatch) -> None:
    """The same, while nobody judges answers: the copies must show it."""
    _never_roll_back(patch)
    _silence_requests(patch)


def _never_mind_what_was_purged(patch: pytest.MonkeyPatch) -> None:
    """Neither look when a stream is asked for, nor when a reading is opened, nor judge answers."""
    _forget_what_was_purged(patch)
    _silence_requests(patch)
    whole = Stream._lacks_deletions
    patch.setattr(Stream, "_lacks_deletions", lambda *given: bool(whole(*given) and False))


def _keep_the_purge_seqno(patch: pytest.MonkeyPatch) -> None:
    """Drop deletions without a word of it."""
    drop = Flusher.drop

    def silent(flusher: Flusher, vbucket: VBucket, *arguments: Any) -> None:
        before = vbucket.purge_seqno
        drop(flusher, vbucket, *arguments)
        vbucket.purge_seqno = before

    patch.setattr(Flusher, "drop", silent)


def _purge_what_is_not_due(patch: pytest.MonkeyPatch) -> None:
    """Drop documents, too."""
    read = Compactor.read

    def greedy(compactor: Compactor, reading: Any) -> None:
        read(compactor, reading)
        for record in reading.view.records_after(reading.vbucket, 0):
            item = unpack(record)
            if item.seqno < reading.limit - 1 and (item.key, item.seqno) not in reading.found:
                reading.found.append((item.key, item.seqno))
                return

    patch.setattr(Compactor, "read", greedy)


def _ignore_known_versions(patch: pytest.MonkeyPatch) -> None:
    """Look at the newest only, and think it unknown."""
    admit = producer.admit

    def careless(vbucket: Any, start: Any, **rest: Any) -> Any:
        if start.options.known_versions:
            options = start.options._replace(known_versions=())
            start = start._replace(request=start.request._replace(uuid=1), options=options)
        return admit(vbucket, start, **rest)

    patch.setattr(producer, "admit", careless)


def _send_the_log_oldest_first(patch: pytest.MonkeyPatch) -> None:
    """Turn it round."""
    encode = producer.encode_failover_log
    patch.setattr(producer, "encode_failover_log", lambda log: encode(tuple(log)[::-1]))


# --- histories ------------------------------------------------------------------------------------


def _branch_too_high(patch: pytest.MonkeyPatch) -> None:
    """Record a branch one seqno further than what is held."""
    made = bucket_module.branched
    patch.setattr(
        bucket_module,
        "branched",
        lambda log, uuid, seqno, limit: made(log, uuid, seqno + 1, limit),
    )


def _never_branch(patch: pytest.MonkeyPatch) -> None:
    """Go on with the old history after a failover."""
    patch.setattr(Bucket, "_branch", lambda bucket, vbucket: None)


def _let_streams_live_on(patch: pytest.MonkeyPatch) -> None:
    """Tell nobody that a vBucket began anew or changed its state."""
    patch.setattr(VBucket, "interrupt", lambda vbucket, why: None)


# --- rounds, snapshot ends, barriers --------------------------------------------------------------


def _take_the_last_first(patch: pytest.MonkeyPatch) -> None:
    """Serve vBuckets from the highest number down."""

    def backwards(rounds: StreamRounds) -> Stream | None:
        if rounds._current is None and rounds._ready:
            rounds.position, rounds._current = rounds._ready.peekitem(-1)
        return rounds._current

    patch.setattr(StreamRounds, "next", backwards)
    _do_not_count_rounds(patch)


def _do_not_count_rounds(patch: pytest.MonkeyPatch) -> None:
    """Take away the cookies that count rounds: they notice a wrong order themselves."""

    class Uncounted(ByVector):
        def turn_of(self, vbucket: int) -> None:
            pass

        def expect(self, late: object) -> None:
            pass

        def was_late(self, vbucket: int, seqno: int) -> None:
            pass

    patch.setattr(feed_module, "ByCycle", Uncounted)


def _say_nothing_of_rounds(patch: pytest.MonkeyPatch) -> None:
    """Begin the next round without a word."""
    finish = StreamRounds.finish

    def silent(rounds: StreamRounds) -> Any:
        finish(rounds)

    patch.setattr(StreamRounds, "finish", silent)
    _do_not_count_rounds(patch)


def _say_nothing_of_snapshot_ends(patch: pytest.MonkeyPatch) -> None:
    """Leave them out."""
    complete = Feed.snapshot_complete

    def silent(feed: Feed, *arguments: Any) -> None:
        before, feed._options.snapshot_ends = feed._options.snapshot_ends, False
        complete(feed, *arguments)
        feed._options.snapshot_ends = before

    patch.setattr(Feed, "snapshot_complete", silent)


def _miscount_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Tell one item more."""
    complete = Feed.snapshot_complete
    patch.setattr(
        Feed,
        "snapshot_complete",
        lambda feed, each, items: complete(feed, each, items + 1),
    )


def _return_barriers_before_the_last_item(patch: pytest.MonkeyPatch) -> None:
    """Be content with one seqno less."""
    patch.setattr(
        ByVector, "_is_behind", staticmethod(lambda each, seqno: each.sent_seqno < seqno - 1)
    )


def _return_barriers_a_round_early(patch: pytest.MonkeyPatch) -> None:
    """Wait for the end of this round only."""
    goal = ByCycle._goal

    def early(barriers: ByCycle, highs: Any) -> Any:
        found = goal(barriers, highs)
        found.place = RoundPlace(found.place.cycle - 1, found.place.vbucket)
        return found

    patch.setattr(ByCycle, "_goal", early)


def _lose_a_barrier(patch: pytest.MonkeyPatch) -> None:
    """Forget a cookie now and then."""
    reached = ByVector.reached

    def careless(barriers: ByVector) -> Any:
        return [each for each in reached(barriers) if each.opaque % 5]

    patch.setattr(ByVector, "reached", careless)


def _return_barriers_newest_first(patch: pytest.MonkeyPatch) -> None:
    """Turn those round that return together."""
    for kind in (ByVector, ByCycle):
        reached = kind.reached
        patch.setattr(kind, "reached", lambda each, reached=reached: reached(each)[::-1])


# --- waking up, letting go ------------------------------------------------------------------------


def _wake_nobody(patch: pytest.MonkeyPatch) -> None:
    """Let those sleep who wait for a change."""

    def lose(vbucket: VBucket) -> None:
        vbucket.waiting = []

    patch.setattr(VBucket, "tell_waiting", lose)


def _keep_permits(patch: pytest.MonkeyPatch) -> None:
    """Give none back."""
    patch.setattr(Slots, "free", lambda slots, *arguments: None)


def _call_nobody_who_waits_for_a_permit(patch: pytest.MonkeyPatch) -> None:
    """Give them back without a word."""

    def silent(slots: Slots, *_: Any) -> None:
        slots.used -= 1

    patch.setattr(Slots, "free", silent)
    patch.setattr(Readings, "_unpark", lambda readings: False)


def _keep_queue_views(patch: pytest.MonkeyPatch) -> None:
    """Do not close what a stream that ends still reads."""

    def careless(reading: Reading) -> None:
        reading._close_view()

    patch.setattr(Reading, "close", careless)


def _keep_store_views(patch: pytest.MonkeyPatch) -> None:
    """Keep those of the store."""
    kept: list[object] = []

    def careless(reading: Reading) -> None:
        kept.append(reading._view)
        reading._queue_view.close()

    patch.setattr(Reading, "close", careless)


def _keep_watching(patch: pytest.MonkeyPatch) -> None:
    """Stay on a vBucket's list."""
    patch.setattr(VBucket, "unwatch", lambda vbucket, watcher: None)


def _send_more_than_the_peer_takes(patch: pytest.MonkeyPatch) -> None:
    """Ignore flow control."""
    patch.setattr(Feed, "_window", lambda feed: 1 << 40)


def _never_notify(patch: pytest.MonkeyPatch) -> None:
    """Leave notifiers alone."""
    patch.setattr(NotifierStream, "changed", lambda each: None)


def _lease_the_present(patch: pytest.MonkeyPatch) -> None:
    """Read a lease as it is now."""

    def take(each: LeaseStream, feed: Feed) -> Reading:
        assert each._lease is not None
        return each._lease.read(each.vbucket)

    patch.setattr(LeaseStream, "_take_reading", take)


def _serve_leases_only_while_the_vbucket_is_served(patch: pytest.MonkeyPatch) -> None:
    """Look at the vBucket before the lease."""
    leased = Producer._leased_stream

    def strict(each: Producer, start: Any, asked: Any) -> Any:
        producer.locate(each._hub.bucket, start.vbucket, asked.request.flags)
        return leased(each, start, asked)

    patch.setattr(Producer, "_leased_stream", strict)


def _let_writes_go_on_in_a_takeover(patch: pytest.MonkeyPatch) -> None:
    """Do not stop the source before the last items go out."""
    patch.setattr(Producer, "_die", lambda each, vbucket, on_disk: on_disk(True))


def _activate_at_once(patch: pytest.MonkeyPatch) -> None:
    """Leave the pending state out."""
    begin = TakeoverStream.__init__

    def hasty(each: TakeoverStream, *arguments: Any) -> None:
        begin(each, *arguments)
        each._target = VBucketState.ACTIVE

    patch.setattr(TakeoverStream, "__init__", hasty)


def _end_leases_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Measure a lifetime with a clock that people set."""
    patch.setattr(WorldClock, "monotonic", WorldClock.now)


def _keep_leases_when_the_store_must_grow(patch: pytest.MonkeyPatch) -> None:
    """Let nobody who reads for long give way."""
    patch.setattr(Leases, "release_views", lambda leases: None)


#: Runs in which a rule is needed often, for those that random ones seldom need.
_PLANS: dict[Patch, Plan] = {
    _let_writes_go_on_in_a_takeover: Plan((PLAIN,), NO_FAULTS, {}, takeovers=True),
    _activate_at_once: Plan((PLAIN,), NO_FAULTS, {}, takeovers=True),
    _never_notify: Plan((PLAIN,), NO_FAULTS, {}, notifier=True),
    _ignore_known_versions: Plan((VERSED,), Faults(cut_s=0.2), {}),
    _lease_the_present: Plan((PLAIN,), NO_FAULTS, {}, leases=True),
    _keep_leases_when_the_store_must_grow: Plan((PLAIN,), Faults(map_full_s=0.2), {}, leases=True),
    _end_leases_by_the_wall_clock: Plan((PLAIN,), Faults(clock_s=0.3), {}, leases=True),
    _serve_leases_only_while_the_vbucket_is_served: Plan(
        (PLAIN,), NO_FAULTS, {"state": 1, "remove": 1}, leases=True
    ),
    _purge_what_is_not_due: Plan((SLOW, RARE), Faults(stop_s=0.5), {"compact": 1}),
    _keep_the_purge_seqno: Plan((RARE, RARE), NO_FAULTS, {"compact": 1}),
    _never_mind_what_was_purged: Plan((RARE, RARE), NO_FAULTS, {"compact": 1}),
}

_WRONG = "comes, .* should|comes, which is not in|comes after|comes outside|stands at|seqnos of a"
_STUCK = "never come to rest|has not happened"


@pytest.mark.parametrize(
    ("break_it", "verdict"),
    [
        (_lose_an_item, _WRONG),
        (_lose_a_record, _WRONG),
        (_forget_the_queue_at_hand_over, _WRONG),
        (_take_the_store_view_too_late, f"{_WRONG}|lacks its newest"),
        (_send_a_key_at_both_places, _WRONG),
        (_send_deletions_without_cas, _WRONG),
        (
            _announce_one_too_many,
            "is announced, the newest is|is announced in the middle|snapshot end .*, None should",
        ),
        (_announce_one_too_few, f"is announced to one who stands at|is owed|{_WRONG}"),
        (_announce_the_rest_as_new, "is announced in the middle of"),
        (_never_roll_back, "was answered"),
        (_never_roll_back_silently, "may go on|is announced to|never come to rest"),
        (_forget_what_was_purged, "was answered"),
        (_never_mind_what_was_purged, "was dropped|may go on|stands at"),
        (_keep_the_purge_seqno, f"another past|drops deletions|{_WRONG}"),
        (_purge_what_is_not_due, f"another past|drops deletions|{_WRONG}"),
        (_ignore_known_versions, "was answered"),
        (_send_the_log_oldest_first, "was answered"),
        (_branch_too_high, "made"),
        (_never_branch, "unclean restart|a failover made"),
        (_let_streams_live_on, f"{_WRONG}|newest is|{_STUCK}|holds at its end"),
        (_take_the_last_first, "comes after|begins inside|speaks in the turn"),
        (_say_nothing_of_rounds, "begins in round|comes after"),
        (_say_nothing_of_snapshot_ends, "is owed"),
        (_miscount_a_snapshot, "snapshot end .* comes"),
        (_return_barriers_before_the_last_item, "is back, vBucket"),
        (_return_barriers_a_round_early, "is back, vBucket"),
        (_lose_a_barrier, f"comes, .* should|{_STUCK}"),
        (_return_barriers_newest_first, "comes, .* should"),
        (_wake_nobody, _STUCK),
        (_keep_permits, f"{_STUCK}|holds at its end"),
        (_call_nobody_who_waits_for_a_permit, _STUCK),
        (_keep_queue_views, f"holds at its end|{_STUCK}"),
        (_keep_store_views, f"holds at its end|{_STUCK}"),
        (_keep_watching, "holds at its end"),
        (_send_more_than_the_peer_takes, "are not acknowledged"),
        (_never_notify, "notifier never come to rest"),
        (_let_writes_go_on_in_a_takeover, "a takeover of|without failover"),
        (_activate_at_once, "a taker is told"),
        (_lease_the_present, "is announced for|reads"),
        (_keep_leases_when_the_store_must_grow, "has not grown for"),
        (_end_leases_by_the_wall_clock, "is gone early|leases never come to rest"),
        (_serve_leases_only_while_the_vbucket_is_served, "a reading of .* is refused"),
    ],
)
def test_a_broken_rule_of_streams_is_noticed(
    break_it: Patch, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a judge, and by the right one where there is only one who can."""
    break_it(monkeypatch)
    plan = _PLANS.get(break_it)
    notice(break_it, lambda seed: UprRun.random(seed, plan), verdict, _SEEDS)
