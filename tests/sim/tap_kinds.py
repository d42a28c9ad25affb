"""What kinds of TAP clients there are: what they ask for, how they answer, how moody they are.

Source: TAP reference, sections 3, 5, 7 and 13.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim import tap_codec as tap
from tests.sim.link import FAR_AWAY, FAST, SLOW_READER, LinkProfile
from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class TapKind:
    """What a client is like.

    Attributes:
        flags: of its connects, without those that bring data of their own (BACKFILL, LIST).
        age: what it says with BACKFILL; ``None`` = it does not.
        listed: it asks for some vBuckets, not for all.
        named: it comes back by the same name; else it has none.
        pairs: it says which checkpoints it has closed.
        closed_only: it is told of closed checkpoints only; ``None`` = that byte is left out.
        ack_delay_max_s: how late it answers.
        burst: chance that it lets answers pile up.
        skips: it answers only the last of a pile, where an answer counts for all before it.
        nack: chance that it cannot take a message for now.
        keyed: it puts a key into its answers.
        moody: chance of each thought to hang up.
        absent_s: how long it stays away then.
        forgets: chance that it deregisters its name before it comes back.
        think_max_s: pause between two thoughts.
        profile: of its links.
    """

    name: str
    flags: int = tap.SUPPORT_ACK
    age: int | None = None
    listed: bool = False
    named: bool = True
    pairs: bool = False
    closed_only: bool | None = None
    ack_delay_max_s: float = 0.005
    burst: float = 0.0
    skips: bool = False
    nack: float = 0.0
    keyed: bool = False
    moody: float = 0.0
    absent_s: float = 0.3
    forgets: float = 0.0
    think_max_s: float = 0.05
    profile: LinkProfile = FAST

    def asks(self, flag: int) -> bool:
        """Tell whether a flag is among those it sends."""
        return bool(self.flags & flag)

    @property
    def acks(self) -> bool:
        """Whether it answers."""
        return self.asks(tap.SUPPORT_ACK)

    @property
    def dumps(self) -> bool:
        """Whether it wants a state and no more."""
        return self.asks(tap.DUMP)

    @property
    def skips_the_past(self) -> bool:
        """Whether it wants no backfill."""
        return self.age == tap.FUTURE


_REPLICATION = tap.SUPPORT_ACK | tap.CHECKPOINT | tap.BYTE_ORDER

PLAIN = TapKind("plain")
REPLICA = TapKind("replica", _REPLICATION, listed=True, moody=0.03)
REGISTERED = TapKind("registered", _REPLICATION | tap.REGISTERED, moody=0.1)
BACKUP = TapKind(
    "backup",
    _REPLICATION | tap.REGISTERED,
    closed_only=True,
    pairs=True,
    moody=0.1,
    absent_s=1.0,
    forgets=0.1,
)
BUSY = TapKind("busy", nack=0.08, ack_delay_max_s=0.03, burst=0.3, skips=True, moody=0.02)
SLOW = TapKind("slow", _REPLICATION, ack_delay_max_s=0.3, burst=0.5, profile=SLOW_READER)
SILENT = TapKind("silent", tap.BYTE_ORDER, named=False, profile=FAR_AWAY)
NAMES = TapKind("names", tap.SUPPORT_ACK | tap.KEYS_ONLY | tap.BYTE_ORDER, moody=0.02)
LIVE = TapKind("live", tap.SUPPORT_ACK, age=tap.FUTURE, moody=0.02)
DUMPER = TapKind("dumper", tap.SUPPORT_ACK | tap.DUMP, named=False, keyed=True, moody=0.01)

KINDS = (PLAIN, REPLICA, REGISTERED, BACKUP, BUSY, SLOW, SILENT, NAMES, LIVE, DUMPER)


def draw_kind(world: World) -> TapKind:
    """Draw a kind: one of those with a name, or anything that makes sense."""
    random = world.random
    if random.random() < 0.3:
        return random.choice(KINDS)
    flags = 0
    acks = random.random() < 0.8
    for flag, chance in (
        (tap.SUPPORT_ACK, 1.0 if acks else 0.0),
        (tap.DUMP, 0.12),
        (tap.KEYS_ONLY, 0.1),
        (tap.CHECKPOINT, 0.5),
        (tap.REGISTERED, 0.4 if acks else 0.0),
        (tap.BYTE_ORDER, 0.6),
    ):
        flags |= flag if random.random() < chance else 0
    if flags & tap.DUMP:
        flags &= ~(tap.REGISTERED | tap.CHECKPOINT)
    return _drawn(world, flags, acks)


def _drawn(world: World, flags: int, acks: bool) -> TapKind:
    random = world.random
    named = bool(flags & tap.REGISTERED) or (acks and random.random() < 0.7)
    return TapKind(
        f"kind{flags:x}",
        flags,
        age=None if flags & tap.DUMP else random.choice((None, None, 0, tap.FUTURE)),
        listed=random.random() < 0.4,
        named=named and not flags & tap.DUMP,
        pairs=bool(acks and flags & tap.CHECKPOINT and random.random() < 0.4),
        closed_only=random.choice((None, False, True)) if flags & tap.REGISTERED else None,
        ack_delay_max_s=random.choice((0.001, 0.02, 0.3)),
        burst=random.choice((0.0, 0.3, 0.7)),
        skips=random.random() < 0.4,
        nack=random.choice((0.0, 0.0, 0.01, 0.1)) if acks else 0.0,
        keyed=random.random() < 0.3,
        moody=random.choice((0.0, 0.02, 0.1)),
        absent_s=random.choice((0.0, 0.3, 1.5)),
        forgets=random.choice((0.0, 0.0, 0.2)),
        profile=random.choice((FAST, FAST, FAR_AWAY, SLOW_READER)),
    )
