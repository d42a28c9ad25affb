"""Every opcode of memcached's binary protocol, loud and quiet, down to the bytes."""

from __future__ import annotations

import pytest

from tests.kv.binary_peer import LOUD, Peer, answer, counter, error, frame, get_hit, store, u32, u64
from tests.kv.harness import NOON, Rig

GET, SET, ADD, REPLACE, DELETE, INCR, DECR, QUIT, FLUSH, GETQ, NOOP, VERSION = range(12)
GETK, GETKQ, APPEND, PREPEND, STAT, SETQ, ADDQ, REPLACEQ, DELETEQ, INCRQ, DECRQ = range(0x0C, 0x17)
QUITQ, FLUSHQ, APPENDQ, PREPENDQ, VERBOSITY, TOUCH, GAT, GATQ = range(0x17, 0x1F)
GATK, GATKQ = 0x23, 0x24


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return Peer(rig)


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [GET, GETQ, GETK, GETKQ])
def test_a_hit_brings_flags_value_and_cas(peer: Peer, opcode: int) -> None:
    cas = peer.put(b"k", b"value", flags=0xDEADBEEF)
    key = b"k" if opcode in (GETK, GETKQ) else b""
    assert peer.say(frame(opcode, b"k", opaque=0x01020304)) == get_hit(
        opcode, b"value", cas, flags=0xDEADBEEF, key=key, opaque=0x01020304
    )


@pytest.mark.parametrize("opcode", [GAT, GATQ, GATK, GATKQ])
def test_get_and_touch_is_a_get_that_keeps_the_cas(peer: Peer, opcode: int) -> None:
    cas = peer.put(b"k", b"value", flags=3)
    key = b"k" if opcode in (GATK, GATKQ) else b""
    assert peer.say(frame(opcode, b"k", extras=u32(100), opaque=9)) == get_hit(
        opcode, b"value", cas, flags=3, key=key, opaque=9
    )
    item = peer.rig.item(b"k")
    assert item is not None
    assert item.expiry == NOON + 100
    assert item.cas == cas


@pytest.mark.parametrize("opcode", [GET, GAT])
def test_a_miss_answers_not_found(peer: Peer, opcode: int) -> None:
    extras = u32(0) if opcode == GAT else b""
    assert peer.say(frame(opcode, b"k", extras=extras, opaque=5)) == error(opcode, 1, opaque=5)


@pytest.mark.parametrize("opcode", [GETK, GATK])
def test_a_miss_of_a_get_by_key_repeats_the_key_instead_of_the_text(
    peer: Peer, opcode: int
) -> None:
    extras = u32(0) if opcode == GATK else b""
    assert peer.say(frame(opcode, b"key", extras=extras, opaque=5)) == answer(
        opcode, 1, key=b"key", opaque=5
    )


@pytest.mark.parametrize("opcode", [GETQ, GETKQ, GATQ, GATKQ])
def test_a_quiet_get_is_silent_about_a_miss(peer: Peer, opcode: int) -> None:
    extras = u32(0) if opcode in (GATQ, GATKQ) else b""
    assert peer.say(frame(opcode, b"k", extras=extras)) == b""


def test_a_multi_get_is_quiet_gets_and_a_noop(peer: Peer) -> None:
    first, second = peer.put(b"a", b"1"), peer.put(b"c", b"3")
    wanted = [frame(GETKQ, key, opaque=n) for n, key in enumerate([b"a", b"b", b"c"])]
    assert peer.say(*wanted, frame(NOOP, opaque=99)) == (
        get_hit(GETKQ, b"1", first, key=b"a", opaque=0)
        + get_hit(GETKQ, b"3", second, key=b"c", opaque=2)
        + answer(NOOP, opaque=99)
    )


@pytest.mark.parametrize("opcode", [GET, GETQ, GETK, GETKQ])
def test_a_document_is_there_until_the_second_in_which_it_expires(peer: Peer, opcode: int) -> None:
    cas = peer.put(b"k", b"v", expiration=10)
    key = b"k" if opcode in (GETK, GETKQ) else b""
    peer.rig.clock.time += 9
    assert peer.say(frame(opcode, b"k")) == get_hit(opcode, b"v", cas, key=key)
    peer.rig.clock.time += 1
    assert get_hit(opcode, b"v", cas, key=key) not in peer.say(frame(opcode, b"k"))
    stats = peer.rig.bucket.stats
    assert (stats.get_hits, stats.get_misses, stats.get_expired) == (1, 1, 1)


