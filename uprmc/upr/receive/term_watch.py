"""What a link learns of the other node's terms: whether a vBucket that is active here was deposed.

The other node tells its terms with its seqnos, once a second. One above that of an active vBucket
here says that another node was promoted since, if the two were ever one: the failover log tells.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from uprmc.engine.failover_log import is_deposed, shares_history
from uprmc.model import FailoverEntry
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr import decode_term
from uprmc.upr.hub import Hub


class Asker(Protocol):
    """A connection to the other node, as far as it is needed here."""

    hub: Hub

    def ask(
        self, opcode: int, answered: Callable[[ResponseFrame], None], *, vbucket: int = 0
    ) -> None:
        """Send a request; `answered` gets the reply."""

    def read_log(self, value: bytes) -> tuple[FailoverEntry, ...]:
        """Read a failover log; raises `RemoteProtocolError`."""


class TermWatch:
    """Watches the terms that the node at the other end of one link tells."""

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}

    def shown(self, link: Asker, number: int, term: int) -> None:
        """Learn what term the other node has; ask once whose history a higher one is of."""
        vbucket = link.hub.bucket.vbuckets.get(number)
        if vbucket is None or not is_deposed(vbucket.state, vbucket.term, term):
            return
        if self._asked.get(number) != term:
            self._asked[number] = term
            told = partial(_told, link, number)
            link.ask(Opcode.UPR_GET_FAILOVER_LOG, told, vbucket=number)


def _told(link: Asker, number: int, reply: ResponseFrame) -> None:
    bucket = link.hub.bucket
    vbucket = bucket.vbuckets.get(number)
    if vbucket is None or reply.status:
        return
    theirs = link.read_log(reply.value)
    if shares_history(vbucket.failover_log, [entry.uuid for entry in theirs]):
        bucket.learn_term(vbucket, decode_term(reply.extras))
