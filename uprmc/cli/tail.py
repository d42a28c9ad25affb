"""``uprmc tail`` and ``watch``: changes as they happen, over failovers and restarts."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from typing import Any

import click

from uprmc.cli.arguments import PREFIX, VBUCKETS, KeyPattern, each_once
from uprmc.cli.documents import check_key, client_of
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import readable, time_text
from uprmc.client.blocking import UprClient
from uprmc.client.connection import NodeError
from uprmc.client.errors import RollbackRefused
from uprmc.client.follow import RollbackWord
from uprmc.client.handler import (
    Change,
    Handler,
    Rollback,
    Shown,
    SnapshotBegin,
    SnapshotEnd,
    as_fields,
)
from uprmc.client.options import Start
from uprmc.client.position import Position
from uprmc.errors import ConfigError
from uprmc.model import SEQNO_MAX
from uprmc.remote.ranges import named

# --- events as lines ------------------------------------------------------------------------------


#: A value is cut after so many characters on a line for people.
_VALUE_CHARACTERS = 60


def plain(event: Shown) -> str:
    """Return an event for people."""
    if isinstance(event, Change):
        details = ", ".join(_details(event))
        value = "" if event.value is None else f'  "{readable(event.value, _VALUE_CHARACTERS)}"'
        return _line(
            event.vbucket, event.seqno, event.op, f"{readable(event.key)}{value}  {details}"
        )
    if isinstance(event, SnapshotBegin):
        origin = "disk" if event.from_disk else "memory"
        return _line(event.vbucket, event.start, "begin", f"snapshot up to {event.end}, {origin}")
    if isinstance(event, SnapshotEnd):
        return _line(event.vbucket, event.end, "end", f"snapshot complete, {event.items} changes")
    return _line(event.vbucket, event.seqno, "rollback", "everything after it is void")


def _line(vbucket: int, seqno: int, op: str, rest: str) -> str:
    return f"{vbucket:>4}:{seqno:<8} {op:<8} {rest}"


def _details(change: Change) -> list[str]:
    found = [f"rev {change.rev}", f"CAS {change.cas}"]
    if change.flags:
        found.append(f"flags {change.flags}")
    if change.expiry:
        found.append(f"expires {time_text(change.expiry)}")
    if change.value is not None and len(change.value) > _VALUE_CHARACTERS:
        found.append(f"{len(change.value):,} bytes")
    return found


def as_json_line(event: Shown) -> str:
    """Return an event as one line of JSON."""
    return json.dumps(as_fields(event))


# --- tail -----------------------------------------------------------------------------------------


_NOW = "now"

#: A node may be so far ahead of our acknowledgements.
_BUFFER_BYTES = 4 * 1024 * 1024

#: A node sends a keep-alive after so long without a frame; silent for longer it is given up.
NOOP_INTERVAL_S = 10.0


def _origin(text: str) -> str | int:
    if text.lower() == _NOW:
        return _NOW
    if not (text.isascii() and text.isdecimal()) or int(text) > SEQNO_MAX:
        raise click.BadParameter(
            f"{text!r} is not a seqno: say now, 0 for all changes, or a number"
        )
    return int(text)


def _uuid(text: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        number = -1
    if not 0 < number <= SEQNO_MAX:
        raise click.BadParameter(
            f"{text!r} is not a vb_uuid: write it as --json prints it, or in hex with 0x"
        )
    return number


@click.command()
@click.option(
    "--vbuckets",
    type=VBUCKETS,
    multiple=True,
    help="Only these vBuckets; may be repeated.  [default: all active ones]",
)
@click.option(
    "--start",
    "origin",
    type=_origin,
    metavar="now|0|SEQNO",
    default=_NOW,
    show_default=True,
    help="Print changes from now on, all changes (0), or those after a seqno.",
)
@click.option(
    "--uuid",
    type=_uuid,
    metavar="VB_UUID",
    help="vb_uuid of the history that the seqno of --start belongs to.",
)
@click.option(
    "--on-rollback",
    type=click.Choice(["fail", "rewind", "restart"]),
    help="When a node's history lacks printed changes, or the seqno: stop, continue from the last "
    "common point, or print the vBucket from its beginning.  [default: fail with --start SEQNO, "
    "else rewind]",
)
@click.option(
    "--until-now", is_flag=True, help="End after printing all changes that exist at the start."
)
@click.option("--once", is_flag=True, help="End when a node or a stream is lost.")
@click.option("--keys-only", is_flag=True, help="Omit values; the node does not send them.")
@click.option("--prefix", type=PREFIX, default="", help="Only keys that begin with this text.")
@click.option("--snapshots", is_flag=True, help="Also print where snapshots begin and end.")
@talks_to_a_node("Print one JSON object for each change.", several=True)
def tail(
    vbuckets: tuple[tuple[int, ...], ...],
    origin: str | int,
    uuid: int | None,
    on_rollback: RollbackWord | None,
    until_now: bool,
    once: bool,
    keys_only: bool,
    prefix: str,
    snapshots: bool,
    node: NodeAccess,
    as_json: bool,
) -> int:
    """Print the changes of nodes as they happen, one per line.

    Each line shows vBucket:seqno, the operation, the key, the value and metadata. When a
    connection is lost, the command reconnects and resumes at the node that is active then. Press
    Ctrl-C to end it.
    """
    wanted = each_once(vbuckets)
    start = _start(wanted, origin, uuid)
    screen = Screen(json_lines=as_json)
    given_seqno = isinstance(start, dict | int)
    usual: RollbackWord = "fail" if given_seqno else "rewind"
    beginning = os.fsencode(prefix)
    printer = Printer(
        screen,
        snapshots=snapshots,
        on_rollback=on_rollback or usual,
        wants=lambda key: key.startswith(beginning),
    )
    try:
        follow(
            node,
            printer,
            wanted,
            start,
            until_now=until_now,
            once=once,
            values=not keys_only,
        )
    except RollbackRefused as error:
        raise NodeError(
            f"{_disagreement(error.vbucket, error.held_seqno, error.seqno)}: discard later lines "
            f"and use --start {error.seqno}, or use --on-rollback rewind"
        ) from None
    return 0


def follow(
    node: NodeAccess,
    printer: Printer,
    vbuckets: Sequence[int],
    start: Start,
    *,
    until_now: bool = False,
    once: bool = False,
    values: bool = True,
) -> None:
    """Print changes until Ctrl-C or the end.

    Args:
        node: where.
        printer: what prints.
        vbuckets: which, none = all that are active.
        start: where to begin.
        until_now: end when everything has come that was there.
        once: end when a node or a stream is lost.
        values: whether to ask for the documents' values.

    Raises:
        RollbackRefused: the printer does not permit to go back.
    """
    with contextlib.suppress(KeyboardInterrupt), told_on_standard_error() as teller:
        client = UprClient(
            node.places,
            printer,
            name="uprmc-tail",
            vbuckets=vbuckets or None,
            start=start,
            on_rollback=printer.permit,
            values=values,
            buffer_bytes=_BUFFER_BYTES,
            noop_interval_s=NOOP_INTERVAL_S,
            replicas=True,
            redial=not once,
            tls=node.tls,
            credentials=node.credentials,
            connect_timeout_s=node.timeout_s,
            patience_s=node.timeout_s,
        )
        look_s = None if once or until_now else node.timeout_s
        _run(client, printer.screen, teller, _NOW if until_now else None, look_s)


def _start(vbuckets: Sequence[int], origin: str | int, uuid: int | None) -> Start:
    """Return where the streams begin."""
    if uuid is None:
        return "now" if isinstance(origin, str) else origin or "beginning"
    if isinstance(origin, str):
        raise ConfigError("--uuid names the history of a seqno: give --start SEQNO, too")
    if not vbuckets:
        raise ConfigError("--uuid belongs to a vBucket: name it with --vbuckets")
    return dict.fromkeys(vbuckets, Position(origin, uuid))


def _run(
    client: UprClient, screen: Screen, teller: Teller, until: Any, look_s: float | None
) -> None:
    """Print until the end; after a time say which vBuckets are waited for."""
    absent = _Absent(client, look_s)
    with client, client.running_loop(until) as loop:
        try:
            for _ in loop.steps(None, None):
                screen.show()
                if teller.waits and any(node.connected for node in client.metrics().nodes.values()):
                    teller.reached()
                absent.look()
        finally:
            screen.show()


class _Absent:
    """Says once which vBuckets are waited for, for they may be a misprint.

    They are those that are nowhere twice, while all nodes are connected: in between streams begin.
    """

    def __init__(self, client: UprClient, look_s: float | None) -> None:
        self._client = client
        self._look_s = look_s or 0.0
        self._at = math.inf if look_s is None else time.monotonic() + look_s
        self._seen: set[int] | None = None

    def look(self) -> None:
        """Look whether any is absent, if it is time."""
        now = time.monotonic()
        if now < self._at:
            return
        self._at = now + self._look_s
        metrics = self._client.metrics()
        if not all(node.connected for node in metrics.nodes.values()):
            self._seen = None
            return
        found = {number for number, each in metrics.vbuckets.items() if not each.node}
        if self._seen is None:
            self._seen = found
            return
        self._at = math.inf
        absent = self._seen & found
        if absent or not metrics.vbuckets:
            click.echo(
                f"uprmc: {named(absent) if absent else 'any vBucket'}: on none of the nodes yet; "
                "waiting until it is",
                err=True,
            )


@contextlib.contextmanager
def told_on_standard_error() -> Iterator[Teller]:
    """Let what the library logs, such as lost connections, be lines like our own."""
    log, handler = logging.getLogger("uprmc.client"), Teller()
    log.addHandler(handler)
    try:
        yield handler
    finally:
        log.removeHandler(handler)


class Teller(logging.Handler):
    """Keeps what the library logs until a node was reached: if none is, an error says the same."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[str] | None = []

    def emit(self, record: logging.LogRecord) -> None:
        if self._kept is None:
            click.echo(f"uprmc: {record.getMessage()}", err=True)
        else:
            self._kept.append(record.getMessage())

    def reached(self) -> None:
        """Tell what was kept, and the rest as it comes."""
        for text in self._kept or ():
            click.echo(f"uprmc: {text}", err=True)
        self._kept = None

    @property
    def waits(self) -> bool:
        return self._kept is not None


