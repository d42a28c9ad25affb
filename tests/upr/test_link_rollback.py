"""A replica that holds what its new active has not: it undoes just that, document by document.

Source: UPR reference 3.4; design, decision 10; row D13.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contents import table_of
from tests.upr.link_rig import GET_VERSION, Pair, Script, failover_log, replica_rig
from tests.upr.peer import (
    ACTIVE,
    FAILOVER_LOG,
    LATER,
    MAX,
    NOT_FOUND,
    REPLICA,
    ROLLBACK,
    STREAM_REQUEST,
    UNKNOWN,
    UNSUPPORTED,
    Frame,
    Rig,
    marker,
    mutation,
    only,
    untouched,
    upr_rig,
    write,
)
from uprmc.engine.replica import apply
from uprmc.errors import StoreError
from uprmc.model import Item, SnapshotRange

A, B = (0xA, 0), (0xB, 2)


def everything(rig: Rig, number: int = 0) -> list[tuple[object, ...]]:
    """All versions of a vBucket as they are on disk, tombstones too."""
    rig.flush()
    view = rig.store.view()
    try:
        return [item._fields() for item in view.changes_after(number, 0)]
    finally:
        view.close()


def same(one: Rig, other: Rig, number: int = 0) -> None:
    """Check that two nodes hold the same, by the same history."""
    assert everything(one, number) == everything(other, number)
    first, second = (rig.bucket.vbuckets[number] for rig in (one, other))
    assert first.failover_log == second.failover_log
    assert first.high_seqno == second.high_seqno
    assert first.receiving is None
    assert second.receiving is None
    one.check()
    other.check()


def followed(source: Rig, target: Rig, **more: Any) -> Pair:
    """A pair whose target follows all vBuckets of the source, level with it."""
    pair = Pair(source, target, **more)
    pair.run()
    pair.link.follow(list(target.bucket.vbuckets))
    pair.run()
    return pair


# --- two nodes ------------------------------------------------------------------------------------


@pytest.mark.acceptance("D13")
def test_what_the_promoted_node_never_saw_is_undone_and_the_rest_stays() -> None:
    active, ahead, behind = upr_rig(), replica_rig(), replica_rig()
    first, second = followed(active, ahead), followed(active, behind)
    write(active, 0, *(b"old%d" % n for n in range(50)), b"rewritten", b"removed")
    first.run()
    second.run()
    second.lose()
    active.bucket.vbuckets[0].delete(b"removed")
    write(active, 0, b"rewritten", b"fresh", value=b"lost")
    first.run()
    first.lose()
    behind.bucket.set_state(0, ACTIVE)
    write(behind, 0, b"promoted")
    pair = followed(behind, ahead)
    same(behind, ahead)
    found = {item[0]: item[1] for item in everything(ahead)}
    assert found[b"rewritten"] == b"value"
    assert found[b"removed"] == b"value"
    assert b"fresh" not in found
    assert pair.link.rollbacks == 1
    assert pair.link.items == 1, "only what was written since comes again"


def test_values_that_are_only_on_disk_come_back_too() -> None:
    active, ahead, behind = upr_rig(), replica_rig(), replica_rig()
    first, second = followed(active, ahead), followed(active, behind)
    write(active, 0, b"k", value=b"x" * 5_000)
    first.run()
    second.run()
    second.lose()
    write(active, 0, b"k", value=b"lost")
    first.run()
    first.lose()
    behind.bucket.set_state(0, ACTIVE)
    part = behind.bucket.vbuckets[0]
    part.eject(b"k")
    followed(behind, ahead)
    same(behind, ahead)


def test_more_documents_than_the_limit_make_it_start_over() -> None:
    active, behind = upr_rig(), replica_rig()
    ahead = replica_rig(upr__rollback_keys=3)
    first, second = followed(active, ahead), followed(active, behind)
    write(active, 0, b"kept")
    first.run()
    second.run()
    second.lose()
    write(active, 0, *(b"%d" % n for n in range(4)))
    first.run()
    first.lose()
    behind.bucket.set_state(0, ACTIVE)
    pair = followed(behind, ahead)
    same(behind, ahead)
    assert pair.link.items == 1, "all of it came again"


STEPS = st.lists(st.tuples(st.sampled_from("sssddx"), st.integers(0, 9)), max_size=14)


def change(rig: Rig, steps: list[tuple[str, int]], value: bytes) -> None:
    """Store and delete documents, and persist now and then."""
    part = rig.bucket.vbuckets[0]
    for kind, number in steps:
        key = b"k%d" % number
        if kind == "x":
            rig.flush()
        elif kind == "d" and part.find(key):
            part.delete(key)
        else:
            part.store(key, value, 0, 0)


@settings(max_examples=120, deadline=None)
@given(before=STEPS, lost=STEPS, after=STEPS, mid=STEPS, cut=st.integers(0, 3), flush=st.booleans())
def test_whatever_was_lost_both_are_the_same_in_the_end(
    before: Any, lost: Any, after: Any, mid: Any, cut: int, flush: bool
) -> None:
    active, ahead, behind = upr_rig(), replica_rig(), replica_rig()
    first, second = followed(active, ahead), followed(active, behind)
    change(active, before, b"before")
    first.run()
    second.run()
    second.lose()
    first.auto_flush = flush
    change(active, lost, b"lost")
    first.cut = 40
    for _ in range(cut):
        first.turn()
    first.lose()
    behind.bucket.set_state(0, ACTIVE)
    change(behind, after, b"after")
    pair = Pair(behind, ahead, cut=50)
    pair.run()
    pair.link.follow([0])
    for _ in range(cut + 1):
        pair.turn()
    change(behind, mid, b"mid")
    pair.run()
    same(behind, ahead)


# --- a source that says what a test wants ---------------------------------------------------------


def sent_back(
    target: Rig, seqno: int = 2, *, persisted: bool = True, another: bool = False
) -> tuple[Script, list[Frame]]:
    """A link whose stream holds seqnos 1 to 4 and is sent back; and what it says to that."""
    script = Script(target)
    script.link.is_another = another
    opaque = script.follow(log=failover_log(A))
    for n in range(1, 5):
        script.say(marker(0, opaque, n, n), mutation(0, opaque, n, b"k%d" % n, b"v%d" % n))
    if persisted:
        target.flush()
    script.link.leave([0])
    script.sent()
    script.link.follow([0])
    (asked,) = script.sent()
    assert struct.unpack_from(">Q", asked.extras, 8) == (4,)
    script.owner.take()
    return script, script.answer(asked, ROLLBACK, value=struct.pack(">Q", seqno))


def version(seqno: int, life: int = 0) -> bytes:
    return struct.pack(">QQIIB", seqno, 1, 0, 0, life)


def keys_of(target: Rig) -> list[bytes]:
    return sorted(key for key, item in table_of(target.bucket.vbuckets[0]).items() if not item.life)


@pytest.fixture
def target() -> Rig:
    return replica_rig()


def undone(script: Script, frames: list[Frame], *, later: int = 0) -> list[Frame]:
    """Play a source that has neither of the lost documents (or one, at `later`), to the end."""
    (log,) = only(frames, FAILOVER_LOG)
    versions = only(script.answer(log, value=failover_log(B, A)), GET_VERSION)
    assert [each.key for each in versions] == [b"k3", b"k4"]
    assert {each.extras for each in versions} == {struct.pack(">Q", 2)}
    script.answer(versions[0], NOT_FOUND)
    if later:
        (log,) = script.answer(versions[1], extras=version(later))
    else:
        (log,) = script.answer(versions[1], NOT_FOUND)
    assert script.answer(log, value=failover_log(B, A)) == []
    script.target.flush()
    return script.sent()


@pytest.mark.parametrize("persisted", [True, False])
def test_the_stream_is_asked_for_again_when_all_is_on_disk(target: Rig, persisted: bool) -> None:
    script, frames = sent_back(target, persisted=persisted)
    (asked,) = undone(script, frames)
    assert struct.unpack(">IIQQQQQ", asked.extras)[2:] == (2, MAX, 0xB, 2, 2)
    assert keys_of(target) == [b"k1", b"k2"]
    assert [item[0] for item in everything(target)] == [b"k1", b"k2"]
    script.answer(asked, value=failover_log(B, A))
    assert script.owner.take() == [("began", 0)]


def test_a_failed_commit_is_tried_again_before_anything_is_asked(target: Rig) -> None:
    script, frames = sent_back(target)
    (log,) = only(frames, FAILOVER_LOG)
    versions = only(script.answer(log, value=failover_log(B, A)), GET_VERSION)
    script.answer(versions[0], NOT_FOUND)
    (log,) = script.answer(versions[1], NOT_FOUND)
    script.answer(log, value=failover_log(B, A))
    target.fail_flush()
    assert script.sent() == []
    target.flush()
    assert [each.opcode for each in script.sent()] == [STREAM_REQUEST]


def test_what_the_source_has_newer_makes_the_rest_incomplete_until_it_comes(target: Rig) -> None:
    script, frames = sent_back(target)
    (asked,) = undone(script, frames, later=7)
    part = target.bucket.vbuckets[0]
    assert struct.unpack(">IIQQQQQ", asked.extras)[2:] == (2, MAX, 0xB, 0, 7)
    assert part.receiving == SnapshotRange(0, 7)
    script.answer(asked, value=failover_log(B, A))
    opaque = asked.opaque
    script.say(marker(0, opaque, 3, 5), mutation(0, opaque, 5, b"k5"))
    assert part.receiving == SnapshotRange(0, 7)
    script.say(marker(0, opaque, 6, 8), mutation(0, opaque, 7, b"k4"), mutation(0, opaque, 8, b"x"))
    assert part.receiving is None


@pytest.mark.parametrize("status", [UNKNOWN, UNSUPPORTED])
def test_a_source_without_versions_makes_it_start_over(target: Rig, status: int) -> None:
    script, frames = sent_back(target)
    (log,) = only(frames, FAILOVER_LOG)
    versions = only(script.answer(log, value=failover_log(B, A)), GET_VERSION)
    (asked,) = only(script.answer(versions[0], status), STREAM_REQUEST)
    assert struct.unpack_from(">Q", asked.extras, 8) == (0,)
    assert keys_of(target) == []
    assert script.answer(versions[1], status) == [], "what still comes changes nothing"
    script.answer(asked, value=failover_log(B, A))
    assert script.owner.take() == [("began", 0)]


def test_sent_back_to_nothing_by_the_same_data_it_starts_over_at_once(target: Rig) -> None:
    """It was emptied on purpose."""
    _, frames = sent_back(target, 0)
    (asked,) = frames
    assert asked.opcode == STREAM_REQUEST
    assert struct.unpack_from(">Q", asked.extras, 8) == (0,)
    assert keys_of(target) == []


@pytest.mark.parametrize("log", [[B, A], [(7, 9)]], ids=["shared", "trimmed"])
def test_sent_back_to_nothing_by_a_source_that_has_not_lost_its_data_it_starts_over(
    target: Rig, log: list[tuple[int, int]]
) -> None:
    script, frames = sent_back(target, 0, another=True)
    (question,) = only(frames, FAILOVER_LOG)
    (asked,) = only(script.answer(question, value=failover_log(*log)), STREAM_REQUEST)
    assert struct.unpack_from(">Q", asked.extras, 8) == (0,)
    assert keys_of(target) == []


def test_a_source_that_seems_to_have_lost_its_data_is_not_followed(target: Rig) -> None:
    events: list[tuple[str, dict[str, object]]] = []
    target.bucket.on_event = lambda name, fields: events.append((name, fields))
    script, frames = sent_back(target, 0, another=True)
    (question,) = only(frames, FAILOVER_LOG)
    assert script.answer(question, value=failover_log((7, 0))) == []
    assert keys_of(target) == [b"k1", b"k2", b"k3", b"k4"]
    ((_, number, why, retry),) = script.owner.take()
    assert (number, retry) == (0, True), "an intermediate replica may only be starting over"
    assert "--demote" in why
    assert [name for name, _ in events] == ["source_lost_history"]
    target.bucket.vbuckets[0].may_start_over = True  # an operator's word
    script.link.follow([0])
    (asked,) = script.sent()
    (again,) = script.answer(asked, ROLLBACK, value=bytes(8))
    assert struct.unpack_from(">Q", again.extras, 8) == (0,)
    assert keys_of(target) == []
    script.answer(again, value=failover_log((7, 0)))
    assert not target.bucket.vbuckets[0].may_start_over, "it was said of what was there"


@pytest.mark.parametrize("seqno", [4, 5, MAX])
def test_sent_back_to_what_is_not_below_the_link_ends(target: Rig, seqno: int) -> None:
    script, frames = sent_back(target, seqno)
    assert frames == []
    assert "sent back to" in script.link.error
    assert keys_of(target) == [b"k1", b"k2", b"k3", b"k4"]


def test_a_history_that_changes_meanwhile_is_judged_again(target: Rig) -> None:
    script, frames = sent_back(target)
    (log,) = only(frames, FAILOVER_LOG)
    versions = only(script.answer(log, value=failover_log(B, A)), GET_VERSION)
    script.answer(versions[0], NOT_FOUND)
    (log,) = script.answer(versions[1], NOT_FOUND)
    (asked,) = script.answer(log, value=failover_log((0xC, 1), A))
    assert asked.opcode == STREAM_REQUEST
    assert struct.unpack_from(">Q", asked.extras, 8) == (4,)
    assert len(keys_of(target)) == 4


def test_a_vbucket_that_somebody_else_fills_meanwhile_is_judged_again(target: Rig) -> None:
    script, frames = sent_back(target)
    (log,) = only(frames, FAILOVER_LOG)
    versions = only(script.answer(log, value=failover_log(B, A)), GET_VERSION)
    script.answer(versions[0], NOT_FOUND)
    (log,) = script.answer(versions[1], NOT_FOUND)
    apply(target.bucket.vbuckets[0], Item(b"k5", b"", 0, 0, 1, 5, 1), SnapshotRange(5, 5))
    (asked,) = script.answer(log, value=failover_log(B, A))
    assert struct.unpack_from(">Q", asked.extras, 8) == (5,)
    assert len(keys_of(target)) == 5


def test_a_history_that_shares_less_than_was_said_is_judged_again(target: Rig) -> None:
    """It failed over once more after it had sent us back: seqno 2 is not shared any more."""
    script, frames = sent_back(target)
    (log,) = only(frames, FAILOVER_LOG)
    (asked,) = script.answer(log, value=failover_log((0xC, 1), A))
    assert asked.opcode == STREAM_REQUEST
    assert len(keys_of(target)) == 4


def test_a_source_that_never_comes_to_a_decision_is_left_after_ten_times(target: Rig) -> None:
    script, frames = sent_back(target)
    for _ in range(9):
        (log,) = only(frames, FAILOVER_LOG)
        (asked,) = script.answer(log, value=failover_log((0xC, 1), A))
        frames = script.answer(asked, ROLLBACK, value=struct.pack(">Q", 2))
    assert script.owner.take() == []
    (log,) = only(frames, FAILOVER_LOG)
    (asked,) = script.answer(log, value=failover_log((0xC, 1), A))
    assert script.answer(asked, ROLLBACK, value=struct.pack(">Q", 2)) == []
    ((event, number, why, retry),) = script.owner.take()
    assert (event, number, retry) == ("ended", 0, True)
    assert "10 times" in why
    assert len(keys_of(target)) == 4


@pytest.mark.parametrize("moment", ["log", "version", "second log"])
def test_a_vbucket_that_somebody_else_changes_is_left_alone(target: Rig, moment: str) -> None:
    script, frames = sent_back(target)
    (asked,) = only(frames, FAILOVER_LOG)
    pending = [asked]
    if moment != "log":
        pending = script.answer(asked, value=failover_log(B, A))
    if moment == "second log":
        script.answer(pending[0], NOT_FOUND)
        pending = script.answer(pending[1], NOT_FOUND)
    target.bucket.set_state(0, ACTIVE)
    log = target.bucket.vbuckets[0].failover_log
    assert [event[:2] for event in script.owner.take()] == [("ended", 0)]
    script.sent()
    for each in pending:
        value = failover_log(B, A) if each.opcode == FAILOVER_LOG else b""
        assert script.answer(each, 0 if value else NOT_FOUND, value=value) == []
    assert len(keys_of(target)) == 4
    assert target.bucket.vbuckets[0].failover_log == log
    assert script.link.undos.asked == 0
    script.link.connection_lost()
    untouched(target)


@pytest.mark.parametrize("moment", ["log", "version"])
def test_a_source_that_cannot_say_now_is_asked_later(target: Rig, moment: str) -> None:
    script, frames = sent_back(target)
    (asked,) = only(frames, FAILOVER_LOG)
    if moment == "version":
        asked = script.answer(asked, value=failover_log(B, A))[0]
    script.answer(asked, LATER)
    ((event, number, why, retry),) = script.owner.take()
    assert (event, number, retry) == ("ended", 0, True)
    assert "Temporary failure" in why
    assert len(keys_of(target)) == 4


def test_a_disk_that_cannot_be_read_is_not_the_end(
    target: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, frames = sent_back(target)
    (asked,) = only(frames, FAILOVER_LOG)

    def broken(*_: object) -> None:
        raise StoreError("unreadable")

    monkeypatch.setattr("uprmc.upr.undo.lost_keys", broken)
    script.answer(asked, value=failover_log(B, A))
    assert [event[::3] for event in script.owner.take()] == [("ended", True)]
    assert not script.link.closing


@pytest.mark.parametrize(
    "extras",
    [b"", bytes(24), version(0), version(2**63), version(1, 9), version(1, 255)],
    ids=["none", "short", "seqno 0", "seqno", "life", "life 255"],
)
def test_a_version_that_is_none_ends_the_link(target: Rig, extras: bytes) -> None:
    script, frames = sent_back(target)
    (log,) = only(frames, FAILOVER_LOG)
    versions = only(script.answer(log, value=failover_log(B, A)), GET_VERSION)
    for each in versions:
        script.answer(each, extras=extras)
    assert script.link.closing
    assert len(keys_of(target)) == 4


def test_two_documents_at_one_place_end_the_link(target: Rig) -> None:
    script, frames = sent_back(target)
    (log,) = only(frames, FAILOVER_LOG)
    versions = only(script.answer(log, value=failover_log(B, A)), GET_VERSION)
    script.answer(versions[0], extras=version(2), value=b"x")
    (log,) = script.answer(versions[1], extras=version(2), value=b"y")
    script.answer(log, value=failover_log(B, A))
    assert script.link.closing
    assert len(keys_of(target)) == 4
    target.check()


def test_values_above_what_memory_allows_make_it_start_over() -> None:
    target = replica_rig(memory__quota=64 << 20)
    script, frames = sent_back(target)
    (log,) = only(frames, FAILOVER_LOG)
    versions = only(script.answer(log, value=failover_log(B, A)), GET_VERSION)
    target.bucket.account.used += 64 << 20
    script.answer(versions[0], extras=version(1), value=bytes(7 << 20))
    assert script.link.undos.held_bytes == 0
    assert script.link.rollbacks == 1
    assert keys_of(target) == []


def test_so_many_documents_are_asked_for_ahead_and_no_more(target: Rig) -> None:
    script = Script(target)
    opaques = {}
    for number in (0, 1):
        opaques[number] = opaque = script.follow(number, log=failover_log(A))
        script.say(marker(number, opaque, 1, 1), mutation(number, opaque, 1, b"first"))
        changes = [mutation(number, opaque, n, b"k%d" % n) for n in range(2, 202)]
        script.say(marker(number, opaque, 2, 201), *changes)
    script.link.leave([0, 1])
    script.sent()
    script.link.follow([0, 1])
    logs = [
        only(script.answer(asked, ROLLBACK, value=struct.pack(">Q", 1)), FAILOVER_LOG)[0]
        for asked in script.sent()
    ]
    waiting = [each for log in logs for each in script.answer(log, value=failover_log((0xB, 1), A))]
    assert len(waiting) == 256
    Random(1).shuffle(waiting)
    answered = 0
    while waiting and waiting[0].opcode == GET_VERSION:
        waiting += script.answer(waiting.pop(0), NOT_FOUND)
        answered += 1
        assert len([each for each in waiting if each.opcode == GET_VERSION]) <= 256
        waiting.sort(key=lambda each: each.opcode != GET_VERSION)
    assert answered == 400
    assert [each.opcode for each in waiting] == [FAILOVER_LOG] * 2
    for each in waiting:
        script.answer(each, value=failover_log((0xB, 1), A))
    target.flush()
    assert len(only(script.sent(), STREAM_REQUEST)) == 2
    assert keys_of(target) == [b"first"]


def test_many_vbuckets_are_taken_back_a_few_at_a_time() -> None:
    target = replica_rig(engine__vbuckets=32)
    script = Script(target)
    for number in range(20):
        opaque = script.follow(number, log=failover_log(A))
        for n in (1, 2):
            script.say(marker(number, opaque, n, n), mutation(number, opaque, n, b"%d" % n))
    script.link.leave(range(20))
    script.sent()
    script.link.follow(range(20))
    waiting = [
        frame
        for asked in script.sent()
        for frame in script.answer(asked, ROLLBACK, value=struct.pack(">Q", 1))
    ]
    assert len(waiting) == 8
    done = 0
    while waiting:
        each = waiting.pop()
        if each.opcode == FAILOVER_LOG:
            waiting += script.answer(each, value=failover_log((0xB, 1), A))
        elif each.opcode == GET_VERSION:
            waiting += script.answer(each, NOT_FOUND)
        else:
            done += 1
        target.flush()
        waiting += script.sent()
    assert done == 20
    assert all(target.bucket.vbuckets[number].high_seqno == 1 for number in range(20))


def test_a_vbucket_is_asked_for_only_when_an_older_rollback_is_on_disk(target: Rig) -> None:
    script, frames = sent_back(target)
    (log,) = only(frames, FAILOVER_LOG)
    versions = only(script.answer(log, value=failover_log(B, A)), GET_VERSION)
    script.answer(versions[0], NOT_FOUND)
    (log,) = script.answer(versions[1], NOT_FOUND)
    script.answer(log, value=failover_log(B, A))
    assert target.bucket.vbuckets[0].rewinding
    script.link.connection_lost()
    again = Script(target)
    again.link.follow([0])
    assert again.sent() == []
    target.flush()
    (asked,) = again.sent()
    assert struct.unpack_from(">Q", asked.extras, 8) == (2,)
    assert target.bucket.vbuckets[0].state == REPLICA
