"""Where the stand-alone adapter keeps registered clients: kept when told so, or refused."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from uprmc.client.sqlite_state import SqliteState
from uprmc.client.state import StateError, StateFull, StateRefused
from uprmc.client.tap_state import FileKeeper, MemoryKeeper, TapState


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tap.db"


class Worker:
    """Runs commits when the test says so.

    Attributes:
        jobs: what waits.
        error: what the next ones end with instead.
    """

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], None], Callable[[Exception | None], None]]] = []
        self.error: Exception | None = None

    def __call__(self, work: Callable[[], None], ended: Callable[[Exception | None], None]) -> None:
        self.jobs.append((work, ended))

    def run(self) -> None:
        work, ended = self.jobs.pop(0)
        if self.error is None:
            work()
        ended(self.error)


def reopened(state: TapState, path: Path) -> dict[bytes, bytes]:
    state.close()
    again = TapState(path)
    try:
        return again.load()
    finally:
        again.close()


# --- the file -------------------------------------------------------------------------------------


def test_documents_outlive_the_file_s_user(path: Path) -> None:
    state = TapState(path)
    assert state.load() == {}
    state.commit({b"a": b"1", b"\xff\0": b""})
    state.commit({b"a": b"2", b"b": b"3", b"\xff\0": None, b"never": None})
    assert reopened(state, path) == {b"a": b"2", b"b": b"3"}


def test_a_file_has_one_user_at_a_time(path: Path) -> None:
    state = TapState(path)
    with pytest.raises(StateRefused, match="another process uses it"):
        TapState(path)
    state.close()
    TapState(path).close()


def test_a_consumer_s_state_is_refused_and_left_alone(path: Path) -> None:
    SqliteState(path, name="mirror", vbuckets=64).close()
    before = path.read_bytes()
    with pytest.raises(StateRefused, match="another application's"):
        TapState(path)
    assert path.read_bytes() == before
    SqliteState(path, name="mirror", vbuckets=64).close()


def test_ours_is_refused_by_a_consumer(path: Path) -> None:
    TapState(path).close()
    with pytest.raises(StateRefused, match="another application's"):
        SqliteState(path, name="mirror", vbuckets=64)


@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\0" + b"x" * 40])
def test_what_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StateRefused, match="no SQLite file"):
        TapState(path)
    assert path.read_bytes() == content


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StateRefused, match="directory"):
        TapState(tmp_path / "nowhere" / "tap.db")


def test_a_newer_layout_is_refused(path: Path) -> None:
    TapState(path).close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE tap_state SET version = 2")
    other.close()
    with pytest.raises(StateRefused, match="version 2, this program knows 1"):
        TapState(path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE tap_client SET document = x'00'",
        "UPDATE tap_client SET name = x'00'",
        "UPDATE tap_client SET document = 'text'",
        "UPDATE tap_client SET crc = crc + 1",
    ],
)
def test_a_torn_position_refuses_the_file(path: Path, damage: str) -> None:
    state = TapState(path)
    state.commit({b"a": b"1"})
    state.close()
    with sqlite3.connect(path) as other:
        other.execute(damage)
    other.close()
    state = TapState(path)
    with pytest.raises(StateRefused, match="is damaged: restore a copy"):
        state.load()
    state.close()


def test_a_file_with_overwritten_pages_is_refused(path: Path) -> None:
    state = TapState(path)
    state.commit({b"client%d" % n: os.urandom(3000) for n in range(50)})
    state.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 40_000)
    with pytest.raises(StateRefused, match=r"torn"):
        TapState(path).load()


def test_a_commit_that_fails_changes_nothing_and_the_next_one_succeeds(path: Path) -> None:
    state = TapState(path)
    state.commit({b"a": b"1"})
    state._connection.execute("PRAGMA max_page_count = 10")
    with pytest.raises(StateFull, match="no room"):
        state.commit({b"a": b"2", b"b": b"x" * 100_000})
    assert state.load() == {b"a": b"1"}
    state.commit({b"b": b"2"})
    assert reopened(state, path) == {b"a": b"1", b"b": b"2"}


# --- the keeper -----------------------------------------------------------------------------------


def test_a_document_is_kept_when_its_commit_has_ended(path: Path) -> None:
    state, worker, told = TapState(path), Worker(), []
    keeper = FileKeeper(state, worker)
    keeper.save(b"a", b"1", told.append)
    assert told == []
    assert keeper.load() == {}
    worker.run()
    assert told == [True]
    assert reopened(state, path) == {b"a": b"1"}


def test_what_comes_during_a_commit_goes_into_the_next_one_together(path: Path) -> None:
    state, worker, told = TapState(path), Worker(), []
    keeper = FileKeeper(state, worker)
    for text in (b"1", b"2", b"3"):
        keeper.save(b"a", text, lambda ok, text=text: told.append((text, ok)))
    keeper.save(b"b", b"1", lambda ok: told.append((b"b", ok)))
    assert len(worker.jobs) == 1
    worker.run()
    assert told == [(b"1", True)]
    worker.run()
    assert told == [(b"1", True), (b"2", True), (b"3", True), (b"b", True)]
    assert worker.jobs == []
    assert reopened(state, path) == {b"a": b"3", b"b": b"1"}


def test_a_commit_that_failed_is_told_to_all_who_wait_for_it(path: Path) -> None:
    state, worker, told = TapState(path), Worker(), []
    errors: list[str] = []
    keeper = FileKeeper(state, worker, errors.append)
    worker.error = StateError("no room")
    keeper.save(b"a", b"1", told.append)
    worker.run()
    worker.error = None
    keeper.save(b"a", None, told.append)
    worker.run()
    assert told == [False, True]
    assert errors == ["no room"]
    assert keeper.failures == 1
    state.close()


def test_a_callback_may_save_again(path: Path) -> None:
    state, worker, told = TapState(path), Worker(), []
    keeper = FileKeeper(state, worker)
    keeper.save(b"a", b"1", lambda _: keeper.save(b"a", b"2", told.append))
    worker.run()
    worker.run()
    assert told == [True]
    assert reopened(state, path) == {b"a": b"2"}


def test_the_end_waits_for_what_is_being_written(path: Path) -> None:
    state, worker = TapState(path), Worker()
    keeper = FileKeeper(state, worker)
    told: list[str] = []
    keeper.when_idle(lambda: told.append("at once"))
    keeper.save(b"a", b"1", lambda _: None)
    keeper.save(b"a", b"2", lambda _: None)
    keeper.when_idle(lambda: told.append("later"))
    worker.run()
    assert told == ["at once"]
    worker.run()
    assert told == ["at once", "later"]
    state.close()


def test_memory_keeps_until_the_process_ends() -> None:
    keeper, told = MemoryKeeper(), []
    keeper.save(b"a", b"1", told.append)
    keeper.save(b"b", b"1", told.append)
    keeper.save(b"b", None, told.append)
    keeper.save(b"never", None, told.append)
    assert keeper.load() == {b"a": b"1"}
    assert told == [True] * 4
