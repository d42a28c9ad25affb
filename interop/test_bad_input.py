"""Peers that send nonsense, never finish, never read, or come in thousands.

Proves that each gets the answer the protocol has for it or is closed, that nobody else notices,
that a peer which does not read costs a bounded amount of memory, and that the server is there
afterwards. Every test ends by using another connection.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from interop import wire as w
from interop.conftest import Start
from interop.server_process import ServerProcess
from interop.wire import Wire, frame, store

MIB_IN_KIB = 1024


@pytest.fixture
def bystander(server: ServerProcess) -> Iterator[Wire]:
    """Someone else's connection, opened before the trouble; at the end it must work as before."""
    with Wire(server.memcached) as connection:
        connection.talk(b"set mine 0 0 4\r\nsafe\r\n", b"STORED\r\n")
        yield connection
        connection.talk(b"get mine\r\n", b"VALUE mine 0 4\r\nsafe\r\nEND\r\n")
        assert server.running, server.log()


Say = Callable[[bytes], bytes]


@pytest.fixture
def say_and_close(server: ServerProcess, bystander: Wire) -> Say:
    """Send bytes, end the sending side, and give everything that comes back."""

    def run(request: bytes) -> bytes:
        with Wire(server.memcached) as connection:
            connection.send(request)
            with contextlib.suppress(OSError):  # already closed by the server
                connection.socket.shutdown(socket.SHUT_WR)
            return connection.read_until_closed()

    return run


@pytest.mark.parametrize("magic", [0x00, 0x81, 0x7F, 0xFF])
def test_a_first_byte_that_is_no_request_is_read_as_text(say_and_close: Say, magic: int) -> None:
    # Not a no-op: its opcode is a line end.
    assert say_and_close(frame(w.VERSION, magic=magic) + b"\r\n") == b"ERROR\r\n"


def test_text_on_a_binary_connection_closes_it(say_and_close: Say) -> None:
    answer = say_and_close(frame(w.NOOP) + b"version\r\nversion\r\nversion\r\n")
    replies, rest = w.split_replies(answer)
    assert [(r.opcode, r.status) for r in replies] == [(w.NOOP, w.OK)]
    assert rest == b""


def test_the_longest_key_a_header_can_announce_closes(say_and_close: Say) -> None:
    # Stock memcached gives up on it without an answer.
    replies, rest = w.split_replies(say_and_close(frame(w.DELETE, b"k" * 0xFFFF) + frame(w.NOOP)))
    assert [reply.status for reply in replies] in ([], [w.INVALID])
    assert rest == b""


def test_a_body_that_announces_two_gigabytes_costs_nothing(
    server: ServerProcess, bystander: Wire
) -> None:
    before = server.memory_kib()
    with Wire(server.memcached) as connection:
        head = frame(w.SET, b"k", extras=bytes(8), body_length=(1 << 31) - 1)
        with contextlib.suppress(OSError):  # being closed at once is as good an answer
            connection.send(head, bytes(1 << 20))
        bystander.talk(b"get mine\r\n", b"VALUE mine 0 4\r\nsafe\r\nEND\r\n")
        assert server.memory_kib() - before < 32 * MIB_IN_KIB


def test_keys_of_any_bytes_pass_over_the_binary_protocol(
    server: ServerProcess, bystander: Wire
) -> None:
    keys = [b" ", b"a b", b"\x00", b"\r\n", bytes(range(250)), "schlüssel".encode()]
    with Wire(server.memcached) as connection:
        for number, key in enumerate(keys):
            assert connection.ask(store(w.SET, key, b"%d" % number)).status == w.OK
        for number, key in enumerate(keys):
            hit = connection.ask(frame(w.GETK, key))
            assert (hit.key, hit.value) == (key, b"%d" % number)


@pytest.mark.parametrize("start_of_line", [b"x", b"set ", b"version "])
def test_a_line_without_end_is_closed(
    server: ServerProcess, bystander: Wire, start_of_line: bytes
) -> None:
    with Wire(server.memcached) as connection:
        with contextlib.suppress(OSError):  # closed while we are still sending
            for _ in range(64):
                connection.send(start_of_line, b"x" * 65_536)
                start_of_line = b""
        # Stock memcached is silent here; a reason before the close is as good.
        assert len(connection.read_until_closed()) < 200


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        pytest.param(b"quit\r\nset x 0 0 1\r\nv\r\n", b"", id="text"),
        pytest.param(frame(w.QUITQ) + store(w.SET, b"x", b"v"), b"", id="quiet"),
        pytest.param(
            frame(w.QUIT) + store(w.SET, b"x", b"v"),
            w.HEADER.pack(w.RESPONSE, w.QUIT, 0, 0, 0, 0, 0, 0, 0),
            id="binary",
        ),
    ],
)
def test_what_follows_a_quit_is_not_carried_out(
    say_and_close: Say, request_bytes: bytes, answer: bytes
) -> None:
    assert say_and_close(request_bytes) == answer
    assert say_and_close(b"get x\r\n") == b"END\r\n"


