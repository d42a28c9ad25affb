"""Which node has which vBucket: asked of the nodes themselves, a connection to each kept open.

Every node tells the vBuckets that it has active, the cluster map how many there are in all and
which other nodes. After a failover the old active may come back and believe in itself:
`remote.placement` says which of two is followed. Nobody is followed before all were asked, and a
connection that was kept open and fails is no silent node: it is dialled once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.client.errors import NotActive
from uprmc.errors import NotMyVBucket, RemoteProtocolError, UprmcError
from uprmc.model import VBucketState, vbucket_of
from uprmc.protocol.binary import decode_hello, encode_hello
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import (
    VBUCKET_SEQNOS_EXTRAS,
    decode_vbucket_seqno_terms,
    decode_vbucket_seqnos,
)
from uprmc.protocol.opcodes import Feature, Opcode
from uprmc.remote.history import read_log
from uprmc.remote.placement import Log, OtherBucket, Placement
from uprmc.remote.ranges import named

_FEATURES = (
    Feature.JSON,
    Feature.DATATYPE,
    Feature.XERROR,
    Feature.MUTATION_SEQNO,
    Feature.TERMS,
)

#: vBuckets of which an error says why they are refused.
_REASONS_MAX = 5

_MAP = RequestFrame(Opcode.GET_CLUSTER_CONFIG)

#: By vBucket, the term of each that a node has active.
_Terms = dict[int, int]


class KvMap:
    """See the module docstring."""

    def __init__(
        self, places: Iterable[str], vbuckets: int, dial: Callable[[str], NodeConnection]
    ) -> None:
        self._placement = Placement(places, vbuckets)
        self._dial = dial
        self._connections: dict[str, NodeConnection] = {}
        self._with_terms: set[NodeConnection] = set()
        self._silent: dict[str, NodeError] = {}

    @property
    def places(self) -> list[str]:
        """HOST:PORT of every node that is known."""
        return self._placement.places

    @property
    def vbuckets(self) -> int:
        """How many vBuckets the documents are spread over; 0 = not known yet."""
        return self._placement.vbuckets

    def vbucket_of(self, key: bytes) -> int:
        """Return where a key belongs."""
        return vbucket_of(key, self.vbuckets)

    def connection(self, vbucket: int) -> NodeConnection | None:
        """Return the connection to the node that has the vBucket, ``None`` if none has."""
        choice = self._placement.choices.get(vbucket)
        return None if choice is None else self._connections.get(choice.place)

    def why_absent(self, vbucket: int) -> UprmcError:
        """Return what to say of a vBucket that no connection leads to."""
        choice = self._placement.choices.get(vbucket)
        if choice is not None and choice.why:
            return NotMyVBucket("; ".join([choice.why, *map(str, self._silent.values())]))
        if self._silent:
            reasons = "; ".join(map(str, self._silent.values()))
            return NodeError(f"vBucket {vbucket} is active on no node that answers: {reasons}")
        return NotMyVBucket(f"vBucket {vbucket} is active on none of {', '.join(self.places)}")

    def by_place(self) -> dict[str, list[int]]:
        """Return all vBuckets by the node that has them; raises `NotActive`."""
        found: dict[str, list[int]] = {}
        absent: list[int] = []
        for vbucket in range(self.vbuckets):
            connection = self.connection(vbucket)
            if connection is None:
                absent.append(vbucket)
            else:
                found.setdefault(connection.place, []).append(vbucket)
        if absent:
            choices = [self._placement.choices.get(vbucket) for vbucket in absent]
            why = [each.why for each in choices if each is not None and each.why]
            words = [f"{named(absent)}: active on none of {', '.join(self.places)}"]
            words += [*dict.fromkeys(why)][:_REASONS_MAX]
            raise NotActive("; ".join([*words, *map(str, self._silent.values())]), absent)
        return found

    def drop(self, connection: NodeConnection) -> None:
        """Hang up on a node; `refresh` dials it again."""
        connection.close()
        self._with_terms.discard(connection)
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
            self._placement.settle(self._asked(), self._logs)
            for place, frames in self._placement.to_tell(self._logs).items():
                self._tell(place, frames)
        except NodeError:
            raise
        except BaseException:
            self.close()  # an answer is still on its way
            raise

    def _asked(self) -> dict[str, _Terms]:
        """Return what each node has active."""
        told: dict[str, _Terms] = {}
        self._silent = {}
        for place in self.places:  # grows with what the first ones tell
            try:
                told[place] = self._told_by(place)
            except _Disagreement:
                raise
            except NodeError as error:
                self._silent[place] = error
        if not told:
            silent = list(self._silent.values())
            if len(silent) == 1:
                raise silent[0]
            raise NodeError("; ".join(map(str, silent)))
        if not self.vbuckets:
            raise NodeError("no node tells how many vBuckets it has: say so with `vbuckets`")
        return told

    def _told_by(self, place: str) -> _Terms:
        """Ask a node; one whose connection was kept open gets another if that one fails."""
        kept = place in self._connections
        try:
            connection = self._dialled(place)
            self._learn(place, connection)
            active = _active(connection, terms=connection in self._with_terms)
            self._placement.check_active(place, active)
            return active
        except OtherBucket as error:
            raise _Disagreement(f"the node at {error}") from None
        except NodeError:
            if place in self._connections:
                self.drop(self._connections[place])
            if not kept:
                raise
        return self._told_by(place)

    def _dialled(self, place: str) -> NodeConnection:
        connection = self._connections.get(place)
        if connection is None:
            connection = self._connections[place] = self._dial(place)
            hello = RequestFrame(Opcode.HELLO, key=b"uprmc kv", value=encode_hello(_FEATURES))
            if _grants_terms(connection.ask(hello)):
                self._with_terms.add(connection)
        return connection

    def _learn(self, place: str, connection: NodeConnection) -> None:
        """Take from the node's map how many vBuckets there are, and which other nodes."""
        self._placement.take_map(place, connection.ask(_MAP))
        if not self.vbuckets:
            self._placement.take_count(place, connection.vbuckets())

    def _tell(self, place: str, frames: list[RequestFrame]) -> None:
        """Tell a node that another one was promoted; whether it may be told is its affair."""
        connection = self._connections.get(place)
        if connection is not None:
            try:
                list(connection.ask_all(frames))
            except NodeError:
                self.drop(connection)

    def _logs(self, place: str, vbuckets: list[int]) -> dict[int, Log]:
        """Return failover logs at a node; what it does not tell is left out."""
        asked = [RequestFrame(Opcode.GET_FAILOVER_LOG, vbucket=vbucket) for vbucket in vbuckets]
        try:
            answers = list(self._dialled(place).ask_all(asked))
            pairs = zip(vbuckets, answers, strict=True)
            return {number: read_log(each.value) for number, each in pairs if not each.status}
        except (NodeError, RemoteProtocolError):
            if place in self._connections:
                self.drop(self._connections[place])
            return {}


class _Disagreement(NodeError):
    """A node that is not of this bucket."""


def _grants_terms(answer: ResponseFrame) -> bool:
    """Return whether a node speaks of terms; old ones refuse HELLO."""
    try:
        return not answer.status and Feature.TERMS in decode_hello(answer.value)
    except RemoteProtocolError:
        return False


def _active(connection: NodeConnection, *, terms: bool) -> _Terms:
    extras = VBUCKET_SEQNOS_EXTRAS.pack(VBucketState.ACTIVE)
    answer = connection.ask(RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras))
    if answer.status:
        raise NodeError(
            f"the node at {connection.place} does not tell its vBuckets: {answer.reason}"
        )
    try:
        if terms:
            return {number: term for number, _, term in decode_vbucket_seqno_terms(answer.value)}
        return {number: 0 for number, _ in decode_vbucket_seqnos(answer.value)}
    except RemoteProtocolError as error:
        raise NodeError(f"the node at {connection.place} sent nonsense: {error}") from None
