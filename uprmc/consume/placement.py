"""Which node to use for a vBucket, of those that say it is active there.

A promotion gives a vBucket a higher term, and nothing else does: no restart, no crash. So the
highest term is right. Of equal ones that node is right whose failover log holds the other's newest
entry: its history goes on where the other's ended. Where neither does, two were promoted by hand
and no node can be chosen. A node that knows no terms counts as term 0.

A choice means something only once every node that is known has told what it has or has failed, and
a connection that was kept open and failed has been dialled once more: that is for the caller to see
to.

Source: ``docs/extensions.md``, terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Entries (vb_uuid, seqno), newest first.
Log = Sequence[tuple[int, int]]


class Claim(NamedTuple):
    """A node says that a vBucket is active there.

    Attributes:
        place: HOST:PORT of the node.
        term: 0 = it knows none.
        log: the vBucket's failover log there; empty = it was not asked for.
    """

    place: str
    term: int = 0
    log: Log = ()


class Choice(NamedTuple):
    """What follows from the claims on one vBucket.

    Attributes:
        place: the node to use, ``""`` = none.
        why: why none, in words.
        undecided: nodes whose failover logs decide and were not asked for.
        claimed: whether any node says "active".
        deposed: a node with a lower term than is known. Asked for a stream with that term it
            refuses, and learns so that another one was promoted.
    """

    place: str = ""
    why: str = ""
    undecided: tuple[str, ...] = ()
    claimed: bool = True
    deposed: str = ""

    @property
    def disputed(self) -> bool:
        """Whether nodes say "active" and, whatever else they tell, none can be used."""
        return self.claimed and not self.place and not self.undecided


def chosen(vbucket: int, claims: Sequence[Claim], known_term: int = 0) -> Choice:
    """Return which node to use.

    Args:
        vbucket: whose claims they are; for the words only.
        claims: one for each node that says "active".
        known_term: the highest term that was ever heard of; claims below it are of no use.
    """
    if not claims:
        return Choice(why=f"vBucket {vbucket} is active at no node that answers", claimed=False)
    term = max(claim.term for claim in claims)
    if term < known_term:
        places = " and ".join(claim.place for claim in claims)
        return Choice(
            why=f"vBucket {vbucket}: {places} served it before another node was promoted: term "
            f"{term}, and there is a term {known_term}; name the node that was promoted",
            deposed=claims[0].place,
        )
    leaders = [claim for claim in claims if claim.term == term]
    if len(leaders) == 1:
        return Choice(leaders[0].place)
    if not all(claim.log for claim in leaders):
        return Choice(
            why=f"vBucket {vbucket} has several active nodes, and one does not tell its history",
            undecided=tuple(claim.place for claim in leaders),
        )
    return _of_equals(vbucket, leaders)


def _of_equals(vbucket: int, leaders: Sequence[Claim]) -> Choice:
    """Choose by history; a node that is known by two names has the same one, and the first does."""
    for one in leaders:
        if all(holds(one.log, other.log) for other in leaders):
            return Choice(one.place)
    places = " and ".join(claim.place for claim in leaders)
    return Choice(
        why=f"vBucket {vbucket}: {places} both have it active with term {leaders[0].term}, and "
        "neither history goes on from the other: make one of them a replica"
    )


def holds(log: Log, other: Log) -> bool:
    """Return whether a history knows the newest branch of another."""
    return any(uuid == other[0][0] for uuid, _ in log)
