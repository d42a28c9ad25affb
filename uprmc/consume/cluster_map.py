"""What a node's cluster map tells a client: how many vBuckets there are, and which nodes."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from uprmc.consume.ranges import VBUCKETS_MAX

#: A vBucket number has 16 bits.


class ClusterMap(NamedTuple):
    """The parts of a map that clients use.

    Attributes:
        vbuckets: how many there are in all.
        servers: HOST:PORT of the nodes; ``$HOST`` stands for the host that the client has dialled.
        terms: the highest known of each vBucket, 0 = unknown; may be shorter than `vbuckets`.
    """

    vbuckets: int
    servers: tuple[str, ...]
    terms: tuple[int, ...] = ()

    def term(self, vbucket: int) -> int:
        """Return the highest term that the map knows of a vBucket."""
        return self.terms[vbucket] if vbucket < len(self.terms) else 0


def parsed_map(text: bytes) -> ClusterMap:
    """Return the map that a node gave.

    Raises:
        ValueError: it is no map; an operator may set any JSON object as one.
    """
    try:
        servers = json.loads(text)["vBucketServerMap"]
        count, places, terms = (
            len(_list(servers["vBucketMap"])),
            _list(servers["serverList"]),
            _list(servers.get("terms", [])),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"a map that makes no sense: {error!r}") from None
    if not 0 < count <= VBUCKETS_MAX:
        raise ValueError(f"a map of {count} vBuckets")
    return ClusterMap(
        count,
        tuple(each for each in places if isinstance(each, str)),
        tuple(each if type(each) is int else 0 for each in terms[:count]),
    )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a list belongs")
    return value
