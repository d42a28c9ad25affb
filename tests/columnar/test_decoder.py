"""Bytes of a stream become the rows that an independent decoder sees, however they are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from construct import Struct as Layout
from hypothesis import given
from hypothesis import strategies as st

from tests.columnar.read_peer import UUID, accepted, deletion, marker, mutation, stream_end
from uprmc.client.decoder import Decoder as Reference
from uprmc.columnar import decoder as decoding
from uprmc.columnar import records
from uprmc.columnar.decoder import READ_BYTES, Block, ColumnDecoder, Noop
from uprmc.columnar.errors import KeyNotText
from uprmc.columnar.read_state import Range, ReadState, StreamEnd
from uprmc.columnar.records import MUTATION
from uprmc.columnar.schema import DEFAULT, OPTIONAL, Columns
from uprmc.core import form
from uprmc.model import FailoverEntry, SnapshotRange
from uprmc.protocol.binary import STORE_EXTRAS, StoreExtras
from uprmc.protocol.header import REQUEST_HEADER, encode_request
from uprmc.protocol.management import (
    WITH_META_EXTRAS,
    WITH_META_OPTIONS_EXTRAS,
    WithMetaExtras,
    WithMetaOptionsExtras,
)
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr import (
    DELETION_EXTRAS,
    EXPIRATION_EXTRAS,
    MUTATION_EXTRAS,
    STREAM_REQUEST_EXTRAS,
    MutationExtras,
    versioned_marker,
)
from uprmc.remote.batch import Batch
from uprmc.remote.errors import NodeNonsense
from uprmc.remote.stream import StreamState as ReferenceState

ALL = Columns(DEFAULT + OPTIONAL, key_type="binary", u64="decimal")


def decoder(columns: Columns = ALL, *states: ReadState, **more: Any) -> ColumnDecoder:
    found = ColumnDecoder("node:1", columns, **{"rows": 1000, "size_bytes": 1 << 20} | more)
    found.states.update(dict(enumerate(states, 1)))
    return found


def feed(found: ColumnDecoder, data: bytes, cuts: Iterable[int] = ()) -> list[Any]:
    notices = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        while at < cut:
            room = found.room()
            count = min(len(room), cut - at)
            room[:count] = data[at : at + count]
            notices += found.received(count)
            at += count
    return notices


def taken(data: bytes, columns: Columns = ALL, *states: ReadState, **more: Any) -> Block:
    found = decoder(columns, *(states or (ReadState(Range(5)),)), **more)
    feed(found, data)
    return found.take()


def opened(*frames: bytes, high: int = 100) -> bytes:
    """A stream of vBucket 5, opaque 1, up to 100."""
    return b"".join((accepted(1), marker(5, 1, 0, high), *frames))


# --- rows -----------------------------------------------------------------------------------------


def test_a_mutation_has_every_column() -> None:
    frame = mutation(5, 1, 7, b"key", b"value\x01\x02", rev=2**64 - 1, flags=2**32 - 1,
                     expiration=2**32 - 2, cas=2**63, nmeta=2, datatype=1)  # fmt: skip
    (row,) = taken(opened(frame)).batch.to_pylist()
    assert row == {
        "key": b"key",
        "value": b"value",
        "_op": "set",
        "_vb": 5,
        "_seq": 7,
        "_rev": 2**64 - 1,
        "_cas": 2**63,
        "_flags": 2**32 - 1,
        "_exp": 2**32 - 2,
        "_lock": 0,
        "_vbuuid": f"{UUID:016x}",
        "_datatype": 1,
        "_snap_start": 0,
        "_snap_end": 100,
        "_backfill": True,
        "_meta": b"\x01\x02",
        "_time": datetime(2262, 4, 11, 23, 47, 16, 854775, tzinfo=UTC),
    }


def test_numbers_without_sign_have_the_same_bits_where_they_are_signed() -> None:
    frame = mutation(5, 1, 7, b"key", rev=2**64 - 1, cas=2**63 + 5)
    (row,) = taken(opened(frame), Columns(("_rev", "_cas"))).batch.to_pylist()
    assert row == {"_rev": -1, "_cas": 5 - 2**63}


@pytest.mark.parametrize(
    ("opcode", "extras", "op", "made_at"),
    [
        (Opcode.UPR_DELETION, DELETION_EXTRAS.pack(7, 3, 0), "delete", 0),
        (Opcode.UPR_DELETION, EXPIRATION_EXTRAS.pack(7, 3, 1234) + b"\0", "delete", 1234),
        (Opcode.UPR_EXPIRATION, EXPIRATION_EXTRAS.pack(7, 3, 1234), "expire", 1234),
        (Opcode.UPR_EXPIRATION, DELETION_EXTRAS.pack(7, 3, 0), "expire", 0),
    ],
)
def test_what_is_gone_has_no_value_and_tells_when(
    opcode: Opcode, extras: bytes, op: str, made_at: int
) -> None:
    frame = encode_request(opcode, key=b"k", extras=extras, vbucket=5, opaque=1, cas=9)
    (row,) = taken(opened(frame)).batch.to_pylist()
    assert (row["key"], row["value"], row["_op"], row["_meta"]) == (b"k", None, op, None)
    assert (row["_seq"], row["_rev"], row["_cas"]) == (7, 3, 9)
    assert (row["_exp"], row["_flags"], row["_lock"]) == (made_at, 0, 0)


def test_an_empty_value_is_not_a_missing_one() -> None:
    frames = (mutation(5, 1, 1, b"a", b""), deletion(5, 1, 2, b"b"))
    assert taken(opened(*frames)).batch["value"].to_pylist() == [b"", None]


def test_without_values_they_are_null() -> None:
    batch = taken(opened(mutation(5, 1, 1, b"a", b"")), Columns(), no_value=True).batch
    assert batch["value"].to_pylist() == [None]


def test_a_row_belongs_to_the_history_in_which_it_was_made() -> None:
    log = [FailoverEntry(3, 20), FailoverEntry(2, 10), FailoverEntry(1, 0)]
    seqnos = [1, 10, 11, 20, 21]
    frames = [mutation(5, 1, seqno, b"k%d" % seqno) for seqno in seqnos]
    data = b"".join((accepted(1, log), marker(5, 1, 0, 100), *frames))
    uuids = taken(data).batch["_vbuuid"].to_pylist()
    assert [int(uuid, 16) for uuid in uuids] == [1, 1, 2, 2, 3]


def test_a_marker_of_today_tells_the_purge_seqno() -> None:
    state = ReadState(Range(5))
    data = accepted(1) + versioned_marker(5, 1, 0, 9, 2, 4) + mutation(5, 1, 9, b"k")
    assert taken(data, ALL, state).batch.num_rows == 1
    assert state.purge_seqno == 4


def test_a_snapshot_that_was_only_announced_contains_the_place_that_is_asked_for_again() -> None:
    state = ReadState(Range(5, start=10, uuid=1))
    assert taken(accepted(1) + marker(5, 1, 11, 20), ALL, state).batch.num_rows == 0
    state.open()
    _, _, start, _, _, snap_start, snap_end = STREAM_REQUEST_EXTRAS.unpack(state.request())
    assert (start, snap_start, snap_end) == (10, 10, 20)


def test_rows_above_the_limit_are_left_out_and_not_counted() -> None:
    state = ReadState(Range(5, end=2))
    frames = [mutation(5, 1, seqno, b"k%d" % seqno, b"12") for seqno in (1, 2, 3, 4)]
    assert taken(opened(*frames), ALL, state).batch["_seq"].to_pylist() == [1, 2]
    assert (state.rows, state.bytes, state.seqno, state.enough) == (2, 8, 4, True)
    assert state.end == 100  # where the lease ends, though nobody has told us of it


def test_a_stream_that_is_closed_is_not_looked_at_any_more() -> None:
    state = ReadState(Range(5))
    found = decoder(ALL, state)
    feed(found, opened(mutation(5, 1, 1, b"a")))
    assert found.take().batch.num_rows == 1
    state.stream.dropped = True
    feed(found, mutation(5, 1, 2, b"b"))
    assert found.take().batch.num_rows == 0
    assert state.rows == 1


def test_rows_are_counted_for_their_own_stream() -> None:
    states = ReadState(Range(5)), ReadState(Range(6))
    data = opened(mutation(5, 1, 1, b"a", b"123"), deletion(5, 1, 2, b"bb"))
    data += accepted(2) + marker(6, 2, 0, 1) + mutation(6, 2, 1, b"c", b"") + stream_end(6, 2)
    block = taken(data, ALL, *states)
    assert [(each.rows, each.deletes, each.bytes) for each in states] == [(2, 1, 6), (1, 0, 1)]
    assert (block.states, block.ended) == ([*states], [states[1]])
    assert [each.ended for each in states] == [False, True]


def test_the_end_of_a_stream_is_noticed_at_once() -> None:
    state = ReadState(Range(5))
    found = decoder(ALL, state)
    assert feed(found, opened(high=1) + mutation(5, 1, 1, b"a") + stream_end(5, 1))[1:] == [
        StreamEnd(state, 0)
    ]


def test_a_noop_is_noticed_and_flow_control_does_not_count_it() -> None:
    found = decoder(ALL, ReadState(Range(5)))
    assert feed(found, encode_request(Opcode.UPR_NOOP, opaque=9)) == [Noop(Opcode.UPR_NOOP, 9)]
    assert found.counted_bytes == 0


def test_flow_control_counts_frames_of_streams_and_no_answers() -> None:
    found = decoder(ALL, ReadState(Range(5)))
    item = mutation(5, 1, 1, b"a")
    feed(found, opened(item) + item[:30])
    assert found.counted_bytes == len(opened(item)) - len(accepted(1))


def test_a_batch_shares_no_memory_with_what_is_received_next() -> None:
    found = decoder(ALL, ReadState(Range(5)))
    feed(found, opened(mutation(5, 1, 1, b"first", b"AAAA")))
    batch = found.take().batch
    feed(found, opened(mutation(5, 1, 2, b"other", b"BBBB"))[len(opened()) :])
    found.take()
    assert (batch["key"][0].as_py(), batch["value"][0].as_py()) == (b"first", b"AAAA")


@pytest.mark.parametrize("size", [READ_BYTES - 100, READ_BYTES, 3 * READ_BYTES + 17])
def test_a_document_may_be_larger_than_the_buffer(size: int) -> None:
    value = bytes(range(256)) * (size // 256 + 1)
    frames = (mutation(5, 1, 1, b"a", value), mutation(5, 1, 2, b"b", b"small"))
    found = decoder(ALL, ReadState(Range(5)), size_bytes=1000)
    feed(found, opened(*frames))
    assert found.full
    assert found.take().batch["value"].to_pylist() == [value, b"small"]
    feed(found, mutation(5, 1, 3, b"c"))
    assert found.take().batch["key"].to_pylist() == [b"c"]


def test_a_block_is_full_at_so_many_rows_and_not_before() -> None:
    found = decoder(ALL, ReadState(Range(5)), rows=2)
    feed(found, opened(mutation(5, 1, 1, b"a")))
    assert not found.full
    feed(found, mutation(5, 1, 2, b"b"))
    assert found.full


# --- keys that are no text ------------------------------------------------------------------------

_KEYS = (mutation(5, 1, 1, b"gr\xc3\xbcn"), mutation(5, 1, 2, b"\xff\x00"), mutation(5, 1, 3, b"c"))


def test_a_key_that_is_no_text_is_an_error_that_names_it() -> None:
    with pytest.raises(KeyNotText, match="vb=5 seq=2 key=ff00 is no UTF-8: use keyType=binary"):
        taken(opened(*_KEYS), Columns())


def test_a_key_that_is_no_text_can_be_spelled_out() -> None:
    columns = Columns(("key",), mode="PERMISSIVE")
    assert taken(opened(*_KEYS), columns).batch["key"].to_pylist() == ["grün", "\\xff\x00", "c"]


def test_a_row_whose_key_is_no_text_can_be_dropped_and_is_not_counted() -> None:
    state = ReadState(Range(5))
    columns = Columns(("key", "_seq"), mode="DROPMALFORMED")
    batch = taken(opened(*_KEYS), columns, state).batch
    assert batch.to_pylist() == [{"key": "grün", "_seq": 1}, {"key": "c", "_seq": 3}]
    assert (state.rows, state.seqno) == (2, 3)


def test_a_key_that_nobody_wants_may_be_anything() -> None:
    assert taken(opened(*_KEYS), Columns(("_seq",))).batch["_seq"].to_pylist() == [1, 2, 3]


# --- what no node may send ------------------------------------------------------------------------


def _torn(change: Callable[[bytearray], None]) -> bytes:
    frame = bytearray(mutation(5, 1, 1, b"key", b"value"))
    change(frame)
    return bytes(frame)


def _extras(frame: bytearray) -> None:
    frame[4] = 30


def _key(frame: bytearray) -> None:
    frame[2:4] = (9).to_bytes(2, "big")


def _no_key(frame: bytearray) -> None:
    frame[2:4] = bytes(2)


def _meta(frame: bytearray) -> None:
    frame[24 + 28 : 24 + 30] = (6).to_bytes(2, "big")


def _vbucket(frame: bytearray) -> None:
    frame[6:8] = (6).to_bytes(2, "big")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nServer: x", "no frame .magic 0x48"),
        (opened() + b"\x82" + bytes(60), "no frame .magic 0x82"),
        (opened() + b"\x80\x57" + bytes(6) + b"\xff" * 4 + bytes(40), "body of 4294967295 bytes"),
        (opened(_torn(_extras)), "a torn item of vb=5"),
        (opened(_torn(_key)), "a torn item of vb=5"),
        (opened(_torn(_no_key)), "a torn item of vb=5"),
        (opened(_torn(_meta)), "a torn item of vb=5"),
        (opened(_torn(_vbucket)), "vb=6 in a stream of vb=5"),
        (opened(mutation(5, 1, 1, b"a"), mutation(6, 1, 2, b"b")), "vb=6 in a stream of vb=5"),
        (opened(mutation(5, 1, 2, b"a"), mutation(5, 1, 2, b"b")), "seqno 2 after 2"),
        (opened(mutation(5, 1, 2, b"a"), mutation(5, 1, 1, b"b")), "seqno 1 after 2"),
        (opened(mutation(5, 1, 101, b"a")), "seqno 101 outside of its snapshot"),
        (opened(mutation(5, 2, 1, b"a")), "a stream of vb=5 that was never requested"),
        (accepted(1) + mutation(5, 1, 1, b"a"), "seqno 1 before any snapshot"),
        (marker(5, 1, 0, 9), "a snapshot of a stream that was not accepted"),
        (accepted(1) + marker(5, 1, 2, 9), "a snapshot 2..9 leaves a hole behind seqno 0"),
        (accepted(1) + marker(5, 1, 0, 2**63), "a snapshot to 9223372036854775808 of a lease"),
        (opened(mutation(5, 1, 9, b"a"), marker(5, 1, 0, 9)), "a snapshot 0..9 behind seqno 9"),
        (opened(mutation(5, 1, 9, b"a"), stream_end(5, 1)), "at seqno 9 that goes to 100"),
        (stream_end(5, 1), "the end of a stream"),
        (opened(stream_end(6, 1)), "vb=6 in a stream of vb=5"),
        (opened(encode_request(Opcode.UPR_STREAM_END, vbucket=5, opaque=1)), "a torn end"),
        (opened(encode_request(Opcode.UPR_FLUSH, vbucket=5, opaque=1)), "UPR_FLUSH"),
        (accepted(1, []), "a failover log of 0 bytes"),
        (accepted(1, [FailoverEntry(1, 5), FailoverEntry(2, 9)]), "not newest first"),
        (accepted(1) + marker(5, 1, 0, 9)[:-1] + b"", ""),
    ],
)
def test_what_no_node_may_send_is_one_clear_line(data: bytes, words: str) -> None:
    found = decoder(ALL, ReadState(Range(5)))
    if not words:  # a frame that is cut is no error: the rest may come
        feed(found, data)
        assert found.take().batch.num_rows == 0
        return
    with pytest.raises(NodeNonsense, match=words) as caught:  # noqa: PT012 - either may raise
        feed(found, data)
        found.take()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("node:1 sent ")


def test_an_item_may_not_come_again_in_the_next_block() -> None:
    found = decoder(ALL, ReadState(Range(5)))
    feed(found, opened(mutation(5, 1, 2, b"a")))
    found.take()
    feed(found, mutation(5, 1, 2, b"a"))
    with pytest.raises(NodeNonsense, match="seqno 2 after 2"):
        found.take()


def test_a_snapshot_may_not_go_beyond_the_lease() -> None:
    state = ReadState(Range(5))
    state.held_high = 50
    with pytest.raises(NodeNonsense, match="a snapshot to 51 of a lease to 50"):
        taken(accepted(1) + marker(5, 1, 0, 51), ALL, state)


def test_a_stream_that_ends_below_the_lease_is_a_gap() -> None:
    state = ReadState(Range(5))
    state.held_high = 50
    data = accepted(1) + marker(5, 1, 0, 40) + mutation(5, 1, 40, b"a") + stream_end(5, 1)
    with pytest.raises(NodeNonsense, match="at seqno 40 that goes to 50"):
        taken(data, ALL, state)


def test_the_rest_of_a_snapshot_is_announced_with_its_old_start() -> None:
    state = ReadState(Range(5, start=20, uuid=UUID, snap_start=10, snap_end=30))
    data = accepted(1) + marker(5, 1, 10, 40) + mutation(5, 1, 21, b"a")
    assert taken(data, ALL, state).batch.num_rows == 1
    late = ReadState(Range(5, start=20, uuid=UUID, snap_start=10, snap_end=30))
    with pytest.raises(NodeNonsense, match=r"cut short at 20 by 21\.\.40"):
        taken(accepted(1) + marker(5, 1, 21, 40), ALL, late)


# --- properties -----------------------------------------------------------------------------------

_KEY = st.binary(min_size=1, max_size=40)
_NUMBERS = st.fixed_dictionaries(
    {
        "rev": st.integers(0, 2**64 - 1),
        "flags": st.integers(0, 2**32 - 1),
        "expiration": st.integers(0, 2**32 - 1),
        "cas": st.integers(0, 2**64 - 1),
        "datatype": st.integers(0, 1),
    }
)
_ITEM = st.tuples(st.integers(1, 3), _KEY, st.none() | st.binary(max_size=300), _NUMBERS)


def _stream(items: list[tuple[int, bytes, bytes | None, dict[str, int]]]) -> bytes:
    """Items of three streams, mixed; opaque and vBucket are the same number."""
    frames = [b"".join((accepted(vb), marker(vb, vb, 0, 1000))) for vb in (1, 2, 3)]
    for seqno, (vbucket, key, value, numbers) in enumerate(items, 1):
        if value is None:
            frames.append(deletion(vbucket, vbucket, seqno, key))
        else:
            frames.append(mutation(vbucket, vbucket, seqno, key, value, **numbers))
    return b"".join(frames)


def _expected(data: bytes) -> list[tuple[Any, ...]]:
    reference = Reference("node:1")
    for vbucket in (1, 2, 3):
        reference.questions.new_opaque()
        state = ReferenceState(vbucket, vbucket, 0, SnapshotRange(0, 0))
        reference.streams[vbucket] = state
    changes = [c for event in reference.feed(data) if type(event) is Batch for c in event]
    return [
        (c.vbucket, c.seqno, c.key, c.value, c.rev, c.cas, c.flags or 0,
         c.deleted_at or 0 if c.value is None else c.expiry, f"{c.vb_uuid:016x}")
        for c in changes
    ]  # fmt: skip


_COMPARED = ("_vb", "_seq", "key", "value", "_rev", "_cas", "_flags", "_exp", "_vbuuid")


@given(st.lists(_ITEM, max_size=60), st.lists(st.integers(0, 20_000), max_size=12))
def test_rows_are_those_of_the_consumers_library_however_the_bytes_are_cut(
    items: list[tuple[int, bytes, bytes | None, dict[str, int]]], cuts: list[int]
) -> None:
    data = _stream(items)
    columns = Columns(_COMPARED, key_type="binary", u64="decimal")
    found = decoder(columns, ReadState(Range(1)), ReadState(Range(2)), ReadState(Range(3)), rows=20)
    batches, at = [], 0
    for cut in [*sorted(each for each in cuts if each < len(data)), len(data)]:
        feed(found, data[at:cut])
        at = cut
        if found.full:
            batches.append(found.take().batch)
    batches.append(found.take().batch)
    table = pa.Table.from_batches(batches, columns.schema)
    rows = list(zip(*(table[name].to_pylist() for name in _COMPARED), strict=True))
    assert rows == _expected(data)


@given(st.binary(max_size=200))
def test_garbage_is_nonsense_or_not_yet_a_frame(data: bytes) -> None:
    found = decoder(ALL, ReadState(Range(5)))
    try:
        feed(found, opened() + data)
        block = found.take()
    except NodeNonsense:
        return
    assert block.batch.num_rows in (0, 1)


@given(st.integers(0, 5_000), st.integers(0, 255))
def test_a_changed_byte_never_raises_anything_but_protocol_error(place: int, byte: int) -> None:
    items = [(1, b"key%d" % n, b"v" * n, {"cas": n}) for n in range(20)]
    data = bytearray(_stream(items))  # type: ignore[arg-type]
    data[place % len(data)] = byte
    found = decoder(ALL, ReadState(Range(1)), ReadState(Range(2)), ReadState(Range(3)))
    try:
        feed(found, bytes(data))
        found.take()
    except NodeNonsense:
        pass


# --- scanning -------------------------------------------------------------------------------------
# Finding frames: the same in both forms, wherever the bytes end.


frames = st.builds(
    lambda magic, opcode, body: (
        REQUEST_HEADER.pack(magic, opcode, 1, 2, 3, 4, len(body), 5, 6) + body
    ),
    st.sampled_from([0x80, 0x81, 0x00]),
    st.integers(0x55, 0x5C),
    st.binary(max_size=40),
)


@given(st.lists(frames, max_size=9), st.integers(0, 80))
def test_items_and_others_are_found_up_to_the_frame_that_is_not_complete(
    sent: list[bytes], missing: int
) -> None:
    data = b"".join(sent)
    data = data[: max(len(data) - missing, 0)]
    found = decoding.scan(memoryview(data))
    at, places, others = 0, [], []
    for frame in sent:
        end = at + len(frame)
        if end > len(data):
            break
        if frame[0] == 0x80 and 0x57 <= frame[1] <= 0x59:
            places.append(at)
        else:
            others.append((len(places), at, end))
        at = end
    assert (found.positions.tolist(), found.others, found.end) == (places, others, at)
    width = MUTATION.itemsize
    padded = data + bytes(width)
    assert found.records == b"".join(padded[place : place + width] for place in places)


@given(st.lists(frames, max_size=9), st.binary(max_size=60))
def test_both_forms_find_the_same(sent: list[bytes], rest: bytes) -> None:
    if form.FORM != form.COMPILED:
        pytest.skip("the compiled core is not in use: no C compiler, or UPRMC_CORE")
    from uprmc.core.native.columns import scan

    data = b"".join(sent) + rest
    padded = data + bytes(MUTATION.itemsize)
    assert scan(padded, len(data)) == decoding.interpreted(padded, len(data))


# --- records --------------------------------------------------------------------------------------
# Records for numpy hold the fields of the declared layouts, byte for byte.


CASES: list[tuple[Any, Layout, Any]] = [
    (records.BARE, Layout(), None),
    (records.MUTATION, MutationExtras, MUTATION_EXTRAS),
    (records.STORE, StoreExtras, STORE_EXTRAS),
    (records.WITH_META, WithMetaExtras, WITH_META_EXTRAS),
    (records.WITH_META_OPTIONS, WithMetaOptionsExtras, WITH_META_OPTIONS_EXTRAS),
]


@pytest.mark.parametrize(("record", "layout", "extras"), CASES)
def test_a_record_reads_what_the_structs_of_header_and_extras_read(
    record: Any, layout: Layout, extras: Any
) -> None:
    sample = bytes(range(1, record.itemsize + 1))
    values = [int(value) for value in np.frombuffer(sample, record)[0]]
    assert record.itemsize == REQUEST_HEADER.size + (extras.size if extras else 0)
    assert values[:9] == list(REQUEST_HEADER.unpack_from(sample))
    assert values[9:] == (list(extras.unpack_from(sample, REQUEST_HEADER.size)) if extras else [])
    names = list(record.names)[9:]
    told = [f"document_{each.name}" if each.name == "cas" else each.name for each in layout.subcons]
    assert names == told
