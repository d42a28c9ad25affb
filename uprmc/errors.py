"""Every exception that crosses a layer, in one tree.

`CommandError` ends one command, `ProtocolError` one connection, `StoreError` one commit or the
start of a node. The engine raises these domain words; `kv` translates them into opcodes' statuses
and text lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self


class UprmcError(Exception):
    """Root of everything this package raises on purpose.

    Attributes:
        doubtful_place: where something answers that may be no node, or not the listener that was
            meant: who talks to people may look what it is. Empty = that is no question.
    """

    doubtful_place = ""

    def doubting(self, place: str) -> Self:
        """Return this with a `doubtful_place`."""
        self.doubtful_place = place
        return self


class ConfigError(UprmcError):
    """A setting, option or configuration file is wrong; the text is one line for the operator."""


class Interrupted(UprmcError):
    """Ctrl-C or SIGTERM ended the work; the text says what is left and how to go on."""


def why(error: Exception) -> str:
    """Return what an error of the system, of TLS or of a library says, as one line."""
    found = getattr(error, "verify_message", None) or getattr(error, "strerror", None)
    return " ".join(str(found or error or type(error).__name__).split())


# --- commands -----------------------------------------------------------------------------------


class CommandError(UprmcError):
    """A command was understood and refused; nothing changed."""


class KeyNotFound(CommandError):
    """No live document has this key."""


class KeyExists(CommandError):
    """The document exists, or its CAS differs from the one given."""


class NotStored(CommandError):
    """Append or prepend found nothing to extend."""


class TooLarge(CommandError):
    """The item exceeds the item limit."""


class DeltaBadValue(CommandError):
    """The stored value is not a number below 2**64."""


class Locked(CommandError):
    """Another client has locked the key (get-and-lock)."""


class NotLocked(CommandError):
    """Unlock of a key that is not locked, or with another lock's CAS."""


class NotMyVBucket(CommandError):
    """The vBucket is absent here or not in a state that allows the command."""


class TemporaryFailure(CommandError):
    """Not now: memory is short, the disk is full, or warm-up is going on. Trying again helps."""


class DiskRefuses(TemporaryFailure):
    """The disk takes no commits, so that what is written could not be stored; the text says why."""


class OutOfMemory(CommandError):
    """The item could never fit into the memory quota."""


class InvalidArguments(CommandError):
    """The numbers of a well-formed command make no sense."""


class UnknownCommand(CommandError):
    """Nobody has asked for the extension that this command belongs to."""


class NotSupported(CommandError):
    """Known, and not to be had here."""


class AccessDenied(CommandError):
    """The user lacks the role that the command needs."""


class StreamNotFound(CommandError):
    """This connection has no stream of that vBucket."""


class RangeExceeded(CommandError):
    """A vBucket's number is too high, or the seqnos of a request do not fit together."""


class RollbackRequired(CommandError):
    """A consumer holds what this node's history does not: it must fall back to `seqno` first."""

    def __init__(self, seqno: int) -> None:
        super().__init__(seqno)
        self.seqno = seqno


class NotResident(CommandError):
    """The value is on disk: fetch it, then run the command again.

    Raised before anything changed, so running the whole command again is safe.
    """

    def __init__(self, vbucket: int, keys: Sequence[bytes]) -> None:
        super().__init__(vbucket, keys)
        self.vbucket = vbucket
        self.keys = keys


# --- conversations ------------------------------------------------------------------------------


class ProtocolError(UprmcError):
    """A conversation cannot go on."""


class LocalProtocolError(ProtocolError):
    """Our own code asked for something the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; the connection is to be closed."""


class OutOfPlace(ProtocolError):
    """A command of the wrong kind of connection, or before its OPEN: hang up without an answer."""


# --- storage ------------------------------------------------------------------------------------


class StoreError(UprmcError):
    """The store could not do what was asked. A failed commit has changed nothing."""


class StoreFull(StoreError):
    """No room on the device; the same commit may succeed later."""


class StoreMapFull(StoreError):
    """The store's own size limit is reached: call `grow`, then commit again."""


class StoreCorrupt(StoreError):
    """A record cannot be read back."""


class StoreTaken(StoreError):
    """Another process has opened the data directory: this one must end."""


class StoreRefused(StoreError):
    """The data directory cannot be used; the text is one line for the operator."""
