"""A web page asks the views listener: refused by default, answered where the setting names it.

With Chromium it is a real page of another origin; without, the `fetch` of Node.js with the rule of
CORS that a browser applies.
"""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interop.pouchdb import SOURCES
from interop.server_process import ServerProcess, start_uprmc
from interop.views import Views

_PAGE = """<!doctype html><title>page</title><pre id="out">waiting</pre><script>
fetch("%s").then(r => r.json()).then(
  body => { document.getElementById("out").textContent = "rows=" + body.total_rows; },
  error => { document.getElementById("out").textContent = "error=" + error.name; });
</script>"""

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_LIMIT_S = 60.0


def path_of(server: ServerProcess) -> str:
    """Put a design; return the address of its view."""
    assert server.views is not None
    with Views(server.views) as views:
        assert views.put("d", {"v": {"map": {"emit": [{"key": "$.n"}]}}}).status == 201
        views.rows("d/v")
    return f"http://{server.views}/default/_design/d/_view/v"


@contextmanager
def page_server(directory: Path) -> Iterator[str]:
    """Serve a directory; yields its origin."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def fetched(url: str, origin: str) -> Any:
    """Fetch with Node.js as a page of `origin`."""
    if shutil.which("node") is None:
        pytest.skip("no Node.js: apt-get install nodejs")
    command = ["node", str(SOURCES / "fetch.js"), url, origin]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("origins", ["", "https://other.example", "{}", "*"])
def test_a_page_reads_an_answer_only_if_the_setting_names_its_origin(
    tmp_path: Path, origins: str
) -> None:
    mine = "http://127.0.0.1:4711"
    setting = ("--set", f"index.cors_origins={origins.format(mine)}")
    with start_uprmc(tmp_path, "--vbuckets", "2", *setting) as server:
        found = fetched(path_of(server), mine)
        assert found["status"] == 200
        assert found["readable"] is (origins in ("{}", "*"))
        assert not found["readable"] or found["body"]["total_rows"] == 0
        server.stop()


@pytest.mark.parametrize("allowed", [False, True])
def test_a_page_in_a_browser_gets_rows_only_if_it_may(tmp_path: Path, allowed: bool) -> None:
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser: apt-get install chromium")
    (tmp_path / "pages").mkdir()
    with page_server(tmp_path / "pages") as origin:
        setting = ("--set", f"index.cors_origins={origin if allowed else ''}")
        with start_uprmc(tmp_path / "data", "--vbuckets", "2", *setting) as server:
            (tmp_path / "pages" / "index.html").write_text(_PAGE % path_of(server))
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
            command += ["--virtual-time-budget=10000", f"{origin}/index.html"]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
            assert ("rows=0" if allowed else "error=TypeError") in done.stdout, done
            server.stop()
