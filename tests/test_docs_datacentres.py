"""The guide about several data centres: its session about three clusters prints what is shown.

It is the case of seed 004: a third link begins where the other two have arrived, although a
document that came from the first cluster was changed at the second one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.server_process import start_uprmc
from tests.guides import page, typed
from tests.scenarios.story import parse, same
from uprmc.client.kv import KvClient

PAGE = page("datacentres.md")
FILES = {
    "five.csv": [f"b{number},at B" for number in range(5)],
    "five-others.csv": [f"a{number},at A" for number in range(5)],
    "changed.csv": ["a1,changed at B"],
}

_SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LIMIT_S = 30.0


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    monkeypatch.chdir(tmp_path)
    for name, rows in FILES.items():
        (tmp_path / name).write_text("\n".join(["key,value", *rows, ""]))
    with ExitStack() as stack:
        servers = {
            f"{name}:11210": stack.enter_context(start_uprmc(tmp_path / name, "--vbuckets", "1"))
            for name in "ABC"
        }
        yield {name: str(server.upr) for name, server in servers.items()}


def test_the_session_about_three_clusters_prints_what_is_shown(places: dict[str, str]) -> None:
    def with_places(text: str) -> str:
        for shown, place in places.items():
            text = text.replace(shown, place)
        return text

    sessions = _SESSION.findall(PAGE)
    assert len(sessions) == 2
    for step in (step for text in sessions for step in parse(with_places(text)) if step.text):
        waits = "xdcr list" in step.text or "xdcr checkpoint" in step.text
        deadline = time.monotonic() + _LIMIT_S
        while True:
            lines = [" ".join(line.split()) for line in typed(step.text[2:]) if line]
            if same(step.expected, lines):
                break
            late = not waits or time.monotonic() > deadline
            assert not late, (step.text, lines)
    with KvClient([places["C:11210"]]) as kv:
        found = kv.get_many([b"a%d" % number for number in range(5)])
        assert {key: each.value for key, each in found.items()} == {
            **{b"a%d" % number: b"at A" for number in range(5)},
            b"a1": b"changed at B",
        }
    status = typed(f"uprmc xdcr status baz --node {places['A:11210']}")
    assert "docs_written 0" in [" ".join(line.split()) for line in status]
