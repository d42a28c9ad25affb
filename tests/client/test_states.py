"""Every keeper of a consumer's state does the same, whatever it is made of."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.state_contract import StateContract, at
from uprmc.client import sqlite_state
from uprmc.client.sqlite_state import SqliteState
from uprmc.client.state import MemoryState, RingChunk, StateStore
from uprmc.model import SEQNO_MAX


def sqlite(path: Path | sqlite3.Connection) -> SqliteState:
    return SqliteState(path, name="test", vbuckets=1024, sync="normal")


class TestMemoryState(StateContract):
    def create(self, path: Path) -> StateStore:
        return MemoryState()

    def reopen(self, state: StateStore) -> StateStore:
        return state


class TestSqliteState(StateContract):
    def create(self, path: Path) -> StateStore:
        self._path = path / "state.db"
        return sqlite(self._path)

    def reopen(self, state: StateStore) -> StateStore:
        state.close()
        return sqlite(self._path)


class TestSqliteStateInTheHandlersDatabase(StateContract):
    def create(self, path: Path) -> StateStore:
        self._path = path / "handlers.db"
        return self._connected()

    def reopen(self, state: StateStore) -> StateStore:
        state.close()
        self._connection.close()
        return self._connected()

    def _connected(self) -> SqliteState:
        self._connection = sqlite3.connect(self._path)
        self._connection.row_factory = sqlite3.Row
        return sqlite(self._connection)

    def teardown_method(self) -> None:
        self._connection.close()


# --- against the model --------------------------------------------------------------------------

VBUCKETS = st.integers(0, 2)
SEQNOS = st.integers(0, 12) | st.integers(SEQNO_MAX - 3, SEQNO_MAX)
LIMITS = st.dictionaries(VBUCKETS, SEQNOS, max_size=2)
ENTRIES = st.lists(st.tuples(SEQNOS, st.binary(max_size=3)), max_size=6).map(sorted)
CHUNKS = st.lists(st.builds(RingChunk, VBUCKETS, ENTRIES), max_size=4)
COMMITS = st.tuples(st.dictionaries(VBUCKETS, SEQNOS.map(at), max_size=2), CHUNKS, LIMITS, LIMITS)
STEPS = st.lists(COMMITS | st.sets(VBUCKETS, max_size=2) | st.just("reopen"), max_size=12)


@given(STEPS)
def test_sqlite_answers_as_the_model_does(steps: list[object]) -> None:
    with closing(sqlite3.connect(":memory:")) as place, pytest.MonkeyPatch.context() as limits:
        limits.setattr(sqlite_state, "ROW_ENTRIES", 3)
        limits.setattr(sqlite_state, "FOLD_ENTRIES", 8)
        limits.setattr(sqlite_state, "FOLD_RECORDS", 3)
        model, state = MemoryState(), sqlite(place)
        for step in steps:
            if step == "reopen":
                state = sqlite(place)
            elif isinstance(step, set):
                model.forget(step)
                state.forget(step)
            elif isinstance(step, tuple):
                model.commit(*step)
                state.commit(*step)
            _check_same(model, state)


def _check_same(model: StateStore, state: StateStore) -> None:
    assert state.load() == model.load()
    for vbucket in range(3):
        assert state.ring_size(vbucket) == model.ring_size(vbucket)
        for seqno in (0, 6, SEQNO_MAX - 1):
            assert state.ring_after(vbucket, seqno) == model.ring_after(vbucket, seqno)
