"""Which refusal each status of the binary protocol stands for, for both sides."""

from __future__ import annotations

from uprmc.errors import (
    CommandError,
    DeltaBadValue,
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    Locked,
    NotLocked,
    NotMyVBucket,
    NotStored,
    NotSupported,
    OutOfMemory,
    RangeExceeded,
    TemporaryFailure,
    TooLarge,
    UnknownCommand,
)
from uprmc.protocol.opcodes import Status

#: Where two statuses stand for one error, a node of ours answers the later one.
ERRORS: dict[int, type[CommandError]] = {
    Status.KEY_NOT_FOUND: KeyNotFound,
    Status.KEY_EXISTS: KeyExists,
    Status.TOO_LARGE: TooLarge,
    Status.INVALID_ARGUMENTS: InvalidArguments,
    Status.NOT_STORED: NotStored,
    Status.DELTA_BAD_VALUE: DeltaBadValue,
    Status.NOT_MY_VBUCKET: NotMyVBucket,
    Status.LOCKED: Locked,
    Status.NOT_LOCKED: NotLocked,
    Status.RANGE_ERROR: RangeExceeded,
    Status.UNKNOWN_COMMAND: UnknownCommand,
    Status.OUT_OF_MEMORY: OutOfMemory,
    Status.NOT_SUPPORTED: NotSupported,
    Status.BUSY: TemporaryFailure,
    Status.TEMPORARY_FAILURE: TemporaryFailure,
}