def _disagreement(vbucket: int, held: int, seqno: int) -> str:
    return (
        f"vBucket {vbucket}: the node cannot continue from seqno {held}, "
        f"its history agrees only up to {seqno}"
    )


class Screen:
    """Standard output, one line for each event."""

    def __init__(self, *, json_lines: bool) -> None:
        self._line: Callable[[Shown], str] = as_json_line if json_lines else plain
        self._lines: list[str] = []
        self._reader = _reader()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")

    def add(self, event: Shown) -> None:
        """Show an event with the next `show`."""
        self._lines.append(f"{self._line(event)}\n")

    def show(self) -> None:
        """Print what was added, and see that whoever reads gets it now.

        Raises:
            BrokenPipeError: nobody reads any more, which is noticed without printing too.
        """
        if self._lines:
            text = "".join(self._lines)
            self._lines.clear()
            click.echo(text, nl=False)
        elif self._reader is not None and self._reader.poll(0):
            raise BrokenPipeError


def _reader() -> select.poll | None:
    """Return what is ready when nobody reads our output any more."""
    try:
        number = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or no file at all
        return None
    found = select.poll()
    found.register(number, 0)
    return found


class Printer(Handler):
    """Prints what it is told. What was printed cannot be taken back: a rollback is a line, too.

    Args:
        screen: where.
        snapshots: print where they begin and end, too.
        on_rollback: see `UprClient`.
        wants: tells of which keys changes are printed.
    """

    native_rollback = True
    returns_anywhere = True

    def __init__(
        self,
        screen: Screen,
        *,
        snapshots: bool = False,
        on_rollback: RollbackWord = "rewind",
        wants: Callable[[bytes], bool] = lambda _: True,
    ) -> None:
        self.screen = screen
        self._wants = wants
        self._snapshots = snapshots
        self._on_rollback = on_rollback
        self._items: dict[int, int] = {}

    def mutation(self, change: Change) -> None:
        self._change(change)

    def deletion(self, change: Change) -> None:
        self._change(change)

    def _change(self, change: Change) -> None:
        if self._wants(change.key):
            self.screen.add(change)
        self._items[change.vbucket] = self._items.get(change.vbucket, 0) + 1

    def snapshot_begin(self, vbucket: int, start: int, end: int, from_disk: bool) -> None:
        self._items[vbucket] = 0
        if self._snapshots:
            self.screen.add(SnapshotBegin(vbucket, start, end, from_disk))

    def snapshot_end(self, vbucket: int, end: int) -> None:
        if self._snapshots:
            self.screen.add(SnapshotEnd(vbucket, end, self._items.get(vbucket, 0)))

    def permit(self, vbucket: int, held: int, seqno: int) -> Any:
        """Say whether the stream may go back."""
        if self._on_rollback != "fail":
            where = "there" if self._on_rollback == "rewind" else "the beginning"
            click.echo(
                f"uprmc: {_disagreement(vbucket, held, seqno)}; continuing from {where}", err=True
            )
        return self._on_rollback

    def rollback(self, vbucket: int, seqno: int) -> bool:
        self.screen.add(Rollback(vbucket, seqno))
        return True


