"""One who waits for the disk and breaks does not take the flusher with him."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contents import table_of
from tests.system.support import node_here
from tests.system.test_drivers import put
from uprmc.errors import StoreError


@pytest.mark.parametrize("ok", [True, False])
def test_a_waiter_that_breaks_ends_nothing_for_others(tmp_path: Path, ok: bool) -> None:
    with node_here(tmp_path, flush__retry_delay_s=0.01) as (node, loop):
        flusher = node.bucket.flusher
        told: list[bool] = []
        commit = flusher.commit

        def break_once(flush) -> None:
            flusher.commit = commit
            raise StoreError("gone")

        if not ok:
            flusher.commit = break_once

        def breaks(durable: bool) -> None:
            raise RuntimeError("a bug of ours")

        for waiter in (told.append, breaks, told.append, breaks, breaks, told.append):
            flusher.when_durable(waiter)
        loop.until(lambda: len(told) == 3)
        assert told == [ok] * 3
        put(node, b"k", b"v")
        loop.until(lambda: flusher.queued == 0)


def test_a_waiter_that_breaks_at_the_stop_leaves_everything_on_disk(tmp_path: Path) -> None:
    def breaks(durable: bool) -> None:
        raise RuntimeError("a bug of ours")

    with node_here(tmp_path, flush__min_delay_s=30.0, flush__max_delay_s=30.0) as (node, _):
        put(node, b"k", b"v")
        node.bucket.flusher._waiters.append(breaks)
    with node_here(tmp_path) as (node, _):
        assert node.warmup.was_clean
        assert table_of(node.bucket.of_key(b"k"))[b"k"].value == b"v"
