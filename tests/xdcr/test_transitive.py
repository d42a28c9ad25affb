"""Checkpoints that are passed on: after A -> B and B -> C, A -> C need not begin at the start."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from tests.xdcr.cluster import DataCentres, documents, write
from uprmc.engine.tombstones import PurgeRule
from uprmc.errors import InvalidArguments
from uprmc.model import VBucketState
from uprmc.server.node import Node
from uprmc.xdcr import checkpointing, links
from uprmc.xdcr.checkpointing import Checkpointing
from uprmc.xdcr.link import Link
from uprmc.xdcr.shipment import Shipment


def bucket_uuid(node: Node) -> str:
    return f"{node.uuid:032x}"


def checkpoints(centres: DataCentres, node: Node, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = centres.command(node, "checkpoints")[kind]
    return found


def until_told(centres: DataCentres, node: Node, source: Node, kind: str = "transitive") -> None:
    uuid = bucket_uuid(source)
    centres.loop.until(
        lambda: any(row["source_bucket_uuid"] == uuid for row in checkpoints(centres, node, kind))
    )


def replicate(centres: DataCentres, source: Node, target: Node, name: str, **given: object) -> Link:
    """Run a link until everything has arrived, and write a checkpoint."""
    link = centres.link(source, target, name, **given)
    centres.until_level(link)
    centres.command(source, "checkpoint", name=name)
    return link


def three(centres: DataCentres) -> tuple[Node, Node, Node]:
    a, b, c = (centres.start(name, engine__vbuckets=1) for name in "abc")
    return a, b, c


def store(node: Node, *keys: bytes, value: bytes = b"v") -> None:
    for key in keys:
        node.bucket.vbuckets[0].store(key, value, 0, 0)


def test_a_link_that_is_paused_tells_the_target_where_it_is_first(centres: DataCentres) -> None:
    a, b, c = three(centres)
    write(a, 0, 100)
    centres.until_level(centres.link(a, b, "ab"))
    centres.command(a, "pause", name="ab")
    (row,) = checkpoints(centres, b, "received")
    assert row["source_seqno"] == 100
    replicate(centres, b, c, "bc")
    until_told(centres, c, a)
    link = centres.link(a, c, "ac")
    centres.until_level(link)
    assert link.counters.docs_written == link.counters.docs_failed_cr_target == 0


@pytest.mark.acceptance("C01")
@pytest.mark.acceptance("C05")
@pytest.mark.acceptance("C15")
def test_a_third_link_sends_nothing_that_has_come_by_the_other_two(centres: DataCentres) -> None:
    a, b, c = three(centres)
    write(a, 0, 100)
    replicate(centres, a, b, "ab")
    replicate(centres, b, c, "bc")
    until_told(centres, c, a)
    (row,) = checkpoints(centres, c, "transitive")
    assert row["source_bucket_uuid"] == bucket_uuid(a)
    assert row["via"] == [bucket_uuid(b)]
    assert (row["source_seqno"], row["target_seqno"]) == (100, 100)
    link = centres.link(a, c, "ac")
    centres.until_level(link)
    assert link.counters.docs_opt_repd == link.counters.docs_written == 0
    status = centres.command(a, "status", name="ac")
    assert status["vbuckets"][0]["fast_forwarded_from"] == 100
    centres.loop.until(lambda: not checkpoints(centres, c, "transitive"))
    full = [r for r in checkpoints(centres, c, "received") if r["link_id"] == link.spec.id]
    assert [(row["source_seqno"], row["via"]) for row in full] == [(100, [])]
    store(a, b"new")
    centres.until_level(link)
    assert link.counters.docs_written == 1
    assert documents(a) == documents(c)


@pytest.mark.acceptance("C02")
@pytest.mark.acceptance("C03")
@pytest.mark.acceptance("C04")
def test_foo_bar_5_10(centres: DataCentres) -> None:
    a, b, c = three(centres)
    write(b, 100, 5)  # so that 5 of the source is 10 of the target
    write(a, 0, 5)
    link = replicate(centres, a, b, "foo")
    (row,) = checkpoints(centres, b, "received")
    assert (row["source_bucket_uuid"], row["link_id"]) == (bucket_uuid(a), link.spec.id)
    assert row["session_id"] == link.checkpointing.session
    assert (row["source_seqno"], row["target_seqno"]) == (5, 10)
    centres.until_on_disk(b)
    centres.stop("b")
    b = centres.start("b", engine__vbuckets=1)
    assert checkpoints(centres, b, "received") == [row]
    replicate(centres, b, c, "baz")
    until_told(centres, c, a)
    (told,) = checkpoints(centres, c, "transitive")
    assert (told["source_seqno"], told["link_id"]) == (5, link.spec.id)
    assert checkpoints(centres, c, "received")[0]["source_bucket_uuid"] == bucket_uuid(b)
    centres.until_on_disk(c)
    centres.stop("c")
    c = centres.start("c", engine__vbuckets=1)
    assert checkpoints(centres, c, "transitive") == [told]


@pytest.mark.acceptance("C10")
@pytest.mark.acceptance("C13")
def test_a_record_is_passed_on_although_its_document_moves_all_the_time(
    centres: DataCentres,
) -> None:
    a, b, c = three(centres)
    store(a, b"a1", b"a2")
    replicate(centres, a, b, "ab")
    for _ in range(20):
        store(b, b"a2")  # what had the record's seqno has another one now
    link = centres.link(b, c, "bc")
    until_told(centres, c, a)
    for _ in range(5):  # the link goes on, and passes on what comes
        store(a, b"a1")
        centres.until_level(a.links.by_name["ab"])
        centres.command(a, "checkpoint", name="ab")
    centres.loop.until(
        lambda: [row["source_seqno"] for row in checkpoints(centres, c, "transitive")] == [7]
    )
    assert link.state == "running"


@pytest.mark.acceptance("C09")
@pytest.mark.acceptance("C11")
@pytest.mark.acceptance("C12")
def test_ruh_roh(centres: DataCentres, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit at B of a document from A moves it behind the record's seqno."""
    a, b, c = three(centres)
    store(a, b"a1", b"a2", b"a3")
    replicate(centres, a, b, "ab")
    store(b, b"a2", value=b"edited")
    link = centres.link(b, c, "bc", set={"batch_items": "10"})
    told: list[list[bytes]] = []
    received = c.links.received
    tell = received.tell

    def watched(row: Any) -> None:
        told.append(sorted(documents(c)))
        tell(row)

    monkeypatch.setattr(received, "tell", watched)
    centres.until_level(link)
    until_told(centres, c, a)
    assert told[0] == [b"a1", b"a2", b"a3"]
    assert documents(c)[b"a2"][0] == b"edited"
    third = centres.link(a, c, "ac")
    centres.until_level(third)
    assert third.counters.docs_opt_repd == 0
    assert documents(c) == documents(b)


