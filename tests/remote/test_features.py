"""What each kind of consumer says first, byte for byte, and which refusals it can live with.

The frames are written out here by hand, from the UPR reference, 2.1 and 2.11.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.upr.link_rig import Script, replica_rig
from tests.upr.peer import CONTROL, HELLO, OPEN, Frame, split
from uprmc import __version__
from uprmc.client.node_session import NodeSession
from uprmc.client.tap_upstream import ProducerSession
from uprmc.client.tap_upstream import handshake as tap_handshake
from uprmc.columnar.access import Access
from uprmc.columnar.reading import LeaseStreams
from uprmc.columnar.schema import Columns
from uprmc.protocol.header import ResponseFrame
from uprmc.remote import features

JSON, XERROR, TERMS, ORIGINS = 0x0B, 0x07, 0x5501, 0x5502

Said = tuple[int, bytes, bytes, bytes]


def said(frames: list[Frame]) -> list[Said]:
    return [(each.opcode, each.key, each.extras, each.value) for each in frames]


def hello(agent: bytes, *features: int) -> Said:
    return HELLO, agent, b"", struct.pack(f">{len(features)}H", *features)


def opening(name: bytes, flags: int) -> Said:
    return OPEN, name, struct.pack(">II", 0, flags), b""


def controls(text: str) -> list[Said]:
    pairs = (line.split() for line in text.strip().splitlines())
    return [(CONTROL, key.encode(), b"", value.encode()) for key, value in pairs]


def carried(task: Iterator[Any], session: NodeSession, status: int = 0) -> list[Frame]:
    """Run a handshake against a producer that gives one answer to everything; what it says."""
    frames: list[Frame] = []
    answers: Any = None
    try:
        while True:
            ask = task.send(answers)  # type: ignore[attr-defined]
            session.ask(ask)
            sent, rest = split(session.data_to_send())
            assert not rest
            frames += sent
            answers = [ResponseFrame(each.opcode, status) for each in sent]
    except StopIteration:
        return frames


class Recorder:
    """Stands in for the connection of `LeaseStreams`: keeps what is asked, accepts everything."""

    place = "node:1"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def ask_all(self, requests: Any) -> list[ResponseFrame]:
        self.asked += requests
        return [ResponseFrame(each.opcode) for each in requests]


def test_a_replica_that_dialled() -> None:
    script = Script(replica_rig(), grant=False)
    assert said(script.sent()) == [
        hello(b"uprmc", JSON, XERROR, TERMS),
        opening(b"repl", 0x21),
        *controls("""
            connection_buffer_size 10485760
            enable_noop true
            set_noop_interval 5
            enable_expiry_opcode true
            max_marker_version 2.2
            uprmc_versions true
            uprmc_persisted true
            uprmc_heals true
            uprmc_vbucket_facts true
            uprmc_origins true
            send_stream_end_on_client_close_stream true
        """),
    ]


@pytest.mark.parametrize(("wants_values", "flags"), [(True, 0x21), (False, 0x29)])
def test_a_program(wants_values: bool, flags: int) -> None:
    session = NodeSession("node:1", "feed", wants_values=wants_values, noop_interval_s=0.5)
    ask = next(session.handshake())
    session.ask(ask)
    sent, _ = split(session.data_to_send())
    assert said(sent[:-1]) == [
        hello(b"feed", JSON, XERROR, TERMS),
        opening(b"feed", flags),
        *controls("""
            connection_buffer_size 8388608
            enable_noop true
            set_noop_interval 0.5
            enable_expiry_opcode true
            send_stream_end_on_client_close_stream true
            max_marker_version 2.2
            uprmc_versions true
            uprmc_barrier true
            uprmc_leases true
            uprmc_snapshots true
            uprmc_stream_requests true
        """),
    ]
    assert sent[-1].opcode == 0xB5


@pytest.mark.parametrize(("values", "flags"), [(True, 0x01), (False, 0x09)])
def test_the_upstream_of_the_tap_adapter(values: bool, flags: int) -> None:
    session = ProducerSession("node:1", 1048576)
    sent = carried(tap_handshake(session, b"eq_tapq:x", 1048576, values=values), session)
    assert said(sent) == [
        hello(b"uprmc tap-adapter/" + __version__.encode(), XERROR),
        opening(b"eq_tapq:x", flags),
        *controls("""
            connection_buffer_size 1048576
            enable_noop true
            set_noop_interval 20
            uprmc_versions true
        """),
    ]


def test_a_reader_of_a_lease() -> None:
    connection: Any = Recorder()
    access = Access(("node:1",), read_timeout_s=30.0)
    streams = LeaseStreams(
        connection, access, Columns(), "a" * 300, lease=1, rows=1, size_bytes=1, no_value=False
    )
    streams._handshake()
    assert [(each.opcode, each.key, each.extras, each.value) for each in connection.asked] == [
        opening(b"a" * 200, 0x21),
        *controls("""
            uprmc_leases true
            connection_buffer_size 10485760
            enable_noop true
            set_noop_interval 10
            enable_expiry_opcode true
            max_marker_version 2.2
            backfill_order sequential
        """),
    ]


def test_questions_of_a_reader_of_leases_begin_with_a_hello_of_their_own() -> None:
    frame = features.LEASE_READER.hello(b"spark")
    asked = hello(b"spark", JSON, XERROR, 0x04, 0x08, TERMS, ORIGINS)
    assert (frame.opcode, frame.key, frame.extras, frame.value) == asked


@pytest.mark.parametrize(
    ("handshake", "fatal"),
    [
        (features.REPLICA, {b"connection_buffer_size", b"enable_noop"}),
        (features.SPLICED_REPLICA, set()),
        (features.PROGRAM, set()),
        (features.TAP_UPSTREAM, set()),
        (features.LEASE_READER, {b"uprmc_leases"}),
    ],
)
def test_only_what_is_needed_ends_a_connection(
    handshake: features.Handshake, fatal: set[bytes]
) -> None:
    refused = {each.key for each in handshake.controls() if handshake.is_fatal(each, 4)}
    assert refused == fatal
    assert handshake.is_fatal(handshake.open(b"name"), 4)
    assert not handshake.is_fatal(handshake.hello(b"agent"), 0x81)
    assert not any(handshake.is_fatal(each, 0) for each in handshake.controls())


@pytest.mark.parametrize(
    ("status", "value", "told"),
    [(0, b"\x00\x07\x55\x01", True), (0, b"\x55", False), (0x81, b"\x55\x01", False)],
)
def test_terms_are_known_only_by_an_answer_that_grants_them(
    status: int, value: bytes, told: bool
) -> None:
    assert features.tells_terms(status, value) is told
