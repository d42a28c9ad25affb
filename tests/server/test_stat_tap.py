"""What old tools read about TAP: totals, settings, clients, pushers, and sums by names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop import tap_wire as t
from tests.documents import HandDrivenNode
from tests.kv.harness import drained
from uprmc.errors import InvalidArguments, NotMyVBucket
from uprmc.metrics import Exposition
from uprmc.model import VBucketState
from uprmc.ports import Session

#: What tools of ep-engine's time read of a producer, by their source.
PRODUCER = """
type connected pending_disconnect reserved created reconnects flags supports_ack qlen
total_backlog_size rec_fetched ack_seqno recv_ack_seqno ack_log_size backfill_completed
num_tap_nack queue_drain queue_backoff queue_backfillremaining
"""

CONSUMER = """
type connected num_mutation num_mutation_failed num_delete num_delete_failed num_flush
num_flush_failed num_opaque num_opaque_failed num_vbucket_set num_vbucket_set_failed
num_checkpoint_start num_checkpoint_start_failed num_checkpoint_end num_checkpoint_end_failed
num_unknown
"""


class World:
    """A node and the sessions of those who are connected to it."""

    def __init__(self, path: Path, **changes: object) -> None:
        self.hand = HandDrivenNode(path, **{"engine.vbuckets": 4} | changes)
        self.node = self.hand.node

    def session(self) -> Session:
        return self.hand.session(by_key=False)

    def talk(self, session: Session, data: bytes) -> Session:
        """Say something, and return the session that carries on."""
        session.receive_data(data)
        while session.successor is not None:
            session = session.successor
        return session

    def client(self, name: bytes, flags: int = t.SUPPORT_ACK) -> Session:
        """Connect; nothing is taken yet."""
        return self.talk(self.session(), t.connect(name, flags))

    def put(self, count: int, number: int = 0) -> None:
        for place in range(count):
            self.node.bucket.vbuckets[number].store(b"key-%d" % place, b"v", 0, 0)

    def group(self, words: str) -> dict[str, str]:
        found = self.node.statistics.group(words)
        assert found is not None
        rows = list(found)
        assert len({name for name, _ in rows}) == len(rows), "a name appears twice"
        return dict(rows)

    def metric(self, name: str) -> float:
        page, _ = Exposition(self.node.statistics.metrics).render("")
        (line,) = [each for each in page.decode().splitlines() if each.startswith(f"{name} ")]
        return float(line.split()[1])


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def new(**changes: object) -> World:
        names = {name.replace("__", "."): value for name, value in changes.items()}
        worlds.append(World(tmp_path / str(len(worlds)), **names))
        return worlds[-1]

    yield new
    for world in worlds:
        world.hand.close()


def acknowledged(session: Session) -> int:
    """Answer everything until nothing more comes; returns how many items came."""
    items = 0
    while data := drained(session):
        while data:
            length = 24 + int.from_bytes(data[8:12], "big")
            got, data = t.TapFrame.of(data[:length]), data[length:]
            items += got.opcode in (t.MUTATION, t.DELETE)
            if got.wants_ack:
                session.receive_data(t.answer(got))
    return items


@pytest.mark.acceptance("D56")
def test_a_client_has_the_names_that_old_tools_read(make: Callable[..., World]) -> None:
    world = make()
    world.client(b"replica1", t.SUPPORT_ACK | t.REGISTERED)
    found = world.group("tap")
    mine = {n.rpartition(":")[2]: v for n, v in found.items() if n.startswith("eq_tapq:replica1:")}
    assert set(PRODUCER.split()) <= set(mine)
    assert (mine["type"], mine["connected"], mine["reserved"]) == ("producer", "true", "true")
    assert (mine["reconnects"], mine["supports_ack"]) == ("0", "true")
    assert found["ep_tap_count"] == "1"


def test_what_is_left_for_a_client_and_what_it_has_got_are_told(
    make: Callable[..., World],
) -> None:
    world = make()
    world.put(30)
    session = world.client(b"replica1")
    before = world.group("tap")
    assert before["eq_tapq:replica1:qlen"] == "30"
    assert before["eq_tapq:replica1:backfill_completed"] == "false"
    assert (before["ep_tap_total_queue"], before["ep_tap_queue_backfillremaining"]) == ("30", "30")
    assert acknowledged(session) == 30
    after = world.group("tap")
    assert after["eq_tapq:replica1:qlen"] == "0"
    assert after["eq_tapq:replica1:ack_log_size"] == "0"
    assert after["eq_tapq:replica1:backfill_completed"] == "true"
    assert after["eq_tapq:replica1:ack_seqno"] == after["eq_tapq:replica1:recv_ack_seqno"]
    assert (after["ep_tap_queue_drain"], after["ep_tap_queue_fill"]) == ("30", "30")


def test_what_a_client_got_stays_counted_when_it_is_gone(make: Callable[..., World]) -> None:
    world = make()
    world.put(30)
    session = world.client(b"replica1")
    acknowledged(session)
    session.connection_lost()
    found = world.group("tap")
    assert (found["ep_tap_count"], found["ep_tap_queue_drain"]) == ("0", "30")
    assert world.metric("uprmc_tap_items_sent_total") == 30
    assert not any(name.startswith("eq_tapq:") for name in found)


def test_a_registered_client_that_is_away_is_told_too(make: Callable[..., World]) -> None:
    world = make()
    flags = t.SUPPORT_ACK | t.REGISTERED
    world.client(b"backup", flags).connection_lost()
    away = world.group("tap")
    assert away["eq_tapq:backup:connected"] == "false"
    assert away["eq_tapq:backup:reserved"] == "true"
    world.client(b"backup", flags)
    assert world.group("tap")["eq_tapq:backup:reconnects"] == "1"


def test_who_pushes_has_the_names_of_a_consumer(make: Callable[..., World]) -> None:
    world = make()
    pushing = world.session()
    pushing = world.talk(pushing, t.mutation(0, 1, b"k", b"v") + t.mutation(9, 2, b"k", b"v"))
    found = world.group("tap")
    mine = {n.rpartition(":")[2]: v for n, v in found.items() if n.startswith("eq_tapq:push_1:")}
    assert set(CONSUMER.split()) <= set(mine)
    assert (mine["num_mutation"], mine["num_mutation_failed"]) == ("1", "1")
    assert (found["ep_tap_count"], found["ep_tap_throttled"]) == ("1", "1")
    assert world.metric("uprmc_tap_messages_pushed_total") == 2
    assert world.metric("uprmc_tap_messages_refused_total") == 1
    assert world.metric("uprmc_tap_pushers") == 1


def test_the_settings_are_those_in_force(make: Callable[..., World]) -> None:
    found = make(tap__ack_interval=5, tap__backoff_s=0.25).group("tap")
    assert (found["ep_tap_ack_interval"], found["ep_tap_backoff_period"]) == ("5", "0.25")
    assert (found["ep_tap_ack_grace_period"], found["ep_tap_noop_interval"]) == ("300", "200")


def test_sums_are_made_by_what_names_begin_with(make: Callable[..., World]) -> None:
    world = make()
    world.put(10)
    for name in (b"rep_1", b"rep_2", b"other"):
        world.client(name)
    alone = world.group("tapagg")
    assert {name.partition(":")[0] for name in alone} == {"_total"}
    assert (alone["_total:count"], alone["_total:qlen"]) == ("3", "30")
    found = world.group("tapagg _")
    assert {name: found[f"{name}:count"] for name in ("_total", "rep", "_other")} == {
        "_total": "3",
        "rep": "2",
        "_other": "1",
    }
    assert found["rep:qlen"] == "20"


def test_a_takeover_is_told_by_the_clients_name(make: Callable[..., World]) -> None:
    world = make()
    world.put(10, number=3)
    world.client(b"mover")
    found = world.group("tap-vbtakeover 3 mover")
    assert (found["estimate"], found["vb_items"]) == ("10", "10")
    unknown = world.group("tap-vbtakeover 3 nobody")
    assert unknown["status"] == "connection_does_not_exist"


def test_a_takeover_without_number_or_name_is_refused(make: Callable[..., World]) -> None:
    statistics = make().node.statistics
    for words in ("tap-vbtakeover", "tap-vbtakeover 3", "tap-vbtakeover x name"):
        with pytest.raises(InvalidArguments):
            statistics.group(words)
    with pytest.raises(NotMyVBucket):
        statistics.group("tap-vbtakeover 4 name")


def test_where_tap_is_off_the_names_are_there_and_nothing_is_counted(
    make: Callable[..., World],
) -> None:
    on, off = make(), make(tap__enabled=False)
    assert on.group("tap") == off.group("tap")
    assert on.group("tapagg _") == off.group("tapagg _")
    assert off.metric("uprmc_tap_clients") == 0
    assert off.metric("uprmc_tap_connects_refused_total") == 0


def test_a_checkpoint_that_a_master_closed_is_told_in_its_group(
    make: Callable[..., World],
) -> None:
    world = make()
    assert world.group("checkpoint 1")["vb_1:open_checkpoint_id"] == "1"
    world.node.bucket.set_state(1, VBucketState.REPLICA)
    world.talk(
        world.session(),
        t.opaque_message(t.SYNC, 0, 1)
        + t.checkpoint(t.CHECKPOINT_START, 5, 1, 2)
        + t.checkpoint(t.CHECKPOINT_END, 5, 1, 3),
    )
    found = world.group("checkpoint 1")
    assert found["vb_1:last_closed_checkpoint_id"] == "5"
    assert found["vb_1:open_checkpoint_id"] == "6"
    assert found["vb_1:persisted_checkpoint_id"] == "0"


def test_refused_connects_are_counted(make: Callable[..., World]) -> None:
    world = make()
    world.client(b"bad", 0x8000)
    assert world.metric("uprmc_tap_connects_refused_total") == 1
