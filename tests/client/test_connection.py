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
    """Answers a GET with a strange opaque; a NOOP like a GET."""

    def answers(self, asked: Frame) -> Iterable[bytes]:
        if asked.opcode == Opcode.GET:
            yield reply(asked, value=b"stray", opaque=asked.opaque + 1_000)
        yield reply(asked._replace(opcode=Opcode.GET))


@pytest.mark.parametrize("opcode", [Opcode.GET, Opcode.NOOP])
def test_an_answer_to_another_question_than_was_asked_is_an_error(opcode: Opcode) -> None:
    with (
        _Node() as node,
        NodeConnection(node.place) as connection,
        pytest.raises(NodeError, match=f"{node.place} sent an unexpected answer to GET"),
    ):
        connection.ask(RequestFrame(opcode, key=b"k"))
