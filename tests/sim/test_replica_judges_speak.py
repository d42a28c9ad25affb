"""Each rule of replicas broken on purpose is noticed, by the right judge where only one can.

See `test_upr_judges_speak`; a break that no longer breaks fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.noticing import notice
from tests.sim.replica_desk import ReplicaDesk
from tests.sim.replica_mirror import AT_ENDS, AT_ONCE
from tests.sim.replica_plan import Plan
from tests.sim.replica_run import ReplicaRun
from tests.sim.test_replica_programs import deposed_active, nobody_tells
from uprmc.client import nodes
from uprmc.client.follow import Follower
from uprmc.client.nodes import ClientNodes
from uprmc.client.position import PositionWriter, VBucketPlace
from uprmc.client.state import BOUNDARY, MemoryState
from uprmc.engine import bucket as bucket_module
from uprmc.engine import failover_log as terms_module
from uprmc.engine import replica as replica_module
from uprmc.engine import vbucket as vbucket_module
from uprmc.engine.bucket import Bucket
from uprmc.engine.flusher import Flush, Flusher
from uprmc.engine.memory import MemoryAccount
from uprmc.engine.purge import PurgeLimits
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.model import Life, SnapshotRange, VBucketHeader, VBucketState
from uprmc.record import pack, seqno_of, unpack
from uprmc.remote.directory import Choice, Claim
from uprmc.upr import admission, intake, producer, receiver, undo
from uprmc.upr.link import ReplicaLink
from uprmc.upr.receiver import Receiver
from uprmc.upr.replication import Replication
from uprmc.upr.source import Source

pytestmark = pytest.mark.sim

Patch = Callable[[pytest.MonkeyPatch], None]

#: How many seeds a broken rule may hide from; by far most are noticed within the first three.
_SEEDS = 160


# --- terms ----------------------------------------------------------------------------------------


def _raise_a_term_at_a_crash(patch: pytest.MonkeyPatch) -> None:
    """Take the branch of an unclean start for a promotion."""
    restore = Bucket.restore

    def promoting(bucket: Bucket, number: int, header: VBucketHeader, *, clean: bool) -> VBucket:
        vbucket = restore(bucket, number, header, clean=clean)
        if not clean:
            vbucket.promote()
        return vbucket

    patch.setattr(Bucket, "restore", promoting)


def _store_no_term(patch: pytest.MonkeyPatch) -> None:
    """Leave it out of the header."""
    made = VBucket.header

    def without(vbucket: VBucket, high_seqno: int, snapshot: SnapshotRange) -> VBucketHeader:
        return made(vbucket, high_seqno, snapshot)._replace(term=0, known_term=0)

    patch.setattr(VBucket, "header", without)


def _stay_active_though_deposed(patch: pytest.MonkeyPatch) -> None:
    """Refuse, and go on."""
    patch.setattr(terms_module, "is_deposed", lambda *_: False)


def _forget_who_deposed(patch: pytest.MonkeyPatch) -> None:
    """Refuse, and learn nothing."""
    patch.setattr(admission, "shares_history", lambda *_: False)


def _promote_without_a_term(patch: pytest.MonkeyPatch) -> None:
    """Leave the term as it was."""
    patch.setattr(VBucket, "promote", lambda vbucket: None)


def _promote_above_our_own_only(patch: pytest.MonkeyPatch) -> None:
    """Forget what others were known to have."""
    patch.setattr(vbucket_module, "promoted", lambda term, known: term + 1)


def _take_a_log_without_its_term(patch: pytest.MonkeyPatch) -> None:
    """Leave ours."""
    patch.setattr(VBucket, "take_term", lambda vbucket, term: None)


# --- applying -------------------------------------------------------------------------------------


def _forget_the_range(patch: pytest.MonkeyPatch) -> None:
    """Call whole what is half received."""
    apply_all = replica_module.apply_all

    def careless(vbucket: VBucket, *arguments: Any) -> None:
        apply_all(vbucket, *arguments)
        vbucket.receiving = None

    patch.setattr(intake, "apply_all", careless)
    patch.setattr(replica_module, "apply_all", careless)


def _forget_the_range_in_the_header(patch: pytest.MonkeyPatch) -> None:
    """Write down that it is whole."""
    made = VBucket.header

    def whole(vbucket: VBucket, high_seqno: int, snapshot: SnapshotRange) -> VBucketHeader:
        return made(vbucket, high_seqno, SnapshotRange(high_seqno, high_seqno))

    patch.setattr(VBucket, "header", whole)


def _lose_an_item(patch: pytest.MonkeyPatch) -> None:
    """Leave one out now and then, but not the last of a snapshot."""
    apply_all = intake.apply_all

    def careless(
        vbucket: VBucket, records: list[bytes], highest_cas: int, snapshot: Any, purged: int
    ) -> None:
        end = snapshot.end
        kept = [each for each in records if seqno_of(each) % 7 or seqno_of(each) == end]
        if kept:
            apply_all(vbucket, kept, highest_cas, snapshot, purged)

    patch.setattr(intake, "apply_all", careless)


def _take_what_is_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """Apply whatever comes, from a source that begins too early now and then."""
    patch.setattr(replica_module, "_check_place", lambda *arguments: None)
    patch.setattr(ReplicaLink, "_check_marker", lambda *arguments: None)
    admitted = admission.admit

    def early(vbucket: VBucket, asked: Any, **options: Any) -> Any:
        request = admitted(vbucket, asked, **options)
        start = max(0, request.start_seqno - 3)
        return request._replace(start_seqno=start, snapshot_start=start)

    patch.setattr(producer, "admit", early)


def _lose_the_revision(patch: pytest.MonkeyPatch) -> None:
    """Count changes anew at the replica."""
    adopt_all = VBucket.adopt_all

    def careless(vbucket: VBucket, records: list[bytes], highest_cas: int) -> None:
        items = list(map(unpack, records))
        for item in items:
            item.rev = 1
        adopt_all(vbucket, list(map(pack, items)), highest_cas)

    patch.setattr(VBucket, "adopt_all", careless)


def _call_expiries_deletions(patch: pytest.MonkeyPatch) -> None:
    """Lose how a document went."""
    made = receiver.deletion_of

    def careless(*arguments: Any) -> Any:
        item = made(*arguments)
        item.life = Life.DELETED
        return item

    patch.setattr(receiver, "deletion_of", careless)


def _forget_the_purge_seqno(patch: pytest.MonkeyPatch) -> None:
    """Do not learn from markers what was dropped."""
    apply_all = replica_module.apply_all

    def careless(vbucket: VBucket, records: Any, highest_cas: int, snapshot: Any, *_: Any) -> None:
        apply_all(vbucket, records, highest_cas, snapshot)

    patch.setattr(intake, "apply_all", careless)
    patch.setattr(replica_module, "apply_all", careless)


def _purge_replicas_freely(patch: pytest.MonkeyPatch) -> None:
    """Drop at a replica what its source has not dropped."""
    patch.setattr(PurgeLimits, "_not_beyond_source", lambda limits, vbucket, limit: limit)


def _go_on_with_the_next_cas(patch: pytest.MonkeyPatch) -> None:
    """Count on from the highest CAS that came, as if nothing could have been lost."""
    patch.setattr(MemoryAccount, "tell_time", lambda account, now_s: None)
    patch.setattr(bucket_module, "step", lambda chance: 0)
    patch.setattr(
        Bucket, "leave_lost_cas_behind", lambda bucket, vbucket: vbucket.know_cas(vbucket.max_cas)
    )


def _forget_the_floor(patch: pytest.MonkeyPatch) -> None:
    """Do not learn of deletions that the source has dropped."""
    patch.setattr(intake, "outrank", lambda vbucket, rev: None)


def _keep_followers_of_an_old_history(patch: pytest.MonkeyPatch) -> None:
    """Tell nobody who follows a replica that its history has another name now."""

    def silent(vbucket: VBucket, log: Any, *_: Any) -> None:
        vbucket.failover_log = tuple(log)
        vbucket.change_header()

    patch.setattr(intake, "take_history", silent)


def _keep_the_old_log(patch: pytest.MonkeyPatch) -> None:
    """Do not take the source's history over."""
    patch.setattr(intake, "take_history", lambda *arguments: None)


