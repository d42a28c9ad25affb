"""Maps that are JavaScript functions: what they see and may call, how they are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.index.documents import document, rows
from uprmc.config import IndexSettings
from uprmc.index.design import Design
from uprmc.index.errors import QueryRefused
from uprmc.index.javascript import process
from uprmc.index.javascript.process import ChildFailed
from uprmc.index.mapping import make_mapper
from uprmc.index.mapping.javascript import refuse_faults
from uprmc.index.model import IndexedDocument, Mapped, Mapper


@contextmanager
def mapper(*sources: Any, **settings: Any) -> Iterator[Mapper]:
    views = {f"v{i:02}": {"map": source} for i, source in enumerate(sources)}
    made = make_mapper(
        Design.parse("d", json.dumps({"views": views}).encode()), IndexSettings(**settings)
    )
    try:
        yield made
    finally:
        made.close()


def mapped(source: str, one: IndexedDocument) -> Mapped:
    with mapper(source) as made:
        (result,) = made.map([one])
        return result


def refused(source: str, reduce: str | None = None) -> dict[str, Any]:
    views = {"a": {"map": source, "reduce": reduce}}
    with pytest.raises(QueryRefused) as caught:
        refuse_faults(Design.parse("d", json.dumps({"views": views}).encode()))
    assert caught.value.status == 400
    return caught.value.body()


BODIES: dict[str, list[tuple[Any, Any]]] = {
    "emit(doc.city, null)": [("Rome", None)],
    "emit(doc.x, doc.y)": [(None, None)],
    "emit([doc.n, doc.city], {a: [1.5, true]})": [([5, "Rome"], {"a": [1.5, True]})],
    "if (doc.n > 5) emit(1, 1)": [],
    "emit(2, 'b'); emit(1, 'a')": [(2, "b"), (1, "a")],
    "emit('é😀', '\\ud800')": [("é😀", "\ufffd")],
    "emit(sum([1, 2, 3]), dateToArray('2012-07-30T23:58:22.193Z'))": [
        (6, [2012, 7, 30, 23, 58, 22])
    ],
    "emit(1, decodeBase64('aGFsbG8='))": [(1, list(b"hallo"))],
    "emit(isArray([1]), isArray(doc))": [(True, False)],
    "emit(toJSON(doc), log(doc))": [('{"city":"Rome","n":5}', None)],
    "for (i in doc) emit(i, 1)": [("city", 1), ("n", 1)],
    "doc.toString = 5; doc.constructor = 6; emit(doc, 1)": [
        ({"city": "Rome", "n": 5, "toString": 5, "constructor": 6}, 1)
    ],
}


def test_a_function_emits_keys_and_values() -> None:
    with mapper(*(f"function (doc, meta) {{ {body}; }}" for body in BODIES)) as made:
        (result,) = made.map([document({"city": "Rome", "n": 5})])
    assert dict(zip(BODIES, (rows(result, view) for view in range(len(BODIES))), strict=True)) == (
        BODIES
    )


@pytest.mark.parametrize("most", [0, 5, 8])
def test_what_functions_log_is_kept_up_to_a_limit(most: int) -> None:
    source = """function (doc, meta) {
        log(meta.id); log({a: [doc.n]}); log(undefined); log("x".repeat(501)); emit(1, 1);
        if (doc.n === 1) { log("one"); log("\\ud800"); throw 5; }
    }"""
    lines = [("a", "a"), ("a", '{"a":[1]}'), ("a", "undefined"), ("a", "x" * 500 + "...")]
    lines += [("a", "one"), ("a", "\ufffd"), ("b", "b"), ("b", '{"a":[2]}')]
    with mapper(source, map_log=most) as made:
        first, second = made.map([document({"n": 1}, b"a"), document({"n": 2}, b"b")])
        assert (len(first.rows[0]), len(second.rows[0])) == (0, 1)
        assert list(made.log) == [*lines, ("b", "undefined")][:most]
        made.map([document({"n": 3}, b"c")])
        assert [key for key, _ in made.log][-4:] == (["c"] * 4)[:most]


def test_a_function_sees_what_is_known_of_the_document() -> None:
    one = document({}, b"\xffkey", 7, vbucket=3, rev=9, cas=2**60 + 1, flags=5, expiry=11)
    ((key, value),) = rows(mapped("(doc, meta) => emit(meta, 1)", one))
    assert value == 1
    assert key == {
        "id": "\uefffkey",
        "rev": "9-1000000000000001" + "0000000b" + "00000005",
        "seq": 7,
        "vb": 3,
        "expiration": 11,
        "flags": 5,
        "type": "json",
    }


def test_what_is_no_json_comes_as_base64() -> None:
    bodies = [b"", b"hello", b"\xff\x00", b"{'a':1}", b"1],[2"]
    with mapper("function (doc, meta) { emit(meta.type, decodeBase64(doc)); }") as made:
        found = made.map([document(body, b"k%d" % n) for n, body in enumerate(bodies)])
    assert [rows(each) for each in found] == [[("base64", list(body))] for body in bodies]


def test_functions_of_one_design_see_the_document_as_it_is_stored() -> None:
    spoil = "function (doc, meta) { emit(doc.n, meta.id); doc.n = 9; meta.id = 'x'; }"
    with mapper(spoil, spoil, spoil) as made:
        (result,) = made.map([document({"n": 1})])
    assert [rows(result, view) for view in range(3)] == [[(1, "k")]] * 3


def test_maps_of_all_kinds_stand_in_one_design() -> None:
    declarative = {"emit": [{"key": "$.n"}]}
    with mapper("function (doc) { emit(doc.n + 1, 0) }", declarative, "doc => emit(0, 0)") as made:
        (result,) = made.map([document({"n": 1})])
    assert [rows(result, view) for view in range(3)] == [[(2, 0)], [(1, None)], [(0, 0)]]


def test_rows_of_many_documents_come_in_their_order() -> None:
    documents = [document({"n": n, "text": "x" * (n % 3_000)}) for n in range(2_000)]
    with mapper("function (doc) { if (doc.n % 3) emit(doc.n, doc.text.length); }") as made:
        for _ in range(2):
            got = [rows(each) for each in made.map(documents)]
            assert got == [[(n, n % 3_000)] if n % 3 else [] for n in range(2_000)]


def test_several_processes_may_share_the_work() -> None:
    documents = [document({"n": n}) for n in range(3_000)]
    with mapper("function (doc) { emit(doc.n, 1); }", workers=3) as made:
        for _ in range(2):
            assert [rows(each) for each in made.map(documents)] == [[(n, 1)] for n in range(3_000)]


def test_an_error_names_the_view_and_what_was_thrown() -> None:
    result = mapped("function (doc) { emit(1, 1); doc.a.b; }", document({}))
    assert result.error == (
        "view 'v00': it threw TypeError: Cannot read properties of undefined (reading 'b')"
    )
    assert [list(each) for each in result.rows] == [[]]


def test_no_global_variable_passes_from_one_batch_to_the_next() -> None:
    with mapper("function (doc) { emit(typeof n, 1); n = 5; }") as made:
        assert [rows(made.map([document({})])[0]) for _ in range(2)] == [[("undefined", 1)]] * 2


@pytest.mark.parametrize(
    ("source", "line", "column", "words"),
    [
        ("function (doc) {\n  emit(doc.a,, 1);\n}", 2, 14, "Unexpected token ','"),
        ("function (doc) { emit(; }", 1, 23, "Unexpected token ';'"),
        ("function (doc) {\n  if (doc) {\n}", 3, 2, "not complete"),
    ],
)
def test_a_syntax_error_is_refused_with_line_and_column(
    source: str, line: int, column: int, words: str
) -> None:
    for answer in (refused(source), refused("doc => 1", source)):
        assert (answer["line"], answer["column"]) == (line, column)
        assert words in answer["reason"]
        assert f"(line {line}, column {column})" in answer["reason"]


@pytest.mark.parametrize("source", ["5", "Math", "{}", "'function'"])
def test_what_is_no_function_is_refused(source: str) -> None:
    assert "view 'a': its map: " in refused(source)["reason"]


def test_a_semicolon_and_a_comment_behind_a_function_do_no_harm() -> None:
    for source in ("function (doc) { emit(1, 1); };\n ", "doc => { emit(1, 1) } // so it is"):
        assert rows(mapped(source, document({}))) == [(1, 1)]


def test_an_engine_that_does_not_start_is_one_clear_error(tmp_path: Path) -> None:
    with mapper("function (doc) { emit(1, 1); }") as made:
        (tmp_path / "py_mini_racer.py").write_text("raise ImportError('no such library')")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(tmp_path))
            with pytest.raises(ChildFailed, match="does not start: ImportError: no such library"):
                made.map([document({})])
            assert "could not be compiled: ImportError" in refused("doc => 1")["reason"]
        assert rows(made.map([document({})])[0]) == [(1, 1)]


def test_without_the_engine_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: None)
    assert "uprmc[javascript]" in refused("function (doc) { }")["reason"]
    declarative = {"views": {"a": {"map": {"emit": [{"key": 1}]}}}}
    assert Design.parse("d", json.dumps(declarative).encode())
