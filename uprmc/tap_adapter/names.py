"""The TAP clients that an adapter knows: by name, over connections and restarts.

A name is connected, gone (its keep-alive runs: `TapSettings.keepalive_s`, monotonic time) or parked
(registered, its position is a document; Unix time). A connection gets a `TapName` of its own: one
that follows an earlier connection takes a copy of its cursors, so what the earlier one still hears
moves nothing.

A dump has no position: it neither takes nor touches what is parked under its name.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from uprmc.config import TapSettings
from uprmc.errors import InvalidArguments, TemporaryFailure
from uprmc.protocol.tap import Connect, ConnectFlag
from uprmc.tap_adapter.cursor import (
    CHECKPOINTS_KEPT,
    CHECKPOINTS_LEAST,
    CHECKPOINTS_OF_A_CLIENT,
    TapCursor,
    decode_position,
    encode_position,
)
from uprmc.tap_adapter.upstream import PositionKeeper

if TYPE_CHECKING:
    from uprmc.tap_adapter.producer import TapProducer

__all__ = ["Names", "TapCursor", "TapName"]

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


class TapName:
    """One client, during one connection and until the next one."""

    def __init__(self, names: Names, name: bytes, connect: Connect, created_at: float) -> None:
        """Make a name without a position."""
        self._names = names
        self.name = name  # as given, or ``anon_N``
        #: What is in force: this connection's TAP_CONNECT under the rules of section 7.
        self.connect = connect._replace(name=name)
        self.anonymous = not connect.name  # it gave no name, so it cannot come back
        #: Its position outlives everything but DEREGISTER and the expiry.
        self.registered = (
            connect.has(ConnectFlag.REGISTERED_CLIENT) and not self.anonymous and not self.is_dump
        )
        #: It wants closed checkpoints only.
        self.closed_only = self.registered and connect.closed_only
        self.cursors: dict[
            int, TapCursor
        ] = {}  # where it stands, by vBucket; a producer moves them
        self.ring = names.new_ring()  # what it was sent
        #: Serves it; set by the code that made the producer.
        self.producer: TapProducer | None = None
        self.created_at = created_at  # monotonic time of its TAP_CONNECT
        #: Monotonic time when its connection ended, ``None`` while it has one.
        self.gone_at: float | None = None
        self.seen_s = 0.0  # Unix time when it was last here, as far as its document says
        self.reconnects = 0  # how often it has come back, as far as this process knows

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
    """All clients of one adapter."""

    def __init__(self, settings: TapSettings, keeper: PositionKeeper) -> None:
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
        #: One line for each document that could not be used, for the log.
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
        """Note that a connection has ended; `finished`: it has no place to go on from.

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
        """Learn the monotonic and the Unix time: forget those whose time is over."""
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
            position = decode_position(document)
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
        return encode_position(known.cursors, known.seen_s)

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


# --- ring -----------------------------------------------------------------------------------------
# The keys that one TAP client was sent, so that its last changes can be taken back.
#
# TAP cannot say "forget what is above seqno n". When history has branched, the client gets the
# current version of every key that it was sent above the branch instead; this ring knows those
# keys. It is bounded over all vBuckets of a client, and says where it no longer reaches.
#
# Fifty clients hold half a million keys, so a key is no object: keys and their lengths lie end to
# end in two byte arrays, and a run (one vBucket's messages of one batch) is a row of three numbers.


#: Stands for the last seqno of a run that is forgotten and not dropped yet.
_FORGOTTEN = 0

#: Places of lengths are counted modulo this, which is more than a ring holds.
_PLACES = 2**32

#: Rows before the oldest run are given back in blocks: at least this many, or an eighth of all.
_DROPPED_ROWS_LEAST = 64


