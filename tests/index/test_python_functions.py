"""Maps that are Python functions of modules that the operator names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.index.documents import document, rows
from uprmc.config import IndexSettings
from uprmc.index.design import Design, named_modules
from uprmc.index.errors import QueryRefused
from uprmc.index.mapping import make_mapper
from uprmc.index.model import IndexedDocument, Mapped

MODULE = """
def by_city(doc, meta):
    for city in doc["cities"]:
        yield [city, meta["id"]], {"seq": meta["seq"], "type": meta["type"]}

def nothing(doc, meta):
    return None

def everything(doc, meta):
    return [(doc, None)]

def endless(doc, meta):
    while True:
        yield 1, 1

def no_json(doc, meta):
    return [(object(), 1)]

def spoils(doc, meta):
    doc["cities"].clear()
    return []

number = 5
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "views_of_ours.py").write_text(MODULE)
    (tmp_path / "broken_views.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))


SETTINGS = IndexSettings(python_modules="views_of_ours, broken_views")


def parse(*named: str) -> Design:
    views = {f"v{i}": {"map": {"python": each}} for i, each in enumerate(named)}
    modules = named_modules(SETTINGS.python_modules)
    return Design.parse("d", json.dumps({"views": views}).encode(), modules)


def mapped(one: IndexedDocument, *functions: str) -> Mapped:
    design = parse(*[f"views_of_ours:{each}" for each in functions])
    (made,) = make_mapper(design, SETTINGS).map([one])
    return made


def test_a_function_gives_pairs_of_key_and_value() -> None:
    made = mapped(document({"cities": ["Rome", "Bonn"]}, b"k", 7), "by_city", "nothing")
    value = {"seq": 7, "type": "json"}
    assert rows(made) == [(["Rome", "k"], value), (["Bonn", "k"], value)]
    assert rows(made, 1) == []


def test_what_is_no_json_comes_as_base64() -> None:
    assert rows(mapped(document(b"hello"), "everything")) == [("aGVsbG8=", None)]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("by_city", "view 'v0': KeyError: 'cities'"),
        ("endless", "view 'v0': it emitted more than 100000 rows"),
        ("no_json", "view 'v0': ValueError: "),
    ],
)
def test_a_function_that_fails_costs_the_rows_of_its_document(function: str, words: str) -> None:
    made = mapped(document({}), function, "nothing")
    assert str(made.error).startswith(words)
    assert not any(made.rows)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("os:system", "does not name 'os'"),
        ("views_of_ours:missing", "has no function 'missing'"),
        ("views_of_ours:number", "has no function 'number'"),
        ("broken_views:f", "cannot be imported: division by zero"),
        ("views_of_ours", "module:function"),
    ],
)
def test_a_function_that_is_not_there_is_refused(named: str, words: str) -> None:
    with pytest.raises(QueryRefused, match=words) as caught:
        parse(named)
    assert caught.value.status == 400


def test_functions_of_one_design_see_the_document_as_it_is_stored() -> None:
    made = mapped(document({"cities": ["Rome"]}), "spoils", "by_city")
    assert len(rows(made, 1)) == 1


def test_settings_name_modules_by_commas() -> None:
    assert named_modules("") == frozenset()
    assert named_modules(" a.b ,c") == {"a.b", "c"}


def test_a_key_over_its_limit_takes_the_rows_of_its_document() -> None:
    design = parse("views_of_ours:everything")
    settings = IndexSettings(python_modules="views_of_ours", max_key_bytes=16)
    first, second = make_mapper(design, settings).map([document("x" * 20), document("y")])
    assert "a key of 22 bytes" in str(first.error)
    assert rows(second) == [("y", None)]
