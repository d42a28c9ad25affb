"""Meta commands, reply by reply as memcached 1.6.18 answers them."""

from __future__ import annotations

import pytest

from tests.kv.harness import Rig, talk


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    talk(rig.text(), b"set m 3 0 2\r\nhi\r\nset n 0 0 2\r\n10\r\n")
    return rig


def cas_of(rig: Rig, key: bytes) -> int:
    item = rig.item(key)
    assert item is not None
    return item.cas


def test_mn_answers_and_marks_the_end_of_quiet_commands(rig: Rig) -> None:
    assert talk(rig.text(), b"mn\r\nmn x\r\nmg nk q v\r\nmn\r\n") == b"MN\r\n" * 3


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"mg", b"ERROR\r\n"),
        (b"ms", b"ERROR\r\n"),
        (b"md", b"ERROR\r\n"),
        (b"ma", b"ERROR\r\n"),
        (b"me", b"CLIENT_ERROR bad command line format\r\n"),
        (b"mg " + b"k" * 251, b"CLIENT_ERROR bad command line format\r\n"),
        (b"mg m !", b"CLIENT_ERROR invalid flag\r\n"),
        (b"mg m v v", b"CLIENT_ERROR duplicate flag\r\n"),
        (b"md m v v", b"CLIENT_ERROR invalid or duplicate flag\r\n"),
        (b"mg m Tx", b"CLIENT_ERROR bad token in command line format\r\n"),
        (b"mg ?? b", b"CLIENT_ERROR error decoding key\r\n"),
        (b"mg m O" + b"1" * 32, b"CLIENT_ERROR opaque token too long\r\n"),
        (b"mg m q !", b"CLIENT_ERROR invalid flag\r\n"),
        (b"ma n Mx", b"CLIENT_ERROR invalid mode for ma M token\r\n"),
        (b"ma n Dx", b"CLIENT_ERROR invalid or duplicate flag\r\n"),
    ],
)
def test_malformed_lines_are_refused(rig: Rig, line: bytes, reply: bytes) -> None:
    assert talk(rig.text(), line + b"\r\nmn\r\n") == reply + b"MN\r\n"


# --- mg -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"mg m", b"HD\r\n"),
        (b"mg m q", b"HD\r\n"),
        (b"mg m v", b"VA 2\r\nhi\r\n"),
        (b"mg m s v f t k O77", b"VA 2 s2 f3 t-1 km O77\r\nhi\r\n"),
        (b"mg m k O12 q", b"HD km O12\r\n"),
        (b"mg m f s", b"HD f3 s2\r\n"),
        (b"mg bQ== b v k", b"VA 2 kbQ== b\r\nhi\r\n"),
        (b"mg bQ== b v s", b"VA 2 s2\r\nhi\r\n"),
        (b"mg m l", b"HD l-1\r\n"),
        (b"mg nk", b"EN\r\n"),
        (b"mg nk v k O12 f", b"EN knk O12\r\n"),
        (b"mg Zm9v b k O1", b"EN kZm9v b O1\r\n"),
        (b"mg nk q k", b""),
    ],
)
def test_mg_answers_what_the_flags_ask_for(rig: Rig, line: bytes, reply: bytes) -> None:
    assert talk(rig.text(), line + b"\r\nmn\r\n") == reply + b"MN\r\n"


def test_mg_shows_the_cas(rig: Rig) -> None:
    assert talk(rig.text(), b"mg m c\r\n") == b"HD c%d\r\n" % cas_of(rig, b"m")


def test_mg_tells_whether_the_item_was_read_since_it_was_written(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"mg m h\r\nmg m h\r\n") == b"HD h0\r\nHD h1\r\n"
    assert talk(session, b"set m 0 0 1\r\nx\r\nmg m h u\r\nmg m h\r\n") == (
        b"STORED\r\nHD h0\r\nHD h0\r\n"
    )


