"""The users of a node: their roles and what is kept of their passwords, and the file they are in.

The file is JSON, so that people can read it; ``uprmc user`` writes it. It contains no password. Its
secret makes up what strangers are asked, so that they are asked the same after each restart, as
users are.
"""

from __future__ import annotations

import hmac
import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any

from uprmc.errors import ConfigError
from uprmc.login.credentials import NAME_MAX_BYTES, Credentials
from uprmc.login.mechanisms import SCRAMS
from uprmc.login.scram import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    Verifier,
    prepared,
    verifier_of,
)
from uprmc.units import nearest

VERSION = 1
FILE_MAX_BYTES = 16 * 1024 * 1024
USERS_MAX = 10_000
SALT_BYTES = 16
SECRET_BYTES = 32

HASH_NAMES = tuple(each.hash_name for each in SCRAMS)


class Role(StrEnum):
    """What a user may do; a user has any number of roles."""

    READ = "read"
    WRITE = "write"
    STREAM = "stream"
    REPLICATE = "replicate"
    MANAGE = "manage"
    MONITOR = "monitor"


@dataclass(frozen=True, slots=True)
class User:
    """One user."""

    name: str  # as it was given
    roles: frozenset[Role]  # what the user may do
    verifiers: Mapping[str, Verifier]  # by the hash of a SCRAM mechanism


class Users:
    """Everybody who may log in, by prepared name.

    Args:
        users: who they are.
        secret: of the file; makes what strangers are asked look like what users are asked.
    """

    def __init__(self, users: Iterable[User], secret: bytes) -> None:
        self._by_name = {prepared(user.name): user for user in users}
        self._secret = secret
        self._iterations = {
            name: sorted(user.verifiers[name].iterations for user in self._by_name.values())
            for name in HASH_NAMES
        }

    def find(self, name: str) -> User | None:
        """Return a user, ``None`` if there is none of this name."""
        return self._by_name.get(prepared(name))

    def verifier(self, name: str, hash_name: str) -> Verifier:
        """Return what is kept of a user's password; for a stranger what no password fits."""
        user = self.find(name)
        if user is not None:
            return user.verifiers[hash_name]
        who = prepared(name)
        false = hmac.digest(self._secret, who + b"\0" + hash_name.encode(), "sha512")
        size = hmac.new(b"", b"", hash_name).digest_size
        iterations = self._iterations_of_stranger(who, hash_name)
        return Verifier(false[:SALT_BYTES], iterations, false[-size:], false[:size])

    def _iterations_of_stranger(self, who: bytes, hash_name: str) -> int:
        """Return as many as some user has: each number as often as among users."""
        found = self._iterations[hash_name]
        if not found:
            return ITERATIONS_DEFAULT
        chance = int.from_bytes(hmac.digest(self._secret, who, "sha256")[:8])
        return found[chance * len(found) >> 64]

    def knows(self, credentials: Credentials) -> bool:
        """Tell whether name and password are those of a user; costs some milliseconds."""
        hash_name = HASH_NAMES[0]
        kept = self.verifier(credentials.username, hash_name)
        found = verifier_of(credentials.password, kept.salt, kept.iterations, hash_name)
        return hmac.compare_digest(found.stored_key, kept.stored_key)


def new_user(
    credentials: Credentials, roles: Iterable[Role], salts: Iterable[bytes], iterations: int
) -> User:
    """Return a user; `salts` are random, one for each of `HASH_NAMES`."""
    verifiers = {
        name: verifier_of(credentials.password, salt, iterations, name)
        for name, salt in zip(HASH_NAMES, salts, strict=True)
    }
    return User(credentials.username, frozenset(roles), verifiers)


def roles_in(text: str) -> frozenset[Role]:
    """Return the roles in a list such as ``read,write``; raises `ConfigError`."""
    words = [word for word in text.replace(",", " ").split() if word]
    known = [role.value for role in Role]
    if not words:
        raise ConfigError(f"no role is named: say some of {', '.join(known)}")
    for word in words:
        if word not in known:
            meant = nearest(word, known)
            hint = f"did you mean {meant}?" if meant else f"roles are {', '.join(known)}"
            raise ConfigError(f"there is no role {word!r}: {hint}")
    return frozenset(map(Role, words))


def users_text(users: Iterable[User], secret: bytes) -> str:
    """Return the contents of a users file."""
    rows = [
        {
            "name": user.name,
            "roles": sorted(user.roles),
            "scram": {
                name: {
                    "salt": b64encode(kept.salt).decode(),
                    "iterations": kept.iterations,
                    "stored_key": b64encode(kept.stored_key).decode(),
                    "server_key": b64encode(kept.server_key).decode(),
                }
                for name, kept in user.verifiers.items()
            },
        }
        for user in users
    ]
    found = {"uprmc_users": VERSION, "secret": b64encode(secret).decode(), "users": rows}
    return json.dumps(found, indent=1) + "\n"


def parse_users(text: str, place: str) -> tuple[list[User], bytes]:
    """Read the users and the secret in a users file; `place` is its name, for messages.

    A file without a secret has one that changes with its users.

    Raises:
        ConfigError: it is not whole, or none; one line.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{place}, line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise ConfigError(f"{place}: this is no users file") from None
    if not isinstance(found, dict) or found.get("uprmc_users") != VERSION:
        raise ConfigError(f"{place}: this is no users file of version {VERSION}")
    secret = sha256(text.encode()).digest()
    if "secret" in found:
        try:
            secret = b64decode(found["secret"], validate=True)
        except (TypeError, ValueError, Base64Error):
            secret = b""
        if len(secret) < SALT_BYTES:
            raise ConfigError(f"{place}: its secret is none; leave it out, 'uprmc user' makes one")
    rows = found.get("users")
    if not isinstance(rows, list) or len(rows) > USERS_MAX:
        raise ConfigError(f"{place}: users must be a list of at most {USERS_MAX}")
    users: dict[bytes, User] = {}
    for number, row in enumerate(rows, 1):
        try:
            user = _user(row)
        except (KeyError, TypeError, ValueError, Base64Error) as error:
            raise ConfigError(f"{place}: user {number} is incomplete ({error})") from None
        if users.setdefault(prepared(user.name), user) is not user:
            raise ConfigError(f"{place}: the user {user.name!r} is there twice")
    return list(users.values()), secret


def _user(row: Any) -> User:
    name, roles = row["name"], row["roles"]
    if not isinstance(name, str) or not 0 < len(name.encode()) <= NAME_MAX_BYTES:
        raise ValueError("its name is none")
    verifiers = {each: _verifier(row["scram"][each], each) for each in HASH_NAMES}
    return User(name, frozenset(map(Role, roles)), verifiers)


def _verifier(row: Any, hash_name: str) -> Verifier:
    iterations = row["iterations"]
    if not isinstance(iterations, int) or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"iterations must be {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    salt, stored, server = (
        b64decode(row[each], validate=True) for each in ("salt", "stored_key", "server_key")
    )
    size = hmac.new(b"", b"", hash_name).digest_size
    if not salt or len(stored) != size or len(server) != size:
        raise ValueError(f"its {hash_name} keys have the wrong length")
    return Verifier(salt, iterations, stored, server)
