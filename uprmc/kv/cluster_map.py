"""The cluster map: which node has which vBucket, as JSON that Couchbase's clients read.

A manager may set one. Until then a node describes itself: one node that has every active vBucket.
``$HOST`` stands for the host to which the client has connected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from uprmc.engine.bucket import Bucket
from uprmc.errors import InvalidArguments
from uprmc.model import TERM_MAX, VBucketState

#: The bucket's name. There is one.
BUCKET_NAME = "default"

#: Capabilities that clients may use beyond key-value operations.
_CAPABILITIES = ["cccp", "cbhello", "nodesExt", "touch", "dcp"]

_ABSENT = -1

_VBUCKETS_MAX = 0x10000


class ServedMap:
    """One node's map."""

    __slots__ = ("_epoch", "_own", "_rev", "_seen", "_set", "addresses", "https", "tls", "uuid")

    def __init__(
        self,
        addresses: Callable[[], Mapping[str, str]] = dict,
        *,
        tls: bool = False,
        https: bool = False,
        uuid: int = 0,
    ) -> None:
        # Where the node listens, by listener's name (``upr``, ``http``), as HOST:PORT.
        self.addresses = addresses
        # Whether the node's listeners for documents, and those for HTTP, speak TLS.
        self.tls, self.https = tls, https
        self.uuid = uuid  # identity of the data, 0 = unknown
        self._set = b""
        self._own = b""
        self._seen: tuple[dict[str, int], list[int], list[int]] | None = None
        self._rev = 0
        self._epoch = 0

    def replace(self, text: bytes) -> None:
        """Use this map from now on.

        Raises:
            InvalidArguments: it is not a JSON object, or its terms are invalid.
        """
        terms_of(text)
        self._set = text

    def text(self, bucket: Bucket) -> bytes | None:
        """Return the map, ``None`` if the node has no port for clients.

        The node's own map gets a new revision whenever its content changes.
        """
        if self._set:
            return self._set
        ports = self._ports()
        if "upr" not in ports:
            return None
        seen = (ports, _places(bucket), _terms(bucket))
        if seen != self._seen:
            self._seen = seen
            self._rev += 1
            self._epoch = self._epoch or int(bucket.clock.now())
            self._own = json.dumps(self._document(*seen), separators=(",", ":")).encode()
        return self._own

    def _ports(self) -> dict[str, int]:
        places = {name: text.rpartition(":")[2] for name, text in self.addresses().items()}
        return {name: int(port) for name, port in places.items() if port.isdecimal()}

    def _document(
        self, ports: Mapping[str, int], places: list[int], terms: list[int]
    ) -> dict[str, Any]:
        kv = ports["upr"]
        services = {"kvSSL" if self.tls else "kv": kv}
        if "http" in ports:
            services["mgmtSSL" if self.https else "mgmt"] = ports["http"]
        node: dict[str, Any] = {
            "hostname": f"$HOST:{ports.get('http', kv)}",
            "ports": {"direct": kv},
        }
        if "views" in ports:
            services["capiSSL" if self.https else "capi"] = ports["views"]
            base = f"$HOST:{ports['views']}/{BUCKET_NAME}"
            if self.https:
                node["couchApiBaseHTTPS"] = f"https://{base}"
            else:
                node["couchApiBase"] = f"http://{base}"
        return {
            "rev": self._rev,
            "revEpoch": self._epoch,
            "name": BUCKET_NAME,
            "uuid": f"{self.uuid:032x}",
            "nodeLocator": "vbucket",
            "nodes": [node],
            "nodesExt": [{"thisNode": True, "services": services}],
            "bucketCapabilities": _CAPABILITIES,
            "clusterCapabilitiesVer": [1, 0],
            "clusterCapabilities": {},
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": 0,
                "serverList": [f"$HOST:{kv}"],
                "vBucketMap": [[place] for place in places],
                "terms": terms,
            },
        }


def _places(bucket: Bucket) -> list[int]:
    """Return for each vBucket the index of the node where it is active."""
    vbuckets = bucket.vbuckets
    return [
        0 if number in vbuckets and vbuckets[number].state == VBucketState.ACTIVE else _ABSENT
        for number in range(bucket.settings.engine.vbuckets)
    ]


def _terms(bucket: Bucket) -> list[int]:
    """Return each vBucket's term, 0 for one that is not here."""
    vbuckets = bucket.vbuckets
    return [
        vbuckets[number].term if number in vbuckets else 0
        for number in range(bucket.settings.engine.vbuckets)
    ]


def terms_of(text: bytes) -> list[int]:
    """Return the terms in a map, by vBucket; empty if it has none.

    Raises:
        InvalidArguments: it is not a JSON object, or its terms are not a list of terms.
    """
    inner = json_object(text).get("vBucketServerMap")
    terms = inner.get("terms", []) if isinstance(inner, dict) else []
    if not isinstance(terms, list) or len(terms) > _VBUCKETS_MAX:
        raise InvalidArguments("terms is not a list with one term for each vBucket")
    if any(type(term) is not int or not 0 <= term <= TERM_MAX for term in terms):
        raise InvalidArguments("a term is a number of promotions")
    return terms


def json_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in `text`; raises `InvalidArguments` if there is none."""
    try:
        document = json.loads(text.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArguments("not a JSON object")
    return document


def _refuse(name: str) -> None:
    """Refuse what only Python takes for JSON: others could not read the map."""
    raise ValueError(f"{name} is no number")
