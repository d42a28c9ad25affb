"""Registered clients against a real node: whatever happens, none of them misses a deletion.

Three clients follow one vBucket over the wire. They crash in the middle of snapshots and fall back
to what they had saved, are silent until their rows expire, come back, and start over when they are
told to. Meanwhile documents come and go, deletions are purged, and the history branches. Who builds
from zero is never thrown back while its row lives, and a document that is made again outranks every
deletion of it, purged or not.

Source: `reference/systems.md` a.7 and h; rows X05 and X16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import integers, sampled_from

from tests.upr.peer import (
    DELETION,
    MARKER,
    MUTATION,
    OK,
    ROLLBACK,
    STREAM_END,
    STREAM_REQUEST,
    Frame,
    Peer,
    stream_request,
    upr_rig,
)
from tests.upr.test_watermarks_on_the_wire import HWT_REPORT, purge, report
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks import rows, table
from uprmc.model import VBucketState
from uprmc.upr.stream import Stream

KEYS = [b"k%d" % number for number in range(5)]
NAMES = [b"a", b"b", b"c"]
LIFETIME_S = 100

#: So little that a snapshot takes several turns.
FEW_BYTES = 150


@dataclass
class Copy:
    """What a client has: documents, and its position."""

    documents: dict[bytes, bytes] = field(default_factory=dict)
    seqno: int = 0
    complete: int = 0
    snapshot: tuple[int, int] = (0, 0)
    uuid: int = 0

    def saved(self) -> Copy:
        return replace(self, documents=dict(self.documents))


class Client:
    """One registered client; `disk` is what survives a crash."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.disk, self.memory = Copy(), Copy()
        self.peer: Peer | None = None
        self.ended = False
        #: Until when its row lives, and up to where the build that it is in needs no deletion.
        self.lives_until = 0.0
        self.floor: tuple[int, int] | None = None

    def connect(self, rig: Any) -> None:
        self.memory, self.ended = self.disk.saved(), False
        self.peer = peer = Peer.open(rig, self.name)
        peer.controls(uprmc_hwt=b"true")
        spared = self._is_spared(rig)
        if not self.report():
            self._begin_again(peer)
        if self._ask(peer) == ROLLBACK:
            assert not spared, "who builds from zero is thrown back"
            self._begin_again(peer)
            assert self._ask(peer) == OK, "who begins at zero is refused"

    def _is_spared(self, rig: Any) -> bool:
        """Whether it is in the middle of a build, in the present history, and its row lives."""
        uuid = rig.bucket.vbuckets[0].failover_log[0].uuid
        building = self.floor is not None and self.floor[0] == uuid == self.memory.uuid
        return building and not self.disk.complete and rig.clock.now() <= self.lives_until

    def report(self) -> bool:
        """Tell what is on disk; say whether that may go on."""
        peer = self.peer
        assert peer is not None
        return self._reported(peer, self.disk.complete).status == OK

    def _begin_again(self, peer: Peer) -> None:
        self.disk, self.memory = Copy(), Copy()
        assert self._reported(peer, 0).status == OK

    def _reported(self, peer: Peer, watermark: int) -> Frame:
        sent_at = int(peer.rig.clock.now())
        peer.send(report(watermark, self.name, lifetime=LIFETIME_S))
        peer.rig.flush()
        for _ in range(100):
            frames = peer.turn(FEW_BYTES)
            self._take(frames)
            answers = [each for each in frames if each.opcode == HWT_REPORT]
            if answers:
                self.lives_until = sent_at + LIFETIME_S if answers[0].status == OK else 0
                if watermark or answers[0].status != OK:
                    self.floor = None
                return answers[0]
        raise AssertionError("a report is not answered")

    def _ask(self, peer: Peer) -> int:
        here = self.memory
        inside = here.seqno < here.snapshot[1]
        snapshot = here.snapshot if inside else (here.seqno, here.seqno)
        peer.send(stream_request(0, here.seqno, uuid=here.uuid, snapshot=snapshot))
        frames = peer.turn(FEW_BYTES)
        answer = next(each for each in frames if each.opcode == STREAM_REQUEST)
        if answer.status == OK:
            here.uuid = answer.log[0][0]
        self._take(frames)
        return answer.status

    def pull(self, turns: int) -> None:
        assert self.peer is not None
        for _ in range(turns):
            self._take(self.peer.turn(FEW_BYTES))
        if self.ended:
            self.crash()

    def _take(self, frames: list[Frame]) -> None:
        here = self.memory
        for each in frames:
            if each.opcode == MARKER:
                inside = here.seqno < here.snapshot[1]
                here.snapshot = (here.snapshot[0] if inside else here.seqno, each.end)
                if not here.seqno:
                    self.floor = here.uuid, each.end
            elif each.opcode == MUTATION:
                here.documents[each.key] = each.value
                here.seqno = each.seqno
            elif each.opcode == DELETION:
                here.documents.pop(each.key, None)
                here.seqno = each.seqno
            elif each.opcode == STREAM_END:
                self.ended = True
            if here.seqno == here.snapshot[1]:
                here.complete = here.seqno

    def save(self) -> None:
        self.disk = self.memory.saved()

    def crash(self) -> None:
        if self.peer is not None:
            self.peer.lose()
            self.peer = None
        self.memory = self.disk.saved()


