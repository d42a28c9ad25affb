"""Loads into a real node, in this process; the node is read by a client of its own."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interop.server_process import ServerProcess
from tests.bulk.here import changes, contents, put
from uprmc.columnar.access import Access
from uprmc.columnar.errors import BadFile, BadOption, BadRow, TooManyErrors
from uprmc.columnar.write_options import WriteOptions
from uprmc.jobs.engines import LocalEngine
from uprmc.jobs.progress import Step
from uprmc.load.loading import LoadReport, load
from uprmc.load.row_rules import RowRules
from uprmc.remote.errors import NodeUnreachable

ENGINE = LocalEngine(1)


def written(tmp_path: Path, rows: Sequence[dict[str, Any]], name: str = "x.jsonl") -> str:
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def into(server: ServerProcess, *paths: str, **how: Any) -> LoadReport:
    """Load with the options of `WriteOptions` and of `load` mixed, as they come."""
    own = {"rules", "format", "dialect", "resume", "rate", "progress", "task_bytes", "engine"}
    writing = {name: value for name, value in how.items() if name not in own}
    loading = {name: value for name, value in how.items() if name in own}
    access = Access((str(server.upr),), retries=0)
    return load(paths, write=WriteOptions(access, **writing), **({"engine": ENGINE} | loading))


def of(server: ServerProcess, prefix: str) -> dict[bytes, bytes]:
    return {k: v for k, v in contents(server).items() if k.startswith(prefix.encode())}


def test_rows_of_all_formats_become_documents(node: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,v\nall:1,"x, y"\n')
    lines = written(tmp_path, [{"id": "all:2", "v": "ä"}])
    pq.write_table(pa.table({"id": [b"all:3"], "v": [b"\x00\xff"]}), tmp_path / "c.parquet")
    report = into(
        *(node, str(tmp_path / "a.csv"), lines, str(tmp_path / "c.parquet")),
        rules=RowRules("id", "v"),
    )
    assert of(node, "all:") == {b"all:1": b"x, y", b"all:2": "ä".encode(), b"all:3": b"\x00\xff"}
    assert (report.counts.rows, report.counts.applied, report.files, report.tasks) == (3, 3, 3, 3)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Callable[[str, bytes], str]]:
    """Make pipes, each written by a thread as soon as somebody reads."""
    threads = []

    def fill(name: str, data: bytes) -> str:
        path = tmp_path / name
        os.mkfifo(path)
        threads.append(threading.Thread(target=path.write_bytes, args=(data,)))
        threads[-1].start()
        return str(path)

    yield fill
    for thread in threads:
        thread.join(30)


LINES = b"".join(b'{"id": "%s%d", "v": "x"}\n' % (b"pipe:", n) for n in range(3))
CSV = b"id,v\npipe:0,x\npipe:1,x\npipe:2,x\n"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.jsonl", LINES),
        ("x.csv", CSV),
        ("x.csv.gz", gzip.compress(CSV, mtime=0)),
        ("x.jsonl.gz", gzip.compress(LINES, mtime=0)),
    ],
)
def test_a_pipe_is_read_to_its_end_although_its_size_is_0(
    node: ServerProcess,
    tmp_path: Path,
    filled: Callable[[str, bytes], str],
    name: str,
    data: bytes,
) -> None:
    plain = written(tmp_path, [{"id": "pipe:3", "v": "x"}], "plain.jsonl")
    report = into(
        *(node, plain, filled(name, data)),
        rules=RowRules("id", "v"),
        rate=100_000,
    )
    assert of(node, "pipe:") == {f"pipe:{n}".encode(): b"x" for n in range(4)}
    assert (report.counts.applied, report.files, report.tasks) == (4, 2, 2)
    keys = written(tmp_path, [{"id": f"pipe:{n}"} for n in range(4)], "keys.jsonl")
    into(node, keys, mode="delete", rules=RowRules("id"))


def test_bad_rows_of_a_pipe_have_its_line_numbers(
    node: ServerProcess, filled: Callable[[str, bytes], str]
) -> None:
    bad = filled("x.csv", b"id,v\nbad:1,x\nbad:2\n")
    report = into(node, bad, rules=RowRules("id", "v"), on_error="skip")
    assert report.counts.first_errors[0].endswith(
        "x.csv:3: BAD_LINE: 1 fields, where there are 2 columns"
    )


def test_a_column_that_a_pipe_lacks_is_said_before_anything_is_written(
    node: ServerProcess, filled: Callable[[str, bytes], str]
) -> None:
    with pytest.raises(BadOption, match="did you mean id"):
        into(node, filled("x.csv", CSV), rules=RowRules("idd", "v"))
    assert of(node, "pipe:") == {}


def test_a_load_from_a_pipe_cannot_be_resumed_and_says_so(
    node: ServerProcess, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "x.jsonl")
    with pytest.raises(BadOption, match="nothing could be resumed"):
        into(node, str(tmp_path / "x.jsonl"), resume=tmp_path / "journal")
    assert not (tmp_path / "journal").exists()


def test_flags_and_time_to_live_come_from_columns_or_are_the_same_for_all(
    node: ServerProcess, tmp_path: Path
) -> None:
    path = written(tmp_path, [{"key": "ttl:1", "value": "x", "f": 7, "t": 1_000}])
    into(node, path, rules=RowRules(flags="f", ttl="t"))
    other = written(tmp_path, [{"key": "ttl:2", "value": "x"}])
    into(node, other, rules=RowRules(flags="9", ttl="100000000"))
    found = changes(node)
    assert (found[b"ttl:1"].flags, found[b"ttl:2"].flags) == (7, 9)
    near, far = found[b"ttl:1"].expiry, found[b"ttl:2"].expiry
    assert far - near == pytest.approx(100_000_000 - 1_000, abs=60)


def test_a_decimal_column_is_numbers_in_every_row(node: ServerProcess, tmp_path: Path) -> None:
    numbers = ["0.10", "1.25", "12345678901234567890.12", "0.30"]
    column = pa.array([Decimal(each) for each in numbers], pa.decimal128(38, 2))
    table = pa.table({"id": [f"dec:{n}" for n in range(4)], "n": column})
    pq.write_table(table, tmp_path / "x.parquet")
    into(node, str(tmp_path / "x.parquet"), rules=RowRules("id", "json"))
    found = of(node, "dec:")
    assert [found[b"dec:%d" % n] for n in range(4)] == [
        b'{"n":%s}' % each.encode() for each in numbers
    ]


def test_insert_leaves_what_is_there_and_delete_removes_it(
    node: ServerProcess, tmp_path: Path
) -> None:
    put(node, {b"mode:1": b"old"})
    path = written(tmp_path, [{"key": "mode:1", "value": "new"}, {"key": "mode:2", "value": "new"}])
    report = into(node, path, mode="insert", on_error="skip")
    assert of(node, "mode:") == {b"mode:1": b"old", b"mode:2": b"new"}
    assert (report.counts.applied, report.errors) == (1, 1)
    keys = written(tmp_path, [{"key": "mode:1"}, {"key": "mode:3"}])
    report = into(node, keys, mode="delete")
    assert of(node, "mode:") == {b"mode:2": b"new"}
    assert (report.counts.applied, report.counts.missing) == (1, 1)


def test_versions_with_their_own_metadata_are_applied_once(
    node: ServerProcess, tmp_path: Path
) -> None:
    row = {"key": "meta:1", "value": "x", "_rev": 3, "_cas": 12345, "_flags": 4}
    path = written(tmp_path, [row])
    assert into(node, path, mode="append-meta").counts.applied == 1
    again = into(node, path, mode="append-meta")
    assert (again.counts.applied, again.counts.conflicts) == (0, 1)
    found = changes(node)[b"meta:1"]
    assert (found.rev, found.cas, found.flags) == (3, 12345, 4)


def test_a_dry_run_counts_and_sends_nothing(node: ServerProcess, tmp_path: Path) -> None:
    path = written(tmp_path, [{"key": "dry:1", "value": "x"}, {"key": "k" * 251, "value": "x"}])
    report = into(node, path, dry_run=True, on_error="skip")
    assert (report.counts.applied, report.errors, report.counts.dry_run) == (1, 1, True)
    assert of(node, "dry:") == {}


# --- bad rows -------------------------------------------------------------------------------------


def test_a_bad_line_ends_the_load_and_names_file_and_line(
    node: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"key":"bad:1","value":"x"}\nnonsense\n')
    with pytest.raises(BadRow, match=r"x\.jsonl:2: BAD_LINE: no JSON"):
        into(node, str(path))


def test_rows_that_the_writer_refuses_name_file_and_line_too(
    node: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    lines = [f"k{n},v\n" for n in range(100)]
    lines[60] = ",v\n"
    path.write_text("key,value\n" + "".join(lines))
    with pytest.raises(BadRow, match=r"x\.csv:62 .*EMPTY_KEY"):
        into(node, str(path), task_bytes=64)


def test_error_rows_go_to_files_and_the_others_are_written(
    node: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    rows = [json.dumps({"key": f"err:{n}", "value": "x"}) for n in range(20)]
    rows[3] = "nonsense"
    rows[13] = '{"key": "err:13"}'
    rows[17] = '{"key": "err:17", "value": null}'
    path.write_text("\n".join(rows))
    report = into(
        *(node, str(path)),
        on_error="file",
        errors_path=str(tmp_path / "errors"),
        task_bytes=200,
    )
    assert len(of(node, "err:")) == 17
    assert (report.counts.rows, report.counts.applied, report.errors) == (20, 17, 3)
    found = [
        json.loads(line)
        for name in report.counts.error_files
        for line in Path(name).read_text().splitlines()
    ]
    assert [(row["place"].rpartition(":")[2], row["code"]) for row in found] == [
        *(("4", "BAD_LINE"), ("14", "BAD_LINE"), ("18", "NO_VALUE"))
    ]


def test_so_many_bad_rows_are_borne_in_all_tasks_together_and_no_more(
    node: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("nonsense\n" * 6)
    report = into(node, str(path), on_error="skip", max_errors=6, task_bytes=9)
    assert (report.tasks, report.errors) == (6, 6)
    with pytest.raises(TooManyErrors, match="6 rows with errors, 5 are allowed"):
        into(node, str(path), on_error="skip", max_errors=5, task_bytes=9)


def test_a_column_that_a_file_is_known_to_lack_is_refused_with_the_nearest(
    node: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text("user,name\n1,x\n")
    with pytest.raises(BadOption, match=r"no column 'usr' in .*did you mean user\?"):
        into(node, str(tmp_path / "x.csv"), rules=RowRules("usr", "name"))
    pq.write_table(pa.table({"user": ["1"]}), tmp_path / "x.parquet")
    with pytest.raises(BadOption, match="no column 'name'"):
        into(node, str(tmp_path / "x.parquet"), rules=RowRules("user", "name"))


def test_a_node_that_is_not_there_is_said(node: ServerProcess, tmp_path: Path) -> None:
    path = written(tmp_path, [{"key": "a", "value": "x"}])
    write = WriteOptions(Access(("127.0.0.1:1",), retries=0), retry_deadline_s=0.1)
    with pytest.raises(NodeUnreachable):
        load([path], write=write, engine=ENGINE)


# --- going on -------------------------------------------------------------------------------------


def stopping_after(tasks: int) -> Callable[[Step], None]:
    def progress(step: Step) -> None:
        if step.done >= tasks:
            raise KeyboardInterrupt

    return progress


def test_a_load_goes_on_where_it_stopped(fresh_node: ServerProcess, tmp_path: Path) -> None:
    rows = [{"key": f"k{n}", "value": f"v{n}"} for n in range(200)]
    path, journal = written(tmp_path, rows), tmp_path / "journal"
    with pytest.raises(KeyboardInterrupt):
        into(fresh_node, path, resume=journal, task_bytes=400, progress=stopping_after(5))
    first = len(contents(fresh_node))
    assert 0 < first < 200
    report = into(fresh_node, path, resume=journal, task_bytes=400)
    assert report.tasks_before == 5
    assert (report.counts.rows, report.counts.applied) == (200, 200)
    found = changes(fresh_node)
    assert len(found) == 200
    assert {change.rev for change in found.values()} == {1}, "no row was written twice"


def test_a_load_that_is_done_does_nothing_the_next_time(
    node: ServerProcess, tmp_path: Path
) -> None:
    path, journal = written(tmp_path, [{"key": "once", "value": "x"}]), tmp_path / "journal"
    into(node, path, resume=journal)
    before = changes(node)[b"once"].seqno
    report = into(node, path, resume=journal)
    assert (report.tasks, report.tasks_before, report.counts.applied) == (1, 1, 1)
    assert changes(node)[b"once"].seqno == before


def test_a_journal_does_not_fit_other_files_or_rules(node: ServerProcess, tmp_path: Path) -> None:
    path, journal = written(tmp_path, [{"key": "a", "value": "x"}]), tmp_path / "journal"
    into(node, path, resume=journal)
    with pytest.raises(BadFile, match="its value was 'value' and is 'json' now"):
        into(node, path, resume=journal, rules=RowRules(value="json"))
    written(tmp_path, [{"key": "b", "value": "x"}])
    with pytest.raises(BadFile, match="files were different or have changed"):
        into(node, path, resume=journal)


def test_progress_counts_tasks_and_rows(node: ServerProcess, tmp_path: Path) -> None:
    path = written(tmp_path, [{"key": f"p{n}", "value": "x"} for n in range(10)])
    steps: list[Step] = []
    into(node, path, progress=steps.append, task_bytes=100)
    assert [step.done for step in steps] == list(range(steps[-1].of + 1 if steps[-1].of else 0))
    assert steps[-1].rows == 10
    assert {step.what for step in steps} == {"loading"}


def test_several_processes_share_a_rate(node: ServerProcess, tmp_path: Path) -> None:
    path = written(tmp_path, [{"key": f"r{n}", "value": "x"} for n in range(300)])
    report = into(node, path, rate=300, task_bytes=1500, engine=LocalEngine(2))
    assert report.counts.applied == 300
    # Each of two tasks at a time has 150 a second, and begins with what a tenth of that is.
    assert report.seconds > 0.6
