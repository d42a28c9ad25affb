"""What an adversary of the consumer's library would try."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.client.api_contract import LIMIT_S, VBUCKETS, Recorder, names, write
from tests.client.consumer_world import (
    ACTIVE,
    DEAD,
    CrashingState,
    DurableMirror,
    Mirror,
    World,
    node,
)
from tests.client.consumer_world import write as store
from tests.client.fake_producer import FakeProducer, Joined, accepted
from tests.client.test_kv import set_state
from tests.upr import peer
from tests.upr.peer import Frame, marker, mutation
from uprmc.client import Change, MemoryState, SqliteState, UprClient
from uprmc.client.core import PATIENCE
from uprmc.client.errors import (
    ConnectionLost,
    MisuseError,
    NodeUnreachable,
    NotActive,
    NotANode,
    OpenRefused,
    ProducerError,
)
from uprmc.client.position import Position, VBucketPlace


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ["--vbuckets", str(VBUCKETS), "--no-sync"]
    with start_uprmc(tmp_path_factory.mktemp("data"), *options) as server:
        write(server, names("there", 20))
        yield server
        server.stop()


# --- positions ------------------------------------------------------------------------------------


def test_the_position_of_an_empty_vbucket_can_be_begun_from() -> None:
    rig, mirror = node(), Mirror()
    first = World(mirror, rig)
    first.settle()
    positions = first.core.positions()
    assert positions[1] == Position(0, 0)
    store(rig, 1, a="1")
    again = World(mirror, rig, start=positions)
    again.settle()
    assert mirror.of(1) == {b"a": b"1"}


def test_a_position_that_was_given_counts_whatever_the_state_says() -> None:
    rig, mirror = node(), Mirror()
    store(rig, 0, a="1", b="2", c="3")
    world = World(mirror, rig)
    world.settle()
    uuid = rig.bucket.vbuckets[0].failover_log[0].uuid
    world.restart(start={0: Position(1, uuid)})
    world.settle()
    assert [change.seqno for change in mirror.changes] == [1, 2, 3, 2, 3]
    assert world.state.load()[0].seqno == 3


@pytest.mark.parametrize(
    "start", [{0: Position(-1, 7)}, {0: Position(2**64, 7)}, {0: Position(1, 2**64)}, {-1: (1, 1)}]
)
def test_positions_that_cannot_be_are_refused(start: Any) -> None:
    with pytest.raises(MisuseError, match=r"there is no (seqno|vBucket)"):
        World(Mirror(), node(), start=start)


# --- a vBucket that nobody has --------------------------------------------------------------------


def test_who_follows_for_ever_waits_for_ever() -> None:
    rig = node()
    rig.bucket.set_state(1, DEAD)
    world = World(Mirror(), rig, vbuckets=frozenset({1}))
    world.settle(20)
    assert world.core.streams.hopeless(world.now, 3.0) is None


def test_up_to_now_ends_with_a_named_error_for_what_is_active_nowhere(
    server: ServerProcess,
) -> None:
    set_state(server.upr, 1, DEAD)
    with (
        UprClient(str(server.upr), Recorder(), vbuckets=[0, 1], patience_s=0.3) as client,
        pytest.raises(NotActive, match="vBucket 1 is active at none of"),
    ):
        client.run(until="now", timeout_s=LIMIT_S)
    set_state(server.upr, 1, ACTIVE)


# --- handlers that fail ---------------------------------------------------------------------------

CALLS = ["mutation", "deletion", "snapshot_begin", "snapshot_end", "durable"]


@pytest.mark.parametrize("error", [ConnectionLost, NodeUnreachable, NotANode, OpenRefused])
@pytest.mark.parametrize("name", CALLS)
def test_what_a_handler_raises_is_told_even_if_it_looks_like_trouble_with_a_node(
    server: ServerProcess, name: str, error: type[Exception]
) -> None:
    """A handler may use a client of its own; that one's trouble is not ours to dial away."""
    handler = Recorder()

    def fail(*_: object) -> None:
        raise error("the handler's own")

    setattr(handler, name, fail)
    if name == "deletion":
        with_deletion(server)
    with (
        UprClient(str(server.upr), handler) as client,
        pytest.raises(error, match="the handler's own"),
    ):
        client.run(until="now", timeout_s=LIMIT_S)


def with_deletion(server: ServerProcess) -> None:
    from interop.wire import DELETE, Wire, frame

    write(server, [b"goes"])
    with Wire(server.upr) as wire:
        wire.ask(frame(DELETE, key=b"goes"))


def test_a_node_that_is_none_is_still_dialled_again_once_there_was_one() -> None:
    def stream(asked: Frame) -> bytes:
        return accepted(asked)

    joined = Joined(Mirror(), FakeProducer(stream))
    joined.settle()
    with pytest.raises(NotANode):
        joined.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert joined.core.failure is None
    assert isinstance(joined.session.error, NotANode)


# --- beginning and ending -------------------------------------------------------------------------


