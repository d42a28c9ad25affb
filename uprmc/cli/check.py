"""``uprmc check``: read everything of a stopped node's data, and say what is damaged."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from uprmc.storage.check import Checked, check_directory

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
