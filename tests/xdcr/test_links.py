"""Links between real nodes on one reactor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest

from tests.system.test_replication import delete
from tests.xdcr.cluster import DataCentres, documents, write
from uprmc.engine import with_meta
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.watermarks.table import MANAGER
from uprmc.errors import (
    CommandError,
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    NotMyVBucket,
    TemporaryFailure,
)
from uprmc.kv.binary import HANDLERS
from uprmc.model import SEQNO_MAX, VBucketState
from uprmc.protocol.opcodes import Opcode
from uprmc.server.node import Node
from uprmc.server.stats import health
from uprmc.xdcr import checkpoint, checkpointing, links, sender, spec
from uprmc.xdcr.checkpoint import decode_one
from uprmc.xdcr.frames import WITH_META_FRAME, set_frame
from uprmc.xdcr.link import Link
from uprmc.xdcr.spec import FILTER_MAX_BYTES, FILTER_MAX_STEPS, pattern_of
from uprmc.xdcr.target import Target


def test_a_link_copies_what_there_is_and_what_comes(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 400)
    link = centres.link(a, b)
    centres.until_level(link)
    assert documents(a) == documents(b)
    write(a, 300, 300, b"again" * 100)
    for number in range(50):
        delete(a, b"k%d" % number)
    centres.until_level(link)
    assert documents(a) == documents(b)
    assert len(documents(b)) == 550
    assert link.counters.deletions_written == 50


def test_an_expired_document_expires_at_the_target_as_such(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    link = centres.link(a, b)
    vbucket = a.bucket.vbuckets[0]
    vbucket.store(b"k", b"v", 0, 2_000_000_000)
    centres.until_level(link)
    vbucket.expire(vbucket.get(b"k"))
    centres.until_level(link)
    assert documents(b) == {}
    assert b.bucket.stats.ops_del_meta == 1
    assert b.bucket.vbuckets[0].expired == 0  # it came as a deletion made elsewhere


def test_only_keys_that_pass_the_filter_are_sent(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 100)
    link = centres.link(a, b, filter_key="^k[0-9]$")
    centres.until_level(link)
    assert sorted(documents(b)) == [b"k%d" % number for number in range(10)]
    assert link.counters.docs_filtered == 90


def test_a_filter_that_would_try_every_way_keeps_nobody_waiting(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    a.bucket.vbuckets[0].store(b"a" * 200 + b"!", b"v", 0, 0)
    a.bucket.vbuckets[0].store(b"a" * 200, b"v", 0, 0)
    link = centres.link(a, b, filter_key="^(a+)+$")
    centres.until_level(link)
    assert list(documents(b)) == [b"a" * 200]


def test_a_filter_may_have_as_many_bytes_and_steps_as_is_said() -> None:
    assert pattern_of("é" * (FILTER_MAX_BYTES // 2)).search(b"no") is None
    more = FILTER_MAX_STEPS - pattern_of("a{900}b{900}").programsize
    assert pattern_of("a{900}b{900}" + "c" * more).programsize == FILTER_MAX_STEPS
    with pytest.raises(InvalidArguments, match="too large"):
        pattern_of("a{900}b{900}" + "c" * (more + 1))


def test_a_large_filter_looks_at_few_keys_at_a_time(centres: DataCentres) -> None:
    costly = sender.OutboundRules(pattern=pattern_of("a{900}"))
    assert costly.most_items is not None
    assert costly.most_items <= 2
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 100)
    link = centres.link(a, b, filter_key="^k(.{900}|[0-9])$")
    centres.until_level(link)
    assert sorted(documents(b)) == [b"k%d" % number for number in range(10)]
    assert link.counters.docs_filtered == 90


def test_a_kept_filter_that_is_none_stops_its_link_and_no_other(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 10)
    link = centres.link(a, b)
    centres.until_level(link)
    old = replace(link.spec, name="old", id="0" * 12, filter_key="(?<!x)y")
    a.bucket.flusher.write_local(spec.NAME, spec.encode([link.spec, old]), lambda _: None)
    centres.stop("a")
    a = centres.start("a")
    write(a, 10, 10)
    centres.until_level(a.links.by_name["west"])
    stopped = centres.command(a, "status", name="old")
    assert stopped["state"] == "error"
    assert "RE2" in stopped["error"]
    assert centres.command(a, "resume", name="old")["state"] == "error"
    assert centres.command(a, "delete", name="old") == {"name": "old"}


def test_filtered_deletions_are_not_sent(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 10)
    link = centres.link(a, b, set={"filter_deletions": "on"})
    centres.until_level(link)
    delete(a, b"k1")
    centres.until_level(link)
    assert b"k1" in documents(b)
    centres.command(a, "set", name="west", set={"filter_deletions": "off"})
    delete(a, b"k2")
    centres.until_level(link)
    assert b"k1" in documents(b)
    assert b"k2" not in documents(b)


def test_a_large_document_that_loses_is_not_sent_at_all(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    for _ in range(3):
        b.bucket.vbuckets[0].store(b"k", b"newer" * 100, 0, 0)
    a.bucket.vbuckets[0].store(b"k", b"older" * 100, 0, 0)
    link = centres.link(a, b)
    centres.until_level(link)
    assert documents(b)[b"k"][0] == b"newer" * 100
    assert link.counters.docs_failed_cr_source == 1
    assert link.counters.docs_failed_cr_target == link.counters.docs_written == 0


def test_a_small_document_that_loses_is_refused_by_the_target(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    for _ in range(3):
        b.bucket.vbuckets[0].store(b"k", b"newer", 0, 0)
    a.bucket.vbuckets[0].store(b"k", b"older", 0, 0)
    link = centres.link(a, b)
    centres.until_level(link)
    assert documents(b)[b"k"][0] == b"newer"
    assert link.counters.docs_failed_cr_target == 1
    assert link.counters.docs_written == 0


def test_what_the_target_cannot_store_is_listed_and_the_rest_goes_on(
    centres: DataCentres,
) -> None:
    a, b = centres.start("a"), centres.start("b", kv__max_item_bytes=1024)
    write(a, 0, 20)
    a.bucket.vbuckets[0].store(b"huge", b"v" * 5000, 0, 0)
    write(a, 20, 20)
    link = centres.link(a, b)
    centres.until_level(link)
    assert len(documents(b)) == 40
    (error,) = centres.command(a, "status", name="west")["last_errors"]
    assert "'huge'" in error
    assert "Too large" in error
    assert link.counters.docs_refused == 1


# --- what the target refuses ----------------------------------------------------------------------


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Keys that every target refuses."""
    keys: set[bytes] = set()
    check = with_meta._check_numbers

    def checked(key: bytes, *numbers: Any) -> None:
        if key in keys:
            raise InvalidArguments("not this one")
        check(key, *numbers)

    monkeypatch.setattr(with_meta, "_check_numbers", checked)
    monkeypatch.setattr(sender, "set_frame", with_options)
    return keys


