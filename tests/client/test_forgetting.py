"""A consumer that ends for good, like an index that is deleted, has its rows removed.

Source: contracts of the systems to come, sections 2 and 4; `reference/systems.md` a.2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from interop.wire import OK, SET, Wire, store
from tests.cli.here import runner
from uprmc.client import Handler, UprClient, forget
from uprmc.client.connection import NodeError
from uprmc.client.errors import MisuseError, NotActive, NotForgotten
from uprmc.engine.tombstones import Amount
from uprmc.engine.watermarks.rows import Kind
from uprmc.server.stats.vbuckets import pinned_by_client

VBUCKETS = 4
_EVERY = list(range(VBUCKETS))


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[ServerProcess]:
    options = ("--vbuckets", str(VBUCKETS), "--set", "purge.expires_index_s=7200")
    with start_uprmc(tmp_path / "data", *options) as server:
        assert server.upr is not None
        with Wire(server.upr) as wire:
            for vbucket in _EVERY:
                assert wire.ask(store(SET, b"key", b"v", vbucket=vbucket)).status == OK
        yield server


@pytest.fixture(name="index")
def _index(server: ServerProcess, tmp_path: Path) -> Iterator[UprClient]:
    with UprClient(
        str(server.upr),
        Handler(),
        state=tmp_path / "index.db",
        total_vbuckets=VBUCKETS,
        register="index",
        instance="by_city",
    ) as client:
        yield client


def registered(server: ServerProcess) -> list[int]:
    """Return the vBuckets in which the index has a row."""
    assert server.upr is not None
    with Wire(server.upr) as wire:
        told = wire.statistics(b"watermarks")
    return [n for n in _EVERY if told.get(b"vb_%d:row_by_city:kind" % n) == b"index"]


def test_an_index_keeps_its_rows_when_it_stops_and_loses_them_when_it_is_forgotten(
    server: ServerProcess, index: UprClient
) -> None:
    index.run("now")
    assert registered(server) == _EVERY
    assert index.forget() == _EVERY
    assert registered(server) == []
    assert index.forget() == []
    index.run("now")
    assert registered(server) == _EVERY


def test_it_can_be_forgotten_in_some_vbuckets(server: ServerProcess, index: UprClient) -> None:
    index.run("now")
    assert index.forget([1, 3]) == [1, 3]
    assert registered(server) == [0, 2]
    assert forget(str(server.upr), "by_city") == [0, 2]


def test_one_that_runs_is_not_forgotten(server: ServerProcess, index: UprClient) -> None:
    index.start()
    wait_until(lambda: registered(server) == _EVERY, server.log)
    with pytest.raises(MisuseError, match="stop it before"):
        index.forget()
    with pytest.raises(NotForgotten, match=r"by_city at .*, vBuckets 0-3: .* stop it first") as bad:
        forget(str(server.upr), "by_city")
    assert bad.value.vbuckets == tuple(_EVERY)
    index.stop()
    assert registered(server) == _EVERY
    assert index.forget() == _EVERY


def test_a_row_of_an_index_is_shown_with_its_kind_and_expires_when_its_kind_does(
    server: ServerProcess, index: UprClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metrics name those that alone keep deletions."""
    index.run("now")
    listed = runner(capsys)("watermarks", "list", "--json", "--node", server.upr)
    rows = [row for each in json.loads(listed.out)["vbuckets"] for row in each["rows"]]
    assert {(row["id"], row["kind"], row["expires_in_s"]) for row in rows} == {
        ("by_city", "index", 7_200)
    }
    kept = {(b"by_city", Kind.INDEX): Amount(1, 39)}
    assert pinned_by_client(kept) == {("by_city", "index"): Amount(1, 39)}


def test_what_cannot_be_reached_is_named(server: ServerProcess, index: UprClient) -> None:
    index.run("now")
    with pytest.raises(NotActive, match="vBuckets 7,9: there are only 4"):
        index.forget([0, 7, 9])
    assert registered(server) == [1, 2, 3]
    with pytest.raises(NodeError, match=r"no node answers at 127\.0\.0\.1:1"):
        forget("127.0.0.1:1", "by_city")
    assert forget(["127.0.0.1:1", str(server.upr)], "by_city") == [1, 2, 3]


def test_what_makes_no_sense_is_refused(server: ServerProcess) -> None:
    for nodes, name in (([], "x"), ("no place", "x"), (str(server.upr), ""), ("a:1", "x" * 65)):
        with pytest.raises(MisuseError):
            forget(nodes, name)
    with (
        UprClient(str(server.upr), Handler()) as client,
        pytest.raises(MisuseError, match="not registered"),
    ):
        client.forget()
