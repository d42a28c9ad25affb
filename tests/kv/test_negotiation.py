"""The first byte decides what a connection speaks, once and for good."""

from __future__ import annotations

import pytest

from tests.kv.binary_peer import answer, error, frame, store
from tests.kv.harness import Rig, talk
from uprmc.kv.session import Negotiation
from uprmc.kv.text import TextSession
from uprmc.kv.upr_session import ClientSession
from uprmc.ports import Session

GET, SET, NOOP, VERSION = 0x00, 0x01, 0x0A, 0x0B


class Connection:
    """What the adapter does with a session that has a successor."""

    def __init__(self, rig: Rig, *, by_key: bool = True) -> None:
        self.session: Session = Negotiation(rig.services, rig.wake, by_key=by_key)

    def say(self, data: bytes) -> bytes:
        self.session.receive_data(data)
        if self.session.successor is not None:
            self.session = self.session.successor
        return talk(self.session, b"")


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(
    ("request_", "reply", "kind"),
    [
        (frame(NOOP), answer(NOOP), ClientSession),
        (frame(VERSION), answer(VERSION, value=b"1.2.3"), ClientSession),
        (b"version\r\n", b"VERSION 1.2.3\r\n", TextSession),
        (b"mn\r\n", b"MN\r\n", TextSession),
        (b"\r\n", b"ERROR\r\n", TextSession),
        (b"\x81" + frame(GET, b"k")[1:] + b"\n", b"ERROR\r\n", TextSession),
        (b"\x00 \x80\n", b"ERROR\r\n", TextSession),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 1_000])
def test_the_first_byte_decides(
    rig: Rig, request_: bytes, reply: bytes, kind: type, step: int
) -> None:
    connection = Connection(rig)
    said = b"".join(
        connection.say(request_[place : place + step]) for place in range(0, len(request_), step)
    )
    assert said == reply
    assert isinstance(connection.session, kind)


def test_nothing_is_decided_before_the_first_byte(rig: Rig) -> None:
    session = Negotiation(rig.services, rig.wake, by_key=True)
    session.receive_data(b"")
    session.tick(1.0)
    assert session.data_to_send(100) == []
    assert session.successor is None
    assert (session.closing, session.input_full) == (False, False)
    session.connection_lost()


@pytest.mark.parametrize("step", [1, 1_000])
def test_a_client_that_speaks_tls_gets_an_error_at_once_and_is_closed(rig: Rig, step: int) -> None:
    """Its first message is shorter than a line may be, and has no end of a line."""
    hello = bytes.fromhex("16 03 01 0005 01 000001 03")
    connection = Connection(rig)
    pieces = [hello[place : place + step] for place in range(0, len(hello), step)]
    assert connection.say(pieces[0]) == b"ERROR\r\n"
    assert connection.session.closing
    assert [connection.say(piece) for piece in pieces[1:]] == [b""] * (len(pieces) - 1)
    assert connection.session.successor is None
    assert rig.misuse == ["TLS at a listener without it"]


def test_the_rest_of_the_header_may_come_later(rig: Rig) -> None:
    connection = Connection(rig)
    assert connection.say(frame(NOOP)[:2]) == b""
    assert connection.say(frame(NOOP)[2:]) == answer(NOOP)


def test_text_on_a_binary_connection_closes_it_without_a_word(rig: Rig) -> None:
    connection = Connection(rig)
    assert connection.say(frame(NOOP) + b"get something quite long\r\n") == answer(NOOP)
    assert connection.session.closing


def test_a_binary_packet_on_a_text_connection_is_just_a_strange_line(rig: Rig) -> None:
    connection = Connection(rig)
    assert connection.say(b"version\r\n") == b"VERSION 1.2.3\r\n"
    assert connection.say(frame(GET, b"k")) == b""
    assert connection.say(b"\nversion\r\n") == b"ERROR\r\nVERSION 1.2.3\r\n"


@pytest.mark.parametrize("by_key", [False, True])
def test_the_listener_decides_what_the_vbucket_field_means(rig: Rig, by_key: bool) -> None:
    connection = Connection(rig, by_key=by_key)
    connection.say(store(SET, b"k", b"v", vbucket=1))
    said = connection.say(frame(GET, b"k", vbucket=3))
    assert (said == error(GET, 1)) is not by_key


def test_both_protocols_see_the_same_documents(rig: Rig) -> None:
    text, binary = Connection(rig), Connection(rig)
    assert text.say(b"set k 4294967295 0 3\r\nabc\r\n") == b"STORED\r\n"
    item = rig.item(b"k")
    assert item is not None
    assert binary.say(frame(GET, b"k")) == answer(
        GET, extras=b"\xff" * 4, value=b"abc", cas=item.cas
    )
    binary.say(store(SET, b"k", b"", flags=1))
    assert text.say(b"get k\r\n") == b"VALUE k 1 0\r\n\r\nEND\r\n"
