"""The protocol around a session: order, pressure both ways, closing, bugs."""

from __future__ import annotations

import io

import pytest
from twisted.internet.testing import StringTransportWithDisconnection

from tests.server.support import PEER, EchoSession, FloodSession, Node, SlowTransport, pattern
from uprmc.server.net import adapter
from uprmc.server.net.adapter import (
    FAREWELL_S,
    PULL_BYTES,
    PULLS_PER_TURN,
    REJECTION_S,
    REJECTIONS_MAX,
    SHARED_PULL_BYTES,
    SHARED_PULLS_PER_TURN,
    SHARED_TURNS,
    SessionProtocol,
    peer_text,
)

FLOOD = 100 * PULL_BYTES


@pytest.fixture
def node() -> Node:
    return Node(EchoSession)


def flood_node(total: int = FLOOD, **options: object) -> Node:
    return Node(lambda wake: FloodSession(wake, total), **options)


def lose(protocol: SessionProtocol) -> None:
    protocol.connectionLost()


# --- bytes ----------------------------------------------------------------------------------------


def test_one_chunk_in_is_one_write_out(node: Node) -> None:
    protocol = node.connect()
    protocol.session.out.extend([b"a", b"b"])
    protocol.dataReceived(b"c")
    assert protocol.transport.writes == [b"abc"]
    protocol.dataReceived(b"d")
    assert protocol.transport.writes == [b"abc", b"d"]


def test_a_session_is_asked_for_a_bounded_amount_at_a_time(node: Node) -> None:
    protocol = node.connect()
    protocol.dataReceived(b"x")
    assert set(protocol.session.budgets) == {PULL_BYTES}


def test_no_answer_is_no_write(node: Node) -> None:
    protocol = node.connect()
    protocol.session.receive_data = lambda data: None
    protocol.dataReceived(b"quiet")
    assert protocol.transport.writes == []


class _Prompt(EchoSession):
    """Answers at once what is not in capitals."""

    answers = True

    def answer(self, data: bytes) -> bytes | None:
        if data.islower():
            return data * 2
        self.receive_data(data)
        return None


def test_what_a_session_says_at_once_is_written_and_it_is_not_asked_again() -> None:
    protocol = Node(_Prompt).connect()
    asked = len(protocol.session.budgets)
    protocol.dataReceived(b"ab")
    assert protocol.transport.writes == [b"abab"]
    assert len(protocol.session.budgets) == asked
    assert (protocol.bytes_read, protocol.bytes_written) == (2, 4)
    protocol.dataReceived(b"CD")
    assert protocol.transport.writes == [b"abab", b"CD"]
    lose(protocol)
    protocol.dataReceived(b"late")
    assert protocol.transport.writes == [b"abab", b"CD"]


def test_an_answer_that_the_transport_only_queues_stops_the_reading() -> None:
    protocol = Node(_Prompt).connect()
    protocol.transport.write = lambda data: protocol.pauseProducing()
    protocol.dataReceived(b"ab")
    assert protocol.info(0).state == "output-full"
    protocol.dataReceived(b"cd")  # what had been received already
    assert protocol.session.out == [b"cd"]


def test_a_session_may_speak_first() -> None:
    def make(wake):
        session = EchoSession(wake)
        session.out.append(b"welcome")
        return session

    assert Node(make).connect().transport.writes == [b"welcome"]


def test_bytes_are_counted_in_both_directions(node: Node) -> None:
    protocol = node.connect()
    protocol.session.out.append(b"12345")
    protocol.dataReceived(b"abc")
    assert (protocol.bytes_read, protocol.bytes_written) == (3, 8)
    assert (node.connections.bytes_read, node.connections.bytes_written) == (3, 8)
    lose(protocol)
    assert (node.connections.bytes_read, node.connections.bytes_written) == (3, 8)


# --- the peer does not read -----------------------------------------------------------------------


