"""Groups that memcached has: settings, connections, and slabs, of which there are none here."""

from __future__ import annotations

import os

from uprmc.config import DEFAULT, values_of
from uprmc.core.form import COMPILED, FORM
from uprmc.engine.bucket import Bucket
from uprmc.engine.memory_account import ITEM_OVERHEAD_BYTES
from uprmc.engine.walk import slices
from uprmc.kv.services import ITEM_HEADER_BYTES, StatGroup, StatRows
from uprmc.record import KIND_AT, LIFE_BITS, key_of
from uprmc.server.observed import ObservedNode
from uprmc.server.stat_general import TEXT_MOST_BYTES

#: Item sizes are counted in classes of this many bytes in ``stats sizes``.
_SIZE_CLASS_BYTES = 32

#: Items counted before others have their turn: about a millisecond.
_COUNTED_AT_ONCE = 1_000

#: memcached's slab classes mean nothing here; every item is in this one.
_SLAB_CLASS = 1

#: Settings whose value a data directory has for good.
OF_THE_DIRECTORY = ("engine.vbuckets", "engine.conflict_resolution")

#: Settings of memcached that nothing here corresponds to, as a tool expects them.
_UNUSED_SETTINGS: StatGroup = [
    ("udpport", "0"),
    ("oldest", "0"),
    ("shutdown_command", "no"),
    ("growth_factor", "1.25"),
    ("num_threads_per_udp", "0"),
    ("stat_key_prefix", ":"),
    ("detail_enabled", "no"),
    ("reqs_per_event", "0"),
    ("maxconns_fast", "yes"),
    ("hashpower_init", "0"),
    ("slab_reassign", "no"),
    ("slab_automove", "0"),
    ("tail_repair_time", "0"),
    ("lru_maintainer_thread", "no"),
    ("lru_segmented", "no"),
    ("hot_lru_pct", "0"),
    ("warm_lru_pct", "0"),
    ("hot_max_factor", "0.00"),
    ("warm_max_factor", "0.00"),
    ("temp_lru", "no"),
    ("temporary_ttl", "0"),
    ("inline_ascii_response", "no"),
    ("memory_file", "(null)"),
]

#: Per-class counters of memcached that are always 0: values are evicted, documents are not, and
#: documents move between no lists.
_NEVER_OF_A_CLASS = (
    "number_warm",
    "number_cold",
    "age_hot",
    "age_warm",
    "evicted",
    "evicted_nonzero",
    "evicted_time",
    "tailrepairs",
    "reclaimed",
    "expired_unfetched",
    "evicted_unfetched",
    "evicted_active",
    "lrutail_reflocked",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "direct_reclaims",
    "hits_to_warm",
    "hits_to_cold",
    "hits_to_temp",
)

#: Counters of the general group that are shown for the one class, too.
_COUNTED_BY_CLASS = (
    "get_hits",
    "cmd_set",
    "delete_hits",
    "incr_hits",
    "decr_hits",
    "cas_hits",
    "cas_badval",
    "touch_hits",
)


def settings(node: ObservedNode) -> StatGroup:
    """Return what is in force, by memcached's names."""
    return [*_in_force(node), *_listening(node), *_UNUSED_SETTINGS]


def own_settings(node: ObservedNode) -> StatGroup:
    """Return every setting with the value in force."""
    quota = str(node.bucket.account.quota)
    own = [(name, str(value)) for name, value in values_of(node.bucket.settings)]
    return [(name, quota if name == "memory.quota" else value) for name, value in own]


def _in_force(node: ObservedNode) -> StatGroup:
    server, item_bytes = node.settings.server, str(node.settings.kv.max_item_bytes)
    return [
        ("maxbytes", str(node.bucket.account.quota)),
        ("maxconns", str(node.connections.limit)),
        ("evictions", "off"),
        ("cas_enabled", "yes"),
        ("item_size_max", item_bytes),
        ("slab_chunk_max", item_bytes),
        ("chunk_size", str(ITEM_HEADER_BYTES)),
        ("binding_protocol", "auto-negotiate"),
        ("auth_enabled_sasl", "yes" if server.users else "no"),
        ("auth_enabled_ascii", "yes" if server.users else "no"),
        ("flush_enabled", "yes"),
        ("dump_enabled", "yes"),
        ("track_sizes", "yes"),
        ("num_threads", "1"),
        ("verbosity", str(node.verbosity)),
        ("tcp_backlog", str(server.listen_backlog)),
        ("umask", server.unix_mode),
        ("idle_timeout", str(int(server.idle_timeout_s))),
        ("lru_crawler", "yes" if node.crawler.enabled else "no"),
        ("lru_crawler_sleep", str(node.crawler.sleep_us)),
        ("lru_crawler_tocrawl", str(node.crawler.to_crawl)),
        ("hash_algorithm", "multiply-shift" if FORM == COMPILED else "python"),
    ]


