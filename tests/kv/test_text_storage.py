"""Storage commands: the six of them, their data blocks, and every reply they have."""

from __future__ import annotations

import pytest

from tests.kv.harness import Rig, talk

BAD_LINE = b"CLIENT_ERROR bad command line format\r\n"
BAD_CHUNK = b"CLIENT_ERROR bad data chunk\r\n"
TOO_LARGE = b"SERVER_ERROR object too large for cache\r\n"


@pytest.fixture
def rig() -> Rig:
    return Rig()


def store(command: bytes, key: bytes, value: bytes, tail: bytes = b"") -> bytes:
    return b"%b %b 0 0 %d%b\r\n%b\r\n" % (command, key, len(value), tail, value)


def cas_of(rig: Rig, key: bytes) -> int:
    item = rig.item(key)
    assert item is not None
    return item.cas


def test_an_empty_value_is_stored_and_returned(rig: Rig) -> None:
    replies = talk(rig.text(), b"set z 0 0 0\r\n\r\nget z\r\n")
    assert replies == b"STORED\r\nVALUE z 0 0\r\n\r\nEND\r\n"


def test_a_value_may_consist_of_line_ends(rig: Rig) -> None:
    replies = talk(rig.text(), b"set z 0 0 4\r\n\r\n\r\n\r\nget z\r\n")
    assert replies == b"STORED\r\nVALUE z 0 4\r\n\r\n\r\n\r\nEND\r\n"


def test_a_block_longer_than_announced_is_a_bad_chunk_and_its_rest_a_line(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, store(b"set", b"a", b"b")) == b"STORED\r\n"
    replies = talk(session, b"set a 0 0 2\r\nabcd\r\nversion\r\n")
    assert replies == BAD_CHUNK + b"ERROR\r\nVERSION 1.2.3\r\n"
    assert talk(session, b"get a\r\n") == b"VALUE a 0 1\r\nb\r\nEND\r\n"


def test_a_block_shorter_than_announced_eats_into_the_next_line(rig: Rig) -> None:
    assert talk(rig.text(), b"set a 0 0 2\r\na\r\nversion\r\n") == BAD_CHUNK + b"ERROR\r\n"


def test_a_block_that_ends_in_a_bare_newline_is_a_bad_chunk(rig: Rig) -> None:
    assert talk(rig.text(), b"set a 0 0 1\r\nb\nget a\r\n") == BAD_CHUNK + b"ERROR\r\n"


def test_a_bad_chunk_is_not_mentioned_to_noreply(rig: Rig) -> None:
    replies = talk(rig.text(), b"set a 0 0 2 noreply\r\nabcd\r\nversion\r\n")
    assert replies == b"ERROR\r\nVERSION 1.2.3\r\n"


@pytest.mark.parametrize(
    "line",
    [b"set a x 0 1", b"set a -1 0 1", b"set a 0 x 1", b"set a 0 0 x", b"set a 0 0 2147483646"],
)
def test_a_malformed_line_leaves_its_data_to_be_read_as_a_line(rig: Rig, line: bytes) -> None:
    assert talk(rig.text(), line + b"\r\nb\r\n") == BAD_LINE + b"ERROR\r\n"


def test_a_negative_length_is_refused(rig: Rig) -> None:
    assert talk(rig.text(), b"set a 0 0 -1\r\n") == BAD_LINE


def test_flags_have_32_bits(rig: Rig) -> None:
    replies = talk(rig.text(), b"set a 4294967295 0 1\r\nb\r\nget a\r\n")
    assert replies == b"STORED\r\nVALUE a 4294967295 1\r\nb\r\nEND\r\n"
    replies = talk(rig.text(), b"set a 4294967296 0 1\r\nb\r\nget a\r\n")
    assert replies == b"STORED\r\nVALUE a 0 1\r\nb\r\nEND\r\n"


def test_a_key_may_have_250_bytes_and_no_more(rig: Rig) -> None:
    session = rig.text()
    longest, too_long = b"k" * 250, b"k" * 251
    assert talk(session, store(b"set", longest, b"b")) == b"STORED\r\n"
    assert talk(session, store(b"set", too_long, b"b")) == BAD_LINE + b"ERROR\r\n"
    for line in (b"get %b", b"delete %b", b"incr %b 1", b"touch %b 0", b"gat 0 %b"):
        assert talk(session, line % too_long + b"\r\n") == BAD_LINE


def test_a_key_may_hold_any_byte_but_white_space(rig: Rig) -> None:
    key = "kéy\x01\x7f".encode() + b"\xff"
    replies = talk(rig.text(), store(b"set", key, b"b") + b"get " + key + b"\r\n")
    assert replies == b"STORED\r\nVALUE %b 0 1\r\nb\r\nEND\r\n" % key


