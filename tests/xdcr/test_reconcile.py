"""Links whose row was lost while deletions were purged: what stops, and how it is repaired."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.system.test_replication import VBUCKETS, delete
from tests.xdcr.cluster import DataCentres, documents, is_level, write
from uprmc.engine.replica import outrank
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.watermarks.table import MANAGER
from uprmc.engine.with_meta import Demand, accept_version
from uprmc.errors import InvalidArguments, KeyExists, KeyNotFound, TemporaryFailure
from uprmc.model import Item, Origin, VBucketState
from uprmc.protocol.control import CONTROLS
from uprmc.protocol.opcodes import MAGIC_RESPONSE, Feature, Opcode
from uprmc.record import pack
from uprmc.server.node import Node
from uprmc.xdcr import target as targets
from uprmc.xdcr.link import Link
from uprmc.xdcr.reconcile import FarDocuments
from uprmc.xdcr.resuming import Resuming

ALL = range(VBUCKETS)
ROW = b"xdcr:west"


def rows(node: Node) -> dict[int, list[Any]]:
    return {
        number: [row for row in node.bucket.watermarks.rows(vbucket) if row.id == ROW]
        for number, vbucket in node.bucket.vbuckets.items()
    }


def purge_all(centres: DataCentres, node: Node) -> None:
    """Forget the link's rows, if any, and drop all deletions but the newest of each vBucket."""
    write(node, 90_000, VBUCKETS)  # the newest seqno is never dropped
    centres.until_on_disk(node)
    for vbucket in node.bucket.vbuckets.values():
        with suppress(KeyNotFound):
            node.bucket.watermarks.remove(vbucket, ROW, MANAGER)
    told: list[bool] = []
    for number in ALL:
        node.bucket.compact(number, PurgeRule(every=True), told.append)
    centres.loop.until(lambda: len(told) == VBUCKETS)


def keys(*numbers: int) -> set[bytes]:
    return {b"k%d" % number for number in numbers}


def events(node: Node, name: str) -> list[dict[str, Any]]:
    return [each for each in node.events.newest() if each["event"] == name]


def until_over(centres: DataCentres, node: Node) -> dict[str, Any]:
    centres.loop.until(
        lambda: not centres.command(node, "reconciled", name="west")["running"], 30.0
    )
    found: dict[str, Any] = centres.command(node, "reconciled", name="west")
    assert found["error"] == ""
    return found


def plant(node: Node, key: bytes, origin: Origin) -> None:
    """Have vBucket 2 of a node hold a document that was first accepted there."""
    item = Item(key, b"v", 0, 0, 1_000_000, 0, 1, origin=origin)
    accept_version(node.bucket, node.bucket.vbuckets[2], pack(item), Demand(skip_conflicts=True))


def lost_origin(node: Node) -> Origin:
    """Begin a branch of vBucket 2, and return a place behind the end of the one before."""
    former = node.bucket.vbuckets[2].failover_log[0].uuid
    node.bucket.set_state(2, VBucketState.REPLICA)
    vbucket = node.bucket.set_state(2, VBucketState.ACTIVE)
    assert [entry.uuid for entry in vbucket.failover_log][1] == former
    return Origin(former, vbucket.failover_log[0].seqno + 1)


def outpace(
    centres: DataCentres, *, filtered: bool = False, **settings: Any
) -> tuple[Node, Node, Link, Link]:
    """Purge deletions of k0 to k10 that a link had to send, while both ends change documents."""
    a, b = centres.start("a", **settings), centres.start("b")
    given: dict[str, Any] = {"set": {"filter_deletions": "on"}} if filtered else {}
    west, east = centres.link(a, b, **given), centres.link(b, a, "east")
    write(a, 0, 40)
    centres.until_same(a, b)
    centres.until_level(west, east)
    centres.command(a, "checkpoint", name="west")
    centres.command(a, "pause", name="west")
    centres.command(b, "pause", name="east")
    for number in range(11):
        delete(a, b"k%d" % number)
    purge_all(centres, a)
    write(a, 10, 1, b"again")
    write(b, 5, 1, b"edited")
    write(b, 1_000, 1, b"made there")
    plant(b, PLANTED[0], Origin(12_345, 1))
    plant(b, PLANTED[1], lost_origin(a))
    centres.command(a, "resume", name="west")
    return a, b, west, east


