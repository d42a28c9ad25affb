"""What a consumer that comes back is given: what is new, and nothing else."""

from __future__ import annotations

import pytest

from tests.client.consumer_world import Mirror, World, node, write


@pytest.mark.acceptance("P20")
@pytest.mark.parametrize("restarts", [False, True], ids=["reconnected", "restarted"])
def test_an_index_computes_anew_only_what_has_changed(restarts: bool) -> None:
    """Its map function is called once for each new version after a break."""
    active, mapped = node(), Mirror()
    world = World(mapped, active, vbuckets=frozenset({0}))
    for number in range(50):
        write(active, **{f"k{number}": "old"})
    world.settle(1)
    before = len(mapped.changes)
    world.cut()
    if restarts:
        world.restart()
    for number in range(3):
        write(active, **{f"k{number}": "new"})
    world.settle(1)
    assert (before, len(mapped.changes)) == (50, 53)
