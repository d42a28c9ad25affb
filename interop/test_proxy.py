"""The proxy passes bytes on unchanged, and makes exactly the trouble that was asked for."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from interop.proxy import LastingPort, Proxy, Way, lasting_port
from interop.server_process import Address
from interop.waiting import wait_until


class Echo:
    """A target that sends everything back, and ends a direction when its peer does."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(end,)))
                self._threads[-1].start()

    def _serve(self, end: socket.socket) -> None:
        with end, contextlib.suppress(OSError):
            while data := end.recv(1 << 16):
                end.sendall(data)
            end.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepting, *self._threads):
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.stop()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.address) as made:
        yield made


def read(end: socket.socket, count: int) -> bytes:
    """Up to ``count`` bytes; less only when the peer said no more."""
    data = b""
    while len(data) < count and (piece := end.recv(count - len(data))):
        data += piece
    return data


def until_reset(end: socket.socket) -> bytes:
    """What still comes before the connection is reset; an orderly end is a failure."""
    data = b""
    try:
        while piece := end.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        return data
    raise AssertionError("ended in order, where it should have been reset")


def test_bytes_come_through_unchanged_in_both_directions(proxy: Proxy) -> None:
    sent = Random(1).randbytes(3_000_000)
    with proxy.address.connect() as end, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, end, len(sent))
        end.sendall(sent)
        got = reading.result(30)
    assert hashlib.sha256(got).digest() == hashlib.sha256(sent).digest()
    assert proxy.passed >= 2 * len(sent)


def test_one_side_may_say_that_it_is_done_and_still_read(proxy: Proxy) -> None:
    with proxy.address.connect() as end:
        end.sendall(b"last words")
        end.shutdown(socket.SHUT_WR)
        assert read(end, 100) == b"last words"
    wait_until(lambda: proxy.connections == 0)


def test_a_cut_resets_every_connection_and_the_next_one_works(proxy: Proxy) -> None:
    with proxy.address.connect() as one, proxy.address.connect() as other:
        for end in (one, other):
            end.sendall(b"hello")
            assert read(end, 5) == b"hello"
        proxy.cut()
        assert proxy.connections == 0
        for end in (one, other):
            assert until_reset(end) == b""
    with proxy.address.connect() as end:
        end.sendall(b"again")
        assert read(end, 5) == b"again"
    assert (proxy.cuts, proxy.accepted) == (1, 3)


@pytest.mark.parametrize("count", [1, 7, 1_000, 70_001])
def test_a_cut_after_n_bytes_passes_on_exactly_n(proxy: Proxy, count: int) -> None:
    proxy.silence(Way.TO_CLIENT)  # so that only one direction counts
    before = proxy.passed
    with proxy.address.connect() as end:
        proxy.cut_after(count)
        with contextlib.suppress(ConnectionError):
            end.sendall(bytes(100_000))
        assert proxy.wait_for_cut()
        assert proxy.passed - before == count
        until_reset(end)
    assert proxy.connections == 0


def test_a_cut_happens_once(proxy: Proxy) -> None:
    proxy.cut_after(10)
    with proxy.address.connect() as end:
        end.sendall(bytes(10))
        until_reset(end)
    with proxy.address.connect() as end:
        end.sendall(bytes(1_000))
        assert len(read(end, 1_000)) == 1_000
    assert proxy.cuts == 1


def test_waiting_for_a_cut_that_does_not_come_is_bounded(proxy: Proxy) -> None:
    proxy.cut_after(1)
    assert not proxy.wait_for_cut(0.01)


def test_a_delay_holds_back_every_byte_but_not_the_throughput(proxy: Proxy) -> None:
    proxy.slow(delay_s=0.05)
    with proxy.address.connect() as end:
        began = time.monotonic()
        for _ in range(20):
            end.sendall(bytes(100))
            time.sleep(0.001)
        assert len(read(end, 2_000)) == 2_000
        took = time.monotonic() - began
    assert 0.1 <= took < 1.0  # one way and back, not twenty times


def test_a_throttle_passes_no_more_than_it_may(proxy: Proxy) -> None:
    proxy.slow(bytes_per_s=100_000)
    with proxy.address.connect() as end:
        began = time.monotonic()
        end.sendall(bytes(40_000))
        assert len(read(end, 40_000)) == 40_000
        took = time.monotonic() - began
    assert 0.3 <= took < 5.0
    proxy.slow()
    with proxy.address.connect() as end:
        end.sendall(bytes(40_000))
        assert len(read(end, 40_000)) == 40_000


@pytest.mark.parametrize("way", Way)
def test_silence_keeps_the_connection_and_loses_nothing(proxy: Proxy, way: Way) -> None:
    with proxy.address.connect() as end:
        end.sendall(b"before")
        assert read(end, 6) == b"before"
        proxy.silence(way)
        end.settimeout(0.05)
        end.sendall(b"held")
        with pytest.raises(TimeoutError):
            end.recv(1)
        assert proxy.connections == 1
        proxy.silence()
        end.settimeout(10)
        assert read(end, 4) == b"held"


def test_refusing_leaves_open_connections_alone_and_ends(proxy: Proxy) -> None:
    with proxy.address.connect() as end:
        end.sendall(b"1")
        assert read(end, 1) == b"1"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            proxy.address.connect()
        end.sendall(b"2")
        assert read(end, 1) == b"2"
    proxy.refuse(False)
    with proxy.address.connect() as end:
        end.sendall(b"3")
        assert read(end, 1) == b"3"


def test_a_target_that_is_not_there_is_a_reset_and_a_new_one_is_found(echo: Echo) -> None:
    with Proxy(Address("127.0.0.1", lasting_port())) as proxy:
        with pytest.raises(ConnectionResetError), proxy.address.connect() as end:
            end.recv(1)
        proxy.target = echo.address
        with proxy.address.connect() as end:
            end.sendall(b"there")
            assert read(end, 5) == b"there"


def test_stopping_resets_what_is_open_and_leaves_no_thread(echo: Echo) -> None:
    before = threading.active_count()
    with Proxy(echo.address) as proxy:
        end = proxy.address.connect()
        wait_until(lambda: proxy.connections == 1)
    with end:
        until_reset(end)
    with pytest.raises(ConnectionRefusedError):
        proxy.address.connect()
    wait_until(lambda: threading.active_count() <= before + 1)  # the target's may be ending


def test_a_lasting_port_is_nobody_elses_and_can_be_left_and_taken_again() -> None:
    port = LastingPort()
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            port.address.connect()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((port.address.host, port.address.port))
        with (
            socket.create_server((port.address.host, port.address.port)) as listener,
            port.address.connect() as end,
            listener.accept()[0],
        ):
            assert end.getpeername() == (port.address.host, port.address.port)
    port.give_back()
