"""``uprmc keys``: the keys of a node's documents, as they are at one moment."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from itertools import islice

import click

from uprmc.cli.arguments import KeyPattern, whole
from uprmc.cli.change_lines import time_text
from uprmc.cli.documents import client_of
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import readable
from uprmc.client.handler import Change
from uprmc.client.lease import Lease
from uprmc.consume.json_fields import text_or_base64

#: A lease is for so long, and renewed while keys are printed.
_LEASE_S = 60.0


@click.command()
@click.argument("pattern", default="")
@click.option("--limit", type=whole(least=1), help="Print no more keys than this.")
@click.option("--count", is_flag=True, help="Print only how many there are.")
@talks_to_a_node("Print one JSON object for each key.", several=True)
def keys(pattern: str, limit: int | None, count: bool, node: NodeAccess, as_json: bool) -> None:
    """Print the keys of documents.

    With PATTERN, only some are printed: 'user:*' those that begin so, '*:1' those that end so. A
    PATTERN without * is how keys begin, too; \\* is a star. Quote it for the shell.

    Each node is read as it is at one moment, from a lease, however many documents it has. The
    order is that of the last changes within each vBucket. Where a vBucket is active on no node that
    answers, nothing is printed, and the exit code is 1.
    """
    with closing(_found(node, KeyPattern(pattern, whole=False))) as found:
        some = islice(found, limit)
        if count:
            number = sum(1 for _ in some)
            click.echo(json.dumps({"count": number}) if as_json else number)
            return
        for change in some:
            click.echo(_line(change, as_json))


def _found(node: NodeAccess, pattern: KeyPattern) -> Generator[Change, None, None]:
    with client_of(node) as client:
        groups = client.by_place()
    for place, numbers in groups.items():
        lease = Lease(
            place,
            numbers,
            _LEASE_S,
            tls=node.tls,
            credentials=node.credentials,
            timeout_s=node.timeout_s,
        )
        with lease, closing(lease.read(values=False, renews=True)) as changes:
            for change in changes:
                if change.op == "set" and pattern.matches(change.key):
                    yield change


def _line(change: Change, as_json: bool) -> str:
    if not as_json:
        return readable(change.key)
    expires = time_text(change.expiry) if change.expiry else None
    place = {"vbucket": change.vbucket, "seqno": change.seqno}
    return json.dumps({**text_or_base64("key", change.key), **place, "expires": expires})
