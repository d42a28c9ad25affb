"""How a consumer behaves: what its program may choose, and what makes no sense."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, cast, get_args

from uprmc import places
from uprmc.client.errors import MisuseError
from uprmc.client.follow import OnPurged, OnRollback, PurgedWord, RollbackWord
from uprmc.client.handler import check_handler
from uprmc.client.position import Position
from uprmc.client.sqlite_state import SqliteState
from uprmc.client.state import MemoryState, Saved, StateStore
from uprmc.connecting import own_name
from uprmc.login.credentials import Credentials
from uprmc.model import SEQNO_MAX
from uprmc.protocol.watermarks import ID_MAX_BYTES
from uprmc.remote.registering import Instance, kind_number, name_tag
from uprmc.units import nearest

StartWord = Literal["checkpoint", "beginning", "now"]
Start = StartWord | int | Mapping[int, Position] | Mapping[int, Saved]

_VBUCKETS_MAX = 0x10000
_UUID_MAX = 2**64 - 1


@dataclass(frozen=True)
class Options:
    """How a consumer behaves."""

    # of its connections, seen in the node's statistics; one for each process.
    name: str = "consumer"
    # which to follow, ``None`` = all that are active on the nodes.
    vbuckets: frozenset[int] | None = None
    # how many the documents are spread over; 0 = the state says, or the nodes.
    total_vbuckets: int = 0
    # where to begin: ``checkpoint`` = where the state says, else the beginning; ``beginning`` and
    # ``now`` whatever the state says; after a seqno of the newest history, in each vBucket; or
    # positions for some vBuckets, the others as ``checkpoint``. What another state has saved is a
    # position, too, also inside of a snapshot.
    start: Start = "checkpoint"
    until_now: bool = False  # end when everything has come that was there
    replicas: bool = False  # stream a vBucket that is active nowhere from a replica
    redial: bool = True  # go on when a connection or a stream is lost; without it that is an error
    values: bool = True  # whether changes carry the documents' values
    on_rollback: OnRollback = "rewind"  # see `follow.OnRollback`
    on_purged: OnPurged = None  # see `follow.OnPurged`; it is asked if the consumer registers
    # as what it is registered with the nodes, ``None`` = not at all.
    instance: Instance | None = None
    ring_items: int = 10_000  # how many of the newest keys of each vBucket can be undone one by one
    buffer_bytes: int = 8 * 1024 * 1024  # how far a node may be ahead of the handler
    starts_max: int = 1_024  # how many streams are asked for at a time
    noop_interval_s: float = 120.0  # a silent node is given up after twice this and two seconds
    poll_s: float = 1.0  # how often nodes are asked how far they are
    credentials: Credentials | None = None  # who logs in to nodes, ``None`` = no user
    tls: bool = False  # whether nodes are reached by TLS, so that a login cannot be listened to
    # gives numbers from 0 to 1, so that consumers do not dial all at once.
    jitter: Callable[[], float] = lambda: 0.0

    def check(self) -> None:
        """Raise `MisuseError` if they make no sense."""
        if self.ring_items < 1:
            raise MisuseError(f"ring_items {self.ring_items}: say at least 1")
        if not 0 <= self.total_vbuckets <= _VBUCKETS_MAX:
            raise MisuseError(f"total_vbuckets {self.total_vbuckets}: say 1 to {_VBUCKETS_MAX}")
        if self.vbuckets is not None and not self.vbuckets:
            raise MisuseError("vbuckets is empty: name some, or say None for all")
        _check_start(self.start)
        self.check_numbers(self.total_vbuckets or _VBUCKETS_MAX)
        _check_wish("on_rollback", self.on_rollback, get_args(RollbackWord))
        if self.on_purged is not None:
            _check_wish("on_purged", self.on_purged, get_args(PurgedWord))

    def check_numbers(self, count: int) -> None:
        """Raise `MisuseError` if one of `count` vBuckets is named that is none of them."""
        for vbucket in sorted(self.vbuckets or ()):
            _check_number("vbuckets", vbucket, count)
        for vbucket in self.start if isinstance(self.start, Mapping) else ():
            _check_number("start", vbucket, count)


def _check_start(start: Any) -> None:
    if isinstance(start, str):
        _check_word("start", start, get_args(StartWord), ", or positions")
    elif isinstance(start, int) and not isinstance(start, bool):
        if not 0 <= start <= SEQNO_MAX:
            raise MisuseError(f"start {start}: there is no such seqno")
    elif isinstance(start, Mapping):
        for vbucket, position in start.items():
            _check_position(vbucket, position)
    else:
        raise MisuseError(
            f"start {start!r}: say checkpoint, beginning, now, a seqno, or a dictionary of "
            "positions by vBucket, as positions() returns it"
        )


def _check_position(vbucket: Any, position: Any) -> None:
    if isinstance(position, Saved):
        return
    try:
        seqno, uuid = position
        there_is = 0 <= seqno <= SEQNO_MAX and 0 <= uuid <= _UUID_MAX
    except (TypeError, ValueError):
        raise MisuseError(
            f"start of vBucket {vbucket}: {position!r} is no position: say Position(seqno, vb_uuid)"
        ) from None
    if not there_is:
        raise MisuseError(
            f"start of vBucket {vbucket}: there is no seqno {seqno} of a history {uuid}"
        )


def _check_number(option: str, vbucket: Any, count: int) -> None:
    if not isinstance(vbucket, int) or not 0 <= vbucket < count:
        raise MisuseError(f"{option}: there is no vBucket {vbucket!r}: say 0 to {count - 1}")


def _check_wish(option: str, wish: Any, words: Sequence[str]) -> None:
    """Check a word that a function may say instead."""
    if callable(wish):
        return
    if not isinstance(wish, str):
        raise MisuseError(f"{option} {wish!r}: say {_listed(words[:3])}, or a function")
    _check_word(option, wish, words, ", or a function")


def _check_word(option: str, word: str, words: Sequence[str], more: str) -> None:
    if word not in words:
        meant = nearest(word, list(words))
        hint = f"did you mean {meant}?" if meant else f"say {_listed(words[:3])}{more}"
        raise MisuseError(f"{option} {word!r}: {hint}")


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)


# --- from a program's arguments -------------------------------------------------------------------

#: When a run ends by itself: never, level with the nodes, or as a function says.
Until = Literal["now"] | Callable[[], bool] | None

#: The answers to the last reports are waited for this long at most, in seconds.
FAREWELL_S = 2.0

#: States that a running client uses, by `id`.
_used: set[int] = set()


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


class Wishes(TypedDict, total=False):
    """The keyword arguments that all clients take, see `blocking.UprClient`."""

    state: StateStore | str | Path | None
    name: str
    vbuckets: Iterable[int] | None
    total_vbuckets: int | None
    register: str | bool | None
    instance: str | None
    register_s: int
    start: Start
    on_rollback: OnRollback
    on_purged: OnPurged
    ring_items: int
    values: bool
    buffer_bytes: int
    starts_max: int
    noop_interval_s: float
    poll_s: float
    replicas: bool
    redial: bool
    credentials: Credentials | None


class Prepared(NamedTuple):
    """What a client needs to run."""

    nodes: list[str]
    options: Options
    state: StateStore
    owns_state: bool  # it is ours to close


def prepared(
    nodes: str | Iterable[str], handler: object, wishes: Wishes, *, blocks: bool, tls: bool
) -> Prepared:
    """Check a program's arguments, and open its state; options get a name of this process's own.

    Args:
        nodes, handler: as of `blocking.UprClient`.
        wishes: the same.
        blocks: see `check_handler`.
        tls: whether nodes are reached by TLS.

    Raises:
        MisuseError: something of it makes no sense.
        StateError: the state is not this consumer's, or cannot be used.
    """
    places = [nodes] if isinstance(nodes, str) else list(nodes)
    check_places(places)
    check_handler(handler, blocks=blocks)
    given: dict[str, Any] = dict(wishes)
    unknown = sorted(given.keys() - Wishes.__annotations__.keys())
    if unknown:
        meant = nearest(unknown[0], list(Wishes.__annotations__))
        hint = f": did you mean {meant}?" if meant else ""
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}{hint}")
    name, vbuckets, wanted = given.pop("name", "consumer"), given.pop("vbuckets", None), None
    try:
        wanted = None if vbuckets is None else frozenset(vbuckets)
    except TypeError:
        raise MisuseError(
            f"vbuckets {vbuckets!r}: say a list of numbers, or None for all"
        ) from None
    total = given.pop("total_vbuckets", None) or 0
    registration = Registration(
        given.pop("register", None), given.pop("instance", None), given.pop("register_s", 0)
    )
    state = given.pop("state", None)
    options = Options(
        name=own_name(name),
        vbuckets=wanted,
        total_vbuckets=total,
        tls=tls,
        jitter=random.random,
        **given,
    )
    options.check()
    registration.check()
    is_path = isinstance(state, str | Path)
    if is_path:
        state = SqliteState(state, name=name, vbuckets=total)
    store: StateStore = MemoryState() if state is None else state
    try:
        known_as = registration.of(store, name)
    except BaseException:
        if is_path:
            store.close()
        raise
    return Prepared(places, replace(options, instance=known_as), store, is_path)


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


def check_places(places: Iterable[str]) -> list[str]:
    """Return the places; raises `MisuseError` if one is none, or there are none."""
    found = [check_place(place) for place in places]
    if not found:
        raise MisuseError("no node is named: say at least one HOST:PORT")
    return found


def check_place(place: str) -> str:
    """Return the place; raises `MisuseError` if it is none."""
    try:
        return places.complete(place)
    except ValueError as error:
        raise MisuseError(f"{place!r} is no node: say {error}") from None