def test_a_paused_transport_is_given_nothing_and_the_peer_is_not_read() -> None:
    protocol = flood_node().connect()
    protocol.dataReceived(b"go")
    transport, session = protocol.transport, protocol.session
    assert session.pulled == 2 * PULL_BYTES  # the second write went past the limit
    assert transport.producerState == "paused"
    protocol.wake()
    protocol.tick(1.0)
    assert session.pulled == 2 * PULL_BYTES


def test_draining_continues_where_it_stopped_until_all_is_sent() -> None:
    node = flood_node()
    protocol = node.connect()
    protocol.dataReceived(b"go")
    rounds = 0
    while protocol.session.left:
        protocol.transport.drain()
        rounds += 1
    assert rounds == FLOOD // PULL_BYTES // 2 - 1
    protocol.transport.drain()
    assert protocol.transport.value() == pattern(0, FLOOD)
    assert protocol.transport.producerState == "producing"


def test_a_reader_that_never_reads_costs_bounded_memory() -> None:
    node = flood_node(total=10**12)
    protocol = node.connect()
    protocol.dataReceived(b"go")
    for second in range(1_000):
        protocol.wake()
        node.turn()
        protocol.tick(second)
    assert protocol.transport.queued <= protocol.transport.limit + PULL_BYTES


def test_at_the_transports_limit_reading_goes_on_and_one_byte_past_it_stops() -> None:
    for total, state in ((65_536, "producing"), (65_537, "paused")):
        protocol = flood_node(total).connect(SlowTransport(limit=65_536))
        protocol.dataReceived(b"go")
        assert protocol.transport.producerState == state


def test_input_that_arrives_while_paused_is_still_taken() -> None:
    """TLS may hand over what it had already decrypted."""
    protocol = flood_node().connect()
    protocol.dataReceived(b"go")
    protocol.dataReceived(b"more")
    assert protocol.session.received == [b"go", b"more"]


# --- the session is full --------------------------------------------------------------------------


def test_a_full_session_stops_reading_until_it_wakes_us(node: Node) -> None:
    protocol = node.connect()
    protocol.session.input_full = True
    protocol.dataReceived(b"a")
    assert protocol.transport.producerState == "paused"
    protocol.session.input_full = False
    protocol.wake()
    assert protocol.transport.producerState == "paused"
    node.turn()
    assert protocol.transport.producerState == "producing"


def test_the_transport_is_told_to_stop_and_start_reading_once_each(node: Node) -> None:
    protocol = node.connect()
    calls: list[str] = []
    protocol.transport.pauseProducing = lambda: calls.append("pause")
    protocol.transport.resumeProducing = lambda: calls.append("resume")
    for full in (True, True, False, False):
        protocol.session.input_full = full
        protocol.dataReceived(b"a")
    assert calls == ["pause", "resume"]


def test_reading_stays_stopped_while_either_side_is_full() -> None:
    node = flood_node(total=2 * PULL_BYTES)
    protocol = node.connect()
    protocol.session.input_full = True
    protocol.dataReceived(b"go")
    protocol.transport.drain()
    assert protocol.transport.producerState == "paused"
    protocol.session.input_full = False
    protocol.wake()
    node.turn()
    assert protocol.transport.producerState == "producing"


# --- waking ---------------------------------------------------------------------------------------


def test_output_that_appears_by_itself_is_sent_in_the_next_turn_with_one_write(node: Node) -> None:
    protocol = node.connect()
    for piece in (b"a", b"b", b"c"):
        protocol.session.out.append(piece)
        protocol.wake()
    assert protocol.transport.writes == []
    node.turn()
    assert protocol.transport.writes == [b"abc"]
    assert node.clock.getDelayedCalls() == []


def test_a_wake_up_after_the_connection_is_gone_is_harmless(node: Node) -> None:
    protocol = node.connect()
    wake = protocol.session.wake
    wake()
    lose(protocol)
    node.turn()
    wake()
    assert node.clock.getDelayedCalls() == []


def test_an_endless_session_is_served_in_slices() -> None:
    node = flood_node(total=10 * PULLS_PER_TURN * PULL_BYTES)
    transport = SlowTransport()
    transport.instant = True
    protocol = node.connect(transport)
    protocol.dataReceived(b"go")
    for turn in range(1, 11):
        assert protocol.session.pulled == turn * PULLS_PER_TURN * PULL_BYTES
        node.turn()
    assert transport.value() == pattern(0, protocol.session.total)
    assert node.clock.getDelayedCalls() == []


