"""Whatever goes wrong, every consumer of streams ends equal to the node.

Judges look at every frame (`stream_judges`) and after every step (`truth`); a seed that fails says
how to run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.seeds import seeds
from tests.sim.consumer import BARRED, MOODY, PLAIN, RARE, ROUNDS, SLOW, VERSED, Consumer, Kind
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.noticing import Break, Patch, broken, cases, happens, instead, notice, skip, swap
from tests.sim.plan import MANAGING
from tests.sim.plan import StreamsPlan as Plan
from tests.sim.run import STREAMS
from tests.sim.stream_judges import RequestJudge
from tests.sim.world import WorldClock
from uprmc.engine import bucket as bucket_module
from uprmc.engine.bucket import Bucket
from uprmc.engine.flusher import Flusher
from uprmc.engine.purge import Compactor
from uprmc.engine.reading import Leases, Reading
from uprmc.engine.vbucket import VBucket
from uprmc.model import VBucketState
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


@pytest.mark.parametrize("seed", seeds(default=25))
@pytest.mark.acceptance(
    "D02", "D13", "D28", "D33", "D40", "D41", "D42", "D43", "P01", "P03", "P08", "P13", "P14"
)
def test_every_consumer_ends_equal_to_the_node(seed: int) -> None:
    """Random guests, random faults; see `plan`."""
    STREAMS.story(seed)


_FIVE: tuple[Kind, ...] = (PLAIN, ROUNDS, SLOW, RARE, VERSED)

#: Row D02, fault by fault: what goes wrong, and what the manager does.
_MATRIX: dict[str, tuple[Faults, dict[str, int]]] = {
    "broken network": (Faults(cut_s=0.15), {}),
    "server killed": (Faults(crash_s=0.5), {}),
    "server killed with its machine": (Faults(power_s=0.5, write_back_s=0.3), {}),
    "clock set": (Faults(clock_s=0.1), {}),
    "server restarted": (Faults(stop_s=0.7), {}),
    "disk broken and full": (Faults(broken_s=0.4, full_s=0.6, map_full_s=0.8), {}),
    "disk unreadable": (Faults(unreadable_s=0.4, crash_s=2.0), {}),
    "failovers": (NO_FAULTS, {"failover": 3, "state": 2}),
    "vBuckets removed, deletions purged": (NO_FAULTS, {"remove": 1, "compact": 4, "flush": 1}),
}


@pytest.mark.parametrize("fault", list(_MATRIX))
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.acceptance("D01", "D02")
def test_five_consumers_bear_each_fault(fault: str, seed: int) -> None:
    """A slow one, a forgetful one that stays away, and three others, on one port."""
    faults, managing = _MATRIX[fault]
    sync = "machine" not in fault
    run = STREAMS.random(
        seed, Plan(_FIVE, faults, managing, sync=sync, takeovers=fault == "failovers")
    )
    first, *others = (_documents(consumer) for consumer in run.consumers)
    assert others == [first] * 4


def _documents(consumer: Consumer) -> dict[int, dict[bytes, int]]:
    """Return what a consumer holds: by vBucket, the seqno of each document."""
    return {
        number: {key: version.seqno for key, version in copy.docs.items() if not version.deleted}
        for number, copy in consumer.copies.items()
    }


@pytest.mark.parametrize("seed", seeds(default=4))
@pytest.mark.acceptance("D27", "D29", "D30", "D35", "D36", "D37", "P15")
def test_rounds_snapshot_ends_and_barriers_keep_their_word(seed: int) -> None:
    """Two connections with rounds, one with barriers alone; vBuckets fail over and come back."""
    plan = Plan(
        (ROUNDS, ROUNDS, BARRED), Faults(cut_s=1.0), {"failover": 1, "compact": 1}, vbuckets=4
    )
    account = STREAMS.random(seed, plan).account()
    assert account["rounds"]
    assert account["barriers"]


@pytest.mark.parametrize("seed", seeds(default=4))
@pytest.mark.acceptance("P07", "P09")
def test_consumers_that_name_all_their_versions_are_sent_back_no_further_than_needed(
    seed: int,
) -> None:
    """The answers are those of the decision table with the whole list of versions."""
    faults = Faults(crash_s=0.4, cut_s=0.4)
    account = STREAMS.random(seed, Plan((VERSED, MOODY), faults, {"failover": 1})).account()
    assert account["streams"]


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens within the first seeds; else the judges have nothing to judge."""
    wanted = {"rollbacks", "from_zero", "announced_again", "barriers", "rounds", "notified"}
    wanted |= {"leases read again", "takeovers", "crashes", "cuts", *MANAGING}
    happens(wanted, (STREAMS.story(seed).account for seed in range(20)))


