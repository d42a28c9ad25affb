"""A stream from a replica whose next snapshot begins before the stream has its turn."""

from __future__ import annotations

import pytest

from tests.upr.peer import (
    BARRIER_ADD,
    BARRIER_REACHED,
    DISK,
    LATER,
    MARKER,
    PARTITION_START,
    REPLICA,
    ROLLBACK,
    STREAM_END,
    Frame,
    Peer,
    Rig,
    check_stream,
    frame,
    kinds,
    marked,
    only,
    seqnos,
    stream_request,
    untouched,
    upr_rig,
    write,
)
from uprmc.engine.replica import apply, take_history
from uprmc.engine.vbucket import VBucket
from uprmc.model import FailoverEntry, Item, SnapshotRange

#: More than is sent without a reading.
SIZE = 40


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


class Source:
    """Fills a vBucket as a busy active does: of each snapshot's successor half follows at once."""

    def __init__(self, rig: Rig, number: int = 0, size: int = SIZE) -> None:
        rig.bucket.set_state(number, REPLICA)
        self.part: VBucket = rig.bucket.vbuckets[number]
        self.size = size
        self.whole = 0

    def next(self) -> None:
        """Complete the snapshot under way and begin another, in one turn."""
        size, end = self.size, self.whole + self.size
        self._send(self.part.high_seqno + 1, end, end)
        self.whole = end
        self._send(end + 1, end + size // 2, end + size)

    def calm(self) -> None:
        """Complete a snapshot, and begin none."""
        self._send(self.part.high_seqno + 1, self.whole + self.size, self.whole + self.size)
        self.whole += self.size

    def _send(self, first: int, last: int, end: int) -> None:
        for seqno in range(first, last + 1):
            item = Item(b"key%06d" % seqno, b"v" * 20, 0, 0, seqno, seqno, 1)
            apply(self.part, item, SnapshotRange(end - self.size + 1, end))


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("size", [4, SIZE])
def test_a_stream_from_a_busy_replica_is_fed(rig: Rig, flushed: bool, size: int) -> None:
    source = Source(rig, size=size)
    source.next()
    peer = Peer.open(rig)
    frames = peer.stream(0)
    for _ in range(10):
        source.next()
        if flushed:
            rig.flush()
        frames += peer.drain()
    assert check_stream(frames) == source.whole
    assert seqnos(frames) == list(range(1, source.whole + 1))
    assert source.part.receiving is not None, "it was never seen whole"


def test_nobody_is_sent_back_to_where_a_replica_has_not_come_yet(rig: Rig) -> None:
    """Its history is the active's from the first moment on; the versions follow."""
    source = Source(rig)
    take_history(source.part, [FailoverEntry(77, SIZE // 2), FailoverEntry(33, 0)])
    lost = stream_request(0, SIZE, uuid=33)
    peer = Peer.open(rig)
    assert peer.ask(lost).status == LATER
    source._send(1, SIZE // 2 - 1, SIZE)
    assert peer.ask(lost).status == LATER, "in mid-snapshot"
    source._send(SIZE // 2, SIZE, SIZE)
    answer = peer.ask(lost)
    assert (answer.status, int.from_bytes(answer.value, "big")) == (ROLLBACK, SIZE // 2)


def test_states_that_it_sends_are_the_actives_own(rig: Rig) -> None:
    source = Source(rig)
    source.next()
    peer = Peer.open(rig)
    frames = peer.stream(0)
    for _ in range(5):
        source.next()
        frames += peer.drain()
    assert {end % SIZE for _, end, _ in marked(frames)} == {0}


def test_a_calm_replica_is_read_only_when_the_stream_has_its_turn(rig: Rig) -> None:
    source = Source(rig)
    peer = Peer.open(rig)
    peer.stream(0)
    source._send(1, SIZE, SIZE)
    assert source.part.queue.retired == 0
    assert peer.side.feed.streams[0].reading is None
    assert len(seqnos(peer.drain())) == SIZE


def test_a_reading_that_was_taken_early_is_given_up_like_any_other(rig: Rig) -> None:
    source = Source(rig)
    source.next()
    peer = Peer.open(rig)
    frames = peer.stream(0)
    source.next()
    stream = peer.side.feed.streams[0]
    assert stream.reading is not None
    rig.services.upr.release_views()
    assert (stream.reading, stream.let_go) == (None, 1)
    assert peer.drain() == [], "nothing was announced of it"
    source.next()
    frames += peer.drain()
    assert [end for _, end, _ in marked(frames)] == [3 * SIZE]
    peer.lose()
    untouched(rig)


def test_without_a_permit_to_read_the_disk_it_waits_for_the_next_whole_state() -> None:
    rig = upr_rig(upr__backfills=1)
    sources = [Source(rig, number) for number in (0, 1)]
    for source in sources:
        source.next()
    rig.flush()
    first, second = Peer.open(rig, b"first"), Peer.open(rig, b"second")
    first.controls(connection_buffer_size=b"100")
    first.stream(0)
    second.stream(1)
    for source in sources:
        source.next()
    assert kinds(first.drain())[0] == MARKER
    assert second.drain() == [], "the first one has the permit"
    first.controls(connection_buffer_size=b"0")
    second.drain()
    sources[1].next()
    assert [(end, kind) for _, end, kind in marked(second.drain())] == [(3 * SIZE, DISK)]


def test_a_stream_that_has_to_end_ends_in_the_call_that_tells_it(rig: Rig) -> None:
    source = Source(rig)
    source.next()
    peer = Peer.modern(rig)
    peer.stream(0, 1)
    stream = peer.side.feed.streams[0]
    source.part.purge_seqno = source.part.high_seqno
    source.next()
    assert not stream.queued, "it has no turn any more"
    (end,) = peer.drain()
    assert (end.opcode, end.reason) == (STREAM_END, 6)
    source.next()
    assert peer.drain() == []
    peer.lose()
    untouched(rig)


def test_rounds_go_on_over_a_busy_replica(rig: Rig) -> None:
    source = Source(rig)
    source.next()
    peer = Peer.open(rig)
    peer.controls(uprmc_rounds=b"true")
    peer.stream(0)
    peer.stream(1)
    source.next()
    write(rig, 1, b"elsewhere")
    frames = peer.drain()
    for opcode in (PARTITION_START, MARKER):
        assert [each.vbucket for each in only(frames, opcode)] == [0, 1]


@pytest.mark.acceptance("D36")
def test_a_cookie_in_rounds_waits_for_a_replica_that_is_in_mid_snapshot(rig: Rig) -> None:
    source = Source(rig)
    source.calm()
    peer = Peer.open(rig)
    peer.controls(uprmc_rounds=b"true", uprmc_barrier=b"true")
    peer.stream(0)
    peer.stream(1)
    peer.drain()
    source.next()
    acknowledged = source.whole
    peer.send(frame(BARRIER_ADD, key=b"c"))
    seen: list[Frame] = []
    for number in range(4):
        write(rig, 1, b"elsewhere %d" % number)
        seen += peer.drain()
    assert only(seen, BARRIER_REACHED) == []
    source.next()
    write(rig, 1, b"at last")
    seen += peer.drain()
    (place,) = [n for n, each in enumerate(seen) if each.opcode == BARRIER_REACHED]
    assert max(seqnos(seen[:place], 0)) >= acknowledged
