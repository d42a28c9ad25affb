"""Who is at the other end of a connection, and what they may do: what a session knows of logins.

The node gives every connection a door of its own if the node has users; sessions of one connection
share it. Without users there is none, and everybody may do everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from uprmc.errors import AccessDenied
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import Mechanism
from uprmc.login.scram import ServerExchange
from uprmc.login.users import Role

#: A peer that has not logged in sends no more than this at a time.
STRANGER_MAX_BYTES = 8 * 1024


class Door(Protocol):
    """The user at the other end of one connection.

    Attributes:
        plain: whether a password may be sent in clear here: nobody can listen.
        roles: of the user who has logged in, ``None`` = nobody has.
        exchange: a login by SCRAM that has begun.
    """

    plain: bool
    roles: frozenset[Role] | None
    exchange: tuple[Mechanism, ServerExchange] | None

    def over(self, now: float) -> bool:
        """Tell whether to hang up: who logged in is gone or has changed, or nobody does in time."""

    def begin(self, mechanism: Mechanism) -> ServerExchange:
        """Return a new exchange."""

    def check(self, credentials: Credentials, checked: Callable[[bool | None], None]) -> None:
        """Check a password; `checked` is told, now or later. ``None`` = too many are waiting."""

    def admit(self, name: str, then: Callable[[], None], busy: Callable[[], None]) -> bool:
        """Let a user in whose password was right, and call `then`; `roles` are the user's then.

        That is now, or later while logins fail; returns whether it is done. If too many try, `busy`
        is called instead a while later, as for a wrong password: nothing shows which it was.
        """

    def leave(self) -> None:
        """Forget who has logged in; `roles` is ``None`` afterwards."""

    def refuse(
        self, name: str, reason: str, then: Callable[[], None], busy: Callable[[], None]
    ) -> None:
        """Note that a login failed; `then` is called later, the later the more have failed.

        If too many try, `busy` is called instead.
        """

    def claims(self, client: bytes, *, leaves: bool) -> bool:
        """Take note that a registered client is the user's, or no longer if it `leaves`.

        Returns:
            ``False`` = it is another user's.
        """

    def denied(self, command: str) -> None:
        """Note that a command was refused because a role is missing."""

    def managed(self, command: str) -> None:
        """Note that a command for managers is carried out."""


def require(door: Door | None, role: Role, command: str) -> None:
    """Refuse a command for which the command itself, and not its opcode, shows the needed role.

    Raises:
        AccessDenied: the user does not have the role.
    """
    if door is None:
        return
    if role not in (door.roles or ()):
        door.denied(command)
        raise AccessDenied(f"needs {role}")
    if role is Role.MANAGE:
        door.managed(command)


#: Groups of statistics that programs need who only read or write, and who sees the others.
_OPEN_GROUPS = frozenset({"settings", "index"})
_SEES_STATISTICS = frozenset({Role.MONITOR, Role.STREAM, Role.REPLICATE, Role.MANAGE})
_GROUP_MAX_LETTERS = 32


def require_statistics(door: Door | None, group: str) -> None:
    """Refuse a group of statistics to who may not see it; raises as `require`."""
    if door is None or group in _OPEN_GROUPS or _SEES_STATISTICS & (door.roles or frozenset()):
        return
    door.denied(f"STAT {group[:_GROUP_MAX_LETTERS]}".rstrip())
    raise AccessDenied(f"needs {Role.MONITOR}")
