"""Names with a clock and a disk: what `test_names*` are written with."""

from __future__ import annotations

from tests.tap_adapter.fake_keeper import FakeKeeper
from uprmc.config import TapSettings
from uprmc.model import SnapshotRange
from uprmc.protocol.tap import Connect, ConnectFlag
from uprmc.tap_adapter.cursor import (
    TapCursor,
    decode_position,
)
from uprmc.tap_adapter.names import Names, TapName

LIVE = ConnectFlag.SUPPORT_ACK | ConnectFlag.CHECKPOINT
REGISTERED = LIVE | ConnectFlag.REGISTERED_CLIENT
UNIX = 1_700_000_000.0


class FakeProducer:
    """What serves a name."""

    def __init__(self) -> None:
        self.done = False
        self.why = ""

    def disconnect(self, why: str) -> None:
        self.why = why


class Place:
    """Names, a clock for both times, and a disk."""

    def __init__(self, settings: TapSettings | None = None, *, keepalive_s: float = 0.0) -> None:
        self.settings = settings or TapSettings(keepalive_s=keepalive_s)
        self.keeper = FakeKeeper()
        self.now = 100.0
        self.names = Names(self.settings, self.keeper)

    @property
    def unix_now(self) -> float:
        return UNIX + self.now

    def connect(self, name: bytes, flags: int = LIVE, **rest: object) -> TapName:
        asked = Connect(name, flags)._replace(**rest)  # type: ignore[arg-type]
        known = self.names.connect(asked, self.now, self.unix_now)
        known.producer = FakeProducer()
        return known

    def leave(self, known: TapName, *, finished: bool = False) -> None:
        self.names.left(known, self.now, self.unix_now, finished=finished)

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.names.tick(self.now, self.unix_now)

    def restart(self) -> None:
        self.keeper.pending.clear()
        self.names = Names(self.settings, self.keeper)
        self.now = 5.0 + self.now

    def on_disk(self, name: bytes) -> dict[int, TapCursor]:
        return decode_position(self.keeper.documents[name]).cursors


def moved(known: TapName, acked: int = 10) -> TapCursor:
    """Have a client acknowledge something."""
    cursor = TapCursor(uuid=7, acked=acked, snapshot=SnapshotRange(0, 20), sent=15, backfilled=True)
    known.cursors[3] = cursor
    return cursor


def why(known: TapName) -> str:
    assert isinstance(known.producer, FakeProducer)
    return known.producer.why
