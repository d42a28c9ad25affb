"""A peer that breaks the rules ends a read with one clear line; a weak one is asked again.

Never a hang, never a row that is wrong or comes twice, never a gap that looks whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from interop.waiting import wait_until
from tests.codec.frames import Frame
from tests.columnar.read_peer import (
    FakeNode,
    Reply,
    accepted,
    marker,
    mutation,
    refused,
    stream_end,
)
from uprmc.columnar.access import Access
from uprmc.columnar.errors import LeaseEnded, RolledBack
from uprmc.columnar.lease import acquire
from uprmc.columnar.read_state import Range, ReadState
from uprmc.columnar.reading import LEASES_MAX, read
from uprmc.columnar.schema import Columns
from uprmc.protocol.header import encode_request, encode_response
from uprmc.protocol.opcodes import Opcode, OpenFlag, Status
from uprmc.protocol.upr import ROLLBACK_VALUE, STREAM_REQUEST_EXTRAS
from uprmc.protocol.upr_extensions import LEASE_GRANT_EXTRAS
from uprmc.remote.errors import (
    ClientError,
    LeaseRefused,
    NodeNonsense,
    NodeUnreachable,
    Refused,
    Silent,
)

COLUMNS = Columns(("key", "_vb", "_seq", "_vbuuid"))

Stream = Callable[[Frame], Sequence[Reply]]


def access(node: FakeNode, **more: Any) -> Access:
    quick = {"read_timeout_s": 0.6, "retries": 3, "retry_backoff_s": 0.001}
    return Access((node.place,), **{**quick, **more})


def seqnos(node: FakeNode, vbucket: int = 0, **more: Any) -> list[int]:
    batches = read(access(node), [Range(vbucket)], COLUMNS, **more)
    return [row["_seq"] for batch in batches for row in batch.to_pylist()]


def first_then(node: FakeNode, *streams: Stream) -> None:
    """The first stream requests are dealt with like this, all others as they should be."""
    left = list(streams)

    def stream(frame: Frame) -> Sequence[Reply]:
        return (left.pop(0) if left else node.whole_stream)(frame)

    node.stream = stream


def begun(frame: Frame, *more: Reply) -> list[Reply]:
    """A stream up to seqno 2 of 5, and what comes instead of the rest."""
    vbucket, opaque = frame.vbucket, frame.opaque
    items = [mutation(vbucket, opaque, seqno, b"k%d" % seqno) for seqno in (1, 2)]
    return [accepted(opaque), marker(vbucket, opaque, 0, 5), *items, *more]


# --- a weak peer ----------------------------------------------------------------------------------


def test_the_peer_does_what_it_should_unless_told_otherwise() -> None:
    with FakeNode({0: 5}) as node:
        assert seqnos(node) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_frame_that_is_cut_by_the_end_of_the_connection_comes_again(cut: int) -> None:
    with FakeNode({0: 5}) as node:
        torn = mutation(0, 1, 3, b"k3")[:cut]
        first_then(node, lambda frame: begun(frame, torn, None))
        assert seqnos(node) == [1, 2, 3, 4, 5]
        asked = [each for each in node.asked if each.opcode == Opcode.UPR_STREAM_REQUEST]
        _, _, start, _, uuid, snap_start, snap_end = STREAM_REQUEST_EXTRAS.unpack(asked[1].extras)
        assert (start, uuid, snap_start, snap_end) == (2, 0xABCD, 0, 5)


@pytest.mark.parametrize(
    "first",
    [
        lambda frame: begun(frame, stream_end(0, frame.opaque, 5)),
        lambda frame: [refused(frame, Status.TEMPORARY_FAILURE)],
        lambda frame: [refused(frame, Status.BUSY)],
        begun,
    ],
    ids=["ends early", "temporary failure", "busy", "falls silent"],
)
def test_a_stream_that_comes_to_nothing_is_asked_for_again(
    first: Callable[[Frame], Sequence[Reply]],
) -> None:
    with FakeNode({0: 5}) as node:
        first_then(node, first)
        assert seqnos(node) == [1, 2, 3, 4, 5]


def test_a_node_that_is_busy_for_ever_is_given_up() -> None:
    with FakeNode({0: 5}) as node:
        node.stream = lambda frame: [refused(frame, Status.BUSY)]
        with pytest.raises(Refused, match="the stream of vb=0 with: Server too busy"):
            seqnos(node)


def test_a_peer_that_falls_silent_is_given_up_after_the_timeout() -> None:
    with FakeNode({0: 5}) as node:
        node.stream = lambda frame: [accepted(frame.opaque)]
        first_then(node, begun, node.stream)
        lease = acquire(access(node), None, 60)
        with pytest.raises(Silent, match=r"says nothing for 0\.6 s"):
            seqnos(node, lease=lease.token)
        assert node.count(Opcode.UPR_OPEN) == 2


# --- leases that end ------------------------------------------------------------------------------


def test_a_lease_of_its_own_that_ended_is_replaced_and_nothing_comes_twice() -> None:
    told: list[ReadState] = []
    with FakeNode({0: 5, 1: 5}) as node:
        first_then(
            node,
            node.whole_stream,
            lambda frame: begun(frame, None),
            lambda frame: [refused(frame, Status.KEY_NOT_FOUND)],
        )
        batches = read(access(node), [Range(0), Range(1)], COLUMNS, on_done=told.append)
        rows = [(row["_vb"], row["_seq"]) for batch in batches for row in batch.to_pylist()]
        assert sorted(rows) == [(vb, seqno) for vb in (0, 1) for seqno in range(1, 6)]
        assert [(done.vbucket, done.rows) for done in told] == [(0, 5), (1, 5)]
        leases = [each for each in node.asked if each.opcode == Opcode.LEASE_ACQUIRE]
        assert [each.value for each in leases] == [b"\0\0\0\1", b"\0\1"]


def test_leases_that_end_for_ever_are_given_up() -> None:
    with FakeNode({0: 5}) as node:
        node.stream = lambda frame: [refused(frame, Status.KEY_NOT_FOUND)]
        with pytest.raises(LeaseEnded, match=r"has no lease 0000000000000007 any more"):
            seqnos(node)
        assert node.count(Opcode.LEASE_ACQUIRE) == LEASES_MAX


def test_rows_are_held_back_up_to_a_limit_and_then_they_are_out() -> None:
    with FakeNode({0: 5}) as node:
        lost = [
            lambda frame: begun(frame, None),
            lambda frame: [refused(frame, Status.KEY_NOT_FOUND)],
        ]
        first_then(node, *lost)
        with pytest.raises(LeaseEnded, match="rows of vb=0 are out"):
            seqnos(node, hold_back_bytes=0)
        first_then(node, *lost)
        assert seqnos(node, hold_back_bytes=1 << 20) == [1, 2, 3, 4, 5]


def test_a_node_without_leases_is_named() -> None:
    with FakeNode({0: 5}) as node:
        node.instead[Opcode.UPR_CONTROL] = lambda frame: refused(frame, Status.INVALID_ARGUMENTS)
        with pytest.raises(LeaseRefused, match="has no leases: Invalid arguments"):
            seqnos(node)


# --- answers --------------------------------------------------------------------------------------


def test_a_rollback_names_both_seqnos() -> None:
    with FakeNode({0: 5}) as node:
        node.stream = lambda frame: [refused(frame, Status.ROLLBACK, ROLLBACK_VALUE.pack(3))]
        with pytest.raises(RolledBack) as caught:
            list(read(access(node), [Range(0, start=4, uuid=9)], COLUMNS))
        assert (caught.value.checkpoint, caught.value.rollback_to) == (4, 3)


@pytest.mark.parametrize(
    ("opcode", "status", "kind", "words"),
    [
        (Opcode.UPR_STREAM_REQUEST, Status.NOT_MY_VBUCKET, Refused, "the stream of vb=0"),
        (Opcode.UPR_STREAM_REQUEST, Status.RANGE_ERROR, Refused, "Outside range"),
        (Opcode.UPR_STREAM_REQUEST, 0x77, Refused, "unknown status .0077"),
        (Opcode.UPR_OPEN, Status.ACCESS_DENIED, Refused, "UPR_OPEN with: Not authorized"),
    ],
)
def test_a_refusal_is_final(opcode: int, status: int, kind: type[ClientError], words: str) -> None:
    with FakeNode({0: 5}) as node:
        node.instead[opcode] = lambda frame: encode_response(
            frame.opcode, status, opaque=frame.opaque
        )
        with pytest.raises(kind, match=words) as caught:
            seqnos(node)
        assert "\n" not in str(caught.value)
        assert node.count(Opcode.UPR_OPEN) == 1


# --- a peer that breaks the rules -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (lambda o: mutation(1, o, 3, b"k3"), "vb=1 in a stream of vb=0"),
        (lambda o: mutation(0, o + 1, 3, b"k3"), "a stream of vb=0 that was never requested"),
        (lambda o: stream_end(0, o), "the end of a stream at seqno 2 that goes to 5"),
        (lambda o: marker(0, o, 3, 9), "the snapshot 0..5 was cut short at 2 by 3..9"),
        (lambda o: b"\x00" * 24, "what is no frame .magic 0x00"),
        (lambda o: b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n", "what is no frame .magic 0x47"),
        (lambda o: encode_response(Opcode.GET, opaque=o), "an answer to GET"),
        (lambda o: encode_request(Opcode.SET, key=b"k", opaque=o), "an unexpected SET"),
    ],
)
def test_what_no_node_may_send_ends_the_read(sent: Callable[[int], bytes], words: str) -> None:
    with FakeNode({0: 5}) as node:
        node.stream = lambda frame: begun(frame, sent(frame.opaque))
        batches = read(access(node), [Range(0)], COLUMNS)
        with pytest.raises(NodeNonsense, match=words) as caught:
            next(batches)  # no row comes before it
        assert "\n" not in str(caught.value)
        assert node.count(Opcode.UPR_OPEN) == 1


def test_a_lease_of_more_than_the_stream_has_is_a_gap() -> None:
    with FakeNode({0: 5}) as node:
        short = FakeNode.whole_stream

        def stream(frame: Frame) -> Sequence[Reply]:
            node.high[0] = 4
            return short(node, frame)

        node.stream = stream
        with pytest.raises(NodeNonsense, match="that goes to 5"):
            seqnos(node)


@pytest.mark.parametrize("opcode", [Opcode.LEASE_ACQUIRE, Opcode.UPR_OPEN, Opcode.UPR_CONTROL])
def test_garbage_instead_of_an_answer_is_protocol_error(opcode: int) -> None:
    with FakeNode({0: 5}) as node:
        node.instead[opcode] = lambda frame: b"what?" * 10
        with pytest.raises(NodeNonsense, match="no frame"):
            seqnos(node)


def test_nobody_is_unreachable() -> None:
    with FakeNode({0: 5}) as node:
        gone = access(node)
    with pytest.raises(NodeUnreachable, match="no node answers at"):
        list(read(gone, [Range(0)], COLUMNS))


# --- what is asked --------------------------------------------------------------------------------


def test_values_are_not_asked_for_where_nobody_wants_them() -> None:
    for columns, more, flag in (
        (Columns(), {}, OpenFlag(0)),
        (Columns(), {"no_value": True}, OpenFlag.NO_VALUE),
        (Columns(("key",)), {}, OpenFlag.NO_VALUE),
        (Columns(("key", "_datatype")), {}, OpenFlag.NO_VALUE_KEEP_DATATYPE),
    ):
        with FakeNode({0: 1}) as node:
            list(read(access(node), [Range(0)], columns, **more))  # type: ignore[arg-type]
            (opened,) = [each for each in node.asked if each.opcode == Opcode.UPR_OPEN]
        assert opened.extras[-1] == OpenFlag.PRODUCER | OpenFlag.DELETE_TIMES | flag


def test_what_came_is_acknowledged() -> None:
    with FakeNode({0: 2000}) as node:
        assert len(seqnos(node)) == 2000
        assert node.count(Opcode.UPR_BUFFER_ACK) == 0
    with FakeNode({0: 2000}) as node:
        small = access(node, flow_control_bytes=20_000)
        rows = sum(batch.num_rows for batch in read(small, [Range(0)], COLUMNS))
        assert rows == 2000
        wait_until(lambda: node.count(Opcode.UPR_BUFFER_ACK) > 0, lambda: "no acknowledgement")
        acknowledged = [int.from_bytes(each.extras, "big") for each in node.asked
                        if each.opcode == Opcode.UPR_BUFFER_ACK]  # fmt: skip
        assert min(acknowledged) >= 10_000


def test_a_stream_of_which_enough_has_come_is_closed_once() -> None:
    told: list[ReadState] = []
    with FakeNode({0: 20_000}) as node:
        batches = read(access(node), [Range(0, end=3)], COLUMNS, on_done=told.append)
        assert [row["_seq"] for batch in batches for row in batch.to_pylist()] == [1, 2, 3]
        assert node.count(Opcode.UPR_CLOSE_STREAM) == 1
    assert [(done.rows, done.end) for done in told] == [(3, 20_000)]


def test_a_lease_is_renewed_while_it_is_read_and_released_at_the_end() -> None:
    with FakeNode({0: 5}) as node:
        node.instead[Opcode.LEASE_RENEW] = lambda frame: encode_response(
            frame.opcode, extras=LEASE_GRANT_EXTRAS.pack(7, 1), opaque=frame.opaque
        )
        batches = read(access(node), [Range(0)], COLUMNS, lease_s=1)
        next(batches)
        wait_until(lambda: node.count(Opcode.LEASE_RENEW) > 0, lambda: "it was not renewed")
        assert node.count(Opcode.LEASE_RELEASE) == 0
        assert list(batches) == []
        assert node.count(Opcode.LEASE_RELEASE) == 1
