"""A server whose wall clock is set back or forward goes on committing, holding and ending."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from interop.wire import Wire, frame
from tests.system import stepped_clock
from tests.system.support import OK, Client, stats, upr

HOUR_S = 3_600
GETL, LEASE_ACQUIRE = 0x94, 0xE4
SMALL = ["--vbuckets", "4"]


class SteppedClock:
    """The wall clock of the servers that a test starts."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)

    def step(self, seconds: int) -> None:
        self._file.write_text(str(seconds))


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SteppedClock:
    file = tmp_path / "clock"
    monkeypatch.setenv(stepped_clock.FILE_VARIABLE, str(file))
    command = f"{sys.executable} -m {stepped_clock.__name__} serve"
    monkeypatch.setenv("UPRMC_SERVE_COMMAND", command)
    return SteppedClock(file)


@contextmanager
def serving(tmp_path: Path) -> Iterator[tuple[ServerProcess, Client]]:
    with start_uprmc(tmp_path / "data", *SMALL) as server, Client(server.memcached) as client:
        yield server, client


def documents(prefix: bytes, count: int = 200) -> dict[bytes, bytes]:
    return {b"%s-%d" % (prefix, number): b"%d" % number * 20 for number in range(count)}


def wait_until_persisted(server: ServerProcess) -> None:
    wait_until(
        lambda: stats(server.memcached)["ep_queue_size"] == "0", "the queue is on disk", 10.0
    )


@pytest.mark.acceptance("D20")
@pytest.mark.parametrize("without_epoll", ["", "1"], ids=["epoll", "poll"])
@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_what_is_written_after_a_step_of_the_clock_is_committed_and_survives_a_kill(
    tmp_path: Path,
    clock: SteppedClock,
    monkeypatch: pytest.MonkeyPatch,
    step_s: int,
    without_epoll: str,
) -> None:
    monkeypatch.setenv(stepped_clock.WITHOUT_EPOLL_VARIABLE, without_epoll)
    before, after, later = documents(b"before"), documents(b"after"), documents(b"later")
    with serving(tmp_path) as (server, client):
        client.store(before)
        clock.step(step_s)
        client.store(after)
        wait_until_persisted(server)
        client.store(later)  # a flush was timed under the stepped clock
        wait_until_persisted(server)
        server.kill()
    with serving(tmp_path) as (server, client):
        everything = before | after | later
        assert dict(client.load(list(everything))) == everything
        server.stop()


def lease(server: ServerProcess, lifetime_s: int) -> None:
    with Wire(upr(server)) as wire:
        reply = wire.ask(frame(LEASE_ACQUIRE, extras=struct.pack(">I", lifetime_s)))
        assert reply.status == OK


def open_leases(server: ServerProcess) -> str:
    return stats(server.memcached, "leases")["open"]


def test_a_lease_lasts_as_long_as_was_granted_whatever_the_wall_clock_does(
    tmp_path: Path, clock: SteppedClock
) -> None:
    with serving(tmp_path) as (server, client):
        client.store(documents(b"k"))
        lease(server, 60)
        clock.step(HOUR_S)
        client.store(documents(b"k"))
        wait_until_persisted(server)
        assert open_leases(server) == "1"
        clock.step(0)
        lease(server, 1)
        clock.step(-HOUR_S)
        wait_until(lambda: open_leases(server) == "1", "the lease of a second ends", 10.0)
        server.stop()


def test_a_lock_lasts_as_long_as_was_granted_whatever_the_wall_clock_does(
    tmp_path: Path, clock: SteppedClock
) -> None:
    with serving(tmp_path) as (server, client):
        client.store({b"short": b"v", b"long": b"v"})
        for key, seconds in ((b"short", 1), (b"long", 30)):
            reply = client.send_all([frame(GETL, key, extras=struct.pack(">I", seconds))])[0]
            assert reply.status == OK
        clock.step(HOUR_S)
        assert client.try_store(b"long", b"foreign") != OK
        clock.step(-HOUR_S)
        wait_until(
            lambda: client.try_store(b"short", b"w") == OK, "the lock of a second ends", 10.0
        )
        assert client.try_store(b"long", b"foreign") != OK
        server.stop()


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_document_lives_for_as_long_as_it_was_given_whatever_the_wall_clock_does(
    tmp_path: Path, clock: SteppedClock, step_s: int
) -> None:
    with serving(tmp_path) as (server, client):
        for key, expiry_s in ((b"moment", 2), (b"minute", 60), (b"day", 86_400)):
            extras = struct.pack(">II", 0, expiry_s)
            assert client.send_all([frame(1, key, b"v", extras)])[0].status == OK
        clock.step(step_s)
        longer = {b"minute": b"v", b"day": b"v"}
        assert dict(client.load(list(longer))) == longer

        def is_over() -> bool:
            return dict(client.load([b"moment"])) == {b"moment": None}

        wait_until(is_over, "two seconds have passed", 10.0)
        assert dict(client.load(list(longer))) == longer
        assert stats(server.memcached)["vb_active_curr_items"] == "2"
        assert f"event.clock_set seconds={step_s}" in server.log()
        server.stop()
