"""``uprmc stats``: what a running node says about itself."""

from __future__ import annotations

import json
from textwrap import fill

import click

from uprmc.cli.memory_why import as_plain, memory_of, sentences
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeError, NoSuchGroup
from uprmc.units import nearest

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
            found = dict(connection.statistics(" ".join(group)))
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
        found = [dict(connection.statistics(name)) for name in ("memory", "memory-holders")]
    memory = memory_of(*found)
    if as_json:
        click.echo(json.dumps(as_plain(memory), indent=2))
        return
    for sentence in sentences(memory):
        click.echo(sentence)
