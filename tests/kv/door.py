"""A door without a node: users in memory, passwords checked and failures answered by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tests.kv.harness import Rig, drained
from uprmc.kv.session import Negotiation
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import Mechanism
from uprmc.login.scram import ITERATIONS_MIN, ServerExchange
from uprmc.login.users import HASH_NAMES, Role, User, Users, new_user
from uprmc.ports import Session

PASSWORD = "pencil"
NONCE = b"server-nonce"
EVERY_ROLE = frozenset(Role)


@cache
def user(name: str, roles: frozenset[Role]) -> User:
    return new_user(Credentials(name, PASSWORD), roles, [b"salt"] * len(HASH_NAMES), ITERATIONS_MIN)


class HandDoor:
    """Implements `kv.roles.Door`.

    Attributes:
        notes: what would be in the audit log.
        delayed: answers to failures that are held back; `let` gives them.
        by_hand: passwords are checked when `let` is called.
        busy: no password is checked, and nobody learns whether a proof was right.
        others: registered clients of other users.
        slow: answers to right passwords are held back, too.
    """

    def __init__(self, *, plain: bool = True, **roles: str) -> None:
        granted = {name: frozenset(map(Role, text.split())) for name, text in roles.items()}
        self.users = Users([user(name, each) for name, each in granted.items()], bytes(32))
        self.plain = plain
        self.roles: frozenset[Role] | None = None
        self.exchange: tuple[Mechanism, ServerExchange] | None = None
        self.revoked = False
        self.notes: list[tuple[str, ...]] = []
        self.delayed: list[Callable[[], None]] = []
        self.by_hand = self.busy = self.slow = False
        self.others: set[bytes] = set()

    def over(self, now: float) -> bool:
        return self.revoked

    def begin(self, mechanism: Mechanism) -> ServerExchange:
        name = mechanism.hash_name
        return ServerExchange(name, lambda who: self.users.verifier(who, name), NONCE)

    def check(self, credentials: Credentials, checked: Callable[[bool | None], None]) -> None:
        def check() -> None:
            checked(None if self.busy else self.users.knows(credentials))

        if self.by_hand:
            self.delayed.append(check)
        else:
            check()

    def admit(self, name: str, then: Callable[[], None], busy: Callable[[], None]) -> bool:
        found = self.users.find(name)
        assert found is not None
        if self.busy:
            self.delayed.append(busy)
            return False
        self.notes.append(("login", name))

        def admitted() -> None:
            self.roles = found.roles
            then()

        if self.slow:
            self.delayed.append(admitted)
        else:
            admitted()
        return not self.slow

    def leave(self) -> None:
        self.roles = None

    def refuse(
        self, name: str, reason: str, then: Callable[[], None], busy: Callable[[], None]
    ) -> None:
        self.notes.append(("refused", name))
        self.delayed.append(busy if self.busy else then)

    def claims(self, client: bytes, *, leaves: bool) -> bool:
        return client not in self.others

    def denied(self, command: str) -> None:
        self.notes.append(("denied", command))

    def managed(self, command: str) -> None:
        self.notes.append(("managed", command))

    def let(self) -> None:
        """Give every answer that is held back."""
        while self.delayed:
            self.delayed.pop(0)()


class Visitor:
    """One connection to a rig whose users are those of a door."""

    def __init__(self, rig: Rig, door: HandDoor, *, by_key: bool = True) -> None:
        self.rig, self.door = rig, door
        rig.services.door = door
        self.session: Session = Negotiation(rig.services, rig.wake, by_key=by_key)

    def say(self, *data: bytes) -> bytes:
        """Send bytes in one piece; return the replies, those to failures included."""
        out = self.begin(*data)
        while self.door.delayed:
            self.door.let()
            out += self._heard()
        return out

    def begin(self, *data: bytes) -> bytes:
        """Send bytes and return the replies that come at once."""
        self.session.receive_data(b"".join(data))
        return self._heard()

    def _heard(self) -> bytes:
        """Return what is to be sent, as the adapter would ask for it."""
        out = b""
        while True:
            while self.session.successor is not None:
                self.session = self.session.successor
            said = drained(self.session)
            out += said
            if not said and self.session.successor is None:
                return out

    @property
    def closed(self) -> bool:
        return self.session.closing
