"""What the blocking and the Twisted client have in common before and beside the rules of `core`.

Here are the process's name and its dice, which rules must not know, and which errors of a
connection are worth another attempt.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from uprmc.client.checking import check_handler
from uprmc.client.core import UprCore
from uprmc.client.errors import (
    ClientError,
    ConnectionLost,
    MisuseError,
    NodeUnavailable,
    NodeUnreachable,
)
from uprmc.client.node_session import NodeSession
from uprmc.client.nodes import check_places
from uprmc.client.options import Options
from uprmc.client.sqlite_state import SqliteState
from uprmc.client.state import MemoryState, StateStore
from uprmc.connecting import own_name
from uprmc.protocol.watermarks import ID_MAX_BYTES
from uprmc.remote.registering import Instance, kind_number, name_tag

#: When a run ends by itself: never, level with the nodes, or as a function says.
Until = Literal["now"] | Callable[[], bool] | None

#: The answers to the last reports are waited for this long at most, in seconds.
FAREWELL_S = 2.0

#: States that a running client uses, by `id`.
_used: set[int] = set()

_LOG = logging.getLogger("uprmc.client")


def checked(
    nodes: str | Iterable[str],
    handler: object,
    name: str,
    vbuckets: Iterable[int] | None,
    *,
    blocks: bool,
    **more: Any,
) -> tuple[list[str], Options]:
    """Return the nodes, and options with a name of this process's own, as nodes show it.

    Nothing was opened yet that would have to be closed.

    Args:
        blocks: see `check_handler`.
        more: as `Options`.

    Raises:
        MisuseError: something of it makes no sense.
    """
    places = [nodes] if isinstance(nodes, str) else list(nodes)
    check_places(places)
    check_handler(handler, blocks=blocks)
    try:
        numbers = None if vbuckets is None else frozenset(vbuckets)
    except TypeError:
        raise MisuseError(
            f"vbuckets {vbuckets!r}: say a list of numbers, or None for all"
        ) from None
    options = Options(
        name=own_name(name),
        vbuckets=numbers,
        jitter=random.random,
        **more,
    )
    options.check()
    return places, options


def opened_state(
    state: StateStore | str | Path | None, name: str, total_vbuckets: int
) -> tuple[StateStore, bool]:
    """Return the store that a program means, and whether it is ours to close.

    Raises:
        StateRefused: the file is not this consumer's, or cannot be used.
    """
    if isinstance(state, str | Path):
        return SqliteState(state, name=name, vbuckets=total_vbuckets), True
    return (MemoryState() if state is None else state), False


class Registration(NamedTuple):
    """How a program wants to be registered with nodes; see `blocking.UprClient`."""

    register: str | bool | None = None
    instance: str | None = None
    register_s: int = 0

    def check(self) -> None:
        """Raise `MisuseError` if it makes no sense."""
        if isinstance(self.register, str):
            try:
                kind_number(self.register)
            except ValueError as error:
                raise MisuseError(str(error)) from None
        if self.instance is not None and not 0 < len(self.instance.encode()) <= ID_MAX_BYTES:
            raise MisuseError(f"instance {self.instance!r}: say 1 to {ID_MAX_BYTES} bytes")
        if self.register_s < 0:
            raise MisuseError(f"register_s {self.register_s}: say at least 0")

    def of(self, state: StateStore, title: str) -> Instance | None:
        """Return as what a consumer with this state and name is registered, ``None`` = not at all.

        Raises:
            StateError: the state cannot keep the id.
        """
        known: str | None = getattr(state, "instance", None)
        wanted = self.register
        if wanted is None:
            wanted = known is not None or self.instance is not None
        if wanted is False:
            return None
        kind = kind_number(wanted if isinstance(wanted, str) else "other")
        name = self.instance or known or os.urandom(16).hex()
        if known is not None and name != known:
            cast(Any, state).name_instance(name)
        # People know a client by an id that was given; one of ours says nothing to them.
        tag = b"" if self.instance else name_tag(title)
        return Instance(name.encode(), kind, self.register_s, tag)


def opened_and_registered(
    state: StateStore | str | Path | None,
    name: str,
    total_vbuckets: int,
    registration: Registration,
) -> tuple[StateStore, bool, Instance | None]:
    """Return the store, whether it is ours to close, and as what its consumer is registered.

    Raises:
        MisuseError: the registration makes no sense.
        StateError: the file is not this consumer's, or cannot be used.
    """
    registration.check()
    store, is_ours = opened_state(state, name, total_vbuckets)
    try:
        return store, is_ours, registration.of(store, name)
    except BaseException:
        if is_ours:
            store.close()
        raise


def claimed(state: StateStore) -> Callable[[], None]:
    """Take a state for a run; returns what gives it back.

    Raises:
        MisuseError: another client runs with it.
    """
    number = id(state)
    if number in _used:
        raise MisuseError("another client runs with this state: give each its own")
    _used.add(number)
    return lambda: _used.discard(number)


def ends_level(until: Until) -> bool:
    """Return whether `until` means "when everything has come that was there".

    Raises:
        MisuseError: it means nothing.
    """
    if isinstance(until, str) and until != "now":
        raise MisuseError(f"until {until!r}: say 'now', a function, or None")
    return until == "now"


def connection_ended(
    core: UprCore, place: str, session: NodeSession | None, error: ClientError, now: float
) -> None:
    """Tell the rules and the log that a connection has ended, or did not come about.

    A node that stays away is logged once.

    Raises:
        ClientError: the same error, if another connection would be no better; whatever the program
            raised is.
    """
    if error is core.failure:
        raise error
    if not core.options.redial:
        raise error
    if session is not None or str(core.nodes.named(place).error) != str(error):
        _LOG.warning("%s", error)
    if session is None:
        core.failed(place, error, now)
    else:
        core.lost(session, error, now)
    if isinstance(error, ConnectionLost | NodeUnreachable):
        return
    if not isinstance(error, NodeUnavailable) or core.nodes.never_reached() is not None:
        raise error


def check_patience(core: UprCore, patience_s: float | None, waited_s: float, now: float) -> None:
    """Raise why nothing will come of it, if that has lasted longer than the program's patience.

    Raises:
        ClientError: no node was ever reached; or see `Completeness.hopeless`.
    """
    if patience_s is None:
        return
    core.completeness.give_up_barriers(now, patience_s)
    error = core.nodes.never_reached() if waited_s > patience_s else None
    error = error or core.completeness.hopeless(now, patience_s)
    if error is not None:
        raise error
