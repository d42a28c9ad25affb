"""``uprmc replicate``, ``takeover``, ``failover``, ``failover-log``: who follows, who is active."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import click

from uprmc.cli.arguments import PLACE, VBUCKETS, each_once, seconds
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import table
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.errors import ConfigError
from uprmc.model import FailoverEntry, VBucketState
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import GET_VBUCKET_REPLY, SET_VBUCKET_EXTRAS
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.replication import (
    REPLICATE_EXTRAS,
    Outcome,
    ReplicateFlag,
    decode_branches,
    decode_outcomes,
    encode_vbuckets,
)
from uprmc.remote.ranges import named

# --- what a node says -----------------------------------------------------------------------------


class NodeRefusal(NodeError):
    """The node has answered, and refused."""


class FollowedSource(NamedTuple):
    """One vBucket that follows a source, as the node's statistics have it."""

    source: str
    state: str
    lag_items: int
    known: bool
    error: str

    @property
    def level(self) -> bool:
        """Whether it streams and lacks nothing that its source is known to have."""
        return self.state == "streaming" and self.known and not self.lag_items


class NodeReplication(NamedTuple):
    """A node's replication."""

    numbers: dict[str, str]
    following: dict[int, FollowedSource]

    @classmethod
    def of(cls, connection: NodeConnection) -> Self:
        """Ask the node; raises `NodeError`."""
        numbers = connection.statistics("replication")
        found = [
            int(name.removeprefix("vb_").removesuffix(":source"))
            for name in numbers
            if name.startswith("vb_") and name.endswith(":source")
        ]
        return cls(numbers, {number: _following(numbers, f"vb_{number}") for number in found})

    @property
    def last_takeover_error(self) -> str:
        """Why the last vBucket that was not taken was not."""
        return self.numbers.get("last_takeover_error", "")

    def of_source(self, place: str, name: str) -> str:
        """Return what is said of a source, ``""`` for one that is not followed."""
        return self.numbers.get(f"source_{place}:{name}", "")

    def trouble(self, place: str, vbuckets: Iterable[int]) -> str:
        """Return why vBuckets do not stream from a source, ``""`` if nothing is known."""
        errors = {one.error for number in vbuckets if (one := self.following.get(number))}
        line = "" if self.of_source(place, "state") == "open" else "last_error"
        return (line and self.of_source(place, line)) or min(errors - {""}, default="")


def _following(numbers: dict[str, str], name: str) -> FollowedSource:
    return FollowedSource(
        numbers[f"{name}:source"],
        numbers[f"{name}:state"],
        int(numbers[f"{name}:lag_items"]),
        bool(numbers[f"{name}:source_seqno"]),
        numbers[f"{name}:error"],
    )


def states(connection: NodeConnection) -> dict[int, VBucketState]:
    """Return the state of every vBucket that the node has."""
    return {
        int(name.removeprefix("vb_")): VBucketState[state.upper()]
        for name, state in connection.statistics("vbucket").items()
    }


def state(connection: NodeConnection, number: int) -> VBucketState | None:
    """Return one vBucket's state, ``None`` where it is not."""
    answer = connection.ask(RequestFrame(Opcode.GET_VBUCKET, vbucket=number))
    if answer.status == Status.NOT_MY_VBUCKET:
        return None
    if answer.status:
        raise NodeError(f"{connection.place}: asking for vBucket {number}: {answer.reason}")
    try:
        return VBucketState(*GET_VBUCKET_REPLY.unpack(answer.value))
    except (struct.error, ValueError):
        raise NodeError(f"{connection.place} says {answer.value!r} of vBucket {number}") from None


def replicate(
    connection: NodeConnection, source: str, numbers: Iterable[int], flags: ReplicateFlag
) -> None:
    """Have a node follow a source, or nobody; raises `NodeError`."""
    command(
        connection,
        RequestFrame(
            Opcode.REPLICATE,
            extras=REPLICATE_EXTRAS.pack(flags),
            key=source.encode(),
            value=encode_vbuckets(numbers),
        ),
    )


def command(connection: NodeConnection, request: RequestFrame) -> ResponseFrame:
    """Ask and return the answer; a refusal is a `NodeRefusal` in the node's own words."""
    answer = connection.ask(request)
    if answer.status == Status.UNKNOWN_COMMAND:
        raise NodeRefusal(f"{connection.place} does not know this command: is it an older uprmc?")
    if answer.status:
        raise NodeRefusal(f"{connection.place}: {answer.reason}")
    return answer


def must_be_there(numbers: Iterable[int], there: Iterable[int], place: str) -> None:
    """Raise `NodeError` if some vBuckets are not on a node."""
    absent = set(numbers) - set(there)
    if absent:
        raise NodeError(f"{place} does not have {named(absent)}")