PLANTED = (b"from a third cluster", b"from a lost branch")
DELETED = keys(0, 1, 2, 3, 4, 6, 7, 8, 9)

#: One of each vBucket.
LATER_DELETED = keys(20, 21, 22, 23)


# --- rows ---------------------------------------------------------------------------------------


def test_the_rows_of_a_link_with_a_link_back_do_not_expire_by_time(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    west = centres.link(a, b)
    write(a, 0, 40)
    centres.until_level(west)

    def lifetimes() -> set[int]:
        return {row.lifetime_s for found in rows(a).values() for row in found}

    centres.loop.until(lambda: lifetimes() == {3_600})
    centres.link(b, a, "east")
    for target in west.nodes.ready:
        target.survey()
    centres.loop.until(lambda: lifetimes() == {0})
    assert not west.error
    centres.stop("a")
    a = centres.start("a")
    centres.loop.until(lambda: lifetimes() == {0})
    centres.command(b, "delete", name="east")
    centres.loop.until(lambda: a.links.by_name["west"].nodes.ready)
    for target in a.links.by_name["west"].nodes.ready:
        target.survey()
    centres.loop.until(lambda: lifetimes() == {3_600})


def test_a_target_that_does_not_say_whether_it_has_links_counts_as_one_with_a_link_back(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tuple(each for each in targets._FEATURES if each is not Feature.CHECKPOINTS)
    monkeypatch.setattr(targets, "_FEATURES", known)
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 4)
    centres.until_level(centres.link(a, b))
    assert {row.lifetime_s for found in rows(a).values() for row in found} == {0}


# --- repair -------------------------------------------------------------------------------------


@pytest.mark.acceptance("X06")
@pytest.mark.acceptance("X08")
def test_an_outpaced_link_with_a_link_back_stops_until_it_is_reconciled(
    centres: DataCentres,
) -> None:
    a, b, west, east = outpace(centres)
    centres.loop.until(lambda: west.state == "needs_reconcile")
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    told = events(a, "xdcr_needs_reconcile")
    assert sorted(each["vbucket"] for each in told) == list(ALL)
    assert {(each["link"], each["from"]) for each in told} == {("west", 10)}
    assert {row.watermark for found in rows(a).values() for row in found} == {0}
    before = documents(b)
    assert DELETED | keys(5, 10, 1_000) <= before.keys()

    centres.command(a, "reconcile", name="west", dry_run=True)
    found = until_over(centres, a)
    listed = {key.encode() for row in found["vbuckets"] for key in row["keys"]}
    assert listed == DELETED
    assert sum(row["deleted"] for row in found["vbuckets"]) == len(DELETED)
    assert [row["documents"] for row in found["vbuckets"]] == [11, 10, 12, 10]
    assert documents(b) == before
    assert west.state == "needs_reconcile"

    centres.command(a, "reconcile", name="west")
    found = until_over(centres, a)
    assert sum(row["deleted"] for row in found["vbuckets"]) == len(DELETED)
    assert [row["kept"] for row in found["vbuckets"]] == [1, 1, 2, 0]  # k1000, k5, planted ones
    centres.loop.until(lambda: is_level(west))
    assert keys(5, 10, 1_000) <= documents(b).keys()
    assert not DELETED & documents(b).keys()
    centres.command(b, "resume", name="east")
    centres.until_level(west, east)
    centres.until_same(a, b)
    centres.until_level(west, east)
    left = documents(a)
    assert not DELETED & left.keys()
    assert left[b"k5"][0] == b"edited"
    assert left[b"k10"][0] == b"again"
    assert left[b"k1000"][0] == b"made there"
    assert left.keys() >= {*PLANTED}
    assert len(left.keys() - {*PLANTED}) == 40 - len(DELETED) + 1 + VBUCKETS
    told = events(a, "xdcr_reconciled")
    assert sum(each["deleted"] for each in told) == west.counters.docs_reconciled == len(DELETED)
    status = centres.command(a, "status", name="west")
    assert (status["state"], status["needs_reconcile"]) == ("running", [])
    written = east.counters.docs_written
    write(a, 2_000, 1)
    centres.until_same(a, b)
    centres.until_level(west, east)
    assert east.counters.docs_written == written  # the repair does not come back


def test_a_stop_survives_a_restart_of_the_source(centres: DataCentres) -> None:
    a, b, west, _ = outpace(centres)
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    centres.stop("a")
    a = centres.start("a")
    west = a.links.by_name["west"]
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    assert keys(0) <= documents(b).keys()


def test_what_is_deleted_while_a_link_has_stopped_is_deleted_at_the_target(
    centres: DataCentres,
) -> None:
    a, b, west, _ = outpace(centres)
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    delete(a, b"k20")
    write(a, 91_000, VBUCKETS)
    centres.until_on_disk(a)
    told: list[bool] = []
    a.bucket.compact(0, PurgeRule(every=True), told.append)
    centres.loop.until(lambda: told)
    for dry_run in (True, False):
        centres.command(a, "reconcile", name="west", dry_run=dry_run)
        found = until_over(centres, a)
        deleted = sum(row["deleted"] for row in found["vbuckets"])
        assert deleted == len(DELETED)  # the deletion of k20 is still here
    centres.command(b, "resume", name="east")
    centres.until_same(a, b)
    assert b"k20" not in documents(b)


def test_a_document_that_is_changed_at_the_target_meanwhile_is_left_alone(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, west, _ = outpace(centres)
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    outrank(a.bucket.vbuckets[3], 50)  # so the deletion would win
    delete_there = targets.Target.delete

    def late(self: targets.Target, number: int, key: bytes, *more: Any) -> None:
        if key == b"k7":
            write(b, 7, 1, b"just now")
        delete_there(self, number, key, *more)

    monkeypatch.setattr(targets.Target, "delete", late)
    centres.command(a, "reconcile", name="west")
    (row,) = (row for row in until_over(centres, a)["vbuckets"] if row["vbucket"] == 3)
    assert (row["deleted"], row["changed"], row["keys"]) == (1, 1, ["k3"])
    centres.command(b, "resume", name="east")
    centres.until_same(a, b)
    assert documents(a)[b"k7"][0] == b"just now"


def cut_when(node: Node, monkeypatch: pytest.MonkeyPatch, session: type, is_due: Any) -> list[int]:
    """End all connections of a node when a session gets data that `is_due` tells of, once.

    That data is lost. The list that is returned has something in it then.
    """
    receive, cut = session.receive_data, []  # type: ignore[attr-defined]

    def receive_data(self: Any, data: bytes) -> None:
        if cut or not is_due(data):
            receive(self, data)
            return
        cut.append(len(data))
        for each in node.connections:
            each.abort()

    monkeypatch.setattr(session, "receive_data", receive_data)
    return cut


ANSWERED_DELETION = bytes((MAGIC_RESPONSE, Opcode.DEL_WITH_META))


@pytest.mark.parametrize(
    ("where", "dry_run"), [("reading", True), ("reading", False), ("answer", False)]
)
def test_a_reconciliation_goes_on_when_the_connection_comes_back(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch, where: str, dry_run: bool
) -> None:
    """The connection ends in the third vBucket, which has two documents to be deleted."""
    a, b, west, _ = outpace(centres)
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))

    def is_in_third(data: bytes) -> bool:
        run = west.reconciliation
        return run is not None and len(run.compared) == 2

    def is_answer_of_third(data: bytes) -> bool:
        return is_in_third(data) and data.startswith(ANSWERED_DELETION)

    if where == "reading":
        cut = cut_when(b, monkeypatch, FarDocuments, is_in_third)
    else:
        cut = cut_when(b, monkeypatch, targets.Target, is_answer_of_third)
    centres.command(a, "reconcile", name="west", dry_run=dry_run)
    found = until_over(centres, a)
    assert cut
    assert [row["vbucket"] for row in found["vbuckets"]] == list(ALL)
    assert [row["documents"] for row in found["vbuckets"]] == [11, 10, 12, 10]
    assert [row["kept"] for row in found["vbuckets"]] == [1, 1, 2, 0]
    assert sum(row["changed"] for row in found["vbuckets"]) == 0
    listed = [key.encode() for row in found["vbuckets"] for key in row["keys"]]
    assert sorted(listed) == sorted(DELETED)
    assert sum(row["deleted"] for row in found["vbuckets"]) == len(DELETED)
    if dry_run:
        assert west.state == "needs_reconcile"
        assert documents(b).keys() >= DELETED
        return
    assert west.counters.docs_reconciled == len(DELETED)
    centres.command(b, "resume", name="east")
    centres.until_same(a, b)
    assert not DELETED & documents(a).keys()


