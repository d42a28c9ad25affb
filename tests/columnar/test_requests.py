"""Rows become the requests that the wire says; rows that cannot are told one by one."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.columnar.write_rows import documents, versions
from uprmc.columnar import requests
from uprmc.columnar.access import Access
from uprmc.columnar.errors import BadOption, BadSchema
from uprmc.columnar.requests import PIECE_BYTES, PIECE_ROWS, Piece, pieces, value_in
from uprmc.columnar.schema import DEFAULT, OPTIONAL, Columns
from uprmc.columnar.write_options import WriteOptions
from uprmc.model import vbucket_of
from uprmc.protocol.binary import STORE_EXTRAS
from uprmc.protocol.header import RequestFrame, decode_frame
from uprmc.protocol.management import WithMetaOption, decode_with_meta
from uprmc.protocol.opcodes import Opcode

NOW = 1_700_000_000
DAY_S = 24 * 3600
ACCESS = Access(("node:1",))


def packed(batch: pa.RecordBatch, vbuckets: int = 64, first_row: int = 0, **options: Any) -> Piece:
    return requests.packed(WriteOptions(ACCESS, **options), batch, first_row, vbuckets, NOW)


def frames(piece: Piece) -> list[RequestFrame]:
    found = [decode_frame(each) for each in piece.frames]
    assert all(isinstance(each, RequestFrame) for each in found)
    return found  # type: ignore[return-value]


def codes(piece: Piece) -> list[tuple[int, str]]:
    return [(error.row, error.code) for error in piece.errors]


# --- frames ---------------------------------------------------------------------------------------

ROW = st.tuples(st.binary(min_size=1, max_size=250), st.binary(max_size=40))


@settings(max_examples=80, deadline=None)
@given(st.lists(ROW, max_size=30), st.integers(0, 5), st.sampled_from([1, 2, 64, 1024]))
def test_frames_say_what_the_rows_say(
    rows: list[tuple[bytes, bytes]], cut: int, vbuckets: int
) -> None:
    batch = documents(rows).slice(min(cut, len(rows)))  # offsets of a slice do not begin at 0
    piece = packed(batch, vbuckets)
    for place, ((key, value), frame) in enumerate(zip(rows[cut:], frames(piece), strict=True)):
        assert frame == RequestFrame(
            Opcode.SETQ,
            key=key,
            value=value,
            extras=STORE_EXTRAS.pack(0, 0),
            vbucket=vbucket_of(key, vbuckets),
            opaque=place,
        )
        assert value_in(piece.frames[place]) == value
    assert piece.keys == [key for key, _ in rows[cut:]]
    assert piece.bytes == sum(len(key) + len(value) for key, value in rows[cut:])


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.large_binary(),
        pa.binary(2),
        pa.string_view(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)
def test_keys_and_values_of_every_kind_of_text_and_bytes_are_taken(kind: pa.DataType) -> None:
    texts = pa.array([b"k1", b"k2", b"k3"], pa.binary(2))
    if pa.types.is_dictionary(kind):
        column = pa.array(["k1", "k2", "k3"]).dictionary_encode()
    elif kind == pa.binary(2):
        column = texts
    else:
        column = pa.array(["k1", "k2", "k3"], pa.string()).cast(kind)
    batch = pa.record_batch({"key": column, "value": column}).slice(1)
    assert [(f.key, f.value) for f in frames(packed(batch))] == [(b"k2", b"k2"), (b"k3", b"k3")]


def test_operations_of_a_batch_keep_their_order() -> None:
    rows = documents([(b"a", b"1"), (b"b", None), (b"a", b"3"), (b"c", None)],
                     _op=pa.array(["set", "delete", None, "expire"]))  # fmt: skip
    found = frames(packed(rows))
    assert [f.opcode for f in found] == [Opcode.SETQ, Opcode.DELETEQ, Opcode.SETQ, Opcode.DELETEQ]
    assert [f.key for f in found] == [b"a", b"b", b"a", b"c"]
    assert [f.opaque for f in found] == [0, 1, 2, 3]
    assert found[1].extras == b""


def test_metadata_is_kept_and_large_numbers_are_signed() -> None:
    rows = documents(
        [(b"k", b"v")], _flags=[2**32 - 1], _exp=[5], _rev=[7],
        _cas=pa.array([-2], pa.int64()), _datatype=pa.array([1], pa.int32()),
    )  # fmt: skip
    (frame,) = frames(packed(rows, mode="append-meta"))
    assert frame.opcode == Opcode.SETQ_WITH_META
    assert frame.datatype == 1
    assert decode_with_meta(frame.extras)[:4] == (2**32 - 1, 5, 7, 2**64 - 2)


@pytest.mark.parametrize("kind", [pa.uint64(), pa.decimal128(20, 0)])
def test_metadata_may_be_unsigned_or_decimal(kind: pa.DataType) -> None:
    value: Any = 2**63 + 5
    value = Decimal(value) if pa.types.is_decimal(kind) else value
    rows = documents([(b"k", b"v")], _rev=[1], _cas=pa.array([value], kind))
    (frame,) = frames(packed(rows, mode="append-meta"))
    assert decode_with_meta(frame.extras).cas == 2**63 + 5


def test_an_expiration_is_told_from_a_deletion() -> None:
    rows = versions([(b"a", None, "delete", 1, 1), (b"b", None, "expire", 1, 1)])
    deletion, expiration = frames(packed(rows, mode="append-meta"))
    assert deletion.opcode == expiration.opcode == Opcode.DELQ_WITH_META
    assert decode_with_meta(deletion.extras).options == 0
    assert decode_with_meta(expiration.extras).options == WithMetaOption.IS_EXPIRATION
    forced = frames(packed(rows, mode="append-meta", force=True))
    assert decode_with_meta(forced[1].extras).options == (
        WithMetaOption.IS_EXPIRATION | WithMetaOption.SKIP_CONFLICT_RESOLUTION
    )


@pytest.mark.parametrize(
    ("ttl_s", "sent"),
    [(0, 0), (None, 0), (1, 1), (30 * DAY_S, 30 * DAY_S), (30 * DAY_S + 1, NOW + 30 * DAY_S + 1)],
)
def test_a_long_time_to_live_is_sent_as_unix_time(ttl_s: int | None, sent: int) -> None:
    rows = documents([(b"k", b"v")], ttl=pa.array([ttl_s], pa.int64()))
    (frame,) = frames(packed(rows, ttl_column="ttl"))
    assert STORE_EXTRAS.unpack(frame.extras) == (0, sent)


def test_columns_for_flags_and_expiry_are_found_by_name_and_by_option() -> None:
    rows = documents([(b"k", b"v")], _flags=[1], _exp=[NOW], f=[2], e=[NOW + 1])
    assert STORE_EXTRAS.unpack(frames(packed(rows))[0].extras) == (1, NOW)
    named = packed(rows, flags_column="f", exp_column="e", mode="insert")
    assert STORE_EXTRAS.unpack(frames(named)[0].extras) == (2, NOW + 1)
    assert frames(named)[0].opcode == Opcode.ADDQ


def test_a_batch_is_cut_into_pieces() -> None:
    small = documents([(b"k%d" % n, b"v") for n in range(PIECE_ROWS + 1)])
    assert [each.num_rows for each in pieces(small)] == [PIECE_ROWS, 1]
    large = documents([(b"k%d" % n, bytes(PIECE_BYTES // 2)) for n in range(3)])
    assert [each.num_rows for each in pieces(large)] == [1, 1, 1]
    assert list(pieces(documents({}))) == []
    assert [each.num_rows for each in pieces(small, 6000)] == [6000, 4001]


# --- rows that cannot be written ------------------------------------------------------------------


def test_each_bad_row_is_named_with_its_first_fault() -> None:
    rows = documents(
        [
            (b"ok", b"v"),
            (None, None),
            (b"", b"v"),
            (b"k" * 251, b"v"),
            (b"n", None),
            (b"l", b"xxxx"),
        ]
    )
    piece = packed(rows, first_row=100, value_limit_bytes=3)
    assert codes(piece) == [
        (101, "NO_KEY"), (102, "EMPTY_KEY"), (103, "KEY_TOO_LONG"), (104, "NO_VALUE"),
        (105, "VALUE_TOO_LARGE"),
    ]  # fmt: skip
    assert piece.keys == [b"ok"]
    assert piece.rows.tolist() == [100]
    assert piece.errors[2].key == b"k" * 251


def test_limits_are_taken_to_the_byte() -> None:
    rows = documents([(b"k" * 250, b"xxx"), (b"k" * 251, b"xxx"), (b"k", b"xxxx")])
    assert codes(packed(rows, value_limit_bytes=3)) == [(1, "KEY_TOO_LONG"), (2, "VALUE_TOO_LARGE")]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("_flags", [-1, 2**32]),
        ("_exp", [-1, 2**32]),
        ("_exp", [1, 30 * DAY_S]),
        ("_ttl", [-1, 2**32 - NOW]),
        ("_datatype", [-1, 2]),
    ],
)
def test_numbers_out_of_range_are_error_rows(column: str, values: list[int]) -> None:
    rows = documents([(b"a", b"v"), (b"b", b"v")], **{column: pa.array(values, pa.int64())})
    assert codes(packed(rows)) == [(0, "BAD_NUMBER"), (1, "BAD_NUMBER")]


def test_metadata_that_no_version_has_is_an_error_row() -> None:
    decimals = [Decimal(-1), Decimal(2**64), Decimal(0), Decimal(2**64 - 1), None, Decimal(5)]
    rows = documents(
        [(b"k%d" % n, b"v") for n in range(6)],
        _rev=[1] * 6,
        _cas=pa.array(decimals, pa.decimal128(20, 0)),
    )
    assert [row for row, _ in codes(packed(rows, mode="append-meta"))] == [0, 1, 2, 3, 4]
    small = documents([(b"k", b"v")], _cas=[1], _rev=pa.array([-1], pa.int32()))
    assert codes(packed(small, mode="append-meta")) == [(0, "BAD_NUMBER")]


def test_a_control_row_is_refused() -> None:
    rows = documents([(None, None), (b"k", b"v")], _op=["rollback", "set"])
    piece = packed(rows)
    assert codes(piece) == [(0, "BAD_OPERATION")]
    assert len(piece.frames) == 1


def test_an_insert_that_deletes_is_an_error_row() -> None:
    rows = documents([(b"k", None)], _op=["delete"])
    assert codes(packed(rows, mode="insert")) == [(0, "BAD_OPERATION")]


def test_rows_without_value_may_be_passed_over() -> None:
    rows = documents([(b"a", None), (b"b", b"v"), (b"", None)])
    piece = packed(rows, ignore_null="skip")
    assert (piece.skipped, len(piece.frames), codes(piece)) == (1, 1, [(2, "EMPTY_KEY")])


def test_columns_without_any_value_have_no_type() -> None:
    nothing = pa.record_batch({"key": pa.nulls(2), "value": pa.nulls(2)})
    assert codes(packed(nothing)) == [(0, "NO_KEY"), (1, "NO_KEY")]
    rows = documents([(b"k", b"v")], _flags=pa.nulls(1), _op=pa.nulls(1))
    assert len(packed(rows).frames) == 1


@pytest.mark.parametrize("mode", ["upsert", "insert", "append-meta", "delete"])
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(max_size=260)),
            st.one_of(st.none(), st.binary(max_size=12)),
            st.sampled_from(["set", "delete", "expire", "rollback", "nonsense", None]),
            st.integers(-(2**63), 2**63 - 1),
        ),
        max_size=20,
    ),
    null=st.sampled_from(["fail", "skip"]),
)
def test_every_row_is_sent_or_passed_over_or_an_error(
    rows: list[tuple[Any, Any, Any, int]], null: Any, mode: Any
) -> None:
    numbers = pa.array([number for *_, number in rows], pa.int64())
    batch = documents(
        [(key, value) for key, value, _, _ in rows],
        _op=pa.array([op for _, _, op, _ in rows], pa.string()),
        _rev=numbers, _cas=numbers, _flags=numbers, _exp=numbers, _datatype=numbers,
    )  # fmt: skip
    piece = packed(batch, mode=mode, ignore_null=null, value_limit_bytes=10)
    assert len(piece.frames) + len(piece.errors) + piece.skipped == len(rows)
    told = {error.row for error in piece.errors}
    assert told.isdisjoint(piece.rows.tolist())
    assert np.all(np.diff(piece.rows) > 0)
    for frame in frames(piece):
        assert 1 <= len(frame.key) <= 250
        assert len(frame.value) <= 10


def test_a_user_s_column_that_is_missing_is_one_error() -> None:
    for options in ({"flags_column": "f"}, {"ttl_column": "t"}, {"exp_column": "e"}):
        with pytest.raises(BadSchema, match="there is no column"):
            packed(documents({b"k": b"v"}), **options)
    with pytest.raises(BadSchema, match="_cas"):
        packed(documents({b"k": b"v"}, _rev=[1]), mode="append-meta")


# --- columns --------------------------------------------------------------------------------------
# Columns become one schema, the same for Arrow and for Spark.


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
