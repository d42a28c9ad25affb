"""Groups about streams: UPR connections, TAP clients, followed nodes, and links."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from uprmc.errors import InvalidArguments, NotMyVBucket
from uprmc.kv.services import StatGroup, StatRows
from uprmc.protocol.opcodes import MarkerFlag
from uprmc.server.stats.consumers import largest, remaining
from uprmc.tap_adapter.consumer import TapConsumer
from uprmc.tap_adapter.local import PREFIX
from uprmc.tap_adapter.names import TapName
from uprmc.tap_adapter.node_tap import NodeTap
from uprmc.tap_adapter.producer import TapProducer, TapStatistics, client_rows, prefix_of, text_of
from uprmc.upr.consumer import Consumer
from uprmc.upr.hub import Hub
from uprmc.upr.producer import Producer
from uprmc.upr.replication import Replication
from uprmc.upr.source import Followed, LineState, Source
from uprmc.upr.stream import Stream
from uprmc.xdcr.link import Link

if TYPE_CHECKING:
    from uprmc.server.node import Node


# --- UPR ------------------------------------------------------------------------------------------
# Groups about UPR connections, in both name spaces: ``upr`` as in 2014, ``dcp`` as today.
#
# Rows D36, D39.


#: Consumers that are shown one by one.
_CONSUMERS = 50


def dcp(node: Node) -> StatRows:
    """Return all connections and streams under today's names."""
    return _connections(node.upr, "dcp")


def upr(node: Node) -> StatRows:
    """Return the same under the names of 2014."""
    return _connections(node.upr, "upr")


def upr_totals(node: Node, separator: str) -> StatGroup:
    """Return sums over connections, by what their names begin with up to `separator`."""
    hub = node.upr
    groups: dict[str, list[Producer]] = {"_total": _producers(hub)}
    if separator:
        for producer in _producers(hub):
            prefix, found, _ = _text(producer.name).partition(separator)
            groups.setdefault(prefix if found else "_other", []).append(producer)
    return [row for prefix, members in groups.items() for row in _upr_sums(prefix, members)]


def upr_takeover(node: Node, words: str) -> StatGroup:
    """Return what is left to send of one vBucket to one connection.

    Raises:
        InvalidArguments: the words are not a number and a name.
        NotMyVBucket: there is no such vBucket.
    """
    number, _, name = words.partition(" ")
    if not (number.isascii() and number.isdecimal() and name):
        raise InvalidArguments(words)
    vbucket = node.bucket.vbuckets.get(int(number)) if len(number) < 6 else None
    if vbucket is None:
        raise NotMyVBucket(number)
    producer = node.upr.producers.get(name.encode("latin-1"))
    stream = producer.feed.streams.get(vbucket.id) if isinstance(producer, Producer) else None
    status = "connection_does_not_exist" if producer is None else "stream_does_not_exist"
    left = vbucket.high_seqno
    if stream is not None:
        status, left = stream.state.value, remaining(stream)
    queued = min(left, vbucket.queue.live)
    deletions = vbucket.table.tombstones
    return [
        ("status", status),
        ("estimate", str(left)),
        ("backfillRemaining", str(left - queued)),
        ("chk_items", str(queued)),
        ("vb_items", str(vbucket.item_count)),
        ("on_disk_deletes", str(deletions)),
    ]


def consumers(node: Node) -> StatGroup:
    """Return the consumers that are furthest behind, and the sum of the others."""
    return [
        (f"{number}:{name}", f"{value:.3f}" if isinstance(value, float) else str(value))
        for number, lag in enumerate(largest(node.consumer_lags.found, _CONSUMERS))
        for name, value in lag._asdict().items()
    ]


def leases(node: Node) -> StatGroup:
    """Return the snapshot leases that are held."""
    held = node.upr.leases
    now = node.bucket.clock.monotonic()
    group: StatGroup = [
        ("open", str(len(held.open))),
        ("granted", str(held.granted)),
        ("expired", str(held.expired)),
        ("withdrawn", str(held.withdrawn)),
    ]
    for lease in held.open.values():
        # Who has an id may end the lease, and who sees statistics may not.
        name = f"lease_{blake2b(lease.id.to_bytes(8), digest_size=8).hexdigest()}"
        group += [
            (f"{name}:vbuckets", str(len(lease.readings))),
            (f"{name}:seconds_left", str(max(0, int(lease.expires_at - now)))),
            (f"{name}:reads", str(lease.reads)),
            (f"{name}:readers", str(len(lease.readers))),
        ]
    return group