def with_options(*given: Any) -> bytes:
    """Return a request in the form that a node carries out by the rules, not in the core."""
    frame = set_frame(*given)
    size = int.from_bytes(frame[8:12], "big") + 4
    at = WITH_META_FRAME.size
    head = frame[:4] + bytes([frame[4] + 4]) + frame[5:8] + size.to_bytes(4, "big")
    return head + frame[12:at] + bytes(4) + frame[at:]


def until_refused(centres: DataCentres, link: Link, number: int) -> None:
    centres.loop.until(lambda: link.debts.count == link.progress.changes_left == number)


def test_what_the_target_refuses_stays_to_be_done_and_the_rest_goes_on(
    centres: DataCentres, refused: set[bytes]
) -> None:
    a, b = centres.start("a"), centres.start("b")
    refused.update((b"k0", b"k9"))
    write(a, 0, 40)
    link = centres.link(a, b)
    until_refused(centres, link, 2)
    assert len(documents(b)) == 38
    status = centres.command(a, "status", name="west")
    assert (status["state"], status["changes_left"], status["docs_refused"]) == ("error", 2, 2)
    assert "2 documents are refused" in status["error"]
    assert {row["key"] for row in status["refused"]} == {"key 'k0'", "key 'k9'"}
    assert {row["reason"] for row in status["refused"]} == {"Invalid arguments (0004)"}
    centres.command(a, "checkpoint", name="west")
    for row in centres.command(a, "checkpoints", name="west")["own"]:
        vbucket = a.bucket.vbuckets[row["vbucket"]]
        first = min(
            (vbucket.get(key).seqno for key in refused if vbucket.get(key)), default=SEQNO_MAX
        )
        assert row["source_seqno"] < first
    refused.clear()
    centres.until_level(link)
    assert documents(a) == documents(b)
    assert link.debts.bytes == 0
    assert link.through(0) == a.bucket.vbuckets[0].high_seqno
    centres.command(a, "checkpoint", name="west")
    assert watermark(a, 0) == a.bucket.vbuckets[0].high_seqno


