"""A state file that cannot be used is refused in one line and left alone; crashes tear nothing."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from zlib import crc32

import pytest

from tests.client.state_contract import LOG, at, chunk, commit, ring_seqnos
from uprmc.client.commit_record import pack_record
from uprmc.client.ring_chunk import pack_entries
from uprmc.client.ring_columns import RingColumns
from uprmc.client.ring_rows import SMALL_ENTRIES, SMALL_ROWS_MAX, RowChanges
from uprmc.client.sqlite_file import APPLICATION_ID
from uprmc.client.sqlite_state import DIRECT_ENTRIES, FOLD_RECORDS, SqliteState
from uprmc.client.state import RingChunk, Saved, StateError, StateFull, StateRefused
from uprmc.model import FailoverEntry, SnapshotRange

TIMEOUT_S = 60
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def opened(where: Path | sqlite3.Connection, **changes: object) -> SqliteState:
    given: dict[str, object] = {"name": "index", "vbuckets": 64, "lock_timeout_s": 0.01}
    return SqliteState(where, **(given | changes))  # type: ignore[arg-type]


def made(path: Path) -> Path:
    """Make a state file with a position and a ring of several pages in it."""
    state = opened(path)
    ring = [
        RingChunk(vbucket, [(seqno, b"k" * 90) for seqno in range(1, 65)]) for vbucket in (0, 1)
    ]
    commit(state, {0: at(64), 1: at(64)}, ring)
    state.close()
    return path


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
        connection.execute("UPDATE uprmc_state SET version = 6")
    connection.close()
    assert refusal(path).startswith("its layout has version 6, this program knows 5: use the prog")


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
        ("UPDATE uprmc_position SET seqno = 65 WHERE vbucket = 1", "a position"),
        ("UPDATE uprmc_position SET log = x'00'", "a position"),
        ("UPDATE uprmc_position SET ring_from = 'x'", "a position"),
        ("UPDATE uprmc_ring SET keys = x'00'", "the ring of vBucket 0"),
        ("UPDATE uprmc_ring SET last = 'x'", "it"),
        ("UPDATE uprmc_log SET data = x'00'", "it"),
        ("UPDATE uprmc_log SET data = zeroblob(length(data))", "it"),
        ("DELETE FROM uprmc_position", "it"),
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
    for _ in range(10):
        copy = path.with_name("copy.db")
        shutil.copy(path, copy)
        with python(script, copy, random.randrange(1, 150)) as process:
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


def test_small_rows_are_packed_into_one_and_large_ones_left_alone(path: Path) -> None:
    state = opened(path)
    commit(state, ring=[RingChunk(0, [(n, b"k") for n in range(1, SMALL_ENTRIES + 1)])])
    first = SMALL_ENTRIES + 1
    for _ in range(SMALL_ROWS_MAX):
        commit(state, ring=[chunk(0, *range(first, first + DIRECT_ENTRIES))])
        first += DIRECT_ENTRIES
    assert rows(state) == [SMALL_ENTRIES, *[DIRECT_ENTRIES] * SMALL_ROWS_MAX], "as many as may be"
    commit(state, ring=[chunk(0, *range(first, first + DIRECT_ENTRIES))])
    assert rows(state) == [SMALL_ENTRIES, DIRECT_ENTRIES * (SMALL_ROWS_MAX + 1)]
    state.close()


def test_a_commit_is_one_row_of_the_log_until_the_log_is_folded(path: Path) -> None:
    state = opened(path)
    vbuckets = range(8)
    for seqno in range(1, FOLD_RECORDS + 1):
        commit(state, dict.fromkeys(vbuckets, at(seqno)), [chunk(n, seqno) for n in vbuckets])
    assert count(state, "uprmc_log") == FOLD_RECORDS
    assert count(state, "uprmc_ring") == 0
    commit(state, dict.fromkeys(vbuckets, at(9_999)), [chunk(n, 9_999) for n in vbuckets])
    assert count(state, "uprmc_log") == 1
    assert rows(state) == [FOLD_RECORDS] * len(vbuckets)
    assert ring_seqnos(state, 3) == [*range(1, FOLD_RECORDS + 1), 9_999]
    state.close()
    state = opened(path)
    assert state.load() == dict.fromkeys(vbuckets, at(9_999))
    assert ring_seqnos(state, 3) == [*range(1, FOLD_RECORDS + 1), 9_999]
    state.close()


def count(state: SqliteState, table: str) -> int:
    ((found,),) = state._connection.execute(f"SELECT count(*) FROM {table}")
    return int(found)


def rows(state: SqliteState) -> list[int]:
    found = state._connection.execute("SELECT entries FROM uprmc_ring ORDER BY id")
    return [entries for (entries,) in found]


def test_a_ring_that_is_trimmed_does_not_make_the_file_grow(path: Path) -> None:
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


def test_the_position_on_disk_is_what_was_promised(path: Path) -> None:
    """For those who look at it with SQLite's own tools."""
    state = opened(path)
    saved = Saved(110, SnapshotRange(100, 120), LOG, 50, 7)
    commit(state, {3: saved}, [chunk(3, 110)])
    state.close()
    connection = sqlite3.connect(path)
    (row,) = connection.execute("SELECT * FROM uprmc_position").fetchall()
    assert row[:6] == (3, 110, 100, 120, 50, 7)
    assert row[6] == b"".join(n.to_bytes(8, "little") for entry in LOG for n in entry)
    ((data,),) = connection.execute("SELECT data FROM uprmc_log").fetchall()
    assert data == pack_record({3: saved}, {}, RingColumns.of([chunk(3, 110)]))
    connection.close()


