"""The real clock and entropy keep the promises of `ports`."""

from __future__ import annotations

import time

from uprmc.server import system
from uprmc.server.system import SystemClock, SystemEntropy


def test_now_is_unix_time() -> None:
    before = time.time()
    now = SystemClock().now()
    assert before <= now <= time.time()


def test_the_monotonic_clock_never_goes_back() -> None:
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()


def test_uuid48_spans_1_to_the_largest(monkeypatch) -> None:
    for drawn, uuid in ((bytes(6), 1), (b"\0" * 5 + b"\x02", 2), (b"\xff" * 6, 2**48 - 1)):
        monkeypatch.setattr(system.os, "urandom", lambda size, drawn=drawn: drawn[:size])
        assert SystemEntropy().uuid48() == uuid


def test_two_uuids_differ() -> None:
    entropy = SystemEntropy()
    assert entropy.uuid48() != entropy.uuid48()
