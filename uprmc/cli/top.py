"""``uprmc top``: what a node does at the moment, on a terminal or line by line."""

from __future__ import annotations

import contextlib
import json
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from uprmc.cli.arguments import seconds
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.top_sample import Group, Reading, sample
from uprmc.cli.top_screen import line, screen
from uprmc.client.connection import NodeConnection, NodeError, NoSuchGroup

_EVERY_MIN_S = 0.1

#: Groups that small or foreign nodes may lack.
_GROUPS = ("ep", "memory", "consumers", "xdcr", "index")

#: Has a row for each vBucket that is followed: asked for if there are any.
_REPLICATION = "replication"

_END_KEYS = ("q", "Q")

_Show = Callable[[dict[str, Any], str], None]


@click.command()
@click.option(
    "--every",
    "every_s",
    type=seconds(_EVERY_MIN_S),
    default="1s",
    show_default=True,
    help="Time between samples.",
)
@click.option("--once", is_flag=True, help="Print one sample and end.")
@talks_to_a_node("Print one JSON object for each sample.")
def top(every_s: float, once: bool, node: NodeAccess, as_json: bool) -> int:
    """Show what a node does at the moment.

    On a terminal the screen is refreshed until you press q or Ctrl-C; elsewhere each sample is a
    line. When the node restarts, it goes on. Rates are those of the time between two samples.
    """
    reader = _Reader(node)
    try:
        first = reader.read()  # a node that does not answer at all is an error
        live = sys.stdout.isatty() and not (as_json or once)
        with contextlib.suppress(KeyboardInterrupt), _shown(node, live, as_json) as show:
            _watch(reader, first, every_s, show, once=once, keys=live)
    finally:
        reader.close()
    return 0


class _Reader:
    """Reads a node's statistics, over a new connection when the last one is gone."""

    def __init__(self, node: NodeAccess) -> None:
        self._node = node
        self._connection: NodeConnection | None = None

    def read(self) -> Reading:
        """Return a reading; raises `NodeError`."""
        if self._connection is None:
            self._connection = self._node.connected()
        try:
            return _read(self._connection)
        except NodeError:
            self.close()
            raise

    def close(self) -> None:
        """Hang up; harmless twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _read(connection: NodeConnection) -> Reading:
    general = dict(connection.statistics(""))
    more: dict[str, Group] = {}
    follows = general.get("vb_replica_num", "0") != "0"
    for name in (*_GROUPS, *((_REPLICATION,) if follows else ())):
        with contextlib.suppress(NoSuchGroup):
            more[name] = dict(connection.statistics(name))
    return Reading(time.monotonic(), general, more)


def _watch(
    reader: _Reader, before: Reading, every_s: float, show: _Show, *, once: bool, keys: bool
) -> None:
    """Show samples until the end; while a node is lost, show the last one and why."""
    found = sample(None, before)
    if keys:
        show(found, "")
    with _single_keys(keys):
        while not _ended(every_s, keys=keys):
            try:
                now = reader.read()
            except NodeError as error:
                if once:
                    raise
                show(found, f"{error}; trying again")
                continue
            found, before = sample(before, now), now
            show(found, "")
            if once:
                return


@contextlib.contextmanager
def _shown(node: NodeAccess, live: bool, as_json: bool) -> Iterator[_Show]:
    """Yield what shows a sample and a trouble."""
    if not live:
        yield _printer(as_json)
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as display:
        yield lambda found, trouble: display.update(
            screen(node.place, found, trouble), refresh=True
        )


def _printer(as_json: bool) -> _Show:
    troubled = False

    def show(found: dict[str, Any], trouble: str) -> None:
        nonlocal troubled
        if not trouble:
            click.echo(
                json.dumps(found) if as_json else f"{time.strftime('%H:%M:%S')}  {line(found)}"
            )
        elif not troubled:
            click.echo(f"uprmc: {trouble}", err=True)
        troubled = bool(trouble)

    return show


def _ended(every_s: float, *, keys: bool) -> bool:
    """Wait until the next sample; return whether a key has ended it."""
    if not keys:
        time.sleep(every_s)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], every_s)
    return bool(ready) and sys.stdin.read(1) in (*_END_KEYS, "")


@contextlib.contextmanager
def _single_keys(wanted: bool) -> Iterator[None]:
    """Let a terminal hand over each key at once."""
    if not wanted or not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