def test_many_entries_of_one_vbucket_are_a_row_of_the_ring(path: Path) -> None:
    state = opened(path)
    many = chunk(3, *range(1, DIRECT_ENTRIES + 1))
    commit(state, ring=[many])
    state.close()
    connection = sqlite3.connect(path)
    (ring,) = connection.execute("SELECT * FROM uprmc_ring").fetchall()
    assert ring == (
        1,
        3,
        1,
        DIRECT_ENTRIES,
        DIRECT_ENTRIES,
        pack_entries(*zip(*many.entries, strict=True)),
    )
    connection.close()


def test_a_layout_without_terms_is_read_and_gets_them(path: Path) -> None:
    saved = Saved(7, SnapshotRange(7, 7), (FailoverEntry(5, 0),), 3, 2)
    state = SqliteState(path, name="c", vbuckets=64)
    state.commit({3: saved}, [], {}, {})
    state.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE uprmc_position DROP COLUMN term")
        connection.execute("ALTER TABLE uprmc_state DROP COLUMN instance")
        connection.execute("DROP TABLE uprmc_log")
        connection.execute("UPDATE uprmc_state SET version = 1")
    connection.close()
    state = SqliteState(path, name="c", vbuckets=64)
    assert state.load() == {3: saved}
    state.commit({3: saved._replace(term=4)}, [], {}, {})
    state.close()
    state = SqliteState(path, name="c", vbuckets=64)
    assert state.load()[3].term == 4
    state.close()


def make_version_2(path: Path) -> None:
    """Make a file as version 2 of the layout left it: without the log."""
    state = opened(path)
    commit(state, {3: at(7)}, [chunk(3, *range(1, 101))])
    state._fold(RowChanges({}, 1, state._entries), {})
    state._connection.execute("DROP TABLE uprmc_log")
    state._connection.execute("ALTER TABLE uprmc_state DROP COLUMN instance")
    state._connection.execute("UPDATE uprmc_state SET version = 2")
    state.close()


@pytest.mark.parametrize("step", [0, *range(1, 60, 3)])
def test_a_layout_without_a_log_gets_one_or_stays_as_it_was(path: Path, step: int) -> None:
    """SQLite tells each of its steps; the upgrade is broken off at one of them."""
    make_version_2(path)
    connection = sqlite3.connect(path)
    left = [step]

    def stop() -> int:
        left[0] -= 1
        return not left[0]

    connection.set_progress_handler(stop, 1)
    with suppress(StateError):
        opened(connection)
    connection.close()
    connection = sqlite3.connect(path)
    ((version,),) = connection.execute("SELECT version FROM uprmc_state")
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    assert (version == 5) == ("uprmc_log" in tables)
    connection.close()
    state = opened(path)
    commit(state, {3: at(101)}, [chunk(3, 101)])
    state.close()
    state = opened(path)
    assert state.load() == {3: at(101)}
    assert ring_seqnos(state, 3) == list(range(1, 102))
    state.close()


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


def test_a_layout_without_an_id_gets_one(path: Path) -> None:
    state = opened(path)
    state._connection.execute("ALTER TABLE uprmc_state DROP COLUMN instance")
    state._connection.execute("UPDATE uprmc_state SET version = 3")
    state.close()
    state = opened(path)
    first = state.instance
    state.close()
    state = opened(path)
    assert first
    assert state.instance == first
    state.close()


def test_commits_of_a_layout_without_compact_columns_are_read(path: Path) -> None:
    state = opened(path)
    commit(state, {3: at(7)}, [chunk(3, *range(1, 8))])
    state.close()
    moved, entries = struct.pack("<I5Q", 3, 9, 9, 9, 0, 0), struct.pack("<IIQH", 3, 1, 9, 5)
    body = struct.pack("<4I", 1, 0, 1, 1) + moved + entries + b"key-9"
    with sqlite3.connect(path) as connection:
        data = struct.pack("<I", crc32(body)) + body
        connection.execute("INSERT INTO uprmc_log (data) VALUES (?)", (data,))
        connection.execute("UPDATE uprmc_state SET version = 4")
    connection.close()
    state = opened(path)
    assert state.load() == {3: at(9)}
    commit(state, {3: at(11)}, [chunk(3, 10, 11)])
    assert ring_seqnos(state, 3) == [*range(1, 8), 9, 10, 11]
    assert state.ring_after(3, 7)[0] == (9, b"key-9")
    state.close()
