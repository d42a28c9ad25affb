"""``uprmc settings``: what can be set, and what it means."""

from __future__ import annotations

import json
from typing import Any

import click

from uprmc.config import SettingInfo, describe


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def settings(as_json: bool, debug: bool) -> None:
    """List every setting with its default, unit and range."""
    rows = [_row(info) for info in describe()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        limits = "" if row["least"] is None else f", {row['least']} to {row['most']}"
        click.echo(f"{row['name']} = {row['default']!r}  ({row['unit']}{limits})")
        click.echo(f"    {row['help']}")


def _row(info: SettingInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "default": info.default,
        "unit": info.unit,
        "least": info.low,
        "most": info.high,
        "help": info.doc,
    }