@pytest.mark.parametrize("seed", seeds(default=2))
def test_the_same_seed_gives_the_same_streams(seed: int) -> None:
    again = STREAMS.random(seed).world
    assert again.digest() == STREAMS.story(seed).digest
    assert any("has vBucket" in line for line in again.log)


# --- judges speak ---------------------------------------------------------------------------------

#: How many seeds a broken rule may hide from; by far most are noticed within the first ten.
_SEEDS = 150

_WRONG = "comes, .* should|comes, which is not in|comes after|comes outside|stands at|seqnos of a"
_STUCK = "never come to rest|has not happened"


def _forget_the_queue(patch: pytest.MonkeyPatch) -> None:
    """Call what is on disk the whole, and do not insist that a snapshot has its newest item."""
    open_, queued, send = Reading.__init__, Reading.queued, Stream._send_items

    def opened(reading: Reading, *given: Any, **more: Any) -> None:
        open_(reading, *given, **more)
        reading.end_seqno = reading._handover or reading.end_seqno

    def careless(each: Stream, *given: Any) -> int:
        try:
            return send(each, *given)
        except AssertionError:
            each.last_seqno = each.snapshot_end
            each._complete_snapshot(given[0])
            return 0

    patch.setattr(Reading, "__init__", opened)
    patch.setattr(
        Reading, "queued", lambda each, after: iter(()) if each._handover else queued(each, after)
    )
    patch.setattr(Stream, "_send_items", careless)


def _read_a_newer_commit(whole: Any, reading: Reading, after: int) -> Iterator[bytes]:
    view = getattr(reading._view, "_view", None)
    if view is None or after >= reading._handover:
        return whole(reading, after)
    newer = view._store.view()
    try:
        return iter(list(newer.records_after(reading.vbucket, after)))
    finally:
        newer.close()


def _without_every_third(whole: Any, reading: Reading, after: int) -> Iterator[bytes]:
    found = list(whole(reading, after))
    return (each for place, each in enumerate(found, 1) if place % 3 or place == len(found))


def _without_every_fifth(whole: Any, reading: Reading, after: int) -> Iterator[bytes]:
    for record in whole(reading, after):
        if seqno_of(record) % 5 or seqno_of(record) == reading.end_seqno:
            yield record


def _then(name: str, value: Any) -> Callable[..., None]:
    """Return what calls a method, and then sets an attribute of its object."""

    def done(whole: Any, each: Any, *given: Any, **more: Any) -> None:
        whole(each, *given, **more)
        setattr(each, name, value)

    return done


def _announce(change: Callable[[int, int], tuple[int, int]]) -> Patch:
    return instead(
        stream_module,
        "snapshot_marker",
        lambda whole, number, opaque, start, end, kind: whole(
            number, opaque, *change(start, end), kind
        ),
    )


def _drop_in_silence(whole: Any, flusher: Flusher, vbucket: VBucket, *given: Any) -> None:
    before = vbucket.purge_seqno
    whole(flusher, vbucket, *given)
    vbucket.purge_seqno = before


def _drop_a_document(whole: Any, compactor: Compactor, reading: Any) -> None:
    whole(compactor, reading)
    for record in reading.view.records_after(reading.vbucket, 0):
        item = unpack(record)
        if item.seqno < reading.limit - 1 and (item.key, item.seqno) not in reading.found:
            reading.found.append((item.key, item.seqno))
            return


class _Uncounted(ByVector):
    """Cookies that do not count rounds: those that do notice a wrong order themselves."""

    def turn_of(self, vbucket: int) -> None:
        pass

    def expect(self, late: object) -> None:
        pass

    def was_late(self, vbucket: int, seqno: int) -> None:
        pass


def _last_first(_: Any, rounds: StreamRounds) -> Stream | None:
    if rounds._current is None and rounds._ready:
        rounds.position, rounds._current = rounds._ready.peekitem(-1)
    return rounds._current


def _without_snapshot_ends(whole: Any, feed: Feed, *given: Any) -> None:
    before, feed._options.snapshot_ends = feed._options.snapshot_ends, False
    whole(feed, *given)
    feed._options.snapshot_ends = before


def _a_round_early(whole: Any, barriers: ByCycle, highs: Any) -> Any:
    found = whole(barriers, highs)
    found.place = RoundPlace(found.place.cycle - 1, found.place.vbucket)
    return found


