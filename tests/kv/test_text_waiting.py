"""Values that are on disk: commands wait for them, and replies keep their order."""

from __future__ import annotations

import pytest

from tests.kv.harness import Rig, drained, talk


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    keys = [b"a", b"b", b"c", b"5"]
    talk(rig.text(), b"".join(b"set %b 1 0 1\r\n%b\r\n" % (key, key) for key in keys))
    rig.eject(*keys)
    return rig


def value(key: bytes) -> bytes:
    return b"VALUE %b 1 1\r\n%b\r\n" % (key, key)


def test_get_waits_for_the_value(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"get a\r\nversion\r\n") == b""
    assert session.input_full
    assert rig.fetch() == 1
    assert rig.wakes == 1
    assert drained(session) == value(b"a") + b"END\r\nVERSION 1.2.3\r\n"
    assert not session.input_full
    assert rig.bucket.stats.cmd_get == 1


def test_what_was_answered_before_the_wait_is_sent_at_once(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"version\r\nget a\r\n") == b"VERSION 1.2.3\r\n"
    rig.fetch()
    assert drained(session) == value(b"a") + b"END\r\n"


def test_many_missing_values_cost_one_round_of_reading(rig: Rig) -> None:
    keys = [b"key%d" % number for number in range(64)]
    talk(rig.text(), b"".join(b"set %b 1 0 1\r\nx\r\n" % key for key in keys))
    rig.eject(*keys)
    session = rig.text()
    session.receive_data(b"get " + b" ".join(keys) + b"\r\n")
    assert rig.fetch_all() == 1
    assert drained(session) == (
        b"".join(b"VALUE %b 1 1\r\nx\r\n" % key for key in keys) + b"END\r\n"
    )
    assert rig.bucket.stats.bg_fetched == 64


def test_reading_ahead_is_bounded(rig: Rig) -> None:
    keys = [b"key%d" % number for number in range(200)]
    talk(rig.text(), b"".join(b"set %b 1 0 1\r\nx\r\n" % key for key in keys))
    rig.eject(*keys)
    session = rig.text()
    session.receive_data(b"get " + b" ".join(keys) + b"\r\n")
    rounds = []
    while wanted := rig.fetch():
        rounds.append(wanted)
    assert rounds == [64, 64, 64, 8]
    assert drained(session).count(b"VALUE") == 200


def test_values_at_hand_and_on_disk_keep_the_order_of_the_line(rig: Rig) -> None:
    session = rig.text()
    talk(rig.text(), b"set b 1 0 1\r\nb\r\n")
    assert talk(session, b"get b nk a b c a\r\n") == value(b"b")
    rig.fetch_all()
    assert drained(session) == b"".join(map(value, [b"a", b"b", b"c", b"a"])) + b"END\r\n"


@pytest.mark.parametrize(
    ("command", "reply", "after"),
    [
        (b"append a 0 0 1\r\nx\r\n", b"STORED\r\n", b"ax"),
        (b"prepend a 0 0 1\r\nx\r\n", b"STORED\r\n", b"xa"),
        (b"append a 0 0 1 noreply\r\nx\r\n", b"", b"ax"),
        (b"incr 5 2\r\n", b"7\r\n", b"7"),
        (b"decr 5 2\r\n", b"3\r\n", b"3"),
        (b"incr 5 2 noreply\r\n", b"", b"7"),
        (b"touch a 50\r\n", b"TOUCHED\r\n", b"a"),
        (b"gat 99 a\r\n", value(b"a") + b"END\r\n", b"a"),
        (b"mg a v\r\n", b"VA 1\r\na\r\n", b"a"),
        (b"mg a s\r\n", b"HD s1\r\n", b"a"),
        (b"mg a T50 t\r\n", b"HD t50\r\n", b"a"),
        (b"ms a 1 MA\r\nx\r\n", b"HD\r\n", b"ax"),
        (b"ma 5 v\r\n", b"VA 1\r\n6\r\n", b"6"),
        (b"md a I\r\n", b"HD\r\n", b"a"),
    ],
)
def test_a_command_that_needs_the_value_is_carried_out_once_it_is_there(
    rig: Rig, command: bytes, reply: bytes, after: bytes
) -> None:
    session = rig.text()
    key = b"5" if b" 5 " in command else b"a"
    seqno = rig.bucket.of_key(key).high_seqno
    assert talk(session, b"version\r\n" + command + b"version\r\n") == b"VERSION 1.2.3\r\n"
    assert rig.bucket.of_key(key).high_seqno == seqno
    rig.fetch()
    assert drained(session) == reply + b"VERSION 1.2.3\r\n"
    item = rig.item(key)
    assert item is not None
    assert item.value == after
    rig.check()


