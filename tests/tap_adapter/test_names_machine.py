"""Names against a model of section 7, with a disk that is slow, full, or lost with the process.

A client's place is one number, larger each time; so it can be told whose place a name got, and how
old it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.tap_adapter.fake_keeper import FakeKeeper
from uprmc.config import TapSettings
from uprmc.errors import TemporaryFailure
from uprmc.model import SnapshotRange
from uprmc.protocol.tap import Connect, ConnectFlag
from uprmc.tap_adapter.cursor import TapCursor, decode_position
from uprmc.tap_adapter.names import Names, TapName

KEEPALIVE_S = 10
EXPIRY_S = 100
SWEEP_S = 10
NAMES_MAX = 4
UNIX = 1_000_000

NAMES = st.sampled_from([b"", b"a", b"b", b"c", b"anon_2"])
FLAGS = st.builds(
    lambda dump, registered, keys_only: dump | registered | keys_only,
    st.sampled_from([0, 0, 0, ConnectFlag.DUMP]),
    st.sampled_from([0, ConnectFlag.REGISTERED_CLIENT, ConnectFlag.REGISTERED_CLIENT]),
    st.sampled_from([0, ConnectFlag.REQUEST_KEYS_ONLY]),
)


class Served:
    """A producer that remembers being told to hang up."""

    def __init__(self) -> None:
        self.done = False
        self.why = ""

    def disconnect(self, why: str) -> None:
        self.why = why


@dataclass
class Client:
    """What the model knows of a name.

    Attributes:
        place: 0 = none.
        known, served: of its connection, while it has one.
        gone_at, seen: monotonic and Unix time when it went.
    """

    flags: int
    anonymous: bool = False
    place: int = 0
    known: TapName | None = None
    served: Served = field(default_factory=Served)
    gone_at: int = 0
    seen: int = 0

    @property
    def dump(self) -> bool:
        return bool(self.flags & ConnectFlag.DUMP)

    @property
    def registered(self) -> bool:
        registered = bool(self.flags & ConnectFlag.REGISTERED_CLIENT)
        return registered and not self.dump and not self.anonymous


class Machine(RuleBasedStateMachine):
    """One adapter.

    Attributes:
        streams: clients that are connected, or gone for less than the keep-alive.
        parked: registered ones that are not.
        confirmed: name -> the place that must be found after a crash, or a later one.
        owners: place -> name.
        replaced: connections that another one has followed.
    """

    keepalive_s = KEEPALIVE_S

    def __init__(self) -> None:
        super().__init__()
        self.settings = TapSettings(
            keepalive_s=self.keepalive_s, registered_expiry_s=EXPIRY_S, names=NAMES_MAX
        )
        self.keeper = FakeKeeper(patient=True)
        self.names = Names(self.settings, self.keeper)
        self.now = 50
        self.unix_now = UNIX
        self.streams: dict[bytes, Client] = {}
        self.parked: dict[bytes, Client] = {}
        self.confirmed: dict[bytes, int] = {}
        self.owners: dict[int, bytes] = {}
        self.replaced: list[TapName] = []
        self.life = 0
        self.disk_failed = False
        self.swept_at: int | None = None

    # --- the model's rules ---

    def expire(self) -> None:
        """Let go of who has been gone for the keep-alive."""
        for name, client in list(self.streams.items()):
            if client.known is None and self.now - client.gone_at >= self.keepalive_s:
                del self.streams[name]
                self.park(name, client)

    def park(self, name: bytes, client: Client) -> None:
        if client.registered:
            self.parked[name] = client

    def go(self, name: bytes, *, finished: bool) -> None:
        client = self.streams[name]
        assert client.known is not None
        client.known = None
        client.gone_at, client.seen = self.now, self.unix_now
        if finished or client.anonymous:
            del self.streams[name]
            if not client.dump:
                self.confirmed.pop(name, None)
        self.expire()

    def is_expired(self, client: Client) -> bool:
        return self.unix_now - client.seen >= EXPIRY_S

    # --- steps ---

    @rule(name=NAMES, flags=FLAGS)
    def connect(self, name: bytes, flags: int) -> None:
        self.expire()
        assert all(client.served.why == "" for _, client in self.connected())
        before = len(self.names)
        try:
            known = self.names.connect(Connect(name, flags), self.now, self.unix_now)
        except TemporaryFailure:
            assert before >= NAMES_MAX
            assert name not in self.streams or flags & ConnectFlag.DUMP
            assert all(client.served.why == "" for _, client in self.connected())
            return
        assert name in (b"", known.name)
        assert len(self.names) <= max(before, NAMES_MAX)
        older = self.streams.get(known.name)
        if older is not None and older.known is not None:
            assert "taken" in older.served.why
            self.replaced.append(older.known)
            self.go(known.name, finished=older.served.done)
        self.take(name, known, flags)

    def take(self, given: bytes, known: TapName, flags: int) -> None:
        """Work out what the connection must have got."""
        name = known.name
        client = Client(flags, anonymous=not given)
        earlier = self.streams.pop(name, None)
        if earlier is not None:
            renewed = ConnectFlag.REGISTERED_CLIENT
            client.flags = earlier.flags & ~renewed | flags & renewed
        elif not client.dump:
            earlier = self.parked.pop(name, None)
            if earlier is not None and self.is_expired(earlier):
                self.confirmed.pop(name, None)
                earlier = None
        if earlier is not None:
            client.place = earlier.place
        if not client.registered and not client.dump:
            self.confirmed.pop(name, None)
        client.known = known
        known.producer = client.served
        self.streams[name] = client
        assert known.flags == client.flags
        assert known.registered == client.registered
        assert (known.cursors[0].acked if known.cursors else 0) == client.place

    @precondition(lambda self: self.connected())
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        name, client = self.draw_connected(data)
        assert client.known is not None
        client.place = len(self.owners) + 1
        self.owners[client.place] = name
        place = SnapshotRange(client.place, client.place)
        client.known.cursors[0] = TapCursor(1, client.place, place, client.place)

    @precondition(lambda self: self.connected())
    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        name, client = self.draw_connected(data)
        assert client.known is not None
        known, place, life = client.known, client.place, self.life

        def done(ok: bool) -> None:
            current = self.streams.get(name)
            if not ok or life != self.life or current is None or current.known is not known:
                return
            if client.registered:
                self.confirmed[name] = max(place, self.confirmed.get(name, 0))
            elif not client.dump:
                assert name not in self.keeper.documents

        known.save(done)

    @precondition(lambda self: self.connected())
    @rule(data=st.data(), finished=st.sampled_from([False, False, True]))
    def leave(self, data: st.DataObject, finished: bool) -> None:
        name, client = self.draw_connected(data)
        assert client.known is not None
        self.names.left(client.known, self.now, self.unix_now, finished=finished)
        self.go(name, finished=finished)

    @precondition(lambda self: self.connected())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.draw_connected(data)[1].served.done = True

    @rule(name=NAMES)
    def deregister(self, name: bytes) -> None:
        self.names.deregister(name)
        client = self.streams.pop(name, None)
        if client is not None and client.known is not None:
            assert client.served.why == "deregistered"
            self.replaced.append(client.known)
        self.parked.pop(name, None)
        self.confirmed.pop(name, None)

    @precondition(lambda self: self.replaced)
    @rule(data=st.data(), finished=st.booleans())
    def an_old_connection_stirs(self, data: st.DataObject, finished: bool) -> None:
        known = data.draw(st.sampled_from(self.replaced))
        told: list[bool] = []
        known.cursors[0] = TapCursor(9, 9, SnapshotRange(9, 9), 9) if finished else TapCursor()
        known.save(told.append)
        assert told == [False]
        self.names.left(known, self.now, self.unix_now, finished=finished)

    @rule(seconds=st.sampled_from([1, KEEPALIVE_S - 1, KEEPALIVE_S, EXPIRY_S - 1, EXPIRY_S]))
    def tick(self, seconds: int) -> None:
        self.now += seconds
        self.unix_now += seconds
        self.names.tick(self.now, self.unix_now)
        self.expire()
        if self.swept_at is None or self.now - self.swept_at >= SWEEP_S:
            self.swept_at = self.now
            for name, client in list(self.parked.items()):
                if self.is_expired(client):
                    del self.parked[name]
                    self.confirmed.pop(name, None)
            assert len(self.names) == len(self.streams) + len(self.parked)

    @precondition(lambda self: self.keeper.pending)
    @rule(ok=st.sampled_from([True, True, True, False]))
    def disk(self, ok: bool) -> None:
        self.disk_failed |= not ok
        self.keeper.finish(ok)

    @rule()
    def settle(self) -> None:
        """Let the disk catch up, and have what it has refused written or dropped again."""
        self.keeper.finish_all()
        if self.disk_failed:
            return
        documents = set(self.keeper.documents)
        registered = {name for name, client in self.streams.items() if client.registered}
        lazily = {name for name, client in self.streams.items() if not client.registered}
        assert documents <= registered | lazily | set(self.parked)
        assert set(self.parked) <= documents

    @rule()
    def crash(self) -> None:
        """Lose the process, and whatever was being written."""
        self.life += 1
        self.keeper.pending.clear()
        self.names = Names(self.settings, self.keeper)
        self.now = 50
        self.swept_at = None
        self.disk_failed = False
        found = {name: decode_position(text) for name, text in self.keeper.documents.items()}
        for name, place in self.confirmed.items():
            assert found[name].cursors[0].acked >= place if place else name in found
        self.streams.clear()
        self.parked.clear()
        self.replaced.clear()
        self.confirmed.clear()
        for name, (cursors, seen_s) in found.items():
            place = cursors[0].acked if cursors else 0
            assert not place or self.owners[place] == name
            flags = int(ConnectFlag.REGISTERED_CLIENT)
            self.parked[name] = Client(flags, place=place, seen=int(seen_s))
            self.confirmed[name] = place

    # --- help ---

    def connected(self) -> list[tuple[bytes, Client]]:
        return [entry for entry in self.streams.items() if entry[1].known is not None]

    def draw_connected(self, data: st.DataObject) -> tuple[bytes, Client]:
        entry: tuple[bytes, Client] = data.draw(st.sampled_from(self.connected()))
        return entry

    @invariant()
    def who_is_connected_stands_where_the_model_says(self) -> None:
        for name, client in self.connected():
            assert self.names.find(name) is client.known
            assert client.known is not None
            assert (client.known.cursors[0].acked if client.known.cursors else 0) == client.place
            assert client.served.why == ""

    @invariant()
    def writes_of_a_name_follow_one_another(self) -> None:
        names = [write.name for write in self.keeper.pending]
        assert len(names) == len(set(names))


class WithoutKeepalive(Machine):
    """The default: only registered clients are known when they have gone."""

    keepalive_s = 0


_SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestNames = Machine.TestCase
TestNames.settings = _SETTINGS
TestWithoutKeepalive = WithoutKeepalive.TestCase
TestWithoutKeepalive.settings = _SETTINGS
