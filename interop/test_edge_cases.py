"""Conversations beyond the table of dialects: time that passes, web pages, lines without end.

``pytest interop --peer memcached`` asks memcached the very same. Expiry and delayed flush have a
resolution of one second and no event to wait for.
"""

from __future__ import annotations

import time

import pytest

from interop import wire as w
from interop.server_process import ServerProcess
from interop.wire import Wire, frame


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


def test_get_and_touch_prolongs_an_item_that_was_about_to_expire(wire: Wire) -> None:
    wire.talk(b"set e1 3 1 1\r\nz\r\nset e2 0 1 1\r\nz\r\n", b"STORED\r\nSTORED\r\n")
    wire.talk(b"gat 10 e1\r\n", b"VALUE e1 3 1\r\nz\r\nEND\r\n")
    assert gone_within(wire, b"e2", 3.5)
    wire.talk(b"get e1\r\n", b"VALUE e1 3 1\r\nz\r\nEND\r\n")


def test_a_delayed_flush_takes_all_that_was_stored_before_its_moment(wire: Wire) -> None:
    wire.talk(b"set old 0 0 1\r\nz\r\nflush_all 2\r\n", b"STORED\r\nOK\r\n")
    wire.talk(b"get old\r\n", b"VALUE old 0 1\r\nz\r\nEND\r\n")
    wire.talk(b"set between 0 0 1\r\nz\r\n", b"STORED\r\n")
    assert gone_within(wire, b"old", 5)
    assert gone_within(wire, b"between", 2)


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


def test_statistics_end_with_an_empty_packet_and_an_unknown_group_is_missing(wire: Wire) -> None:
    general = wire.statistics()
    assert {b"pid", b"uptime", b"version", b"curr_items", b"cmd_get"} <= set(general)
    assert wire.ask(frame(w.STAT, b"bogus")).status == w.NOT_FOUND
    assert wire.ask(frame(w.NOOP)).status == w.OK


@pytest.mark.parametrize("word", [b"get", b"gets"])
def test_a_line_of_200_000_keys_is_answered(wire: Wire, word: bytes) -> None:
    wire.talk(b"set key-100000 0 0 1\r\nv\r\n", b"STORED\r\n")
    wire.send(word, *(b" key-%06d" % number for number in range(200_000)), b"\r\n")
    assert wire.line().split()[:4] == [b"VALUE", b"key-100000", b"0", b"1"]
    wire.expect(b"v\r\nEND\r\n")
    wire.expect_silence()
