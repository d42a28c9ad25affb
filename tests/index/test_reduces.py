"""Reduces of views: the built-in ones and JavaScript functions, in one step and in several."""

from __future__ import annotations

import gc
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from uprmc.config import IndexSettings
from uprmc.index.collation import sort_key
from uprmc.index.design import Design
from uprmc.index.mapping import make_reducer
from uprmc.index.mapping.javascript import _SHARED
from uprmc.index.mapping.mapper import ViewReducer
from uprmc.index.model import Entry
from uprmc.index.rows import row_key, row_value

SUM = "function (keys, values, rereduce) { return sum(values); }"


def entry(key: Any, value: Any, doc: bytes = b"doc") -> Entry:
    """A row of a tree."""
    texts = [json.dumps(each, separators=(",", ":")).encode() for each in (key, value)]
    return Entry(row_key(sort_key(key), doc, 0, 0), 0, row_value(doc, *texts))


def entries(*values: Any) -> list[Entry]:
    return [entry(i, value, b"doc%d" % i) for i, value in enumerate(values)]


@contextmanager
def reducer(reduce: str, **settings: Any) -> Iterator[ViewReducer]:
    view = {"map": {"emit": [{"key": 1}]}, "reduce": reduce}
    design = Design.parse("d", json.dumps({"views": {"v": view}}).encode())
    made = make_reducer(design, 0, IndexSettings(**settings))
    try:
        yield made
    finally:
        made.close()


def reduced(reduce: str, rows: list[Entry]) -> Any:
    with reducer(reduce) as made:
        (text,) = made.reduce(rows)
        return None if text is None else json.loads(made.finish(0, text))


@pytest.mark.parametrize(
    ("reduce", "values", "wanted"),
    [
        ("_count", [], 0),
        ("_count", ["a", None, 3], 3),
        ("_sum", [], 0),
        ("_sum", [1, 2, -5], -2),
        ("_sum", [0.5, 2], 2.5),
        ("_sum", [2**64, 1], 2**64 + 1),
        ("_sum", [[1, 2], [3, 4, 5]], [4, 6, 5]),
        ("_sum", [10, [1, 2]], [11, 2]),
        ("_stats", [2, 4, 3], {"sum": 9, "count": 3, "min": 2, "max": 4, "sumsqr": 29}),
        ("_stats", [], {"sum": 0, "count": 0, "min": None, "max": None, "sumsqr": 0}),
        ("_approx_count_distinct", [1] * 40, 40),
        (SUM, [1, 2, 3], 6),
        ("function (k, v) { return k; }", [5, 6], [[0, "doc0"], [1, "doc1"]]),
        ("function (k, v) { }", [5], None),
    ],
)
def test_a_reduce_of_rows(reduce: str, values: list[Any], wanted: Any) -> None:
    assert reduced(reduce, entries(*values)) == wanted


@pytest.mark.parametrize("reduce", ["_count", "_sum", "_stats", "_approx_count_distinct", SUM])
def test_reductions_of_parts_give_the_reduction_of_all(reduce: str) -> None:
    values = random.Random(7).choices(range(1_000), k=3_000)
    rows = [entry(value, value, b"doc%d" % i) for i, value in enumerate(values)]
    with reducer(reduce) as made:
        parts = [made.reduce(rows[i : i + 100]) for i in range(0, 3_000, 100)]
        halves = [made.rereduce(parts[:11]), made.rereduce(parts[11:])]
        (one,), (several,) = made.reduce(rows), made.rereduce(halves)
        assert one is not None
        assert several is not None
        assert json.loads(made.finish(0, several)) == json.loads(made.finish(0, one))


def test_about_the_right_number_of_different_keys_is_counted() -> None:
    rows = [entry(f"key {i % 20_000}", None) for i in range(40_000)]
    assert abs(reduced("_approx_count_distinct", rows) - 20_000) < 0.1 * 20_000


def test_a_stored_sketch_stays_small() -> None:
    with reducer("_approx_count_distinct") as made:
        (many,) = made.reduce([entry(i, None) for i in range(50_000)])
        (few,) = made.reduce([entry(i, None) for i in range(5)])
    assert many is not None
    assert few is not None
    assert (len(few) < 100, len(many) < 3_000) == (True, True)


@pytest.mark.parametrize("reduce", ["_sum", "_stats"])
@pytest.mark.parametrize("value", ["seven", None, True, {"a": 1}, [1, "x"]])
def test_what_is_no_number_is_named(reduce: str, value: Any) -> None:
    with reducer(reduce) as made:
        assert made.reduce(entries(1, value)) == (None,)
        assert "a value is no number: " in str(made.errors[0])


def test_a_reduction_of_a_failed_one_fails() -> None:
    with reducer("_sum") as made:
        parts = [made.reduce(entries(1)), made.reduce(entries("x"))]
        assert made.rereduce(parts) == (None,)


@pytest.mark.parametrize("values", [[1e308, 1e308], [[1e308], [1e308]]])
def test_a_sum_that_no_number_can_hold_fails(values: list[Any]) -> None:
    with reducer("_sum") as made:
        assert made.reduce(entries(*values)) == (None,)
        assert "larger than a number can be" in str(made.errors[0])


def test_a_reduction_over_its_limit_fails() -> None:
    with reducer("function (k, v) { return 'x'.repeat(v[0]); }", max_reduction_bytes=100) as made:
        assert made.reduce(entries(98)) == (b'"' + b"x" * 98 + b'"',)
        assert made.reduce(entries(99)) == (None,)
        assert made.errors == ["a reduction has 101 bytes; the most are 100"]
        assert made.reduce(entries(50, 51)) != (None,)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("function (k, v) { throw new Error('no luck'); }", "it threw Error: no luck"),
        ("function (k, v) { var a = []; a.push(a); return a; }", "circular"),
        ("function (k, v) { for (;;); }", "it ran for more than 1 s"),
        ("function (k, v) { var a = ['x']; for (;;) a = a.concat(a, a); }", ""),
    ],
)
def test_a_function_that_fails_costs_its_reduction_and_no_more(source: str, words: str) -> None:
    limits = {"map_timeout_s": 1 if "for (;;);" in source else 20, "worker_memory": 64 << 20}
    with reducer(source.replace("{", "{ if (v[0] === 1) return 7;", 1), **limits) as made:
        assert made.reduce(entries(2)) == (None,)
        assert words in str(made.errors[0])
        assert made.reduce(entries(1)) == (b"7",)


def test_reduces_of_a_design_share_a_process_that_ends_with_the_last() -> None:
    views = {
        "a": {"map": {"emit": [{"key": 1}]}, "reduce": SUM},
        "b": {"map": {"emit": [{"key": 1}]}, "reduce": "(k, v) => v.length"},
    }
    design = Design.parse("d", json.dumps({"views": views}).encode())
    first, second = (make_reducer(design, place, IndexSettings()) for place in range(2))
    assert (first.reduce(entries(4, 5)), second.reduce(entries(4, 5))) == ((b"9",), (b"2",))
    (process,) = _SHARED.values()
    assert process._child is not None
    pid = process._child.pid
    first.close()
    assert second.reduce(entries(1)) == (b"1",)
    assert first.reduce(entries(1)) == (None,)
    second.close()
    del process
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_function_that_never_ends_is_soon_left_alone() -> None:
    with reducer("function (k, v) { for (;;); }", map_timeout_s=0.05) as made:
        for _ in range(3):
            assert made.reduce(entries(1)) == (None,)
        assert made.reduce(entries(1)) == (None,)
        assert "rests for a minute" in str(made.errors[0])
