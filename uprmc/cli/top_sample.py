"""What a node does, from two readings of its statistics: rates, levels, and who is behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Group = Mapping[str, str]

#: Operation -> the counters that make it.
_OPERATIONS = {
    "get": ("cmd_get",),
    "set": ("cmd_set",),
    "delete": ("delete_hits", "delete_misses"),
    "incr": ("incr_hits", "incr_misses", "decr_hits", "decr_misses"),
    "touch": ("cmd_touch",),
    "with_meta": ("ep_num_ops_set_meta", "ep_num_ops_del_meta"),
}

_NOTHING: Group = {}


@dataclass(frozen=True)
class Reading:
    """The statistics of a node at one moment.

    Attributes:
        at_s: when, of a monotonic clock.
        general: the group without a name.
        more: other groups by name; one that a node does not have is missing.
    """

    at_s: float
    general: Group
    more: Mapping[str, Group]


def sample(before: Reading | None, now: Reading) -> dict[str, Any]:
    """Return what `uprmc top` shows; without a reading before, or after a restart, rates are 0."""
    if before is not None and before.general.get("pid") != now.general.get("pid"):
        before = None
    rate = _rate(before, now)
    general, more = now.general, now.more
    level = _level({**general, **more.get("ep", _NOTHING)})
    return {
        "version": general.get("uprmc_version", ""),
        "uptime_s": level("uptime"),
        "ready": general.get("ep_degraded_mode") == "0",
        "items": level("curr_items"),
        "per_s": {name: rate(*counters) for name, counters in _OPERATIONS.items()},
        "hit_share": _hit_share(before, now),
        "connections": level("curr_connections"),
        "received_per_s": rate("bytes_read"),
        "sent_per_s": rate("bytes_written"),
        "memory": {
            "used": level("mem_used"),
            "quota": level("ep_max_size"),
            "low_mark": level("ep_mem_low_wat"),
            "high_mark": level("ep_mem_high_wat"),
            "process": _level(more.get("memory", _NOTHING))("total_rss_bytes"),
        },
        "queue": {
            "waiting": level("ep_queue_size"),
            "flushed_per_s": rate("ep_total_persisted"),
            "commits_per_s": rate("ep_commit_num"),
            "failures": level("ep_item_commit_failed"),
            "disk_reads_per_s": rate("ep_bg_fetched"),
        },
        "vbuckets": {
            state: level(f"vb_{state}_num") for state in ("active", "replica", "pending", "dead")
        },
        "consumers": _rows(more.get("consumers", _NOTHING)),
        "replication": _rows(more.get("replication", _NOTHING), "source_"),
        "links": _rows(more.get("xdcr", _NOTHING), "link_"),
        "index": more.get("index", _NOTHING).get("state", ""),
    }


def _level(group: Group) -> Callable[[str], int]:
    return lambda name: _number(group.get(name, "0"))


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def _rate(before: Reading | None, now: Reading) -> Callable[..., float]:
    """Return what tells how much counters have grown in a second; a reset counts as nothing."""

    def rate(*counters: str) -> float:
        if before is None or now.at_s <= before.at_s:
            return 0.0
        return round(max(0, _grown(before, now, *counters)) / (now.at_s - before.at_s), 1)

    return rate


def _grown(before: Reading, now: Reading, *counters: str) -> int:
    new, old = (_level({**each.general, **each.more.get("ep", _NOTHING)}) for each in (now, before))
    return sum(new(name) - old(name) for name in counters)


def _hit_share(before: Reading | None, now: Reading) -> float | None:
    """Return which share of the gets in between found a document, ``None`` = there were none."""
    if before is None:
        return None
    hits, misses = _grown(before, now, "get_hits"), _grown(before, now, "get_misses")
    return round(hits / (hits + misses), 4) if hits >= 0 <= misses and hits + misses else None


def _rows(group: Group, prefix: str = "") -> list[dict[str, Any]]:
    """Return rows of names such as ``PREFIX5:items``, in order."""
    rows: dict[str, dict[str, Any]] = {}
    for name, value in group.items():
        row, colon, what = name.rpartition(":")
        if colon and row.startswith(prefix):
            of = row.removeprefix(prefix)
            rows.setdefault(of, {"name": of})[what] = _value(value)
    return list(rows.values())


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
