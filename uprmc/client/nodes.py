"""Which nodes there are, when to dial them, and since when what they tell is known.

Nodes are known by HOST:PORT: those the program named, and those that a cluster map of several
names. One that cannot be reached or was lost is dialled again after 0.1 s, twice as long each time,
5 s at most; a connection that lived for ten seconds forgets that.

Row D33. See `docs/streams.md`, steps 1 and 5.
"""

from __future__ import annotations

from collections.abc import Iterable

from uprmc import places
from uprmc.client.errors import ClientError, MisuseError, NodeUnreachable
from uprmc.client.node_session import NodeSession
from uprmc.remote.directory import Directory, NotTold, Why
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
    """One node."""

    __slots__ = ("_endings", "_tells", "asked_at", "backoff", "dialling", "error", "learnt",
                 "place", "polled", "session", "since", "told_at")  # fmt: skip

    def __init__(self, place: str, *, learnt: bool = False) -> None:
        self.place = place  # HOST:PORT
        # A map named it, and not the program. It may be a node that the program named otherwise:
        # such as by ``localhost``, or by the port of a tunnel.
        self.learnt = learnt
        self.session: NodeSession | None = None  # the connection
        self.since = 0.0  # when that was made
        self.dialling = False  # somebody is about to connect
        self.error: ClientError | None = None  # why the last one ended or did not come about
        self.polled = False  # it has once told what it has
        self.asked_at = 0.0  # when the last attempt to connect, or to hear what it has, began
        # When that began by which it told what it has, or failed: what it says is no older.
        self.told_at = 0.0
        self.backoff = Backoff(DELAY_MIN_S, DELAY_MAX_S)
        self._tells = False  # it has told what it has on this connection
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
        self.session, self.dialling, self.since, self._tells = session, False, now, False

    def lost(self, error: ClientError, now: float, jitter: float) -> bool:
        """There is none any more, or none came about; returns whether the node counts as failed.

        It does if it could not be reached, or if two connections in a row ended before it told what
        it has. One that was kept open and ended is the first of these.
        """
        session = self.session
        if session is not None and now - self.since > _GOOD_S:
            self.backoff.good()
        self._endings = 1 if session is not None and self._tells else self._endings + 1
        self.told_at = self.asked_at
        self.session, self.dialling, self.error = None, False, error
        self.backoff.failed(now, jitter)
        return session is None or self._endings > 1

    def has_not_told(self, now: float) -> bool:
        """Return whether it is too long ago that it was connected, and it has told nothing."""
        return self.session is not None and not self._tells and now - self.since > _TELL_S

    def told(self, asked_at: float, *, failed: bool) -> None:
        """It has answered what it has, or that it does not say."""
        self._tells = self._tells or not failed
        self.polled = self.polled or not failed
        self.told_at = asked_at

    def hasten(self, now: float) -> None:
        """Ask it soon: what it said is too old."""
        if self.session is not None:
            self.session.poll_at = min(self.session.poll_at, now)
        else:
            self.backoff.at = min(self.backoff.at, now + DELAY_MIN_S)


class ClientNodes:
    """See the module docstring; the `directory` says which of them has what."""

    def __init__(self, places: Iterable[str]) -> None:
        self.directory = Directory(check_places(places))
        self._nodes = {place: ClientNode(place) for place in self.directory.places}

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

    def session_at(self, place: str) -> NodeSession | None:
        """Return the connection to a node, ``None`` if there is none, or no such node."""
        node = self._nodes.get(place)
        return None if node is None else node.session

    def meet(self) -> None:
        """Take in the nodes that cluster maps name."""
        for place in self.directory.places[len(self._nodes) :]:
            self._nodes[place] = ClientNode(place, learnt=True)

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

    def lost(self, place: str, error: ClientError, now: float, jitter: float) -> None:
        """A connection has ended, or none came about."""
        self.directory.lost(place, NotTold(Why.LOST, str(error), error))
        if not self._nodes[place].lost(error, now, jitter):
            self.directory.asks_again(place)

    def look(self, now: float) -> None:
        """Learn the time: who takes too long to tell what it has counts as failed meanwhile."""
        for node in self._nodes.values():
            if node.has_not_told(now):
                node.told_at = now
                if node.place not in self.directory.silent:
                    words = (
                        f"the node at {node.place} said nothing of its vBuckets for {_TELL_S:g} s"
                    )
                    self.directory.lost(node.place, NotTold(Why.LOST, f"the node at {words}"))

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

    def asked_since(self, moment: float, now: float) -> bool:
        """Return whether every node has told or failed since a moment; the others are hastened."""
        known = self.directory.facts | self.directory.silent
        nodes = self._nodes.values()
        late = [node for node in nodes if node.place not in known or node.told_at < moment]
        for node in late:
            node.hasten(now)
        return not late


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
