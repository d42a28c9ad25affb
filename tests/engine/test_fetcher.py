"""Ejected values come back in rounds, to whoever asked, if they are still what was asked for."""

from __future__ import annotations

import pytest

from tests.contents import table_of
from tests.engine.support import FaultyStore, Node, settings_of
from uprmc.engine.fetcher import Fetch
from uprmc.errors import NotResident, StoreError
from uprmc.record import key_of, pack


def with_ejected(*keys: bytes, batch: int = 1_000) -> Node:
    """A node whose documents `keys` are on disk only."""
    node = Node(settings_of(flush={"fetch_batch": batch}))
    for key in keys:
        node.set(key, b"value of " + key)
    node.flush()
    node.eject(*keys)
    return node


def begun(node: Node) -> Fetch:
    fetch = node.bucket.fetcher.begin()
    assert fetch is not None
    return fetch


def test_a_miss_on_disk_names_what_to_fetch_and_then_the_command_works() -> None:
    node = with_ejected(b"k")
    with pytest.raises(NotResident) as caught:
        node.vbucket.get(b"k")
    assert (caught.value.vbucket, caught.value.keys) == (0, (b"k",))
    assert node.fetch(b"k")
    item = node.vbucket.get(b"k")
    assert item is not None
    assert item.value == b"value of k"
    assert node.vbucket.table.absent == 0
    assert node.bucket.stats.bg_fetched == 1
    node.check()


def test_metadata_is_there_without_fetching() -> None:
    node = with_ejected(b"k")
    before = node.stored()[b"k"]
    known = node.vbucket.table.find(b"k")
    assert known == before.with_value(None)


def test_many_who_want_one_key_share_one_reading_and_are_answered_in_order() -> None:
    node = with_ejected(b"a", b"b")
    told: list[tuple[int, bool]] = []
    for number in range(10):
        key = b"a" if number % 2 else b"b"
        node.bucket.fetcher.want([(0, key)], lambda ok, number=number: told.append((number, ok)))
    fetch = begun(node)
    node.bucket.fetcher.commit(fetch)
    node.bucket.fetcher.finish(fetch)
    assert fetch.view.records_read == 2
    assert told == [(number, True) for number in range(10)]
    assert node.bucket.fetcher.begin() is None


def test_the_value_is_in_the_table_when_the_first_waiter_is_called() -> None:
    node = with_ejected(b"a", b"b")
    seen: list[bytes | None] = []

    def look(_ok: bool) -> None:
        for key in (b"a", b"b"):
            item = node.vbucket.get(key)
            assert item is not None
            seen.append(item.value)

    node.bucket.fetcher.want([(0, b"a")], look)
    node.bucket.fetcher.want([(0, b"b")], lambda _: None)
    fetch = begun(node)
    node.bucket.fetcher.commit(fetch)
    node.bucket.fetcher.finish(fetch)
    assert seen == [b"value of a", b"value of b"]


def test_a_round_takes_whole_requests_and_stops_at_its_limit() -> None:
    keys = [b"%d" % number for number in range(10)]
    node = with_ejected(*keys, batch=3)
    fetcher = node.bucket.fetcher
    fetcher.want([(0, key) for key in keys[:5]], lambda _: None)
    for key in keys[5:]:
        fetcher.want([(0, key)], lambda _: None)
    sizes = []
    while fetch := fetcher.begin():
        fetcher.commit(fetch)
        fetcher.finish(fetch)
        sizes.append(len(fetch.wanted))
    assert sizes == [5, 3, 2]
    assert node.vbucket.table.absent == 0
    assert node.fetch(b"0"), "what is there already is no failure"


def test_a_round_leaves_a_part_to_those_that_can_be_begun_beside_it() -> None:
    keys = [b"%d" % number for number in range(40)]
    node = with_ejected(*keys)
    fetcher = node.bucket.fetcher
    for key in keys:
        fetcher.want([(0, key)], lambda _: None)
    rounds = [fetcher.begin(share) for share in (3, 2, 1)]
    assert [len(each.wanted) for each in rounds if each] == [14, 13, 13]
    assert fetcher.begin(3) is None
    fetcher.want([(0, b"0")], lambda _: None)
    fetcher.want([(0, b"1")], lambda _: None)
    last = fetcher.begin(3)
    assert last is not None
    assert len(last.wanted) == 2, "for so few one round is enough"


@pytest.mark.parametrize("changed", [False, True])
def test_rounds_that_read_one_key_may_end_in_any_order(changed: bool) -> None:
    node = with_ejected(b"k", b"other")
    fetcher = node.bucket.fetcher
    values: list[bytes | None] = []

    def look(ok: bool) -> None:
        item = node.vbucket.get(b"k")
        assert ok
        assert item is not None
        values.append(item.value)

    fetcher.want([(0, b"k")], look)
    first = begun(node)
    fetcher.commit(first)
    if changed:
        node.set(b"k", b"new")
        node.flush()
        node.eject(b"k")
    fetcher.want([(0, b"k"), (0, b"other")], look)
    second = begun(node)
    fetcher.commit(second)
    fetcher.finish(second)
    fetcher.finish(first)
    assert values == [b"new" if changed else b"value of k"] * 2
    node.check()