def test_an_endless_session_is_served_in_smaller_slices_while_others_ask() -> None:
    node = flood_node(total=10**9)
    transport = SlowTransport()
    transport.instant = True
    protocol = node.connect(transport)
    protocol.dataReceived(b"go")
    other = node.connect()
    pulled = protocol.session.pulled
    other.dataReceived(b"hello")
    for _ in range(SHARED_TURNS):
        node.turn()
        pulled += SHARED_PULLS_PER_TURN * SHARED_PULL_BYTES
        assert protocol.session.pulled == pulled
    node.turn()
    assert protocol.session.pulled == pulled + PULLS_PER_TURN * PULL_BYTES


def test_endless_sessions_take_turns() -> None:
    node = flood_node(total=10**9)
    protocols = []
    for _ in range(3):
        transport = SlowTransport()
        transport.instant = True
        protocols.append(node.connect(transport))
        protocols[-1].dataReceived(b"go")
    for _ in range(SHARED_TURNS + 1):
        node.turn()
    before = [protocol.session.pulled for protocol in protocols]
    node.turn()
    assert [p.session.pulled - b for p, b in zip(protocols, before, strict=True)] == [
        PULLS_PER_TURN * PULL_BYTES
    ] * 3


# --- handing over ---------------------------------------------------------------------------------


def test_a_successor_takes_over_input_output_and_the_end(node: Node) -> None:
    protocol = node.connect()
    first = protocol.session
    second = EchoSession(protocol.wake)

    def hand_over(data: bytes) -> None:
        first.successor = second
        second.receive_data(data)

    first.receive_data = hand_over
    protocol.dataReceived(b"binary")
    protocol.dataReceived(b"more")
    assert protocol.transport.writes == [b"binary", b"more"]
    assert protocol.session is second
    lose(protocol)
    assert (first.lost, second.lost) == (0, 1)


def test_a_successor_that_appears_while_output_is_pulled_is_asked_too(node: Node) -> None:
    protocol = node.connect()
    first, second, third = protocol.session, EchoSession(None), EchoSession(None)
    third.out.append(b"from the third")

    def pull(budget: int) -> list[bytes]:
        first.successor, second.successor = second, third
        return []

    first.data_to_send = pull
    protocol.dataReceived(b"x")
    assert protocol.transport.writes == [b"from the third"]


# --- closing --------------------------------------------------------------------------------------


def test_closing_happens_after_the_last_write(node: Node) -> None:
    protocol = node.connect()
    protocol.dataReceived(b"bye quit")
    assert protocol.transport.value() == b"bye quit"
    assert protocol.transport.disconnecting
    assert protocol.transport.producer is None  # a registered one would hold up the close
    protocol.dataReceived(b"late")
    assert protocol.session.received == [b"bye quit"]


def test_closing_waits_until_a_paused_transport_took_everything() -> None:
    protocol = flood_node(total=3 * PULL_BYTES).connect()
    protocol.dataReceived(b"go")
    protocol.session.closing = True
    protocol.tick(1.0)
    assert not protocol.transport.disconnecting
    protocol.transport.drain()
    assert protocol.transport.disconnecting
    assert protocol.transport.value() == pattern(0, 3 * PULL_BYTES)


def test_a_transport_that_is_lost_while_closing_is_let_go_once(node: Node) -> None:
    transport = StringTransportWithDisconnection(peerAddress=PEER)
    protocol = node.factory.buildProtocol(PEER)
    transport.protocol = protocol
    protocol.makeConnection(transport)
    session = protocol.session
    protocol.dataReceived(b"quit")
    assert session.lost == 1
    assert node.connections.current == 0


def test_a_lost_connection_releases_the_session_and_the_registry(node: Node) -> None:
    protocol = node.connect()
    session = protocol.session
    lose(protocol)
    assert session.lost == 1
    assert protocol.session is not session
    assert (node.connections.current, node.connections.total) == (0, 1)


