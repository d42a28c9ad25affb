"""Text commands that do not need the conversation: a parsed line in, a reply line out.

Each returns the reply to a client that wants one; omitting it for ``noreply`` is the session's job.
Refusals of the engine are raised; `refusal_line` turns them into text.

Neighbours: `text_conversation` finds lines and data blocks and calls the functions in the tables at
the end; retrieval (`text_retrieval`) and meta commands (`meta_commands`) have files of their own.

Note: the text protocol has no word for a locked document. The storage commands answer ``EXISTS``,
as ep-engine did ("another client's CAS counts"), and the others a server error.

Source: memcached reference, sections 3.2 to 3.6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uprmc.config import MIB
from uprmc.engine.memory import absolute_expiry
from uprmc.engine.vbucket import StoreMode
from uprmc.errors import (
    AccessDenied,
    CommandError,
    DeltaBadValue,
    DiskRefuses,
    KeyExists,
    KeyNotFound,
    Locked,
    NotMyVBucket,
    NotStored,
    OutOfMemory,
    TemporaryFailure,
    TooLarge,
)
from uprmc.kv import operations
from uprmc.kv.door import require
from uprmc.kv.services import Services
from uprmc.login.users import Role
from uprmc.model import CAS_LOCKED
from uprmc.protocol.text import (
    ArithmeticLine,
    DeleteLine,
    NumberLine,
    StorageLine,
    TextSyntaxError,
    TouchLine,
    parse_arithmetic,
    parse_cache_memlimit,
    parse_delete,
    parse_touch,
    parse_verbosity,
)
from uprmc.protocol.text_replies import (
    BAD_LINE_FORMAT,
    DELETED,
    EXISTS,
    NOT_A_NUMBER,
    NOT_FOUND,
    NOT_STORED,
    OK,
    OUT_OF_MEMORY,
    SHUTDOWN_NOT_ENABLED,
    STORED,
    TEMPORARY_FAILURE,
    TOO_LARGE,
    TOUCHED,
    not_authorized,
    number_line,
    version_line,
)

NOT_MY_VBUCKET = b"SERVER_ERROR not my vbucket\r\n"
LOCKED = b"SERVER_ERROR locked\r\n"

_VERBOSITY_MOST = 2

_LINES: dict[type[CommandError], bytes] = {
    KeyNotFound: NOT_FOUND,
    KeyExists: EXISTS,
    NotStored: NOT_STORED,
    TooLarge: TOO_LARGE,
    DeltaBadValue: NOT_A_NUMBER,
    Locked: LOCKED,
    NotMyVBucket: NOT_MY_VBUCKET,
    TemporaryFailure: TEMPORARY_FAILURE,
    DiskRefuses: TEMPORARY_FAILURE,
    OutOfMemory: OUT_OF_MEMORY,
}


# --- refusals -----------------------------------------------------------------------------------


def refusal_line(error: CommandError) -> bytes:
    """Return the line that answers `error`."""
    if isinstance(error, TextSyntaxError):
        return error.reply
    if isinstance(error, AccessDenied):
        return not_authorized(str(error))
    return _LINES.get(type(error), BAD_LINE_FORMAT)


def storage_refusal(command: bytes, error: CommandError) -> bytes:
    """Return the line that answers `error` of a storage command."""
    if (command == b"add" and isinstance(error, KeyExists)) or (
        command == b"replace" and isinstance(error, KeyNotFound)
    ):
        return NOT_STORED
    return EXISTS if isinstance(error, Locked) else refusal_line(error)


def most_value_bytes(services: Services, key: bytes) -> int:
    """Return how long a value of `key` may be under the item limit."""
    return services.most_value_bytes(len(key))


def remove(services: Services, key: bytes) -> None:
    """Delete what a set could not replace, so that the old value is not taken for the new one."""
    try:
        services.bucket.of_key(key).delete(key)
    except CommandError:
        return


# --- storage ------------------------------------------------------------------------------------


def compared_cas(cas: int) -> int:
    """Return a CAS to compare with, for the engine, where 0 means "do not compare".

    A client's 0 matches no document, and neither does `CAS_LOCKED`.
    """
    return cas or CAS_LOCKED


def store(services: Services, line: StorageLine, value: bytes) -> bytes:
    """Carry out one of the six storage commands."""
    bucket, key = services.bucket, line.key
    try:
        vbucket = bucket.of_key(key)
        if line.command in _MODES:
            expiry = absolute_expiry(line.exptime, bucket.steady.now())
            cas = compared_cas(line.cas) if line.command == b"cas" else 0
            mode = _MODES[line.command]
            operations.store(bucket, vbucket, key, value, line.flags, expiry, cas, mode=mode)
        else:
            most, front = most_value_bytes(services, key), line.command == b"prepend"
            operations.extend(bucket, vbucket, key, value, front=front, limit_bytes=most)
    except (KeyExists, KeyNotFound, NotStored, Locked) as error:
        return storage_refusal(line.command, error)
    return STORED


_MODES = {
    b"set": StoreMode.SET,
    b"cas": StoreMode.SET,
    b"add": StoreMode.ADD,
    b"replace": StoreMode.REPLACE,
}


# --- single keys --------------------------------------------------------------------------------


def delete(services: Services, line: DeleteLine) -> bytes:
    """Delete a document."""
    bucket = services.bucket
    operations.delete(bucket, bucket.of_key(line.key), line.key)
    return DELETED


def incr(services: Services, line: ArithmeticLine) -> bytes:
    """Raise a counter; it wraps at 2**64 and is never created."""
    return _shift(services, line, down=False)


def decr(services: Services, line: ArithmeticLine) -> bytes:
    """Lower a counter; it stops at 0 and is never created."""
    return _shift(services, line, down=True)


def _shift(services: Services, line: ArithmeticLine, *, down: bool) -> bytes:
    if not line.noreply:
        require(services.door, Role.READ, "decr" if down else "incr")
    bucket, padded = services.bucket, services.pads_counters
    vbucket = bucket.of_key(line.key)
    number, _, _ = operations.add_delta(
        bucket, vbucket, line.key, line.delta, down=down, padded=padded
    )
    return number_line(number)


def touch(services: Services, line: TouchLine) -> bytes:
    """Give a document a new expiry time."""
    bucket = services.bucket
    expiry = absolute_expiry(line.exptime, bucket.steady.now())
    operations.touch(bucket, bucket.of_key(line.key), line.key, expiry)
    return TOUCHED


# --- administration -----------------------------------------------------------------------------


def verbosity(services: Services, line: NumberLine) -> bytes:
    """Set how much is logged; above 2 there is no more."""
    services.set_verbosity(min(line.number, _VERBOSITY_MOST))
    return OK


def cache_memlimit(services: Services, line: NumberLine) -> bytes:
    """Change the memory quota until the next start; the marks keep their shares of it."""
    bucket = services.bucket
    bucket.account.set_quota(line.number * MIB, bucket.settings.memory)
    return OK


def version(services: Services, words: list[bytes]) -> bytes:
    """Return the version, whatever follows the word."""
    return version_line(services.version)


def shutdown(services: Services, words: list[bytes]) -> bytes:
    """Refuse: stop the process with a signal."""
    return SHUTDOWN_NOT_ENABLED


# --- tables -------------------------------------------------------------------------------------

Parse = Callable[[list[bytes]], Any]
Act = Callable[[Services, Any], bytes]
Handler = Callable[[Services, list[bytes]], bytes]

#: First word -> parser and command; the parsed line has ``noreply``.
COMMANDS: dict[bytes, tuple[Parse, Act]] = {
    b"delete": (parse_delete, delete),
    b"incr": (parse_arithmetic, incr),
    b"decr": (parse_arithmetic, decr),
    b"touch": (parse_touch, touch),
    b"verbosity": (parse_verbosity, verbosity),
    b"cache_memlimit": (parse_cache_memlimit, cache_memlimit),
}

#: First word -> command that always answers and reads the words itself.
ALWAYS_ANSWERED: dict[bytes, Handler] = {
    b"version": version,
    b"shutdown": shutdown,
}