# --- watch ----------------------------------------------------------------------------------------


@click.command()
@click.argument("key", metavar="KEY|PATTERN")
@click.option("--changes-only", is_flag=True, help="Omit what is there at the start.")
@click.option("--until-now", is_flag=True, help="End after printing what is there at the start.")
@click.option("--once", is_flag=True, help="End when a node or a stream is lost.")
@click.option("--keys-only", is_flag=True, help="Omit values; the node does not send them.")
@talks_to_a_node("Print one JSON object for each change.", several=True)
def watch(
    key: str,
    changes_only: bool,
    until_now: bool,
    once: bool,
    keys_only: bool,
    node: NodeAccess,
    as_json: bool,
) -> int:
    """Print a document, and each change of it, one per line.

    In a PATTERN, * stands for anything: 'user:*' is all keys that begin so. Quote it for the
    shell; \\* is a star. The lines are
    those of "uprmc tail", and it goes on as tail does when a node is lost.
    """
    start: Start = "now" if changes_only else "beginning"
    pattern = KeyPattern(key, whole=True)
    printer = Printer(Screen(json_lines=as_json), wants=pattern.matches)
    vbuckets = [] if pattern.key is None else [_vbucket_of(pattern.key, node)]
    follow(
        node,
        printer,
        vbuckets,
        start,
        until_now=until_now,
        once=once,
        values=not keys_only,
    )
    return 0


def _vbucket_of(key: bytes, node: NodeAccess) -> int:
    check_key(key)
    with client_of(node) as client:
        return client.vbucket_of(key)
