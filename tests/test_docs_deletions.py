"""The guide about deletions: its session is typed at a real node, and prints what the page shows.

It is the worked case of seed 002: rows at 1570, 215, 2709, 3470 and 541, the purger at 980.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.server_process import ServerProcess
from tests.guides import node_of, page, type_session

PAGE = page("deletions.md")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    with node_of(PAGE, tmp_path, monkeypatch) as server:
        yield server


@pytest.mark.acceptance("X04", "X08", "X16", "X19")
def test_the_session_about_deletions_prints_what_is_shown(
    node: ServerProcess, tmp_path: Path
) -> None:
    type_session(PAGE, node, tmp_path)
    told = node.log()
    assert told.count("event.watermark_outpaced") == 2
    assert "from=541 to=980 count=220 exact=true" in told
