"""Notifiers: only a STREAM_END, when there is news.

Source: UPR reference 2.1, 4.5.
"""

from __future__ import annotations

import pytest

from tests.upr.peer import (
    CLOSE_STREAM,
    DEAD,
    EXISTS,
    NOT_MY_VBUCKET,
    NOTIFIER,
    OK,
    PRODUCER,
    ROLLBACK,
    STREAM_END,
    Peer,
    Rig,
    fill,
    frame,
    kinds,
    only,
    stream_request,
    untouched,
    upr_rig,
    uuid_of,
    write,
)


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def notifier(rig: Rig) -> Peer:
    return Peer.open(rig, b"notify me", NOTIFIER)


def test_news_that_is_there_already_ends_the_stream_at_once(rig: Rig) -> None:
    fill(rig, 0, 3)
    (end,) = notifier(rig).stream(0, 2, opaque=8)
    assert (end.opcode, end.reason, end.opaque) == (STREAM_END, 0, 8)


def test_news_ends_the_stream_and_nothing_else_is_ever_sent(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = notifier(rig)
    assert peer.stream(0, 3) == []
    rig.flush()
    assert peer.drain() == []
    write(rig, 1, b"elsewhere")
    assert peer.drain() == []
    write(rig, 0, b"k")
    assert kinds(peer.drain()) == [STREAM_END]
    write(rig, 0, b"l")
    assert peer.drain() == []


def test_a_deletion_is_news(rig: Rig) -> None:
    write(rig, 0, b"k")
    peer = notifier(rig)
    assert peer.stream(0, 1) == []
    rig.bucket.vbuckets[0].delete(b"k")
    assert kinds(peer.drain()) == [STREAM_END]


def test_a_start_that_is_still_to_come_is_waited_for(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = notifier(rig)
    assert peer.stream(0, 5) == []
    for _ in range(2):
        write(rig, 0, b"k")
        assert peer.drain() == []
    write(rig, 0, b"k")
    assert kinds(peer.drain()) == [STREAM_END]


def test_ranges_do_not_matter_to_a_notifier(rig: Rig) -> None:
    fill(rig, 0, 3)
    asked = stream_request(0, 7, 2, uuid=uuid_of(rig), snapshot=(9, 8))
    assert notifier(rig).ask(asked).status == OK


def test_history_does_matter(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer = notifier(rig)
    assert peer.ask(stream_request(0, 2, uuid=0xDEAD)).status == ROLLBACK
    assert peer.ask(stream_request(0, 9, uuid=0xDEAD)).status == ROLLBACK
    assert peer.ask(stream_request(9)).status == NOT_MY_VBUCKET


def test_a_notifier_has_one_stream_for_a_vbucket(rig: Rig) -> None:
    peer = notifier(rig)
    peer.stream(0)
    assert peer.ask(stream_request(0)).status == EXISTS
    assert peer.ask(frame(CLOSE_STREAM)).status == OK
    write(rig, 0, b"k")
    assert peer.drain() == []
    assert kinds(peer.stream(0)) == [STREAM_END]


def test_a_change_of_state_ends_it_with_its_reason(rig: Rig) -> None:
    peer = notifier(rig)
    peer.stream(0)
    rig.bucket.set_state(0, DEAD)
    assert [each.reason for each in only(peer.drain(), STREAM_END)] == [2]


def test_the_producer_bit_is_looked_at_first(rig: Rig) -> None:
    fill(rig, 0, 2)
    peer = Peer.open(rig, b"both", PRODUCER | NOTIFIER)
    assert len(peer.stream(0)) == 3


def test_a_lost_notifier_leaves_nothing_behind(rig: Rig) -> None:
    peer = notifier(rig)
    peer.stream(0)
    peer.stream(1)
    peer.lose()
    untouched(rig)
