"""What a node tells about itself: the door to the groups of ``stats``, status page and metrics.

Names are those that memcached's and Couchbase's tools read (memcached reference 3.6, UPR reference
6.1, systems reference (f)); one place knows where each number comes from: the modules ``stat_...``,
a subject each. A group is a function of the node; it is made again for each question.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from time import perf_counter
from typing import TYPE_CHECKING

from uprmc import __version__
from uprmc.core.form import FORM
from uprmc.errors import InvalidArguments, NotMyVBucket
from uprmc.kv.services import StatGroup, StatRows
from uprmc.metrics import Metric
from uprmc.server.stats import consumers, engine, health, memcached, metrics, streams, vbuckets
from uprmc.server.work.turns import SLICE_S

if TYPE_CHECKING:
    from uprmc.server.node import Node


#: A number of more digits than this is no vBucket's, and not worth reading.
_MOST_DIGITS = 20

#: vBuckets whose rows are made in one go.
_VBUCKETS_AT_ONCE = 4

_GROUPS: dict[str, Callable[[Node], StatRows]] = {
    "": memcached.general,
    "settings": memcached.settings,
    "settings-uprmc": memcached.own_settings,
    "settings-origins": memcached.setting_origins,
    "items": memcached.items,
    "slabs": memcached.slabs,
    "sizes": memcached.sizes,
    "extstore": memcached.extstore,
    "conns": memcached.connections,
    "warmup": engine.warmup,
    "memory": engine.memory,
    "memory-holders": engine.memory_holders,
    "uprmc": engine.own,
    "health": health.rows,
    "ep": memcached.engine,
    "timings": engine.timings,
    "vbucket": vbuckets.states,
    "prev-vbucket": vbuckets.previous_states,
    "tap": streams.tap,
    "dcp": streams.dcp,
    "upr": streams.upr,
    "consumers": streams.consumers,
    "leases": streams.leases,
    "replication": streams.replication,
    "xdcr": streams.xdcr,
    "index": engine.index,
    "uuid": engine.uuid,
    "kvstore": engine.kvstore,
    "kvtimings": engine.kvtimings,
    "scheduler": engine.scheduler,
    "runtimes": engine.runtimes,
    "dispatcher": engine.dispatcher,
    "workload": engine.workload,
    "config": engine.config,
}

_BY_VBUCKET: dict[str, Callable[[Node, list[int]], StatRows]] = {
    "vbucket-details": vbuckets.details,
    "vbucket-seqno": vbuckets.seqnos,
    "failovers": vbuckets.failovers,
    "watermarks": vbuckets.watermarks,
    "hwt": vbuckets.watermarks,
    "checkpoint": vbuckets.checkpoints,
    "hash": vbuckets.hash_tables,
}

_BY_WORDS: dict[str, Callable[[Node, str], StatGroup]] = {
    "tap-vbtakeover": streams.tap_takeover,
    "tapagg": streams.tap_totals,
    "dcpagg": streams.upr_totals,
    "upragg": streams.upr_totals,
    "dcp-vbtakeover": streams.upr_takeover,
}


class Statistics:
    """Reads a node, quickly and without changing it. Costs nothing until it is asked."""

    def __init__(self, node: Node) -> None:
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
        """Return what ``/status.json`` shows; its ``"warmup"`` is the progress on ``/readyz``."""
        node = self._node
        return {
            "version": __version__,
            "core": FORM,
            "pid": os.getpid(),
            "uptime_s": node.uptime_s(),
            "ready": self.ready(),
            "listeners": node.addresses(),
            "components": engine.components(node),
            "warmup": numbered(engine.warmup(node)),
            "memory": numbered(engine.memory(node)),
            "items": node.bucket.item_count,
            "connections": node.connections.current,
            "disk": {"error": node.bucket.account.disk_reason, **engine.disk(node.bucket)},
            "vbuckets": vbuckets.state_counts(node.bucket),
            "index": engine.index_page(node),
        }

    def vbucket(self, text: str) -> dict[str, object]:
        """Return what ``/vbucket.json`` shows of a vBucket; raises as `group`."""
        (number,) = self._numbers(text or "-")
        return vbuckets.vbucket_page(self._node, number)

    def watermarks(self, text: str) -> dict[str, object]:
        """Return what ``/watermarks.json`` shows of a vBucket; raises as `group`."""
        (number,) = self._numbers(text or "-")
        return vbuckets.watermarks_page(self._node, number)

    def consumer(self, name: str) -> Generator[None, None, dict[str, object]]:
        """Return the steps of what ``/consumer.json`` shows; the first raises `StreamNotFound`."""
        return consumers.streams_of(self._node.upr, name)

    def metrics(self) -> Iterable[Metric | None]:
        """Return every number of ``/metrics``."""
        return metrics.metrics(self._node)

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

    def _of_each(self, make: Callable[[Node, list[int]], StatRows], numbers: list[int]) -> StatRows:
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
