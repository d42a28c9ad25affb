"""Positions of registered clients in the node's store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kv.harness import Rig
from uprmc.storage.interface import CommitBatch
from uprmc.tap_adapter.local import COUNT_NAME, PLACES_MAX, LocalKeeper


def kept(rig: Rig) -> dict[bytes, bytes]:
    """What a keeper finds after a restart."""
    return LocalKeeper(rig.bucket).load()


def save(rig: Rig, keeper: LocalKeeper, name: bytes, document: bytes | None) -> bool:
    told: list[bool] = []
    keeper.save(name, document, told.append)
    rig.flush()
    assert len(told) == 1
    return told[0]


def test_a_new_directory_has_no_clients() -> None:
    assert kept(Rig()) == {}


def test_documents_are_found_again_by_the_clients_names() -> None:
    rig = Rig()
    keeper = LocalKeeper(rig.bucket)
    assert save(rig, keeper, b"one", b"first")
    assert save(rig, keeper, b"\xff" * 250, b"")
    assert save(rig, keeper, b"one", b"second")
    assert kept(rig) == {b"one": b"second", b"\xff" * 250: b""}


def test_a_dropped_client_is_gone_and_its_place_is_used_again() -> None:
    rig = Rig()
    keeper = LocalKeeper(rig.bucket)
    for name in (b"a", b"b", b"c"):
        save(rig, keeper, name, name)
    assert save(rig, keeper, b"b", None)
    assert save(rig, keeper, b"never", None)
    save(rig, keeper, b"d", b"d")
    assert kept(rig) == {b"a": b"a", b"c": b"c", b"d": b"d"}
    assert rig.store.local(COUNT_NAME) == b"3"


def test_a_place_that_was_free_at_the_start_is_used_again() -> None:
    rig = Rig()
    keeper = LocalKeeper(rig.bucket)
    for name in (b"a", b"b"):
        save(rig, keeper, name, name)
    save(rig, keeper, b"a", None)
    later = LocalKeeper(rig.bucket)
    later.load()
    save(rig, later, b"c", b"c")
    assert kept(rig) == {b"b": b"b", b"c": b"c"}
    assert rig.store.local(COUNT_NAME) == b"2"


def test_saving_answers_only_when_the_changes_before_are_on_disk_too() -> None:
    rig = Rig(flush__batch_items=100)
    keeper = LocalKeeper(rig.bucket)
    vbucket = rig.bucket.vbuckets[0]
    for number in range(350):
        vbucket.store(b"%d" % number, b"v", 0, 0)
    told: list[int] = []
    keeper.save(b"one", b"x", lambda ok: told.append(rig.bucket.flusher.durable_seqno(vbucket)))
    flusher = rig.bucket.flusher
    commits = 0
    while flush := flusher.begin():
        flusher.commit(flush)
        flusher.finish(flush)
        commits += 1
    assert commits > 1
    assert told == [350]


def test_a_failed_commit_is_told_and_the_document_is_written_later() -> None:
    rig = Rig()
    keeper = LocalKeeper(rig.bucket)
    told: list[bool] = []
    keeper.save(b"one", b"x", told.append)
    rig.fail_flush()
    assert (told, kept(rig)) == ([False], {})
    rig.flush()
    assert kept(rig) == {b"one": b"x"}


@pytest.mark.parametrize("count", [b"", b"x", b"-1", b"%d" % (PLACES_MAX + 1), b"9" * 100])
def test_a_damaged_count_is_told_in_one_line_and_nobody_is_known(count: bytes) -> None:
    rig = Rig()
    rig.store.commit(CommitBatch(local={COUNT_NAME: count, b"uprmc/tap/0": b"\0\1ax"}))
    keeper = LocalKeeper(rig.bucket)
    assert keeper.load() == {}
    assert len(keeper.trouble) == 1


@pytest.mark.parametrize("record", [b"", b"\0", b"\0\5name"])
def test_a_torn_record_is_told_and_the_others_are_found(record: bytes) -> None:
    rig = Rig()
    documents = {b"uprmc/tap/0": record, b"uprmc/tap/1": b"\0\1ax"}
    rig.store.commit(CommitBatch(local={COUNT_NAME: b"2", **documents}))
    keeper = LocalKeeper(rig.bucket)
    assert keeper.load() == {b"a": b"x"}
    assert len(keeper.trouble) == 1


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=9))))
def test_what_was_saved_last_is_what_is_found(saves: list[tuple[bytes, bytes | None]]) -> None:
    rig = Rig()
    keeper = LocalKeeper(rig.bucket)
    expected: dict[bytes, bytes] = {}
    for name, document in saves:
        keeper.save(name, document, lambda _: None)
        expected.pop(name, None)
        if document is not None:
            expected[name] = document
    rig.flush()
    assert kept(rig) == expected
    assert int(rig.store.local(COUNT_NAME) or 0) <= 3


def test_a_client_whose_removal_failed_keeps_its_place_until_that_is_free() -> None:
    rig = Rig()
    keeper = LocalKeeper(rig.bucket)
    save(rig, keeper, b"one", b"x")
    told: list[bool] = []
    keeper.save(b"one", None, told.append)
    rig.fail_flush()
    assert (told, kept(rig)) == ([False], {b"one": b"x"})
    assert save(rig, keeper, b"two", b"y")
    keeper.save(b"one", None, told.append)
    rig.flush()
    assert told == [False, True]
    assert kept(rig) == {b"two": b"y"}


def test_a_client_that_came_back_before_its_removal_was_written_keeps_its_place() -> None:
    rig = Rig()
    keeper = LocalKeeper(rig.bucket)
    save(rig, keeper, b"one", b"x")
    keeper.save(b"one", None, lambda _: None)
    keeper.save(b"one", b"z", lambda _: None)
    rig.flush()
    save(rig, keeper, b"two", b"y")
    assert kept(rig) == {b"one": b"z", b"two": b"y"}
