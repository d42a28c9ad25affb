"""Peers of every generation, and the server of July 2014 behind two settings.

Source: UPR reference 0, 2.4, 3.3, 5, 8.
"""

from __future__ import annotations

import pytest

from tests.golden.upr_frames import VECTORS
from tests.upr.peer import (
    ADD_STREAM,
    DISK_ONLY,
    INVALID,
    LATER,
    LATEST,
    MARKER,
    MUTATION,
    NOT_MY_VBUCKET,
    OK,
    RANGE,
    REPLICA,
    ROLLBACK,
    STREAM_END,
    STREAM_REQUEST,
    Frame,
    Peer,
    Rig,
    check_stream,
    fill,
    first_generation_request,
    frame,
    kinds,
    marker,
    mutation,
    only,
    response,
    seqnos,
    stream_request,
    upr_rig,
    uuid_of,
    write,
)
from uprmc.model import FailoverEntry

PACKETS = {vector.number: vector.packet for vector in VECTORS}


@pytest.fixture
def rig() -> Rig:
    return upr_rig(engine__vbuckets=8)


def with_log(rig: Rig, vbucket: int, *entries: tuple[int, int]) -> None:
    log = tuple(FailoverEntry(*each) for each in entries)
    rig.bucket.vbuckets[vbucket].failover_log = log


# --- the first generation -------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_request_of_40_bytes_gets_markers_without_extras(rig: Rig, on_disk: bool) -> None:
    fill(rig, 0, 3)
    if on_disk:
        rig.flush()
    peer = Peer.open(rig)
    frames = peer.say(first_generation_request(0, 0, 4, opaque=7))
    assert (frames[0].opcode, frames[0].status, frames[0].opaque) == (STREAM_REQUEST, OK, 7)
    assert kinds(frames[1:]) == [MARKER, MUTATION, MUTATION, MUTATION]
    assert (frames[1].extras, frames[1].size, frames[1].opaque) == (b"", 24, 7)
    write(rig, 0, b"live")
    frames = peer.drain()
    assert kinds(frames) == [MARKER, MUTATION, STREAM_END]
    assert frames[0].extras == b""


