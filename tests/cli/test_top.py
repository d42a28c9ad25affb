"""What ``uprmc top`` makes of two readings; verbs at a node that says nothing."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

import pytest
from rich.console import Console

from tests.cli.here import runner
from tests.codec.frames import Frame
from tests.codec.node import ScriptedNode
from uprmc.cli.top import TopReading, line, sample, screen


class _Silent(ScriptedNode):
    def answers(self, asked: Frame) -> Iterable[bytes]:
        return []


def _reading(at_s: float, pid: int = 1, **counters: int) -> TopReading:
    general = {"pid": str(pid), **{name: str(value) for name, value in counters.items()}}
    consumers = {"0:name": "a:b", "0:items": "5", "0:seconds": "0.500"}
    return TopReading(at_s, general, {"consumers": consumers})


def test_rates_are_of_the_time_in_between() -> None:
    before = _reading(10.0, cmd_get=100, get_hits=90, get_misses=10)
    found = sample(before, _reading(12.0, cmd_get=120, get_hits=105, get_misses=15))
    assert found["per_s"]["get"] == 10.0
    assert found["hit_share"] == 0.75
    assert found["consumers"] == [{"name": "a:b", "items": 5, "seconds": 0.5}]
    assert "get 10/s" in line(found)
    assert "lag 5" in line(found)


@pytest.mark.parametrize("pid", [1, 2])
def test_after_a_reset_or_a_restart_no_rate_is_negative(pid: int) -> None:
    before = _reading(10.0, cmd_get=100, get_hits=100)
    found = sample(before, _reading(11.0, pid, cmd_get=7, get_hits=7))
    assert found["per_s"]["get"] == 0.0
    assert found["hit_share"] is None


@pytest.mark.parametrize("verb", ["top", "keys"])
def test_a_node_that_says_nothing_is_given_up(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with _Silent() as node:
        ended = runner(capsys)(verb, "--node", node.place, "--timeout", "0.1")
    assert ended.code == 1
    assert ended.line() == f"the node at {node.place} says nothing for 0.1 s"


def test_a_narrow_terminal_cuts_names_and_no_numbers() -> None:
    names = ("name", "kind", "streams", "items", "bytes", "seconds")
    values = ("uprmc-replica:0d2c1c1f6438:1", "replica", "1024", "93312", "8083333", "5.879")
    consumers = {f"0:{name}": value for name, value in zip(names, values, strict=True)}
    found = sample(None, TopReading(10.0, {"pid": "1"}, {"consumers": consumers}))
    console = Console(width=50, file=StringIO())
    console.print(screen("here", found, ""))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "replica  1,024    93,312  8,083,333  5.879" in shown


def test_samples_do_not_come_without_a_pause(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'0' is less than 0.1 s" in runner(capsys)("top", "--every", 0).refused()