def test_a_quiet_set_that_is_refused_says_so_by_its_own_opcode(peer: Peer) -> None:
    cas = peer.put(b"k", b"v")
    assert peer.say(store(SETQ, b"k", b"w", cas=cas + 1, opaque=8)) == error(SETQ, 2, opaque=8)
    assert peer.say(store(SETQ, b"k", b"w", cas=cas)) == b""


def test_an_empty_value_is_a_hit(peer: Peer) -> None:
    cas = peer.put(b"k", b"")
    assert peer.say(frame(GET, b"k")) == get_hit(GET, b"", cas)


def test_keys_and_values_may_hold_any_byte(peer: Peer) -> None:
    key, value = b"a b\x00\r\n\xff\x80", bytes(range(256))
    cas = peer.put(key, value)
    assert peer.say(frame(GETK, key)) == get_hit(GETK, value, cas, key=key)


@pytest.mark.parametrize("opcode", [GET, GETQ, GETK, GAT, TOUCH])
def test_a_cas_and_a_datatype_in_a_read_change_nothing(peer: Peer, opcode: int) -> None:
    cas = peer.put(b"k", b"v")
    extras = u32(0) if opcode in (GAT, TOUCH) else b""
    plain = bytearray(frame(opcode, b"k", extras=extras, cas=cas + 7, vbucket=999))
    plain[5] = 1
    (reply,) = peer.ask(bytes(plain))
    assert (reply.status, reply.cas) == (0, cas)


@pytest.mark.parametrize("opcode", [GET, GETK, GAT, TOUCH, DELETE, REPLACE, INCR])
def test_an_expired_item_is_a_miss_for_every_command(peer: Peer, opcode: int) -> None:
    peer.put(b"k", b"1", expiration=10)
    peer.rig.clock.time += 10
    request = {
        GAT: frame(GAT, b"k", extras=u32(0)),
        TOUCH: frame(TOUCH, b"k", extras=u32(0)),
        REPLACE: store(REPLACE, b"k", b"2"),
        INCR: counter(INCR, b"k", 1, 0, 0xFFFFFFFF),
    }.get(opcode, frame(opcode, b"k"))
    assert [reply.status for reply in peer.ask(request)] == [1]


def test_add_of_an_expired_item_succeeds(peer: Peer) -> None:
    peer.put(b"k", b"1", expiration=10)
    peer.rig.clock.time += 11
    assert [reply.status for reply in peer.ask(store(ADD, b"k", b"2"))] == [0]


# --- storing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [SET, ADD, REPLACE, APPEND, PREPEND])
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("quiet", [False, True])
def test_which_store_succeeds_where(peer: Peer, opcode: int, there: bool, quiet: bool) -> None:
    sent = {loud: silent for silent, loud in LOUD.items()}[opcode] if quiet else opcode
    if there:
        peer.put(b"k", b"old", flags=7)
    extends = opcode in (APPEND, PREPEND)
    extras = b"" if extends else u32(9) + u32(0)
    refusal = {
        (ADD, True): 2,
        (REPLACE, False): 1,
        (APPEND, False): 5,
        (PREPEND, False): 5,
    }.get((opcode, there))
    said = peer.say(frame(sent, b"k", b"new", extras, opaque=77))
    if refusal:
        assert said == error(sent, refusal, opaque=77)
        assert peer.value(b"k") == (b"old" if there else None)
        return
    item = peer.rig.item(b"k")
    assert item is not None
    assert said == (b"" if quiet else answer(sent, cas=item.cas, opaque=77))
    assert item.value == {APPEND: b"oldnew", PREPEND: b"newold"}.get(opcode, b"new")
    assert item.flags == (7 if extends else 9)