def test_mg_with_a_ttl_touches(rig: Rig) -> None:
    session = rig.text()
    cas = cas_of(rig, b"m")
    assert talk(session, b"mg m T40 t c v\r\n") == b"VA 2 t40 c%d\r\nhi\r\n" % cas
    rig.clock.time += 10
    assert talk(session, b"mg m t h\r\n") == b"HD t30 h1\r\n"
    assert talk(session, b"mg m T-1 t\r\nmg m\r\n") == b"HD t0\r\nEN\r\n"


# --- ms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"ms x 2", b"HD\r\n"),
        (b"ms x 2 q", b""),
        (b"ms x 2 k O9", b"HD kx O9\r\n"),
        (b"ms x 2 f s t h l v", b"HD\r\n"),
        (b"ms eA== 2 b k O3", b"HD keA== b O3\r\n"),
        (b"ms x 2 ME", b"HD\r\n"),
        (b"ms m 2 ME", b"NS\r\n"),
        (b"ms m 2 ME q", b"NS\r\n"),
        (b"ms bQ== 2 ME k O1 b", b"NS kbQ== b O1\r\n"),
        (b"ms m 2 MR", b"HD\r\n"),
        (b"ms x 2 MR", b"NS\r\n"),
        (b"ms m 2 MA k", b"HD km\r\n"),
        (b"ms x 2 MA", b"NS\r\n"),
        (b"ms x 2 MP k", b"NS kx\r\n"),
        (b"ms x 2 MA N30", b"NS\r\n"),
        (b"ms m 2 C1 c", b"EX c0\r\n"),
        (b"ms m 2 C1 q", b"EX\r\n"),
        (b"ms m 2 C0", b"EX\r\n"),
        (b"ms x 2 C1 q", b"NF\r\n"),
        (b"ms x 2 C0 c", b"NF c0\r\n"),
        (b"ms x 2 ME C5", b"HD\r\n"),
        (b"ms m 2 ME C5", b"NS\r\n"),
        (b"ms x 2 MR C5", b"NF\r\n"),
        (b"ms x 2 MA C5", b"NS\r\n"),
        (b"ms m 2 MA C5", b"EX\r\n"),
        (b"ms m 2 MA C0", b"HD\r\n"),
    ],
)
def test_ms_answers_what_became_of_it(rig: Rig, line: bytes, reply: bytes) -> None:
    assert talk(rig.text(), line + b"\r\nyo\r\nmn\r\n") == reply + b"MN\r\n"


def test_ms_stores_value_flags_and_ttl(rig: Rig) -> None:
    session = rig.text()
    replies = talk(session, b"ms eA== 2 b T90 F5 c\r\nyo\r\nmg x v f t c\r\n")
    cas = cas_of(rig, b"x")
    assert replies == b"HD c%d\r\nVA 2 f5 t90 c%d\r\nyo\r\n" % (cas, cas)


def test_ms_with_the_right_cas_stores(rig: Rig) -> None:
    cas = cas_of(rig, b"m")
    assert talk(rig.text(), b"ms m 1 C%d\r\nx\r\nms m 1 C%d\r\nx\r\n" % (cas, cas)) == (
        b"HD\r\nEX\r\n"
    )


def test_ms_appends_and_prepends_and_keeps_the_flags(rig: Rig) -> None:
    replies = talk(rig.text(), b"ms m 1 MA F9\r\n>\r\nms m 1 MP\r\n<\r\nmg m v f\r\n")
    assert replies == b"HD\r\nHD\r\nVA 4 f3\r\n<hi>\r\n"


def test_ms_reads_its_block_as_a_block_even_when_the_line_is_bad(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"ms x 2 MZ\r\nhi\r\nmn\r\n") == (
        b"CLIENT_ERROR invalid mode for ms M token\r\nMN\r\n"
    )
    assert talk(session, b"ms x 2000000 !\r\n" + b"x" * 2_000_000 + b"\r\nmn\r\n") == (
        b"CLIENT_ERROR invalid flag\r\nMN\r\n"
    )
    assert talk(session, b"ms x y\r\nmn\r\n") == b"CLIENT_ERROR bad command line format\r\nMN\r\n"