# --- rolling back ---------------------------------------------------------------------------------


def _forget_a_key(patch: pytest.MonkeyPatch) -> None:
    """Fetch all but one."""
    lost_keys = replica_module.lost_keys

    def careless(*arguments: Any) -> list[bytes] | None:
        keys = lost_keys(*arguments)
        return keys[:-1] if keys and len(keys) > 1 else keys

    patch.setattr(undo, "lost_keys", careless)


def _rewound(patch: pytest.MonkeyPatch, change: Callable[[Any, VBucket], Any]) -> None:
    roll_back = replica_module.roll_back

    def careless(bucket: Bucket, vbucket: VBucket, rewind: Any, done: Any) -> None:
        roll_back(bucket, vbucket, change(rewind, vbucket), done)

    patch.setattr(undo, "roll_back", careless)


def _bring_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """Leave out what the active has below the seqno."""
    _rewound(patch, lambda rewind, _: rewind._replace(versions=[]))


def _claim_to_be_whole_after_it(patch: pytest.MonkeyPatch) -> None:
    """Forget that keys are missing which come later."""
    _rewound(patch, lambda rewind, _: rewind._replace(later_seqno=0))


def _fall_too_far(patch: pytest.MonkeyPatch) -> None:
    """Bring back older ones, but forget what lies between."""

    def lower(rewind: Any, vbucket: VBucket) -> Any:
        versions = [item for item in rewind.versions if item.seqno < rewind.seqno - 1]
        return rewind._replace(seqno=max(1, rewind.seqno - 2), versions=versions)

    _rewound(patch, lower)


