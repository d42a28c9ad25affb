"""``uprmc top``: what a node does at the moment, on a terminal or line by line."""

from __future__ import annotations

import contextlib
import json
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from uprmc.cli.arguments import seconds
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.cli.shown import readable, rounded_size
from uprmc.client.connection import NodeConnection, NodeError, NoSuchGroup

# --- a sample -------------------------------------------------------------------------------------


Group = Mapping[str, str]

#: Operation -> the counters that make it.
_OPERATIONS = {
    "get": ("cmd_get",),
    "set": ("cmd_set",),
    "delete": ("delete_hits", "delete_misses"),
    "incr": ("incr_hits", "incr_misses", "decr_hits", "decr_misses"),
    "touch": ("cmd_touch",),
    "with_meta": ("ep_num_ops_set_meta", "ep_num_ops_del_meta"),
}

_NOTHING: Group = {}


@dataclass(frozen=True)
class TopReading:
    """The statistics of a node at one moment."""

    at_s: float  # when, of a monotonic clock
    general: Group  # the group without a name
    more: Mapping[str, Group]  # other groups by name; one that a node does not have is missing


def sample(before: TopReading | None, now: TopReading) -> dict[str, Any]:
    """Return what `uprmc top` shows; without a reading before, or after a restart, rates are 0."""
    if before is not None and before.general.get("pid") != now.general.get("pid"):
        before = None
    rate = _rate(before, now)
    general, more = now.general, now.more
    level = _level({**general, **more.get("ep", _NOTHING)})
    return {
        "version": general.get("uprmc_version", ""),
        "uptime_s": level("uptime"),
        "ready": general.get("ep_degraded_mode") == "0",
        "items": level("curr_items"),
        "per_s": {name: rate(*counters) for name, counters in _OPERATIONS.items()},
        "hit_share": _hit_share(before, now),
        "connections": level("curr_connections"),
        "received_per_s": rate("bytes_read"),
        "sent_per_s": rate("bytes_written"),
        "memory": {
            "used": level("mem_used"),
            "quota": level("ep_max_size"),
            "low_mark": level("ep_mem_low_wat"),
            "high_mark": level("ep_mem_high_wat"),
            "process": _level(more.get("memory", _NOTHING))("total_rss_bytes"),
        },
        "queue": {
            "waiting": level("ep_queue_size"),
            "flushed_per_s": rate("ep_total_persisted"),
            "commits_per_s": rate("ep_commit_num"),
            "failures": level("ep_item_commit_failed"),
            "disk_reads_per_s": rate("ep_bg_fetched"),
        },
        "vbuckets": {
            state: level(f"vb_{state}_num") for state in ("active", "replica", "pending", "dead")
        },
        "consumers": _named_rows(more.get("consumers", _NOTHING)),
        "replication": _named_rows(more.get("replication", _NOTHING), "source_"),
        "links": _named_rows(more.get("xdcr", _NOTHING), "link_"),
        "index": more.get("index", _NOTHING).get("state", ""),
    }


def _level(group: Group) -> Callable[[str], int]:
    return lambda name: _number(group.get(name, "0"))


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def _rate(before: TopReading | None, now: TopReading) -> Callable[..., float]:
    """Return what tells how much counters have grown in a second; a reset counts as nothing."""

    def rate(*counters: str) -> float:
        if before is None or now.at_s <= before.at_s:
            return 0.0
        return round(max(0, _grown(before, now, *counters)) / (now.at_s - before.at_s), 1)

    return rate


def _grown(before: TopReading, now: TopReading, *counters: str) -> int:
    new, old = (_level({**each.general, **each.more.get("ep", _NOTHING)}) for each in (now, before))
    return sum(new(name) - old(name) for name in counters)


def _hit_share(before: TopReading | None, now: TopReading) -> float | None:
    """Return which share of the gets in between found a document, ``None`` = there were none."""
    if before is None:
        return None
    hits, misses = _grown(before, now, "get_hits"), _grown(before, now, "get_misses")
    return round(hits / (hits + misses), 4) if hits >= 0 <= misses and hits + misses else None


def _named_rows(group: Group, prefix: str = "") -> list[dict[str, Any]]:
    """Return rows of names such as ``PREFIX5:items``, in order."""
    rows: dict[str, dict[str, Any]] = {}
    for name, value in group.items():
        row, colon, what = name.rpartition(":")
        if colon and row.startswith(prefix):
            of = row.removeprefix(prefix)
            rows.setdefault(of, {"name": of})[what] = _value(value)
    return list(rows.values())


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


