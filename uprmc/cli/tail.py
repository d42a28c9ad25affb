"""``uprmc tail``: print the changes of a node as they happen."""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Callable, Iterable
from io import TextIOWrapper

import click

from uprmc.cli.arguments import VBUCKETS, each_once, named, talks_to_a_node, vbucket_numbers
from uprmc.cli.change_lines import Shown, as_json_line, plain
from uprmc.cli.node_connection import NodeError
from uprmc.cli.upr_stream import (
    END_REASONS,
    Change,
    Ended,
    Event,
    Refused,
    Rollback,
    Start,
    UprConnection,
)
from uprmc.errors import ConfigError
from uprmc.model import SEQNO_MAX, VBucketState
from uprmc.protocol.opcodes import EndReason, Status

_NOW = "now"


def _origin(text: str) -> str | int:
    if text.lower() == _NOW:
        return _NOW
    if not (text.isascii() and text.isdecimal()) or int(text) > SEQNO_MAX:
        raise click.BadParameter(f"{text!r} is no seqno: say now, 0 for everything, or a number")
    return int(text)


def _uuid(text: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = -1
    if not 0 < number <= SEQNO_MAX:
        raise click.BadParameter(
            f"{text!r} is no vb_uuid: say it as --json prints it, or in hex with 0x"
        )
    return number


@click.command()
@click.option(
    "--vbucket",
    "vbuckets",
    type=vbucket_numbers,
    metavar=VBUCKETS,
    multiple=True,
    help="Which vBuckets; any number of times.  [default: all that are active]",
)
@click.option(
    "--from",
    "origin",
    type=_origin,
    metavar="now|0|SEQNO",
    default=_NOW,
    show_default=True,
    help="Begin with what comes now, with everything there is (0), or after a seqno.",
)
@click.option(
    "--uuid", type=_uuid, metavar="VB_UUID", help="History that the seqno of --from belongs to."
)
@click.option(
    "--on-rollback",
    type=click.Choice(["stop", "obey"]),
    default="stop",
    show_default=True,
    help="If the node's history does not hold the seqno: stop, or begin where it still agrees.",
)
@click.option("--until-now", is_flag=True, help="End when everything that is there has come.")
@click.option("--keys-only", is_flag=True, help="Leave values out; the node does not send them.")
@click.option("--snapshots", is_flag=True, help="Show where snapshots begin and end, too.")
@talks_to_a_node("Print one JSON object for each change.")
def tail(
    vbuckets: tuple[list[int], ...],
    origin: str | int,
    uuid: int | None,
    on_rollback: str,
    until_now: bool,
    keys_only: bool,
    snapshots: bool,
    node: str,
    as_json: bool,
) -> int:
    """Print the changes of a node as they happen, one line for each.

    \b
    A line has: vBucket:seqno, what happened, the key, the value, more about it.
    Ctrl-C ends it.
    """
    if uuid is not None and not isinstance(origin, int):
        raise ConfigError("--uuid says where the seqno of --from belongs: give --from SEQNO, too")
    # Ctrl-C is the way to end it.
    with (
        contextlib.suppress(KeyboardInterrupt),
        UprConnection(node, values=not keys_only, snapshot_ends=snapshots) as connection,
    ):
        starts = _starts(connection, each_once(vbuckets), origin, uuid)
        if snapshots and not connection.tells_snapshot_ends:
            click.echo("uprmc: this node does not tell where snapshots end", err=True)
        screen = _Screen(connection, json_lines=as_json)
        streams = _Tail(connection, screen, snapshots=snapshots, obey=on_rollback == "obey")
        streams.run(starts, until_now=until_now)
    return 0


def _starts(
    connection: UprConnection, vbuckets: list[int], origin: str | int, uuid: int | None
) -> list[Start]:
    """Return where the streams begin."""
    seqnos = connection.high_seqnos(None if vbuckets else VBucketState.ACTIVE)
    absent = [number for number in vbuckets if number not in seqnos]
    if absent:
        raise NodeError(f"{named(absent)}: not on this node, or dead")
    if not seqnos:
        raise NodeError("the node has no active vBucket: choose some by --vbucket")
    numbers = vbuckets or sorted(seqnos)
    seqno_of = {number: seqnos[number] if origin == _NOW else int(origin) for number in numbers}
    if uuid is not None:
        return [Start(number, seqno, uuid) for number, seqno in seqno_of.items()]
    uuids = connection.newest_histories(number for number in numbers if seqno_of[number])
    return [Start(number, seqno, uuids.get(number, 0)) for number, seqno in seqno_of.items()]


class _Screen:
    """Standard output, one line for each event, and the wait for more."""

    def __init__(self, connection: UprConnection, *, json_lines: bool) -> None:
        self._line: Callable[[Shown], str] = as_json_line if json_lines else plain
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._reader = self._watch_reader()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")

    def _watch_reader(self) -> int | None:
        """See to it that we learn when nobody reads our output any more, before we print again."""
        try:
            number = sys.stdout.fileno()
        except (AttributeError, OSError, ValueError):  # closed, or no file at all
            return None
        self._poll.register(number, 0)
        return number

    def wait(self) -> None:
        """Wait for the node.

        Raises:
            BrokenPipeError: our reader went first.
            NodeError: the node says nothing for too long.
        """
        limit_s = self._connection.silence_max_s
        found = self._poll.poll(None if limit_s is None else limit_s * 1e3)
        if any(number == self._reader for number, _ in found):
            raise BrokenPipeError
        if not found:
            raise NodeError(f"the node at {self._connection.place} is silent for {limit_s:g} s")

    def show(self, events: Iterable[Shown]) -> None:
        """Print events, and see that whoever reads gets them now."""
        text = "".join(f"{self._line(event)}\n" for event in events)
        if text:
            click.echo(text, nl=False)


class _Tail:
    """Follows streams until they end."""

    def __init__(
        self, connection: UprConnection, screen: _Screen, *, snapshots: bool, obey: bool
    ) -> None:
        self._connection = connection
        self._screen = screen
        self._snapshots = snapshots
        self._obey = obey
        self._until_now = False
        self._early: list[int] = []

    def run(self, starts: Iterable[Start], *, until_now: bool) -> None:
        """Print what comes, until everything has come that was there.

        Raises:
            NodeError: it will not come, or `until_now` is not set.
        """
        self._until_now = until_now
        for start in starts:
            self._connection.stream(start, until_now=until_now)
        while self._connection.open_streams:
            self._deal_with(self._connection.read(self._screen.wait))
        if self._early:
            raise NodeError(f"incomplete: {named(self._early)} ended early")

    def _deal_with(self, events: list[Event]) -> None:
        shown: list[Shown] = []
        ended: list[Ended] = []
        try:
            for event in events:
                if isinstance(event, Ended):
                    ended.append(event)
                elif isinstance(event, Refused):
                    raise NodeError(_refusal(event))
                elif isinstance(event, Rollback):
                    self._roll_back(event)
                    shown.append(event)
                elif isinstance(event, Change) or self._snapshots:
                    shown.append(event)
        finally:
            self._screen.show(shown)
        self._tell(ended)

    def _roll_back(self, event: Rollback) -> None:
        """Begin again where the node says, or give up."""
        vbucket, asked, seqno = event
        history = f" of history {asked.uuid}" if asked.uuid else ""
        words = (
            f"vBucket {vbucket}: the node cannot go on from seqno {asked.start_seqno}{history}, "
            f"it agrees only up to {seqno}"
        )
        if not self._obey:
            raise NodeError(
                f"{words}: drop what came later and say --from {seqno}, or --on-rollback obey"
            )
        if seqno >= asked.start_seqno:
            raise NodeError(f"{words}, which makes no sense")
        click.echo(f"uprmc: {words}; going on from there", err=True)
        again = Start(vbucket, seqno, asked.uuid if seqno else 0)
        self._connection.stream(again, until_now=self._until_now)

    def _tell(self, ended: list[Ended]) -> None:
        """Say whose streams have ended, unless that was the wish."""
        texts = []
        for why in sorted({event.reason for event in ended}):
            if why != EndReason.OK:
                alike = [event for event in ended if event.reason == why]
                self._early += [event.vbucket for event in alike]
                texts.append(_end(alike))
        if not texts:
            return
        if not self._connection.open_streams:
            raise NodeError(f"{'; '.join(texts)}; no stream is left")
        for text in texts:
            click.echo(f"uprmc: {text}", err=True)


def _refusal(event: Refused) -> str:
    if event.status == Status.NOT_MY_VBUCKET:
        return f"vBucket {event.vbucket}: neither active nor a replica on this node"
    return f"vBucket {event.vbucket}: the stream was refused: {event.reason}"


def _end(alike: list[Ended]) -> str:
    first = alike[0]
    why = END_REASONS.get(first.reason, f"reason {first.reason}")
    after = f" after seqno {first.seqno}" if len(alike) == 1 else ""
    vbuckets = named(event.vbucket for event in alike)
    return f"{vbuckets}: the stream ended{after}: {why}"
