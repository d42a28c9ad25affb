"""Documents from programs and tools: get, set, delete, with metadata, many at once.

    with KvClient("127.0.0.1:11210") as kv:
        kv.set(b"key", b"value")
        found = kv.get_many([b"key", b"other"])

Keys are spread over the nodes by their vBucket. What can be tried again without harm is: a vBucket
that has moved, a temporary failure, a node that went away before it got the request, and reading.
What cannot is told: `OutcomeUnknown` for a change that was sent and not answered.

Refusals have the names that the rest of the package uses (`uprmc.errors`): `KeyExists`, `TooLarge`,
`TemporaryFailure`, ...
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Self, TypeVar

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.client.errors import NotActive
from uprmc.client.kv_values import (
    Document,
    KvRequest,
    Meta,
    OutcomeUnknown,
    SomeFailed,
    Stored,
    meta_extras,
    packed,
    read_document,
    read_meta,
    read_number,
    read_observation,
    read_stored,
    read_touched,
    understood,
)
from uprmc.errors import ConfigError, InvalidArguments, KeyNotFound, NotMyVBucket, UprmcError
from uprmc.login.credentials import Credentials
from uprmc.model import vbucket_of
from uprmc.places import complete
from uprmc.protocol.binary import (
    ARITHMETIC_EXTRAS,
    STORE_EXTRAS,
    TOUCH_EXTRAS,
    KeyObservation,
    ObservedKey,
    encode_observe_request,
)
from uprmc.protocol.management import GET_META_EXTRAS, WithMetaOption
from uprmc.protocol.opcodes import DO_NOT_CREATE, KEY_MAX_BYTES, Opcode
from uprmc.remote import features
from uprmc.remote.blocking import KeptConnections, RequestLine, run
from uprmc.remote.directory import Directory, Why
from uprmc.remote.requests import AGAIN, NodeReply, Verdict, Window, verdict
from uprmc.remote.retry import Backoff, Left, RetryPolicy, until_done

__all__ = ["Document", "KvClient", "Meta", "OutcomeUnknown", "SomeFailed", "Stored"]

# --- kv rounds ------------------------------------------------------------------------------------


#: So many requests of a connection are under way.
WINDOW = 512

#: So many bytes of requests are put together before they are sent; one request may be larger.
PIECE_BYTES = 64 * 1024

_PAUSE_MIN_S = 0.01
_PAUSE_MAX_S = 0.5

_OPAQUES = 2**32

Answers = dict[int, NodeReply]
Failures = dict[int, UprmcError]


class KvMap:
    """Which node has which vBucket, and connections to all."""

    def __init__(
        self, places: Iterable[str], vbuckets: int, dial: Callable[[str], NodeConnection]
    ) -> None:
        self.directory = Directory(places, vbuckets)
        self.connections = KeptConnections(dial)

    @property
    def vbuckets(self) -> int:
        """How many vBuckets the documents are spread over; 0 = not known yet."""
        return self.directory.vbuckets

    def connection(self, vbucket: int) -> NodeConnection | None:
        """Return the connection to the node that has the vBucket, ``None`` if none has."""
        place = self.directory.choice(vbucket).place
        return self.connections.get(place) if place else None

    def why_absent(self, vbucket: int) -> UprmcError:
        """Return what to say of a vBucket that no connection leads to."""
        missing = self.directory.missing([vbucket])
        if missing is None:
            return NodeError(f"the connection to {self.directory.choice(vbucket).place} was lost")
        kind = NotMyVBucket if missing.refused or not missing.silent else NodeError
        return kind(str(missing))

    def by_place(self) -> dict[str, list[int]]:
        """Return all vBuckets by the node that has them; raises `NotActive`."""
        missing = self.directory.missing(range(self.vbuckets))
        if missing is not None:
            raise NotActive(str(missing), missing.numbers)
        found: dict[str, list[int]] = {}
        for vbucket, place in self.directory.owners().items():
            found.setdefault(place, []).append(vbucket)
        return found

    def moved(self, place: str, vbucket: int, value: bytes) -> bool:
        """Take NOT_MY_VBUCKET; return whether there is a node to try next, and it is reached."""
        if not self.directory.not_mine(place, vbucket, value):
            return False
        try:
            self.connections.at(self.directory.choice(vbucket).place)
        except NodeError:
            return False
        return True

    def refresh(self) -> None:
        """Ask every node what it has; one that does not answer has nothing.

        Raises:
            NodeError: no node answers, or they do not make one bucket.
        """
        self.connections.survey(self.directory)
        for silence in self.directory.silent.values():
            if silence.why is Why.FOREIGN:
                raise NodeError(silence.words)
        if not self.directory.facts:
            silent = list(self.directory.silent.values())
            if len(silent) == 1 and silent[0].error is not None:
                raise silent[0].error
            raise NodeError("; ".join(each.words for each in silent))
        if not self.vbuckets:
            raise NodeError("no node tells how many vBuckets it has: say so with `vbuckets`")


class Rounds:
    """Asking until it is answered: rounds of requests to the nodes that have their vBuckets.

    After a round, what can be tried again without harm is left for the next: a vBucket that has
    moved (where the answer brings no map that names its node, all are asked again what they have),
    a temporary failure, a request that the node never got, and whatever only reads. Rounds end when
    nothing is left, or when for some time none was answered.
    """

    def __init__(self, kv_map: KvMap, timeout_s: float, retry_s: float) -> None:
        self._map = kv_map
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._opaque = 0

    def asked(
        self, requests: Sequence[KvRequest], *, changes: bool
    ) -> list[NodeReply | UprmcError]:
        """Return what was answered, or why nothing was; try again what can be tried again."""
        first = self._opaque
        self._opaque = (first + len(requests)) % _OPAQUES
        frames = [
            request.packed((first + number) % _OPAQUES) for number, request in enumerate(requests)
        ]
        answers: Answers = {}
        failures: Failures = {}

        def ask(pending: Sequence[int]) -> Left:
            lines = self._round(requests, frames, first, pending, answers, failures)
            for line in lines:
                if line.lost is not None:
                    self._map.connections.drop(line.connection.place)
                    failures.update(_lost(line, line.lost, changes=changes))
            left = _to_repeat(pending, answers, failures)
            return Left(left, len(left), self._may_have_moved(requests, left, answers))

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
        frames: Sequence[bytes],
        first_opaque: int,
        pending: Iterable[int],
        answers: Answers,
        failures: Failures,
    ) -> list[RequestLine[NodeReply]]:
        """Ask all that is pending once."""
        shares: dict[NodeConnection, list[int]] = {}
        by_vbucket: dict[int, list[int] | None] = {}  # the share of the node that has it
        repeated = bool(answers or failures)
        for number in pending:
            if repeated:
                answers.pop(number, None)
                failures.pop(number, None)
            vbucket = requests[number].vbucket
            if vbucket not in by_vbucket:
                connection = self._map.connection(vbucket)
                by_vbucket[vbucket] = (
                    None if connection is None else shares.setdefault(connection, [])
                )
            share = by_vbucket[vbucket]
            if share is None:
                failures[number] = self._map.why_absent(vbucket)
            else:
                share.append(number)
        lines = []
        for connection, numbers in shares.items():
            window = Window(
                frames, numbers, WINDOW, PIECE_BYTES, _kept, quiet=False, first_opaque=first_opaque
            )
            window.answers = answers
            lines.append(RequestLine(connection, window))
        try:
            run(lines, self._timeout_s)
        except BaseException:
            self._map.connections.close()  # answers are still on their way
            raise
        return lines

    def _may_have_moved(
        self, requests: Sequence[KvRequest], pending: Iterable[int], answers: Answers
    ) -> bool:
        """Tell whether nodes are to be asked what they have: some vBucket has no node to try."""
        look = False
        refused: dict[int, tuple[str, bytes]] = {}
        for number in pending:
            reply, vbucket = answers.get(number), requests[number].vbucket
            if reply is None:
                look = True
            elif verdict(reply.status) is Verdict.ELSEWHERE and vbucket not in refused:
                refused[vbucket] = self._map.directory.choice(vbucket).place, reply.value
        for vbucket, (place, value) in refused.items():
            look |= not self._map.moved(place, vbucket, value)
        return look


def _kept(_number: int, reply: NodeReply) -> NodeReply:
    return reply


def _to_repeat(
    pending: Iterable[int], answers: Mapping[int, NodeReply], failures: Mapping[int, UprmcError]
) -> list[int]:
    return [
        number
        for number in pending
        if (
            answers[number].status in AGAIN
            if number in answers
            else not isinstance(failures[number], OutcomeUnknown)
        )
    ]


def _lost(line: RequestLine[NodeReply], why: Exception, *, changes: bool) -> Failures:
    """Return what to say of each request that was not answered."""
    assert isinstance(why, NodeError)
    failures: Failures = dict.fromkeys(line.window.unsettled(), why)
    if changes:
        unknown = OutcomeUnknown(f"{why}; whether the change was made is not known: read the key")
        failures |= dict.fromkeys(line.window.left(line.sent_bytes), unknown)
    return failures


# --- kv -------------------------------------------------------------------------------------------


_FORCED = WithMetaOption.SKIP_CONFLICT_RESOLUTION | WithMetaOption.FORCE_ACCEPT

_CAS_LIMIT = 2**64
_DATATYPE_LIMIT = 2**8
_META_VERSION = 2

_T = TypeVar("_T")


class KvClient:
    """See the module docstring. One thread at a time may use it.

    Args:
        nodes: HOST:PORT of one or several nodes, or a host alone; the others are learnt from them.
        vbuckets: how many vBuckets there are; 0 = the nodes tell.
        timeout_s: a node that says nothing for so long is gone.
        retry_s: what can be tried again is, for so long.
        tls: how to speak TLS to the nodes, ``None`` = not at all.
        credentials: who logs in to the nodes, ``None`` = nobody.

    Raises:
        ConfigError: a node is not HOST:PORT.
        NodeError: no node answers.
    """

    def __init__(
        self,
        nodes: str | Iterable[str],
        *,
        vbuckets: int = 0,
        timeout_s: float = 30.0,
        retry_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        try:
            places = list(map(complete, [nodes] if isinstance(nodes, str) else nodes))
        except ValueError as error:
            raise ConfigError(f"{nodes!r}: say {error}") from None
        self._map = KvMap(
            places,
            vbuckets,
            lambda at: NodeConnection(
                at, timeout_s, tls, credentials, features.DOCUMENTS, b"uprmc kv"
            ),
        )
        self._rounds = Rounds(self._map, timeout_s, retry_s)
        try:
            self._map.refresh()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up on all nodes."""
        self._map.connections.close()

    @property
    def vbuckets(self) -> int:
        """How many vBuckets the documents are spread over."""
        return self._map.vbuckets

    def vbucket_of(self, key: bytes) -> int:
        """Return the vBucket that a key belongs to."""
        return vbucket_of(key, self._map.vbuckets)

    def by_place(self) -> dict[str, list[int]]:
        """Return the vBuckets that each node has active, as of now; together these are all.

        Raises:
            NotActive: some are active on no node that answers.
            NodeError: no node answers.
        """
        self._map.refresh()
        return self._map.by_place()

    # --- reading --------------------------------------------------------------------------------

    def get(self, key: bytes) -> Document | None:
        """Return a document, ``None`` if there is none."""
        return _or_none(lambda: self._one(self._request(Opcode.GET, key), read_document))

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Document]:
        """Return the documents that there are.

        Raises:
            SomeFailed: some could not be read.
        """
        requests = {key: self._request(Opcode.GET, key) for key in keys}
        return self._many(requests, read_document, may_miss=True)

    def get_meta(self, key: bytes) -> Meta | None:
        """Return a document's metadata, or its tombstone's; ``None`` if neither is known."""
        extras = GET_META_EXTRAS.pack(_META_VERSION)
        return _or_none(lambda: self._one(self._request(Opcode.GET_META, key, extras), read_meta))

    def observe(self, keys: Iterable[bytes]) -> dict[bytes, KeyObservation]:
        """Return of each key whether it is on disk.

        Raises:
            SomeFailed: some could not be asked for.
        """
        return self._many({key: self._observing(key) for key in keys}, read_observation)

    # --- changing -------------------------------------------------------------------------------

    def set(
        self,
        key: bytes,
        value: bytes,
        *,
        flags: int = 0,
        expiry: int = 0,
        cas: int = 0,
        datatype: int = 0,
    ) -> Stored:
        """Store a document; with a CAS, only over the version that has it.

        Raises:
            KeyExists: the document has another CAS.
            KeyNotFound: a CAS was given and there is no document.
            TooLarge, OutOfMemory, Locked: as they say.
            OutcomeUnknown: it was sent and not answered.
        """
        extras = packed(STORE_EXTRAS, flags, expiry)
        request = self._request(Opcode.SET, key, extras, value, cas, datatype)
        return self._one(request, read_stored, changes=True)

    def add(self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0) -> Stored:
        """Store a document that does not exist.

        Raises:
            KeyExists: it does.
            OutcomeUnknown: it was sent and not answered.
        """
        return self._stored(Opcode.ADD, key, value, flags, expiry)

    def replace(self, key: bytes, value: bytes, *, flags: int = 0, expiry: int = 0) -> Stored:
        """Store a document that exists.

        Raises:
            KeyNotFound: it does not.
            OutcomeUnknown: it was sent and not answered.
        """
        return self._stored(Opcode.REPLACE, key, value, flags, expiry)

    def _stored(self, opcode: Opcode, key: bytes, value: bytes, flags: int, expiry: int) -> Stored:
        request = self._request(opcode, key, packed(STORE_EXTRAS, flags, expiry), value)
        return self._one(request, read_stored, changes=True)

    def count(self, key: bytes, by: int = 1, *, initial: int | None = None, expiry: int = 0) -> int:
        """Add to the number in a document and return the sum; below 0 it stays 0.

        Args:
            key: which document.
            by: what to add; negative to take away.
            initial: the number of a document that does not exist; ``None`` = that is an error.
            expiry: of a document that is created.

        Raises:
            KeyNotFound: there is no document, and no `initial`.
            DeltaBadValue: the document holds no number.
            OutcomeUnknown: it was sent and not answered.
        """
        opcode = Opcode.INCREMENT if by >= 0 else Opcode.DECREMENT
        expiry = DO_NOT_CREATE if initial is None else expiry
        extras = packed(ARITHMETIC_EXTRAS, abs(by), initial or 0, expiry)
        return self._one(self._request(opcode, key, extras), read_number, changes=True)

    def touch(self, key: bytes, expiry: int) -> Stored:
        """Change when a document expires.

        Raises:
            KeyNotFound: there is no document.
            OutcomeUnknown: it was sent and not answered.
        """
        request = self._request(Opcode.TOUCH, key, packed(TOUCH_EXTRAS, expiry))
        return self._one(request, read_touched, changes=True)

    def set_many(
        self, documents: Mapping[bytes, bytes], *, flags: int = 0, expiry: int = 0
    ) -> dict[bytes, Stored]:
        """Store many documents.

        Raises:
            SomeFailed: some were not stored, or nobody knows.
        """
        extras = packed(STORE_EXTRAS, flags, expiry)
        requests = {
            key: self._request(Opcode.SET, key, extras, value) for key, value in documents.items()
        }
        return self._many(requests, read_stored, changes=True)

    def delete(self, key: bytes, *, cas: int = 0) -> Stored | None:
        """Delete a document; ``None`` if there was none.

        Raises:
            KeyExists: the document has another CAS than the one given.
            OutcomeUnknown: it was sent and not answered.
        """
        request = self._request(Opcode.DELETE, key, cas=cas)
        return _or_none(lambda: self._one(request, read_stored, changes=True))

    def delete_many(self, keys: Iterable[bytes]) -> dict[bytes, Stored]:
        """Delete many documents; returns those that there were.

        Raises:
            SomeFailed: some were not deleted, or nobody knows.
        """
        requests = {key: self._request(Opcode.DELETE, key) for key in keys}
        return self._many(requests, read_stored, changes=True, may_miss=True)

    def set_with_meta(
        self, key: bytes, value: bytes, meta: Meta, *, cas: int = 0, force: bool = False
    ) -> Stored:
        """Store a version that was made elsewhere, with its own metadata.

        Args:
            key: which document.
            value: its body.
            meta: its metadata.
            cas: if not 0, the CAS that the present version must have.
            force: do not resolve conflicts: it wins whatever is there, also with a CAS that the
                clock of its node gave out by mistake.

        Raises:
            KeyExists: the version that is there wins.
            OutcomeUnknown: it was sent and not answered.
        """
        extras = meta_extras(meta, _FORCED if force else 0)
        request = self._request(Opcode.SET_WITH_META, key, extras, value, cas, meta.datatype)
        return self._one(request, read_stored, changes=True)

    def delete_with_meta(
        self, key: bytes, meta: Meta, *, cas: int = 0, force: bool = False, expired: bool = False
    ) -> Stored:
        """Store a deletion that was made elsewhere; as `set_with_meta`.

        Args:
            key: which document.
            meta: the tombstone's metadata; when it was deleted is the node's affair.
            cas: if not 0, the CAS that the present version must have.
            force: do not resolve conflicts.
            expired: it was no deletion: the document expired.
        """
        options = _FORCED if force else 0
        options |= WithMetaOption.IS_EXPIRATION if expired else 0
        request = self._request(Opcode.DEL_WITH_META, key, meta_extras(meta, options), cas=cas)
        return self._one(request, read_stored, changes=True)

    # --- asking ---------------------------------------------------------------------------------

    def _request(
        self,
        opcode: int,
        key: bytes,
        extras: bytes = b"",
        value: bytes = b"",
        cas: int = 0,
        datatype: int = 0,
    ) -> KvRequest:
        if not 1 <= len(key) <= KEY_MAX_BYTES:
            raise InvalidArguments(f"a key has 1 to {KEY_MAX_BYTES} bytes, this one {len(key)}")
        if not 0 <= cas < _CAS_LIMIT or not 0 <= datatype < _DATATYPE_LIMIT:
            raise InvalidArguments(f"CAS {cas} or datatype {datatype} is out of range")
        vbucket = vbucket_of(key, self._map.directory.vbuckets)
        return KvRequest(opcode, vbucket, key, extras, value, cas, datatype)

    def _observing(self, key: bytes) -> KvRequest:
        vbucket = self._request(Opcode.OBSERVE, key).vbucket
        value = encode_observe_request([ObservedKey(vbucket, key)])
        return KvRequest(Opcode.OBSERVE, vbucket, b"", value=value)

    def _one(
        self, request: KvRequest, read: Callable[[NodeReply], _T], *, changes: bool = False
    ) -> _T:
        (answer,) = self._rounds.asked([request], changes=changes)
        return understood(request, answer, read)

    def _many(
        self,
        requests: Mapping[bytes, KvRequest],
        read: Callable[[NodeReply], _T],
        *,
        changes: bool = False,
        may_miss: bool = False,
    ) -> dict[bytes, _T]:
        done: dict[bytes, _T] = {}
        failed: dict[bytes, UprmcError] = {}
        answers = self._rounds.asked(list(requests.values()), changes=changes)
        for (key, request), answer in zip(requests.items(), answers, strict=True):
            try:
                done[key] = understood(request, answer, read)
            except UprmcError as error:
                if not (may_miss and isinstance(error, KeyNotFound)):
                    failed[key] = error
        if failed:
            raise SomeFailed(done, failed)
        return done


def _or_none(ask: Callable[[], _T]) -> _T | None:
    try:
        return ask()
    except KeyNotFound:
        return None
