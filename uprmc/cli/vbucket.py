"""``uprmc vbucket``: which vBuckets a node has, in which states; changing and removing them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click

from uprmc.cli.arguments import VBUCKETS
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import table
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.errors import ConfigError
from uprmc.model import VBucketState
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import GET_VBUCKET_REPLY, SET_VBUCKET_EXTRAS
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.json_fields import exact
from uprmc.remote.ranges import named

_STATES = click.Choice([state.name.lower() for state in VBucketState], case_sensitive=False)

#: Value of DEL_VBUCKET: the answer comes when the vBucket is gone from disk.
_WAIT = b"async=0"


_HEADINGS = ("vBucket", "state", "term", "vb_uuid", "high seqno", "persisted", "items")
_WIDTHS = (">7", "<7", ">5", ">15", ">12", ">12", ">10")


class _Row(NamedTuple):
    """What `vbucket list` says of one; the names are those of the JSON."""

    vbucket: int
    state: str
    term: int
    vb_uuid: int
    high_seqno: int
    persisted_seqno: int
    items: int


@click.group()
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def vbucket() -> None:
    """List or remove vBuckets of a node, or change their states."""


# --- list ---------------------------------------------------------------------------------------


@vbucket.command(name="list")
@click.option("--state", "states", type=_STATES, multiple=True, help="Only vBuckets in this state.")
@talks_to_a_node("Print one JSON list.")
def list_(states: tuple[str, ...], node: NodeAccess, as_json: bool) -> None:
    """Print the state, term, seqnos and size of each vBucket.

    The columns are: vBucket, state, term, newest vb_uuid, highest seqno, highest persisted seqno,
    and number of documents.
    """
    with node.connected() as connection:
        details = connection.statistics("vbucket-details")
    numbers = (name.removeprefix("vb_") for name in details if ":" not in name)
    rows = [_row(int(number), details) for number in numbers]
    shown = [row for row in rows if not states or row.state in states]
    if as_json:
        click.echo(json.dumps([exact(row._asdict()) for row in shown], indent=2))
        return
    click.echo(table([_HEADINGS, *shown], _WIDTHS))


def _row(number: int, details: dict[str, str]) -> _Row:
    name = f"vb_{number}"
    of_it = ("term", "uuid", "high_seqno", "persisted_seqno", "num_items")
    return _Row(number, details[name], *(int(details.get(f"{name}:{what}", 0)) for what in of_it))


# --- set and rm ---------------------------------------------------------------------------------


@vbucket.command(name="set")
@click.argument("numbers", type=VBUCKETS)
@click.argument("state", type=_STATES, metavar="STATE")
@talks_to_a_node("Print one JSON object.")
def set_(numbers: Sequence[int], state: str, node: NodeAccess, as_json: bool) -> None:
    """Make vBuckets active, replica, pending or dead.

    A vBucket that does not exist is created. A vBucket that becomes active begins a new branch of
    history: its failover log gets an entry.
    """
    done: list[int] = []
    with node.connected() as connection:
        for number in numbers:
            _set(connection, number, VBucketState[state.upper()], done)
            done.append(number)
    _tell(done, state, as_json)


@vbucket.command(name="rm")
@click.argument("numbers", type=VBUCKETS)
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Wait until they are removed from disk. A node of uprmc always waits.",
)
@click.option("--force", is_flag=True, help="Make vBuckets dead first if they are not.")
@talks_to_a_node("Print one JSON object.")
def rm(numbers: Sequence[int], wait: bool, force: bool, node: NodeAccess, as_json: bool) -> None:
    """Remove dead vBuckets and all their documents.

    If one of them does not exist, none is removed. The same holds if one is not dead, unless you
    give --force.
    """
    done: list[int] = []
    with node.connected() as connection:
        states = _states(connection, numbers)
        lively = [number for number in numbers if states[number] != VBucketState.DEAD]
        if lively and not force:
            raise NodeError(_not_dead(lively, {states[number] for number in lively}))
        for number in numbers:
            if number in lively:
                _set(connection, number, VBucketState.DEAD, done)
            _remove(connection, number, done, wait=wait)
            done.append(number)
    _tell(done, "removed", as_json)


def _states(connection: NodeConnection, numbers: Sequence[int]) -> dict[int, VBucketState]:
    questions = (RequestFrame(Opcode.GET_VBUCKET, vbucket=number) for number in numbers)
    answers = dict(zip(numbers, connection.ask_all(questions), strict=True))
    absent = [n for n, answer in answers.items() if answer.status == Status.NOT_MY_VBUCKET]
    if absent:
        raise NodeError(f"the node does not have {named(absent)}; nothing was removed")
    for number, answer in answers.items():
        _check(answer, f"asking for the state of vBucket {number}", ())
    return {n: VBucketState(*GET_VBUCKET_REPLY.unpack(each.value)) for n, each in answers.items()}


def _not_dead(numbers: Sequence[int], states: Iterable[VBucketState]) -> str:
    found = " or ".join(sorted(state.name.lower() for state in states))
    verb = "is" if len(numbers) == 1 else "are"
    return (
        f"{named(numbers)} {verb} {found} and only dead ones can be removed: "
        "'uprmc vbucket set' them dead first, or say --force"
    )


def _set(connection: NodeConnection, number: int, state: VBucketState, done: Iterable[int]) -> None:
    extras = SET_VBUCKET_EXTRAS.pack(state)
    answer = connection.ask(RequestFrame(Opcode.SET_VBUCKET, extras=extras, vbucket=number))
    if answer.status == Status.RANGE_ERROR:
        raise ConfigError(
            f"vBucket {number} is above the highest number that the node can have{_so_far(done)}"
        )
    _check(answer, f"setting vBucket {number} {state.name.lower()}", done)


def _remove(connection: NodeConnection, number: int, done: Iterable[int], *, wait: bool) -> None:
    value = _WAIT if wait else b""
    answer = connection.ask(RequestFrame(Opcode.DEL_VBUCKET, value=value, vbucket=number))
    if answer.status == Status.TEMPORARY_FAILURE:
        raise NodeError(
            f"vBucket {number} is removed, but not yet from disk: the node keeps trying"
            f"{_so_far(done)}"
        )
    _check(answer, f"removing vBucket {number}", done)


def _check(answer: ResponseFrame, doing: str, done: Iterable[int]) -> None:
    if answer.status:
        raise NodeError(f"{doing} was refused: {answer.reason}{_so_far(done)}")


def _so_far(done: Iterable[int]) -> str:
    numbers = list(done)
    return f" ({named(numbers)} done before)" if numbers else ""


def _tell(numbers: Sequence[int], state: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"vbuckets": numbers, "state": state}))
        return
    click.echo(f"{named(numbers)}: {state}")
