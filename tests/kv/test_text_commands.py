"""Commands on one key, and the administrative ones."""

from __future__ import annotations

import pytest

from tests.kv.harness import NOON, Rig, drained, talk


@pytest.fixture
def rig() -> Rig:
    return Rig()


def stored(rig: Rig, key: bytes) -> bytes | None:
    item = rig.item(key)
    return item.value if item else None


# --- lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [b"bogus x", b"GET a", b"", b" ", b"\r", b"Version", b"get\ta"])
def test_an_unknown_command_is_an_error_and_the_connection_lives(rig: Rig, line: bytes) -> None:
    assert talk(rig.text(), line + b"\r\nversion\r\n") == b"ERROR\r\nVERSION 1.2.3\r\n"


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"PROPFIND /a b HTTP/2",
        b"x HTTP/",
        b"HTTP/1.1",
        b"POST /",
        b"Host: localhost:11211",
        b"host: localhost",
    ],
)
def test_a_line_of_http_closes_without_a_reply(rig: Rig, line: bytes) -> None:
    """What stands behind it comes from a web page."""
    session = rig.text()
    replies = talk(session, b"version\r\n" + line + b"\r\nset a 0 0 1\r\nb\r\n")
    assert replies == b"VERSION 1.2.3\r\n"
    assert session.closing
    assert len(rig.misuse) == 1
    assert stored(rig, b"a") is None


@pytest.mark.parametrize(
    "line", [b"x HTTP/1.1 y", b"x http/1.1", b"x HTTP", b"Host : x", b"Hosts: x"]
)
def test_a_line_that_is_only_like_http_is_an_unknown_command(rig: Rig, line: bytes) -> None:
    assert talk(rig.text(), line + b"\r\nversion\r\n") == b"ERROR\r\nVERSION 1.2.3\r\n"


def test_a_known_command_may_have_words_of_http(rig: Rig) -> None:
    replies = talk(rig.text(), b"set HTTP/1.1 0 0 1\r\nb\r\nget Host: HTTP/1.1\r\n")
    assert replies == b"STORED\r\nVALUE HTTP/1.1 0 1\r\nb\r\nEND\r\n"


def test_a_line_may_end_in_a_bare_newline(rig: Rig) -> None:
    replies = talk(rig.text(), b"version\nset a 0 0 1\nb\r\nget a\n")
    assert replies == b"VERSION 1.2.3\r\nSTORED\r\nVALUE a 0 1\r\nb\r\nEND\r\n"


def test_commands_in_one_send_are_answered_in_order_and_none_is_lost(rig: Rig) -> None:
    replies = talk(
        rig.text(),
        b"set n 0 0 1\r\n5\r\nincr n 1\r\nget n\r\ndelete n\r\nget n\r\nbogus\r\nversion\r\n",
    )
    assert replies == (
        b"STORED\r\n6\r\nVALUE n 0 1\r\n6\r\nEND\r\nDELETED\r\nEND\r\nERROR\r\nVERSION 1.2.3\r\n"
    )


# --- delete -------------------------------------------------------------------------------------


