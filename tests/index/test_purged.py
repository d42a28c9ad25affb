"""Deletions that were purged before the index came to know of them.

Source: contracts section 2; row I28.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.replica_pair import verb
from interop.server_process import start_uprmc
from interop.waiting import wait_until
from tests.index.running import BY_CITY, cities, delete, index_server, store
from tests.index.test_groups import persisted


@pytest.mark.acceptance("I28")
def test_only_the_vbuckets_that_were_purged_past_the_index_are_indexed_again(
    tmp_path: Path,
) -> None:
    data = tmp_path / "index"
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as node:
        store(node, cities(range(160)))
        with index_server(data, node.upr) as server:
            server.views.put("d", BY_CITY)
            assert server.views.count() == 160
            server.stop()
        delete(node, [b"k1"])
        store(node, cities(range(1_000, 1_100)))  # what is newest in a vBucket is not purged
        wait_until(lambda: persisted(node))
        verb("compact", "--node", node.upr, "--force", "--wait")
        with index_server(data, node.upr) as server:
            assert "k1" not in server.views.ids()
            assert server.views.count() == 259
            info = server.views.info()
            assert info["rollbacks"] == {"vbucket": 1}
            assert 100 <= info["map_calls"] < 180  # what is new, and one vBucket of eight


@pytest.mark.acceptance("I28")
def test_a_registered_index_has_its_deletions_kept_while_it_is_away(tmp_path: Path) -> None:
    data = tmp_path / "index"
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as node:
        store(node, cities(range(80)))
        with index_server(data, node.upr) as server:
            server.views.put("d", BY_CITY)
            assert server.views.count() == 80
            server.stop()
        delete(node, [b"k1"])
        store(node, cities(range(1_000, 1_080)))
        wait_until(lambda: persisted(node))
        verb("compact", "--node", node.upr, "--wait")
        with index_server(data, node.upr) as server:
            assert server.views.count() == 159
            assert server.views.info()["rollbacks"] == {}
