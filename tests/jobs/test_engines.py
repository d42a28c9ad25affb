"""Engines: results in order, tasks that are tried again, workers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs import tasks as work
from uprmc.columnar.errors import BadOption, BadRow, TaskFailed
from uprmc.jobs.engines import ATTEMPTS, PROCESSES_MAX, LocalEngine

engines = pytest.mark.parametrize("engine", [LocalEngine(1), LocalEngine(2)], ids=["here", "two"])


@engines
def test_results_come_in_the_order_of_the_tasks(engine: LocalEngine) -> None:
    told: dict[int, int] = {}
    assert engine.run(work.squared, range(20), told.__setitem__) == [n * n for n in range(20)]
    assert told == {n: n * n for n in range(20)}


@engines
def test_no_tasks_give_no_results(engine: LocalEngine) -> None:
    assert engine.run(work.squared, []) == []


def test_one_process_is_this_one() -> None:
    assert set(LocalEngine(1).run(work.process_of, [1, 2])) == {os.getpid()}


def test_more_processes_are_others_and_share_the_tasks() -> None:
    found = set(LocalEngine(3).run(work.process_of, range(12)))
    assert os.getpid() not in found
    assert 1 <= len(found) <= 3


def test_processes_stay_for_the_next_work_until_the_engine_is_closed() -> None:
    engine = LocalEngine(2)
    first = set(engine.run(work.process_of, range(12)))
    assert set(engine.run(work.process_of, range(12))) <= first
    engine.close()
    assert not first & set(engine.run(work.process_of, range(12)))
    engine.close()


def test_processes_that_were_started_early_have_imported_and_get_the_tasks() -> None:
    engine = LocalEngine(2)
    engine.start("tests.jobs.imported_early", "no.such.module")
    assert engine.run(work.is_imported, ["tests.jobs.imported_early"] * 8) == [True] * 8
    engine.close()
    assert engine.run(work.is_imported, ["tests.jobs.imported_early"] * 2) == [False] * 2
    engine.close()


def test_an_idle_process_that_was_killed_is_replaced() -> None:
    engine = LocalEngine(2)
    for process in set(engine.run(work.process_of, range(12))):
        os.kill(process, signal.SIGKILL)
    assert engine.run(work.squared, range(12)) == [n * n for n in range(12)]
    engine.close()


@engines
def test_a_task_that_fails_for_a_passing_reason_is_tried_again(engine: LocalEngine) -> None:
    assert engine.run(work.unreachable_until_the_third, [1, 2]) == [2, 2]
    assert engine.run(work.attempt_of, [1, 2]) == [0, 0]


@engines
def test_an_error_that_would_come_again_ends_the_work_at_once(
    engine: LocalEngine, tmp_path: Path
) -> None:
    with pytest.raises(BadRow, match="no good"):
        engine.run(work.counts_and_refuses, [str(tmp_path / "tried"), str(tmp_path / "tried")])
    assert (tmp_path / "tried").read_text() in ("x", "xx")


@engines
def test_any_other_error_is_believed_at_the_fourth_time(
    engine: LocalEngine, tmp_path: Path
) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with pytest.raises(TaskFailed, match="after 4 attempts: ValueError: broken"):
        engine.run(work.counts_and_breaks, [first, second])
    assert ATTEMPTS in (len(p.read_text()) for p in tmp_path.iterdir())


def test_a_killed_worker_costs_its_task_one_attempt(tmp_path: Path) -> None:
    tasks = [str(tmp_path / "killed"), str(tmp_path / "killed too"), *[__file__] * 6]
    found = LocalEngine(2).run(work.killed_at_first, tasks)
    assert found == ["attempt 1"] * 2 + ["attempt 0"] * 6


def test_a_task_that_kills_every_worker_fails() -> None:
    with pytest.raises(TaskFailed, match="its process ended with -9"):
        LocalEngine(2).run(work.always_killed, [1, 2])


def test_a_run_that_failed_leaves_no_process_that_works_for_it(tmp_path: Path) -> None:
    engine = LocalEngine(2)
    with pytest.raises(BadRow):
        engine.run(work.counts_and_refuses, [str(tmp_path / "tried")] * 2)
    assert engine.run(work.squared, range(12)) == [n * n for n in range(12)]
    engine.close()


def test_what_a_task_prints_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert LocalEngine(2).run(work.prints, [1, 2]) == [1, 2]
    assert "no answer" in capfd.readouterr().err


def test_an_error_that_cannot_be_pickled_is_told_in_words() -> None:
    with pytest.raises(TaskFailed, match="Unpicklable: only one argument"):
        LocalEngine(2).run(work.raises_what_cannot_be_sent, [1, 2])


def test_a_large_task_and_a_large_result_get_through() -> None:
    assert LocalEngine(2).run(bytes.upper, [b"a" * (3 << 20), b"b"]) == [b"A" * (3 << 20), b"B"]


def test_workers_end_when_their_driver_is_killed(tmp_path: Path) -> None:
    places = [str(tmp_path / "one"), str(tmp_path / "two")]
    program = (
        "from uprmc.jobs.engines import LocalEngine\n"
        "from tests.jobs.tasks import waits_for\n"
        f"LocalEngine(2).run(waits_for, {places!r})\n"
    )
    # the workers hold the write end of this pipe, too: it ends when the last of them has ended
    seen, held = os.pipe()
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    driver = subprocess.Popen(
        [sys.executable, "-c", program], stderr=held, stdout=subprocess.DEVNULL, env=environment
    )
    os.close(held)
    while not all(os.path.exists(place) and os.path.getsize(place) for place in places):
        assert driver.poll() is None
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert os.read(seen, 1) == b""
    os.close(seen)


@pytest.mark.parametrize("processes", [-1, PROCESSES_MAX + 1])
def test_a_number_of_processes_that_makes_no_sense_is_named(processes: int) -> None:
    with pytest.raises(BadOption, match=str(processes)):
        LocalEngine(processes)


def test_the_greatest_number_of_processes_is_allowed() -> None:
    assert LocalEngine(PROCESSES_MAX).parallelism == PROCESSES_MAX
    assert LocalEngine().parallelism >= 1
