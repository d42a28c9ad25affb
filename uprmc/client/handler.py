"""What a consumer is given, and what takes it: changes, documents, and the handler.

A handler implements what it needs; the rest does nothing. With the blocking client its methods
return nothing; with an asynchronous one they may return an awaitable, and nothing more is handed
over until that is done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple, Protocol

from uprmc.client.errors import MisuseError
from uprmc.remote.batch import DELETE, EXPIRE, SET, Batch, Change
from uprmc.remote.json_fields import exact, text_or_base64

__all__ = [
    "DELETE",
    "EXPIRE",
    "SET",
    "BatchHandler",
    "Change",
    "Document",
    "DurableHandler",
    "Handler",
]


class Document(NamedTuple):
    """A document as the active node has it now; fields as in `Change`."""

    key: bytes
    value: bytes
    rev: int
    cas: int
    flags: int
    expiry: int
    datatype: int


class Handler:
    """What a consumer does with what it is given. Make a subclass; override what you need.

    Applying a change must be harmless when done twice, unless position and effects are committed
    together (`SqliteState` on the handler's own connection): after a crash the last changes come
    again.

    Attributes:
        native_rollback: `rollback` can return to any earlier snapshot end by itself: then no keys
            are remembered for it. It is also called before the first stream, because a crash may
            have left more than the saved position says.
        returns_anywhere: with `native_rollback`: it can return to any seqno, inside of a snapshot
            too.
    """

    native_rollback = False
    returns_anywhere = False

    def snapshot_begin(self, vbucket: int, start: int, end: int, from_disk: bool) -> Any:
        """Changes up to `end` follow; only together are they a state that the node had."""

    def mutation(self, change: Change) -> Any:
        """A document was set."""

    def deletion(self, change: Change) -> Any:
        """A document was deleted, or has expired; perhaps one that you never had."""

    def snapshot_end(self, vbucket: int, end: int) -> Any:
        """Everything up to `end` was handed over. Return when it is durable."""

    def rollback(self, vbucket: int, seqno: int) -> Any:
        """Return to the state of `seqno`; 0 = drop everything of this vBucket, which you must.

        Return ``True`` when that is done and durable; otherwise `undo` is called for each key.
        """

    def undo(self, vbucket: int, key: bytes, document: Document | None) -> Any:
        """Put the document in the key's place, or remove it (``None``). Return when durable."""

    def branch(self, vbucket: int, uuid: int, lost_from: int, lost_to: int) -> Any:
        """History goes on as `uuid`; what had the seqnos `lost_from` to `lost_to` was undone.

        Both are 0 when nothing was.
        """


class DurableHandler(Protocol):
    """A handler that can make durable what it was given so far, also in the middle of a snapshot.

    Then a position inside of a snapshot is saved too, and a restart goes on from there.
    """

    def durable(self) -> Any:
        """Return when everything that was handed over is durable."""


class BatchHandler(Protocol):
    """A handler that takes batches: the quick way, for programs that do much at a time.

    Then `mutation`, `deletion`, `snapshot_begin` and `snapshot_end` are not called.
    """

    def changes(self, batch: Batch) -> Any:
        """Take changes of any number of vBuckets.

        `batch.whole` names the vBuckets that are at the end of a snapshot behind it. Return when
        these are durable, as from `snapshot_end`.
        """


# --- checking -------------------------------------------------------------------------------------
# What is wrong with a handler, before a consumer begins: pure rules, nothing is called.
#
# A method with a misspelt name would never be called, and one with other parameters would fail at
# its first call, perhaps days later.


#: What is called, and with what.
_SIGNATURES: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(getattr(owner, name)).parameters)[1:]
    for owner, names in (
        (
            Handler,
            (
                "snapshot_begin",
                "mutation",
                "deletion",
                "snapshot_end",
                "rollback",
                "undo",
                "branch",
            ),
        ),
        (BatchHandler, ("changes",)),
        (DurableHandler, ("durable",)),
    )
    for name in names
}

_NAMES = {
    each.replace("_", ""): each for each in (*_SIGNATURES, "native_rollback", "returns_anywhere")
}

#: What other libraries put before the names of methods that are called.
_PREFIXES = ("on", "handle")

#: How much of a name must be right to be taken for a misspelt one. A prefix says what is meant.
_ALIKE = 0.8
_ALIKE_WITH_PREFIX = 0.6


