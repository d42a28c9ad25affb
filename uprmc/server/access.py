"""Who may use this node: the users file in memory, a door for each connection, and brakes.

Checking a password of PLAIN takes milliseconds, so a thread does it. How long an answer waits
`brakes` says.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from uprmc.engine.stats import Stats
from uprmc.errors import ConfigError
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import Mechanism
from uprmc.login.scram import ServerExchange
from uprmc.login.users import Role, User, Users
from uprmc.login.users_file import read_file
from uprmc.server.audit import Audit
from uprmc.server.brakes import Brakes
from uprmc.server.log import Log, Throttle

SETTING = "server.users"

#: Passwords that wait for the thread; more are told to come again. Users who have logged in from
#: the same address before still find room, up to twice as many.
WAITING_MAX = 64

#: Who is put off because too many try gets the answer after this time: it is no reason to try again
#: at once.
PUT_OFF_S = 1.0

#: Strangers are disconnected after this time if the settings do not say otherwise.
LOGIN_TIMEOUT_S = 60.0

#: Names and passwords of HTTP that were right and are not checked again.
REMEMBERED_MAX = 64

#: Registered clients whose users are remembered.
CLIENTS_MAX = 10_000

NONCE_BYTES = 18
_LOG_EVERY_S = 1.0

_LOOPBACK = ("127.", "[::1]", "unix")

_log = Log("access")


def load_users(path: str) -> Users:
    """Read a users file; raises `ConfigError`."""
    try:
        return Users(*read_file(path))
    except ConfigError as error:
        raise ConfigError(f"{SETTING}: {error}") from None


def stays_here(peer: str) -> bool:
    """Tell whether what a peer sends does not leave the machine."""
    return peer.startswith(_LOOPBACK)


class Access:
    """The logins of one node.

    Args:
        path: of the users file.
        login_timeout_s: who has not logged in for this long is disconnected.

    Attributes:
        on_reload: called when the users have been read again.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(
        self,
        reactor: Any,
        path: str,
        stats: Stats,
        audit: Audit,
        login_timeout_s: float = LOGIN_TIMEOUT_S,
    ) -> None:
        self.on_reload: list[Callable[[], None]] = []
        self.login_timeout_s = login_timeout_s
        self.audit = audit
        self.stats = stats
        self._reactor = reactor
        self._secret = os.urandom(32)
        self.users = load_users(path)
        self._pool = ThreadPool(minthreads=0, maxthreads=1, name="uprmc-logins")
        self._waiting = 0
        self.brakes = Brakes()
        self._remembered: OrderedDict[bytes, str] = OrderedDict()
        self._throttle = Throttle(_LOG_EVERY_S, reactor.seconds)
        self._clients: OrderedDict[bytes, str] = OrderedDict()

    def reload(self, path: str) -> None:
        """Take the users of a file; raises as the constructor.

        Connections of users who are gone, or have another password or other roles, are closed.
        """
        self.users = load_users(path)
        self._remembered.clear()
        for reloaded in self.on_reload:
            reloaded()

    def stop(self) -> None:
        """End the thread."""
        if self._pool.started:
            self._pool.stop()

    def door(self, peer: str, listener: str, *, tls: bool) -> ConnectionDoor:
        """Return the door of a connection."""
        return ConnectionDoor(self, peer, listener, plain=tls or stays_here(peer))

    def find(self, name: str) -> User | None:
        """Return a user, ``None`` if there is no such user any more."""
        return self.users.find(name)

    def begin(self, mechanism: Mechanism) -> ServerExchange:
        """Return a new exchange of SCRAM."""
        users, hash_name = self.users, mechanism.hash_name
        nonce = b64encode(os.urandom(NONCE_BYTES))
        return ServerExchange(hash_name, lambda name: users.verifier(name, hash_name), nonce)

    def check(
        self, peer: str, credentials: Credentials, checked: Callable[[bool | None], None]
    ) -> None:
        """Check a password in the thread; see `kv.door.Door`."""
        name, now = credentials.username, self._reactor.seconds()
        known = self.brakes.knows(peer, name)
        if self._waiting >= WAITING_MAX * (2 if known else 1):
            checked(None)
            return
        if self.brakes.wait_s(peer, name, now) is None:
            self.later(PUT_OFF_S, lambda: checked(None))
            return
        if not self._pool.started:
            self._pool.start()
        self._waiting += 1

        def done(right: bool | Failure) -> None:
            self._waiting -= 1
            checked(right is True)

        deferToThreadPool(self._reactor, self._pool, self.users.knows, credentials).addBoth(done)

    def remembers(self, credentials: Credentials) -> bool:
        """Tell whether `check_once` knows a name and password to be right."""
        return self._token(credentials) in self._remembered

    def _token(self, credentials: Credentials) -> bytes:
        text = f"{credentials.username}\0{credentials.password}".encode()
        return hashlib.blake2b(text, key=self._secret).digest()

    def check_once(
        self, peer: str, credentials: Credentials, checked: Callable[[bool | None], None]
    ) -> None:
        """Do the same for a client that sends its password with each request."""
        token = self._token(credentials)
        if token in self._remembered:
            checked(True)
            return
        users = self.users

        def remember(right: bool | None) -> None:
            if users is not self.users:  # they were read again meanwhile
                self.check_once(peer, credentials, checked)
                return
            if right:
                self._remembered[token] = credentials.username
                if len(self._remembered) > REMEMBERED_MAX:
                    self._remembered.popitem(last=False)
            checked(right)

        self.check(peer, credentials, remember)

    def refuse(self, peer: str, listener: str, name: str, reason: str) -> float | None:
        """Note a failed login; returns after how many seconds it is to be answered.

        ``None`` = it is to be answered after `PUT_OFF_S`, that too many try.
        """
        self.audit.note(peer, listener, name, "login", "refused")
        held_back = self._throttle.passed()
        if held_back is not None:
            _log.warn("login_refused", peer=peer, user=name, reason=reason, unlogged=held_back)
        return self.brakes.failed(peer, name, self._reactor.seconds())

    def admit(self, peer: str, listener: str, name: str) -> float | None:
        """Note a right password; returns the same, ``None`` = the user is not let in."""
        delay_s = self.brakes.succeeded(peer, name, self._reactor.seconds())
        if delay_s is None:
            self.audit.note(peer, listener, name, "login", "refused")
        return delay_s

    def is_slowed(self, peer: str, name: str) -> bool:
        """Tell whether logins of a name from there have to wait now."""
        return self.brakes.wait_s(peer, name, self._reactor.seconds()) != 0.0

    def claims(self, name: str, client: bytes, *, leaves: bool) -> bool:
        """See `kv.door.Door`; a client of a user who is gone is free."""
        owner = self._clients.pop(client, None)
        if owner not in (None, name) and self.find(str(owner)) is not None:
            self._clients[client] = str(owner)
            return False
        if not leaves:
            self._clients[client] = name
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
        return True

    def later(self, delay_s: float, then: Callable[[], None]) -> None:
        """Call something after a while."""
        self._reactor.callLater(delay_s, then)


