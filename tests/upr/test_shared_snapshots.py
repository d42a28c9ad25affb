"""After `uprmc_snapshots` one frame announces the snapshots of all streams that keep up."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.kv.harness import Rig
from tests.upr.peer import (
    CONTROL,
    DELETION,
    LATEST,
    MARKER,
    MEMORY,
    MUTATION,
    OK,
    SNAPSHOT_END,
    STREAM_END,
    Frame,
    Peer,
    ack,
    check_stream,
    control,
    frame,
    items,
    kinds,
    only,
    seqnos,
    split,
    stream_request,
    upr_rig,
    write,
)

SNAPSHOTS, MORE = 0xDF, 0x01


class Row(NamedTuple):
    opaque: int
    kind: int
    start: int
    end: int
    purge: int


def rows_of(shared: Frame) -> list[Row]:
    (_, count) = struct.unpack(">II", shared.extras)
    return [Row(*row) for row in struct.iter_unpack(">IIQQQ", shared.value[: 32 * count])]


def items_in(shared: Frame) -> list[Frame]:
    found, rest = split(shared.value[32 * len(rows_of(shared)) :])
    assert not rest
    return found


def goes_on(shared: Frame) -> bool:
    return bool(struct.unpack(">II", shared.extras)[0] & MORE)


def following(rig: Rig, *vbuckets: int, gentle: bool = False, **options: bytes) -> Peer:
    """A consumer of empty vBuckets that asked for shared snapshots; opaques are 100 and more."""
    peer = Peer.open(rig)
    peer.controls(uprmc_snapshots=b"true", **options)
    for vbucket in vbuckets:
        peer.stream(vbucket, opaque=100 + vbucket)
    if not gentle:
        peer.session._gentle_left = 0  # type: ignore[attr-defined]
    return peer


def write_at_once(rig: Rig, keys: dict[int, list[bytes]], value: bytes = b"value") -> None:
    for vbucket, names in keys.items():
        write(rig, vbucket, *names, value=value)


def test_one_frame_has_what_is_new_in_all_vbuckets() -> None:
    rig = upr_rig()
    peer = following(rig, 0, 1, 2)
    write_at_once(rig, {2: [b"a"], 0: [b"b", b"c"], 1: [b"d"]})
    (shared,) = peer.drain()
    assert (shared.opcode, shared.vbucket, shared.opaque, shared.key) == (SNAPSHOTS, 0, 0, b"")
    assert not goes_on(shared)
    assert [(row.opaque, row.start, row.end) for row in rows_of(shared)] == [
        (102, 0, 1),
        (100, 0, 2),
        (101, 0, 1),
    ]
    assert all(row.kind & MEMORY and not row.purge for row in rows_of(shared))
    found = items_in(shared)
    assert [(each.opcode, each.vbucket, each.opaque, each.key) for each in found] == [
        (MUTATION, 2, 102, b"a"),
        (MUTATION, 0, 100, b"b"),
        (MUTATION, 0, 100, b"c"),
        (MUTATION, 1, 101, b"d"),
    ]
    write_at_once(rig, {0: [b"e"]})
    (shared,) = peer.drain()
    assert [(row.start, row.end) for row in rows_of(shared)] == [(3, 3)]


def test_who_did_not_ask_gets_a_marker_for_each() -> None:
    rig = upr_rig()
    peer = Peer.open(rig)
    peer.stream(0)
    peer.stream(1)
    write_at_once(rig, {0: [b"a"], 1: [b"b"]})
    frames = peer.drain()
    assert kinds(frames) == [MARKER, MUTATION, MARKER, MUTATION]
    for vbucket in (0, 1):
        check_stream([each for each in frames if each.vbucket == vbucket])


def test_deletions_are_among_the_items() -> None:
    rig = upr_rig()
    peer = following(rig, 0)
    write(rig, 0, b"a")
    peer.drain()
    rig.bucket.vbuckets[0].delete(b"a", 0)
    (shared,) = peer.drain()
    (deletion,) = items_in(shared)
    assert (deletion.opcode, deletion.key, deletion.seqno) == (DELETION, b"a", 2)


def test_what_does_not_fit_into_a_pull_comes_with_the_next_and_that_is_said() -> None:
    rig = upr_rig()
    peer = following(rig, *range(4))
    write_at_once(rig, {vbucket: [b"k"] for vbucket in range(4)}, value=bytes(500))
    frames = peer.drain(budget=1_500)
    assert kinds(frames) == [SNAPSHOTS, SNAPSHOTS]
    assert [goes_on(each) for each in frames] == [True, False]
    assert all(each.size <= 1_500 for each in frames)
    found = [item for each in frames for item in items_in(each)]
    assert [item.vbucket for item in found] == [0, 1, 2, 3]


def test_it_does_not_say_that_more_comes_when_that_depends_on_the_peer() -> None:
    rig = upr_rig()
    peer = following(rig, *range(4), connection_buffer_size=b"1500")
    write_at_once(rig, {vbucket: [b"k"] for vbucket in range(4)}, value=bytes(500))
    shared, *beyond = peer.drain()
    assert not goes_on(shared)
    assert [item.vbucket for item in items_in(shared)] == [0, 1]
    assert seqnos(items(beyond, 2)) == [1]
    (shared,) = peer.say(ack(5_000))
    assert [item.vbucket for item in items_in(shared)] == [3]


def test_a_document_that_never_fits_comes_with_a_marker_of_its_own() -> None:
    rig = upr_rig()
    peer = following(rig, 0, 1)
    write(rig, 0, b"small")
    write(rig, 1, b"large", value=bytes(100_000))
    frames = peer.drain()
    assert kinds(frames) == [SNAPSHOTS, MARKER, MUTATION]
    assert (frames[1].vbucket, frames[2].key) == (1, b"large")


def test_the_end_of_a_stream_follows_its_items() -> None:
    rig = upr_rig()
    peer = following(rig)
    write_at_once(rig, {0: [b"a"], 1: [b"b"]})
    asked = [stream_request(vbucket, flags=LATEST, opaque=100 + vbucket) for vbucket in (0, 1)]
    frames = peer.say(*asked)
    assert kinds(frames)[2:] == [SNAPSHOTS, STREAM_END, STREAM_END]
    assert [item.key for item in items_in(frames[2])] == [b"a", b"b"]


def test_who_wants_to_know_of_each_snapshot_gets_markers() -> None:
    rig = upr_rig()
    peer = following(rig, 0, uprmc_snapshot_end=b"true")
    write(rig, 0, b"a")
    assert kinds(peer.drain()) == [MARKER, MUTATION, SNAPSHOT_END]
    peer = following(rig, uprmc_rounds=b"true")
    assert MARKER in kinds(peer.stream(0))


def test_facts_come_before_the_snapshots_that_they_are_of() -> None:
    rig = upr_rig()
    peer = following(rig, 0, 1, uprmc_vbucket_facts=b"true")
    write_at_once(rig, {0: [b"a"], 1: [b"b"]})
    frames = peer.drain()
    assert kinds(frames) == [0xD6, 0xD6, SNAPSHOTS]
    assert [each.vbucket for each in frames[:2]] == [0, 1]
    write_at_once(rig, {0: [b"c"], 1: [b"d"]})
    assert kinds(peer.drain()) == [SNAPSHOTS]


def test_what_is_on_disk_has_a_marker_of_its_own() -> None:
    rig = upr_rig()
    write(rig, 0, b"a")
    rig.flush()
    peer = following(rig)
    assert kinds(peer.stream(0)) == [MARKER, MUTATION]
    write(rig, 0, b"b")
    assert kinds(peer.drain()) == [SNAPSHOTS]
    assert seqnos(items(peer.received)) == [1]


def test_the_frame_is_no_request() -> None:
    rig = upr_rig()
    peer = following(rig)
    answer = peer.ask(frame(SNAPSHOTS, extras=bytes(8), value=bytes(32)))
    assert answer.status != OK
    assert peer.ask(control(b"uprmc_snapshots", b"maybe")).status != OK
    assert not only(peer.received, SNAPSHOTS)
    assert peer.received[-1].opcode == CONTROL
