"""Digests: the same for the same rows in any order and pieces, another for any other rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.backup import digest as module
from uprmc.backup.digest import (
    FIELDS,
    Digest,
    add_up,
    bytes_hashes,
    check_fields,
    digests,
    row_hashes,
)
from uprmc.columnar.errors import BadOption
from uprmc.core import form

Row = dict[str, object]

ROW: Row = {
    "key": b"key",
    "value": b"value",
    "_op": "set",
    "_vb": 5,
    "_rev": 1,
    "_cas": 77,
    "_flags": 3,
    "_exp": 0,
}
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("_op", pa.string()),
        ("_vb", pa.int32()),
        ("_rev", pa.int64()),
        ("_cas", pa.int64()),
        ("_flags", pa.int64()),
        ("_exp", pa.int64()),
    ]
)

rows_of = st.builds(
    lambda key, value, op, vb, numbers: {
        "key": key,
        "value": value if op == "set" else None,
        "_op": op,
        "_vb": vb,
        **dict(zip(("_rev", "_cas", "_flags", "_exp"), numbers, strict=True)),
    },
    st.binary(min_size=1, max_size=30),
    st.binary(max_size=40),
    st.sampled_from(["set", "set", "delete", "expire"]),
    st.integers(0, 3),
    st.tuples(*[st.integers(0, 2**32 - 1)] * 4),
)


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def hash_of(row: Row, fields: tuple[str, ...] = FIELDS) -> int:
    return int(row_hashes(batch_of([row]), fields)[0])


@given(st.lists(st.binary(max_size=70)))
def test_hashes_of_bytes_depend_on_nothing_but_the_bytes(texts: list[bytes]) -> None:
    together = bytes_hashes(pa.array(texts, pa.binary()))
    alone = [int(bytes_hashes(pa.array([text], pa.binary()))[0]) for text in texts]
    assert together.tolist() == alone
    assert len(set(alone)) == len(set(texts))


@given(st.lists(st.binary(max_size=70)), st.integers(0, 9), st.integers(0, 9))
def test_a_slice_of_a_column_hashes_as_its_rows_do(texts: list[bytes], skip: int, n: int) -> None:
    column = pa.array(texts, pa.binary())
    assert bytes_hashes(column.slice(skip, n)).tolist() == (
        bytes_hashes(column)[skip : skip + n].tolist()
    )


def test_text_binary_and_their_large_forms_hash_alike() -> None:
    texts = ["", "a", "12345678", "ä" * 9]
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    assert len({tuple(bytes_hashes(pa.array(texts, kind)).tolist()) for kind in kinds}) == 1


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [bytes([n % 251]) * (n * 7 % 90) for n in range(300)] + [b"x" * 5_000]
    whole = bytes_hashes(pa.array(texts)).tolist()
    for size in (8, 64, 1_000):
        monkeypatch.setattr(module, "_BLOCK_BYTES", size)
        assert bytes_hashes(pa.array(texts)).tolist() == whole


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"", b"\0"),
        (b"\0" * 8, b"\0" * 16),
        (b"12345678abcdefgh", b"abcdefgh12345678"),
        (b"\x80" + b"\0" * 15, b"\0" * 8 + b"\x80" + b"\0" * 7),
        (b"a" * 1_000_000 + b"b", b"b" + b"a" * 1_000_000),
    ],
)
def test_likely_mistakes_are_seen(one: bytes, other: bytes) -> None:
    a, b = bytes_hashes(pa.array([one, other])).tolist()
    assert a != b


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", b"kex"),
        ("value", b"valuf"),
        ("_rev", 2),
        ("_cas", 78),
        ("_cas", -77),
        ("_flags", 4),
        ("_exp", 9),
        ("_op", "delete"),
    ],
)
def test_every_part_of_a_document_counts(field: str, value: object) -> None:
    assert hash_of(ROW) != hash_of({**ROW, field: value})


def test_numbers_that_change_places_are_seen() -> None:
    assert hash_of({**ROW, "_rev": 7, "_flags": 9}) != hash_of({**ROW, "_rev": 9, "_flags": 7})


def test_where_a_document_is_does_not_count() -> None:
    assert hash_of(ROW) == hash_of({**ROW, "_vb": 6})


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_is_not_asked_for_does_not_count(field: str) -> None:
    name = field if field == "value" else f"_{field}"
    other = {**ROW, name: b"other" if field == "value" else 99}
    rest = tuple(each for each in FIELDS if each != field)
    assert hash_of(ROW, rest) == hash_of(other, rest)


def test_of_a_deletion_only_key_revision_and_cas_count() -> None:
    deletion = {**ROW, "_op": "delete", "value": None}
    same = {**deletion, "_op": "expire", "_exp": 123, "_flags": 9}
    assert hash_of(deletion) == hash_of(same)
    assert hash_of(deletion) != hash_of({**deletion, "_rev": 2})


@given(st.lists(rows_of), st.randoms(), st.integers(0, 20))
def test_a_digest_can_be_taken_in_any_order_and_in_pieces(
    rows: list[Row], random: object, cut: int
) -> None:
    whole = _digests(rows)
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    pieces: dict[int, Digest] = {}
    add_up(pieces, _digests(shuffled[:cut]))
    add_up(pieces, _digests(shuffled[cut:]))
    assert pieces == whole
    assert sum(digest.rows for digest in whole.values()) == len(rows)


def _digests(rows: list[Row]) -> dict[int, Digest]:
    batch = batch_of(rows)
    return digests(batch, row_hashes(batch))


def test_a_row_that_comes_twice_is_seen() -> None:
    once, twice = _digests([ROW])[5], _digests([ROW, ROW])[5]
    thrice = _digests([ROW] * 3)[5]
    assert len({once.total, twice.total, thrice.total}) == 3


@given(st.lists(rows_of, min_size=1))
def test_text_and_back(rows: list[Row]) -> None:
    for digest in _digests(rows).values():
        assert Digest.parse(str(digest)) == digest


@pytest.mark.parametrize("text", ["", "5", "5:", "x:0000000000000000", "5:00000000000000zz"])
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Digest.parse(text)


def test_hashes_are_spread_over_all_bits() -> None:
    hashes = bytes_hashes(pa.array([b"key-%d" % n for n in range(4_096)]))
    bits = np.unpackbits(hashes.view(np.uint8)).reshape(4_096, 64).mean(axis=0)
    assert ((bits > 0.4) & (bits < 0.6)).all()


def test_fields_are_checked_and_ordered() -> None:
    assert check_fields(["cas", "key", " value"]) == ("value", "cas")
    with pytest.raises(BadOption, match="by=colour"):
        check_fields(["rev", "colour"])


def test_dictionary_encoded_operations_are_understood() -> None:
    batch = batch_of([ROW, {**ROW, "_op": "delete"}])
    encoded = batch.set_column(2, "_op", batch.column("_op").dictionary_encode())
    assert row_hashes(encoded).tolist() == row_hashes(batch).tolist()


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.binary(max_size=9))
def test_the_compiled_core_finds_the_same_hashes(strings: list[bytes], before: bytes) -> None:
    if form.FORM != form.COMPILED:
        pytest.skip("the compiled core is not in use: no C compiler, or UPRMC_CORE")
    from uprmc.core.native.columns import hashes

    lengths = np.array([len(each) for each in strings])
    starts = np.cumsum(lengths) - lengths + len(before)
    data = before + b"".join(strings)
    found = hashes(data, starts.tobytes(), lengths.tobytes())
    expected = module.hashes_by_numpy(np.frombuffer(data, np.uint8), starts, lengths)
    assert np.frombuffer(found, np.uint64).tolist() == expected.tolist()
