"""The guide about curl: what it types at a node prints what it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.guides import node_of, page, type_session


def test_the_session_with_curl_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl: apt-get install curl")
    text = page("curl.md")
    with node_of(text, tmp_path, monkeypatch) as node:
        type_session(text, node, tmp_path)
