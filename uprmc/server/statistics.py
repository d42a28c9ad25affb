"""What a node tells about itself: the groups of ``stats``, ``/status.json`` and ``/metrics``.

Names are those that memcached's and Couchbase's tools read (memcached reference 3.6, UPR reference
6.1, systems reference (f)); one place knows where each number comes from.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from uprmc import MEMCACHED_VERSION, __version__
from uprmc.config import values_of
from uprmc.engine.ledger import ITEM_OVERHEAD_BYTES
from uprmc.errors import InvalidArguments, NotMyVBucket
from uprmc.kv.services import StatGroup
from uprmc.model import VBucketState
from uprmc.server.metrics import Metric, single

if TYPE_CHECKING:
    from uprmc.server.node import Node

#: Item sizes are counted in classes of so many bytes in ``stats sizes``.
_SIZE_CLASS_BYTES = 32

#: memcached's slab classes mean nothing here; every item is in this one.
_SLAB_CLASS = 1


class Statistics:
    """Reads a node; implements `http.NodeView`. Costs nothing until somebody asks."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._groups: dict[str, Callable[[], StatGroup]] = {
            "": self._general,
            "settings": self._settings,
            "items": self._items,
            "slabs": self._slabs,
            "sizes": self._sizes,
            "conns": self._connections,
            "warmup": self._warmup,
            "memory": self._memory,
            "uprmc": self._own,
            "vbucket": self._vbucket_states,
        }
        self._by_vbucket: dict[str, Callable[[list[int]], StatGroup]] = {
            "vbucket-details": self._vbucket_details,
            "vbucket-seqno": self._vbucket_seqnos,
            "failovers": self._failovers,
        }

    # --- the doors ------------------------------------------------------------------------------

    def group(self, words: str) -> StatGroup | None:
        """Return a group by the words after ``stats``; ``None`` if there is none of that name.

        Raises:
            InvalidArguments: a vBucket's number is no number.
            NotMyVBucket: there is no such vBucket.
        """
        name, _, rest = words.partition(" ")
        if name in self._by_vbucket:
            return self._by_vbucket[name](self._numbers(rest))
        if name in self._groups and not rest:
            return self._groups[name]()
        return None

    def ready(self) -> bool:
        """Return whether warm-up is done."""
        return self._node.bucket.traffic

    def status(self) -> dict[str, object]:
        """Return what ``/status.json`` shows."""
        node = self._node
        return {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": node.uptime_s(),
            "ready": self.ready(),
            "listeners": node.addresses(),
            "warmup": dict(self._warmup()),
            "memory": dict(self._memory()),
            "items": node.bucket.item_count,
            "connections": node.connections.current,
            "disk": {"error": node.bucket.ledger.disk_reason, **self._disk()},
            "vbuckets": self._state_counts(),
        }

    def metrics(self) -> Iterable[Metric]:
        """Return every number of ``/metrics``."""
        yield from self._counter_metrics()
        yield from self._gauge_metrics()

    # --- groups ---------------------------------------------------------------------------------

    def _general(self) -> StatGroup:
        node = self._node
        bucket, connections = node.bucket, node.connections
        usage = resource.getrusage(resource.RUSAGE_SELF)
        ledger = bucket.ledger
        group: StatGroup = [
            ("pid", str(os.getpid())),
            ("uptime", str(int(node.uptime_s()))),
            ("time", str(int(bucket.clock.now()))),
            ("version", MEMCACHED_VERSION),
            ("uprmc_version", __version__),
            ("pointer_size", "64"),
            ("rusage_user", f"{usage.ru_utime:.6f}"),
            ("rusage_system", f"{usage.ru_stime:.6f}"),
            ("max_connections", str(connections.limit)),
            ("curr_connections", str(connections.current)),
            ("total_connections", str(connections.total)),
            ("rejected_connections", str(connections.rejected)),
            ("accepting_conns", str(int(not connections.full))),
            ("threads", "1"),
            ("bytes_read", str(connections.bytes_read)),
            ("bytes_written", str(connections.bytes_written)),
            ("bytes", str(ledger.used)),
            ("limit_maxbytes", str(ledger.quota)),
            ("curr_items", str(bucket.item_count)),
            ("curr_items_tot", str(bucket.total_item_count)),
        ]
        group += [(name, str(value)) for name, value in bucket.stats.items()]
        group += [(name, "0") for name in _NEVER]
        return group + self._engine()

    def _engine(self) -> StatGroup:
        bucket, stats = self._node.bucket, self._node.bucket.stats
        ledger = bucket.ledger
        return [
            ("mem_used", str(ledger.used)),
            ("ep_max_size", str(ledger.quota)),
            ("ep_mem_low_wat", str(ledger.low_mark)),
            ("ep_mem_high_wat", str(ledger.high_mark)),
            ("ep_queue_size", str(bucket.flusher.queued)),
            ("ep_flusher_todo", str(bucket.flusher.queued)),
            ("ep_flusher_state", "running"),
            ("ep_commit_num", str(stats.commits)),
            ("ep_item_commit_failed", str(stats.commit_failures)),
            ("ep_num_value_ejects", str(stats.value_ejects)),
            ("ep_num_non_resident", str(self._non_resident())),
            ("ep_num_pager_runs", str(stats.pager_runs)),
            ("ep_bg_fetched", str(stats.bg_fetched)),
            ("ep_tmp_oom_errors", str(ledger.refused_memory)),
            ("ep_expired_access", str(stats.expired_access)),
            ("ep_expired_pager", str(stats.expired_pager)),
            ("ep_degraded_mode", "0" if bucket.traffic else "1"),
            ("ep_dbname", self._node.settings.storage.data),
            ("vb_active_curr_items", str(bucket.item_count)),
        ]

    def _settings(self) -> StatGroup:
        node = self._node
        group: StatGroup = [
            ("maxbytes", str(node.bucket.ledger.quota)),
            ("maxconns", str(node.connections.limit)),
            ("evictions", "off"),
            ("cas_enabled", "yes"),
            ("item_size_max", str(node.settings.kv.max_item_bytes)),
            ("binding_protocol", "auto-negotiate"),
            ("auth_enabled_sasl", "no"),
            ("flush_enabled", "yes"),
            ("num_threads", "1"),
            ("verbosity", str(node.verbosity)),
        ]
        return group + [(name, str(value)) for name, value in values_of(node.settings)]

    def _items(self) -> StatGroup:
        bucket = self._node.bucket
        if not bucket.item_count:
            return []
        return [
            (f"items:{_SLAB_CLASS}:number", str(bucket.item_count)),
            (f"items:{_SLAB_CLASS}:age", str(int(self._node.uptime_s()))),
            (f"items:{_SLAB_CLASS}:evicted", "0"),
            (f"items:{_SLAB_CLASS}:outofmemory", str(bucket.ledger.refused_memory)),
            (f"items:{_SLAB_CLASS}:mem_requested", str(bucket.ledger.used)),
        ]

    def _slabs(self) -> StatGroup:
        bucket = self._node.bucket
        group: StatGroup = []
        if bucket.item_count:
            group = [
                (f"{_SLAB_CLASS}:chunk_size", str(ITEM_OVERHEAD_BYTES)),
                (f"{_SLAB_CLASS}:used_chunks", str(bucket.item_count)),
                (f"{_SLAB_CLASS}:get_hits", str(bucket.stats.get_hits)),
                (f"{_SLAB_CLASS}:cmd_set", str(bucket.stats.cmd_set)),
            ]
        active = str(len(group) and 1)
        return [*group, ("active_slabs", active), ("total_malloced", str(bucket.ledger.used))]

    def _sizes(self) -> StatGroup:
        """Count items by size; looks at every item, as memcached's did."""
        sizes: dict[int, int] = {}
        for vbucket in self._node.bucket.active.values():
            for item in vbucket.table.values():
                size = len(item.key) + len(item.value or b"") + ITEM_OVERHEAD_BYTES
                top = -(-size // _SIZE_CLASS_BYTES) * _SIZE_CLASS_BYTES
                sizes[top] = sizes.get(top, 0) + 1
        return [(str(size), str(sizes[size])) for size in sorted(sizes)]

    def _connections(self) -> StatGroup:
        group: StatGroup = []
        for info in self._node.connections.infos():
            place = str(info.number)
            group += [
                (f"{place}:addr", info.peer if info.peer == "unix" else f"tcp:{info.peer}"),
                (f"{place}:listener", info.listener),
                (f"{place}:state", info.state),
                (f"{place}:secs_since_last_cmd", str(int(info.idle_s))),
                (f"{place}:bytes_read", str(info.bytes_read)),
                (f"{place}:bytes_written", str(info.bytes_written)),
            ]
        return group

    def _warmup(self) -> StatGroup:
        warmup = self._node.warmup
        return [
            ("ep_warmup", "enabled"),
            ("ep_warmup_state", warmup.state.value),
            ("ep_warmup_thread", "complete" if self.ready() else "running"),
            ("ep_warmup_key_count", str(warmup.keys)),
            ("ep_warmup_value_count", str(warmup.values)),
            ("ep_warmup_estimated_key_count", str(warmup.records)),
            ("ep_warmup_time", str(int(self._node.warmup_s * 1_000_000))),
            ("ep_warmup_clean", str(warmup.was_clean).lower()),
        ]

    def _memory(self) -> StatGroup:
        ledger = self._node.bucket.ledger
        rss = _resident_bytes()
        return [
            ("mem_used", str(ledger.used)),
            ("ep_max_size", str(ledger.quota)),
            ("ep_mem_low_wat", str(ledger.low_mark)),
            ("ep_mem_high_wat", str(ledger.high_mark)),
            ("ep_mutation_mem_limit", str(ledger.mutation_limit)),
            ("ep_item_overhead", str(ITEM_OVERHEAD_BYTES)),
            ("ep_num_non_resident", str(self._non_resident())),
            ("total_rss_bytes", str(rss)),
            ("rss_per_mem_used", f"{rss / ledger.used:.3f}" if ledger.used else "0"),
        ]

    def _own(self) -> StatGroup:
        node = self._node
        ledger = node.bucket.ledger
        return [
            ("session_errors", str(node.connections.session_errors)),
            ("protocol_errors", str(node.bucket.stats.protocol_errors)),
            ("writes_refused_memory", str(ledger.refused_memory)),
            ("writes_refused_disk", str(ledger.refused_disk)),
            ("disk_error", ledger.disk_reason),
            ("flush_queue", str(node.bucket.flusher.queued)),
            ("fetch_waiting", str(node.bucket.fetcher.waiting)),
            *((name, str(value)) for name, value in self._disk().items()),
        ]

    def _vbucket_states(self) -> StatGroup:
        return [
            (f"vb_{number}", vbucket.state.name.lower())
            for number, vbucket in sorted(self._node.bucket.vbuckets.items())
        ]

    def _vbucket_details(self, numbers: list[int]) -> StatGroup:
        group: StatGroup = []
        durable_seqno = self._node.bucket.flusher.durable_seqno
        for number in numbers:
            vbucket = self._node.bucket.vbuckets[number]
            name = f"vb_{number}"
            group += [
                (name, vbucket.state.name.lower()),
                (f"{name}:num_items", str(vbucket.item_count)),
                (f"{name}:num_temp_items", "0"),
                (f"{name}:queue_size", str(vbucket.queue.live)),
                (f"{name}:queue_views", str(vbucket.queue.open_views)),
                (f"{name}:queue_held", str(vbucket.queue.held)),
                (f"{name}:ht_memory", str(vbucket.memory_bytes())),
                (f"{name}:high_seqno", str(vbucket.high_seqno)),
                (f"{name}:persisted_seqno", str(durable_seqno(vbucket))),
                (f"{name}:purge_seqno", str(vbucket.purge_seqno)),
                (f"{name}:uuid", str(vbucket.failover_log[0].uuid)),
            ]
        return group

    def _vbucket_seqnos(self, numbers: list[int]) -> StatGroup:
        group: StatGroup = []
        durable_seqno = self._node.bucket.flusher.durable_seqno
        for number in numbers:
            vbucket = self._node.bucket.vbuckets[number]
            name = f"vb_{number}"
            group += [
                (f"{name}:high_seqno", str(vbucket.high_seqno)),
                (f"{name}:abs_high_seqno", str(vbucket.high_seqno)),
                (f"{name}:last_persisted_seqno", str(durable_seqno(vbucket))),
                (f"{name}:purge_seqno", str(vbucket.purge_seqno)),
                (f"{name}:uuid", str(vbucket.failover_log[0].uuid)),
            ]
        return group

    def _failovers(self, numbers: list[int]) -> StatGroup:
        group: StatGroup = []
        for number in numbers:
            log = self._node.bucket.vbuckets[number].failover_log
            group.append((f"vb_{number}:num_entries", str(len(log))))
            for place, entry in enumerate(log):
                group.append((f"vb_{number}:{place}:id", str(entry.uuid)))
                group.append((f"vb_{number}:{place}:seq", str(entry.seqno)))
        return group

    # --- sources --------------------------------------------------------------------------------

    def _numbers(self, rest: str) -> list[int]:
        vbuckets = self._node.bucket.vbuckets
        if not rest:
            return sorted(vbuckets)
        if not (rest.isascii() and rest.isdecimal()):
            raise InvalidArguments(rest)
        if int(rest) not in vbuckets:
            raise NotMyVBucket(rest)
        return [int(rest)]

    def _disk(self) -> dict[str, int]:
        usage = self._node.bucket.store.usage()
        return {
            "disk_file_bytes": usage.file_bytes,
            "disk_map_bytes": usage.map_bytes,
            "disk_free_bytes": usage.free_bytes,
        }

    def _non_resident(self) -> int:
        stats = self._node.bucket
        return sum(vbucket.non_resident for vbucket in stats.vbuckets.values())

    def _state_counts(self) -> dict[str, int]:
        states = [vbucket.state for vbucket in self._node.bucket.vbuckets.values()]
        return {state.name.lower(): states.count(state) for state in VBucketState}

    def _counter_metrics(self) -> Iterator[Metric]:
        connections = self._node.connections
        for name, value in self._node.bucket.stats.items():
            yield single(f"{name}_total", "counter", f"{name}, as in stats.", value)
        for name, value in (
            ("connections", connections.total),
            ("connections_rejected", connections.rejected),
            ("session_errors", connections.session_errors),
            ("read_bytes", connections.bytes_read),
            ("written_bytes", connections.bytes_written),
            ("writes_refused_memory", self._node.bucket.ledger.refused_memory),
            ("writes_refused_disk", self._node.bucket.ledger.refused_disk),
        ):
            yield single(f"{name}_total", "counter", f"{name}, since the start.", value)

    def _gauge_metrics(self) -> Iterator[Metric]:
        bucket = self._node.bucket
        ledger = bucket.ledger
        for name, text, value in (
            ("ready", "1 when warm-up is done.", float(self.ready())),
            ("uptime_seconds", "Time since the start.", self._node.uptime_s()),
            ("items", "Documents in active vBuckets.", bucket.item_count),
            ("items_non_resident", "Documents whose value is on disk.", self._non_resident()),
            ("memory_used_bytes", "Accounted memory.", ledger.used),
            ("memory_quota_bytes", "The memory quota.", ledger.quota),
            ("flush_queue_items", "Changes not yet persisted.", bucket.flusher.queued),
            ("fetch_waiting", "Reads that wait for the disk.", bucket.fetcher.waiting),
            ("connections_open", "Connections now.", self._node.connections.current),
            ("disk_failing", "1 while the disk refuses commits.", float(bool(ledger.disk_reason))),
        ):
            yield single(name, "gauge", text, value)
        for name, size in self._disk().items():
            yield single(name, "gauge", f"{name} of the store.", size)
        yield Metric(
            "vbuckets",
            "gauge",
            "vBuckets by state.",
            [({"state": state}, count) for state, count in self._state_counts().items()],
        )


#: memcached counts these; here they cannot happen, or are counted under another name.
_NEVER = (
    "get_flushed",
    "auth_cmds",
    "auth_errors",
    "evictions",
    "reclaimed",
    "expired_unfetched",
    "evicted_unfetched",
)


def _resident_bytes() -> int:
    """Return the anonymous memory of this process; the store's mapped file is not counted."""
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
