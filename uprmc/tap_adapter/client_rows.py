"""What an adapter tells of its clients, under the names that tools of TAP's time read.

Source: TAP reference 7; ep-engine 2.x, ``stats tap``.
"""

from __future__ import annotations

from collections.abc import Iterator

from uprmc.tap_adapter.names import Names, TapName
from uprmc.tap_adapter.producer import TapProducer

#: One statistic: name and text.
Row = tuple[str, str]


def prefix_of(name: bytes) -> str:
    """Return what stands before each of a connection's statistics."""
    return f"eq_tapq:{text_of(name)}:"


def text_of(name: bytes) -> str:
    """Return a name as text; bytes that are none are escaped."""
    return name.decode("utf-8", "backslashreplace")


def client_rows(known: TapName, unix_minus_monotonic_s: float) -> list[Row]:
    """Return one client's statistics, without prefix.

    Args:
        known: the client.
        unix_minus_monotonic_s: turns monotonic times into Unix times.
    """
    producer = known.producer
    rows = [("reconnects", str(known.reconnects))]
    if not isinstance(producer, TapProducer):
        away = [("type", "producer"), ("connected", "false"), ("pending_disconnect", "false")]
        return [*away, ("reserved", _word(known.registered)), *rows]
    return [
        ("created", str(int(known.created_at + unix_minus_monotonic_s))),
        ("connected", _word(not producer.closed)),
        ("pending_disconnect", _word(bool(producer.closed))),
        *rows,
        *producer.statistics().rows(),
    ]


def all_clients(names: Names, unix_minus_monotonic_s: float) -> Iterator[Row]:
    """Yield the statistics of every client, with prefixes; connected ones first."""
    for known in names:
        prefix = prefix_of(known.name)
        for name, text in client_rows(known, unix_minus_monotonic_s):
            yield prefix + name, text


def _word(value: bool) -> str:
    return "true" if value else "false"
