"""vBuckets over tasks: each exactly once, none alone at a loss, one node a task."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from uprmc.spark.partitions import TASK_ITEMS_MIN, VBUCKET_WEIGHT, groups, parts_for

NODE = "a:1"

COUNTS = st.dictionaries(st.integers(0, 1023), st.integers(0, 100_000), min_size=1, max_size=64)


def owned(items: dict[int, int], *places: str) -> dict[int, str]:
    names = places or (NODE,)
    return {vbucket: names[vbucket % len(names)] for vbucket in items}


@given(COUNTS, st.integers(1, 100), st.integers(1, 4))
def test_every_vbucket_is_in_exactly_one_group_and_no_group_is_empty(
    items: dict[int, int], parts: int, nodes: int
) -> None:
    owners = owned(items, *[f"n{n}:1" for n in range(nodes)])
    found = groups(items, owners, parts)
    assert sorted(vbucket for group in found for vbucket in group) == sorted(items)
    assert all(found)
    assert len(found) <= max(parts, len(set(owners.values())))
    for group in found:
        assert len({owners[vbucket] for vbucket in group}) == 1


@given(COUNTS, st.integers(1, 16))
def test_no_group_is_heavier_than_the_lightest_by_more_than_one_vbucket(
    items: dict[int, int], parts: int
) -> None:
    found = groups(items, owned(items), parts)
    weights = [sum(items[vbucket] + VBUCKET_WEIGHT for vbucket in group) for group in found]
    heaviest = max(items.values()) + VBUCKET_WEIGHT
    assert max(weights) - min(weights) <= heaviest
    assert weights == sorted(weights, reverse=True)


def test_one_large_vbucket_gets_a_task_of_its_own() -> None:
    items = {0: 1_000_000, **dict.fromkeys(range(1, 9), 10)}
    assert groups(items, owned(items), 2) == [(0,), (1, 2, 3, 4, 5, 6, 7, 8)]


def test_empty_vbuckets_are_spread_too() -> None:
    items = dict.fromkeys(range(8), 0)
    assert [len(group) for group in groups(items, owned(items), 4)] == [2, 2, 2, 2]


def test_a_node_with_more_documents_has_more_tasks() -> None:
    items = {0: 90_000, 2: 90_000, 4: 90_000, 1: 10}
    found = groups(items, owned(items, "even:1", "odd:1"), 4)
    assert sorted(found) == [(0,), (1,), (2,), (4,)]


def test_more_nodes_than_tasks_means_a_task_for_each_node() -> None:
    items = {0: 1, 1: 1, 2: 1}
    assert len(groups(items, owned(items, "a:1", "b:1", "c:1"), 1)) == 3


def test_nothing_makes_no_group() -> None:
    assert groups({}, {}, 4) == []


def test_few_documents_are_not_worth_many_tasks() -> None:
    assert parts_for(0, 64, 8) == 1
    assert parts_for(TASK_ITEMS_MIN, 64, 8) == 1
    assert parts_for(TASK_ITEMS_MIN + 1, 64, 8) == 2
    assert parts_for(10**9, 64, 8) == 8
    assert parts_for(10**9, 4, 8) == 4
