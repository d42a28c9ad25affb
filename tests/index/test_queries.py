"""Answers to queries against the naive oracle, and what an answer looks like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.index.cases import KEYS
from tests.index.disks import MemoryDisk
from tests.index.memory_tree import MemoryTree, entries
from tests.index.oracle import Oracle, parameters
from uprmc.index.errors import QueryRefused
from uprmc.index.model import Entry, Lost, Reductions
from uprmc.index.query import (
    DOCUMENTS_AT_ONCE,
    DOCUMENTS_BYTES,
    FIRST_DOCUMENTS,
    PIECE_BYTES,
    Documents,
    run,
)
from uprmc.index.query_options import Query
from uprmc.index.rows import id_text, split_row_value
from uprmc.index.tree import IndexFile, Tree

_ARRAYS = st.lists(st.sampled_from([0, 1, "a", "A", None]), max_size=3)
_KEY = KEYS | _ARRAYS
_ID = st.text(st.sampled_from("ab\0\x01\xff"), min_size=1, max_size=2)

#: Documents in vBuckets, each with the rows that it emits.
DATA = st.dictionaries(
    _ID, st.tuples(st.integers(0, 3), st.lists(st.tuples(_KEY, st.integers(-3, 3)), max_size=3))
)


@st.composite
def _ranges(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()):
        return {"key": draw(_KEY)}
    found: dict[str, Any] = {}
    for name in ("startkey", "endkey"):
        if draw(st.booleans()):
            found[name] = draw(_KEY)
            if draw(st.booleans()):
                found[f"{name}_docid"] = draw(_ID)
    return found


@st.composite
def options_of(draw: st.DrawFn, *, reduces: bool) -> dict[str, Any]:
    found = draw(_ranges() | st.fixed_dictionaries({"keys": st.lists(_KEY, max_size=4)}))
    for name, values in (
        ("descending", st.booleans()),
        ("inclusive_end", st.booleans()),
        ("limit", st.integers(0, 5)),
        ("skip", st.integers(0, 3)),
    ):
        if draw(st.booleans()):
            found[name] = draw(values)
    if reduces and draw(st.integers(0, 3)):
        found |= draw(_grouping(keys="keys" in found))
    elif reduces:
        found["reduce"] = False
    return found


def _grouping(*, keys: bool) -> st.SearchStrategy[dict[str, Any]]:
    if keys:
        return st.just({"group": True})
    levels = st.fixed_dictionaries({"group_level": st.integers(0, 3)})
    return st.just({}) | st.just({"group": True}) | levels


class Summing:
    """The reduce ``_sum`` of numbers."""

    errors = (None,)

    def reduce(self, rows: Sequence[Entry]) -> Reductions:
        return (b"%d" % sum(json.loads(split_row_value(row.value)[2]) for row in rows),)

    def rereduce(self, reductions: Sequence[Reductions]) -> Reductions:
        return (b"%d" % sum(json.loads(each[0] or b"null") for each in reductions),)

    def finish(self, place: int, reduction: bytes) -> bytes:
        return reduction


def tree_of(rows: list[Any], collation: str, reduces: bool) -> Tree:
    """A tree in a file in memory."""
    file = IndexFile.create(Path("memory"), disk=MemoryDisk())
    tree = Tree(file, None, Summing() if reduces else None)
    return tree.update((), entries(rows, collation))


class Index:
    """Data in a tree and in the oracle."""

    def __init__(self, data: dict[str, Any], collation: str, reduces: bool) -> None:
        rows = [
            (name.encode(), vbucket, key, value)
            for name, (vbucket, emitted) in data.items()
            for key, value in emitted
        ]
        self.oracle = Oracle(
            lambda body: body, sum if reduces else None, collation, self._documents(data)
        )
        self._tree = tree_of(rows, collation, reduces)
        self._total = len(rows)
        self.update_seq = {1: 5}
        self.wanted: int | None = None
        self.reduces, self.collation = reduces, collation

    @staticmethod
    def _documents(data: dict[str, Any]) -> dict[tuple[int, bytes], Any]:
        return {(vbucket, name.encode()): rows for name, (vbucket, rows) in data.items()}

    def tree(self, view_index: int) -> Tree:
        return self._tree

    def total_rows(self, view_index: int) -> int:
        return self._total

    def ask(self, options: dict[str, Any]) -> Any:
        pairs = [
            (name, text.strip('"') if "docid" in name else text)
            for name, text in parameters(options).items()
        ]
        query = Query.parse(pairs, reduces=self.reduces, collation=self.collation)
        return json.loads(b"".join(run(query, self, 0, view="v")))


@pytest.mark.acceptance("I12")
@pytest.mark.acceptance("I13")
@given(st.data())
def test_answers_are_those_of_the_oracle(data: st.DataObject) -> None:
    reduces = data.draw(st.booleans())
    index = Index(data.draw(DATA), data.draw(st.sampled_from(["unicode", "raw"])), reduces)
    options = data.draw(options_of(reduces=reduces))
    vbuckets = data.draw(st.none() | st.frozensets(st.integers(0, 3)))
    if vbuckets is not None:
        index.wanted = sum(1 << each for each in vbuckets)
    expected = index.oracle.answer(options, vbuckets)
    try:
        answer = index.ask(options)
    except QueryRefused as refusal:
        answer = {"rows": [], "errors": []}
        _check_range(refusal)
    assert answer["rows"] == expected
    assert answer["errors"] == []


def _check_range(refusal: QueryRefused) -> None:
    assert "startkey is beyond endkey" in refusal.reason


class Rows:
    """A few rows, given as (id, key, value)."""

    update_seq = {3: 12, 4: 0}  # noqa: RUF012
    wanted = None

    def __init__(self, *rows: tuple[bytes, Any, Any], reduce: Any = None) -> None:
        self._tree = MemoryTree(entries([(i, 0, key, value) for i, key, value in rows]), reduce)
        self._count = len(rows)
        self._reduces = reduce is not None

    def tree(self, view_index: int) -> MemoryTree:
        return self._tree

    def total_rows(self, view_index: int) -> int:
        return self._count

    def pieces(self, *, documents: Documents | None = None, **options: Any) -> list[bytes]:
        query = Query.parse([], options, reduces=self._reduces)
        return list(run(query, self, 0, view="v", source="h:1", documents=documents))

    def ask(self, *, documents: Documents | None = None, **options: Any) -> Any:
        return json.loads(b"".join(self.pieces(documents=documents, **options)))


def test_an_answer_has_one_row_in_each_line() -> None:
    rows = Rows((b"a", 1, None), (b"\xff", ["x"], {"y": "z\n"}))
    assert b"".join(rows.pieces()) == (
        b'{"total_rows":2,"rows":[\n'
        b'{"id":"a","key":1,"value":null},\n'
        b'{"id":"\\uefff","key":["x"],"value":{"y":"z\\n"},"id_base64":"/w=="}\n'
        b'],"errors":[]}\n'
    )


def test_an_empty_answer_is_an_empty_list() -> None:
    assert Rows().ask() == {"total_rows": 0, "rows": [], "errors": []}
    assert Rows(reduce=sum).ask() == {"total_rows": 0, "rows": [], "errors": []}
    assert Rows(reduce=sum).ask(group=True)["rows"] == []


def test_an_answer_without_rows_still_counts_those_of_the_view() -> None:
    rows = Rows((b"a", 1, None))
    assert rows.ask(limit=0) == {"total_rows": 1, "rows": [], "errors": []}
    assert rows.tree(0).read == 0


def test_the_seqnos_of_an_answer_are_told_on_request() -> None:
    assert Rows().ask(update_seq=True)["update_seq"] == {"3": 12, "4": 0}


def test_a_reduction_of_all_rows_has_no_key() -> None:
    rows = Rows((b"a", 1, 5), (b"b", 2, 6), reduce=sum)
    assert rows.ask()["rows"] == [{"key": None, "value": 11}]


def test_rows_of_a_limit_are_all_that_is_read() -> None:
    rows = Rows(*((b"%04d" % n, n, "x") for n in range(1_000)))
    assert len(rows.ask(limit=10, skip=5)["rows"]) == 10
    assert rows.tree(0).read <= 16


def test_a_large_answer_comes_in_pieces_of_bounded_size() -> None:
    rows = Rows(*((b"%06d" % n, n, "x" * 100) for n in range(5_000)))
    pieces = rows.pieces()
    assert len(pieces) > 20
    assert max(map(len, pieces)) < PIECE_BYTES + 1_000
    assert len(json.loads(b"".join(pieces))["rows"]) == 5_000


def test_a_reduce_that_fails_is_an_error_that_names_view_and_keys() -> None:
    def failing(values: list[Any]) -> Any:
        return 1 // (0 if 13 in values else 1)

    rows = Rows((b"a", ["x", 1], 1), (b"b", ["y", 1], 13), (b"c", ["z", 1], 1), reduce=failing)
    answer = rows.ask(group=True)
    assert [row["key"] for row in answer["rows"]] == [["x", 1], ["z", 1]]
    [error] = answer["errors"]
    assert error["from"] == "h:1"
    assert "'v'" in error["reason"]
    assert '["y",1]' in error["reason"]
    stopped = rows.ask(group=True, on_error="stop")
    assert [row["key"] for row in stopped["rows"]] == [["x", 1]]
    assert len(stopped["errors"]) == 1
    [error] = rows.ask(startkey=["a"], endkey=["z", {}])["errors"]
    assert 'the keys from ["a"] to ["z", {}]' in error["reason"]


def test_documents_are_fetched_when_the_query_runs() -> None:
    present = {b"a": b'{"now":1}', b"other": b'"linked"', b"\xff": b"8"}
    asked: list[list[bytes]] = []

    def documents(keys: Sequence[bytes]) -> list[bytes | None]:
        asked.append(list(keys))
        return [present.get(key) for key in keys]

    rows = Rows(
        *((b"a", 1, None), (b"b", 2, None), (b"c", 3, {"_id": "other"}), (b"d", 4, {"_id": 5})),
        *((b"e", 5, {"_id": id_text(b"\xff")}), (b"f", 6, {"_id": ""})),
    )
    answer = rows.ask(include_docs=True, documents=documents)
    assert [row["doc"] for row in answer["rows"]] == [{"now": 1}, None, "linked", None, 8, None]
    assert asked == [[b"a", b"b", b"other", b"d"], [b"\xff", b""]]
    assert rows.ask(include_docs=True, documents=documents, skip=1, limit=1)["rows"][0]["id"] == "b"


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        (1, [FIRST_DOCUMENTS, DOCUMENTS_AT_ONCE, 6]),
        (DOCUMENTS_BYTES // 50, [FIRST_DOCUMENTS, 50, 50, 6]),
        (DOCUMENTS_BYTES, [FIRST_DOCUMENTS, *[1] * 106]),
        (3 * DOCUMENTS_BYTES, [FIRST_DOCUMENTS, *[1] * 106]),
    ],
)
def test_documents_are_asked_for_in_portions_of_a_size(size: int, sizes: list[int]) -> None:
    asked = []
    body = b" " * (size - 1) + b"1"

    def documents(keys: Sequence[bytes]) -> list[bytes | None]:
        asked.append(len(keys))
        return [body] * len(keys)

    rows = Rows(*((b"%04d" % n, n, None) for n in range(FIRST_DOCUMENTS + 106)))
    assert sum(map(len, rows.pieces(include_docs=True, documents=documents))) > size * 110
    assert asked == sizes


@pytest.mark.parametrize("docs", [False, True])
def test_a_merger_can_tell_the_rows_of_different_keys_apart(docs: bool) -> None:
    rows = Rows((b"a", 1, None), (b"b", 2, None), (b"c", 2, None))
    given = {"keys": [2, 1, 7, 2], "merge": True, "include_docs": docs}
    answer = b"".join(rows.pieces(documents=lambda keys: [None] * len(keys), **given))
    lines = [line[:9] for line in answer.splitlines()[1:-1]]
    assert lines == [
        *(b'{"id":"b"', b'{"id":"c"'),
        *(b"", b'{"id":"a"'),
        *(b"", b"", b'{"id":"b"', b'{"id":"c"'),
    ]
    assert [row["id"] for row in json.loads(answer)["rows"]] == ["b", "c", "a", "b", "c"]


class Sketch:
    """A reducer whose reductions are not what is shown."""

    errors = ("it is\ntoo large",)

    def finish(self, place: int, reduction: bytes) -> bytes:
        return b'"shown"'


def test_what_is_shown_of_a_reduction_is_made_last() -> None:
    rows = Rows((b"a", 1, 1), reduce=sum)
    rows.tree(0).reducer = Sketch()
    assert rows.ask()["rows"] == [{"key": None, "value": "shown"}]
    assert rows.ask(merge=True)["rows"] == [{"key": None, "value": 1}]


def test_why_a_reduce_failed_is_said() -> None:
    rows = Rows((b"a", 1, 1), reduce=lambda values: 1 // 0)
    rows.tree(0).reducer = Sketch()
    [error] = rows.ask(group=True)["errors"]
    assert error["reason"] == "view 'v': the reduce failed for key 1: it is too large"


def test_rows_come_without_documents_that_cannot_be_read() -> None:
    def documents(keys: Sequence[bytes]) -> list[bytes | None]:
        raise OSError("no route\nto host")

    answer = Rows((b"a", 1, None)).ask(include_docs=True, documents=documents)
    assert answer["rows"] == [{"id": "a", "key": 1, "value": None, "doc": None}]
    assert answer["errors"] == [
        {"from": "h:1", "reason": 'documents cannot be read: "a": no route to host'}
    ]


def test_a_document_that_cannot_be_had_concerns_its_row_only() -> None:
    def documents(keys: Sequence[bytes]) -> list[bytes | Lost | None]:
        found = {b"b": b"1", b"c": Lost("it is\ngone"), b"h": Lost("it is nested too deeply")}
        return [found.get(key, Lost("no answer")) for key in keys]

    rows = Rows(*((bytes([byte]), byte, None) for byte in b"abcdefghi"))
    answer = rows.ask(include_docs=True, documents=documents)
    assert [row["doc"] for row in answer["rows"]] == [None, 1, *[None] * 7]
    assert [error["reason"].partition("read: ")[2] for error in answer["errors"]] == [
        '"a", "d", "e", "f", "g" and 1 more: no answer',
        '"c": it is gone',
        '"h": it is nested too deeply',
    ]
    rows = Rows((b"b", 1, None), (b"c", 2, None), (b"b", 3, None))
    stopped = rows.ask(include_docs=True, documents=documents, on_error="stop")
    assert ([row["id"] for row in stopped["rows"]], len(stopped["errors"])) == (["b"], 1)
