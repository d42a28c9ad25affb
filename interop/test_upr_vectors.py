"""Every request vector of the UPR reference, section 9, sent over a socket to a real process.

The server is brought into the state the vectors assume by playing a producer to it: with a takeover
a peer hands over a vBucket together with its failover log, its seqnos and its CAS, and the server
takes them as they are. So nearly every answer is known byte for byte. Not compared: the text behind
an error status, which the reference leaves open, and the opaque of frames the server chooses.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop import upr_wire as u
from interop import wire as w
from interop.conftest import Start
from interop.server_process import ServerProcess
from interop.upr_wire import Frame, UprWire
from interop.wire import HEADER, frame
from tests.golden.upr_frames import VECTORS

PACKETS = {vector.number: vector.packet for vector in VECTORS}

VB = 5
NEW, OLD = 0x0000A1B2C3D4E5F6, 0x00001122334455AA
LOG = struct.pack(">QQQQ", NEW, 100, OLD, 0)
HELLO, JSON = 0x1F, 0x0B

Wires = Iterator[UprWire]


@pytest.fixture(scope="module")
def module_server(
    start: Start, tmp_path_factory: pytest.TempPathFactory, peer: str
) -> Iterator[ServerProcess]:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    with start(tmp_path_factory.mktemp("data"), "--vbuckets", "16") as process:
        yield process
        process.stop()


@pytest.fixture
def kv(module_server: ServerProcess) -> Wires:
    """For documents and vBuckets, beside the connection of the test; vBucket 5 is new and empty."""
    assert module_server.upr is not None
    with UprWire(module_server.upr) as connection:
        connection.command(frame(u.START_PERSISTENCE))
        connection.remake(VB, u.REPLICA)
        yield connection
        connection.command(frame(u.START_PERSISTENCE))
    assert module_server.running, module_server.log()


@pytest.fixture
def wire(module_server: ServerProcess, kv: UprWire) -> Wires:
    """The connection that speaks in vectors."""
    assert module_server.upr is not None
    with UprWire(module_server.upr) as connection:
        yield connection


def plain(packet: bytes) -> bytes:
    """A frame without the text of an error, which is nobody's contract."""
    found = Frame.of(packet)
    if found.is_reply and found.number not in (w.OK, u.ROLLBACK):
        return frame(found.opcode, opaque=found.opaque, vbucket=found.number, magic=w.RESPONSE)
    return packet


def expect(wire: UprWire, name: str, **fields: int) -> None:
    """The next frame must be this vector, but for the header's fields that are given."""
    assert plain(wire.frame().packet).hex() == with_header(PACKETS[name], **fields).hex(), name


def talk(wire: UprWire, request: str, reply: str) -> None:
    wire.send(PACKETS[request])
    expect(wire, reply)


def with_header(packet: bytes, **fields: int) -> bytes:
    """The frame with another ``datatype``, ``opaque`` or ``cas``."""
    *head, datatype, number, size, opaque, cas = HEADER.unpack_from(packet)
    datatype, opaque = fields.get("datatype", datatype), fields.get("opaque", opaque)
    header = HEADER.pack(*head, datatype, number, size, opaque, fields.get("cas", cas))
    return header + packet[HEADER.size :]


def hand_over(
    server: ServerProcess, vbucket: int, log: bytes, end: int, changes: list[bytes]
) -> None:
    """Play a producer that a consumer of the server takes a vBucket over from."""
    assert server.upr is not None
    with UprWire(server.upr) as producer:
        producer.open(b"hand-over", u.CONSUMER)
        extras = struct.pack(">I", u.TAKEOVER)
        producer.send(frame(u.ADD_STREAM, extras=extras, vbucket=vbucket, opaque=1))
        asked = producer.until(u.STREAM_REQUEST)[-1]
        opaque = asked.opaque
        producer.send(frame(u.STREAM_REQUEST, value=log, opaque=opaque, magic=w.RESPONSE))
        assert producer.until(u.ADD_STREAM)[-1].number == w.OK
        producer.send(u.marker(vbucket, opaque, 0, end, u.MEMORY | u.ACK))
        producer.send(*(with_header(change, opaque=opaque) for change in changes))
        assert producer.until(u.SNAPSHOT_MARKER)[-1].is_reply
        for state in (u.PENDING, u.ACTIVE):
            request = frame(u.SET_STATE, extras=bytes([state]), vbucket=vbucket, opaque=opaque)
            producer.command(request)
        extras = struct.pack(">I", u.END_OK)
        producer.send(frame(u.STREAM_END, extras=extras, vbucket=vbucket, opaque=opaque))
        producer.expect_no_frame()


