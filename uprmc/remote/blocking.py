"""Connections to nodes for programs that may wait: one, those that are kept, many at once.

- `NodeConnection`: the socket, TLS, HELLO and login, questions and their answers.
- `KeptConnections`: kept open, dialled once more when they fail. A connection that was kept says
  nothing of its node when it fails: that may have been started again meanwhile. So each question is
  put once more, over a new connection, before its node counts as silent.
- `remove_rows`, `acquired_lease`: what registered clients and readers ask for.
- `RequestLine` and `run`: many requests to several nodes at once.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, Generic, Self, TypeVar

from uprmc import places
from uprmc.connecting import connected, new_nonce, own_name
from uprmc.errors import ConfigError, RemoteProtocolError, why
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import LoginRefused
from uprmc.protocol import control
from uprmc.protocol.header import RESPONSE_HEADER, RequestFrame, ResponseFrame, decode_frame
from uprmc.protocol.opcodes import (
    FRAME_MAX_BYTES,
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    Feature,
    Opcode,
    Status,
    opcode_name,
    status_text,
)
from uprmc.protocol.upr_extensions import LeasedVBucket
from uprmc.remote import features, lease
from uprmc.remote.cluster_map import COUNT_GROUP, ClusterMap, count_in, map_of
from uprmc.remote.conversation import KEEP_ALIVES, Questions, keep_alive_answer
from uprmc.remote.directory import Directory, Heard, NodeQuestion, Unanswered, conduct
from uprmc.remote.errors import (
    Busy,
    LeaseRefused,
    LoginFailed,
    LoginWanted,
    NodeError,
    NodeNonsense,
    NodeUnreachable,
    NoSuchGroup,
    NotForgotten,
    Refused,
    Silent,
    StatisticsRefused,
    TlsCut,
    TlsFailed,
)
from uprmc.remote.features import Handshake
from uprmc.remote.login import login
from uprmc.remote.ranges import named
from uprmc.remote.registering import removals, told_of
from uprmc.remote.requests import Verdict, Window, verdict

_TIMEOUT_S = 30.0
_READ_BYTES = 256 * 1024

#: Questions that are under way at a time: more could fill both sockets' buffers and hang.
PIPELINE_MAX = 256

#: More statistics than this are not a node's.
_STATISTICS_MAX = 1_000_000

#: What is said where no user has logged in and one has to.
WANTS_LOGIN = f"serves users only: {places.WITH_LOGIN}"

#: Requests of a login.
LOGIN = frozenset({Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP})

#: Takes an answer, see `NodeConnection.converse`.
TakeAnswer = Callable[[int, ResponseFrame], bool]

_T = TypeVar("_T")


class NodeConnection:
    """One conversation with a node's listener; use it in a ``with`` statement.

    Every method that talks raises a `NodeError`: `NodeUnreachable` may be tried again,
    `NodeNonsense` may not.

    Args:
        place: see `uprmc.places`.
        timeout_s: for connecting, TLS, HELLO and the login.
        tls: how to speak TLS, ``None`` = not at all.
        credentials: who logs in, ``None`` = no user.
        handshake: what HELLO asks for, ``None`` = there is none.
        agent: what the node's log calls us.
        silence_s: for each piece of data that is waited for later, ``None`` = `timeout_s`, too.
        bucket: to select, empty = the usual one.

    Attributes:
        place: as it was given.
        knows_terms: the node tells the terms of vBuckets.
        knows_origins: it tells where versions were first accepted, and takes that with them.
        opened: what came of making it a connection for one purpose, for those who use it again.
        socket: for callers that wait for several at once.

    Raises:
        ConfigError: the place is none.
        NodeUnreachable, TlsFailed, LoginFailed, Refused: no node wants us there.
    """

    def __init__(
        self,
        place: str,
        timeout_s: float = _TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        handshake: Handshake | None = None,
        agent: bytes = b"",
        *,
        silence_s: float | None = None,
        bucket: str = "",
    ) -> None:
        self.place = place
        self.knows_terms = self.knows_origins = False
        self.opened: Any = None
        self._anonymous = credentials is None
        self._heard = False
        self._received = bytearray()
        self._questions: Questions[int] = Questions(strict=False)
        self.socket = _dialled(place, timeout_s, tls)
        try:
            if handshake is not None:
                hello = self.ask(handshake.hello(agent))
                self.knows_terms = features.tells_terms(hello.status, hello.value)
                self.knows_origins = features.grants(Feature.ORIGINS, hello.status, hello.value)
            if credentials is not None:
                self._log_in(credentials, safe=tls is not None or places.parsed(place).is_local)
            if bucket:
                answer = self.ask(RequestFrame(Opcode.SELECT_BUCKET, bucket.encode()))
                if answer.status:
                    raise self.refusal(answer, f"the choice of bucket {bucket!r}")
            self.socket.settimeout(timeout_s if silence_s is None else silence_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; doing so twice is no error."""
        with contextlib.suppress(OSError):
            self.socket.close()

    @property
    def tls(self) -> tuple[str, str] | None:
        """Version and cipher of TLS, ``None`` = there is no TLS."""
        if not isinstance(self.socket, ssl.SSLSocket):
            return None
        cipher = self.socket.cipher()
        return self.socket.version() or "TLS", cipher[0] if cipher else "no cipher"

    # --- questions ------------------------------------------------------------------------------

    def ask(self, request: RequestFrame) -> ResponseFrame:
        """Return the answer to one request, whatever its status."""
        return self.ask_all([request])[0]

    def ask_all(self, requests: Iterable[RequestFrame]) -> list[ResponseFrame]:
        """Return the answers to requests that have one each, in their order."""
        found: dict[int, ResponseFrame] = {}

        def take(number: int, answer: ResponseFrame) -> bool:
            found[number] = answer
            return True

        asked = list(requests)
        self.converse(asked, take)
        return [found[number] for number in range(len(asked))]

    def require(self, requests: Sequence[RequestFrame]) -> list[ResponseFrame]:
        """Return the answers as `ask_all` does, all of them successes.

        Raises:
            Busy: the node asks to come again later.
            Refused: it does not want to.
        """
        answers = self.ask_all(requests)
        for request, answer in zip(requests, answers, strict=True):
            if answer.status:
                raise self.refusal(answer, opcode_name(request.opcode))
        return answers

    def converse(self, requests: Sequence[RequestFrame], take: TakeAnswer) -> None:
        """Ask, and hand over each answer with the number of its request, as they come.

        Args:
            requests: what is asked.
            take: returns whether it was the last answer to that request.
        """
        for begin in range(0, len(requests), PIPELINE_MAX):
            chunk = requests[begin : begin + PIPELINE_MAX]
            opaques = [self._questions.expect(each.opcode, each.opcode) for each in chunk]
            pairs = zip(chunk, opaques, strict=True)
            self.send(b"".join([request.encode(opaque) for request, opaque in pairs]))
            waiting = {opaque: begin + place for place, opaque in enumerate(opaques)}
            while waiting:
                answer = self._answer()
                if take(waiting[answer.opaque], answer):
                    self._questions.forget(answer.opaque)
                    del waiting[answer.opaque]

    def statistics(self, group: str) -> dict[str, str]:
        """Return a group of statistics by name.

        Raises:
            NoSuchGroup: there is none of that name.
            StatisticsRefused: the node will not say.
        """
        found: dict[str, str] = {}

        def take(_: int, answer: ResponseFrame) -> bool:
            if answer.status:
                raise self._untold(group, answer)
            if answer.key:
                found[answer.key.decode("utf-8", "replace")] = answer.value.decode(
                    "utf-8", "replace"
                )
            if len(found) > _STATISTICS_MAX:
                raise self.protocol_error(f"more than {_STATISTICS_MAX} statistics")
            return not answer.key

        self.converse([RequestFrame(Opcode.STAT, key=group.encode())], take)
        return found

    def _untold(self, group: str, answer: ResponseFrame) -> NodeError:
        self._questions.forget(answer.opaque)
        if verdict(answer.status) is Verdict.AGAIN:
            return self.refusal(answer, f"STAT {group}")
        if answer.status == Status.NOT_MY_VBUCKET:
            words = f"statistics {group!r}: the node does not have that vBucket"
            return StatisticsRefused(words)
        if answer.status == Status.KEY_NOT_FOUND:
            absent = NoSuchGroup(f"the node has no statistics group {group!r}")
            return absent.doubting(self.place)
        return StatisticsRefused(f"statistics {group!r} refused: {answer.reason}")

    def told(self, group: str) -> dict[str, str]:
        """Return a group of statistics, nothing if the node does not tell it."""
        try:
            return self.statistics(group)
        except Refused:
            return {}

    def cluster_map(self) -> ClusterMap | None:
        """Return the node's cluster map, ``None`` if it has none that makes sense."""
        return map_of(self.ask(RequestFrame(Opcode.GET_CLUSTER_CONFIG)))

    def vbuckets(self) -> int:
        """Return how many vBuckets the node has, 0 = it does not say."""
        found = self.cluster_map()
        return count_in(self.told(COUNT_GROUP)) if found is None else found.vbuckets

    def _log_in(self, credentials: Credentials, *, safe: bool) -> None:
        steps = login(credentials, new_nonce(), safe=safe)
        try:
            request = next(steps)
            while True:
                answer = self.ask(request)
                if verdict(answer.status) is Verdict.AGAIN:
                    raise self.refusal(answer, "the login")
                request = steps.send(answer)
        except StopIteration:
            pass
        except LoginRefused as error:
            raise LoginFailed(f"the node at {self.place} {error}") from None

    # --- what to raise --------------------------------------------------------------------------

    def refusal(self, answer: ResponseFrame, what: str) -> Refused:
        """Return what to raise of an answer that is no success."""
        kind = Busy if verdict(answer.status) is Verdict.AGAIN else Refused
        refused = kind(f"the node at {self.place} answers {what} with: {answer.reason}")
        unknown = answer.status == Status.UNKNOWN_COMMAND
        return refused.doubting(self.place) if unknown else refused

    def protocol_error(self, what: str) -> NodeNonsense:
        """Return what to raise of bytes that make no sense."""
        hint = "" if self._heard else "; is it the upr listener of a node of uprmc?"
        return NodeNonsense(f"the node at {self.place} sent {what}{hint}")

    def failure(self, what: str) -> NodeUnreachable:
        """Return what to raise when the connection cannot be used any more."""
        return NodeUnreachable(f"the node at {self.place} {what}")

    def _lost(self, error: OSError) -> NodeUnreachable:
        if isinstance(error, TimeoutError):
            limit_s = self.socket.gettimeout() or 0.0
            return self._doubted(Silent(f"the node at {self.place} says nothing for {limit_s:g} s"))
        return self._doubted(self.failure(f"is gone: {why(error)}{self._hint()}"))

    def _closed(self) -> NodeUnreachable:
        return self._doubted(self.failure(f"closed the connection{self._hint()}"))

    def _doubted(self, error: NodeUnreachable) -> NodeUnreachable:
        return error.doubting(self.place) if self._is_doubtful else error

    def _hint(self) -> str:
        return "; does its listener speak TLS?" if self._is_doubtful else ""

    @property
    def _is_doubtful(self) -> bool:
        return not self._heard and not isinstance(self.socket, ssl.SSLSocket)

    # --- bytes ----------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the socket's number, to wait for it with others."""
        return self.socket.fileno()

    def next_opaque(self) -> int:
        """Return a number that no earlier request of this connection has."""
        return self._questions.new_opaque()

    @property
    def rests(self) -> bool:
        """Whether nothing was asked without an answer, and nothing has come but answers.

        Whatever has come meanwhile, its end above all, makes it one that is not used again.
        """
        if self._questions or self._received:
            return False
        try:
            return not select.select([self.socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from None

    def send_some(self, data: memoryview) -> int:
        """Send as much as there is room for; returns how many bytes that was."""
        try:
            return self.socket.send(data)
        except OSError as error:
            raise self._lost(error) from None

    def receive_some(self, limit_bytes: int) -> bytes:
        """Wait for data that is no answer to a question, and return it."""
        try:
            data = self.socket.recv(limit_bytes)
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise self._closed()
        return data

    def recv_into(self, buffer: memoryview) -> int:
        """Do the same into a buffer; first comes what lay behind the last answer."""
        if self._received:
            size = min(len(buffer), len(self._received))
            buffer[:size] = self._received[:size]
            del self._received[:size]
            return size
        try:
            size = self.socket.recv_into(buffer)
        except OSError as error:
            raise self._lost(error) from None
        if not size:
            raise self._closed()
        return size

    # --- answers --------------------------------------------------------------------------------

    def _answer(self) -> ResponseFrame:
        """Wait for an answer to what was asked; keep-alives are answered on the way."""
        while True:
            frame = self._frame()
            if frame[0] == MAGIC_RESPONSE:
                answer = decode_frame(frame)
                assert isinstance(answer, ResponseFrame)
                if self._questions.waiting_for(answer.opcode, answer.opaque) is None:
                    raise self.protocol_error(
                        f"an unexpected answer to {opcode_name(answer.opcode)}"
                    )
                if answer.status == Status.AUTH_ERROR and self._anonymous:
                    raise LoginWanted(f"the node at {self.place} {WANTS_LOGIN}")
                return answer
            if frame[1] not in KEEP_ALIVES:
                raise self.protocol_error(f"an unexpected {opcode_name(frame[1])}")
            _, opcode, _, _, _, _, _, opaque, _ = RESPONSE_HEADER.unpack_from(frame)
            self.send(keep_alive_answer(opcode, opaque))

    def _frame(self) -> bytes:
        received = self._received
        self._fill(HEADER_BYTES)
        magic, opcode, key_bytes, extras_bytes, _, _, body_bytes, _, _ = (
            RESPONSE_HEADER.unpack_from(received)
        )
        if magic not in (MAGIC_REQUEST, MAGIC_RESPONSE):
            words = "" if self._heard else places.stranger(self.place, bytes(received))
            strange = self.protocol_error(f"what is no frame (magic {magic:#04x})")
            raise (NodeNonsense(words) if words else strange).doubting(self.place)
        if body_bytes > FRAME_MAX_BYTES or key_bytes + extras_bytes > body_bytes:
            raise self.protocol_error(
                f"{opcode_name(opcode)} with a body of {body_bytes} bytes, a key of {key_bytes} "
                f"and extras of {extras_bytes}"
            )
        self._fill(HEADER_BYTES + body_bytes)
        self._heard = True
        frame = bytes(received[: HEADER_BYTES + body_bytes])
        del received[: HEADER_BYTES + body_bytes]
        return frame

    def _fill(self, size: int) -> None:
        received = self._received
        while len(received) < size:
            received += self.receive_some(max(_READ_BYTES, size - len(received)))


def _dialled(place: str, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    try:
        where = places.parsed(place)
    except ValueError as error:
        raise ConfigError(f"{place!r} is no node: say {error}") from None
    try:
        plain = connected(where, timeout_s)
    except (OSError, UnicodeError) as error:
        words = f"no node answers at {place}: {why(error)}; is it running?"
        raise NodeUnreachable(words) from None
    if tls is None:
        return plain
    try:
        return tls.wrap_socket(plain, server_hostname=where.tls_name)
    except (OSError, ValueError) as error:
        plain.close()
        if isinstance(error, TimeoutError):
            silent = Silent(f"the node at {place} says nothing for {timeout_s:g} s")
            raise silent.doubting(place) from None
        raise tls_failed(place, error) from None


def tls_failed(place: str, error: Exception) -> TlsFailed:
    """Return what to raise where the two ends did not agree on TLS."""
    said = isinstance(error, (ssl.SSLError, ValueError))
    kind = TlsFailed if said and not isinstance(error, ssl.SSLEOFError) else TlsCut
    failed = kind(places.tls_refusal(place, why(error)))
    return failed.doubting(place) if places.speaks_no_tls(why(error)) else failed


# --- kept open ------------------------------------------------------------------------------------


def put(asked: NodeQuestion, connection: NodeConnection) -> Heard:
    """Put a question to its node; raises what the connection does."""
    if asked.group:
        return Heard(statistics=connection.told(asked.group))
    return Heard(connection.ask_all(asked.requests), knows_terms=connection.knows_terms)


class KeptConnections:
    """See the module docstring; used by one thread at a time.

    Args:
        dial: returns a connection to a node.
        let_go: what becomes of connections at the end.
    """

    def __init__(
        self,
        dial: Callable[[str], NodeConnection],
        let_go: Callable[[NodeConnection], None] = NodeConnection.close,
    ) -> None:
        self._dial, self._let_go = dial, let_go
        self._open: dict[str, NodeConnection] = {}

    def get(self, place: str) -> NodeConnection | None:
        """Return the connection to a node, if there is one."""
        return self._open.get(place)

    def at(self, place: str) -> NodeConnection:
        """Return the connection to a node, dialled if need be."""
        found = self._open.get(place)
        if found is None:
            found = self._open[place] = self._dial(place)
        return found

    def drop(self, place: str) -> None:
        """Hang up on a node: an answer may still be on its way."""
        found = self._open.pop(place, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """Hang up on all."""
        while self._open:
            _, connection = self._open.popitem()
            connection.close()

    def end(self) -> None:
        """Let all go: none has an answer on its way."""
        while self._open:
            _, connection = self._open.popitem()
            self._let_go(connection)

    def ask(self, place: str, question: Callable[[NodeConnection], _T]) -> _T:
        """Return what a question to a node gives; it may be put twice."""
        kept = place in self._open
        try:
            return question(self.at(place))
        except BaseException as error:
            self.drop(place)
            if not (kept and isinstance(error, NodeError)):
                raise
        return self.ask(place, question)

    def survey(self, directory: Directory, **what: Any) -> None:
        """Ask every node what it has, see `Directory.survey`."""
        try:
            conduct(directory.survey(**what), self._put)
        except BaseException:
            self.close()  # an answer is still on its way
            raise
        for place in directory.silent:
            self.drop(place)

    def _put(self, asked: NodeQuestion) -> Heard | Unanswered:
        try:
            return self.ask(asked.place, partial(put, asked))
        except NodeError as error:
            return Unanswered(error, error.text)


# --- rows of registered clients -------------------------------------------------------------------

#: Answers that say that there is no row to remove any more.
_NOTHING_THERE = frozenset({Status.KEY_NOT_FOUND, Status.NOT_MY_VBUCKET})


def open_registrar(connection: NodeConnection, name: bytes) -> set[bytes]:
    """Make it a connection that may report; return the keys of CONTROL that the node accepts."""
    controls = features.REGISTRAR.controls()
    opening = features.REGISTRAR.open(name)
    first, *answers = connection.ask_all([opening, *controls])
    if first.status:
        raise connection.refusal(first, opcode_name(opening.opcode))
    connection.opened = granted = features.granted(controls, answers)
    return granted


def report(
    connection: NodeConnection,
    frames: Sequence[RequestFrame],
    take: Callable[[RequestFrame, ResponseFrame], bool],
) -> None:
    """Send reports; hand over their answers, see `NodeConnection.converse`."""

    def taken(number: int, answer: ResponseFrame) -> bool:
        try:
            return take(frames[number], answer)
        except RemoteProtocolError as error:
            raise connection.protocol_error(str(error)) from None

    connection.converse(frames, taken)


def remove_rows(connection: NodeConnection, name: bytes, numbers: Sequence[int]) -> set[int]:
    """Remove the rows of a client in vBuckets of one node; return where there were any.

    Raises:
        NotForgotten: the node refuses to, for example because the client still runs.
        Busy: it asks to come again later.
    """
    granted = open_registrar(connection, own_name("uprmc-forgets").encode())
    if control.WATERMARKS not in granted:
        return set()
    refused: dict[int, int] = {}

    def take(asked: RequestFrame, answer: ResponseFrame) -> bool:
        told = told_of(asked, answer)
        refused.update((each.vbucket, each.status) for each in told.refused)
        return told.last

    report(connection, removals(name, numbers, many=control.REPORTS in granted), take)
    bad = {number: status for number, status in refused.items() if status not in _NOTHING_THERE}
    if bad:
        status = next(iter(bad.values()))
        if verdict(status) is Verdict.AGAIN:
            raise Busy(f"the node at {connection.place} answers: {status_text(status)}")
        why_not = f"it answers: {status_text(status)}"
        if status == Status.KEY_EXISTS:
            why_not = "a connection of this client is open: stop it first"
        where = f"{connection.place}, {named(sorted(bad))}"
        raise NotForgotten(f"{name.decode()} at {where}: {why_not}", sorted(bad))
    return set(numbers).difference(refused)


# --- leases ---------------------------------------------------------------------------------------

#: What is granted: the lease's id, its seconds, and what it holds.
Granted = tuple[int, int, list[LeasedVBucket]]


def acquired_lease(
    connection: NodeConnection,
    vbuckets: Sequence[int],
    seconds: int,
    reader: bytes = b"",
    spare: int = 0,
) -> Granted:
    """Have a node hold vBuckets; arguments as `lease.acquire`. Raises `LeaseRefused`."""
    answer = connection.ask(lease.acquire(vbuckets, seconds, reader, spare))
    if answer.status == Status.INVALID_ARGUMENTS and reader:  # an older node asks not who reads
        answer = connection.ask(lease.acquire(vbuckets, seconds, spare=spare))
    return _granted(connection, answer)


def renewed_lease(connection: NodeConnection, number: int, seconds: int) -> int:
    """Let a lease live for so long from now; return the seconds granted. Raises `LeaseRefused`."""
    return _granted(connection, connection.ask(lease.renew(number, seconds)))[1]


def _granted(connection: NodeConnection, answer: ResponseFrame) -> Granted:
    if answer.status:
        has_none = answer.status in (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED)
        what = "has no leases" if has_none else "refuses the lease"
        words = f"the node at {connection.place} {what}: {answer.reason}"
        raise LeaseRefused(words, answer.status)
    try:
        return lease.granted(answer)
    except RemoteProtocolError as error:
        raise connection.protocol_error(str(error)) from None


# --- many requests at once ------------------------------------------------------------------------

_READS_AT_ONCE = 16
_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class RequestLine(Generic[_T]):
    """A connection and the window of requests that go over it.

    TLS may have to read before it can send, or send before it can read: then that is waited for,
    and not the thing that was wanted.

    Attributes:
        lost: why the connection cannot be used any more, or ``None``.
        sent_bytes: how many bytes have left us.
    """

    def __init__(self, connection: NodeConnection, window: Window[_T]) -> None:
        self.connection, self.window = connection, window
        self.lost: NodeError | None = None
        self.sent_bytes = 0
        self._socket = connection.socket
        self._out = memoryview(b"")
        self._deaf: NodeError | None = None
        self._must_read = self._must_write = False

    def fileno(self) -> int:
        """Return the socket to wait for."""
        return self._socket.fileno()

    @property
    def done(self) -> bool:
        """Whether nothing is to be waited for any more; some are refused before they are sent."""
        if self.lost is not None:
            return True
        return self.window.done and (not self._out or self._deaf is not None)

    @property
    def events(self) -> int:
        """What to wait for, in `select.poll`'s words."""
        more = bool(self._out) or self.window.has_room
        wanted = self._must_write or (not self._must_read and more)
        return select.POLLIN | (select.POLLOUT if wanted and self._deaf is None else 0)

    def write(self) -> None:
        """Send what the socket takes."""
        if self._must_write:  # TLS could not read before
            self._must_write = False
            self.read()
        if self._must_read or self.lost is not None:
            return
        if not self._out:
            if not self.window.has_room:
                return
            self._out = memoryview(self.window.next_piece())
        try:
            sent = self._socket.send(self._out)
        except ssl.SSLWantReadError:
            self._must_read = True
            return
        except _WAIT:
            return
        except OSError as error:
            self._deaf = self._failure(error)  # what was answered before can still be read
            return
        self.sent_bytes += sent
        self._out = self._out[sent:]

    def read(self) -> None:
        """Take what has arrived."""
        self._must_read = False
        window = self.window
        for number in count(1):
            try:
                data = self._socket.recv(_READ_BYTES)
            except ssl.SSLWantWriteError:
                self._must_write = True
                return
            except _WAIT:
                return
            except OSError as error:
                self.lost = self._deaf or self._failure(error)
                return
            if not data:
                self.give_up("closed the connection")
                return
            window.take(data)
            if window.nonsense:
                self.lost = self.connection.protocol_error(window.nonsense)
                return
            if window.replies:
                self._out = memoryview(bytes(self._out) + window.replies)
                window.replies = b""
            if self.done or (number >= _READS_AT_ONCE and not self._pending()):
                return

    def _pending(self) -> bool:
        """Tell whether TLS holds bytes that no poll will tell of."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def give_up(self, what: str) -> None:
        """Treat the connection as lost."""
        self.lost = self._deaf or self.connection.failure(what)

    def _failure(self, error: OSError) -> NodeError:
        return self.connection.failure(f"is gone: {why(error)}")


def run(lines: Sequence[RequestLine[Any]], silence_s: float) -> None:
    """Run all of them until each is done or lost; a node silent for `silence_s` is lost."""
    running = {line.fileno(): line for line in lines if not line.done}
    poll = select.poll()
    waited: dict[int, int] = {}  # for which events
    looked_at = time.monotonic()
    heard = dict.fromkeys(running, looked_at)
    look_s = min(silence_s, 1.0)
    try:
        for number, line in list(running.items()):
            line.connection.socket.settimeout(0)
            line.write()
            if line.done:
                del running[number]
                continue
            waited[number] = line.events
            poll.register(number, waited[number])
        while running:
            events = poll.poll(1e3 * look_s)
            now = time.monotonic()
            for number, event in events:
                line = running[number]
                heard[number] = now
                if event & select.POLLOUT:
                    line.write()
                if event & ~select.POLLOUT and line.lost is None:
                    line.read()
                if line.done:
                    poll.unregister(number)
                    del running[number]
                elif waited[number] != (wanted := line.events):
                    waited[number] = wanted
                    poll.modify(number, wanted)
            if now - looked_at >= look_s:
                looked_at = now
                for number in [each for each in running if now - heard[each] >= silence_s]:
                    running.pop(number).give_up(f"says nothing for {silence_s:g} s")
                    poll.unregister(number)
    finally:
        for line in lines:
            if line.fileno() >= 0:
                line.connection.socket.settimeout(silence_s)
