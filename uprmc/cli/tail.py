"""``uprmc tail``: print the changes of a node as they happen."""

from __future__ import annotations

import contextlib
import select
import struct
import sys
from collections.abc import Callable, Iterable
from io import TextIOWrapper
from typing import NamedTuple

import click

from uprmc.cli.arguments import VBUCKETS, each_once, named, vbucket_numbers
from uprmc.cli.change_lines import (
    Rollback,
    Shown,
    SnapshotBegin,
    SnapshotEnd,
    as_json_line,
    plain,
)
from uprmc.cli.feed import Feed, Start
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeError, reason
from uprmc.client.events import Event, Run, SnapshotBegun, SnapshotDone, StreamEnded
from uprmc.errors import ConfigError
from uprmc.model import SEQNO_MAX, VBucketState
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import EndReason, Opcode, Status
from uprmc.protocol.upr import ROLLBACK_VALUE

_NOW = "now"

#: Whether the node has vanished is looked at so often.
_LOOK_MS = 1_000

#: Why a stream may end, in words for people.
_END_REASONS: dict[int, str] = {
    EndReason.OK: "it is complete",
    EndReason.CLOSED: "it was closed",
    EndReason.STATE_CHANGED: "the vBucket's state changed",
    EndReason.DISCONNECTED: "the connection was closed",
    EndReason.TOO_SLOW: "it was read too slowly",
    EndReason.BACKFILL_FAILED: "the node could not read its disk",
    EndReason.ROLLBACK: "the vBucket is rolling back",
    EndReason.FILTER_EMPTY: "nothing is left to send",
    EndReason.LOST_PRIVILEGES: "the node does not allow it any more",
}


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
    node: NodeAccess,
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
    with contextlib.suppress(KeyboardInterrupt), node.connected() as connection:
        feed = Feed(connection, values=not keys_only)
        starts = _starts(feed, each_once(vbuckets), origin, uuid)
        if snapshots and not feed.tells_snapshot_ends:
            click.echo("uprmc: this node does not tell where snapshots end", err=True)
        screen = _Screen(feed, json_lines=as_json)
        streams = _Tail(feed, screen, snapshots=snapshots, obey=on_rollback == "obey")
        streams.run(starts, until_now=until_now)
    return 0


def _starts(feed: Feed, vbuckets: list[int], origin: str | int, uuid: int | None) -> list[Start]:
    """Return where the streams begin."""
    seqnos = {} if vbuckets else feed.high_seqnos(VBucketState.ACTIVE)
    seqnos = seqnos or feed.high_seqnos(None)  # of a replica, what it follows
    absent = [number for number in vbuckets if number not in seqnos]
    if absent:
        raise NodeError(f"{named(absent)}: not on this node, or dead")
    if not seqnos:
        raise NodeError("the node has no vBucket, or only dead ones")
    numbers = vbuckets or sorted(seqnos)
    seqno_of = {number: seqnos[number] if origin == _NOW else int(origin) for number in numbers}
    if uuid is not None:
        return [Start(number, seqno, uuid) for number, seqno in seqno_of.items()]
    uuids = feed.newest_histories(number for number in numbers if seqno_of[number])
    return [Start(number, seqno, uuids.get(number, 0)) for number, seqno in seqno_of.items()]


