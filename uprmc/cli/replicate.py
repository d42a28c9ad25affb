"""``uprmc replicate``: have a node follow another one, or nobody any more."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import click

from uprmc.cli.arguments import PLACE, VBUCKETS, seconds
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.replica_node import Standing, replicate
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.errors import ConfigError
from uprmc.protocol.replication import ReplicateFlag
from uprmc.remote.ranges import named

_POLL_S = 0.05

#: So long the verb looks whether the source is reached, without `--wait`.
_GLANCE_S = 3.0


@click.command(name="replicate")
@click.option(
    "--source",
    type=PLACE,
    help="The upr listener of the source; the node dials this address.",
)
@click.option(
    "--vbuckets",
    type=VBUCKETS,
    help="vBuckets that follow the source.  [default: all]",
)
@click.option("--stop", is_flag=True, help="Stop following the source, and keep the data.")
@click.option("--demote", is_flag=True, help="Also demote active vBuckets that hold changes.")
@click.option("--wait", is_flag=True, help="Wait until the replica has caught up.")
@click.option(
    "--timeout",
    "timeout_s",
    type=seconds(),
    default="10m",
    show_default=True,
    help="Longest time to wait with --wait.",
)
@talks_to_a_node("Print one JSON object.", timeout=False)
def replicate_verb(
    source: str | None,
    vbuckets: Sequence[int] | None,
    stop: bool,
    demote: bool,
    wait: bool,
    timeout_s: float,
    node: NodeAccess,
    as_json: bool,
) -> None:
    """Make a node follow another node as its replica.

    The node remembers its source over restarts. Its vBuckets become replicas at once. An active
    vBucket that holds changes is refused unless you give --demote: its changes that the source
    lacks are then undone.
    """
    if stop == bool(source):
        raise ConfigError("say either --source HOST:PORT or --stop")
    if stop and (demote or wait):
        raise ConfigError("only --vbuckets can be combined with --stop")
    flags = ReplicateFlag.STOP if stop else ReplicateFlag.DEMOTE if demote else ReplicateFlag(0)
    with node.connected() as connection:
        replicate(connection, source or "", vbuckets or (), flags)
        if source is None:
            _tell(Standing.of(connection), vbuckets, as_json)
            return
        standing = _settled(connection, source, vbuckets, timeout_s if wait else _GLANCE_S, wait)
    trouble = standing.trouble(source, _chosen(standing, source, vbuckets))
    if not trouble and standing.of_source(source, "state") == "connecting":
        trouble = "no answer so far"
    if trouble and not wait:
        click.echo(
            f"uprmc: {source} does not send data yet: {trouble} (the node keeps trying)", err=True
        )
    _tell(standing, vbuckets, as_json)


def _chosen(standing: Standing, source: str, vbuckets: Sequence[int] | None) -> list[int]:
    """Return those of the vBuckets asked for that follow the source."""
    followers = [n for n, one in standing.following.items() if one.source == source]
    return followers if vbuckets is None else sorted(set(followers) & set(vbuckets))


def _settled(
    connection: NodeConnection,
    source: str,
    vbuckets: Sequence[int] | None,
    for_s: float,
    wait: bool,
) -> Standing:
    """Look until all is well, or, without `wait`, until there is something to tell."""
    deadline = time.monotonic() + for_s
    while True:
        standing = Standing.of(connection)
        chosen = _chosen(standing, source, vbuckets)
        streaming = all(standing.following[n].state == "streaming" for n in chosen)
        if not wait and (streaming or standing.trouble(source, chosen)):
            return standing
        if wait and all(standing.following[number].level for number in chosen):
            return standing
        if time.monotonic() >= deadline:
            if wait:
                raise NodeError(_late(standing, source, chosen, for_s))
            return standing
        time.sleep(_POLL_S)


def _late(standing: Standing, source: str, chosen: list[int], for_s: float) -> str:
    late = [number for number in chosen if not standing.following[number].level]
    trouble = standing.trouble(source, late)
    lag = sum(standing.following[number].lag_items for number in late)
    return (
        f"{named(late)} not up to date with {source} after {for_s:g} s: "
        f"{trouble or f'{lag} changes are missing'} (the node continues)"
    )


def _tell(standing: Standing, vbuckets: Sequence[int] | None, as_json: bool) -> None:
    chosen = {
        number: one
        for number, one in standing.following.items()
        if vbuckets is None or number in vbuckets
    }
    if as_json:
        rows = [{"vbucket": number, **one._asdict()} for number, one in chosen.items()]
        click.echo(json.dumps({"following": rows}, indent=2))
        return
    nobody = sorted(set(vbuckets or ()) - chosen.keys())
    if nobody or not chosen:
        click.echo(f"{named(nobody) if nobody else 'all vBuckets'}: no longer following a source")
    for source in sorted({one.source for one in chosen.values()}):
        numbers = [number for number, one in chosen.items() if one.source == source]
        streaming = sum(chosen[number].state == "streaming" for number in numbers)
        lag = sum(chosen[number].lag_items for number in numbers)
        click.echo(
            f"{named(numbers)}: following {source}, {streaming} streaming, {lag} changes behind"
        )