@pytest.mark.parametrize("command", [b"set", b"add", b"replace", b"append", b"prepend"])
def test_noreply_silences_success(rig: Rig, command: bytes) -> None:
    session = rig.text()
    if command not in (b"set", b"add"):
        talk(session, store(b"set", b"a", b"1"))
    assert talk(session, store(command, b"a", b"z", b" noreply")) == b""
    item = rig.item(b"a")
    assert item is not None
    assert b"z" in (item.value or b"")


def test_noreply_silences_refusals_too(rig: Rig) -> None:
    session = rig.text()
    talk(session, store(b"set", b"a", b"b"))
    silent = (
        store(b"add", b"a", b"q", b" noreply")
        + store(b"replace", b"nk", b"q", b" noreply")
        + store(b"append", b"nk", b"q", b" noreply")
        + b"cas a 0 0 1 1 noreply\r\nq\r\n"
        + b"set a x 0 -1 noreply\r\n"
    )
    assert talk(session, silent + b"version\r\n") == b"VERSION 1.2.3\r\n"


def test_another_last_word_than_noreply_is_ignored(rig: Rig) -> None:
    assert talk(rig.text(), store(b"set", b"a", b"b", b" norepl")) == b"STORED\r\n"


def test_too_many_words_are_an_error_and_the_data_another(rig: Rig) -> None:
    assert talk(rig.text(), b"set a 0 0 1 noreply x\r\nb\r\n") == b"ERROR\r\nERROR\r\n"


def test_several_spaces_separate_like_one(rig: Rig) -> None:
    assert talk(rig.text(), b"  set  a 0  0 1 \r\nb\r\n get  a \r\n") == (
        b"STORED\r\nVALUE a 0 1\r\nb\r\nEND\r\n"
    )


def test_add_stores_only_what_is_not_there(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, store(b"add", b"a", b"1")) == b"STORED\r\n"
    assert talk(session, store(b"add", b"a", b"2")) == b"NOT_STORED\r\n"
    assert talk(session, b"get a\r\n") == b"VALUE a 0 1\r\n1\r\nEND\r\n"


def test_replace_stores_only_what_is_there(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, store(b"replace", b"a", b"1")) == b"NOT_STORED\r\n"
    talk(session, store(b"set", b"a", b"2"))
    assert talk(session, store(b"replace", b"a", b"3")) == b"STORED\r\n"
    assert talk(session, b"get a\r\n") == b"VALUE a 0 1\r\n3\r\nEND\r\n"


def test_append_and_prepend_keep_flags_and_expiry(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set a 7 100 1\r\nm\r\n")
    before = rig.item(b"a")
    assert before is not None
    assert talk(session, b"append a 9 99 2\r\nyz\r\nprepend a 9 99 1\r\n<\r\n") == b"STORED\r\n" * 2
    assert talk(session, b"get a\r\n") == b"VALUE a 7 4\r\n<myz\r\nEND\r\n"
    after = rig.item(b"a")
    assert after is not None
    assert after.expiry == before.expiry
    assert after.cas > before.cas


def test_append_and_prepend_to_nothing_store_nothing(rig: Rig) -> None:
    replies = talk(rig.text(), store(b"append", b"nk", b"q") + store(b"prepend", b"nk", b"q"))
    assert replies == b"NOT_STORED\r\nNOT_STORED\r\n"
    assert rig.item(b"nk") is None


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


def test_a_cas_of_0_matches_nothing(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"cas a 0 0 1 0\r\nq\r\n") == b"NOT_FOUND\r\n"
    talk(session, store(b"set", b"a", b"b"))
    assert talk(session, b"cas a 0 0 1 0\r\nq\r\n") == b"EXISTS\r\n"


def test_a_cas_that_is_no_number_is_a_malformed_line(rig: Rig) -> None:
    assert talk(rig.text(), b"cas a 0 0 1 x\r\nq\r\n") == BAD_LINE + b"ERROR\r\n"


# --- expiry -------------------------------------------------------------------------------------


def test_a_negative_expiry_time_is_stored_and_gone(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"set e 0 -1 1\r\nz\r\nget e\r\n") == b"STORED\r\nEND\r\n"
    assert talk(session, store(b"add", b"e", b"y")) == b"STORED\r\n"


def test_up_to_thirty_days_an_expiry_time_is_relative(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set e 0 2592000 1\r\nz\r\nset f 0 2592001 1\r\nz\r\n")
    assert talk(session, b"get e f\r\n") == b"VALUE e 0 1\r\nz\r\nEND\r\n"


def test_an_expiry_time_of_2_to_the_31_is_negative(rig: Rig) -> None:
    assert talk(rig.text(), b"set e 0 2147483648 1\r\nz\r\nget e\r\n") == b"STORED\r\nEND\r\n"


def test_a_document_is_served_until_its_second_comes(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"set e 0 10 1\r\nz\r\n")
    rig.clock.time += 9.9
    assert talk(session, b"get e\r\n") == b"VALUE e 0 1\r\nz\r\nEND\r\n"
    rig.clock.time += 0.1
    assert talk(session, b"get e\r\n") == b"END\r\n"
    assert rig.bucket.stats.get_expired == 1


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (b"replace e 0 0 1\r\nx\r\n", b"NOT_STORED\r\n"),
        (b"append e 0 0 1\r\nx\r\n", b"NOT_STORED\r\n"),
        (b"cas e 0 0 1 5\r\nx\r\n", b"NOT_FOUND\r\n"),
        (b"touch e 5\r\n", b"NOT_FOUND\r\n"),
        (b"delete e\r\n", b"NOT_FOUND\r\n"),
        (b"incr e 1\r\n", b"NOT_FOUND\r\n"),
        (b"gat 0 e\r\n", b"END\r\n"),
        (b"add e 0 0 1\r\nx\r\n", b"STORED\r\n"),
    ],
)
def test_an_expired_document_is_a_miss_for(rig: Rig, command: bytes, reply: bytes) -> None:
    session = rig.text()
    talk(session, b"set e 0 1 1\r\n1\r\n")
    rig.clock.time += 1
    assert talk(session, command) == reply