def watermark(node: Node, number: int) -> int:
    rows = node.bucket.watermarks.rows(node.bucket.vbuckets[number])
    return next(row.watermark for row in rows if row.id == b"xdcr:west")


def test_what_was_refused_is_sent_again_after_a_restart(
    centres: DataCentres, refused: set[bytes]
) -> None:
    a, b = centres.start("a"), centres.start("b")
    refused.add(b"k0")
    write(a, 0, 40)
    until_refused(centres, centres.link(a, b), 1)
    centres.command(a, "checkpoint", name="west")
    centres.stop("a")
    refused.clear()
    a = centres.start("a")
    centres.until_level(a.links.by_name["west"])
    assert documents(a) == documents(b)


def test_a_newer_version_or_a_deletion_takes_the_place_of_what_is_refused(
    centres: DataCentres, refused: set[bytes]
) -> None:
    a, b = centres.start("a"), centres.start("b")
    link = centres.link(a, b)
    write(a, 0, 20)
    centres.until_level(link)
    refused.update((b"k0", b"k9"))
    write(a, 0, 20, b"newer")
    until_refused(centres, link, 2)
    refused.discard(b"k9")
    delete(a, b"k9")
    until_refused(centres, link, 1)
    write(a, 0, 1, b"newest")
    until_refused(centres, link, 1)  # this version, not the one before
    refused.clear()
    centres.until_level(link)
    assert documents(a) == documents(b)
    assert documents(b)[b"k0"][0] == documents(a)[b"k0"][0]
    assert b"k9" not in documents(b)


def test_a_link_that_is_to_skip_what_is_refused_passes_it_and_says_so(
    centres: DataCentres, refused: set[bytes]
) -> None:
    a, b = centres.start("a"), centres.start("b")
    refused.add(b"k0")
    write(a, 0, 20)
    link = centres.link(a, b)
    until_refused(centres, link, 1)
    centres.command(a, "set", name="west", set={"on_refused": "skip"})
    assert (link.state, link.progress.changes_left) == ("running", 0)
    refused.add(b"k20")
    write(a, 20, 20)
    centres.until_level(link)
    assert len(documents(b)) == 38
    assert link.counters.docs_refused == 2
    assert "'k20'" in link.errors.shown()[-1]


def test_a_link_with_so_much_that_is_refused_reads_no_more(
    centres: DataCentres, refused: set[bytes]
) -> None:
    a, b = (
        centres.start("a", xdcr__refused_items=3, engine__vbuckets=1),
        centres.start("b", engine__vbuckets=1),
    )
    refused.update(b"k%d" % number for number in range(2))
    write(a, 0, 20)
    link = centres.link(a, b)
    until_refused(centres, link, 2)
    refused.update(b"k%d" % number for number in range(20, 22))
    write(a, 20, 2)
    centres.loop.until(lambda: link.debts.is_full)
    write(a, 30, 20)
    sent = link.counters.data_bytes
    centres.loop.until(lambda: link.counters.data_bytes > sent)  # what is refused, once more
    assert link.reading is not None
    assert not link.reading.drained
    refused.discard(b"k0")
    refused.discard(b"k1")
    until_refused(centres, link, 2)
    assert len(documents(b)) == 40
    refused.clear()
    centres.until_level(link)
    assert documents(a) == documents(b)


