"""Clients of others log in to a node that has users.

Proves that python-binary-memcached (SASL PLAIN), pylibmc (libmemcached's SASL through libsasl),
mc_bin_client, on which the tools of 2010 to 2014 stand, and a client of UPR of February 2014 work
with a name and a password, and that none gets in without.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop import python2
from interop import upr_wire as u
from interop.server_process import ServerProcess, start_uprmc
from interop.wire import Wire, frame

AUTH, GET, UPR_OPEN = 0x21, 0x00, 0x50
OK, AUTH_ERROR, NO_ACCESS = 0x00, 0x20, 0x24


@pytest.fixture(scope="module")
def server(peer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    if peer != "uprmc":
        pytest.skip("users are uprmc's")
    directory = tmp_path_factory.mktemp("users")
    users = directory / "users.json"
    for name, roles in (("app", "read,write"), ("feed", "stream")):
        command = [sys.executable, "-m", "uprmc", "user", "add", name, "--role", roles]
        words = [*command, "--password-file", "-", "--users", str(users)]
        subprocess.run(words, input=b"secret\n", check=True, timeout=60)
    options = ("--vbuckets", "4", "--set", f"server.users={users}")
    with start_uprmc(directory / "data", *options) as process:
        yield process
        process.stop()


def bmemcached(server: ServerProcess, *login: str) -> Any:
    module = pytest.importorskip("bmemcached", reason="pip install python-binary-memcached")
    return module.Client([str(server.memcached)], *login, socket_timeout=10)


def test_bmemcached_works_with_a_password(server: ServerProcess) -> None:
    client = bmemcached(server, "app", "secret")
    assert client.set("key", "value") is True
    assert client.get("key") == "value"
    assert client.get("missing") is None
    client.disconnect_all()


@pytest.mark.parametrize("login", [(), ("app", "wrong"), ("nobody", "secret")])
def test_bmemcached_does_not_get_in_without(server: ServerProcess, login: tuple[str, ...]) -> None:
    from bmemcached.exceptions import MemcachedException

    client = bmemcached(server, *login)
    with pytest.raises(MemcachedException, match="Auth failure"):
        client.get("key")
    client.disconnect_all()


_LIBSASL = """
import sys, pylibmc
client = pylibmc.Client([sys.argv[1]], binary=True, username="app", password=sys.argv[2])
assert client.set("lib", "value")
assert client.get("lib") == "value"
print("in")
"""


def test_pylibmc_works_with_a_password(server: ServerProcess) -> None:
    pylibmc = pytest.importorskip("pylibmc", reason="pip install pylibmc (needs libmemcached)")
    plugins = next(Path("/usr/lib").glob("*/sasl2/libplain.so"), None)
    if plugins is None or not pylibmc.support_sasl:
        pytest.skip("libsasl has no PLAIN here: apt-get install libsasl2-modules")
    environment = {**os.environ, "SASL_PATH": str(plugins.parent)}  # a wheel has its own libsasl
    for password, outcome in (("secret", "in\n"), ("wrong", "")):
        ended = subprocess.run(
            [sys.executable, "-c", _LIBSASL, str(server.memcached), password],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.stdout == outcome, ended.stderr


def test_a_consumer_of_upr_logs_in_first(server: ServerProcess) -> None:
    assert server.upr is not None
    opening = frame(UPR_OPEN, b"feed", extras=bytes(4) + (1).to_bytes(4, "big"))
    login = frame(AUTH, b"PLAIN", value=b"\0feed\0secret")
    with Wire(server.upr) as wire:
        assert wire.ask(opening).status == AUTH_ERROR
    with Wire(server.upr) as wire:
        assert wire.ask(login).status == OK
        assert wire.ask(opening).status == OK
        assert wire.ask(frame(GET, b"key")).status == NO_ACCESS
    with Wire(server.upr) as wire:
        assert wire.ask(frame(AUTH, b"PLAIN", value=b"\0app\0secret")).status == OK
        assert wire.ask(opening).status == NO_ACCESS


def test_old_tools_log_in_and_then_write_and_stream(server: ServerProcess) -> None:
    tools: Any = python2.load("mc_bin_client", "memcacheConstants", "mc_bin_client")
    streams: Any = python2.load("upr", "constants", "operation", "connection")
    if tools is None or streams is None:
        pytest.skip("the clients are not installed: pip install mc_bin_client upr==0.3")
    assert server.upr is not None
    host, port = server.upr.host, server.upr.port
    writer = tools.mc_bin_client.MemcachedClient(host, port)
    assert "PLAIN" in writer.sasl_mechanisms()
    writer.sasl_auth_plain("app", "secret")
    writer.vbucketId = 2
    writer.set("old", 0, 7, "tool")
    assert writer.get("old")[2] == "tool"
    with pytest.raises(tools.mc_bin_client.MemcachedError) as error:
        writer.set_vbucket_state(2, "dead")
    assert error.value.status == NO_ACCESS
    writer.close()
    reader = streams.UprClient(host, port)
    try:
        assert _next(reader.sasl_auth_plain("feed", "secret"))["status"] == OK
        assert _next(reader.open_producer("tool-of-2014"))["status"] == OK
        stream = reader.stream_req(2, 0, 0, u.NEVER, 0, 0)
        assert _next(stream)["status"] == OK
        found: dict[str, Any] = {}
        while found.get("key") != "old":
            found = _next(stream)
        assert found["value"] == "tool"
    finally:
        reader.conn.close(True)
    stranger = streams.UprClient(host, port)
    assert _next(stranger.open_producer("stranger"))["status"] == AUTH_ERROR
    stranger.conn.close(True)


def _next(operation: Any) -> Any:
    """The next thing that the client of UPR has got for an operation."""
    return operation.responses.get(timeout=10)
