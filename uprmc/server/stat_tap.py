"""Groups about TAP connections under the names that tools of its time read.

A name that has no counterpart here is told all the same, with a constant: old tools fail on what is
missing. What is left to send is counted by seqnos, which have holes, so it is an upper bound.

Source: TAP reference 4, 5 and 7; ep-engine 2.x, ``stats tap``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from uprmc.kv.services import StatGroup, StatRows
from uprmc.server import stat_upr
from uprmc.server.observed import ObservedNode
from uprmc.tap_adapter.client_rows import client_rows, prefix_of, text_of
from uprmc.tap_adapter.consumer import TapConsumer
from uprmc.tap_adapter.local import PREFIX
from uprmc.tap_adapter.names import TapName
from uprmc.tap_adapter.node_tap import NodeTap
from uprmc.tap_adapter.producer import TapProducer
from uprmc.tap_adapter.tap_statistics import TapStatistics
from uprmc.upr.produce.producer import Producer

#: Settings of the original that mean nothing here, with its defaults.
_UNUSED_SETTINGS: StatGroup = [
    ("ep_tap_backlog_limit", "5000"),
    ("ep_tap_bg_max_pending", "500"),
    ("ep_tap_requeue_sleep_time", "0.1"),
    ("ep_tap_throttle_threshold", "90"),
    ("ep_tap_throttle_queue_cap", "1000000"),
    ("ep_tap_throttle_cap_pcnt", "10"),
]

#: Counters of the original that nothing here corresponds to.
_UNUSED_COUNTERS = (
    "ep_tap_bg_fetched",
    "ep_tap_bg_fetch_requeued",
    "ep_tap_fg_fetched",
    "ep_tap_deletes",
    "ep_tap_queue_itemondisk",
)


class Load(NamedTuple):
    """What clients have got and have to get; sums of it are told, too.

    Attributes:
        clients: how many are connected.
        messages: sent, items of it in `items`.
        nacks: messages that they could not take at once.
        backlog: items left to send at most, those of backfills in `backfill`.
        backfilling: vBuckets whose backfill is not over.
    """

    clients: int = 0
    messages: int = 0
    items: int = 0
    nacks: int = 0
    backlog: int = 0
    backfill: int = 0
    backfilling: int = 0

    def plus(self, other: Load) -> Load:
        """Return the sum."""
        return Load(*map(sum, zip(self, other, strict=True)))


def tap(node: ObservedNode) -> StatRows:
    """Return totals and settings, then each client, then each connection that pushes."""
    yield from _totals(node)
    yield from _settings(node)
    if node.tap is None:
        return
    offset_s = node.tap.registry.unix_minus_monotonic_s
    for known in node.tap.registry.names:
        yield from _client(node, known, offset_s)
    for pusher in list(node.tap.pushes.pushers):
        if isinstance(pusher, TapConsumer):
            yield from _pusher(pusher)


def totals(node: ObservedNode, separator: str) -> StatGroup:
    """Return sums over clients, by what their names begin with up to `separator`."""
    groups: dict[str, Load] = {"_total": Load()}
    for known in _connected(node):
        load = _load(node, known)
        groups["_total"] = groups["_total"].plus(load)
        if separator:
            prefix, found, _ = text_of(known.name).partition(separator)
            group = prefix if found else "_other"
            groups[group] = groups.get(group, Load()).plus(load)
    return [row for prefix, load in groups.items() for row in _sums(prefix, load)]


def takeover(node: ObservedNode, words: str) -> StatGroup:
    """Return what is left to send of one vBucket to one client.

    Raises:
        InvalidArguments: the words are not a number and a name.
        NotMyVBucket: there is no such vBucket.
    """
    number, _, name = words.partition(" ")
    return stat_upr.takeover(node, f"{number} {PREFIX.decode()}{name}" if name else words)


def clients(tap: NodeTap | None) -> int:
    """Return how many clients are connected."""
    names = tap.registry.names if tap is not None else ()
    return sum(known.producer is not None for known in names)


def items_sent(tap: NodeTap | None) -> int:
    """Return how many items clients were sent since the start."""
    if tap is None:
        return 0
    registry = tap.registry
    return registry.past.items + sum(found.items for found in _statistics(registry.names))


def messages_pushed(tap: NodeTap | None) -> tuple[int, int]:
    """Return how many messages were pushed into the node since the start, and refused of them."""
    if tap is None:
        return 0, 0
    rows = tap.pushes.total.rows()
    refused = sum(count for name, count in rows if name.endswith("_failed"))
    return sum(count for name, count in rows if name != "num_unknown"), refused


def _statistics(names: Iterable[TapName]) -> Iterator[TapStatistics]:
    for known in names:
        if isinstance(known.producer, TapProducer):
            yield known.producer.statistics()


def _connected(node: ObservedNode) -> list[TapName]:
    names = node.tap.registry.names if node.tap is not None else ()
    return [known for known in names if isinstance(known.producer, TapProducer)]


def _load(node: ObservedNode, known: TapName) -> Load:
    producer = known.producer
    assert isinstance(producer, TapProducer)
    found = producer.statistics()
    upstream = node.upr.producers.get(PREFIX + known.name)
    return Load(
        1,
        found.messages,
        found.items,
        found.counts.nacks,
        stat_upr.backlog(upstream) if isinstance(upstream, Producer) else 0,
        found.backfill_remaining,
        found.backfills,
    )


def _totals(node: ObservedNode) -> StatGroup:
    load = Load()
    if node.tap is not None:
        past = node.tap.registry.past
        load = Load(0, past.messages, past.items, past.nacks)
    for known in _connected(node):
        load = load.plus(_load(node, known))
    pushers = len(node.tap.pushes.pushers) if node.tap is not None else 0
    _, refused = messages_pushed(node.tap)
    rows = [
        ("ep_tap_count", load.clients + pushers),
        ("ep_tap_total_queue", load.backlog),
        ("ep_tap_total_fetched", load.messages),
        ("ep_tap_total_backlog_size", load.backlog),
        ("ep_tap_throttled", refused),
        ("ep_tap_queue_fill", load.items + load.backlog),
        ("ep_tap_queue_drain", load.items),
        ("ep_tap_queue_backoff", load.nacks),
        ("ep_tap_queue_backfill", load.backfilling),
        ("ep_tap_queue_backfillremaining", load.backfill),
        *((name, 0) for name in _UNUSED_COUNTERS),
    ]
    return [(name, str(value)) for name, value in rows]


def _settings(node: ObservedNode) -> StatGroup:
    settings = node.settings.tap
    rows: list[tuple[str, float]] = [
        ("ep_tap_ack_grace_period", settings.ack_grace_s),
        ("ep_tap_ack_interval", settings.ack_interval),
        ("ep_tap_ack_window_size", settings.ack_window),
        ("ep_tap_backoff_period", settings.backoff_s),
        ("ep_tap_keepalive", settings.keepalive_s),
        ("ep_tap_noop_interval", settings.noop_interval_s),
    ]
    return [*((name, f"{value:.16g}") for name, value in rows), *_UNUSED_SETTINGS]


def _client(node: ObservedNode, known: TapName, offset_s: float) -> StatGroup:
    rows = dict(client_rows(known, offset_s))
    if isinstance(known.producer, TapProducer):
        left = str(_load(node, known).backlog)
        rows |= {"qlen": left, "total_backlog_size": left}
    prefix = prefix_of(known.name)
    return [(prefix + name, text) for name, text in rows.items()]


def _pusher(pusher: TapConsumer) -> StatGroup:
    prefix = prefix_of(pusher.name.encode())
    rows: list[tuple[str, object]] = [
        ("type", "consumer"),
        ("connected", "true"),
        ("pending_disconnect", "false"),
        ("reserved", "false"),
        ("supports_ack", "true" if pusher.understands_nacks else "false"),
        *pusher.counters.rows(),
        ("num_acks", pusher.acks),
        ("num_nacks", pusher.nacks),
        ("last_refusal", pusher.last_refusal),
    ]
    return [(prefix + name, str(value)) for name, value in rows]


def _sums(prefix: str, load: Load) -> StatGroup:
    rows = (
        ("count", load.clients),
        ("qlen", load.backlog),
        ("fill", load.items + load.backlog),
        ("drain", load.items),
        ("backoff", load.nacks),
        ("backfill_remaining", load.backfill),
        ("itemondisk", 0),
        ("total_backlog_size", load.backlog),
    )
    return [(f"{prefix}:{name}", str(value)) for name, value in rows]