class Ring:
    """Keys that were sent, newest last.

    What was sent again, and corrections, are added like anything else: what a client may hold of a
    vBucket is what its runs say, in any order.
    """

    def __init__(self, keys_max: int) -> None:
        """Make an empty ring for at most `keys_max` keys; 0 = it never reaches back."""
        self._keys_max = keys_max
        self._keys = bytearray()
        self._lengths = bytearray()
        # Rows, in order: whose, the last seqno, and the place of its first length.
        self._vbuckets = array("H")
        self._last_seqnos = array("Q")
        self._places = array("I")
        self._dropped_rows = 0
        self._dropped_keys = 0
        # By vBucket: above what it reaches, and the highest seqno that was added.
        self._floors: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def __len__(self) -> int:
        """Return how many keys it holds, forgotten ones included."""
        return len(self._lengths)

    def add(self, vbucket: int, first_after: int, last_seqno: int, keys: Sequence[bytes]) -> None:
        """Note one run.

        Args:
            vbucket: the vBucket of the checkpoints.
            first_after: what the stream stood at before it; everything sent between this and
                `last_seqno` is in `keys`. If it lies above all earlier runs, what is between is
                taken for lost.
            last_seqno: the highest seqno in it; for corrections that of the versions sent.
            keys: there may be duplicates.
        """
        end = self._ends.get(vbucket, -1)
        if first_after > end:
            self._raise_floor(vbucket, first_after)
        self._ends[vbucket] = max(last_seqno, end)
        lengths = _lengths(keys)
        if lengths is None or len(lengths) > self._keys_max:
            self._raise_floor(vbucket, last_seqno)
        elif lengths:
            self._vbuckets.append(vbucket)
            self._last_seqnos.append(last_seqno)
            self._places.append((self._dropped_keys + len(self._lengths)) % _PLACES)
            self._lengths += lengths
            self._keys += b"".join(keys)
            while len(self._lengths) > self._keys_max:
                self._drop_oldest()

    def lost(self, vbucket: int, seqno: int) -> None:
        """Note that up to `seqno` was sent and is not in here: an earlier process sent it."""
        self._raise_floor(vbucket, seqno)

    def above(self, vbucket: int, seqno: int) -> list[bytes] | None:
        """Return the distinct keys of runs that reach above `seqno`, ``None`` if some are lost.

        A run is taken whole, so there may be keys that were sent at or below `seqno`; sending their
        current version is harmless. Costs a pass over the ring.
        """
        if seqno < self._floors.get(vbucket, seqno + 1):
            return None
        found: dict[bytes, None] = {}
        for last_seqno, keys in self._runs(vbucket):
            if last_seqno > seqno:
                found.update(dict.fromkeys(keys))
        return list(found)

    def forget(self, vbucket: int) -> None:
        """Note that the client must empty `vbucket`: it has nothing that was sent."""
        if self._floors.pop(vbucket, None) is None:
            return
        self._ends.pop(vbucket, None)
        for row in self._rows(vbucket):
            self._last_seqnos[row] = _FORGOTTEN

    def _raise_floor(self, vbucket: int, seqno: int) -> None:
        self._floors[vbucket] = max(seqno, self._floors.get(vbucket, 0))

    def _rows(self, vbucket: int) -> Iterator[int]:
        row = self._dropped_rows - 1
        while True:
            try:
                row = self._vbuckets.index(vbucket, row + 1)
            except ValueError:
                return
            yield row

    def _runs(self, vbucket: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        place = key_place = 0
        for row in self._rows(vbucket):
            first = self._place(row)
            key_place += sum(self._lengths[place:first])
            place = self._place(row + 1)
            ends = list(accumulate(self._lengths[first:place], initial=key_place))
            key_place = ends[-1]
            yield (
                self._last_seqnos[row],
                (bytes(self._keys[start:end]) for start, end in pairwise(ends)),
            )

    def _place(self, row: int) -> int:
        """Return where a row's lengths begin, as of now; those of no row at the end."""
        if row == len(self._places):
            return len(self._lengths)
        return (self._places[row] - self._dropped_keys) % _PLACES

    def _drop_oldest(self) -> None:
        row = self._dropped_rows
        if self._last_seqnos[row] != _FORGOTTEN:
            self._raise_floor(self._vbuckets[row], self._last_seqnos[row])
        count = self._place(row + 1)
        # A byte array gives up its front without moving the rest; the columns do not.
        del self._keys[: sum(self._lengths[:count])]
        del self._lengths[:count]
        self._dropped_keys += count
        self._dropped_rows += 1
        if self._dropped_rows > max(_DROPPED_ROWS_LEAST, len(self._vbuckets) // 8):
            for column in (self._vbuckets, self._last_seqnos, self._places):
                del column[: self._dropped_rows]
            self._dropped_rows = 0


def _lengths(keys: Sequence[bytes]) -> bytes | None:
    """Return the keys' lengths, ``None`` if one is longer than any memcached takes."""
    try:
        return bytes(map(len, keys))
    except ValueError:
        return None


# --- saving ---------------------------------------------------------------------------------------
# One document per registered TAP client, one write of it at a time.
#
# Saves of the same name follow one another, so that what was asked for last is what stays: a client
# that is deregistered and comes back at once must not lose its new document to the old one's
# removal. What is asked for while a write is under way shares the next one.


#: At most this many wait for the next write of one name; for others it has failed.
WAITING_MAX = 16

Done = Callable[[bool], None]
MakeDocument = Callable[[], bytes | None]


class _Line:
    """Who waits for the write that follows the one under way, and what it is to write."""

    def __init__(self) -> None:
        self.make: MakeDocument | None = None
        self.waiting: list[Done] = []


class Saves:
    """The documents of one adapter."""

    def __init__(self, keeper: PositionKeeper) -> None:
        """Load all documents."""
        self._keeper = keeper
        self._lines: dict[bytes, _Line] = {}
        self.found = keeper.load()  # documents by name, as they were at the start
        self.stored = set(self.found)  # names that have a document, or may have one

    def save(self, name: bytes, make: MakeDocument, done: Done) -> None:
        """Write what `make` returns when its turn comes; `done` hears whether it is on disk."""
        line = self._lines.get(name)
        if line is None:
            self._start(name, make, [done])
        elif len(line.waiting) >= WAITING_MAX:
            done(False)
        else:
            line.make = make
            line.waiting.append(done)

    def drop(self, name: bytes, done: Done | None = None) -> None:
        """Remove a document; saves that wait have failed."""
        line = self._lines.get(name)
        heard = [done] if done else []
        if line is None:
            self._start(name, _nothing, heard)
            return
        line.make = _nothing
        failed, line.waiting = line.waiting, heard
        for waiting in failed:
            waiting(False)

    def _start(self, name: bytes, make: MakeDocument, waiting: list[Done]) -> None:
        line = self._lines[name] = _Line()
        document = make()
        if document is not None:
            self.stored.add(name)

        def finished(kept: bool) -> None:
            if kept and document is None:
                self.stored.discard(name)
            del self._lines[name]
            if line.make is not None:
                self._start(name, line.make, line.waiting)
            for done in waiting:
                done(kept)

        self._keeper.save(name, document, finished)


def _nothing() -> None:
    return None
