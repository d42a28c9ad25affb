"""Who is at the other end of a connection, and what they may do: what a session knows of logins.

The node gives every connection a door of its own if the node has users; sessions of one connection
share it. Without users there is none, and everybody may do everything.

`protocol.opcodes` has the roles of opcodes, words of text have a table here. Where a word is in the
sets of several roles, any of these is enough. The tables are turned round once: a session knows
what its user may *not* use, which is nothing where logins are off. A few commands ask for more by
themselves (`require`); `FINER` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol

from uprmc.errors import AccessDenied
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import Mechanism
from uprmc.login.scram import ServerExchange
from uprmc.login.users import Role
from uprmc.protocol.opcodes import Opcode, Who

# --- which role each command needs --------------------------------------------------------------


#: What every peer may do, also before a login; clients of Couchbase send GET_ERROR_MAP with theirs.
OPEN_OPCODES = frozenset(each for each in Opcode if each.who is Who.ANYBODY)

_READ_AND_WRITE = frozenset({Role.READ, Role.WRITE})


@cache
def role_of(opcode: int) -> frozenset[Role] | None:
    """Return the roles of which an opcode needs one, none if every user may use it.

    ``None`` means that no user may: there is no such command. What needs two roles has both.
    """
    if opcode not in _KNOWN:
        return None
    who = Opcode(opcode).who
    if who is Who.BOTH:
        return _READ_AND_WRITE
    if who in (Who.USERS, Who.ANYBODY):
        return frozenset()
    return frozenset(Role[each.name] for each in Who if each & who and each.name is not None)


def needs_both(opcode: int) -> bool:
    """Tell whether an opcode needs all of its roles, and not any one of them."""
    return opcode in _KNOWN and Opcode(opcode).who is Who.BOTH


_KNOWN = frozenset(map(int, Opcode))

#: What goes into the audit log: what only managers may. Other commands get there by themselves.
MANAGEMENT = frozenset(each for each in Opcode if each.who is Who.MANAGE)

_WORDS_OF: dict[Role, frozenset[bytes]] = {
    Role.READ: frozenset({b"get", b"gets", b"mg", b"me"}),
    Role.WRITE: frozenset(
        {
            *(b"set", b"add", b"replace", b"append", b"prepend", b"cas", b"ms", b"md", b"ma"),
            *(b"delete", b"incr", b"decr", b"touch"),
        }
    ),
    Role.MANAGE: frozenset({b"flush_all", b"cache_memlimit", b"verbosity", b"shutdown"}),
}
MANAGEMENT_WORDS = _WORDS_OF[Role.MANAGE]
_BOTH_WORDS = frozenset({b"gat", b"gats"})

#: Words that anybody may say; a ``set`` is a login then.
STRANGERS_WORDS = frozenset({b"version", b"quit"})

#: Words that anybody may say who has logged in; what follows may need a role, see `FINER`.
USERS_WORDS = frozenset({b"version", b"quit", b"mn", b"stats", b"lru_crawler"})

#: Commands whose form decides which roles they need, and what else they need then.
FINER: tuple[tuple[str, str], ...] = (
    ("`UPR_OPEN` of a stream to the client", "`stream` or `manage`"),
    ("`UPR_OPEN` of a stream to the node", "`replicate`"),
    ("`UPR_CONTROL` `uprmc_hwt=manage`", "`manage`"),
    ("`XDCR`, all verbs but `list`, `record`, `records`, `purged`", "`manage`"),
    (
        "`STAT` of a group but `settings` and `index`; `stats` likewise",
        "`monitor`, `stream`, `replicate` or `manage`",
    ),
    ("`STAT reset`, `stats reset`", "`manage`"),
    ("`stats cachedump`", "`read`"),
    ("`incr`, `decr` without `noreply`; `ma` with `v`", "`read`, too"),
    ("`mg` with `N`, `R` or `T`; to win the right to renew a stale item", "`write`, too"),
    ("`lru_crawler metadump`, `mgdump`", "`read`"),
    ("`lru_crawler` otherwise", "`manage`"),
)

_ALL = frozenset(range(256))


def role_of_word(word: bytes) -> frozenset[Role]:
    """Return the roles of which a word needs one, none if every user may say it."""
    if word in _BOTH_WORDS:
        return _READ_AND_WRITE
    return frozenset(role for role, words in _WORDS_OF.items() if word in words)


def needs_both_for_word(word: bytes) -> bool:
    """Tell whether a word needs all of its roles, and not any one of them."""
    return word in _BOTH_WORDS


def needs(roles: frozenset[Role] | None, *, both: bool) -> str:
    """Say what a refused command needs."""
    named = [role.value for role in Role if role in (roles or ())]
    return f"needs {(' and ' if both else ' or ').join(named)}" if named else "is for no role"


@cache
def needs_of(opcode: int) -> str:
    """Say what an opcode needs."""
    return needs(role_of(opcode), both=needs_both(opcode))


@cache
def denied_opcodes(roles: frozenset[Role] | None) -> frozenset[int]:
    """Return what a user with these roles may not use; ``None`` = not logged in."""
    if roles is None:
        return _ALL - OPEN_OPCODES
    return frozenset(opcode for opcode in _KNOWN if not _may(opcode, roles))


def _may(opcode: int, roles: frozenset[Role]) -> bool:
    needed = role_of(opcode)
    if not needed:
        return needed is not None
    return roles >= needed if needs_both(opcode) else not roles.isdisjoint(needed)


@cache
def denied_words(roles: frozenset[Role]) -> frozenset[bytes]:
    """Return the words of the text protocol that a user with these roles may not say."""
    allowed = frozenset().union(*(_WORDS_OF.get(role, frozenset()) for role in roles))
    if roles >= _READ_AND_WRITE:
        allowed |= _BOTH_WORDS
    return (frozenset().union(*_WORDS_OF.values()) | _BOTH_WORDS) - allowed


# --- who is at the other end --------------------------------------------------------------------


#: A peer that has not logged in sends no more than this at a time.
STRANGER_MAX_BYTES = 8 * 1024


class Door(Protocol):
    """The user at the other end of one connection.

    Attributes:
        plain: whether a password may be sent in clear here: no one can listen.
        roles: of the user who has logged in, ``None`` = not logged in.
        exchange: a login by SCRAM that has begun.
    """

    plain: bool
    roles: frozenset[Role] | None
    exchange: tuple[Mechanism, ServerExchange] | None

    def over(self, now: float) -> bool:
        """Tell whether to hang up: the user is gone or has changed, or no login came in time."""

    def begin(self, mechanism: Mechanism) -> ServerExchange:
        """Return a new exchange."""

    def check(self, credentials: Credentials, checked: Callable[[bool | None], None]) -> None:
        """Check a password; `checked` is called, now or later. ``None`` = too many are waiting."""

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
