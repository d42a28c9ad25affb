"""``uprmc stats``: what a running node says about itself."""

from __future__ import annotations

import json

import click

from uprmc.cli.memory_why import as_plain, memory_of, sentences
from uprmc.cli.node_access import NodeAccess, talks_to_a_node


@click.command()
@click.argument("group", nargs=-1)
@click.option("--why", is_flag=True, help="With the group memory: say what fills it.")
@talks_to_a_node("Print one JSON object.")
def stats(group: tuple[str, ...], node: NodeAccess, why: bool, as_json: bool) -> None:
    """Print statistics of a running node.

    Without a GROUP, it prints the general statistics. Groups:

    \b
    settings, settings-origins, items, slabs, sizes, conns, warmup, memory,
    memory-holders, extstore, uprmc, timings,
    tap, tapagg, dcp, upr, dcpagg, upragg, consumers, leases, replication,
    uuid, kvstore, kvtimings, scheduler, runtimes, dispatcher, workload, config,
    vbucket, prev-vbucket, vbucket-details, vbucket-seqno, failovers,
    checkpoint, hash

    A vBucket number can follow each of the last five groups.
    """
    if why:
        _say_why(group, node, as_json)
        return
    with node.connected() as connection:
        found = dict(connection.statistics(" ".join(group)))
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