def test_each_round_answers_for_its_own_tombstones() -> None:
    node = Node(settings_of())
    fetcher = node.bucket.fetcher
    for key in (b"a", b"b"):
        node.set(key, b"v")
        node.vbucket.delete(key)
    node.flush()
    found: list[bytes] = []

    def look(key: bytes) -> None:
        record = fetcher.tombstone(node.vbucket, key)
        assert record is not None
        found.append(key_of(record))

    rounds = []
    for key in (b"a", b"b"):
        fetcher.want([(0, key)], lambda _, key=key: look(key))
        rounds.append(begun(node))
    for each in rounds:
        fetcher.commit(each)
    for each in reversed(rounds):
        fetcher.finish(each)
    assert found == [b"b", b"a"]


def test_wanting_is_announced_once_until_a_round_begins() -> None:
    node = with_ejected(b"a")
    announced: list[None] = []
    fetcher = node.bucket.fetcher
    fetcher.on_wanted = lambda: announced.append(None)
    fetcher.want([(0, b"a")], lambda _: None)
    fetcher.want([(0, b"a")], lambda _: None)
    assert len(announced) == 1
    assert fetcher.waiting == 2
    begun(node)
    fetcher.want([(0, b"a")], lambda _: None)
    assert len(announced) == 2


@pytest.mark.parametrize("change", ["overwritten", "deleted", "forgotten", "brought in"])
def test_a_document_that_changed_meanwhile_keeps_its_change(change: str) -> None:
    node = with_ejected(b"k")
    told: list[bool] = []
    node.bucket.fetcher.want([(0, b"k")], told.append)
    fetch = begun(node)
    node.bucket.fetcher.commit(fetch)
    if change == "overwritten":
        node.set(b"k", b"new")
    elif change == "deleted":
        node.vbucket.delete(b"k")
    elif change == "forgotten":
        node.bucket.flush(0, lambda _: None)
    else:
        assert node.fetch(b"k")
    before = table_of(node.vbucket).get(b"k")
    node.bucket.fetcher.finish(fetch)
    assert table_of(node.vbucket).get(b"k") == before
    assert told == [True], "run the command again"
    assert node.bucket.stats.bg_fetch_failures == 0
    node.check()


def test_a_version_written_and_ejected_after_the_reading_began_is_asked_for_again() -> None:
    node = with_ejected(b"k")
    told: list[bool] = []
    node.bucket.fetcher.want([(0, b"k")], told.append)
    fetch = begun(node)
    node.bucket.fetcher.commit(fetch)
    node.set(b"k", b"newer")
    node.flush()
    node.eject(b"k")
    node.bucket.fetcher.finish(fetch)
    assert told == [True]
    with pytest.raises(NotResident):
        node.vbucket.get(b"k")
    assert node.fetch(b"k")
    assert table_of(node.vbucket)[b"k"].value == b"newer"


def test_a_value_that_the_store_should_have_and_has_not_is_reported() -> None:
    node = with_ejected(b"k", b"there")
    lost = table_of(node.vbucket)[b"k"]
    lost.seqno = 2  # as if the disk had lost seqno 2 of this key
    node.vbucket.table.put(b"k", pack(lost), node.vbucket.table.get(b"k"))
    assert not node.fetch(b"k", b"there")
    assert node.bucket.stats.bg_fetch_failures == 1
    assert table_of(node.vbucket)[b"there"].value == b"value of there"


def test_a_failed_reading_is_told_to_everybody_and_closes_its_view() -> None:
    node = with_ejected(b"a", b"b")
    told: list[bool] = []
    for key in (b"a", b"b"):
        node.bucket.fetcher.want([(0, key)], told.append)
    fetch = begun(node)
    assert not node.store.grow(), "the reading pins its view"
    node.bucket.fetcher.failed(fetch)
    assert told == [False, False]
    assert node.store.grow()
    assert node.bucket.stats.bg_fetch_failures == 2


def test_a_finished_round_closes_its_view() -> None:
    node = with_ejected(b"a")
    node.bucket.fetcher.want([(0, b"a")], lambda _: None)
    fetch = begun(node)
    node.bucket.fetcher.commit(fetch)
    node.bucket.fetcher.finish(fetch)
    assert node.store.grow()
    with pytest.raises(StoreError):
        fetch.view.count()


def test_when_the_store_cannot_be_read_at_all_everybody_is_told() -> None:
    store = FaultyStore()
    node = Node(store=store)
    told: list[bool] = []
    for _ in range(3):
        node.bucket.fetcher.want([(0, b"k")], told.append)
    store.close()
    with pytest.raises(StoreError):
        node.bucket.fetcher.begin()
    assert told == [False, False, False]
    assert node.bucket.fetcher.waiting == 0


def test_a_waiter_may_ask_again_when_it_is_called() -> None:
    node = with_ejected(b"a")
    announced: list[None] = []
    fetcher = node.bucket.fetcher
    fetcher.on_wanted = lambda: announced.append(None)
    fetcher.want([(0, b"a")], lambda _: fetcher.want([(0, b"a")], lambda _: None))
    fetch = begun(node)
    fetcher.commit(fetch)
    fetcher.finish(fetch)
    assert fetcher.waiting == 1
    assert len(announced) == 2


def test_a_vbucket_that_is_not_here_has_nothing_to_fetch(node: Node) -> None:
    assert node.fetch(b"k", vbucket=77)
