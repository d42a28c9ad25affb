"""How far consumers are behind: items, bytes, seconds, and who is shown when there are many."""

from __future__ import annotations

import pytest

from tests.upr.peer import Peer, Rig, ack, fill, upr_rig, write
from uprmc.errors import StreamNotFound
from uprmc.server.stats.consumers import (
    OTHERS,
    ROWS_MAX,
    ConsumerLag,
    ConsumerLags,
    largest,
    streams_of,
)


class Looker:
    """Looks once a second at the consumers of a node whose clock is set by hand."""

    def __init__(self, rig: Rig) -> None:
        self.now = 100.0
        self.lags = ConsumerLags(rig.services.upr, lambda: self.now)

    def look(self, passed_s: float = 1.0) -> ConsumerLag:
        self.now += passed_s
        for _ in self.lags.steps():
            pass
        (found,) = self.lags.found
        return found


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def stalled(rig: Rig) -> Peer:
    """Return a consumer that has taken one of ten items and acknowledges nothing."""
    fill(rig, 0, 10)
    peer = Peer.open(rig)
    peer.controls(connection_buffer_size=b"45")
    peer.stream(0)
    return peer


def test_a_consumer_that_has_everything_is_not_behind(rig: Rig) -> None:
    fill(rig, 0, 10)
    peer = Peer.open(rig)
    peer.stream(0)
    found = Looker(rig).look()
    assert (found.name, found.kind, found.streams) == ("idx:1", "upr", 1)
    assert (found.items, found.bytes, found.seconds) == (0, 0, 0.0)


def test_items_and_their_bytes_are_those_not_sent_yet(rig: Rig) -> None:
    peer = stalled(rig)
    found = Looker(rig).look()
    assert found.items == 9
    assert found.bytes == 9 * peer.side.feed.bytes_sent


def test_seconds_grow_while_something_is_missing_and_end_when_it_is_there(rig: Rig) -> None:
    peer = stalled(rig)
    looker = Looker(rig)
    assert [looker.look(10).seconds for _ in range(3)] == [0.0, 10.0, 20.0]
    for _ in range(20):
        peer.say(ack(1_000))
    assert looker.look().seconds == 0.0


def test_a_consumer_that_is_always_a_little_behind_is_as_old_as_what_it_lacks(rig: Rig) -> None:
    """It gets what was there at the last look just before the next one, and there is more."""
    peer = stalled(rig)
    looker = Looker(rig)
    looker.look()
    for round_ in range(5):
        write(rig, 0, *(b"%d-%d" % (round_, n) for n in range(10)))
        for _ in range(20):
            peer.say(ack(1_000))
        write(rig, 0, b"late")
        assert looker.look().seconds == 0.0


def test_one_that_has_left_is_forgotten(rig: Rig) -> None:
    peer = stalled(rig)
    looker = Looker(rig)
    looker.look()
    peer.lose()
    looker.now += 1
    assert list(looker.lags.steps()) == []
    assert looker.lags.found == []


def test_the_rest_is_one_row(rig: Rig) -> None:
    lags = [ConsumerLag(f"c{n}", "upr", 1, n, 10 * n, float(n), 5) for n in range(5)]
    assert largest(lags, 5) == lags[::-1]
    *shown, rest = largest(lags, 2)
    assert [each.name for each in shown] == ["c4", "c3"]
    assert rest == ConsumerLag(OTHERS, OTHERS, 3, 3, 30, 2.0, 15)
    assert largest([], 2) == []


def streams_named(rig: Rig, name: str) -> tuple[dict[str, object], int]:
    """Return what the page shows of a consumer's streams, and the steps that it took."""
    steps = streams_of(rig.services.upr, name)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def test_the_streams_of_a_consumer_are_shown_with_those_behind_first(rig: Rig) -> None:
    peer = stalled(rig)
    fill(rig, 1, 3)
    peer.stream(1)
    found, _ = streams_named(rig, "idx:1")
    rows = found.pop("rows")
    states = {"in-memory": 1, "pending": 1}
    assert found == {"name": "idx:1", "streams": 2, "behind": 2, "states": states}
    assert [(row["vbucket"], row["left"], row["high_seqno"]) for row in rows] == [
        (0, 9, 10),
        (1, 3, 3),
    ]
    assert (rows[0]["seqno"], rows[0]["vbucket_state"]) == (1, "active")


def test_of_a_consumer_with_many_streams_the_furthest_are_shown_in_steps(rig: Rig) -> None:
    peer = stalled(rig)
    (stream,) = peer.side.feed.streams.values()
    peer.side.feed.streams.update(dict.fromkeys(range(1, ROWS_MAX + 1), stream))
    found, steps = streams_named(rig, "idx:1")
    assert (found["streams"], len(found["rows"]), steps) == (ROWS_MAX + 1, ROWS_MAX, 2)


def test_a_consumer_that_is_not_there_has_no_streams(rig: Rig) -> None:
    with pytest.raises(StreamNotFound):
        streams_named(rig, "idx:1")
