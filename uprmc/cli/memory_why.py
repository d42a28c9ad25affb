"""Why memory is as full as it is, in sentences: ``uprmc stats memory --why``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from uprmc.cli.shown import size_text

#: Holders that take less than this part of the process's memory are not mentioned.
_WORTH_SAYING = 0.01

#: Holders that the quota counts.
_IN_QUOTA = ("values", "keys")


class Use(NamedTuple):
    """One holder, as the node tells it."""

    name: str
    bytes: int
    number: int
    what: str


class Memory(NamedTuple):
    """What the answer rests on, in bytes; `uses` largest first."""

    used: int
    quota: int
    high_mark: int
    mutation_limit: int
    process: int
    unpersisted: int
    uses: list[Use]


def memory_of(memory: Mapping[str, str], holders: Mapping[str, str]) -> Memory:
    """Read the groups ``memory`` and ``memory-holders`` of a node."""
    names = dict.fromkeys(name.partition(":")[0] for name in holders)
    uses = [
        Use(
            name,
            int(holders[f"{name}:bytes"]),
            int(holders[f"{name}:number"]),
            holders[f"{name}:what"],
        )
        for name in names
    ]
    return Memory(
        used=int(memory["mem_used"]),
        quota=int(memory["ep_max_size"]),
        high_mark=int(memory["ep_mem_high_wat"]),
        mutation_limit=int(memory["ep_mutation_mem_limit"]),
        process=int(memory["total_rss_bytes"]),
        unpersisted=next((use.number for use in uses if use.name == "queue"), 0),
        uses=sorted(uses, key=lambda use: -use.bytes),
    )


def as_plain(memory: Memory) -> dict[str, object]:
    """Return the answer for programs."""
    plain = memory._asdict()
    plain["uses"] = [use._asdict() | {"in_quota": use.name in _IN_QUOTA} for use in memory.uses]
    return plain | {"why": list(sentences(memory))}


def sentences(memory: Memory) -> Iterator[str]:
    """Yield the answer for people."""
    share = _percent(memory.used, memory.quota)
    taken = f"{size_text(memory.used)} of the quota of {size_text(memory.quota)} ({share})"
    yield f"Documents take {taken}. {_state(memory)}"
    yield from _advice(memory)
    yield f"The process has {size_text(memory.process)}, apart from the mapped file:"
    worth = max(1, int(memory.process * _WORTH_SAYING))
    for use in memory.uses:
        if use.bytes >= worth:
            part = _percent(use.bytes, memory.process)
            yield f"  {size_text(use.bytes):>10}  {part:>5}  {_told(use)}"


def _state(memory: Memory) -> str:
    if memory.used > memory.mutation_limit:
        return "Writes are refused until there is room."
    if memory.used > memory.high_mark:
        return "Values that are persisted are being evicted; writes are accepted."
    return f"Values are evicted above {size_text(memory.high_mark)}."


def _advice(memory: Memory) -> Iterator[str]:
    """Yield what fills the quota when it is full, and what else is unusual."""
    by_name = {use.name: use for use in memory.uses}
    keys, values = (by_name[name] for name in ("keys", "values"))
    if keys.bytes > memory.high_mark:
        yield (
            f"Keys and bookkeeping of {keys.number:,} documents alone are above the mark; they are "
            "never evicted. Raise memory.quota, or delete documents."
        )
    elif memory.used > memory.high_mark and memory.unpersisted > values.number / 2:
        yield (
            f"{memory.unpersisted:,} changes are not persisted yet, so their values cannot be "
            "evicted: the disk is slower than the writers."
        )
    outside = memory.process - memory.used
    largest = max((use for use in memory.uses if use.name not in _IN_QUOTA), key=lambda it: it[1])
    if outside > memory.quota / 2 and largest.name != "program":
        yield (
            f"{size_text(outside)} are outside of the quota, most of it {largest.what}."
            f"{_remedy(largest.name)}"
        )


def _remedy(name: str) -> str:
    return {
        "views": " Look for slow streams in `uprmc stats upr`, and for leases.",
        "leases": " `uprmc stats leases` lists them; upr.leases and upr.lease_max_s limit them.",
        "connections": " `uprmc stats conns` lists them; server.buffer_bytes limits the buffers.",
        "streams": " `uprmc stats upr` lists them.",
    }.get(name, "")


def _told(use: Use) -> str:
    number = f"{use.number:,} " if use.number > 1 else ""
    return f"{number}{use.what}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
