"""Asking until it is answered: rounds of requests to the nodes that have their vBuckets.

After a round, what can be tried again without harm is left for the next: a vBucket that has moved
(where the answer brings no map that names its node, all are asked again what they have), a
temporary failure, a request that the node never got, and whatever only reads. Rounds end when
nothing is left, or when for some time none was answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.client.errors import NotActive
from uprmc.client.kv_values import KvRequest, OutcomeUnknown
from uprmc.errors import NotMyVBucket, UprmcError
from uprmc.model import vbucket_of
from uprmc.remote.blocking import KeptConnections, Line, run
from uprmc.remote.directory import Directory, Why
from uprmc.remote.requests import AGAIN, NodeReply, Verdict, Window, verdict
from uprmc.remote.retry import Backoff, Left, RetryPolicy, until_done

#: So many requests of a connection are under way.
WINDOW = 512

#: So many bytes of requests are put together before they are sent; one request may be larger.
PIECE_BYTES = 64 * 1024

_PAUSE_MIN_S = 0.01
_PAUSE_MAX_S = 0.5

_OPAQUES = 2**32

Answers = dict[int, NodeReply]
Failures = dict[int, UprmcError]


class KvMap:
    """Which node has which vBucket, and connections to all."""

    def __init__(
        self, places: Iterable[str], vbuckets: int, dial: Callable[[str], NodeConnection]
    ) -> None:
        self.directory = Directory(places, vbuckets)
        self.connections = KeptConnections(dial, NodeError)

    @property
    def vbuckets(self) -> int:
        """How many vBuckets the documents are spread over; 0 = not known yet."""
        return self.directory.vbuckets

    def vbucket_of(self, key: bytes) -> int:
        """Return where a key belongs."""
        return vbucket_of(key, self.directory.vbuckets)

    def connection(self, vbucket: int) -> NodeConnection | None:
        """Return the connection to the node that has the vBucket, ``None`` if none has."""
        place = self.directory.choice(vbucket).place
        return self.connections.get(place) if place else None

    def why_absent(self, vbucket: int) -> UprmcError:
        """Return what to say of a vBucket that no connection leads to."""
        missing = self.directory.missing([vbucket])
        if missing is None:
            return NodeError(f"the connection to {self.directory.choice(vbucket).place} was lost")
        kind = NotMyVBucket if missing.refused or not missing.silent else NodeError
        return kind(str(missing))

    def by_place(self) -> dict[str, list[int]]:
        """Return all vBuckets by the node that has them; raises `NotActive`."""
        missing = self.directory.missing(range(self.vbuckets))
        if missing is not None:
            raise NotActive(str(missing), missing.numbers)
        found: dict[str, list[int]] = {}
        for vbucket, place in self.directory.owners().items():
            found.setdefault(place, []).append(vbucket)
        return found

    def moved(self, place: str, vbucket: int, value: bytes) -> bool:
        """Take NOT_MY_VBUCKET; return whether there is a node to try next, and it is reached."""
        if not self.directory.not_mine(place, vbucket, value):
            return False
        try:
            self.connections.at(self.directory.choice(vbucket).place)
        except NodeError:
            return False
        return True

    def refresh(self) -> None:
        """Ask every node what it has; one that does not answer has nothing.

        Raises:
            NodeError: no node answers, or they do not make one bucket.
        """
        self.connections.survey(self.directory)
        for silence in self.directory.silent.values():
            if silence.why is Why.FOREIGN:
                raise NodeError(silence.words)
        if not self.directory.facts:
            silent = list(self.directory.silent.values())
            if len(silent) == 1 and silent[0].error is not None:
                raise silent[0].error
            raise NodeError("; ".join(each.words for each in silent))
        if not self.vbuckets:
            raise NodeError("no node tells how many vBuckets it has: say so with `vbuckets`")


class Rounds:
    """See the module docstring."""

    def __init__(self, kv_map: KvMap, timeout_s: float, retry_s: float) -> None:
        self._map = kv_map
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._opaque = 0

    def asked(
        self, requests: Sequence[KvRequest], *, changes: bool
    ) -> list[NodeReply | UprmcError]:
        """Return what was answered, or why nothing was; try again what can be tried again."""
        first = self._opaque
        self._opaque = (first + len(requests)) % _OPAQUES
        frames = [
            request.packed((first + number) % _OPAQUES) for number, request in enumerate(requests)
        ]
        answers: Answers = {}
        failures: Failures = {}

        def ask(pending: Sequence[int]) -> Left:
            lines = self._round(requests, frames, first, pending, answers, failures)
            for line in lines:
                if line.lost is not None:
                    self._map.connections.drop(line.connection.place)
                    failures.update(_lost(line, line.lost, changes=changes))
            left = _to_repeat(pending, answers, failures)
            return Left(left, len(left), self._may_have_moved(requests, left, answers))

        policy = RetryPolicy(Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S), patience_s=self._retry_s)
        numbers = range(len(requests))
        until_done(numbers, ask, self._look_around, policy, time.monotonic, time.sleep)
        return [answers.get(number) or failures[number] for number in numbers]

    def _look_around(self) -> None:
        with suppress(NodeError):  # told by the round that comes
            self._map.refresh()

    def _round(
        self,
        requests: Sequence[KvRequest],
        frames: Sequence[bytes],
        first_opaque: int,
        pending: Iterable[int],
        answers: Answers,
        failures: Failures,
    ) -> list[Line[NodeConnection, NodeReply]]:
        """Ask all that is pending once."""
        shares: dict[NodeConnection, list[int]] = {}
        for number in pending:
            answers.pop(number, None)
            failures.pop(number, None)
            connection = self._map.connection(requests[number].vbucket)
            if connection is None:
                failures[number] = self._map.why_absent(requests[number].vbucket)
            else:
                shares.setdefault(connection, []).append(number)
        lines = []
        for connection, numbers in shares.items():
            window = Window(
                frames, numbers, WINDOW, PIECE_BYTES, _kept, quiet=False, first_opaque=first_opaque
            )
            window.answers = answers
            lines.append(Line(connection, window))
        try:
            run(lines, self._timeout_s)
        except BaseException:
            self._map.connections.close()  # answers are still on their way
            raise
        return lines

    def _may_have_moved(
        self, requests: Sequence[KvRequest], pending: Iterable[int], answers: Answers
    ) -> bool:
        """Tell whether nodes are to be asked what they have: some vBucket has no node to try."""
        look = False
        refused: dict[int, tuple[str, bytes]] = {}
        for number in pending:
            reply, vbucket = answers.get(number), requests[number].vbucket
            if reply is None:
                look = True
            elif verdict(reply.status) is Verdict.ELSEWHERE and vbucket not in refused:
                refused[vbucket] = self._map.directory.choice(vbucket).place, reply.value
        for vbucket, (place, value) in refused.items():
            look |= not self._map.moved(place, vbucket, value)
        return look


def _kept(_number: int, reply: NodeReply) -> NodeReply:
    return reply


def _to_repeat(
    pending: Iterable[int], answers: Mapping[int, NodeReply], failures: Mapping[int, UprmcError]
) -> list[int]:
    return [
        number
        for number in pending
        if (
            answers[number].status in AGAIN
            if number in answers
            else not isinstance(failures[number], OutcomeUnknown)
        )
    ]


def _lost(line: Line[NodeConnection, NodeReply], why: Exception, *, changes: bool) -> Failures:
    """Return what to say of each request that was not answered."""
    assert isinstance(why, NodeError)
    failures: Failures = dict.fromkeys(line.window.unsettled(), why)
    if changes:
        unknown = OutcomeUnknown(f"{why}; whether the change was made is not known: read the key")
        failures |= dict.fromkeys(line.window.left(line.sent_bytes), unknown)
    return failures
