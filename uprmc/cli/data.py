"""``uprmc compact``, ``check`` and ``data``: what is in data directories."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from uprmc.cli.arguments import VBUCKETS
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.replicas import states
from uprmc.cli.shown import table
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.errors import ConfigError
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import COMPACT_EXTRAS, COMPACT_REPLY, CompactFlag
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.ranges import named
from uprmc.server.system import SystemEntropy
from uprmc.storage.check import Checked, check_directory
from uprmc.storage.compacted_copy import copy_compacted
from uprmc.storage.directory import begin_new_history

# --- compact --------------------------------------------------------------------------------------


#: A node that is purging may be silent for this long.
_PURGING_S = 3_600.0


_HEADINGS = ("vBucket", "before", "after", "dropped", "limited by")


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
        wanted = numbers or list(states(connection))
        rows = list(_compact(connection, wanted, flags))
    if not wait:
        what = {"vbuckets": list(wanted), "state": "purging"}
        click.echo(json.dumps(what) if as_json else f"{named(wanted)}: purging")
        return
    dropped = sum(row.dropped for row in rows)
    if as_json:
        click.echo(json.dumps({"vbuckets": [row._asdict() for row in rows], "dropped": dropped}))
    else:
        purged = [
            (*row[:4], row.limited_by or "-") for row in rows if row.dropped or row.limited_by
        ]
        click.echo(table([_HEADINGS, *purged], (">7", ">12", ">12", ">10", "")))
        click.echo(f"{dropped} deletions were purged")


def _data_of(node: NodeAccess) -> Path:
    with node.connected() as connection:
        return Path(connection.statistics("config")["ep_dbname"])


def _copy(source: Path, target: Path, as_json: bool) -> None:
    sizes = copy_compacted(source, target)
    if as_json:
        click.echo(json.dumps({"data": str(source), "to": str(target), **sizes._asdict()}))
        return
    click.echo(f"{target}: {sizes.copy_bytes} bytes; {source} has {sizes.source_bytes}")


def _compact(
    connection: NodeConnection, numbers: Sequence[int], flags: CompactFlag
) -> Iterator[_Row]:
    extras = COMPACT_EXTRAS.pack(0, 0, 0, bytes([flags]) + bytes(6))
    frames = (RequestFrame(Opcode.COMPACT_DB, extras=extras, vbucket=each) for each in numbers)
    for number, answer in zip(numbers, connection.ask_all(frames), strict=True):
        _check_purged(number, answer)
        if not flags & CompactFlag.NO_WAIT:
            start, end, dropped = COMPACT_REPLY.unpack_from(answer.value)
            by = answer.value[COMPACT_REPLY.size :].decode("utf-8", "backslashreplace")
            yield _Row(number, start, end, dropped, by or None)


def _check_purged(number: int, answer: ResponseFrame) -> None:
    if answer.status == Status.NOT_MY_VBUCKET:
        raise NodeError(f"the node does not have vBucket {number}")
    if answer.status == Status.TEMPORARY_FAILURE:
        raise NodeError(
            f"vBucket {number} was not purged: the node is warming up, its disk is full, its "
            "persistence is stopped, or the vBucket started over; try again later"
        )
    if answer.status:
        raise NodeError(f"purging vBucket {number} was refused: {answer.reason}")


# --- check ----------------------------------------------------------------------------------------


#: Damaged records that are shown one by one.
_SHOWN = 20


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def check(directory: Path, as_json: bool, debug: bool) -> int:
    """Read everything in the data directory of a stopped node.

    Each record is compared with its checksum, the two indexes with each other, and the pages of the
    file with what they must be. The exit code is 1 if anything is damaged, and 2 if the directory
    cannot be checked. Nothing is changed.
    """
    found = check_directory(directory)
    if as_json:
        click.echo(json.dumps(_as_json(found)))
    else:
        click.echo("\n".join(_lines(directory, found)))
    return 0 if found.is_sound else 1


def _as_json(found: Checked) -> dict[str, Any]:
    damaged = [{**each._asdict(), "key": _text(each.key)} for each in found.damaged]
    files = [asdict(each) for each in found.files]
    return {"records": found.records, "damaged": damaged, "files": files}


def _lines(directory: Path, found: Checked) -> list[str]:
    lines = [f"{directory / file.name}: {damage}" for file in found.files for damage in file.damage]
    for number, seqno, key in found.damaged[:_SHOWN]:
        lines.append(f"damaged: {_text(key)} (vBucket {number}, seqno {seqno})")
    if len(found.damaged) > _SHOWN:
        lines.append(f"... and {len(found.damaged) - _SHOWN} more (--json has all)")
    lines.append(f"{directory}: {found.records} records, {len(found.damaged)} of them damaged")
    return lines


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


# --- data -----------------------------------------------------------------------------------------


@click.group()
def data() -> None:
    """Work on a data directory while no node runs on it."""


@data.command("new-history")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
def new_history(directory: Path) -> None:
    """Let a data directory that was restored begin a new history.

    A node recognises by itself that its data directory is a copy, or an older state that was put
    back. It cannot if all files of the directory were put back in place, or the entire disk was
    copied. Then run this before you start the node: the bucket gets a new uuid, and each active
    vBucket begins a new branch, so that consumers do not take new changes for old ones.
    """
    uuid = SystemEntropy().uuid48()
    begin_new_history(directory, uuid)
    click.echo(f"{directory}: a new history begins when a node starts on it; uuid {uuid:032x}")
