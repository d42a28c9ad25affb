"""Whatever goes wrong with nodes and sinks, the reader of a sink ends with the documents.

Where positions are kept with the data, what is there is what they say after each death, too, and
nothing comes twice. Judges and readers share no code with `uprmc` (`sink_readers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.seeds import seeds
from tests.sim.faults import Faults
from tests.sim.judged import story
from tests.sim.noticing import happens, notice
from tests.sim.sink_run import SinkPlan, SinkRun
from uprmc.sinks.http_post import HttpPost
from uprmc.sinks.json_file import JsonFile
from uprmc.sinks.kafka import Kafka
from uprmc.sinks.sqlite_mirror import SqliteMirror

pytestmark = pytest.mark.sim

_SEEDS = 20


@pytest.mark.parametrize("seed", seeds(default=3))
def test_every_reader_ends_with_the_documents_whatever_goes_wrong(seed: int) -> None:
    """Random faults, failovers, takeovers; all sinks, and deaths of their processes."""
    story(SinkRun, seed)


def plan(sink: str, death: float) -> SinkPlan:
    """Return what breaks need: nodes that lose changes, and processes that die."""
    return SinkPlan(
        "pair",
        Faults(crash_s=0.5),
        {"failover": 2, "takeover": 1},
        operator_s=0.3,
        death=death,
        keys=60,
        writer_s=0.02,
        steps=3_000,
        sinks=(sink,),
    )


def test_the_runs_do_what_they_are_for() -> None:
    """Processes die, positions are judged, requests come twice, nodes roll back."""
    wanted = {"jsonl judged", "sqlite judged", "http again", "kafka deaths", "rollbacks"}
    happens(wanted, (story(SinkRun, seed).account for seed in range(_SEEDS)))


def test_the_same_seed_gives_the_same_run() -> None:
    assert SinkRun.random(0).world.digest() == story(SinkRun, 0).digest


# --- judges speak ---------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def _cut_no_file(patch: pytest.MonkeyPatch) -> None:
    """Leave what belongs to no position in the file."""

    def open_only(file: JsonFile) -> None:
        file._out = open(file._path, "ab")  # noqa: SIM115
        file._there = file._kept[0], file._path.stat().st_size

    patch.setattr(JsonFile, "_cut", open_only)


def _write_rows_late(patch: pytest.MonkeyPatch) -> None:
    """Write rows with the position of the next batch."""
    whole = SqliteMirror.changes
    waiting: list[Any] = []

    def changes(sink: SqliteMirror, batch: Any) -> None:
        waiting.append(batch)
        if len(waiting) > 1:
            whole(sink, waiting.pop(0))

    patch.setattr(SqliteMirror, "changes", changes)


def _undo_nothing(patch: pytest.MonkeyPatch) -> None:
    """Leave what was lost at the receiver."""
    patch.setattr(HttpPost, "undo", lambda *_: None)


def _say_nothing_of_what_is_void(patch: pytest.MonkeyPatch) -> None:
    """Tell readers only of what they are to drop as a whole."""
    for sink in (HttpPost, JsonFile):
        whole = sink.rollback

        def rollback(self: Any, vbucket: int, seqno: int, whole: Any = whole) -> None:
            if not seqno:
                whole(self, vbucket, seqno)

        patch.setattr(sink, "rollback", rollback)


def _wait_for_no_broker(patch: pytest.MonkeyPatch) -> None:
    """Save positions while records are on their way."""
    patch.setattr(Kafka, "durable", lambda _: None)


@pytest.mark.parametrize(
    ("break_it", "sink", "death", "told"),
    [
        (_cut_no_file, "jsonl", 0.05, "torn|lines came twice|a reader of jsonl"),
        (_write_rows_late, "sqlite", 0.05, "a reader of sqlite has"),
        (_undo_nothing, "http", 0.0, "a reader of http has"),
        (_say_nothing_of_what_is_void, "jsonl", 0.05, "a reader of jsonl was never told|twice"),
        (_wait_for_no_broker, "kafka", 0.05, "a reader of kafka has"),
    ],
)
def test_a_broken_sink_is_noticed(
    break_it: Patch, sink: str, death: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    notice(break_it, lambda seed: SinkRun.random(seed, plan(sink, death)), told, _SEEDS)
