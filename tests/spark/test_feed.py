"""Feeds without Spark: every change in the files once, whoever is killed when."""

from __future__ import annotations

import base64
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from interop.replica_pair import Node
from interop.server_process import ServerProcess
from tests.bulk.here import contents, numbered, put, remove
from tests.bulk.world import flush
from tests.spark.stream_rows import Changes, Row
from uprmc.columnar.errors import BadFile, BadOption, RolledBack
from uprmc.jobs.engines import LocalEngine
from uprmc.spark.feeding import KEPT_BATCHES, Checkpoint, FeedReport, error_of, feed
from uprmc.spark.offsets import Offset


def batches(directory: Path) -> dict[int, list[Row]]:
    """The rows of each batch."""
    found: dict[int, list[Row]] = {}
    for path in sorted(directory.glob("batch-*.parquet")):
        found.setdefault(int(path.name.split("-")[1]), []).extend(pq.read_table(path).to_pylist())
    return found


def applied(directory: Path) -> Changes:
    """A sink that took in all batches, in order."""
    sink = Changes()
    for _, rows in sorted(batches(directory).items()):
        sink.apply(rows)
    return sink


@pytest.fixture
def empty(node: ServerProcess) -> ServerProcess:
    flush(node)
    return node


def run(server: ServerProcess, tmp_path: Path, **options: Any) -> FeedReport:
    given = {"engine": LocalEngine(1), "key_type": "binary"} | options
    return feed(str(server.upr), tmp_path / "changes", tmp_path / "checkpoint", **given)


def test_a_feed_goes_on_where_it_stopped(empty: ServerProcess, tmp_path: Path) -> None:
    put(empty, numbered(100))
    first = run(empty, tmp_path, max_rows_per_trigger=30)
    assert first.rows == 100
    assert first.files >= 4
    put(empty, numbered(10, value="later"))
    remove(empty, b"key-50")
    second = run(empty, tmp_path)
    assert second.rows == 11
    sink = applied(tmp_path / "changes")
    assert sink.documents() == contents(empty)
    assert sink.repeated == 0
    assert run(empty, tmp_path).batches == 0


def test_lines_of_json_have_binary_columns_in_base64(empty: ServerProcess, tmp_path: Path) -> None:
    put(empty, {"größe".encode(): b"\xff\x00"})
    run(empty, tmp_path, format="jsonl", key_type="string", columns="key,value,_op,_lock")
    (path,) = (tmp_path / "changes").glob("batch-*.jsonl")
    (line,) = path.read_text(encoding="utf-8").splitlines()
    found = json.loads(line)
    assert found["key"] == "größe"
    assert base64.b64decode(found["value"]) == b"\xff\x00"
    assert found["_op"] == "set"


def test_a_feed_that_looks_again_and_again_is_stopped(empty: ServerProcess, tmp_path: Path) -> None:
    put(empty, numbered(10))
    steps = []

    def seen_twice() -> bool:
        if len(steps) == 1:
            put(empty, numbered(10, value="later"))
        return any(step.rows >= 20 for step in steps)

    report = run(empty, tmp_path, trigger="20ms", stop=seen_twice, progress=steps.append)
    assert report.rows == 20
    assert "20 changes in" in report.summary()
    assert json.loads(report.to_json())["rows"] == 20


def test_a_feed_from_now_on_remembers_where_that_was(empty: ServerProcess, tmp_path: Path) -> None:
    put(empty, numbered(10))
    run(empty, tmp_path, starting_offsets="latest")
    put(empty, numbered(3, value="new"))
    run(empty, tmp_path, starting_offsets="latest")
    assert applied(tmp_path / "changes").documents() == numbered(3, value="new")


# --- killed ---------------------------------------------------------------------------------------


class Feeding:
    """A feed in a process of its own."""

    def __init__(self, server: object, tmp_path: Path, trigger: str, rows: int) -> None:
        program = [sys.executable, "-m", "tests.spark.stream_feed_program", str(server)]
        places = [str(tmp_path / "changes"), str(tmp_path / "checkpoint")]
        self.process = subprocess.Popen(
            [*program, *places, trigger, str(rows)], stderr=subprocess.PIPE
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)

    def end(self) -> None:
        """Wait until it has caught up."""
        _, told = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, told.decode()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path / "data", "--vbuckets", "8")
    found.start()
    yield found
    found.end()


def wait_for_batch(tmp_path: Path, chance: random.Random) -> None:
    """Until a batch is under way or was just ended, and then a moment more."""
    offsets = tmp_path / "checkpoint" / "offsets"
    deadline = time.monotonic() + 30
    before = len(list(offsets.glob("*"))) if offsets.exists() else 0
    while not offsets.exists() or len(list(offsets.glob("*"))) <= before:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(chance.random() * 0.05)


