"""The file of a node's users on disk: read by nodes, replaced as a whole by ``uprmc user``."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from uprmc.errors import ConfigError
from uprmc.login.users import (
    FILE_MAX_BYTES,
    SECRET_BYTES,
    USERS_MAX,
    User,
    parse_users,
    users_text,
)
from uprmc.regular import NotRegular, open_regular

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_UNFINISHED = ".new"


def read_users(path: str) -> list[User]:
    """Read the users in a file; raises as `read_file`."""
    return read_file(path)[0]


def read_file(path: str) -> tuple[list[User], bytes]:
    """Read the users in a file, and its secret.

    Raises:
        ConfigError: it cannot be read, others can read it, or it is not whole; one line.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_MAX_BYTES + 1)
    except NotRegular:
        raise ConfigError(f"the users file {path} is no regular file") from None
    except OSError as error:
        raise ConfigError(f"the users file {path}: {error.strerror}") from None
    if mode & _OTHERS:
        raise ConfigError(f"others may use the users file {path}: say chmod 600 {path}")
    if len(data) > FILE_MAX_BYTES:
        raise ConfigError(f"the users file {path} is larger than {FILE_MAX_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"the users file {path} is not UTF-8") from None
    return parse_users(text, f"the users file {path}")


def write_users(
    path: str, users: Iterable[User], entropy: Callable[[int], bytes] = os.urandom
) -> None:
    """Replace the file, or make it: a reader finds the old users or the new ones.

    The secret stays the same.

    Raises:
        ConfigError: it cannot be written, or there are too many users.
    """
    kept = list(users)
    if len(kept) > USERS_MAX:
        raise ConfigError(f"a node has at most {USERS_MAX} users")
    secret = read_file(path)[1] if os.path.lexists(path) else entropy(SECRET_BYTES)
    unfinished = path + _UNFINISHED
    try:
        try:
            _write_new(unfinished, users_text(kept, secret).encode())
            os.replace(unfinished, path)
        except OSError:
            with suppress(OSError):
                os.unlink(unfinished)
            raise
        _sync(_directory(path))
    except OSError as error:
        raise ConfigError(f"the users file {path}: {error.strerror}") from None


@contextmanager
def changing(path: str) -> Iterator[None]:
    """Let only one process at a time change the file; another one waits.

    Raises:
        ConfigError: its directory is not there.
    """
    try:
        descriptor = os.open(_directory(path), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"the users file {path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_new(path: str, data: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)  # of a process that died; only the holder of the lock is here
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _directory(path: str) -> str:
    return str(Path(path).absolute().parent)
