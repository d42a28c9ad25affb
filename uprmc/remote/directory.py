"""Who has which vBucket: facts of nodes in, answers out, for all who ask nodes what they have.

A promotion gives a vBucket a higher term, and nothing else does: no restart, no crash. So of the
nodes that say a vBucket is active there, the one with the highest term is right. Of equal ones that
node is right whose failover log holds the other's newest entry: its history goes on where the
other's ended. Where neither does, two were promoted by hand and no node can be chosen. A node that
knows no terms counts as term 0.

A choice means something only once every node that is known has told what it has or has failed
(`Directory.settled`). `Directory.survey` is the procedure that asks them all, whatever carries the
questions; whoever hears of nodes one by one hands over what each tells (`told`, `lost`).

No socket, no clock, and nothing about those who ask.

See `docs/extensions.md`, terms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from uprmc.errors import RemoteProtocolError
from uprmc.model import VBucketState
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import (
    VBUCKET_SEQNOS_EXTRAS,
    decode_vbucket_seqno_terms,
    decode_vbucket_seqnos,
)
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr_extensions import TERMS_MAX, encode_terms
from uprmc.remote.cluster_map import COUNT_GROUP, ClusterMap, count_in, map_in, map_of
from uprmc.remote.history import read_log
from uprmc.remote.ranges import named
from uprmc.remote.requests import Verdict, verdict

#: More nodes are not believed in.
NODES_MAX = 256

#: So many entries of a failover log are told to a node that was deposed.
_HISTORIES_MAX = 25

#: An error says of so many vBuckets why no node is used.
_REASONS_MAX = 5

_MAP = RequestFrame(Opcode.GET_CLUSTER_CONFIG)

#: Of GET_ALL_VB_SEQNOS: vBuckets in any state but dead.
ANY_STATE = 0

#: Entries (vb_uuid, seqno), newest first.
Log = Sequence[tuple[int, int]]


# --- the rule -------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """A node says that a vBucket is active there."""

    place: str
    term: int = 0  # 0 = it knows none
    log: Log = ()  # the vBucket's failover log there; empty = it was not asked for


class Choice(NamedTuple):
    """What follows from the claims on one vBucket."""

    place: str = ""  # the node to use, "" = none
    why: str = ""  # why none, in words
    undecided: tuple[str, ...] = ()  # nodes whose failover logs decide and were not asked for
    claimed: bool = True  # whether any node says "active"
    # A node with a lower term than is known. Asked for a stream with that term it refuses, and
    # learns so that another one was promoted.
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


# --- facts ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class NodeHoldings:
    """What one node has told of its vBuckets."""

    # (high seqno, term) of each that is active; term 0 = the node knows none.
    active: dict[int, tuple[int, int]] = field(default_factory=dict)
    # High seqno of each replica, if the node was asked for them.
    replicas: dict[int, int] = field(default_factory=dict)
    # Failover logs, of those it was asked for.
    logs: dict[int, Log] = field(default_factory=dict)
    # vBuckets in any state but dead, if the node was asked for them.
    present: frozenset[int] = frozenset()

    def term(self, vbucket: int) -> int:
        """Return the term of a vBucket that is active there, 0 = it knows none."""
        return self.active.get(vbucket, (0, 0))[1]


class Why(Enum):
    """Why a node has not told what it has."""

    LOST = auto()  # it does not answer
    LATER = auto()  # it asks to come again later
    REFUSED = auto()
    NONSENSE = auto()
    FOREIGN = auto()  # it is of another bucket than the others


class NotTold(NamedTuple):
    """A node has not told what it has."""

    why: Why
    words: str
    error: Exception | None = None  # what the connection failed with


class Missing(NamedTuple):
    """vBuckets that no node can be used for; the text says of each kind why."""

    nowhere: tuple[int, ...]  # active at no node that has told
    refused: Mapping[int, str]  # some node says "active", and why it is not used
    beyond: tuple[int, ...]  # the bucket has no such vBuckets
    vbuckets: int
    places: tuple[str, ...]
    unasked: tuple[str, ...]  # nodes that were not asked
    silent: tuple[str, ...]  # why nodes have not told

    @property
    def numbers(self) -> list[int]:
        """All of them, ascending."""
        return sorted([*self.nowhere, *self.refused, *self.beyond])

    def __str__(self) -> str:
        words = []
        if self.beyond:
            words.append(f"{named(self.beyond)}: there are only {self.vbuckets}")
        if self.nowhere:
            are = "is" if len(self.nowhere) == 1 else "are"
            nodes = ", ".join(self.places)
            words.append(f"{named(self.nowhere)} {are} active at none of {nodes}")
        reasons = list(dict.fromkeys(self.refused.values()))
        words += reasons[:_REASONS_MAX]
        if len(reasons) > _REASONS_MAX:
            words.append(f"and {len(reasons) - _REASONS_MAX} vBuckets more like these")
        words += [f"{place} was not asked" for place in self.unasked]
        return "; ".join([*words, *self.silent])


class News(NamedTuple):
    """What a node that was deposed is told: the term and history of the one that was promoted."""

    vbucket: int
    term: int
    log: Log


class OtherBucket(ValueError):
    """A node is not of the bucket that the others are of."""


class Directory:
    """See the module docstring.

    Args:
        places: HOST:PORT of the nodes that were named.
        vbuckets: how many there are in all; 0 = the nodes tell.
        terms: the highest that are known from elsewhere, by vBucket.
        learns: whether nodes that maps name are asked, too.
        remembers: whether what a node told last counts while it does not answer, unless one that
            answers has as high a term.
    """

    def __init__(
        self,
        places: Iterable[str],
        vbuckets: int = 0,
        terms: Mapping[int, int] | None = None,
        *,
        learns: bool = True,
        remembers: bool = False,
    ) -> None:
        self.places = list(dict.fromkeys(places))
        self.vbuckets = vbuckets
        self.terms = dict(terms or {})  # the highest that was ever heard of, by vBucket
        self.facts: dict[str, NodeHoldings] = {}  # by node, what it has told
        self.silent: dict[str, NotTold] = {}  # nodes that have not when they were asked last
        self._learns, self._remembers = learns, remembers
        self._choices: dict[int, Choice] = {}
        self._counted: set[str] = set()  # nodes that have told how many vBuckets there are
        self._deposed: dict[tuple[str, int], int] = {}  # of which terms nodes were told

    # --- facts in -------------------------------------------------------------------------------

    def take_map(self, place: str, found: ClusterMap) -> None:
        """Take from a node's map how many vBuckets there are, terms, and which other nodes.

        Raises:
            OtherBucket: it has another number of vBuckets than is known.
        """
        self.take_count(place, found.vbuckets)
        self.heard_of(dict(enumerate(found.terms)))
        for other in found.places(place) if self._learns else ():
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
        self._counted.add(place)

    def told(self, place: str, facts: NodeHoldings) -> None:
        """A node has told what it has."""
        before, silence = self.facts.get(place), self.silent.pop(place, None)
        self.facts[place] = facts
        terms = {number: term for number, (_, term) in facts.active.items()}
        self.heard_of(terms)
        if before is None or silence is not None:
            self._choices.clear()
            return
        said = {number: term for number, (_, term) in before.active.items()}
        for number in before.logs.keys() | dict(terms.items() ^ said.items()).keys():
            self._choices.pop(number, None)

    def take_logs(self, place: str, logs: Mapping[int, Log]) -> None:
        """A node has told failover logs."""
        if place in self.facts:
            self.facts[place].logs |= logs
        for number in logs:
            self._choices.pop(number, None)

    def lost(self, place: str, silence: NotTold) -> None:
        """A node does not tell what it has."""
        self.silent[place] = silence
        self._forget_news(place)
        if not self._remembers:
            self.facts.pop(place, None)
        self._choices.clear()

    def asks_again(self, place: str) -> None:
        """A node is asked again: what it told is too old."""
        self.facts.pop(place, None)
        self.silent.pop(place, None)
        self._choices.clear()

    def not_mine(self, place: str, vbucket: int, value: bytes) -> bool:
        """A node has answered NOT_MY_VBUCKET, with this value: perhaps a map.

        Returns:
            whether the map names a node to try next. If not, all have to be asked again.
        """
        if place in self.facts:
            self.facts[place].active.pop(vbucket, None)
            self.facts[place].replicas.pop(vbucket, None)
        found = map_in(value) if value[:1] == b"{" else None
        if found is not None:
            try:
                self.take_map(place, found)
            except OtherBucket:
                found = None
        self._choices.pop(vbucket, None)
        if found is None or not 0 < found.term(vbucket) == self.terms.get(vbucket, 0):
            return False  # only who knows terms knows that nobody was promoted since
        owner = found.owner(vbucket, place)
        if owner == place or owner not in self.places:
            return False
        self.facts.setdefault(owner, NodeHoldings()).active[vbucket] = (0, found.term(vbucket))
        return self.choice(vbucket).place == owner

    def heard_of(self, terms: Mapping[int, int]) -> None:
        """Learn terms that somebody has, by vBucket."""
        for vbucket, term in terms.items():
            if term > self.terms.get(vbucket, 0):
                self.terms[vbucket] = term
                self._choices.pop(vbucket, None)

    # --- answers out ----------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether each node that is known has told what it has, or has failed."""
        return all(place in self.facts or place in self.silent for place in self.places)

    def choice(self, vbucket: int) -> Choice:
        """Return which node to use for a vBucket; it means something once `settled`."""
        found = self._choices.get(vbucket)
        if found is None:
            claims = self._claims(vbucket)
            found = self._choices[vbucket] = chosen(vbucket, claims, self.terms.get(vbucket, 0))
        return found

    def _claims(self, vbucket: int) -> list[Claim]:
        claims = [
            Claim(place, facts.active[vbucket][1], facts.logs.get(vbucket, ()))
            for place in self.places
            if (facts := self.facts.get(place)) is not None and vbucket in facts.active
        ]
        if not (self.silent and self._remembers):
            return claims
        said = max((each.term for each in claims if each.place not in self.silent), default=-1)
        return [each for each in claims if each.place not in self.silent or each.term > said]

    def claimed(self) -> set[int]:
        """Return the vBuckets that any node says it has active."""
        return {number for facts in self.facts.values() for number in facts.active}

    def numbers(self) -> set[int]:
        """Return the vBuckets that there are: of the bucket, as maps tell, and all of any node."""
        held = self.facts.values()
        return self.claimed().union(range(self.vbuckets), *(facts.present for facts in held))

    def owners(self) -> dict[int, str]:
        """Return the node to use of each vBucket that there is one for, by number."""
        choices = ((number, self.choice(number).place) for number in sorted(self.claimed()))
        return {number: place for number, place in choices if place}

    def replica(self, vbucket: int) -> str:
        """Return the node with the newest replica of a vBucket that is active nowhere, "" = none.

        It means something once `settled`.
        """
        found = self.facts.items()
        if any(vbucket in facts.active for _, facts in found):
            return ""
        newest = {
            place: facts.replicas[vbucket] for place, facts in found if vbucket in facts.replicas
        }
        return max(newest, key=newest.__getitem__, default="")

    def seqno(self, vbucket: int) -> int:
        """Return the high seqno of a vBucket at the node to use."""
        return self.facts[self.choice(vbucket).place].active[vbucket][0]

    def missing(self, vbuckets: Iterable[int]) -> Missing | None:
        """Return which of some vBuckets no node can be used for, ``None`` = there are none."""
        nowhere, beyond, refused = [], [], {}
        for number in sorted(set(vbuckets)):
            choice = self.choice(number)
            if choice.place:
                continue
            if self.vbuckets and number >= self.vbuckets:
                beyond.append(number)
            elif choice.claimed:
                refused[number] = choice.why
            else:
                nowhere.append(number)
        if not (nowhere or beyond or refused):
            return None
        unasked = [each for each in self.places if each not in self.facts | self.silent]
        return Missing(
            tuple(nowhere),
            refused,
            tuple(beyond),
            self.vbuckets,
            tuple(self.places),
            tuple(unasked),
            tuple(dict.fromkeys(each.words for each in self.silent.values())),
        )

    def undecided(self) -> dict[str, list[int]]:
        """Return of which vBuckets nodes are to be asked for failover logs, by node."""
        found: dict[str, list[int]] = {}
        for vbucket in sorted(self.claimed()) if len(self.facts) > 1 else ():
            for place in self.choice(vbucket).undecided:
                found.setdefault(place, []).append(vbucket)
        return found

    def deposed(self) -> dict[str, list[int]]:
        """Return which nodes were not told of a promotion that they have missed, by vBuckets."""
        found: dict[str, list[int]] = {}
        for place, facts in self.facts.items():
            for number, (_, term) in facts.active.items():
                highest = self.terms.get(number, 0)
                if 0 < term < highest and self._deposed.get((place, number), 0) < highest:
                    found.setdefault(place, []).append(number)
        return found

    # --- asking all nodes -----------------------------------------------------------------------

    def survey(self, *, maps: bool = True, replicas_at: Collection[str] = ()) -> Survey:
        """Ask every node what it has, and tell those that were deposed.

        Args:
            maps: whether to ask for cluster maps, too.
            replicas_at: nodes that are asked for their replicas, too.
        """
        for place in self.places:  # grows with what the maps of the first ones name
            others = (VBucketState.REPLICA,) if place in replicas_at else ()
            yield from self.ask(place, others, maps=maps)
        yield from self.compare()

    def ask(self, place: str, others: Sequence[int] = (), *, maps: bool) -> Survey:
        """Ask one node what it has.

        Args:
            place: which.
            others: `VBucketState.REPLICA` or `ANY_STATE`, if those are wanted, too.
            maps: whether to ask for its cluster map, too.
        """
        silence = yield from self._ask(place, others, maps=maps)
        if silence is not None:
            self.lost(place, silence)

    def _ask(
        self, place: str, others: Sequence[int], *, maps: bool
    ) -> Generator[NodeQuestion, Heard | Unanswered, NotTold | None]:
        states = (VBucketState.ACTIVE, *others)
        asked = [_MAP] if maps else []
        heard = yield NodeQuestion(place, [*asked, *map(seqnos_request, states)])
        if isinstance(heard, Unanswered):
            return NotTold(Why.LOST, heard.words, heard.error)
        answers = list(heard.answers)
        found = map_of(answers.pop(0)) if maps else None
        try:
            if found is not None:
                self.take_map(place, found)
            elif place not in self._counted:
                counted = yield NodeQuestion(place, group=COUNT_GROUP)
                if isinstance(counted, Unanswered):
                    return NotTold(Why.LOST, counted.words, counted.error)
                self.take_count(place, count_in(counted.statistics))
        except OtherBucket as error:
            return NotTold(Why.FOREIGN, f"the node at {error}")
        return self._take_seqnos(place, states, answers, knows_terms=heard.knows_terms)

    def _take_seqnos(
        self,
        place: str,
        states: Sequence[int],
        answers: Sequence[ResponseFrame],
        *,
        knows_terms: bool,
    ) -> NotTold | None:
        rows: dict[int, list[tuple[int, int, int]]] = {}
        for state, answer in zip(states, answers, strict=True):
            if answer.status:
                words = f"the node at {place} does not tell its vBuckets: {answer.reason}"
                again = verdict(answer.status) is Verdict.AGAIN
                return NotTold(Why.LATER if again else Why.REFUSED, words)
            try:
                rows[state] = seqno_rows(answer.value, knows_terms=knows_terms)
            except RemoteProtocolError:
                return NotTold(Why.NONSENSE, f"the node at {place} sent a torn list of seqnos")
        active = {number: (seqno, term) for number, seqno, term in rows[VBucketState.ACTIVE]}
        if (highest := max(active, default=-1)) >= self.vbuckets > 0:
            # Keys would be looked for, and stored, elsewhere.
            words = (
                f"{place} has vBucket {highest}, and by its cluster map there are only "
                f"{self.vbuckets}: set another map there"
            )
            return NotTold(Why.FOREIGN, f"the node at {words}")
        replicas = {number: seqno for number, seqno, _ in rows.get(VBucketState.REPLICA, ())}
        present = frozenset(number for number, _, _ in rows.get(ANY_STATE, ()))
        self.told(place, NodeHoldings(active, replicas, present=present))
        return None

    def compare(self) -> Survey:
        """Ask for the histories that decide, and tell nodes of promotions that they have missed."""
        yield from self._ask_logs(self.undecided())
        late = self.deposed()
        wanted: dict[str, list[int]] = {}
        for vbucket in sorted({number for numbers in late.values() for number in numbers}):
            place = self.choice(vbucket).place
            if place and vbucket not in self.facts[place].logs:
                wanted.setdefault(place, []).append(vbucket)
        yield from self._ask_logs(wanted)
        for place in late:
            if news := self.news(place):
                self.has_heard(place, news)  # it is told only once, whatever it makes of it
                if isinstance((yield NodeQuestion(place, telling(news))), Unanswered):
                    self._forget_news(place)

    def _ask_logs(self, wanted: Mapping[str, Sequence[int]]) -> Survey:
        """Ask for failover logs; what is not told is left out."""
        for place, numbers in wanted.items():
            heard = yield NodeQuestion(place, [log_request(number) for number in numbers])
            if isinstance(heard, Heard):
                self.take_logs(place, dict(_logs_in(numbers, heard.answers)))

    def news(self, place: str) -> list[News]:
        """Return of which promotions a node is to be told, where the history is known."""
        found = []
        for vbucket in self.deposed().get(place, ()):
            right = self.choice(vbucket).place
            if right and (log := self.facts[right].logs.get(vbucket)):
                found.append(News(vbucket, self.terms[vbucket], log))
        return found

    def has_heard(self, place: str, news: Iterable[News]) -> None:
        """A node is told no more of these, until it is lost."""
        self._deposed |= {(place, each.vbucket): each.term for each in news}

    def _forget_news(self, place: str) -> None:
        for told in [each for each in self._deposed if each[0] == place]:
            del self._deposed[told]


