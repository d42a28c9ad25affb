"""The end of a registration: a consumer that is gone for good has its rows removed from all nodes.

    from uprmc.client import forget

    forget("127.0.0.1:11210", "indexer-a12f")

Until then nodes keep deletions for it, or until its rows expire. `UprClient.forget` does it for the
client's own id.

Source: contracts of the systems to come, section 2.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Sequence

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.client.errors import MisuseError, NotActive, NotForgotten
from uprmc.client.nodes import check_place
from uprmc.connecting import own_name
from uprmc.errors import RemoteProtocolError
from uprmc.login.credentials import Credentials
from uprmc.model import VBucketState
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.management import VBUCKET_SEQNOS_EXTRAS, decode_vbucket_seqnos
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.watermarks import ID_MAX_BYTES
from uprmc.remote import features
from uprmc.remote.placement import OtherBucket, Placement
from uprmc.remote.ranges import named
from uprmc.remote.reports import removals, told_of

#: A node that says nothing for so long is given up, in seconds.
_TIMEOUT_S = 30.0

#: Answers that say that there is no row to remove any more.
_NOTHING_THERE = frozenset({Status.KEY_NOT_FOUND, Status.NOT_MY_VBUCKET})


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
    wanted = None if vbuckets is None else frozenset(vbuckets)
    return _Forgetting(
        Placement(places),
        instance.encode(),
        wanted,
        lambda at: NodeConnection(at, timeout_s, tls, credentials),
    ).run()


class _Forgetting:
    """One call of `forget`."""

    def __init__(
        self,
        placement: Placement,
        name: bytes,
        wanted: frozenset[int] | None,
        connected: Callable[[str], NodeConnection],
    ) -> None:
        self._placement, self._name, self._wanted = placement, name, wanted
        self._connected = connected
        self._asked: set[int] = set()
        self._removed: set[int] = set()
        self._silent: list[NodeError] = []

    def run(self) -> list[int]:
        for place in self._placement.places:  # grows with what the first ones tell
            try:
                connection = self._connected(place)
            except NodeError as error:
                self._silent.append(error)
                continue
            with connection:
                self._at(connection)
        if len(self._silent) == len(self._placement.places):
            raise self._silent[-1]
        self._check_complete()
        return sorted(self._removed)

    def _check_complete(self) -> None:
        everything = self._wanted
        if everything is None:
            everything = frozenset(range(self._placement.vbuckets))
        missing = sorted(everything - self._asked)
        if missing:
            why = [f"{named(missing)}: active at no node that answers", *map(str, self._silent)]
            raise NotActive("; ".join(why), missing)

    def _at(self, connection: NodeConnection) -> None:
        """Remove the rows of the vBuckets that one node has active."""
        try:
            self._learn(connection)
            numbers = self._active(connection)
            if numbers:
                self._remove(connection, numbers)
        except RemoteProtocolError as error:
            raise NodeError(f"the node at {connection.place} makes no sense: {error}") from None

    def _learn(self, connection: NodeConnection) -> None:
        try:
            answer = connection.ask(RequestFrame(Opcode.GET_CLUSTER_CONFIG))
            self._placement.take_map(connection.place, answer)
            if not self._placement.vbuckets:
                self._placement.take_count(connection.place, connection.vbuckets())
        except OtherBucket as error:
            raise NodeError(f"the node at {error}") from None

    def _active(self, connection: NodeConnection) -> list[int]:
        extras = VBUCKET_SEQNOS_EXTRAS.pack(VBucketState.ACTIVE)
        answer = connection.ask(RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras))
        if answer.status:
            reason = f"does not tell its vBuckets: {answer.reason}"
            raise NodeError(f"the node at {connection.place} {reason}")
        found = {number for number, _ in decode_vbucket_seqnos(answer.value)}
        return sorted(found if self._wanted is None else found & self._wanted)

    def _remove(self, connection: NodeConnection, numbers: Sequence[int]) -> None:
        controls = features.REGISTRAR.controls()
        opening = features.REGISTRAR.open(own_name("uprmc-forgets").encode())
        first, *answers = connection.ask_all([opening, *controls])
        if first.status:
            raise NodeError(f"the node at {connection.place} refuses: {first.reason}")
        granted = features.granted(controls, answers)
        self._asked.update(numbers)
        if features.WATERMARKS not in granted:
            return
        frames = removals(self._name, numbers, many=features.REPORTS in granted)
        refused = {
            each.vbucket: each.status
            for asked, answer in connection.ask_each(frames)
            for each in told_of(asked, answer).refused
        }
        self._removed.update(set(numbers).difference(refused))
        _check_refused(connection.place, self._name, refused)


def _check_refused(place: str, name: bytes, refused: dict[int, int]) -> None:
    bad = {n: status for n, status in refused.items() if status not in _NOTHING_THERE}
    if not bad:
        return
    numbers, status = sorted(bad), next(iter(bad.values()))
    if status == Status.KEY_EXISTS:
        why = "a connection of this client is open: stop it first"
    else:
        why = f"it answered status {status:#06x}"
    raise NotForgotten(f"{name.decode()} at {place}, {named(numbers)}: {why}", numbers)