def filler(*seqnos: int) -> list[bytes]:
    return [u.mutation(VB, 0, seqno, b"fill-%d" % seqno, b"") for seqno in seqnos]


@pytest.fixture
def young(module_server: ServerProcess, kv: UprWire) -> UprWire:
    """vBucket 5 with both entries of the log, a document and a deletion, in memory only."""
    kv.command(frame(u.STOP_PERSISTENCE))
    changes = [*filler(10), PACKETS["V9q"], PACKETS["V10q"]]
    hand_over(module_server, VB, LOG, 12, changes)
    return kv


def opened(wire: UprWire) -> UprWire:
    """After the exchange V1."""
    talk(wire, "V1q", "V1r")
    return wire


# --- opening, control, failover log -----------------------------------------------------------


def test_v1_opens_a_producer(wire: UprWire) -> None:
    talk(wire, "V1q", "V1r")
    wire.expect_no_frame()


def test_v2_opens_a_consumer(wire: UprWire) -> None:
    talk(wire, "V2q", "V2r")
    wire.expect_no_frame()


def test_v3_sets_the_size_of_the_buffer(wire: UprWire, kv: UprWire) -> None:
    talk(opened(wire), "V3q", "V3r")
    assert kv.texts(b"upr")["eq_uprq:idx:1:max_buffer_bytes"] == "1024"


@pytest.mark.acceptance("D24")
def test_v4_tells_both_entries_of_the_failover_log(wire: UprWire, young: UprWire) -> None:
    talk(opened(wire), "V4q", "V4r")


@pytest.mark.acceptance("D24")
def test_v20_asks_for_a_vbucket_that_is_not_here(wire: UprWire) -> None:
    talk(opened(wire), "V20q", "V20r")
    wire.expect_no_frame()


# --- streams ----------------------------------------------------------------------------------


@pytest.mark.acceptance("P14")
def test_v5_v8_v9_v10_stream_a_document_and_a_deletion(wire: UprWire, young: UprWire) -> None:
    wire.command(frame(HELLO, b"vectors", struct.pack(">H", JSON)))
    talk(opened(wire), "V5q", "V5r")
    for name in ("V8q", "V9q", "V10q"):
        expect(wire, name)
    wire.expect_no_frame()


@pytest.mark.acceptance("P08", "P18")
def test_v6_sends_an_old_branch_back_to_where_the_new_one_begins(
    wire: UprWire, young: UprWire
) -> None:
    talk(opened(wire), "V6q", "V6r")


def test_v7_start_above_end_is_out_of_range(wire: UprWire, young: UprWire) -> None:
    talk(opened(wire), "V7q", "V7r")


def test_v12_v13_come_with_their_times_where_that_was_asked(
    module_server: ServerProcess, wire: UprWire, kv: UprWire
) -> None:
    changes = [*filler(11), PACKETS["V13q"], PACKETS["V12q"]]
    hand_over(module_server, VB, LOG, 13, changes)
    wire.open(b"timed", u.PRODUCER | u.DELETE_TIMES)
    wire.control(b"enable_expiry_opcode", b"true")
    talk(wire, "V5q", "V5r")
    got = wire.until(u.EXPIRATION)
    assert [found.packet.hex() for found in got[-2:]] == [
        PACKETS["V13q"].hex(),
        PACKETS["V12q"].hex(),
    ]


def test_v11_is_taken_from_a_producer_of_2014_and_never_sent(
    module_server: ServerProcess, wire: UprWire, kv: UprWire
) -> None:
    hand_over(module_server, VB, LOG, 13, [*filler(12), PACKETS["V11q"]])
    talk(opened(wire), "V5q", "V5r")
    gone = wire.until(u.DELETION)[-1]
    assert (gone.seqno, gone.key, gone.cas) == (13, b"ttl", 0x2122232425262728)
    assert len(gone.extras) == 18


@pytest.mark.acceptance("D33")
def test_v14_v21_v22_a_new_state_ends_the_stream_and_is_told(wire: UprWire, young: UprWire) -> None:
    talk(opened(wire), "V5q", "V5r")
    wire.until(u.DELETION)
    talk(young, "V21q", "V21r")
    expect(wire, "V14q")
    talk(young, "V22q", "V22r")


def test_v15_noops_are_answered_by_both_sides(wire: UprWire) -> None:
    talk(opened(wire), "V15q", "V15r")
    wire.control(b"enable_noop", b"true")
    wire.control(b"set_noop_interval", b"0.1")
    for _ in range(2):  # the second comes only because the first was answered
        probe = wire.frame()
        expected = with_header(PACKETS["V15q"], opaque=probe.opaque)
        assert probe.packet == expected
        wire.send(with_header(PACKETS["V15r"], opaque=probe.opaque))


