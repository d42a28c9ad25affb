"""A name and its password, as a client gives them; passwords come from files."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path

from uprmc.errors import ConfigError

#: Names and passwords are no longer than this, in bytes of UTF-8.
NAME_MAX_BYTES = 255
PASSWORD_MAX_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who logs in. The password is in no ``repr``.

    Raises:
        ConfigError: one of the two is empty, too long, or contains a NUL.
    """

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        for what, text, most_bytes in (
            ("user name", self.username, NAME_MAX_BYTES),
            ("password", self.password, PASSWORD_MAX_BYTES),
        ):
            if not text:
                raise ConfigError(f"the {what} is empty")
            if len(text.encode()) > most_bytes:
                raise ConfigError(f"the {what} is longer than {most_bytes} bytes")
            if "\0" in text:
                raise ConfigError(f"the {what} contains a NUL byte")


def basic_auth(credentials: Credentials) -> str:
    """Return the value of the header Authorization of HTTP."""
    text = f"{credentials.username}:{credentials.password}"
    return f"Basic {b64encode(text.encode()).decode()}"


def password_in(path: str) -> str:
    """Return the first line of a file.

    Raises:
        ConfigError: the file cannot be read, or its first line is no password.
    """
    try:
        with Path(path).open("rb") as file:
            line = file.readline(PASSWORD_MAX_BYTES + 3)
    except OSError as error:
        raise ConfigError(f"the password file {path}: {error.strerror}") from None
    return password_of(line, f"the password file {path}")


def password_of(text: bytes, what: str) -> str:
    """Return the password in what a file contains, which `what` names; raises `ConfigError`."""
    line = text.partition(b"\n")[0].rstrip(b"\r")
    if not line:
        raise ConfigError(f"{what}: its first line is empty")
    if len(line) > PASSWORD_MAX_BYTES:
        raise ConfigError(f"{what}: its first line is longer than {PASSWORD_MAX_BYTES} bytes")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{what}: its first line is not UTF-8") from None


def credentials_from(username: str | None, password_file: str | None) -> Credentials | None:
    """Return what two options say, ``None`` if neither is given.

    Raises:
        ConfigError: only one is given, or the file is no password file.
    """
    if not username and not password_file:
        return None
    if not username:
        raise ConfigError("a password file needs a user name")
    if not password_file:
        raise ConfigError(f"the user {username!r} needs a password file")
    return Credentials(username, password_in(password_file))