@pytest.mark.acceptance("C09")
def test_nothing_is_passed_on_before_a_snapshot_is_complete(centres: DataCentres) -> None:
    a, b, c = three(centres)
    store(a, *(b"k%d" % number for number in range(50)))
    replicate(centres, a, b, "ab")
    c.bucket.shut_traffic_out()
    link = centres.link(b, c, "bc")
    c.bucket.let_traffic_in()
    centres.loop.until(lambda: link.shipments)
    for target in link.nodes.ready:
        target.receive_data = lambda _: None  # what is sent is never answered
    centres.loop.until(lambda: len(documents(c)) == 50)
    for _ in range(20):
        link.tick(link.clock.monotonic())
        centres.loop.reactor.iterate(0.01)
    assert checkpoints(centres, c, "transitive") == []


@pytest.mark.acceptance("C07")
def test_other_writes_after_a_restore_are_not_mistaken_for_the_old_ones(
    centres: DataCentres,
) -> None:
    a, b, c = three(centres)
    replica = centres.start("replica", engine__vbuckets=1)
    write(a, 0, 5)
    centres.follow(replica, a)
    centres.until_equal(a, replica)
    told: list[bool] = []
    replica.replication.stop(None, told.append)
    centres.loop.until(lambda: told)
    write(a, 5, 5)
    replicate(centres, a, b, "ab")
    replicate(centres, b, c, "bc")
    until_told(centres, c, a)
    assert checkpoints(centres, c, "transitive")[0]["source_seqno"] == 10
    centres.fail_over(replica, 0)
    write(replica, 20, 5)  # five others
    link = centres.link(replica, c, "ac")
    centres.until_level(link)
    assert documents(replica).items() <= documents(c).items()


def copied(centres: DataCentres, name: str, other: str) -> None:
    """Copy the directory of a node that is down, as ``cp -a`` does."""
    directory = centres.directory(name)
    subprocess.run(["cp", "-a", directory, directory.with_name(other)], check=True)