# --- replicate ------------------------------------------------------------------------------------


_POLL_S = 0.05

#: So long the verb looks whether the source is reached, without `--wait`.
_GLANCE_S = 3.0


@click.command(name="replicate")
@click.option(
    "--source",
    type=PLACE,
    help="The upr listener of the source; the node dials this address.",
)
@click.option(
    "--vbuckets",
    type=VBUCKETS,
    help="vBuckets that follow the source.  [default: all]",
)
@click.option("--stop", is_flag=True, help="Stop following the source, and keep the data.")
@click.option("--demote", is_flag=True, help="Also demote active vBuckets that hold changes.")
@click.option("--wait", is_flag=True, help="Wait until the replica has caught up.")
@click.option(
    "--timeout",
    "timeout_s",
    type=seconds(),
    default="10m",
    show_default=True,
    help="Longest time to wait with --wait.",
)
@talks_to_a_node("Print one JSON object.", timeout=False)
def replicate_verb(
    source: str | None,
    vbuckets: Sequence[int] | None,
    stop: bool,
    demote: bool,
    wait: bool,
    timeout_s: float,
    node: NodeAccess,
    as_json: bool,
) -> None:
    """Make a node follow another node as its replica.

    The node remembers its source over restarts. Its vBuckets become replicas at once. An active
    vBucket that holds changes is refused unless you give --demote: its changes that the source
    lacks are then undone.
    """
    if stop == bool(source):
        raise ConfigError("say either --source HOST:PORT or --stop")
    if stop and (demote or wait):
        raise ConfigError("only --vbuckets can be combined with --stop")
    flags = ReplicateFlag.STOP if stop else ReplicateFlag.DEMOTE if demote else ReplicateFlag(0)
    with node.connected() as connection:
        replicate(connection, source or "", vbuckets or (), flags)
        if source is None:
            _tell_followers(NodeReplication.of(connection), vbuckets, as_json)
            return
        standing = _settled(connection, source, vbuckets, timeout_s if wait else _GLANCE_S, wait)
    trouble = standing.trouble(source, _chosen(standing, source, vbuckets))
    if not trouble and standing.of_source(source, "state") == "connecting":
        trouble = "no answer so far"
    if trouble and not wait:
        click.echo(
            f"uprmc: {source} does not send data yet: {trouble} (the node keeps trying)", err=True
        )
    _tell_followers(standing, vbuckets, as_json)


def _chosen(standing: NodeReplication, source: str, vbuckets: Sequence[int] | None) -> list[int]:
    """Return those of the vBuckets asked for that follow the source."""
    followers = [n for n, one in standing.following.items() if one.source == source]
    return followers if vbuckets is None else sorted(set(followers) & set(vbuckets))


def _settled(
    connection: NodeConnection,
    source: str,
    vbuckets: Sequence[int] | None,
    for_s: float,
    wait: bool,
) -> NodeReplication:
    """Look until all is well, or, without `wait`, until there is something to tell."""
    deadline = time.monotonic() + for_s
    while True:
        standing = NodeReplication.of(connection)
        chosen = _chosen(standing, source, vbuckets)
        streaming = all(standing.following[n].state == "streaming" for n in chosen)
        if not wait and (streaming or standing.trouble(source, chosen)):
            return standing
        if wait and all(standing.following[number].level for number in chosen):
            return standing
        if time.monotonic() >= deadline:
            if wait:
                raise NodeError(_late(standing, source, chosen, for_s))
            return standing
        time.sleep(_POLL_S)


def _late(standing: NodeReplication, source: str, chosen: list[int], for_s: float) -> str:
    late = [number for number in chosen if not standing.following[number].level]
    trouble = standing.trouble(source, late)
    lag = sum(standing.following[number].lag_items for number in late)
    return (
        f"{named(late)} not up to date with {source} after {for_s:g} s: "
        f"{trouble or f'{lag} changes are missing'} (the node continues)"
    )


def _tell_followers(
    standing: NodeReplication, vbuckets: Sequence[int] | None, as_json: bool
) -> None:
    chosen = {
        number: one
        for number, one in standing.following.items()
        if vbuckets is None or number in vbuckets
    }
    if as_json:
        rows = [{"vbucket": number, **one._asdict()} for number, one in chosen.items()]
        click.echo(json.dumps({"following": rows}, indent=2))
        return
    nobody = sorted(set(vbuckets or ()) - chosen.keys())
    if nobody or not chosen:
        click.echo(f"{named(nobody) if nobody else 'all vBuckets'}: no longer following a source")
    for source in sorted({one.source for one in chosen.values()}):
        numbers = [number for number, one in chosen.items() if one.source == source]
        streaming = sum(chosen[number].state == "streaming" for number in numbers)
        lag = sum(chosen[number].lag_items for number in numbers)
        click.echo(
            f"{named(numbers)}: following {source}, {streaming} streaming, {lag} changes behind"
        )


