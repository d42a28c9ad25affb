"""A state file that cannot be used is refused in one line and left alone; crashes tear nothing."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.state_contract import at, chunk, commit, ring_seqnos
from uprmc.client import sqlite_state
from uprmc.client.sqlite_state import APPLICATION_ID, FOLD_RECORDS, ROW_ENTRIES, SqliteState
from uprmc.client.state import RingChunk, Saved, StateError, StateFull, StateRefused
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange

TIMEOUT_S = 60
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def opened(where: Path | sqlite3.Connection, **changes: object) -> SqliteState:
    given: dict[str, object] = {"name": "index", "vbuckets": 64, "lock_timeout_s": 0.01}
    return SqliteState(where, **(given | changes))  # type: ignore[arg-type]


def made(path: Path) -> Path:
    """Make a state file with positions, and rings of several pages in rows and in the journal."""
    state = opened(path)

    def ring(first: int) -> list[RingChunk]:
        entries = [(seqno, b"k" * 90) for seqno in range(first, first + 32)]
        return [RingChunk(vbucket, entries) for vbucket in (0, 1)]

    commit(state, {0: at(32), 1: at(32)}, ring(1))
    with folding():
        commit(state, {0: at(64), 1: at(64)}, ring(33))
    state.close()
    return path


@contextmanager
def folding() -> Iterator[None]:
    """Have each commit fold the journal of what came before."""
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(sqlite_state, "FOLD_RECORDS", 1)
        yield


def refusal(path: Path, **changes: object) -> str:
    """Return the line of a refusal, which must have left the file as it was."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StateRefused) as refused:
        opened(path, **changes)
    assert "\n" not in str(refused.value)
    assert (path.read_bytes() if path.is_file() else None) == before
    return str(refused.value).removeprefix(f"state {path}: ")


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a process that runs `script`."""
    program = "import sys\nfrom tests.client.test_sqlite_state import *\n" + textwrap.dedent(script)
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(script: str, *arguments: object) -> str:
    """Run `script` to its end and return what it printed."""
    with python(script, *arguments) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return out


# --- what is not ours ---------------------------------------------------------------------------


def test_another_consumers_state_is_refused(path: Path) -> None:
    line = refusal(made(path), name="cache")
    assert line == "it is consumer 'index''s, not 'cache''s: give each consumer a state of its own"


def test_a_state_of_another_number_of_vbuckets_is_refused(path: Path) -> None:
    line = refusal(made(path), vbuckets=1024)
    assert line == "it is of 64 vBuckets, not 1024: it belongs to another node; give another path"


def test_a_layout_of_another_version_is_refused(path: Path) -> None:
    with sqlite3.connect(made(path)) as connection:
        connection.execute("UPDATE uprmc_state SET version = 7")
    connection.close()
    assert refusal(path).startswith("its layout has version 7, this program knows 6: use the prog")


def test_another_applications_database_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cookies (id)")
    connection.close()
    assert refusal(path) == (
        "it is another application's database: give another path; nothing was changed"
    )


@pytest.mark.parametrize("size", [1, 99, 100, 5000])
def test_a_file_that_is_no_database_is_refused(path: Path, size: int) -> None:
    path.write_bytes(b"x" * size)
    assert refusal(path) == (
        "it is no SQLite file, or a torn one: give another path, or move it away to start over; "
        "nothing was changed"
    )


def test_an_empty_file_becomes_a_state(path: Path) -> None:
    path.touch()
    made(path)
    assert opened(path).load().keys() == {0, 1}


def test_a_directory_or_a_pipe_is_refused(path: Path) -> None:
    path.mkdir()
    assert refusal(path) == "it is no file: give the path of one"
    path.rmdir()
    os.mkfifo(path)
    assert refusal(path) == "it is no file: give the path of one"


def test_a_missing_directory_is_refused(path: Path) -> None:
    assert refusal(path / "deeper").startswith(
        "it cannot be opened: see that the directory exists and is writable (unable to open"
    )


def test_an_unknown_sync_is_refused_before_anything_is_made(path: Path) -> None:
    with pytest.raises(StateRefused, match="sync 'off': say 'full' or 'normal'"):
        opened(path, sync="off")
    assert not path.exists()


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A directory that others may not write to, with a file in it that they may, and one not."""
    directory = Path(tempfile.mkdtemp())
    made(directory / "theirs.db").chmod(0o444)
    made(directory / "everybodys.db").chmod(0o666)
    directory.chmod(0o555)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("theirs.db", "it cannot be written: check the permissions of file and directory"),
        ("everybodys.db", "it cannot be written: check the permissions of file and directory"),
        ("new.db", "it cannot be opened: see that the directory exists and is writable"),
    ],
)
def test_a_state_in_a_read_only_directory_is_refused(read_only: Path, name: str, line: str) -> None:
    told = said(
        """
        if os.getuid() == 0:
            os.setuid(NOBODY)
        try:
            opened(Path(sys.argv[1]))
        except StateRefused as refused:
            os.write(1, str(refused).encode())
        """,
        read_only / name,
    )
    assert told.startswith(f"state {read_only / name}: {line}")
    assert "\n" not in told
    assert sorted(os.listdir(read_only)) == ["everybodys.db", "theirs.db"]


