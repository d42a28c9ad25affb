"""The judges of the replication tests speak when they should, and only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interop.comparison import Version, differences, everything_of
from interop.follower import Follower, expected_rollback
from interop.load import Acknowledged, Load, lost
from interop.replica_pair import Node, logs_of, standing_of
from interop.server_process import Address
from interop.waiting import wait_until

A, B, C, D = range(1, 5)
VBUCKETS = 4
DOCUMENT = Version("document", 7, 2, 5, 60, 99, 0, b"value")
HELD = {(0, b"k"): DOCUMENT, (1, b"gone"): Version("deletion", 3, 2, 0, 1_000, 98, 0, b"")}


@pytest.mark.acceptance("P18", "P19")
@pytest.mark.parametrize(
    ("log", "high", "uuid", "place", "answer"),
    [
        ([(A, 0)], 50, A, (50, 50, 50), None),
        ([(A, 0)], 50, A, (20, 10, 30), None),
        ([(A, 0)], 50, D, (20, 20, 20), 0),
        ([(A, 0)], 50, A, (60, 60, 60), 50),
        ([(A, 0)], 50, A, (60, 40, 70), 40),
        ([(A, 0)], 50, A, (70, 40, 70), 50),
        ([(A, 0)], 50, A, (50, 50, 80), None),
        ([(B, 100), (A, 0)], 150, A, (100, 100, 100), None),
        ([(B, 100), (A, 0)], 150, A, (130, 130, 130), 100),
        ([(B, 100), (A, 0)], 150, A, (110, 90, 120), 90),
        ([(C, 250), (B, 100), (A, 0)], 400, A, (180, 180, 180), 100),
    ],
)
def test_the_expected_rollback_is_that_of_the_table_in_the_documentation(
    log: list[tuple[int, int]],
    high: int,
    uuid: int,
    place: tuple[int, int, int],
    answer: int | None,
) -> None:
    assert expected_rollback(place, uuid, log, high) == answer


def test_equal_nodes_have_no_differences() -> None:
    assert differences(HELD, dict(HELD)) == []


@pytest.mark.parametrize("field", Version._fields)
def test_a_difference_in_any_field_is_found(field: str) -> None:
    changed: dict[str, Any] = {"kind": "expiration", "value": b"other"}
    version = DOCUMENT._replace(**{field: changed.get(field, 1)})
    (found,) = differences(HELD, {**HELD, (0, b"k"): version})
    assert "b'k'" in found


def test_a_missing_deletion_is_found() -> None:
    (found,) = differences(HELD, {(0, b"k"): DOCUMENT})
    assert "b'gone'" in found


class Written:
    """A load that is over: one key, versions 1 and 2."""

    def __init__(self, *acknowledged: Acknowledged) -> None:
        self.acknowledged = list(acknowledged)
        self.sent = {(0, b"k"): {b"one", b"two", b"three"}}


def acknowledged(value: bytes, seqno: int, uuid: int = A) -> Acknowledged:
    return Acknowledged(0, b"k", value, 0, seqno, seqno, uuid)


def version(value: bytes, seqno: int) -> Version:
    return Version("document", seqno, 1, 0, 0, seqno, 0, value)


ONE, TWO = acknowledged(b"one", 10), acknowledged(b"two", 20)


@pytest.mark.parametrize(
    ("held", "log", "complaint"),
    [
        (version(b"two", 20), [(A, 0)], ""),
        (version(b"three", 21), [(A, 0)], ""),
        (version(b"one", 10), [(A, 0)], "was promised"),
        (version(b"one", 10), [(B, 15), (A, 0)], ""),
        (None, [(B, 15), (A, 0)], "was promised"),
        (None, [(B, 5), (A, 0)], ""),
        (version(b"four", 30), [(A, 0)], "was never sent"),
        (version(b"three", 20), [(A, 0)], "was acknowledged at this seqno"),
        (version(b"three", 20), [(B, 15), (A, 0)], ""),
    ],
)
def test_what_was_acknowledged_in_a_shared_history_must_be_there(
    held: Version | None, log: list[tuple[int, int]], complaint: str
) -> None:
    found = lost(
        [Written(ONE, TWO)],  # type: ignore[list-item]
        {(0, b"k"): held} if held else {},
        {0: tuple(log)},
    )
    assert len(found) == bool(complaint)
    assert all(complaint in each for each in found)


@pytest.mark.acceptance("P10", "P17")
def test_a_follower_of_a_node_that_is_killed_again_and_again_ends_equal_to_it(
    tmp_path: Path, peer: str
) -> None:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    node = Node(tmp_path, "--vbuckets", str(VBUCKETS))
    follower = Follower("follower", range(VBUCKETS))
    try:
        for seed in range(3):
            node.start()
            expected = rollbacks_at(node, follower)
            before = len(follower.rollbacks)
            follower.connect(node.upr)
            with Load([node.upr], VBUCKETS, keys=200, seed=seed) as load:
                after(load, 3_000)
                load.pause()
                with node.wire() as wire:
                    follower.follow(wire.high_seqnos())
            assert sorted(follower.rollbacks[before:]) == expected
            assert not lost([load], follower.versions(), followed_logs(node))
            assert differences(follower.versions(), everything(node.upr)) == []
            node.kill()
    finally:
        follower.close()
        node.end()


def rollbacks_at(node: Node, follower: Follower) -> list[tuple[int, int]]:
    with node.wire() as wire:
        standing = standing_of(wire)
    points = {
        number: expected_rollback(follower.place(number), follower.uuid(number), held.log, high)
        for number, held in standing.items()
        for high in [held.seqno]
    }
    return sorted((number, point) for number, point in points.items() if point is not None)


def followed_logs(node: Node) -> dict[int, tuple[tuple[int, int], ...]]:
    with node.wire() as wire:
        return logs_of(wire, range(VBUCKETS))


def everything(address: Address) -> dict[tuple[int, bytes], Version]:
    return everything_of(address, range(VBUCKETS))


def after(load: Load, count: int) -> None:
    """Wait until so many more writes were acknowledged."""
    goal = len(load.acknowledged) + count
    done: Callable[[], bool] = lambda: len(load.acknowledged) >= goal  # noqa: E731
    wait_until(done, lambda: f"{len(load.acknowledged)} of {goal} writes")
