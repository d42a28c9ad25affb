"""The client library and SNAPSHOTS: what one frame says of many streams, and one commit for it."""

from __future__ import annotations

import gc
import struct
from typing import Any

import pytest

from tests.client.consumer_world import BatchMirror, Mirror, World, live, node, write
from tests.client.test_decoder import _batches, _changes, _decoder, _deletion
from tests.upr import peer
from tests.upr.peer import frame, mutation
from uprmc.client.core import PATIENCE
from uprmc.client.decoder import Decoder, Event
from uprmc.client.errors import ClientError
from uprmc.client.node_session import GATHER_GAP_S, GATHER_MAX_S, NodeSession

SNAPSHOTS, MORE = 0xDF, 0x01


@pytest.fixture(params=["all at once", "one by one"], autouse=True)
def _frames_are_read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames with many snapshots are read in another way than those with few."""
    if request.param == "all at once":
        monkeypatch.setattr("uprmc.client.decoder._MANY", 1)


def snapshots(
    *rows: tuple[int, int, int], items: bytes, flags: int = 0, count: int | None = None
) -> bytes:
    """A frame; rows are opaque, start and end."""
    packed = [struct.pack(">IIQQQ", row[0], peer.MEMORY, row[1], row[2], 7) for row in rows]
    extras = struct.pack(">II", flags, len(rows) if count is None else count)
    return frame(SNAPSHOTS, extras=extras, value=b"".join([*packed, items]))


_PLAIN = struct.pack(">H", 0)
_ITEMS = (
    mutation(3, 1, 1, b"a", b"one")
    + _deletion(3, 1, 2, b"b", _PLAIN, peer.DELETION)
    + mutation(900, 2, 40, b"c", b"two")
    + mutation(900, 2, 50, b"d", b"threemeta", nmeta=4)
)
_TWO = snapshots((1, 0, 2), (2, 0, 50), items=_ITEMS)


def _brief(events: list[Event]) -> list[tuple[Any, ...]]:
    return [(each.op, each.vbucket, each.seqno, each.key, each.value) for each in _changes(events)]


_CHANGES = [
    ("set", 3, 1, b"a", b"one"),
    ("delete", 3, 2, b"b", None),
    ("set", 900, 40, b"c", b"two"),
    ("set", 900, 50, b"d", b"three"),
]


def test_each_row_is_a_snapshot_with_its_items() -> None:
    events = _decoder(3, 900).feed(_TWO)
    assert _brief(events) == _CHANGES
    (batch,) = _batches(events)
    assert batch.whole == {3: 2, 900: 50}
    runs = [(run.stream.vbucket, run.first, run.last, run.begun) for run in batch.runs]
    assert runs == [(3, 0, 2, (0, 2, 1, 7)), (900, 2, 4, (0, 50, 1, 7))]


@pytest.mark.parametrize("cut", range(1, len(_TWO), 13))
def test_a_frame_is_taken_when_all_of_it_is_there(cut: int) -> None:
    decoder = _decoder(3, 900)
    assert decoder.feed(_TWO[:cut]) == []
    assert _brief(decoder.feed(_TWO[cut:])) == _CHANGES
    assert decoder.counted_bytes == len(_TWO)


def test_two_frames_with_the_same_streams_are_two_batches() -> None:
    second = snapshots((1, 3, 3), items=mutation(3, 1, 3, b"e", b"four"))
    batches = _batches(_decoder(3, 900).feed(_TWO + second))
    assert [batch.whole for batch in batches] == [{3: 2, 900: 50}, {3: 3}]


def test_markers_and_shared_snapshots_of_a_stream_may_alternate() -> None:
    then = peer.marker(3, 1, 3, 3) + mutation(3, 1, 3, b"e", b"v")
    again = snapshots((1, 4, 4), items=mutation(3, 1, 4, b"f", b"w"))
    assert [change.seqno for change in _changes(_decoder(3, 900).feed(_TWO + then + again))] == [
        *(1, 2, 40, 50),
        *(3, 4),
    ]


def test_items_of_a_stream_that_has_ended_are_dropped() -> None:
    decoder = _decoder(3, 900)
    del decoder.streams[1]
    assert _brief(decoder.feed(_TWO)) == _CHANGES[2:]


def test_a_snapshot_that_comes_alone_is_taken_like_one_among_others() -> None:
    items = mutation(3, 1, 4, b"a", b"onemeta", nmeta=4) + mutation(3, 1, 6, b"b", b"two")
    decoder = _decoder(3, 900)
    (batch,) = _batches(decoder.feed(snapshots((1, 3, 6), items=items)))
    assert _brief([batch]) == [("set", 3, 4, b"a", b"one"), ("set", 3, 6, b"b", b"two")]
    (run,) = batch.runs
    assert (run.first, run.last, run.begun, run.done) == (0, 2, (3, 6, 1, 7), 6)
    assert (run.stream.seqno, run.stream.low, run.stream.high) == (6, 6, 6)
    assert decoder.counted_bytes == len(snapshots((1, 3, 6), items=items))
    late = snapshots((1, 6, 6), items=mutation(3, 1, 6, b"b", b"two"))
    with pytest.raises(ClientError, match="nonsense"):
        decoder.feed(late)


_GOOD = mutation(3, 1, 1, b"a", b"one")
NONSENSE = {
    "no snapshot": snapshots(items=_GOOD),
    "no items": snapshots((1, 0, 1), items=b""),
    "more rows than bytes": snapshots((1, 0, 1), items=_GOOD, count=9),
    "bytes behind the last": snapshots((1, 0, 1), items=_GOOD + bytes(24)),
    "a snapshot that is cut short": snapshots((1, 0, 2), items=_GOOD),
    "a seqno outside": snapshots((1, 0, 1), items=mutation(3, 1, 2, b"a", b"v")),
    "a seqno twice": snapshots((1, 0, 2), items=_GOOD + _GOOD),
    "an item of another stream": snapshots((1, 0, 1), items=mutation(900, 2, 1, b"a", b"v")),
    "an item of another vBucket": snapshots((1, 0, 1), items=mutation(9, 1, 1, b"a", b"v")),
    "a deletion of another stream": snapshots(
        (1, 0, 1), items=_deletion(900, 2, 1, b"a", _PLAIN, peer.DELETION)
    ),
    "a deletion of another vBucket": snapshots(
        (1, 0, 1), items=_deletion(9, 1, 1, b"a", _PLAIN, peer.DELETION)
    ),
    "something else": snapshots((1, 0, 1), items=frame(peer.NOOP, opaque=1)),
    "an answer": snapshots((1, 0, 1), items=peer.response(0x53, opaque=1, value=bytes(16))),
    "a stream that nobody asked for": snapshots((99, 0, 1), items=mutation(3, 99, 1, b"a", b"v")),
    "a stream twice": snapshots((1, 0, 1), (1, 2, 2), items=_GOOD + mutation(3, 1, 2, b"b", b"v")),
    "a snapshot that ends before it begins": snapshots((1, 2, 1), items=_GOOD),
    "a snapshot behind what came": snapshots((1, 0, 0), items=_GOOD),
    "no room for numbers": frame(SNAPSHOTS, extras=bytes(4), value=bytes(40)),
    "a torn item": snapshots((1, 0, 1), items=_GOOD[:-3]),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_a_named_error(name: str) -> None:
    with pytest.raises(ClientError, match=r"nonsense|no UPR"):
        _decoder(3, 900).feed(NONSENSE[name])


# --- pieces that belong together ------------------------------------------------------------------


def _session() -> NodeSession:
    session = NodeSession("node:1", "feed")
    session.decoder = _accepted()
    return session


def _accepted() -> Decoder:
    return _decoder(3, 900)


_FIRST = snapshots((1, 0, 1), items=mutation(3, 1, 1, b"a", b"v"), flags=MORE)
_LAST = snapshots((2, 0, 1), items=mutation(900, 2, 1, b"b", b"w"))


def test_a_piece_waits_for_the_rest() -> None:
    session = _session()
    assert session.receive(_FIRST, 5.0) == []
    session.dealt_with()
    assert session.decoder.counted_bytes == len(_FIRST), "acknowledged before it is handed over"
    assert [change.key for change in _changes(session.receive(_LAST, 5.001))] == [b"a", b"b"]
    assert session.bursts.until is None


def test_it_waits_no_longer_than_a_few_milliseconds() -> None:
    session = _session()
    session.receive(_FIRST, 5.0)
    assert not session.bursts.is_overdue(5.0 + GATHER_GAP_S / 2)
    assert session.bursts.is_overdue(5.0 + 2 * GATHER_GAP_S)
    assert [change.key for change in _changes(session.receive(b"", 6.0))] == [b"a"]
    assert not session.bursts.is_overdue(9.0)


_STREAMS = range(1, 41)


def _piece(seqno: int) -> bytes:
    """A change in each of forty streams."""
    items = b"".join(mutation(opaque, opaque, seqno, b"k%d" % opaque) for opaque in _STREAMS)
    return snapshots(*[(opaque, seqno, seqno) for opaque in _STREAMS], items=items)


def test_changes_of_many_streams_wait_a_little_for_the_rest_of_their_burst() -> None:
    session = _session()
    session.decoder = _decoder(*_STREAMS)
    assert session.receive(_piece(1), 5.0) == []
    assert not session.bursts.is_overdue(5.0 + GATHER_GAP_S / 2)
    assert session.bursts.is_overdue(5.0 + 2 * GATHER_GAP_S)
    last = snapshots((1, 2, 2), items=mutation(1, 1, 2, b"last"))
    assert len(_changes(session.receive(last, 5.001))) == 41


def test_a_burst_that_does_not_end_is_handed_over() -> None:
    session, found, pieces = _session(), list[Event](), 0
    session.decoder = _decoder(*_STREAMS)
    while not found:
        pieces += 1
        found = session.receive(_piece(pieces), 5.0 + 0.001 * pieces)
    assert len(_changes(found)) == 40 * pieces
    assert pieces == pytest.approx(GATHER_MAX_S / 0.001, abs=1.1)


def test_it_does_not_wait_for_more_than_a_batch() -> None:
    session = _session()
    large = snapshots((1, 0, 1), items=mutation(3, 1, 1, b"a", bytes(1 << 20)), flags=MORE)
    assert len(_changes(session.receive(large, 5.0))) == 1


def _burst(rig: Any) -> None:
    for vbucket in range(4):
        write(rig, vbucket, **{f"k{number}": "v" * 3_000 for number in range(5)})


def test_what_comes_together_is_one_commit() -> None:
    rig, mirror = node(), BatchMirror()
    world = World(mirror, rig)
    _burst(rig)
    world.settle()
    (end,) = world._ends.values()
    end.session._gentle_left = 0
    before = world.state.commits
    end_take, end.take = end.take, _in_pulls(end)  # type: ignore[method-assign]
    _burst(rig)
    world.settle()
    end.take = end_take  # type: ignore[method-assign]
    assert mirror.docs == {number: live(rig, number) for number in range(4)}
    # One writes the keys before the handler has them, one what was reached.
    assert world.state.commits - before == 2


def _in_pulls(end: Any) -> Any:
    """Give one pull at a time, each of them as a piece of its own."""

    def take(data: bytes) -> bytes:
        end.woken = False
        if data:
            end.session.receive_data(data)
        return b"".join(end.session.data_to_send(20_000))

    return take


def test_what_waits_is_handed_over_when_the_rest_does_not_come() -> None:
    rig, mirror = node(), Mirror()
    world = World(mirror, rig, tamper=_and_more)
    world.settle()
    write(rig, 0, a="1")
    world.settle()
    assert mirror.docs == {}
    assert world.core.is_gathering
    world.settle(seconds=0.1)
    assert mirror.of(0) == live(rig)
    assert not world.core.is_gathering


def _and_more(data: bytes) -> bytes:
    """Say of shared snapshots that more follows."""
    at = data.find(struct.pack(">BBHB", 0x80, SNAPSHOTS, 0, 8))
    return data if at < 0 else data[: at + 27] + bytes([MORE]) + data[at + 28 :]


@pytest.mark.parametrize("lost", [False, True])
def test_the_collector_waits_as_long_as_what_has_come(lost: bool) -> None:
    rig, before = node(), gc.get_threshold()
    world = World(Mirror(), rig, tamper=_and_more)
    world.settle()
    assert gc.get_threshold() == before
    write(rig, 0, a="1")
    world.settle()
    assert gc.get_threshold()[0] == PATIENCE
    if lost:
        world.cut()
    else:
        world.settle(seconds=0.1)
    assert gc.get_threshold() == before


def test_what_waits_when_the_connection_is_lost_comes_again() -> None:
    rig, mirror = node(), Mirror()
    world = World(mirror, rig, tamper=_and_more)
    world.settle()
    write(rig, 0, a="1")
    world.settle()
    world.cut()
    world.settle(seconds=3.0)
    assert mirror.of(0) == live(rig)
    assert [change.key for change in mirror.changes] == [b"a"]
