"""What the nodes say that an index reads from: which vBuckets they have, logs, what is persisted.

Streams tell nothing of vBuckets that are not followed yet, so the nodes are asked now and then, and
when a request cannot wait for that. Asking blocks: it is done in a thread, one question at a time,
over connections that are kept open. A node that does not answer keeps what it told last.

Source: systems reference c.7, c.8; acceptance rows I16, I27.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, KeysView, Mapping
from typing import Any, NamedTuple, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.consume.history import read_log
from uprmc.errors import RemoteProtocolError
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

#: A node that says nothing for this long is given up.
_ANSWER_S = 5.0

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
        self.version = 0
        self.active: frozenset[int] = frozenset()
        self.replicas: frozenset[int] = frozenset()
        self.seqnos: Mapping[int, int] = {}
        self.terms: Mapping[int, int] = {}
        self._reactor, self._poll_s, self.tls, self._on_change = reactor, poll_s, tls, on_change
        self._pool = ThreadPool(0, 1, "uprmc-index-source")
        self._connections: dict[str, NodeConnection] = {}
        self._with_terms: set[NodeConnection] = set()
        self._told: dict[str, Told] = {}
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
        for connection in self._connections.values():
            connection.close()

    # --- what they have -------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether any node has told what it has."""
        return bool(self._told)

    @property
    def total(self) -> int:
        """How many vBuckets the bucket has, 0 = not known yet."""
        return max((told.total for told in self._told.values()), default=0)

    def place_of(self, vbucket: int) -> str:
        """Return the node that has a vBucket active, by the highest term; any if none has."""
        terms = {place: told.active.get(vbucket, -1) for place, told in self._told.items()}
        return max(self.places, key=lambda place: terms.get(place, -1))

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

    def _took(self, found: dict[str, Told | str]) -> None:
        before = {place: _held(told) for place, told in self._told.items()}
        errors = [each for each in found.values() if isinstance(each, str)]
        self.error = errors[-1] if errors else ""
        self._told |= {place: told for place, told in found.items() if isinstance(told, Told)}
        seqnos: dict[int, int] = {}
        terms: dict[int, int] = {}
        for told in self._told.values():
            seqnos |= told.seqnos
            for vbucket, term in told.active.items():
                terms[vbucket] = max(term, terms.get(vbucket, 0))
        self.seqnos, self.terms = seqnos, terms
        if before != {place: _held(told) for place, told in self._told.items()}:
            self._have_changed()

    def _have_changed(self) -> None:
        told = self._told.values()
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
        """Fire with the logs of vBuckets where they are active; those not to be had are missing."""
        wanted = list(vbuckets)
        return self._do(lambda: self._ask_logs(wanted))

    def persisted(self) -> Deferred[dict[int, int]]:
        """Fire with how far active vBuckets are on their nodes' disks, as far as these say."""
        return self._do(self._ask_persisted)

    def _do(self, what: Callable[[], _Result]) -> Deferred[_Result]:
        return deferToThreadPool(self._reactor, self._pool, what)

    # --- in the thread --------------------------------------------------------------------------

    def _ask_all(self) -> dict[str, Told | str]:
        found: dict[str, Told | str] = {}
        for place in self.places:
            try:
                found[place] = self._ask_one(place)
            except (NodeError, RemoteProtocolError) as error:
                self._hang_up(place)
                found[place] = str(error)
        return found

    def _ask_one(self, place: str) -> Told:
        active = self._seqnos(place, VBucketState.ACTIVE)
        replicas = frozenset(number for number, _, _ in self._seqnos(place, VBucketState.REPLICA))
        terms = {number: term for number, _, term in active}
        seqnos = {number: seqno for number, seqno, _ in active}
        return Told(terms, replicas, seqnos, self._total(place))

    def _seqnos(self, place: str, state: VBucketState) -> list[tuple[int, int, int]]:
        """Return (vBucket, high seqno, term)."""
        extras = VBUCKET_SEQNOS_EXTRAS.pack(state)
        connection = self._at(place)
        answer = connection.ask(RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras))
        if answer.status:
            raise NodeError(f"the node at {place} does not tell its vBuckets: {answer.reason}")
        if connection in self._with_terms:
            return list(decode_vbucket_seqno_terms(answer.value))
        return [(number, seqno, 0) for number, seqno in decode_vbucket_seqnos(answer.value)]

    def _total(self, place: str) -> int:
        """Return the number of vBuckets; asked once, since it does not change."""
        told = self._told.get(place)
        if told is not None and told.total:
            return told.total
        return self._at(place).vbuckets()

    def _ask_logs(self, vbuckets: list[int]) -> dict[int, FailoverLog]:
        found: dict[int, FailoverLog] = {}
        for place in self._by_activity(vbuckets):
            left = [vbucket for vbucket in vbuckets if vbucket not in found]
            asked = [RequestFrame(Opcode.GET_FAILOVER_LOG, vbucket=number) for number in left]
            try:
                answers = list(self._at(place).ask_all(asked))
            except (NodeError, RemoteProtocolError):
                self._hang_up(place)
                continue
            for vbucket, answer in zip(left, answers, strict=True):
                if not answer.status:
                    found[vbucket] = read_log(answer.value)
        return found

    def _by_activity(self, vbuckets: list[int]) -> list[str]:
        """Return the nodes, those first that have vBuckets of these active."""
        wanted = frozenset(vbuckets)

        def passive(place: str) -> bool:
            told = self._told.get(place)
            return told is None or wanted.isdisjoint(told.active)

        return sorted(self.places, key=passive)

    def _ask_persisted(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for place in self.places:
            told = self._told.get(place)
            try:
                for name, text in self._at(place).statistics(_PERSISTED_GROUP):
                    if name.startswith("vb_") and name.endswith(_PERSISTED):
                        vbucket = int(name[len("vb_") : -len(_PERSISTED)])
                        if told is not None and vbucket in told.active:
                            found[vbucket] = int(text)
            except (NodeError, RemoteProtocolError, ValueError):
                self._hang_up(place)
        return found

    def _at(self, place: str) -> NodeConnection:
        connection = self._connections.get(place)
        if connection is None:
            connection = NodeConnection(place, _ANSWER_S, self.tls, self.credentials)
            self._connections[place] = connection
            value = encode_hello([Feature.TERMS])
            answer = connection.ask(RequestFrame(Opcode.HELLO, key=b"uprmc-index", value=value))
            if not answer.status and Feature.TERMS in decode_hello(answer.value):
                self._with_terms.add(connection)
        return connection

    def _hang_up(self, place: str) -> None:
        connection = self._connections.pop(place, None)
        if connection is not None:
            self._with_terms.discard(connection)
            connection.close()


def _held(told: Told) -> tuple[KeysView[int], frozenset[int]]:
    """Return which vBuckets a node has, to compare."""
    return told.active.keys(), told.replicas
