"""How Spark finds the format: `pyspark_uprmc`, imported by every Spark at the first lookup of any.

That it does find it is shown in `test_source`; here is what it must not do meanwhile.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from uprmc import __version__
from uprmc.columnar.errors import MissingPackage
from uprmc.spark import versions

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