def test_a_vbucket_is_repaired_when_its_deletions_are_on_the_disk_of_the_target(
    centres: DataCentres,
) -> None:
    a, b, west, _ = outpace(centres)
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    b.bucket.flusher.pause()
    centres.command(a, "reconcile", name="west")
    centres.loop.until(lambda: len(DELETED - documents(b).keys()) > 0)
    run = west.reconciliation
    assert run is not None
    asked: list[bool] = []
    for target in west.nodes.ready:
        target.observe(0, 0, lambda reply: asked.append(not reply.status))
    centres.loop.until(lambda: len(asked) == len(west.nodes.ready))
    assert run.running
    assert not any(row.deleted for row in run.compared)
    assert not any(each["deleted"] for each in events(a, "xdcr_reconciled"))
    b.bucket.flusher.resume()
    found = until_over(centres, a)
    assert sum(row["deleted"] for row in found["vbuckets"]) == len(DELETED)


def test_a_target_that_cannot_write_ends_a_reconciliation(centres: DataCentres) -> None:
    a, b, west, _ = outpace(centres, kv__persistence_timeout_s=0.2)
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    b.bucket.flusher.pause()
    centres.command(a, "reconcile", name="west")
    centres.loop.until(lambda: not centres.command(a, "reconciled", name="west")["running"])
    found = centres.command(a, "reconciled", name="west")
    assert "what was deleted does not reach its disk; left: vBuckets" in found["error"]
    b.bucket.flusher.resume()


