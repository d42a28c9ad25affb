"""Failovers and lost changes at either end of a link."""

from __future__ import annotations

import pytest

from tests.xdcr.cluster import DataCentres, documents, write
from uprmc.model import VBucketState
from uprmc.server.node import Node
from uprmc.xdcr.link import Link
from uprmc.xdcr.shipment import LinkPosition, Shipment
from uprmc.xdcr.windows import LinkWindow

ALL = range(4)
ROW = b"xdcr:west"


def events(node: Node, name: str) -> list[dict[str, object]]:
    return [each for each in node.events.newest() if each["event"] == name]


@pytest.mark.acceptance("X26")
def test_after_a_failover_the_link_goes_on_at_the_last_replicated_watermark(
    centres: DataCentres,
) -> None:
    a, replica, b = (centres.start(name) for name in ("a", "replica", "b"))
    link = centres.link(a, b)
    standby = centres.link(replica, b)
    centres.follow(replica, a)
    write(a, 0, 400)
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    centres.until_equal(a, replica)
    rows = replica.bucket.watermarks.rows
    vbuckets = replica.bucket.vbuckets
    centres.loop.until(
        lambda: all(
            any(row.watermark == 100 for row in rows(each) if row.id == b"xdcr:west")
            for each in vbuckets.values()
        )
    )
    write(a, 400, 100)
    centres.until_equal(a, replica)
    centres.stop("a")
    centres.fail_over(replica, *ALL)
    write(replica, 500, 100)
    centres.until_level(standby)
    assert documents(replica) == documents(b)
    assert standby.counters.docs_opt_repd <= 200  # it went on at the row's checkpoint
    assert {each.seqno for each in standby.store.known(0) if each.seqno} == {100}


def watermarks(node: Node) -> set[int]:
    """Return what the rows of the link say."""
    table, vbuckets = node.bucket.watermarks, node.bucket.vbuckets.values()
    return {row.watermark for each in vbuckets for row in table.rows(each) if row.id == ROW}


@pytest.mark.acceptance("X25", "X26", "X27")
def test_after_a_failover_at_1024_a_link_that_was_at_2048_misses_nothing(
    centres: DataCentres,
) -> None:
    """The numbers of the document about watermarks: "phantom future checkpoints"."""
    a, replica, b = (centres.start(name, engine__vbuckets=1) for name in ("a", "replica", "b"))
    link = centres.link(a, b)
    standby = centres.link(replica, b)
    centres.follow(replica, a)
    write(a, 0, 1_024)
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    centres.until_equal(a, replica)
    centres.loop.until(lambda: watermarks(replica) == {1_024})
    told: list[bool] = []
    replica.replication.stop(None, told.append)
    centres.loop.until(lambda: told)
    write(a, 10_000, 1_024, b"lost")
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    assert watermarks(a) == {2_048}
    assert watermarks(replica) == {1_024}
    centres.stop("a")
    centres.fail_over(replica, 0)
    write(replica, 20_000, 2_000, b"new")  # beyond 2048: there is such a seqno again
    centres.until_level(standby)
    assert documents(replica).items() <= documents(b).items()
    assert standby.counters.docs_opt_repd == 2_000, "all that is new, and nothing from before"
    lost = documents(b).keys() - documents(replica).keys()
    assert lost == {b"k%d" % number for number in range(10_000, 11_024)}
    told = {"link": "west", "vbucket": 0, "from": 1_025, "to": 2_048}
    assert [told.items() <= each.items() for each in events(replica, "xdcr_branch")] == [True]
    assert list(standby.resuming.branches) == [told]
    centres.command(replica, "checkpoint", name="west")
    centres.stop("replica")
    replica = centres.start("replica", engine__vbuckets=1)
    centres.until_level(replica.links.by_name["west"])
    assert events(replica, "xdcr_branch") == [], "it was told in the life before"


def test_a_promoted_replica_that_is_to_stop_at_a_lost_branch_stops(centres: DataCentres) -> None:
    a, replica, b = (centres.start(name, engine__vbuckets=1) for name in ("a", "replica", "b"))
    link = centres.link(a, b)
    standby = centres.link(replica, b, set={"on_branch": "stop"})
    centres.follow(replica, a)
    write(a, 0, 100)
    centres.until_level(link)
    centres.until_equal(a, replica)
    told: list[bool] = []
    replica.replication.stop(None, told.append)
    centres.loop.until(lambda: told)
    write(a, 100, 100)
    centres.until_level(link)
    centres.command(a, "pause", name="west")
    centres.fail_over(replica, 0)
    centres.loop.until(lambda: standby.state == "error")
    assert "changes 101 to 200 were sent and are lost" in standby.error


def lose_a_branch(centres: DataCentres, **given: object) -> tuple[Node, Node, Link]:
    """Send 200 changes of each vBucket, of which the source then loses the second half."""
    a, replica, b = (centres.start(name) for name in ("a", "replica", "b"))
    write(a, 0, 400)
    centres.follow(replica, a)
    link = centres.link(a, b, **given)
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    centres.until_equal(a, replica)
    told: list[bool] = []
    replica.replication.stop(None, told.append)
    centres.loop.until(lambda: told)
    write(a, 400, 400)
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    centres.fail_over(replica, *ALL)
    centres.follow(a, replica, demote=True)
    centres.until_equal(a, replica)
    centres.fail_over(a, *ALL)
    centres.loop.until(lambda: len(link.resuming.branches) == 4)
    return a, b, link


