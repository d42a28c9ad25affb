"""A handler may work for longer than keep-alives allow: they are answered meanwhile."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from interop.server_process import ServerProcess, start_uprmc
from tests.client.consumer_world import World, node
from tests.client.test_real_server import Kv
from tests.server.support import Loop
from tests.upr.peer import frame
from uprmc.client import Change, Handler, UprClient
from uprmc.client.node_session import NodeReadAhead, NodeSession
from uprmc.client.twisted_client import TwistedUprClient

NOOP, MUTATION = 0x5C, 0x57

#: Keep-alives of the tests, and how long their handler works.
INTERVAL_S, WORK_S = 0.5, 3.0


def noop(opaque: int) -> bytes:
    return frame(NOOP, opaque=opaque)


_FRAMES = st.lists(
    st.one_of(
        st.integers(1, 2**32 - 1).map(noop),
        st.binary(max_size=60).map(lambda value: frame(MUTATION, value=value)),
    ),
    max_size=12,
)


@given(_FRAMES, st.integers(0, 400), st.lists(st.integers(1, 50), max_size=30))
def test_keep_alives_are_found_wherever_the_bytes_are_cut(
    frames: list[bytes], begun_at: int, cuts: list[int]
) -> None:
    """What was begun before is the first part of a frame; answers bear the opaques."""
    data = b"".join(frames)
    starts = [sum(map(len, frames[:number])) for number in range(len(frames) + 1)]
    begun_at = min(begun_at, len(data))
    start = max(each for each in starts if each <= begun_at)
    ahead, answers, rest = NodeReadAhead(), b"", data[begun_at:]
    for cut in [*cuts, len(rest)]:
        answers += ahead.hear(rest[:cut], data[start:begun_at])
        rest = rest[cut:]
    opaques = [struct.unpack_from(">I", answers, at + 12)[0] for at in range(0, len(answers), 24)]
    whole = [each for each, at in zip(frames, starts, strict=False) if at + len(each) > begun_at]
    wanted = [struct.unpack_from(">I", each, 12)[0] for each in whole if each[1] == NOOP]
    assert opaques == wanted
    assert ahead.size == len(data) - begun_at


def test_what_was_answered_ahead_is_not_answered_again() -> None:
    session = NodeSession("node:1", "name")
    session.receive(noop(1)[:10], 0.0)
    assert struct.unpack_from(">I", session.hear_ahead(noop(1)[10:] + noop(2)), 12) == (1,)
    session.receive(noop(1)[10:], 0.0)
    session.receive(noop(2) + noop(3), 0.0)
    assert struct.unpack_from(">I", session.data_to_send(), 12) == (3,)


def test_only_time_in_which_one_listens_counts_as_silence() -> None:
    world = World(Slow(), node(), noop_interval_s=10.0)
    world.settle(1)
    (session,) = world.core.nodes.sessions()
    world._ends[session].take = lambda data: b""  # type: ignore[method-assign]
    for _ in range(5):
        world.now += 1000.0  # a handler worked
        world.settle()
    assert session.error is None
    world.settle(20)
    assert session.error is None
    world.settle(5)
    assert "is silent for 22 s" in str(session.error)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("data"), "--vbuckets", "4") as running:
        with Kv(running) as kv:
            kv.set(0, *[b"key-%d" % number for number in range(20)])
        yield running


class Slow(Handler):
    """Works for long at the first change."""

    def __init__(self, first_takes_s: float = WORK_S) -> None:
        self._first_takes_s = first_takes_s
        self.changes: list[Change] = []

    def mutation(self, change: Change) -> None:
        self.changes.append(change)
        if len(self.changes) == 1:
            time.sleep(self._first_takes_s)  # this is what is tested


def test_a_blocking_handler_may_work_longer_than_keep_alives_allow(server: ServerProcess) -> None:
    handler = Slow()
    with UprClient(str(server.upr), handler, noop_interval_s=INTERVAL_S) as client:
        client.run("now")
        (node,) = client.metrics().nodes.values()
    assert node.last_error == ""
    assert len(handler.changes) == 20


def test_who_runs_the_loop_by_steps_may_take_time_between_them(server: ServerProcess) -> None:
    """As somebody who prints does, while nobody reads."""
    handler = Slow(first_takes_s=0.0)
    client = UprClient(str(server.upr), handler, noop_interval_s=INTERVAL_S)
    with client, client.running_loop(None) as loop:
        steps = loop.steps(None, WORK_S + 60)
        while len(handler.changes) < 20:
            next(steps)
        time.sleep(WORK_S)  # this is what is tested: nothing can be waited for instead
        for _ in range(3):
            next(steps)
        (node,) = client.metrics().nodes.values()
        assert (node.connected, node.last_error) == (True, "")


def test_a_handlers_deferred_may_take_longer_than_keep_alives_allow(
    server: ServerProcess, loop: Loop
) -> None:
    class Waiting(Slow):
        def mutation(self, change: Change) -> Deferred[None] | None:  # type: ignore[override]
            self.changes.append(change)
            if len(self.changes) > 1:
                return None
            waited_for: Deferred[None] = Deferred()
            loop.reactor.callLater(WORK_S, waited_for.callback, None)
            return waited_for

    handler = Waiting()
    client = TwistedUprClient(
        str(server.upr), handler, noop_interval_s=INTERVAL_S, reactor=loop.reactor
    )
    loop.result(client.run("now"), 60)
    (node,) = client.metrics().nodes.values()
    loop.result(client.close())
    assert node.last_error == ""
    assert len(handler.changes) == 20