def test_to_close_waits_for_a_run_in_another_thread(server: ServerProcess, tmp_path: Path) -> None:
    handler, entered, go_on = Recorder(), threading.Event(), threading.Event()

    def slow(_: Change) -> None:
        entered.set()
        assert go_on.wait(LIMIT_S)

    handler.mutation = slow  # type: ignore[method-assign]
    state = tmp_path / "state.db"
    client = UprClient(str(server.upr), handler, state=state, total_vbuckets=VBUCKETS)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            client.run()
        except BaseException as error:
            failed.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    assert entered.wait(LIMIT_S)
    closer = threading.Thread(target=client.close)
    closer.start()
    go_on.set()
    closer.join(LIMIT_S)
    assert not closer.is_alive()
    runner.join(LIMIT_S)
    assert failed == []


def test_a_handler_cannot_close_the_client_it_runs_in(server: ServerProcess) -> None:
    handler = Recorder()
    client = UprClient(str(server.upr), handler)
    handler.snapshot_end = lambda *_: client.close()  # type: ignore[method-assign]
    with pytest.raises(MisuseError, match="say stop"):
        client.run(until="now", timeout_s=LIMIT_S)
    client.close()


def test_after_stop_it_can_be_started_again(server: ServerProcess) -> None:
    with UprClient(str(server.upr), Recorder()) as client:
        for _ in range(3):
            client.start()
            client.stop()


def test_a_state_serves_one_client_at_a_time(server: ServerProcess, tmp_path: Path) -> None:
    for state in (MemoryState(), SqliteState(tmp_path / "s", name="n", vbuckets=VBUCKETS)):
        first = UprClient(str(server.upr), Recorder(), state=state)
        second = UprClient(str(server.upr), Recorder(), state=state)
        first.start()
        with pytest.raises(MisuseError, match="another client"):
            second.run(until="now", timeout_s=LIMIT_S)
        first.close()
        second.run(until="now", timeout_s=LIMIT_S)
        second.close()
        state.close()


# --- bounds ---------------------------------------------------------------------------------------


def test_a_ring_of_single_keys_is_counted_in_few_pieces() -> None:
    place = VBucketPlace(0)
    trimmed = None
    for seqno in range(1, 50_001):
        place.complete(seqno)
        trimmed = place.remember(seqno, 1, 10_000) or trimmed
        assert place.pieces <= 200
    assert trimmed is not None
    assert 10_000 <= 50_000 - trimmed <= 10_400


ITEMS = 40_000


@pytest.mark.parametrize("mirror", [Mirror, DurableMirror])
def test_a_very_large_snapshot_costs_the_ring_and_no_more(mirror: type[Mirror]) -> None:
    """The ring keeps all of it; a restart inside goes on there if the handler is durable."""

    def stream(asked: Frame) -> bytes:
        return accepted(asked)

    handler = mirror()
    joined = Joined(handler, FakeProducer(stream), ring_items=100)
    joined.settle()
    (asked,) = joined.producer.asked(peer.STREAM_REQUEST)
    joined.say(marker(0, asked.opaque, 0, 1), mutation(0, asked.opaque, 1, b"first"))
    joined.say(marker(0, asked.opaque, 2, ITEMS + 10))
    for first in range(2, ITEMS, 1000):
        numbers = range(first, min(first + 1000, ITEMS))
        joined.say(*[mutation(0, asked.opaque, n, b"%d" % n, b"v") for n in numbers])
    joined.settle()
    assert len(joined.state.ring()) >= ITEMS - 2
    assert joined.core.writer.places[0].pieces < 2_000
    (saved,) = joined.state.load().values()
    assert saved.snapshot.start == 1
    assert saved.seqno == (ITEMS - 1 if mirror is DurableMirror else 1)
    again = Joined(handler, FakeProducer(stream), joined.state, ring_items=100)
    again.settle()
    (asked,) = again.producer.asked(peer.STREAM_REQUEST)
    place = [int.from_bytes(asked.extras[at : at + 8], "big") for at in (8, 32, 40)]
    assert place == ([ITEMS - 1, 1, ITEMS + 10] if mirror is DurableMirror else [1, 1, 1])


def test_a_torn_item_that_was_cut_is_nonsense_too() -> None:
    def stream(asked: Frame) -> bytes:
        return accepted(asked, then=marker(0, asked.opaque, 0, 9))

    joined = Joined(Mirror(), FakeProducer(stream))
    joined.settle()
    (asked,) = joined.producer.asked(peer.STREAM_REQUEST)
    torn = mutation(0, asked.opaque, 5, b"a", b"v", nmeta=50)
    joined.say(torn[:30])
    with pytest.raises(ProducerError, match="torn item"):
        joined.say(torn[30:])


def test_the_collector_is_as_it_was_after_a_batch_and_after_a_failure() -> None:
    def stream(asked: Frame) -> bytes:
        return accepted(asked, then=marker(0, asked.opaque, 0, 9))

    seen: list[int] = []
    mirror = Mirror()
    mirror.mutation = lambda _: seen.append(gc.get_threshold()[0])  # type: ignore[method-assign]
    before = gc.get_threshold()
    joined = Joined(mirror, FakeProducer(stream), CrashingState())
    joined.settle()
    (asked,) = joined.producer.asked(peer.STREAM_REQUEST)
    joined.say(mutation(0, asked.opaque, 1, b"a", bytes(5_000)))
    assert seen == [PATIENCE]
    assert gc.get_threshold() == before
    with pytest.raises(ProducerError):
        joined.say(mutation(0, asked.opaque, 1, b"a", b"v"))
    assert gc.get_threshold() == before
    assert gc.isenabled()
