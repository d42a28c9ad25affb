"""Design documents: what is accepted, what is refused with which words, what counts as a change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from uprmc.config import IndexSettings
from uprmc.index.design import Design
from uprmc.index.errors import QueryRefused

BY_CITY = {"map": {"where": {"type": "user"}, "emit": [{"key": "$.city", "value": 1}]}}


def parse(definition: Any, **settings: Any) -> Design:
    body = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
    return Design.parse("people", body, ("json",), settings=IndexSettings(**settings))


def refused(definition: Any, **settings: Any) -> dict[str, Any]:
    with pytest.raises(QueryRefused) as caught:
        parse(definition, **settings)
    assert caught.value.status == 400
    return caught.value.body()


def test_views_stand_in_the_order_of_their_names() -> None:
    design = parse({"views": {"z": BY_CITY, "a": {**BY_CITY, "reduce": "_count"}}})
    assert [view.name for view in design.views] == ["a", "z"]
    assert [view.reduces for view in design.views] == [("_count",), ()]
    assert (design.view_index("z"), design.view_index("y")) == (1, None)


def test_the_same_text_has_the_same_signature_and_another_map_another() -> None:
    definition = {"views": {"a": BY_CITY, "b": BY_CITY}}
    turned = {"views": dict(reversed(definition["views"].items())), "options": {}}
    other = {"views": {"a": BY_CITY, "b": {**BY_CITY, "reduce": "_sum"}}}
    raw = {**definition, "options": {"collation": "raw"}}
    assert parse(definition).signature == parse(turned).signature
    assert len({parse(each).signature for each in (definition, other, raw)}) == 3


def test_what_couchdb_writes_beside_the_views_is_accepted() -> None:
    assert parse({"_id": "_design/people", "language": "javascript", "views": {"a": BY_CITY}})


def test_a_syntax_error_of_json_is_refused_with_its_line_and_column() -> None:
    answer = refused(b'{"views": {\n  "a": }}')
    assert (answer["line"], answer["column"]) == (2, 8)
    assert "line 2, column 8" in answer["reason"]


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ([], "the design is a JSON object"),
        ({}, "no views"),
        ({"views": {}}, "no views"),
        ({"views": {"a": BY_CITY}, "filters": {}}, "unknown member 'filters'"),
        ({"views": {"a": {**BY_CITY, "reuce": "_sum"}}}, "unknown member 'reuce'"),
        ({"views": {"a": BY_CITY}, "options": {"order": 1}}, "unknown member 'order'"),
        ({"views": {"a": BY_CITY}, "options": {"collation": "de"}}, "'unicode' or 'raw'"),
        ({"views": {"a": BY_CITY}, "language": "erlang"}, "language"),
        ({"views": {"a/b": BY_CITY}}, "no slash"),
        ({"views": {"_a": BY_CITY}}, "underscore"),
        ({"views": {"a": {}}}, "its map is"),
        ({"views": {"a": {"map": " ; "}}}, "empty"),
        ({"views": {"a": {**BY_CITY, "reduce": "_avg"}}}, "'_avg'"),
        ({"views": {"a": {**BY_CITY, "reduce": 5}}}, "its reduce is"),
        ({"views": {"a": {"map": {"emit": []}}}}, "at least one row"),
        ({"views": {"a": {"map": {"emit": [{"value": 1}]}}}}, "emit[0]"),
        ({"views": {"a": {"map": {"emit": [{"key": "$.a..b"}]}}}}, "character 4"),
        ({"views": {"a": {"map": {"emit": [{"key": "$."}]}}}}, "names nothing"),
        ({"views": {"a": {"map": {"emit": [{"key": ["$.a[x]"]}]}}}}, "emit[0].key[0]"),
        ({"views": {"a": {"map": {"where": {"a": {"$like": 1}}, "emit": [{"key": 1}]}}}}, "$like"),
        ({"views": {"a": {"map": {"where": {"a": {"$in": 1}}, "emit": [{"key": 1}]}}}}, "array"),
        ({"views": {"a": {"map": {"python": "os:system"}}}}, "does not name 'os'"),
        ({"views": {"a": {"map": {"python": "json.loads"}}}}, "module:function"),
        (b'{"views": {"a": NaN}}', "NaN"),
        (b'{"views": {"\xff": 1}}', "UTF-8"),
        (b'{"views": {"\\ud800": 1}}', "UTF-8"),
        (b'{"views": {"a": 1, "a": 2}}', "'a' twice"),
        (b'{"views": ' + b"[" * 100_000, "too deeply"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(definition: Any, words: str) -> None:
    assert words in refused(definition)["reason"]


def test_the_size_of_a_design_and_the_number_of_its_views_are_limited() -> None:
    views = {"views": {f"v{i}": BY_CITY for i in range(5)}}
    assert "the most are 4" in refused(views, views=4)["reason"]
    assert "the most are 1024" in refused(b" " * 2_000, max_definition_bytes=1_024)["reason"]


def test_a_python_map_must_be_of_a_module_that_the_settings_name() -> None:
    assert parse({"views": {"a": {"map": {"python": "json:loads"}}}}).views[0].kind == "python"
