"""The log of an upgrade: a line at the start, one at the end, some in between if it takes long."""

from __future__ import annotations

import pytest

from uprmc.server import node
from uprmc.server.node import upgrade_log


class Lines:
    """Takes down what is logged."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, /, **fields: object) -> None:
        self.seen.append((event, fields))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines = Lines()
    monkeypatch.setattr(node, "_storage_log", lines)
    return lines


def test_a_long_upgrade_tells_how_far_it_is_now_and_then(lines: Lines) -> None:
    times = iter([100.0, 100.0, 101.0, 106.0, 107.0, 108.5])
    told = upgrade_log("/data", lambda: next(times))
    for done in (0, 10, 50, 70, 100):
        told(done, 100)
    assert lines.seen == [
        ("upgrade_began", {"directory": "/data", "entries": 100}),
        ("upgrade_progress", {"done": 50, "entries": 100}),
        ("upgraded", {"directory": "/data", "seconds": 8.5}),
    ]


def test_an_empty_directory_has_both_lines_too(lines: Lines) -> None:
    told = upgrade_log("/data", lambda: 1.0)
    told(0, 0)
    told(0, 0)
    assert [event for event, _ in lines.seen] == ["upgrade_began", "upgraded"]
