"""What an index process tells a monitoring system of its designs; queries are counted elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from uprmc.index.group import Group
from uprmc.index.store import IndexStore
from uprmc.metrics import Metric

#: Kinds of rollbacks, which all have a sample from the beginning.
ROLLBACKS = ("header", "old_file", "vbucket", "build")


def metrics_of(groups: Mapping[str, Group]) -> Iterator[Metric]:
    """Yield the numbers of all designs."""
    stores = {name: group.following.store for name, group in groups.items()}
    opened = {name: store for name, store in stores.items() if store is not None}
    for name, kind, text, of_group in _OF_GROUPS:
        yield Metric(name, kind, text, [({"design": n}, of_group(g)) for n, g in groups.items()])
    for name, kind, text, of_store in _OF_STORES:
        yield Metric(name, kind, text, [({"design": n}, of_store(s)) for n, s in opened.items()])
    yield Metric(
        "index_rollbacks_total",
        "counter",
        "Rollbacks, by what was returned to.",
        [
            ({"design": name, "kind": kind}, store.rollbacks[kind])
            for name, store in opened.items()
            for kind in ROLLBACKS
        ],
    )


_Kind = Literal["counter", "gauge"]

_OF_GROUPS: tuple[tuple[str, _Kind, str, Callable[[Group], float]], ...] = (
    (
        "index_pending",
        "gauge",
        "Changes that the source has and the index has not, as the source last said.",
        lambda group: group.pending(),
    ),
    (
        "index_build_ratio",
        "gauge",
        "Part of the source's changes that is indexed, from 0 to 1.",
        lambda group: group.progress(),
    ),
    (
        "index_waiting",
        "gauge",
        "Requests that wait for the index to be fresh enough.",
        lambda group: group.waiting,
    ),
    (
        "index_faults_total",
        "counter",
        "How often an index had to be opened again: a full disk, a damaged file.",
        lambda group: group.following.fault.count,
    ),
    (
        "index_faulty",
        "gauge",
        "1 while an index cannot be written, 0 otherwise.",
        lambda group: float(bool(group.following.fault.text)),
    ),
)

_OF_STORES: tuple[tuple[str, _Kind, str, Callable[[IndexStore], float]], ...] = (
    (
        "index_map_calls_total",
        "counter",
        "Documents that were mapped.",
        lambda store: store.maps.calls,
    ),
    (
        "index_map_errors_total",
        "counter",
        "Documents of which a map has failed.",
        lambda store: store.maps.errors_total,
    ),
    (
        "index_headers_total",
        "counter",
        "Headers that were written and synced.",
        lambda store: store.headers_written,
    ),
    (
        "index_compactions_failed_total",
        "counter",
        "Compactions that have failed; the files before them go on.",
        lambda store: store.compacting.failed,
    ),
    (
        "index_disk_bytes",
        "gauge",
        "Size of the index files.",
        lambda store: store.files.disk_bytes,
    ),
)
