"""A blocking connection takes as an answer what answers its question, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.codec.frames import Frame, reply
from tests.codec.node import ScriptedNode
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode


class _Node(ScriptedNode):
    """Answers a GET twice, the first time with a strange opaque; a NOOP like a GET."""

    def answers(self, asked: Frame) -> Iterable[bytes]:
        if asked.opcode == Opcode.GET:
            yield reply(asked, value=b"stray", opaque=asked.opaque + 1_000)
            yield reply(asked, value=b"right")
        else:
            yield reply(asked._replace(opcode=Opcode.GET))


def test_what_answers_no_question_is_passed_over() -> None:
    with _Node() as node, NodeConnection(node.place) as connection:
        gets = [RequestFrame(Opcode.GET, key=b"k")] * 3
        assert connection.ask(gets[0]).value == b"right"
        assert [answer.value for answer in connection.ask_all(gets)] == [b"right"] * 3


def test_an_answer_to_another_question_than_was_asked_is_an_error() -> None:
    with (
        _Node() as node,
        NodeConnection(node.place) as connection,
        pytest.raises(NodeError, match="makes no sense: opcode 0x00 answers 0x0a"),
    ):
        connection.ask(RequestFrame(Opcode.NOOP))