@pytest.mark.parametrize(
    ("opcode", "cas", "status"),
    [
        *[(opcode, "equal", 0) for opcode in (SET, ADD, REPLACE, APPEND, PREPEND, DELETE, INCR)],
        *[(opcode, "other", 2) for opcode in (SET, ADD, REPLACE, APPEND, PREPEND, DELETE, DECR)],
        *[(opcode, "missing", 1) for opcode in (SET, ADD, REPLACE, DELETE)],
        *[(opcode, "missing", 5) for opcode in (APPEND, PREPEND)],
        (INCR, "missing", 0),
        (DECR, "missing", 0),
    ],
)
@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.acceptance("D17")
def test_the_cas_table(peer: Peer, opcode: int, cas: str, status: int, quiet: bool) -> None:
    sent = {loud: silent for silent, loud in LOUD.items()}[opcode] if quiet else opcode
    old = peer.put(b"k", b"5")
    wanted = {"equal": old, "other": old + 1, "missing": old}[cas]
    if cas == "missing":
        peer.say(frame(DELETE, b"k"))
    vbucket = peer.rig.bucket.of_key(b"k")
    before = vbucket.high_seqno
    extras, value = b"", b"9"
    if opcode in (SET, ADD, REPLACE):
        extras = u32(0) * 2
    elif opcode in (INCR, DECR):
        extras, value = u64(1) + u64(3) + u32(0), b""
    elif opcode == DELETE:
        value = b""
    said = peer.say(frame(sent, b"k", value, extras, cas=wanted))
    if status:
        assert said == error(sent, status)
        assert vbucket.high_seqno == before  # a refused change takes no seqno
        return
    assert (said == b"") is quiet
    assert vbucket.high_seqno == before + 1
    item = peer.rig.item(b"k")
    if opcode == DELETE:
        assert item is None
        return
    assert item is not None
    assert item.cas > old


def test_the_cas_of_a_store_is_the_one_the_next_get_shows_and_is_used_up_by_a_store(
    peer: Peer,
) -> None:
    first = peer.put(b"k", b"1")
    assert peer.say(frame(GET, b"k")) == get_hit(GET, b"1", first)
    (second,) = peer.ask(store(SET, b"k", b"2", cas=first))
    assert second.status == 0
    assert second.cas > first
    assert peer.say(store(SET, b"k", b"3", cas=first)) == error(SET, 2)


def test_quiet_sets_leave_only_the_noop_to_answer(peer: Peer) -> None:
    said = peer.say(store(SETQ, b"a", b"1"), store(SETQ, b"b", b"2"), frame(NOOP, opaque=3))
    assert said == answer(NOOP, opaque=3)


@pytest.mark.parametrize("opcode", [DELETE, DELETEQ])
def test_delete_answers_without_a_cas(peer: Peer, opcode: int) -> None:
    peer.put(b"k", b"v")
    assert peer.say(frame(opcode, b"k", opaque=1)) == (
        answer(DELETE, opaque=1) if opcode == DELETE else b""
    )
    assert peer.say(frame(opcode, b"k", opaque=2)) == error(opcode, 1, opaque=2)


def test_expiry_times_are_relative_up_to_thirty_days(peer: Peer) -> None:
    month = 2_592_000
    for key, exptime, expiry in (
        (b"never", 0, 0),
        (b"second", 1, NOON + 1),
        (b"month", month, NOON + month),
        (b"past", month + 1, month + 1),
        (b"far", 0xFFFFFFFF, 0xFFFFFFFF),
    ):
        peer.put(key, b"v", expiration=exptime)
        item = peer.rig.item(key)
        assert item is not None
        assert item.expiry == expiry
    found = [peer.value(key) is not None for key in (b"never", b"second", b"month", b"past")]
    assert found == [True, True, True, False]
    assert peer.value(b"far") == b"v"


# --- counters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [INCR, INCRQ, DECR, DECRQ])
def test_a_missing_counter_is_made_from_initial_or_not_at_all(peer: Peer, opcode: int) -> None:
    assert peer.say(counter(opcode, b"n", 1, 5, 0xFFFFFFFF)) == error(opcode, 1)
    said = peer.say(counter(opcode, b"n", 1, 5, 60))
    item = peer.rig.item(b"n")
    assert item is not None
    assert (item.value, item.flags, item.expiry) == (b"5", 0, NOON + 60)
    assert said == (b"" if opcode in LOUD else answer(opcode, value=u64(5), cas=item.cas))


