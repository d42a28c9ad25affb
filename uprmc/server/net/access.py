"""Who may use this node: the users file in memory, a door for each connection, and brakes.

Checking a password of PLAIN takes milliseconds, so a thread does it. How long an answer waits
`Brakes` says.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import hashlib
import json
import os
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any

from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from uprmc.engine.stats import Stats
from uprmc.errors import ConfigError
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import Mechanism
from uprmc.login.scram import ServerExchange, prepared
from uprmc.login.users import Role, User, Users
from uprmc.login.users_file import read_file
from uprmc.server.log import Log, Throttle, time_text

# --- the audit log --------------------------------------------------------------------------------
# The audit log: one line of JSON for each login, command for managers and refusal.
#
#     {"time":"2026-11-26T12:00:00.123Z","peer":"10.0.0.7:50312","listener":"upr","user":"ann",
#      "action":"SET_VBUCKET","outcome":"allowed"}
#
# A disk that takes no more lines stops neither the node nor a login: lines are counted as lost, and
# the log of the node says so once, and once more when lines are written again.


_audit_log = Log("audit")

#: Refusals that are written in a second; a stranger can cause as many as he likes.
REFUSALS_A_SECOND = 1_000

#: A pipe that takes no more must not keep the node.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK

#: Outcome of what no stranger can cause, which is always written.
ALLOWED = "allowed"


class Audit:
    """Writes the lines; without a path it does nothing."""

    def __init__(self, path: str, now: Callable[[], float]) -> None:
        """Open the file.

        Raises:
            ConfigError: it cannot be written.
        """
        # lost: lines that could not be written; dropped: refusals that were too many.
        self.lost = self.dropped = 0
        self._path = path
        self._now = now
        self._file = -1
        self._second = 0
        self._lines = 0
        self._failing = self._torn = False
        self.reopen(path)

    def reopen(self, path: str) -> None:
        """Go on in the file of this name, which may have been rotated away; raises likewise."""
        file = -1
        if path:
            try:
                file = os.open(path, _FLAGS, 0o600)
            except OSError as error:
                raise ConfigError(f"log.audit: {path}: {error.strerror}") from None
        self.close()
        self._path, self._file = path, file
        self._failing = self._torn = False

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def note(self, peer: str, listener: str, user: str, action: str, outcome: str) -> None:
        """Write one line."""
        if self._file < 0:
            return
        now = self._now()
        if outcome != ALLOWED and not self._has_room(now):
            self.dropped += 1
            return
        line = {
            "time": time_text(now),
            "peer": peer,
            "listener": listener,
            "user": user,
            "action": action,
            "outcome": outcome,
        }
        self._write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def _has_room(self, now: float) -> bool:
        """Count a line that strangers can cause; tell whether it is not one too many."""
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        self._lines += 1
        return self._lines <= REFUSALS_A_SECOND

    def _write(self, line: bytes) -> None:
        if self._torn:
            line = b"\n" + line
        try:
            written = os.write(self._file, line)
        except OSError as error:
            self._lose(error.strerror)
            return
        self._torn = written != len(line)
        if self._torn:
            self._lose("the file takes no more")
        elif self._failing:
            self._failing = False
            _audit_log.info("works_again", path=self._path, lost=self.lost)

    def _lose(self, why: str | None) -> None:
        if not self._failing:
            _audit_log.error("failed", path=self._path, error=why)
        self._failing = True
        self.lost += 1


# --- brakes ---------------------------------------------------------------------------------------
# Brakes for who guesses passwords: how many are tried in a time, and how long each answer waits.
#
# Failures are counted by address and by user name, so that neither many names from one address nor
# one name from many addresses are tried fast. Logins of a name from an address follow one another:
# each waits for the one before it and then for its own time, which grows with the failures. Those
# of other names from there follow in a quarter of that time, and those of a name that fails from
# all addresses in a tenth of a second. What would have to wait for too long is answered at once,
# that too many try, and counts for nothing: so the number of connections makes no difference.
#
# A right password waits as a wrong one does, and is put off as one: who does not wait for the
# answer learns nothing. No user is locked out, because failures are forgiven and a wait has a
# limit; and one who has logged in from an address before waits there only for failures of the same
# name from the same address.


#: The first failure waits for this long, each further one twice as long, up to the limit, which is
#: below the 3 s for which clients in use wait for an answer.
DELAY_S = 0.1
DELAY_MAX_S = 2.0

#: Logins of a name that fails follow one another in no less than this, from all addresses.
NAME_EVERY_S = 0.1

#: Other names from the same address follow in this part of the time of one name.
HOST_PART = 0.25

#: What would wait for longer is put off: clients in use wait for 3 s.
WAIT_MAX_S = 2.5

#: More failures make no difference, so that they are forgiven in some minutes.
_COUNT_MAX = 6

#: One failure is forgiven in each of these times.
FORGIVEN_EVERY_S = 60.0

#: Addresses, names, and pairs of both that are remembered.
FAILURES_MAX = 10_000


class Failures:
    """Counts by key; the key that was counted longest ago goes first."""

    def __init__(self) -> None:
        self._found: OrderedDict[object, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def count(self, key: object, now: float) -> int:
        """Return how many there are."""
        count, since = self._found.get(key, (0, now))
        return max(0, count - int(max(0.0, now - since) / FORGIVEN_EVERY_S))

    def put(self, key: object, count: int, now: float) -> None:
        """Remember that there are `count` now."""
        self._found.pop(key, None)
        self._found[key] = min(count, _COUNT_MAX), now
        if len(self._found) > FAILURES_MAX:
            self._found.popitem(last=False)

    def add(self, key: object, now: float) -> None:
        """Count one more."""
        self.put(key, self.count(key, now) + 1, now)

    def forget(self, key: object) -> None:
        """Let there be none."""
        self._found.pop(key, None)


class Brakes:
    """See the module docstring. Peers are ``HOST:PORT`` or ``unix``; times are seconds."""

    def __init__(self) -> None:
        # hosts: failures; names: failures; known: failures of names from addresses from which they
        # have logged in.
        self.hosts, self.names, self.known = Failures(), Failures(), Failures()
        self._free: OrderedDict[object, float] = OrderedDict()  # when the next one is tried

    def knows(self, peer: str, name: str) -> bool:
        """Tell whether a user has logged in from there before."""
        return (_host(peer), prepared(name)) in self.known

    def wait_s(self, peer: str, name: str, now: float) -> float | None:
        """Return how long the answer to a login would wait now, ``None`` = it would be put off."""
        return self._turn(_host(peer), prepared(name), now, 0)[0]

    def failed(self, peer: str, name: str, now: float) -> float | None:
        """Note a failure; return how long its answer waits, ``None`` = it is put off."""
        host, who = _host(peer), prepared(name)
        waits_s, free = self._turn(host, who, now, 1)
        if waits_s is not None:
            self.hosts.add(host, now)
            self.names.add(who, now)
            if (host, who) in self.known:
                self.known.add((host, who), now)
            self._take(free, now)
        return waits_s

    def succeeded(self, peer: str, name: str, now: float) -> float | None:
        """Note a right password; return how long its answer waits, ``None`` = it is put off."""
        host, who = _host(peer), prepared(name)
        waits_s, free = self._turn(host, who, now, 0)
        if waits_s is not None:
            self._take(free, now)
            self.hosts.forget(host)
            for key in (host, (host, who)):
                self._free.pop(key, None)
            self.known.put((host, who), self.known.count((host, who), now), now)
        return waits_s

    def _turn(
        self, host: str, who: bytes, now: float, more: int
    ) -> tuple[float | None, dict[object, float]]:
        """Return how long a login with so many more failures waits, and who is taken until when."""
        pair, of_name = (host, who), self.names.count(who, now)
        known = pair in self.known
        if known:
            failures = self.known.count(pair, now)
        else:
            failures = max(self.hosts.count(host, now), of_name)
        delay_s = _delay_s(failures + more)
        gaps: dict[object, float] = {pair: delay_s}
        if not known:
            gaps |= {host: delay_s * HOST_PART, who: NAME_EVERY_S if of_name + more else 0.0}
        begins = max(now, *(self._free.get(key, now) for key in gaps))
        # Whether it is put off is the same for a right password and a wrong one.
        if begins > now and begins - now + _delay_s(failures + 1) > WAIT_MAX_S:
            return None, {}
        return begins - now + delay_s, {key: begins + gap for key, gap in gaps.items() if gap}

    def _take(self, free: dict[object, float], now: float) -> None:
        for key, until in free.items():
            self._free.pop(key, None)
            self._free[key] = until
            if len(self._free) > FAILURES_MAX:
                self._free.popitem(last=False)


def _delay_s(failures: int) -> float:
    return min(DELAY_S * 2.0 ** (failures - 1), DELAY_MAX_S) if failures > 0 else 0.0


def _host(peer: str) -> str:
    """Return what counts as one address; of IPv6 a network, all of which one machine may have."""
    host = peer.rpartition(":")[0] or peer
    if not host.startswith("["):
        return host
    address = IPv6Address(host[1:-1].partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.exploded[:19]  # 64 bits


# --- users and doors ------------------------------------------------------------------------------


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


class UserAccess:
    """The logins of one node.

    Args:
        path: of the users file.
        login_timeout_s: who has not logged in for this long is disconnected.

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
        self.on_reload: list[Callable[[], None]] = []  # called when the users have been read again
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

    def begin(self, mechanism: Mechanism) -> ServerExchange:
        """Return a new exchange of SCRAM."""
        users, hash_name = self.users, mechanism.hash_name
        nonce = b64encode(os.urandom(NONCE_BYTES))
        return ServerExchange(hash_name, lambda name: users.verifier(name, hash_name), nonce)

    def check(
        self, peer: str, credentials: Credentials, checked: Callable[[bool | None], None]
    ) -> None:
        """Check a password in the thread; see `kv.roles.Door`."""
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
        """See `kv.roles.Door`; a client of a user who is gone is free."""
        owner = self._clients.pop(client, None)
        if owner not in (None, name) and self.users.find(str(owner)) is not None:
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
    """See `kv.roles.Door`."""

    def __init__(self, access: UserAccess, peer: str, listener: str, *, plain: bool) -> None:
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
            if self._access.users.find(self._name) != self._user:
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
