"""``uprmc failover-log``: which histories vBuckets have been through."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from uprmc.cli.arguments import VBUCKETS, each_once
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.model import FailoverEntry
from uprmc.remote.ranges import named


@click.command(name="failover-log")
@click.argument("vbuckets", nargs=-1, type=VBUCKETS, metavar="[N|A-B,...]...")
@talks_to_a_node("Print one JSON list of vBuckets.")
def failover_log(vbuckets: tuple[tuple[int, ...], ...], node: NodeAccess, as_json: bool) -> None:
    """Print the failover logs of vBuckets, or of all vBuckets.

    Each entry is a branch of history: its vb_uuid, and the seqno after which it begins. The newest
    comes first, together with the vBucket's term. If two nodes claim to be active for the same
    vBucket, the one with the higher term is right.
    """
    with node.connected() as connection:
        logs, terms = _logs(connection, each_once(vbuckets))
    if as_json:
        click.echo(json.dumps([_row(each, logs[each], terms[each]) for each in logs], indent=2))
        return
    lines = [f"{'vBucket':>7}  {'term':>5}  {'vb_uuid':>15}  begins after seqno"]
    for number, log in logs.items():
        shown = [str(terms[number]), *[""] * (len(log) - 1)]
        lines += [
            f"{number:>7}  {term:>5}  {entry.uuid:>15}  {entry.seqno}"
            for term, entry in zip(shown, log, strict=True)
        ]
    click.echo("\n".join(lines))


def _logs(
    connection: NodeConnection, vbuckets: Sequence[int]
) -> tuple[dict[int, list[FailoverEntry]], dict[int, int]]:
    """Return logs and terms by vBucket; of all if none is named. A term that is not told is 0."""
    found: dict[int, list[FailoverEntry]] = {}
    numbers: dict[str, int] = {}
    for name, value in connection.statistics("failovers"):
        numbers[name] = int(value)
        vbucket, _, what = name.removeprefix("vb_").partition(":")
        if what.endswith(":seq"):
            entry = FailoverEntry(numbers[name.removesuffix("seq") + "id"], int(value))
            found.setdefault(int(vbucket), []).append(entry)
    absent = [number for number in vbuckets if number not in found]
    if absent:
        raise NodeError(f"{named(absent)}: not on this node")
    wanted = vbuckets or list(found)
    terms = {number: numbers.get(f"vb_{number}:term", 0) for number in wanted}
    return {number: found[number] for number in wanted}, terms


def _row(number: int, log: list[FailoverEntry], term: int) -> dict[str, object]:
    entries = [{"vb_uuid": str(entry.uuid), "seqno": entry.seqno} for entry in log]
    return {"vbucket": number, "term": term, "entries": entries}
