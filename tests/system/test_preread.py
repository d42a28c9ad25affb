"""Streams of what is not in memory wait for a worker that reads ahead, not for the device."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.support import Loop
from tests.system.support import node_here
from uprmc.client import changes
from uprmc.errors import StoreError
from uprmc.server.node import Node
from uprmc.server.work import disk

_DOCUMENTS = 3_000


class Device:
    """Pretends how often threads have waited for the device: the reactor's, and workers'."""

    def __init__(self) -> None:
        self.reactor_waits = 0
        self.worker_waits = False
        self._reactor = threading.get_ident()
        self._worker = 0

    def faults(self) -> int:
        """Stand in for `faults_of_thread`."""
        if threading.get_ident() == self._reactor:
            return self.reactor_waits
        self._worker += self.worker_waits
        return self._worker


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device whose slowness a test decides on; what is read ahead at a time is little."""
    found = Device()
    monkeypatch.setattr(disk, "faults_of_thread", found.faults)
    monkeypatch.setattr(disk, "STRETCH_BYTES", 5_000)
    return found


class Waiting:
    """Stands in for a stream that begins."""

    def __init__(self, node: Node) -> None:
        self.vbucket = node.bucket.vbuckets[0]
        self.last_seqno = self.touched_seqno = self.told = 0

    def tell_ready(self) -> None:
        """See `Stream`."""
        self.told += 1


def fill(node: Node, loop: Loop) -> set[bytes]:
    """Store documents and wait until they are on disk only; return their keys."""
    for number in range(_DOCUMENTS):
        node.bucket.vbuckets[number % 4].store(b"%d" % number, bytes(100), 0, 0)
    flusher = node.bucket.flusher
    loop.until(lambda: not (flusher.pending or flusher.queued), 30.0)
    return {b"%d" % number for number in range(_DOCUMENTS)}


def streamed(node: Node, loop: Loop) -> list[bytes]:
    """Return the keys that a consumer gets, in the order in which they come."""
    place = node.addresses()["upr"]
    with ThreadPoolExecutor(1) as consumer:
        keys = consumer.submit(lambda: [each.key for each in changes(place, until="now")])
        loop.until(keys.done, 60.0)
    return keys.result()


def test_what_is_in_memory_is_not_read_ahead(tmp_path: Path, device: Device) -> None:
    with node_here(tmp_path) as (node, loop):
        keys = fill(node, loop)
        assert sorted(streamed(node, loop)) == sorted(keys)
        assert node.upr.preread.stretches == 0


def test_a_stream_that_waited_for_the_device_goes_on_behind_a_worker(
    tmp_path: Path, device: Device
) -> None:
    with node_here(tmp_path) as (node, loop):
        keys = fill(node, loop)
        device.reactor_waits, device.worker_waits = 1, True
        assert sorted(streamed(node, loop)) == sorted(keys)
        assert node.upr.preread.stretches > _DOCUMENTS * 100 // 5_000 // 2


def test_it_reads_by_itself_again_when_the_worker_waits_no_more(
    tmp_path: Path, device: Device
) -> None:
    with node_here(tmp_path) as (node, loop):
        keys = fill(node, loop)
        device.reactor_waits = 1
        assert sorted(streamed(node, loop)) == sorted(keys)
        in_line = 4  # streams, of which each may wait for its turn already
        first = node.upr.preread.stretches
        assert 0 <= first - disk._WARM_STRETCHES < in_line
        device.reactor_waits = 2
        streamed(node, loop)
        again = node.upr.preread.stretches - first
        assert 0 <= again - disk._WARM_STRETCHES < in_line


def test_a_worker_that_fails_holds_nobody_up(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("unreadable")

    monkeypatch.setattr(disk, "touch", fail)
    with node_here(tmp_path) as (node, loop):
        keys = fill(node, loop)
        device.reactor_waits, device.worker_waits = 1, True
        assert sorted(streamed(node, loop)) == sorted(keys)


def test_a_node_stops_while_it_reads_ahead(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, go_on = threading.Event(), threading.Event()
    touch = disk.touch

    def held(*words: object) -> tuple[int, int]:
        under_way.set()
        go_on.wait(30)
        return touch(*words)

    monkeypatch.setattr(disk, "touch", held)
    with node_here(tmp_path) as (node, loop):
        fill(node, loop)
        device.reactor_waits = 1
        stream = Waiting(node)
        assert not node.upr.preread.may_read_on(stream)
        loop.until(under_way.is_set, 30.0)
        stopped = node._disk_work.preread.stop()
        assert not stopped.called, "its view of the store is open"
        assert node.upr.preread.may_read_on(Waiting(node)), "nothing is begun any more"
        go_on.set()
        loop.result(stopped, 30.0)
        assert stream.told == 1
        assert not node.upr.preread.busy
        node._disk_work.preread.stopped = None  # the node itself stops it once more
