"""How vBuckets are spread over tasks: by what they hold, each task at one node if that can be.

One task for each vBucket would be a disaster (starting a task costs more than most vBuckets), and
equal numbers of vBuckets are not equal work. So the heaviest goes first, to the lightest task.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Mapping

#: A task of fewer documents than this costs more to start than to run.
TASK_ITEMS_MIN = 10_000

#: What a vBucket costs beside its documents: a stream is opened for it.
VBUCKET_WEIGHT = 20


#: Tasks for each processor, so that one slow task does not leave the others idle.
TASKS_PER_PROCESSOR = 2


def tasks_for(asked: int | None, items: Mapping[int, int]) -> int:
    """Return how many tasks to make: as many as were asked for, or as are worth starting."""
    if asked is not None:
        return asked
    most = TASKS_PER_PROCESSOR * (os.cpu_count() or 1)
    return parts_for(sum(items.values()), len(items), most)


def parts_for(items: int, vbuckets: int, most: int) -> int:
    """Return how many tasks are worth starting for a number of documents, `most` at most."""
    return max(1, min(most, vbuckets, -(-items // TASK_ITEMS_MIN)))


def groups(
    items: Mapping[int, int], owners: Mapping[int, str], parts: int
) -> list[tuple[int, ...]]:
    """Return the vBuckets of each task: every one in exactly one group, no group empty.

    Args:
        items: documents of each vBucket.
        owners: the node of each; a task has vBuckets of one node, so that it opens few connections.
        parts: groups at most, unless there are more nodes.
    """
    places: dict[str, dict[int, int]] = {}
    for vbucket, count in items.items():
        places.setdefault(owners[vbucket], {})[vbucket] = count + VBUCKET_WEIGHT
    shares = _shares({place: sum(weights.values()) for place, weights in places.items()}, parts)
    return [
        group
        for place, weights in sorted(places.items())
        for group in _balanced(weights, shares[place])
    ]


def _shares(weights: Mapping[str, int], parts: int) -> dict[str, int]:
    """Return how many groups each node's vBuckets make: one at least, the rest by their weight."""
    shares = dict.fromkeys(weights, 1)
    for _ in range(parts - len(shares) if shares else 0):
        heaviest = max(sorted(weights), key=lambda place: weights[place] / shares[place])
        shares[heaviest] += 1
    return shares


def _balanced(weights: Mapping[int, int], parts: int) -> list[tuple[int, ...]]:
    """Return groups of about the same weight, the longest first."""
    parts = min(parts, len(weights))
    heap = [(0, number) for number in range(parts)]
    found: list[list[int]] = [[] for _ in range(parts)]
    for vbucket in sorted(weights, key=lambda each: (-weights[each], each)):
        weight, number = heapq.heappop(heap)
        found[number].append(vbucket)
        heapq.heappush(heap, (weight + weights[vbucket], number))
    found.sort(key=lambda group: -sum(weights[each] for each in group))
    return [tuple(sorted(group)) for group in found]
