"""Options and values that have another name now are understood, with a line of warning each."""

from __future__ import annotations

from pathlib import Path

import pytest

from uprmc.cli.former_names import renamed
from uprmc.cli.main import run
from uprmc.config import load


@pytest.mark.parametrize(
    ("verb", "given", "meant"),
    [
        ("tail", ["--from", "0"], ["--start", "0"]),
        ("tail", ["--vbucket=1-2"], ["--vbuckets=1-2"]),
        ("tail", ["--on-rollback", "obey"], ["--on-rollback", "rewind"]),
        ("tail", ["--on-rollback=stop"], ["--on-rollback=fail"]),
        ("observe", ["k", "--vbucket", "3"], ["k", "--vbuckets", "3"]),
        ("replicate", ["--from", "a:1"], ["--source", "a:1"]),
        ("serve", ["--from", "a:1"], ["--source", "a:1"]),
        ("export", ["d", "--from", "latest"], ["d", "--start", "latest"]),
    ],
)
def test_a_former_name_is_understood_with_a_warning(
    verb: str, given: list[str], meant: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert renamed(verb, given) == meant
    warned = capsys.readouterr().err
    assert warned.startswith("uprmc: ")
    assert "is now" in warned
    assert warned.count("\n") == 1


def test_an_option_and_its_value_may_both_have_former_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--rollback", "reset", "--rollback=correct"]
    meant = ["--on-rollback", "restart", "--on-rollback=rewind"]
    assert renamed("tap-adapter", given) == meant
    assert capsys.readouterr().err.count("\n") == 4


def test_present_names_and_what_follows_a_double_hyphen_are_left_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for given in (["--start", "0", "--on-rollback", "fail", "--", "--from"], ["obey", "stop"], []):
        assert renamed("tail", given) == given
    assert renamed("stats", ["--from"]) == ["--from"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("verb", ["tail", "observe", "export", "replicate", "serve", "tap-adapter"])
def test_help_has_present_names_only(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    words = capsys.readouterr().out.split()
    assert not {"--from", "--vbucket", "--rollback"} & set(words)


def test_verbs_take_former_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tail", "--from", "yesterday"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "'--from' of 'uprmc tail' is now '--start'" in first
    assert "'yesterday' is not a seqno" in second


def test_a_setting_has_its_former_name_everywhere(tmp_path: Path) -> None:
    warnings: list[str] = []
    file = tmp_path / "uprmc.toml"
    file.write_text("[engine]\ncompaction_slice = 5\n")
    assert load(file, {}, {}, warnings.append).purge.batch_items == 5
    environment = {"UPRMC_ENGINE_COMPACTION_SLICE": "6"}
    assert load(file, environment, {}, warnings.append).purge.batch_items == 6
    options = {"engine.compaction_slice": "7"}
    assert load(file, environment, options, warnings.append).purge.batch_items == 7
    assert set(warnings) == {"engine.compaction_slice is now purge.batch_items"}


def test_a_setting_takes_former_values() -> None:
    warnings: list[str] = []
    settings = load(None, {"UPRMC_TAP_ROLLBACK": "reset"}, {}, warnings.append)
    assert settings.tap.rollback == "restart"
    assert warnings == ["'reset' of tap.rollback is now 'restart'"]
