"""``uprmc stats`` and ``status``: what a running node says about itself, and whether it is well."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from textwrap import fill
from typing import Any, NamedTuple

import click

from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import rounded_size, time_text
from uprmc.client.connection import NodeError, NoSuchGroup
from uprmc.errors import UprmcError
from uprmc.units import nearest

# --- why memory is as full as it is ---------------------------------------------------------------


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
    taken = f"{rounded_size(memory.used)} of the quota of {rounded_size(memory.quota)} ({share})"
    yield f"Documents take {taken}. {_stage(memory)}"
    yield from _advice(memory)
    yield f"The process has {rounded_size(memory.process)}, apart from the mapped file:"
    worth = max(1, int(memory.process * _WORTH_SAYING))
    for use in memory.uses:
        if use.bytes >= worth:
            part = _percent(use.bytes, memory.process)
            yield f"  {rounded_size(use.bytes):>10}  {part:>5}  {_told(use)}"


def _stage(memory: Memory) -> str:
    if memory.used > memory.mutation_limit:
        return "Writes are refused until there is room."
    if memory.used > memory.high_mark:
        return "Values that are persisted are being evicted; writes are accepted."
    return f"Values are evicted above {rounded_size(memory.high_mark)}."


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
            f"{rounded_size(outside)} are outside of the quota, most of it {largest.what}."
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


# --- stats ----------------------------------------------------------------------------------------


#: Groups that a node has; a test compares them with the node's own.
GROUPS = (
    *("settings", "settings-uprmc", "settings-origins", "items", "slabs", "sizes", "conns"),
    *("warmup", "memory", "memory-holders", "extstore", "health", "uprmc", "ep", "timings", "tap"),
    *("tapagg", "dcp", "dcpagg", "upr", "upragg", "consumers", "leases", "replication", "xdcr"),
    *("index", "uuid", "kvstore", "kvtimings", "scheduler", "runtimes", "dispatcher"),
    *("workload", "config", "vbucket", "prev-vbucket"),
)

#: Those that a vBucket's number can follow.
BY_VBUCKET = (
    *("vbucket-details", "vbucket-seqno", "failovers", "watermarks", "hwt", "checkpoint", "hash"),
)

_WIDTH = 72

_HELP = f"""Print statistics of a running node.

Without a GROUP, it prints the general statistics. Groups:

\b
{fill(", ".join(GROUPS), _WIDTH, break_on_hyphens=False)}

A vBucket number can follow these:

\b
{fill(", ".join(BY_VBUCKET), _WIDTH, break_on_hyphens=False)}
"""


@click.command(help=_HELP)
@click.argument("group", nargs=-1)
@click.option("--why", is_flag=True, help="With the group memory: say what fills it.")
@talks_to_a_node("Print one JSON object.")
def stats(group: tuple[str, ...], node: NodeAccess, why: bool, as_json: bool) -> None:
    """See `_HELP`."""
    if why:
        _say_why(group, node, as_json)
        return
    with node.connected() as connection:
        try:
            found = connection.statistics(" ".join(group))
        except NoSuchGroup as error:
            meant = nearest(group[0], [*GROUPS, *BY_VBUCKET])
            hint = f"did you mean {meant}?" if meant else "'uprmc stats --help' lists them"
            raise NodeError(f"{error}: {hint}").doubting(error.doubtful_place) from None
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    width = max(map(len, found), default=0)
    for name, value in found.items():
        click.echo(f"{name:<{width}}  {value}")


def _say_why(group: tuple[str, ...], node: NodeAccess, as_json: bool) -> None:
    if group != ("memory",):
        raise click.UsageError("--why belongs to the group memory: uprmc stats memory --why")
    with node.connected() as connection:
        found = [connection.statistics(name) for name in ("memory", "memory-holders")]
    memory = memory_of(*found)
    if as_json:
        click.echo(json.dumps(as_plain(memory), indent=2))
        return
    for sentence in sentences(memory):
        click.echo(sentence)


# --- status ---------------------------------------------------------------------------------------


_WELL, _UNWELL, _UNREACHABLE = 0, 1, 2

_STATES = ("active", "replica", "pending", "dead")


@click.command()
@talks_to_a_node("Print one JSON object.")
def status(node: NodeAccess, as_json: bool) -> int:
    """Print whether a node is well, and what is wrong.

    Below the first line stands since when each problem has been there, and what to do about it.

    The exit code is 0 if the node is well, 1 if it works and something is wrong, 2 if it cannot be
    reached or does not say. A user needs a role that permits statistics, such as monitor.
    """
    try:
        with node.connected() as connection:
            facts = connection.statistics("health")
    except NodeError as error:
        if as_json:
            what = {"what": str(error), "since": None, "do": "start it, or name another: --node"}
            _print_state("failing", [what], {"node": node.place})
            return _UNREACHABLE
        raise Unreachable(str(error)).doubting(error.doubtful_place) from None
    problems = [_problem(facts, number) for number in range(int(facts["problems"]))]
    state = facts["state"]
    if as_json:
        numbers = {name: int(value) for name, value in facts.items() if value.isdecimal()}
        about = {name: value for name, value in numbers.items() if ":" not in name}
        _print_state(state, problems, {"node": node.place, **about})
    else:
        said = " ".join(each["what"] for each in problems) or _in_short(facts)
        click.echo(f"{node.place} {state}: {said}")
        for each in problems:
            click.echo(f"  since {each['since']}: {each['what'].rstrip('.')}: {each['do']}")
    return _WELL if state == "ok" else _UNWELL


def _print_state(state: str, problems: list[dict[str, Any]], about: dict[str, Any]) -> None:
    click.echo(json.dumps({"state": state, "problems": problems, "node": about}))


class Unreachable(UprmcError):
    """The node does not say how it is."""

    exit_code = _UNREACHABLE


def _problem(facts: dict[str, str], number: int) -> dict[str, Any]:
    what, since, do = (facts[f"problem_{number}:{name}"] for name in ("what", "since", "do"))
    return {"what": what, "since": time_text(int(since)), "do": do}


def _in_short(facts: dict[str, str]) -> str:
    vbuckets = [f"{count} {state}" for state in _STATES
                if (count := facts.get(f"vbuckets_{state}", "0")) != "0"]  # fmt: skip
    used, quota = (rounded_size(int(facts[f"memory_{what}"])) for what in ("used", "quota"))
    return (
        f"{int(facts['items']):,} documents, vBuckets: {', '.join(vbuckets) or 'none'}, "
        f"{used} of {quota}, {facts['connections']} connections"
    )