def test_a_feed_that_is_killed_again_and_again_gives_every_change_once(
    empty: ServerProcess, tmp_path: Path
) -> None:
    chance = random.Random(6)
    for turn in range(4):
        put(empty, numbered(150, value=f"turn-{turn}"))
        feeding = Feeding(empty.upr, tmp_path, "10ms", 20)
        wait_for_batch(tmp_path, chance)
        put(empty, numbered(40, value=f"meanwhile-{turn}"))
        feeding.kill()
    Feeding(empty.upr, tmp_path, "available-now", 1000).end()
    sink = applied(tmp_path / "changes")
    assert sink.documents() == contents(empty)
    assert sink.repeated == 0
    assert not list((tmp_path / "changes").glob(".batch-*"))


def test_feeds_and_nodes_that_are_killed_lose_nothing(home: Node, tmp_path: Path) -> None:
    chance = random.Random(7)
    for turn in range(4):
        put(home.server, numbered(150, value=f"turn-{turn}"))
        feeding = Feeding(home.upr, tmp_path, "10ms", 30)
        wait_for_batch(tmp_path, chance)
        home.kill()
        if chance.random() < 0.5:
            feeding.kill()
        home.start()
        put(home.server, numbered(30, value=f"after-{turn}"))
        if feeding.process.poll() is None:
            wait_for_batch(tmp_path, chance)
            feeding.kill()
    Feeding(home.upr, tmp_path, "available-now", 1000).end()
    assert applied(tmp_path / "changes").documents() == contents(home.server)


# --- wrong directories ----------------------------------------------------------------------------


def test_two_feeds_do_not_share_a_checkpoint(tmp_path: Path) -> None:
    with (
        Checkpoint(tmp_path / "c", tmp_path / "d"),
        pytest.raises(BadFile, match="another feed is running"),
        Checkpoint(tmp_path / "c", tmp_path / "d"),
    ):
        pass


def test_a_directory_is_not_fed_twice(empty: ServerProcess, tmp_path: Path) -> None:
    put(empty, numbered(5))
    run(empty, tmp_path)
    with pytest.raises(BadFile, match="the files of another feed"):
        feed(str(empty.upr), tmp_path / "changes", tmp_path / "other", engine=LocalEngine(1))


def test_a_feed_cannot_be_changed_half_way(empty: ServerProcess, tmp_path: Path) -> None:
    put(empty, numbered(5))
    run(empty, tmp_path)
    with pytest.raises(BadFile, match="begun with format parquet, not jsonl"):
        run(empty, tmp_path, format="jsonl")
    with pytest.raises(BadFile, match="begun with columns"):
        run(empty, tmp_path, columns="key")


def test_the_files_of_a_feed_are_missed(empty: ServerProcess, tmp_path: Path) -> None:
    put(empty, numbered(5))
    run(empty, tmp_path)
    (tmp_path / "changes").rename(tmp_path / "elsewhere")
    with pytest.raises(BadFile, match="has lost"):
        run(empty, tmp_path)


def test_a_damaged_offset_names_its_file(empty: ServerProcess, tmp_path: Path) -> None:
    put(empty, numbered(5))
    run(empty, tmp_path)
    newest = max((tmp_path / "checkpoint" / "offsets").iterdir(), key=lambda path: int(path.name))
    newest.write_text('{"v": 1')
    with pytest.raises(BadFile, match=str(newest)):
        run(empty, tmp_path)


def test_old_offsets_are_forgotten(tmp_path: Path) -> None:
    with Checkpoint(tmp_path / "c", tmp_path / "d") as kept:
        for number in range(KEPT_BATCHES + 3):
            kept.begin(number, Offset(8))
            kept.commit(number, {})
        assert kept.number == KEPT_BATCHES + 2
        assert sorted(int(path.name) for path in (tmp_path / "c" / "offsets").iterdir()) == list(
            range(3, KEPT_BATCHES + 3)
        )


@pytest.mark.parametrize("trigger", ["soon", "-1s", ""])
def test_a_trigger_is_a_time(tmp_path: Path, trigger: str) -> None:
    with pytest.raises(BadOption, match="trigger"):
        feed("127.0.0.1:1", tmp_path / "a", tmp_path / "b", trigger=trigger)


def test_an_error_of_ours_is_found_in_what_spark_says() -> None:
    error = error_of("Job aborted: x\nuprmc.spark.errors.RolledBack: UPRMC_ROLLBACK vb=1 a b\n at")
    assert isinstance(error, RolledBack)
    assert str(error) == "UPRMC_ROLLBACK vb=1 a b"
    assert error_of("java.lang.NullPointerException") is None