@pytest.mark.acceptance("C06", "C07")
def test_a_source_that_is_restored_from_before_the_session_is_not_fast_forwarded(
    centres: DataCentres,
) -> None:
    a, b, c = three(centres)
    write(a, 0, 5)
    first = bucket_uuid(a)
    centres.stop("a")
    copied(centres, "a", "saved")
    a = centres.start("a", engine__vbuckets=1)
    write(a, 5, 5)
    replicate(centres, a, b, "ab")
    replicate(centres, b, c, "bc")
    until_told(centres, c, a)
    assert checkpoints(centres, c, "transitive")[0]["source_seqno"] == 10
    centres.stop("a")
    shutil.rmtree(centres.directory("a"))
    copied(centres, "saved", "a")
    a = centres.start("a", engine__vbuckets=1)
    assert bucket_uuid(a) != first
    assert a.links.by_name == {}, "the session is not there"
    write(a, 20, 5)  # five others, up to the seqno of the record
    assert a.bucket.vbuckets[0].high_seqno == 10
    link = centres.link(a, c, "ac")
    centres.until_level(link)
    status = centres.command(a, "status", name="ac")
    assert status["vbuckets"][0]["fast_forwarded_from"] is None
    assert link.counters.docs_opt_repd == 10, "a full run"
    assert documents(a).items() <= documents(c).items()
    assert len(documents(c)) == 15, "what was lost at A stays where it has come"


@pytest.mark.acceptance("C08")
def test_records_are_for_a_moved_directory_and_not_for_its_copy(centres: DataCentres) -> None:
    a, b, c = three(centres)
    write(a, 0, 20)
    replicate(centres, a, b, "ab")
    replicate(centres, b, c, "bc")
    until_told(centres, c, a)
    centres.command(a, "delete", name="ab")
    first, place = bucket_uuid(a), a.addresses()["upr"]
    centres.stop("a")
    copied(centres, "a", "copy")
    centres.directory("a").rename(centres.directory("elsewhere"))
    copy = centres.start("copy", engine__vbuckets=1, server__upr=place)  # it looks like A
    moved = centres.start("elsewhere", engine__vbuckets=1)
    assert bucket_uuid(moved) == first
    assert bucket_uuid(copy) != first
    sent = {}
    for node, name in ((copy, "copy"), (moved, "moved")):
        link = centres.link(node, c, name)
        centres.until_level(link)
        sent[name] = link.counters.docs_opt_repd
    assert sent == {"copy": 20, "moved": 0}


@pytest.mark.acceptance("C14")
def test_records_of_other_filters_are_not_used(centres: DataCentres) -> None:
    a, b, c = three(centres)
    write(a, 0, 20)
    replicate(centres, a, b, "ab", filter_key="^k[0-9]$")
    replicate(centres, b, c, "bc")
    link = centres.link(a, c, "ac")
    centres.until_level(link)
    assert link.counters.docs_opt_repd == 20
    assert checkpoints(centres, c, "transitive") == []
    assert documents(a) == documents(c)


def test_the_same_filter_everywhere_is_used(centres: DataCentres) -> None:
    a, b, c = three(centres)
    write(a, 0, 20)
    replicate(centres, a, b, "ab", filter_key="^k[0-9]$")
    replicate(centres, b, c, "bc", filter_key="^k[0-9]$")
    until_told(centres, c, a)
    link = centres.link(a, c, "ac", filter_key="^k[0-9]$")
    centres.until_level(link)
    assert link.counters.docs_opt_repd == 0


def test_links_that_leave_deletions_out_pass_no_records_on(centres: DataCentres) -> None:
    """B has deleted what came from A, and C gets neither the document nor its deletion from B."""
    a, b, c = three(centres)
    left_out = {"set": {"filter_deletions": "on"}}
    store(a, b"k", b"other")
    replicate(centres, a, b, "ab", **left_out)
    b.bucket.vbuckets[0].delete(b"k")
    replicate(centres, b, c, "bc", **left_out).checkpointing.pass_on()
    centres.command(b, "checkpoint", name="bc")  # C has got by now what it is passed on
    assert b"k" not in documents(c)
    link = centres.link(a, c, "ac", **left_out)
    centres.until_level(link)
    assert b"k" in documents(c)
    assert checkpoints(centres, c, "transitive") == []


def test_a_target_that_may_have_missed_a_deletion_gets_no_records(centres: DataCentres) -> None:
    """The purge trap: A deletes k, B purges the deletion, and C still has k from A."""
    a, b, c = three(centres)
    store(a, b"other", b"k")
    replicate(centres, a, c, "ac")
    centres.command(a, "pause", name="ac")
    a.bucket.vbuckets[0].delete(b"k")
    replicate(centres, a, b, "ab")
    store(b, b"last")
    centres.until_on_disk(b)
    told: list[bool] = []
    b.bucket.compact(0, PurgeRule(every=True), told.append)
    centres.loop.until(lambda: told)
    assert b.bucket.vbuckets[0].purge_seqno > 0
    replicate(centres, b, c, "bc")
    for _ in range(20):
        b.links.tick(b.links.by_name["bc"].clock.monotonic())
        centres.loop.reactor.iterate(0.01)
    assert checkpoints(centres, c, "transitive") == []
    assert b"k" in documents(c)
    centres.command(a, "resume", name="ac")
    centres.until_level(a.links.by_name["ac"])
    assert b"k" not in documents(c)


