"""Every story of this folder, and how stories are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.story import Labels, Step, check, parse, proves, same

STORIES = sorted(Path(__file__).parent.glob("*.story"))


def _parameters() -> list[object]:
    rows = [(path, proves(path.read_text())) for path in STORIES]
    return [
        pytest.param(path, id=path.stem, marks=[pytest.mark.acceptance(*found)] if found else [])
        for path, found in rows
    ]


@pytest.mark.parametrize("path", _parameters())
def test_story(path: Path, tmp_path: Path) -> None:
    check(path, tmp_path)


def test_what_a_story_says_is_read() -> None:
    text = "Prose.\nProves: D50 P17\n$ one\n  its output\n$ two\n\nMore prose."
    assert parse(text)[2:4] == [Step("$ one", ["  its output"]), Step("$ two")]
    assert proves(text) == ["D50", "P17"]


@pytest.mark.parametrize(
    ("expected", "printed", "fits"),
    [
        (["a  b"], ["a b"], True),
        (["a ... c"], ["a b c"], True),
        (["a ..."], ["a"], False),
        (["a"], ["a", "b"], False),
        (["a.c"], ["abc"], False),
        ([], ["a"], False),
    ],
)
def test_output_is_compared_line_by_line(
    expected: list[str], printed: list[str], fits: bool
) -> None:
    assert same(expected, printed) is fits


def test_equal_long_numbers_get_equal_labels() -> None:
    labels = Labels()
    assert labels.apply(["111111111111 222222222222"]) == ["#1 #2"]
    mark = labels.mark()
    assert labels.apply(["333333333333"]) == ["#3"]
    labels.forget(mark)
    assert labels.apply(["444444444444  111111111111 7"]) == ["#3 #1 7"]
    assert labels.resolve("tail --uuid #3") == "tail --uuid 444444444444"
