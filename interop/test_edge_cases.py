"""Forty conversations, byte for byte, in which memcached servers are known to differ.

Proves that the server answers each as memcached 1.6 does; ``pytest interop --peer memcached`` runs
the very same ones against memcached itself. The number in a test's name is the number of the case
in the list that the answers were measured for. The waits are part of the cases: expiry and delayed
flush have a resolution of one second and no event to wait for.
"""

from __future__ import annotations

import struct
import time

import pytest

from interop import wire as w
from interop.server_process import ServerProcess
from interop.wire import Wire, counter, frame, join_lines, store

BAD_LINE = b"CLIENT_ERROR bad command line format\r\n"


def let_pass(seconds: float) -> None:
    time.sleep(seconds)


def gone_within(wire: Wire, key: bytes, seconds: float) -> bool:
    """Ask again and again by text ``get`` until the key is missing."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        wire.send(b"get " + key + b"\r\n")
        if wire.line() == b"END\r\n":
            return True
        wire.line()
        wire.expect(b"END\r\n")
        time.sleep(0.05)
    return False


def test_01_an_unknown_command_is_an_error_and_the_connection_lives(wire: Wire) -> None:
    wire.talk(b"bogus x\r\n", b"ERROR\r\n")


def test_02_commands_in_upper_case_are_unknown(wire: Wire) -> None:
    wire.talk(b"GET a\r\n", b"ERROR\r\n")


def test_03_get_needs_a_key_and_a_miss_is_only_end(wire: Wire) -> None:
    wire.talk(b"get\r\n", b"ERROR\r\n")
    wire.talk(b"get nokey\r\n", b"END\r\n")


def test_04_an_empty_value_is_stored_and_returned(wire: Wire) -> None:
    wire.talk(b"set z 0 0 0\r\n\r\nget z\r\n", b"STORED\r\nVALUE z 0 0\r\n\r\nEND\r\n")


def test_05_a_value_may_consist_of_line_ends(wire: Wire) -> None:
    wire.talk(b"set z 0 0 4\r\n\r\n\r\n\r\n", b"STORED\r\n")
    wire.talk(b"get z\r\n", b"VALUE z 0 4\r\n\r\n\r\n\r\nEND\r\n")


def test_06_a_value_longer_than_announced_is_a_bad_chunk_and_stores_nothing(wire: Wire) -> None:
    wire.talk(b"set a 0 0 1\r\nb\r\n", b"STORED\r\n")
    wire.talk(
        b"set a 0 0 2\r\nabcd\r\n",
        b"CLIENT_ERROR bad data chunk\r\nERROR\r\n",
    )
    wire.talk(b"get a\r\n", b"VALUE a 0 1\r\nb\r\nEND\r\n")


def test_07_flags_that_are_no_number_are_refused_and_the_data_is_read_as_a_line(wire: Wire) -> None:
    wire.talk(b"set a x 0 1\r\nb\r\n", BAD_LINE + b"ERROR\r\n")


def test_08_a_negative_length_is_refused(wire: Wire) -> None:
    wire.talk(b"set a 0 0 -1\r\n", BAD_LINE)


def test_09_flags_have_32_bits(wire: Wire) -> None:
    wire.talk(
        b"set a 4294967295 0 1\r\nb\r\nget a\r\n",
        b"STORED\r\nVALUE a 4294967295 1\r\nb\r\nEND\r\n",
    )


def test_10_a_key_may_have_250_bytes_and_no_more(wire: Wire) -> None:
    longest, too_long = b"k" * 250, b"k" * 251
    wire.talk(b"set " + longest + b" 0 0 1\r\nb\r\n", b"STORED\r\n")
    wire.talk(b"get " + longest + b"\r\n", b"VALUE " + longest + b" 0 1\r\nb\r\nEND\r\n")
    wire.talk(b"set " + too_long + b" 0 0 1\r\nb\r\n", BAD_LINE + b"ERROR\r\n")
    wire.talk(b"get " + too_long + b"\r\n", BAD_LINE)


def test_11_a_store_with_noreply_is_silent(wire: Wire) -> None:
    wire.talk(b"set a 0 0 1 noreply\r\nz\r\nget a\r\n", b"VALUE a 0 1\r\nz\r\nEND\r\n")


def test_12_a_refused_add_with_noreply_is_silent_too(wire: Wire) -> None:
    wire.talk(b"set a 0 0 1\r\nb\r\n", b"STORED\r\n")
    wire.talk(b"add a 0 0 1 noreply\r\nq\r\n", b"")


def test_13_append_to_a_missing_key_stores_nothing(wire: Wire) -> None:
    wire.talk(b"append nk 0 0 1\r\nq\r\n", b"NOT_STORED\r\n")


def test_14_append_keeps_the_flags_of_the_item(wire: Wire) -> None:
    wire.talk(b"set a 7 0 1\r\nx\r\nappend a 9 99 2\r\nyz\r\n", b"STORED\r\nSTORED\r\n")
    wire.talk(b"get a\r\n", b"VALUE a 7 3\r\nxyz\r\nEND\r\n")


def test_15_cas_tells_missing_changed_and_malformed_apart(wire: Wire) -> None:
    wire.talk(b"cas nk 0 0 1 1\r\nq\r\n", b"NOT_FOUND\r\n")
    wire.talk(b"set a 0 0 1\r\nb\r\n", b"STORED\r\n")
    wire.send(b"gets a\r\n")
    unique = wire.line().split()[4]
    wire.expect(b"b\r\nEND\r\n")
    wire.talk(b"cas a 0 0 1 " + unique + b"\r\nc\r\n", b"STORED\r\n")
    wire.talk(b"cas a 0 0 1 " + unique + b"\r\nd\r\n", b"EXISTS\r\n")
    wire.talk(b"cas a 0 0 1 x\r\nq\r\n", BAD_LINE + b"ERROR\r\n")
    wire.talk(b"get a\r\n", b"VALUE a 0 1\r\nc\r\nEND\r\n")


def test_16_delete_takes_a_time_of_zero_only(wire: Wire) -> None:
    usage = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"
    wire.talk(b"set a 0 0 1\r\nb\r\n", b"STORED\r\n")
    wire.talk(b"delete a 5\r\n", usage)
    wire.talk(b"delete a 0\r\n", b"DELETED\r\n")
    wire.talk(b"delete a 0\r\n", b"NOT_FOUND\r\n")


def test_17_a_counter_keeps_its_length_and_is_padded_with_blanks(wire: Wire) -> None:
    wire.talk(b"set n 0 0 2\r\n99\r\n", b"STORED\r\n")
    wire.talk(b"incr n 1\r\n", b"100\r\n")
    wire.talk(b"get n\r\n", b"VALUE n 0 3\r\n100\r\nEND\r\n")
    wire.talk(b"decr n 1\r\n", b"99\r\n")
    wire.talk(b"get n\r\n", b"VALUE n 0 3\r\n99 \r\nEND\r\n")
    wire.talk(b"decr n 1000\r\n", b"0\r\n")
    wire.talk(b"get n\r\n", b"VALUE n 0 3\r\n0  \r\nEND\r\n")


@pytest.mark.parametrize(
    ("stored", "command", "reply", "afterwards"),
    [
        (b"100", b"decr n 1", b"99", b"99 "),
        (b"99 ", b"decr n 95", b"4", b"4  "),
        (b"1  ", b"incr n 1", b"2", b"2  "),
        (b"2  ", b"incr n 1000", b"1002", b"1002"),
        (b"0  ", b"incr n 5", b"5", b"5  "),
        (b"99", b"incr n 1", b"100", b"100"),
        (b"18446744073709551615", b"incr n 1", b"0", b"0" + b" " * 19),
        (b" 12", b"incr n 1", b"13", b"13 "),
        (b"12 ", b"incr n 1", b"13", b"13 "),
        (b"00000000000000000001", b"incr n 1", b"2", b"2" + b" " * 19),
        (b"1\r\n ", b"incr n 1", b"2", b"2   "),
    ],
)
def test_17_the_padding_rule_holds_for_every_measured_pair(
    wire: Wire, stored: bytes, command: bytes, reply: bytes, afterwards: bytes
) -> None:
    wire.talk(b"set n 5 0 %d\r\n%s\r\n" % (len(stored), stored), b"STORED\r\n")
    wire.talk(command + b"\r\n", reply + b"\r\n")
    shown = b"VALUE n 5 %d\r\n%s\r\nEND\r\n" % (len(afterwards), afterwards)
    wire.talk(b"get n\r\n", shown)


def test_18_a_counter_wraps_at_two_to_the_64(wire: Wire) -> None:
    wire.talk(b"set n 0 0 20\r\n18446744073709551615\r\n", b"STORED\r\n")
    wire.talk(b"incr n 1\r\n", b"0\r\n")


@pytest.mark.parametrize("command", [b"mg", b"ma"])
@pytest.mark.parametrize(
    ("flags", "made", "found"),
    [
        (b"N0 T60", b"t60", b"t60"),
        (b"T60 N0", b"t-1", b"t60"),
        (b"N60 T0", b"t-1", b"t-1"),
        (b"T100 N300", b"t300", b"t100"),
        (b"N100 T300", b"t300", b"t300"),
    ],
)
def test_of_n_and_t_the_later_one_rules_what_a_meta_command_makes(
    wire: Wire, command: bytes, flags: bytes, made: bytes, found: bytes
) -> None:
    wire.talk(command + b" k " + flags + b" t\r\nmn\r\n", _times(command, made, b" W") + b"MN\r\n")
    wire.talk(command + b" k " + flags + b" t\r\nmn\r\n", _times(command, found, b" Z") + b"MN\r\n")


def _times(command: bytes, seconds: bytes, verdict: bytes) -> bytes:
    return b"HD " + seconds + (verdict if command == b"mg" else b"") + b"\r\n"


@pytest.mark.parametrize(
    "page",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 21\r\n\r\nset a 0 0 1\r\nb\r\n",
        b"POST /set a 0 0 1 HTTP/1.0\r\n\r\nset a 0 0 1\r\nb\r\n",
    ],
)
def test_a_web_page_is_hung_up_on_and_writes_nothing(
    wire: Wire, server: ServerProcess, page: bytes
) -> None:
    wire.send(page)
    wire.expect_closed()
    with Wire(server.memcached) as other:
        other.talk(b"get a\r\n", b"END\r\n")


def test_19_a_delta_must_be_an_unsigned_64_bit_number(wire: Wire) -> None:
    wire.talk(b"set n 0 0 1\r\n1\r\n", b"STORED\r\n")
    for delta in (b"-1", b"18446744073709551616", b"1.5", b"x"):
        wire.talk(b"incr n " + delta + b"\r\n", b"CLIENT_ERROR invalid numeric delta argument\r\n")


def test_20_text_cannot_be_counted(wire: Wire) -> None:
    wire.talk(b"set t 0 0 3\r\nabc\r\n", b"STORED\r\n")
    wire.talk(b"incr t 1\r\n", b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n")


def test_21_touch_tells_a_miss_from_a_hit(wire: Wire) -> None:
    wire.talk(b"touch nk 1\r\n", b"NOT_FOUND\r\n")
    wire.talk(b"set n 0 0 1\r\n1\r\n", b"STORED\r\n")
    wire.talk(b"touch n 0\r\n", b"TOUCHED\r\n")


def test_22_get_and_touch_prolongs_an_item_that_was_about_to_expire(wire: Wire) -> None:
    wire.talk(b"set e1 0 1 1\r\nz\r\nset e2 3 2 1\r\nz\r\n", b"STORED\r\nSTORED\r\n")
    wire.talk(b"gat 10 e2\r\n", b"VALUE e2 3 1\r\nz\r\nEND\r\n")
    assert gone_within(wire, b"e1", 3.5)
    let_pass(1.5)
    wire.talk(b"get e2\r\n", b"VALUE e2 3 1\r\nz\r\nEND\r\n")


def test_23_a_negative_expiry_is_stored_and_gone_at_once(wire: Wire) -> None:
    wire.talk(b"set e 0 -1 1\r\nz\r\nget e\r\n", b"STORED\r\nEND\r\n")
    wire.talk(b"add e 0 0 1\r\nz\r\n", b"STORED\r\n")


def test_24_thirty_days_is_relative_and_one_second_more_is_1970(wire: Wire) -> None:
    wire.talk(b"set e 0 2592000 1\r\nz\r\nget e\r\n", b"STORED\r\nVALUE e 0 1\r\nz\r\nEND\r\n")
    wire.talk(b"set e 0 2592001 1\r\nz\r\nget e\r\n", b"STORED\r\nEND\r\n")


def test_25_what_is_stored_right_after_a_flush_stays(wire: Wire) -> None:
    wire.talk(
        b"flush_all\r\nset f 0 0 1\r\nz\r\nget f\r\n",
        b"OK\r\nSTORED\r\nVALUE f 0 1\r\nz\r\nEND\r\n",
    )


def test_26_a_delayed_flush_takes_all_that_was_stored_before_its_moment(wire: Wire) -> None:
    wire.talk(b"set old 0 0 1\r\nz\r\nflush_all 2\r\n", b"STORED\r\nOK\r\n")
    wire.talk(b"get old\r\n", b"VALUE old 0 1\r\nz\r\nEND\r\n")
    wire.talk(b"set between 0 0 1\r\nz\r\n", b"STORED\r\n")
    assert gone_within(wire, b"old", 5)
    assert gone_within(wire, b"between", 2)
    let_pass(1.1)
    wire.talk(b"set after 0 0 1\r\nz\r\n", b"STORED\r\n")
    let_pass(1.1)
    wire.talk(b"get after\r\n", b"VALUE after 0 1\r\nz\r\nEND\r\n")


def test_27_a_set_that_is_too_large_also_removes_the_old_item(wire: Wire) -> None:
    wire.talk(b"set a 0 0 1\r\nb\r\n", b"STORED\r\n")
    size = 1_048_577
    wire.talk(
        b"set a 0 0 %d\r\n" % size + b"x" * size + b"\r\n",
        b"SERVER_ERROR object too large for cache\r\n",
    )
    wire.talk(b"get a\r\n", b"END\r\n")


def test_28_a_silent_set_that_is_too_large_is_swallowed_silently(wire: Wire) -> None:
    size = 2_000_000
    wire.talk(b"set a 0 0 %d noreply\r\n" % size + b"x" * size + b"\r\n", b"")
    wire.talk(b"get a\r\n", b"END\r\n")


def test_29_quit_closes_without_a_word(wire: Wire) -> None:
    wire.send(b"quit\r\n")
    wire.expect_closed()


def test_30_a_pipeline_is_answered_in_order_and_in_full(wire: Wire) -> None:
    wire.talk(
        b"set n 0 0 1\r\n1\r\nincr n 1\r\nget n\r\ndelete n\r\nget n\r\nbogus\r\n",
        join_lines([b"STORED", b"2", b"VALUE n 0 1", b"2", b"END", b"DELETED", b"END", b"ERROR"]),
    )


def test_31_a_getk_miss_echoes_the_key_and_a_get_miss_says_not_found(wire: Wire) -> None:
    miss = wire.ask(frame(w.GETK, b"nk", opaque=7))
    assert (miss.status, miss.key, miss.value, miss.opaque) == (w.NOT_FOUND, b"nk", b"", 7)
    miss = wire.ask(frame(w.GET, b"nk"))
    assert (miss.status, miss.key, miss.value) == (w.NOT_FOUND, b"", b"Not found")


def test_32_quiet_gets_answer_hits_only_and_keep_their_opaques(wire: Wire) -> None:
    wire.ask(store(w.SET, b"one", b"1", flags=5))
    wire.ask(store(w.SET, b"two", b"2"))
    replies = wire.replies_until_noop(
        frame(w.GETKQ, b"one", opaque=11),
        frame(w.GETKQ, b"nk", opaque=12),
        frame(w.GETKQ, b"two", opaque=13),
    )
    assert [(r.opcode, r.opaque, r.key, r.value) for r in replies] == [
        (w.GETKQ, 11, b"one", b"1"),
        (w.GETKQ, 13, b"two", b"2"),
    ]
    assert replies[0].extras == struct.pack(">I", 5)


def test_33_a_quiet_set_is_silent_on_success_and_speaks_on_failure(wire: Wire) -> None:
    assert wire.replies_until_noop(store(w.SETQ, b"a", b"1")) == []
    (refusal,) = wire.replies_until_noop(store(w.SETQ, b"a", b"2", cas=0xFFFF_FFFF_FFFF))
    assert (refusal.opcode, refusal.status) == (w.SETQ, w.EXISTS)
    assert refusal.value == b"Data exists for key."
    assert wire.ask(frame(w.GET, b"a")).value == b"1"


def test_34_incr_creates_a_counter_unless_the_expiration_forbids_it(wire: Wire) -> None:
    created = wire.ask(counter(w.INCR, b"n", 1, initial=5))
    assert (created.status, created.value) == (w.OK, struct.pack(">Q", 5))
    assert created.cas != 0
    shown = wire.ask(frame(w.GET, b"n"))
    assert (shown.value, shown.extras) == (b"5", bytes(4))
    refused = wire.ask(counter(w.INCR, b"other", 1, initial=5, expiration=0xFFFF_FFFF))
    assert refused.status == w.NOT_FOUND


def test_35_incr_of_text_is_refused_and_decr_stops_at_zero(wire: Wire) -> None:
    wire.ask(store(w.SET, b"t", b"abc"))
    refused = wire.ask(counter(w.INCR, b"t", 1))
    assert refused.status == w.BAD_DELTA
    assert refused.value == b"Non-numeric server-side value for incr or decr"
    wire.ask(store(w.SET, b"n", b"3"))
    assert wire.ask(counter(w.DECR, b"n", 10)).value == bytes(8)


def test_36_each_store_has_its_own_refusal(wire: Wire) -> None:
    wire.ask(store(w.SET, b"a", b"1"))
    assert wire.ask(store(w.ADD, b"a", b"2")).status == w.EXISTS
    assert wire.ask(store(w.REPLACE, b"nk", b"2")).status == w.NOT_FOUND
    assert wire.ask(frame(w.APPEND, b"nk", b"2")).status == w.NOT_STORED
    assert wire.ask(frame(w.DELETE, b"nk")).status == w.NOT_FOUND


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(frame(w.APPEND, b"a", b"x", bytes(8)), id="append-with-extras"),
        pytest.param(frame(w.DELETE, b"a", b"x"), id="delete-with-a-value"),
    ],
)
def test_37_a_wrong_shape_is_invalid_and_closes(wire: Wire, request_bytes: bytes) -> None:
    wire.ask(store(w.SET, b"a", b"1"))
    refused = wire.ask(request_bytes)
    assert (refused.status, refused.value) == (w.INVALID, b"Invalid arguments")
    wire.expect_closed()


def test_38_statistics_end_with_an_empty_packet_and_an_unknown_group_is_missing(wire: Wire) -> None:
    general = wire.statistics()
    assert {b"pid", b"uptime", b"version", b"curr_items", b"cmd_get"} <= set(general)
    assert wire.ask(frame(w.STAT, b"bogus")).status == w.NOT_FOUND
    assert wire.ask(frame(w.NOOP)).status == w.OK


def test_39_a_cas_is_good_for_one_store(wire: Wire) -> None:
    first = wire.ask(store(w.SET, b"a", b"1"))
    assert first.cas == wire.ask(frame(w.GET, b"a")).cas != 0
    second = wire.ask(store(w.SET, b"a", b"2", cas=first.cas))
    assert second.status == w.OK
    assert second.cas not in (0, first.cas)
    assert wire.ask(store(w.SET, b"a", b"3", cas=first.cas)).status == w.EXISTS
    assert wire.ask(frame(w.GET, b"a")).value == b"2"


def test_40_lengths_that_disagree_are_an_unknown_command_and_close(wire: Wire) -> None:
    refused = wire.ask(frame(w.GET, b"abc", body_length=1))
    assert (refused.status, refused.value) == (w.UNKNOWN, b"Unknown command")
    wire.expect_closed()


def test_40_a_second_packet_with_a_wrong_magic_closes_in_silence(wire: Wire) -> None:
    wire.send(frame(w.NOOP), frame(w.NOOP, magic=0x00))
    assert wire.reply().status == w.OK
    wire.expect_closed()


@pytest.mark.parametrize("word", [b"get", b"gets"])
def test_a_line_of_200_000_keys_is_answered(wire: Wire, word: bytes) -> None:
    wire.talk(b"set key-100000 0 0 1\r\nv\r\n", b"STORED\r\n")
    wire.send(word, *(b" key-%06d" % number for number in range(200_000)), b"\r\n")
    assert wire.line().split()[:4] == [b"VALUE", b"key-100000", b"0", b"1"]
    wire.expect(b"v\r\nEND\r\n")
    wire.expect_silence()