def _leave_old_records_on_disk(patch: pytest.MonkeyPatch) -> None:
    """Roll back in memory only."""
    add = Flusher._add

    def careless(flusher: Flusher, flush: Flush, *arguments: Any) -> None:
        add(flusher, flush, *arguments)
        flush.changes[-1] = flush.changes[-1]._replace(rewind=None, forget=())

    patch.setattr(Flusher, "_add", careless)


# --- failing over, handing over -------------------------------------------------------------------


def _promote_at_the_high_seqno(patch: pytest.MonkeyPatch) -> None:
    """Call the half of a snapshot a state."""
    patch.setattr(bucket_module, "last_complete_seqno", lambda high, snapshot: high)


def _promote_without_a_branch(patch: pytest.MonkeyPatch) -> None:
    """Go on with the old history."""

    def silent(bucket: Bucket, vbucket: VBucket) -> None:
        vbucket.receiving = None

    patch.setattr(Bucket, "_branch", silent)


def _answer_a_failover_at_once(patch: pytest.MonkeyPatch) -> None:
    """Before it is on disk."""

    def hasty(replication: Replication, done: Any) -> None:
        save(replication, lambda _: None)
        done(True)

    save = Replication._save
    patch.setattr(Replication, "_save", hasty)


def _answer_a_takeover_at_once(patch: pytest.MonkeyPatch) -> None:
    """Promise what is not on disk."""
    patch.setattr(Receiver, "_when_on_disk", lambda each, stream, then: then())
    patch.setattr(Replication, "_once_on_disk", lambda each, then: then())


def _let_writes_go_on(patch: pytest.MonkeyPatch) -> None:
    """Do not stop the source before the last items go out."""
    patch.setattr(producer.Producer, "_die", lambda each, vbucket, on_disk: on_disk(True))


def _branch_at_a_hand_over(patch: pytest.MonkeyPatch) -> None:
    """Make a new history where the old one goes on."""
    set_state = Bucket.set_state

    def careless(bucket: Bucket, number: int, state: VBucketState, **_: Any) -> VBucket:
        return set_state(bucket, number, state)

    patch.setattr(Bucket, "set_state", careless)


# --- following ------------------------------------------------------------------------------------


