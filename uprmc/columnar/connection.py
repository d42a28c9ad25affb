"""A blocking connection to one node: TLS, login, questions in a pipeline, bytes.

Every wait is limited: `connect_timeout_s` until the node is ready to be asked, `read_timeout_s`
for each piece of data after that. What goes wrong with the connection is `Unreachable`, and may be
tried again; what the node says that no node may say is `ProtocolError`, and may not.

A login costs a node milliseconds of work, so within `reusing` a connection that is done with waits
for whoever needs one next: a backup logs in once for each connection that it needs at a time, not
once for each question.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

from uprmc.columnar.access import Access, Tls, parsed_place
from uprmc.columnar.errors import (
    BadOption,
    LoginRefused,
    ProtocolError,
    Refused,
    TlsFailed,
    Unreachable,
    why,
)
from uprmc.columnar.retry_policy import Busy, Silent, TlsCut
from uprmc.connecting import connected, new_nonce
from uprmc.login import mechanisms
from uprmc.login.credentials import Credentials
from uprmc.places import speaks_no_tls, stranger, tls_refusal
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
)
from uprmc.remote import features
from uprmc.remote.conversation import KEEP_ALIVES, Questions, keep_alive_answer
from uprmc.remote.login import login
from uprmc.remote.requests import Verdict, verdict

#: Questions that are under way at a time: more could fill both sockets' buffers and hang.
PIPELINE_MAX = 256

#: More statistics than this are not a node's.
STATS_MAX = 1_000_000

_READ_BYTES = 256 * 1024

#: Takes an answer, see `Connection.converse`.
TakeAnswer = Callable[[int, ResponseFrame], bool]


class Connection:
    """A blocking connection to one node.

    Attributes:
        place: HOST:PORT.
        socket: for callers that have to wait for several things at once.
        knows_terms: the node tells the terms of vBuckets.
        knows_origins: it tells where versions were first accepted, and takes that with them.
        opened: what came of making it a connection for one purpose, see `lent`.

    Raises:
        Unreachable: nothing answers there.
        TlsFailed, LoginRefused, Refused: the node does not want us.
    """

    def __init__(self, place: str, access: Access) -> None:
        self.place = place
        self._access = access
        self.knows_terms = False
        self.knows_origins = False
        self.opened: Any = None
        self._questions: Questions[int] = Questions(strict=False)
        self._heard = False
        self._received = bytearray()
        self.socket = self._connected()
        try:
            self._introduce()
            self.socket.settimeout(access.read_timeout_s)
        except BaseException:
            self.close()
            raise

    # --- questions ------------------------------------------------------------------------------

    def ask_all(self, requests: Sequence[RequestFrame]) -> list[ResponseFrame]:
        """Return the answers to requests that have one each, in their order, whatever the status.

        Raises:
            Unreachable, ProtocolError.
        """
        found: dict[int, ResponseFrame] = {}

        def take(number: int, answer: ResponseFrame) -> bool:
            found[number] = answer
            return True

        self.converse(requests, take)
        return [found[number] for number in range(len(requests))]

    def converse(self, requests: Sequence[RequestFrame], take: TakeAnswer) -> None:
        """Ask, and hand over each answer with the number of its request, as they come.

        Args:
            requests: what is asked.
            take: returns whether it was the last answer to that request.

        Raises:
            Unreachable, ProtocolError.
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

    def require(self, requests: Sequence[RequestFrame]) -> list[ResponseFrame]:
        """Return the answers as `ask_all` does, all of them successes.

        Raises:
            Busy: the node asks to come again later.
            Refused: it does not want to.
            Unreachable, ProtocolError.
        """
        answers = self.ask_all(requests)
        for request, answer in zip(requests, answers, strict=True):
            if answer.status:
                raise self.refusal(answer, opcode_name(request.opcode))
        return answers

    def stats(self, group: str) -> dict[str, str]:
        """Return a group of statistics by name; raises as `require`."""
        opaque = self._questions.expect(Opcode.STAT, Opcode.STAT)
        self.send(RequestFrame(Opcode.STAT, group.encode()).encode(opaque))
        found: dict[str, str] = {}
        while len(found) <= STATS_MAX:
            answer = self._answer()
            if answer.key and not answer.status:
                name = answer.key.decode("utf-8", "replace")
                found[name] = answer.value.decode("utf-8", "replace")
                continue
            self._questions.forget(opaque)
            if answer.status:
                raise self.refusal(answer, f"STAT {group}")
            return found
        raise self.protocol_error(f"more than {STATS_MAX} statistics")

    def told(self, group: str) -> dict[str, str]:
        """Return a group of statistics, nothing if the node does not tell it."""
        try:
            return self.stats(group)
        except Refused:
            return {}

    def refusal(self, answer: ResponseFrame, what: str) -> Refused:
        """Return what to raise of an answer that is no success."""
        kind = Busy if verdict(answer.status) is Verdict.AGAIN else Refused
        refused = kind(f"{self.place} answers {what} with: {answer.reason}")
        unknown = answer.status == Status.UNKNOWN_COMMAND
        return refused.doubting(self.place) if unknown else refused

    def protocol_error(self, what: str) -> ProtocolError:
        """Return what to raise of bytes that make no sense."""
        return ProtocolError(
            f"{self.place} sent {what}; is it the upr listener of a node of uprmc?"
        )

    def failure(self, what: str) -> Unreachable:
        """Return what to raise when the connection cannot be used any more."""
        return Unreachable(f"{self.place} {what}")

    def next_opaque(self) -> int:
        """Return a number that no earlier request of this connection has."""
        return self._questions.new_opaque()

    # --- bytes ----------------------------------------------------------------------------------

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it; raises `Unreachable`."""
        try:
            self.socket.sendall(data)
        except (OSError, ssl.SSLError) as error:
            raise self._lost(error) from None

    def recv_into(self, buffer: memoryview) -> int:
        """Wait for bytes and return how many came, at least one; raises `Unreachable`."""
        if self._received:  # came behind the answer that was waited for last
            size = min(len(buffer), len(self._received))
            buffer[:size] = self._received[:size]
            del self._received[:size]
            return size
        try:
            count = self.socket.recv_into(buffer)
        except (OSError, ssl.SSLError) as error:
            raise self._lost(error) from None
        if not count:
            raise self._doubted(Unreachable(f"{self.place} closed the connection{self._hint()}"))
        return count

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

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- how it comes about ---------------------------------------------------------------------

    def _connected(self) -> socket.socket:
        where = parsed_place(self.place)
        context = _context_of(self._access.tls) if self._access.tls else None
        try:
            plain = connected(where, self._access.connect_timeout_s)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"no node answers at {self.place}: {why(error)}") from None
        if context is None:
            return plain
        try:
            return context.wrap_socket(plain, server_hostname=where.tls_name)
        except (OSError, ssl.SSLError, ValueError) as error:
            plain.close()
            if isinstance(error, TimeoutError):
                limit_s = self._access.connect_timeout_s
                raise Silent(f"{self.place} said nothing for {limit_s:g} s") from None
            said = isinstance(error, (ssl.SSLError, ValueError))
            kind = TlsFailed if said and not isinstance(error, ssl.SSLEOFError) else TlsCut
            words = tls_refusal(self.place, why(error)).removeprefix("the node at ")
            failed = kind(words)
            raise (failed.doubting(self.place) if speaks_no_tls(why(error)) else failed) from None

    def _introduce(self) -> None:
        access = self._access
        name = (access.client_id or "spark").encode()[:200]
        (answer,) = self.ask_all([features.LEASE_READER.hello(name)])
        self.knows_terms = features.tells_terms(answer.status, answer.value)
        self.knows_origins = features.grants(Feature.ORIGINS, answer.status, answer.value)
        if access.username is not None:
            self._log_in(access.username)
        if access.bucket:
            (answer,) = self.ask_all([RequestFrame(Opcode.SELECT_BUCKET, access.bucket.encode())])
            if answer.status:
                raise self.refusal(answer, f"the choice of bucket {access.bucket!r}")

    def _log_in(self, username: str) -> None:
        credentials = Credentials(username, self._access.secret())
        safe = self._access.tls is not None or parsed_place(self.place).is_local
        steps = login(credentials, new_nonce(), safe=safe)
        try:
            request = next(steps)
            while True:
                (answer,) = self.ask_all([request])
                if verdict(answer.status) is Verdict.AGAIN:
                    raise self.refusal(answer, "the login")
                request = steps.send(answer)
        except StopIteration:
            pass
        except mechanisms.LoginRefused as error:
            raise LoginRefused(f"{self.place} {error}") from None

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
                if answer.status == Status.AUTH_ERROR and self._access.username is None:
                    raise LoginRefused(
                        f"{self.place} serves users only: say username, and passwordFile or "
                        "passwordEnv"
                    )
                return answer
            if frame[1] not in KEEP_ALIVES:
                raise self.protocol_error(f"an unexpected {opcode_name(frame[1])}")
            _, sent, _, _, _, _, _, its_opaque, _ = RESPONSE_HEADER.unpack_from(frame)
            self.send(keep_alive_answer(sent, its_opaque))

    def _frame(self) -> bytes:
        received = self._received
        self._fill(HEADER_BYTES)
        magic, opcode, key_length, extras_length, _, _, length, _, _ = RESPONSE_HEADER.unpack_from(
            received
        )
        if magic not in (MAGIC_REQUEST, MAGIC_RESPONSE):
            if words := stranger(self.place, bytes(received)):
                raise ProtocolError(words).doubting(self.place)
            strange = self.protocol_error(f"what is no frame (magic {magic:#04x})")
            raise strange.doubting(self.place)
        if length > FRAME_MAX_BYTES or key_length + extras_length > length:
            raise self.protocol_error(
                f"{opcode_name(opcode)} with a body of {length} bytes, a key of {key_length} and "
                f"extras of {extras_length}"
            )
        self._fill(HEADER_BYTES + length)
        self._heard = True
        frame = bytes(received[: HEADER_BYTES + length])
        del received[: HEADER_BYTES + length]
        return frame

    def _fill(self, size: int) -> None:
        received = self._received
        while len(received) < size:
            try:
                piece = self.socket.recv(max(_READ_BYTES, size - len(received)))
            except (OSError, ssl.SSLError) as error:
                raise self._lost(error) from None
            if not piece:
                raise self._doubted(
                    Unreachable(f"{self.place} closed the connection{self._hint()}")
                )
            received += piece

    def _lost(self, error: OSError) -> Unreachable:
        if isinstance(error, TimeoutError):
            limit = self.socket.gettimeout() or 0.0
            silent = Silent(f"{self.place} said nothing for {limit:g} s{self._hint()}")
            return self._doubted(silent)
        return self._doubted(
            Unreachable(f"the connection to {self.place} was lost: {why(error)}{self._hint()}")
        )

    def _doubted(self, error: Unreachable) -> Unreachable:
        return error if self._heard or self._access.tls else error.doubting(self.place)

    def _hint(self) -> str:
        if self._heard or self._access.tls:
            return ""
        return "; is it the upr listener, and does that speak TLS?"


# --- used again -----------------------------------------------------------------------------------

#: Connections that rest, of one place, access and purpose.
_RESTING_MAX = 4

_Kind = tuple[str, Access, str]


class _Resting:
    """The connections of this process that wait for whoever needs one next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[_Kind, list[Connection]] = {}
        self._users = 0

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            left = [] if self._users else [each for kind in self._found.values() for each in kind]
            if not self._users:
                self._found.clear()
        for each in left:
            each.close()

    def take(self, kind: _Kind) -> Connection | None:
        while True:
            with self._lock:
                found = self._found.get(kind)
                if not found:
                    return None
                connection = found.pop()
            if connection.rests:
                return connection
            connection.close()

    def give(self, kind: _Kind, connection: Connection) -> None:
        if connection.rests:
            with self._lock:
                found = self._found.setdefault(kind, [])
                if self._users and len(found) < _RESTING_MAX:
                    found.append(connection)
                    return
        connection.close()