# --- takeover -------------------------------------------------------------------------------------


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
                raise NodeError(_how_things_stand(source, target, numbers, error)) from None
        if swap and ended.taken:
            try:
                replicate(source, target, ended.taken, ReplicateFlag(0))
            except NodeError as error:
                _tell_taken(ended, node.place, target, False, as_json)
                raise NodeError(f"{node.place} does not follow {target}: {error}") from None
    _tell_taken(ended, node.place, target, swap, as_json)
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
    why = NodeReplication.of(target).last_takeover_error if taken != numbers else ""
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


def _how_things_stand(
    source: NodeConnection, target: str, numbers: Sequence[int], error: NodeError
) -> str:
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


def _tell_taken(ended: _Ended, node: str, target: str, swap: bool, as_json: bool) -> None:
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


# --- failover -------------------------------------------------------------------------------------


_FILLED = frozenset({VBucketState.REPLICA, VBucketState.PENDING})


@click.command(name="failover")
@click.option(
    "--vbuckets",
    type=VBUCKETS,
    help="vBuckets to promote.  [default: all replicas of the node]",
)
@talks_to_a_node("Print one JSON list of the new branches.")
def failover(vbuckets: Sequence[int] | None, node: NodeAccess, as_json: bool) -> None:
    """Promote replicas after their active node was lost.

    Each vBucket stops following its source and begins a new branch of history after its last
    complete snapshot. While the active node still works, use 'uprmc takeover': it loses nothing.
    """
    with node.connected() as connection:
        if vbuckets is None:
            vbuckets = [n for n, state in states(connection).items() if state in _FILLED]
            if not vbuckets:
                raise NodeError(f"{node.place} has no replicas: there is nothing to promote")
        request = RequestFrame(Opcode.FAILOVER, value=encode_vbuckets(vbuckets))
        branches = decode_branches(command(connection, request).value)
    if as_json:
        rows = [
            {"vbucket": branch.vbucket, "vb_uuid": str(branch.uuid), "begins_after": branch.seqno}
            for branch in branches
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(f"{named(branch.vbucket for branch in branches)}: active at {node.place}")


# --- failover-log ---------------------------------------------------------------------------------


@click.command(name="failover-log")
@click.argument("vbuckets", nargs=-1, type=VBUCKETS, metavar="[N|A-B,...]...")
@talks_to_a_node("Print one JSON list of vBuckets.")
def failover_log(vbuckets: tuple[tuple[int, ...], ...], node: NodeAccess, as_json: bool) -> None:
    """Print the failover logs of vBuckets, or of all vBuckets.

    Each entry is a branch of history: its vb_uuid, and the seqno after which it begins. The newest
    comes first, together with the vBucket's term. If two nodes claim to be active for the same
    vBucket, the one with the higher term is right.
    """
    with node.connected() as connection:
        logs, terms = _logs(connection, each_once(vbuckets))
    if as_json:
        click.echo(json.dumps([_row(each, logs[each], terms[each]) for each in logs], indent=2))
        return
    rows: list[tuple[object, ...]] = [("vBucket", "term", "vb_uuid", "begins after seqno")]
    for number, log in logs.items():
        shown = [str(terms[number]), *[""] * (len(log) - 1)]
        rows += [
            (number, term, entry.uuid, entry.seqno) for term, entry in zip(shown, log, strict=True)
        ]
    click.echo(table(rows, (">7", ">5", ">15", "")))


def _logs(
    connection: NodeConnection, vbuckets: Sequence[int]
) -> tuple[dict[int, list[FailoverEntry]], dict[int, int]]:
    """Return logs and terms by vBucket; of all if none is named. A term that is not told is 0."""
    found: dict[int, list[FailoverEntry]] = {}
    numbers: dict[str, int] = {}
    for name, value in connection.statistics("failovers").items():
        numbers[name] = int(value)
        vbucket, _, what = name.removeprefix("vb_").partition(":")
        if what.endswith(":seq"):
            entry = FailoverEntry(numbers[name.removesuffix("seq") + "id"], int(value))
            found.setdefault(int(vbucket), []).append(entry)
    absent = [number for number in vbuckets if number not in found]
    if absent:
        raise NodeError(f"{named(absent)}: not on this node")
    wanted = vbuckets or list(found)
    terms = {number: numbers.get(f"vb_{number}:term", 0) for number in wanted}
    return {number: found[number] for number in wanted}, terms


def _row(number: int, log: list[FailoverEntry], term: int) -> dict[str, object]:
    entries = [{"vb_uuid": str(entry.uuid), "seqno": entry.seqno} for entry in log]
    return {"vbucket": number, "term": term, "entries": entries}
