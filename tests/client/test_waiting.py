"""Handlers that return something to wait for: the core waits, and hands over nothing meanwhile."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.client.consumer_world import CrashingState
from tests.client.fake_producer import FakeProducer, Joined, accepted, rollback
from tests.upr import peer
from tests.upr.peer import Frame, marker, mutation
from uprmc.client.handler import Change, Document, Handler


class _Waiting(Handler):
    """Returns a token for each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _call(self, *words: object) -> str:
        self.calls.append(" ".join(map(str, words)))
        return self.calls[-1]

    def mutation(self, change: Change) -> str:
        return self._call("mutation", change.seqno)

    def snapshot_begin(self, vbucket: int, start: int, end: int, from_disk: bool) -> str:
        return self._call("begin", end)

    def snapshot_end(self, vbucket: int, end: int) -> str:
        return self._call("end", end)

    def rollback(self, vbucket: int, seqno: int) -> str:
        return self._call("rollback", seqno)

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> str:
        return self._call("undo", key.decode())

    def durable(self) -> str:
        return self._call("durable")


def _waited(task: Generator[Any, Any, Any], handler: _Waiting, result: object = None) -> list[str]:
    """Run rules to their end; each thing to wait for must be the last call's."""
    found: list[str] = []
    answer: object = None
    while True:
        try:
            token = task.send(answer)
        except StopIteration:
            return found
        assert token == handler.calls[-1]
        found.append(token)
        answer = result


def _stream(asked: Frame) -> bytes:
    opaque = asked.opaque
    frames = [marker(0, opaque, 0, 2), mutation(0, opaque, 1, b"a"), mutation(0, opaque, 2, b"b")]
    return accepted(asked, then=b"".join(frames))


def _talk(joined: Joined, handler: _Waiting, result: object = None) -> list[str]:
    found: list[str] = []
    for _ in range(20):
        found += _waited(joined.core.turn(joined.now), handler, result)
        answer = joined.producer.take(joined.session.data_to_send())
        if answer:
            found += _waited(joined.core.received(joined.session, answer, joined.now), handler,
                             result)  # fmt: skip
        found += _waited(joined.core.idle(), handler, result)
    return found


def test_every_call_is_waited_for_in_its_turn() -> None:
    handler = _Waiting()
    joined = Joined(handler, FakeProducer(_stream))
    assert _talk(joined, handler) == ["begin 2", "mutation 1", "mutation 2", "end 2", "durable"]
    assert joined.state.load()[0].seqno == 2


def test_nothing_is_saved_as_reached_before_the_handler_is_done() -> None:
    handler = _Waiting()
    joined = Joined(handler, FakeProducer(_stream))
    while not joined.producer.asked(peer.STREAM_REQUEST):
        _waited(joined.core.turn(joined.now), handler)
        answer = joined.producer.take(joined.session.data_to_send())
        task = joined.core.received(joined.session, answer, joined.now)
        if not joined.producer.asked(peer.STREAM_REQUEST):
            _waited(task, handler)
    while next(task) != "end 2":
        pass
    assert joined.state.load()[0].seqno == 0
    assert joined.state.ring() == [(1, b"a"), (2, b"b")]
    assert joined.session.flow.unacked_bytes == 0


@pytest.mark.parametrize("handled", [True, False])
def test_the_answer_to_a_rollback_may_come_later(handled: bool) -> None:
    handler = _Waiting()
    state = CrashingState()
    _talk(Joined(handler, FakeProducer(_stream), state), handler)
    handler.calls.clear()
    log = [(9, 1), (7, 0)]
    answers = iter([rollback, lambda asked, _: accepted(asked, *log)])
    producer = FakeProducer(lambda asked: next(answers)(asked, 1))
    producer.log = log
    found = _talk(Joined(handler, producer, state), handler, handled)
    undone = [] if handled else ["undo b", "durable"]
    assert found[: 1 + len(undone)] == ["rollback 1", *undone]
    assert state.load()[0].seqno == 1
    assert peer.GET in [each.opcode for each in producer.requests] or handled
