"""A peer that does not read: it costs bounded memory, and gets everything in order afterwards."""

from __future__ import annotations

import pytest

from tests.kv.harness import Rig, talk
from uprmc.kv.text import TextSession

LIMIT = 64 * 1024
VALUE_BYTES = 10_000


@pytest.fixture
def rig() -> Rig:
    rig = Rig(kv__max_unsent_bytes=LIMIT)
    talk(rig.text(), b"set v 0 0 %d\r\n%b\r\n" % (VALUE_BYTES, b"v" * VALUE_BYTES))
    talk(rig.text(), b"set n 0 0 1\r\n0\r\nset s 0 0 3\r\nabc\r\n")
    return rig


ONE = b"VALUE v 0 %d\r\n%b\r\n" % (VALUE_BYTES, b"v" * VALUE_BYTES)
SMALL = b"VALUE s 0 3\r\nabc\r\nEND\r\n"


def read_slowly(session: TextSession, budget: int) -> bytes:
    """Take what is there in portions, watching the limit."""
    taken = b""
    while True:
        assert session._unsent <= LIMIT + VALUE_BYTES + 100
        pieces = session.data_to_send(budget)
        if not pieces:
            return taken
        taken += b"".join(pieces)


@pytest.mark.parametrize("budget", [1, 1_000, 64 * 1024])
@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (b"get v\r\n", ONE + b"END\r\n"),
        (b"get v v v\r\n", ONE * 3 + b"END\r\n"),
        (b"gat 0 v v\r\n", ONE * 2 + b"END\r\n"),
        (b"get s\r\n" * 20, SMALL * 20),
    ],
)
def test_replies_stop_at_the_limit_and_none_is_lost(
    rig: Rig, budget: int, request_: bytes, reply: bytes
) -> None:
    session = rig.text()
    count = 200
    session.receive_data(request_ * count + b"version\r\n")
    assert session.input_full
    assert session._unsent <= LIMIT + VALUE_BYTES + 100
    assert read_slowly(session, budget) == reply * count + b"VERSION 1.2.3\r\n"
    assert not session.input_full


def test_one_long_retrieval_stops_at_the_limit_too(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"get " + b" ".join([b"v"] * 1_000) + b"\r\nversion\r\n")
    assert session.input_full
    assert session._unsent <= LIMIT + VALUE_BYTES + 100
    assert read_slowly(session, 10_000) == ONE * 1_000 + b"END\r\nVERSION 1.2.3\r\n"


def test_commands_behind_the_limit_are_not_carried_out_yet(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"get v\r\n" * 10 + b"incr n 1\r\n")
    other = rig.text()
    assert talk(other, b"get n\r\n") == b"VALUE n 0 1\r\n0\r\nEND\r\n"
    assert read_slowly(session, LIMIT).endswith(b"END\r\n1\r\n")
    assert talk(other, b"get n\r\n") == b"VALUE n 0 1\r\n1\r\nEND\r\n"


def test_input_that_still_comes_is_kept_and_not_carried_out(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"get v\r\n" * 10)
    session.receive_data(b"set x 0 0 3\r\nab")
    session.receive_data(b"c\r\nget x\r\n")
    assert rig.item(b"x") is None
    replies = read_slowly(session, 5_000)
    assert replies == (ONE + b"END\r\n") * 10 + b"STORED\r\nVALUE x 0 3\r\nabc\r\nEND\r\n"


def test_what_is_to_be_swallowed_is_swallowed_even_then(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"get v\r\n" * 7 + b"set x 0 0 2000000\r\n")
    for _ in range(4):
        session.receive_data(b"x" * 500_000)
    session.receive_data(b"\r\nversion\r\n")
    assert session._held < 600_000 * 4
    assert read_slowly(session, 5_000) == (
        (ONE + b"END\r\n") * 7 + b"SERVER_ERROR object too large for cache\r\nVERSION 1.2.3\r\n"
    )


def test_a_slow_peer_and_values_on_disk_keep_the_order(rig: Rig) -> None:
    keys = [b"k%d" % number for number in range(100)]
    for key in keys:
        talk(rig.text(), b"set %b 0 0 %d\r\n%b\r\n" % (key, VALUE_BYTES, b"v" * VALUE_BYTES))
    rig.eject(*keys)
    rig.fetch_at_once()
    session = rig.text()
    session.receive_data(b"get " + b" ".join(keys) + b"\r\nget s\r\n")
    replies = read_slowly(session, 3_000)
    expected = b"".join(ONE.replace(b"VALUE v", b"VALUE " + key) for key in keys)
    assert replies == expected + b"END\r\n" + SMALL


def test_a_peer_that_hangs_up_while_stalled_leaves_nothing(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"get " + b" ".join([b"v"] * 1_000) + b"\r\n")
    session.connection_lost()
    assert session.data_to_send(LIMIT) == []
    assert session._out == []
    assert session._retrieval is None
