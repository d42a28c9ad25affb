"""``uprmc watch``: one document, or those whose keys begin alike, now and whenever they change."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from uprmc.cli.documents import client_of, key_named
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.tail import Printer, Screen, follow
from uprmc.client.options import Start

_ANY = "*"


@click.command()
@click.argument("key", metavar="KEY|PREFIX*")
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

    A KEY that ends in * stands for all keys that begin so; quote it for the shell. The lines are
    those of "uprmc tail", and it goes on as tail does when a node is lost.
    """
    start: Start = "now" if changes_only else "beginning"
    printer = Printer(Screen(json_lines=as_json), wants=_matcher(key))
    vbuckets = [] if key.endswith(_ANY) else [_vbucket_of(key, node)]
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


def _matcher(text: str) -> Callable[[bytes], bool]:
    if text.endswith(_ANY):
        prefix = os.fsencode(text.removesuffix(_ANY))
        return lambda key: key.startswith(prefix)
    name = key_named(text)
    return lambda key: key == name


def _vbucket_of(text: str, node: NodeAccess) -> int:
    with client_of(node) as client:
        return client.vbucket_of(key_named(text))