def _listening(node: ObservedNode) -> StatGroup:
    """Return where the listener for memcached's clients is, and whether it speaks TLS."""
    server, address = node.settings.server, node.addresses().get("memcached", "off")
    local = address.startswith("unix:")
    places = [each.rpartition(":") for each in address.split(",")]
    host, port = ",".join(host for host, _, _ in places), places[0][2]
    return [
        ("tcpport", "0" if local or not port.isdecimal() else port),
        ("inter", "NULL" if local else host or "NULL"),
        ("domain_socket", address.removeprefix("unix:") if local else "NULL"),
        ("ssl_enabled", "yes" if server.tls_cert else "no"),
        ("ssl_chain_cert", _path(server.tls_cert)),
        ("ssl_key", _path(server.tls_key)),
    ]


def _path(path: str) -> str:
    """Return a path that fits where programs read this group; ``stats settings-uprmc`` has all."""
    return path if path and len(os.fsencode(path)) <= TEXT_MOST_BYTES else "(null)"


def setting_origins(node: ObservedNode) -> StatGroup:
    """Return of each setting where the value in force comes from."""
    at_start = dict(values_of(node.settings))
    in_force = dict(values_of(node.bucket.settings)) | {"memory.quota": node.bucket.account.quota}
    return [
        (name, _origin(node, name) if value == at_start[name] else "changed since the start")
        for name, value in in_force.items()
    ]


def _origin(node: ObservedNode, name: str) -> str:
    return "data directory" if name in OF_THE_DIRECTORY else node.origins.get(name, DEFAULT)


def items(node: ObservedNode) -> StatGroup:
    """Return what the one class holds; nothing on an empty node."""
    bucket = node.bucket
    if not bucket.item_count:
        return []
    documents = str(bucket.item_count)
    rows = [
        ("number", documents),
        ("number_hot", documents),
        ("age", str(int(node.uptime_s()))),
        ("outofmemory", str(bucket.account.refused_memory)),
        ("mem_requested", str(_requested(bucket))),
        ("hits_to_hot", str(bucket.stats.get_hits)),
        ("crawler_reclaimed", str(bucket.stats.expired_pager)),
        ("crawler_items_checked", str(bucket.stats.expired_pager)),
        *((name, "0") for name in _NEVER_OF_A_CLASS),
    ]
    return [(f"items:{_SLAB_CLASS}:{name}", value) for name, value in rows]


def slabs(node: ObservedNode) -> StatGroup:
    """Return the one class, whose chunks are as large as a document is on average.

    So chunks and pages, multiplied with their sizes, are the memory that is used, up to a page.
    """
    bucket = node.bucket
    rows: StatGroup = []
    used, requested, chunk_bytes, chunks = bucket.item_count, _requested(bucket), 0, 0
    if used:
        chunk_bytes = max(1, -(-requested // used))
        chunks_per_page = max(1, node.settings.kv.max_item_bytes // chunk_bytes)
        pages = -(-used // chunks_per_page)
        chunks = pages * chunks_per_page
        rows = [
            ("chunk_size", str(chunk_bytes)),
            ("chunks_per_page", str(chunks_per_page)),
            ("total_pages", str(pages)),
            ("total_chunks", str(chunks)),
            ("used_chunks", str(used)),
            ("free_chunks", str(chunks - used)),
            ("free_chunks_end", "0"),
            ("mem_requested", str(requested)),
            *((name, str(getattr(bucket.stats, name))) for name in _COUNTED_BY_CLASS),
        ]
    return [
        *((f"{_SLAB_CLASS}:{name}", value) for name, value in rows),
        ("active_slabs", str(int(bool(rows)))),
        ("total_malloced", str(chunks * chunk_bytes)),
    ]


def _requested(bucket: Bucket) -> int:
    """Return the memory of the documents that clients can reach: their share of what is used."""
    entries = sum(len(vbucket.table) for vbucket in bucket.vbuckets.values())
    return bucket.account.used * bucket.item_count // entries if entries else 0


def extstore(node: ObservedNode) -> StatGroup:
    """Return nothing, as memcached without such a store."""
    return []


def sizes(node: ObservedNode) -> StatRows:
    """Count items by size; looks at every item, as memcached's did."""
    found: dict[int, int] = {}
    for group in slices(list(node.bucket.active.values()), _COUNTED_AT_ONCE):
        for _, records in group:
            for record in records:
                if record[KIND_AT] & LIFE_BITS:
                    continue
                size = len(key_of(record)) + len(record) + ITEM_OVERHEAD_BYTES
                top = -(-size // _SIZE_CLASS_BYTES) * _SIZE_CLASS_BYTES
                found[top] = found.get(top, 0) + 1
        yield None
    yield from ((str(size), str(found[size])) for size in sorted(found))


def connections(node: ObservedNode) -> StatRows:
    """Yield every open connection."""
    for info in node.connections.infos():
        place = str(info.number)
        yield f"{place}:addr", info.peer if info.peer == "unix" else f"tcp:{info.peer}"
        yield f"{place}:listen_addr", _listen_address(node, info.listener)
        yield f"{place}:listener", info.listener
        yield f"{place}:state", info.state
        yield f"{place}:secs_since_last_cmd", str(int(info.idle_s))
        yield f"{place}:bytes_read", str(info.bytes_read)
        yield f"{place}:bytes_written", str(info.bytes_written)


def _listen_address(node: ObservedNode, listener: str) -> str:
    address = node.addresses().get(listener, "")
    if address.startswith("unix:") or not address:
        return address
    return ",".join(f"tcp:{each}" for each in address.split(","))
