"""Asking until it is answered: rounds of requests to the nodes that have their vBuckets.

After a round, what can be tried again without harm is left for the next: a vBucket that has moved
(the nodes are asked anew what they have), a temporary failure, a request that the node never got,
and whatever only reads. Rounds end when nothing is left, or when for some time none was answered.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.client.kv_map import KvMap
from uprmc.client.kv_pipeline import KvReply, KvRequest, Pipeline, run
from uprmc.client.kv_values import OutcomeUnknown
from uprmc.errors import UprmcError
from uprmc.protocol.opcodes import Status
from uprmc.remote.retry import Backoff, Left, RetryPolicy, until_done

_PAUSE_MIN_S = 0.01
_PAUSE_MAX_S = 0.5

_AGAIN = frozenset({Status.NOT_MY_VBUCKET, Status.BUSY, Status.TEMPORARY_FAILURE})

Answers = dict[int, KvReply]
Failures = dict[int, UprmcError]


class Rounds:
    """See the module docstring."""

    def __init__(self, kv_map: KvMap, timeout_s: float, retry_s: float) -> None:
        self._map = kv_map
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._opaque = 0

    def asked(self, requests: Sequence[KvRequest], *, changes: bool) -> list[KvReply | UprmcError]:
        """Return what was answered, or why nothing was; try again what can be tried again."""
        answers: Answers = {}
        failures: Failures = {}

        def ask(pending: Sequence[int]) -> Left:
            self._round(requests, pending, answers, failures, changes=changes)
            left = _to_repeat(pending, answers, failures)
            return Left(left, len(left), _may_have_moved(left, answers))

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
        pending: Iterable[int],
        answers: Answers,
        failures: Failures,
        *,
        changes: bool,
    ) -> None:
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
        pipelines = [
            Pipeline(connection, requests, numbers, answers, self._opaque)
            for connection, numbers in shares.items()
        ]
        self._opaque += len(requests)
        try:
            run(pipelines, self._timeout_s)
        except BaseException:
            self._map.connections.close()  # answers are still on their way
            raise
        for connection, pipeline in zip(shares, pipelines, strict=True):
            if pipeline.lost is not None:
                self._map.connections.drop(connection.place)
                failures.update(_lost(pipeline, pipeline.lost, changes=changes))


def _to_repeat(
    pending: Iterable[int], answers: Mapping[int, KvReply], failures: Mapping[int, UprmcError]
) -> list[int]:
    return [
        number
        for number in pending
        if (
            answers[number].status in _AGAIN
            if number in answers
            else not isinstance(failures[number], OutcomeUnknown)
        )
    ]


def _may_have_moved(pending: Iterable[int], answers: Mapping[int, KvReply]) -> bool:
    """Tell whether anything else than temporary failures is left."""
    replies = [answers.get(number) for number in pending]
    return any(reply is None or reply.status == Status.NOT_MY_VBUCKET for reply in replies)


def _lost(pipeline: Pipeline, why: NodeError, *, changes: bool) -> Failures:
    """Return what to say of each request that was not answered."""
    unsent: Failures = dict.fromkeys(pipeline.unsent(), why)
    unknown = OutcomeUnknown(f"{why}; whether the change was made is not known: read the key")
    return unsent | dict.fromkeys(pipeline.unknown(), unknown if changes else why)
