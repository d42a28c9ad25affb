"""Whatever goes wrong with nodes and sinks, the reader of a sink ends with the documents.

Where positions are kept with the data, what is there is what they say after each death, too, and
nothing comes twice. Judges and readers share no code with `uprmc` (`sinks`).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.seeds import seeds
from tests.sim.cluster_run import SINKS
from tests.sim.faults import Faults
from tests.sim.noticing import Break, broken, cases, happens, instead, notice, skip, swap
from tests.sim.plan import Plan
from uprmc.sinks.http_post import HttpPost
from uprmc.sinks.json_file import JsonFile
from uprmc.sinks.kafka import Kafka
from uprmc.sinks.sqlite_mirror import SqliteMirror

pytestmark = pytest.mark.sim

_SEEDS = 20


@pytest.mark.parametrize("seed", seeds(default=3))
def test_every_reader_ends_with_the_documents_whatever_goes_wrong(seed: int) -> None:
    """Random faults, failovers, takeovers; all sinks, and deaths of their processes."""
    SINKS.story(seed)


def plan(sink: str, death: float) -> Plan:
    """Return what breaks need: nodes that lose changes, and processes that die."""
    return Plan(
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
    happens(wanted, (SINKS.story(seed).account for seed in range(_SEEDS)))


def test_the_same_seed_gives_the_same_run() -> None:
    assert SINKS.random(0).world.digest() == SINKS.story(0).digest


# --- judges speak ---------------------------------------------------------------------------------


def _leave_the_rest(file: JsonFile) -> None:
    """Leave what belongs to no position in the file."""
    file._out = open(file._path, "ab")  # noqa: SIM115
    file._there = file._kept[0], file._path.stat().st_size


def _write_rows_late(patch: pytest.MonkeyPatch) -> None:
    """Write rows with the position of the next batch."""
    whole = SqliteMirror.changes
    waiting: list[Any] = []

    def changes(sink: SqliteMirror, batch: Any) -> None:
        waiting.append(batch)
        if len(waiting) > 1:
            whole(sink, waiting.pop(0))

    patch.setattr(SqliteMirror, "changes", changes)


def _unless_all(whole: Any, sink: Any, vbucket: int, seqno: int) -> None:
    if not seqno:
        whole(sink, vbucket, seqno)


@cases(
    (
        broken(
            "leave what belongs to no position in the file",
            swap(JsonFile, "_cut", _leave_the_rest),
            said="torn|lines came twice|a reader of jsonl",
            plan=plan("jsonl", 0.05),
        ),
        broken(
            "write rows with the position of the next batch",
            _write_rows_late,
            said="a reader of sqlite has",
            plan=plan("sqlite", 0.05),
        ),
        broken(
            "leave what was lost at the receiver",
            skip(HttpPost, "undo"),
            said="a reader of http has",
            plan=plan("http", 0.0),
        ),
        broken(
            "tell readers only of what they are to drop as a whole",
            instead(HttpPost, "rollback", _unless_all),
            instead(JsonFile, "rollback", _unless_all),
            said="a reader of jsonl was never told|twice",
            plan=plan("jsonl", 0.05),
        ),
        broken(
            "save positions while records are on their way",
            skip(Kafka, "durable"),
            said="a reader of kafka has",
            plan=plan("kafka", 0.05),
        ),
    )
)
def test_a_broken_sink_is_noticed(case: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    notice(case, monkeypatch, SINKS.random, _SEEDS)
