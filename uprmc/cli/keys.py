"""``uprmc keys`` and ``uprmc dump``: what a node has, as it is at one moment."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path

import click

from uprmc.cli.arguments import KeyPattern, whole
from uprmc.cli.change_lines import time_text
from uprmc.cli.documents import client_of
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import readable
from uprmc.client.handler import Change
from uprmc.client.lease import Lease
from uprmc.errors import ConfigError
from uprmc.jobs.files import whole_file
from uprmc.remote.json_fields import exact, text_or_base64

_EPILOG = """\b
Examples:
  uprmc dump > documents.jsonl
  uprmc dump 'user:*' --node 10.0.0.2
  uprmc load documents.jsonl --flags flags --ttl ttl
"""

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
    with closing(_found(node, KeyPattern(pattern, whole=False), values=False)) as found:
        some = islice(found, limit)
        if count:
            number = sum(1 for _ in some)
            click.echo(json.dumps({"count": number}) if as_json else number)
            return
        for change in some:
            click.echo(_line(change, as_json))


@click.command(epilog=_EPILOG)
@click.argument("pattern", default="")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to FILE, which is there when all is in it, or not at all.",
)
@talks_to_a_node("Has no effect: the lines are JSON anyway.", several=True)
def dump(pattern: str, out: Path | None, node: NodeAccess, as_json: bool) -> None:
    """Print documents as lines of JSON.

    They are as at one moment. With PATTERN, only some are printed, as "uprmc keys" takes it. Keys
    and values are texts; what is no UTF-8 is Base64, and key_encoding or value_encoding says so.
    "uprmc load" reads such lines.

    Each node is read from a lease. Where a vBucket is active on no node that answers, nothing is
    printed, and the exit code is 1.
    """
    with ExitStack() as stack:
        found = stack.enter_context(
            closing(_found(node, KeyPattern(pattern, whole=False), values=True))
        )
        file = None
        if out is not None:
            try:
                path = stack.enter_context(whole_file(out))
                file = stack.enter_context(path.open("w", encoding="utf-8"))
            except OSError as error:
                raise ConfigError(f"--out {out}: {error.strerror}") from None
        for change in found:
            click.echo(_document(change, time.time()), file=file)


def _document(change: Change, now: float) -> str:
    fields = {
        **text_or_base64("key", change.key),
        **text_or_base64("value", change.value),
        "flags": change.flags,
        "ttl": max(1, math.ceil(change.expiry - now)) if change.expiry else 0,
        **exact({"cas": change.cas}),
        "rev": change.rev,
    }
    return json.dumps(fields, ensure_ascii=False)


def _found(node: NodeAccess, pattern: KeyPattern, *, values: bool) -> Generator[Change, None, None]:
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
        with lease, closing(lease.read(values=values, renews=True)) as changes:
            for change in changes:
                if change.op == "set" and pattern.matches(change.key):
                    yield change


def _line(change: Change, as_json: bool) -> str:
    if not as_json:
        return readable(change.key)
    expires = time_text(change.expiry) if change.expiry else None
    place = {"vbucket": change.vbucket, "seqno": change.seqno}
    return json.dumps({**text_or_base64("key", change.key), **place, "expires": expires})