# --- questions ------------------------------------------------------------------------------------


class NodeQuestion(NamedTuple):
    """A question to a node: requests in one pipeline, or a group of its statistics."""

    place: str
    requests: Sequence[RequestFrame] = ()
    group: str = ""


class Heard(NamedTuple):
    """What a node has answered."""

    answers: Sequence[ResponseFrame] = ()  # one for each request, in their order
    statistics: Mapping[str, str] = {}  # none if the node does not tell them
    knows_terms: bool = False  # HELLO has granted `Feature.TERMS`


class Unanswered(NamedTuple):
    """There is no answer, and why: the node was dialled, and again if a connection was kept."""

    error: Exception
    words: str


#: Questions to nodes, one after the other; each is sent what came of it.
Survey = Generator[NodeQuestion, Heard | Unanswered, None]


def conduct(survey: Survey, put: Callable[[NodeQuestion], Heard | Unanswered]) -> None:
    """Put all the questions of a survey, with what blocks until each is answered or lost."""
    try:
        question = next(survey)
        while True:
            question = survey.send(put(question))
    except StopIteration:
        pass


def seqnos_request(state: int) -> RequestFrame:
    """Return what asks for the high seqnos of all vBuckets in a state."""
    return RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=VBUCKET_SEQNOS_EXTRAS.pack(state))


def seqno_rows(value: bytes, *, knows_terms: bool) -> list[tuple[int, int, int]]:
    """Read (vBucket, high seqno, term) in its answer; raises `RemoteProtocolError` if torn."""
    if knows_terms:
        return decode_vbucket_seqno_terms(value)
    return [(number, seqno, 0) for number, seqno in decode_vbucket_seqnos(value)]


def log_request(vbucket: int) -> RequestFrame:
    """Return what asks for a failover log."""
    return RequestFrame(Opcode.GET_FAILOVER_LOG, vbucket=vbucket)


def _logs_in(numbers: Sequence[int], answers: Sequence[ResponseFrame]) -> Iterator[tuple[int, Log]]:
    for number, answer in zip(numbers, answers, strict=True):
        if not answer.status:
            try:
                yield number, read_log(answer.value)
            except RemoteProtocolError:
                continue
