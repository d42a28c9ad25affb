"""What a node's cluster map tells a client: how many vBuckets there are, which nodes, which terms.

One rule for all who read maps: one that makes no sense counts as none, for an operator may set any
JSON object as one. The entry that a map marks ``thisNode`` is the node that gave it, and that one
is reached by the address that was dialled, whatever the entry says: it may be behind a forwarded
port. Where the dialled host is one of those that ``alternateAddresses`` name, all nodes are reached
by these.

See `docs/management.md`, cluster map.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from uprmc.model import TERM_MAX
from uprmc.places import parsed
from uprmc.protocol.header import ResponseFrame
from uprmc.remote.ranges import VBUCKETS_MAX

#: What stands for the host by which the client has reached the node.
_HOST = "$HOST"

_UNIX = "unix:"

#: Services of a node that take what the listeners ``upr`` and ``memcached`` take.
_KV = ("kv", "kvSSL")

#: What a node without a map tells its number of vBuckets by.
COUNT_GROUP, _COUNT = "config", "ep_max_vbuckets"

#: Of a map with more nodes the first ones are used.
_SERVERS_MAX = 1_024

_NONE = -1


class ClusterMap(NamedTuple):
    """The parts of a map that clients use."""

    vbuckets: int  # how many there are in all
    # HOST:PORT of the nodes; ``$HOST`` stands for the host that the client has dialled.
    servers: tuple[str, ...]
    # the highest known of each vBucket, 0 = unknown; may be shorter than `vbuckets`.
    terms: tuple[int, ...] = ()
    this: int = _NONE  # which of `servers` has given the map, -1 = it does not say
    # HOST:PORT by which they are reached from elsewhere, ``""`` = not.
    outside: tuple[str, ...] = ()
    bucket_uuid: str = ""  # identity of the data, as text; empty = it does not say
    owners: tuple[int, ...] = ()  # which of `servers` has each vBucket active, -1 = none

    def term(self, vbucket: int) -> int:
        """Return the highest term that the map knows of a vBucket."""
        return self.terms[vbucket] if vbucket < len(self.terms) else 0

    def places(self, dialled: str) -> list[str]:
        """Return where the nodes are reached by somebody who was given the map at `dialled`."""
        return list(dict.fromkeys(filter(None, self._reached(dialled))))

    def owner(self, vbucket: int, dialled: str) -> str:
        """Return where the node that has a vBucket active is reached, ``""`` = it names none."""
        number = self.owners[vbucket] if vbucket < len(self.owners) else _NONE
        return self._reached(dialled)[number] if 0 <= number < _SERVERS_MAX else ""

    def _reached(self, dialled: str) -> list[str]:
        """Return where each of `servers` is reached, ``""`` = nowhere.

        Over a unix socket ``$HOST`` names no host: what stands behind it is left out.
        """
        host = "" if dialled.startswith(_UNIX) else dialled.rpartition(":")[0]
        servers = self.servers
        if host and host in map(_host, self.outside) and host not in map(_host, servers):
            pairs = zip(self.outside, servers, strict=True)
            servers = tuple(outside or server for outside, server in pairs)
        found = []
        for number, server in enumerate(servers[:_SERVERS_MAX]):
            place = server.replace(_HOST, host) if host or _HOST not in server else ""
            place = dialled if number == self.this else place
            found.append(place if place == dialled or _is_place(place) else "")
        return found


def map_of(answer: ResponseFrame) -> ClusterMap | None:
    """Return the map in the answer to GET_CLUSTER_CONFIG; ``None`` = none that makes sense."""
    return None if answer.status else map_in(answer.value)


def map_in(value: bytes) -> ClusterMap | None:
    """Return the map that a value holds; ``None`` = none that makes sense."""
    try:
        whole = json.loads(value)
        inner = whole["vBucketServerMap"]
        chains, servers, terms = (
            _list(inner["vBucketMap"]),
            tuple(each if isinstance(each, str) else "" for each in _list(inner["serverList"])),
            _list(inner.get("terms", [])),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    count = len(chains)
    if not 0 < count <= VBUCKETS_MAX or count.bit_count() != 1:
        return None  # keys are spread over a power of two
    this, outside = _described(whole, servers)
    known = tuple(
        each if type(each) is int and 0 <= each <= TERM_MAX else 0 for each in terms[:count]
    )
    uuid = whole.get("uuid", "")
    uuid = uuid[:64] if isinstance(uuid, str) else ""
    owners = tuple(_first(chain, len(servers)) for chain in chains)
    return ClusterMap(count, servers, known, this, outside, uuid, owners)


def count_in(stats: Mapping[str, str]) -> int:
    """Return how many vBuckets the statistics `COUNT_GROUP` tell of, 0 = they do not."""
    text = stats.get(_COUNT, "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
    return number if number <= VBUCKETS_MAX else 0


def _described(whole: Mapping[str, Any], servers: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Return which server has given the map, and the outer addresses of all.

    Servers are described in their order, by those entries that have their service.
    """
    entries = [each for each in _dicts(whole.get("nodesExt")) if _ports(each, "services")]
    marked = entries or _dicts(whole.get("nodes"))
    this = next((n for n, each in enumerate(marked) if each.get("thisNode") is True), _NONE)
    if this >= len(servers):
        this = _NONE
    if this == _NONE and len(servers) == len(marked) == 1:
        this = 0  # there is no other node
    outside = tuple(map(_outside, entries[: len(servers)]))
    return this, outside + ("",) * (len(servers) - len(outside)) if any(outside) else ()


def _outside(entry: Mapping[str, Any]) -> str:
    """Return where a node is reached from elsewhere, empty = nowhere."""
    there = _dict(_dict(entry.get("alternateAddresses")).get("external"))
    host = there.get("hostname")
    ports = _ports(there, "ports") or _ports(entry, "services")
    if not isinstance(host, str) or not ports:
        return ""
    place = f"[{host}]:{ports[0]}" if ":" in host and "[" not in host else f"{host}:{ports[0]}"
    return place if _is_place(place) else ""


def _first(chain: Any, servers: int) -> int:
    """Return the first node of a vBucket's chain, by its number; -1 = there is none."""
    number = chain[0] if isinstance(chain, list) and chain else _NONE
    return number if type(number) is int and 0 <= number < servers else _NONE


def _ports(entry: Mapping[str, Any], name: str) -> list[int]:
    told = _dict(entry.get(name))
    return [told[each] for each in _KV if type(told.get(each)) is int]


def _is_place(text: str) -> bool:
    """Tell whether this is HOST:PORT; a map names no sockets of this machine."""
    with suppress(ValueError):
        return not parsed(text).path
    return False


def _host(place: str) -> str:
    return place.rpartition(":")[0]


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [_dict(each) for each in value] if isinstance(value, list) else []


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a list belongs")
    return value
