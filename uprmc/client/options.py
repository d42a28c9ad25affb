"""How a consumer behaves: what its program may choose, and what makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from uprmc.client.errors import MisuseError
from uprmc.client.follow import FORMER_WORDS, OnPurged, OnRollback, PurgedWord, RollbackWord
from uprmc.client.position import Position
from uprmc.client.state import Saved
from uprmc.login.credentials import Credentials
from uprmc.model import SEQNO_MAX
from uprmc.remote.registering import Instance
from uprmc.units import nearest

StartWord = Literal["checkpoint", "beginning", "now"]
Start = StartWord | int | Mapping[int, Position] | Mapping[int, Saved]

_VBUCKETS_MAX = 0x10000
_UUID_MAX = 2**64 - 1


@dataclass(frozen=True)
class Options:
    """How a consumer behaves.

    Attributes:
        name: of its connections, seen in the node's statistics; one for each process.
        vbuckets: which to follow, ``None`` = all that are active on the nodes.
        total_vbuckets: how many the documents are spread over; 0 = the state says, or the nodes.
        start: where to begin: ``checkpoint`` = where the state says, else the beginning;
            ``beginning`` and ``now`` whatever the state says; after a seqno of the newest history,
            in each vBucket; or positions for some vBuckets, the others as ``checkpoint``. What
            another state has saved is a position, too, also inside of a snapshot.
        until_now: end when everything has come that was there.
        replicas: stream a vBucket that is active nowhere from a replica.
        redial: go on when a connection or a stream is lost; without it that is an error.
        values: whether changes carry the documents' values.
        on_rollback: see `follow.OnRollback`.
        on_purged: see `follow.OnPurged`; it is asked if the consumer registers.
        instance: as what it is registered with the nodes, ``None`` = not at all.
        ring_items: how many of the newest keys of each vBucket can be undone one by one.
        buffer_bytes: how far a node may be ahead of the handler.
        starts_max: how many streams are asked for at a time.
        noop_interval_s: a silent node is given up after twice this and two seconds.
        poll_s: how often nodes are asked how far they are.
        credentials: who logs in to nodes, ``None`` = nobody.
        tls: whether nodes are reached by TLS, so that nobody listens to a login.
        jitter: gives numbers from 0 to 1, so that consumers do not dial all at once.
    """

    name: str = "consumer"
    vbuckets: frozenset[int] | None = None
    total_vbuckets: int = 0
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
    starts_max: int = 1_024
    noop_interval_s: float = 120.0
    poll_s: float = 1.0
    credentials: Credentials | None = None
    tls: bool = False
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
        _check_wish("on_rollback", self.on_rollback, [*get_args(RollbackWord), *FORMER_WORDS])
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
