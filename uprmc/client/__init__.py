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
    from uprmc.login.credentials import Credentials

__all__ = [
    "Change",
    "Credentials",
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
    "Change": "client.handler",
    "Credentials": "login.credentials",
    "Document": "client.handler",
    "Handler": "client.handler",
    "MemoryState": "client.state",
    "Position": "client.position",
    "SqliteState": "client.sqlite_state",
    "StateStore": "client.state",
    "UprClient": "client.blocking",
    "changes": "client.blocking",
    "forget": "client.forgetting",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"uprmc.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