class _Screen:
    """Standard output, one line for each event, and the wait for more."""

    def __init__(self, feed: Feed, *, json_lines: bool) -> None:
        self._line: Callable[[Shown], str] = as_json_line if json_lines else plain
        self._feed = feed
        self._poll = select.poll()
        self._poll.register(feed, select.POLLIN)
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
            ConnectionLost: the node says nothing for too long.
        """
        found: list[tuple[int, int]] = []
        while not found:
            found = self._poll.poll(_LOOK_MS)
            if any(number == self._reader for number, _ in found):
                raise BrokenPipeError
            if not found:
                self._feed.check_silence()

    def show(self, events: Iterable[Shown]) -> None:
        """Print events, and see that whoever reads gets them now."""
        text = "".join(f"{self._line(event)}\n" for event in events)
        if text:
            click.echo(text, nl=False)


class _Stream:
    """One stream that was asked for.

    Attributes:
        seqno: the last one that came, or where it began.
        end: where its snapshot ends.
        items: changes of that snapshot that came.
    """

    __slots__ = ("asked", "end", "items", "seqno")

    def __init__(self, asked: Start) -> None:
        self.asked = asked
        self.seqno = self.end = asked.seqno
        self.items = 0


class _Ended(NamedTuple):
    """A stream has ended after `seqno`; `reason` is an `EndReason` number."""

    vbucket: int
    seqno: int
    reason: int


class _Tail:
    """Follows streams until they end."""

    def __init__(self, feed: Feed, screen: _Screen, *, snapshots: bool, obey: bool) -> None:
        self._feed = feed
        self._screen = screen
        self._snapshots = snapshots
        self._obey = obey
        self._until_now = False
        self._streams: dict[int, _Stream] = {}
        self._early: list[int] = []

    def run(self, starts: Iterable[Start], *, until_now: bool) -> None:
        """Print what comes, until everything has come that was there.

        Raises:
            ClientError: it will not come, or `until_now` is not set.
        """
        self._until_now = until_now
        self._begin(list(starts))
        while self._streams:
            self._deal_with(self._feed.events(self._screen.wait))
        if self._early:
            raise NodeError(f"incomplete: {named(self._early)} ended early")

    def _begin(self, starts: list[Start]) -> None:
        opaques = self._feed.stream(starts, until_now=self._until_now)
        for opaque, start in zip(opaques, starts, strict=True):
            self._streams[opaque] = _Stream(start)

    def _deal_with(self, events: list[Event]) -> None:
        shown: list[Shown] = []
        ended: list[_Ended] = []
        again: list[Start] = []
        try:
            for event in events:
                if isinstance(event, Run):
                    shown += event.changes
                    self._count(self._streams[event.inlet.opaque], event, shown)
                elif isinstance(event, SnapshotBegun | SnapshotDone):
                    self._bound(self._streams[event.inlet.opaque], event, shown)
                elif isinstance(event, StreamEnded):
                    stream = self._streams.pop(event.inlet.opaque)
                    ended.append(_Ended(event.inlet.vbucket, stream.seqno, event.reason))
                elif isinstance(event, ResponseFrame) and event.opaque in self._streams:
                    start = self._refused(self._streams.pop(event.opaque).asked, event)
                    shown.append(Rollback(start.vbucket, start.seqno))
                    again.append(start)
        finally:
            self._screen.show(shown)
        self._begin(again)
        self._tell(ended)

    def _count(self, stream: _Stream, run: Run, shown: list[Shown]) -> None:
        stream.seqno = run.changes[-1].seqno
        stream.items += len(run.changes)
        if stream.seqno == stream.end:
            self._show_end(stream, shown)

    def _bound(
        self, stream: _Stream, event: SnapshotBegun | SnapshotDone, shown: list[Shown]
    ) -> None:
        if isinstance(event, SnapshotDone):
            self._show_end(stream, shown)
            return
        if stream.end <= stream.seqno:
            stream.items = 0
        stream.end = event.end
        if self._snapshots:
            shown.append(SnapshotBegin(event.inlet.vbucket, event.start, event.end, event.kind))

    def _show_end(self, stream: _Stream, shown: list[Shown]) -> None:
        stream.seqno = stream.end
        if self._snapshots and self._feed.tells_snapshot_ends:
            shown.append(SnapshotEnd(stream.asked.vbucket, stream.end, stream.items))

    def _refused(self, asked: Start, answer: ResponseFrame) -> Start:
        """Return where to begin instead, or give up."""
        vbucket = asked.vbucket
        if answer.status == Status.ROLLBACK:
            return self._roll_back(asked, answer.value)
        if answer.status == Status.NOT_MY_VBUCKET:
            raise NodeError(f"vBucket {vbucket}: neither active nor a replica on this node")
        raise NodeError(f"vBucket {vbucket}: the stream was refused: {reason(answer)}")

    def _roll_back(self, asked: Start, value: bytes) -> Start:
        """Return where the node says, or give up."""
        vbucket = asked.vbucket
        try:
            (seqno,) = ROLLBACK_VALUE.unpack(value)
        except struct.error:
            raise NodeError(
                f"the node at {self._feed.place} sent nonsense: opcode "
                f"{Opcode.UPR_STREAM_REQUEST:#04x} of a strange length"
            ) from None
        history = f" of history {asked.vb_uuid}" if asked.vb_uuid else ""
        words = (
            f"vBucket {vbucket}: the node cannot go on from seqno {asked.seqno}{history}, "
            f"it agrees only up to {seqno}"
        )
        if not self._obey:
            raise NodeError(
                f"{words}: drop what came later and say --from {seqno}, or --on-rollback obey"
            )
        if seqno >= asked.seqno:
            raise NodeError(f"{words}, which makes no sense")
        click.echo(f"uprmc: {words}; going on from there", err=True)
        return Start(vbucket, seqno, asked.vb_uuid if seqno else 0)

    def _tell(self, ended: list[_Ended]) -> None:
        """Say whose streams have ended, unless that was the wish."""
        texts = []
        for why in sorted({event.reason for event in ended}):
            if why != EndReason.OK:
                alike = [event for event in ended if event.reason == why]
                self._early += [event.vbucket for event in alike]
                texts.append(_end(alike))
        if not texts:
            return
        if not self._streams:
            raise NodeError(f"{'; '.join(texts)}; no stream is left")
        for text in texts:
            click.echo(f"uprmc: {text}", err=True)


def _end(alike: list[_Ended]) -> str:
    first = alike[0]
    why = _END_REASONS.get(first.reason, f"reason {first.reason}")
    after = f" after seqno {first.seqno}" if len(alike) == 1 else ""
    vbuckets = named(event.vbucket for event in alike)
    return f"{vbuckets}: the stream ended{after}: {why}"