@pytest.mark.parametrize(
    "command", [b"set a 0 0 1\r\nx\r\n", b"delete a\r\n", b"mg a k f t\r\n", b"md a\r\n"]
)
def test_a_command_that_needs_no_value_does_not_wait(rig: Rig, command: bytes) -> None:
    session = rig.text()
    assert talk(session, command) != b""
    assert rig.bucket.fetcher.waiting == 0


def test_values_that_come_back_in_the_same_call_are_answered_in_it(rig: Rig) -> None:
    rig.fetch_at_once()
    assert talk(rig.text(), b"get a\r\nget nk b c\r\nappend a 0 0 1\r\nx\r\nget a\r\n") == (
        value(b"a")
        + b"END\r\n"
        + value(b"b")
        + value(b"c")
        + b"END\r\nSTORED\r\nVALUE a 1 2\r\nax\r\nEND\r\n"
    )


def test_input_that_comes_while_waiting_waits_too(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"append a 0 0 2\r\nx")
    session.receive_data(b"y\r\nget a\r\nver")
    session.receive_data(b"sion\r\n")
    assert drained(session) == b""
    rig.fetch()
    assert drained(session) == b"STORED\r\nVALUE a 1 3\r\naxy\r\nEND\r\nVERSION 1.2.3\r\n"


def test_a_value_written_anew_while_waiting_is_the_one_that_is_answered(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"get a\r\nappend b 0 0 1\r\nx\r\n")
    talk(rig.text(), b"set a 2 0 3\r\nnew\r\n")
    rig.fetch()
    talk(rig.text(), b"delete b\r\n")
    rig.fetch()
    assert drained(session) == b"VALUE a 2 3\r\nnew\r\nEND\r\nNOT_STORED\r\n"


def test_a_value_that_was_ejected_again_is_fetched_again(rig: Rig) -> None:
    session = rig.text()
    talk(rig.text(), b"set big 0 0 900000\r\n" + b"x" * 900_000 + b"\r\n")
    session.receive_data(b"get big\r\n" * 3 + b"get a b\r\nget c\r\n")
    assert rig.fetch() == 0
    session.data_to_send(3_000_000)  # the peer reads; the session goes on to the first wait
    session.data_to_send(3_000_000)
    rig.fetch_all()
    assert drained(session) == (value(b"a") + value(b"b") + b"END\r\n" + value(b"c") + b"END\r\n")


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (b"get a\r\n", b"SERVER_ERROR temporary failure\r\n"),
        (b"get b a\r\n", value(b"b") + b"SERVER_ERROR temporary failure\r\n"),
        (b"append a 0 0 1\r\nx\r\n", b"SERVER_ERROR temporary failure\r\n"),
        (b"incr 5 1\r\n", b"SERVER_ERROR temporary failure\r\n"),
        (b"mg a v\r\n", b"SERVER_ERROR temporary failure\r\n"),
        (b"append a 0 0 1 noreply\r\nx\r\n", b""),
        (b"incr 5 1 noreply\r\n", b""),
    ],
)
def test_a_value_that_cannot_be_read_is_a_temporary_failure(
    rig: Rig, command: bytes, reply: bytes
) -> None:
    session = rig.text()
    talk(rig.text(), b"set b 1 0 1\r\nb\r\n")
    session.receive_data(command + b"version\r\nget c\r\n")
    rig.fetch(ok=False)
    assert drained(session) == reply + b"VERSION 1.2.3\r\n"
    rig.fetch()
    assert drained(session) == value(b"c") + b"END\r\n"


def test_the_same_command_may_work_later(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"get a\r\n")
    rig.fetch(ok=False)
    assert drained(session) == b"SERVER_ERROR temporary failure\r\n"
    session.receive_data(b"get a\r\n")
    rig.fetch()
    assert drained(session) == value(b"a") + b"END\r\n"


def test_a_peer_that_is_gone_while_its_value_is_fetched_is_forgotten(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"get a b\r\nget c\r\n")
    session.connection_lost()
    rig.fetch_all()
    assert session.data_to_send(1_000) == []
    assert session._retrieval is None
    assert rig.wakes == 0


def test_nobody_else_waits(rig: Rig) -> None:
    slow, other = rig.text(), rig.text()
    slow.receive_data(b"get a\r\n")
    assert talk(other, b"set x 0 0 1\r\nx\r\nget x\r\n").startswith(b"STORED")


@pytest.mark.acceptance("D20")
def test_a_store_is_answered_when_it_is_accepted_not_when_it_is_on_disk(rig: Rig) -> None:
    session = rig.text()
    vbucket = rig.bucket.of_key(b"new")
    assert talk(session, b"set new 0 0 1\r\nx\r\nget new\r\n") == (
        b"STORED\r\nVALUE new 0 1\r\nx\r\nEND\r\n"
    )
    assert vbucket.persisted_seqno < vbucket.high_seqno
    rig.flush()
    assert vbucket.persisted_seqno == vbucket.high_seqno
