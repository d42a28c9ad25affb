"""What users read is plain English: words of our private dialect stay out of it.

A word is banned where a reader who does not know the project stumbles over it. A sentence in which
one is right for once is better reworded than excepted; ``held:`` is a value of an option.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tools.command_line import contexts
from uprmc.config import describe
from uprmc.server.log import EVENTS

ROOT = Path(__file__).parent.parent

BANNED = re.compile(
    r"\b(whoever|anew|told|so many|so long|dear|let go|lets go|letting go|whole(?! number)|wholly"
    r"|held(?!:)|a moment|what surprises|nobody|somebody)\b",
    re.IGNORECASE,
)

#: Code in pages keeps its names.
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.M | re.S)

PAGES = [
    "README.md",
    *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md"))),
]


MODULES = sorted((ROOT / "uprmc").rglob("*.py"))


def phrases(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each literal that has a blank: parts of messages, no docstrings.

    Without a blank it is a name or a value.
    """
    docs = set()  # an expression comes before what is in it
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr):
            docs.add(node.value)
        elif isinstance(node, ast.Constant) and node not in docs:
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(text, str) and " " in text:
                yield node.lineno, text


def banned(text: str) -> list[str]:
    """Return each banned word with the words around it."""
    flat = " ".join(text.split())
    return [flat[max(0, m.start() - 40) : m.end() + 30] for m in BANNED.finditer(flat)]


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_in_plain_words(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert banned(_CODE.sub("`code`", text)) == []


def test_settings_are_described_in_plain_words() -> None:
    assert [(info.name, banned(info.doc)) for info in describe() if banned(info.doc)] == []


def test_log_events_are_described_in_plain_words() -> None:
    assert [
        (name, banned(info.meaning)) for name, info in EVENTS.items() if banned(info.meaning)
    ] == []


@pytest.mark.parametrize("context", [*contexts()], ids=lambda context: context.command_path)
def test_help_is_in_plain_words(context: click.Context) -> None:
    assert banned(context.get_help()) == []


def test_messages_are_in_plain_words() -> None:
    assert [
        (str(path.relative_to(ROOT)), line, banned(text))
        for path in MODULES
        for line, text in phrases(path.read_text(encoding="utf-8"))
        if banned(text)
    ] == []


def test_a_banned_word_is_found_in_every_kind_of_message() -> None:
    source = """
def f(x):
    'Whoever reads this reads a docstring.'
    raise ValueError(f"vBucket {x} that nobody asked for", b"a whole frame", "whole", "fine")
"""
    assert [line for line, text in phrases(source) if banned(text)] == [4, 4]


def test_a_banned_word_is_found_in_any_case_and_over_a_line_break() -> None:
    assert len(banned("Whoever waits so\nlong begins anew.")) == 3
    assert banned("A whole number.") == []