def test_a_state_that_another_process_has_open_is_refused(path: Path) -> None:
    script = """
        state = opened(Path(sys.argv[1]))
        commit(state, {3: at(7)})
        print("open", flush=True)
        sys.stdin.read()
        """
    made(path)
    with python(script, path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StateRefused, match="another process uses it: stop that one") as refused:
            opened(path)
        assert "\n" not in str(refused.value)
        process.kill()
    state = opened(path)
    assert state.load().keys() == {0, 1, 3}, "killing it has let go of the lock"
    state.close()


# --- what is torn -------------------------------------------------------------------------------


def use_all(path: Path) -> tuple[object, ...]:
    state = opened(path)
    try:
        return state.load(), *(state.ring_after(vbucket, 0) for vbucket in (0, 1))
    finally:
        state.close()


@pytest.mark.parametrize("pages", range(1, 6))
def test_a_file_that_was_cut_short_is_refused(path: Path, pages: int) -> None:
    whole = made(path).read_bytes()
    path.write_bytes(whole[: pages * 4096])
    assert len(whole) > pages * 4096
    with pytest.raises(StateRefused, match="it is torn: move it away to start over"):
        use_all(path)
    assert path.stat().st_size == pages * 4096


@pytest.mark.parametrize("page", range(1, 6))
def test_a_page_that_was_lost_is_told(path: Path, page: int) -> None:
    whole = bytearray(made(path).read_bytes())
    whole[page * 4096 : (page + 1) * 4096] = bytes(4096)
    path.write_bytes(whole)
    with pytest.raises(StateRefused, match="torn: move it away to start over"):
        use_all(path)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE uprmc_ring SET data = x'00'", "the ring of vBucket 0"),
        ("UPDATE uprmc_ring SET data = 'x'", "the ring of vBucket 0"),
        ("UPDATE uprmc_ring SET entries = 31", "the ring of vBucket 0"),
        ("UPDATE uprmc_ring SET last = x'ff'", "the ring of vBucket 0"),
        ("UPDATE uprmc_journal SET data = x'00'", "it"),
        ("UPDATE uprmc_journal SET data = 7", "it"),
        ("UPDATE uprmc_journal SET data = zeroblob(length(data))", "it"),
        ("DELETE FROM uprmc_journal", "it"),
        ("DELETE FROM uprmc_journal WHERE id = 3", "it"),
        ("DELETE FROM uprmc_state", "it"),
    ],
)
def test_a_record_that_makes_no_sense_is_told(path: Path, change: str, what: str) -> None:
    with sqlite3.connect(made(path)) as connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(StateRefused) as refused:
        use_all(path)
    assert str(refused.value) == (
        f"state {path}: {what} is torn: move it away to start over, or put a copy back"
    )


def test_any_flipped_byte_gives_an_error_of_ours_or_none(path: Path) -> None:
    whole = made(path).read_bytes()
    random = Random(7)
    for _ in range(150):
        changed = bytearray(whole)
        for _ in range(random.choice((1, 8))):
            changed[random.randrange(len(whole))] ^= 1 << random.randrange(8)
        path.write_bytes(changed)
        with suppress(StateError):
            use_all(path)
        for name in (f"{path}-wal", f"{path}-journal"):
            Path(name).unlink(missing_ok=True)


# --- no room ------------------------------------------------------------------------------------


