"""What every face of the consumer core does about the same producer.

Faces: the client library without sockets, blocking and with Twisted; a replica; the TAP adapter's
upstream; a columnar read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contracts.faces import (
    FACES,
    Columnar,
    Face,
    Producer,
    accepting,
    ended,
    keep_alive_then,
    refusing,
)
from tests.upr import peer

NO_MEMORY, STATE_CHANGED = 0x82, 2

Begin = Callable[..., Face]


@pytest.fixture(name="kind", params=FACES, ids=lambda kind: kind.__name__.lower())
def _kind(request: pytest.FixtureRequest) -> type[Face]:
    found: type[Face] = request.param
    return found


@pytest.fixture(name="begin")
def _begin(kind: type[Face]) -> Iterator[Begin]:
    made: list[Face] = []

    def begin(*streams: Any, **options: Any) -> Face:
        made.append(kind(Producer(*streams, **options)))
        return made[-1]

    yield begin
    for face in made:
        face.close()


def test_all_of_each_snapshot_comes_in_order(begin: Begin) -> None:
    face = begin(accepting((1, 3), 1, 2, 3, (4, 5), 4, 5, ended(0)))
    face.take(5)
    assert face.seqnos() == [1, 2, 3, 4, 5]


def test_a_snapshot_may_be_announced_again_with_a_later_end(begin: Begin) -> None:
    face = begin(accepting((1, 3), 1, 2, (1, 5), 4, 5, ended(0)))
    face.take(5)
    assert face.seqnos() == [1, 2, 4, 5]


@pytest.mark.parametrize("loss", [None, ended(STATE_CHANGED)], ids=["connection", "state"])
def test_after_a_loss_in_mid_snapshot_the_rest_of_it_is_asked_for(
    begin: Begin, kind: type[Face], loss: Any
) -> None:
    """A stream also ends when the vBucket's state changes at its source."""
    if not kind.goes_on:
        pytest.skip("what to ask for is the business of its owner")
    face = begin(accepting((1, 5), 1, 2, loss), accepting((1, 5), 3, 4, 5, ended(0)))
    face.take(5)
    assert face.seqnos() == [1, 2, 3, 4, 5]
    (seqno, first, last) = face.producer.places()[1]
    assert seqno == 2
    assert first <= 1
    assert last == 5


def test_a_snapshot_without_its_last_item_is_for_the_tolerant(
    begin: Begin, kind: type[Face]
) -> None:
    face = begin(accepting((1, 2), 1, (3, 5), 5, ended(0)))
    if kind.tolerant:
        face.take(5)
        assert face.seqnos() == [1, 5]
    else:
        assert "cut short" in face.fail()
        assert face.seqnos() in ([], [1])


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (((1, 5), 2, 1), "seqno 1"),
        (((1, 5), 2, 2), "seqno 2"),
        (((1, 3), 4), "seqno 4"),
        (((1, 5), 2, (1, 1)), "1..1 behind seqno 2"),
        (((1, 4), 2, (3, 5), 5), "cut short"),
    ],
    ids=["falling", "twice", "outside", "behind", "cut"],
)
def test_what_no_producer_may_send_ends_it_with_that_named(
    begin: Begin, kind: type[Face], parts: Any, words: str
) -> None:
    face = begin(accepting(*parts, ended(0)))
    assert words in face.fail()
    assert face.seqnos() in ([], [2])


def test_a_refusal_is_told_in_the_words_of_the_node(
    begin: Begin, kind: type[Face], caplog: pytest.LogCaptureFixture
) -> None:
    if kind is Columnar:
        face = begin(refusing(NO_MEMORY, b"not today"))
        face.words.append(face.fail())
    else:
        face = begin(refusing(NO_MEMORY, b"not today"), accepting((1, 1), 1))
        face.take(1 if kind.goes_on else 0)
    assert any("not today" in each for each in [*face.words, caplog.text])


def test_a_keep_alive_is_answered_in_the_middle_of_a_stream(begin: Begin) -> None:
    face = begin(accepting((1, 5), 1, keep_alive_then(5, ended(0))))
    face.take(5)
    assert face.seqnos() == [1, 5]


def test_sent_back_it_goes_on_from_there(begin: Begin, kind: type[Face]) -> None:
    back = refusing(peer.ROLLBACK, struct.pack(">Q", 1))
    again = accepting((1, 5), 5, ended(0))
    face = begin(accepting((1, 3), 1, 2, 3, None), back, again)
    if kind is Columnar:
        assert "rollback_to=1" in face.fail()
    elif kind.returns_to is not None:
        face.take(5)
        assert face.producer.places()[2][0] == kind.returns_to


def test_what_has_come_is_acknowledged_before_the_buffer_is_full(begin: Begin) -> None:
    def large(producer: Producer, opaque: int) -> bytes:
        value = bytes(producer.buffer_bytes() // 10)
        return b"".join(
            peer.mutation(0, opaque, seqno, b"k%d" % seqno, value) for seqno in range(1, 10)
        )

    face = begin(accepting((1, 10), large, 10, ended(0)), high_seqno=10)
    face.take(10)
    sent = face.producer.buffer_bytes() * 9 // 10
    assert sent // 3 < face.producer.acknowledged() <= sent + 10_000