def test_a_peer_that_closes_its_half_still_gets_its_answers() -> None:
    protocol = flood_node(total=3 * PULL_BYTES).connect()
    protocol.dataReceived(b"go")
    protocol.readConnectionLost()
    assert not protocol.transport.disconnecting
    protocol.transport.drain()
    assert protocol.transport.value() == pattern(0, 3 * PULL_BYTES)
    assert protocol.transport.disconnecting


def test_a_peer_that_closes_its_half_waits_for_a_session_that_is_busy(node: Node) -> None:
    protocol = node.connect()
    protocol.session.input_full = True
    protocol.readConnectionLost()
    assert not protocol.transport.disconnecting
    protocol.session.input_full = False
    protocol.session.out.append(b"from disk")
    protocol.wake()
    node.turn()
    assert protocol.transport.value() == b"from disk"
    assert protocol.transport.disconnecting


def test_a_peer_that_closes_with_nothing_asked_is_gone_at_once(node: Node) -> None:
    protocol = node.connect()
    protocol.readConnectionLost()
    assert protocol.transport.disconnecting


def test_a_peer_that_does_not_leave_is_cut_off(node: Node) -> None:
    protocol = node.connect()
    protocol.dataReceived(b"quit")
    start = node.clock.seconds()
    protocol.tick(start)
    protocol.tick(start + FAREWELL_S - 0.001)
    assert not protocol.transport.aborted
    protocol.tick(start + FAREWELL_S)
    assert protocol.transport.aborted


# --- bugs of ours ---------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["receive_data", "data_to_send", "tick"])
def test_a_bug_closes_only_its_own_connection_and_is_logged(
    node: Node, lines: io.StringIO, door: str
) -> None:
    other, protocol = node.connect(), node.connect()

    def broken(argument: object) -> None:
        raise RuntimeError("a bug of ours")

    setattr(protocol.session, door, broken)
    protocol.dataReceived(b"x")
    protocol.tick(1.0)
    protocol.tick(2.0)
    other.dataReceived(b"still here")
    assert protocol.transport.disconnecting
    assert node.connections.session_errors == 1
    assert lines.getvalue().count("\n") == 1
    assert " error connection.session_failed peer=192.0.2.7:4711 " in lines.getvalue()
    assert "RuntimeError" in lines.getvalue()
    assert other.transport.value() == b"still here"


def test_a_bug_outside_of_receiving_closes_too(node: Node, lines: io.StringIO) -> None:
    protocol = node.connect()
    protocol.session.data_to_send = lambda budget: 1 / 0
    protocol.wake()
    node.turn()
    assert protocol.transport.disconnecting
    assert "ZeroDivisionError" in lines.getvalue()


def test_a_bug_in_letting_go_is_logged_and_the_connection_forgotten(
    node: Node, lines: io.StringIO
) -> None:
    protocol = node.connect()
    protocol.session.connection_lost = lambda: 1 / 0
    lose(protocol)
    assert node.connections.current == 0
    assert node.connections.session_errors == 1
    assert "ZeroDivisionError" in lines.getvalue()


def test_a_session_that_cannot_be_made_closes_the_connection(lines: io.StringIO) -> None:
    node = Node(lambda wake: 1 / 0)
    protocol = node.connect()
    assert protocol.transport.disconnecting
    assert "ZeroDivisionError" in lines.getvalue()
    protocol.dataReceived(b"x")
    lose(protocol)
    assert node.connections.current == 0


# --- time -----------------------------------------------------------------------------------------


def test_a_tick_reaches_the_session_and_its_output_is_sent(node: Node) -> None:
    protocol = node.connect()
    protocol.session.out.append(b"noop")
    protocol.tick(5.0)
    assert protocol.session.ticks == [5.0]
    assert protocol.transport.writes == [b"noop"]


def test_idling_for_the_limit_closes_and_a_moment_less_does_not() -> None:
    node = Node(EchoSession, idle_s=10.0)
    protocol = node.connect()
    protocol.tick(9.999)
    assert not protocol.transport.disconnecting
    protocol.tick(10.0)
    assert protocol.transport.disconnecting