def test_ms_with_a_bad_chunk_says_so_even_when_quiet(rig: Rig) -> None:
    assert talk(rig.text(), b"ms x 2 q\r\nhixy\r\n") == (
        b"CLIENT_ERROR bad data chunk\r\nERROR\r\n"
    )


@pytest.mark.parametrize("quiet", [b"", b" q"])
def test_ms_too_large_is_swallowed_and_removes_the_old_document(rig: Rig, quiet: bytes) -> None:
    huge = b"ms m 2000000%b\r\n" % quiet + b"x" * 2_000_000 + b"\r\n"
    assert talk(rig.text(), huge + b"mg m\r\n") == (
        b"SERVER_ERROR object too large for cache\r\nEN\r\n"
    )


def test_ms_append_too_large_leaves_the_document(rig: Rig) -> None:
    session = rig.text()
    huge = b"ms m 2000000 MA\r\n" + b"x" * 2_000_000 + b"\r\n"
    assert talk(session, huge) == b"SERVER_ERROR object too large for cache\r\n"
    most = rig.settings.kv.max_item_bytes - 50 - 1
    assert talk(session, b"ms m %d MA\r\n%b\r\n" % (most, b"x" * most)) == b"NS\r\n"
    assert talk(session, b"mg m v\r\n") == b"VA 2\r\nhi\r\n"


# --- md -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"md m", b"HD\r\n"),
        (b"md m q", b""),
        (b"md m k O4 c t", b"HD km O4\r\n"),
        (b"md bQ== b k", b"HD kbQ== b\r\n"),
        (b"md nk k O1", b"NF knk O1\r\n"),
        (b"md nk q", b"NF\r\n"),
        (b"md m C1 k", b"EX km\r\n"),
        (b"md m C0", b"EX\r\n"),
        (b"md m C1 q", b"EX\r\n"),
        (b"md m C1 I", b"EX\r\n"),
        (b"md nk I", b"NF\r\n"),
    ],
)
def test_md_answers_what_became_of_it(rig: Rig, line: bytes, reply: bytes) -> None:
    assert talk(rig.text(), line + b"\r\nmn\r\n") == reply + b"MN\r\n"
    gone = reply in (b"", b"HD\r\n") or reply.startswith(b"HD ")
    assert (rig.item(b"m") is None) == gone


def test_md_with_the_right_cas_deletes(rig: Rig) -> None:
    assert talk(rig.text(), b"md m C%d\r\nmg m\r\n" % cas_of(rig, b"m")) == b"HD\r\nEN\r\n"


# --- ma -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"ma n", b"HD\r\n"),
        (b"ma n q", b""),
        (b"ma n q v", b""),
        (b"ma n v", b"VA 2\r\n11\r\n"),
        (b"ma n D5 v", b"VA 2\r\n15\r\n"),
        (b"ma n MD D3 v", b"VA 1\r\n7\r\n"),
        (b"ma n M- D30 v", b"VA 1\r\n0\r\n"),
        (b"ma n M+ v", b"VA 2\r\n11\r\n"),
        (b"ma n MI v", b"VA 2\r\n11\r\n"),
        (b"ma n D18446744073709551615 v", b"VA 1\r\n9\r\n"),
        (b"ma n T30 v t", b"VA 2 t30\r\n11\r\n"),
        (b"ma n t k O1", b"HD t-1 kn O1\r\n"),
        (b"ma n C1 v k O1 t", b"EX kn O1\r\n"),
        (b"ma n C1 q", b"EX\r\n"),
        (b"ma n C0 v", b"VA 2\r\n11\r\n"),
        (b"ma nk N0 q", b"HD\r\n"),
        (b"ma nk N0 J5 q v", b"VA 1\r\n5\r\n"),
        (b"ma nk", b"NF\r\n"),
        (b"ma nk q", b"NF\r\n"),
        (b"ma nk k O1", b"NF knk O1\r\n"),
        (b"ma nk C1 v", b"NF\r\n"),
        (b"ma nk N0 J13 v t", b"VA 2 t-1\r\n13\r\n"),
        (b"ma nk N30 J13 D5 v t", b"VA 2 t30\r\n13\r\n"),
        (b"ma nk N30 C1 v", b"VA 1\r\n0\r\n"),
        (b"ma bjM= b k N0", b"HD kbjM= b\r\n"),
        (b"ma m v", b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        (b"ma m q", b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
    ],
)
def test_ma_counts(rig: Rig, line: bytes, reply: bytes) -> None:
    assert talk(rig.text(), line + b"\r\nmn\r\n") == reply + b"MN\r\n"


