"""What all bulk verbs share: imports, missing packages and Java, progress."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from interop.server_process import ServerProcess
from tests.bulk.cli_run import ROOT, uprmc
from tests.bulk.here import contents, numbered, put
from uprmc.cli import bulk
from uprmc.cli.bulk import BulkShown, line_of, running
from uprmc.cli.main import run
from uprmc.errors import ConfigError
from uprmc.jobs.progress import Step
from uprmc.remote.errors import NodeUnreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAVY = ("pyarrow", "numpy", "pyspark", "pandas")


def test_the_command_line_does_not_import_what_only_spark_needs() -> None:
    code = f"import sys, uprmc.cli.main; print([n for n in {HEAVY} if n in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(("wrong", "hint"), [("bakcup", "did you mean backup?"), ("zz", "lists")])
def test_a_verb_that_does_not_exist_is_told_with_the_nearest(
    wrong: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([wrong]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"uprmc: there is no verb {wrong!r}: ")
    assert hint in err


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (["backup"], "local"),
        (["backup", "--engine", "spark"], "spark"),
        (["backup", "--master", "local[1]"], "spark"),
        (["backup", "--master", "local[1]", "--engine", "local"], "local"),
    ],
)
def test_verbs_run_without_spark_unless_it_is_asked_for(
    words: list[str], engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def engine_of(*_: object, engine: str, **__: object) -> None:
        asked.append(engine)
        raise ConfigError("enough")

    monkeypatch.setattr(bulk, "engine_of", engine_of)
    assert run([*words, str(tmp_path / "backup")]) == 2
    assert asked == [engine]


@pytest.mark.parametrize("verb", ["load", "backup", "restore", "verify", "export"])
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--engine" in text
    assert "Examples:" in text
    assert "--password " not in text


def broken_package(tmp_path: Path, name: str) -> Path:
    """Make a directory in which a package cannot be imported, as if it was not there."""
    (tmp_path / f"{name}.py").write_text(
        f"raise ModuleNotFoundError('No module named {name}', name={name!r})\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("package", "engine"), [("pyarrow", "local"), ("numpy", "local"), ("pyarrow", "spark")]
)
def test_a_missing_package_is_told_with_what_to_install(
    tmp_path: Path, package: str, engine: str
) -> None:
    (tmp_path / "x.jsonl").write_text('{"key":"a","value":"b"}\n')
    paths = f"{broken_package(tmp_path, package)}:{ROOT}"
    ended = uprmc("load", "x.jsonl", "--engine", engine, cwd=tmp_path, PYTHONPATH=paths)
    assert ended.code == 2
    assert ended.err.startswith(f"uprmc: UPRMC_PACKAGES {package} is missing")
    assert "pip install 'uprmc[arrow]'" in ended.err
    assert ended.err.count("\n") == 1


def test_missing_java_is_told_with_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "x.jsonl").write_text('{"key":"a","value":"b"}\n')
    ended = uprmc("load", "x.jsonl", "--engine", "spark", cwd=tmp_path, JAVA_HOME=str(tmp_path))
    assert ended.code == 2
    assert ended.err.startswith("uprmc: UPRMC_JAVA ")
    assert "--engine local" in ended.err
    assert ended.err.count("\n") == 1


# --- progress -------------------------------------------------------------------------------------


class Told(io.StringIO):
    """Says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count


def test_elsewhere_than_on_a_terminal_progress_is_a_line_now_and_then() -> None:
    stream = Told()
    with BulkShown("auto", stream, every_s=0.01) as shown:
        shown(Step("loading", 3, 10, 1234, 5_000_000))
        assert stream.written.wait(10)
    line = stream.getvalue().splitlines()[0]
    assert line.startswith("uprmc: loading: 3 of 10 tasks, 1,234 rows, ")
    assert line.endswith("MB/s")


def test_short_work_shows_no_line() -> None:
    stream = Told()
    with BulkShown("plain", stream) as shown:
        shown(Step("loading", 3, 10))
    assert stream.getvalue() == ""


def test_no_progress_shows_nothing_and_remembers_the_last_step() -> None:
    stream = Told()
    with BulkShown("none", stream, every_s=0.001) as shown:
        shown(Step("loading", 3, 10))
        assert not stream.written.wait(0.05)
    assert shown.last == Step("loading", 3, 10)


def test_a_bar_is_gone_at_the_end() -> None:
    stream = Told()
    with BulkShown("bar", stream) as shown:
        shown(Step("loading", 3, 10, 1234))
        shown(Step("loading", 10, 10, 4321))
    assert "4,321 rows" in stream.getvalue()


def test_work_without_an_end_has_no_total() -> None:
    assert line_of(Step("following", 3), "9 rows") == "uprmc: following: 3 tasks, 9 rows"


def lost_after(step: Step | None) -> None:
    """Run a verb that loses its node after some step."""
    with running(progress="none", as_json=False, report=None, afterwards=str) as work:
        if step:
            work.progress(step)
        raise NodeUnreachable("it is gone")


def test_a_node_that_is_lost_in_the_middle_is_told_with_how_to_go_on() -> None:
    with pytest.raises(NodeUnreachable, match=r"^it is gone; Step\(what='loading'"):
        lost_after(Step("loading", 3, 10))


def test_a_node_that_was_never_reached_is_told_alone() -> None:
    with pytest.raises(NodeUnreachable, match=r"^it is gone$"):
        lost_after(None)


# --- on Spark itself ------------------------------------------------------------------------------
# Two bulk verbs on Spark itself: the same work, and no noise around it.


SPARK = ("--engine", "spark", "--master", "local[2]", "--conf", "spark.driver.memory=512m")


@pytest.mark.spark
def test_load_on_spark_does_what_it_does_without_and_says_no_more(
    fresh_node: ServerProcess, tmp_path: Path, java: str
) -> None:
    count = 3_000
    path, report = tmp_path / "x.jsonl", tmp_path / "report.json"
    rows = ({"id": n, "text": f"value {n}"} for n in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "nonsense\n")
    node = ("--node", str(fresh_node.upr))
    how = ("--key", "user:{id}", "--value", "json", "--task-size", "32k")
    errors = ("--errors", str(tmp_path / "errors"), "--report", str(report))
    loaded = uprmc("load", str(path), *how, *errors, *node, *SPARK, "--progress", "none")
    assert loaded.err == f"uprmc: UPRMC_ROW 1 of {count + 1:,} rows could not be written\n"
    assert loaded.code == 1
    found = json.loads(report.read_text())
    assert (found["applied"], found["errors"]) == (count, 1)
    assert found["tasks"] > 2
    documents = contents(fresh_node)
    assert len(documents) == count
    assert json.loads(documents[b"user:7"]) == {"id": 7, "text": "value 7"}


@pytest.mark.spark
def test_backup_on_spark_does_what_it_does_without_and_leaves_a_session_that_was_there(
    fresh_node: ServerProcess,
    tmp_path: Path,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(fresh_node, numbered(500))
    words = ["backup", str(tmp_path / "b"), "--node", str(fresh_node.upr), "--json"]
    assert run([*words, "--engine", "spark", "--groups", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["rows"] == 500
    assert spark.range(3).count() == 3
