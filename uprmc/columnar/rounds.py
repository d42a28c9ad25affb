"""Requests until each is carried out or refused for good, in rounds, by the nodes that own them.

After a round, what time or another node makes good goes into the next: temporary failures, a
vBucket that has moved (the nodes are asked again what they have), and all that a lost connection
left open.

**The last request for a key wins, as if there had been no trouble.** When one is repeated, all
later ones for the same key are repeated behind it, those that went well too. They are in the same
piece, because a piece ends before the next begins.

Note: limits count from the last progress, not from the beginning. A node that takes a few
rows at a time is slow, not dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from uprmc.columnar.errors import NoVBucket
from uprmc.columnar.nodes import BulkNodes
from uprmc.columnar.write_options import WriteOptions
from uprmc.protocol.opcodes import status_text
from uprmc.remote.blocking import RequestLine, run
from uprmc.remote.errors import Busy, ClientError, NodeUnreachable, Refused
from uprmc.remote.requests import REPEATED, Reader, Verdict, Window, verdict
from uprmc.remote.retry import Backoff, Left, RetryPolicy, until_done


class Requests(NamedTuple):
    """What is asked."""

    frames: Sequence[bytes]  # whole requests; the opaque of each is its place
    # what orders them: equal keys keep their order. Empty = nothing is ordered.
    keys: Sequence[bytes]
    vbuckets: np.ndarray  # where each belongs


class WriteRounds:
    """Sends requests in rounds until each has its final answer.

    Args:
        options: how patient to be.
        nodes: to ask; their connections are used for nothing else meanwhile.
        clock: seconds that only grow.
        sleep: waits.

    Attributes:
        repeated: requests that were sent once more.
    """

    def __init__(
        self,
        options: WriteOptions,
        nodes: BulkNodes,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.repeated = 0
        self._options = options
        self._nodes = nodes
        self._clock = clock
        self._sleep = sleep

    def answers(
        self,
        requests: Requests,
        places: Sequence[int] | None = None,
        read: Reader[int] | None = None,
    ) -> dict[int, int]:
        """Return what was answered, by place; what is quiet about success is not in it.

        Args:
            requests: what is asked.
            places: which of them, ascending; ``None`` = all.
            read: makes a number of an answer; temporary statuses must be returned as they are.

        Raises:
            NodeUnreachable, NoVBucket, Refused: there was no progress for too long.
            NodeNonsense, LoginFailed, TlsFailed, VBucketsChanged: this will not get better.
        """
        todo: Sequence[int] = range(len(requests.frames)) if places is None else places
        answers: dict[int, int] = {}
        reason: ClientError | None = None

        def ask(todo: Sequence[int]) -> Left:
            nonlocal reason
            self.repeated += len(todo) if reason else 0
            again, reason, look = self._round(requests, todo, answers, read)
            left = _with_later_ones(requests.keys, todo, again) if again else ()
            for place in left:
                answers.pop(place, None)
            return Left(left, len(again), look)

        options = self._options
        policy = RetryPolicy(
            Backoff(options.retry_backoff_s, options.retry_backoff_max_s),
            retries=options.retries,
            patience_s=options.retry_deadline_s,
        )
        if todo and until_done(todo, ask, self._look_around, policy, self._clock, self._sleep):
            assert reason is not None
            raise reason
        return answers

    def _round(
        self,
        requests: Requests,
        todo: Sequence[int],
        answers: dict[int, int],
        read: Reader[int] | None,
    ) -> tuple[set[int], ClientError, bool]:
        """Ask once. Return what is to be repeated, why, and whether to ask for owners again."""
        lines, again, why = self._lines(requests, todo, read)
        look = bool(again)
        try:
            run(lines, self._options.access.read_timeout_s)
        except BaseException:
            self._nodes.close()  # answers are still on their way
            raise
        for line in lines:
            for place, answer in line.window.answers.items():
                if answer in REPEATED:
                    again.add(place)
                    look = look or verdict(answer) is Verdict.ELSEWHERE
                    why = why or _refused(line.connection.place, answer)
                else:
                    answers[place] = answer
            again.update(line.window.unsettled())
            if line.lost is not None:
                self._nodes.drop(line.connection.place)
                if not isinstance(line.lost, NodeUnreachable):
                    raise line.lost
                why, look = line.lost, True
        return again, why or NodeUnreachable("nothing was sent"), look

    def _lines(
        self, requests: Requests, todo: Sequence[int], read: Reader[int] | None
    ) -> tuple[list[RequestLine[int]], set[int], ClientError | None]:
        """Spread requests over the nodes; return those without a node, too, and why."""
        options = self._options
        lines: list[RequestLine[int]] = []
        homeless: set[int] = set()
        why: ClientError | None = None
        for place, order in self._by_owner(requests.vbuckets, todo).items():
            try:
                if not place:
                    raise _homeless(requests.vbuckets, order)
                connection = self._nodes.connection(place)
            except (NodeUnreachable, Busy, NoVBucket) as error:
                homeless.update(order)
                why = error
                continue
            limits = options.window, options.window_bytes
            window = Window(requests.frames, order, *limits, read, quiet=True)
            lines.append(RequestLine(connection, window))
        return lines, homeless, why

    def _by_owner(self, vbuckets: np.ndarray, todo: Sequence[int]) -> dict[str, Sequence[int]]:
        owners = self._nodes.owners
        distinct = np.unique(vbuckets if len(todo) == len(vbuckets) else vbuckets[list(todo)])
        places = {owners.get(int(vbucket), "") for vbucket in distinct}
        if len(places) == 1:
            return {places.pop(): todo}
        found: dict[str, list[int]] = {}
        numbers = vbuckets.tolist()
        for place in todo:
            found.setdefault(owners.get(numbers[place], ""), []).append(place)
        return dict(found)

    def _look_around(self) -> None:
        with suppress(NodeUnreachable, Busy):  # the next round tells, if it is still so
            self._nodes.refresh()


def _with_later_ones(keys: Sequence[bytes], todo: Sequence[int], again: set[int]) -> Sequence[int]:
    """Return what is to be repeated together with all later requests for the same keys."""
    if not keys or len(again) == len(todo):
        return sorted(again)
    repeated: set[bytes] = set()
    found: list[int] = []
    for place in todo:
        if place in again or keys[place] in repeated:
            repeated.add(keys[place])
            found.append(place)
    return found


def _refused(place: str, status: int) -> Refused:
    return Refused(f"{place} keeps answering: {status_text(status)}")


def _homeless(vbuckets: np.ndarray, order: Sequence[int]) -> NoVBucket:
    return NoVBucket(f"vb={int(vbuckets[order[0]])} is active on no node that answers")