def _forget_whom_to_follow(patch: pytest.MonkeyPatch) -> None:
    """Begin anew after a restart."""
    patch.setattr(Replication, "resume", lambda replication: None)


def _never_dial_again(patch: pytest.MonkeyPatch) -> None:
    """Be content with one connection."""
    call = Source._dial_now

    def once(source: Source) -> None:
        if not source.attempts:
            call(source)

    patch.setattr(Source, "_dial_now", once)


def _let_followers_live_through_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """Do not tell those who follow a replica that it takes something back."""
    interrupt = VBucket.interrupt

    def silent(vbucket: VBucket, why: Interruption) -> None:
        if why is not Interruption.ROLLED_BACK:
            interrupt(vbucket, why)

    patch.setattr(VBucket, "interrupt", silent)


# --- programs -------------------------------------------------------------------------------------


def _cut_the_ring_too_early(patch: pytest.MonkeyPatch) -> None:
    """Forget keys that may yet have to be undone, and say nothing of it."""
    ring_after = MemoryState.ring_after

    def keys_above(writer: PositionWriter, vbucket: int, seqno: int) -> list[bytes]:
        assert isinstance(writer.state, MemoryState)
        entries = [entry for entry in ring_after(writer.state, vbucket, seqno) if not entry[0] % 3]
        return list(dict.fromkeys(key for _, key in reversed(entries) if key != BOUNDARY))

    patch.setattr(PositionWriter, "keys_above", keys_above)


def _forget_a_key_of_the_ring(patch: pytest.MonkeyPatch) -> None:
    """Undo all but one."""
    keys_above = PositionWriter.keys_above
    patch.setattr(
        PositionWriter, "keys_above", lambda writer, *arguments: keys_above(writer, *arguments)[:-1]
    )


def _undo_too_much(patch: pytest.MonkeyPatch) -> None:
    """Undo keys from below the seqno, too."""
    keys_above = PositionWriter.keys_above
    patch.setattr(
        PositionWriter, "keys_above", lambda writer, vbucket, seqno: keys_above(writer, vbucket, 0)
    )


def _write_the_ring_too_late(patch: pytest.MonkeyPatch) -> None:
    """Hand over first."""

    def nothing(writer: PositionWriter, runs: Any) -> Any:
        return iter(())

    patch.setattr(PositionWriter, "write", nothing)


def _keep_what_is_to_be_dropped(patch: pytest.MonkeyPatch) -> None:
    """Begin anew without telling the program."""

    def silent(follower: Follower, place: Any) -> Any:
        follower._writer.start_over(place)
        return iter(())

    patch.setattr(Follower, "_start_over", silent)


def _save_another_log(patch: pytest.MonkeyPatch) -> None:
    """Write histories down in the wrong order."""
    saved = VBucketPlace.saved

    def turned(place: VBucketPlace, *, inside: bool) -> Any:
        made = saved(place, inside=inside)
        return made._replace(log=made.log[::-1])

    patch.setattr(VBucketPlace, "saved", turned)


_OF_PROGRAMS = (
    _cut_the_ring_too_early,
    _forget_a_key_of_the_ring,
    _undo_too_much,
    _write_the_ring_too_late,
    _keep_what_is_to_be_dropped,
    _save_another_log,
)
_PROGRAMS = Plan(
    "pair",
    Faults(cut_s=0.5, crash_s=2.0),
    {"failover": 1},
    operator_s=0.15,
    programs=(AT_ENDS, AT_ONCE),
    ring_items=12,
    death=0.01,
)

#: Programs go back often, and few of the keys that they undo are written again soon.
_UNDOING = replace(_PROGRAMS, operating={"failover": 3}, operator_s=0.3, keys=60)

