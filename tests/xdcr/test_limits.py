"""Limits of links, each at the limit and one past it."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from tests.system.test_replication import delete
from tests.xdcr.cluster import DataCentres, documents, write
from uprmc.config import XdcrSettings
from uprmc.engine.tombstones import PurgeRule
from uprmc.errors import TemporaryFailure
from uprmc.xdcr.frames import set_frame
from uprmc.xdcr.received import ReceivedRecord, with_record
from uprmc.xdcr.windows import Windows


def windows_of(**limits: int) -> Windows:
    return Windows(lambda _: None, XdcrSettings(**limits))


def add(windows: Windows, size: int = 100) -> None:
    frame = set_frame(0, windows.opaque, b"k".ljust(size - 48, b"v"), 1, (0, 0, 1, 1), 0)
    assert len(frame) == size
    windows.add(windows.current, frame)


def test_a_node_has_so_many_links_and_no_more(centres: DataCentres) -> None:
    a, b = centres.start("a", xdcr__links=2), centres.start("b")
    centres.link(a, b, "first")
    centres.link(a, b, "second")
    with pytest.raises(TemporaryFailure, match="has 2 links already: delete one"):
        centres.link(a, b, "third")
    centres.command(a, "delete", name="first")
    centres.link(a, b, "third")


def test_so_many_batches_are_under_way_to_a_node_and_no_more() -> None:
    windows = windows_of(batches=2)
    for _ in range(2):
        assert windows.has_room
        add(windows)
        assert windows.has_room, "the batch that was begun may go on"
        windows.close([])
    assert not windows.has_room
    windows.fence_answered(1)
    assert windows.has_room


def test_what_is_read_at_once_may_exceed_these_batches_and_nothing_else_is_read() -> None:
    windows = windows_of(batches=2)
    for _ in range(3):
        add(windows)
        windows.close([])
    add(windows)  # the rest of what was read
    assert not windows.has_room, "a batch that was begun beyond the limit does not go on"
    windows.close([])
    for answered in (1, 2):
        windows.fence_answered(answered)
        assert not windows.has_room
    windows.fence_answered(3)
    assert windows.has_room


def test_so_many_bytes_are_under_way_to_a_node_and_no_more() -> None:
    windows = windows_of(unanswered_bytes=300)
    add(windows, 299)
    assert windows.has_room
    add(windows)
    assert not windows.has_room
    windows.close([])
    windows.fence_answered(1)
    assert windows.has_room


@pytest.mark.parametrize("limits", [{"xdcr__queued_parts": 6}, {"xdcr__queued_bytes": 65_536}])
def test_a_link_reads_only_so_much_of_what_it_must_not_send_yet(
    centres: DataCentres, limits: dict[str, int]
) -> None:
    a, b = centres.start("a", **limits), centres.start("b")
    link = centres.link(a, b, set={"ship": "persisted"})
    centres.loop.until(lambda: len(link.shipments) == 4)
    centres.until_on_disk(a)
    a.bucket.flusher.pause()
    outbound = link.outbound
    for number in range(0, 400, 4):
        write(a, number, 4, b"v" * 4_000)
        for _ in range(3):
            centres.loop.reactor.iterate(0)
    centres.loop.until(lambda: outbound.is_full)
    waiting = [part for parts in outbound.withheld.values() for _, part in parts]
    size, most = sum(part.size for part in waiting), max(part.size for part in waiting)
    if "xdcr__queued_parts" in limits:
        assert 6 <= len(waiting) <= 6 + 3, "one reading may bring a part for each vBucket"
    else:
        assert 65_536 <= size <= 65_536 + 4 * most
    a.bucket.flusher.resume()
    centres.until_level(link, limit_s=60)
    assert documents(a) == documents(b)
    assert (outbound._parts, outbound._bytes) == (0, 0)


def test_so_many_checkpoints_of_others_are_kept_and_the_oldest_go_first() -> None:
    kept: list[ReceivedRecord] = []
    for number in range(1, 8):
        kept = with_record(kept, ReceivedRecord(f"source {number}", 1, 1, "", here_seqno=number), 6)
        assert len(kept) == min(number, 6)
    assert [each.here_seqno for each in kept] == [2, 3, 4, 5, 6, 7]


def test_a_reconciliation_lists_so_many_keys_and_counts_all(centres: DataCentres) -> None:
    a, b = centres.start("a", xdcr__listed_keys=2), centres.start("b")
    write(a, 0, 40)
    link = centres.link(a, b)
    centres.until_level(link)
    centres.command(a, "delete", name="west")
    for number in (0, 4, 1, 5, 9):  # two of vBucket 0, three of vBucket 1
        delete(a, b"k%d" % number)
    write(a, 40, 4)
    centres.until_on_disk(a)
    told: list[bool] = []
    for number in range(4):
        a.bucket.compact(number, PurgeRule(every=True), told.append)
    centres.loop.until(lambda: len(told) == 4)
    link = centres.link(a, b)
    centres.until_level(link)
    centres.command(a, "reconcile", name="west", dry_run=True)
    centres.loop.until(lambda: not link.reconciliation.running)  # type: ignore[union-attr]
    rows = {row["vbucket"]: row for row in link.reconciliation.shown(0)["vbuckets"]}  # type: ignore[union-attr]
    assert [(rows[n]["deleted"], len(rows[n]["keys"])) for n in (0, 1)] == [(2, 2), (3, 2)]


def test_a_target_that_accepts_connections_and_says_nothing_is_given_up(
    centres: DataCentres,
) -> None:
    a = centres.start("a", xdcr__dial_timeout_s=0.2, xdcr__redial_max_s=0.1)
    with socket.create_server(("127.0.0.1", 0)) as dumb:
        link = centres.link(a, f"127.0.0.1:{dumb.getsockname()[1]}")
        centres.loop.until(lambda: link.errors.shown())
        assert "no answer for 0.2 s" in link.errors.shown()[0]
        dumb.setblocking(False)
        calls: list[socket.socket] = []

        def has_called_again() -> bool:
            with suppress(BlockingIOError):
                calls.append(dumb.accept()[0])
            return len(calls) == 2

        centres.loop.until(has_called_again)
        for call in calls:
            call.close()


def test_a_target_that_has_become_silent_is_given_up_after_so_many_seconds(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = centres.start("a", xdcr__silence_s=20.0), centres.start("b")
    link = centres.link(a, b)
    centres.loop.until(lambda: link.nodes.ready)
    (target,) = link.nodes.ready
    monkeypatch.setattr(target, "receive_data", lambda _: None)
    now = link.clock.monotonic()
    target.tick(now)
    target.tick(now + 11.0)  # it is asked whether it is there
    target.tick(now + 30.9)
    assert not target.closing
    target.tick(now + 31.1)
    assert target.closing
    assert "it has said nothing for 20 s" in link.errors.shown()[-1]
