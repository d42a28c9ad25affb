"""Which nodes there are, when to dial them, and which of them has a vBucket.

Nodes are known by HOST:PORT: those the program named, and those that a cluster map of several
names. One that cannot be reached or was lost is dialled again after 0.1 s, twice as long each time,
5 s at most; a connection that lived for ten seconds forgets that.

Source: ``docs/streams.md``, steps 1 and 5; acceptance row D33.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from uprmc import places
from uprmc.client.errors import ClientError, MisuseError, NodeUnreachable
from uprmc.client.node_session import NodeSession
from uprmc.client.position import FailoverLog, Place

DELAY_MIN_S = 0.1
DELAY_MAX_S = 5.0

#: A connection that lived so long was a good one.
_GOOD_S = 10.0

#: More nodes than this are not learnt from cluster maps.
NODES_MAX = 256


class Backoff:
    """Waits that double.

    Attributes:
        at: when the next attempt is due.
        attempts: in vain, since the last good one.
    """

    __slots__ = ("_delay_s", "at", "attempts")

    def __init__(self) -> None:
        self.at = 0.0
        self.attempts = 0
        self._delay_s = DELAY_MIN_S

    def failed(self, now: float, jitter: float = 0.0) -> None:
        """Wait; `jitter` from 0 to 1 makes it up to a half longer."""
        self.at = now + self._delay_s * (1 + jitter / 2)
        self.attempts += 1
        self._delay_s = min(self._delay_s * 2, DELAY_MAX_S)

    def good(self) -> None:
        """Begin with short waits again."""
        self.attempts = 0
        self._delay_s = DELAY_MIN_S


class Node:
    """One node.

    Attributes:
        place: HOST:PORT.
        session: the connection, ``None`` = there is none.
        dialling: somebody is about to connect.
        error: why the last connection ended or did not come about.
        polled: it has once told what it has.
    """

    __slots__ = ("_since", "backoff", "dialling", "error", "place", "polled", "session")

    def __init__(self, place: str) -> None:
        self.place = place
        self.session: NodeSession | None = None
        self.dialling = False
        self.error: ClientError | None = None
        self.polled = False
        self.backoff = Backoff()
        self._since = 0.0

    def connected(self, session: NodeSession, now: float) -> None:
        """There is a connection."""
        self.session, self.dialling, self._since = session, False, now

    def lost(self, error: ClientError, now: float, jitter: float) -> None:
        """There is none any more, or none came about."""
        if self.session is not None and now - self._since > _GOOD_S:
            self.backoff.good()
        self.session, self.dialling, self.error = None, False, error
        self.backoff.failed(now, jitter)


class Nodes:
    """See the module docstring."""

    def __init__(self, places: Iterable[str]) -> None:
        self._nodes = {place: Node(check_place(place)) for place in places}
        if not self._nodes:
            raise MisuseError("no node is named: say at least one HOST:PORT")

    def all(self) -> list[Node]:
        """Return the nodes."""
        return list(self._nodes.values())

    def sessions(self) -> list[NodeSession]:
        """Return the connections on which streams may be asked for."""
        found = [node.session for node in self._nodes.values()]
        return [session for session in found if session is not None and session.open]

    def named(self, place: str) -> Node:
        """Return a node by its place."""
        return self._nodes[place]

    def learn(self, places: Sequence[str]) -> None:
        """Take in nodes that a cluster map names."""
        for place in places:
            if place not in self._nodes and len(self._nodes) < NODES_MAX:
                try:
                    self._nodes[place] = Node(check_place(place))
                except MisuseError:
                    continue

    def due(self, now: float) -> list[str]:
        """Return the nodes that are to be dialled now; each is returned once."""
        found = [
            node
            for node in self._nodes.values()
            if node.session is None and not node.dialling and node.backoff.at <= now
        ]
        for node in found:
            node.dialling = True
        return [node.place for node in found]

    def never_reached(self) -> ClientError | None:
        """Return why no node was ever reached; ``None`` if one was."""
        if any(node.polled or node.session is not None for node in self._nodes.values()):
            return None
        errors = [node.error for node in self._nodes.values() if node.error is not None]
        return errors[-1] if errors else NodeUnreachable("no node has answered yet")

    def all_asked(self) -> bool:
        """Return whether every node has told what it has, or is given up for now."""
        return all(node.polled or node.backoff.attempts > 1 for node in self._nodes.values())

    # --- who has a vBucket ----------------------------------------------------------------------

    def disputed(self) -> set[int]:
        """Return the vBuckets that two nodes say they have."""
        seen: set[int] = set()
        twice: set[int] = set()
        for session in self.sessions():
            twice |= seen & session.active.keys()
            seen |= session.active.keys()
        return twice

    def owner(self, place: Place) -> NodeSession | None:
        """Return the node to stream a vBucket from; ``None`` = nobody has it, or not known yet.

        Of two that claim it, an old active that nobody told about its successor has the shorter
        failover log: the better one knows our history and has been through more.
        """
        vbucket = place.vbucket
        found = [session for session in self.sessions() if vbucket in session.active]
        if len(found) < 2:
            return found[0] if found else None
        if any(vbucket not in session.logs for session in found):
            return None
        return max(found, key=lambda session: rank(session.logs[vbucket], place.log))

    def replica(self, vbucket: int) -> NodeSession | None:
        """Return the node with the newest replica of a vBucket that is active at none."""
        if not self.all_asked() or any(vbucket in one.active for one in self.sessions()):
            return None
        found = [session for session in self.sessions() if vbucket in session.replicas]
        return max(found, key=lambda session: session.replicas[vbucket], default=None)


def rank(log: FailoverLog, ours: FailoverLog) -> tuple[int, int]:
    """Return how good a node's history is for us; greater is better."""
    theirs = {entry.uuid for entry in log}
    newest = next((at for at, entry in enumerate(ours) if entry.uuid in theirs), len(ours))
    return (-newest, len(log))


def check_place(place: str) -> str:
    """Return the place; raises `MisuseError` if it is none."""
    try:
        places.parsed(place)
    except ValueError as error:
        raise MisuseError(f"{place!r} is no node: say {error}") from None
    return place
