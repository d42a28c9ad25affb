"""The index's process as an operator sees it: a node, its child, and what ends one or the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.server_process import ANY_PORT, start_uprmc
from tests.cli.support import uprmc
from tests.system.support import get_page, stats, status_page, upr


@pytest.mark.acceptance("D03")
def test_health_lists_every_component_of_a_node(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4") as server:
        found = status_page(server)
        assert found["components"] == {
            "kv": "up",
            "storage": "up",
            "upr": "up",
            "replication": "up",
            "purger": "up",
            "xdcr": "up",
            "tap": "up",
            "index": "idle",
        }
        assert found["index"] == {
            "views": str(server.views),
            "state": "idle",
            "pid": 0,
            "restarts": 0,
            "error": "",
        }
        told = stats(upr(server), "index")
        assert told == {name: str(value) for name, value in found["index"].items()}
        page = get_page(server, "/metrics")[1].decode()
        assert "uprmc_index_process_restarts_total 0.0" in page
        assert "uprmc_index_process_up 0.0" in page
        server.stop()


def test_off_is_shown_in_the_ready_line_and_everywhere_else(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "4", "--views", "off") as server:
        assert server.views is None
        found = status_page(server)
        assert found["components"]["index"] == found["index"]["state"] == "off"
        assert "views" not in found["listeners"]
        server.stop()


def test_an_address_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    listeners = ["--memcached", ANY_PORT, "--upr", ANY_PORT, "--http", "off"]
    with start_uprmc(tmp_path / "a", "--vbuckets", "4") as server:
        place = str(server.views)
        ended = uprmc("serve", "--data", tmp_path / "b", *listeners, "--views", place)
        assert ended.refused() == (
            f"server.views: cannot listen on {place}: Address already in use"
        )
        server.stop()
    ended = uprmc("serve", "--data", tmp_path / "b", *listeners, "--views", "8092")
    assert ended.refused().startswith("server.views: '8092' is no listener")
