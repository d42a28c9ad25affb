"""``uprmc failover``: promote replicas whose active node is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from uprmc.cli.arguments import VBUCKETS
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.replica_node import command, states
from uprmc.client.connection import NodeError
from uprmc.model import VBucketState
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.replication import decode_branches, encode_vbuckets
from uprmc.remote.ranges import named

_FILLED = frozenset({VBucketState.REPLICA, VBucketState.PENDING})


@click.command(name="failover")
@click.option(
    "--vbuckets",
    type=VBUCKETS,
    help="vBuckets to promote.  [default: all replicas of the node]",
)
@talks_to_a_node("Print one JSON list of the new branches.")
def failover(vbuckets: Sequence[int] | None, node: NodeAccess, as_json: bool) -> None:
    """Promote replicas after their active node was lost.

    Each vBucket stops following its source and begins a new branch of history after its last
    complete snapshot. While the active node still works, use 'uprmc takeover': it loses nothing.
    """
    with node.connected() as connection:
        if vbuckets is None:
            vbuckets = [n for n, state in states(connection).items() if state in _FILLED]
            if not vbuckets:
                raise NodeError(f"{node.place} has no replicas: there is nothing to promote")
        request = RequestFrame(Opcode.FAILOVER, value=encode_vbuckets(vbuckets))
        branches = decode_branches(command(connection, request).value)
    if as_json:
        rows = [
            {"vbucket": branch.vbucket, "vb_uuid": str(branch.uuid), "begins_after": branch.seqno}
            for branch in branches
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(f"{named(branch.vbucket for branch in branches)}: active at {node.place}")
