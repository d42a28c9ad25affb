"""An index file is compacted beside its use, and can be rolled back all the while.

Source: systems reference c.6; rows I22, I23.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from interop.server_process import start_uprmc
from interop.waiting import wait_until
from interop.wire import Wire, frame
from tests.index.running import BY_CITY, cities, index_server, store
from tests.index.test_groups import OK, STOP_PERSISTENCE, persisted
from uprmc.config import IndexSettings
from uprmc.index.index_file import IndexTrees
from uprmc.index.store import Compactions

ROUNDS = 8


@pytest.mark.acceptance("I22")
def test_a_compacted_file_has_one_header_and_the_same_rows(tmp_path: Path) -> None:
    settings = {"index.update_min_changes": "1", "index.fragmentation": "1"}
    with (
        start_uprmc(tmp_path / "node", "--vbuckets", "8") as node,
        index_server(tmp_path / "index", node.upr, settings=settings) as server,
    ):
        views = server.views
        views.put("d", BY_CITY)
        for round_ in range(ROUNDS):
            store(node, cities(range(500), city=f"city {round_}"))
            assert views.count() == 500
        before = views.info()
        assert before["headers"] > 1
        assert views.ask("POST", "/_design/d/_compact").status == 202
        views.until("compacted", lambda info: info["compactions"] and not info["compacting"])
        after = views.info()
        assert after["headers"] <= 2  # that of the copy, and of the change over
        assert views.ids() == [f"k{n}" for n in sorted(range(500), key=str)]
        views.until("no old file", lambda info: not info["old_file"])
        assert views.info()["disk_bytes"] < before["disk_bytes"]
        store(node, cities(range(500, 510)))
        assert views.count() == 510


def test_a_file_is_compacted_by_itself_when_much_of_it_is_of_no_use(tmp_path: Path) -> None:
    settings = {"index.update_min_changes": "1", "index.compact_min_bytes": "16KiB"}
    with (
        start_uprmc(tmp_path / "node", "--vbuckets", "8") as node,
        index_server(tmp_path / "index", node.upr, settings=settings) as server,
    ):
        server.views.put("d", BY_CITY)
        rounds = iter(range(1_000))

        def compacted() -> bool:
            store(node, cities(range(500), city=f"city {next(rounds)}"))
            assert server.views.count() == 500
            return bool(server.views.info()["compactions"])

        wait_until(compacted)


@pytest.mark.parametrize(
    ("size", "live", "wanted"),
    [(1_000, 600, False), (1_000, 500, True), (999, 0, False), (5_000, 2_501, False)],
)
def test_small_files_and_those_that_are_half_of_use_are_left_alone(
    size: int, live: int, wanted: bool
) -> None:
    compactions = Compactions(IndexSettings(compact_min_bytes=1_000, fragmentation=0.5))
    compactions.consider(size, cast(IndexTrees, SimpleNamespace(live_bytes=lambda: live)))
    assert compactions.wanted is wanted


@pytest.mark.acceptance("I23")
def test_a_rollback_behind_a_compaction_returns_to_the_old_file(tmp_path: Path) -> None:
    data = tmp_path / "index"
    settings = {"index.update_min_changes": "1", "index.fragmentation": "1"}
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as node:
        with index_server(data, node.upr, settings=settings) as server:
            views = server.views
            views.put("d", BY_CITY)
            store(node, cities(range(200)))
            assert views.count() == 200
            wait_until(lambda: persisted(node))
            with Wire(node.upr) as wire:
                assert wire.ask(frame(STOP_PERSISTENCE)).status == OK
            store(node, cities(range(300, 310), city="lost"))
            assert views.count() == 210
            assert views.ask("POST", "/_design/d/_compact").status == 202
            views.until("compacted", lambda info: info["compactions"])
            assert views.info()["old_file"]  # the node has not written what the new one begins with
            server.stop()
        node.kill()
    with (
        start_uprmc(tmp_path / "node") as node,
        index_server(data, node.upr, settings=settings) as server,
    ):
        assert server.views.count() == 200
        assert server.views.info()["rollbacks"].get("old_file") == 1
