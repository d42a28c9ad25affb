"""What is said when Java or a package is missing, and what makes a session of Spark."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest

from uprmc import __version__
from uprmc.columnar.errors import JavaMissing, MissingPackage
from uprmc.spark import session, versions


def java_saying(directory: Path, text: str, code: int = 0) -> dict[str, str]:
    """Return an environment whose java says so, to standard error as the real one does."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(directory), "PATH": "/nowhere"}


@pytest.mark.parametrize(
    "text", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19 LTS']
)
def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, text: str) -> None:
    found = session.find_java(java_saying(tmp_path, text))
    assert found == str(tmp_path / "bin" / "java")


@pytest.mark.parametrize(
    ("text", "version"),
    [('openjdk version "16.0.2" 2021-07-20', "16"), ('openjdk version "1.8.0_452"', "8")],
)
def test_a_java_that_is_too_old_is_told_with_its_version(
    tmp_path: Path, text: str, version: str
) -> None:
    with pytest.raises(JavaMissing, match=f"is Java {version}, Spark needs 17 or newer") as caught:
        session.find_java(java_saying(tmp_path, text))
    assert str(caught.value).startswith("UPRMC_JAVA ")
    assert "--engine local" in str(caught.value)


def test_a_java_that_says_nothing_of_a_version_is_none(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="says nothing of a version"):
        session.find_java(java_saying(tmp_path, "no such thing", 1))


def test_no_java_at_all_is_told_with_what_to_do() -> None:
    with pytest.raises(JavaMissing, match=r"there is none: install one .*--engine local"):
        session.find_java({"PATH": "/nowhere"})


def test_java_home_without_a_java_is_told() -> None:
    with pytest.raises(JavaMissing, match="JAVA_HOME=/nowhere has no Java that runs"):
        session.find_java({"JAVA_HOME": "/nowhere"})


def test_a_package_that_is_missing_is_told_with_how_to_install_it() -> None:
    with pytest.raises(MissingPackage, match=r"no_such_module is not installed: pip install"):
        session.require("no_such_module", "pip install it")
    with pytest.raises(MissingPackage, match=r"pip install 'uprmc\[spark-connect\]'"):
        session.require_found("no_such_package.part")


def test_the_size_of_what_is_installed_is_told() -> None:
    assert session._size_bytes(["pyarrow"]) > 10_000_000
    assert session._size_bytes(["no_such_package"]) == 0


# --- trying the format ----------------------------------------------------------------------------
# ``make spark`` tries the format; what it says follows what a program elsewhere has got.


BACKEND = Path(__file__).parents[2] / "tools" / "build_backend.py"


@pytest.mark.parametrize(
    ("out", "err", "code", "said"),
    [
        ("found\n", "WARN something\n", 0, 'format("uprmc") works'),
        ("[DATA_SOURCE_NOT_FOUND] uprmc\n", "WARN\n", 1, "does not work: [DATA_SOURCE_NOT_FOUND]"),
        ("", "no memory\n", 1, "does not work: no memory; install uprmc again"),
        ("", "", 1, "does not work: Spark said nothing"),
    ],
)
def test_what_a_trial_comes_to(
    monkeypatch: pytest.MonkeyPatch, out: str, err: str, code: int, said: str
) -> None:
    pytest.importorskip("pyspark")
    asked: list[dict[str, Any]] = []

    def ran(command: list[str], **how: Any) -> SimpleNamespace:
        asked.append(how)
        assert command[:2] == [sys.executable, "-P"]
        return SimpleNamespace(stdout=out, stderr=err)

    monkeypatch.setattr(session, "find_java", lambda: "/usr/bin/java")
    monkeypatch.setattr(subprocess, "run", ran)
    text, exit_code = session._told()
    assert (said in text, exit_code) == (True, code)
    assert "uprmc-" in asked[0]["cwd"]  # not in a source tree, where everything is found


def test_an_editable_installation_can_be_listed_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("setuptools")
    backend = run_path(str(BACKEND))
    given: list[Any] = []
    monkeypatch.setattr(backend["build_meta"], "build_editable", lambda *all_: given.append(all_))
    backend["build_editable"]("wheels")
    backend["build_editable"]("wheels", {"editable_mode": "lenient"})
    assert [each[1] for each in given] == [
        {"editable_mode": "compat"},
        {"editable_mode": "lenient"},
    ]


# --- registration ---------------------------------------------------------------------------------
# How Spark finds the format: `pyspark_uprmc`, imported by every Spark at the first lookup of any.
#
# That it does find it is shown in `test_source`; here is what it must not do meanwhile.


ROOT = Path(__file__).parents[2]


def told_by(program: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_module_says_which_format_it_is() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.datasource import DataSource

    import pyspark_uprmc

    assert issubclass(pyspark_uprmc.DefaultSource, DataSource)
    assert pyspark_uprmc.DefaultSource.name() == "uprmc"


def test_spark_users_who_never_heard_of_us_do_not_pay_for_us() -> None:
    program = """
import sys
import pyspark.sql.datasource
before = set(sys.modules)
import pyspark_uprmc
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new & {"pyarrow", "numpy", "pandas", "twisted", "construct", "ssl"}))
"""
    pytest.importorskip("pyspark")
    assert told_by(program, ROOT) == "[]"


def test_an_installed_package_can_be_found_from_anywhere(tmp_path: Path) -> None:
    try:
        importlib.metadata.distribution("uprmc")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("uprmc is not installed here")
    finder = f"__editable___uprmc_{__version__.replace('.', '_')}_finder"
    if importlib.util.find_spec(finder) is not None:
        pytest.skip("uprmc is installed by an import hook, which cannot list modules")
    program = "import pkgutil; print('pyspark_uprmc' in {m.name for m in pkgutil.iter_modules()})"
    assert told_by(program, tmp_path) == "True"


@pytest.mark.parametrize(
    ("missing", "required", "told"),
    [
        ("pyspark.sql.datasource", versions.require_sources, "has no data sources in Python"),
        ("pyspark.sql.streaming.datasource", versions.require_streams, "where its last batch"),
    ],
)
def test_a_spark_that_is_too_old_is_told_with_the_version_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, missing: str, required: Callable[[], None], told: str
) -> None:
    pytest.importorskip("pyspark")
    required()
    found = versions.find_spec
    monkeypatch.setattr(
        versions, "find_spec", lambda name: None if name == missing else found(name)
    )
    with pytest.raises(MissingPackage, match=rf"^UPRMC_PACKAGES Spark 4\.\d.*{told}.* or newer"):
        required()
