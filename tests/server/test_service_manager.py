"""What a service manager is told, as its end of the socket receives it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from uprmc.server.system import ServiceManager


class Systemd:
    """The manager's end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        self.socket.setblocking(False)

    def told(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(4_096).decode())
            except BlockingIOError:
                return found


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    name = f"@uprmc-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    made = Systemd(name)
    yield made
    made.socket.close()


def status() -> str:
    return "so\nfar"


def test_a_life_with_a_watchdog_is_told_step_by_step(systemd: Systemd) -> None:
    clock = Clock()
    environment = {"NOTIFY_SOCKET": systemd.name, "WATCHDOG_USEC": "4000000"}
    manager = ServiceManager(clock, environment | {"WATCHDOG_PID": str(os.getpid())})
    busy = "WATCHDOG=1\nSTATUS=so far\nEXTEND_TIMEOUT_USEC=30000000"
    manager.starting(status)
    clock.pump([1, 1])
    assert systemd.told() == [busy, busy]
    manager.ready("Serving")
    clock.pump([2, 2])
    assert systemd.told() == ["READY=1\nSTATUS=Serving", "WATCHDOG=1", "WATCHDOG=1"]
    manager.reloading()
    manager.reloaded()
    first, second = systemd.told()
    assert first.startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert second == "READY=1"
    manager.stopping(status)
    clock.advance(2)
    assert systemd.told() == ["STOPPING=1", busy, busy]
    manager.close()
    clock.advance(9)
    assert systemd.told() == []
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("watchdog", [{}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}])
def test_without_a_watchdog_of_its_own_a_process_that_serves_is_silent(
    systemd: Systemd, watchdog: dict[str, str]
) -> None:
    clock = Clock()
    manager = ServiceManager(clock, {"NOTIFY_SOCKET": systemd.name, **watchdog})
    manager.starting(status)
    manager.ready("Serving")
    assert clock.getDelayedCalls() == []
    manager.stopping(status)
    assert systemd.told()[-1] == "STATUS=so far\nEXTEND_TIMEOUT_USEC=30000000"
    manager.close()


def test_what_finds_no_room_is_sent_later_up_to_a_limit(tmp_path: Path) -> None:
    systemd, clock = Systemd(str(tmp_path / "notify")), Clock()
    manager = ServiceManager(clock, {"NOTIFY_SOCKET": systemd.name, "WATCHDOG_USEC": "9000000"})
    for _ in range(1_000):
        manager.reloaded()
    manager.ready("Serving")
    ready = "READY=1\nSTATUS=Serving"
    assert ready not in systemd.told()
    manager.stopping(status)
    told = systemd.told()
    for _ in range(3):
        clock.advance(4.5)
        told += systemd.told()
    assert told.index(ready) < told.index("STOPPING=1")
    assert told.count("READY=1") < 16
    manager.close()
    systemd.socket.close()


@pytest.mark.parametrize("name", ["", "vsock:2:1", "/no/such/socket"])
def test_where_no_manager_is_nothing_happens(name: str) -> None:
    clock = Clock()
    manager = ServiceManager(clock, {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "many"})
    manager.starting(status)
    manager.ready("Serving")
    manager.close()
    manager.close()
    assert clock.getDelayedCalls() == []
