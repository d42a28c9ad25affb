"""Regular files only: what else has the name of one keeps no process waiting.

Who opens a pipe for reading waits for its writer, perhaps for ever. So what a directory of ours
should have is opened without waiting, and refused if it is not a file.
"""

from __future__ import annotations

import errno
import os
import stat


class NotRegular(OSError):
    """It is a pipe, a socket, a directory or a device."""


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o640) -> int:
    """Return a descriptor of a regular file, opened as by `os.open`.

    Raises:
        NotRegular: it is something else.
        OSError: the system refuses.
    """
    waits_never = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | waits_never, mode)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENXIO):  # to be written to; a socket
            raise _not_regular(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def read_regular(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """Return what a regular file holds, up to a number of bytes; raises as `open_regular`."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most)


def _not_regular(path: str | os.PathLike[str]) -> NotRegular:
    return NotRegular(errno.EINVAL, "Not a regular file", os.fspath(path))
