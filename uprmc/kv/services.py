"""What every conversation with a client shares; handed in by the node that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from uprmc.config import KvSettings
from uprmc.engine.bucket import Bucket
from uprmc.kv.control import Control
from uprmc.upr.hub import Hub

#: One group of statistics: (name, value) in the order shown.
StatGroup = list[tuple[str, str]]

#: The same, perhaps made while it is being read because it is long.
StatRows = Iterable[tuple[str, str]]


#: What an item counts beyond key and value when it is compared with the item limit, as memcached's.
ITEM_HEADER_BYTES = 50


@dataclass(slots=True)
class Services:
    """See the fields.

    Attributes:
        bucket: the data.
        settings: limits of a conversation.
        version: what the version command answers.
        stats: a group's statistics by the words after ``stats``, ``None`` if there is no such
            group. Raises `CommandError` for a malformed argument.
        reset_stats: ``stats reset``.
        set_verbosity: how much to log, 0 to 2.
        report_misuse: called with a short reason when a peer breaks the protocol so that its
            connection ends; counts and logs it, once per connection.
        upr: what UPR connections share.
        control: what managers have set.
    """

    bucket: Bucket
    settings: KvSettings
    version: bytes
    stats: Callable[[str], StatRows | None]
    reset_stats: Callable[[], None]
    set_verbosity: Callable[[int], None]
    report_misuse: Callable[[str], None]
    upr: Hub
    control: Control = field(default_factory=Control)

    def most_value_bytes(self, key_bytes: int) -> int:
        """Return how long the value of a key of this length may be."""
        return self.settings.max_item_bytes - ITEM_HEADER_BYTES - key_bytes
