"""``uprmc takeover``: hand vBuckets over from one node to another without losing a write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click

from uprmc.cli.arguments import PLACE, VBUCKETS, seconds
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.replica_node import (
    NodeRefusal,
    Standing,
    command,
    must_be_there,
    replicate,
    state,
    states,
)
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.model import VBucketState
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.management import SET_VBUCKET_EXTRAS
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.replication import Outcome, ReplicateFlag, decode_outcomes, encode_vbuckets
from uprmc.remote.ranges import named


class _Ended(NamedTuple):
    """What became of the vBuckets that were asked for."""

    taken: list[int]
    refused: list[int]
    interrupted: list[int]
    reactivated: list[int]
    why: str


@click.command(name="takeover")
@click.option(
    "--to",
    "target",
    required=True,
    type=PLACE,
    help="The upr listener of the node that takes them over.",
)
@click.option(
    "--vbuckets",
    type=VBUCKETS,
    help="vBuckets to move.  [default: all active ones]",
)
@click.option("--swap", is_flag=True, help="Afterwards make the old node a replica of the new one.")
@click.option(
    "--timeout",
    "timeout_s",
    type=seconds(1.0),
    default="10m",
    show_default=True,
    help="Longest time that the takeover may take.",
)
@talks_to_a_node("Print one JSON object.", timeout=False)
def takeover(
    target: str,
    vbuckets: Sequence[int] | None,
    swap: bool,
    timeout_s: float,
    node: NodeAccess,
    as_json: bool,
) -> None:
    """Move active vBuckets to another node without losing a write.

    The target connects to the address given with --node. No consumer is rolled back. Afterwards
    the vBuckets at the old node are dead, or replicas with --swap. If the takeover is interrupted,
    the old node serves them again.
    """
    with node.connected() as source:
        numbers = _numbers(source, vbuckets)
        with node.at(target, timeout_s).connected() as taker:
            try:
                ended = _take_over(source, taker, numbers)
            except NodeError as error:
                raise NodeError(_unknown(source, target, numbers, error)) from None
        if swap and ended.taken:
            try:
                replicate(source, target, ended.taken, ReplicateFlag(0))
            except NodeError as error:
                _tell(ended, node.place, target, False, as_json)
                raise NodeError(f"{node.place} does not follow {target}: {error}") from None
    _tell(ended, node.place, target, swap, as_json)
    if len(ended.taken) < len(numbers):
        raise NodeError(_what_is_left(ended, node.place))


def _numbers(source: NodeConnection, vbuckets: Sequence[int] | None) -> list[int]:
    found = states(source)
    active = [number for number, state in found.items() if state is VBucketState.ACTIVE]
    if vbuckets is None:
        if not active:
            raise NodeError(f"{source.place} has no active vBuckets: there is nothing to hand over")
        return active
    must_be_there(vbuckets, found, source.place)
    others = set(vbuckets) - set(active)
    if others:
        raise NodeError(f"{named(others)} not active at {source.place}: nothing to hand over")
    return list(vbuckets)


def _take_over(source: NodeConnection, target: NodeConnection, numbers: Sequence[int]) -> _Ended:
    request = RequestFrame(
        Opcode.TAKEOVER, key=source.place.encode(), value=encode_vbuckets(numbers)
    )
    outcomes = decode_outcomes(command(target, request).value)
    found: dict[int, list[int]] = {outcome: [] for outcome in Outcome}
    for number in numbers:
        found[outcomes.get(number, Outcome.REFUSED)].append(number)
    taken, refused, interrupted = (found[outcome] for outcome in Outcome)
    why = Standing.of(target).last_takeover_error if taken != numbers else ""
    again = _reactivated(source, target, interrupted)
    return _Ended(taken, refused, interrupted, again, why)


def _reactivated(
    source: NodeConnection, target: NodeConnection, interrupted: Iterable[int]
) -> list[int]:
    """Let the source serve again what it has given away and nobody has taken."""
    done = []
    for number in interrupted:
        if state(target, number) is VBucketState.ACTIVE:
            continue  # somebody else made it so meanwhile
        if state(source, number) is VBucketState.DEAD:
            extras = SET_VBUCKET_EXTRAS.pack(VBucketState.ACTIVE)
            answer = source.ask(RequestFrame(Opcode.SET_VBUCKET, extras=extras, vbucket=number))
            if answer.status:
                raise NodeError(f"{source.place}: vBucket {number}: {answer.reason}")
            done.append(number)
    return done


def _unknown(source: NodeConnection, target: str, numbers: Sequence[int], error: NodeError) -> str:
    """Say how things stand when the target did not tell."""
    try:
        found = states(source)
    except NodeError:
        return f"{error}; and {source.place} does not answer either"
    given_away = [number for number in numbers if found.get(number) is VBucketState.DEAD]
    if not given_away:
        if isinstance(error, NodeRefusal):
            return f"{error}; nothing has changed, they are active at {source.place}"
        return (
            f"{error}; they are active at {source.place} now; if {target} is only slow, it still "
            f"takes them over: see 'uprmc stats replication --node {target}'"
        )
    return (
        f"{error}; {named(given_away)} dead at {source.place}: see 'uprmc vbucket list --node "
        f"{target}' when it answers; if they are not active there, 'uprmc vbucket set "
        f"NUMBERS active --node {source.place}'"
    )


def _tell(ended: _Ended, node: str, target: str, swap: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(ended._asdict()))
    elif ended.taken:
        after = f"a replica at {node}" if swap else f"dead at {node}"
        click.echo(f"{named(ended.taken)}: active at {target}, {after}")


def _what_is_left(ended: _Ended, node: str) -> str:
    parts = []
    if ended.refused:
        parts.append(f"{named(ended.refused)} refused, still at {node}")
    if ended.interrupted:
        parts.append(f"{named(ended.interrupted)} interrupted, not active at the target")
    if ended.reactivated:
        parts.append(f"{named(ended.reactivated)} active at {node} again, on a new branch")
    return f"{'; '.join(parts)}: {ended.why}"
