"""What one node has told about its vBuckets: which it has, how far they are, by which terms."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from uprmc.client.ask import Ask, Task
from uprmc.client.errors import ProducerError
from uprmc.model import FailoverLog, VBucketState
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import VBUCKET_SEQNO, VBUCKET_SEQNO_TERM, VBUCKET_SEQNOS_EXTRAS
from uprmc.protocol.opcodes import Opcode
from uprmc.remote.cluster_map import ClusterMap


class NodeFacts:
    """Answers of one node, as of its last poll.

    Attributes:
        knows_terms: the node tells the terms of vBuckets.
        active: vBuckets that are active there, with their high seqnos.
        replicas: the same of replicas, if they are wanted.
        terms: the term of each active one; 0 = the node knows none.
        logs: failover logs of those that another node claims with the same term.
        told: the terms of promotions elsewhere that it was told of, by vBucket.
        polls: how often `poll` was answered.
        poll_at: when to poll next, in monotonic seconds.
        polling: a poll is under way.
        map: its cluster map; ``None`` = it has none that makes sense.
        numbers: vBuckets that it has in any state, if there is no map.
    """

    def __init__(self, place: str, *, wants_replicas: bool) -> None:
        self._place = place
        self._wants_replicas = wants_replicas
        self.knows_terms = False
        self.active: dict[int, int] = {}
        self.replicas: dict[int, int] = {}
        self.terms: dict[int, int] = {}
        self.told: dict[int, int] = {}
        self.logs: dict[int, FailoverLog] = {}
        self.polls = 0
        self.poll_at = 0.0
        self.polling = False
        self.map: ClusterMap | None = None
        self.numbers: frozenset[int] = frozenset()

    @property
    def servers(self) -> Sequence[str]:
        """The nodes that its cluster map names."""
        return self.map.places(self._place) if self.map is not None else ()

    def has(self, vbucket: int) -> bool:
        """Tell whether a vBucket can be streamed from there."""
        return vbucket in self.active or vbucket in self.replicas

    def gone(self, vbucket: int) -> None:
        """Take note that a vBucket is not there any more, as far as is known."""
        self.active.pop(vbucket, None)
        self.replicas.pop(vbucket, None)

    def asks(self) -> None:
        """A poll begins; whoever wants one sooner than usual from now on wants another one."""
        self.polling, self.poll_at = True, math.inf

    def asked(self, next_at: float) -> None:
        """It has ended."""
        self.polling, self.poll_at = False, min(self.poll_at, next_at)

    def poll(
        self, disputed: Sequence[int], read_log: Callable[[ResponseFrame, int], FailoverLog]
    ) -> Task:
        """Ask which vBuckets are active, how far they are, and the history of disputed ones."""
        active = VBUCKET_SEQNOS_EXTRAS.pack(VBucketState.ACTIVE)
        any_state = [RequestFrame(Opcode.GET_ALL_VB_SEQNOS)] if self.map is None else []
        logs = [RequestFrame(Opcode.GET_FAILOVER_LOG, vbucket=number) for number in disputed]
        seqnos, *histories = yield Ask(
            [RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=active), *any_state, *logs]
        )
        if not seqnos.status:
            rows = self._rows(seqnos)
            self.active = {number: seqno for number, seqno, _ in rows}
            self.terms = {number: term for number, _, term in rows}
            self.polls += 1
        if any_state:
            self.numbers = frozenset(number for number, _, _ in self._rows(histories.pop(0)))
        self.logs = {
            number: read_log(answer, number)
            for number, answer in zip(disputed, histories, strict=True)
            if not answer.status
        }
        if self._wants_replicas:
            self.replicas = yield from self.high_seqnos(VBucketState.REPLICA)

    def high_seqnos(self, state: int) -> Task:
        """Return how far each vBucket is that is in this state, ``{}`` if the node does not say."""
        extras = VBUCKET_SEQNOS_EXTRAS.pack(state)
        (answer,) = yield Ask([RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras)])
        return {number: seqno for number, seqno, _ in self._rows(answer)}

    def _rows(self, answer: ResponseFrame) -> list[tuple[int, int, int]]:
        """Return (vBucket, seqno, term) of a list of seqnos, nothing if it is refused."""
        if answer.status:
            return []
        try:
            if self.knows_terms:
                return list(VBUCKET_SEQNO_TERM.iter_unpack(answer.value))
            return [(*row, 0) for row in VBUCKET_SEQNO.iter_unpack(answer.value)]
        except struct.error:
            raise ProducerError(f"the node at {self._place} sent a torn list of seqnos") from None
