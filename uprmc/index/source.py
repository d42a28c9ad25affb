"""What the nodes say that an index reads from: which vBuckets they have, logs, what is persisted.

Streams tell nothing of vBuckets that are not followed yet, so the nodes are asked now and then, and
when a request cannot wait for that. Asking blocks: it is done in a thread, one question at a time,
over connections that are kept open. A node that does not answer keeps what it told last.

Source: systems reference c.7, c.8; acceptance rows I16, I27.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.index.source_nodes import Connections
from uprmc.login.credentials import Credentials
from uprmc.model import FailoverLog, VBucketState
from uprmc.protocol.binary import decode_hello, encode_hello
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.management import (
    VBUCKET_SEQNOS_EXTRAS,
    decode_vbucket_seqno_terms,
    decode_vbucket_seqnos,
)
from uprmc.protocol.opcodes import Feature, Opcode
from uprmc.remote.history import read_log
from uprmc.remote.placement import OtherBucket, Placement

_PERSISTED_GROUP = "vbucket-seqno"
_PERSISTED = ":last_persisted_seqno"

_Result = TypeVar("_Result")


class Told(NamedTuple):
    """What one node has.

    Attributes:
        active: the term of each vBucket.
        replicas: vBuckets.
        seqnos: high seqno of those that are active.
        total: vBuckets that the bucket has, 0 = it does not say.
    """

    active: Mapping[int, int]
    replicas: frozenset[int]
    seqnos: Mapping[int, int]
    total: int


class _Survey(NamedTuple):
    """What all nodes together have.

    Attributes:
        told: by node, as told last.
        silent: why nodes have not answered this time.
        places: the node to ask for each vBucket, where there is one.
        doubtful: vBuckets of which a node that is silent may be the one to ask.
        disputes: why there is none for others that nodes have active.
        terms: the highest of each that was ever heard of.
    """

    told: Mapping[str, Told]
    silent: Mapping[str, str]
    places: Mapping[int, str]
    doubtful: frozenset[int]
    disputes: tuple[str, ...]
    terms: Mapping[int, int]


class Source:
    """See the module docstring. Its methods are for the reactor's thread.

    Args:
        reactor: whose.
        places: HOST:PORT of nodes.
        poll_s: they are asked this often.
        tls: how to speak to them, ``None`` = without TLS.
        on_change: called when other vBuckets are active or replicas than before.
        credentials: who logs in to them, ``None`` = nobody.

    Attributes:
        places, tls, credentials: as given.
        error: why the node that failed last did, ``""`` = all have answered.
        rounds: how often all of them were asked. Any thread may read it.
        version: counts the changes of what they have.
        active: vBuckets that are active on any of the nodes.
        replicas: vBuckets that a node has as a replica and none as active.
        seqnos: the high seqno of each active vBucket, as told last. Any thread may read it.
        terms: the highest term of each.
    """

    def __init__(
        self,
        reactor: Any,
        places: Iterable[str],
        poll_s: float,
        tls: ssl.SSLContext | None,
        on_change: Callable[[], None],
        credentials: Credentials | None = None,
    ) -> None:
        self.credentials = credentials
        self.places = list(places)
        self.error = ""
        self.rounds = self.version = 0
        self.active: frozenset[int] = frozenset()
        self.replicas: frozenset[int] = frozenset()
        self.seqnos: Mapping[int, int] = {}
        self.terms: Mapping[int, int] = {}
        self._reactor, self._poll_s, self.tls, self._on_change = reactor, poll_s, tls, on_change
        self._pool = ThreadPool(0, 1, "uprmc-index-source")
        self._connections = Connections(tls, credentials)
        self._placement = Placement(self.places)
        self._survey = _Survey({}, {}, {}, frozenset(), (), {})
        self._refreshing: Deferred[None] | None = None
        self._waiting: list[Deferred[None]] = []
        self._timer: Any = None
        self._stopped = False

    def start(self) -> None:
        """Begin to ask."""
        self._pool.start()
        self._poll()

    def stop(self) -> None:
        """Ask no more, hang up."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._pool.stop()
        self._connections.close()

    # --- what they have -------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether any node has told what it has."""
        return bool(self._survey.told)

    @property
    def is_complete(self) -> bool:
        """Whether no vBucket can be active at a node that has said nothing so far."""
        survey = self._survey
        if len(survey.told) == len(self.places):
            return True
        return bool(self.total) and self.active >= frozenset(range(self.total))

    @property
    def total(self) -> int:
        """How many vBuckets the bucket has, 0 = not known yet."""
        return max((told.total for told in self._survey.told.values()), default=0)

    def place_of(self, vbucket: int) -> str:
        """Return the node to ask for a vBucket, ``""`` = there is none. Any thread may call it."""
        return self._survey.places.get(vbucket, "")

    def refresh(self) -> Deferred[None]:
        """Ask all nodes; fires when they have answered or failed, never fails.

        A round that has begun already does not count: it may have asked before this call.
        """
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        if self._refreshing is None:
            self._begin()
        return done

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._stopped:
            for done in waiting:
                done.callback(None)
            return
        asked = self._do(self._ask_all).addCallback(self._took).addErrback(self._failed)
        self._refreshing = asked
        asked.addCallback(lambda _: self._told_all(waiting))

    def _told_all(self, waiting: list[Deferred[None]]) -> None:
        self._refreshing = None
        for done in waiting:
            done.callback(None)
        if self._waiting:
            self._begin()

    def _took(self, found: _Survey) -> None:
        before, self._survey = self._survey, found
        self.rounds += 1
        self.error = next(reversed([*found.silent.values(), *found.disputes]), "")
        self.terms = found.terms
        self.seqnos = {
            vbucket: found.told[place].seqnos[vbucket] for vbucket, place in found.places.items()
        }
        if _held(before) != _held(found):
            self._have_changed()

    def _have_changed(self) -> None:
        told = self._survey.told.values()
        self.version += 1
        self.active = frozenset(number for each in told for number in each.active)
        replicas = frozenset(number for each in told for number in each.replicas)
        self.replicas = replicas - self.active
        if not self._stopped:
            self._on_change()

    def _failed(self, failure: Any) -> None:
        self.error = str(failure.value)

    def _poll(self) -> None:
        if not self._stopped:
            done = self.refresh()
            done.addCallback(lambda _: self._again())

    def _again(self) -> None:
        if not self._stopped:
            self._timer = self._reactor.callLater(self._poll_s, self._poll)

    # --- questions ------------------------------------------------------------------------------

    def failover_logs(self, vbuckets: Iterable[int]) -> Deferred[dict[int, FailoverLog]]:
        """Fire with the logs of vBuckets, as they are after this call.

        Those are missing that cannot be had for certain: their node does not answer, or another one
        that does not may have been promoted.
        """
        wanted = list(vbuckets)
        asked: Deferred[dict[int, FailoverLog]] = self.refresh().addCallback(
            lambda _: self._do(self._ask_logs, wanted)
        )
        return asked

    def persisted(self) -> Deferred[dict[int, int]]:
        """Fire with how far vBuckets are on their nodes' disks, as far as these say."""
        return self._do(self._ask_persisted)

    def _do(self, what: Callable[..., _Result], *given: Any) -> Deferred[_Result]:
        return deferToThreadPool(self._reactor, self._pool, what, *given)

    # --- in the thread --------------------------------------------------------------------------

    def _ask_all(self) -> _Survey:
        told, silent = dict(self._survey.told), {}
        for place in self.places:
            try:
                found = self._connections.ask(place, self._told_by)
                self._placement.take_count(place, found.total)
                told[place] = found
            except (NodeError, OtherBucket) as error:
                silent[place] = str(error)
        return self._settled(told, silent)

    def _settled(self, told: Mapping[str, Told], silent: Mapping[str, str]) -> _Survey:
        """Find the node to ask for each vBucket, by the one rule that there is (`placement`).

        A node that is silent keeps what it told last, unless one that answers has as high a term.
        """
        claims = {place: dict(each.active) for place, each in told.items()}
        answering = [claims[place] for place in claims if place not in silent]
        for place in silent:
            said = claims.get(place, {})
            for vbucket in [*said]:
                if any(each.get(vbucket, -1) >= said[vbucket] for each in answering):
                    del said[vbucket]
        self._placement.settle(claims, self._logs_at)
        for place, frames in self._placement.to_tell(self._logs_at).items():
            self._tell(place, frames)
        choices = self._placement.choices
        doubtful = {
            vbucket
            for vbucket, choice in choices.items()
            for place in silent
            if place not in told or (vbucket not in told[place].active and choice.place != place)
        }
        return _Survey(
            told,
            silent,
            {vbucket: choice.place for vbucket, choice in choices.items() if choice.place},
            frozenset(doubtful),
            tuple(choice.why for choice in choices.values() if not choice.place),
            dict(self._placement.terms),
        )

    def _tell(self, place: str, frames: list[RequestFrame]) -> None:
        """Tell a node that it was deposed; one that does not hear it is told the next time."""
        with suppress(NodeError):
            self._connections.ask(place, lambda connection: list(connection.ask_all(frames)))

    def _told_by(self, connection: NodeConnection) -> Told:
        """Ask a node what it has."""
        hello = RequestFrame(Opcode.HELLO, key=b"uprmc-index", value=encode_hello([Feature.TERMS]))
        greeting, *answers = connection.ask_all([hello, *map(_seqnos_of, _STATES)])
        for answer in answers:
            if answer.status:
                raise NodeError(
                    f"the node at {connection.place} does not tell its vBuckets: {answer.reason}"
                )
        with_terms = not greeting.status and Feature.TERMS in decode_hello(greeting.value)
        active, replicas = [_numbers_in(answer.value, with_terms) for answer in answers]
        return Told(
            {vbucket: term for vbucket, _, term in active},
            frozenset(vbucket for vbucket, _, _ in replicas),
            {vbucket: seqno for vbucket, seqno, _ in active},
            self._total(connection),
        )

    def _total(self, connection: NodeConnection) -> int:
        """Return the number of vBuckets; asked once, since it does not change."""
        told = self._survey.told.get(connection.place)
        if told is not None and told.total:
            return told.total
        return connection.vbuckets()

    def _logs_at(self, place: str, vbuckets: list[int]) -> dict[int, FailoverLog]:
        asked = [RequestFrame(Opcode.GET_FAILOVER_LOG, vbucket=number) for number in vbuckets]

        def question(connection: NodeConnection) -> dict[int, FailoverLog]:
            answers = zip(vbuckets, connection.ask_all(asked), strict=True)
            return {vb: read_log(answer.value) for vb, answer in answers if not answer.status}

        try:
            return self._connections.ask(place, question)
        except NodeError:
            return {}

    def _ask_logs(self, vbuckets: list[int]) -> dict[int, FailoverLog]:
        survey = self._survey
        by_place: dict[str, list[int]] = {}
        for vbucket in vbuckets:
            place = survey.places.get(vbucket)
            if place is not None and vbucket not in survey.doubtful:
                by_place.setdefault(place, []).append(vbucket)
        found: dict[int, FailoverLog] = {}
        for place, some in by_place.items():
            found |= self._logs_at(place, some)
        return found

    def _ask_persisted(self) -> dict[int, int]:
        survey = self._survey
        found: dict[int, int] = {}
        for place in dict.fromkeys(survey.places.values()):
            try:
                told = self._connections.ask(place, _persisted_at)
            except NodeError:
                continue
            found |= {vb: seqno for vb, seqno in told.items() if survey.places.get(vb) == place}
        return found


_STATES = (VBucketState.ACTIVE, VBucketState.REPLICA)


def _seqnos_of(state: VBucketState) -> RequestFrame:
    return RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=VBUCKET_SEQNOS_EXTRAS.pack(state))


def _numbers_in(value: bytes, with_terms: bool) -> list[tuple[int, int, int]]:
    """Return (vBucket, high seqno, term)."""
    if with_terms:
        return list(decode_vbucket_seqno_terms(value))
    return [(number, seqno, 0) for number, seqno in decode_vbucket_seqnos(value)]


def _persisted_at(connection: NodeConnection) -> dict[int, int]:
    return {
        int(name[len("vb_") : -len(_PERSISTED)]): int(text)
        for name, text in connection.statistics(_PERSISTED_GROUP)
        if name.startswith("vb_") and name.endswith(_PERSISTED)
    }


def _held(survey: _Survey) -> dict[str, tuple[frozenset[int], frozenset[int]]]:
    """Return which vBuckets nodes have, to compare."""
    return {place: (frozenset(each.active), each.replicas) for place, each in survey.told.items()}
