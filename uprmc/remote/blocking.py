"""Connections to nodes for programs that may wait: kept open, dialled once more when they fail.

A connection that was kept says nothing of its node when it fails: that may have been started again
meanwhile. So each question is put once more, over a new connection, before its node counts as
silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.remote.directory import Directory, Heard, NodeQuestion, Unanswered, conduct


class Askable(Protocol):
    """One conversation with a node, after HELLO and login."""

    place: str
    knows_terms: bool

    def ask_all(self, requests: Sequence[RequestFrame]) -> Iterable[ResponseFrame]:
        """Send requests in a pipeline; return their answers in order."""

    def told(self, group: str) -> dict[str, str]:
        """Return a group of statistics, nothing if the node does not tell it."""

    def close(self) -> None:
        """Hang up."""


_C = TypeVar("_C", bound=Askable)
_T = TypeVar("_T")


def put(asked: NodeQuestion, connection: Askable) -> Heard:
    """Put a question to its node; raises what the connection does."""
    if asked.group:
        return Heard(statistics=connection.told(asked.group))
    answers = list(connection.ask_all(asked.requests))
    return Heard(answers, knows_terms=connection.knows_terms)


class KeptConnections(Generic[_C]):
    """See the module docstring; used by one thread at a time.

    Args:
        dial: returns a connection to a node.
        lost: what it and connections raise when the node does not answer.
        let_go: what becomes of connections at the end, in place of closing them.
    """

    def __init__(
        self,
        dial: Callable[[str], _C],
        *lost: type[Exception],
        let_go: Callable[[_C], None] | None = None,
    ) -> None:
        self._dial, self._lost, self._let_go = dial, lost, let_go
        self._open: dict[str, _C] = {}

    def get(self, place: str) -> _C | None:
        """Return the connection to a node, if there is one."""
        return self._open.get(place)

    def at(self, place: str) -> _C:
        """Return the connection to a node, dialled if need be."""
        found = self._open.get(place)
        if found is None:
            found = self._open[place] = self._dial(place)
        return found

    def drop(self, place: str) -> None:
        """Hang up on a node: an answer may still be on its way."""
        found = self._open.pop(place, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """Hang up on all."""
        while self._open:
            _, connection = self._open.popitem()
            connection.close()

    def end(self) -> None:
        """Let all go: none has an answer on its way."""
        while self._open:
            _, connection = self._open.popitem()
            (self._let_go or type(connection).close)(connection)

    def ask(self, place: str, question: Callable[[_C], _T]) -> _T:
        """Return what a question to a node gives; it may be put twice."""
        kept = place in self._open
        try:
            return question(self.at(place))
        except BaseException as error:
            self.drop(place)
            if not (kept and isinstance(error, self._lost)):
                raise
        return self.ask(place, question)

    def survey(self, directory: Directory, **what: Any) -> None:
        """Ask every node what it has, see `Directory.survey`."""
        try:
            conduct(directory.survey(**what), self._put)
        except BaseException:
            self.close()  # an answer is still on its way
            raise
        for place in directory.silent:
            self.drop(place)

    def _put(self, asked: NodeQuestion) -> Heard | Unanswered:
        try:
            return self.ask(asked.place, partial(put, asked))
        except self._lost as error:
            return Unanswered(error, getattr(error, "text", str(error)))  # without a code word
