"""Files that logins need: users with their roles, and passwords."""

from __future__ import annotations

import os
from pathlib import Path

from uprmc.login.credentials import Credentials
from uprmc.login.users import HASH_NAMES, new_user, roles_in, users_text


def users_file(directory: Path, **users: str) -> str:
    """Write a file of users whose passwords are ``<name>'s word``; returns its path.

    Args:
        directory: where.
        users: each one's roles by name: ``ann="read,write"``.
    """
    path = directory / "users.json"
    made = [
        new_user(
            Credentials(name, password_of(name)),
            roles_in(roles),
            [bytes([number]) * 16 for number in range(len(HASH_NAMES))],
            4096,
        )
        for name, roles in users.items()
    ]
    path.touch(mode=0o600)
    path.write_text(users_text(made, b"secret of a test"))
    os.chmod(path, 0o600)
    return str(path)


def password_of(name: str) -> str:
    """Return the password of a user that `users_file` has made."""
    return f"{name}'s word"


def password_file(directory: Path, name: str) -> str:
    """Write a user's password to a file of its own; returns its path."""
    path = directory / f"{name}.password"
    path.write_text(password_of(name) + "\n")
    return str(path)