@pytest.mark.parametrize("error", [TemporaryFailure, InvalidArguments, NotMyVBucket])
def test_a_target_that_refuses_one_in_ten_gets_everything_soon(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch, error: type[CommandError]
) -> None:
    check, calls = with_meta._check_numbers, count(1)

    def checked(*numbers: Any) -> None:
        if next(calls) % 10 == 0:
            raise error("not this time")
        check(*numbers)

    monkeypatch.setattr(with_meta, "_check_numbers", checked)
    monkeypatch.setattr(sender, "set_frame", with_options)
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 400)
    link = centres.link(a, b)
    centres.until_level(link, limit_s=20.0)
    assert documents(a) == documents(b)
    assert link.counters.docs_opt_repd == 400, "only what was refused is sent again"


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes every node leave the next questions about its seqnos unanswered."""
    monkeypatch.setattr(checkpointing, "_ANSWER_S", 0.2)
    return lambda: monkeypatch.setitem(
        HANDLERS, Opcode.GET_ALL_VB_SEQNOS, lambda _session, _request: None
    )


def test_a_checkpoint_is_refused_if_the_target_does_not_answer(
    centres: DataCentres, mute: Callable[[], None]
) -> None:
    a, b = centres.start("a"), centres.start("b")
    link = centres.link(a, b)
    write(a, 0, 40)
    centres.until_level(link)
    mute()
    place = b.addresses()["upr"]
    with pytest.raises(TemporaryFailure, match=rf"{place}: no answer for 0\.2 s"):
        centres.command(a, "checkpoint", name="west")
    assert not any(each.seqno for records in link.store.records.values() for each in records)


def test_a_checkpoint_is_refused_if_the_connection_is_lost_meanwhile(
    centres: DataCentres, mute: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = centres.start("a"), centres.start("b")
    link = centres.link(a, b)
    write(a, 0, 40)
    centres.until_level(link)
    mute()
    monkeypatch.setattr(checkpointing, "_ANSWER_S", 60.0)
    told: list[object] = []
    a.links.command("checkpoint", {"name": "west"}, told.append, told.append)
    centres.stop("b")
    centres.loop.until(lambda: told)
    assert "the connection was lost" in str(told)


def test_a_link_that_is_deleted_answers_who_waits_for_its_checkpoint(
    centres: DataCentres, mute: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = centres.start("a"), centres.start("b")
    link = centres.link(a, b)
    write(a, 0, 40)
    centres.until_level(link)
    mute()
    monkeypatch.setattr(checkpointing, "_ANSWER_S", 60.0)
    told: list[object] = []
    a.links.command("checkpoint", {"name": "west"}, told.append, told.append)
    centres.command(a, "delete", name="west")
    assert told


def test_a_link_whose_target_cannot_be_reached_says_so(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    link = centres.link(a, b)
    centres.until_level(link)
    centres.stop("b")
    centres.loop.until(lambda: link.state == "error")
    (row,) = centres.command(a, "list")
    assert (row["state"], row["connected"]) == ("error", 0)
    assert row["error"].startswith("127.0.0.1:")


def test_a_link_that_one_of_two_nodes_cannot_get_says_which_and_how_much_waits_for_it(
    centres: DataCentres,
) -> None:
    a, b, c = (centres.start(name) for name in "abc")
    centres.follow(c, b)
    link = centres.link(a, f"{b.addresses()['upr']},{c.addresses()['upr']}")
    centres.until_level(link)
    dead = c.addresses()["upr"]
    centres.take_over(c, b, 1)
    write(a, 0, 100)
    centres.until_level(link)
    assert link.error == ""
    centres.stop("c")
    centres.loop.until(lambda: link.error)
    write(a, 100, 100)
    owed = a.bucket.vbuckets[1].high_seqno - link.through(1)
    assert owed > 0
    centres.loop.until(lambda: link.progress.changes_left == owed)
    (row,) = centres.command(a, "list")
    assert (row["state"], row["connected"], row["changes_left"]) == ("running", 1, owed)
    assert row["error"].startswith(f"{dead}: ")
    assert row["error"].endswith("; 1 vBucket waits for it")
    problems = [each.what for each in health._found(a) if each.panel == "links"]
    assert problems == [f"The link west does not send everything: {row['error']}"]
    centres.start("c", server__upr=dead)
    centres.until_level(link)
    assert link.error == ""


# --- verbs --------------------------------------------------------------------------------------


def test_a_link_that_makes_no_sense_is_refused(centres: DataCentres) -> None:
    a = centres.start("a")
    place = a.addresses()["upr"]
    for given, reason in (
        ({"name": "a b", "to": "host:1"}, "no name"),
        ({"name": "a", "to": "nowhere:x"}, "no target"),
        ({"name": "a", "to": place}, "this node itself"),
        ({"name": "a", "to": "host:1", "filter_key": "("}, "no regular expression"),
        ({"name": "a", "to": "host:1", "filter_key": "(?=a)b"}, "no regular expression of RE2"),
        ({"name": "a", "to": "host:1", "filter_key": r"(a)\1"}, "no regular expression of RE2"),
        ({"name": "a", "to": "host:1", "filter_key": "(" * 400}, "no regular expression of RE2"),
        ({"name": "a", "to": "host:1", "filter_key": "a{900}b{900}c{900}"}, "2000 are allowed"),
        ({"name": "a", "to": "host:1", "filter_key": "é" * 501}, "longer than 1000 bytes"),
        ({"name": "a", "to": "host:1", "set": {"batch_items": "1"}}, "not between 10 and 10000"),
        ({"name": "a", "to": "host:1", "set": {"colour": "1"}}, "no setting 'colour'"),
        ({"name": "a", "to": "host:1", "user": "u"}, "go together"),
    ):
        with pytest.raises(InvalidArguments, match=reason):
            a.links.command("create", given, print, print)
    assert a.links.by_name == {}
    with pytest.raises(KeyNotFound, match="no link 'x'"):
        a.links.command("status", {"name": "x"}, print, print)
    with pytest.raises(InvalidArguments, match="no verb"):
        a.links.command("dance", {}, print, print)


def test_two_links_have_different_names(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    centres.link(a, b)
    with pytest.raises(KeyExists):
        centres.link(a, b)


def test_a_paused_link_sends_nothing_keeps_its_rows_and_goes_on_where_it_was(
    centres: DataCentres,
) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 100)
    link = centres.link(a, b)
    centres.until_level(link)
    assert centres.command(a, "pause", name="west")["state"] == "paused"
    write(a, 100, 100)
    assert link.progress.changes_left == 100
    rows = [a.bucket.watermarks.rows(each) for each in a.bucket.vbuckets.values()]
    assert [row.id for (row,) in rows] == [b"xdcr:west"] * 4
    assert centres.command(a, "resume", name="west")["state"] == "running"
    centres.until_level(link)
    assert documents(a) == documents(b)
    assert link.counters.docs_written == 200


def test_a_pause_returns_although_the_target_does_not_answer(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 10)
    link = centres.link(a, b)
    centres.until_level(link)
    for target in link.nodes.ready:
        monkeypatch.setattr(target, "receive_data", lambda _: None)
    write(a, 10, 10)
    assert centres.command(a, "pause", limit_s=5.0, name="west")["state"] == "paused"


def test_a_deleted_link_leaves_neither_rows_nor_checkpoints(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 100)
    link = centres.link(a, b)
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    centres.command(a, "delete", name="west")
    centres.until_on_disk(a)
    assert all(not a.bucket.watermarks.rows(each) for each in a.bucket.vbuckets.values())
    assert a.bucket.store.local(b"uprmc/xdcr/west/0") is None
    assert centres.command(a, "list") == []
    write(a, 100, 1)
    assert len(documents(b)) == 100


@pytest.mark.acceptance("X12")
def test_the_checkpoint_and_the_watermark_row_are_equal(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 400)
    link = centres.link(a, b)
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    centres.until_on_disk(a)
    for number, vbucket in a.bucket.vbuckets.items():
        (row,) = a.bucket.watermarks.rows(vbucket)
        stored = checkpoint.decode(a.bucket.store.local(b"uprmc/xdcr/west/%d" % number))
        assert row.watermark == stored[0].seqno == vbucket.high_seqno == 100
        assert decode_one(row.meta) == stored[0] == link.store.records[number][0]
        assert row.kind.name == "XDCR"


@pytest.mark.acceptance("X12")
def test_each_checkpoint_registers_the_link_with_its_seqno(centres: DataCentres) -> None:
    """Also where the row was removed; and a link that has just been made is registered at zero."""
    a, b = centres.start("a", engine__vbuckets=1), centres.start("b", engine__vbuckets=1)
    place = centres.stop("b")
    link = centres.link(a, place)
    vbucket = a.bucket.vbuckets[0]

    def pair() -> tuple[int, int]:
        """The seqno of the row, and of the checkpoint on disk."""
        centres.until_on_disk(a)
        (row,) = a.bucket.watermarks.rows(vbucket)
        stored = checkpoint.decode(a.bucket.store.local(b"uprmc/xdcr/west/0"))
        assert decode_one(row.meta) == stored[0]
        return row.watermark, stored[0].seqno

    assert pair() == (0, 0)
    b = centres.start("b", engine__vbuckets=1, server__upr=place)
    for turn in range(1, 4):
        write(a, 0, 10, b"%d" % turn)
        centres.until_level(link)
        before = pair()
        assert before == (10 * turn - 10, 10 * turn - 10), "what has arrived alone moves neither"
        if turn == 2:
            a.bucket.watermarks.remove(vbucket, b"xdcr:west", MANAGER)
        centres.command(a, "checkpoint", name="west")
        assert pair() == (10 * turn, 10 * turn)
    centres.stop("a")
    a = centres.start("a", engine__vbuckets=1)
    vbucket = a.bucket.vbuckets[0]
    assert pair() == (30, 30)
    assert documents(a) == documents(b)


# --- late updates -------------------------------------------------------------------------------


@pytest.mark.acceptance("X02")
@pytest.mark.parametrize("rule", ["revision", "timestamp"])
@pytest.mark.parametrize("size", [1, 1_000], ids=["sent at once", "looked up first"])
def test_a_late_older_update_of_a_deleted_document_is_refused_while_the_tombstone_lives(
    centres: DataCentres, rule: str, size: int
) -> None:
    a, b = (centres.start(name, engine__conflict_resolution=rule) for name in ("a", "b"))
    link = centres.link(a, b)
    write(a, 0, 2)
    centres.until_level(link)
    centres.command(a, "pause", name="west")
    write(a, 0, 2, b"late" * size)
    write(b, 0, 2, b"newer")
    write(b, 0, 2, b"newest")
    for key in (b"k0", b"k1"):
        delete(b, key)
    write(b, 100, 4)  # the newest seqno is never dropped
    centres.until_on_disk(b)
    told: list[bool] = []
    b.bucket.compact(1, PurgeRule(every=True, forced=True), told.append)
    centres.loop.until(lambda: told)
    assert [b.bucket.vbuckets[number].purge_seqno > 0 for number in (0, 1)] == [False, True]
    centres.command(a, "resume", name="west")
    centres.until_level(link)
    assert b"k0" not in documents(b), "deleted stays deleted"
    assert documents(b)[b"k1"] == documents(a)[b"k1"], "nobody knows that it was deleted"
    refused = link.counters.docs_failed_cr_target + link.counters.docs_failed_cr_source
    assert refused == 1


# --- restarts -----------------------------------------------------------------------------------


def test_a_link_runs_again_after_a_restart_of_its_node_and_sends_only_what_is_new(
    centres: DataCentres,
) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 200)
    centres.until_level(centres.link(a, b))
    centres.command(a, "checkpoint", name="west")
    centres.stop("a")
    a = centres.start("a")
    link = a.links.by_name["west"]
    write(a, 200, 20)
    centres.until_level(link)
    assert documents(a) == documents(b)
    assert link.counters.docs_opt_repd == 20


def test_a_link_goes_on_after_a_restart_of_the_target_and_sends_only_what_is_new(
    centres: DataCentres,
) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 200)
    link = centres.link(a, b)
    centres.until_level(link)
    place = centres.stop("b")
    write(a, 200, 20)
    b = centres.start("b", server__upr=place)
    centres.until_level(link)
    assert documents(a) == documents(b)
    assert link.counters.docs_opt_repd == 220


def test_a_target_that_comes_back_empty_gets_everything_again(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 200)
    link = centres.link(a, b)
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    place = centres.stop("b")
    other = centres.start("other", server__upr=place)
    centres.until_same(a, other)


def test_a_link_on_replicas_waits_until_they_become_active(centres: DataCentres) -> None:
    a, b, c = (centres.start(name) for name in "abc")
    write(a, 0, 100)
    centres.follow(b, a)
    centres.until_equal(a, b)
    link = centres.link(b, c)
    assert link.state == "waiting"
    centres.fail_over(b, *range(4))
    centres.until_level(link)
    assert documents(b) == documents(c)


def test_a_target_with_another_number_of_vbuckets_is_an_error(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b", engine__vbuckets=8)
    link = centres.link(a, b)
    centres.loop.until(lambda: link.state == "error")
    assert "8 vBuckets and this node 4" in link.error


def test_a_vbucket_that_moves_at_the_target_is_followed_to_its_new_node(
    centres: DataCentres,
) -> None:
    a, b, c = (centres.start(name) for name in "abc")
    write(a, 0, 100)
    centres.follow(c, b)
    link = centres.link(a, f"{b.addresses()['upr']},{c.addresses()['upr']}")
    centres.until_level(link)
    centres.take_over(c, b, 1)
    write(a, 100, 100)
    centres.until_level(link)
    assert c.bucket.vbuckets[1].state is VBucketState.ACTIVE
    assert c.bucket.vbuckets[1].high_seqno == 50
    assert documents(b) | documents(c) == documents(a)


@pytest.mark.acceptance("X28")
def test_no_watermarks_travel_to_another_cluster(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: set[int] = set()
    send = Target.data_to_send

    def watched(self: Target, budget: int) -> list[bytes]:
        pieces = send(self, budget)
        sent.update(piece[1] for piece in pieces)
        return pieces

    monkeypatch.setattr(Target, "data_to_send", watched)
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 100)
    link = centres.link(a, b)
    centres.until_level(link)
    centres.command(a, "checkpoint", name="west")
    assert Opcode.SETQ_WITH_META in sent
    assert not sent & {Opcode.HWT_REPORT, Opcode.HWT_READ, Opcode.HWT_REPLICATE}
    assert all(not b.bucket.watermarks.rows(each) for each in b.bucket.vbuckets.values())


def test_links_that_take_their_time_do_so_in_several_turns(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = centres.start("a"), centres.start("b")
    made = [centres.link(a, b, name) for name in ("x", "y", "z")]
    ticked: list[str] = []
    for link in made:
        monkeypatch.setattr(link, "tick", lambda _, name=link.spec.name: ticked.append(name))
    monkeypatch.setattr(links, "SLICE_S", 0.0)
    a.links._due.clear()
    a.links.tick(0.0)
    assert ticked == ["x"]
    centres.loop.until(lambda: "z" in ticked)
    assert ticked[:3] == ["x", "y", "z"]


def test_a_link_that_leaves_everything_out_lets_others_have_their_turns(
    centres: DataCentres, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 4_000)
    monkeypatch.setattr(sender, "FILL_S", 0.0)
    monkeypatch.setattr(sender, "_PULL_BYTES", 4_000)
    link = centres.link(a, b, filter_key="nothing")
    turns: list[int] = []

    def is_done() -> bool:
        turns.append(link.counters.docs_filtered)
        return turns[-1] == 4_000

    centres.loop.until(is_done)
    assert max(later - before for before, later in pairwise(turns)) < 1_000
    centres.until_level(link)
