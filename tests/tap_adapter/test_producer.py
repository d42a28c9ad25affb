"""What transcripts do not show of a producer: fields of messages, limits, torn answers."""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import (
    ACK,
    CHECKPOINT,
    IN_ORDER,
    KEYS_ONLY,
    REGISTERED,
    TAKEOVER,
    Line,
    Peer,
    Rig,
)
from uprmc.protocol.header import pack_request
from uprmc.protocol.opcodes import MAGIC_REQUEST, Opcode, Status
from uprmc.protocol.tap import TapFlag
from uprmc.tap_adapter import feed
from uprmc.tap_adapter.feed import PULL_BYTES, beginnings_first
from uprmc.tap_adapter.openings import FETCHED_AT_ONCE
from uprmc.tap_adapter.window import SEQUENCE_MAX

pytestmark = pytest.mark.acceptance("D56")


def filled(items: int, value: bytes = b"v") -> FakeNode:
    node = FakeNode(0)
    for index in range(items):
        node[0].set(b"k%d" % index, value)
    return node


# --- messages -------------------------------------------------------------------------------------


def test_keys_only_leaves_values_out_and_says_so() -> None:
    item = Rig(filled(1)).connect(KEYS_ONLY, values=False).drain()[1]
    assert (item.key, item.value) == (b"k0", b"")
    assert item.flags & TapFlag.NO_VALUE


@pytest.mark.parametrize(
    ("flags", "on_the_wire", "marked"),
    [(0, 0xEFBEADDE, 0), (IN_ORDER, 0xDEADBEEF, TapFlag.NETWORK_BYTE_ORDER)],
)
def test_item_flags_are_swapped_unless_the_client_asks(
    flags: int, on_the_wire: int, marked: int
) -> None:
    node = FakeNode(0)
    node[0].set(b"k", flags=0xDEADBEEF)
    item = Rig(node).connect(flags).drain()[1]
    assert (item.item_flags, item.flags & TapFlag.NETWORK_BYTE_ORDER) == (on_the_wire, marked)


def test_sequence_numbers_begin_at_1_again_after_the_highest() -> None:
    line = Rig(filled(10), ack_interval=4).connect(ACK)
    window = line.producer._conversation.send_queue.window
    window.sent = window.acked = SEQUENCE_MAX - 4
    messages = line.run_messages()
    numbers = [message.opaque for message in messages]
    assert numbers[:7] == [*range(SEQUENCE_MAX - 3, SEQUENCE_MAX + 1), 1, 2, 3]
    assert line.known.cursors[0].acked == 10
    assert [m.opaque for m in messages if m.opaque % 4 == 0 and not m.wants_ack] == []


def test_only_a_streams_first_frame_of_a_pull_is_moved() -> None:
    def frame(opcode: int, opaque: int, *pieces: bytes) -> list[bytes]:
        size = sum(map(len, pieces))
        return [pack_request(MAGIC_REQUEST, opcode, 0, 0, 0, 0, size, opaque, 0), *pieces]

    marker, item = Opcode.UPR_SNAPSHOT_MARKER, Opcode.UPR_MUTATION
    first, second = frame(item, 1, b"key", b""), frame(marker, 2)
    third, fourth = frame(marker, 1), frame(item, 2, b"key", b"value")
    assert beginnings_first(first + second + third + fourth) == (
        second + first + third + fourth,
        len(second),
    )


def test_a_peer_that_checks_checkpoints_is_content_over_reconnections() -> None:
    rig, peer = Rig(filled(1)), Peer()
    for step in range(5):
        line = rig.connect(ACK | CHECKPOINT)
        peer.open_checkpoints.clear()
        for key in (b"x", b"y"):
            rig.node[0].set(key, b"%d" % step)
            for message in line.run_messages():
                peer.take(message)
        line.leave()
    assert {k: v[0] for k, v in peer.documents[0].items()} == {b"k0": b"v", b"x": b"4", b"y": b"4"}


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [ACK, ACK | REGISTERED])
def test_one_pull_is_kept_for_a_client_that_stops(flags: int) -> None:
    line = Rig(filled(2_000, bytes(500)), ack_interval=10, ack_window=1).connect(flags)
    line.drain()
    line.ack_all()
    line.drain(10**9)
    assert line.upstream.pulled_bytes < PULL_BYTES + 1_000


def test_no_more_is_pulled_than_the_budget_asks_for() -> None:
    line = Rig(filled(100, bytes(1_000))).connect(vbuckets=(0,))
    line.fill(5_000)
    assert line.upstream.pulled_bytes < 7_000


