"""The same documents, the same map functions, the same options: PouchDB against the oracle and us.

PouchDB orders strings as `collation: raw` does, and knows neither ``startkey_docid`` nor
``endkey_docid``. What else differs stands in `docs/views.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from interop.pouchdb import Pouch, missing
from tests.index.cases import DATA, VIEWS, contradicts, queries
from tests.index.oracle import REDUCES, Oracle, compare

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
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
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
