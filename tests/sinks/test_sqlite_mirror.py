"""The documents in an SQLite table: exactly once, text where a person can read it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.client.consumer_world import node, write
from tests.sinks.sink_contract import Documents, SinkContract
from uprmc.client.state import StateRefused
from uprmc.sinks.sink import Sink
from uprmc.sinks.sqlite_mirror import SqliteMirror


def rows(path: Path, columns: str) -> list[tuple[object, ...]]:
    database = sqlite3.connect(path)
    try:
        return database.execute(f"SELECT {columns} FROM documents ORDER BY vbucket, key").fetchall()
    finally:
        database.close()


class TestSqliteMirror(SinkContract):
    """The table is the documents."""

    def open(self, place: Path) -> Sink:
        return SqliteMirror(place / "x.db")

    def documents(self, place: Path) -> Documents:
        found: Documents = {}
        for vbucket, key, value in rows(place / "x.db", "vbucket, key, value"):
            assert isinstance(vbucket, int)
            found.setdefault(vbucket, {})[str(key).encode()] = str(value).encode()
        return found


class Forgetful(SqliteMirror):
    """A planted fault: what is lost is not taken back."""

    def undo(self, *_: object) -> None:
        return


def test_the_contract_notices_a_sink_that_takes_nothing_back(tmp_path: Path) -> None:
    contract = TestSqliteMirror()
    contract.open = lambda place: Forgetful(place / "x.db")  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        contract.test_what_a_failover_lost_is_taken_back(tmp_path)


def test_what_is_no_text_is_a_blob_and_large_numbers_fit(tmp_path: Path) -> None:
    rig = node()
    write(rig, 0, text="é")
    rig.bucket.vbuckets[0].store(b"\xff", b"\x00\xfe", 2**32 - 1, 0)
    with TestSqliteMirror().following(tmp_path, rig) as consumer:
        consumer.go_on()
    found = rows(tmp_path / "x.db", "key, value, flags")
    assert found == [("text", "é", 0), (b"\xff", b"\x00\xfe", 2**32 - 1)]


def test_a_table_that_has_other_columns_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "x.db")
    database.execute("CREATE TABLE documents (mine)")
    database.close()
    with pytest.raises(StateRefused, match="no such column"):
        SqliteMirror(tmp_path / "x.db")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("mine\n" * 100)
    with pytest.raises(StateRefused):
        SqliteMirror(tmp_path / "x.db")
    assert (tmp_path / "x.db").read_text() == "mine\n" * 100