@pytest.mark.parametrize(
    ("half", "rest"),
    [
        pytest.param(b"set half 0 0 10\r\n12345", b"67890\r\n", id="text-data"),
        pytest.param(b"set half 0 ", b"0 1\r\nv\r\n", id="text-line"),
        pytest.param(
            store(w.SET, b"half", b"v")[:10], store(w.SET, b"half", b"v")[10:], id="binary-header"
        ),
        pytest.param(
            store(w.SET, b"half", b"v")[:30], store(w.SET, b"half", b"v")[30:], id="binary-body"
        ),
        pytest.param(b"\x80", frame(w.NOOP)[1:], id="one-byte"),
    ],
)
def test_half_a_request_and_silence_disturbs_nobody(
    server: ServerProcess, bystander: Wire, half: bytes, rest: bytes
) -> None:
    with Wire(server.memcached) as slow:
        slow.send(half)
        for _ in range(50):
            bystander.talk(b"get half\r\n", b"END\r\n")
        slow.send(rest)
        first = slow.read(8)
        assert first == b"STORED\r\n" or first[0] == w.RESPONSE


def test_half_a_request_and_a_hang_up_stores_nothing(say_and_close: Say, bystander: Wire) -> None:
    assert say_and_close(b"set half 0 0 10\r\n12345") == b""
    assert say_and_close(store(w.SET, b"half", b"value")[:-1]) == b""
    bystander.talk(b"get half\r\n", b"END\r\n")


def _send_until_blocked(connection: socket.socket, request: bytes, limit_bytes: int) -> int:
    """Send copies of a request until nothing has been taken for a second; gives the bytes sent."""
    connection.setblocking(False)
    block = request * max(1, 65_536 // len(request))
    sent = 0
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_WRITE)
        while sent < limit_bytes and selector.select(1.0):
            offset = sent % len(block)
            sent += connection.send(block[offset:])
    return sent


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_a_reader_that_never_reads_is_bounded_and_others_are_served(
    server: ServerProcess, bystander: Wire, protocol: str
) -> None:
    value = b"v" * 500_000
    bystander.talk(b"set big 0 0 %d\r\n" % len(value) + value + b"\r\n", b"STORED\r\n")
    before = server.memory_kib()
    request = b"get big\r\n" if protocol == "text" else frame(w.GET, b"big")
    with Wire(server.memcached) as deaf:
        # 16 MiB of requests ask for about a terabyte of replies.
        _send_until_blocked(deaf.socket, request, 16 << 20)
        slowest_s = 0.0
        for _ in range(200):
            started = time.monotonic()
            bystander.talk(b"get mine\r\n", b"VALUE mine 0 4\r\nsafe\r\nEND\r\n")
            slowest_s = max(slowest_s, time.monotonic() - started)
        assert slowest_s < 2.0
        grown_mib = (server.memory_kib() - before) / MIB_IN_KIB
        assert grown_mib < 64, f"{grown_mib:.0f} MiB for one peer that does not read"


def test_a_slow_reader_gets_every_reply_whole_and_in_order(
    server: ServerProcess, bystander: Wire
) -> None:
    sizes = [1, 300_000, 7, 900_000, 100_000]
    with Wire(server.memcached, timeout_s=60) as slow:
        for number, size in enumerate(sizes):
            assert slow.ask(store(w.SET, b"s%d" % number, b"x" * size)).status == w.OK
        wanted = [number % len(sizes) for number in range(100)]
        slow.send(*(frame(w.GET, b"s%d" % n, opaque=i) for i, n in enumerate(wanted)))
        bystander.talk(b"get mine\r\n", b"VALUE mine 0 4\r\nsafe\r\nEND\r\n")
        for opaque, number in enumerate(wanted):
            reply = slow.reply()
            assert (reply.opaque, len(reply.value)) == (opaque, sizes[number])


def test_many_connections_at_once_are_all_served(
    start: Start, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    count: int = request.config.getoption("--connections")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 200:
        pytest.skip(f"RLIMIT_NOFILE allows {hard} files, {count} connections need more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with (
            start(
                tmp_path_factory.mktemp("many"), "--set", f"server.max_connections={count + 100}"
            ) as server,
            contextlib.ExitStack() as stack,
        ):
            wires = [
                stack.enter_context(Wire(server.memcached, timeout_s=30)) for _ in range(count)
            ]
            for number, connection in enumerate(wires):
                if number % 2:
                    connection.send(store(w.SET, b"c%d" % number, b"%d" % number))
                else:
                    connection.send(b"set c%d 0 0 1\r\nx\r\n" % number)
            for number, connection in enumerate(wires):
                if number % 2:
                    assert connection.reply().status == w.OK
                else:
                    connection.expect(b"STORED\r\n")
            stack.close()
            with Wire(server.memcached) as late:
                late.talk(b"get c0\r\n", b"VALUE c0 0 1\r\nx\r\nEND\r\n")
            server.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_that_come_and_go_leave_nothing_behind(
    server: ServerProcess, bystander: Wire
) -> None:
    for number in range(500):
        with Wire(server.memcached) as connection:
            if number % 3 == 0:
                connection.send(b"set k 0 0 100\r\nhalf")
            elif number % 3 == 1:
                connection.send(b"\x80\x01")
    deadline = time.monotonic() + 10
    while True:
        open_now = int(bystander_stat(bystander, b"curr_connections"))
        if open_now < 20:
            break
        assert time.monotonic() < deadline, f"{open_now} connections are still open"


def bystander_stat(connection: Wire, name: bytes) -> bytes:
    """One general statistic over a text connection."""
    connection.send(b"stats\r\n")
    found = b""
    while (line := connection.line()) != b"END\r\n":
        _, key, value = line.rstrip().split(b" ", 2)
        if key == name:
            found = value
    return found