_FAILOVERS = Plan("star", NO_FAULTS, {"failover": 2, "twice": 1}, operator_s=0.15)
_CHAIN = Plan("chain", NO_FAULTS, {"failover": 1, "twice": 1}, operator_s=0.15, vbuckets=1)
_HALVES = Plan(
    "pair", Faults(cut_s=0.1, crash_s=1.0), {"failover": 1}, operator_s=0.3, writer_s=0.01
)
_DEPOSED = Plan(
    "star", Faults(crash_s=1.5), {"failover": 2, "part": 3, "herald": 12}, operator_s=0.05
)
_HAND_OVERS = Plan("star", NO_FAULTS, {"takeover": 1}, operator_s=0.1)
_DROPS = Plan(
    "pair", Faults(cut_s=0.2), {"compact": 9, "failover": 2, "takeover": 2}, operator_s=0.1, keys=4
)
_FLOORS = Plan(
    "pair",
    Faults(cut_s=0.05),
    {"compact": 6, "takeover": 3, "failover": 3},
    operator_s=0.15,
    keys=6,
    vbuckets=1,
    writer_s=0.05,
    steps=12_000,
)
_PURGES = Plan("pair", Faults(cut_s=0.2), {"compact": 5, "failover": 1}, operator_s=0.1)

#: Runs in which a rule is needed often, for those that random ones seldom need.
_PLANS: dict[Patch, Plan] = {
    _forget_the_range: _HALVES,
    _forget_the_range_in_the_header: _HALVES,
    _promote_at_the_high_seqno: _HALVES,
    _forget_the_purge_seqno: _PURGES,
    _forget_the_floor: _FLOORS,
    _purge_replicas_freely: _DROPS,
    _keep_followers_of_an_old_history: _CHAIN,
    _let_followers_live_through_a_rollback: _CHAIN,
    _forget_a_key: _FAILOVERS,
    _bring_nothing_back: _FAILOVERS,
    _claim_to_be_whole_after_it: _FAILOVERS,
    _fall_too_far: _FAILOVERS,
    _leave_old_records_on_disk: _FAILOVERS,
    _answer_a_takeover_at_once: _HAND_OVERS,
    _let_writes_go_on: _HAND_OVERS,
    _branch_at_a_hand_over: _HAND_OVERS,
    _promote_without_a_branch: _FAILOVERS,
    _answer_a_failover_at_once: _FAILOVERS,
    _forget_whom_to_follow: Plan("chain", Faults(crash_s=1.0), {}, orderly=False),
    _take_what_is_out_of_order: Plan("chain", Faults(cut_s=0.2), {}, writer_s=0.01),
    _lose_an_item: Plan("chain", NO_FAULTS, {}, writer_s=0.01),
    _raise_a_term_at_a_crash: _DEPOSED,
    _store_no_term: _DEPOSED,
    _stay_active_though_deposed: _DEPOSED,
    _forget_who_deposed: _DEPOSED,
    _promote_without_a_term: _DEPOSED,
    _promote_above_our_own_only: _DEPOSED,
    _take_a_log_without_its_term: _DEPOSED,
    **dict.fromkeys(_OF_PROGRAMS, _PROGRAMS),
    _forget_a_key_of_the_ring: _UNDOING,
    # With a log of one entry nobody knows a common history, and programs begin again often.
    _keep_what_is_to_be_dropped: replace(
        _PROGRAMS, operating={"failover": 2, "twice": 1}, keys=60, max_failover_entries=1
    ),
}

_WRONG = "names two histories|but b'|holds .* never so|lacks|shows|stands at"
_STUCK = "never come to rest"
_PROGRAM_WRONG = r"the program \(.*\) holds"