def backlog(producer: Producer) -> int:
    """Return how many items a connection's streams have left to send at most."""
    return sum(map(remaining, producer.feed.streams.values()))


def stream_count(hub: Hub) -> int:
    """Return how many streams are open."""
    return sum(len(producer.feed.streams) for producer in _producers(hub))


def upr_items_sent(hub: Hub) -> int:
    """Return how many items streams have sent since the start."""
    return hub.items_sent + sum(producer.feed.all_items_sent for producer in _producers(hub))


def upr_items_sent_in_steps(hub: Hub) -> Generator[None, None, int]:
    """Return the same, a connection at each step: there may be tens of thousands of streams."""
    total, producers = hub.items_sent, _producers(hub)
    for producer in producers:
        total += producer.feed.all_items_sent  # also of one that is closed meanwhile
        yield
    return total


def upr_bytes_sent(hub: Hub) -> int:
    """Return how many bytes streams have sent since the start."""
    return hub.bytes_sent + sum(producer.feed.bytes_sent for producer in _producers(hub))


def _producers(hub: Hub) -> list[Producer]:
    return [each for each in hub.producers.values() if isinstance(each, Producer)]


def _connections(hub: Hub, era: str) -> Iterator[tuple[str, str]]:
    """Yield the totals, then each connection; there may be tens of thousands of streams."""
    producers = _producers(hub)
    consumers = [each for each in hub.consumers.values() if isinstance(each, Consumer)]
    left = sum(map(remaining, _streams(producers)))
    sent = upr_items_sent(hub)
    for name, value in (
        ("count", len(producers) + len(consumers)),
        ("producer_count", len(producers)),
        ("total_bytes", upr_bytes_sent(hub)),
        ("total_queue", left),
        ("queue_fill", sent + left),
        ("items_sent", sent),
        ("items_remaining", left),
        ("streams", stream_count(hub)),
        ("backfills", hub.backfills.used),
    ):
        yield f"ep_{era}_{name}", str(value)
    for producer in producers:
        yield from _connection(producer, f"eq_{era}q:{_text(producer.name)}:")
    for consumer in consumers:
        yield from _consumer(consumer, f"eq_{era}q:{_text(consumer.name)}:")


def _consumer(consumer: Consumer, prefix: str) -> StatGroup:
    rows: list[tuple[str, object]] = [
        ("type", "consumer"),
        ("created", int(consumer.created_at)),
        ("connected", "true"),  # who is hung up on is not among the connections any more
        ("pending_disconnect", "false"),
        ("reserved", "true"),
        ("supports_ack", "true"),
        ("total_backoffs", consumer.window.backoffs),
        ("total_acked_bytes", consumer.window.acked_bytes),
    ]
    for number, stream in consumer.streams.items():
        kind = "disk" if stream.kind & MarkerFlag.DISK else "memory"
        asked = stream.asked
        rows += [
            (f"stream_{number}_flags", stream.flags),
            (f"stream_{number}_opaque", stream.opaque),
            (f"stream_{number}_state", stream.state.value),
            (f"stream_{number}_start_seqno", asked.start_seqno),
            (f"stream_{number}_end_seqno", asked.end_seqno),
            (f"stream_{number}_vb_uuid", asked.uuid),
            (f"stream_{number}_snap_start_seqno", asked.snapshot_start),
            (f"stream_{number}_snap_end_seqno", asked.snapshot_end),
            (f"stream_{number}_items", stream.items),
            (f"stream_{number}_buffer_items", 0),
            (f"stream_{number}_buffer_bytes", 0),
            (f"stream_{number}_last_received_seqno", stream.vbucket.high_seqno),
            (f"stream_{number}_cur_snapshot_type", kind),
            (f"stream_{number}_cur_snapshot_start", stream.snapshot.start),
            (f"stream_{number}_cur_snapshot_end", stream.snapshot.end),
        ]
    return [(prefix + name, str(value)) for name, value in rows]


