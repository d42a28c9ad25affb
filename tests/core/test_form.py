"""Which form of the core runs: a stale or missing extension is never used, and that is said."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from uprmc.core.form import COMPILED, FORM, INTERPRETED, choose
from uprmc.core.sources import native_sources
from uprmc.errors import ConfigError


@pytest.mark.parametrize(
    ("wanted", "built", "form", "notice"),
    [
        ("", "now", COMPILED, ""),
        ("", "before", INTERPRETED, "the compiled core has other sources"),
        ("", None, INTERPRETED, ""),
        ("interpreted", "now", INTERPRETED, ""),
        ("interpreted", "before", INTERPRETED, ""),
        ("interpreted", None, INTERPRETED, ""),
        ("compiled", "now", COMPILED, ""),
    ],
)
def test_the_form_follows_the_variable_and_what_was_built(
    wanted: str, built: str | None, form: str, notice: str
) -> None:
    assert choose(wanted, built, "now") == (form, notice)


@pytest.mark.parametrize(
    ("wanted", "built", "message"),
    [
        ("compiled", None, "not compiled"),
        ("compiled", "before", "other sources"),
        ("fast", "now", "'interpreted' or 'compiled', not 'fast'"),
    ],
)
def test_what_is_not_there_cannot_be_demanded(wanted: str, built: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(wanted, built, "now")


def version(core: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "uprmc", "--version"],
        env={**os.environ, "UPRMC_CORE": core},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_variable_demands_a_form() -> None:
    assert "core: interpreted" in version("interpreted").stdout
    assert f"core: {FORM}" in version(FORM).stdout
    refused = version("fast")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("uprmc: UPRMC_CORE")


def test_an_extension_is_made_of_all_native_modules_but_the_stamp() -> None:
    assert {path.name for path in native_sources()} >= {"binary.py", "table.py"}
    assert not {path.name for path in native_sources()} & {"stamp.py", "__init__.py"}


def test_without_the_library_that_it_is_linked_with_the_compiled_form_is_not_used() -> None:
    program = """if True:
        import sys
        sys.modules["librt.strings"] = None
        from uprmc.core.form import FORM
        print(FORM)
    """
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={name: text for name, text in os.environ.items() if name != "UPRMC_CORE"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout == "interpreted\n"


def test_where_there_is_a_compiler_the_compiled_core_is_in_use() -> None:
    pytest.importorskip("setuptools")
    from tools.build_backend import can_compile

    if not can_compile():
        pytest.skip("there is no compiler, or UPRMC_CORE")
    assert FORM == COMPILED, "the build fell back to the interpreted form, or is older than this"
