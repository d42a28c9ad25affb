"""Ways in: TLS, unix sockets, one connection too many, the expiry pager behind them."""

from __future__ import annotations

import os
import shlex
import shutil
import ssl
import stat
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from pymemcache.client.base import Client as Pymemcache

from interop.server_process import Address, serve_command, start_uprmc
from interop.waiting import wait_until
from interop.wire import GET, NOOP, OK, SET, Wire, frame, split_replies, store
from tests.server.certificates import make_certificate
from tests.system.support import Client, get_page, stats, upr


def trusting(certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    return context


def test_all_listeners_speak_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    options = ["--tls-cert", certificate, "--tls-key", key]
    with start_uprmc(tmp_path / "data", *options) as server:
        place = (server.memcached.host, server.memcached.port)
        client = Pymemcache(place, tls_context=trusting(certificate), timeout=10)
        client.set("k", b"v" * 500_000, noreply=False)
        assert client.get("k") == b"v" * 500_000
        client.close()
        with (
            upr(server).connect() as plain,
            trusting(certificate).wrap_socket(plain) as wire,
        ):
            wire.sendall(
                store(SET, b"other", b"value", vbucket=7) + frame(GET, b"other", vbucket=7)
            )
            data = b""
            while len(split_replies(data)[0]) < 2:
                data += wire.recv(1_000)
            assert [reply.value for reply in split_replies(data)[0]] == [b"", b"value"]
        url = f"https://{server.http}/healthz"
        with urllib.request.urlopen(url, context=trusting(certificate), timeout=10) as page:
            assert page.read() == b"ok\n"
        code, body = get_page(server, "/healthz")
        assert (code, b"begin the URL with https://" in body) == (400, True)
        with Wire(server.memcached) as wire_without:
            wire_without.send(b"version\r\n" * 10)
            assert b"VERSION" not in wire_without.read_until_closed()
        server.stop()


def test_a_unix_socket_is_served_and_found_again_after_a_kill(tmp_path: Path) -> None:
    place = f"unix:{tmp_path / 'socket'}"
    with start_uprmc(tmp_path / "data", memcached=place) as server:
        assert str(server.memcached) == place
        client = Pymemcache(server.memcached.host, timeout=10)
        client.set("k", b"v", noreply=False)
        wait_until(lambda: stats(upr(server))["ep_queue_size"] == "0", "it is on disk")
        client.close()
        server.kill()
    with start_uprmc(tmp_path / "data", memcached=place) as server:
        client = Pymemcache(server.memcached.host, timeout=10)
        assert client.get("k") == b"v"
        client.close()
        server.stop()
    assert not (tmp_path / "socket").exists()


def test_one_connection_too_many_is_told_so(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--set", "server.max_connections=20") as server:
        places = [server.memcached, upr(server)]
        wires = [Wire(places[number % 2]) for number in range(20)]
        for wire in wires:
            assert wire.ask(frame(NOOP)).status == OK
        for place in places:
            with Wire(place) as one_more:
                assert one_more.read_until_closed() == b"ERROR Too many open connections\r\n"
        for wire in wires[1:]:
            assert wire.ask(frame(NOOP)).status == OK
        wires[0].close()

        def room() -> bool:
            with Wire(server.memcached) as wire:
                wire.send(frame(NOOP))
                return wire.read(2) == b"\x81\x0a"

        wait_until(room, "room again")
        for wire in wires[2:]:
            wire.close()
        last = wires[1]
        wait_until(lambda: last.statistics()[b"curr_connections"] == b"1", "all others are gone")
        assert int(last.statistics()[b"rejected_connections"]) >= 2
        last.close()
        server.stop()


def test_a_killed_node_starts_again_on_its_unix_sockets(tmp_path: Path) -> None:
    """Whatever the lock files say: in a container the pid of the last node is the next one's."""
    places = {name: f"unix:{tmp_path / name}" for name in ("memcached", "upr", "http")}
    options = ["--upr", places["upr"], "--http", places["http"], "--vbuckets", "4"]
    for _ in range(2):
        with start_uprmc(tmp_path / "data", *options, memcached=places["memcached"]) as server:
            for name in places:
                assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
            with Client(server.memcached) as client:
                client.store({b"k": b"v"})
            server.kill()
        for name in places:
            assert (tmp_path / name).exists()
            lock = tmp_path / f"{name}.lock"
            lock.write_text(f"{os.getpid()}\n")
    with start_uprmc(tmp_path / "data", *options, memcached=places["memcached"]) as server:
        server.stop()
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


def test_a_node_listens_at_each_address(tmp_path: Path) -> None:
    options = ["--vbuckets", "4", "--http", "off", "--set", "server.views=off"]
    with start_uprmc(tmp_path, *options, memcached="127.0.0.1:0,127.0.0.2:0") as server:
        for place in str(server.memcached).split(","):
            with Wire(Address.parse(place)) as wire:
                wire.talk(b"get k\r\n", b"END\r\n")
        assert stats(upr(server), "settings")["inter"] == "127.0.0.1,127.0.0.2"


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed")
def test_of_few_open_files_clients_have_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = shlex.join(["prlimit", "--nofile=512:512", *serve_command()])
    monkeypatch.setenv("UPRMC_SERVE_COMMAND", limited)
    options = ["-c", "100", "--vbuckets", "4"]
    with ExitStack() as stack:
        server = stack.enter_context(start_uprmc(tmp_path, *options))
        wires = [stack.enter_context(Wire(server.memcached)) for _ in range(100)]
        for wire in wires:
            wire.talk(b"get k\r\n", b"END\r\n")
        with Wire(server.memcached) as wire:
            assert wire.line().startswith(b"ERROR Too many")
        assert get_page(server, "/healthz")[0] == 200


def test_expired_documents_are_deleted_soon_without_anybody_asking(tmp_path: Path) -> None:
    with start_uprmc(tmp_path) as server:
        with Client(server.memcached) as client:
            requests = [store(SET, b"k%d" % n, b"v", expiration=1) for n in range(500)]
            assert {reply.status for reply in client.send_all(requests)} == {OK}
            client.store({b"stays": b"v"})
        wait_until(lambda: stats(server.memcached)["curr_items"] == "1", "they are gone", 10.0)
        found = stats(server.memcached, "ep")
        assert found["ep_expired_pager"] == "500"
        assert found["ep_expired_access"] == "0"
        wait_until(lambda: stats(server.memcached)["ep_queue_size"] == "0", "deletions are on disk")
        server.stop()
    with start_uprmc(tmp_path) as server:
        assert stats(server.memcached)["curr_items"] == "1"
        server.stop()
