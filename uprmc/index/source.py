"""What the nodes say that an index reads from: which vBuckets they have, logs, what is persisted.

Streams tell nothing of vBuckets that are not followed yet, so the nodes are asked now and then, and
when a request cannot wait for that. Asking blocks: it is done in a thread, one question at a time,
over connections that are kept open. A node that does not answer counts as it was before.

Rows I16, I27.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.client.twisted_client import MakeEndpoint, over_tcp
from uprmc.errors import RemoteProtocolError
from uprmc.index.json_text import Unreadable, portable
from uprmc.index.model import Lost
from uprmc.login.credentials import Credentials
from uprmc.model import FailoverLog, vbucket_of
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import KEY_MAX_BYTES, Opcode, Status
from uprmc.remote import features
from uprmc.remote.blocking import KeptConnections
from uprmc.remote.directory import Directory, log_request
from uprmc.remote.history import read_log

# --- nodes ----------------------------------------------------------------------------------------
# How the nodes are reached whose documents are indexed.


#: A node that says nothing for this long is given up.
_ANSWER_S = 5.0


@dataclass(frozen=True)
class SourceNodes:
    """Nodes, and how to speak to them."""

    places: tuple[str, ...]  # HOST:PORT of their upr listeners
    endpoint: MakeEndpoint = over_tcp  # for streams
    tls: ssl.SSLContext | None = None  # for questions, ``None`` = without TLS
    credentials: Credentials | None = None  # who logs in, ``None`` = without a login


def questioning(tls: ssl.SSLContext | None, credentials: Credentials | None) -> KeptConnections:
    """Return connections for questions, which block."""

    def dial(place: str) -> NodeConnection:
        return NodeConnection(place, _ANSWER_S, tls, credentials, features.SURVEYOR, b"uprmc-index")

    return KeptConnections(dial)


_PERSISTED_GROUP = "vbucket-seqno"
_PERSISTED = ":last_persisted_seqno"

_Result = TypeVar("_Result")


class _Survey(NamedTuple):
    """What all nodes together have."""

    holdings: Mapping[str, tuple[frozenset[int], frozenset[int]]]  # by node: active, replicas
    errors: tuple[str, ...]  # why nodes have not answered, or none is asked for a vBucket
    places: Mapping[int, str]  # the node to ask for each vBucket, where there is one
    seqnos: Mapping[int, int]  # their high seqnos there
    doubtful: frozenset[int]  # vBuckets of which a node that is silent may be the one to ask
    terms: Mapping[int, int]  # the highest of each that was ever heard of
    total: int = 0  # vBuckets that the bucket has, 0 = not known yet


class IndexSource:
    """See the module docstring. Its methods are for the reactor's thread.

    Args:
        reactor: whose.
        places: HOST:PORT of nodes.
        poll_s: they are asked this often.
        tls: how to speak to them, ``None`` = without TLS.
        on_change: called when other vBuckets are active or replicas than before.
        credentials: who logs in to them, ``None`` = without a login.
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
        self.error = ""  # why the node that failed last did, ``""`` = all have answered
        self.rounds = 0  # how often all of them were asked; any thread may read it
        self.version = 0  # counts the changes of what they have
        self.active: frozenset[int] = frozenset()  # vBuckets that are active on any of the nodes
        # VBuckets that a node has as a replica and none as active.
        self.replicas: frozenset[int] = frozenset()
        # The high seqno of each active vBucket, as of the last answer. Any thread may read it.
        self.seqnos: Mapping[int, int] = {}
        self.terms: Mapping[int, int] = {}  # the highest term of each
        self._reactor, self._poll_s, self.tls, self._on_change = reactor, poll_s, tls, on_change
        self._pool = ThreadPool(0, 1, "uprmc-index-source")
        self._connections = questioning(tls, credentials)
        # Only what the nodes that are named have is indexed.
        self._directory = Directory(self.places, learns=False, remembers=True)
        self._survey = _Survey({}, (), {}, {}, frozenset(), {})
        self._maps = True  # whether maps are asked for, too: they are large and seldom change
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
        """Whether any node has said what it has."""
        return bool(self._survey.holdings)

    @property
    def is_complete(self) -> bool:
        """Whether no vBucket can be active at a node that has said nothing so far."""
        survey = self._survey
        if len(survey.holdings) == len(self.places):
            return True
        return bool(self.total) and self.active >= frozenset(range(self.total))

    @property
    def total(self) -> int:
        """How many vBuckets the bucket has, 0 = not known yet."""
        return self._survey.total

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
        self.error = found.errors[-1] if found.errors else ""
        self.terms, self.seqnos = found.terms, found.seqnos
        if before.holdings != found.holdings:
            self._have_changed()

    def _have_changed(self) -> None:
        had = self._survey.holdings.values()
        self.version += 1
        self.active = frozenset().union(*(active for active, _ in had))
        self.replicas = frozenset().union(*(replicas for _, replicas in had)) - self.active
        if not self._stopped:
            self._on_change()

    def hear(self, directory: Directory | None) -> bool:
        """Take what nodes have said to the streams just now; returns whether that is all of it.

        While they are asked here it does not count: what they say then may be older.
        """
        if directory is None or self._refreshing is not None:
            return False
        if not all(place in directory.facts or place in directory.silent for place in self.places):
            return False
        own = self._directory
        own.heard_of(directory.terms)
        for place in self.places:
            facts, before = directory.facts.get(place), own.facts.get(place)
            if facts is None:
                own.lost(place, directory.silent[place])
            else:  # replicas are as of the last answer, unless the streams ask for them
                replicas = facts.replicas or (before.replicas if before is not None else {})
                replicas = {n: seqno for n, seqno in replicas.items() if n not in facts.active}
                own.told(place, replace(facts, active=dict(facts.active), replicas=replicas))
        self._took(self._surveyed())
        return True

    def _failed(self, failure: Any) -> None:
        self.error = str(failure.value)

    def _poll(self) -> None:
        if not self._stopped:
            self._maps = True
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
        directory = self._directory
        maps, self._maps = self._maps, False
        self._connections.survey(directory, maps=maps, replicas_at=self.places)
        return self._surveyed()

    def _surveyed(self) -> _Survey:
        """Return what the nodes together have, as far as they have said."""
        directory = self._directory
        owners, claimed = directory.owners(), directory.claimed()
        silent = {place: directory.facts.get(place) for place in directory.silent}
        doubtful = {
            vbucket
            for place, said in silent.items()
            for vbucket in claimed
            if said is None or (vbucket not in said.active and owners.get(vbucket, "") != place)
        }
        missing = directory.missing(claimed)
        return _Survey(
            {
                place: (frozenset(each.active), frozenset(each.replicas))
                for place, each in directory.facts.items()
            },
            (
                *(each.words for each in directory.silent.values()),
                *(missing.refused.values() if missing is not None else ()),
            ),
            owners,
            {vbucket: directory.seqno(vbucket) for vbucket in owners},
            frozenset(doubtful),
            dict(directory.terms),
            directory.vbuckets,
        )

    def _ask_logs(self, vbuckets: list[int]) -> dict[int, FailoverLog]:
        survey = self._survey
        by_place: dict[str, list[int]] = {}
        for vbucket in vbuckets:
            place = survey.places.get(vbucket)
            if place is not None and vbucket not in survey.doubtful:
                by_place.setdefault(place, []).append(vbucket)
        found: dict[int, FailoverLog] = {}
        for place, some in by_place.items():
            asked = [log_request(vbucket) for vbucket in some]
            try:
                answers = self._connections.ask(place, lambda at: list(at.ask_all(asked)))  # noqa: B023
                found |= {
                    vbucket: read_log(answer.value)
                    for vbucket, answer in zip(some, answers, strict=True)
                    if not answer.status
                }
            except (NodeError, RemoteProtocolError):
                continue
        return found

    def _ask_persisted(self) -> dict[int, int]:
        survey = self._survey
        found: dict[int, int] = {}
        for place in dict.fromkeys(survey.places.values()):
            try:
                here = self._connections.ask(place, _persisted_at)
            except (NodeError, ValueError):
                continue
            found |= {vb: seqno for vb, seqno in here.items() if survey.places.get(vb) == place}
        return found


