"""The life of the index's process beside a node, with a program that stands in for it."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet import process as reaping
from twisted.internet.protocol import ServerFactory

from tests.server.support import Loop
from uprmc.config import VIEWS_AUTO, VIEWS_DEFAULT, build
from uprmc.errors import ConfigError
from uprmc.server.net.listener import CannotListen, Listener, listen_private
from uprmc.server.work.index import PER_SECOND, IndexDriver, child_environment

STAND_IN = (sys.executable, str(Path(__file__).with_name("index_stand_in.py")))


class Rig:
    """A driver on a real reactor, in a directory, with a clock of its own."""

    def __init__(self, loop: Loop, directory: Path) -> None:
        self.loop, self.directory = loop, directory
        self.rooms: list[str] = []
        self.now = 0.0
        self.events: list[tuple[str, dict[str, object]]] = []
        self.driver = self.made()

    def made(self, how: str = "", **changes: object) -> IndexDriver:
        given = {"storage.data": str(self.directory), "server.views": "127.0.0.1:0"}
        self.driver = IndexDriver(
            self.loop.reactor,
            build({**given, **changes}),
            self.open,
            lambda *event: self.events.append(event),
            lambda: self.now,
        )
        self.driver.command = (*STAND_IN, *([how] if how else []))
        return self.driver

    def open(self, path: str) -> Listener:
        self.rooms.append(path)
        return listen_private(self.loop.reactor, path, ServerFactory())

    def begun(self, how: str = "", **changes: object) -> IndexDriver:
        driver = self.made(how, **changes)
        self.loop.result(driver.listen())
        driver.start()
        return driver

    def other(self, views: str) -> IndexDriver:
        settings = build({"storage.data": str(self.directory), "server.views": views})
        return IndexDriver(
            self.loop.reactor, settings, self.open, lambda *_: None, lambda: self.now
        )

    def until(self, condition: Callable[[], object]) -> None:
        def looked() -> object:
            reaping.reapAllProcesses()  # what SIGCHLD does under a reactor that runs
            return condition()

        self.loop.until(looked)

    def ask(self) -> Any:
        """Connect, and return what the process answers."""
        host, _, port = self.driver.address.rpartition(":")
        with socket.create_connection((host, int(port))) as made:
            made.setblocking(False)
            found = bytearray()

            def ended() -> bool:
                try:
                    data = made.recv(65_536)
                except BlockingIOError:
                    return False
                found.extend(data)
                return not data

            self.until(ended)
        return json.loads(found)

    def stop(self) -> None:
        gone = self.driver.stop()
        self.until(lambda: gone.called)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    loop = Loop()
    made = Rig(loop, tmp_path)
    yield made
    made.stop()
    loop.until(lambda: not any(map(os.path.exists, made.rooms)))
    loop.close()


def test_nothing_is_started_before_the_first_connection(rig: Rig) -> None:
    driver = rig.begun()
    for _ in range(20):
        rig.loop.reactor.iterate(0.001)
    assert (driver.state, driver.pid, rig.rooms) == ("idle", 0, [])
    assert rig.ask()["pid"] == driver.pid
    assert (driver.state, driver.restarts, driver.error) == ("up", 0, "")


def test_a_node_that_has_designs_starts_it_at_once(rig: Rig) -> None:
    (rig.directory / "index" / "people.design").mkdir(parents=True)
    driver = rig.begun()
    assert driver.state == "starting"
    rig.until(lambda: driver.state == "up")


def test_it_gets_the_sockets_and_settings_that_it_needs_and_nothing_else(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPRMC_TLS_CA", "of another verb")
    changes = {"index.workers": 3, "index.nice": 7, "index.replicas": True, "log.format": "json"}
    with socket.socket() as other:
        os.set_inheritable(other.fileno(), True)
        rig.begun(**changes)
        found = rig.ask()
    (room,) = rig.rooms
    assert found["descriptors"] == [0, 1, 2, 3, 4]
    assert found["options"] == {
        "how": "",
        "--source": f"unix:{room}",
        "--data": str(rig.directory / "index"),
        "--listen-fd": "3",
        "--events-fd": "4",
    }
    assert stat.S_IMODE(os.stat(os.path.dirname(room)).st_mode) == 0o700
    told = found["environment"]
    assert told["UPRMC_INDEX_WORKERS"] == "3"
    assert told["UPRMC_INDEX_REPLICAS"] == "yes"
    assert told["UPRMC_LOG_FORMAT"] == "json"
    others = {name for name in told if not name.startswith(("UPRMC_INDEX_", "UPRMC_LOG_"))}
    assert others - {"UPRMC_CORE"} == {
        *("UPRMC_SERVER_USERS", "UPRMC_SERVER_HTTP_TLS", "UPRMC_SERVER_LOGIN_TIMEOUT_S"),
        *("UPRMC_SERVER_HTTP_HOSTS", "UPRMC_SERVER_HTTP", "UPRMC_SERVER_VIEWS"),
        *("UPRMC_UPR_DIAL_CA", "UPRMC_UPR_DIAL_USER", "UPRMC_UPR_DIAL_PASSWORD_FILE"),
    }
    assert found["nice"] == min(os.getpriority(os.PRIO_PROCESS, 0) + 7, 19)


def test_it_finds_the_certificate_under_a_name_that_stays(rig: Rig) -> None:
    for name in ("a", "b"):
        (rig.directory / name).write_text(name)
    files = {"server.tls_cert": str(rig.directory / "a"), "server.tls_key": "key"}
    driver = rig.begun(**files)
    told = rig.ask()["environment"]
    shown = Path(told["UPRMC_SERVER_TLS_CERT"])
    assert shown.read_text() == "a"
    driver.reload(build({**files, "server.tls_cert": str(rig.directory / "b")}).server)
    assert shown.read_text() == "b"
    rig.stop()
    plain = rig.begun(**files, **{"server.http_tls": False})
    assert not plain.https
    assert "UPRMC_SERVER_TLS_CERT" not in rig.ask()["environment"]


def test_a_process_that_floods_its_node_with_events_gets_few_of_them_through(rig: Rig) -> None:
    rig.begun("flooding")
    rig.ask()
    began = time.monotonic()
    rig.until(lambda: ("index_built", {"design": "d"}) in rig.events)
    assert rig.events[0] == ("index_failed", {"design": "d", "reason": "r" * 500})
    assert set(map(str, rig.events[1:])) == {str(("index_built", {"design": "d"}))}
    assert len(rig.events) <= PER_SECOND * (1 + int(time.monotonic() - began))
    assert rig.ask()["pid"]


def test_a_data_directory_with_a_long_path_has_its_socket_elsewhere(rig: Rig) -> None:
    rig.directory /= "a" * 100
    rig.directory.mkdir()
    rig.begun()
    assert rig.ask()["pid"]
    (room,) = rig.rooms
    assert room.startswith("/tmp/uprmc-")


def test_what_a_killed_node_has_left_is_replaced(rig: Rig) -> None:
    left = rig.directory / "sockets"
    left.mkdir()
    (left / "upr").touch()
    rig.begun()
    assert rig.ask()["options"]["--source"] == f"unix:{left / 'upr'}"
    rig.stop()
    assert not left.exists()


def test_the_environment_gives_the_same_settings_again() -> None:
    changes = {"index.map_timeout_s": 0.25, "index.python_modules": "a, b", "index.replicas": True}
    given = build({**changes, "log.level": "warn"})
    found = child_environment({"UPRMC_KV_MAX_ITEM_BYTES": "5", "PATH": "p"}, given, Path("room"))
    assert found["PATH"] == "p"
    from uprmc.config import load

    read = load(None, found, {})
    assert (read.index, read.log) == (given.index, given.log)


def test_one_that_was_killed_is_started_again_and_connections_wait_meanwhile(rig: Rig) -> None:
    driver = rig.begun()
    first = rig.ask()["pid"]
    os.kill(first, signal.SIGKILL)
    rig.until(lambda: driver.state == "down")
    second = rig.ask()["pid"]
    assert second not in (0, first)
    assert driver.restarts == 1
    assert driver.state == "up"


def test_waits_become_longer_until_it_has_answered_for_a_while(rig: Rig) -> None:
    driver = rig.begun()
    lengths = []
    for age_s in (1.0, 1.0, 40.0):
        pid = rig.ask()["pid"]
        rig.until(lambda: driver.state == "up")
        rig.now += age_s
        os.kill(pid, signal.SIGKILL)
        rig.until(lambda: driver.state == "down")
        assert driver.error == "signal SIGKILL"
        lengths.append(driver._backoff.length_s)
    assert lengths == [0.1, 0.2, 0.1]


def test_one_that_cannot_be_started_is_tried_again(rig: Rig) -> None:
    driver = rig.begun("broken")
    host, _, port = driver.address.rpartition(":")
    with socket.create_connection((host, int(port))):
        rig.until(lambda: driver.restarts == 2)
    assert driver.error == "exit code 1"
    driver.command = ("/does/not/exist",)
    rig.until(lambda: driver.restarts == 4)
    assert "exist" in driver.error or "exit code" in driver.error


def test_one_that_does_not_end_with_the_node_is_killed(rig: Rig) -> None:
    driver = rig.begun("stubborn")
    pid = rig.ask()["pid"]
    driver.grace_s = 0.1
    rig.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert driver.state == "off"


def test_it_is_not_started_any_more_after_the_stop(rig: Rig) -> None:
    driver = rig.begun()
    pid = rig.ask()["pid"]
    os.kill(pid, signal.SIGKILL)
    rig.until(lambda: driver.state == "down")
    rig.stop()
    rig.until(lambda: not rig.loop.reactor.getDelayedCalls())
    assert driver.pid == 0
    assert len(rig.rooms) == 1


def test_off_means_no_listener(rig: Rig) -> None:
    driver = rig.begun(**{"server.views": "off"})
    assert (driver.state, driver.address, driver.pid) == ("off", "off", 0)


@pytest.mark.parametrize("text", ["8092", ":8092", "unix:/tmp/x", "tcp:8092:interface=::1", "AUTO"])
def test_a_setting_that_makes_no_sense_is_refused(rig: Rig, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^server\.views: "):
        rig.loop.result(rig.made(**{"server.views": text}).listen())


def test_an_address_in_use_is_an_error_if_it_was_asked_for(rig: Rig) -> None:
    place = rig.begun().address
    with pytest.raises(CannotListen) as caught:
        rig.loop.result(rig.other(place).listen())
    said = str(caught.value)
    assert said.startswith(f"server.views: cannot listen on {place}: Address already in use by ")


def test_the_default_address_is_left_to_another_node_that_has_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert VIEWS_DEFAULT == "127.0.0.1:8092"
    taken = rig.begun().address
    monkeypatch.setattr("uprmc.server.work.index.VIEWS_DEFAULT", taken)
    logged: list[tuple[str, dict[str, Any]]] = []
    log = SimpleNamespace(warn=lambda event, **facts: logged.append((event, facts)))
    monkeypatch.setattr("uprmc.server.work.index._log", log)
    other = rig.other(VIEWS_AUTO)
    rig.loop.result(other.listen())
    other.start()
    assert (other.state, other.address) == ("off", "off")
    ((event, facts),) = logged
    assert (event, facts["address"]) == ("no_listener", taken)
    assert facts["reason"].endswith("; say --views with another port, or --views off for no views")


def test_the_address_of_a_node_that_was_killed_is_waited_for(rig: Rig) -> None:
    driver = rig.begun()
    place = driver.address
    (rig.directory / "index").mkdir()
    other = rig.other(place)
    listening = other.listen()
    for _ in range(20):
        rig.loop.reactor.iterate(0.001)
    assert not listening.called
    rig.stop()
    rig.loop.result(listening)
    assert other.address == place
    rig.loop.result(other.stop())


def test_an_ipv6_address_is_shown_as_others_are(rig: Rig) -> None:
    driver = rig.begun(**{"server.views": "[::1]:0"})
    assert driver.address.startswith("[::1]:")
