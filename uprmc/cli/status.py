"""``uprmc status``: whether a node is well, in one line and by the exit code."""

from __future__ import annotations

import json
from typing import Any

import click

from uprmc.cli.change_lines import time_text
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import size_text
from uprmc.client.connection import NodeError
from uprmc.errors import UprmcError

_WELL, _UNWELL, _UNREACHABLE = 0, 1, 2

_STATES = ("active", "replica", "pending", "dead")


@click.command()
@talks_to_a_node("Print one JSON object.")
def status(node: NodeAccess, as_json: bool) -> int:
    """Print whether a node is well, and what is wrong.

    Below the first line stands since when each problem has been there, and what to do about it.

    The exit code is 0 if the node is well, 1 if it works and something is wrong, 2 if it cannot be
    reached or does not say. A user needs a role that permits statistics, such as monitor.
    """
    try:
        with node.connected() as connection:
            facts = dict(connection.statistics("health"))
    except NodeError as error:
        if as_json:
            what = {"what": str(error), "since": None, "do": "start it, or name another: --node"}
            _print("failing", [what], {"node": node.place})
            return _UNREACHABLE
        raise Unreachable(str(error)).doubting(error.doubtful_place) from None
    problems = [_problem(facts, number) for number in range(int(facts["problems"]))]
    state = facts["state"]
    if as_json:
        numbers = {name: int(value) for name, value in facts.items() if value.isdecimal()}
        about = {name: value for name, value in numbers.items() if ":" not in name}
        _print(state, problems, {"node": node.place, **about})
    else:
        said = " ".join(each["what"] for each in problems) or _summary(facts)
        click.echo(f"{node.place} {state}: {said}")
        for each in problems:
            click.echo(f"  since {each['since']}: {each['what'].rstrip('.')}: {each['do']}")
    return _WELL if state == "ok" else _UNWELL


def _print(state: str, problems: list[dict[str, Any]], about: dict[str, Any]) -> None:
    click.echo(json.dumps({"state": state, "problems": problems, "node": about}))


class Unreachable(UprmcError):
    """The node does not say how it is."""

    exit_code = _UNREACHABLE


def _problem(facts: dict[str, str], number: int) -> dict[str, Any]:
    what, since, do = (facts[f"problem_{number}:{name}"] for name in ("what", "since", "do"))
    return {"what": what, "since": time_text(int(since)), "do": do}


def _summary(facts: dict[str, str]) -> str:
    vbuckets = [f"{count} {state}" for state in _STATES
                if (count := facts.get(f"vbuckets_{state}", "0")) != "0"]  # fmt: skip
    used, quota = (size_text(int(facts[f"memory_{what}"])) for what in ("used", "quota"))
    return (
        f"{int(facts['items']):,} documents, vBuckets: {', '.join(vbuckets) or 'none'}, "
        f"{used} of {quota}, {facts['connections']} connections"
    )
