"""What text commands do beside their replies, which are in ``interop/dialects.txt``."""

from __future__ import annotations

import pytest

from tests.kv.harness import NOON, Rig, drained, drained_with_waits, talk

TOO_LARGE = b"SERVER_ERROR object too large for cache\r\n"


@pytest.fixture
def rig() -> Rig:
    return Rig()


def stored(rig: Rig, key: bytes) -> bytes | None:
    item = rig.item(key)
    return item.value if item else None


# --- lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"POST /"])
def test_a_line_of_http_closes_without_a_reply(rig: Rig, line: bytes) -> None:
    """What stands behind it comes from a web page."""
    session = rig.text()
    replies = talk(session, b"version\r\n" + line + b"\r\nset a 0 0 1\r\nb\r\n")
    assert replies == b"VERSION 1.2.3\r\n"
    assert session.closing
    assert len(rig.misuse) == 1
    assert stored(rig, b"a") is None


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


def test_a_delayed_flush_takes_what_was_stored_until_its_time(rig: Rig) -> None:
    session = rig.text()
    assert (
        talk(session, b"set a 0 0 1\r\nb\r\nflush_all %d\r\n" % (NOON + 2)) == b"STORED\r\nOK\r\n"
    )
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


# --- storing ------------------------------------------------------------------------------------


def store(command: bytes, key: bytes, value: bytes, tail: bytes = b"") -> bytes:
    return b"%b %b 0 0 %d%b\r\n%b\r\n" % (command, key, len(value), tail, value)


def cas_of(rig: Rig, key: bytes) -> int:
    item = rig.item(key)
    assert item is not None
    return item.cas


def test_a_key_may_hold_any_byte_but_white_space(rig: Rig) -> None:
    key = "kéy\x01\x7f".encode() + b"\xff"
    replies = talk(rig.text(), store(b"set", key, b"b") + b"get " + key + b"\r\n")
    assert replies == b"STORED\r\nVALUE %b 0 1\r\nb\r\nEND\r\n" % key


@pytest.mark.acceptance("D17")
def test_cas_tells_missing_changed_and_equal_apart(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"cas a 0 0 1 1\r\nq\r\n") == b"NOT_FOUND\r\n"
    talk(session, store(b"set", b"a", b"b"))
    unique = cas_of(rig, b"a")
    vbucket = rig.bucket.of_key(b"a")
    seqno = vbucket.high_seqno
    assert talk(session, b"cas a 0 0 1 %d\r\nq\r\n" % (unique + 1)) == b"EXISTS\r\n"
    assert vbucket.high_seqno == seqno
    assert talk(session, b"cas a 5 0 1 %d\r\nc\r\n" % unique) == b"STORED\r\n"
    assert vbucket.high_seqno == seqno + 1
    assert talk(session, b"cas a 0 0 1 %d\r\nd\r\n" % unique) == b"EXISTS\r\n"
    assert talk(session, b"get a\r\n") == b"VALUE a 5 1\r\nc\r\nEND\r\n"
    stats = rig.bucket.stats
    assert (stats.cas_hits, stats.cas_badval, stats.cas_misses) == (1, 2, 1)


# --- too large ----------------------------------------------------------------------------------


def largest(rig: Rig, key: bytes) -> int:
    return rig.settings.kv.max_item_bytes - 50 - len(key)


def test_the_largest_item_is_stored_and_one_byte_more_is_not(rig: Rig) -> None:
    session = rig.text()
    length = largest(rig, b"a")
    assert talk(session, store(b"set", b"a", b"x" * length)) == b"STORED\r\n"
    assert talk(session, b"mg a s\r\n") == b"HD s%d\r\n" % length
    assert talk(session, store(b"set", b"a", b"x" * (length + 1))) == TOO_LARGE


def test_what_is_too_large_is_never_held(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"set a 0 0 2000000\r\n")
    for _ in range(20):
        session.receive_data(b"x" * 100_000)
        assert session._held == 0
    assert talk(session, b"\r\nversion\r\n") == TOO_LARGE + b"VERSION 1.2.3\r\n"


def test_an_append_whose_sum_is_too_large_is_not_stored(rig: Rig) -> None:
    session = rig.text()
    length = largest(rig, b"a")
    talk(session, store(b"set", b"a", b"x" * (length - 1)))
    assert talk(session, store(b"append", b"a", b"yz")) == b"NOT_STORED\r\n"
    assert talk(session, store(b"prepend", b"a", b"yz")) == b"NOT_STORED\r\n"
    assert talk(session, store(b"append", b"a", b"y")) == b"STORED\r\n"


def test_a_block_as_long_as_the_longest_frame_is_swallowed_and_one_byte_more_closes() -> None:
    rig = Rig(kv__max_frame_bytes=2 * 1024 * 1024)
    longest = 2 * 1024 * 1024
    session = rig.text()
    line = b"set a 0 0 %d\r\n" % longest
    assert talk(session, line + b"x" * longest + b"\r\nversion\r\n").startswith(
        TOO_LARGE + b"VERSION"
    )
    session = rig.text()
    assert talk(session, b"set a 0 0 %d\r\n" % (longest + 1)) == TOO_LARGE
    assert session.closing


# --- reading ------------------------------------------------------------------------------------


def fill(rig: Rig, *keys: bytes) -> None:
    talk(rig.text(), b"".join(b"set %b 1 0 %d\r\n%b\r\n" % (key, len(key), key) for key in keys))


def value(key: bytes) -> bytes:
    return b"VALUE %b 1 %d\r\n%b\r\n" % (key, len(key), key)


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