# --- too large ----------------------------------------------------------------------------------


def largest(rig: Rig, key: bytes) -> int:
    return rig.settings.kv.max_item_bytes - 50 - len(key)


def test_the_largest_item_is_stored_and_one_byte_more_is_not(rig: Rig) -> None:
    session = rig.text()
    length = largest(rig, b"a")
    assert talk(session, store(b"set", b"a", b"x" * length)) == b"STORED\r\n"
    assert talk(session, b"mg a s\r\n") == b"HD s%d\r\n" % length
    assert talk(session, store(b"set", b"a", b"x" * (length + 1))) == TOO_LARGE


def test_what_is_too_large_is_swallowed_and_the_conversation_goes_on(rig: Rig) -> None:
    huge = store(b"set", b"a", b"x" * 5_000_000)
    assert talk(rig.text(), huge + b"version\r\n") == TOO_LARGE + b"VERSION 1.2.3\r\n"


def test_what_is_too_large_is_never_held(rig: Rig) -> None:
    session = rig.text()
    session.receive_data(b"set a 0 0 2000000\r\n")
    for _ in range(20):
        session.receive_data(b"x" * 100_000)
        assert session._held == 0
    assert talk(session, b"\r\nversion\r\n") == TOO_LARGE + b"VERSION 1.2.3\r\n"


def test_a_set_that_is_too_large_removes_the_old_document(rig: Rig) -> None:
    session = rig.text()
    talk(session, store(b"set", b"a", b"b"))
    assert talk(session, store(b"set", b"a", b"x" * 1_048_577) + b"get a\r\n") == (
        TOO_LARGE + b"END\r\n"
    )


@pytest.mark.parametrize("command", [b"add", b"replace", b"append", b"prepend"])
def test_other_commands_that_are_too_large_leave_the_old_document(rig: Rig, command: bytes) -> None:
    session = rig.text()
    talk(session, store(b"set", b"a", b"b"))
    assert talk(session, store(command, b"a", b"x" * 1_048_577)) == TOO_LARGE
    assert talk(session, b"get a\r\n") == b"VALUE a 0 1\r\nb\r\nEND\r\n"


def test_a_noreply_set_that_is_too_large_is_silent_and_removes(rig: Rig) -> None:
    session = rig.text()
    talk(session, store(b"set", b"a", b"b"))
    huge = store(b"set", b"a", b"x" * 2_000_000, b" noreply")
    assert talk(session, huge + b"version\r\nget a\r\n") == b"VERSION 1.2.3\r\nEND\r\n"


def test_an_append_whose_sum_is_too_large_is_not_stored(rig: Rig) -> None:
    session = rig.text()
    length = largest(rig, b"a")
    talk(session, store(b"set", b"a", b"x" * (length - 1)))
    assert talk(session, store(b"append", b"a", b"yz")) == b"NOT_STORED\r\n"
    assert talk(session, store(b"prepend", b"a", b"yz")) == b"NOT_STORED\r\n"
    assert talk(session, store(b"append", b"a", b"y")) == b"STORED\r\n"


def test_stores_are_counted(rig: Rig) -> None:
    session = rig.text()
    talk(session, store(b"set", b"a", b"1") * 3 + store(b"add", b"a", b"1"))
    assert rig.bucket.stats.cmd_set == 4
    assert rig.bucket.stats.total_items == 3


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
