"""Documents far above the usual limit are readable by everything that reads a node."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.cli.support import Ended, uprmc
from tests.system.support import Client, upr
from uprmc.client import changes
from uprmc.client.kv import KvClient

KEY = b"large"
VALUE = hashlib.sha256(b"seed").digest() * (70_000_000 // 32)
VBUCKETS = 4
OPTIONS = ["--vbuckets", str(VBUCKETS), "--memory", "1G", "--set", "kv.max_item_bytes=128M"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("large"), *OPTIONS) as found:
        with Client(found.memcached) as client:
            client.store({KEY: VALUE})
        yield found
        found.stop()


def ran(ended: Ended) -> str:
    assert ended.code == 0, ended
    return ended.out


def test_the_client_library_follows_a_vbucket_with_a_large_document(server: ServerProcess) -> None:
    place = str(upr(server))
    found = [
        (each.key, each.value) for each in changes(place, until="now", total_vbuckets=VBUCKETS)
    ]
    assert found == [(KEY, VALUE)]


def test_the_kv_client_reads_and_writes_a_large_document(server: ServerProcess) -> None:
    with KvClient(str(upr(server))) as client:
        found = client.get(KEY)
        assert found is not None
        assert found.value == VALUE


def test_tail_shows_a_large_document(server: ServerProcess) -> None:
    lines = ran(uprmc("tail", "--node", upr(server), "--start", "0", "--until-now")).splitlines()
    assert len(lines) == 1
    assert f" {KEY.decode()} " in lines[0]


def test_a_backup_holds_a_large_document_and_brings_it_back(
    server: ServerProcess, tmp_path: Path
) -> None:
    place, chain = str(upr(server)), str(tmp_path / "backup")
    local = ("--engine", "local", "--progress", "none")
    ran(uprmc("backup", chain, "--node", place, *local))
    with start_uprmc(tmp_path / "copy", *OPTIONS) as copy:
        ran(uprmc("restore", chain, "--node", str(upr(copy)), *local))
        with Client(copy.memcached) as client:
            assert list(client.load([KEY])) == [(KEY, VALUE)]
        copy.stop()