def test_a_reconciliation_that_waits_for_its_target_for_too_long_says_what_is_left(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _b, west, _ = outpace(centres, xdcr__reconcile_wait_s=0.3)
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    monkeypatch.setattr(FarDocuments, "receive_data", lambda *_: None)
    centres.command(a, "reconcile", name="west")
    with pytest.raises(KeyExists, match="already"):
        a.links.command("reconcile", {"name": "west"}, print, print)
    place = centres.stop("b")
    centres.loop.until(lambda: not centres.command(a, "reconciled", name="west")["running"])
    found = centres.command(a, "reconciled", name="west")
    assert place in found["error"]
    assert found["error"].endswith("left: vBuckets 0-3")
    assert west.state == "needs_reconcile"


def test_what_is_purged_after_the_repair_and_before_the_stream_begins_stops_the_link_again(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, west, _ = outpace(centres)
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    with monkeypatch.context() as before_the_streams:
        before_the_streams.setattr(Resuming, "_begin", lambda *_: None)
        centres.command(a, "reconcile", name="west")
        until_over(centres, a)
        assert west.needs_reconcile == []
        for key in LATER_DELETED:
            delete(a, key)
        purge_all(centres, a)
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    assert documents(b).keys() >= LATER_DELETED
    centres.command(a, "reconcile", name="west")
    found = until_over(centres, a)
    assert {key.encode() for row in found["vbuckets"] for key in row["keys"]} == LATER_DELETED
    centres.command(b, "resume", name="east")
    centres.until_same(a, b)
    assert not LATER_DELETED & documents(a).keys()


def test_a_link_without_a_link_back_begins_at_zero_and_can_be_reconciled_as_it_runs(
    centres: DataCentres,
) -> None:
    a, b = centres.start("a"), centres.start("b")
    west = centres.link(a, b)
    write(a, 0, 40)
    centres.until_level(west)
    centres.command(a, "checkpoint", name="west")
    centres.command(a, "pause", name="west")
    delete(a, b"k1")
    purge_all(centres, a)
    centres.command(a, "resume", name="west")
    centres.until_level(west)
    assert documents(b).keys() - documents(a).keys() == keys(1)
    centres.command(a, "reconcile", name="west")
    until_over(centres, a)
    centres.until_same(a, b)


@pytest.mark.acceptance("X06")
def test_what_was_accepted_here_up_to_the_last_seqno_of_a_branch_is_deleted_and_no_more(
    centres: DataCentres,
) -> None:
    a, b = centres.start("a"), centres.start("b")
    link = centres.link(a, b)
    write(a, 0, 40)
    centres.until_level(link)
    behind = lost_origin(a)
    last = Origin(behind.uuid, behind.seqno - 1)
    plant(b, b"last", last)
    plant(b, b"behind", behind)
    centres.loop.until(lambda: is_level(link) and len(link.shipments) == VBUCKETS)
    centres.command(a, "reconcile", name="west")
    rows = until_over(centres, a)["vbuckets"]
    assert [(row["deleted"], row["kept"]) for row in rows] == [(0, 0), (0, 0), (1, 1), (0, 0)]
    assert documents(b).keys() - documents(a).keys() == {b"behind"}


def test_a_link_that_is_made_again_lets_no_deleted_document_return_and_can_be_reconciled(
    centres: DataCentres,
) -> None:
    a, b = centres.start("a"), centres.start("b")
    west, east = centres.link(a, b), centres.link(b, a, "east")
    write(a, 0, 40)
    centres.until_same(a, b)
    centres.until_level(west, east)
    for node, name in ((a, "west"), (b, "east")):
        centres.command(node, "delete", name=name)
    delete(a, b"k1")
    delete(a, b"k2")
    purge_all(centres, a)
    west, east = centres.link(a, b), centres.link(b, a, "east")  # neither has a checkpoint
    centres.until_level(west, east)
    write(b, 2_000, VBUCKETS)  # what each vBucket of the link back had to send is there before it
    centres.loop.until(lambda: keys(*range(2_000, 2_000 + VBUCKETS)) <= documents(a).keys())
    assert not keys(1, 2) & documents(a).keys()
    assert documents(b).keys() - documents(a).keys() == keys(1, 2)
    centres.command(a, "reconcile", name="west")
    until_over(centres, a)
    centres.until_same(a, b)


def test_keys_outside_of_the_filter_are_left_alone(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    whole = centres.link(a, b, "whole")
    west = centres.link(a, b, filter_key="[02468]$")
    write(a, 0, 8)
    centres.until_level(whole, west)
    centres.command(a, "delete", name="whole")
    centres.command(a, "checkpoint", name="west")
    centres.command(a, "pause", name="west")
    delete(a, b"k3")
    delete(a, b"k4")
    purge_all(centres, a)
    centres.command(a, "resume", name="west")
    centres.until_level(west)
    centres.command(a, "reconcile", name="west")
    until_over(centres, a)
    assert keys(3) <= documents(b).keys()
    assert not keys(4) & documents(b).keys()


def test_what_cannot_be_reconciled_is_refused(centres: DataCentres) -> None:
    a, _b, west, _ = outpace(centres, filtered=True)
    centres.loop.until(lambda: is_level(west))  # its deletions are not to be sent
    with pytest.raises(InvalidArguments, match="leaves deletions out"):
        a.links.command("reconcile", {"name": "west"}, print, print)
    with pytest.raises(KeyNotFound, match="was not reconciled"):
        a.links.command("reconciled", {"name": "west"}, print, print)
    centres.command(a, "set", name="west", set={"filter_deletions": "off"})
    centres.command(a, "pause", name="west")
    with pytest.raises(TemporaryFailure, match="the link is paused"):
        a.links.command("reconcile", {"name": "west"}, print, print)


def test_a_target_that_tells_no_origins_cannot_be_compared(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _b, west, _ = outpace(centres)
    centres.loop.until(lambda: west.needs_reconcile == list(ALL))
    monkeypatch.delitem(CONTROLS, b"uprmc_origins")
    centres.command(a, "reconcile", name="west")
    centres.loop.until(lambda: not centres.command(a, "reconciled", name="west")["running"])
    assert "tells no origins" in centres.command(a, "reconciled", name="west")["error"]
    assert west.state == "needs_reconcile"
