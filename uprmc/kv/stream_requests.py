"""Answers to STREAM_REQUESTS: each stream is started as if it had been asked for alone.

One request may name a thousand streams, and each takes some 20 us. So there is an answer for every
`ANSWERED_AT_ONCE` of them, and others have their turn in between.

Source: docs/extensions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from uprmc.errors import RollbackRequired
from uprmc.kv.refusals import REFUSALS, refusal_of
from uprmc.protocol.header import encode_response
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr import ROLLBACK_VALUE, decode_term
from uprmc.protocol.upr_many import (
    MORE_ANSWERS,
    STREAM_REQUESTS_EXTRAS,
    StreamAnswer,
    StreamStart,
    encode_stream_answers,
)
from uprmc.upr.peer import UprRequest
from uprmc.upr.producer import Producer

#: At most this many streams are started in one turn.
ANSWERED_AT_ONCE = 64


def answers_to_starts(producer: Producer, request: UprRequest) -> Iterator[bytes]:
    """Start streams; yield answers, and an empty piece where others are to have their turn.

    Raises:
        CommandError, RemoteProtocolError: refused as a whole.
    """
    return _answers_of(producer, request.opaque, producer.starts(request))


def _answers_of(producer: Producer, opaque: int, starts: Sequence[StreamStart]) -> Iterator[bytes]:
    for first in range(0, len(starts), ANSWERED_AT_ONCE):
        end = first + ANSWERED_AT_ONCE
        more = end < len(starts)
        rows = [_answer(producer, start) for start in starts[first:end]]
        yield encode_response(
            Opcode.STREAM_REQUESTS,
            extras=STREAM_REQUESTS_EXTRAS.pack(MORE_ANSWERS if more else 0),
            value=encode_stream_answers(rows),
            opaque=opaque,
        )
        if more:
            yield b""


def _answer(producer: Producer, start: StreamStart) -> StreamAnswer:
    try:
        answer = producer.start(start)
    except RollbackRequired as error:
        value = ROLLBACK_VALUE.pack(error.seqno)
        return StreamAnswer(start.opaque, Status.ROLLBACK, 0, value)
    except REFUSALS as error:
        status, _ = refusal_of(error, start.opcode, with_lock_errors=False)
        return StreamAnswer(start.opaque, status, 0, b"")
    return StreamAnswer(start.opaque, Status.SUCCESS, decode_term(answer.extras), answer.value)
