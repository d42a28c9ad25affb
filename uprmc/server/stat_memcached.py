"""Groups that memcached has: settings, connections, and slabs, of which there are none here."""

from __future__ import annotations

from uprmc.config import DEFAULT, values_of
from uprmc.engine.memory_account import ITEM_OVERHEAD_BYTES
from uprmc.engine.walk import slices
from uprmc.kv.services import StatGroup, StatRows
from uprmc.record import key_of
from uprmc.server.observed import ObservedNode

#: Item sizes are counted in classes of so many bytes in ``stats sizes``.
_SIZE_CLASS_BYTES = 32

#: Items counted before others have their turn: about a millisecond.
_COUNTED_AT_ONCE = 1_000

#: memcached's slab classes mean nothing here; every item is in this one.
_SLAB_CLASS = 1

#: Settings whose value a data directory has for good.
OF_THE_DIRECTORY = ("engine.vbuckets", "engine.conflict_resolution")


def settings(node: ObservedNode) -> StatGroup:
    """Return what is in force, by memcached's names and by our own."""
    group: StatGroup = [
        ("maxbytes", str(node.bucket.account.quota)),
        ("maxconns", str(node.connections.limit)),
        ("evictions", "off"),
        ("cas_enabled", "yes"),
        ("item_size_max", str(node.settings.kv.max_item_bytes)),
        ("binding_protocol", "auto-negotiate"),
        ("auth_enabled_sasl", "yes" if node.settings.server.users else "no"),
        ("flush_enabled", "yes"),
        ("num_threads", "1"),
        ("verbosity", str(node.verbosity)),
    ]
    return group + [(name, str(value)) for name, value in values_of(node.bucket.settings)]


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
    return [
        (f"items:{_SLAB_CLASS}:number", str(bucket.item_count)),
        (f"items:{_SLAB_CLASS}:age", str(int(node.uptime_s()))),
        (f"items:{_SLAB_CLASS}:evicted", "0"),
        (f"items:{_SLAB_CLASS}:evicted_time", "0"),
        (f"items:{_SLAB_CLASS}:outofmemory", str(bucket.account.refused_memory)),
        (f"items:{_SLAB_CLASS}:mem_requested", str(bucket.account.used)),
    ]


def slabs(node: ObservedNode) -> StatGroup:
    """Return the one class: a chunk may be as large as an item, pages are what memory is used."""
    bucket = node.bucket
    group: StatGroup = []
    used = bucket.item_count
    if used:
        page_bytes = node.settings.kv.max_item_bytes
        pages = -(-bucket.account.used // page_bytes)
        chunks_per_page = -(-used // pages)
        chunks = pages * chunks_per_page
        group = [
            (f"{_SLAB_CLASS}:chunk_size", str(page_bytes)),
            (f"{_SLAB_CLASS}:chunks_per_page", str(chunks_per_page)),
            (f"{_SLAB_CLASS}:total_pages", str(pages)),
            (f"{_SLAB_CLASS}:total_chunks", str(chunks)),
            (f"{_SLAB_CLASS}:used_chunks", str(used)),
            (f"{_SLAB_CLASS}:free_chunks", str(chunks - used)),
            (f"{_SLAB_CLASS}:free_chunks_end", "0"),
            (f"{_SLAB_CLASS}:get_hits", str(bucket.stats.get_hits)),
            (f"{_SLAB_CLASS}:cmd_set", str(bucket.stats.cmd_set)),
        ]
    active = str(len(group) and 1)
    return [*group, ("active_slabs", active), ("total_malloced", str(bucket.account.used))]


def sizes(node: ObservedNode) -> StatRows:
    """Count items by size; looks at every item, as memcached's did."""
    found: dict[int, int] = {}
    for group in slices(list(node.bucket.active.values()), _COUNTED_AT_ONCE):
        for _, records in group:
            for record in records:
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
        yield f"{place}:listener", info.listener
        yield f"{place}:state", info.state
        yield f"{place}:secs_since_last_cmd", str(int(info.idle_s))
        yield f"{place}:bytes_read", str(info.bytes_read)
        yield f"{place}:bytes_written", str(info.bytes_written)