@pytest.mark.parametrize(
    ("stored", "opcode", "delta", "number", "after"),
    [
        (b"100", DECR, 1, 99, b"99 "),
        (b"99 ", DECR, 95, 4, b"4  "),
        (b"1  ", INCR, 1, 2, b"2  "),
        (b"2  ", INCR, 1000, 1002, b"1002"),
        (b"0  ", INCR, 5, 5, b"5  "),
        (b"99", INCR, 1, 100, b"100"),
        (b"18446744073709551615", INCR, 1, 0, b"0" + b" " * 19),
        (b" 12", INCR, 1, 13, b"13 "),
        (b"12 ", INCR, 1, 13, b"13 "),
        (b"00000000000000000001", INCR, 1, 2, b"2" + b" " * 19),
        (b"000000000000000000007", INCR, 1, 8, b"8" + b" " * 20),
        (b"1\r\n ", INCR, 1, 2, b"2   "),
        (b"5", DECR, 6, 0, b"0"),
        (b"5", INCR, 2**64 - 1, 4, b"4"),
        (b"0", INCR, 2**64 - 1, 2**64 - 1, b"18446744073709551615"),
    ],
)
def test_the_increment_table(
    peer: Peer, stored: bytes, opcode: int, delta: int, number: int, after: bytes
) -> None:
    peer.put(b"n", stored, flags=11, expiration=50)
    said = peer.say(counter(opcode, b"n", delta, 77, 99))
    item = peer.rig.item(b"n")
    assert item is not None
    assert said == answer(opcode, value=u64(number), cas=item.cas)
    assert (item.value, item.flags, item.expiry) == (after, 11, NOON + 50)


@pytest.mark.parametrize("stored", [b"abc", b"", b"-1", b"12abc", b"18446744073709551616", b" "])
@pytest.mark.parametrize("opcode", [INCR, INCRQ, DECR, DECRQ])
def test_what_is_no_number_is_not_counted(peer: Peer, stored: bytes, opcode: int) -> None:
    peer.put(b"n", stored)
    assert peer.say(counter(opcode, b"n", 1, 0, 0)) == error(opcode, 6)
    assert peer.value(b"n") == stored


def test_ten_down_and_up_again(peer: Peer) -> None:
    peer.put(b"n", b"10")
    peer.say(counter(DECR, b"n", 1))
    assert peer.value(b"n") == b"9 "
    peer.say(counter(INCR, b"n", 1))
    assert peer.value(b"n") == b"10"


# --- touch, flush, stat and the rest ------------------------------------------------------------


def test_touch_answers_flags_and_cas(peer: Peer) -> None:
    cas = peer.put(b"k", b"v", flags=6)
    assert peer.say(frame(TOUCH, b"k", extras=u32(30))) == answer(TOUCH, extras=u32(6), cas=cas)
    item = peer.rig.item(b"k")
    assert item is not None
    assert item.expiry == NOON + 30
    assert peer.say(frame(TOUCH, b"nk", extras=u32(30))) == error(TOUCH, 1)


@pytest.mark.parametrize("extras", [b"", u32(0)])
def test_flush_answers_when_the_emptiness_is_on_disk(peer: Peer, extras: bytes) -> None:
    rig = peer.rig
    peer.put(b"k", b"v")
    rig.flush()
    assert peer.say(frame(FLUSH, extras=extras, opaque=8), frame(NOOP)) == b""
    assert peer.session.input_full
    assert rig.store.view().count() == 1
    other = Peer(rig)
    assert other.value(b"k") is None
    rig.flush()
    assert rig.store.view().count() == 0
    assert peer.say() == answer(FLUSH, opaque=8) + answer(NOOP)
    assert not peer.session.input_full
    assert rig.bucket.stats.cmd_flush == 1


def test_a_flush_that_the_disk_refuses_is_told(peer: Peer) -> None:
    peer.put(b"k", b"v")
    assert peer.say(frame(FLUSH), frame(NOOP)) == b""
    peer.rig.fail_flush()
    assert peer.say() == error(FLUSH, 0x86) + answer(NOOP)


def test_a_quiet_flush_waits_for_nothing(peer: Peer) -> None:
    peer.put(b"k", b"v")
    assert peer.say(frame(FLUSHQ), frame(NOOP)) == answer(NOOP)
    assert peer.value(b"k") is None


def test_what_is_stored_right_after_a_flush_survives(peer: Peer) -> None:
    peer.put(b"k", b"v")
    peer.say(frame(FLUSHQ), store(SETQ, b"k", b"new"))
    peer.rig.flush()
    assert peer.value(b"k") == b"new"


@pytest.mark.parametrize("opcode", [FLUSH, FLUSHQ])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_later_flush_answers_at_once_and_takes_what_came_between(
    peer: Peer, opcode: int, absolute: bool
) -> None:
    when = u32(int(NOON) + 2 if absolute else 2)
    peer.put(b"old", b"v")
    assert peer.say(frame(opcode, extras=when)) == (answer(FLUSH) if opcode == FLUSH else b"")
    peer.put(b"between", b"v")
    peer.rig.clock.time += 1
    peer.rig.bucket.tick()
    assert peer.value(b"old") == peer.value(b"between") == b"v"
    peer.rig.clock.time += 1
    peer.rig.bucket.tick()
    assert peer.value(b"old") is peer.value(b"between") is None
    peer.put(b"after", b"v")
    peer.rig.bucket.tick()
    assert peer.value(b"after") == b"v"