def test_delete_deletes_what_is_there(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set a 0 0 1\r\nb\r\n")
    assert talk(session, b"delete a 0\r\ndelete a\r\n") == b"DELETED\r\nNOT_FOUND\r\n"
    stats = rig.bucket.stats
    assert (stats.delete_hits, stats.delete_misses) == (1, 1)


def test_delete_takes_no_time_but_0(rig: Rig) -> None:
    assert talk(rig.text(), b"delete a 5\r\n") == (
        b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"
    )
    assert talk(rig.text(), b"delete\r\n") == b"ERROR\r\n"


def test_delete_with_noreply_is_silent(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set a 0 0 1\r\nb\r\n")
    assert talk(session, b"delete a noreply\r\ndelete a 0 noreply\r\nget a\r\n") == b"END\r\n"


# --- incr, decr ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "line", "reply", "after"),
    [
        (b"99", b"incr n 1", b"100", b"100"),
        (b"100", b"decr n 1", b"99", b"99 "),
        (b"99 ", b"decr n 1000", b"0", b"0  "),
        (b"2  ", b"incr n 1000", b"1002", b"1002"),
        (b"18446744073709551615", b"incr n 1", b"0", b"0" + b" " * 19),
        (b" 12", b"incr n 1", b"13", b"13 "),
        (b"5", b"decr n 0", b"5", b"5"),
        (b"5", b"incr n 18446744073709551615", b"4", b"4"),
    ],
)
def test_counters_wrap_stop_and_pad(
    rig: Rig, before: bytes, line: bytes, reply: bytes, after: bytes
) -> None:
    session = rig.text()
    talk(session, b"set n 3 0 %d\r\n%b\r\n" % (len(before), before))
    assert talk(session, line + b"\r\n") == reply + b"\r\n"
    assert talk(session, b"get n\r\n") == b"VALUE n 3 %d\r\n%b\r\nEND\r\n" % (len(after), after)


@pytest.mark.parametrize("delta", [b"-1", b"1.5", b"x", b"18446744073709551616"])
def test_a_delta_is_a_number_of_64_bits(rig: Rig, delta: bytes) -> None:
    session = rig.text()
    talk(session, b"set n 0 0 1\r\n1\r\n")
    refusal = b"CLIENT_ERROR invalid numeric delta argument\r\n"
    assert talk(session, b"incr n %b\r\ndecr n %b\r\n" % (delta, delta)) == refusal * 2


@pytest.mark.parametrize("text", [b"t", b"", b"-1", b"12abc", b"18446744073709551616"])
def test_text_cannot_be_counted(rig: Rig, text: bytes) -> None:
    session = rig.text()
    talk(session, b"set t 0 0 %d\r\n%b\r\n" % (len(text), text))
    refusal = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
    assert talk(session, b"incr t 1\r\ndecr t 1\r\n") == refusal * 2
    assert talk(session, b"incr t 1 noreply\r\nversion\r\n") == b"VERSION 1.2.3\r\n"


def test_counting_never_makes_a_counter(rig: Rig) -> None:
    assert talk(rig.text(), b"incr nk 1\r\ndecr nk 1\r\n") == b"NOT_FOUND\r\n" * 2
    stats = rig.bucket.stats
    assert (stats.incr_misses, stats.decr_misses) == (1, 1)


def test_counting_is_counted(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set n 0 0 1\r\n5\r\nincr n 1\r\nincr n 1\r\ndecr n 1\r\n")
    assert talk(session, b"incr n 1 noreply\r\nget n\r\n") == b"VALUE n 0 1\r\n7\r\nEND\r\n"
    assert (rig.bucket.stats.incr_hits, rig.bucket.stats.decr_hits) == (3, 1)


@pytest.mark.parametrize("line", [b"incr", b"incr n", b"decr n", b"incr n 1 2 3"])
def test_counting_needs_a_key_and_a_delta(rig: Rig, line: bytes) -> None:
    assert talk(rig.text(), line + b"\r\n") == b"ERROR\r\n"


# --- touch --------------------------------------------------------------------------------------


def test_touch_gives_a_new_expiry_time(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set n 0 5 1\r\n1\r\n")
    assert talk(session, b"touch n 0\r\ntouch nk 1\r\n") == b"TOUCHED\r\nNOT_FOUND\r\n"
    rig.clock.time += 6
    assert talk(session, b"get n\r\n") == b"VALUE n 0 1\r\n1\r\nEND\r\n"
    assert talk(session, b"touch n -1 noreply\r\nget n\r\n") == b"END\r\n"
    stats = rig.bucket.stats
    assert (stats.cmd_touch, stats.touch_hits, stats.touch_misses) == (3, 2, 1)


def test_touch_needs_a_time_that_is_a_number(rig: Rig) -> None:
    assert talk(rig.text(), b"touch n\r\ntouch n x\r\n") == (
        b"ERROR\r\nCLIENT_ERROR invalid exptime argument\r\n"
    )


# --- flush_all ----------------------------------------------------------------------------------


def test_flush_all_answers_when_it_is_on_disk(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set a 0 0 1\r\nb\r\n")
    assert talk(session, b"flush_all\r\nversion\r\n") == b""
    assert session.input_full
    rig.flush()
    assert rig.wakes == 1
    assert drained(session) == b"OK\r\nVERSION 1.2.3\r\n"
    assert not session.input_full
    assert rig.store.view().count() == 0


def test_what_is_stored_after_a_flush_in_the_same_second_stays(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"flush_all\r\nset f 0 0 1\r\nz\r\nget f\r\n")
    rig.flush()
    assert drained(session) == b"OK\r\nSTORED\r\nVALUE f 0 1\r\nz\r\nEND\r\n"


@pytest.mark.parametrize("time", [b"", b" 0", b" -1", b" 2592001", b" 2147483648"])
def test_a_flush_with_a_time_that_has_passed_is_immediate(rig: Rig, time: bytes) -> None:
    session = rig.text()
    talk(session, b"set a 0 0 1\r\nb\r\nflush_all%b\r\n" % time)
    rig.flush()
    assert drained(session) + talk(session, b"get a\r\n") == b"OK\r\nEND\r\n"


def test_a_flush_with_noreply_waits_for_nothing(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"flush_all noreply\r\nflush_all 0 noreply\r\nversion\r\n") == (
        b"VERSION 1.2.3\r\n"
    )
    assert rig.bucket.stats.cmd_flush == 2


@pytest.mark.parametrize("time", [2, NOON + 2])
def test_a_delayed_flush_takes_what_was_stored_until_its_time(rig: Rig, time: float) -> None:
    session = rig.text()
    assert talk(session, b"set a 0 0 1\r\nb\r\nflush_all %d\r\n" % time) == b"STORED\r\nOK\r\n"
    rig.clock.time += 1
    rig.bucket.tick()
    replies = talk(session, b"get a\r\nset b 0 0 1\r\nb\r\n")
    assert replies == b"VALUE a 0 1\r\nb\r\nEND\r\nSTORED\r\n"
    rig.clock.time += 1
    rig.bucket.tick()
    assert talk(session, b"get a b\r\nset c 0 0 1\r\nb\r\n") == b"END\r\nSTORED\r\n"
    rig.clock.time += 1
    rig.bucket.tick()
    assert talk(session, b"get c\r\n") == b"VALUE c 0 1\r\nb\r\nEND\r\n"


def test_flush_all_refuses_what_it_does_not_understand(rig: Rig) -> None:
    assert talk(rig.text(), b"flush_all x\r\nflush_all 1 2 3\r\n") == (
        b"CLIENT_ERROR invalid exptime argument\r\nERROR\r\n"
    )


def test_a_flush_that_cannot_be_written_is_a_temporary_failure(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"flush_all\r\n")
    rig.fail_flush()
    assert drained(session) == b"SERVER_ERROR temporary failure\r\n"


def test_a_flush_outlives_the_peer_that_asked_for_it(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set a 0 0 1\r\nb\r\nflush_all\r\n")
    session.connection_lost()
    rig.flush()
    assert session.data_to_send(1_000) == []
    assert rig.item(b"a") is None


# --- the rest -----------------------------------------------------------------------------------


def test_version_ignores_further_words(rig: Rig) -> None:
    assert talk(rig.text(), b"version a b\r\n") == b"VERSION 1.2.3\r\n"


@pytest.mark.parametrize("line", [b"quit", b"quit now", b"quit noreply"])
def test_quit_hangs_up_without_a_word(rig: Rig, line: bytes) -> None:
    session = rig.text()
    assert talk(session, b"version\r\n" + line + b"\r\nversion\r\n") == b"VERSION 1.2.3\r\n"
    assert session.closing
    assert not session.input_full
    assert talk(session, b"version\r\n") == b""
    assert rig.misuse == []


def test_verbosity_is_passed_on_up_to_2(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"verbosity 1\r\n") == b"OK\r\n"
    assert rig.verbosity == 1
    assert talk(session, b"verbosity 9 noreply\r\n") == b""
    assert rig.verbosity == 2
    assert talk(session, b"verbosity\r\nverbosity x\r\n") == (
        b"ERROR\r\nCLIENT_ERROR bad command line format\r\n"
    )


def test_cache_memlimit_sets_the_quota_and_moves_its_marks(rig: Rig) -> None:
    session, account = rig.text(), rig.bucket.account
    assert talk(session, b"cache_memlimit 100\r\n") == b"OK\r\n"
    assert account.quota == 100 * 1024 * 1024
    shares = rig.settings.memory
    assert account.low_mark == int(account.quota * shares.low_mark)
    assert account.high_mark == int(account.quota * shares.high_mark)
    assert (
        account.write_limit == account.mutation_limit == int(account.quota * shares.mutation_limit)
    )
    assert talk(session, b"cache_memlimit 64 noreply\r\n") == b""
    assert account.quota == 64 * 1024 * 1024


def test_a_new_quota_does_not_open_a_full_disk(rig: Rig) -> None:
    rig.bucket.account.disk_failed("full")
    talk(rig.text(), b"cache_memlimit 100\r\n")
    assert rig.bucket.account.write_limit == -1


def test_cache_memlimit_refuses_less_than_8(rig: Rig) -> None:
    small = b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"
    assert talk(rig.text(), b"cache_memlimit 7\r\ncache_memlimit\r\n") == small + b"ERROR\r\n"


@pytest.mark.parametrize("line", [b"shutdown", b"shutdown graceful", b"shutdown x"])
def test_shutdown_is_not_enabled(rig: Rig, line: bytes) -> None:
    assert talk(rig.text(), line + b"\r\n") == b"ERROR: shutdown not enabled\r\n"


# --- stats --------------------------------------------------------------------------------------


def test_stats_lists_the_general_group(rig: Rig) -> None:
    assert talk(rig.text(), b"stats\r\n") == b"STAT version 1.2.3\r\nSTAT blank \r\nEND\r\n"


def test_stats_of_a_group_is_asked_for_by_all_the_words_after_it(rig: Rig) -> None:
    rig.groups["vbucket 3"] = [("vb_3", "active")]
    rig.groups["items"] = []
    replies = talk(rig.text(), b"stats vbucket  3\r\nstats items\r\nstats bogus\r\n")
    assert replies == b"STAT vb_3 active\r\nEND\r\nEND\r\nERROR\r\n"


def test_stats_reset_resets(rig: Rig) -> None:
    assert talk(rig.text(), b"stats reset\r\nstats reset x\r\n") == b"RESET\r\n" * 2
    assert rig.resets == 2


def test_stats_detail_can_be_switched_and_has_nothing_to_tell(rig: Rig) -> None:
    usage = b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"
    replies = talk(
        rig.text(),
        b"stats detail on\r\nstats detail off\r\nstats detail dump\r\n"
        b"stats detail\r\nstats detail x\r\n",
    )
    assert replies == b"OK\r\nOK\r\nEND\r\n" + usage * 2


def test_cachedump_lists_documents_with_length_and_expiry(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set a 0 0 3\r\nabc\r\nset b 0 100 1\r\nb\r\nset c 0 -1 1\r\nc\r\ndelete d\r\n")
    talk(session, b"set d 0 0 1\r\nd\r\ndelete d\r\n")
    replies = talk(session, b"stats cachedump 1 0\r\n")
    lines = {b"ITEM a [3 b; 0 s]", b"ITEM b [1 b; %d s]" % (NOON + 100), b"END", b""}
    assert set(replies.split(b"\r\n")) == lines
    assert talk(session, b"stats cachedump 1 1\r\n").count(b"ITEM") == 1
    assert talk(session, b"stats cachedump 2 1\r\n") == b"END\r\n"


def test_cachedump_is_bounded(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"".join(b"set %d 0 0 1 noreply\r\nx\r\n" % n for n in range(10_001)))
    assert talk(session, b"stats cachedump 1 0\r\n").count(b"ITEM") == 10_000


def test_cachedump_refuses_what_it_does_not_understand(rig: Rig) -> None:
    replies = talk(
        rig.text(),
        b"stats cachedump\r\nstats cachedump 1\r\nstats cachedump x 1\r\n"
        b"stats cachedump 1 x\r\nstats cachedump 64 1\r\n",
    )
    assert replies == (
        b"CLIENT_ERROR bad command line\r\n" * 2
        + b"CLIENT_ERROR bad command line format\r\n" * 2
        + b"CLIENT_ERROR Illegal slab id\r\n"
    )
