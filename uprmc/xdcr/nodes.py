"""The connections of a link: every known node of its target is dialled, and dialled again.

A node that was lost is dialled again after a pause that doubles. A node's cluster map names more.

Neighbours: `target` is one connection, `link` decides what follows from what nodes tell.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from uprmc.login.credentials import Credentials
from uprmc.model import ConflictRule
from uprmc.places import parsed
from uprmc.ports import Clock, Dialled, Session
from uprmc.remote.directory import Directory, NodeHoldings, NotTold, OtherBucket, Why
from uprmc.remote.login import Login, login_in_turns, nonce_of
from uprmc.remote.retry import Backoff
from uprmc.xdcr.target import Target

if TYPE_CHECKING:
    from uprmc.xdcr.link import Link

#: A lost node is dialled again after a pause of this length, which doubles.
_DIAL_MIN_S = 0.1

#: A connection that has lasted this long was a good one.
_GOOD_S = 10.0

#: Policies of conflict resolution as statistics name them.
_POLICIES = {ConflictRule.REVISION: "seqno", ConflictRule.TIMESTAMP: "lww"}


class TargetNode:
    """A node of the target."""

    __slots__ = ("backoff", "began_at", "dialled", "dialling", "error", "place", "target")

    def __init__(self, place: str, backoff: Backoff) -> None:
        self.place = place
        self.target: Target | None = None
        self.dialled: Dialled | None = None
        self.dialling = False
        self.error = ""
        self.began_at = 0.0
        self.backoff = backoff

    @property
    def ready(self) -> Target | None:
        """The connection, if it has said what the node has."""
        return self.target if self.target is not None and self.target.ready else None


class TargetNodes:
    """The connections of one link."""

    def __init__(self, link: Link) -> None:
        """Prepare them; nothing is dialled yet."""
        self._link = link
        self._clock: Clock = link.clock
        settings = link.bucket.settings
        self._settings = settings.xdcr
        self._directory = Directory(link.spec.places, settings.engine.vbuckets)
        self._by_place: dict[str, TargetNode] = {}
        self._meet()

    def __len__(self) -> int:
        return len(self._by_place)

    def _meet(self) -> None:
        """Have all nodes dialled that are known."""
        for place in self._directory.places:
            self._by_place.setdefault(place, TargetNode(place, self._backoff()))

    def _backoff(self) -> Backoff:
        return Backoff(_DIAL_MIN_S, self._settings.redial_max_s)

    @property
    def ready(self) -> list[Target]:
        """Connections that have said what their nodes have."""
        found = [node.ready for node in self._by_place.values()]
        return [target for target in found if target is not None]

    @property
    def are_settled(self) -> bool:
        """Whether each node has said what it has, or has failed."""
        return self._directory.settled

    @property
    def unreachable(self) -> str:
        """Why there is no connection, if all have failed; empty = there is one, or may be soon."""
        return self.silent if len(self._directory.silent) == len(self) else ""

    @property
    def silent(self) -> str:
        """Which nodes cannot be reached, and why; empty = each can be, or may be soon."""
        silent = [self._by_place[place] for place in self._directory.silent]
        return "; ".join(
            f"{node.place}: {node.error or 'the connection was lost'}" for node in silent
        )

    @property
    def lead_on(self) -> bool:
        """Whether what arrives there may come back to us: unless all say that they have no link."""
        targets = self.ready
        return len(targets) < len(self) or any(target.links != 0 for target in targets)

    def shown(self) -> list[dict[str, object]]:
        """Return what people see of them."""
        return [
            {"place": node.place, "connected": node.ready is not None, "error": node.error}
            for node in self._by_place.values()
        ]

    # --- dialling -------------------------------------------------------------------------------

    def dial(self, now: float) -> None:
        """Dial who is due."""
        most_s = self._settings.dial_timeout_s
        for node in list(self._by_place.values()):
            if node.target is None and not node.dialling and node.backoff.at <= now:
                self._call(node, now)
            elif node.ready is None and node.dialled and now - node.began_at > most_s:
                dialled, node.dialled = node.dialled, None
                dialled.abandon()
                self._give_up(node, f"no answer for {most_s:g} s")

    def _call(self, node: TargetNode, now: float) -> None:
        node.dialling, node.began_at = True, now
        node.dialled = self.reach(
            node.place,
            partial(self._make, node),
            partial(self._give_up, node),
            partial(self._cannot, node),
        )

    def _cannot(self, node: TargetNode, why: str) -> None:
        node.dialling, node.dialled = False, None
        self._link.stop(why)

    def reach(
        self,
        place: str,
        make: Callable[[Login | None, Callable[[], None]], Session],
        failed: Callable[[str], None],
        unusable: Callable[[str], None],
    ) -> Dialled:
        """Dial a node.

        Args:
            place: of the node.
            make: returns the session, given who to log in as and what wakes it.
            failed: see `ports.Dial`.
            unusable: called with what is wrong with the files that the link names.
        """

        spec, entropy = self._link.spec, self._link.bucket.entropy

        def made(credentials: Credentials | None, wake: Callable[[], None]) -> Session:
            if credentials is None:
                return make(None, wake)
            safe = bool(spec.tls_ca) or parsed(place).is_local
            return make(login_in_turns(credentials, nonce_of(entropy), safe=safe), wake)

        return self._link.world.dial(spec)(place, made, failed, unusable)

    def _make(self, node: TargetNode, login: Login | None, wake: Callable[[], None]) -> Session:
        node.dialling = False
        target = node.target = Target(node.place, self._link, login, wake)
        return target

    def _give_up(self, node: TargetNode, why: str) -> None:
        node.dialling, node.error = False, why
        self._silent(node)
        if node.target is None:
            node.backoff.failed(self._clock.monotonic())
        self._link.node_failed(node.place, why)

    def _silent(self, node: TargetNode) -> None:
        self._directory.lost(node.place, NotTold(Why.LOST, f"{node.place}: {node.error}"))

    def dial_soon(self) -> None:
        """Forget for how long each node is to be left alone."""
        for node in self._by_place.values():
            node.backoff = self._backoff()

    def hang_up(self) -> None:
        """End all connections."""
        for node in self._by_place.values():
            self._directory.asks_again(node.place)
            target, dialled = node.target, node.dialled
            node.target = node.dialled = None
            node.dialling = False
            if target is not None:
                target.hang_up()
            if dialled is not None:
                dialled.abandon()

    # --- what connections tell ------------------------------------------------------------------

    def survey(self) -> None:
        """Ask all nodes again what they have."""
        for target in self.ready:
            self._directory.asks_again(target.place)
            target.survey()

    def unfit(self, target: Target) -> str:
        """Take what a node has said; return why it can be no target, empty = it can.

        The nodes of its cluster map are dialled, too.
        """
        node = self._by_place[target.place]
        node.error = ""
        ours = _POLICIES[self._link.bucket.account.conflict_rule]
        if target.policy and target.policy != ours:
            return (
                f"{target.place} resolves conflicts by {target.policy} and this node by {ours}: "
                "both ends of a link need the same engine.conflict_resolution"
            )
        directory = self._directory
        if target.map is not None:
            try:
                directory.take_map(target.place, target.map)
            except OtherBucket:
                return (
                    f"{target.place} has {target.map.vbuckets} vBuckets and this node "
                    f"{directory.vbuckets}: a link needs the same number at both ends"
                )
            self._meet()
        if target.active is None:  # it does not say which: it may have any
            has = NodeHoldings(dict.fromkeys(range(directory.vbuckets), (0, 0)))
        else:
            has = NodeHoldings(
                {number: (each.seqno, each.term) for number, each in target.active.items()},
                logs={number: each.log for number, each in target.active.items() if each.log},
            )
        directory.told(target.place, has)
        return ""

    def lost(self, target: Target) -> None:
        """Take note that a connection has ended."""
        node = self._by_place[target.place]
        if node.target is target:
            node.target = node.dialled = None
            self._silent(node)
            now = self._clock.monotonic()
            if now - node.began_at > _GOOD_S:
                node.backoff.good()
            node.backoff.failed(now)

    def blame(self, target: Target, why: str) -> None:
        """Take note of why a connection is of no use."""
        self._by_place[target.place].error = why

    def holder(self, number: int) -> tuple[Target | None, str]:
        """Return the node that has a vBucket, or why there is none to be used."""
        choice = self._directory.choice(number)
        return self._by_place[choice.place].ready if choice.place else None, choice.why

    def tell_promotions(self) -> None:
        """Tell nodes of the target that another one of them was promoted."""
        for target in self.ready:
            if news := self._directory.news(target.place):
                target.tell_terms(news, partial(self._directory.has_heard, target.place, news))

    # --- waking ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake all connections."""
        for node in self._by_place.values():
            if node.target is not None:
                node.target.wake()

    def wake_other(self, place: str) -> None:
        """Wake the node that something waits for, if it is not the only one: that one reads."""
        target = self._by_place[place].target
        if len(self) > 1 and target is not None:
            target.wake()
