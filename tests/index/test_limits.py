"""Limits of the index, at the limit and one past it."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from interop.server_process import ServerProcess
from interop.waiting import wait_until
from tests.index.documents import document
from tests.index.running import BY_CITY, cities, index_server, store
from uprmc.config import IndexSettings
from uprmc.index.design import MAX_DEPTH, MAX_ROWS, Design
from uprmc.index.errors import QueryRefused
from uprmc.index.group import Group
from uprmc.index.mapping import make_mapper
from uprmc.index.model import Stale

DECLARATIVE = {"emit": [{"key": 1, "value": "$.v"}, {"key": 2, "value": "$.v"}]}
JAVASCRIPT = "function (doc) { emit(1, doc.v); emit(2, doc.v); }"
KINDS = pytest.mark.parametrize("map_", [DECLARATIVE, JAVASCRIPT], ids=["rules", "javascript"])


def design(map_: Any) -> Design:
    return Design.parse("d", json.dumps({"views": {"v": {"map": map_}}}).encode())


def error_of(map_: Any, value: Any, **settings: int) -> str | None:
    """Return why a map failed for a document."""
    mapper = make_mapper(design(map_), IndexSettings(**settings))
    try:
        (mapped,) = mapper.map([document({"v": value})])
        return mapped.error
    finally:
        mapper.close()


def is_above(limit: int, error: str | None) -> bool:
    """Return whether an error names the limit; JavaScript stops there, and cannot say how many."""
    return f"the most are {limit}" in str(error) or f"more than {limit} " in str(error)


@KINDS
def test_a_document_may_have_as_many_rows_as_the_limit(map_: Any) -> None:
    assert error_of(map_, 0, max_document_rows=2) is None
    assert is_above(1, error_of(map_, 0, max_document_rows=1))


@KINDS
def test_rows_of_a_document_may_have_as_many_bytes_as_the_limit(map_: Any) -> None:
    value = "x" * 17  # twice a key of one byte, and a value with its quotes
    assert error_of(map_, value, max_document_bytes=40) is None
    assert is_above(39, error_of(map_, value, max_document_bytes=39))


def test_a_map_may_describe_as_many_rows_as_the_limit_and_nest_as_deeply() -> None:
    deep: Any = "$.v"
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert design({"emit": [{"key": deep}] * MAX_ROWS})
    for map_ in ({"emit": [{"key": 1}] * (MAX_ROWS + 1)}, {"emit": [{"key": [deep]}]}):
        with pytest.raises(QueryRefused) as caught:
            design(map_)
        assert caught.value.status == 400


def test_as_many_requests_wait_as_the_limit_and_the_next_is_refused() -> None:
    following: Any = SimpleNamespace(
        store=None, progress=_Never(), failure="", has_ended=False, at_end=[]
    )
    source: Any = SimpleNamespace(error="")
    group = Group(None, design(DECLARATIVE), following, source, IndexSettings(waiting=2))
    refused: deque[Any] = deque()
    for _ in range(3):
        asking = group.snapshot(Stale.OK, (), None, None, 5.0)
        Deferred.fromCoroutine(asking).addErrback(lambda it: refused.append(it.value))
    assert [(each.status, each.error) for each in refused] == [(503, "busy")]
    assert group.waiting == 2


class _Never:
    """A signal that is never fired."""

    def __init__(self) -> None:
        self._waiting: list[Deferred[None]] = []

    async def wait(self, reactor: Any, limit_s: float) -> None:
        self._waiting.append(Deferred())
        await self._waiting[-1]


def test_there_are_as_many_designs_as_the_limit_and_a_changed_one_is_none_more(
    node: ServerProcess, tmp_path: Path
) -> None:
    settings = {"index.designs": 1, "index.keep_old_s": 0}
    store(node, cities(range(10)))
    with index_server(tmp_path / "index", node.upr, settings=settings) as server:
        views = server.views
        views.put("d", BY_CITY)
        refused = views.ask("PUT", "/_design/e", BY_CITY)
        assert (refused.status, refused.body["error"]) == (403, "too_many")
        assert "index.designs" in refused.body["reason"]
        old = views.info()["signature"]
        views.put("d", {"views": {"by_city": {"map": {"emit": [{"key": "$.city"}]}}}})
        views.until("the new definition answers", lambda info: info["signature"] != old)
        # Nothing is kept of the old one, so that the change cannot be undone.
        folder = tmp_path / "index" / "d.design"
        wait_until(lambda: not [*folder.glob(f"{old}.*")], "the old definition's files to go")
        assert views.ask("POST", "/_design/d/_undo", {}).status == 404
