"""What every conversation with a client shares; handed in by the node that runs it.

What managers set on a running node: the session token, the cluster map, parameters.

All of a node's conversations share one `Control`. It does not survive a stop of the node: managers
set it again, and the epoch of the map that a node makes on its own shows that the map is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from uprmc.config import KvSettings
from uprmc.engine.bucket import Bucket
from uprmc.errors import CommandError, KeyExists
from uprmc.kv.cluster_map import ServedMap
from uprmc.kv.roles import Door
from uprmc.ports import Session
from uprmc.upr.hub import Hub
from uprmc.upr.replication import Replication

# --- what managers set --------------------------------------------------------------------------


def _nothing(_seconds: float) -> None:
    """Do nothing: used where no documents are expired."""


def _at_once() -> None:
    """Do nothing, as well."""


@dataclass(slots=True)
class Crawler:
    """What ``lru_crawler`` has set. Documents expire in any case; see `engine.expiry`.

    Attributes:
        enabled: whether dumps are allowed.
        sleep_us, to_crawl: accepted and shown; there is no crawler that they could slow down.
        dumps: how many are running.
        expire_now: looks for expired documents at once.
    """

    enabled: bool = True
    sleep_us: int = 100
    to_crawl: int = 0
    dumps: int = 0
    expire_now: Callable[[], None] = _at_once


@dataclass(slots=True)
class Control:
    """What managers have set on a running node."""

    cluster_map: ServedMap = field(default_factory=ServedMap)  # what GET_CLUSTER_CONFIG answers
    # sets the interval, in seconds, at which the node looks for expired documents.
    expire_every: Callable[[float], None] = _nothing
    token: int = 0  # number of the manager's session, 0 = none was set
    crawler: Crawler = field(default_factory=Crawler)  # what ``lru_crawler`` has set

    def check_token(self, cas: int) -> None:
        """Accept a command whose header CAS is the session token, or 0.

        Raises:
            KeyExists: another manager has taken over.
        """
        if cas not in (0, self.token):
            raise KeyExists("session token")


# --- what is shared -----------------------------------------------------------------------------


#: One group of statistics: (name, value) in the order shown.
StatGroup = list[tuple[str, str]]

#: The same, possibly created while it is being read because it is long; ``None`` = let others have
#: their turn before the next one.
StatRows = Iterable[tuple[str, str] | None]


#: Bytes that an item counts beyond key and value when it is compared with the item limit, as in
#: memcached.
ITEM_HEADER_BYTES = 50


class TapPush(Protocol):
    """What one connection pushes to us by TAP."""

    def take(
        self,
        opcode: int,
        vbucket: int,
        opaque: int,
        cas: int,
        extras: bytes,
        key_length: int,
        rest: bytes,
    ) -> bytes | None:
        """Take a message; returns the complete answer, ``None`` = it has none.

        Args:
            opcode: 0x41 to 0x47.
            vbucket: of the header, on every listener.
            opaque: of the header.
            cas: of the header.
            extras: as long as the header says.
            key_length: of the header.
            rest: the body after the extras.

        Raises:
            OutOfPlace, RemoteProtocolError: close the connection.
        """

    def close(self) -> None:
        """The connection is gone, or has become something else."""


class TapHandover(Session, Protocol):
    """The session that continues a conversation from its TAP_CONNECT on."""

    def inherit(self, replies: list[bytes], unsent: int) -> None:
        """Take over unsent replies: pieces, and their number of bytes."""


class TapGuest(Protocol):
    """The interface of the TAP adapter for conversations."""

    def connect(
        self,
        wake: Callable[[], None],
        report: Callable[[str], None],
        over: Callable[[float], bool] | None = None,
    ) -> TapHandover:
        """Return a session that gets the input from the TAP_CONNECT on.

        `wake` is called when it has something to send, `report` when the peer breaks the protocol.
        `over` gets the time, and tells whether to hang up; ``None`` = never.
        """

    def consumer(self) -> TapPush:
        """Begin to take what a connection pushes."""

    def deregister(self, name: bytes) -> None:
        """Forget a client."""

    def change_filter(self, name: bytes, wanted: dict[int, int]) -> None:
        """Change a client's vBuckets, each with the id of its last closed checkpoint.

        Raises:
            InvalidArguments: there is no such client.
        """

    def reset_chain(self) -> None:
        """Make every client start over."""

    def last_closed(self, number: int) -> int:
        """Return the id of the last complete checkpoint of a vBucket's master, or 0."""


class XdcrGuest(Protocol):
    """The links of the node, for conversations."""

    def command(
        self,
        verb: str,
        given: Mapping[str, Any],
        answered: Callable[[Any], None],
        refused: Callable[[CommandError], None],
    ) -> None:
        """Carry out a verb of ``uprmc xdcr``.

        `answered` gets a JSON value, or `refused` the reason why there is none, now or later.

        Raises:
            CommandError: it is refused at once; the text says why.
        """


@dataclass(slots=True)
class Services:
    """See the fields."""

    bucket: Bucket  # the data
    settings: KvSettings  # limits of a conversation
    version: bytes  # what the version command answers
    # a group's statistics by the words after ``stats``, ``None`` if there is no such group. Raises
    # `CommandError` for a malformed argument.
    stats: Callable[[str], StatRows | None]
    reset_stats: Callable[[], None]  # ``stats reset``
    set_verbosity: Callable[[int], None]  # how much to log, 0 to 2
    # called with a short reason when a peer breaks the protocol so that its connection ends; counts
    # and logs it, once per connection.
    report_misuse: Callable[[str], None]
    upr: Hub  # what UPR connections share
    # replication from other nodes; ``None`` if this node opens no connections.
    replication: Replication | None = None
    control: Control = field(default_factory=Control)  # settings of managers
    tap: TapGuest | None = None  # the TAP adapter; ``None`` = TAP is off
    # links to other clusters; ``None`` = this node opens no connections.
    xdcr: XdcrGuest | None = None
    pads_counters: bool = True  # a counter's text keeps at least its length, as in memcached
    # calls something after a number of seconds; ``None`` = there are no timers.
    pause: Callable[[float, Callable[[], None]], object] | None = None
    door: Door | None = None  # who is at the other end; ``None`` = everybody may do everything

    def most_value_bytes(self, key_bytes: int) -> int:
        """Return how long the value of a key of this length may be."""
        return self.settings.max_item_bytes - ITEM_HEADER_BYTES - key_bytes
