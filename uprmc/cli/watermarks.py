"""``uprmc watermarks``: which clients a node keeps deletions for; to register and remove some."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from uprmc.cli.arguments import VBUCKETS, seconds, whole
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.replicas import states
from uprmc.cli.shown import readable, table, time_text
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.connecting import own_name
from uprmc.errors import ConfigError
from uprmc.model import VBucketState
from uprmc.protocol.control import MANAGE, WATERMARKS
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode, OpenFlag, Status
from uprmc.protocol.upr import OPEN_EXTRAS
from uprmc.protocol.watermarks import (
    ID_MAX_BYTES,
    KIND_NAMES,
    OP_REMOVE,
    OP_SET,
    ReportExtras,
    encode_report,
)
from uprmc.remote.ranges import named

_NUMBERS = ("watermark", "reported_at", "expires_in_s", "pinned_tombstones", "pinned_bytes")
_OF_VBUCKET = ("high_seqno", "purge_seqno", "limit", "tombstones", "tombstone_bytes")
_NUMBERS_OR_NONE = ("floor", "expires_at")

_PINNED = ("pinned_tombstones", "pinned_bytes")
_COLUMNS = (
    *("client", "kind", "vBuckets", "building", "limits", "behind", "pinned", "pinned_bytes"),
    *("reported", "expires", "id"),
)

_WIDTHS = ("<36", "<9", ">8", ">8", ">6", ">12", ">10", ">12", "<20", "<20", "")

_OF_EACH = ("vBucket", "high", "purged", "limit", "client", "kind", "watermark", "floor")
_WIDTHS_OF_EACH = (">7", ">12", ">12", ">12", "<24", "<9", ">12", ">12")

_WHICH = click.option(
    "--vbuckets", type=VBUCKETS, help="Only these vBuckets.  [default: all that are active]"
)

_REASONS = {
    Status.RANGE_ERROR: "the seqno is above the high seqno",
    Status.NOT_MY_VBUCKET: "it is not active there",
    Status.KEY_NOT_FOUND: "it has no such row",
    Status.ROLLBACK: "deletions above the seqno have been purged",
}


@click.group()
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def watermarks() -> None:
    """List and change the clients that a node keeps deletions for."""


@watermarks.command(name="list")
@click.option("--vbuckets", type=VBUCKETS, help="Only these vBuckets.  [default: all]")
@talks_to_a_node("Print one JSON object.")
def list_(vbuckets: Sequence[int] | None, node: NodeAccess, as_json: bool) -> None:
    """Print the clients that deletions are kept for.

    With --vbuckets it shows how far each vBucket may be purged.

    Without --vbuckets the columns are: client (its name if it has one, else its id), kind,
    number of its vBuckets, of those that it builds from zero, of those in which it is what holds
    the purge back, changes that it has not reported as stored, deletions that only it keeps and
    their bytes, its last report, when it expires, and its id if it has a name.
    """
    with node.connected() as connection:
        found = [_vbucket(*each) for each in _by_vbucket(connection)]
    missing = sorted({*(vbuckets or ())} - {each["vbucket"] for each in found})
    if missing:
        raise NodeError(f"the node does not have {named(missing)}")
    shown = [each for each in found if vbuckets is None or each["vbucket"] in vbuckets]
    if as_json:
        click.echo(json.dumps({"vbuckets": shown}, indent=2))
    elif vbuckets is None:
        click.echo(table([_COLUMNS, *_by_client(shown)], _WIDTHS))
    else:
        click.echo(table([_OF_EACH, *_each(shown)], _WIDTHS_OF_EACH))


def _by_client(vbuckets: Iterable[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each client."""
    rows: dict[tuple[str, str], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for each in vbuckets:
        for row in each["rows"]:
            rows.setdefault((row["id"], row["kind"]), []).append((each, row))
    for (name, kind), found in sorted(rows.items()):
        builds = sum(row["floor"] is not None for _, row in found)
        limits = sum(each["limited_by"] == name for each, _ in found)
        behind = sum(each["high_seqno"] - row["watermark"] for each, row in found)
        pinned = [sum(row[what] for _, row in found) for what in _PINNED]
        reported = time_text(max(row["reported_at"] for _, row in found))
        ends = [row["expires_at"] for _, row in found if row["expires_at"] is not None]
        expires = time_text(min(ends)) if ends else "never"
        shown = found[0][1]["name"] or name
        facts = (len(found), builds, limits, behind, *pinned, reported, expires)
        yield (shown, kind, *facts, name if shown != name else "")


def _each(vbuckets: Iterable[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each client of each vBucket, or for a vBucket without any."""
    for each in vbuckets:
        limits = [each[name] for name in ("vbucket", "high_seqno", "purge_seqno", "limit")]
        for row in each["rows"] or [{}]:
            name = row.get("name") or row.get("id")
            about = [name, *(row.get(what) for what in ("kind", "watermark", "floor"))]
            yield (*limits, *("" if cell is None else cell for cell in about))


def _told_name(meta: str) -> str | None:
    """Return the name that people know a client by, ``None`` = it has told none."""
    try:
        name = json.loads(b64decode(meta))["name"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return readable(name.encode()) if isinstance(name, str) and name else None


def _by_vbucket(connection: NodeConnection) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each vBucket and what the statistics say of it."""
    found: dict[int, dict[str, str]] = {}
    for name, value in connection.statistics("watermarks").items():
        vbucket, _, what = name.partition(":")
        found.setdefault(int(vbucket.removeprefix("vb_")), {})[what] = value
    yield from sorted(found.items())


def _vbucket(number: int, facts: dict[str, str]) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    for name, value in facts.items():
        if name.startswith("row_"):
            of, _, what = name.removeprefix("row_").rpartition(":")
            rows.setdefault(of, {"id": of})[what] = _value(what, value)
    for row in rows.values():
        row["name"] = _told_name(row.get("meta", ""))
    return {
        "vbucket": number,
        **{name: int(facts[name]) for name in _OF_VBUCKET},
        "limited_by": facts["limited_by"] or None,
        "incomplete": facts.get("incomplete") == "true",
        "rows": list(rows.values()),
    }


def _value(what: str, text: str) -> Any:
    if what in _NUMBERS_OR_NONE:
        return int(text) if text else None
    return int(text) if what in _NUMBERS else text


# --- set and remove -----------------------------------------------------------------------------


@watermarks.command(name="set")
@click.argument("name", metavar="ID")
@click.option("--kind", type=click.Choice(KIND_NAMES), required=True, help="What the client is.")
@click.option("--seqno", type=whole(most=2**64 - 1), required=True, help="What it has on disk.")
@_WHICH
@click.option(
    "--expires",
    type=seconds(1),
    help="Forget it after this long without a report; at most the default of its kind.",
)
@talks_to_a_node("Print one JSON object.")
def set_(
    name: str,
    kind: str,
    seqno: int,
    vbuckets: Sequence[int] | None,
    expires: float | None,
    node: NodeAccess,
    as_json: bool,
) -> None:
    """Register a client by hand, or report for it.

    Deletions above its seqno are kept until it expires or is removed. For tools without a library.
    """
    report = ReportExtras(seqno, int(expires or 0), KIND_NAMES.index(kind), OP_SET)
    _send(node, name, report, vbuckets, as_json)


@watermarks.command(name="remove")
@click.argument("name", metavar="ID")
@_WHICH
@talks_to_a_node("Print one JSON object.")
def remove(name: str, vbuckets: Sequence[int] | None, node: NodeAccess, as_json: bool) -> None:
    """Remove a registered client: nothing is kept for it any longer."""
    _send(node, name, ReportExtras(0, 0, 0, OP_REMOVE), vbuckets, as_json)


def _send(
    node: NodeAccess,
    name: str,
    report: ReportExtras,
    vbuckets: Sequence[int] | None,
    as_json: bool,
) -> None:
    if not 1 <= len(name.encode()) <= ID_MAX_BYTES:
        raise ConfigError(f"an id has 1 to {ID_MAX_BYTES} bytes, not {len(name.encode())}")
    extras, done, refused = encode_report(report), [], {}
    with node.connected() as connection:
        numbers = _chosen(connection, name, report.op) if vbuckets is None else vbuckets
        _open(connection)
        requests = [
            RequestFrame(Opcode.HWT_REPORT, key=name.encode(), extras=extras, vbucket=number)
            for number in numbers
        ]
        for request, answer in zip(requests, connection.ask_all(requests), strict=True):
            if answer.status:
                refused[request.vbucket] = answer
            else:
                done.append(request.vbucket)
    done.sort()
    if refused:
        raise NodeError(_complaint(refused, done))
    what = "removed" if report.op == OP_REMOVE else "set"
    click.echo(
        json.dumps({"vbuckets": done, "id": name, "done": what})
        if as_json
        else f"{name}: {what} in {named(done) if done else 'no vBucket'}"
    )


def _chosen(connection: NodeConnection, name: str, op: int) -> list[int]:
    """Return the vBuckets that are active, or those with such a row if it is to be removed."""
    if op == OP_SET:
        found = states(connection)
        return [number for number, state in found.items() if state is VBucketState.ACTIVE]
    begin = f"row_{name}:"
    rows = [
        number
        for number, facts in _by_vbucket(connection)
        if any(fact.startswith(begin) for fact in facts)
    ]
    if not rows:
        raise NodeError(f"no vBucket has a row {name!r}: say an id, as 'watermarks list' shows it")
    return rows


def _open(connection: NodeConnection) -> None:
    for request in (
        RequestFrame(
            Opcode.UPR_OPEN,
            key=own_name("uprmc-watermarks").encode(),
            extras=OPEN_EXTRAS.pack(0, OpenFlag.PRODUCER),
        ),
        RequestFrame(Opcode.UPR_CONTROL, key=WATERMARKS, value=MANAGE),
    ):
        answer = connection.ask(request)
        if answer.status:
            if answer.status == Status.ACCESS_DENIED:
                raise NodeError(f"the node refuses: {answer.reason}")
            raise NodeError(f"the node knows no watermarks: {answer.reason}")


def _complaint(refused: dict[int, ResponseFrame], done: Sequence[int]) -> str:
    answer = next(iter(refused.values()))
    reason = _REASONS.get(Status(answer.status), answer.reason)
    after = f" ({named(done)} done)" if done else ""
    return f"{named(sorted(refused))} refused it: {reason}{after}"
