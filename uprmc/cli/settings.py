"""``uprmc settings``: what can be set, what it means, and what is in force and why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from uprmc.cli.arguments import from_pairs
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeError
from uprmc.config import DEFAULT, SettingInfo, describe, load_with_origins, values_of
from uprmc.config.described import sample


@click.command()
@click.option(
    "--effective", is_flag=True, help="Show the value of each setting and where it comes from."
)
@click.option("--sample", "as_sample", is_flag=True, help="Print a configuration file.")
@click.option(
    "--config", type=click.Path(path_type=Path), help="With --effective: TOML file with settings."
)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="With --effective: a change."
)
@talks_to_a_node("Print one JSON list.")
def settings(
    effective: bool,
    as_sample: bool,
    config: Path | None,
    changes: tuple[str, ...],
    node: NodeAccess,
    as_json: bool,
) -> None:
    """List every setting with its default, unit and range.

    With --effective it shows what 'uprmc serve' would use with the same --config, --set and
    environment, or with --node what a running node uses.
    """
    asked = _says("places")
    if (asked or config or changes) and not effective:
        raise click.UsageError("--node, --config and --set need --effective")
    if as_sample:
        click.echo(sample(), nl=False)
    elif effective:
        rows = _of_node(node) if asked else _of_sources(config, changes)
        _print_values(rows, as_json)
    else:
        _print_all(as_json)


def _says(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source is ParameterSource.COMMANDLINE


#: A setting of every node; memcached takes both groups for its own settings.
_SURE = "server.upr"

Rows = list[dict[str, Any]]


def _of_sources(config: Path | None, changes: tuple[str, ...]) -> Rows:
    given = from_pairs(changes)
    names = dict.fromkeys(given, "--set")
    found, origins = load_with_origins(config, os.environ, given, names)
    return [
        {"name": name, "value": value, "origin": origins.get(name, DEFAULT)}
        for name, value in values_of(found)
    ]


def _of_node(node: NodeAccess) -> Rows:
    with node.connected() as connection:
        values = connection.statistics("settings-uprmc")
        origins = connection.statistics("settings-origins")
    if _SURE not in origins:
        raise NodeError(f"{node.place} does not tell where its settings come from")
    return [
        {"name": name, "value": values[name], "origin": origin} for name, origin in origins.items()
    ]


def _print_values(rows: Rows, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    texts = [(f"{row['name']} = {_text(row['value'])}", row["origin"]) for row in rows]
    width = min(60, max(len(text) for text, _ in texts))
    for text, origin in texts:
        click.echo(f"{text:<{width}}  ({origin})")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "(empty)"


def _print_all(as_json: bool) -> None:
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
