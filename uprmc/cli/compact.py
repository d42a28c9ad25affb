"""``uprmc compact``: purge deletions of a node now, or write a compacted copy of its data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from uprmc.cli.arguments import VBUCKETS
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.errors import ConfigError
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import COMPACT_EXTRAS, COMPACT_REPLY, CompactFlag
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.ranges import named
from uprmc.storage.compacted_copy import copy_compacted

#: A node that is purging may be silent for this long.
_PURGING_S = 3_600.0


class _Row(NamedTuple):
    """What was purged in a vBucket; the names are those of the JSON."""

    vbucket: int
    purge_seqno_before: int
    purge_seqno: int
    dropped: int
    limited_by: str | None


@click.command()
@click.option(
    "--vbuckets", "numbers", type=VBUCKETS, help="Only these vBuckets.  [default: all of the node]"
)
@click.option(
    "--wait", is_flag=True, help="Wait until they are gone from disk, and print what was done."
)
@click.option(
    "--force",
    is_flag=True,
    help="Purge every deletion, whatever its age and whatever registered clients have seen. "
    "Clients that have not seen them start over.",
)
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Purge nothing; write a copy of the data without free pages into this new directory.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="With --to: the data directory to copy.  [default: that of the node]",
)
@talks_to_a_node("Print one JSON object.")
def compact(
    numbers: Sequence[int] | None,
    wait: bool,
    force: bool,
    target: Path | None,
    data: Path | None,
    node: NodeAccess,
    as_json: bool,
) -> None:
    """Purge deletions now that no client needs any more.

    These are deletions that every registered client has seen and that are old enough. A node does
    this by itself every purge.interval_s. With --wait, the columns are: vBucket, purge seqno before
    and after, number of deletions that were dropped, and what keeps the others: the id of a client,
    disk, source, or nothing.

    With --to, this program copies the data directory itself, so it must run on the node's machine.
    The copy is a data directory that begins a new branch of history when a node starts on it;
    consumers continue without a rollback if the node was stopped. To give space back to the file
    system, stop the node, copy, and start it with the copy.
    """
    if target is not None:
        if numbers or wait or force:
            raise ConfigError("--to purges nothing: leave --vbuckets, --wait and --force out")
        _copy(data or _data_of(node), target, as_json)
        return
    if data is not None:
        raise ConfigError("--data goes with --to")
    flags = CompactFlag.FORCE if force else CompactFlag.AGED
    if not wait:
        flags |= CompactFlag.NO_WAIT
    with (replace(node, timeout_s=_PURGING_S) if wait else node).connected() as connection:
        wanted = numbers or _numbers(connection)
        rows = list(_compact(connection, wanted, flags))
    if not wait:
        what = {"vbuckets": list(wanted), "state": "purging"}
        click.echo(json.dumps(what) if as_json else f"{named(wanted)}: purging")
    elif as_json:
        dropped = sum(row.dropped for row in rows)
        click.echo(json.dumps({"vbuckets": [row._asdict() for row in rows], "dropped": dropped}))
    else:
        click.echo("\n".join(_table(rows)))


def _data_of(node: NodeAccess) -> Path:
    with node.connected() as connection:
        return Path(dict(connection.statistics("config"))["ep_dbname"])


def _copy(source: Path, target: Path, as_json: bool) -> None:
    sizes = copy_compacted(source, target)
    if as_json:
        click.echo(json.dumps({"data": str(source), "to": str(target), **sizes._asdict()}))
        return
    click.echo(f"{target}: {sizes.copy_bytes} bytes; {source} has {sizes.source_bytes}")


def _numbers(connection: NodeConnection) -> list[int]:
    names = [name for name, _ in connection.statistics("vbucket")]
    return [int(name.removeprefix("vb_")) for name in names]


def _compact(
    connection: NodeConnection, numbers: Sequence[int], flags: CompactFlag
) -> Iterator[_Row]:
    extras = COMPACT_EXTRAS.pack(0, 0, 0, bytes([flags]) + bytes(6))
    frames = (RequestFrame(Opcode.COMPACT_DB, extras=extras, vbucket=each) for each in numbers)
    for number, answer in zip(numbers, connection.ask_all(frames), strict=True):
        _check(number, answer)
        if not flags & CompactFlag.NO_WAIT:
            start, end, dropped = COMPACT_REPLY.unpack_from(answer.value)
            by = answer.value[COMPACT_REPLY.size :].decode("utf-8", "backslashreplace")
            yield _Row(number, start, end, dropped, by or None)


def _check(number: int, answer: ResponseFrame) -> None:
    if answer.status == Status.NOT_MY_VBUCKET:
        raise NodeError(f"the node does not have vBucket {number}")
    if answer.status == Status.TEMPORARY_FAILURE:
        raise NodeError(
            f"vBucket {number} was not purged: the node is warming up, its disk is full, its "
            "persistence is stopped, or the vBucket started over; try again later"
        )
    if answer.status:
        raise NodeError(f"purging vBucket {number} was refused: {answer.reason}")


def _table(rows: Iterable[_Row]) -> Iterator[str]:
    """Yield a line for each vBucket where anything was dropped or is kept, and the sum."""
    yield _line("vBucket", "before", "after", "dropped", "limited by")
    dropped = 0
    for row in rows:
        dropped += row.dropped
        if row.dropped or row.limited_by:
            yield _line(*row[:4], row.limited_by or "-")
    yield f"{dropped} deletions were purged"


def _line(*cells: object) -> str:
    number, before, after, dropped, by = map(str, cells)
    return f"{number:>7}  {before:>12}  {after:>12}  {dropped:>10}  {by}"
