"""Connections to nodes by an `Access`, which may be used again, and how patiently they are asked.

Every wait is limited: `connect_timeout_s` until the node is ready to be asked, `read_timeout_s`
for each piece of data after that. A node that is silent is worth one more attempt only: each costs
the whole read timeout.

A login costs a node milliseconds of work, so within `reusing` a connection that is done with waits
for whoever needs one next: a backup logs in once for each connection that it needs at a time, not
once for each question.
"""

from __future__ import annotations

import contextlib
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from uprmc.columnar.access import Access, Tls, parsed_place
from uprmc.columnar.errors import BadOption
from uprmc.errors import why
from uprmc.login.credentials import Credentials
from uprmc.remote import features
from uprmc.remote.blocking import NodeConnection
from uprmc.remote.errors import Busy, ClientError, NodeUnreachable, Silent
from uprmc.remote.retry import Backoff, RetryPolicy

#: The longest wait between two attempts, in seconds.
BACKOFF_MAX_S = 5.0

#: How often a node that said nothing in time is asked again.
_SILENCES = 1

T = TypeVar("T")


def dialled(place: str, access: Access) -> NodeConnection:
    """Return a new connection; raises as `NodeConnection`, and `BadOption`."""
    parsed_place(place)
    name = access.username
    return NodeConnection(
        place,
        access.connect_timeout_s,
        _context_of(access.tls) if access.tls else None,
        None if name is None else Credentials(name, access.secret()),
        features.LEASE_READER,
        (access.client_id or "spark").encode()[:200],
        silence_s=access.read_timeout_s,
        bucket=access.bucket,
    )


# --- patience -------------------------------------------------------------------------------------


class Attempts:
    """Counts attempts that failed in a row, and waits between them."""

    def __init__(self, access: Access) -> None:
        patience_s = access.patience_s
        self._policy = RetryPolicy(
            Backoff(access.retry_backoff_s, BACKOFF_MAX_S),
            retries=access.retries if patience_s is None else None,
            patience_s=patience_s,
        )
        self.worked()

    def worked(self) -> None:
        """Something went well: what fails from now on counts from one again."""
        self._policy.good(time.monotonic())
        self._silences = 0

    def wait(self, error: ClientError) -> None:
        """Wait before the next attempt; raises the error if there was enough of them."""
        self._silences += isinstance(error, Silent)
        wait_s = self._policy.wait_s(time.monotonic(), random.random())
        if wait_s is None or self._silences > _SILENCES:
            raise error
        time.sleep(wait_s)


def patiently(access: Access, attempt: Callable[[], T]) -> T:
    """Return what `attempt` returns, trying again while that may help.

    Raises:
        NodeUnreachable, Busy: it has failed too often. Whatever else it raises ends it at once.
    """
    attempts = Attempts(access)
    while True:
        try:
            return attempt()
        except (NodeUnreachable, Busy) as error:
            attempts.wait(error)


# --- used again -----------------------------------------------------------------------------------

#: Connections that rest, of one place, access and purpose.
_RESTING_MAX = 4

_Kind = tuple[str, Access, str]


class _Resting:
    """The connections of this process that wait for whoever needs one next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[_Kind, list[NodeConnection]] = {}
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

    def take(self, kind: _Kind) -> NodeConnection | None:
        while True:
            with self._lock:
                found = self._found.get(kind)
                if not found:
                    return None
                connection = found.pop()
            if connection.rests:
                return connection
            connection.close()

    def give(self, kind: _Kind, connection: NodeConnection) -> None:
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


def taken(place: str, access: Access, purpose: str = "") -> NodeConnection:
    """Return a connection, one that rests or a new one; `given_back` takes it. Raises as `dialled`.

    `purpose` is what its users make of it, who find that in its `opened`; empty = nothing.
    """
    found = _resting.take(_kind(place, access, purpose))
    return dialled(place, access) if found is None else found


def given_back(connection: NodeConnection, access: Access, purpose: str = "") -> None:
    """Let a connection rest; one that cannot be used for the same again is closed."""
    if (connection.opened is None) is (purpose == ""):
        _resting.give(_kind(connection.place, access, purpose), connection)
    else:
        connection.close()


@contextlib.contextmanager
def lent(place: str, access: Access, purpose: str = "") -> Iterator[NodeConnection]:
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