TTLS = [
    (b"N0 T60", b"t60", b"t60"),
    (b"T60 N0", b"t-1", b"t60"),
    (b"N60 T0", b"t-1", b"t-1"),
    (b"T20 N60", b"t60", b"t20"),
    (b"N20 T60", b"t60", b"t60"),
]


@pytest.mark.parametrize("command", [b"mg", b"ma"])
@pytest.mark.parametrize(("flags", "made", "found"), TTLS)
def test_of_n_and_t_the_later_one_rules_what_is_made_and_t_what_is_there(
    rig: Rig, command: bytes, flags: bytes, made: bytes, found: bytes
) -> None:
    """Measured with memcached 1.6.18."""
    line = b"%b nk %b t\r\n" % (command, flags)
    assert talk(rig.text(), line).split()[1] == made
    assert talk(rig.text(), b"mg nk t\r\n").split()[1] == made
    assert talk(rig.text(), line).split()[1] == found
    assert talk(rig.text(), b"mg nk t\r\n").split()[1] == found


@pytest.mark.parametrize(("flags", "changes"), [(b"T60 N30", 1), (b"N30 T60", 1)])
def test_making_a_counter_is_one_change(rig: Rig, flags: bytes, changes: int) -> None:
    vbucket = rig.bucket.of_key(b"nk")
    before = vbucket.high_seqno
    talk(rig.text(), b"ma nk %b\r\n" % flags)
    assert vbucket.high_seqno - before == changes


def test_ma_shows_the_new_cas_and_accepts_the_present_one(rig: Rig) -> None:
    before = cas_of(rig, b"n")
    reply = talk(rig.text(), b"ma n C%d c\r\n" % before)
    assert reply == b"HD c%d\r\n" % cas_of(rig, b"n")
    assert cas_of(rig, b"n") > before


def test_arithmetic_is_counted(rig: Rig) -> None:
    talk(rig.text(), b"ma n\r\nma n MD\r\nma n MD\r\nma nk\r\nma nk MD\r\n")
    stats = rig.bucket.stats
    assert (stats.incr_hits, stats.incr_misses) == (1, 1)
    assert (stats.decr_hits, stats.decr_misses) == (2, 1)


# --- me -----------------------------------------------------------------------------------------


def test_me_describes_an_item_without_counting_as_a_use(rig: Rig) -> None:
    session = rig.text()
    line = b"ME m exp=%d la=-1 cas=%d fetch=%b cls=1 size=53\r\n"
    cas = cas_of(rig, b"m")
    assert talk(session, b"me m\r\nme m\r\nme nk\r\n") == line % (-1, cas, b"no") * 2 + b"EN\r\n"
    talk(session, b"gat 60 m\r\n")
    assert talk(session, b"me bQ== b\r\n") == (line % (60, cas, b"yes")).replace(
        b"ME m", b"ME bQ=="
    )


def test_me_of_a_value_on_disk_waits_for_it(rig: Rig) -> None:
    rig.eject(b"m")
    rig.fetch_at_once()
    assert b"size=53" in talk(rig.text(), b"me m\r\n")
