"""The registry: counting, ticking, turning away, ending."""

from __future__ import annotations

import io
import resource

import pytest
from twisted.internet.task import Clock

from tests.server.support import EchoSession, FloodSession, Node
from uprmc.config import build
from uprmc.server.http.site import MAX_CLIENTS, reserved_files
from uprmc.server.net import connections
from uprmc.server.net.connections import (
    RESERVED_FILES,
    TICK_S,
    Connections,
    raise_file_limit,
    share_of_files,
)
from uprmc.server.work.turns import LongWork


@pytest.fixture
def node() -> Node:
    return Node(EchoSession, limit=3)


def test_counts_follow_who_comes_and_goes(node: Node) -> None:
    protocols = [node.connect() for _ in range(3)]
    assert (node.connections.current, node.connections.total) == (3, 3)
    assert list(node.connections) == protocols
    assert [info.number for info in node.connections.infos()] == [1, 2, 3]
    protocols[1].connectionLost()
    protocols[1].connectionLost()
    assert (node.connections.current, node.connections.total) == (2, 3)


def test_full_is_at_the_limit_not_before(node: Node) -> None:
    node.connect()
    node.connect()
    assert not node.connections.full
    node.connect()
    assert node.connections.full


def test_connections_may_go_while_one_iterates(node: Node) -> None:
    for _ in range(3):
        node.connect()
    for protocol in node.connections:
        protocol.connectionLost()
    assert node.connections.current == 0


def test_a_flood_of_rejections_is_one_log_line_per_interval(lines: io.StringIO) -> None:
    clock = Clock()
    registry = Connections(0, clock.seconds)
    for _ in range(1_000):
        registry.reject("192.0.2.7:1", "memcached")
    assert registry.rejected == 1_000
    assert lines.getvalue().count("\n") == 1
    clock.advance(connections.REJECTION_LOG_S)
    registry.reject("192.0.2.7:1", "memcached")
    assert lines.getvalue().count("\n") == 2
    assert "unlogged=999" in lines.getvalue()


def test_one_clock_ticks_for_everybody_until_it_is_stopped(node: Node) -> None:
    first, second = node.connect(), node.connect()
    node.connections.start(node.clock, LongWork(node.clock))
    node.clock.advance(TICK_S)
    node.clock.advance(TICK_S)
    assert first.session.ticks == second.session.ticks == [TICK_S, 2 * TICK_S]
    node.connections.stop()
    node.connections.stop()
    node.clock.advance(TICK_S)
    assert len(first.session.ticks) == 2
    assert node.clock.getDelayedCalls() == []


def test_a_connection_that_ends_during_a_tick_does_not_stop_the_others(node: Node) -> None:
    first, second = node.connect(), node.connect()
    first.session.tick = lambda now: second.connectionLost()
    node.connections.start(node.clock, LongWork(node.clock))
    node.clock.advance(TICK_S)
    node.clock.advance(TICK_S)
    assert node.connections.current == 1
    node.connections.stop()


def test_closing_all_with_nobody_there_is_done_at_once(node: Node) -> None:
    done: list[object] = []
    node.connections.close_all(node.clock, 5.0).addCallback(done.append)
    assert done == [None]


def test_closing_all_waits_for_the_last_to_leave(node: Node) -> None:
    first, second = node.connect(), node.connect()
    done: list[object] = []
    node.connections.close_all(node.clock, 5.0).addCallback(done.append)
    assert first.transport.disconnecting
    assert second.transport.disconnecting
    first.connectionLost()
    assert done == []
    second.connectionLost()
    assert done == [None]
    assert node.clock.getDelayedCalls() == []


def test_closing_all_cuts_off_who_does_not_leave_in_time() -> None:
    node = Node(lambda wake: FloodSession(wake, 10**9))
    protocol = node.connect()
    protocol.dataReceived(b"go")
    done: list[object] = []
    node.connections.close_all(node.clock, 5.0).addCallback(done.append)
    node.clock.advance(4.999)
    assert not protocol.transport.aborted
    node.clock.advance(0.001)
    assert protocol.transport.aborted
    protocol.connectionLost()
    assert done == [None]


# --- open files -----------------------------------------------------------------------------------


class Limits:
    """Stands for the process's limits."""

    def __init__(self, monkeypatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda which: self.now)
        monkeypatch.setattr(resource, "setrlimit", lambda which, new: setattr(self, "now", new))


def test_a_soft_limit_that_suffices_is_left_alone(monkeypatch) -> None:
    limits = Limits(monkeypatch, 100 + RESERVED_FILES, 10_000)
    assert raise_file_limit(100) == 100
    assert limits.now == (100 + RESERVED_FILES, 10_000)


def test_a_soft_limit_that_is_low_is_raised_to_what_is_needed(monkeypatch) -> None:
    limits = Limits(monkeypatch, 99 + RESERVED_FILES, 100 + RESERVED_FILES)
    assert raise_file_limit(100) == 100
    assert limits.now[0] == 100 + RESERVED_FILES


def test_a_hard_limit_in_the_way_lowers_the_number_of_connections(
    monkeypatch, lines: io.StringIO
) -> None:
    limits = Limits(monkeypatch, 256, 999 + RESERVED_FILES)
    assert raise_file_limit(1_000) == 999
    assert limits.now[0] == 999 + RESERVED_FILES
    assert "warn  connections.file_limit_low" in lines.getvalue()


@pytest.mark.parametrize(
    ("files", "wanted", "fitting"),
    [(512, 100, 100), (512, 353, 352), (256, 100, 100), (256, 129, 128), (20, 100, 10), (1, 5, 1)],
)
def test_of_few_files_at_least_half_are_for_clients(
    monkeypatch: pytest.MonkeyPatch, files: int, wanted: int, fitting: int
) -> None:
    Limits(monkeypatch, files, files)
    assert raise_file_limit(wanted) == fitting


@pytest.mark.parametrize(
    ("changes", "reserved"),
    [
        ({"server.http": "off"}, RESERVED_FILES),
        ({}, RESERVED_FILES + MAX_CLIENTS + 16 + 64 + 32 + 2 * 16),
        (
            {"http.change_readers": 0, "http.event_readers": 0, "http.viewers": 0},
            RESERVED_FILES + MAX_CLIENTS,
        ),
    ],
)
def test_what_is_reserved_follows_what_is_switched_on(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], reserved: int
) -> None:
    Limits(monkeypatch, 10_000, 10_000)
    assert reserved_files(build(changes)) == reserved


def test_no_limit_is_no_limit(monkeypatch) -> None:
    endless = resource.RLIM_INFINITY
    Limits(monkeypatch, endless, endless)
    assert raise_file_limit(10**6) == 10**6
    limits = Limits(monkeypatch, 256, endless)
    assert raise_file_limit(10_000) == 10_000
    assert limits.now[0] == 10_000 + RESERVED_FILES


def test_pages_take_no_more_than_a_part_of_the_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, 256, 1_000)
    assert share_of_files(250, 3) == 250
    assert limits.now == (750, 1_000)
    assert share_of_files(500, 3) == 333
    assert limits.now == (1_000, 1_000)
    Limits(monkeypatch, 2, 2)
    assert share_of_files(500, 3) == 1
