"""A blocking connection to a running node: one request after the other, and pipelines of them."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Self

from uprmc import places
from uprmc.client.errors import ClientError
from uprmc.connecting import connected, new_nonce
from uprmc.errors import ConfigError, RemoteProtocolError
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import LoginRefused
from uprmc.protocol.framer import BinaryFramer
from uprmc.protocol.header import Frame, RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import FRAME_MAX_BYTES, Opcode, Status
from uprmc.remote.cluster_map import COUNT_GROUP, ClusterMap, count_in, map_of
from uprmc.remote.conversation import Questions
from uprmc.remote.features import Handshake, tells_terms
from uprmc.remote.login import login

_TIMEOUT_S = 30.0
_READ_BYTES = 64 * 1024

#: So many requests are sent before their responses are read: more could fill both ends' buffers.
PIPELINE_MAX = 64


#: What is said where nobody has logged in and somebody has to.
WANTS_LOGIN = f"serves users only: {places.WITH_LOGIN}"

#: Requests of a login.
LOGIN = frozenset({Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP})


class NodeError(ClientError):
    """The node cannot be reached, or its answer makes no sense."""


class LoginWanted(NodeError):
    """The node serves users only, and no user has logged in; it hangs up."""


class StatisticsRefused(NodeError):
    """The node does not tell a group of statistics."""


class NoSuchGroup(StatisticsRefused):
    """The node has no group of statistics with this name."""


class NodeConnection:
    """One conversation with a node's listener; use it in a ``with`` statement.

    Every method that talks raises `NodeError` when the node is gone or makes no sense.

    Args:
        place: see `uprmc.places`.
        timeout_s: for connecting, and for each piece of data that is waited for.
        tls: how to speak TLS, ``None`` = not at all.
        credentials: who logs in, ``None`` = nobody.
        handshake: what HELLO asks for, ``None`` = there is none.
        agent: what the node's log calls us.

    Attributes:
        place: as it was given.
        knows_terms: the node tells the terms of vBuckets.
        socket: for callers that wait for several at once.

    Raises:
        ConfigError: the place is none.
        NodeError: nobody answers there, or not in TLS, or the login is refused.
    """

    def __init__(
        self,
        place: str,
        timeout_s: float = _TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        handshake: Handshake | None = None,
        agent: bytes = b"",
    ) -> None:
        self.place = place
        self.knows_terms = False
        self._heard = False
        self.socket = _dialled(place, timeout_s, tls)
        self._framer = BinaryFramer(FRAME_MAX_BYTES)
        self._questions: Questions[RequestFrame] = Questions(strict=True)
        self._pending: deque[ResponseFrame] = deque()
        try:
            if credentials is not None:
                self._log_in(credentials, safe=tls is not None or places.parsed(place).is_local)
            if handshake is not None:
                answer = self.ask(handshake.hello(agent))
                self.knows_terms = tells_terms(answer.status, answer.value)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; doing so twice is no error."""
        self.socket.close()

    @property
    def tls(self) -> tuple[str, str] | None:
        """Version and cipher of TLS, ``None`` = there is no TLS."""
        if not isinstance(self.socket, ssl.SSLSocket):
            return None
        cipher = self.socket.cipher()
        return self.socket.version() or "TLS", cipher[0] if cipher else "no cipher"

    def ask(self, request: RequestFrame) -> ResponseFrame:
        """Send a request and return its response."""
        self._send(self._numbered(request))
        return self._answer()

    def ask_all(self, requests: Iterable[RequestFrame]) -> Iterator[ResponseFrame]:
        """Send requests without waiting for each, and yield their responses in order."""
        rest = iter(requests)
        while batch := list(islice(rest, PIPELINE_MAX)):
            self._send(b"".join(map(self._numbered, batch)))
            for _ in batch:
                yield self._answer()

    def ask_each(
        self, requests: Iterable[RequestFrame]
    ) -> Iterator[tuple[RequestFrame, ResponseFrame]]:
        """Send requests likewise, and yield each with its response, as these come."""
        rest = iter(requests)
        while batch := list(islice(rest, PIPELINE_MAX)):
            self._send(b"".join(map(self._numbered, batch)))
            for _ in batch:
                yield self._answered()

    def statistics(self, group: str) -> Iterator[tuple[str, str]]:
        """Yield (name, value) of one group.

        Raises:
            NoSuchGroup: there is none of that name.
            StatisticsRefused: the node will not say.
        """
        self._send(self._numbered(RequestFrame(Opcode.STAT, key=group.encode())))
        while (response := self._receive()).key:
            yield response.key.decode(), response.value.decode()
        self._questions.answered(response.opcode, response.opaque)
        if response.status == Status.AUTH_ERROR:
            raise LoginWanted(f"the node at {self.place} {WANTS_LOGIN}")
        if response.status == Status.NOT_MY_VBUCKET:
            raise StatisticsRefused(f"statistics {group!r}: the node does not have that vBucket")
        if response.status == Status.KEY_NOT_FOUND:
            error = NoSuchGroup(f"the node has no statistics group {group!r}")
            raise error.doubting(self.place)
        if response.status:
            raise StatisticsRefused(f"statistics {group!r} refused: {response.reason}")

    def told(self, group: str) -> dict[str, str]:
        """Return a group of statistics, nothing if the node does not tell it."""
        try:
            return dict(self.statistics(group))
        except StatisticsRefused:
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
                request = steps.send(self.ask(request))
        except StopIteration:
            pass
        except LoginRefused as error:
            raise NodeError(f"the node at {self.place} {error}") from None

    def _send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise NodeError(f"the node at {self.place} is gone: {_words(error)}") from None

    def _numbered(self, request: RequestFrame) -> bytes:
        return request.encode(self._questions.expect(request.opcode, request))

    def _answer(self) -> ResponseFrame:
        """Return the next response to a question; what answers none is passed over."""
        return self._answered()[1]

    def _answered(self) -> tuple[RequestFrame, ResponseFrame]:
        """Return the next response with its question; what answers none is passed over."""
        while True:
            frame = self._receive()
            try:
                question = self._questions.answered(frame.opcode, frame.opaque)
                if question is not None:
                    if frame.status == Status.AUTH_ERROR and question.opcode not in LOGIN:
                        raise LoginWanted(f"the node at {self.place} {WANTS_LOGIN}")
                    return question, frame
            except RemoteProtocolError as error:
                raise NodeError(f"the node at {self.place} makes no sense: {error}") from None

    def _receive(self) -> ResponseFrame:
        while not self._pending:
            self._pending += [frame for frame in self._read() if isinstance(frame, ResponseFrame)]
        return self._pending.popleft()

    def _read(self) -> list[Frame]:
        """Wait for data and return the frames that it completes, perhaps none."""
        data = self.receive_some(_READ_BYTES)
        try:
            frames = self._framer.feed(data)
            self._heard = self._heard or bool(frames)
            return frames
        except RemoteProtocolError as error:
            words = places.stranger(self.place, data)
            words = words or f"what answers at {self.place} is no node of ours: {error}"
            raise NodeError(words).doubting(self.place) from None

    # --- for those who look after frames themselves ---------------------------------------------

    def fileno(self) -> int:
        """Return the socket's number, to wait for it with others."""
        return self.socket.fileno()

    def failure(self, what: str) -> NodeError:
        """Return what to raise when the connection cannot be used any more."""
        return NodeError(f"the node at {self.place} {what}")

    def protocol_error(self, what: str) -> NodeError:
        """Return what to raise of bytes that make no sense."""
        return NodeError(f"the node at {self.place} sent {what}")

    def send_some(self, data: memoryview) -> int:
        """Send as much as there is room for; returns how many bytes that was."""
        try:
            return self.socket.send(data)
        except OSError as error:
            raise NodeError(f"the node at {self.place} is gone: {_words(error)}") from None

    def receive_some(self, limit_bytes: int) -> bytes:
        """Wait for data and return it."""
        try:
            data = self.socket.recv(limit_bytes)
        except TimeoutError:
            limit_s = self.socket.gettimeout() or 0.0
            raise self._doubted(f"says nothing for {limit_s:g} s") from None
        except OSError as error:
            raise self._doubted(f"does not answer: {_words(error)}") from None
        if not data:
            raise self._doubted(f"closed the connection{self._hint()}")
        return data

    def _doubted(self, what: str) -> NodeError:
        error = NodeError(f"the node at {self.place} {what}")
        return error.doubting(self.place) if self._is_doubtful else error

    def _hint(self) -> str:
        return "; does its listener speak TLS?" if self._is_doubtful else ""

    @property
    def _is_doubtful(self) -> bool:
        return not self._heard and not isinstance(self.socket, ssl.SSLSocket)


def _dialled(place: str, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    try:
        where = places.parsed(place)
    except ValueError as error:
        raise ConfigError(f"{place!r} is no node: say {error}") from None
    try:
        plain = connected(where, timeout_s)
    except (OSError, UnicodeError) as error:
        raise NodeError(f"no node answers at {place}: {_words(error)}; is it running?") from None
    if tls is None:
        return plain
    try:
        return tls.wrap_socket(plain, server_hostname=where.tls_name)
    except (OSError, ValueError) as error:
        plain.close()
        if isinstance(error, TimeoutError):
            silent = NodeError(f"the node at {place} says nothing for {timeout_s:g} s")
            raise silent.doubting(place) from None
        why = str(getattr(error, "verify_message", "") or getattr(error, "reason", "") or error)
        failed = NodeError(places.tls_refusal(place, why))
        raise (failed.doubting(place) if places.speaks_no_tls(why) else failed) from None


def _words(error: Exception) -> str:
    """Return what the system says, without its number."""
    return str(getattr(error, "strerror", None) or error)
