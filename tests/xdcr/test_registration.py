"""From the moment a link is made, no deletion is purged that its target lacks, or it shows."""

from __future__ import annotations

from tests.system.test_replication import VBUCKETS, delete
from tests.upr.peer import fill, upr_rig
from tests.upr.test_watermarks_on_the_wire import delete as delete_here
from tests.upr.test_watermarks_on_the_wire import purge
from tests.xdcr.cluster import DataCentres, documents, write
from tests.xdcr.test_reconcile import ALL, keys, purge_all, rows
from tests.xdcr.test_rings import purge as purge_what_may_be
from uprmc.engine.tombstones import PurgeRule
from uprmc.model import SnapshotRange
from uprmc.server.node import Node
from uprmc.xdcr.reading import LinkReading, Start


def make_again(centres: DataCentres) -> tuple[Node, str]:
    """Make a link whose target is down, and has the documents from an earlier link.

    The target has a link back. Return the source and the place of the target.
    """
    a, b = centres.start("a"), centres.start("b")
    west, east = centres.link(a, b), centres.link(b, a, "east")
    write(a, 0, 40)
    centres.until_same(a, b)
    centres.until_level(west, east)
    centres.command(a, "delete", name="west")
    place = centres.stop("b")
    centres.link(a, place)
    return a, place


def test_a_deletion_is_not_purged_between_the_making_of_a_link_and_its_first_connection(
    centres: DataCentres,
) -> None:
    a, place = make_again(centres)
    assert {len(found) for found in rows(a).values()} == {1}
    for number in range(8):
        delete(a, b"k%d" % number)
    write(a, 90_000, VBUCKETS)  # the newest seqno is never dropped
    centres.until_on_disk(a)
    assert purge_what_may_be(centres, [a]) == 0
    b = centres.start("b", server__upr=place)
    centres.until_same(a, b)
    assert not keys(*range(8)) & documents(b).keys()


def test_a_link_that_has_never_been_connected_stops_if_its_row_was_lost_and_deletions_were_purged(
    centres: DataCentres,
) -> None:
    a, place = make_again(centres)
    delete(a, b"k1")
    purge_all(centres, a)
    b = centres.start("b", server__upr=place)
    west = a.links.by_name["west"]
    (number,) = (each for each in ALL if a.bucket.vbuckets[each].purge_seqno)
    centres.loop.until(lambda: west.needs_reconcile == [number])
    assert keys(1) <= documents(b).keys()
    centres.stop("a")
    a = centres.start("a")
    centres.loop.until(lambda: a.links.by_name["west"].needs_reconcile == [number])


def test_a_vbucket_that_becomes_active_is_registered(centres: DataCentres) -> None:
    a = centres.start("a")
    b = centres.start("b")
    centres.follow(b, a)
    centres.until_equal(a, b)
    centres.link(b, "127.0.0.1:1")
    assert not any(rows(b).values())
    centres.fail_over(b, *ALL)
    centres.loop.until(lambda: all(rows(b).values()))


def test_a_stream_from_zero_ends_if_deletions_are_purged_before_it_is_read() -> None:
    rig = upr_rig()
    fill(rig, 0, 10)
    delete_here(rig, b"key000001")
    fill(rig, 0, 1)  # the newest seqno is never dropped
    rig.flush()
    hub = rig.services.upr
    assert hub is not None
    reading = LinkReading(hub, b"west", lambda: None)
    reading.report(0, 0, 0, b"")
    stream = reading.begin(rig.bucket.vbuckets[0], Start(0, 0, SnapshotRange(0, 0)))
    assert purge(rig) == 0  # the link's row keeps it
    purge(rig, PurgeRule(every=True, forced=True))
    assert rig.bucket.vbuckets[0].purge_seqno == 11
    pulled = reading.pull(100_000)
    assert (pulled.batches, pulled.ended) == ([], [stream])


def test_who_has_read_everything_is_woken_by_the_next_change() -> None:
    rig = upr_rig()
    hub = rig.services.upr
    assert hub is not None
    woken: list[int] = []
    reading = LinkReading(hub, b"west", lambda: woken.append(1))
    fill(rig, 0, 3)
    reading.report(0, 0, 0, b"")
    reading.begin(rig.bucket.vbuckets[0], Start(0, 0, SnapshotRange(0, 0)))
    assert not reading.drained
    assert sum(map(len, reading.pull(100_000).batches)) == 3
    assert not reading.pull(100_000).data
    assert reading.drained
    woken.clear()
    fill(rig, 0, 1)
    rig.bucket.vbuckets[0].tell_waiting()
    assert woken
    assert not reading.drained
    assert sum(map(len, reading.pull(100_000).batches)) == 1
