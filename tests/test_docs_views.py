"""The guide to views: its session is typed at a real node, and prints what the page shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from interop.server_process import ServerProcess
from interop.views import Views
from tests.guides import node_of, page, type_session, typed, write_files
from uprmc import web

PAGE = page("views.md")

_CURL = re.compile(r"^curl 'http://127.0.0.1:8092/default/_design/(\w+)/_view/(\w+)\?(.*)'$", re.M)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    with node_of(PAGE, tmp_path, monkeypatch) as server:
        yield server


@pytest.mark.acceptance("I01", "I02")
def test_the_session_about_views_prints_what_is_shown(node: ServerProcess, tmp_path: Path) -> None:
    type_session(PAGE, node, tmp_path)


def test_the_request_with_curl_gets_groups(node: ServerProcess, tmp_path: Path) -> None:
    """The first two files of the page, then what is asked there."""
    write_files(PAGE, node, tmp_path)
    typed("python fill.py")
    assert typed("uprmc index put people people.json") == ["people: stored"]
    asked = _CURL.search(PAGE)
    assert asked is not None
    assert node.views is not None
    design, view, options = asked.groups()
    with Views(node.views) as views:
        path = f"/_design/{design}/_view/{view}?{quote(options, safe='=&')}&stale=false"
        answer = views.ask("GET", path)
    assert answer.status == 200, answer
    assert [row["key"] for row in answer.body["rows"]] == [["Berlin"], ["Brno"]]


def test_every_refusal_is_in_the_table() -> None:
    sources = (Path(__file__).parent.parent / "uprmc" / "index").rglob("*.py")
    source = "".join(path.read_text(encoding="utf-8") for path in sources)
    raised = set(re.findall(r'Refused\(\s*(\d{3}), "(\w+)"', source))
    by_site = re.findall(r'_refuse\(http\.FORBIDDEN, "(\w+)"', Path(web.__file__).read_text())
    raised |= {("403", word) for word in by_site}
    rows = re.findall(r"^\| (\d{3})(?:, \d{3})? \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(raised) == sorted(rows)