@pytest.mark.parametrize(
    ("break_it", "verdict"),
    [
        (_forget_the_range, _WRONG),
        (_forget_the_range_in_the_header, _WRONG),
        (_lose_an_item, _WRONG),
        (_take_what_is_out_of_order, f"{_WRONG}|{_STUCK}|: $"),  # or an assertion of the engine
        (_lose_the_revision, "names two histories"),
        (_call_expiries_deletions, "a has|b has|c has"),
        (_forget_the_purge_seqno, _WRONG),
        (_forget_the_floor, "the revision falls from|new documents begin above"),
        (_purge_replicas_freely, "is purged further than any active"),
        (_go_on_with_the_next_cas, "^seed .*CAS .* names"),
        (_keep_followers_of_an_old_history, f"{_WRONG}|of the term"),
        (_keep_the_old_log, f"{_WRONG}|nobody|{_STUCK}"),
        (_forget_a_key, _WRONG),
        (_bring_nothing_back, _WRONG),
        (_claim_to_be_whole_after_it, _WRONG),
        (_fall_too_far, _WRONG),
        (_leave_old_records_on_disk, f"{_WRONG}|is stored with items|is committed after"),
        (_promote_at_the_high_seqno, "a failover made|unclean restart"),
        (_promote_without_a_branch, "was handed over at|is active at|unclean restart"),
        (_answer_a_failover_at_once, "failed over, but"),
        (_answer_a_takeover_at_once, "was taken over, but|handed over from"),
        (_let_writes_go_on, "was handed over at|is active at"),
        (_branch_at_a_hand_over, "with another history"),
        (_forget_whom_to_follow, _STUCK),
        (_never_dial_again, _STUCK),
        (_let_followers_live_through_a_rollback, f"{_WRONG}|{_STUCK}"),
        (_cut_the_ring_too_early, _PROGRAM_WRONG),
        (_forget_a_key_of_the_ring, _PROGRAM_WRONG),
        (_undo_too_much, "which never came"),
        (_write_the_ring_too_late, "is not in the ring"),
        (_keep_what_is_to_be_dropped, _PROGRAM_WRONG),
        (_save_another_log, "has a log that nobody had"),
        (_raise_a_term_at_a_crash, "after a restart"),
        (_store_no_term, "of the term|after a restart"),
        (_stay_active_though_deposed, "was told of more"),
        (_forget_who_deposed, f"was told of more|{_STUCK}"),
        (_promote_without_a_term, "not above all"),
        (_promote_above_our_own_only, "not above all|was told of more"),
        (_take_a_log_without_its_term, "of the term"),
    ],
)
def test_a_broken_rule_of_replicas_is_noticed(
    break_it: Patch, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a judge, and by the right one where there is only one who can."""
    break_it(monkeypatch)
    plan = _PLANS.get(break_it)
    notice(break_it, lambda seed: ReplicaRun.random(seed, plan), verdict, _SEEDS)


# --- who is followed ------------------------------------------------------------------------------


def _say_no_term(patch: pytest.MonkeyPatch) -> None:
    """Else the node would refuse, and no harm come of it."""
    asked = VBucketPlace.asked
    patch.setattr(VBucketPlace, "asked", lambda place: asked(place)._replace(term=0))


def _follow_the_longest_log(patch: pytest.MonkeyPatch) -> None:
    """Crashes make a log longer, as failovers do."""
    _say_no_term(patch)

    def longest(vbucket: int, claims: Sequence[Claim], known_term: int = 0) -> Choice:
        ranked = sorted(claims, key=lambda claim: len(claim.log))
        return Choice(ranked[-1].place) if claims else Choice(claimed=False)

    patch.setattr(nodes, "chosen", longest)
    patch.setattr(
        ClientNodes,
        "disputed",
        lambda found: {n for each in found.sessions() for n in each.facts.active},
    )


def _follow_whoever_answers_first(patch: pytest.MonkeyPatch) -> None:
    """Choose before all have told."""
    patch.setattr(ClientNodes, "all_asked", lambda found: True)
    patch.setattr(ClientNodes, "asked_since", lambda found, *times: True)


def _forget_the_term(patch: pytest.MonkeyPatch) -> None:
    """Write it down nowhere; then a deposed node that is alone looks right."""
    _say_no_term(patch)
    saved = VBucketPlace.saved
    patch.setattr(
        VBucketPlace,
        "saved",
        lambda place, *, inside: saved(place, inside=inside)._replace(term=0),
    )


@pytest.mark.parametrize(
    "break_it", [_follow_the_longest_log, _follow_whoever_answers_first, _forget_the_term]
)
def test_a_program_that_follows_a_deposed_active_is_noticed(
    break_it: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    nobody_tells(monkeypatch)
    notice(
        break_it,
        lambda seed: deposed_active(ReplicaDesk("pair", seed=seed), AT_ENDS, may_learn=True),
        "deposed|never comes? to rest",
        10,
    )
