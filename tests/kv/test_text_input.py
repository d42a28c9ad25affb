"""What arrives: any split of the stream, and the limits of a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contents import table_of
from tests.kv.harness import Rig, drained, drained_with_waits, talk, talk_in_pieces
from uprmc.kv.text import TextSession
from uprmc.ports import Session

KEYS = st.sampled_from([b"a", b"b", b"counter", b"k" * 250, b"k" * 251])
VALUES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"5", b"\r\n", b"get a\r\n", b"x" * 1_000, b"x" * 1_500]),
)
NOREPLY = st.sampled_from([b"", b"", b" noreply"])


@st.composite
def storage_commands(draw: st.DrawFn) -> bytes:
    command = draw(st.sampled_from([b"set", b"set", b"add", b"replace", b"append", b"prepend"]))
    value, wrong = draw(VALUES), draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
    length = max(0, len(value) + wrong)
    head = b"%b %b %d 0 %d%b\r\n" % (command, draw(KEYS), draw(st.integers(0, 9)), length, b"%b")
    return head % draw(NOREPLY) + value + b"\r\n"


COMMANDS = st.one_of(
    storage_commands(),
    st.builds(b"get %b\r\n".__mod__, KEYS),
    st.builds(lambda keys: b"get " + b" ".join(keys) + b"\n", st.lists(KEYS, min_size=1)),
    st.builds(lambda key, tail: b"delete %b%b\r\n" % (key, tail), KEYS, NOREPLY),
    st.builds(lambda key, tail: b"incr %b 3%b\r\n" % (key, tail), KEYS, NOREPLY),
    st.builds(lambda key, tail: b"touch %b 9%b\r\n" % (key, tail), KEYS, NOREPLY),
    st.builds(b"mg %b v k f\r\n".__mod__, KEYS),
    st.builds(lambda value: b"ms a %d q\r\n%b\r\n" % (len(value), value), VALUES),
    st.sampled_from(
        [b"version\r\n", b"bogus\r\n", b"\r\n", b"mn\r\n", b"gat 9 a b\r\n", b"gets a\n"]
    ),
    st.just(b"set big 0 0 2000\r\n" + b"y" * 2_000 + b"\r\n"),
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    data = b"".join(draw(st.lists(COMMANDS, max_size=12)))
    return data, draw(st.lists(st.integers(0, len(data)), max_size=30))


@given(conversations())
def test_any_split_of_the_stream_gives_the_same_replies(case: tuple[bytes, list[int]]) -> None:
    data, cuts = case
    whole, parts = (Rig(kv__max_item_bytes=2_000) for _ in range(2))
    expected = talk(whole.text(), data)
    session = parts.text()
    assert talk_in_pieces(session, data, cuts) == expected
    assert not session.input_full
    assert tables(parts) == tables(whole)
    parts.check()


def tables(rig: Rig) -> list[dict[bytes, object]]:
    return [dict(table_of(vbucket)) for vbucket in rig.bucket.vbuckets.values()]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_no_bytes_at_all_can_make_a_session_raise(noise: bytes, cuts: list[int]) -> None:
    rig = Rig()
    talk_in_pieces(rig.text(), noise + b"\r\nstats x\r\nmg x v\r\nms x 1\r\n", cuts)
    rig.check()


def test_every_byte_may_come_alone() -> None:
    rig = Rig()
    data = b"set a 5 0 4\r\n\r\n\r\n\r\nget a b\r\nincr a 1\r\nquit\r\n"
    session = rig.text()
    assert talk_in_pieces(session, data, list(range(len(data)))) == (
        b"STORED\r\nVALUE a 5 4\r\n\r\n\r\n\r\nEND\r\n"
        b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
    )
    assert session.closing


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 5_000])
def test_a_line_may_be_as_long_as_the_limit_without_its_end(chunk: int) -> None:
    rig = Rig()
    session = rig.text()
    limit = rig.settings.kv.max_line_bytes
    feed(session, b"x" * limit, chunk)
    assert not session.closing
    assert talk(session, b"\r\nversion\r\n") == b"ERROR\r\nVERSION 1.2.3\r\n"


@pytest.mark.parametrize("chunk", [1, 7, 5_000])
@pytest.mark.parametrize("start", [b"x", b"gat\t0 ", b"set ", b" " * 200 + b"get "])
def test_one_byte_more_hangs_up_without_a_word(chunk: int, start: bytes) -> None:
    rig = Rig()
    session = rig.text()
    limit = rig.settings.kv.max_line_bytes
    feed(session, b"version\r\n" + start + b"x" * (limit + 1 - len(start)), chunk)
    assert session.closing
    assert drained(session) == b"VERSION 1.2.3\r\n"
    assert len(rig.misuse) == 1


def test_a_long_line_that_arrives_with_its_end_is_read() -> None:
    assert talk(Rig().text(), b"x" * 5_000 + b"\r\nversion\r\n") == b"ERROR\r\nVERSION 1.2.3\r\n"


RETRIEVALS = [b"get ", b"gets ", b"gat 0 ", b"gats 0 ", b"  get "]


def fed_by_a_polite_peer(rig: Rig, session: Session, data: bytes, chunk: int) -> bytes:
    """Send while the session reads, and read what it answers; values come from the disk."""
    said = []
    for start in range(0, len(data), chunk):
        session.receive_data(data[start : start + chunk])
        while (pieces := session.data_to_send(4_096)) or session.input_full:
            said += pieces
            rig.fetch()
    return b"".join(said)


@pytest.mark.parametrize("chunk", [1, 100, 3_000, 50_000, 10**6])
@pytest.mark.parametrize("start", RETRIEVALS)
def test_a_retrieval_of_any_length_is_answered_like_a_short_one(start: bytes, chunk: int) -> None:
    """The keys seem to be commands, and some values are on disk."""
    rig = Rig()
    names = [b"get", b"k" * 250, b"set", b"miss", b"gat", b"END"] * 32
    for number, name in enumerate(sorted({*names} - {b"miss"})):
        talk(rig.text(), b"set %b 0 0 5\r\nv-%03d\r\n" % (name, number))
    rig.eject(b"set", b"END")
    short = b"".join(
        talked.removesuffix(b"END\r\n")
        for name in names
        if (talked := fed_by_a_polite_peer(rig, rig.text(), start + name + b"\r\n", 10**6))
    )
    rig.eject(b"set", b"END")
    line = start + b" ".join(names) + b" \r\nversion\r\n"
    assert len(line) > 4 * rig.settings.kv.max_line_bytes
    said = fed_by_a_polite_peer(rig, rig.text(), line, chunk)
    assert said == short + b"END\r\nVERSION 1.2.3\r\n"


@pytest.mark.parametrize("start", RETRIEVALS)
def test_a_line_of_any_number_of_keys_holds_no_more_than_a_few(start: bytes) -> None:
    rig = Rig()
    talk(rig.text(), b"set k 0 0 100\r\n" + b"v" * 100 + b"\r\n")
    session = rig.text()
    session.receive_data(start)
    answered = 0
    for _ in range(200):
        assert not session.closing
        session.receive_data(b"k " * 1_000)
        assert session._held <= rig.settings.kv.max_line_bytes
        while (pieces := session.data_to_send(65_536)) or session.input_full:
            answered += sum(map(len, pieces))
    assert answered > 200 * 999 * 100
    session.receive_data(b"\r\n")
    assert drained_with_waits(session).endswith(b"END\r\n")


@pytest.mark.parametrize("chunk", [1, 700, 10_000])
@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"get " + b"k" * 3_000, b"CLIENT_ERROR bad command line format\r\n"),
        (b"get " + b"k " * 2_000 + b"x" * 251, b"CLIENT_ERROR bad command line format\r\n"),
        (
            b"get " + b"k " * 2_000 + b"x" * 400 + b" k" * 900,
            b"CLIENT_ERROR bad command line format\r\n",
        ),
        (b"get " + b" " * 3_000, b"ERROR\r\n"),
        (b"gat " + b" " * 3_000, b"ERROR\r\n"),
        (b"gat x " + b"k " * 2_000, b"CLIENT_ERROR invalid exptime argument\r\n"),
        (b"gat 0" + b" " * 3_000, b"END\r\n"),
        (b"gets " + b"k " * 2_000 + b"x" * 250, b"END\r\n"),
    ],
)
def test_a_long_retrieval_that_is_wrong_gets_one_error(
    line: bytes, reply: bytes, chunk: int
) -> None:
    rig = Rig()
    said = fed_by_a_polite_peer(rig, rig.text(), line + b"\r\nversion\r\n", chunk)
    assert said == reply + b"VERSION 1.2.3\r\n"


def feed(session: Session, data: bytes, chunk: int) -> None:
    for start in range(0, len(data), chunk):
        session.receive_data(data[start : start + chunk])


class CountingSession(TextSession):
    """Counts the bytes that it looks at."""

    looked_at = 0

    def _run(self, data: bytes) -> None:
        self.looked_at += len(data)
        super()._run(data)


def test_a_large_value_in_small_chunks_is_looked_at_twice_at_most() -> None:
    rig = Rig()
    session = CountingSession(rig.services, rig.wake)
    feed(session, b"set a 0 0 1000000\r\n" + b"x" * 1_000_000 + b"\r\n", 100)
    assert drained(session) == b"STORED\r\n"
    assert session.looked_at < 1_100_000


def test_a_long_line_in_small_chunks_is_looked_at_twice_at_most() -> None:
    rig = Rig()
    session = CountingSession(rig.services, rig.wake)
    feed(session, b"get" + b" abcdefghi" * 50_000 + b"\r\n", 100)
    assert drained_with_waits(session) == b"END\r\n"
    assert session.looked_at < 550_000
