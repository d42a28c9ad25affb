"""Meta commands: flags, base64 keys and the refusals."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.protocol import text_replies as replies
from uprmc.protocol.text import TextSyntaxError, split_words
from uprmc.protocol.text_meta import MetaFlags, MetaLine, parse_meta


def parsed(line: bytes) -> MetaLine:
    return parse_meta(split_words(line))


def refusal(line: bytes) -> tuple[bytes, int]:
    with pytest.raises(TextSyntaxError) as caught:
        parsed(line)
    return caught.value.reply, caught.value.swallow


def outcome(words: list[bytes]) -> bytes:
    """Return the end of the refusal, empty when there is none."""
    try:
        parse_meta(words)
    except TextSyntaxError as error:
        return error.reply[-2:]
    return b""


def test_the_references_example_keeps_the_order_asked() -> None:
    line = parsed(b"mg m v s f c t k O77\r")
    assert line == MetaLine(
        b"mg", b"m", b"m", 0, MetaFlags((b"s", b"f", b"c", b"t", b"k", b"O77"), wants_value=True)
    )


def test_a_meta_get_needs_no_flags() -> None:
    assert parsed(b"mg m").flags == MetaFlags()


def test_set_has_a_length_before_its_flags() -> None:
    line = parsed(b"ms key 5 T-1 F4294967295 C99 ME I q")
    assert (line.command, line.key, line.length) == (b"ms", b"key", 5)
    assert line.flags == MetaFlags(
        quiet=True, invalidate=True, ttl=-1, client_flags=4294967295, cas=99, mode=b"E"
    )


def test_arithmetic_creates_steps_and_returns() -> None:
    flags = parsed(b"ma cnt N0 J13 D2 M- v t").flags
    assert flags == MetaFlags(
        (b"t",), wants_value=True, vivify_ttl=0, initial=13, delta=2, mode=b"-"
    )


def test_flags_without_meaning_here_are_accepted() -> None:
    assert parsed(b"mg k Lx Px u R30").flags == MetaFlags(no_update=True, recache_ttl=30)


@given(st.binary(min_size=1, max_size=180))
def test_base64_keys_may_hold_any_byte(key: bytes) -> None:
    sent = base64.b64encode(key)
    line = parsed(b"mg %b b k" % sent)
    assert (line.key, line.sent_key) == (key, sent)
    assert line.flags == MetaFlags((b"k",), base64_key=True)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"mg", replies.ERROR),
        (b"ms", replies.ERROR),
        (b"mg " + b"k" * 251, replies.BAD_LINE_FORMAT),
        (b"mg k !", b"CLIENT_ERROR invalid flag\r\n"),
        (b"mg k \xff", b"CLIENT_ERROR duplicate flag\r\n"),
        (b"mg k v v", b"CLIENT_ERROR duplicate flag\r\n"),
        (b"mg k T1 T2", b"CLIENT_ERROR duplicate flag\r\n"),
        (b"mg k Tx", b"CLIENT_ERROR bad token in command line format\r\n"),
        (b"mg k T", b"CLIENT_ERROR bad token in command line format\r\n"),
        (b"mg k Nx", replies.BAD_TOKEN),
        (b"mg k Rx", replies.BAD_TOKEN),
        (b"mg k C-1", replies.BAD_TOKEN),
        (b"mg k q Tx", replies.BAD_TOKEN),
        (b"mg k M", replies.BAD_MODE_LENGTH),
        (b"mg k Jx", replies.BAD_META_INITIAL),
        (b"mg k D-1", replies.BAD_META_DELTA),
        (b"mg k O" + b"7" * 32, replies.OPAQUE_TOO_LONG),
        (b"mg ??? b", replies.BAD_KEY_ENCODING),
        (b"mg Zm9 b", replies.BAD_KEY_ENCODING),
        (b"mg = b", replies.BAD_KEY_ENCODING),
        (b"mg k" + b" v" * 18, replies.TOO_MANY_FLAGS_OF_MG),
        (b"md k v v", replies.INVALID_OR_DUPLICATE_FLAG),
        (b"ma k !", replies.INVALID_OR_DUPLICATE_FLAG),
        (b"ma k MX", replies.BAD_ARITHMETIC_MODE),
        (b"ms k", replies.BAD_LINE_FORMAT),
        (b"ms k x", replies.BAD_LINE_FORMAT),
        (b"ms k -1", replies.BAD_LINE_FORMAT),
        (b"ms k 2147483646", replies.BAD_LINE_FORMAT),
    ],
)
def test_refused_meta_lines(line: bytes, reply: bytes) -> None:
    assert refusal(line) == (reply, 0)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"ms k 5 !", replies.INVALID_FLAG),
        (b"ms k 5 MX", replies.BAD_STORE_MODE),
        (b"ms k 5 Fx", replies.BAD_LINE_FORMAT),
        (b"ms ? 5 b", replies.BAD_KEY_ENCODING),
    ],
)
def test_a_bad_flag_of_meta_set_swallows_the_data(line: bytes, reply: bytes) -> None:
    assert refusal(line) == (reply, 7)


def test_an_opaque_of_32_bytes_with_its_letter_is_fine() -> None:
    assert parsed(b"mg k O" + b"7" * 31).flags.returns == (b"O" + b"7" * 31,)


@given(st.lists(st.binary(min_size=1, max_size=6), max_size=6))
def test_any_meta_line_is_either_read_or_refused(rest: list[bytes]) -> None:
    for command in (b"mg", b"ms", b"md", b"ma", b"me"):
        words = [command, *(word.replace(b" ", b"_") for word in rest)]
        assert outcome(words) in (b"", b"\r\n")
