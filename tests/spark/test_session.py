"""What is said when Java or a package is missing, and what makes a session of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from uprmc.columnar.errors import JavaMissing, MissingPackage
from uprmc.spark import session


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
