"""One call to another node: dialling it, and the link that comes of it.

Rules do not dial. They are handed a `Dial` that does, and get the connection's session to make: a
`Link`. A line tells its user what happens until it is over or hung up; after that it tells nothing,
whatever still comes from the link or the dialler.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.ports import Dial, Dialled, Session
from uprmc.protocol.header import ResponseFrame
from uprmc.remote.cluster_map import map_of
from uprmc.upr.hub import Hub
from uprmc.upr.receive.link import Link, LinkOwner


class Line:
    """One call to another node.

    Implements `LinkOwner` for its link.

    Attributes:
        link: the conversation; ``None`` before it is connected and after the end.
    """

    __slots__ = ("_dial", "_dialled", "_hub", "_name", "_place", "_user", "link")

    def __init__(self, hub: Hub, dial: Dial, place: str, name: bytes, user: LinkOwner) -> None:
        """Prepare a call.

        Args:
            hub: what connections share.
            dial: see `Dial`.
            place: the other node, HOST:PORT.
            name: the connection's; the other node ends an older one of that name.
            user: learns what becomes of the call.
        """
        self.link: Link | None = None
        self._hub = hub
        self._dial = dial
        self._place = place
        self._name = name
        self._user: LinkOwner | None = user
        self._dialled: Dialled | None = None

    def start(self) -> None:
        """Dial. The user may be told of a failure before this returns."""
        dialled = self._dial(self._place, self._make_session, self.closed)
        if self._user is not None:
            self._dialled = dialled

    def hang_up(self) -> None:
        """End it without telling the user; harmless when it is over."""
        dialled, self._dialled = self._dialled, None
        self._user = self.link = None
        if dialled is not None:
            dialled.abandon()

    def give_up(self) -> None:
        """End it because it takes too long, and tell the user so."""
        dialled, limit = self._dialled, self._hub.settings.dial_timeout_s
        advice = "is it a node's upr listener, with TLS on at both ends or none?"
        self.closed(f"no answer for {limit:g} s: {advice}")
        if dialled is not None:
            dialled.abandon()

    def _make_session(self, wake: Callable[[], None]) -> Session:
        self.link = Link(self._hub, self._name, wake, self, self._place)
        return self.link

    # --- what the link tells --------------------------------------------------------------------

    def opened(self) -> None:
        """See `LinkOwner`."""
        if self._user is not None:
            self._user.opened()

    def began(self, number: int) -> None:
        """See `LinkOwner`."""
        if self._user is not None:
            self._user.began(number)

    def ended(self, number: int, why: str, retry: bool) -> None:
        """See `LinkOwner`."""
        if self._user is not None:
            self._user.ended(number, why, retry)

    def taken(self, number: int) -> None:
        """See `LinkOwner`."""
        if self._user is not None:
            self._user.taken(number)

    def closed(self, why: str) -> None:
        """See `LinkOwner`; also told by the dialler. The first reason counts."""
        user, self._user = self._user, None
        self._dialled = None
        if user is not None:
            user.closed(why)
        self.link = None


def other_count(answer: ResponseFrame, hub: Hub) -> str:
    """Say so if a source has another number of vBuckets: its keys would be elsewhere here.

    Args:
        answer: to GET_CLUSTER_CONFIG; one that tells no number passes.
        hub: this node's.
    """
    found, own = map_of(answer), hub.bucket.settings.engine.vbuckets
    if found is None or found.vbuckets == own:
        return ""
    return f"it has {found.vbuckets} vBuckets and this node {own}"
