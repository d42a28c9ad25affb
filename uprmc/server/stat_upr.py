"""Groups about UPR connections, in both name spaces: ``upr`` as in 2014, ``dcp`` as today.

Source: UPR reference 6.1; rows D36, D39.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from hashlib import blake2b

from uprmc.errors import InvalidArguments, NotMyVBucket
from uprmc.kv.services import StatGroup, StatRows
from uprmc.protocol.opcodes import MarkerFlag
from uprmc.server.consumer_lag import largest, remaining
from uprmc.server.observed import ObservedNode
from uprmc.upr.hub import Hub
from uprmc.upr.produce.producer import Producer
from uprmc.upr.produce.stream import Stream
from uprmc.upr.receive.consumer import Consumer

#: Consumers that are shown one by one.
_CONSUMERS = 50


def dcp(node: ObservedNode) -> StatRows:
    """Return all connections and streams under today's names."""
    return _connections(node.upr, "dcp")


def upr(node: ObservedNode) -> StatRows:
    """Return the same under the names of 2014."""
    return _connections(node.upr, "upr")


def totals(node: ObservedNode, separator: str) -> StatGroup:
    """Return sums over connections, by what their names begin with up to `separator`."""
    hub = node.upr
    groups: dict[str, list[Producer]] = {"_total": _producers(hub)}
    if separator:
        for producer in _producers(hub):
            prefix, found, _ = _text(producer.name).partition(separator)
            groups.setdefault(prefix if found else "_other", []).append(producer)
    return [row for prefix, members in groups.items() for row in _sums(prefix, members)]


def takeover(node: ObservedNode, words: str) -> StatGroup:
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


def consumers(node: ObservedNode) -> StatGroup:
    """Return the consumers that are furthest behind, and the sum of the others."""
    return [
        (f"{number}:{name}", f"{value:.3f}" if isinstance(value, float) else str(value))
        for number, lag in enumerate(largest(node.consumer_lags.found, _CONSUMERS))
        for name, value in lag._asdict().items()
    ]


def leases(node: ObservedNode) -> StatGroup:
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


def items_sent(hub: Hub) -> int:
    """Return how many items streams have sent since the start."""
    return hub.items_sent + sum(producer.feed.all_items_sent for producer in _producers(hub))


def items_sent_in_steps(hub: Hub) -> Generator[None, None, int]:
    """Return the same, a connection at each step: there may be tens of thousands of streams."""
    total, producers = hub.items_sent, _producers(hub)
    for producer in producers:
        total += producer.feed.all_items_sent  # also of one that is closed meanwhile
        yield
    return total


def bytes_sent(hub: Hub) -> int:
    """Return how many bytes streams have sent since the start."""
    return hub.bytes_sent + sum(producer.feed.bytes_sent for producer in _producers(hub))


def _producers(hub: Hub) -> list[Producer]:
    return [each for each in hub.producers.values() if isinstance(each, Producer)]


def _connections(hub: Hub, era: str) -> Iterator[tuple[str, str]]:
    """Yield the totals, then each connection; there may be tens of thousands of streams."""
    producers = _producers(hub)
    consumers = [each for each in hub.consumers.values() if isinstance(each, Consumer)]
    left = sum(map(remaining, _streams(producers)))
    sent = items_sent(hub)
    for name, value in (
        ("count", len(producers) + len(consumers)),
        ("producer_count", len(producers)),
        ("total_bytes", bytes_sent(hub)),
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
        ("connected", _word(not consumer.closed)),
        ("pending_disconnect", _word(bool(consumer.closed))),
        ("reserved", "true"),
        ("supports_ack", "true"),
        ("total_backoffs", consumer.backoffs),
        ("total_acked_bytes", consumer.acked_bytes),
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
        ("connected", _word(not producer.closed)),
        ("pending_disconnect", _word(bool(producer.closed))),
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


def _sums(prefix: str, producers: list[Producer]) -> Iterator[tuple[str, str]]:
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
