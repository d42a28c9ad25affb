"""The reference pages are made from the code, and what they are made from is complete."""

from __future__ import annotations

import re
from pathlib import Path

from tests.documents import ROOT, names, rows
from tools import reference
from uprmc.config import describe
from uprmc.server.log_events import EVENTS

_LEVEL_OF = {"failure": "error"}
_CALL = r'\b(?:_log|events)\.(debug|info|warn|error|failure)\(\s*"(\w+)"'


def test_every_page_is_written_and_linked_from_the_page_about_the_reference(tmp_path: Path) -> None:
    reference.write(tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(reference/([\w-]+\.md)\)", page)) == written


def test_the_page_of_settings_has_every_setting_with_its_default_and_range() -> None:
    page = reference.settings_page()
    assert names(page) == [f"{info.name}" for info in describe()]
    told = {row[0]: row[1:] for row in rows(page)}
    assert told["`kv.max_item_bytes`"][:3] == ["1 MiB", "bytes", "1 KiB to 128 MiB"]
    assert told["`flush.sync`"][:3] == ["yes", "yes/no", "-"]
    assert told["`log.format`"][1] == "text|json"


def events_in_the_code() -> set[tuple[str, str]]:
    """Return (event, level) of everything our own code can log."""
    found = set()
    for path in (ROOT / "uprmc").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        section = "node" if path.name == "signals.py" else None
        if log := re.search(r'^_log = Log\("(\w+)"\)', text, re.M):
            section = log[1]
        if section is None:
            continue
        calls = re.findall(_CALL, text)
        assert len(calls) == len(re.findall(r"\b(?:_log|events)\.", text)), path
        found |= {(f"{section}.{event}", _LEVEL_OF.get(level, level)) for level, event in calls}
    return found


def test_the_table_of_events_has_every_event_with_its_level() -> None:
    told = {(name, info.level) for name, info in EVENTS.items() if not name.startswith("twisted.")}
    assert told == events_in_the_code()
    assert names(reference.log_events_page()) == list(EVENTS)
