"""What is wrong with a node: one list for ``uprmc status``, ``stats health`` and the page at ``/``.

It is made about once a second, so that each problem has the time at which it began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uprmc.kv.services import StatGroup
from uprmc.model import VBucketState
from uprmc.upr.source import LineState

if TYPE_CHECKING:
    from uprmc.server.node import Node


# --- problems, and since when ---------------------------------------------------------------------


#: What has happened once is named for so long.
RECENT_S = 60.0

#: How bad a problem is: the node or a part of it does not work, something is about to, or it may be
#: meant so.
BAD, WARNING, NOTE = "bad", "warn", "note"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    how: str
    what: str
    do: str
    panel: str  # of the page, which shows more
    subject: str = ""  # whom it concerns, where the panel has several


class Health:
    """Remembers since when each problem has been there."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str, str], float] = {}
        self._counters: dict[str, tuple[int, float]] = {}
        self.problems: list[Problem] = []  # of the last look, the worst first

    def seen(self, problems: Iterable[Problem], now: float) -> None:
        """Take what a look has found at a Unix time."""
        found = sorted(problems, key=lambda each: (BAD, WARNING, NOTE).index(each.how))
        self._since = {_key(each): self._since.get(_key(each), now) for each in found}
        self.problems = found

    def since(self, problem: Problem) -> float:
        """Return the Unix time at which a problem was seen first."""
        return self._since[_key(problem)]

    @property
    def state(self) -> str:
        """``ok``, ``warning`` or ``failing``."""
        how = {each.how for each in self.problems}
        return "failing" if BAD in how else "warning" if WARNING in how else "ok"

    def has_grown(self, name: str, count: int, monotonic: float) -> bool:
        """Tell whether a counter, which began at 0, has grown within the last time."""
        known, at = self._counters.get(name, (0, -RECENT_S))
        if count != known:
            at = monotonic if count > known else -RECENT_S
            self._counters[name] = (count, at)
        return monotonic - at < RECENT_S


def _key(problem: Problem) -> tuple[str, str, str]:
    return problem.panel, problem.subject, problem.how


# --- what is wrong --------------------------------------------------------------------------------


#: Who is further behind is named.
SLOW_S = 60.0

#: So many problems are told; of more it is only said how many there are.
_TOLD_MAX = 50


def look(node: Node) -> None:
    """Look what is wrong."""
    node.health.seen(_found(node), node.bucket.clock.now())


def rows(node: Node) -> StatGroup:
    """Return what is wrong, and a few numbers."""
    look(node)
    health = node.health
    found = [("state", health.state), ("problems", str(len(health.problems)))]
    for number, each in enumerate(health.problems[:_TOLD_MAX]):
        name = f"problem_{number}"
        found += [
            (f"{name}:how", each.how),
            (f"{name}:what", each.what),
            (f"{name}:since", str(int(health.since(each)))),
            (f"{name}:do", each.do),
        ]
    states = Counter(one.state for one in node.bucket.vbuckets.values())
    return [
        *found,
        ("items", str(node.bucket.item_count)),
        *((f"vbuckets_{state.name.lower()}", str(states[state])) for state in VBucketState),
        ("connections", str(node.connections.current)),
        ("memory_used", str(node.bucket.account.used)),
        ("memory_quota", str(node.bucket.account.quota)),
        ("uptime_s", str(int(node.uptime_s()))),
    ]


def panel(node: Node) -> list[dict[str, object]]:
    """Return what the page shows."""
    look(node)
    return [
        {
            "how": each.how,
            "what": each.what,
            "do": each.do,
            "panel": each.panel,
            "since": int(node.health.since(each)),
        }
        for each in node.health.problems[:_TOLD_MAX]
    ]


def _found(node: Node) -> Iterator[Problem]:
    if not node.bucket.traffic:
        what = "It warms up, or traffic is switched off, and serves no clients yet."
        yield Problem(BAD, what, "wait; 'uprmc stats warmup' shows how far it is", "node")
    if node.connections.current >= node.connections.limit:
        do = "close some ('uprmc stats conns'), or raise server.max_connections"
        yield Problem(BAD, "No more connections are let in.", do, "node", "connections")
    if node.index.error:
        what = f"The index does not run: {node.index.error}"
        yield Problem(BAD, what, "see 'uprmc stats index'", "index")
    yield from _of_storage(node)
    yield from _of_vbuckets(node)
    yield from _of_others(node)


