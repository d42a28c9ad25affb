"""Meta commands: flags and base64 keys. What is refused is in ``interop/dialects.txt``."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from uprmc.protocol.text import TextSyntaxError, split_words
from uprmc.protocol.text_meta import MetaFlags, MetaLine, parse_meta


def parsed(line: bytes) -> MetaLine:
    return parse_meta(split_words(line))


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


@given(st.binary(min_size=1, max_size=180))
def test_base64_keys_may_hold_any_byte(key: bytes) -> None:
    sent = base64.b64encode(key)
    line = parsed(b"mg %b b k" % sent)
    assert (line.key, line.sent_key) == (key, sent)
    assert line.flags == MetaFlags((b"k",), base64_key=True)


@given(st.lists(st.binary(min_size=1, max_size=6), max_size=6))
def test_any_meta_line_is_either_read_or_refused(rest: list[bytes]) -> None:
    for command in (b"mg", b"ms", b"md", b"ma", b"me"):
        words = [command, *(word.replace(b" ", b"_") for word in rest)]
        assert outcome(words) in (b"", b"\r\n")
