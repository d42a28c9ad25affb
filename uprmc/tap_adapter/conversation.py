"""What the parts of one TAP producer share: the client's wishes, its streams, both registries.

`openings` begins streams, `feed` moves them on, `corrections` mends what a branch of history has
spoilt; `producer` is what the session sees of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from uprmc.config import TapSettings
from uprmc.protocol.tap import Connect, ConnectFlag
from uprmc.tap_adapter.item_messages import TapForm
from uprmc.tap_adapter.names import TapName
from uprmc.tap_adapter.send_queue import SendQueue
from uprmc.tap_adapter.stream import TapStream
from uprmc.tap_adapter.upstream import Upstream
from uprmc.tap_adapter.window import Window


class Correcting(Protocol):
    """The corrections of one vBucket under way; see `corrections.Correction`."""

    @property
    def is_ready(self) -> bool:
        """Whether there are versions to be sent."""

    def put_one(self, out: list[bytes]) -> int:
        """Append one message, return its bytes; `is_ready` holds, and an item may leave."""

    def cancel(self) -> None:
        """Send nothing more, and call nobody."""


class Conversation:
    """What the parts of one TAP producer share.

    Attributes:
        known: what outlives the connection.
        upstream: where the streams come from.
        settings: limits and intervals.
        wake: to be called when there may be something to send by itself.
        send_queue: where messages go.
        form: how items are wanted.
        dump: the client gets what is there now and no more.
        takeover: the client is to become the active one.
        checkpoints: the client wants to be told where snapshots begin and end.
        from_now: the client wants no backfill.
        everything: the client has not named the vBuckets that it wants.
        last_closed: the last closed checkpoint of each vBucket, by the client's own word.
        keeps_keys: whether keys are noted, so that corrections are possible.
        streams: by vBucket.
        by_opaque: those that are open upstream, by the opaque of their frames.
        corrections: those under way, by vBucket.
        moving: streams whose new history counts when the client has taken the corrections.
        closed: why to hang up, ``""`` while not.
        dirty: whether the client's place has changed since it was saved.
        urgent: whether it has changed so that a crash would cost a whole backfill.
    """

    def __init__(
        self,
        connect: Connect,
        known: TapName,
        upstream: Upstream,
        settings: TapSettings,
        wake: Callable[[], None],
        unix_now: float,
    ) -> None:
        """See the class; `unix_now` tells whether the oldest entry wanted lies in the future."""
        flags = known.flags
        self.known = known
        self.upstream = upstream
        self.settings = settings
        self.wake = wake
        window = Window(settings.ack_interval * settings.ack_window)
        acks = bool(flags & ConnectFlag.SUPPORT_ACK)
        self.send_queue = SendQueue(window, settings.ack_interval, acks=acks)
        self.form = TapForm(
            keys_only=bool(flags & ConnectFlag.REQUEST_KEYS_ONLY),
            network_byte_order=connect.has(ConnectFlag.FIX_FLAG_BYTEORDER),
        )
        self.dump = bool(flags & ConnectFlag.DUMP)
        self.takeover = bool(flags & ConnectFlag.TAKEOVER_VBUCKETS)
        self.asks_checkpoints = bool(flags & ConnectFlag.CHECKPOINT)
        self.checkpoints = self.asks_checkpoints and not self.dump
        self.from_now = connect.has(ConnectFlag.BACKFILL) and connect.oldest_entry_s > unix_now
        self.everything = connect.vbuckets is None
        self.last_closed = dict(connect.last_closed)
        self.keeps_keys = not self.dump and settings.rollback == "rewind"
        self.streams: dict[int, TapStream] = {}
        self.by_opaque: dict[int, TapStream] = {}
        self.corrections: dict[int, Correcting] = {}
        self.moving: dict[int, int] = {}
        self.closed = ""
        self.dirty = self.urgent = False

    def fail(self, why: str) -> None:
        """Hang up; the first reason counts."""
        self.closed = self.closed or why
