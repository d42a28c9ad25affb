"""Lines and their ends: what is said of them, and how much of it."""

from __future__ import annotations

import pytest

from tests.upr.replication_rig import A, World
from uprmc.errors import InvalidArguments, RangeExceeded, TemporaryFailure


def test_a_link_that_has_failed_is_not_called_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, upr__dial_timeout_s=3.0)
    world.follow(A, [0])
    link = world.calls[0].opens()
    link.begins(0)
    world.wait(10)
    link.open, link.closing = False, True
    world.wait(10)
    assert (world.troubles, len(world.calls)) == ([], 1)
    link.closes("it has said nothing for 10 s")
    assert world.troubles == [(A, "it has said nothing for 10 s")]
    world.redialled_after(1.0)


def test_a_refusal_names_32_vbuckets_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    for count in (32, 33, 32_768):
        with pytest.raises(RangeExceeded) as refusal:
            world.replication.fail_over(range(4, 4 + 2 * count, 2), lambda *_: None)
        text = str(refusal.value)
        assert len(text) < 250
        assert text.startswith("vBuckets 4,6,8,10,")
        assert ("66: this" in text) is (count == 32)
        assert (f"66... ({count} in all): this" in text) is (count > 32)


def test_a_node_that_is_stopping_begins_to_follow_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.replication.close()
    with pytest.raises(TemporaryFailure, match="is stopping"):
        world.follow(A, [0])
    assert world.calls == []


def test_a_source_of_300_characters_is_one_and_a_longer_one_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    place = "a" * 298 + ":1"
    assert world.follow(place, [0]) == [True]
    with pytest.raises(InvalidArguments, match="use HOST:PORT"):
        world.follow("a" + place, [1])
