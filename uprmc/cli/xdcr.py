"""``uprmc xdcr``: links that keep other clusters up to date with this one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import show, table
from uprmc.client.connection import NodeError
from uprmc.errors import ConfigError, InvalidArguments
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.xdcr.spec import assignments

_COLUMNS = ("name", "state", "to", "changes_left", "lag_s", "rate", "error")
_RECORD_COLUMNS = ("kind", "link", "vbucket", "source_seqno", "target_seqno", "created")

_COMPARED_COLUMNS = ("vbucket", "documents", "deleted", "kept", "changed", "keys")

#: Parts of answers that are about vBuckets.
_IN_PORTIONS = ("vbuckets", "own", "received", "transitive")

#: A running reconciliation is asked about this often.
_POLL_S = 0.1

_NAME = click.argument("name", metavar="NAME")


@click.group()
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def xdcr() -> None:
    """Make, list and change links to other clusters.

    A link sends the changes of a node's active vBuckets to a target as they come.
    """


def _command(node: NodeAccess, verb: str, **given: object) -> Any:
    """Have the node carry out a verb; return its answer."""
    request = RequestFrame(Opcode.XDCR, key=verb.encode(), value=json.dumps(given).encode())
    with node.connected() as connection:
        answer = connection.ask(request)
    if answer.status == Status.UNKNOWN_COMMAND:
        raise NodeError("the node knows no links: it is older than this uprmc")
    if answer.status == Status.ACCESS_DENIED:
        raise NodeError(f"the node at {node.place} refuses: {answer.reason}")
    if answer.status:
        why = answer.value.decode("utf-8", "replace") or answer.reason
        raise ConfigError(why) if answer.status == Status.INVALID_ARGUMENTS else NodeError(why)
    return json.loads(answer.value)


def _whole(node: NodeAccess, verb: str, **given: object) -> Any:
    """Ask for an answer that comes in portions; return it in one piece."""
    whole = found = _command(node, verb, **given)
    while (first := found.pop("next", None)) is not None:
        found = _command(node, verb, **given, first=first)
        for name, rows in found.items():
            if name in _IN_PORTIONS:
                whole[name] += rows
    return whole


def _settings(texts: Sequence[str]) -> dict[str, str]:
    try:
        return assignments(texts)
    except InvalidArguments as error:
        raise ConfigError(str(error)) from None


@xdcr.command()
@_NAME
@click.option(
    "--to",
    required=True,
    metavar="HOST:PORT[,HOST:PORT]",
    help="Listeners of the target's nodes, as the node reaches them.",
)
@click.option("--filter-key", default="", metavar="REGEX", help="Send only keys that contain it.")
@click.option("--set", "texts", multiple=True, metavar="KEY=VALUE", help="A setting of the link.")
@click.option(
    "--tls-ca",
    "authorities",
    default="",
    metavar="FILE",
    help="Dial the target with TLS and trust this PEM file in the node's folder xdcr.files.",
)
@click.option("--user", default="", help="Log in to the target as this user.")
@click.option(
    "--password-file", default="", metavar="FILE", help="Its password, in a file of that folder."
)
@talks_to_a_node("Print one JSON object.", own_target=True)
def create(
    name: str,
    to: str,
    filter_key: str,
    texts: Sequence[str],
    authorities: str,
    user: str,
    password_file: str,
    node: NodeAccess,
    as_json: bool,
) -> None:
    """Make a link; it runs at once, and again after restarts."""
    found = _command(
        node,
        "create",
        name=name,
        to=to,
        filter_key=filter_key,
        set=_settings(texts),
        tls_ca=authorities,
        user=user,
        password_file=password_file,
    )
    show(found, as_json, lambda made: f"{made['name']}: made")


@xdcr.command(name="list")
@talks_to_a_node("Print one JSON array.")
def list_(node: NodeAccess, as_json: bool) -> None:
    """List the links of a node."""
    show(_command(node, "list"), as_json, lambda rows: _table(_COLUMNS, rows))


@xdcr.command()
@_NAME
@talks_to_a_node("Print one JSON object.")
def status(name: str, node: NodeAccess, as_json: bool) -> None:
    """Show how far a link is and what it has done.

    It also shows what keeps the link from its work.
    """
    show(_whole(node, "status", name=name), as_json, _status_lines)


@xdcr.command()
@_NAME
@talks_to_a_node("Print one JSON object.")
def pause(name: str, node: NodeAccess, as_json: bool) -> None:
    """Stop sending until the link is resumed; its place is kept."""
    show(_command(node, "pause", name=name), as_json, _state_line)


@xdcr.command()
@_NAME
@talks_to_a_node("Print one JSON object.")
def resume(name: str, node: NodeAccess, as_json: bool) -> None:
    """Send again, after a pause or an error."""
    show(_command(node, "resume", name=name), as_json, _state_line)


@xdcr.command(name="set")
@_NAME
@click.argument("texts", metavar="KEY=VALUE...", nargs=-1, required=True)
@talks_to_a_node("Print one JSON object.")
def set_(name: str, texts: Sequence[str], node: NodeAccess, as_json: bool) -> None:
    """Change settings of a link while it runs."""
    found = _command(node, "set", name=name, set=_settings(texts))
    show(found, as_json, _pairs)


@xdcr.command()
@_NAME
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@talks_to_a_node("Print one JSON object.")
def reconcile(name: str, dry_run: bool, node: NodeAccess, as_json: bool) -> None:
    """Delete at the target what is no longer here.

    That is what was deleted here and purged before it was sent. Documents that the target has from
    elsewhere are kept. Afterwards a link that has stopped in state needs_reconcile runs again. The
    columns are: vBucket; documents of the target; of these, those that are deleted, those that this
    node does not have and that are kept, and those that were changed meanwhile; and the first 100
    keys that are deleted.
    """
    found = _command(node, "reconcile", name=name, dry_run=dry_run)
    rows = found["vbuckets"]
    while found["running"] or len(rows) < found["done"]:
        if len(rows) == found["done"]:
            time.sleep(_POLL_S)
        found = _command(node, "reconciled", name=name, first=len(rows))
        rows += found["vbuckets"]
    show({**found, "vbuckets": rows}, as_json, _compared_lines)
    if found["error"]:
        raise NodeError(f"{found['error']}; {found['done']} of {found['of']} vBuckets are done")


@xdcr.command()
@_NAME
@talks_to_a_node("Print one JSON object.")
def delete(name: str, node: NodeAccess, as_json: bool) -> None:
    """Delete a link and its checkpoints.

    The target keeps its documents.
    """
    found = _command(node, "delete", name=name)
    show(found, as_json, lambda gone: f"{gone['name']}: deleted")


@xdcr.command()
@_NAME
@talks_to_a_node("Print one JSON object.")
def checkpoint(name: str, node: NodeAccess, as_json: bool) -> None:
    """Write a checkpoint now."""
    show(_command(node, "checkpoint", name=name), as_json, _state_line)


@xdcr.command()
@click.argument("name", metavar="[NAME]", required=False, default="")
@talks_to_a_node("Print one JSON object.")
def checkpoints(name: str, node: NodeAccess, as_json: bool) -> None:
    """List the checkpoints of a link, or of all.

    Of all links it also lists those that others have left here.
    """
    found = _whole(node, "checkpoints", name=name)
    kinds = ("own",) if name else ("own", "received", "transitive")
    show(found, as_json, lambda value: _table(_RECORD_COLUMNS, _records_of(value, kinds)))


# --- for people ---------------------------------------------------------------------------------


def _state_line(link: dict[str, Any]) -> str:
    return f"{link['name']}: {link['state']}, {link['changes_left']} changes left"


def _records_of(found: dict[str, Any], kinds: Iterable[str]) -> list[dict[str, Any]]:
    """Return checkpoints as rows; those of other nodes name the link by its id, and no time."""
    return [
        {"created": "", **row, "kind": kind, "link": row.get("link") or row["link_id"]}
        for kind in kinds
        for row in found[kind]
    ]


def _pairs(values: dict[str, Any]) -> str:
    return "\n".join(f"{name:<24}{value}" for name, value in values.items())


def _status_lines(link: dict[str, Any]) -> str:
    vbuckets = link.pop("vbuckets")
    streaming = sum(each["streaming"] for each in vbuckets)
    settings = ", ".join(f"{name}={value}" for name, value in link.pop("settings").items())
    nodes = "; ".join(_node_text(each) for each in link.pop("nodes"))
    plain = {name: _plain(value) for name, value in link.items()}
    more = {
        "nodes": nodes,
        "settings": settings,
        "vbuckets": f"{streaming} of {len(vbuckets)} sent",
    }
    return _pairs({**plain, **more})


def _node_text(node: dict[str, Any]) -> str:
    if node["connected"]:
        return f"{node['place']} connected"
    return f"{node['place']} not connected: {node['error'] or 'no answer so far'}"


def _compared_lines(found: dict[str, Any]) -> str:
    rows = [{**row, "keys": " ".join(row["keys"])} for row in found["vbuckets"]]
    return _table(_COMPARED_COLUMNS, rows)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return str(value)


def _table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    return table([columns, *([row[name] for name in columns] for row in rows)])
