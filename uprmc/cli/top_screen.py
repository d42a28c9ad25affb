"""A sample of ``uprmc top`` for people: a screen of a terminal, or one line."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from uprmc.cli.shown import readable, size_text

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
        f"memory {size_text(memory['used'])} of {size_text(memory['quota'])}",
        f"queue {found['queue']['waiting']:,}",
        f"connections {found['connections']:,}",
        f"lag {_lag(found):,}",
    ]
    return "  ".join(parts)


_USUAL = ("get", "set")


def screen(place: str, found: dict[str, Any], trouble: str) -> RenderableType:
    """Return a sample as tables, and below what is wrong."""
    parts: list[RenderableType] = [_head(place, found), _levels(found)]
    parts += [_rows(name, found[name]) for name in _TABLES if found[name]]
    parts.append(Text(trouble, "bold red") if trouble else Text("q ends", "dim"))
    return Group(*parts)


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
        "memory": f"{size_text(memory['used'])} of {size_text(memory['quota'])} "
        f"({memory['used'] / quota:.0%}), process {size_text(memory['process'])}",
        "disk": f"{queue['waiting']:,} waiting, {queue['flushed_per_s']:,.0f} written/s in "
        f"{queue['commits_per_s']:,.0f} commits/s, {queue['disk_reads_per_s']:,.0f} read/s, "
        f"{queue['failures']:,} failures",
        "network": f"{found['connections']:,} connections, "
        f"{size_text(found['received_per_s'])}/s in, {size_text(found['sent_per_s'])}/s out",
        "index": found["index"] or "unknown",
    }
    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row(Text(name, "cyan"), Text(text))
    return table


def _rows(name: str, rows: list[dict[str, Any]]) -> Table:
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
