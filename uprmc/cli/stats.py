"""``uprmc stats``: what a running node says about itself."""

from __future__ import annotations

import json

import click

from uprmc.client.connection import NodeConnection


@click.command()
@click.argument("group", nargs=-1)
@click.option("--node", default="127.0.0.1:11210", show_default=True, metavar="HOST:PORT")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def stats(group: tuple[str, ...], node: str, as_json: bool, debug: bool) -> None:
    """Print a statistics GROUP of a running node; the general one when none is named.

    Groups: settings, items, slabs, sizes, conns, warmup, memory, uprmc, timings, tap, tapagg,
    dcp, upr, dcpagg, upragg, leases, replication, uuid, kvstore, kvtimings, scheduler, runtimes,
    dispatcher, workload, config, vbucket, prev-vbucket, vbucket-details, vbucket-seqno,
    failovers, checkpoint, hash; the last five take a vBucket number.
    """
    with NodeConnection(node) as connection:
        found = dict(connection.statistics(" ".join(group)))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    width = max(map(len, found), default=0)
    for name, value in found.items():
        click.echo(f"{name:<{width}}  {value}")
