"""What a node tells about itself: the door to the groups of ``stats``, status page and metrics.

Names are those that memcached's and Couchbase's tools read (memcached reference 3.6, UPR reference
6.1, systems reference (f)); one place knows where each number comes from: the modules ``stat_...``,
a subject each. A group is a function of the node; it is made again for each question.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from time import perf_counter

from uprmc import __version__
from uprmc.core.form import FORM
from uprmc.errors import InvalidArguments, NotMyVBucket
from uprmc.kv.services import StatGroup, StatRows
from uprmc.metrics import Metric
from uprmc.server import (
    consumer_streams,
    stat_engine,
    stat_general,
    stat_health,
    stat_holders,
    stat_index,
    stat_memcached,
    stat_metrics,
    stat_node,
    stat_replication,
    stat_stand_ins,
    stat_tap,
    stat_upr,
    stat_vbuckets,
    stat_watermarks,
    stat_xdcr,
)
from uprmc.server.observed import ObservedNode
from uprmc.server.turn_budget import SLICE_S

#: A number of more digits than this is no vBucket's, and not worth reading.
_MOST_DIGITS = 20

#: vBuckets whose rows are made in one go.
_VBUCKETS_AT_ONCE = 4

_GROUPS: dict[str, Callable[[ObservedNode], StatRows]] = {
    "": stat_general.general,
    "settings": stat_memcached.settings,
    "settings-uprmc": stat_memcached.own_settings,
    "settings-origins": stat_memcached.setting_origins,
    "items": stat_memcached.items,
    "slabs": stat_memcached.slabs,
    "sizes": stat_memcached.sizes,
    "extstore": stat_memcached.extstore,
    "conns": stat_memcached.connections,
    "warmup": stat_node.warmup,
    "memory": stat_node.memory,
    "memory-holders": stat_holders.memory_holders,
    "uprmc": stat_node.own,
    "health": stat_health.rows,
    "ep": stat_general.engine,
    "timings": stat_node.timings,
    "vbucket": stat_vbuckets.states,
    "prev-vbucket": stat_vbuckets.previous_states,
    "tap": stat_tap.tap,
    "dcp": stat_upr.dcp,
    "upr": stat_upr.upr,
    "consumers": stat_upr.consumers,
    "leases": stat_upr.leases,
    "replication": stat_replication.replication,
    "xdcr": stat_xdcr.xdcr,
    "index": stat_index.index,
    "uuid": stat_engine.uuid,
    "kvstore": stat_engine.kvstore,
    "kvtimings": stat_engine.kvtimings,
    "scheduler": stat_engine.scheduler,
    "runtimes": stat_engine.runtimes,
    "dispatcher": stat_engine.dispatcher,
    "workload": stat_engine.workload,
    "config": stat_engine.config,
}

_BY_VBUCKET: dict[str, Callable[[ObservedNode, list[int]], StatRows]] = {
    "vbucket-details": stat_vbuckets.details,
    "vbucket-seqno": stat_vbuckets.seqnos,
    "failovers": stat_vbuckets.failovers,
    "watermarks": stat_watermarks.watermarks,
    "hwt": stat_watermarks.watermarks,
    "checkpoint": stat_stand_ins.checkpoints,
    "hash": stat_stand_ins.hash_tables,
}

_BY_WORDS: dict[str, Callable[[ObservedNode, str], StatGroup]] = {
    "tap-vbtakeover": stat_tap.takeover,
    "tapagg": stat_tap.totals,
    "dcpagg": stat_upr.totals,
    "upragg": stat_upr.totals,
    "dcp-vbtakeover": stat_upr.takeover,
}


class Statistics:
    """Reads a node; implements `http.NodeView`. Costs nothing until it is asked."""

    def __init__(self, node: ObservedNode) -> None:
        self._node = node
        self._groups = _GROUPS
        self._by_vbucket = _BY_VBUCKET
        self._by_words = _BY_WORDS

    def group(self, words: str) -> StatRows | None:
        """Return a group by the words after ``stats``; ``None`` if there is none of that name.

        Raises:
            InvalidArguments: a vBucket's number is no number.
            NotMyVBucket: there is no such vBucket.
        """
        began = perf_counter()
        rows = self._make(*words.partition(" ")[::2])
        self._node.bucket.timings.get_stats_cmd.add(perf_counter() - began)
        return rows

    def group_in_slices(self, words: str) -> StatRows | None:
        """Return the same with a breath for others after each slice of time; raises as `group`."""
        rows = self.group(words)
        return None if rows is None else _in_slices(rows)

    def ready(self) -> bool:
        """Return whether warm-up is done."""
        return self._node.bucket.traffic

    def events(self) -> list[dict[str, object]]:
        """Return what ``/events`` shows."""
        return self._node.events.newest()

    def status(self) -> dict[str, object]:
        """Return what ``/status.json`` shows."""
        node = self._node
        return {
            "version": __version__,
            "core": FORM,
            "pid": os.getpid(),
            "uptime_s": node.uptime_s(),
            "ready": self.ready(),
            "listeners": node.addresses(),
            "components": stat_node.components(node),
            "warmup": numbered(stat_node.warmup(node)),
            "memory": numbered(stat_node.memory(node)),
            "items": node.bucket.item_count,
            "connections": node.connections.current,
            "disk": {"error": node.bucket.account.disk_reason, **stat_node.disk(node.bucket)},
            "vbuckets": stat_vbuckets.state_counts(node.bucket),
            "index": stat_index.page(node),
        }

    def vbucket(self, text: str) -> dict[str, object]:
        """Return what ``/vbucket.json`` shows of a vBucket; raises as `group`."""
        (number,) = self._numbers(text or "-")
        return stat_vbuckets.page(self._node, number)

    def watermarks(self, text: str) -> dict[str, object]:
        """Return what ``/watermarks.json`` shows of a vBucket; raises as `group`."""
        (number,) = self._numbers(text or "-")
        return stat_watermarks.page(self._node, number)

    def consumer(self, name: str) -> Generator[None, None, dict[str, object]]:
        """Return the steps of what ``/consumer.json`` shows of a consumer."""
        return consumer_streams.streams_of(self._node.upr, name)

    def metrics(self) -> Iterable[Metric | None]:
        """Return every number of ``/metrics``."""
        return stat_metrics.metrics(self._node)

    def reset(self) -> None:
        """Set counters and timings to 0: ``stats reset``."""
        self._node.bucket.stats.reset()
        self._node.connections.reset()
        self._node.bucket.timings.reset()

    def _make(self, name: str, rest: str) -> StatRows | None:
        if name in self._by_vbucket:
            return self._of_each(self._by_vbucket[name], self._numbers(rest))
        if name in self._by_words:
            return self._by_words[name](self._node, rest)
        if name in self._groups and not rest:
            return self._groups[name](self._node)
        return None

    def _of_each(
        self, make: Callable[[ObservedNode, list[int]], StatRows], numbers: list[int]
    ) -> StatRows:
        """Yield the rows of one vBucket after the other; one that is gone meanwhile has none."""
        vbuckets = self._node.bucket.vbuckets
        for start in range(0, len(numbers), _VBUCKETS_AT_ONCE):
            few = numbers[start : start + _VBUCKETS_AT_ONCE]
            yield from make(self._node, [number for number in few if number in vbuckets])

    def _numbers(self, rest: str) -> list[int]:
        vbuckets = self._node.bucket.vbuckets
        if not rest:
            return sorted(vbuckets)
        if not (rest.isascii() and rest.isdecimal()):
            raise InvalidArguments(rest)
        if len(rest) > _MOST_DIGITS or int(rest) not in vbuckets:
            raise NotMyVBucket(rest)
        return [int(rest)]


def numbered(rows: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Return rows of statistics with numbers as numbers, and words as they are."""
    return {name: _value(text) for name, text in rows}


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def _in_slices(rows: StatRows) -> StatRows:
    """Yield the rows, and ``None`` after each slice of time that making them takes."""
    until = perf_counter() + SLICE_S
    for row in rows:
        yield row
        if row is None:
            until = perf_counter() + SLICE_S
        elif perf_counter() > until:
            yield None
            until = perf_counter() + SLICE_S
