"""The same documents, the same map functions, the same options: PouchDB, the oracle and a node.

PouchDB orders strings as `collation: raw` does, and knows neither ``startkey_docid`` nor
``endkey_docid``. What else differs stands in `docs/views.md`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pymemcache.client.base import Client as Pymemcache

from interop.pouchdb import Pouch, PouchError, missing
from interop.server_process import ServerProcess, start_uprmc
from interop.views import Views
from tests.index.cases import DATA, VIEWS, contradicts, queries
from tests.index.oracle import REDUCES, Oracle, compare, parameters

_UNKNOWN = ("startkey_docid", "endkey_docid")


@pytest.fixture(scope="module")
def pouch() -> Iterator[Pouch]:
    if why := missing():
        pytest.skip(why)
    with Pouch() as running:
        yield running


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without what only one of both has: an ``id`` of reduced rows."""
    return [{name: row[name] for name in ("id", "key", "value") if name in row} for row in rows]


_names = iter(range(1_000_000))


@given(st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_oracle_says_what_pouchdb_says(pouch: Pouch, data: st.DataObject) -> None:
    documents = data.draw(DATA)
    pouch.ask("open", adapter="memory", path=f"documents-{next(_names)}")
    pouch.load(documents)
    pouch.design("d", {view.name: view.definition for view in VIEWS})
    for view in VIEWS:
        oracle = Oracle(view.python, REDUCES.get(view.reduce or ""), "raw")
        oracle.documents = {(0, name.encode()): body for name, body in documents.items()}
        options = data.draw(queries(reduced=view.reduce is not None))
        options = {name: each for name, each in options.items() if name not in _UNKNOWN}
        assume(not contradicts(options, partial(compare, collation="raw")))
        expected = oracle.answer(options)
        assert plain(pouch.rows(f"d/{view.name}", **options)) == expected, (view.name, options)


class Node:
    """A node with the views of `cases`, whose documents are replaced again and again."""

    def __init__(self, server: ServerProcess, views: Views) -> None:
        address = server.memcached
        self.views = views
        self._client = Pymemcache((address.host, address.port), no_delay=True)
        self._there: set[str] = set()
        definitions = {view.name: view.definition for view in VIEWS}
        answer = views.put("d", definitions, options={"collation": "raw"})
        assert answer.status == 201, answer

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def load(self, documents: dict[str, Any]) -> None:
        """Have these documents and no others."""
        if gone := self._there - documents.keys():
            self._client.delete_many(sorted(gone), noreply=False)
        if documents:
            texts = {name: json.dumps(body).encode() for name, body in documents.items()}
            assert not self._client.set_many(texts, noreply=False)
        self._there = set(documents)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    if importlib.util.find_spec("py_mini_racer") is None:
        pytest.skip("no JavaScript: pip install 'uprmc[javascript]'")
    with start_uprmc(tmp_path_factory.mktemp("data"), "--vbuckets", "8") as server:
        assert server.views is not None
        with Views(server.views) as views:
            made = Node(server, views)
            yield made
            made.close()
        server.stop()


@given(st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.acceptance("I01", "I08")
def test_a_node_says_what_pouchdb_says(pouch: Pouch, node: Node, data: st.DataObject) -> None:
    """Also after documents were changed and deleted."""
    documents = data.draw(DATA)
    pouch.ask("open", adapter="memory", path=f"documents-{next(_names)}")
    pouch.load(documents)
    pouch.design("d", {view.name: view.definition for view in VIEWS})
    node.load(documents)
    for view in VIEWS:
        options = data.draw(queries(reduced=view.reduce is not None))
        options = {name: each for name, each in options.items() if name not in _UNKNOWN}
        assume(not contradicts(options, partial(compare, collation="raw")))
        expected = pouch.rows(f"d/{view.name}", **options)
        found = node.views.rows(f"d/{view.name}", **parameters(options))
        assert found == plain(expected), (view.name, options)


#: What both refuse: options as values.
_REFUSED: tuple[dict[str, Any], ...] = (
    {"startkey": 2, "endkey": 1},
    {"startkey": 1, "endkey": 2, "descending": True},
    {"keys": [1, 2], "reduce": True},
    {"limit": -1},
    {"skip": -1},
    {"group_level": -1},
)


@pytest.mark.parametrize("options", _REFUSED)
def test_a_node_refuses_what_pouchdb_refuses(
    pouch: Pouch, node: Node, options: dict[str, Any]
) -> None:
    pouch.ask("open", adapter="memory", path=f"documents-{next(_names)}")
    pouch.design("d", {view.name: view.definition for view in VIEWS})
    with pytest.raises(PouchError):
        pouch.rows("d/count", **options)
    answer = node.views.query("d/count", **parameters(options))
    assert answer.status == 400, answer
    assert answer.body["error"] == "bad_request"


_REDUCE = """
function (keys, values, rereduce) {
  if (rereduce) return {n: sum(values.map(v => v.n)), most: Math.max(...values.map(v => v.most))};
  return {n: values.length, most: Math.max(...values)};
}
"""


@pytest.mark.acceptance("I01", "I13")
def test_a_reduce_in_javascript_gives_what_pouchdb_gives(pouch: Pouch, node: Node) -> None:
    """With so many rows that it is called again with what it returned."""
    documents = {f"d{n}": {"n": n % 7, "v": n * 37 % 1_000} for n in range(1_000)}
    definition = {
        "v": {"map": "function (doc) { emit([doc.n, doc.v], doc.v); }", "reduce": _REDUCE}
    }
    pouch.ask("open", adapter="memory", path=f"documents-{next(_names)}")
    pouch.load(documents)
    pouch.design("r", definition)
    node.load(documents)
    assert node.views.put("r", definition, options={"collation": "raw"}).status == 201
    questions: tuple[dict[str, Any], ...] = (
        {},
        {"group_level": 1},
        {"group": True, "limit": 5},
        {"startkey": [2], "endkey": [4, 500]},
        {"startkey": [5, {}], "endkey": [1], "descending": True, "group_level": 1},
    )
    for options in questions:
        found = node.views.rows("r/v", **parameters(options))
        assert found == plain(pouch.rows("r/v", **options)), options
