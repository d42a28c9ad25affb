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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr_extensions import TERMS_MAX, encode_terms
from uprmc.remote.cluster_map import map_of

#: More nodes are not believed in.
NODES_MAX = 256

#: So many entries of a failover log are told to a node that was deposed.
_HISTORIES_MAX = 25

#: Entries (vb_uuid, seqno), newest first.
Log = Sequence[tuple[int, int]]

#: Asks a node for the failover logs of vBuckets; what it does not tell is left out.
LogsAt = Callable[[str, list[int]], Mapping[int, Log]]


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


# --- telling a node that was deposed ------------------------------------------------------------


def telling(rows: Iterable[tuple[int, int, Log]]) -> list[RequestFrame]:
    """Return what tells a node of promotions that it has missed.

    It makes the vBuckets dead of which it shares a history. Older nodes refuse the request.

    Args:
        rows: vBucket, the term of the node that was promoted, and its failover log.
    """
    told = [
        (vbucket, term, uuid) for vbucket, term, log in rows for uuid, _ in log[:_HISTORIES_MAX]
    ]
    return [
        RequestFrame(Opcode.TELL_TERMS, value=encode_terms(told[first : first + TERMS_MAX]))
        for first in range(0, len(told), TERMS_MAX)
    ]


# --- all vBuckets of a bucket -------------------------------------------------------------------


class OtherBucket(ValueError):
    """A node is not of the bucket that the others are of."""


class Placement:
    """Which node has which vBucket, for those who ask all nodes one after the other.

    Args:
        places: HOST:PORT of the nodes that were named.
        vbuckets: how many there are in all; 0 = a map will say.
        terms: the highest that are known from elsewhere, by vBucket.

    Attributes:
        places: every node that is known; grows with what maps name.
        vbuckets: see above.
        terms: the highest that was ever heard of, by vBucket.
        choices: by vBucket, of each that a node says is active.
    """

    def __init__(
        self, places: Iterable[str], vbuckets: int = 0, terms: Mapping[int, int] | None = None
    ) -> None:
        self.places = list(dict.fromkeys(places))
        self.vbuckets = vbuckets
        self.terms = dict(terms or {})
        self.choices: dict[int, Choice] = {}
        self._late: dict[str, list[int]] = {}
        self._told: dict[tuple[str, int], int] = {}

    def take_map(self, place: str, answer: ResponseFrame) -> None:
        """Take from a node's map how many vBuckets there are, and which other nodes.

        Raises:
            OtherBucket: it has another number of vBuckets than is known.
        """
        found = map_of(answer)
        if found is None:
            return
        self.take_count(place, found.vbuckets)
        self._heard_of(dict(enumerate(found.terms)))
        for other in found.places(place):
            if other not in self.places and len(self.places) < NODES_MAX:
                self.places.append(other)

    def take_count(self, place: str, count: int) -> None:
        """Learn how many vBuckets a node has, 0 = it does not say; raises `OtherBucket`."""
        self.vbuckets = self.vbuckets or count
        if count and count != self.vbuckets:
            raise OtherBucket(
                f"{place} has {count} vBuckets, not {self.vbuckets}: it "
                "belongs to another bucket; leave it out"
            )

    def check_active(self, place: str, vbuckets: Iterable[int]) -> None:
        """Compare what a node has active with the number that there is; raises `OtherBucket`.

        Under a map that is too short keys would be looked for, and stored, where nobody else does.
        """
        highest = max(vbuckets, default=-1)
        if highest >= self.vbuckets > 0:
            raise OtherBucket(
                f"{place} has vBucket {highest}, and by its cluster map there are only "
                f"{self.vbuckets}: set another map there"
            )

    def settle(self, told: Mapping[str, Mapping[int, int]], logs_at: LogsAt) -> None:
        """Choose for each vBucket by terms, and where these are equal by failover logs.

        Args:
            told: by node, the term of each vBucket that it has active.
            logs_at: asks for logs where terms do not decide.
        """
        claims: dict[int, list[Claim]] = {}
        for place, terms in told.items():
            self._heard_of(terms)
            for vbucket, term in terms.items():
                claims.setdefault(vbucket, []).append(Claim(place, term))
        self.choices = {n: chosen(n, each, self.terms.get(n, 0)) for n, each in claims.items()}
        wanted: dict[str, list[int]] = {}
        for vbucket, choice in self.choices.items():
            for place in choice.undecided:
                wanted.setdefault(place, []).append(vbucket)
        self._late = {
            place: late
            for place, terms in told.items()
            if (late := [n for n, term in terms.items() if self._is_news(place, n, term)])
        }
        logs = {place: logs_at(place, numbers) for place, numbers in wanted.items()}
        for vbucket in {number for numbers in wanted.values() for number in numbers}:
            known = [
                each._replace(log=logs.get(each.place, {}).get(vbucket, ()))
                for each in claims[vbucket]
            ]
            self.choices[vbucket] = chosen(vbucket, known, self.terms.get(vbucket, 0))

    def _is_news(self, place: str, vbucket: int, term: int) -> bool:
        """Return whether a node, which knows terms, may be told of a higher one."""
        highest = self.terms.get(vbucket, 0)
        return 0 < term < highest and self._told.get((place, vbucket), 0) < highest

    def to_tell(self, logs_at: LogsAt) -> dict[str, list[RequestFrame]]:
        """Return what is to be sent to nodes that do not know of a promotion; each only once.

        Whoever has `settle`d calls this at the end.
        """
        late, self._late = self._late, {}
        wanted: dict[str, list[int]] = {}
        for vbucket in {number for numbers in late.values() for number in numbers}:
            if place := self.choices[vbucket].place:
                wanted.setdefault(place, []).append(vbucket)
        logs = {n: log for at, numbers in wanted.items() for n, log in logs_at(at, numbers).items()}
        found = {}
        for place, numbers in late.items():
            rows = [(n, self.terms[n], logs[n]) for n in numbers if logs.get(n)]
            if rows:
                found[place] = telling(rows)
                self._told |= {(place, number): term for number, term, _ in rows}
        return found

    def _heard_of(self, terms: Mapping[int, int]) -> None:
        for vbucket, term in terms.items():
            if term > self.terms.get(vbucket, 0):
                self.terms[vbucket] = term