@pytest.mark.acceptance("C16")
def test_the_record_of_a_vbucket_waits_for_no_other_vbucket(centres: DataCentres) -> None:
    a, b, c = (centres.start(name) for name in "abc")
    c.bucket.set_state(1, VBucketState.DEAD)  # the link cannot bring it there
    write(a, 0, 100)
    replicate(centres, a, b, "ab")
    link = centres.link(b, c, "bc")

    def told() -> set[int]:
        rows = checkpoints(centres, c, "transitive")
        return {row["vbucket"] for row in rows if row["source_bucket_uuid"] == bucket_uuid(a)}

    centres.loop.until(lambda: told() == {0, 2, 3})
    assert link.progress.changes_left == 25


def test_a_chain_of_four_passes_records_of_each_on(centres: DataCentres) -> None:
    nodes = [centres.start(name) for name in "abcd"]
    write(nodes[0], 0, 100)
    for source, target, name in zip(nodes, nodes[1:], ("ab", "bc", "cd"), strict=False):
        replicate(centres, source, target, name)
        until_told(centres, target, source, "received")
    a, b, _, d = nodes
    until_told(centres, d, a)
    until_told(centres, d, b)
    found = checkpoints(centres, d, "transitive")
    vias = {row["source_bucket_uuid"]: len(row["via"]) for row in found}
    assert vias == {bucket_uuid(a): 2, bucket_uuid(b): 1}
    link = centres.link(a, d, "ad")
    centres.until_level(link)
    assert link.counters.docs_opt_repd == 0


@pytest.mark.parametrize("limit", ["CHECKPOINTS_VBUCKETS", "ROWS_AT_ONCE"])
def test_checkpoints_of_many_vbuckets_come_in_several_answers(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(links, limit, 3)
    a, b, c = (centres.start(name) for name in "abc")
    write(a, 0, 100)
    replicate(centres, a, b, "ab")
    replicate(centres, b, c, "bc")
    asked = {"source": bucket_uuid(a)}

    def portions() -> list[dict[str, Any]]:
        return [centres.command(c, "records", first=first, **asked) for first in (0, 3)]

    centres.loop.until(lambda: sum(len(each["records"]) for each in portions()) == 4)
    assert [(len(each["records"]), each["next"]) for each in portions()] == [(3, 3), (1, None)]
    assert centres.command(c, "checkpoints")["next"] in (3, 2)  # those of B are there as well
    link = centres.link(a, c, "ac")
    centres.until_level(link)
    assert link.counters.docs_opt_repd == 0
    assert set(link.resuming.forwarded_from) == {0, 1, 2, 3}
    for first in (-1, 4, "0"):
        with pytest.raises(InvalidArguments, match="the first vBucket is none"):
            c.links.command("records", {**asked, "first": first}, print, print)


def test_only_vbuckets_that_have_got_on_are_looked_at_for_checkpoints_to_pass_on(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = (centres.start(name) for name in "abc")
    write(a, 0, 100)
    replicate(centres, a, b, "ab")
    link = replicate(centres, b, c, "bc")
    until_told(centres, c, a)
    centres.loop.until(lambda: not link.moved)
    looked_at: list[int] = []
    may_pass_on = Checkpointing._may_pass_on

    def watched(self: Checkpointing, shipment: Shipment) -> bool:
        looked_at.append(shipment.vbucket.id)
        return may_pass_on(self, shipment)

    monkeypatch.setattr(Checkpointing, "_may_pass_on", watched)
    for _ in range(5):
        link.checkpointing.pass_on()
    assert looked_at == []
    write(b, 101, 1)
    centres.loop.until(lambda: looked_at)
    centres.until_level(link)
    assert set(looked_at) == {1}
    monkeypatch.setattr(checkpointing, "_LOOKED_AT", 3)
    centres.command(a, "checkpoint", name="ab")
    write(a, 102, 1)
    centres.until_level(a.links.by_name["ab"], link)
    centres.loop.until(lambda: not link.moved)
    looked_at.clear()
    link.checkpointing.look_at_all()
    link.checkpointing.pass_on()
    assert looked_at == list(link.shipments)[:3]
    link.checkpointing.pass_on()
    assert looked_at == list(link.shipments)