def test_bytes_in_either_direction_count_as_activity() -> None:
    node = Node(EchoSession, idle_s=10.0)
    protocol = node.connect()
    protocol.session.receive_data = lambda data: None
    protocol.dataReceived(b"x")
    protocol.tick(8.0)
    protocol.session.out.append(b"stream")
    protocol.tick(16.0)
    protocol.tick(17.0)
    protocol.tick(26.999)
    assert not protocol.transport.disconnecting
    protocol.tick(27.0)
    assert protocol.transport.disconnecting


def test_without_a_limit_nobody_idles_out(node: Node) -> None:
    protocol = node.connect()
    protocol.tick(1e9)
    assert not protocol.transport.disconnecting


def test_one_who_idles_without_reading_is_cut_off() -> None:
    node = flood_node(idle_s=10.0)
    protocol = node.connect()
    protocol.dataReceived(b"go")
    protocol.tick(0.0)
    protocol.tick(10.0)
    assert protocol.transport.aborted


# --- the rest -------------------------------------------------------------------------------------


def test_the_one_past_the_limit_is_told_so_and_closed() -> None:
    node = Node(EchoSession, limit=2)
    first, second = node.connect(), node.connect()
    third = node.connect()
    assert third.transport.value() == b"ERROR Too many open connections\r\n"
    assert third.transport.disconnecting
    assert not second.transport.disconnecting
    lose(third)
    assert (node.connections.current, node.connections.rejected) == (2, 1)
    lose(first)
    fourth = node.connect()
    fourth.dataReceived(b"in")
    assert fourth.transport.value() == b"in"
    assert node.connections.total == 3


def test_only_some_are_told_that_there_is_no_room_and_not_for_long() -> None:
    node = Node(EchoSession, limit=1)
    node.connect()
    told = [node.connect() for _ in range(REJECTIONS_MAX)]
    assert node.factory.buildProtocol(PEER) is None
    assert node.connections.rejected == REJECTIONS_MAX + 1
    node.clock.advance(REJECTION_S)
    node.connections.tick()
    assert all(protocol.transport.disconnected for protocol in told)
    for protocol in told:
        lose(protocol)
    assert node.connections.rejections == {}
    assert node.factory.buildProtocol(PEER) is not None


def test_state_names_what_a_connection_waits_for(node: Node) -> None:
    protocol = node.connect()
    assert protocol.info(0.0).state == "open"
    protocol.session.input_full = True
    protocol.dataReceived(b"x")
    assert protocol.info(0.0).state == "input-full"
    protocol.pauseProducing()
    assert protocol.info(0.0).state == "output-full"
    protocol.hang_up()
    assert protocol.info(0.0).state == "closing"


def test_info_says_who_and_how_long(node: Node) -> None:
    protocol = node.connect()
    protocol.dataReceived(b"x")
    protocol.tick(3.0)
    info = protocol.info(8.0)
    assert (info.number, info.peer, info.listener) == (1, "192.0.2.7:4711", "memcached")
    assert (info.age_s, info.idle_s) == (8.0, 5.0)
    assert (info.bytes_read, info.bytes_written) == (1, 1)


def test_addresses_are_written_as_people_write_them() -> None:
    from twisted.internet.address import IPv6Address, UNIXAddress

    assert peer_text(PEER) == "192.0.2.7:4711"
    assert peer_text(IPv6Address("TCP", "::1", 5)) == "[::1]:5"
    assert peer_text(UNIXAddress(None)) == "unix"


def test_the_pieces_of_a_pull_are_not_copied_when_there_is_one(node: Node) -> None:
    protocol = node.connect()
    piece = b"x" * 1000
    protocol.session.out.append(piece)
    protocol.session.receive_data = lambda data: None
    protocol.dataReceived(b"y")
    assert protocol.transport.writes[0] is piece


def test_module_limits_are_sane() -> None:
    assert adapter.PULL_BYTES * adapter.PULLS_PER_TURN <= 1 << 20