def _keep_store_views(patch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []

    def careless(reading: Reading) -> None:
        kept.append(reading._view)
        reading._queue_view.close()

    patch.setattr(Reading, "close", careless)


def _newest_version_only(whole: Any, vbucket: Any, start: Any, **rest: Any) -> Any:
    if start.options.known_versions:
        options = start.options._replace(known_versions=())
        start = start._replace(request=start.request._replace(uuid=1), options=options)
    return whole(vbucket, start, **rest)


def _served_only(whole: Any, each: Producer, start: Any) -> Any:
    producer.locate(each._hub.bucket, start.vbucket, start.request.flags)
    return whole(each, start)


_NO_ROLLBACK = swap(admission, "rollback_point", lambda *_, **__: None)
_NO_PURGE_SEQNO = instead(
    admission,
    "rollback_point",
    lambda whole, at, held, **more: whole(at, held._replace(purge_seqno=0), **more),
)
_NO_JUDGE_OF_ANSWERS = skip(RequestJudge, "answered")
_NO_COUNTED_ROUNDS = swap(feed_module, "ByCycle", _Uncounted)

_TAKEN_OVER = Plan((PLAIN,), NO_FAULTS, {}, takeovers=True)
_LEASED = Plan((PLAIN,), NO_FAULTS, {}, leases=True)
_PURGED = Plan((RARE, RARE), NO_FAULTS, {"compact": 1})

_BREAKS = (
    # What a reading holds.
    broken(
        "leave an item out of the queue's part",
        instead(Reading, "queued", _without_every_fifth),
        said=_WRONG,
    ),
    broken(
        "leave a record out of the store's part",
        instead(Reading, "records", _without_every_third),
        said=_WRONG,
    ),
    broken("call what is on disk the whole", _forget_the_queue, said=_WRONG),
    broken(
        "read a newer commit than the one that the queue view was taken with",
        instead(Reading, "records", _read_a_newer_commit),
        said=f"{_WRONG}|lacks its newest",
        seed=1,
    ),
    broken(
        "send a key at both places",
        instead(Reading, "__init__", _then("newer", frozenset())),
        said=_WRONG,
    ),
    broken(
        "send deletions without their CAS",
        swap(stream_module, "new_item_writer", frames.ItemWriter),
        instead(
            frames, "_pack_deletion", lambda whole, *values: whole(*values[:5], 0, *values[6:])
        ),
        said=_WRONG,
    ),
    # Markers.
    broken(
        "announce an end that nothing has yet",
        _announce(lambda start, end: (start, end + 1)),
        said="is announced, the newest is|is announced in the middle|snapshot end .*, None should",
    ),
    broken(
        "announce an end before the last item",
        _announce(lambda start, end: (start, max(start, end - 1))),
        said=f"is announced to one who stands at|is owed|{_WRONG}",
    ),
    broken(
        "go on with a snapshot of its own after a release",
        instead(Stream, "release", _then("_floor", None)),
        said="is announced in the middle of",
        seed=1,
    ),
    # Whether a stream may begin.
    broken("let everybody go on", _NO_ROLLBACK, said="was answered", seed=1),
    broken(
        "let everybody go on while no judge looks at answers",
        _NO_ROLLBACK,
        _NO_JUDGE_OF_ANSWERS,
        said="may go on|is announced to|never come to rest",
        seed=1,
    ),
    broken(
        "let those go on who missed a deletion that is gone",
        _NO_PURGE_SEQNO,
        said="was answered",
        seed=4,
    ),
    broken(
        "never look at what was purged, while no judge looks at answers",
        _NO_PURGE_SEQNO,
        _NO_JUDGE_OF_ANSWERS,
        instead(Stream, "_lacks_deletions", lambda whole, *given: bool(whole(*given) and False)),
        said="was dropped|may go on|stands at",
        plan=_PURGED,
        seed=25,
    ),
    broken(
        "drop deletions without a word of it",
        instead(Flusher, "drop", _drop_in_silence),
        said=f"another past|drops deletions|{_WRONG}",
        plan=_PURGED,
        seed=9,
    ),
    broken(
        "drop documents, too",
        instead(Compactor, "read", _drop_a_document),
        said=f"another past|drops deletions|{_WRONG}",
        plan=Plan((SLOW, RARE), Faults(stop_s=0.5), {"compact": 1}),
        seed=3,
    ),
    broken(
        "look at the newest version only, and think it unknown",
        instead(producer, "admit", _newest_version_only),
        said="was answered",
        plan=Plan((VERSED,), Faults(cut_s=0.2), {}),
    ),
    broken(
        "send the failover log oldest first",
        instead(producer, "encode_failover_log", lambda whole, log: whole(tuple(log)[::-1])),
        said="was answered",
    ),
    # Histories.
    broken(
        "record a branch one seqno too high",
        instead(
            bucket_module,
            "branched",
            lambda whole, log, uuid, seqno, limit: whole(log, uuid, seqno + 1, limit),
        ),
        said="made",
    ),
    broken(
        "go on with the old history after a failover",
        skip(Bucket, "_branch"),
        said="unclean restart|a failover made",
    ),
    broken(
        "tell no stream that its vBucket began anew or changed its state",
        skip(VBucket, "interrupt"),
        said=f"{_WRONG}|newest is|{_STUCK}|holds at its end",
    ),
    # Rounds, snapshot ends, barriers.
    broken(
        "serve vBuckets from the highest number down",
        instead(StreamRounds, "next", _last_first),
        _NO_COUNTED_ROUNDS,
        said="comes after|begins inside|speaks in the turn",
    ),
    broken(
        "begin the next round without a word",
        instead(StreamRounds, "finish", lambda whole, rounds: whole(rounds) and None),
        _NO_COUNTED_ROUNDS,
        said="begins in round|comes after",
    ),
    broken(
        "leave snapshot ends out",
        instead(Feed, "snapshot_complete", _without_snapshot_ends),
        said="is owed",
    ),
    broken(
        "count one item more in a snapshot",
        instead(
            Feed, "snapshot_complete", lambda whole, feed, each, items: whole(feed, each, items + 1)
        ),
        said="snapshot end .* comes",
    ),
    broken(
        "return barriers one seqno early",
        swap(ByVector, "_is_behind", staticmethod(lambda each, seqno: each.sent_seqno < seqno - 1)),
        said="is back, vBucket",
        seed=2,
    ),
    broken(
        "return barriers a round early",
        instead(ByCycle, "_goal", _a_round_early),
        said="is back, vBucket",
    ),
    broken(
        "forget a cookie now and then",
        instead(
            ByVector, "reached", lambda whole, each: [one for one in whole(each) if one.opaque % 5]
        ),
        said=f"comes, .* should|{_STUCK}",
        seed=2,
    ),
    broken(
        "return barriers newest first",
        *(
            instead(kind, "reached", lambda whole, each: whole(each)[::-1])
            for kind in (ByVector, ByCycle)
        ),
        said="comes, .* should",
    ),
    # Waking up, letting go.
    broken(
        "let those sleep who wait for a change",
        swap(VBucket, "tell_waiting", lambda vbucket: setattr(vbucket, "waiting", [])),
        said=_STUCK,
    ),
    broken("give no permit back", skip(Slots, "free"), said=f"{_STUCK}|holds at its end"),
    broken(
        "give permits back without a word",
        swap(Slots, "free", lambda slots, *_: setattr(slots, "used", slots.used - 1)),
        swap(Readings, "_unpark", lambda _: False),
        said=_STUCK,
        seed=2,
    ),
    broken(
        "keep the queue view of a stream that ends",
        swap(Reading, "close", lambda reading: reading._close_view()),
        said=f"holds at its end|{_STUCK}",
    ),
    broken(
        "keep the store view of a stream that ends",
        _keep_store_views,
        said=f"holds at its end|{_STUCK}",
    ),
    broken("stay on a vBucket's list", skip(VBucket, "unwatch"), said="holds at its end"),
    broken(
        "send more than the peer takes",
        lambda patch: patch.setattr(
            Feed, "unacked_bytes", property(lambda _: 0, lambda *_: None), raising=False
        ),
        said="are not acknowledged",
    ),
    broken(
        "never notify",
        skip(NotifierStream, "changed"),
        said="notifier never come to rest",
        plan=Plan((PLAIN,), NO_FAULTS, {}, notifier=True),
    ),
    # Leases and takeovers.
    broken(
        "read a lease as it is now",
        swap(LeaseStream, "_take_reading", lambda each, feed: each._lease.read(each.vbucket)),
        said="is announced for|reads",
        plan=_LEASED,
    ),
    broken(
        "look at the vBucket before the lease",
        instead(Producer, "_leased_stream", _served_only),
        said="a reading of .* is refused",
        plan=replace(_LEASED, managing={"state": 1, "remove": 1}),
    ),
    broken(
        "measure a lease with a clock that people set",
        swap(WorldClock, "monotonic", WorldClock.now),
        said="is gone early|leases never come to rest",
        plan=replace(_LEASED, faults=Faults(clock_s=0.3)),
        seed=1,
    ),
    broken(
        "keep leases when the store must grow",
        skip(Leases, "release_views"),
        said="has not grown for",
        plan=replace(_LEASED, faults=Faults(map_full_s=0.2)),
    ),
    broken(
        "do not stop the source before the last items go out",
        swap(Producer, "_die", lambda each, vbucket, on_disk: on_disk(True)),
        said="a takeover of|without failover",
        plan=_TAKEN_OVER,
    ),
    broken(
        "leave the pending state out of a takeover",
        instead(TakeoverStream, "__init__", _then("_target", VBucketState.ACTIVE)),
        said="a taker is told",
        plan=_TAKEN_OVER,
    ),
)


@cases(_BREAKS)
def test_a_broken_rule_of_streams_is_noticed(case: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    notice(case, monkeypatch, STREAMS.random, _SEEDS)
