"""How a consumer behaves: what its program may choose, and what makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from uprmc.client.errors import MisuseError
from uprmc.client.follow import OnPurged, OnRollback
from uprmc.client.position import Position
from uprmc.consume.registering import Instance
from uprmc.login.credentials import Credentials
from uprmc.model import SEQNO_MAX

Start = Literal["checkpoint", "beginning", "now"] | int | Mapping[int, Position]

_VBUCKET_MAX = 0xFFFF
_UUID_MAX = 2**64 - 1


@dataclass(frozen=True)
class Options:
    """How a consumer behaves.

    Attributes:
        name: of its connections, seen in the node's statistics; one for each process.
        vbuckets: which to follow, ``None`` = all that are active on the nodes.
        start: where to begin: ``checkpoint`` = where the state says, else the beginning;
            ``beginning`` and ``now`` whatever the state says; after a seqno of the newest history,
            in each vBucket; or positions for some vBuckets, the others as ``checkpoint``.
        until_now: end when everything has come that was there.
        replicas: stream a vBucket that is active nowhere from a replica.
        redial: go on when a connection or a stream is lost; without it that is an error.
        values: whether changes carry the documents' values.
        on_rollback: see `follow.OnRollback`.
        on_purged: see `follow.OnPurged`; it is asked if the consumer registers.
        instance: as what it is registered with the nodes, ``None`` = not at all.
        ring_items: how many of the newest keys of each vBucket can be undone one by one.
        buffer_bytes: how far a node may be ahead of the handler.
        noop_interval_s: a silent node is given up after twice this and two seconds.
        poll_s: how often nodes are asked how far they are.
        credentials: who logs in to nodes, ``None`` = nobody.
        tls: whether nodes are reached by TLS, so that nobody listens to a login.
        jitter: gives numbers from 0 to 1, so that consumers do not dial all at once.
    """

    name: str = "consumer"
    vbuckets: frozenset[int] | None = None
    start: Start = "checkpoint"
    until_now: bool = False
    replicas: bool = False
    redial: bool = True
    values: bool = True
    on_rollback: OnRollback = "rewind"
    on_purged: OnPurged = None
    instance: Instance | None = None
    ring_items: int = 10_000
    buffer_bytes: int = 8 * 1024 * 1024
    noop_interval_s: float = 120.0
    poll_s: float = 1.0
    credentials: Credentials | None = None
    tls: bool = False
    jitter: Callable[[], float] = lambda: 0.0

    def check(self) -> None:
        """Raise `MisuseError` if they make no sense."""
        if self.ring_items < 1:
            raise MisuseError(f"ring_items {self.ring_items}: say at least 1")
        if self.vbuckets is not None and not self.vbuckets:
            raise MisuseError("vbuckets is empty: name some, or say None for all")
        for vbucket in self.vbuckets or ():
            _check_number(vbucket)
        _check_start(self.start)


def _check_start(start: Start) -> None:
    if isinstance(start, str):
        if start not in ("checkpoint", "beginning", "now"):
            raise MisuseError(f"start {start!r}: say checkpoint, beginning, now, or positions")
        return
    if isinstance(start, int):
        if not 0 <= start <= SEQNO_MAX:
            raise MisuseError(f"start {start}: there is no such seqno")
        return
    for vbucket, (seqno, uuid) in start.items():
        _check_number(vbucket)
        if not 0 <= seqno <= SEQNO_MAX or not 0 <= uuid <= _UUID_MAX:
            raise MisuseError(
                f"start of vBucket {vbucket}: there is no seqno {seqno} of a history {uuid}"
            )


def _check_number(vbucket: int) -> None:
    if not 0 <= vbucket <= _VBUCKET_MAX:
        raise MisuseError(f"no vBucket has the number {vbucket}")
