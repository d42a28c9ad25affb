"""``uprmc watch``: one document, or those whose keys begin alike, now and whenever they change."""

from __future__ import annotations

import click

from uprmc.cli.arguments import KeyPattern
from uprmc.cli.documents import check_key, client_of
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.tail import Printer, Screen, follow
from uprmc.client.options import Start


@click.command()
@click.argument("key", metavar="KEY|PATTERN")
@click.option("--changes-only", is_flag=True, help="Omit what is there at the start.")
@click.option("--until-now", is_flag=True, help="End after printing what is there at the start.")
@click.option("--once", is_flag=True, help="End when a node or a stream is lost.")
@click.option("--keys-only", is_flag=True, help="Omit values; the node does not send them.")
@talks_to_a_node("Print one JSON object for each change.", several=True)
def watch(
    key: str,
    changes_only: bool,
    until_now: bool,
    once: bool,
    keys_only: bool,
    node: NodeAccess,
    as_json: bool,
) -> int:
    """Print a document, and each change of it, one per line.

    In a PATTERN, * stands for anything: 'user:*' is all keys that begin so. Quote it for the
    shell; \\* is a star. The lines are
    those of "uprmc tail", and it goes on as tail does when a node is lost.
    """
    start: Start = "now" if changes_only else "beginning"
    pattern = KeyPattern(key, whole=True)
    printer = Printer(Screen(json_lines=as_json), wants=pattern.matches)
    vbuckets = [] if pattern.key is None else [_vbucket_of(pattern.key, node)]
    follow(
        node,
        printer,
        vbuckets,
        start,
        until_now=until_now,
        once=once,
        values=not keys_only,
    )
    return 0


def _vbucket_of(key: bytes, node: NodeAccess) -> int:
    check_key(key)
    with client_of(node) as client:
        return client.vbucket_of(key)