def test_stat_answers_a_packet_for_each_name_and_an_empty_one(peer: Peer) -> None:
    assert peer.say(frame(STAT, opaque=4)) == (
        answer(STAT, key=b"version", value=b"1.2.3", opaque=4)
        + answer(STAT, key=b"blank", opaque=4)
        + answer(STAT, opaque=4)
    )


def test_stat_groups(peer: Peer) -> None:
    peer.rig.groups["items"] = []
    peer.rig.groups["failovers 3"] = [("vb_3:num_entries", "1")]
    assert peer.say(frame(STAT, b"items")) == answer(STAT)
    assert peer.say(frame(STAT, b" failovers  3 ")) == (
        answer(STAT, key=b"vb_3:num_entries", value=b"1") + answer(STAT)
    )
    for unknown in (b"bogus", b"cachedump 1 1", b"detail", b"\xff\xfe", b"\x00"):
        assert peer.say(frame(STAT, unknown, opaque=2)) == error(STAT, 1, opaque=2)
    assert peer.say(frame(NOOP)) == answer(NOOP)


def test_stat_reset_and_detail_are_commands_in_disguise(peer: Peer) -> None:
    assert peer.say(frame(STAT, b"reset")) == answer(STAT)
    assert peer.rig.resets == 1
    assert peer.say(frame(STAT, b"detail on")) == answer(STAT)
    assert peer.say(frame(STAT, b"detail off")) == answer(STAT)
    assert peer.say(frame(STAT, b"detail dump")) == (
        answer(STAT, key=b"detailed", value=b"END\r\n") + answer(STAT)
    )


def test_a_statistic_that_is_no_text_is_sent_as_the_bytes_it_was_made_from(peer: Peer) -> None:
    peer.rig.groups[""] = [("ep_dbname", b"/d\xe4ta".decode("utf-8", "surrogateescape"))]
    assert peer.say(frame(STAT)) == answer(STAT, key=b"ep_dbname", value=b"/d\xe4ta") + answer(STAT)


def test_noop_version_and_verbosity(peer: Peer) -> None:
    assert peer.say(frame(NOOP, opaque=0xFFFFFFFF)) == answer(NOOP, opaque=0xFFFFFFFF)
    assert peer.say(frame(VERSION, opaque=1)) == answer(VERSION, value=b"1.2.3", opaque=1)
    assert peer.say(frame(VERBOSITY, extras=u32(2))) == answer(VERBOSITY)
    assert peer.rig.verbosity == 2


def test_quit_answers_and_closes_and_quitq_only_closes(rig: Rig) -> None:
    for opcode, said in ((QUIT, answer(QUIT, opaque=6)), (QUITQ, b"")):
        peer = Peer(rig)
        assert peer.say(frame(opcode, opaque=6), frame(NOOP), store(SETQ, b"k", b"v")) == said
        assert peer.closed
        assert not peer.session.input_full
        assert rig.item(b"k") is None
        assert peer.say(frame(NOOP)) == b""
    assert rig.misuse == []


@pytest.mark.parametrize(
    "request_",
    [frame(0x20), frame(0x21, b"PLAIN", b"\0user\0secret"), frame(0x22, b"PLAIN", b"more")],
)
def test_a_login_is_refused_and_the_conversation_goes_on(peer: Peer, request_: bytes) -> None:
    assert peer.say(request_, frame(NOOP)) == error(request_[1], 0x81) + answer(NOOP)


def test_a_mixed_send_is_answered_in_order(peer: Peer) -> None:
    replies = peer.ask(
        store(SET, b"k", b"1", opaque=1),
        counter(INCR, b"k", 1),
        frame(GET, b"k", opaque=3),
        frame(DELETE, b"k", opaque=4),
        frame(GET, b"k", opaque=5),
        frame(0xFF, opaque=6),
        frame(VERSION, opaque=7),
    )
    assert [(reply.opcode, reply.status) for reply in replies] == [
        (SET, 0),
        (INCR, 0),
        (GET, 0),
        (DELETE, 0),
        (GET, 1),
        (0xFF, 0x81),
        (VERSION, 0),
    ]


# --- what is counted ----------------------------------------------------------------------------