@pytest.mark.acceptance("X27")
def test_what_was_sent_from_a_lost_branch_is_reported(centres: DataCentres) -> None:
    a, b, link = lose_a_branch(centres)
    write(a, 800, 100)
    centres.until_level(link)
    lost = [{"link": "west", "vbucket": number, "from": 101, "to": 200} for number in ALL]
    status = centres.command(a, "status", name="west")
    assert sorted(status["branches"], key=lambda each: each["vbucket"]) == lost
    told = [{name: each[name] for name in lost[0]} for each in events(a, "xdcr_branch")]
    assert sorted(told, key=lambda each: each["vbucket"]) == lost
    assert documents(a).items() <= documents(b).items()
    assert len(documents(b)) == len(documents(a)) + 400  # what is lost stays at the target


def test_a_link_that_is_to_stop_at_a_lost_branch_stops(centres: DataCentres) -> None:
    a, b, link = lose_a_branch(centres, set={"on_branch": "stop"})
    centres.loop.until(lambda: link.state == "error")
    assert "changes 101 to 200 were sent and are lost" in link.error
    assert centres.command(a, "resume", name="west")["state"] == "running"
    write(a, 800, 1)
    centres.until_level(link)
    assert b"k800" in documents(b)


def test_a_target_that_has_lost_changes_gets_them_again(centres: DataCentres) -> None:
    a, b, replica = (centres.start(name) for name in ("a", "b", "replica"))
    write(a, 0, 400)
    link = centres.link(a, f"{b.addresses()['upr']},{replica.addresses()['upr']}")
    centres.follow(replica, b)
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    centres.until_equal(b, replica)
    told: list[bool] = []
    replica.replication.stop(None, told.append)
    centres.loop.until(lambda: told)
    write(a, 400, 400)
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    centres.stop("b")
    centres.fail_over(replica, *ALL)
    centres.until_same(a, replica)
    assert link.counters.docs_opt_repd == 1200  # from the first checkpoint on


# --- shipping only what cannot be lost ----------------------------------------------------------


def test_nothing_is_sent_before_it_is_on_disk_if_the_link_is_to_wait(
    centres: DataCentres,
) -> None:
    a, b = centres.start("a"), centres.start("b")
    link = centres.link(a, b, set={"ship": "persisted"})
    write(a, 0, 100)
    centres.until_level(link)
    centres.until_on_disk(a)
    a.bucket.flusher.pause()
    write(a, 100, 100)
    write(b, 1000, 1)  # something that passes while nothing else does
    centres.loop.until(lambda: link.outbound.withheld)
    assert len(documents(b)) == 101
    a.bucket.flusher.resume()
    centres.until_level(link)
    assert len(documents(b)) == 201


def test_nothing_is_sent_before_a_replica_has_it_on_disk_if_the_link_is_to_wait(
    centres: DataCentres,
) -> None:
    a, b, replica = (centres.start(name) for name in ("a", "b", "replica"))
    centres.follow(replica, a)
    link = centres.link(a, b, set={"ship": "replicated"})
    write(a, 0, 100)
    centres.until_level(link)
    replica.bucket.flusher.pause()
    write(a, 100, 100)
    centres.until_on_disk(a)
    centres.loop.until(lambda: link.outbound.withheld)
    assert len(documents(b)) == 100
    replica.bucket.flusher.resume()
    centres.until_level(link)
    assert documents(a) == documents(b)


# --- a target that cannot for now ---------------------------------------------------------------


def test_what_the_target_refuses_for_now_is_sent_again(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 100)
    link = centres.link(a, b)
    centres.until_level(link)
    b.bucket.shut_traffic_out()
    write(a, 100, 300)
    (target,) = link.nodes.ready
    centres.loop.until(lambda: target.windows.paused_until)
    b.bucket.let_traffic_in()
    centres.until_level(link)
    assert documents(a) == documents(b)
    assert link.counters.docs_written == 400


# --- what was written before all branches that are kept -------------------------------------------


def test_what_is_older_than_the_oldest_kept_branch_is_copied(centres: DataCentres) -> None:
    a, b = centres.start("a", engine__max_failover_entries=2), centres.start("b")
    for first in range(0, 40, 10):
        write(a, first, 10)
        for number in ALL:
            a.bucket.set_state(number, VBucketState.REPLICA)
            a.bucket.set_state(number, VBucketState.ACTIVE)
    assert all(len(each.failover_log) == 2 for each in a.bucket.active.values())
    link = centres.link(a, b)
    centres.until_level(link)
    assert documents(a) == documents(b)
    assert len(documents(b)) == 40
    assert link.counters.docs_refused == 0


# --- what a checkpoint says of its snapshot -------------------------------------------------------


def test_a_place_is_in_the_snapshot_that_it_was_read_in_however_late_it_is_sent(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is in a later snapshot by the time the first one may be sent."""
    monkeypatch.setattr("uprmc.xdcr.sender._PULL_BYTES", 400)
    a, b = centres.start("a", engine__vbuckets=1), centres.start("b", engine__vbuckets=1)
    link = centres.link(a, b, set={"ship": "persisted"})
    centres.loop.until(lambda: link.shipments)
    places: list[LinkPosition] = []
    sent = Shipment.sent

    def noted(self: Shipment, window: LinkWindow, position: LinkPosition) -> None:
        places.append(position)
        sent(self, window, position)

    monkeypatch.setattr(Shipment, "sent", noted)
    a.bucket.flusher.pause()
    for first in (0, 100):
        write(a, first, 100)
        centres.loop.until(
            lambda: link.shipments[0].stream.seqno == a.bucket.vbuckets[0].high_seqno
        )
    a.bucket.flusher.resume()
    centres.until_level(link)
    inside = [each for each in places if not each.is_whole]
    assert {each.snapshot for each in inside if each.seqno < 100} == {(0, 100)}
    assert {each.snapshot for each in inside if each.seqno > 100} == {(100, 200)}
