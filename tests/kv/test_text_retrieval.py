"""get, gets, gat, gats: what comes back, in which order, and what the counters say."""

from __future__ import annotations

import pytest

from tests.kv.harness import Rig, drained_with_waits, talk


@pytest.fixture
def rig() -> Rig:
    return Rig()


def fill(rig: Rig, *keys: bytes) -> None:
    talk(rig.text(), b"".join(b"set %b 1 0 %d\r\n%b\r\n" % (key, len(key), key) for key in keys))


def value(key: bytes) -> bytes:
    return b"VALUE %b 1 %d\r\n%b\r\n" % (key, len(key), key)


def test_get_needs_a_key_and_a_miss_is_only_end(rig: Rig) -> None:
    assert talk(rig.text(), b"get\r\ngets\r\ngat\r\ngats\r\nget nokey\r\n") == (
        b"ERROR\r\n" * 4 + b"END\r\n"
    )


def test_hits_come_in_the_order_asked_and_misses_are_left_out(rig: Rig) -> None:
    fill(rig, b"a", b"b", b"c")
    replies = talk(rig.text(), b"get c x a y b\r\n")
    assert replies == value(b"c") + value(b"a") + value(b"b") + b"END\r\n"


def test_a_key_asked_twice_is_answered_twice(rig: Rig) -> None:
    fill(rig, b"a")
    assert talk(rig.text(), b"get a a\r\n") == value(b"a") * 2 + b"END\r\n"


def test_a_key_that_is_too_long_refuses_the_whole_line(rig: Rig) -> None:
    fill(rig, b"a")
    replies = talk(rig.text(), b"get a " + b"k" * 251 + b"\r\nversion\r\n")
    assert replies == b"CLIENT_ERROR bad command line format\r\nVERSION 1.2.3\r\n"


def test_noreply_is_a_key_like_any_other_for_get(rig: Rig) -> None:
    fill(rig, b"noreply")
    assert talk(rig.text(), b"get noreply\r\nget x noreply\r\n") == (
        (value(b"noreply") + b"END\r\n") * 2
    )


def test_gets_shows_the_cas_that_the_last_write_gave(rig: Rig) -> None:
    fill(rig, b"a", b"b")
    cas = {}
    for key in (b"a", b"b"):
        item = rig.item(key)
        assert item is not None
        cas[key] = item.cas
    assert cas[b"b"] > cas[b"a"]
    assert talk(rig.text(), b"gets a nk b\r\n") == (
        b"VALUE a 1 1 %d\r\na\r\nVALUE b 1 1 %d\r\nb\r\nEND\r\n" % (cas[b"a"], cas[b"b"])
    )


def test_a_tombstone_is_a_miss(rig: Rig) -> None:
    fill(rig, b"a", b"b")
    session = rig.text()
    assert talk(session, b"delete a\r\n") == b"DELETED\r\n"
    assert talk(session, b"get a\r\nget a b\r\n") == b"END\r\n" + value(b"b") + b"END\r\n"


@pytest.mark.parametrize("length", [0, 1, 4_095, 4_096, 4_097, 100_000, 1_000_000])
def test_a_value_of_any_length_comes_back_as_it_is(rig: Rig, length: int) -> None:
    data = bytes(range(256)) * (length // 256 + 1)
    data = data[:length]
    session = rig.text()
    talk(session, b"set a 3 0 %d\r\n%b\r\n" % (length, data))
    for line in (b"get a\r\n", b"get  a\r\n"):
        assert talk(session, line) == b"VALUE a 3 %d\r\n%b\r\nEND\r\n" % (length, data)


def test_thousands_of_keys_in_one_line_keep_their_order(rig: Rig) -> None:
    keys = [b"key-%d" % number for number in range(5_000)]
    fill(rig, *keys[::2])
    session = rig.text()
    session.receive_data(b"get " + b" ".join(keys) + b"\r\nversion\r\n")
    assert drained_with_waits(session) == (
        b"".join(map(value, keys[::2])) + b"END\r\nVERSION 1.2.3\r\n"
    )
    assert not session.input_full


def test_many_misses_leave_others_their_turn(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"get " + b" ".join([b"no"] * 100_000) + b"\r\nversion\r\n")
    turns = 0
    while session.input_full:
        assert rig.wakes == turns + 1
        assert session.data_to_send(1_000) == [] or not session.input_full
        turns += 1
    assert turns > 5
    assert rig.bucket.stats.get_misses == 100_000


def test_lines_of_one_kind_of_key_are_answered_as_asked_whatever_their_number(rig: Rig) -> None:
    fill(rig, b"a", b"b")
    for count in (1, 2, 255, 256, 257, 258, 4_096, 5_000):
        session = rig.text()
        session.receive_data(b"get " + b" ".join([b"a"] * (count - 1) + [b"b"]) + b"\r\n")
        assert drained_with_waits(session) == value(b"a") * (count - 1) + value(b"b") + b"END\r\n"


def test_hits_and_misses_are_counted(rig: Rig) -> None:
    fill(rig, b"a")
    stats = rig.bucket.stats
    talk(rig.text(), b"get a\r\nget a\r\nget x\r\nget a x\r\ngets x\r\n")
    assert (stats.cmd_get, stats.get_hits, stats.get_misses) == (6, 3, 3)


def test_statistics_count_what_came_before_them_in_the_same_send(rig: Rig) -> None:
    fill(rig, b"a")
    rig.services.stats = lambda words: [("get_hits", str(rig.bucket.stats.get_hits))]
    replies = talk(rig.text(), b"get a\r\nget a\r\nstats\r\nget a\r\nstats\r\n")
    assert [word for word in replies.split() if word.isdigit() and word != b"1"] == [b"2", b"3"]


def test_reading_makes_a_document_hot(rig: Rig) -> None:
    fill(rig, b"a", b"b", b"c")
    talk(rig.text(), b"get a\r\ngets b\r\n")
    ages = []
    for key in (b"a", b"b", b"c"):
        item = rig.item(key)
        assert item is not None
        ages.append(item.nru)
    assert ages == [0, 0, 2]


# --- gat ----------------------------------------------------------------------------------------


def test_gat_returns_the_value_and_gives_a_new_expiry_time(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set e 0 2 1\r\nz\r\n")
    rig.clock.time += 1
    assert talk(session, b"gat 10 e2 e\r\n") == b"VALUE e 0 1\r\nz\r\nEND\r\n"
    rig.clock.time += 9
    assert talk(session, b"get e\r\n") == b"VALUE e 0 1\r\nz\r\nEND\r\n"
    rig.clock.time += 1
    assert talk(session, b"get e\r\n") == b"END\r\n"


def test_gat_and_touch_keep_the_cas(rig: Rig) -> None:
    fill(rig, b"a")
    session = rig.text()
    first = talk(session, b"gets a\r\n")
    assert talk(session, b"gats 10 a\r\n") == first
    talk(session, b"touch a 100\r\n")
    assert talk(session, b"gets a\r\n") == first


def test_gat_without_keys_is_only_end(rig: Rig) -> None:
    assert talk(rig.text(), b"gat 0\r\ngats 0\r\n") == b"END\r\n" * 2


def test_gat_with_a_malformed_time_is_refused(rig: Rig) -> None:
    assert talk(rig.text(), b"gat x k\r\n") == b"CLIENT_ERROR invalid exptime argument\r\n"


def test_a_negative_time_is_the_last_that_is_seen_of_a_document(rig: Rig) -> None:
    fill(rig, b"a")
    assert talk(rig.text(), b"gat -1 a\r\nget a\r\n") == value(b"a") + b"END\r\nEND\r\n"