def test_a_full_window_pulls_nothing_more() -> None:
    line = Rig(filled(100), ack_interval=1, ack_window=1).connect(ACK)
    line.drain()
    line.ack_all()
    line.drain(1)
    pulls = line.upstream.pulls
    line.drain(1)
    assert line.upstream.pulls == pulls


def test_what_is_kept_of_a_takeover_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    node = filled(1)
    line = Rig(node).connect(ACK | TAKEOVER, vbuckets=(0,), dies_at_once=False)
    line.run()
    frame_bytes = 24 + 31 + 2 + 1
    monkeypatch.setattr(feed, "KEPT_BYTES", 3 * frame_bytes)
    for index in range(9):
        node[0].set(b"k%d" % index)
    line.upstream.die(0)
    assert line.said(1) == ["k0=v", "k1=v", "k2=v", "k3=v!"]  # the limit, and one more
    line.ack_all()
    assert line.said(1) == ["k4=v", "k5=v", "k6=v", "k7=v!"]
    line.ack_all()
    assert line.run(1) == ["k8=v!", "state 1 vb0!"]
    assert line.producer.done


@pytest.mark.parametrize("keys", [FETCHED_AT_ONCE, FETCHED_AT_ONCE + 1, 3 * FETCHED_AT_ONCE])
def test_versions_are_fetched_a_few_at_a_time(keys: int) -> None:
    rig = Rig(FakeNode(0))
    rig.node[0].set(b"before")
    line = rig.connect(ACK)
    line.run()
    for index in range(keys):
        rig.node[0].set(b"k%d" % index)
    line.run()
    line.leave()
    rig.node[0].fail_over(1, uuid=0xB0)
    again = rig.connect(ACK)
    assert len(again.run()) == keys + 1
    assert max(map(len, again.upstream.fetched)) == min(keys, FETCHED_AT_ONCE)
    assert sum(map(len, again.upstream.fetched)) == keys


def test_a_registered_client_costs_few_saves_however_many_vbuckets() -> None:
    rig = Rig(FakeNode(*range(5)))
    line = rig.connect(ACK | CHECKPOINT | REGISTERED)
    line.run()
    for text in (b"0", b"1"):
        for number in range(5):
            rig.node[number].set(b"key", text)
        before = rig.keeper.writes
        line.run()
    assert 0 < rig.keeper.writes - before <= 4, "the ends, the beginnings, the documents"


def test_a_registered_client_that_is_idle_is_not_written_again_and_again() -> None:
    rig = Rig(filled(1))
    line = rig.connect(REGISTERED | ACK)
    line.run()
    line.tick(2)
    writes = rig.keeper.writes
    for _ in range(10):
        line.tick(2)
    assert rig.keeper.writes == writes


# --- a producer of UPR that makes no sense --------------------------------------------------------


def opening(rig: Rig) -> Line:
    """A client whose stream has been asked for."""
    line = rig.connect(ACK, patient=True)
    line.upstream.deliver(1)
    return line


def answer(line: Line, status: int, value: bytes) -> None:
    stream = line.producer._conversation.streams[0]
    line.producer._feed.openings._answered(stream, status, value)


@pytest.mark.parametrize("value", [b"", bytes(7), bytes(9), (99).to_bytes(8, "big")])
def test_a_rollback_that_is_torn_or_leads_to_where_the_client_is_not_ends_it(value: bytes) -> None:
    rig = Rig(filled(2))
    line = rig.connect(ACK)
    line.run()
    line.leave()
    again = opening(rig)
    answer(again, Status.ROLLBACK, value)
    assert again.producer.closed


@pytest.mark.parametrize("log", [b"", bytes(15)])
def test_a_torn_failover_log_ends_the_connection(log: bytes) -> None:
    line = opening(Rig(filled(2)))
    answer(line, Status.SUCCESS, log)
    assert line.producer.closed


# --- statistics -----------------------------------------------------------------------------------


def test_old_tools_find_their_names_in_the_statistics() -> None:
    line = Rig(filled(2)).connect(ACK | REGISTERED, vbuckets=(0,))
    line.run()
    rows = dict(line.producer.statistics().rows())
    assert rows["type"] == "producer"
    assert rows["supports_ack"] == rows["reserved"] == "true"
    assert rows["vb_filter"] == "{ 0 }"
    assert rows["qlen"] == rows["ack_log_size"] == rows["total_backlog_size"] == "0"
    assert rows["backfill_completed"] == rows["idle"] == "true"
    assert int(rows["ack_seqno"]) == int(rows["recv_ack_seqno"]) == int(rows["rec_fetched"])