def test_a_full_disk_fails_the_commit_and_the_next_one_goes_on(path: Path) -> None:
    connection = sqlite3.connect(path)
    state = opened(connection)
    commit(state, {0: at(1)}, [chunk(0, 1)])
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    many = RingChunk(0, [(seqno, b"k" * 200) for seqno in range(2, 100)])
    with pytest.raises(StateFull, match="there is no room: make some; what was kept before is int"):
        commit(state, {0: at(99)}, [many], trims={0: 1})
    assert state.load() == {0: at(1)}
    assert ring_seqnos(state, 0) == [1]
    connection.execute("PRAGMA max_page_count = 1000000")
    commit(state, {0: at(99)}, [many], trims={0: 1})
    assert state.load() == {0: at(99)}
    assert ring_seqnos(state, 0) == list(range(2, 100))
    connection.close()


def test_a_file_size_limit_fails_the_commit_and_keeps_what_was(path: Path) -> None:
    lines = said(
        """
        import resource
        state = opened(Path(sys.argv[1]))
        commit(state, {0: at(1)}, [chunk(0, 1)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
        many = RingChunk(0, [(seqno, b"k" * 200) for seqno in range(2, 1000)])
        for _ in range(2):
            try:
                commit(state, {0: at(9_999)}, [many])
            except StateError as error:
                print(error)
        assert state.load() == {0: at(1)}
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        commit(state, {0: at(2)}, [chunk(0, 2)])
        state.close()
        """,
        path,
    ).splitlines()
    assert len(lines) == 2
    assert all("see to room, limits and the disk's health" in line for line in lines)
    state = opened(path)
    assert state.load() == {0: at(2)}
    assert ring_seqnos(state, 0) == [1, 2]
    state.close()