def _connection(producer: Producer, prefix: str) -> Iterator[tuple[str, str]]:
    feed, options, keepalive = producer.feed, producer.options, producer.keepalive
    rows = [
        ("type", "notifier" if producer.is_notifier else "producer"),
        ("created", int(producer.created_at)),
        ("connected", "true"),
        ("pending_disconnect", "false"),
        ("reserved", "true"),
        ("supports_ack", _word(bool(options.buffer_bytes))),
        ("items_sent", feed.all_items_sent),
        ("items_remaining", backlog(producer)),
        ("total_bytes_sent", feed.bytes_sent),
        ("last_sent_time", int(feed.last_sent_at)),
        ("noop_enabled", _word(keepalive.enabled)),
        ("noop_wait", _word(keepalive.waiting)),
        ("noop_tx_interval", f"{keepalive.interval_s:g}"),
        ("priority", options.priority),
        ("flow_control", "enabled" if options.buffer_bytes else "disabled"),
        ("max_buffer_bytes", options.buffer_bytes),
        ("unacked_bytes", feed.unacked_bytes),
        ("total_acked_bytes", producer.acked_bytes),
        ("num_streams", len(feed.streams)),
        ("barriers_pending", len(feed.barriers)),
        ("rounds", feed.cycle),
        ("disk_readings", feed.readings.from_disk),
    ]
    yield from [(prefix + name, str(value)) for name, value in rows]
    for stream in [*feed.streams.values(), *feed.ended_streams.values()]:
        yield from _stream(stream, f"{prefix}stream_{stream.vbucket.id}_")


def _stream(stream: Stream, prefix: str) -> StatGroup:
    request = stream.request
    rows = (
        ("flags", request.flags),
        ("opaque", stream.opaque),
        ("start_seqno", request.start_seqno),
        ("end_seqno", stream.end_seqno),
        ("vb_uuid", request.uuid),
        ("snap_start_seqno", request.snapshot_start),
        ("snap_end_seqno", request.snapshot_end),
        ("state", stream.state.value),
        ("backfilled", stream.from_disk),
        ("memory", stream.from_memory),
        ("last_sent_seqno", stream.last_seqno),
        ("last_sent_snap_end_seqno", stream.snapshot_end),
        ("persisted_seqno", stream.persisted_seqno),
        ("items_ready", _word(stream.queued)),
        ("readings_let_go", stream.let_go),
    )
    return [(prefix + name, str(value)) for name, value in rows]


def _upr_sums(prefix: str, producers: list[Producer]) -> Iterator[tuple[str, str]]:
    left = sum(map(remaining, _streams(producers)))
    for name, value in (
        ("count", len(producers)),
        ("producer_count", len(producers)),
        ("items_sent", sum(producer.feed.all_items_sent for producer in producers)),
        ("items_remaining", left),
        ("total_bytes", sum(producer.feed.bytes_sent for producer in producers)),
        ("total_backlog_size", left),
        ("backoff", 0),
    ):
        yield f"{prefix}:{name}", str(value)


def _streams(producers: Iterable[Producer]) -> Iterator[Stream]:
    for producer in producers:
        yield from producer.feed.streams.values()


def _word(value: bool) -> str:
    return "true" if value else "false"


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


# --- TAP ------------------------------------------------------------------------------------------
# Groups about TAP connections under the names that tools of its time read.
#
# A name that has no counterpart here is told all the same, with a constant: old tools fail on what
# is missing. What is left to send is counted by seqnos, which have holes, so it is an upper bound.


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
    """What clients have got and have to get; sums of it are told, too."""

    clients: int = 0  # how many are connected
    messages: int = 0  # sent, items of it in `items`
    items: int = 0
    nacks: int = 0  # messages that they could not take at once
    backlog: int = 0  # items left to send at most, those of backfills in `backfill`
    backfill: int = 0
    backfilling: int = 0  # vBuckets whose backfill is not over

    def plus(self, other: Load) -> Load:
        """Return the sum."""
        return Load(*map(sum, zip(self, other, strict=True)))


def tap(node: Node) -> StatRows:
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


def tap_totals(node: Node, separator: str) -> StatGroup:
    """Return sums over clients, by what their names begin with up to `separator`."""
    groups: dict[str, Load] = {"_total": Load()}
    for known in _connected(node):
        load = _load(node, known)
        groups["_total"] = groups["_total"].plus(load)
        if separator:
            prefix, found, _ = text_of(known.name).partition(separator)
            group = prefix if found else "_other"
            groups[group] = groups.get(group, Load()).plus(load)
    return [row for prefix, load in groups.items() for row in _tap_sums(prefix, load)]


def tap_takeover(node: Node, words: str) -> StatGroup:
    """Return what is left to send of one vBucket to one client.

    Raises:
        InvalidArguments: the words are not a number and a name.
        NotMyVBucket: there is no such vBucket.
    """
    number, _, name = words.partition(" ")
    return upr_takeover(node, f"{number} {PREFIX.decode()}{name}" if name else words)


