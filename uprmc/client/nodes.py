"""Which nodes there are, when to dial them, and which of them has a vBucket.

Nodes are known by HOST:PORT: those the program named, and those that a cluster map of several
names. One that cannot be reached or was lost is dialled again after 0.1 s, twice as long each time,
5 s at most; a connection that lived for ten seconds forgets that.

Row D33. See `docs/streams.md`, steps 1 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from uprmc import places
from uprmc.client.errors import ClientError, MisuseError, NodeUnreachable
from uprmc.client.node_session import NodeSession
from uprmc.client.position import VBucketPlace
from uprmc.remote.directory import NODES_MAX, Choice, Claim, chosen
from uprmc.remote.retry import Backoff

DELAY_MIN_S = 0.1
DELAY_MAX_S = 5.0

#: Producers take no longer name of a connection.
_NAME_MAX_BYTES = 200

#: A connection that lived so long was a good one.
_GOOD_S = 10.0

#: A node that has not told what it has so long after it was connected counts as failed meanwhile.
_TELL_S = 5.0


class ClientNode:
    """One node.

    Attributes:
        place: HOST:PORT.
        learnt: a map named it, and not the program. It may be a node that the program named
            otherwise: such as by ``localhost``, or by the port of a tunnel.
        session: the connection, ``None`` = there is none.
        dialling: somebody is about to connect.
        error: why the last connection ended or did not come about.
        polled: it has once told what it has.
        failed: it cannot tell what it has at present: it could not be reached, or two connections
            in a row ended before it told. One that was kept open and ended is the first of these.
        asked_at: when the last attempt to connect, or to hear what it has, began.
        told_at: when that began by which it told what it has, or failed: what it says is no older.
        since: when the connection was made.
    """

    __slots__ = ("_endings", "asked_at", "backoff", "dialling", "error", "failed", "learnt",
                 "place", "polled", "session", "since", "told_at")  # fmt: skip

    def __init__(self, place: str, *, learnt: bool = False) -> None:
        self.place, self.learnt = place, learnt
        self.session: NodeSession | None = None
        self.dialling = False
        self.error: ClientError | None = None
        self.polled = self.failed = False
        self.backoff = Backoff(DELAY_MIN_S, DELAY_MAX_S)
        self.since = self.asked_at = self.told_at = 0.0
        self._endings = 0

    def consumer_name(self, name: str) -> str:
        """Return what a consumer of this name is called here.

        A node takes a second connection of the same name for the successor of the first.
        """
        longer = f"{name}@{self.place}"
        fits = len(longer.encode()) <= _NAME_MAX_BYTES
        return longer if self.learnt and fits else name

    def connected(self, session: NodeSession, now: float) -> None:
        """There is a connection."""
        self.session, self.dialling, self.since = session, False, now

    def lost(self, error: ClientError, now: float, jitter: float) -> None:
        """There is none any more, or none came about."""
        session = self.session
        if session is not None and now - self.since > _GOOD_S:
            self.backoff.good()
        self._endings = 1 if session is not None and session.facts.polls else self._endings + 1
        self.failed = session is None or self._endings > 1
        self.told_at = self.asked_at
        self.session, self.dialling, self.error = None, False, error
        self.backoff.failed(now, jitter)

    def look(self, now: float) -> None:
        """Learn the time."""
        if self.session is not None and not self.session.facts.polls and now - self.since > _TELL_S:
            self.failed, self.told_at = True, now

    def told(self, asked_at: float, *, failed: bool) -> None:
        """It has answered what it has, or that it does not say."""
        self.polled = self.polled or not failed
        self.failed, self.told_at = failed, asked_at

    def hasten(self, now: float) -> None:
        """Ask it soon: what it said is too old."""
        if self.session is not None:
            self.session.facts.poll_at = min(self.session.facts.poll_at, now)
        else:
            self.backoff.at = min(self.backoff.at, now + DELAY_MIN_S)

    @property
    def settled(self) -> bool:
        """Whether it has told what it has, or has failed."""
        return self.failed or (self.session is not None and bool(self.session.facts.polls))


class ClientNodes:
    """See the module docstring."""

    def __init__(self, places: Iterable[str]) -> None:
        self._nodes = {place: ClientNode(place) for place in check_places(places)}

    def all(self) -> list[ClientNode]:
        """Return the nodes."""
        return list(self._nodes.values())

    def sessions(self) -> list[NodeSession]:
        """Return the connections on which streams may be asked for."""
        found = [node.session for node in self._nodes.values()]
        return [session for session in found if session is not None and session.open]

    def named(self, place: str) -> ClientNode:
        """Return a node by its place."""
        return self._nodes[place]

    def learn(self, places: Sequence[str]) -> None:
        """Take in nodes that a cluster map names."""
        for place in places:
            if place not in self._nodes and len(self._nodes) < NODES_MAX:
                try:
                    self._nodes[place] = ClientNode(check_place(place), learnt=True)
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
            node.dialling, node.asked_at = True, now
        return [node.place for node in found]

    def never_reached(self) -> ClientError | None:
        """Return why no node was ever reached; ``None`` if one was."""
        if any(node.polled or node.session is not None for node in self._nodes.values()):
            return None
        errors = [node.error for node in self._nodes.values() if node.error is not None]
        return (
            errors[-1]
            if errors
            else NodeUnreachable(f"the node at {', '.join(self._nodes)} has not answered yet")
        )

    def all_asked(self) -> bool:
        """Return whether every node has told what it has, or has failed."""
        return all(node.settled for node in self._nodes.values())

    def asked_since(self, moment: float, now: float) -> bool:
        """Return whether every node has told or failed since a moment; the others are hastened."""
        late = [n for n in self._nodes.values() if not n.settled or n.told_at < moment]
        for node in late:
            node.hasten(now)
        return not late

    def why_silent(self) -> list[str]:
        """Return why nodes do not tell what they have."""
        return [
            str(node.error)
            for node in self._nodes.values()
            if node.error is not None and not (node.session is not None and node.session.open)
        ]

    # --- who has a vBucket ----------------------------------------------------------------------

    def numbers(self) -> frozenset[int]:
        """Return the vBuckets of the bucket: those of the cluster map, and all that nodes have."""
        found: frozenset[int] = frozenset()
        for session in self.sessions():
            found |= session.facts.numbers | session.facts.active.keys()
            if session.facts.map is not None:
                found |= frozenset(range(session.facts.map.vbuckets))
        return found

    def disputed(self) -> set[int]:
        """Return the vBuckets that two nodes say they have, with the same term."""
        seen: dict[int, int] = {}
        twice: set[int] = set()
        sessions = self.sessions()
        for session in sessions if len(sessions) > 1 else ():
            for vbucket in session.facts.active:
                term = session.facts.terms.get(vbucket, 0)
                highest = seen.get(vbucket, -1)
                if term > highest:
                    seen[vbucket] = term
                    twice.discard(vbucket)
                elif term == highest:
                    twice.add(vbucket)
        return twice

    def choice(self, place: VBucketPlace) -> Choice:
        """Return which node to stream a vBucket from; it means something once `all_asked`."""
        vbucket, known, claims = place.vbucket, place.term, []
        for session in self.sessions():
            if vbucket in session.facts.active:
                log = session.facts.logs.get(vbucket, ())
                claims.append(Claim(session.place, session.facts.terms.get(vbucket, 0), log))
            if session.facts.map is not None:
                known = max(known, session.facts.map.term(vbucket))
        return chosen(vbucket, claims, known)

    def session_at(self, place: str) -> NodeSession | None:
        """Return the connection to a node, ``None`` if there is none, or no such node."""
        node = self._nodes.get(place)
        return None if node is None else node.session

    def replica(self, vbucket: int) -> NodeSession | None:
        """Return the node with the newest replica of a vBucket that is active at none."""
        if not self.all_asked() or any(vbucket in one.facts.active for one in self.sessions()):
            return None
        found = [session for session in self.sessions() if vbucket in session.facts.replicas]
        return max(found, key=lambda session: session.facts.replicas[vbucket], default=None)


def check_places(places: Iterable[str]) -> list[str]:
    """Return the places; raises `MisuseError` if one is none, or there are none."""
    found = [check_place(place) for place in places]
    if not found:
        raise MisuseError("no node is named: say at least one HOST:PORT")
    return found


def check_place(place: str) -> str:
    """Return the place; raises `MisuseError` if it is none."""
    try:
        return places.complete(place)
    except ValueError as error:
        raise MisuseError(f"{place!r} is no node: say {error}") from None