# --- for people -----------------------------------------------------------------------------------


#: Rows of each table; there may be thousands of consumers.
_ROWS = 12

_TABLES = {
    "consumers": ("name", "kind", "streams", "items", "bytes", "seconds"),
    "replication": ("name", "state", "vbuckets", "streaming", "lag_items", "lag_s"),
    "links": ("name", "to", "state", "changes_left", "lag_s", "error"),
}


#: Columns that give way on a narrow terminal; a number that is cut would be another one.
_TEXTS = ("name", "to", "error")


def line(found: dict[str, Any]) -> str:
    """Return a sample as one line."""
    some = found["per_s"]
    memory = found["memory"]
    parts = [f"{name} {rate:,.0f}/s" for name, rate in some.items() if rate or name in _USUAL]
    parts += [
        f"hits {_share(found['hit_share'])}",
        f"items {found['items']:,}",
        f"memory {rounded_size(memory['used'])} of {rounded_size(memory['quota'])}",
        f"queue {found['queue']['waiting']:,}",
        f"connections {found['connections']:,}",
        f"lag {_lag(found):,}",
    ]
    return "  ".join(parts)


_USUAL = ("get", "set")


def screen(place: str, found: dict[str, Any], trouble: str) -> RenderableType:
    """Return a sample as tables, and below what is wrong."""
    parts: list[RenderableType] = [_head(place, found), _levels(found)]
    parts += [_rows_of(name, found[name]) for name in _TABLES if found[name]]
    parts.append(Text(trouble, "bold red") if trouble else Text("q ends", "dim"))
    return Lines(*parts)


def _head(place: str, found: dict[str, Any]) -> Text:
    hours, seconds = divmod(found["uptime_s"], 3_600)
    state = "" if found["ready"] else ", not ready: it is warming up"
    return Text(
        f"{place}  uprmc {found['version']}, up {hours}:{seconds // 60:02}:{seconds % 60:02}"
        f"{state}",
        "bold",
    )


def _levels(found: dict[str, Any]) -> Table:
    memory, queue = found["memory"], found["queue"]
    quota = max(1, memory["quota"])
    states = ", ".join(f"{number} {state}" for state, number in found["vbuckets"].items() if number)
    rows = {
        "operations": "  ".join(f"{name} {rate:,.0f}/s" for name, rate in found["per_s"].items()),
        "hits": _share(found["hit_share"]),
        "documents": f"{found['items']:,} in {states or 'no'} vBuckets",
        "memory": f"{rounded_size(memory['used'])} of {rounded_size(memory['quota'])} "
        f"({memory['used'] / quota:.0%}), process {rounded_size(memory['process'])}",
        "disk": f"{queue['waiting']:,} waiting, {queue['flushed_per_s']:,.0f} written/s in "
        f"{queue['commits_per_s']:,.0f} commits/s, {queue['disk_reads_per_s']:,.0f} read/s, "
        f"{queue['failures']:,} failures",
        "network": f"{found['connections']:,} connections, "
        f"{rounded_size(found['received_per_s'])}/s in, {rounded_size(found['sent_per_s'])}/s out",
        "index": found["index"] or "unknown",
    }
    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row(Text(name, "cyan"), Text(text))
    return table


def _rows_of(name: str, rows: list[dict[str, Any]]) -> Table:
    columns = _TABLES[name]
    table = Table(title=name, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        head = "" if column == "name" else column.replace("_", " ")
        table.add_column(head, no_wrap=column not in _TEXTS, overflow="ellipsis")
    for row in rows[:_ROWS]:
        table.add_row(*(Text(_cell(row.get(column, ""))) for column in columns))
    if len(rows) > _ROWS:
        table.add_row(Text(f"and {len(rows) - _ROWS:,} more"))
    return table


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else readable(str(value).encode(), 40)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _lag(found: dict[str, Any]) -> int:
    return sum(int(each.get("items", 0)) for each in found["consumers"])


# --- the verb -------------------------------------------------------------------------------------


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

    def read(self) -> TopReading:
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


def _read(connection: NodeConnection) -> TopReading:
    general = connection.statistics("")
    more: dict[str, Group] = {}
    follows = general.get("vb_replica_num", "0") != "0"
    for name in (*_GROUPS, *((_REPLICATION,) if follows else ())):
        with contextlib.suppress(NoSuchGroup):
            more[name] = connection.statistics(name)
    return TopReading(time.monotonic(), general, more)


def _watch(
    reader: _Reader, before: TopReading, every_s: float, show: _Show, *, once: bool, keys: bool
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