def tap_clients(tap: NodeTap | None) -> int:
    """Return how many clients are connected."""
    names = tap.registry.names if tap is not None else ()
    return sum(known.producer is not None for known in names)


def tap_items_sent(tap: NodeTap | None) -> int:
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


def _connected(node: Node) -> list[TapName]:
    names = node.tap.registry.names if node.tap is not None else ()
    return [known for known in names if isinstance(known.producer, TapProducer)]


def _load(node: Node, known: TapName) -> Load:
    producer = known.producer
    assert isinstance(producer, TapProducer)
    found = producer.statistics()
    upstream = node.upr.producers.get(PREFIX + known.name)
    return Load(
        1,
        found.messages,
        found.items,
        found.nacks,
        backlog(upstream) if isinstance(upstream, Producer) else 0,
        found.backfill_remaining,
        found.backfills,
    )


def _totals(node: Node) -> StatGroup:
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


def _settings(node: Node) -> StatGroup:
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


def _client(node: Node, known: TapName, offset_s: float) -> StatGroup:
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


def _tap_sums(prefix: str, load: Load) -> StatGroup:
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


# --- replication ----------------------------------------------------------------------------------
# The group about what this node gets from others: sources, their lag, followed vBuckets.


class Totals(NamedTuple):
    """Sums over sources; `lag_s` is the worst."""

    sources: int
    open: int
    vbuckets: int
    streaming: int
    lag_items: int
    lag_s: float


def replication(node: Node) -> StatRows:
    """Return totals, each source, each followed vBucket."""
    return _replication_rows(node.replication)


def replication_totals(replication: Replication) -> Totals:
    """Return how all sources stand together."""
    sources = replication.sources.values()
    return Totals(
        len(sources),
        sum(source.state is LineState.OPEN for source in sources),
        sum(len(source.followed) for source in sources),
        sum(source.streaming for source in sources),
        sum(source.lag_items for source in sources),
        max((source.lag_s for source in sources), default=0.0),
    )


def _replication_rows(replication: Replication) -> Iterator[tuple[str, str]]:
    """Yield them; there may be a thousand vBuckets."""
    for name, value in replication_totals(replication)._asdict().items():
        yield name, f"{value:.3f}" if isinstance(value, float) else str(value)
    for name, value in replication.received._asdict().items():
        yield name, str(value)
    yield "takeovers", str(len(replication.handovers))
    yield "last_takeover_error", replication.last_handover_error
    sources = list(replication.sources.values())
    for source in sources:
        yield from _source(source)
    followed = [(source.place, one) for source in sources for one in source.followed.values()]
    for place, one in sorted(followed, key=lambda pair: pair[1].vbucket.id):
        yield from _followed(place, one)


def source_facts(source: Source) -> dict[str, object]:
    """Return what is told of a node that this one follows."""
    return {
        "state": source.state.value,
        "attempts": source.attempts,
        "last_error": source.last_error,
        "vbuckets": len(source.followed),
        "streaming": source.streaming,
        "lag_items": source.lag_items,
        "lag_s": round(source.lag_s, 3),
        **source.received._asdict(),
    }


def _source(source: Source) -> StatGroup:
    rows = {**source_facts(source), "lag_s": f"{source.lag_s:.3f}"}
    return [(f"source_{source.place}:{name}", str(value)) for name, value in rows.items()]


def _followed(place: str, one: Followed) -> StatGroup:
    rows = (
        ("source", place),
        ("state", one.standing.value),
        ("source_seqno", "" if one.source_seqno is None else str(one.source_seqno)),
        ("lag_items", str(one.lag_items)),
        ("error", one.error),
    )
    return [(f"vb_{one.vbucket.id}:{name}", value) for name, value in rows]


# --- links ----------------------------------------------------------------------------------------


def xdcr(node: Node) -> StatRows:
    """Return the number of links, and what each has done."""
    return _link_rows(list(node.links.by_name.values()))


def _link_rows(links: list[Link]) -> Iterator[tuple[str, str]]:
    yield "links", str(len(links))
    for link in links:
        name = f"link_{link.spec.name}"
        yield f"{name}:state", link.state
        yield f"{name}:to", link.spec.to
        yield f"{name}:error", link.error
        yield f"{name}:changes_left", str(link.progress.changes_left)
        yield f"{name}:bytes_left", str(link.progress.bytes_left)
        yield f"{name}:lag_s", f"{link.progress.lag_seconds:.3f}"
        yield f"{name}:rate", f"{link.progress.rate:g}"
        for what, value in link.counters.shown().items():
            yield f"{name}:{what}", str(value)
