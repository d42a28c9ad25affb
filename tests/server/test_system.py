"""The real clock, when the machine's own shows nonsense."""

from __future__ import annotations

import time

import pytest

from tests.kv.harness import Rig, talk
from uprmc.server.system import SystemClock


@pytest.mark.parametrize("shown", [-1e10, -1.0, 0.0, 1.8e9, 2.0**32, 2.0**33, 1e15])
def test_documents_are_stored_and_deleted_whatever_date_the_clock_shows(
    shown: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: shown)
    rig = Rig()
    rig.clock.set_by = SystemClock().now() - rig.clock.time
    rig.bucket.tick()
    session = rig.text()
    assert talk(session, b"set k 0 2592000 1\r\nv\r\n") == b"STORED\r\n"
    assert talk(session, b"get k\r\n") == b"VALUE k 0 1\r\nv\r\nEND\r\n"
    assert talk(session, b"delete k\r\n") == b"DELETED\r\n"
    rig.flush()
