"""Which server the scripts talk to, and how it is started and stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.replica_pair import ReplicaPair, replicate
from interop.replica_steps import OPTIONS
from interop.server_process import ServerProcess, memcached_program, start_memcached, start_uprmc
from interop.wire import Wire

pytest_plugins = ["tests.acceptance_report", "tests.interrupts", "tests.isolation"]

# memdump reads `stats cachedump`, which shows new items only with the maintainer off.
_PEER_OPTIONS = ("-m", "256", "-c", "12000", "-o", "no_lru_maintainer,no_lru_crawler")

Start = Callable[..., ServerProcess]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("interop")
    group.addoption(
        "--peer",
        choices=["uprmc", "memcached"],
        default=os.environ.get("UPRMC_INTEROP_PEER", "uprmc"),
        help="the server under the scripts; 'memcached' checks the scripts themselves",
    )
    group.addoption(
        "--connections",
        type=int,
        default=2_000,
        metavar="N",
        help="how many connections test_bad_input opens at once",
    )
    group.addoption(
        "--kills",
        type=int,
        default=10,
        metavar="N",
        help="how often test_replication kills a node under load",
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"interop: the server is {config.getoption('peer')}"


@pytest.fixture(scope="session")
def peer(request: pytest.FixtureRequest) -> str:
    """``"uprmc"`` or ``"memcached"``."""
    name: str = request.config.getoption("peer")
    if name == "memcached" and memcached_program() is None:
        pytest.skip("memcached is not installed: apt-get install memcached")
    return name


@pytest.fixture(scope="session")
def start(peer: str) -> Start:
    """Start the server under test: ``start(data_directory, *options for uprmc)``."""

    def run(data: Path, *options: str, unix_path: Path | None = None) -> ServerProcess:
        if peer == "memcached":
            return start_memcached(*_PEER_OPTIONS, unix_path=unix_path)
        if unix_path:
            return start_uprmc(data, *options, memcached=f"unix:{unix_path}")
        return start_uprmc(data, *options)

    return run


@pytest.fixture(scope="module")
def module_server(
    start: Start, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """One server for all tests of a file; it must stop cleanly when they are done."""
    with start(tmp_path_factory.mktemp("data")) as process:
        yield process
        process.stop()


@pytest.fixture
def server(module_server: ServerProcess) -> ServerProcess:
    """The file's server, emptied. It must have survived the test before."""
    assert module_server.running, f"the server ended\n{module_server.log()}"
    with Wire(module_server.memcached) as wire:
        wire.talk(b"flush_all\r\n", b"OK\r\n")
    return module_server


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """A fresh raw connection to the emptied server."""
    with Wire(server.memcached) as connection:
        yield connection


@pytest.fixture
def pair(tmp_path: Path, peer: str) -> Iterator[ReplicaPair]:
    """Two nodes that run; ``a`` is active, and ``b`` follows it through the proxy."""
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    with ReplicaPair(tmp_path, *OPTIONS) as made:
        replicate(made.b, made.dialled(made.a))
        yield made
        for node in (made.a, made.b):
            if node.running:
                node.stop()
