"""``uprmc stats``: what a running node says about itself."""

from __future__ import annotations

import json

import click

from uprmc.cli.node_access import NodeAccess, talks_to_a_node


@click.command()
@click.argument("group", nargs=-1)
@talks_to_a_node("Print one JSON object.")
def stats(group: tuple[str, ...], node: NodeAccess, as_json: bool) -> None:
    """Print statistics of a running node.

    Without a GROUP, it prints the general statistics. Groups:

    \b
    settings, settings-origins, items, slabs, sizes, conns, warmup, memory,
    uprmc, timings,
    tap, tapagg, dcp, upr, dcpagg, upragg, leases, replication, uuid,
    kvstore, kvtimings, scheduler, runtimes, dispatcher, workload, config,
    vbucket, prev-vbucket, vbucket-details, vbucket-seqno, failovers,
    checkpoint, hash

    A vBucket number can follow each of the last five groups.
    """
    with node.connected() as connection:
        found = dict(connection.statistics(" ".join(group)))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    width = max(map(len, found), default=0)
    for name, value in found.items():
        click.echo(f"{name:<{width}}  {value}")