def _of_storage(node: Node) -> Iterator[Problem]:
    account, now = node.bucket.account, node.bucket.clock.monotonic()
    why, room = "see 'uprmc stats memory --why'", "make room where the data directory is"
    if account.disk_reason:
        what = f"The disk refuses commits: {account.disk_reason}"
        yield Problem(BAD, what, f"{room}, or see the log", "queue")
    elif node.health.has_grown("disk", account.refused_disk, now):
        yield Problem(BAD, "Writes were refused for lack of disk.", room, "queue", "refused")
    if node.health.has_grown("memory", account.refused_memory, now):
        yield Problem(BAD, "Writes were refused for lack of memory.", why, "memory")
    if damaged := node.bucket.healer.pending:
        are = "record on disk is" if damaged == 1 else "records on disk are"
        what = f"{damaged:,} {are} damaged, and not served."
        do = "see the events damaged_record; write the documents again, or fail over to a replica"
        yield Problem(BAD, what, do, "queue", "damaged")
    if account.used > account.high_mark:
        yield Problem(WARNING, "Memory is full: values are evicted.", why, "memory")
    if node.bucket.flusher.paused:
        what = "Persistence is stopped: what is written now is in memory only."
        yield Problem(WARNING, what, "start it again (START_PERSISTENCE)", "queue")


def _of_vbuckets(node: Node) -> Iterator[Problem]:
    vbuckets = node.bucket.vbuckets.values()
    pending = sum(one.state is VBucketState.PENDING for one in vbuckets)
    dead = [one for one in vbuckets if one.state is VBucketState.DEAD]
    deposed = sum(one.known_term > one.term for one in dead)
    if deposed:
        what = f"{_vbuckets(deposed)} dead: another node was promoted instead."
        do = "follow that one: 'uprmc replicate --source HOST:PORT --demote'"
        yield Problem(WARNING, what, do, "vbuckets", "deposed")
    if pending:
        what = f"{_vbuckets(pending)} waiting to become active."
        do = "'uprmc vbucket set N active', or follow the node that is"
        yield Problem(WARNING, what, do, "vbuckets", "pending")
    if len(dead) > deposed:
        what = f"{_vbuckets(len(dead) - deposed)} dead here."
        yield Problem(NOTE, what, "'uprmc vbucket rm N' removes them", "vbuckets", "dead")


def _of_others(node: Node) -> Iterator[Problem]:
    see = "see 'uprmc stats replication'"
    for source in node.replication.sources.values():
        if source.state is not LineState.OPEN or source.last_error:
            why = source.last_error or source.state.value
            what = f"The node at {source.place} is not followed: {why}"
            yield Problem(BAD, what, see, "replication", source.place)
        elif source.lag_s > SLOW_S:
            what = f"This node is {source.lag_s:.0f} s behind {source.place}."
            yield Problem(WARNING, what, see, "replication", source.place)
    for link in node.links.by_name.values():
        name = link.spec.name
        see = f"see 'uprmc xdcr status {name}'"
        if link.error:
            how = "has stopped" if link.failure else "does not send everything"
            what = f"The link {name} {how}: {link.error}"
            yield Problem(BAD, what, see, "links", name)
        elif link.progress.lag_seconds > SLOW_S:
            what = f"The link {name} is {link.progress.lag_seconds:.0f} s behind."
            yield Problem(WARNING, what, see, "links", name)
    slow = [each for each in node.consumer_lags.found if each.seconds > SLOW_S]
    if slow:
        worst = max(slow, key=lambda each: each.seconds)
        who = "A consumer is" if len(slow) == 1 else f"{len(slow):,} consumers are"
        what = f"{who} more than a minute behind, {worst.name} by {worst.seconds:.0f} s."
        yield Problem(WARNING, what, "see 'uprmc stats consumers'", "streams")


def _vbuckets(count: int) -> str:
    return "1 vBucket is" if count == 1 else f"{count:,} vBuckets are"
