"""The engine's refusals in the binary protocol.

Locks have two forms. Old clients do not know the status "locked" and get what ep-engine sent
(another client's write looks like a CAS mismatch, a second lock like a temporary failure). Clients
that negotiated XERROR get the status for locks.

Refusals of replication commands contain the text of the error, which tells operators what to do,
and so does one because of the disk; other clients need only the status.
"""

from __future__ import annotations

from uprmc.errors import (
    AccessDenied,
    CommandError,
    DiskRefuses,
    Locked,
    NotLocked,
    RemoteProtocolError,
)
from uprmc.protocol.opcodes import STATUS_TEXT, Opcode, Status
from uprmc.protocol.statuses import ERRORS

_STATUSES: dict[type[Exception], Status] = {
    **{error: Status(status) for status, error in ERRORS.items()},
    AccessDenied: Status.ACCESS_DENIED,
    DiskRefuses: Status.TEMPORARY_FAILURE,
    RemoteProtocolError: Status.INVALID_ARGUMENTS,
}

_REASON_MAX_BYTES = 200

_EXPLAINED = frozenset(
    {
        Opcode.REPLICATE,
        Opcode.TAKEOVER,
        Opcode.FAILOVER,
        Opcode.VBUCKET_FACTS,
        Opcode.XDCR,
    }
)


def refusal_of(error: Exception, opcode: int, *, with_lock_errors: bool) -> tuple[Status, bytes]:
    """Return the status and the body that answer `error`."""
    if isinstance(error, Locked):
        return _locked(opcode, with_lock_errors)
    if isinstance(error, NotLocked):
        if with_lock_errors:
            return Status.NOT_LOCKED, STATUS_TEXT[Status.NOT_LOCKED]
        return Status.TEMPORARY_FAILURE, b"UNLOCK_ERROR"
    status = _STATUSES[type(error)]
    if isinstance(error, AccessDenied | DiskRefuses) and str(error):
        return status, b"%b: %b" % (STATUS_TEXT[status], str(error).encode()[:_REASON_MAX_BYTES])
    if opcode in _EXPLAINED and str(error):
        return status, str(error).encode()
    return status, STATUS_TEXT[status]


def _locked(opcode: int, with_lock_errors: bool) -> tuple[Status, bytes]:
    if with_lock_errors:
        return Status.LOCKED, STATUS_TEXT[Status.LOCKED]
    if opcode in (Opcode.GETL, Opcode.UNLOCK):
        return Status.TEMPORARY_FAILURE, b"LOCK_ERROR"
    return Status.KEY_EXISTS, STATUS_TEXT[Status.KEY_EXISTS]


#: Errors that `refusal_of` can answer.
REFUSALS = (CommandError, RemoteProtocolError)
