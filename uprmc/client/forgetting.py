"""The end of a registration: a consumer that is gone for good has its rows removed from all nodes.

    from uprmc.client import forget

    forget("127.0.0.1:11210", "indexer-a12f")

Until then nodes keep deletions for it, or until its rows expire. `UprClient.forget` does it for the
client's own id.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.client.errors import MisuseError, NotActive
from uprmc.client.options import check_place
from uprmc.login.credentials import Credentials
from uprmc.protocol.watermarks import ID_MAX_BYTES
from uprmc.remote import features
from uprmc.remote.blocking import KeptConnections, remove_rows
from uprmc.remote.directory import Directory, Why

#: A node that says nothing for so long is given up, in seconds.
_TIMEOUT_S = 30.0


def forget(
    nodes: str | Iterable[str],
    instance: str,
    vbuckets: Iterable[int] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    credentials: Credentials | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> list[int]:
    """Remove the rows of a registered client: no deletions are kept for it any longer.

    Args:
        nodes: HOST:PORT of each node's upr listener, one text or several; others that their
            cluster map names are asked, too.
        instance: the id under which it is registered.
        vbuckets: in which, ``None`` = in all.
        tls: how to speak TLS to the nodes, ``None`` = not at all.
        credentials: who logs in to the nodes, ``None`` = nobody.
        timeout_s: a node that says nothing for so long is given up.

    Returns:
        the vBuckets in which it had a row.

    Raises:
        MisuseError: the arguments make no sense.
        NodeError: a node sends nonsense, or none answers.
        NotForgotten: a node refused to, for example because the client still runs.
        NotActive: vBuckets are active at no node that answers. What the others had is removed.
    """
    if not 0 < len(instance.encode()) <= ID_MAX_BYTES:
        raise MisuseError(f"instance {instance!r}: say 1 to {ID_MAX_BYTES} bytes")
    places = [check_place(place) for place in ([nodes] if isinstance(nodes, str) else nodes)]
    if not places:
        raise MisuseError("no node is named: say at least one HOST:PORT")
    connections = KeptConnections(
        lambda at: NodeConnection(
            at, timeout_s, tls, credentials, features.SURVEYOR, b"uprmc forget"
        )
    )
    try:
        return _forget(connections, Directory(places), instance.encode(), vbuckets)
    finally:
        connections.close()


def _forget(
    connections: KeptConnections,
    directory: Directory,
    name: bytes,
    vbuckets: Iterable[int] | None,
) -> list[int]:
    connections.survey(directory)
    for silence in directory.silent.values():
        if silence.why is not Why.LOST:
            raise NodeError(silence.words)
    if not directory.facts:
        raise next(error for *_, error in reversed(directory.silent.values()) if error)
    wanted = sorted(set(range(directory.vbuckets) if vbuckets is None else vbuckets))
    by_place: dict[str, list[int]] = {}
    for number in wanted:
        if place := directory.choice(number).place:
            by_place.setdefault(place, []).append(number)
    removed: list[int] = []
    for place, numbers in by_place.items():
        removed += remove_rows(connections.at(place), name, numbers)
    missing = directory.missing(wanted)
    if missing is not None:
        raise NotActive(str(missing), missing.numbers)
    return sorted(removed)
