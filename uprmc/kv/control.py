"""What managers set on a running node: the session token, the cluster map, parameters.

All of a node's conversations share one `Control`. It is gone when the node stops: managers set it
again, and the map that a node makes by itself says by its epoch that it is a new one.

Source: UPR reference, section 6; Couchbase SDK reference, section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from uprmc.errors import KeyExists
from uprmc.kv.cluster_map import ClusterMap


def _nothing(_seconds: float) -> None:
    """Stand in where nobody looks for expired documents."""


@dataclass(slots=True)
class Control:
    """See the module docstring.

    Attributes:
        cluster_map: what GET_CLUSTER_CONFIG answers.
        expire_every: makes the node look for expired documents every so many seconds.
        token: number of the manager's session, 0 = nobody has set one.
        dumping: whether ``lru_crawler`` lists documents to somebody.
    """

    cluster_map: ClusterMap = field(default_factory=ClusterMap)
    expire_every: Callable[[float], None] = _nothing
    token: int = 0
    dumping: bool = False

    def check_token(self, cas: int) -> None:
        """Let a command pass whose header CAS is the session token, or 0.

        Raises:
            KeyExists: another manager has taken over.
        """
        if cas not in (0, self.token):
            raise KeyExists("session token")
