"""Counters of one bucket, with the names that memcached's users know.

Plain integer attributes: the hot path adds to them once per received chunk, not per command.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

#: Counters that memcached has, too, by the same names.
MEMCACHEDS = frozenset(
    {
        *("cmd_get", "cmd_set", "cmd_flush", "cmd_touch", "cmd_meta", "auth_cmds", "auth_errors"),
        *("get_hits", "get_misses", "get_expired", "delete_hits", "delete_misses"),
        *("incr_hits", "incr_misses", "decr_hits", "decr_misses"),
        *("cas_hits", "cas_misses", "cas_badval", "touch_hits", "touch_misses"),
        *("total_items", "store_too_large"),
    }
)


@dataclass(slots=True)
class Stats:
    """Counters since the start or the last ``stats reset``."""

    cmd_get: int = 0
    cmd_set: int = 0
    cmd_flush: int = 0
    cmd_touch: int = 0
    cmd_meta: int = 0
    auth_cmds: int = 0
    auth_errors: int = 0
    auth_denied: int = 0
    get_hits: int = 0
    get_misses: int = 0
    get_expired: int = 0
    delete_hits: int = 0
    delete_misses: int = 0
    incr_hits: int = 0
    incr_misses: int = 0
    decr_hits: int = 0
    decr_misses: int = 0
    cas_hits: int = 0
    cas_misses: int = 0
    cas_badval: int = 0
    touch_hits: int = 0
    touch_misses: int = 0
    total_items: int = 0
    store_too_large: int = 0
    expired_access: int = 0
    expired_pager: int = 0
    value_ejects: int = 0
    pager_runs: int = 0
    bg_fetched: int = 0
    bg_fetch_failures: int = 0
    bg_meta_fetched: int = 0
    ops_get_meta: int = 0
    ops_set_meta: int = 0
    ops_del_meta: int = 0
    ops_set_meta_res_fail: int = 0
    ops_del_meta_res_fail: int = 0
    cas_ahead: int = 0
    cas_behind: int = 0
    ops_set_ret_meta: int = 0
    ops_del_ret_meta: int = 0
    commits: int = 0
    commit_failures: int = 0
    items_flushed: int = 0
    damaged_records: int = 0
    healed_records: int = 0
    protocol_errors: int = 0
    upr_dead: int = 0
    vbuckets_deposed: int = 0

    def reset(self) -> None:
        """Set every counter to 0."""
        for item in fields(self):
            setattr(self, item.name, 0)

    def items(self) -> list[tuple[str, int]]:
        """Return (name, value) of every counter."""
        return [(item.name, getattr(self, item.name)) for item in fields(self)]
