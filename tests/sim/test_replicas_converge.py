"""Whatever goes wrong with several nodes, in the end they are equal, and nothing was made up.

Judges look after every step (`truth`), at every answer to the operator, and at rest
(`replica_judges`); a seed that fails says how to run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Any

import pytest

from tests.seeds import seeds
from tests.sim.cluster_run import REPLICAS
from tests.sim.consumer import PLAIN, RARE
from tests.sim.desk import ReplicaDesk
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.noticing import Break, Patch, broken, cases, happens, instead, notice, skip, swap
from tests.sim.plan import OPERATING, TOPOLOGIES, Plan
from tests.sim.program import AT_ENDS, AT_ONCE
from tests.sim.test_replica_programs import deposed_active, nobody_tells
from uprmc.client.follow import Follower
from uprmc.client.position import PositionWriter, VBucketPlace
from uprmc.client.state import BOUNDARY
from uprmc.client.streams import ClientNodes
from uprmc.engine import bucket as bucket_module
from uprmc.engine import failover_log as terms_module
from uprmc.engine import replica as replica_module
from uprmc.engine import vbucket as vbucket_module
from uprmc.engine.bucket import Bucket
from uprmc.engine.flusher import Flush, Flusher
from uprmc.engine.memory import MemoryAccount
from uprmc.engine.purge import PurgeLimits
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.model import Life, SnapshotRange, VBucketHeader
from uprmc.record import pack, seqno_of, unpack
from uprmc.remote import directory
from uprmc.remote.directory import Choice, Claim, Directory
from uprmc.upr import admission, intake, producer, receiver, undo
from uprmc.upr.link import ReplicaLink
from uprmc.upr.receiver import Receiver
from uprmc.upr.replication import Replication
from uprmc.upr.source import Source

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("seed", seeds(default=20))
@pytest.mark.acceptance("D04", "D33", "D50", "D51", "D52", "D53", "D54", "P16", "P17")
def test_every_node_ends_equal_to_the_active_one(seed: int) -> None:
    """Random topologies, faults, failovers, hand-overs; see `plan`."""
    REPLICAS.story(seed)


#: Fault by fault: what goes wrong, and what the operator does.
_MATRIX: dict[str, tuple[Faults, dict[str, int]]] = {
    "broken network": (Faults(cut_s=0.15), {"rewire": 1}),
    "nodes killed": (Faults(crash_s=1.0), {}),
    "nodes killed with their machines": (Faults(power_s=1.0, write_back_s=0.3), {}),
    "nodes restarted": (Faults(stop_s=1.5), {"takeover": 1}),
    "disks broken and full": (Faults(broken_s=1.0, full_s=1.0), {"failover": 1, "takeover": 1}),
    "failovers, nodes killed": (Faults(crash_s=2.0), {"failover": 2, "twice": 1, "part": 1}),
    "hand-overs cut": (Faults(cut_s=1.0), {"takeover": 1}),
    "deposed actives come back": (
        Faults(crash_s=0.8, stop_s=2.0),
        {"failover": 3, "part": 3, "herald": 6},
    ),
    "deletions purged": (NO_FAULTS, {"compact": 6, "failover": 1, "takeover": 1}),
}


@cache
def account(topology: str, fault: str, seed: int = 0) -> Mapping[str, int]:
    """Run with consumers at the last node, once for all tests."""
    faults, operating = _MATRIX[fault]
    plan = Plan(
        topology,
        faults,
        operating,
        operator_s=0.2,
        kinds=(PLAIN, RARE),
        sync="machines" not in fault,
        cut_handovers="cut" in fault,
    )
    return REPLICAS.random(seed, plan).account()


@pytest.mark.parametrize("fault", list(_MATRIX))
@pytest.mark.parametrize("topology", ["chain", "star"])
@pytest.mark.acceptance("D51", "D52", "D53")
def test_each_topology_bears_each_fault(topology: str, fault: str) -> None:
    account(topology, fault)


@pytest.mark.parametrize("seed", seeds(default=3))
@pytest.mark.acceptance("D52")
def test_hand_overs_in_peace_take_nobody_back(seed: int) -> None:
    """Again and again under load: no replica and no consumer is sent back, no log changes."""
    plan = Plan("star", NO_FAULTS, {"takeover": 1}, operator_s=0.1, kinds=(PLAIN,), silences=False)
    run = REPLICAS.random(seed, plan)
    happened = run.account()
    assert not happened["interrupted"]
    assert not run.histories.rollbacks
    assert not happened["consumer rollbacks"]
    for number in range(plan.vbuckets):
        assert {len(run.histories.node(node.name).now(number).log) for node in run.nodes} == {1}


def test_the_runs_do_what_they_are_for() -> None:
    """Every kind of event happens within the first seeds; else the judges have nothing to judge."""
    wanted = {"rollbacks", "handed over", "interrupted", "refused", "crashes", "cuts", "failover"}
    cut = (
        account(name, "hand-overs cut", seed) for seed in range(10) for name in ("chain", "star")
    )
    happens(wanted, chain((REPLICAS.story(seed).account for seed in range(4)), cut))
    assert set(TOPOLOGIES) == {"pair", "chain", "star"}
    assert set(OPERATING) >= {"takeover", "failover", "twice"}


@pytest.mark.parametrize("seed", seeds(default=2))
def test_the_same_seed_gives_the_same_nodes(seed: int) -> None:
    assert REPLICAS.random(seed).world.digest() == REPLICAS.story(seed).digest


# --- judges speak ---------------------------------------------------------------------------------

#: How many seeds a broken rule may hide from; by far most are noticed within the first three.
_SEEDS = 160

_WRONG = "names two histories|but b'|holds .* never so|lacks|shows|stands at"
_STUCK = "never come to rest"


def _promote_at_a_crash(
    whole: Any, bucket: Bucket, number: int, header: VBucketHeader, *, clean: bool
) -> VBucket:
    vbucket = whole(bucket, number, header, clean=clean)
    if not clean:
        vbucket.promote()
    return vbucket


def _call_it_whole(whole: Any, vbucket: VBucket, *given: Any) -> None:
    whole(vbucket, *given)
    vbucket.receiving = None


def _lose_every_seventh(
    whole: Any, vbucket: VBucket, records: list[bytes], highest_cas: int, snapshot: Any, purged: int
) -> None:
    """Lose one now and then, but not the last of a snapshot."""
    end = snapshot.end
    kept = [each for each in records if seqno_of(each) % 7 or seqno_of(each) == end]
    if kept:
        whole(vbucket, kept, highest_cas, snapshot, purged)


def _begin_too_early(whole: Any, vbucket: VBucket, asked: Any, **options: Any) -> Any:
    request = whole(vbucket, asked, **options)
    start = max(0, request.start_seqno - 3)
    return request._replace(start_seqno=start, snapshot_start=start)


def _count_revisions_anew(whole: Any, vbucket: VBucket, records: list[bytes], cas: int) -> None:
    items = list(map(unpack, records))
    for item in items:
        item.rev = 1
    whole(vbucket, list(map(pack, items)), cas)


def _call_it_deleted(whole: Any, *given: Any) -> Any:
    item = whole(*given)
    item.life = Life.DELETED
    return item


def _take_the_log_in_silence(_: Any, vbucket: VBucket, log: Any, *__: Any) -> None:
    vbucket.failover_log = tuple(log)
    vbucket.change_header()


def _all_but_one(whole: Any, *given: Any) -> list[bytes] | None:
    keys = whole(*given)
    return keys[:-1] if keys and len(keys) > 1 else keys


def _rewound(change: Callable[[Any], Any]) -> Patch:
    def roll_back(bucket: Bucket, vbucket: VBucket, rewind: Any, done: Any) -> None:
        replica_module.roll_back(bucket, vbucket, change(rewind), done)

    return swap(undo, "roll_back", roll_back)


def _lower(rewind: Any) -> Any:
    versions = [item for item in rewind.versions if item.seqno < rewind.seqno - 1]
    return rewind._replace(seqno=max(1, rewind.seqno - 2), versions=versions)


def _leave_the_disk(whole: Any, flusher: Flusher, flush: Flush, *given: Any) -> None:
    whole(flusher, flush, *given)
    flush.changes[-1] = flush.changes[-1]._replace(rewind=None, forget=())


def _before_it_is_on_disk(whole: Any, replication: Replication, done: Any) -> None:
    whole(replication, lambda _: None)
    done(True)


def _dial_once(whole: Any, source: Source) -> None:
    if not source.attempts:
        whole(source)


def _unless_rolled_back(whole: Any, vbucket: VBucket, why: Interruption) -> None:
    if why is not Interruption.ROLLED_BACK:
        whole(vbucket, why)


def _every_third_key(_: Any, writer: PositionWriter, vbucket: int, seqno: int) -> list[bytes]:
    entries = [each for each in writer.state.ring_after(vbucket, seqno) if not each[0] % 3]
    return list(dict.fromkeys(key for _, key in reversed(entries) if key != BOUNDARY))


def _start_over_in_silence(follower: Follower, place: Any) -> Any:
    follower._writer.start_over(place)
    return iter(())


def _with_header(change: Callable[[VBucketHeader], VBucketHeader]) -> Patch:
    return instead(VBucket, "header", lambda whole, *given: change(whole(*given)))


def _saved(change: Callable[[Any], Any]) -> Patch:
    return instead(
        VBucketPlace,
        "saved",
        lambda whole, place, *, inside: change(whole(place, inside=inside)),
    )


def _both_appliers(other: Callable[..., None]) -> tuple[Patch, Patch]:
    return tuple(  # type: ignore[return-value]
        swap(module, "apply_all", partial(other, replica_module.apply_all))
        for module in (intake, replica_module)
    )


#: Programs go back often.
_PROGRAMS = Plan(
    "pair",
    Faults(cut_s=0.5, crash_s=2.0),
    {"failover": 1},
    operator_s=0.15,
    programs=(AT_ENDS, AT_ONCE),
    ring_items=12,
    death=0.01,
)
_PROGRAM_WRONG = r"the program \(.*\) holds"
_FAILOVERS = Plan("star", NO_FAULTS, {"failover": 2, "twice": 1}, operator_s=0.15)
_CHAIN = Plan("chain", NO_FAULTS, {"failover": 1, "twice": 1}, operator_s=0.15, vbuckets=1)
_HALVES = Plan(
    "pair", Faults(cut_s=0.1, crash_s=1.0), {"failover": 1}, operator_s=0.3, writer_s=0.01
)
_DEPOSED = Plan(
    "star", Faults(crash_s=1.5), {"failover": 2, "part": 3, "herald": 12}, operator_s=0.05
)
_HAND_OVERS = Plan("star", NO_FAULTS, {"takeover": 1}, operator_s=0.1)

_BREAKS = (
    # Terms.
    broken(
        "take the branch of an unclean start for a promotion",
        instead(Bucket, "restore", _promote_at_a_crash),
        said="after a restart",
        plan=_DEPOSED,
    ),
    broken(
        "leave terms out of the header",
        _with_header(lambda header: header._replace(term=0, known_term=0)),
        said="of the term|after a restart",
        plan=_DEPOSED,
    ),
    broken(
        "refuse as one who was deposed, and stay active",
        swap(terms_module, "is_deposed", lambda *_: False),
        said="was told of more",
        plan=_DEPOSED,
        seed=3,
    ),
    broken(
        "refuse as one who was deposed, and learn nothing",
        swap(admission, "shares_history", lambda *_: False),
        said=f"was told of more|{_STUCK}",
        plan=_DEPOSED,
        seed=5,
    ),
    broken(
        "promote without a new term",
        skip(VBucket, "promote"),
        said="not above all",
        plan=_DEPOSED,
    ),
    broken(
        "promote above our own term only",
        swap(vbucket_module, "promoted", lambda term, known: term + 1),
        said="not above all|was told of more",
        plan=_DEPOSED,
        seed=2,
    ),
    broken(
        "take a log without its term",
        skip(VBucket, "take_term"),
        said="of the term",
        plan=_DEPOSED,
    ),
    # Applying.
    broken(
        "call whole what is half received",
        *_both_appliers(_call_it_whole),
        said=_WRONG,
        plan=_HALVES,
    ),
    broken(
        "write down that a half is whole",
        _with_header(
            lambda header: header._replace(
                snapshot=SnapshotRange(header.high_seqno, header.high_seqno)
            )
        ),
        said=_WRONG,
        plan=_HALVES,
    ),
    broken(
        "lose an item",
        instead(intake, "apply_all", _lose_every_seventh),
        said=_WRONG,
        plan=Plan("chain", NO_FAULTS, {}, writer_s=0.01),
    ),
    broken(
        "apply whatever comes, from a source that begins too early",
        skip(replica_module, "_check_place"),
        skip(ReplicaLink, "_check_marker"),
        swap(producer, "admit", partial(_begin_too_early, admission.admit)),
        said=f"{_WRONG}|{_STUCK}|: $",  # or an assertion of the engine
        plan=Plan("chain", Faults(cut_s=0.2), {}, writer_s=0.01),
    ),
    broken(
        "count revisions anew at the replica",
        instead(VBucket, "adopt_all", _count_revisions_anew),
        said="names two histories",
    ),
    broken(
        "lose how a document went",
        instead(receiver, "deletion_of", _call_it_deleted),
        said="a has|b has|c has",
        seed=2,
    ),
    broken(
        "do not learn from markers what was dropped",
        *_both_appliers(
            lambda whole, vbucket, records, cas, snapshot, *_: whole(
                vbucket, records, cas, snapshot
            )
        ),
        said=_WRONG,
        plan=Plan("pair", Faults(cut_s=0.2), {"compact": 5, "failover": 1}, operator_s=0.1),
        seed=1,
    ),
    broken(
        "drop at a replica what its source has not dropped",
        swap(PurgeLimits, "_not_beyond_source", lambda limits, vbucket, limit: limit),
        said="is purged further than any active",
        plan=Plan(
            "pair",
            Faults(cut_s=0.2),
            {"compact": 9, "failover": 2, "takeover": 2},
            operator_s=0.1,
            keys=4,
        ),
        seed=9,
    ),
    broken(
        "count on from the highest CAS that came, as if nothing could have been lost",
        skip(MemoryAccount, "tell_time"),
        swap(bucket_module, "step", lambda chance: 0),
        swap(
            Bucket,
            "leave_lost_cas_behind",
            lambda bucket, vbucket: vbucket.know_cas(vbucket.max_cas),
        ),
        said="^seed .*CAS .* names",
    ),
    broken(
        "do not learn of the revisions of deletions that the source has dropped",
        skip(intake, "outrank"),
        said="the revision falls from|new documents begin above",
        plan=Plan(
            "pair",
            Faults(cut_s=0.05),
            {"compact": 6, "takeover": 3, "failover": 3},
            operator_s=0.15,
            keys=6,
            vbuckets=1,
            writer_s=0.05,
            steps=12_000,
        ),
    ),
    broken(
        "keep the followers of a replica whose history has another name",
        instead(intake, "take_history", _take_the_log_in_silence),
        said=f"{_WRONG}|of the term",
        plan=_CHAIN,
    ),
    broken(
        "do not take the source's history over",
        skip(intake, "take_history"),
        said=f"{_WRONG}|nobody|{_STUCK}",
    ),
    # Rolling back.
    broken(
        "fetch all lost keys but one",
        instead(undo, "lost_keys", _all_but_one),
        said=_WRONG,
        plan=_FAILOVERS,
        seed=1,
    ),
    broken(
        "leave out what the active has below the seqno",
        _rewound(lambda rewind: rewind._replace(versions=[])),
        said=_WRONG,
        plan=_FAILOVERS,
        seed=3,
    ),
    broken(
        "forget that keys are missing which come later",
        _rewound(lambda rewind: rewind._replace(later_seqno=0)),
        said=_WRONG,
        plan=_FAILOVERS,
    ),
    broken(
        "bring back older versions, but forget what lies between",
        _rewound(_lower),
        said=_WRONG,
        plan=_FAILOVERS,
        seed=22,
    ),
    broken(
        "roll back in memory only",
        instead(Flusher, "_add", _leave_the_disk),
        said=f"{_WRONG}|is stored with items|is committed after",
        plan=_FAILOVERS,
    ),
    # Failing over, handing over.
    broken(
        "call the half of a snapshot a state at a promotion",
        swap(bucket_module, "last_complete_seqno", lambda high, snapshot: high),
        said="a failover made|unclean restart",
        plan=_HALVES,
    ),
    broken(
        "promote without a branch",
        swap(Bucket, "_branch", lambda bucket, vbucket: setattr(vbucket, "receiving", None)),
        said="was handed over at|is active at|unclean restart",
        plan=_FAILOVERS,
    ),
    broken(
        "answer a failover before it is on disk",
        instead(Replication, "_save", _before_it_is_on_disk),
        said="failed over, but",
        plan=_FAILOVERS,
    ),
    broken(
        "answer a takeover before it is on disk",
        swap(Receiver, "_when_on_disk", lambda each, stream, then: then()),
        swap(Replication, "_once_on_disk", lambda each, then: then()),
        said="was taken over, but|handed over from",
        plan=_HAND_OVERS,
    ),
    broken(
        "do not stop the source before the last items go out",
        swap(producer.Producer, "_die", lambda each, vbucket, on_disk: on_disk(True)),
        said="was handed over at|is active at",
        plan=_HAND_OVERS,
    ),
    broken(
        "make a new history at a hand-over",
        instead(
            Bucket,
            "set_state",
            lambda whole, bucket, number, state, **_: whole(bucket, number, state),
        ),
        said="with another history",
        plan=_HAND_OVERS,
    ),
    # Following.
    broken(
        "forget at a restart whom to follow",
        skip(Replication, "resume"),
        said=_STUCK,
        plan=Plan("chain", Faults(crash_s=1.0), {}, orderly=False),
    ),
    broken(
        "be content with one connection",
        instead(Source, "_dial_now", _dial_once),
        said=_STUCK,
        seed=1,
    ),
    broken(
        "do not tell those who follow a replica that it takes something back",
        instead(VBucket, "interrupt", _unless_rolled_back),
        said=f"{_WRONG}|{_STUCK}",
        plan=_CHAIN,
        seed=5,
    ),
    # Programs.
    broken(
        "forget keys that may have to be undone",
        instead(PositionWriter, "keys_above", _every_third_key),
        said=_PROGRAM_WRONG,
        plan=_PROGRAMS,
        seed=5,
    ),
    broken(
        "undo all keys but one",
        instead(PositionWriter, "keys_above", lambda whole, *given: whole(*given)[:-1]),
        said=_PROGRAM_WRONG,
        # Few of the keys that are undone are written again soon.
        plan=replace(_PROGRAMS, operating={"failover": 3}, operator_s=0.3, keys=60),
        seed=32,
    ),
    broken(
        "undo keys from below the seqno, too",
        instead(
            PositionWriter,
            "keys_above",
            lambda whole, writer, vbucket, seqno: whole(writer, vbucket, 0),
        ),
        said="which never came",
        plan=_PROGRAMS,
    ),
    broken(
        "hand changes over before the ring is written",
        swap(PositionWriter, "write", lambda *_: iter(())),
        said="is not in the ring",
        plan=_PROGRAMS,
    ),
    broken(
        "begin from zero without a word to the program",
        swap(Follower, "_start_over", _start_over_in_silence),
        said=_PROGRAM_WRONG,
        # With a log of one entry nobody knows a common history, and programs begin again often.
        plan=replace(
            _PROGRAMS, operating={"failover": 2, "twice": 1}, keys=60, max_failover_entries=1
        ),
    ),
    broken(
        "write histories down in the wrong order",
        _saved(lambda saved: saved._replace(log=saved.log[::-1])),
        said="has a log that nobody had",
        plan=_PROGRAMS,
    ),
)


@cases(_BREAKS)
def test_a_broken_rule_of_replicas_is_noticed(case: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    notice(case, monkeypatch, REPLICAS.random, _SEEDS)


# --- who is followed ------------------------------------------------------------------------------


def _longest(vbucket: int, claims: Sequence[Claim], known_term: int = 0) -> Choice:
    ranked = sorted(claims, key=lambda claim: len(claim.log))
    if len(claims) > 1 and not ranked[0].log:
        return Choice(undecided=tuple(claim.place for claim in claims))
    return Choice(ranked[-1].place) if claims else Choice(claimed=False)


#: Else the node would refuse, and no harm come of it.
_SAY_NO_TERM = instead(VBucketPlace, "asked", lambda whole, place: whole(place)._replace(term=0))


@cases(
    (
        broken(
            "follow the longest log: crashes make it longer, as failovers do",
            _SAY_NO_TERM,
            swap(directory, "chosen", _longest),
            said="deposed|never comes? to rest",
        ),
        broken(
            "follow whoever answers first",
            swap(Directory, "settled", True),
            swap(ClientNodes, "asked_since", lambda *_: True),
            said="deposed|never comes? to rest",
            seed=2,
        ),
        broken(
            "write no term down; then a deposed node that is alone looks right",
            _SAY_NO_TERM,
            _saved(lambda saved: saved._replace(term=0)),
            said="deposed|never comes? to rest",
        ),
    )
)
def test_a_program_that_follows_a_deposed_active_is_noticed(
    case: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_tells(monkeypatch)

    def run(seed: int, _: None) -> None:
        deposed_active(ReplicaDesk("pair", seed=seed), AT_ENDS, may_learn=True)

    notice(case, monkeypatch, run, 10)
