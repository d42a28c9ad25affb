"""What a node has answered for is on disk in the end, however often it is killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.columnar.test_writing import KEYS, cluster, numbered, writer, written
from tests.columnar.write_peer import DO, LOSE_AFTER, Cluster, troubled
from tests.columnar.write_rows import HandClock, documents, versions
from uprmc.columnar import writing
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.errors import Refused


def crashing(seed: int, crashes: int) -> Any:
    """Return what `Cluster.on_observe` does: lose memory so many times, then write to disk."""
    left = [crashes]

    def observe(peers: Cluster) -> None:
        if left[0] and hash((seed, len(peers.requests))) % 3 == 0:
            left[0] -= 1
            peers.crash()
        else:
            peers.persist()

    return observe


def crashing_once(then: Callable[[Cluster], object] = lambda peers: None) -> Any:
    """Return what `Cluster.on_observe` does: lose memory once, then something; write to disk."""
    first = iter([True])

    def observe(peers: Cluster) -> None:
        if next(first, False):
            peers.crash()
            then(peers)
        peers.persist()

    return observe


def test_without_it_a_killed_node_has_lost_what_it_answered_for() -> None:
    with cluster() as peers:
        written(peers, documents(numbered(20)))
        peers.crash()
        assert peers.documents == {}


def test_finish_returns_when_all_is_on_disk() -> None:
    looks: list[int] = []

    def observe(peers: Cluster) -> None:
        looks.append(1)
        if len(looks) > 30:
            peers.persist()

    with cluster(on_observe=observe) as peers:
        report = written(peers, documents(numbered(20)), durability="persist")
        peers.crash()
        assert len(peers.documents) == 20
    assert report.resent == 0
    assert len(looks) > 30


def test_what_a_killed_node_has_lost_is_sent_again() -> None:
    with cluster(on_observe=crashing_once()) as peers:
        report = written(peers, documents(numbered(50)), durability="persist")
        peers.crash()
        assert peers.documents == {key: (value, 0) for key, value in numbered(50).items()}
    assert (report.applied, report.resent) == (50, 50)


def test_a_history_that_nobody_knows_counts_as_lost() -> None:
    def forget(peers: Cluster) -> None:
        peers.uuids = {number: 77 + number for number in range(peers.vbuckets)}

    with cluster(on_observe=crashing_once(forget)) as peers:
        report = written(peers, documents(numbered(50)), durability="persist")
        assert len(peers.documents) == 50
    assert report.resent == 50


def test_rows_that_lost_to_what_is_not_on_disk_yet_are_sent_again_too() -> None:
    """They may have lost to themselves: to the same row of an earlier attempt at the task."""
    rows = versions([(b"k", b"v", "set", 1, 1)])

    with cluster(on_observe=crashing_once(lambda peers: peers.versions.clear())) as peers:
        written(peers, rows, mode="append-meta")
        report = written(peers, rows, mode="append-meta", durability="persist")
        assert peers.documents == {b"k": (b"v", 0)}
    assert (report.conflicts, report.applied, report.resent) == (1, 0, 1)


def test_a_row_that_was_refused_is_not_sent_again() -> None:
    with cluster(documents={b"a": (b"other", 0)}, on_observe=crashing_once()) as peers:
        peers.persist()
        rows = documents({b"a": b"1", b"b": b"1"})
        options = {"mode": "insert", "on_error": "skip", "durability": "persist"}
        report = written(peers, rows, **options)
        assert peers.documents == {b"a": (b"other", 0), b"b": (b"1", 0)}
        inserts = [frame.key for frame in peers.requests if frame.opcode == Opcode.ADDQ]
        assert inserts == [b"a", b"b", b"b"]
    assert (report.applied, report.errors, report.resent) == (1, 1, 1)


def test_what_was_sent_again_must_get_to_disk_itself() -> None:
    """Its seqnos are others: being as far as before the crash is not enough."""
    looks: list[int] = []

    def observe(peers: Cluster) -> None:
        looks.append(1)
        if len(looks) == 2:
            peers.crash()
        elif len(looks) > 5:
            peers.persist()

    def script(frame: RequestFrame) -> Any:
        if frame.opcode == Opcode.SETQ and frame.value == b"6" and not looks:
            peers.persist()  # the first half
        if frame.opcode == Opcode.SETQ and frame.value == b"6" and looks:
            peers.persist()  # as many seqnos as there were before the crash, and other documents
        return DO

    with cluster(vbuckets=1, on_observe=observe, script=script) as peers:
        rows = {b"k%d" % n: b"%d" % n for n in range(1, 11)}
        report = written(peers, documents(rows), durability="persist")
        peers.crash()
        assert {key: value for key, (value, _) in peers.documents.items()} == rows
    assert report.resent == 10


def test_a_row_that_somebody_took_the_place_of_while_it_was_lost_is_an_error() -> None:
    def replace(peers: Cluster) -> None:
        peers.documents[b"b"] = (b"somebody", 0)

    with cluster(on_observe=crashing_once(replace)) as peers:
        options = {"mode": "insert", "on_error": "skip", "durability": "persist"}
        report = written(peers, documents({b"a": b"1", b"b": b"1"}), **options)
        assert peers.documents == {b"a": (b"1", 0), b"b": (b"somebody", 0)}
    assert (report.applied, report.errors) == (1, 1)
    assert report.balanced


ROWS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=3))), max_size=40)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(0, 10**6), st.integers(0, 4), st.integers(1, 20), st.booleans())
def test_crashes_do_not_change_what_is_there_in_the_end(
    rows: list[tuple[bytes, bytes | None]], seed: int, crashes: int, batch_rows: int, trouble: bool
) -> None:
    expected: dict[bytes, tuple[bytes, int]] = {}
    for key, value in rows:
        expected.pop(key, None)
        if value is not None:
            expected[key] = (value, 0)
    script = troubled(seed, verdicts=(Status.TEMPORARY_FAILURE, LOSE_AFTER))
    with (
        pytest.MonkeyPatch.context() as patch,
        cluster(
            on_observe=crashing(seed, crashes), script=script if trouble else lambda _: DO
        ) as peers,
    ):
        patch.setattr(writing, "GENERATION_BYTES", 700)
        patch.setattr(writing, "HELD_BYTES_MAX", 2000)
        batches = [documents(rows[at : at + batch_rows]) for at in range(0, len(rows), batch_rows)]
        written(peers, *batches, durability="persist", ignore_null="delete", window=3)
        peers.crash()
        assert peers.documents == expected


def test_what_is_held_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "GENERATION_BYTES", 1_000)
    monkeypatch.setattr(writing, "HELD_BYTES_MAX", 5_000)
    looks: list[int] = []

    def observe(peers: Cluster) -> None:
        looks.append(1)
        if len(looks) % 100 == 0:
            peers.persist()

    with cluster(on_observe=observe) as peers, writer(peers, durability="persist") as target:
        for number in range(40):
            target.write(documents({b"key-%d" % number: b"v" * 500}))
            assert target._unpersisted is not None
            assert target._unpersisted.held_bytes <= 5_000 + 1_000
        target.finish()
        assert len(peers.documents) == 40


def test_a_disk_that_does_not_get_on_ends_the_task_after_the_deadline() -> None:
    clock = HandClock()
    with cluster() as peers:
        target = writer(peers, clock, durability="persist", retry_deadline_s=7)
        target.write(documents({b"k": b"v"}))
        with pytest.raises(Refused, match="to disk for 7 s"), target:
            target.finish()
    assert 7 <= clock.at_s - 1000 < 8


def test_a_node_that_warms_up_is_asked_again() -> None:
    refusals = iter([Status.TEMPORARY_FAILURE] * 5)

    def script(frame: RequestFrame) -> Any:
        return next(refusals, DO) if frame.opcode == Opcode.OBSERVE_SEQNO else DO

    with cluster(on_observe=Cluster.persist, script=script) as peers:
        report = written(peers, documents(numbered(5)), durability="persist")
    assert report.applied == 5
