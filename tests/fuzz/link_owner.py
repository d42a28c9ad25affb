"""What a fuzzed link stands on: settings that make limits near, entropy from a seed, an owner."""

from __future__ import annotations

from random import Random
from typing import Any

from uprmc.config import (
    EngineSettings,
    FlushSettings,
    KvSettings,
    MemorySettings,
    Settings,
    UprSettings,
)

FOLLOWED = (0, 1)
BYSTANDERS = (2, 3)

MAX_FRAME_BYTES = 65_536

SETTINGS = Settings(
    kv=KvSettings(max_item_bytes=4_096, max_frame_bytes=MAX_FRAME_BYTES),
    engine=EngineSettings(vbuckets=4),
    memory=MemorySettings(quota=400_000),
    flush=FlushSettings(batch_items=7),
    upr=UprSettings(rollback_keys=9, consumer_buffer=2_000),
)


class Entropy:
    """The port `Entropy` from a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uuid48(self) -> int:
        return self._random.getrandbits(48) or 1


class Owner:
    """Who has dialled: it must be told nothing after the end, and sometimes ends the connection.

    Attributes:
        link: the connection.
        closed_times: how often it has told its end; nothing may be told after that.
        hasty: whether it sometimes ends the connection in the middle of being told something.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.link: Any = None
        self.closed_times = 0
        self.hasty = False

    def _perhaps_end(self) -> None:
        if self.hasty and self.random.random() < 0.02:
            self.link.connection_lost()

    def opened(self) -> None:
        self._perhaps_end()

    def began(self, number: int) -> None:
        assert not self.closed_times
        self._perhaps_end()

    def ended(self, number: int, why: str, retry: bool) -> None:
        assert not self.closed_times
        assert why
        self._perhaps_end()

    def taken(self, number: int) -> None:
        assert not self.closed_times
        self._perhaps_end()

    def closed(self, why: str) -> None:
        assert why
        self.closed_times += 1
