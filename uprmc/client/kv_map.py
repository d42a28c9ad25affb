"""Which node has which vBucket: asked of the nodes themselves, a connection to each kept open.

Every node tells the vBuckets that it has active, the cluster map how many there are in all and
which other nodes. After a failover the old active may come back and believe in itself: of two that
claim a vBucket, the one that has been through more branches of history is followed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from zlib import crc32

from uprmc.client.connection import NodeConnection, NodeError, reason
from uprmc.errors import NotMyVBucket, RemoteProtocolError, UprmcError
from uprmc.model import VBucketState
from uprmc.places import of_cluster_map
from uprmc.protocol.binary import encode_hello
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.management import VBUCKET_SEQNOS_EXTRAS, decode_vbucket_seqnos
from uprmc.protocol.opcodes import Feature, Opcode
from uprmc.protocol.upr import decode_failover_log

#: More nodes are not believed in.
NODES_MAX = 64

_FEATURES = (Feature.JSON, Feature.DATATYPE, Feature.XERROR, Feature.MUTATION_SEQNO)


class KvMap:
    """See the module docstring.

    Attributes:
        places: HOST:PORT of every node that is known.
        vbuckets: how many vBuckets the documents are spread over; 0 = not known yet.
    """

    def __init__(self, places: Iterable[str], vbuckets: int, timeout_s: float) -> None:
        self.places = list(dict.fromkeys(places))
        self.vbuckets = vbuckets
        self._timeout_s = timeout_s
        self._connections: dict[str, NodeConnection] = {}
        self._owners: dict[int, str] = {}
        self._silent: dict[str, NodeError] = {}

    def vbucket_of(self, key: bytes) -> int:
        """Return where a key belongs."""
        return (crc32(key) >> 16 & 0x7FFF) % self.vbuckets

    def connection(self, vbucket: int) -> NodeConnection | None:
        """Return the connection to the node that has the vBucket, ``None`` if none has."""
        return self._connections.get(self._owners.get(vbucket, ""))

    def why_absent(self, vbucket: int) -> UprmcError:
        """Return what to say of a vBucket that no connection leads to."""
        if self._silent:
            reasons = "; ".join(map(str, self._silent.values()))
            return NodeError(f"vBucket {vbucket} is active on no node that answers: {reasons}")
        return NotMyVBucket(f"vBucket {vbucket} is active on none of {', '.join(self.places)}")

    def drop(self, connection: NodeConnection) -> None:
        """Hang up on a node; `refresh` dials it again."""
        connection.close()
        self._connections.pop(connection.place, None)

    def close(self) -> None:
        """Hang up on all."""
        for connection in list(self._connections.values()):
            self.drop(connection)

    # --- asking the nodes -----------------------------------------------------------------------

    def refresh(self) -> None:
        """Ask every node what it has; one that does not answer has nothing.

        Raises:
            NodeError: no node answers, or they do not make one bucket.
        """
        try:
            self._owners = self._settled(self._asked())
        except NodeError:
            raise
        except BaseException:
            self.close()  # an answer is still on its way
            raise

    def _asked(self) -> dict[str, dict[int, int]]:
        """Return the high seqnos of what each node has active."""
        seqnos: dict[str, dict[int, int]] = {}
        self._silent = {}
        for place in self.places:  # grows with what the first ones tell
            try:
                connection = self._dialled(place)
                self._learn(place, connection)
                seqnos[place] = _active(connection)
            except _Disagreement:
                raise
            except NodeError as error:
                self._silent[place] = error
                if place in self._connections:
                    self.drop(self._connections[place])
        if not seqnos:
            raise NodeError("; ".join(map(str, self._silent.values())))
        if not self.vbuckets:
            raise NodeError("no node tells how many vBuckets it has: say so with `vbuckets`")
        return seqnos

    def _dialled(self, place: str) -> NodeConnection:
        connection = self._connections.get(place)
        if connection is None:
            connection = self._connections[place] = NodeConnection(place, self._timeout_s)
            hello = RequestFrame(Opcode.HELLO, key=b"uprmc kv", value=encode_hello(_FEATURES))
            connection.ask(hello)  # old nodes refuse it
        return connection

    def _learn(self, place: str, connection: NodeConnection) -> None:
        """Take from the node's map how many vBuckets there are, and which other nodes."""
        answer = connection.ask(RequestFrame(Opcode.GET_CLUSTER_CONFIG))
        if answer.status:
            return
        try:
            servers = json.loads(answer.value)["vBucketServerMap"]
            count, others = (
                len(servers["vBucketMap"]),
                [str(each) for each in servers["serverList"]],
            )
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise NodeError(f"the node at {place} has a map that makes no sense: {error}") from None
        self.vbuckets = self.vbuckets or count
        if count != self.vbuckets:
            raise _Disagreement(
                f"the node at {place} has {count} vBuckets, not {self.vbuckets}: it belongs to "
                "another bucket; leave it out"
            )
        for found in of_cluster_map(others, place):
            if found not in self.places and len(self.places) < NODES_MAX:
                self.places.append(found)

    def _settled(self, seqnos: dict[str, dict[int, int]]) -> dict[int, str]:
        claims: dict[int, list[str]] = {}
        for place, active in seqnos.items():
            for vbucket in active:
                claims.setdefault(vbucket, []).append(place)
        return {
            vbucket: places[0]
            if len(places) == 1
            else max(places, key=self._authority(vbucket, seqnos))
            for vbucket, places in claims.items()
        }

    def _authority(
        self, vbucket: int, seqnos: dict[str, dict[int, int]]
    ) -> Callable[[str], tuple[int, int]]:
        def authority(place: str) -> tuple[int, int]:
            asked = RequestFrame(Opcode.GET_FAILOVER_LOG, vbucket=vbucket)
            try:
                answer = self._connections[place].ask(asked)
                branches = 0 if answer.status else len(decode_failover_log(answer.value))
            except (NodeError, RemoteProtocolError):
                return 0, 0
            return branches, seqnos[place][vbucket]

        return authority


class _Disagreement(NodeError):
    """A node that is not of this bucket."""


def _active(connection: NodeConnection) -> dict[int, int]:
    extras = VBUCKET_SEQNOS_EXTRAS.pack(VBucketState.ACTIVE)
    answer = connection.ask(RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras))
    if answer.status:
        raise NodeError(
            f"the node at {connection.place} does not tell its vBuckets: {reason(answer)}"
        )
    try:
        return dict(decode_vbucket_seqnos(answer.value))
    except RemoteProtocolError as error:
        raise NodeError(f"the node at {connection.place} sent nonsense: {error}") from None
