"""The TAP clients that an adapter knows: by name, over connections and restarts.

A name is connected, gone (its keep-alive runs: `TapSettings.keepalive_s`, monotonic time) or parked
(registered, its position is a document; Unix time). A connection gets a `TapName` of its own: one
that follows an earlier connection takes a copy of its cursors, so what the earlier one still hears
moves nothing.

A dump has no position: it neither takes nor touches what is parked under its name.

Source: TAP reference, section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from uprmc.config import TapSettings
from uprmc.errors import InvalidArguments, TemporaryFailure
from uprmc.protocol.tap import Connect, ConnectFlag
from uprmc.tap_adapter import position_document
from uprmc.tap_adapter.cursor import (
    CHECKPOINTS_KEPT,
    CHECKPOINTS_LEAST,
    CHECKPOINTS_OF_A_CLIENT,
    Cursor,
)
from uprmc.tap_adapter.ring import Ring
from uprmc.tap_adapter.saving import Saves
from uprmc.tap_adapter.upstream import Keeper

__all__ = ["Cursor", "Names", "TapName"]

#: The longest name, as of any key.
NAME_BYTES_MAX = 250

#: Flags that each connection of a known name sets; its other flags are those of the first one.
_RENEWED = (
    ConnectFlag.BACKFILL
    | ConnectFlag.LIST_VBUCKETS
    | ConnectFlag.REGISTERED_CLIENT
    | ConnectFlag.FIX_FLAG_BYTEORDER
)

#: Documents are looked through for old ones so often.
_SWEEP_INTERVAL_S = 10.0

#: A connected client's document is written again when this share of its life is over.
_REFRESH_SHARE = 0.125


class Connection(Protocol):
    """What a name needs of the producer that serves it; `done`: it has ended in good order."""

    done: bool

    def disconnect(self, why: str) -> None:
        """Hang up."""


class TapName:
    """One client, during one connection and until the next one.

    Attributes:
        name: as given, or ``anon_N``.
        connect: what is in force: this connection's TAP_CONNECT under the rules of section 7.
        anonymous: it gave no name, so it cannot come back.
        registered: its position outlives everything but DEREGISTER and the expiry.
        closed_only: it wants closed checkpoints only.
        cursors: where it stands, by vBucket; a producer moves them.
        ring: what it was sent.
        producer: serves it; set by the code that made the producer.
        created_at: monotonic time of its TAP_CONNECT.
        gone_at: monotonic time when its connection ended, ``None`` while it has one.
        seen_s: Unix time when it was last here, as far as its document says.
        reconnects: how often it has come back, as far as this process knows.
    """

    def __init__(self, names: Names, name: bytes, connect: Connect, created_at: float) -> None:
        """Make a name without a position."""
        self._names = names
        self.name = name
        self.connect = connect._replace(name=name)
        self.anonymous = not connect.name
        self.registered = (
            connect.has(ConnectFlag.REGISTERED_CLIENT) and not self.anonymous and not self.is_dump
        )
        self.closed_only = self.registered and connect.closed_only
        self.cursors: dict[int, Cursor] = {}
        self.ring = names.new_ring()
        self.producer: Connection | None = None
        self.created_at = created_at
        self.gone_at: float | None = None
        self.seen_s = 0.0
        self.reconnects = 0

    @property
    def flags(self) -> int:
        """`ConnectFlag` bits in force."""
        return self.connect.flags

    @property
    def is_dump(self) -> bool:
        """Whether it has no position that could be kept."""
        return self.connect.has(ConnectFlag.DUMP)

    def save(self, done: Callable[[bool], None]) -> None:
        """Make sure that no restart forgets what the cursors say now.

        To be waited for before a batch leaves; at once and free of cost for a client that is not
        registered. `done` hears ``False`` if the disk refused, or another connection has the name.
        """
        self._names.save(self, done)

    def closed(self, vbucket: int, checkpoint_id: int, last_seqno: int) -> None:
        """Note that the end of a checkpoint was acknowledged."""
        cursor = self.cursors.get(vbucket)
        if cursor is None:  # the client does not want the vBucket any more
            return
        share = CHECKPOINTS_OF_A_CLIENT // len(self.cursors)
        kept = min(CHECKPOINTS_KEPT, max(CHECKPOINTS_LEAST, share))
        cursor.close_checkpoint(checkpoint_id, last_seqno, kept)

    def follow(self, earlier: TapName) -> None:
        """Stand where an earlier connection of the name stood."""
        self.reconnects = earlier.reconnects + 1
        self.cursors = {number: cursor.copied() for number, cursor in earlier.cursors.items()}
        self.ring, earlier.ring = earlier.ring, self.ring
        if self.closed_only:
            for cursor in self.cursors.values():
                cursor.restart_checkpoint()


class Names:
    """All clients of one adapter.

    Attributes:
        refused_documents: one line for each document that could not be used, for the log.
    """

    def __init__(self, settings: TapSettings, keeper: Keeper) -> None:
        """Learn the registered clients from `keeper`."""
        self._settings = settings
        self._saves = Saves(keeper)
        self._connected: dict[bytes, TapName] = {}
        self._gone: dict[bytes, TapName] = {}  # in the order they went
        self._parked: dict[bytes, TapName] = {}
        self._unread: set[bytes] = set()
        self._anonymous = 0
        self._unix_now = 0.0
        self._swept_at = float("-inf")
        self.refused_documents: list[str] = []
        for name, document in self._saves.found.items():
            self._load(name, document)
        self._saves.found = {}

    def __len__(self) -> int:
        """Return how many clients are connected or known."""
        return len(self._connected) + len(self._gone) + len(self._parked)

    def __iter__(self) -> Iterator[TapName]:
        """Go through all of them, connected ones first."""
        for group in (self._connected, self._gone, self._parked):
            yield from list(group.values())

    def new_ring(self) -> Ring:
        """Return an empty ring of the size that is set."""
        return Ring(self._settings.undo_keys)

    def find(self, name: bytes) -> TapName | None:
        """Return what is known under a name; its `gone_at` tells whether it is connected."""
        return self._connected.get(name) or self._gone.get(name) or self._parked.get(name)

    def connect(self, connect: Connect, now: float, unix_now: float) -> TapName:
        """Give a new connection its name; an older connection of the name is disconnected.

        Args:
            connect: as it came.
            now: monotonic time in seconds.
            unix_now: Unix time in seconds.

        Raises:
            InvalidArguments: the name is too long.
            TemporaryFailure: no more names.
        """
        if len(connect.name) > NAME_BYTES_MAX:
            raise InvalidArguments(f"a TAP name of {len(connect.name)} B")
        self._unix_now = unix_now
        self._expire_gone(now)
        name = connect.name or self._fresh_name()
        self._check_room(name, connect)
        self._supersede(name, now)
        known = self._known_again(name, connect, now)
        if not known.is_dump:
            self._unread.discard(name)
        self._connected[name] = known
        return known

    def left(self, known: TapName, now: float, unix_now: float, *, finished: bool) -> None:
        """Note that a connection has ended; `finished`: nobody is to go on from there.

        Nothing happens if another connection has the name already.
        """
        self._unix_now = unix_now
        if self._connected.get(known.name) is known:
            self._retire(known, now, finished=finished)

    def deregister(self, name: bytes) -> None:
        """Forget a name, whether it is known or not, and hang up on it."""
        known = self._connected.pop(name, None)
        self._gone.pop(name, None)
        self._parked.pop(name, None)
        self._unread.discard(name)
        if name in self._saves.stored:
            self._saves.drop(name)
        self._hang_up(known, "deregistered")

    def start_over(self) -> None:
        """Take the position from everybody who is not connected (RESET_REPLICATION_CHAIN)."""
        for known in [*self._gone.values(), *self._parked.values()]:
            known.cursors, known.ring = {}, self.new_ring()
            if known.registered:
                self._keep(known)

    def tick(self, now: float, unix_now: float) -> None:
        """Learn the monotonic and the Unix time: forget whom nobody expects any more."""
        self._unix_now = unix_now
        self._expire_gone(now)
        if now - self._swept_at < _SWEEP_INTERVAL_S:
            return
        self._swept_at = now
        self._expire_parked()
        self._refresh_documents()
        self._drop_orphans()

    def save(self, known: TapName, done: Callable[[bool], None]) -> None:
        """Do what `TapName.save` says."""
        if self._connected.get(known.name) is not known:
            done(False)
        elif known.registered:
            self._saves.save(known.name, lambda: self._document(known), done)
        elif known.is_dump or known.name not in self._saves.stored:
            done(True)
        else:
            # It was registered: an old position must not turn up after a restart.
            self._saves.drop(known.name, done)

    # --- who comes ---

    def _fresh_name(self) -> bytes:
        while True:
            self._anonymous += 1
            name = b"anon_%d" % self._anonymous
            if self.find(name) is None and name not in self._saves.stored:
                return name

    def _check_room(self, name: bytes, connect: Connect) -> None:
        if self._takes_a_place_of_its_own(name, connect) and len(self) >= self._settings.names:
            raise TemporaryFailure("no more TAP names")

    def _takes_a_place_of_its_own(self, name: bytes, connect: Connect) -> bool:
        if name in self._gone:
            return False
        older = self._connected.get(name)
        if connect.has(ConnectFlag.DUMP):
            parks = older is not None and older.registered and not self._settings.keepalive_s
            return older is None or parks
        return older is None and name not in self._parked

    def _supersede(self, name: bytes, now: float) -> None:
        older = self._connected.get(name)
        if older is None:
            return
        served_by = older.producer
        self._retire(older, now, finished=served_by is not None and served_by.done)
        if served_by is not None:
            served_by.disconnect("another connection has taken the name")

    def _known_again(self, name: bytes, connect: Connect, now: float) -> TapName:
        earlier = self._gone.pop(name, None)
        if earlier is not None:
            connect = _in_force(earlier.connect, connect)
        elif not connect.has(ConnectFlag.DUMP):
            earlier = self._parked.pop(name, None)
            if earlier is not None and self._is_expired(earlier):
                earlier = None
        known = TapName(self, name, connect, now)
        if earlier is not None:
            known.follow(earlier)
        return known

    # --- who goes ---

    def _retire(self, known: TapName, now: float, *, finished: bool) -> None:
        del self._connected[known.name]
        known.producer = None
        known.gone_at = now
        known.seen_s = self._unix_now
        if finished or known.anonymous:
            self._forget(known)
            return
        if known.registered:
            self._keep(known)
        if self._settings.keepalive_s > 0:
            self._gone[known.name] = known
        else:
            self._let_go(known)

    def _let_go(self, known: TapName) -> None:
        if known.registered:
            self._parked[known.name] = known
        else:
            self._forget(known)

    def _forget(self, known: TapName) -> None:
        if not known.is_dump and known.name in self._saves.stored:
            self._saves.drop(known.name)

    def _hang_up(self, known: TapName | None, why: str) -> None:
        if known is not None and known.producer is not None:
            known.producer.disconnect(why)

    def _expire_gone(self, now: float) -> None:
        while self._gone:
            known = next(iter(self._gone.values()))
            if known.gone_at is None or now - known.gone_at < self._settings.keepalive_s:
                return
            del self._gone[known.name]
            self._let_go(known)

    # --- documents ---

    def _load(self, name: bytes, document: bytes) -> None:
        try:
            position = position_document.decode(document)
        except ValueError as error:
            self._unread.add(name)
            self.refused_documents.append(
                f"the position of TAP client {name.decode('utf-8', 'backslashreplace')!r}"
                f" is not used: {error}"
            )
            return
        known = TapName(self, name, Connect(name, ConnectFlag.REGISTERED_CLIENT), 0.0)
        known.gone_at = 0.0
        known.seen_s = position.seen_s
        known.cursors = position.cursors
        for vbucket, cursor in position.cursors.items():
            known.ring.lost(vbucket, cursor.sent)
        self._parked[name] = known

    def _document(self, known: TapName) -> bytes:
        if known.gone_at is None:
            known.seen_s = self._unix_now
        return position_document.encode(known.cursors, known.seen_s)

    def _keep(self, known: TapName) -> None:
        self._saves.save(known.name, lambda: self._document(known), _ignore)

    def _is_expired(self, known: TapName) -> bool:
        # A clock that was wrong must not keep anybody for ever.
        known.seen_s = min(known.seen_s, self._unix_now)
        return self._unix_now - known.seen_s >= self._settings.registered_expiry_s

    def _expire_parked(self) -> None:
        for known in [known for known in self._parked.values() if self._is_expired(known)]:
            del self._parked[known.name]
            self._forget(known)

    def _refresh_documents(self) -> None:
        oldest = self._unix_now - self._settings.registered_expiry_s * _REFRESH_SHARE
        for known in self._connected.values():
            if known.registered and known.seen_s < oldest:
                self._keep(known)

    def _drop_orphans(self) -> None:
        """Remove again what could not be removed before: the disk may have been full."""
        owned = {known.name for known in self if known.registered} | self._unread
        for name in self._saves.stored - owned:
            self._saves.drop(name)


def _in_force(first: Connect, new: Connect) -> Connect:
    """Return what holds for a connection that takes a stream over."""
    return new._replace(flags=first.flags & ~_RENEWED | new.flags & _RENEWED)


def _ignore(_kept: bool) -> None:
    """A position that was not written is an older one after a restart: more is sent again."""