def test_v16_an_ack_has_no_answer(wire: UprWire) -> None:
    talk(opened(wire), "V3q", "V3r")
    wire.send(PACKETS["V16q"])
    wire.expect_no_frame()


def test_v18_closes_a_stream(wire: UprWire, young: UprWire) -> None:
    talk(opened(wire), "V5q", "V5r")
    wire.until(u.DELETION)
    talk(wire, "V18q", "V18r")
    young.put(VB, b"later")
    wire.expect_no_frame()


def test_v29_v30_the_first_generation_is_recognised(wire: UprWire, young: UprWire) -> None:
    opened(wire).send(PACKETS["V29q"])
    expect(wire, "V5r", opaque=0x1003)
    expect(wire, "V30q")
    for name in ("V9q", "V10q"):
        expect(wire, name, opaque=0x1003, datatype=0)  # nobody said HELLO
    wire.expect_no_frame()


# --- the consumer's side ----------------------------------------------------------------------


def test_v17_v19_a_manager_adds_a_stream_and_the_producer_changes_the_state(
    wire: UprWire, kv: UprWire
) -> None:
    talk(wire, "V2q", "V2r")
    wire.send(PACKETS["V17q"])
    frames = wire.until(u.STREAM_REQUEST)
    assert [(found.opcode, found.key) for found in frames] == [
        (u.CONTROL, b"connection_buffer_size"),
        (u.CONTROL, b"enable_noop"),
        (u.CONTROL, b"max_marker_version"),
        (u.CONTROL, b"uprmc_terms"),
        (u.CONTROL, b"uprmc_vbucket_facts"),
        (u.CONTROL, b"uprmc_origins"),
        (u.STREAM_REQUEST, b""),
    ]
    asked = frames[-1]
    assert asked.number == VB
    flags, _, begin, end, uuid, *snapshot = struct.unpack(">IIQQQQQ", asked.extras)
    assert (flags, begin, end, snapshot) == (u.TAKEOVER, 0, u.NEVER, [0, 0])
    assert 0 < uuid < 2**48
    wire.send(with_header(PACKETS["V5r"], opaque=asked.opaque))
    expect(wire, "V17r")
    wire.send(with_header(PACKETS["V19q"], opaque=asked.opaque))
    expect(wire, "V19r", opaque=asked.opaque)
    value = kv.command(frame(u.GET_VBUCKET, vbucket=VB)).value
    assert value == struct.pack(">I", u.PENDING)
    log = kv.texts(b"failovers 5")
    assert [log["vb_5:0:id"], log["vb_5:1:id"]] == [str(NEW), str(OLD)]


# --- vBuckets and metadata ------------------------------------------------------------------


def test_v23_tells_how_far_each_active_vbucket_is(
    module_server: ServerProcess, wire: UprWire, kv: UprWire
) -> None:
    numbers = [number for number in kv.high_seqnos() if number not in (0, VB)]
    try:
        for number in numbers:
            kv.set_state(number, u.REPLICA)
        kv.remake(0, u.REPLICA)
        last = u.mutation(0, 0, 21_554, b"last", b"")
        hand_over(module_server, 0, LOG, 21_554, [last])
        hand_over(module_server, VB, LOG, 12, filler(12))
        talk(wire, "V23q", "V23r")
    finally:
        for number in numbers:
            kv.set_state(number, u.ACTIVE)


def test_v24_v25_v27_a_version_made_elsewhere_keeps_its_metadata(
    wire: UprWire, kv: UprWire
) -> None:
    kv.remake(VB)
    talk(wire, "V24q", "V24r")
    talk(wire, "V25q", "V25r")
    kv.wait_until_persisted(VB, 1)
    wire.send(PACKETS["V27q"])
    answer = wire.frame()
    expected = with_header(PACKETS["V27r"], cas=answer.cas)  # how long it takes, in halves
    assert answer.packet.hex() == expected.hex()


def test_v26_a_client_of_the_old_branch_learns_of_the_new_one(
    module_server: ServerProcess, wire: UprWire, kv: UprWire
) -> None:
    hand_over(module_server, VB, LOG, 110, filler(110))
    kv.wait_until_persisted(VB, 110)
    kv.command(frame(u.STOP_PERSISTENCE))
    for number in range(2):
        kv.put(VB, b"later-%d" % number)
    talk(wire, "V26q", "V26r")


def test_v28_compacts(wire: UprWire, kv: UprWire) -> None:
    kv.remake(VB)
    talk(wire, "V28q", "V28r")


def test_every_vector_is_in_a_test_here() -> None:
    """One that is added to the list has to be added here."""
    source = Path(__file__).read_text()
    assert [name for name in PACKETS if f'"{name}"' not in source] == []