def check_handler(handler: object, *, blocks: bool) -> None:
    """Raise `MisuseError` if this is no handler, or one that cannot be what its author means.

    Args:
        handler: what a program gives.
        blocks: methods are to return when they are done; otherwise they may return an awaitable.
    """
    if isinstance(handler, type):
        raise MisuseError(
            f"handler {handler.__name__} is a class: give an object, {_made(handler)}"
        )
    if not isinstance(handler, Handler):
        raise MisuseError(
            f"handler {_short(handler)} is no handler: give an object of a subclass of "
            "uprmc.client.Handler"
        )
    for name, expected in _SIGNATURES.items():
        found = getattr(handler, name, None)
        if name == "changes":  # objects may keep a list there
            found = getattr(type(handler), name, None)
            found = partial(found, handler) if callable(found) else None
        if found is not None or hasattr(Handler, name):
            _check_method(type(handler), name, found, expected, blocks=blocks)
    for name in _own_names(type(handler)):
        _check_name(type(handler), name)


def _made(kind: type) -> str:
    return f"{kind.__name__}()" if issubclass(kind, Handler) else "of a subclass of Handler"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else type(value).__name__


def _check_method(
    kind: type, name: str, method: Any, expected: tuple[str, ...], *, blocks: bool
) -> None:
    called = f"{name}({', '.join(expected)})"
    if not callable(method):
        raise MisuseError(f"{kind.__name__}.{name} is no method: define {called}")
    if blocks and inspect.iscoroutinefunction(method):
        raise MisuseError(
            f"{kind.__name__}.{name} is a coroutine: UprClient waits for none; use "
            "TwistedUprClient, or define it without async"
        )
    try:
        signature = inspect.signature(method)
    except ValueError:  # of some methods that are not written in Python nothing is known
        return
    try:
        signature.bind(*expected)
    except TypeError:
        raise MisuseError(
            f"{kind.__name__}.{name}{signature} cannot be called with {len(expected)} "
            f"argument{'s' if len(expected) > 1 else ''}: define {called}"
        ) from None


def _own_names(kind: type) -> Iterator[str]:
    """Yield the public names that a program's own classes define."""
    for each in kind.__mro__[: kind.__mro__.index(Handler)]:
        if not each.__module__.startswith("uprmc."):
            yield from (name for name in vars(each) if not name.startswith("_"))


def _check_name(kind: type, name: str) -> None:
    """Refuse a name that is nearly one of ours, unless that one is there as well."""
    meant = _meant(name)
    if not meant or _defines(kind, meant):
        return
    if meant == "changes" and (_defines(kind, "mutation") or _defines(kind, "deletion")):
        return  # a helper of theirs
    raise MisuseError(
        f"{kind.__name__}.{name} is never called: did you mean {meant}? If not, give it another "
        "name, for example one that begins with _"
    )


def _meant(name: str) -> str:
    plain = name.lower().replace("_", "")
    if name in _NAMES.values():
        return ""
    begins = next((each for each in _PREFIXES if plain.startswith(each)), "")
    alike = _ALIKE_WITH_PREFIX if begins else _ALIKE
    found = get_close_matches(plain.removeprefix(begins), list(_NAMES), n=1, cutoff=alike)
    return _NAMES[found[0]] if found else ""


def _defines(kind: type, name: str) -> bool:
    ours: Callable[..., Any] | bool | None = getattr(Handler, name, None)
    return getattr(kind, name, None) is not ours


# --- change fields --------------------------------------------------------------------------------
# Events of streams as fields of JSON: the same in ``uprmc tail --json`` and at ``/changes``.


class SnapshotBegin(NamedTuple):
    """Changes from `start` to `end` follow; only together are they consistent."""

    vbucket: int
    start: int
    end: int
    from_disk: bool


class SnapshotEnd(NamedTuple):
    """All changes of the snapshot were sent, `items` in number."""

    vbucket: int
    end: int
    items: int


class Rollback(NamedTuple):
    """The stream did not begin: the node shares our history only up to `seqno`."""

    vbucket: int
    seqno: int


Shown = Change | SnapshotBegin | SnapshotEnd | Rollback


def as_fields(event: Shown) -> dict[str, object]:
    """Return what a line of JSON says of an event."""
    if isinstance(event, Change):
        return {
            **exact(event._asdict()),
            **text_or_base64("key", event.key),
            **text_or_base64("value", event.value),
        }
    if isinstance(event, SnapshotBegin):
        return {"op": "snapshot-begin", **event._asdict()}
    if isinstance(event, SnapshotEnd):
        return {"op": "snapshot-end", **event._asdict()}
    return {"op": "rollback", **event._asdict()}