class ConnectionDoor:
    """See `kv.door.Door`."""

    def __init__(self, access: Access, peer: str, listener: str, *, plain: bool) -> None:
        self.plain = plain
        self.roles: frozenset[Role] | None = None
        self.exchange: tuple[Mechanism, ServerExchange] | None = None
        self._access = access
        self._peer = peer
        self._listener = listener
        self._name = ""
        self._user: User | None = None
        self._users = access.users
        self._stranger_since: float | None = None

    def over(self, now: float) -> bool:
        """Tell whether to hang up."""
        return self._is_late(now) if self.roles is None else self._is_revoked()

    def _is_late(self, now: float) -> bool:
        if self._stranger_since is None:
            self._stranger_since = now
        late = now - self._stranger_since >= self._access.login_timeout_s
        if late:
            _log.debug("login_timeout", peer=self._peer, listener=self._listener)
        return late

    def _is_revoked(self) -> bool:
        """Tell whether the user is gone, or has changed, since the login."""
        if self._users is not self._access.users:
            if self._access.find(self._name) != self._user:
                return True
            self._users = self._access.users
        return False

    def begin(self, mechanism: Mechanism) -> ServerExchange:
        """Return a new exchange."""
        self._users = self._access.users
        return self._access.begin(mechanism)

    def check(self, credentials: Credentials, checked: Callable[[bool | None], None]) -> None:
        """Check a password."""
        self._users = self._access.users
        self._access.check(self._peer, credentials, checked)

    def admit(self, name: str, then: Callable[[], None], busy: Callable[[], None]) -> bool:
        """Let a user in, at once or later, if not too many try."""
        delay_s = self._access.admit(self._peer, self._listener, name)
        if delay_s is None:
            self._access.later(PUT_OFF_S, busy)
            return False

        def admitted() -> None:
            self._enter(name)
            then()

        if delay_s:
            self._access.later(delay_s, admitted)
        else:
            admitted()
        return not delay_s

    def _enter(self, name: str) -> None:
        """Note who is in, by what was known of users when the login began."""
        self._name = name
        self._stranger_since = None
        self._user = user = self._users.find(name)
        self.roles = user.roles if user is not None else frozenset()
        self._note("login", "allowed")

    def leave(self) -> None:
        """Forget who has logged in."""
        self._name, self._user, self.roles = "", None, None
        self._stranger_since = None

    def refuse(
        self, name: str, reason: str, then: Callable[[], None], busy: Callable[[], None]
    ) -> None:
        """Note that a login failed."""
        delay_s = self._access.refuse(self._peer, self._listener, name, reason)
        if delay_s is None:
            self._access.later(PUT_OFF_S, busy)
        else:
            self._access.later(delay_s, then)

    def claims(self, client: bytes, *, leaves: bool) -> bool:
        """Take note of whose a registered client is."""
        return self._access.claims(self._name, client, leaves=leaves)

    def denied(self, command: str) -> None:
        """Note that a command was refused."""
        self._access.stats.auth_denied += 1
        self._note(command, "refused")

    def managed(self, command: str) -> None:
        """Note that a command for managers is carried out."""
        self._note(command, "allowed")

    def _note(self, action: str, outcome: str) -> None:
        self._access.audit.note(self._peer, self._listener, self._name, action, outcome)
