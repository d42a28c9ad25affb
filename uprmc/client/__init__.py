"""Asking side: consumers of streams and users of documents, for programs and tools.

A consumer is a `Handler` and an `UprClient`; `changes` is an iterator for programs that need no
more. See ``docs/client.md``.

What is named here is imported when it is first asked for: tools that want one connection do not pay
for SQLite, TLS and threads.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uprmc.client.blocking import UprClient, changes
    from uprmc.client.forgetting import forget
    from uprmc.client.handler import Change, Document, Handler
    from uprmc.client.position import Position
    from uprmc.client.sqlite_state import SqliteState
    from uprmc.client.state import MemoryState, StateStore

__all__ = [
    "Change",
    "Document",
    "Handler",
    "MemoryState",
    "Position",
    "SqliteState",
    "StateStore",
    "UprClient",
    "changes",
    "forget",
]

_HOMES = {
    "Change": "handler",
    "Document": "handler",
    "Handler": "handler",
    "MemoryState": "state",
    "Position": "position",
    "SqliteState": "sqlite_state",
    "StateStore": "state",
    "UprClient": "blocking",
    "changes": "blocking",
    "forget": "forgetting",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
