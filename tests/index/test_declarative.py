"""Declarative maps: what a document emits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.index.documents import document, rows
from uprmc.config import IndexSettings
from uprmc.index.design import Design
from uprmc.index.mapping import make_mapper
from uprmc.index.model import Mapped

PERSON = {
    "type": "user",
    "name": "Ada",
    "age": 36,
    "tags": ["a", "b"],
    "address": {"city": "London", "lines": [{"street": "St James's"}]},
    "nothing": None,
    "yes": True,
}


def mapped(map_: dict[str, Any], body: Any, collation: str = "unicode", **limits: Any) -> Mapped:
    definition = {"views": {"v": {"map": map_}}, "options": {"collation": collation}}
    design = Design.parse("d", json.dumps(definition).encode())
    (made,) = make_mapper(design, IndexSettings(**limits)).map([document(body)])
    return made


def emitted(key: Any, value: Any = None, body: Any = PERSON) -> list[tuple[Any, Any]]:
    return rows(mapped({"emit": [{"key": key, "value": value}]}, body))


@pytest.mark.parametrize(
    ("key", "value", "row"),
    [
        ("$.name", None, ("Ada", None)),
        ("name", 1, ("name", 1)),
        ({"const": "$.name"}, "$.missing", ("$.name", None)),
        (["$.address.city", "$.age"], "$.tags[1]", (["London", 36], "b")),
        ("$.address.lines[0].street", ["$.x", 1], ("St James's", [None, 1])),
        ({"city": "$.address.city"}, {"n": "$.age"}, ({"city": "London"}, {"n": 36})),
        ("$.nothing", "$.address", (None, PERSON["address"])),
    ],
)
def test_a_string_that_begins_as_a_path_is_one_and_all_else_is_constant(
    key: Any, value: Any, row: tuple[Any, Any]
) -> None:
    assert emitted(key, value) == [row]


@pytest.mark.parametrize(
    "key",
    ["$.x", "$.name.x", "$.name[0]", "$.tags[2]", "$.tags.a", "$.address[0]", ["$.age", "$.x"]],
)
def test_a_path_that_is_missing_in_a_key_emits_nothing(key: Any) -> None:
    assert emitted(key) == []


def test_a_missing_key_takes_only_its_own_row_away() -> None:
    emit = [{"key": "$.x"}, {"key": "$.age"}, {"key": "$.name"}]
    assert rows(mapped({"emit": emit}, PERSON)) == [(36, None), ("Ada", None)]


@pytest.mark.parametrize(
    ("where", "satisfied"),
    [
        ({}, True),
        ({"type": "user"}, True),
        ({"$.address.city": "London", "age": 36.0}, True),
        ({"type": "user", "age": 37}, False),
        ({"yes": 1}, False),
        ({"yes": True}, True),
        ({"nothing": None}, True),
        ({"x": None}, False),
        ({"tags": ["a", "b"]}, True),
        ({"address": {"const": PERSON["address"]}}, True),
        ({"address": {"city": "London"}}, False),
        ({"x": {"$exists": False}}, True),
        ({"nothing": {"$exists": True}}, True),
        ({"name": {"$ne": "Bob"}}, True),
        ({"x": {"$ne": "Bob"}}, False),
        ({"age": {"$in": [1, 36]}}, True),
        ({"yes": {"$in": [1]}}, False),
        ({"age": {"$gte": 36, "$lt": 37}}, True),
        ({"age": {"$gt": 36}}, False),
        ({"age": {"$lte": 36}}, True),
        ({"age": {"$gt": "1"}}, False),
        ({"name": {"$gt": "Aa", "$lt": "b"}}, True),
        ({"name": {"$in": "$.tags"}}, False),
        ({"tags[0]": {"$in": "$.tags"}}, True),
    ],
)
def test_conditions_are_joined_by_and(where: dict[str, Any], satisfied: bool) -> None:
    assert bool(rows(mapped({"where": where, "emit": [{"key": 1}]}, PERSON))) is satisfied


def test_strings_are_compared_in_the_order_of_the_view() -> None:
    map_ = {"where": {"name": {"$gt": "Zoe"}}, "emit": [{"key": 1}]}
    assert not rows(mapped(map_, {"name": "apple"}, "unicode"))
    assert rows(mapped(map_, {"name": "apple"}, "raw"))


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"no json", b"[1,", b"NaN"])
def test_a_body_that_is_no_json_has_no_members_and_may_emit_constants(body: bytes) -> None:
    assert emitted("$.name", body=body) == []
    assert emitted("all", 1, body=body) == [("all", 1)]


@pytest.mark.parametrize("number", [2**53 + 1, 2**64 - 1, 2**64 + 1, -(2**63) - 1, 10**40])
def test_integers_of_any_size_stay_exact(number: int) -> None:
    assert emitted("$.n", {"m": "$.n"}, {"n": number, "x": 1}) == [(number, {"m": number})]


def test_what_no_float_can_hold_is_null_and_half_a_surrogate_pair_is_no_character() -> None:
    assert emitted("$.n", "$.s", b'{"n": 1e999, "s": "\\ud800"}') == [(None, "\ufffd")]


def test_a_document_nested_too_deeply_is_an_error_and_not_the_end() -> None:
    for body in (b"[" * 5_000 + b"]" * 5_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000):
        made = mapped({"emit": [{"key": 1}]}, body)
        assert "nested too deeply" in str(made.error)
        assert not any(made.rows)


def test_a_key_or_value_over_its_limit_takes_the_rows_of_the_document_in_that_view() -> None:
    emit = {"emit": [{"key": "$.k", "value": "$.v"}, {"key": 1}]}
    limits = {"max_key_bytes": 20, "max_row_bytes": 30}
    assert rows(mapped(emit, {"k": "x" * 18, "v": "y" * 28}, **limits))
    for body in ({"k": "x" * 19, "v": 1}, {"k": 1, "v": "y" * 29}, {"k": "é" * 10, "v": 1}):
        made = mapped(emit, body, **limits)
        assert str(made.error).startswith("view 'v': it emitted a ")
        assert list(made.rows[0]) == []


def test_text_is_compact_json_in_utf_8() -> None:
    (row,) = mapped({"emit": [{"key": ["é", "$.a"], "value": {"b": 1}}]}, {"a": 1.5}).rows[0]
    assert (row.key, row.value) == ('["é",1.5]'.encode(), b'{"b":1}')