def test_its_markers_count_what_they_are_long(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = Peer.open(rig)
    peer.controls(connection_buffer_size=b"24")
    peer.say(first_generation_request(0))
    assert peer.side.feed.unacked_bytes == 24


def test_its_position_is_a_whole_snapshot(rig: Rig) -> None:
    fill(rig, 5, 150)
    with_log(rig, 5, (0xA1B2C3D4E5F6, 100), (0x1122334455AA, 0))
    peer = Peer.open(rig)
    assert peer.say(PACKETS["V29q"])[0].status == OK
    assert seqnos(peer.received)[0] == 11
    (marker_,) = only(peer.received, MARKER)
    assert marker_.extras == b""
    ahead = Peer.open(rig, b"b").ask(first_generation_request(5, 130, uuid=0x1122334455AA))
    assert (ahead.status, ahead.value) == (ROLLBACK, (100).to_bytes(8, "big"))


def test_both_forms_live_on_one_connection(rig: Rig) -> None:
    fill(rig, 0, 1)
    fill(rig, 1, 1)
    peer = Peer.open(rig)
    peer.say(first_generation_request(0), stream_request(1))
    sizes = {each.vbucket: each.size for each in only(peer.received, MARKER)}
    assert sizes == {0: 24, 1: 44}


@pytest.mark.parametrize("length", [0, 39, 41, 47, 49, 56])
def test_other_lengths_are_invalid(rig: Rig, length: int) -> None:
    peer = Peer.open(rig)
    assert peer.ask(frame(STREAM_REQUEST, extras=bytes(length))).status == INVALID
    assert not peer.closed


# --- the vectors of the reference, as a conversation ----------------------------------------------


def test_the_vectors_of_the_reference_are_answered_to_the_byte(rig: Rig) -> None:
    fill(rig, 5, 150)
    with_log(rig, 5, (0xA1B2C3D4E5F6, 100), (0x1122334455AA, 0))
    peer = Peer(rig)
    for number in (1, 3, 4, 6, 7, 20):
        peer.send(PACKETS[f"V{number}q"])
        while peer.session.successor is not None:
            peer.session = peer.session.successor
        heard = b"".join(peer.session.data_to_send(10_000))
        expected = PACKETS[f"V{number}r"]
        if number in (7, 20):  # the text of an error is ours
            assert heard[:8] == expected[:8]
            assert heard[12:24] == expected[12:24]
        else:
            assert heard == expected, f"V{number}"
    peer.send(PACKETS["V5q"])
    heard = b"".join(peer.session.data_to_send(100))
    assert heard.startswith(PACKETS["V5r"])
    peer.drain()
    peer.send(PACKETS["V18q"])
    assert b"".join(peer.session.data_to_send(100)) == PACKETS["V18r"]
    peer.send(PACKETS["V16q"])
    assert peer.session.data_to_send(100) == []


def test_a_consumer_speaks_the_vectors_too(rig: Rig) -> None:
    rig.bucket.set_state(5, REPLICA)
    peer = Peer(rig)
    peer.send(PACKETS["V2q"])
    assert [each.status for each in peer.drain()] == [OK]
    assert STREAM_REQUEST in kinds(peer.say(PACKETS["V17q"]))
    answer = response(STREAM_REQUEST, opaque=3, value=bytes(15) + b"\x01")
    peer.send(answer)
    assert b"".join(peer.session.data_to_send(100)) == PACKETS["V17r"]
    peer.send(PACKETS["V15q"])
    assert b"".join(peer.session.data_to_send(100)) == PACKETS["V15r"]


# --- the server of July 2014 ----------------------------------------------------------------------


def server(rule: str, **more: object) -> Rig:
    return upr_rig(engine__vbuckets=8, upr__rollback_rule=rule, **more)


def verdict(peer: Peer, asked: bytes) -> tuple[int, int | None]:
    answer = peer.say(asked)[0]
    value = int.from_bytes(answer.value, "big") if answer.status == ROLLBACK else None
    return answer.status, value


#: The rows of reference 3.3 marked with a star: what differs. Start, snapshot, flags, purge, high.
STARRED = {
    3: ((0, (0, 0), 0x20, 0, 50, 0xD), (OK, None), (ROLLBACK, 0)),
    11: ((70, (40, 70), 0, 0, 50, 0xA), (ROLLBACK, 40), (ROLLBACK, 50)),
    23: ((150, (150, 150), 0, 200, 500, 0xA), (OK, None), (ROLLBACK, 0)),
    24: ((220, (180, 260), 0, 200, 500, 0xA), (OK, None), (OK, None)),
    26: ((150, (150, 150), 0x80, 200, 500, 0xA), (OK, None), (OK, None)),
}


@pytest.mark.parametrize("row", STARRED)
@pytest.mark.parametrize("rule", ["3.0.0", "current"])
def test_the_rows_that_differ_differ_on_the_wire(row: int, rule: str) -> None:
    (start, snapshot, flags, purge, high, uuid), old, new = STARRED[row]
    rig = server(rule)
    fill(rig, 0, high)
    with_log(rig, 0, (0xA, 0))
    peer = Peer.open(rig)
    asked = stream_request(0, start, uuid=uuid, snapshot=snapshot, flags=flags)
    rig.bucket.vbuckets[0].purge_seqno = purge
    assert verdict(peer, asked) == (old if rule == "3.0.0" else new)


def test_the_suite_of_july_2014_sees_its_rollback_to_2() -> None:
    """High 3, start 7, snapshot 2..7: 2 then, 3 in the later version of the same test."""
    for rule, expected in (("3.0.0", 2), ("current", 3)):
        rig = server(rule)
        fill(rig, 0, 3)
        asked = stream_request(0, 7, uuid=uuid_of(rig), snapshot=(2, 7))
        assert verdict(Peer.open(rig), asked) == (ROLLBACK, expected)


@pytest.mark.parametrize(("rule", "status"), [("3.0.0", RANGE), ("current", ROLLBACK)])
@pytest.mark.parametrize("flag", [LATEST, DISK_ONLY])
def test_then_flags_moved_the_end_before_the_checks(rule: str, status: int, flag: int) -> None:
    rig = server(rule)
    fill(rig, 0, 50)
    rig.flush()
    asked = stream_request(0, 60, uuid=uuid_of(rig), flags=flag)
    assert verdict(Peer.open(rig), asked)[0] == status


def test_then_an_end_below_the_start_was_moved_before_it_was_looked_at() -> None:
    for rule, status in (("3.0.0", OK), ("current", RANGE)):
        rig = server(rule)
        fill(rig, 0, 50)
        asked = stream_request(0, 9, 3, uuid=uuid_of(rig), flags=LATEST)
        assert verdict(Peer.open(rig), asked)[0] == status


def filling(rig: Rig) -> Peer:
    """A replica in the middle of its first snapshot."""
    rig.bucket.set_state(0, REPLICA)
    peer = Peer.open(rig, b"repl", 0)
    (asked,) = only(peer.say(frame(ADD_STREAM, extras=bytes(4))), STREAM_REQUEST)
    log = bytes(7) + b"\x09" + bytes(8)
    peer.say(response(STREAM_REQUEST, opaque=asked.opaque, value=log))
    peer.say(marker(0, asked.opaque, 0, 5, 2), mutation(0, asked.opaque, 2, b"k"))
    peer.received.clear()
    peer.opaque = asked.opaque  # type: ignore[attr-defined]
    return peer


@pytest.mark.parametrize(("rule", "status"), [("3.0.0", LATER), ("current", OK)])
def test_then_a_vbucket_that_was_being_filled_was_not_streamed(rule: str, status: int) -> None:
    rig = server(rule)
    source = filling(rig)
    peer = Peer.open(rig)
    assert peer.ask(stream_request(0)).status == status
    source.say(mutation(0, source.opaque, 5, b"l"))  # type: ignore[attr-defined]
    if status == LATER:
        assert peer.say(stream_request(0))[0].status == OK
    peer.drain()
    data = [each for each in peer.received if not each.is_reply]
    assert check_stream(data) == 5


@pytest.mark.parametrize("allowed", [False, True])
def test_then_streams_were_added_to_active_vbuckets(allowed: bool) -> None:
    rig = server("3.0.0", upr__add_stream_on_active=allowed)
    peer = Peer.open(rig, b"repl", 0)
    frames: list[Frame] = peer.say(frame(ADD_STREAM, extras=bytes(4)))
    if allowed:
        assert STREAM_REQUEST in kinds(frames)
    else:
        assert [each.status for each in frames] == [NOT_MY_VBUCKET]


def test_what_does_not_differ_is_the_same_under_both_rules() -> None:
    for rule in ("3.0.0", "current"):
        rig = server(rule)
        fill(rig, 0, 50)
        peer = Peer.open(rig)
        assert verdict(peer, stream_request(0, 60, uuid=uuid_of(rig))) == (ROLLBACK, 50)
        assert verdict(peer, stream_request(0, 20, uuid=0xDEAD)) == (ROLLBACK, 0)
        assert verdict(peer, stream_request(0, 9, 3, uuid=uuid_of(rig)))[0] == RANGE
        assert check_stream(peer.stream(0, 20), 20) == 50