class Machine(RuleBasedStateMachine):
    """See the module docstring."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = upr_rig(engine__vbuckets=1)
        self.clients = [Client(name) for name in NAMES]
        self.written = 0
        self.revs: dict[bytes, int] = {}

    @property
    def vbucket(self) -> Any:
        return self.rig.bucket.vbuckets[0]

    @rule(key=sampled_from(KEYS), many=integers(1, 3))
    def write(self, key: bytes, many: int) -> None:
        for _ in range(many):
            self.written += 1
            self.vbucket.store(key, b"%04d" % self.written, 0, 0)
            rev, before = self.vbucket.find(key).rev, self.revs.get(key, 0)
            assert rev > before, f"revision {rev} of {key!r} comes after {before}"
            self.revs[key] = rev

    @rule(key=sampled_from(KEYS))
    def delete(self, key: bytes) -> None:
        if self.vbucket.find(key) is not None:
            self.vbucket.delete(key)
            self.revs[key] = self.revs.get(key, 0) + 1

    @rule()
    def purge(self) -> None:
        before = self.vbucket.purge_seqno
        assert before <= purge(self.rig)

    @rule(client=sampled_from(range(3)), turns=integers(1, 3))
    def follow(self, client: int, turns: int) -> None:
        each = self.clients[client]
        if each.peer is None:
            each.connect(self.rig)
        else:
            each.pull(turns)

    @rule(client=sampled_from(range(3)), tells=sampled_from([True, False]))
    def save(self, client: int, tells: bool) -> None:
        each = self.clients[client]
        if each.peer is not None:
            each.save()
            if tells and not each.report():
                each.disk = Copy()
                each.crash()

    @rule(client=sampled_from(range(3)))
    def crash(self, client: int) -> None:
        self.clients[client].crash()

    @rule(seconds=sampled_from([1, LIFETIME_S // 2, LIFETIME_S + 1]))
    def let_time_pass(self, seconds: int) -> None:
        self.rig.clock.time += seconds

    @rule(key=sampled_from(KEYS), seconds=sampled_from([1, LIFETIME_S + 1]))
    def delete_and_purge(self, key: bytes, seconds: int) -> None:
        self.delete(key)
        self.write(KEYS[-1], 1)
        self.let_time_pass(seconds)
        self.purge()

    @rule(client=sampled_from(range(3)))
    def tear(self, client: int) -> None:
        """Break off in the middle of a snapshot, with all of it saved."""
        each = self.clients[client]
        if each.peer is not None:
            each.save()
            each.crash()
            each.connect(self.rig)

    @rule()
    def branch(self) -> None:
        for state in (VBucketState.REPLICA, VBucketState.ACTIVE):
            self.rig.bucket.set_state(0, state)

    @invariant()
    def no_row_is_below_the_purge_seqno(self) -> None:
        for row in self.rig.bucket.watermarks.rows(self.vbucket):
            never_streamed = not row.watermark and row.floor is None
            assert never_streamed or row.effective >= self.vbucket.purge_seqno, row

    @invariant()
    def only_a_live_row_limits(self) -> None:
        limit = self.rig.bucket.purge_limit(self.vbucket)
        live = {
            row.id
            for row in self.rig.bucket.watermarks.rows(self.vbucket)
            if self.rig.clock.now() <= row.reported_at + LIFETIME_S
        }
        assert limit.limited_by in {*live, "disk", None}

    def teardown(self) -> None:
        documents = {key: item.value for key in KEYS if (item := self.vbucket.find(key))}
        for each in self.clients:
            for _ in range(200):
                if each.peer is None:
                    each.connect(self.rig)
                if each.memory.seqno == self.vbucket.high_seqno:
                    break
                each.pull(1)
            assert each.memory.seqno == self.vbucket.high_seqno, "a client never gets there"
            assert each.memory.documents == documents, each.name


Machine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
test_no_registered_client_misses_a_deletion = pytest.mark.acceptance("X05", "X16")(Machine.TestCase)


# --- faults that it notices -----------------------------------------------------------------------


@contextmanager
def replaced(owner: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    whole = getattr(owner, name)
    setattr(owner, name, made(whole))
    try:
        yield
    finally:
        setattr(owner, name, whole)


def without_the_slowest(whole: Any) -> Any:
    def limit_of(judged: Any, held: Any, durable: int) -> Any:
        rest = sorted(judged, key=lambda row: row.effective)[1:]
        return whole(rest, held, durable)

    return limit_of


def without_builders(whole: Any) -> Any:
    return lambda judged, held, durable: whole(
        [row for row in judged if row.floor is None], held, durable
    )


def with_a_raised_floor(whole: Any) -> Any:
    def reported(row: Any, asked: Any, held: Any, *more: Any) -> Any:
        made = whole(row, asked, held, *more)
        if asked.watermark == 0:
            return made._replace(floor=held.high_seqno)
        return made

    return reported


FAULTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "the limit ignores a row": (table, "limit_of", without_the_slowest),
    "the limit ignores builders": (table, "limit_of", without_builders),
    "a repeated registration raises the floor": (table, "_reported", with_a_raised_floor),
    "the floor is dropped": (
        table.WatermarkTable,
        "begin_build",
        lambda _: lambda *arguments: None,
    ),
    "the revision floor is lost": (
        VBucket,
        "_note_deletion",
        lambda _: lambda history, rev, old: setattr(history, "max_deleted_rev", 1),
    ),
    "an expired row still limits": (rows.Row, "is_expired", lambda _: lambda self, now: False),
    "the check is not repeated": (
        Stream,
        "_lacks_deletions",
        lambda whole: lambda *given: bool(whole(*given) and False),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_machine_notices(fault: str) -> None:
    owner, name, made = FAULTS[fault]
    seeds = settings(
        max_examples=500,
        stateful_step_count=60,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=[Phase.generate],
    )
    with replaced(owner, name, made), pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=seeds)
