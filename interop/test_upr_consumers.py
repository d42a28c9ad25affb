"""Five consumers that want different things of one port, while memcached clients write to two.

Each consumer is a program of its own to the server: one wants everything and nothing special, one
has a small buffer and answers keep-alives, one wants rounds with explicit ends, one loses its
connection again and again in mid-snapshot, one wants keys without values and true expirations.

Proves: all five end equal to the server, key by key, with value, flags and CAS.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymemcache.client.base import Client as TextClient

from interop import upr_wire as u
from interop import wire as w
from interop.conftest import Start
from interop.server_process import Address, ServerProcess
from interop.upr_wire import Frame, Mirror, UprWire
from interop.wire import frame

bmemcached = pytest.importorskip("bmemcached", reason="pip install python-binary-memcached")

VBUCKETS = 8
OPERATIONS = 400
LAST = b"last of all"


@pytest.fixture(scope="module")
def module_server(
    start: Start, tmp_path_factory: pytest.TempPathFactory, peer: str
) -> Iterator[ServerProcess]:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    data = tmp_path_factory.mktemp("data")
    with start(data, "--vbuckets", str(VBUCKETS)) as process:
        yield process
        process.stop()


class Consumer:
    """Reads one connection until it has seen the last document of every vBucket."""

    name = "plain"
    flags = u.PRODUCER
    controls: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, address: Address) -> None:
        self.address = address
        self.mirror = Mirror()
        self.kinds: dict[int, int] = {}
        self.finished: set[int] = set()
        self.wire = self.connect()

    def connect(self) -> UprWire:
        """Open, ask for every vBucket from where its copy stands."""
        wire = UprWire(self.address, timeout_s=30)
        wire.open(self.name.encode(), self.flags)
        for key, value in self.controls:
            wire.control(key, value)
        for vbucket in range(VBUCKETS):
            copy = self.mirror.copies.get(vbucket, u.Copy())
            uuid = copy.log[0][0] if copy.log else 0
            # A snapshot counts from its first item on, not from its marker.
            at = copy.snapshot if copy.snapshot[0] <= copy.seqno < copy.snapshot[1] else None
            wire.request_stream(vbucket, copy.seqno, uuid=uuid, snapshot=at, opaque=vbucket)
        return wire

    def run(self) -> None:
        while len(self.finished) < VBUCKETS:
            self.take(self.wire.frame())
        self.wire.close()

    def give_up(self) -> None:
        """Let `run` end, from another thread."""
        with contextlib.suppress(OSError):
            self.wire.socket.shutdown(socket.SHUT_RDWR)

    def take(self, packet: Frame) -> None:
        self.kinds[packet.opcode] = self.kinds.get(packet.opcode, 0) + 1
        if packet.is_reply:
            if packet.opcode == u.STREAM_REQUEST:
                self.mirror.begin(packet.opaque, packet)
            return
        assert packet.opcode != u.STREAM_END, packet
        if packet.opcode != u.UPR_NOOP:
            self.mirror.take(packet)
        if packet.opcode == u.MUTATION and packet.key == LAST:
            self.finished.add(packet.number)


class SmallBuffer(Consumer):
    name = "small-buffer"
    controls = (
        (b"connection_buffer_size", b"2048"),
        (b"enable_noop", b"true"),
        (b"set_noop_interval", b"0.1"),
    )
    acknowledged = 0

    def take(self, packet: Frame) -> None:
        super().take(packet)
        if packet.opcode == u.UPR_NOOP:
            self.wire.send(frame(u.UPR_NOOP, opaque=packet.opaque, magic=w.RESPONSE))
        waiting = self.mirror.counted_bytes - self.acknowledged
        if waiting > 1_500:
            self.wire.acknowledge(waiting)
            self.acknowledged += waiting


class Rounds(Consumer):
    name = "rounds"
    controls = ((b"uprmc_rounds", b"true"), (b"uprmc_snapshot_end", b"true"))
    within = -1
    before = -1

    def take(self, packet: Frame) -> None:
        super().take(packet)
        if packet.opcode == u.PARTITION_START:
            assert self.within == -1, f"{packet.number} begins inside {self.within}"
            assert packet.number > self.before, "vBuckets have their turn in order"
            self.within = self.before = packet.number
        elif packet.opcode in (u.SNAPSHOT_MARKER, u.MUTATION, u.DELETION, u.SNAPSHOT_END):
            assert packet.number == self.within
        if packet.opcode == u.SNAPSHOT_END:
            end, _items = struct.unpack(">QI", packet.extras)
            copy = self.mirror.copies[packet.number]
            assert copy.seqno == copy.snapshot[1] == end
            self.within = -1
        if packet.opcode == u.ROUND_COMPLETE:
            assert self.within == -1
            self.before = -1


class Unsteady(Consumer):
    name = "unsteady"
    left = 37
    times = 0

    def take(self, packet: Frame) -> None:
        super().take(packet)
        self.left -= 1
        if not self.left and len(self.finished) < VBUCKETS:
            self.wire.close()
            self.times += 1
            self.left = 37 * min(self.times + 1, 40)
            self.wire = self.connect()


class KeysOnly(Consumer):
    name = "keys-only"
    flags = u.PRODUCER | u.KEYS_ONLY | u.DELETE_TIMES
    controls = ((b"enable_expiry_opcode", b"true"),)

    def take(self, packet: Frame) -> None:
        super().take(packet)
        assert packet.opcode != u.MUTATION or packet.value == b""
        assert packet.opcode != u.DELETION or len(packet.extras) == 21


def binary_writer(address: Address, name: str) -> None:
    """python-binary-memcached: objects, deletions, counters, many at once."""
    client = bmemcached.Client([str(address)], socket_timeout=30)
    try:
        for number in range(OPERATIONS):
            key = f"{name}-{number * 7 % 90}"
            assert client.set(key, {"number": number} if number % 3 else f"text {number}")
            if number % 4 == 0:
                client.delete(f"{name}-{number * 5 % 90}")
            if number % 10 == 0:
                client.incr(f"{name}-count", 3, default=0)
                client.set_multi({f"{name}-many-{each}": str(number) for each in range(5)})
    finally:
        client.disconnect_all()


def text_writer(address: Address, name: str) -> None:
    """pymemcache: the text protocol."""
    with contextlib.closing(TextClient((address.host, address.port), timeout=30)) as client:
        for number in range(OPERATIONS):
            key = f"{name}-{number * 11 % 120}"
            assert client.set(key, b"x" * (number % 300), noreply=False, flags=number)
            if number % 4 == 0:
                client.append(key, b" and more", noreply=False)
            if number % 5 == 0:
                client.delete(f"{name}-{number * 3 % 120}", noreply=False)


def c_writer(address: Address, name: str) -> None:
    """pylibmc, which is libmemcached; nothing where it is not installed."""
    try:
        import pylibmc
    except ImportError:
        return
    client = pylibmc.Client([str(address)], binary=True)
    for number in range(OPERATIONS):
        client.set(f"{name}-{number % 70}", ["list", number])
    client.disconnect_all()


Writer = Callable[[Address, str], None]


@pytest.mark.acceptance("D01", "D27", "D28", "D30", "D32", "D41", "P13", "X01")
def test_five_consumers_of_one_port_end_equal_to_the_server(module_server: ServerProcess) -> None:
    upr, memcached = module_server.upr, module_server.memcached
    assert upr is not None
    writers: list[tuple[Writer, Address]] = [
        (binary_writer, memcached),
        (binary_writer, upr),
        (text_writer, memcached),
        (c_writer, memcached),
    ]
    with UprWire(upr) as kv, ThreadPoolExecutor(len(writers) + 5) as pool:
        for vbucket in range(VBUCKETS):  # there is something to read from disk
            kv.put_many(vbucket, [(b"early-%d" % each, b"e" * 200) for each in range(100)])
        for vbucket, seqno in kv.high_seqnos().items():
            kv.wait_until_persisted(vbucket, seqno)
        writing = [
            pool.submit(write, address, f"{write.__name__}-{address.port}")
            for write, address in writers
        ]
        kinds = (Consumer, SmallBuffer, Rounds, Unsteady, KeysOnly)
        consumers = [kind(upr) for kind in kinds]
        reading = [pool.submit(consumer.run) for consumer in consumers]
        try:
            for future in writing:
                future.result(60)
            for vbucket in range(VBUCKETS):
                kv.put(vbucket, LAST)
            for future in reading:
                future.result(60)
        finally:
            for consumer in consumers:
                consumer.give_up()

        plain, small, rounds, unsteady, keys_only = consumers
        held = plain.mirror.values()
        truth: dict[Any, Any] = u.documents(kv, held)
        assert len(truth) == sum(u.item_counts(kv).values()) > 500
        assert held == truth
        assert small.mirror.values() == rounds.mirror.values() == truth
        assert unsteady.mirror.values() == truth
        without_values = {name: (b"", *rest) for name, (_, *rest) in truth.items()}
        assert keys_only.mirror.values() == without_values
    assert isinstance(unsteady, Unsteady)
    assert unsteady.times > 3
    assert rounds.kinds[u.ROUND_COMPLETE] > 0
    assert u.DISK in plain.mirror.kinds
    expect_all_gone(upr)


def expect_all_gone(address: Address) -> None:
    """Ask again and again until the server has noticed that its peers have closed."""
    deadline = time.monotonic() + 10
    with UprWire(address) as kv:
        while kv.texts(b"upr")["ep_upr_count"] != "0":
            assert time.monotonic() < deadline
