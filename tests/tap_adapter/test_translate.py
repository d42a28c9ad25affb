"""UPR items become TAP messages: whatever pieces they come in, and however they are wanted."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.tap import BY_NUMBER
from tests.tap_adapter.upr_pieces import (
    CUT_FRAMES,
    DELETION,
    EXPIRATION,
    MUTATION,
    OPAQUE,
    SPLITS,
    TIMED_DELETION,
    VBUCKET,
    Frame,
    expected_message,
    read_messages,
    split,
)
from uprmc.errors import RemoteProtocolError
from uprmc.model import Item
from uprmc.protocol.header import RequestFrame, encode_request
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr import snapshot_marker
from uprmc.record import pack
from uprmc.tap_adapter.translate import TapForm, TapItemsRun, take_frame, translate_run, with_ack
from uprmc.upr.frames import Form, ItemWriter

FORMS = [TapForm(*choice) for choice in product((False, True), repeat=2)]
PLENTY = 1_000_000
MARKER = snapshot_marker(VBUCKET, OPAQUE, 1, 9, 1)


def mutation(seqno: int, *, key: bytes = b"k1", value: bytes = b"v1", **others: int) -> Frame:
    return Frame(MUTATION, key, value, 0x0102030405060708, seqno, 7, 0xDEADBEEF, 0, 2)._replace(
        **others
    )


def run_of(
    pieces: list[bytes], form: TapForm = FORMS[0], most: int = PLENTY, place: int = 0
) -> tuple[TapItemsRun, list[bytes], list[bytes]]:
    out: list[bytes] = []
    keys: list[bytes] = []
    run = translate_run(pieces, place, out, 42, most, form, keys)
    assert run.size == sum(map(len, out))
    assert run.taken == sum(map(len, pieces[place : run.place]))
    assert len(keys) == run.items
    return run, out, keys


# --- the table ----------------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
@pytest.mark.parametrize("way", SPLITS)
def test_the_mutation_of_the_vectors_comes_out_byte_for_byte(way: str) -> None:
    frame = mutation(1)._replace(vbucket=3)
    for form, number in ((TapForm(False, True), "4"), (TapForm(True, True), "6")):
        _, out, _ = run_of(split(frame, way), form)
        head = with_ack(out[0]) if number == "4" else out[0]
        message = head + b"".join(out[1:])
        golden = BY_NUMBER[number].packet
        assert (message[:12], message[16:]) == (golden[:12], golden[16:])


def test_the_old_order_of_flag_bytes_is_the_vectors() -> None:
    frame = mutation(1, expiry=1_700_000_000)._replace(vbucket=3)
    _, out, _ = run_of(split(frame, "head, document"))
    golden = BY_NUMBER["5"].packet
    assert b"".join(out)[16:] == golden[16:]


def test_the_deletion_of_the_vectors_comes_out_byte_for_byte() -> None:
    frame = Frame(DELETION, b"k1", b"", 0, 1, 8, vbucket=3)
    _, out, _ = run_of(split(frame, "head, document"))
    golden = BY_NUMBER["7"].packet
    assert with_ack(out[0])[16:] == golden[16:]


@given(CUT_FRAMES, st.sampled_from(FORMS))
def test_every_item_becomes_what_the_table_says(
    cut: list[tuple[Frame, str]], form: TapForm
) -> None:
    keys_only, as_stored = form
    pieces = [piece for frame, way in cut for piece in split(frame, way)]
    frames = [frame for frame, _ in cut]
    run, out, keys = run_of(pieces, form)
    assert read_messages(b"".join(out)) == [
        expected_message(frame, number, keys_only=keys_only, as_stored=as_stored)
        for number, frame in enumerate(frames, 42)
    ]
    assert keys == [frame.key for frame in frames]
    gone = [frame.rev for frame in frames if frame.opcode != MUTATION]
    assert run.deleted_rev == max(gone, default=0)
    assert (run.items, run.last_seqno, run.place) == (len(cut), frames[-1].seqno, len(pieces))
    assert read_messages(b"".join(out[run.last_head :]))[0].sequence == 42 + run.items - 1


@given(CUT_FRAMES, st.sampled_from(FORMS), st.integers(1, 3))
def test_a_run_in_portions_is_the_same_as_at_once(
    cut: list[tuple[Frame, str]], form: TapForm, most: int
) -> None:
    pieces = [piece for frame, way in cut for piece in split(frame, way)]
    whole: list[bytes] = []
    translate_run(pieces, 0, whole, 42, PLENTY, form, None)
    parts: list[bytes] = []
    done = place = 0
    while place < len(pieces):
        run = translate_run(pieces, place, parts, 42 + done, most, form, None)
        assert 1 <= run.items <= most
        done, place = done + run.items, run.place
    assert done == len(cut)
    assert b"".join(parts) == b"".join(whole)


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_what_our_own_producer_writes_is_read(values: bool, form: TapForm) -> None:
    items = [
        Item(b"key-%d" % n, b"" if n % 3 == 0 else b"v" * n, n, n, n, n, n, life=life)
        for n, life in enumerate((0, 0, 0, 1, 0, 2, 0, 0, 0, 1, 1, 0), 1)
    ]
    for shape in (Form(values=values), Form(values=values, delete_times=True, expirations=True)):
        writer = ItemWriter(VBUCKET, OPAQUE, shape)
        pieces: list[bytes] = []
        writer.write(map(pack, items), pieces, PLENTY, 0)
        run, out, keys = run_of(pieces, form)
        assert run.place == len(pieces)
        assert keys == [item.key for item in items]
        wanted = values and not form.keys_only
        assert [message.value for message in read_messages(b"".join(out))] == [
            (item.value or b"") if wanted and not item.life else b"" for item in items
        ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", SPLITS)
@pytest.mark.parametrize("value", [b"", b"v1"])
def test_extended_metadata_and_datatypes_are_dropped(way: str, form: TapForm, value: bytes) -> None:
    frames = [
        mutation(1, value=value),
        mutation(2, value=value)._replace(metadata=b"meta"),
        mutation(3, value=value, datatype=1),
        mutation(4, value=value, datatype=1)._replace(metadata=b"v1"),
    ]
    _, out, _ = run_of([piece for frame in frames for piece in split(frame, way)], form)
    keys_only, as_stored = form
    assert read_messages(b"".join(out)) == [
        expected_message(frame, number, keys_only=keys_only, as_stored=as_stored)
        for number, frame in enumerate(frames, 42)
    ]


@pytest.mark.parametrize("cut", range(5))
def test_a_document_may_be_cut_anywhere(cut: int) -> None:
    head, key, value = mutation(1).parts()
    document = key + value
    _, out, keys = run_of([head, document[:cut], document[cut:], MARKER])
    assert keys == [key]
    assert read_messages(b"".join(out))[0].value == value


@pytest.mark.parametrize("opcode", [DELETION, TIMED_DELETION, EXPIRATION])
def test_all_three_forms_of_a_deletion_become_the_same(opcode: int) -> None:
    frame = Frame(opcode, b"k", b"", 5, 6, 7)
    _, out, _ = run_of(split(frame, "whole"))
    assert read_messages(b"".join(out)) == [
        expected_message(frame, 42, keys_only=False, as_stored=False)
    ]


def test_a_deletion_loses_the_value_that_it_may_have_elsewhere() -> None:
    """Some producers of today keep extended attributes of what is gone."""
    _, out, _ = run_of(split(Frame(DELETION, b"k", b"attributes", 5, 6, 7), "whole"))
    assert read_messages(b"".join(out))[0].value == b""


def test_the_document_is_passed_on_without_a_copy() -> None:
    pieces = split(mutation(1), "head, document") + split(mutation(2), "head, key, value")
    _, out, _ = run_of(pieces)
    assert [out[place] is pieces[place] for place in range(5)] == [
        False,
        True,
        False,
        True,
        True,
    ]


# --- where a run ends ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", SPLITS)
@pytest.mark.parametrize(
    "other",
    [
        MARKER,
        encode_request(Opcode.UPR_STREAM_END, extras=bytes(4), vbucket=VBUCKET, opaque=OPAQUE),
        encode_request(Opcode.UPR_NOOP),
        b"".join(split(mutation(3, vbucket=VBUCKET + 1), "whole")),
        b"".join(split(mutation(3, opaque=OPAQUE + 1), "whole")),
    ],
    ids=["marker", "end", "noop", "other vBucket", "other stream"],
)
def test_a_run_stops_before_any_other_frame(other: bytes, way: str) -> None:
    pieces = [*split(mutation(1), way), *split(mutation(2), way)]
    for tail in ([other], [other[:55], other[55:]] if len(other) > 55 else [other]):
        run, _, _ = run_of(pieces + tail + split(mutation(4), way))
        assert (run.items, run.place, run.last_seqno) == (2, len(pieces), 2)


@pytest.mark.parametrize("way", SPLITS)
def test_an_item_of_another_stream_ends_a_run_in_any_pieces(way: str) -> None:
    for changes in ({"vbucket": VBUCKET + 1}, {"opaque": OPAQUE + 1}):
        other = mutation(2, **changes)
        run, _, _ = run_of(split(mutation(1), way) + split(other, way))
        assert run.items == 1
        gone = Frame(DELETION, b"k", b"", 1, 2, 3)._replace(**changes)
        run, _, _ = run_of(split(mutation(1), way) + split(gone, way))
        assert run.items == 1


def test_nothing_comes_of_no_item() -> None:
    assert run_of([MARKER])[0] == TapItemsRun(0, 0, 0, 0, -1, 0, 0)
    assert run_of([])[0] == TapItemsRun(0, 0, 0, 0, -1, 0, 0)
    assert run_of([b"", b""])[0] == TapItemsRun(0, 0, 0, 2, -1, 0, 0)
    assert run_of(split(mutation(1), "whole"), most=0)[0] == TapItemsRun(0, 0, 0, 0, -1, 0, 0)


@pytest.mark.parametrize("way", SPLITS)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_run_has_no_more_messages_than_it_may(way: str, most: int) -> None:
    pieces = [piece for seqno in (1, 2, 3) for piece in split(mutation(seqno), way)]
    run, _, _ = run_of(pieces, most=most)
    assert (run.items, run.last_seqno) == (most, most)


@pytest.mark.parametrize("way", SPLITS)
@pytest.mark.parametrize("count", [170, 171, 172, 255, 256, 257, 400])
def test_a_run_may_be_longer_than_what_is_looked_at_in_one_go(way: str, count: int) -> None:
    pieces = [piece for seqno in range(count) for piece in split(mutation(seqno), way)]
    run, out, _ = run_of(pieces)
    assert (run.items, run.place) == (count, len(pieces))
    sequences = [message.sequence for message in read_messages(b"".join(out))]
    assert sequences == list(range(42, 42 + count))


def test_an_empty_value_may_be_a_piece_of_its_own() -> None:
    frames = [mutation(seqno, value=b"") for seqno in (1, 2, 3)]
    for form in (TapForm(), TapForm(keys_only=True)):
        pieces = [piece for frame in frames for piece in split(frame, "head, key, value")]
        run, out, _ = run_of([*pieces, b"", MARKER], form)
        assert run.items == 3
        assert run.place == 10
        assert [message.value for message in read_messages(b"".join(out))] == [b""] * 3


def test_a_run_begins_where_it_is_told() -> None:
    pieces = [MARKER, *split(mutation(1), "head, document"), *split(mutation(2), "whole")]
    run, out, _ = run_of(pieces, place=1)
    assert (run.items, run.place) == (2, 4)
    assert len(read_messages(b"".join(out))) == 2


def test_what_was_in_out_stays_there_and_counts_in_the_last_head() -> None:
    out = [b"before"]
    for way, added in (("head, document", 2), ("head, key, value", 3), ("whole", 1)):
        begin = len(out)
        run = translate_run(split(mutation(1), way), 0, out, 1, PLENTY, TapForm(), None)
        assert (run.last_head, len(out)) == (begin, begin + added)
    assert out[0] == b"before"


# --- bad frames ---------------------------------------------------------------------------------


def _bad_frames() -> dict[str, list[bytes]]:
    head, key, value = mutation(1).parts()
    long_key = head[:2] + b"\0\xff" + head[4:]
    deletion = b"".join(Frame(DELETION, b"k", b"", 1, 2, 3).parts())
    return {
        "a header cut short": [head[:23]],
        "extras cut short": [head[:54]],
        "no document": [head],
        "a document cut short": [head, key + value[:-1]],
        "a document too long": [head, key + value + b"!"],
        "no value": [head, key],
        "a value too long": [head, key, value + b"!"],
        "a key longer than the body": [long_key, key + value],
        "more metadata than value": [
            b"".join(mutation(1).parts())[:52] + b"\0\3" + head[54:] + key + value
        ],
        "a mutation with a deletion's extras": [deletion[:1] + b"\x57" + deletion[2:]],
        "a deletion with a mutation's extras": [head[:1] + b"\x58" + head[2:] + key + value],
        "an answer": [b"\x81" + head[1:], key + value],
    }


@pytest.mark.parametrize("pieces", _bad_frames().values(), ids=_bad_frames())
def test_a_bad_frame_is_refused_after_what_came_before_it(pieces: list[bytes]) -> None:
    out: list[bytes] = []
    with pytest.raises(RemoteProtocolError):
        translate_run(
            split(mutation(9), "head, document") + pieces, 0, out, 1, PLENTY, TapForm(), None
        )
    assert len(read_messages(b"".join(out))) == 1
    with pytest.raises(RemoteProtocolError):
        translate_run(pieces, 0, [], 1, PLENTY, TapForm(), None)


@given(CUT_FRAMES, st.data())
def test_pieces_that_are_changed_are_refused_or_read_and_nothing_else(
    cut: list[tuple[Frame, str]], data: st.DataObject
) -> None:
    pieces = [piece for frame, way in cut for piece in split(frame, way)]
    place = data.draw(st.integers(0, len(pieces) - 1))
    if pieces[place]:
        offset = data.draw(st.integers(0, len(pieces[place]) - 1))
        byte = data.draw(st.binary(max_size=1))
        pieces[place] = pieces[place][:offset] + byte + pieces[place][offset + 1 :]
    out: list[bytes] = []
    with suppress(RemoteProtocolError):
        translate_run(pieces, 0, out, 1, PLENTY, TapForm(), None)
    read_messages(b"".join(out))


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_any_pieces_raise_nothing_but_our_own_error(pieces: list[bytes]) -> None:
    with suppress(RemoteProtocolError):
        translate_run(pieces, 0, [], 1, PLENTY, TapForm(), None)
    with suppress(RemoteProtocolError):
        take_frame(pieces, 0)


# --- other frames -------------------------------------------------------------------------------


@given(CUT_FRAMES)
def test_any_frame_is_taken_apart(cut: list[tuple[Frame, str]]) -> None:
    pieces = [piece for frame, way in cut for piece in split(frame, way)]
    place = 0
    for frame, _ in cut:
        request, place = take_frame(pieces, place)
        assert request == RequestFrame(
            frame.opcode & 0xFF,
            frame.key,
            frame.extras(),
            frame.value + frame.metadata,
            frame.vbucket,
            frame.opaque,
            frame.cas,
            frame.datatype,
        )
    assert place == len(pieces)


def test_a_marker_is_taken_apart() -> None:
    request, place = take_frame([b"", MARKER, b""], 0)
    assert (request.opcode, request.vbucket, request.opaque) == (0x56, VBUCKET, OPAQUE)
    assert (len(request.extras), place) == (20, 3)


@pytest.mark.parametrize("end", [0, 1, 23, 24, 43])
def test_a_frame_that_is_not_whole_is_refused(end: int) -> None:
    with pytest.raises(RemoteProtocolError):
        take_frame([MARKER[:end]], 0)
