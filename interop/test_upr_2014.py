"""What the test suite of July 2014 asserted of a UPR server, as conversations over sockets.

The process runs with ``upr.rollback_rule=3.0.0`` and ``upr.add_stream_on_active=true``, as that
suite needs it; where today's rule answers otherwise, both are asked. Behaviour is that of the UPR
reference (marks "[run]" and "the 2014 suite expects"), each test says which section.

Proves: frames out of place end a connection, misshapen ones do not; streams end, are closed in the
middle and counted against the peer's buffer as then; statistics have the names of then.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from interop import upr_wire as u
from interop import wire as w
from interop.conftest import Start
from interop.server_process import ServerProcess
from interop.upr_wire import Frame, Mirror, UprWire
from interop.waiting import wait_until
from interop.wire import frame

RULES_OF_2014 = ("--set", "upr.rollback_rule=3.0.0", "--set", "upr.add_stream_on_active=true")
VB = 1
ADD = struct.pack(">I", 0)

Connect = Callable[[], UprWire]


@pytest.fixture(scope="module")
def module_server(
    start: Start, tmp_path_factory: pytest.TempPathFactory, peer: str
) -> Iterator[ServerProcess]:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    data = tmp_path_factory.mktemp("data")
    with start(data, "--vbuckets", "16", *RULES_OF_2014) as process:
        yield process
        process.stop()


@pytest.fixture
def connect(module_server: ServerProcess) -> Iterator[Connect]:
    """``connect()``: one more connection to the ``upr`` listener."""
    made: list[UprWire] = []

    def run() -> UprWire:
        assert module_server.upr is not None
        made.append(UprWire(module_server.upr))
        return made[-1]

    yield run
    for connection in made:
        connection.close()
    assert module_server.running, module_server.log()


@pytest.fixture
def kv(connect: Connect) -> UprWire:
    """For documents and vBuckets; vBucket 1 is new and empty."""
    connection = connect()
    connection.remake(VB)
    return connection


@pytest.fixture
def wire(connect: Connect, kv: UprWire) -> UprWire:
    """Opened as a peer that is fed."""
    connection = connect()
    connection.open(b"mystream")
    return connection


def ends(frames: list[Frame]) -> list[int]:
    return [found.reason for found in frames if found.opcode == u.STREAM_END]


def changes(frames: list[Frame]) -> list[Frame]:
    return [found for found in frames if found.opcode in (u.MUTATION, u.DELETION, u.EXPIRATION)]


# --- 2: frames out of place -------------------------------------------------------------------

BEFORE_OPEN = {
    "add stream": frame(u.ADD_STREAM, extras=ADD, vbucket=VB),
    "close stream": frame(u.CLOSE_STREAM, vbucket=VB),
    "stream request": frame(u.STREAM_REQUEST, extras=bytes(48), vbucket=VB),
    "failover log": frame(u.GET_FAILOVER_LOG, vbucket=VB),
    "buffer ack": frame(u.BUFFER_ACK, extras=ADD),
    "control": frame(u.CONTROL, b"enable_noop", b"true"),
}
TO_A_PRODUCER = {
    "add stream": frame(u.ADD_STREAM, extras=ADD, vbucket=VB),
    "stream end": frame(u.STREAM_END, extras=ADD, vbucket=VB),
    "marker": u.marker(VB, 0, 0, 1, u.MEMORY),
    "mutation": u.mutation(VB, 0, 1, b"k", b"v"),
}
TO_A_CONSUMER = {
    "stream request": frame(u.STREAM_REQUEST, extras=bytes(48), vbucket=VB),
    "failover log": frame(u.GET_FAILOVER_LOG, vbucket=VB),
    "buffer ack": frame(u.BUFFER_ACK, extras=ADD),
    "control": frame(u.CONTROL, b"enable_noop", b"true"),
}


@pytest.mark.parametrize("request_", BEFORE_OPEN.values(), ids=BEFORE_OPEN)
def test_before_open_it_hangs_up_without_a_word(connect: Connect, request_: bytes) -> None:
    connection = connect()
    connection.send(request_)
    connection.expect_closed()


@pytest.mark.parametrize("request_", TO_A_PRODUCER.values(), ids=TO_A_PRODUCER)
def test_what_only_consumers_get_ends_a_producer(connect: Connect, request_: bytes) -> None:
    connection = connect()
    connection.open(b"mystream")
    connection.send(request_)
    connection.expect_closed()


@pytest.mark.parametrize("request_", TO_A_CONSUMER.values(), ids=TO_A_CONSUMER)
def test_what_only_producers_get_ends_a_consumer(connect: Connect, request_: bytes) -> None:
    connection = connect()
    connection.open(b"mystream", u.CONSUMER)
    connection.send(request_)
    connection.expect_closed()


@pytest.mark.parametrize("flags", [u.PRODUCER, u.CONSUMER, u.NOTIFIER])
def test_a_second_open_on_the_same_connection_ends_it(connect: Connect, flags: int) -> None:
    connection = connect()
    connection.open(b"mystream", flags)
    connection.send(frame(u.OPEN, b"mystream", extras=struct.pack(">II", 0, flags)))
    connection.expect_closed()


@pytest.mark.parametrize("flags", [u.PRODUCER, u.CONSUMER, u.NOTIFIER])
def test_the_newer_of_two_connections_of_a_name_stays(connect: Connect, flags: int) -> None:
    older, newer = connect(), connect()
    older.open(b"mystream", flags)
    newer.open(b"mystream", flags)
    older.expect_closed()
    newer.expect_no_frame()


def misshapen() -> dict[str, bytes]:
    """Frames of the wrong shape, by what is wrong."""
    opening = struct.pack(">II", 0, 1)
    return {
        "open without a name": frame(u.OPEN, extras=opening),
        "open without extras": frame(u.OPEN, b"name"),
        "open with 4 bytes of extras": frame(u.OPEN, b"name", extras=opening[:4]),
        "stream request of 24 bytes": frame(u.STREAM_REQUEST, extras=bytes(24)),
        "stream request with a key": frame(u.STREAM_REQUEST, b"k", extras=bytes(48)),
        "close stream with extras": frame(u.CLOSE_STREAM, extras=ADD),
        "close stream with a key": frame(u.CLOSE_STREAM, b"k"),
        "failover log with a value": frame(u.GET_FAILOVER_LOG, value=b"v"),
        "ack of 8 bytes": frame(u.BUFFER_ACK, extras=bytes(8)),
        "control without a value": frame(u.CONTROL, b"enable_noop"),
        "control without a key": frame(u.CONTROL, value=b"true"),
        "add stream without flags": frame(u.ADD_STREAM, vbucket=VB),
        "marker of 12 bytes": frame(u.SNAPSHOT_MARKER, extras=bytes(12), vbucket=VB),
        "mutation without a key": frame(u.MUTATION, extras=bytes(31), vbucket=VB),
        "deletion with a value": frame(u.DELETION, b"k", b"v", bytes(18), vbucket=VB),
        "state of 4 bytes": frame(u.SET_STATE, extras=ADD, vbucket=VB),
        "noop with a body": frame(u.UPR_NOOP, value=b"v"),
    }


@pytest.mark.parametrize("what", misshapen())
def test_misshapen_frames_are_invalid_and_the_connection_goes_on(
    connect: Connect, what: str
) -> None:
    connection = connect()
    if not what.startswith("open"):
        connection.open(b"mystream")
    answer = connection.call(misshapen()[what])
    assert answer.number == w.INVALID
    connection.expect_no_frame()


# --- 2.1, 2.11: what a connection may ask for -------------------------------------------------


def test_the_controls_of_2014_and_of_the_go_feeds_are_accepted(wire: UprWire) -> None:
    for name, value in (
        (b"connection_buffer_size", b"1024"),
        (b"enable_noop", b"true"),
        (b"set_noop_interval", b"120"),
        (b"set_priority", b"high"),
    ):
        wire.control(name, value)


def test_unknown_controls_are_invalid_and_a_buffer_for_each_stream_unsupported(
    wire: UprWire,
) -> None:
    assert wire.call(frame(u.CONTROL, b"no_such_thing", b"true")).number == w.INVALID
    assert wire.call(frame(u.CONTROL, b"connection_buffer_siz", b"1")).number == w.INVALID
    assert wire.call(frame(u.CONTROL, b"connection_buffer_size", b"x")).number == w.INVALID
    answer = wire.call(frame(u.CONTROL, b"stream_buffer_size", b"1024"))
    assert answer.number == u.NOT_SUPPORTED


# --- 4.3: streams -----------------------------------------------------------------------------


@pytest.mark.acceptance("P13")
def test_a_stream_begins_after_its_answer_and_ends_where_it_should(
    wire: UprWire, kv: UprWire
) -> None:
    kv.put_many(VB, [(b"%d" % number, b"v") for number in range(10)])
    mirror = Mirror()
    mirror.begin(VB, wire.stream(VB, end=10))
    frames = wire.until(u.STREAM_END)
    for found in frames:
        mirror.take(found)
    assert [change.seqno for change in changes(frames)] == list(range(1, 11))
    assert ends(frames) == [u.END_OK]


@pytest.mark.acceptance("I06")
def test_it_ends_only_after_the_snapshot_that_contains_the_end(wire: UprWire, kv: UprWire) -> None:
    for number in range(101):
        kv.put(VB, b"same", b"%d" % number)
    assert wire.stream(VB, end=100).number == w.OK
    frames = wire.until(u.STREAM_END)
    assert [(change.seqno, change.value) for change in changes(frames)] == [(101, b"100")]
    assert ends(frames) == [u.END_OK]


def test_an_end_that_is_reached_already_ends_at_once(wire: UprWire, kv: UprWire) -> None:
    kv.put_many(VB, [(b"a", b""), (b"b", b"")])
    uuid = wire.log_of(VB)[0][0]
    assert wire.stream(VB, 2, 2, uuid).number == w.OK
    assert ends([wire.frame()]) == [u.END_OK]
    assert wire.stream(VB, flags=u.LATEST, end=1).number == w.OK
    assert changes(wire.until(u.STREAM_END))[-1].seqno == 2


def test_closing_after_the_first_frame_is_heard_before_the_end(wire: UprWire, kv: UprWire) -> None:
    """Section 8: [run] it fails when the server pushes everything into the kernel.

    What the kernel has taken cannot be taken back, so it is a race between the peer and a server
    that begins gently; on a machine that is busy otherwise the peer may lose many. A server that
    pushes everything wins them all.
    """
    kv.put_many(VB, [(b"%04d" % number, b"x" * 256) for number in range(1_000)])
    assert any(closed_in_time(wire) for _ in range(200))
    assert wire.call(frame(u.CLOSE_STREAM, vbucket=VB)).number == w.NOT_FOUND
    assert wire.stream(VB, flags=u.LATEST).number == w.OK
    assert changes(wire.until(u.STREAM_END))[-1].seqno == 1_000


def closed_in_time(wire: UprWire) -> bool:
    """Begin a stream and close it when the first frame is there; was it closed before its end?"""
    assert wire.stream(VB, end=1_000).number == w.OK
    wire.frame()
    wire.send(frame(u.CLOSE_STREAM, vbucket=VB, opaque=7))
    frames = wire.until(u.CLOSE_STREAM)
    assert frames[-1].opaque == 7
    if ends(frames):
        assert frames[-1].number == w.NOT_FOUND
        return False
    assert frames[-1].number == w.OK
    assert len(frames) < 1_000
    return True


def test_statuses_of_requests_that_cannot_be_served(wire: UprWire, kv: UprWire) -> None:
    kv.put(VB, b"one")
    uuid = wire.log_of(VB)[0][0]
    assert wire.stream(900).number == u.NOT_MY_VBUCKET
    assert wire.stream(VB, 9, 3, uuid).number == u.RANGE_ERROR
    assert wire.stream(VB, 9, u.NEVER, uuid, (10, 12)).number == u.RANGE_ERROR
    assert wire.stream(VB, 9, u.NEVER, uuid, (3, 8)).number == u.RANGE_ERROR
    assert wire.call(frame(u.CLOSE_STREAM, vbucket=VB)).number == w.NOT_FOUND
    assert wire.stream(VB).number == w.OK
    wire.until(u.MUTATION)
    assert wire.stream(VB).number == w.EXISTS


@pytest.mark.acceptance("D33")
@pytest.mark.parametrize("state", [u.REPLICA, u.PENDING, u.DEAD])
def test_every_change_of_state_ends_the_stream(wire: UprWire, kv: UprWire, state: int) -> None:
    assert wire.stream(VB).number == w.OK
    kv.set_state(VB, state)
    assert wire.frame().reason == u.END_STATE
    served = w.OK if state == u.REPLICA else u.NOT_MY_VBUCKET
    assert wire.stream(VB).number == served


def test_an_expired_document_goes_out_as_a_deletion(wire: UprWire, kv: UprWire) -> None:
    kv.command(w.store(w.SET, b"brief", b"v", vbucket=VB, expiration=1))
    assert wire.stream(VB).number == w.OK
    wire.until(u.MUTATION)
    wait_until(lambda: kv.call(frame(w.GET, b"brief", vbucket=VB)).number != w.OK)
    gone = wire.until(u.DELETION, u.EXPIRATION)[-1]
    assert (gone.opcode, gone.key, len(gone.extras)) == (u.DELETION, b"brief", 18)


# --- 3.3: rollback ----------------------------------------------------------------------------


@pytest.mark.acceptance("P08")
def test_a_complete_snapshot_from_before_the_high_seqno_goes_back_to_its_start(
    wire: UprWire, kv: UprWire
) -> None:
    kv.put_many(VB, [(b"%d" % number, b"") for number in range(3)])
    uuid = wire.log_of(VB)[0][0]
    answer = wire.stream(VB, 7, u.NEVER, uuid, (2, 7))
    assert (answer.number, int.from_bytes(answer.value, "big")) == (u.ROLLBACK, 2)


@pytest.mark.acceptance("P08")
def test_by_todays_rule_the_same_goes_back_to_the_high_seqno(
    start: Start, tmp_path_factory: pytest.TempPathFactory, peer: str
) -> None:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    with start(tmp_path_factory.mktemp("today"), "--vbuckets", "16") as process:
        assert process.upr is not None
        with UprWire(process.upr) as wire:
            wire.put_many(VB, [(b"%d" % number, b"") for number in range(3)])
            wire.open()
            uuid = wire.log_of(VB)[0][0]
            answer = wire.stream(VB, 7, u.NEVER, uuid, (2, 7))
            assert (answer.number, int.from_bytes(answer.value, "big")) == (u.ROLLBACK, 3)
        with UprWire(process.upr) as manager:
            manager.open(b"manager", u.CONSUMER)
            answer = manager.call(frame(u.ADD_STREAM, extras=ADD, vbucket=VB))
            assert answer.number == u.NOT_MY_VBUCKET
        process.stop()


def test_flag_latest_is_applied_before_the_checks_as_in_3_0_0(wire: UprWire, kv: UprWire) -> None:
    """Section 2.4: start above the high seqno is out of range here, a rollback today."""
    kv.put(VB, b"one")
    uuid = wire.log_of(VB)[0][0]
    assert wire.stream(VB, 9, u.NEVER, uuid, flags=u.LATEST).number == u.RANGE_ERROR


# --- 4.6: flow control ------------------------------------------------------------------------


def test_a_buffer_of_128_stalls_five_items_and_acks_let_them_through(
    wire: UprWire, kv: UprWire
) -> None:
    kv.put_many(VB, [(b"key%d" % number, b"value") for number in range(5)])
    wire.control(b"connection_buffer_size", b"128")
    wire.request_stream(VB, end=5)
    mirror = Mirror()
    mirror.begin(VB, wire.frame())
    acks = 0
    found = wire.frame()
    while found.opcode != u.STREAM_END:
        mirror.take(found)
        if mirror.counted_bytes - 128 * acks >= 128:
            wire.expect_no_frame()  # it stalls until the ack
            wire.acknowledge(128)
            acks += 1
        found = wire.frame()
    assert acks == 2
    assert mirror.counted_bytes == 44 + 5 * (55 + 4 + 5)
    assert mirror.copies[VB].seqno == 5


def test_more_may_be_acknowledged_than_was_sent(wire: UprWire, kv: UprWire) -> None:
    wire.control(b"connection_buffer_size", b"128")
    for _ in range(3):
        wire.acknowledge(128)
    kv.put(VB, b"key")
    assert wire.stream(VB, end=1).number == w.OK
    assert ends(wire.until(u.STREAM_END)) == [u.END_OK]
    stats = kv.texts(b"upr")
    assert int(stats["eq_uprq:mystream:unacked_bytes"]) == 44 + 55 + 8 + 28
    wire.acknowledge(2**32 - 1)
    wire.expect_no_frame()
    assert kv.texts(b"upr")["eq_uprq:mystream:unacked_bytes"] == "0"


# --- 4.5: notifier ----------------------------------------------------------------------------


def test_a_notifier_gets_one_frame_when_there_is_news(connect: Connect, kv: UprWire) -> None:
    kv.put(VB, b"old")
    notifier = connect()
    notifier.open(b"notifier", u.NOTIFIER)
    uuid = kv.texts(b"failovers 1")["vb_1:0:id"]
    assert notifier.stream(VB, 1, 2, int(uuid), opaque=9).number == w.OK
    notifier.expect_no_frame()
    assert kv.texts(b"upr")["eq_uprq:notifier:type"] == "notifier"
    kv.put(VB, b"new")
    ended = notifier.frame()
    assert (ended.opcode, ended.reason, ended.opaque) == (u.STREAM_END, u.END_OK, 9)
    kv.put(VB, b"newer")
    notifier.expect_no_frame()
    assert notifier.stream(VB, 1, 2, int(uuid)).number == w.OK
    assert notifier.frame().reason == u.END_OK


def test_a_notifier_ahead_of_the_server_waits(connect: Connect, kv: UprWire) -> None:
    """Section 4.5: range checks are skipped and the start is cut to the high seqno."""
    kv.put(VB, b"old")
    notifier = connect()
    notifier.open(b"notifier", u.NOTIFIER)
    uuid = int(kv.texts(b"failovers 1")["vb_1:0:id"])
    assert notifier.stream(VB, 2, 3, uuid).number == w.OK
    kv.put(VB, b"second")
    notifier.expect_no_frame()
    kv.put(VB, b"third")
    assert notifier.frame().reason == u.END_OK


# --- 2.2, 5: a consumer -----------------------------------------------------------------------


def added(manager: UprWire, vbucket: int, *, status: int = w.OK, value: bytes = b"") -> Frame:
    """Add a stream, answer the stream request as a producer would; give the answer."""
    manager.send(frame(u.ADD_STREAM, extras=ADD, vbucket=vbucket, opaque=0xADD))
    asked = manager.until(u.STREAM_REQUEST)[-1]
    manager.send(
        frame(
            u.STREAM_REQUEST,
            value=value or (struct.pack(">QQ", 0xBEEF, 0) if status == w.OK else b""),
            opaque=asked.opaque,
            vbucket=status,
            magic=w.RESPONSE,
        )
    )
    answer = manager.frame()
    assert (answer.opcode, answer.opaque) == (u.ADD_STREAM, 0xADD)
    return answer


@pytest.mark.parametrize("state", [u.ACTIVE, u.REPLICA])
def test_a_stream_is_added_to_active_and_replica_vbuckets(
    connect: Connect, kv: UprWire, state: int
) -> None:
    kv.remake(VB, state)
    manager = connect()
    manager.open(b"manager", u.CONSUMER)
    assert added(manager, VB).number == w.OK
    answer = manager.call(frame(u.ADD_STREAM, extras=ADD, vbucket=VB))
    assert answer.number == w.EXISTS
    answer = manager.call(frame(u.ADD_STREAM, extras=ADD, vbucket=900))
    assert answer.number == u.NOT_MY_VBUCKET


def test_a_closed_stream_of_a_consumer_is_listed_as_dead(connect: Connect, kv: UprWire) -> None:
    kv.remake(VB, u.REPLICA)
    manager = connect()
    manager.open(b"manager", u.CONSUMER)
    assert manager.call(frame(u.CLOSE_STREAM, vbucket=VB)).number == w.NOT_FOUND
    added(manager, VB)
    name = "eq_uprq:manager:stream_1_state"
    assert kv.texts(b"upr")[name] == "reading"
    manager.command(frame(u.CLOSE_STREAM, vbucket=VB))
    assert kv.texts(b"upr")[name] == "dead"
    assert manager.call(frame(u.CLOSE_STREAM, vbucket=VB)).number == w.NOT_FOUND
    assert added(manager, VB).number == w.OK


@pytest.mark.parametrize("status", [u.RANGE_ERROR, u.NOT_MY_VBUCKET, w.EXISTS])
def test_the_producers_refusal_is_the_answer_to_the_manager(
    connect: Connect, kv: UprWire, status: int
) -> None:
    kv.remake(VB, u.REPLICA)
    manager = connect()
    manager.open(b"manager", u.CONSUMER)
    answer = added(manager, VB, status=status)
    assert (answer.number, answer.extras) == (status, b"")
    assert kv.texts(b"upr")["eq_uprq:manager:stream_1_state"] == "dead"


def test_a_consumer_asked_to_roll_back_asks_again(connect: Connect, kv: UprWire) -> None:
    kv.put_many(VB, [(b"ours", b"")])
    kv.set_state(VB, u.REPLICA)
    manager = connect()
    manager.open(b"manager", u.CONSUMER)
    manager.send(frame(u.ADD_STREAM, extras=ADD, vbucket=VB, opaque=0xADD))
    first = manager.until(u.STREAM_REQUEST)[-1]
    assert struct.unpack(">IIQQQQQ", first.extras)[2] == 1
    reply = frame(u.STREAM_REQUEST, value=bytes(8), opaque=first.opaque, vbucket=u.ROLLBACK)
    manager.send(bytes([w.RESPONSE]) + reply[1:])
    again = manager.until(u.STREAM_REQUEST)[-1]
    assert (again.opaque, again.number) == (first.opaque, VB)
    assert struct.unpack(">IIQQQQQ", again.extras)[2] == 0
    log = struct.pack(">QQ", 0xBEEF, 0)
    manager.send(frame(u.STREAM_REQUEST, value=log, opaque=again.opaque, magic=w.RESPONSE))
    answer = manager.frame()
    assert (answer.opcode, answer.opaque, answer.number) == (u.ADD_STREAM, 0xADD, w.OK)
    assert u.item_counts(kv)[VB] == 0


def test_items_of_unknown_streams_and_out_of_order_are_refused(
    connect: Connect, kv: UprWire
) -> None:
    kv.remake(VB, u.REPLICA)
    manager = connect()
    manager.open(b"manager", u.CONSUMER)
    answer = manager.call(u.mutation(VB, 1, 1, b"k", b"v"))
    assert answer.number == w.NOT_FOUND
    stream = int.from_bytes(added(manager, VB).extras, "big")
    manager.send(u.marker(VB, stream, 1, 5, u.MEMORY), u.mutation(VB, stream, 4, b"k", b"v"))
    manager.expect_no_frame()
    assert manager.call(u.mutation(VB, stream, 4, b"k", b"w")).number == u.RANGE_ERROR
    assert manager.call(u.mutation(VB, stream + 1, 5, b"k", b"w")).number == w.NOT_FOUND
    manager.send(u.mutation(VB, stream, 5, b"l", b"x"))
    manager.expect_no_frame()
    assert kv.high_seqnos()[VB] == 5


def test_a_log_of_a_wrong_length_ends_the_consumer(connect: Connect, kv: UprWire) -> None:
    kv.remake(VB, u.REPLICA)
    manager = connect()
    manager.open(b"manager", u.CONSUMER)
    manager.send(frame(u.ADD_STREAM, extras=ADD, vbucket=VB))
    asked = manager.until(u.STREAM_REQUEST)[-1]
    answer = frame(u.STREAM_REQUEST, value=bytes(15), opaque=asked.opaque, magic=w.RESPONSE)
    manager.send(answer)
    manager.expect_closed()


# --- 6.1: statistics --------------------------------------------------------------------------

OF_ALL = ("count", "producer_count", "total_bytes", "total_queue", "queue_fill", "items_sent")
OF_A_CONNECTION = ("type", "created", "connected", "pending_disconnect", "reserved", "supports_ack")
OF_A_PRODUCER = (
    *("items_sent", "items_remaining", "total_bytes_sent", "last_sent_time", "noop_enabled"),
    *("noop_wait", "flow_control", "max_buffer_bytes", "unacked_bytes", "total_acked_bytes"),
)
OF_ITS_STREAM = (
    *("flags", "opaque", "start_seqno", "end_seqno", "vb_uuid", "snap_start_seqno"),
    *("snap_end_seqno", "state", "backfilled", "memory", "last_sent_seqno", "items_ready"),
)
OF_A_CONSUMERS_STREAM = (
    *("flags", "opaque", "state", "buffer_items", "buffer_bytes", "last_received_seqno"),
    *("cur_snapshot_type", "cur_snapshot_start", "cur_snapshot_end"),
    *("start_seqno", "end_seqno", "vb_uuid", "snap_start_seqno", "snap_end_seqno"),
)


def missing(stats: dict[str, str], prefix: str, *names: str) -> list[str]:
    return [prefix + name for name in names if prefix + name not in stats]


@pytest.mark.acceptance("D39")
@pytest.mark.parametrize("era", ["upr", "dcp"])
def test_statistics_of_connections_have_the_names_of_both_eras(
    connect: Connect, wire: UprWire, kv: UprWire, era: str
) -> None:
    kv.put(VB, b"key")
    assert wire.stream(VB, opaque=77).number == w.OK
    wire.until(u.MUTATION)
    prefix = f"eq_{era}q:mystream:"
    stats = kv.texts(era.encode())
    assert missing(stats, f"ep_{era}_", *OF_ALL, "items_remaining") == []
    assert stats[f"ep_{era}_items_remaining"] == "0"
    assert missing(stats, prefix, *OF_A_CONNECTION, *OF_A_PRODUCER) == []
    assert missing(stats, prefix + "stream_1_", *OF_ITS_STREAM) == []
    assert stats[prefix + "stream_1_opaque"] == "77"
    assert stats[prefix + "stream_1_last_sent_seqno"] == "1"
    kv.remake(VB, u.REPLICA)
    manager = connect()
    manager.open(b"manager", u.CONSUMER)
    added(manager, VB)
    stats = kv.texts(era.encode())
    prefix = f"eq_{era}q:manager:"
    assert missing(stats, prefix, *OF_A_CONNECTION, "total_backoffs") == []
    assert missing(stats, prefix + "stream_1_", *OF_A_CONSUMERS_STREAM) == []


def test_a_consumers_stream_shows_what_its_source_was_asked_for(
    connect: Connect, kv: UprWire
) -> None:
    kv.put_many(VB, [(b"%d" % number, b"") for number in range(3)])
    kv.set_state(VB, u.REPLICA)
    manager = connect()
    manager.open(b"manager", u.CONSUMER)
    manager.send(frame(u.ADD_STREAM, extras=ADD, vbucket=VB))
    asked = manager.until(u.STREAM_REQUEST)[-1]
    _, _, start, end, uuid, snap_start, snap_end = struct.unpack(">IIQQQQQ", asked.extras)
    assert start == 3
    shown = kv.texts(b"upr")
    for name, value in (
        ("start_seqno", start),
        ("end_seqno", end),
        ("vb_uuid", uuid),
        ("snap_start_seqno", snap_start),
        ("snap_end_seqno", snap_end),
    ):
        assert shown[f"eq_uprq:manager:stream_1_{name}"] == str(value)


@pytest.mark.acceptance("D39")
@pytest.mark.parametrize("how", ["end", "closed", "state"])
def test_an_ended_stream_of_a_producer_is_listed_as_dead_with_its_last_figures(
    wire: UprWire, kv: UprWire, how: str
) -> None:
    kv.put_many(VB, [(b"%d" % number, b"") for number in range(4)])
    end = 4 if how == "end" else u.NEVER
    assert wire.stream(VB, end=end, opaque=77).number == w.OK
    for _ in range(4):
        wire.until(u.MUTATION)
    if how == "closed":
        wire.command(frame(u.CLOSE_STREAM, vbucket=VB))
    else:
        if how == "state":
            kv.set_state(VB, u.DEAD)
        wire.until(u.STREAM_END)
    prefix = "eq_uprq:mystream:stream_1_"
    shown = kv.texts(b"upr")
    assert missing(shown, prefix, *OF_ITS_STREAM) == []
    assert shown[prefix + "state"] == "dead"
    assert shown[prefix + "opaque"] == "77"
    assert shown[prefix + "last_sent_seqno"] == "4"
    assert int(shown[prefix + "backfilled"]) + int(shown[prefix + "memory"]) == 4
    assert shown[prefix + "items_ready"] == "false"
    assert shown["eq_uprq:mystream:num_streams"] == "0"
    kv.set_state(VB, u.ACTIVE)
    assert wire.stream(VB, opaque=78).number == w.OK
    shown = kv.texts(b"upr")
    assert shown[prefix + "state"] != "dead"
    assert shown[prefix + "opaque"] == "78"


@pytest.mark.parametrize("words", ["vbucket-seqno", "failovers", "vbucket-details", "checkpoint"])
def test_statistics_of_a_vbucket_that_cannot_be(kv: UprWire, words: str) -> None:
    for number in (b"900", b"100000", b"4294967296"):
        answer = kv.call(frame(w.STAT, words.encode() + b" " + number))
        assert answer.number == u.NOT_MY_VBUCKET, number
    assert kv.call(frame(w.STAT, words.encode() + b" x")).number == w.INVALID
    assert kv.call(frame(w.STAT, b"no-such-group")).number == w.NOT_FOUND


def test_what_is_left_of_a_takeover(wire: UprWire, kv: UprWire) -> None:
    kv.put_many(VB, [(b"%d" % number, b"") for number in range(4)])
    assert wire.stream(VB).number == w.OK
    while wire.frame().opcode != u.MUTATION:
        pass
    left = kv.texts(b"dcp-vbtakeover 1 mystream")
    assert {"status", "estimate", "backfillRemaining", "chk_items", "vb_items"} <= left.keys()
    assert left["vb_items"] == "4"
    gone = kv.texts(b"dcp-vbtakeover 1 nobody")
    assert gone["status"] == "connection_does_not_exist"
