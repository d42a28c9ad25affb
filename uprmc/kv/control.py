"""What managers set on a running node: the session token, the cluster map, parameters.

All of a node's conversations share one `Control`. It does not survive a stop of the node: managers
set it again, and the epoch of the map that a node makes on its own shows that the map is new.

Source: UPR reference, section 6; Couchbase SDK reference, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from uprmc.errors import KeyExists
from uprmc.kv.cluster_map import ClusterMap


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
    """What managers have set on a running node.

    Attributes:
        cluster_map: what GET_CLUSTER_CONFIG answers.
        expire_every: sets the interval, in seconds, at which the node looks for expired documents.
        token: number of the manager's session, 0 = none was set.
        crawler: what ``lru_crawler`` has set.
    """

    cluster_map: ClusterMap = field(default_factory=ClusterMap)
    expire_every: Callable[[float], None] = _nothing
    token: int = 0
    crawler: Crawler = field(default_factory=Crawler)

    def check_token(self, cas: int) -> None:
        """Accept a command whose header CAS is the session token, or 0.

        Raises:
            KeyExists: another manager has taken over.
        """
        if cas not in (0, self.token):
            raise KeyExists("session token")
