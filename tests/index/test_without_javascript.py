"""JavaScript that was installed when a design was put, and is not any more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from interop.server_process import start_uprmc
from tests.index.running import BY_CITY, cities, index_server, store

MISSING = "JavaScript needs the extra uprmc[javascript]"
OF_MAPS = {"views": {"by_city": {"map": "function (doc) { emit(doc.city, 1) }"}}}
OF_REDUCES = {
    "views": {"by_city": BY_CITY["views"]["by_city"] | {"reduce": "function (k, v) { return 1 }"}}
}


def without_javascript(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Have processes that are started from now on find no engine."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text("import sys; sys.modules['py_mini_racer'] = None")
    monkeypatch.setenv("PYTHONPATH", str(directory))


def test_designs_with_javascript_say_what_is_missing_and_others_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("py_mini_racer")
    data = tmp_path / "index"
    with start_uprmc(tmp_path / "node", "--vbuckets", "8") as node:
        store(node, cities(range(50)))
        with index_server(data, node.upr) as server:
            server.views.put("plain", BY_CITY)
            server.views.put("maps", OF_MAPS)
            server.views.put("reduces", OF_REDUCES)
            assert len(server.views.query("maps/by_city", stale="false").body["rows"]) == 50
            assert server.stop() == 0
        with monkeypatch.context() as hidden:
            without_javascript(hidden, tmp_path / "hidden")
            with index_server(data, node.upr) as server:
                views = server.views
                assert (
                    len(views.query("plain/by_city", stale="false", reduce="false").body["rows"])
                    == 50
                )
                for name in ("maps", "reduces"):
                    for answer in (
                        views.query(f"{name}/by_city"),
                        views.ask("GET", f"/_design/{name}/_info"),
                        views.ask("GET", f"/_design/{name}"),
                    ):
                        assert (answer.status, answer.body["error"]) == (503, "unavailable")
                        assert MISSING in answer.body["reason"]
                refused = views.ask("PUT", "/_design/more", OF_MAPS)
                assert (refused.status, refused.body["reason"]) == (400, MISSING)
                states = {
                    row["name"]: row["state"] for row in views.ask("GET", "/_design").body["rows"]
                }
                assert (states["maps"], states["reduces"]) == ("failed", "failed")
                words = [sys.executable, "-m", "uprmc", "index", "status", "--json"]
                found = subprocess.run(
                    [*words, "--views", views.place], capture_output=True, check=True, timeout=60
                )
                assert MISSING in json.loads(found.stdout)["maps"]["error"]
                views.put("reduces", BY_CITY)
                assert (
                    len(views.query("reduces/by_city", stale="false", reduce="false").body["rows"])
                    == 50
                )
                assert server.stop() == 0
            log = data.with_suffix(".log").read_text()
            assert log.count("event.design_unusable") == 2
            assert "Traceback" not in log
        with index_server(data, node.upr) as server:
            assert len(server.views.query("maps/by_city", stale="false").body["rows"]) == 50
            assert server.views.ask("DELETE", "/_design/maps").status == 200
