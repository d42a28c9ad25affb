"""Frames to changes: the same for every way of cutting the bytes, whatever stands beside them."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upr import peer
from tests.upr.peer import frame, marker, mutation
from uprmc.client.decoder import Decoder, Event
from uprmc.client.handler import Change
from uprmc.model import FailoverEntry, SnapshotRange
from uprmc.remote.batch import Batch
from uprmc.remote.stream import StreamState


def _decoder(*vbuckets: int, **options: Any) -> Decoder:
    """A decoder with an accepted stream for each vBucket; opaques are numbers from 1."""
    decoder = Decoder("node:1", **options)
    for vbucket in vbuckets:
        stream = StreamState(vbucket, decoder.questions.new_opaque(), 0, SnapshotRange(0, 0))
        stream.accept((FailoverEntry(8, 100), FailoverEntry(7, 0)))
        decoder.streams[stream.opaque] = stream
    return decoder


def _batches(events: list[Event]) -> list[Batch]:
    return [event for event in events if type(event) is Batch]


def _changes(events: list[Event]) -> list[Change]:
    return [change for batch in _batches(events) for change in batch]


def _deletion(vbucket: int, opaque: int, seqno: int, key: bytes, extras: bytes, op: int) -> bytes:
    head = struct.pack(">QQ", seqno, 3)
    return frame(op, key=key, extras=head + extras, vbucket=vbucket, opaque=opaque, cas=9)


_STREAMS = b"".join(
    [
        marker(3, 1, 0, 5),
        mutation(3, 1, 1, b"a", b"one", rev=4, cas=5, flags=6, expiry=7),
        mutation(3, 1, 2, b"b" * 250, b""),
        marker(900, 2, 0, 200),
        mutation(900, 2, 50, b"c", b"x" * 300),
        mutation(900, 2, 150, b"d", b"valuemeta", nmeta=4),
        _deletion(3, 1, 3, b"e", struct.pack(">H", 0), peer.DELETION),
        _deletion(3, 1, 4, b"f", struct.pack(">IB", 77, 0), peer.DELETION),
        _deletion(3, 1, 5, b"g", struct.pack(">I", 88), peer.EXPIRATION),
        frame(peer.NOOP, opaque=1),
        frame(peer.STREAM_END, extras=struct.pack(">I", 2), vbucket=3, opaque=1),
        mutation(900, 2, 200, b"h", b"last"),
        peer.response(0x48, opaque=77, value=b"answer"),
    ]
)

_CHANGES = [
    ("set", 3, 1, 7, b"a", b"one", 4, 5, 6, 7, 0, None),
    ("set", 3, 2, 7, b"b" * 250, b"", 1, 1, 0, 0, 0, None),
    ("set", 900, 50, 7, b"c", b"x" * 300, 1, 1, 0, 0, 0, None),
    ("set", 900, 150, 8, b"d", b"value", 1, 1, 0, 0, 0, None),
    ("delete", 3, 3, 7, b"e", None, 3, 9, None, None, None, 0),
    ("delete", 3, 4, 7, b"f", None, 3, 9, None, None, None, 77),
    ("expire", 3, 5, 7, b"g", None, 3, 9, None, None, None, 88),
    ("set", 900, 200, 8, b"h", b"last", 1, 1, 0, 0, 0, None),
]


def test_all_kinds_of_changes_are_read() -> None:
    assert _changes(_decoder(3, 900).feed(_STREAMS)) == _CHANGES


@given(st.lists(st.integers(0, len(_STREAMS)), max_size=12))
def test_the_same_changes_come_however_the_bytes_are_cut(cuts: list[int]) -> None:
    decoder = _decoder(3, 900)
    places = sorted({0, len(_STREAMS), *cuts})
    events: list[Event] = []
    for start, end in pairwise(places):
        events += decoder.feed(_STREAMS[start:end])
    assert _changes(events) == _CHANGES
    assert decoder.counted_bytes == len(_STREAMS) - 24 - 30  # neither the keep-alive nor the answer


def test_every_byte_alone_is_the_same_too() -> None:
    decoder = _decoder(3, 900)
    events = [event for byte in _STREAMS for event in decoder.feed(bytes([byte]))]
    assert _changes(events) == _CHANGES


def test_changes_that_follow_one_another_are_one_run() -> None:
    data = [marker(3, 1, 0, 9), *(mutation(3, 1, n, b"k", b"v" * 40) for n in range(1, 10))]
    events = _decoder(3).feed(b"".join(data))
    (batch,) = _batches(events)
    assert [(run.first, run.last, run.done) for run in batch.runs] == [(0, 9, 9)]


def test_without_values_changes_have_none() -> None:
    decoder = _decoder(3, wants_values=False)
    events = decoder.feed(marker(3, 1, 0, 1) + mutation(3, 1, 1, b"a"))
    assert [change.value for change in _changes(events)] == [None]


@pytest.mark.parametrize("datatype", [0, 1])
def test_the_datatype_is_the_headers(datatype: int) -> None:
    extras = struct.pack(">QQIIIHB", 1, 1, 0, 0, 0, 0, 0)
    item = frame(
        peer.MUTATION,
        key=b"k",
        value=b"{}",
        extras=extras,
        vbucket=3,
        opaque=1,
        datatype=datatype,
    )
    (change,) = _changes(_decoder(3).feed(marker(3, 1, 0, 1) + item))
    assert change.datatype == datatype


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(min_size=1, max_size=30)), max_size=40))
def test_interleaved_streams_keep_their_order(items: list[tuple[int, bytes]]) -> None:
    decoder = _decoder(0, 1, 2)
    data = [marker(vbucket, vbucket + 1, 0, 100) for vbucket in range(3)]
    seqnos = [0, 0, 0]
    expected = []
    for vbucket, key in items:
        seqnos[vbucket] += 1
        data.append(mutation(vbucket, vbucket + 1, seqnos[vbucket], key, key))
        expected.append((vbucket, seqnos[vbucket], key))
    found = _changes(decoder.feed(b"".join(data)))
    assert [(change.vbucket, change.seqno, change.key) for change in found] == expected