_resting = _Resting()


@contextlib.contextmanager
def reusing() -> Iterator[None]:
    """Let connections of this process be used again, until the block ends."""
    _resting.enter()
    try:
        yield
    finally:
        _resting.leave()


def taken(place: str, access: Access, purpose: str = "") -> Connection:
    """Return a connection, one that rests or a new one; `given_back` takes it. Raises as the class.

    Args:
        place, access: as for the class.
        purpose: what its users make of it, who find that in its `opened`; empty = nothing.
    """
    found = _resting.take(_kind(place, access, purpose))
    return Connection(place, access) if found is None else found


def given_back(connection: Connection, access: Access, purpose: str = "") -> None:
    """Let a connection rest; one that cannot be used for the same again is closed."""
    if (connection.opened is None) is (purpose == ""):
        _resting.give(_kind(connection.place, access, purpose), connection)
    else:
        connection.close()


@contextlib.contextmanager
def lent(place: str, access: Access, purpose: str = "") -> Iterator[Connection]:
    """Give a connection for a block; after an error it is closed. See `taken`."""
    connection = taken(place, access, purpose)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    given_back(connection, access, purpose)


def _kind(place: str, access: Access, purpose: str) -> _Kind:
    """Return which connections are alike: how one is made does not depend on the rest of access."""
    return place, replace(access, terms={}, patience_s=None, spare_leases=0), purpose


def _context_of(tls: Tls) -> ssl.SSLContext:
    """Return a context.

    Raises:
        BadOption: a file cannot be read, or holds no certificate or key.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BadOption(f"tlsCaFile={tls.ca_file}: {_tls_reason(error)}") from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except (OSError, ssl.SSLError) as error:
            files = f"tlsCertFile={tls.cert_file} tlsKeyFile={tls.key_file}"
            raise BadOption(f"{files}: {_tls_reason(error)}") from None
    return context


def _tls_reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or why(error))