def _persisted_at(connection: NodeConnection) -> dict[int, int]:
    return {
        int(name[len("vb_") : -len(_PERSISTED)]): int(text)
        for name, text in connection.statistics(_PERSISTED_GROUP).items()
        if name.startswith("vb_") and name.endswith(_PERSISTED)
    }


# --- document reader ------------------------------------------------------------------------------
# Documents as they are now, for answers with `include_docs`: read from the nodes, blocking.


#: The source is left alone for this long.
_AGAIN_S = 1.0

#: The source has this long to ask its nodes.
_REFRESH_S = 30.0

#: What is known of documents, by key.
_Found = dict[bytes, bytes | Lost | None]


class DocumentReader:
    """Reads documents; any thread may call it, one at a time reads.

    Args:
        source: tells which node to ask.
        from_thread: has something called in the reactor's thread.
    """

    def __init__(
        self, source: IndexSource, from_thread: Callable[[Callable[[], object]], None]
    ) -> None:
        self._source, self._from_thread = source, from_thread
        self._refreshed = threading.Event()
        self._closed = False
        self._lock = threading.Lock()
        self._connections = questioning(source.tls, source.credentials)
        self._silent: dict[str, tuple[int, str]] = {}
        self._refreshed_at = float("-inf")

    def get(self, keys: Sequence[bytes]) -> list[bytes | Lost | None]:
        """Return documents as JSON, ``None`` for those that are not there.

        A node that does not answer, or no longer has the vBucket, may have been replaced: then the
        source finds out, and the node that is right now is asked.
        """
        possible = [key for key in dict.fromkeys(keys) if 0 < len(key) <= KEY_MAX_BYTES]
        with self._lock:
            found = self._asked(possible)
            lost = [key for key, body in found.items() if type(body) is Lost]
            if lost and time.monotonic() - self._refreshed_at >= _AGAIN_S:
                self._refresh()
                found |= self._asked(lost)
        return [found.get(key) for key in keys]

    def _refresh(self) -> None:
        """Return when all nodes have said once more what they have, or failed to."""
        self._refreshed.clear()
        if not self._closed:
            self._from_thread(
                lambda: self._source.refresh().addCallback(lambda _: self._refreshed.set())
            )
            self._refreshed.wait(_REFRESH_S)
        self._refreshed_at = time.monotonic()

    def _asked(self, keys: Sequence[bytes]) -> _Found:
        total = self._source.total
        if not total:
            return dict.fromkeys(keys, Lost("no node has said yet what it has"))
        found: _Found = {}
        by_place: dict[str, dict[bytes, int]] = {}
        for key in keys:
            vbucket = vbucket_of(key, total)
            place = self._source.place_of(vbucket)
            if place:
                by_place.setdefault(place, {})[key] = vbucket
            else:
                found[key] = Lost(f"no node can be asked for vBucket {vbucket}")
        for place, some in by_place.items():
            found |= self._asked_at(place, some)
        return found

    def _asked_at(self, place: str, keys: Mapping[bytes, int]) -> _Found:
        """Ask a node; one that did not answer is left alone until the source has looked again."""
        round_, why = self._silent.get(place, (-1, ""))
        if round_ == self._source.rounds:
            return dict.fromkeys(keys, Lost(why))
        asked = [RequestFrame(Opcode.GET, key=key, vbucket=vb) for key, vb in keys.items()]

        def question(connection: NodeConnection) -> _Found:
            answers = zip(keys, connection.ask_all(asked), strict=True)
            return {key: _told(place, answer) for key, answer in answers}

        try:
            return self._connections.ask(place, question)
        except NodeError as error:
            self._silent[place] = self._source.rounds, str(error)
            return dict.fromkeys(keys, Lost(str(error)))

    def close(self) -> None:
        """Hang up; nothing waits for the reactor's thread any more."""
        self._closed = True
        self._refreshed.set()
        with self._lock:
            self._connections.close()


def _told(place: str, answer: ResponseFrame) -> bytes | Lost | None:
    """Return what an answer says of a document."""
    if answer.status == Status.KEY_NOT_FOUND:
        return None
    if answer.status:
        return Lost(f"the node at {place} refuses: {answer.reason}")
    try:
        return portable(answer.value)
    except Unreadable as error:
        return Lost(str(error))
    except ValueError:  # as `meta.type` says of it
        return json.dumps(b64encode(answer.value).decode()).encode()
