"""What kinds of consumers there are: what they use, how slow, moody and forgetful they are.

Source: the consumers of seed 000 (replicas, indexers, backup, others) and the eras of the UPR
reference, section 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim import upr_codec as codec
from tests.sim.link import FAR_AWAY, SLOW_READER
from tests.sim.upr_connection import Manners


@dataclass(frozen=True, slots=True)
class Kind:
    """What a consumer is like.

    Attributes:
        manners: of its connections.
        rounds, barriers, snapshot_ends, versions: which extensions it uses.
        keep: boundaries that it can fall back to.
        think_max_s: pause between two thoughts.
        moody: chance of each thought to close a stream, or to hang up.
        absent_s: how long it stays away after hanging up; then it begins with what it has stored.
        whole_only: it forgets half snapshots when a stream ends.
        modern: it uses what peers of today may ask for: ends of closed streams, expirations, newer
            statuses and reasons.
        latest: it asks for streams to the present end, again and again.
    """

    name: str
    manners: Manners = field(default_factory=Manners)
    rounds: bool = False
    barriers: bool = False
    snapshot_ends: bool = False
    versions: bool = False
    keep: int = 1_000
    think_max_s: float = 0.02
    moody: float = 0.0
    absent_s: float = 0.0
    whole_only: bool = False
    modern: bool = False
    latest: bool = False


PLAIN = Kind("plain")
ROUNDS = Kind(
    "rounds",
    Manners(
        controls=("uprmc_rounds", "uprmc_barrier", "uprmc_snapshot_end"),
        profile=FAR_AWAY,
    ),
    rounds=True,
    barriers=True,
    snapshot_ends=True,
)
NARROW = Kind(
    "narrow",
    Manners(
        controls=("uprmc_rounds", "uprmc_barrier", "uprmc_snapshot_end"),
        buffer_bytes=150,
        ack_delay_max_s=0.02,
    ),
    rounds=True,
    barriers=True,
    snapshot_ends=True,
    moody=0.02,
)
SLOW = Kind(
    "slow",
    Manners(buffer_bytes=250, ack_delay_max_s=0.3, noop_s=0.5, profile=SLOW_READER),
    keep=5,
    whole_only=True,
)
MOODY = Kind(
    "moody",
    Manners(flags=codec.AS_PRODUCER | codec.DELETE_TIMES, controls=("uprmc_snapshot_end",)),
    snapshot_ends=True,
    moody=0.15,
)
RARE = Kind("rare", moody=0.3, absent_s=2.0)
VERSED = Kind(
    "versed",
    Manners(controls=("uprmc_versions", "uprmc_snapshots")),
    versions=True,
    moody=0.03,
)
BARRED = Kind(
    "barred",
    Manners(controls=("uprmc_barrier", "uprmc_snapshots"), buffer_bytes=1_000, profile=SLOW_READER),
    barriers=True,
    moody=0.02,
)
MODERN = Kind(
    "modern",
    Manners(
        flags=codec.AS_PRODUCER | codec.DELETE_TIMES,
        controls=(
            "send_stream_end_on_client_close_stream",
            "enable_expiry_opcode",
            "v7_dcp_status_codes",
        ),
        buffer_bytes=3_000,
        hello=True,
    ),
    moody=0.1,
    modern=True,
)
LATEST = Kind("latest", Manners(buffer_bytes=2_000, profile=FAR_AWAY), latest=True)

KINDS = (PLAIN, ROUNDS, NARROW, SLOW, MOODY, RARE, VERSED, BARRED, MODERN, LATEST)
