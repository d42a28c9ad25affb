"""Batches: columns say the same as changes, and no vBucket goes on behind the end of a snapshot."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from tests.upr import peer
from tests.upr.peer import frame, marker, mutation
from uprmc.client.decoder import Decoder
from uprmc.model import FailoverEntry, SnapshotRange
from uprmc.remote.batch import Batch
from uprmc.remote.stream import StreamState


def batches_of(data: bytes, *, wants_values: bool = True) -> list[Batch]:
    """What a decoder makes of frames of the streams 1, 2 and 3, whose opaques are the same."""
    decoder = Decoder("node:1", wants_values=wants_values)
    for vbucket in (1, 2, 3):
        stream = StreamState(vbucket, decoder.questions.new_opaque(), 0, SnapshotRange(0, 0))
        stream.accept((FailoverEntry(8, 100), FailoverEntry(7, 0)))
        decoder.streams[vbucket] = stream
    return [event for event in decoder.feed(data) if type(event) is Batch]


def deletion(vbucket: int, seqno: int, key: bytes) -> bytes:
    extras = struct.pack(">QQIB", seqno, 2, 77, 0)
    return frame(peer.DELETION, key=key, extras=extras, vbucket=vbucket, opaque=vbucket, cas=9)


KEYS = st.binary(min_size=1, max_size=20)
ITEMS = st.lists(st.tuples(st.integers(1, 3), KEYS, st.none() | st.binary(max_size=60)))


@given(ITEMS, st.booleans())
def test_columns_say_the_same_as_changes(
    items: list[tuple[int, bytes, bytes | None]], wants_values: bool
) -> None:
    frames = [marker(vbucket, vbucket, 0, 1000) for vbucket in (1, 2, 3)]
    for seqno, (vbucket, key, value) in enumerate(items, 1):
        if value is None:
            frames.append(deletion(vbucket, seqno, key))
        else:
            frames.append(mutation(vbucket, vbucket, seqno, key, value, cas=seqno + 5))
    (batch,) = batches_of(b"".join(frames), wants_values=wants_values)
    changes = batch.changes
    assert len(batch) == len(changes) == len(items)
    assert batch.vbuckets == [change.vbucket for change in changes]
    assert batch.seqnos == [change.seqno for change in changes] == [*range(1, len(items) + 1)]
    assert batch.keys == [change.key for change in changes]
    assert batch.values == [change.value for change in changes]
    assert batch.ops == [change.op for change in changes]
    assert batch.cas == [change.cas for change in changes]
    assert {c.value for c in changes if not wants_values} <= {None}


def test_behind_the_end_of_a_snapshot_a_vbucket_goes_on_in_the_next_batch() -> None:
    found = batches_of(
        marker(1, 1, 1, 2)
        + mutation(1, 1, 1, b"a")
        + marker(2, 2, 1, 1)
        + mutation(2, 2, 1, b"b")
        + mutation(1, 1, 2, b"c")
        + marker(1, 1, 3, 5)
        + mutation(1, 1, 3, b"d")
        + marker(2, 2, 2, 2)
        + mutation(2, 2, 2, b"e")
    )
    assert [batch.keys for batch in found] == [[b"a", b"b", b"c"], [b"d", b"e"]]
    assert [batch.whole for batch in found] == [{1: 2, 2: 1}, {2: 2}]


def test_a_batch_without_a_stream_has_all_of_the_others() -> None:
    (batch,) = batches_of(
        marker(1, 1, 1, 9)
        + mutation(1, 1, 1, b"a", b"one")
        + marker(2, 2, 1, 1)
        + mutation(2, 2, 1, b"b", b"two")
        + deletion(1, 2, b"c")
    )
    rest = batch.without({batch.runs[0].stream})
    assert rest.changes == batch.changes[1:2]
    assert rest.values == [b"two"]
    assert rest.whole == {2: 1}
