"""``uprmc load`` from the outside: exit codes, what is printed, and going on after a kill."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from interop.server_process import ServerProcess
from tests.bulk.cli_run import uprmc, uprmc_struck
from tests.bulk.here import changes, contents
from uprmc.cli.main import run


def lines(tmp_path: Path, count: int, prefix: str = "k", name: str = "x.jsonl") -> Path:
    path = tmp_path / name
    rows = ({"id": f"{prefix}{n}", "text": f"value {n}"} for n in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(*arguments: object, node: ServerProcess | str) -> int:
    """Run it in this process, without workers."""
    place = node if isinstance(node, str) else str(node.upr)
    words = [str(each) for each in arguments]
    local = ["--engine", "local", "--parallelism", "1", "--node", place]
    return run(["load", *words, *local])


def test_a_load_prints_a_summary_and_ends_with_0(
    node: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path, 10, "sum:")
    assert load(path, "--key", "user:{id}", "--value", "json", node=node) == 0
    out, err = capsys.readouterr()
    assert out.startswith("10 rows, 10 written\n")
    assert err == ""
    assert json.loads(contents(node)[b"user:sum:3"]) == {"id": "sum:3", "text": "value 3"}


def test_standard_input_is_loaded_by_a_dash_or_by_its_path(
    node: ServerProcess, tmp_path: Path
) -> None:
    command = ("load", "-", "--format", "jsonl", "--key", "id", "--value", "text")
    place = ("--node", str(node.upr))
    with lines(tmp_path, 3, "dash:").open("rb") as file:
        assert uprmc(*command, *place, stdin=file).out.startswith("3 rows, 3 written\n")
    with lines(tmp_path, 4, "path:").open("rb") as file:
        ended = uprmc("load", "/dev/stdin", *command[2:], *place, stdin=file)
        assert ended.out.startswith("4 rows, 4 written\n")
    assert {b"dash:2", b"path:3"} <= contents(node).keys()


def test_a_report_is_one_json_document_on_standard_output_and_in_a_file(
    node: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, report = lines(tmp_path, 5), tmp_path / "report.json"
    how = ("--key", "id", "--value", "text", "--json", "--report", report)
    assert load(path, *how, node=node) == 0
    out = capsys.readouterr().out
    found = json.loads(out)
    assert (found["verb"], found["rows"], found["applied"], found["errors"]) == ("load", 5, 5, 0)
    assert json.loads(report.read_text()) == found


def test_a_report_that_cannot_be_written_is_refused_before_the_work(
    node: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path, 5, "early:")
    how = ("--key", "id", "--value", "text", "--report", tmp_path / "nowhere" / "report.json")
    assert load(path, *how, node=node) == 2
    assert "UPRMC_OPTION --report" in capsys.readouterr().err
    assert b"early:1" not in contents(node)


def test_a_dry_run_says_what_would_be_written(
    node: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path, 5, "dry:")
    assert load(path, "--key", "id", "--value", "text", "--dry-run", node=node) == 0
    assert capsys.readouterr().out.startswith("5 rows, 5 would be written\n")
    assert b"dry:1" not in contents(node)


def test_rows_that_failed_are_in_the_report_and_the_exit_code_is_1(
    node: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path, 5, "part:")
    path.write_text(path.read_text() + "nonsense\n")
    how = ("--key", "id", "--value", "text", "--errors", tmp_path / "errors", "--json")
    assert load(path, *how, node=node) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["applied"], found["errors"]) == (5, 1)
    assert err == "uprmc: UPRMC_ROW 1 of 6 rows could not be written\n"
    (file,) = found["error_files"]
    assert json.loads(Path(file).read_text())["place"].endswith("x.jsonl:6")


def test_csv_is_read_as_its_options_say(
    node: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.txt"
    path.write_text("csv:1;'a;b';7\ncsv:2;-;8\n")
    how = ("--format", "csv", "--delimiter", ";", "--quote", "'", "--no-header", "--infer")
    more = ("--columns", "id,a,n", "--null", "-", "--key", "id", "--value", "json")
    assert load(path, *how, *more, node=node) == 0
    found = contents(node)
    assert json.loads(found[b"csv:1"]) == {"a": "a;b", "n": 7}
    assert json.loads(found[b"csv:2"]) == {"a": None, "n": 8}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("x.jsonl", "--kye", "id"), 2, "UPRMC_OPTION No such option '--kye'"),
        (("x.jsonl", "--kye", "id"), 2, "--key"),
        (("x.jsonl", "--format", "cvs"), 2, "UPRMC_OPTION Invalid value for '--format'"),
        (("x.jsonl", "--key", "{"), 2, "UPRMC_OPTION '{' is no template"),
        (("x.jsonl", "--rate", "0"), 2, "UPRMC_OPTION"),
        (("x.jsonl", "--task-size", "much"), 2, "not a size such as"),
        (("x.jsonl", "--columns", "a,a"), 2, "with each name once"),
        (("x.jsonl", "--delimiter", "ab"), 2, "one ASCII character"),
        (("x.jsonl", "--mode", "insert", "--on-null", "delete"), 2, "UPRMC_OPTION"),
        (("x.jsonl", "--force"), 2, "UPRMC_OPTION"),
        (("x.jsonl", "--master", "local[2]"), 2, "--engine spark"),
        (("x.jsonl", "--password-env", "X"), 2, "needs username"),
        (("none.jsonl",), 2, "UPRMC_FILE no file at"),
        (("y.csv", "--key", "idd"), 2, "did you mean id?"),
        (("x.jsonl", "--node", "nowhere:x"), 2, "HOST:PORT"),
    ],
)
def test_a_wrong_option_is_one_line_with_its_code_word_and_exit_code_2(
    node: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    lines(tmp_path, 1)
    (tmp_path / "y.csv").write_text("id,value\n1,x\n")
    monkeypatch.chdir(tmp_path)
    given = ["load", *arguments, "--engine", "local"]
    place = [] if "--node" in arguments else ["--node", str(node.upr)]
    assert run([*given, *place]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.startswith("uprmc: UPRMC_")
    assert err.count("\n") == 1


def test_a_node_that_does_not_answer_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path, 1)
    how = ("--key", "id", "--value", "text", "--retry-deadline", "0")
    assert load(path, *how, node="127.0.0.1:1") == 1
    err = capsys.readouterr().err
    assert err.startswith("uprmc: UPRMC_UNREACHABLE ")
    assert err.count("\n") == 1


def test_a_password_is_in_no_report_and_no_message(
    node: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path, journal = lines(tmp_path, 1), tmp_path / "journal"
    secret = tmp_path / "secret"
    secret.write_text("sesame\n")
    how = ("--key", "id", "--value", "text", "--user", "u", "--password-file", secret)
    code = load(path, *how, "--resume", journal, "--json", node=node)
    out, err = capsys.readouterr()
    # Nodes know no login yet.
    assert (code, err.split()[1]) == (1, "UPRMC_AUTH")
    assert "sesame" not in out + err + journal.read_text()


# --- interrupted ----------------------------------------------------------------------------------


def journal_has(path: Path, tasks: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") > tasks


LONG = ("--key", "id", "--value", "text", "--engine", "local", "--parallelism", "2")


@pytest.mark.parametrize("how", ["ctrl-c", "killed"])
def test_a_load_that_was_struck_goes_on_with_the_same_command(
    fresh_node: ServerProcess, tmp_path: Path, how: str
) -> None:
    count = 4_000
    path, journal = lines(tmp_path, count), tmp_path / "journal"
    command = ("load", str(path), *LONG, "--node", str(fresh_node.upr), "--resume", str(journal))
    # A rate, so that there is time to strike; the size of tasks belongs to the journal.
    slow = (*command, "--task-size", "8k", "--rate", "2000")
    struck = uprmc_struck(
        *slow,
        when=lambda: journal_has(journal, 3),
        signals={
            "ctrl-c": (signal.SIGINT,),
            "killed": (signal.SIGKILL,),
        }[how],
    )
    if how == "killed":
        assert struck.code == -signal.SIGKILL
    else:
        assert struck.code == 130
        assert struck.err.startswith("uprmc: interrupted: ")
        assert struck.err.endswith("tasks are done; the same command goes on from there\n")
        assert struck.err.count("\n") == 1
    assert 0 < len(contents(fresh_node)) < count
    again = uprmc(*command, "--task-size", "8k", "--json")
    assert again.code == 0, again.err
    report = json.loads(again.out)
    assert report["tasks_before"] >= 3
    assert (report["rows"], report["applied"]) == (count, count)
    found = changes(fresh_node)
    assert len(found) == count
    # A task that was under way came twice, and no other one: two processes had one each.
    rows_of_a_task = count / report["tasks"]
    assert sum(change.rev > 1 for change in found.values()) <= 2 * rows_of_a_task * 1.5


def test_without_a_journal_sigterm_says_that_it_begins_again(
    fresh_node: ServerProcess, tmp_path: Path
) -> None:
    path = lines(tmp_path, 4_000)
    struck = uprmc_struck(
        *("load", str(path), *LONG, "--node", str(fresh_node.upr)),
        *("--task-size", "8k", "--rate", "2000"),
        when=lambda: len(contents(fresh_node)) > 100,
        signals=(signal.SIGTERM,),
    )
    assert struck.code == 130
    assert "the same command begins again (with --resume FILE it would go on)" in struck.err
    assert struck.err.count("\n") == 1
