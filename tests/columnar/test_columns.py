"""Columns become one schema, the same for Arrow and for Spark."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from uprmc.columnar.errors import BadOption
from uprmc.columnar.schema import DEFAULT, OPTIONAL, Columns


def test_the_default_columns_are_those_of_the_reference() -> None:
    assert Columns().ddl == (
        "key STRING, value BINARY, _op STRING, _vb INT, _seq BIGINT, _rev BIGINT, _cas BIGINT, "
        "_flags BIGINT, _exp BIGINT, _lock BIGINT, _vbuuid STRING"
    )


def test_the_optional_columns_are_those_of_the_reference() -> None:
    assert Columns(OPTIONAL).ddl == (
        "_datatype INT, _snap_start BIGINT, _snap_end BIGINT, _backfill BOOLEAN, _meta BINARY, "
        "_time TIMESTAMP"
    )


def test_a_schema_has_the_columns_asked_for_in_their_order() -> None:
    assert Columns(("_seq", "key")).schema.names == ["_seq", "key"]
    assert not Columns(("_seq", "key")).wants_value
    assert not Columns(("_seq",)).wants_key


def test_every_field_may_be_null_because_control_rows_have_little() -> None:
    assert all(field.nullable for field in Columns(DEFAULT + OPTIONAL).schema)


def test_keys_may_be_binary() -> None:
    assert Columns(("key",), key_type="binary").schema.field("key").type == pa.binary()
    assert Columns(("key",), key_type="binary").ddl == "key BINARY"


def test_only_numbers_without_sign_become_decimals() -> None:
    columns = Columns(("_seq", "_rev", "_cas"), u64="decimal")
    assert columns.ddl == "_seq BIGINT, _rev DECIMAL(20,0), _cas DECIMAL(20,0)"
    assert columns.schema.field("_cas").type == pa.decimal128(20, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"names": ("kee",)}, "no column 'kee'"),
        ({"names": ()}, "at least one"),
        ({"names": ("key", "key")}, "each column once"),
        ({"key_type": "text"}, "keyType='text': say one of string, binary"),
        ({"u64": "hex"}, "u64='hex': say one of signed, decimal"),
        ({"mode": "failfast"}, "mode='failfast': say one of FAILFAST"),
    ],
)
def test_what_is_no_column_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        Columns(**options)  # type: ignore[arg-type]


def test_columns_travel_by_pickle() -> None:
    columns = Columns(("key", "_cas"), u64="decimal")
    assert pickle.loads(pickle.dumps(columns)) == columns