def test_a_new_state_on_a_full_disk_is_refused(path: Path) -> None:
    line = said(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            opened(Path(sys.argv[1]))
        except StateRefused as refused:
            os.write(1, str(refused).encode())
        """,
        path,
    )
    assert "\n" not in line
    assert "see to room, limits and the disk's health" in line


# --- crashes ------------------------------------------------------------------------------------

KEEPS_COMMITTING = """
    sqlite_state.FOLD_RECORDS = 10
    state = opened(Path(sys.argv[1]))
    last = max((saved.seqno for saved in state.load().values()), default=0)
    for seqno in range(last + 1, last + 10**6):
        saved = {vbucket: at(seqno) for vbucket in range(8)}
        ring = [chunk(vbucket, seqno) for vbucket in range(8)]
        commit(state, saved, ring, trims={vbucket: max(0, seqno - 100) for vbucket in range(8)})
        print(seqno, flush=True)
    """


def check_whole(path: Path) -> int:
    """Return the seqno that the state is at; positions and rings must be of one commit."""
    state = opened(path)
    positions = {saved.seqno for saved in state.load().values()} or {0}
    assert len(positions) == 1, "positions of several commits"
    (seqno,) = positions
    for vbucket in range(8):
        assert ring_seqnos(state, vbucket) == list(range(max(seqno - 99, 1), seqno + 1))
    state.close()
    return seqno


@pytest.mark.acceptance("D13", "D44", "D45")
def test_a_killed_process_leaves_position_and_ring_of_one_commit(path: Path) -> None:
    random = Random(4)
    told = 0
    for _ in range(12):
        with python(KEEPS_COMMITTING, path) as process:
            assert process.stdout is not None
            for _ in range(random.randrange(1, 90)):
                told = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split("\n")[:-1]
        told = int(rest[-1]) if rest else told
        assert told <= check_whole(path) <= told + 1


@pytest.mark.acceptance("D13")
def test_a_commit_that_is_killed_at_any_step_has_happened_or_not(path: Path) -> None:
    """SQLite tells each of its steps; the process kills itself at one of them."""
    script = """
        sqlite_state.FOLD_RECORDS = int(sys.argv[3])
        connection = sqlite3.connect(sys.argv[1])
        state = opened(connection)
        left = [int(sys.argv[2])]
        def step():
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
        connection.set_progress_handler(step, 1)
        commit(
            state,
            {vbucket: at(8) for vbucket in range(8)},
            [chunk(vbucket, 8) for vbucket in range(8)],
            cuts={vbucket: 7 for vbucket in range(8)},
        )
        print("done")
        """
    state = opened(path)
    commit(
        state,
        {vbucket: at(7) for vbucket in range(8)},
        [chunk(vbucket, *range(1, 8)) for vbucket in range(8)],
    )
    state.close()
    random = Random(5)
    for turn in range(10):
        copy = path.with_name("copy.db")
        shutil.copy(path, copy)
        with python(script, copy, random.randrange(1, 400), 1 + turn % 2 * 9) as process:
            out, _ = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out) in ((-signal.SIGKILL, ""), (0, "done\n"))
        in_file = sqlite3.connect(copy)
        reached = check_shared(in_file)
        in_file.close()
        assert reached == (8 if out else 7)
        for name in copy.parent.glob("copy.db*"):
            name.unlink()


def check_shared(connection: sqlite3.Connection) -> int:
    state = opened(connection)
    (seqno,) = {saved.seqno for saved in state.load().values()}
    for vbucket in range(8):
        assert ring_seqnos(state, vbucket) == list(range(1, seqno + 1))
    return seqno


# --- durability and size ------------------------------------------------------------------------


@pytest.mark.parametrize(("sync", "level"), [("full", 2), ("normal", 1)])
def test_sync_decides_whether_a_commit_waits_for_the_disk(
    path: Path, sync: str, level: int
) -> None:
    state = opened(path, sync=sync)
    assert state._connection.execute("PRAGMA synchronous").fetchone() == (level,)
    assert state._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    state.close()


def test_the_file_tells_whose_it_is(path: Path) -> None:
    header = made(path).read_bytes()[:100]
    assert int.from_bytes(header[68:72], "big") == APPLICATION_ID


def test_a_commit_is_one_row_of_the_journal_until_that_is_folded(path: Path) -> None:
    state = opened(path, sync="normal")
    vbuckets = range(8)
    last = FOLD_RECORDS - 1  # the first row is that of the empty state
    for seqno in range(1, last + 1):
        commit(state, dict.fromkeys(vbuckets, at(seqno)), [chunk(n, seqno) for n in vbuckets])
    assert count(state, "uprmc_journal") == FOLD_RECORDS
    assert count(state, "uprmc_ring") == 0
    commit(state, dict.fromkeys(vbuckets, at(9_999)), [chunk(n, 9_999) for n in vbuckets])
    assert count(state, "uprmc_journal") == 2
    assert rows(state) == [last] * len(vbuckets)
    assert ring_seqnos(state, 3) == [*range(1, last + 1), 9_999]
    state.close()
    state = opened(path)
    assert state.load() == dict.fromkeys(vbuckets, at(9_999))
    assert ring_seqnos(state, 3) == [*range(1, last + 1), 9_999]
    state.close()


def test_a_journal_with_many_entries_is_folded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_state, "FOLD_ENTRIES", 100)
    state = opened(path)
    for first in (1, 51, 101):
        commit(state, ring=[chunk(0, *range(first, first + 50))])
    assert (count(state, "uprmc_journal"), rows(state)) == (2, [100])
    assert ring_seqnos(state, 0) == list(range(1, 151))
    state.close()


def test_small_rows_grow_and_large_ones_are_left_alone(path: Path) -> None:
    state = opened(path)
    step, first = ROW_ENTRIES // 2, 1
    with folding():
        for _ in range(7):
            commit(state, ring=[chunk(0, *range(first, first + step))])
            first += step
    assert rows(state) == [ROW_ENTRIES] * 3
    assert ring_seqnos(state, 0) == list(range(1, first))
    state.close()


@pytest.mark.parametrize("again", [[4, 5, 6], [1, 9], [9, 2]])
def test_entries_that_came_before_those_in_rows_are_one_row_with_them(
    path: Path, again: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_state, "ROW_ENTRIES", 3)
    state = opened(path)
    with folding():
        commit(state, ring=[chunk(0, *range(1, 8))])
        commit(state, trims={0: 2})
        commit(state, ring=[chunk(0, seqno) for seqno in again])
        commit(state)
    expected = sorted({3, 4, 5, 6, 7, *again})
    assert ring_seqnos(state, 0) == expected
    assert state.ring_size(0) == 5 + len(again)
    assert len(rows(state)) == 1
    state.close()
    state = opened(path)
    assert ring_seqnos(state, 0) == expected
    state.close()


def count(state: SqliteState, table: str) -> int:
    ((found,),) = state._connection.execute(f"SELECT count(*) FROM {table}")
    return int(found)


def rows(state: SqliteState) -> list[int]:
    found = state._connection.execute("SELECT entries FROM uprmc_ring ORDER BY id")
    return [entries for (entries,) in found]


def test_a_ring_that_is_trimmed_does_not_make_the_file_grow(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_state, "FOLD_ENTRIES", 4_000)
    state = opened(path, sync="normal")

    def turn(first: int) -> None:
        entries = [(seqno, b"key-%d" % seqno) for seqno in range(first, first + 1000)]
        commit(state, {0: at(first)}, [RingChunk(0, entries)], trims={0: max(0, first - 5000)})

    for first in range(100_001, 120_000, 1000):
        turn(first)
    (before,) = state._connection.execute("PRAGMA page_count").fetchone()
    for first in range(120_001, 200_000, 1000):
        turn(first)
    (after,) = state._connection.execute("PRAGMA page_count").fetchone()
    assert after <= before * 1.2
    state.close()


# --- in the handler's database ------------------------------------------------------------------


@pytest.fixture
def shared(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE documents (key, seqno)")
    yield connection
    connection.close()


@pytest.mark.acceptance("D13")
def test_what_the_handler_wrote_goes_with_the_position(
    shared: sqlite3.Connection, path: Path
) -> None:
    state = opened(shared)
    shared.execute("INSERT INTO documents VALUES ('a', 1)")
    other = sqlite3.connect(path)
    assert other.execute("SELECT count(*) FROM documents").fetchone() == (0,)
    commit(state, {0: at(1)})
    assert other.execute("SELECT count(*) FROM documents").fetchone() == (1,)
    other.close()


def test_what_the_handler_wrote_since_can_be_abandoned(shared: sqlite3.Connection) -> None:
    state = opened(shared)
    assert state.shared
    shared.execute("INSERT INTO documents VALUES ('a', 1)")
    commit(state, {0: at(1)})
    shared.execute("INSERT INTO documents VALUES ('b', 2)")
    state.abandon()
    assert shared.execute("SELECT key FROM documents").fetchall() == [("a",)]
    assert state.load() == {0: at(1)}
    state.abandon()


def test_a_file_of_its_own_is_not_shared(path: Path) -> None:
    state = opened(path)
    assert not state.shared
    state.abandon()
    state.close()


def test_a_failed_commit_undoes_what_the_handler_wrote(shared: sqlite3.Connection) -> None:
    state = opened(shared)
    commit(state, {0: at(1)})
    (pages,) = shared.execute("PRAGMA page_count").fetchone()
    shared.execute(f"PRAGMA max_page_count = {pages}")
    shared.execute("INSERT INTO documents VALUES ('a', 2)")
    with pytest.raises(StateFull):
        commit(state, {0: at(2)}, [RingChunk(0, [(2, b"k" * 9000)])])
    assert shared.execute("SELECT count(*) FROM documents").fetchone() == (0,)
    assert state.load() == {0: at(1)}


def test_two_processes_with_one_state_in_a_database_notice_each_other(
    shared: sqlite3.Connection, path: Path
) -> None:
    first = opened(shared)
    other = sqlite3.connect(path)
    second = opened(other)
    commit(second, {0: at(5)})
    shared.execute("INSERT INTO documents VALUES ('a', 2)")
    with pytest.raises(StateError, match="another process has used it meanwhile: stop that one"):
        commit(first, {0: at(2)})
    assert not shared.in_transaction
    assert second.load() == {0: at(5)}
    assert opened(other).load() == {0: at(5)}
    assert shared.execute("SELECT count(*) FROM documents").fetchone() == (0,)
    other.close()


def test_a_database_that_is_locked_is_told(shared: sqlite3.Connection, path: Path) -> None:
    shared.execute("PRAGMA busy_timeout = 10")
    state = opened(shared)
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateError, match="another process uses it"):
        commit(state, {0: at(2)})
    other.close()
    commit(state, {0: at(2)})
    assert state.load() == {0: at(2)}


@pytest.mark.parametrize(
    ("prepare", "line"),
    [
        (
            lambda connection: setattr(connection, "isolation_level", None),
            "each statement of the connection is a transaction of its own: connect with ",
        ),
        (
            lambda connection: connection.execute("INSERT INTO documents VALUES ('a', 2)"),
            "the connection is in a transaction: commit it first, or roll it back",
        ),
    ],
)
def test_a_connection_that_cannot_share_its_transactions_is_refused(
    shared: sqlite3.Connection, prepare: Callable[[sqlite3.Connection], object], line: str
) -> None:
    prepare(shared)
    with pytest.raises(StateRefused) as refused:
        opened(shared)
    assert str(refused.value).startswith(f"state in your database: {line}")
    shared.execute("SELECT * FROM documents")


def test_closing_leaves_the_handlers_connection_open(shared: sqlite3.Connection) -> None:
    state = opened(shared)
    state.close()
    shared.execute("SELECT * FROM documents")


def test_a_state_that_was_closed_says_so(path: Path) -> None:
    state = opened(path)
    state.close()
    with pytest.raises(StateError, match="closed database"):
        commit(state, {0: at(1)})


def test_the_id_under_which_a_consumer_is_registered_is_kept(path: Path) -> None:
    state = opened(path)
    first = state.instance
    state.close()
    state = opened(path)
    assert state.instance == first
    assert len(first) == 32
    state.name_instance("mine")
    state.close()
    state = opened(path)
    assert state.instance == "mine"
    state.close()


# --- rows as bytes ------------------------------------------------------------------------------

NUMBERS = st.integers(0, SEQNO_MAX)
LOGS = st.lists(st.builds(FailoverEntry, NUMBERS, NUMBERS), max_size=3).map(tuple)
SAVED = st.builds(Saved, NUMBERS, st.builds(SnapshotRange, NUMBERS, NUMBERS), LOGS, *[NUMBERS] * 3)
POSITIONS = st.dictionaries(st.integers(0, 0xFFFF), SAVED, max_size=3)
ENTRIES = st.lists(st.tuples(NUMBERS, st.binary(max_size=300)), min_size=1, max_size=20).map(sorted)


@given(POSITIONS, ENTRIES, st.booleans())
def test_positions_and_keys_of_any_size_come_back(
    saved: dict[int, Saved], entries: list[tuple[int, bytes]], folds: bool
) -> None:
    connection = sqlite3.connect(":memory:")
    state = opened(connection)
    commit(state, saved, [RingChunk(7, entries)])
    if folds:
        with folding():
            commit(state)
    state = opened(connection)
    assert state.load() == saved
    assert state.ring_after(7, 0) == sorted({each for each in entries if each[0]})
    connection.close()


@pytest.mark.parametrize("table", ["uprmc_journal", "uprmc_ring"])
def test_a_row_with_any_changed_lost_or_added_byte_is_noticed(path: Path, table: str) -> None:
    whole = made(path).read_bytes()
    random = Random(8)
    for turn in range(60):
        path.write_bytes(whole)
        with sqlite3.connect(path) as connection:
            number, data = random.choice(
                connection.execute(f"SELECT id, data FROM {table}").fetchall()
            )
            place = random.randrange(len(data))
            changed = bytearray(data)
            changed[place] ^= random.randrange(1, 256)
            wrong = (bytes(changed), data[:place], data + b"\0")[turn % 3]
            connection.execute(f"UPDATE {table} SET data = ? WHERE id = ?", (wrong, number))
        connection.close()
        with pytest.raises(StateRefused, match="is torn: move it away"):
            use_all(path)


def test_a_term_or_a_log_that_changes_alone_is_kept(path: Path) -> None:
    state = opened(path)
    first = Saved(7, SnapshotRange(7, 7), (FailoverEntry(5, 3), FailoverEntry(4, 0)), 3, 2)
    for saved in (first, first._replace(term=4), first._replace(term=4, log=first.log[1:])):
        commit(state, {3: saved})
        state.close()
        state = opened(path)
        assert state.load() == {3: saved}
    state.close()


def test_a_small_commit_takes_few_bytes(path: Path) -> None:
    state = opened(path)
    commit(state, dict.fromkeys(range(64), at(300)), [chunk(n, 300) for n in range(64)])
    commit(state, dict.fromkeys(range(64), at(301)), [chunk(n, 301) for n in range(64)])
    ((size,),) = state._connection.execute("SELECT length(data) FROM uprmc_journal WHERE id = 3")
    assert size < 64 * (1 + 2 + 1 + 1 + 2 + 1 + len(b"key-301")) + 120
    state.close()
