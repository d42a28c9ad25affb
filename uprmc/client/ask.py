"""Questions of tasks to a node.

A *task* is a generator that yields an `Ask` and is given its answers, and that yields whatever a
handler returned for the loop above to wait for. So a procedure of many steps reads from top to
bottom, and knows nothing of threads, reactors or sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.upr_many import StreamStart

#: At most this many questions of one `Ask` are on their way at a time.
PIPELINE_MAX = 256

Task = Generator[Any, Any, Any]

#: What can be asked. Requests for streams travel together where the node knows how.
Question = RequestFrame | StreamStart


class Rest:
    """What a task yields that has computed for a while, so that others have their turn."""


class Ask:
    """Questions, and later their answers, in the same order.

    Attributes:
        task: the task that waits for the answers; set by the loop that runs tasks.
    """

    __slots__ = ("_missing", "_rest", "answers", "task")

    def __init__(self, frames: Sequence[Question]) -> None:
        self.answers: list[ResponseFrame | None] = [None] * len(frames)
        self.task: Task | None = None
        self._missing = len(frames)
        self._rest = deque(enumerate(frames))

    def next(self) -> tuple[int, Question] | None:
        """Return a question that was not sent yet, and its number."""
        return self._rest.popleft() if self._rest else None

    def answer(self, number: int, answer: ResponseFrame) -> bool:
        """Take an answer; returns whether it was the last one."""
        self.answers[number] = answer
        self._missing -= 1
        return not self._missing
