"""The Twisted API keeps the contract of both, and what it adds: Deferreds."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.testing import StringTransport

from interop.server_process import ServerProcess, start_uprmc
from tests.client.api_contract import LIMIT_S, NOWHERE, Api, ApiContract, MakeApi, Recorder, write
from tests.client.api_contract import names as keys_of
from tests.client.twisted_api import TwistedApi, nothing_is_left
from tests.server.support import Loop
from tests.server.test_dialer import certificate_for
from uprmc.client import Change, Handler
from uprmc.client.errors import ConnectionLost, MisuseError, NodeUnreachable, WaitedTooLong
from uprmc.client.twisted_client import BATCH_MAX_BYTES, TwistedLink


@pytest.fixture(name="loop")
def _loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(name="make")
def _make(loop: Loop) -> Iterator[MakeApi]:
    made: list[Api] = []

    def make(*arguments: Any, **options: Any) -> Api:
        made.append(TwistedApi(loop, *arguments, **options))
        return made[-1]

    yield make
    for api in made:
        api.close()


class TestTwistedApi(ApiContract):
    """All of it is in the contract."""


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("data"), "--vbuckets", "2", "--no-sync") as server:
        write(server, [b"first", b"second"])
        yield server
        server.stop()


def place(server: ServerProcess) -> str:
    return str(server.upr)


class Answering(Recorder):
    """Returns what `answer` makes of each change."""

    def __init__(self, answer: Callable[[Change], Any]) -> None:
        super().__init__()
        self._answer = answer

    def mutation(self, change: Change) -> Any:
        super().mutation(change)
        return self._answer(change)


def sockets(loop: Loop) -> set[Any]:
    """What the reactor reads from."""
    return set(loop.reactor.getReaders()) - loop.reactor._internalReaders


# --- handlers that return something -------------------------------------------------------------


def test_nothing_is_handed_over_or_read_until_the_handlers_deferred_fires(
    make: MakeApi, loop: Loop, server: ServerProcess
) -> None:
    waiting: list[Deferred[None]] = []

    def answer(change: Change) -> Deferred[None]:
        waiting.append(Deferred())
        return waiting[-1]

    handler = Answering(answer)
    api = make(place(server), handler)
    api.start()
    loop.until(lambda: waiting)
    assert len(sockets(loop)) == 1
    write(server, keys_of("held", 3), value=b"x" * 1_000)  # goes out at once, behind what is held
    loop.until(lambda: not sockets(loop))
    assert (len(handler.changes), handler.diary) == (1, [])
    for deferred in waiting:  # each makes the next
        count = len(handler.changes)
        deferred.callback(None)
        if b"held-2" in handler.documents:
            break
        loop.until(lambda before=count: len(handler.changes) > before)
    if not waiting[-1].called:
        waiting[-1].callback(None)
    loop.until(lambda: len(sockets(loop)) == 1)
    api.stop()


def test_coroutines_are_waited_for_in_every_method(
    make: MakeApi, loop: Loop, server: ServerProcess
) -> None:
    class Slow(Handler):
        def __init__(self) -> None:
            self.order: list[str] = []
            self.inside = False

        async def _do(self, name: str) -> None:
            assert not self.inside
            self.inside = True
            self.order.append(name)
            await succeed(None)
            turn: Deferred[None] = Deferred()
            loop.reactor.callLater(0, turn.callback, None)
            await turn
            self.inside = False

        async def snapshot_begin(self, vbucket: int, start: int, end: int, from_disk: bool) -> None:
            await self._do("begin")

        async def mutation(self, change: Change) -> None:
            await self._do(change.key.decode())

        async def snapshot_end(self, vbucket: int, end: int) -> None:
            await self._do("end")

        async def durable(self) -> None:
            await self._do("durable")

    handler = Slow()
    api = make(place(server), handler, vbuckets=[0])
    api.run(until="now")
    assert handler.order[:3] == ["begin", "first", "second"]
    assert handler.order[-2:] == ["end", "durable"]


def test_deferreds_that_have_fired_take_no_turn_of_the_reactor_each(
    make: MakeApi, server: ServerProcess
) -> None:
    """Ten thousand of them: neither deep recursion, nor a look at the sockets for each."""
    write(server, keys_of("many", 10_000), 1, b"")
    handler = Answering(lambda change: succeed(None))
    make(place(server), handler, vbuckets=[1]).run(until="now")
    assert len(handler.changes) >= 10_000


def test_the_failure_of_a_deferred_ends_the_run_with_it(
    make: MakeApi, loop: Loop, server: ServerProcess
) -> None:
    waiting: Deferred[None] = Deferred()
    handler = Answering(lambda change: waiting)
    client = make(place(server), handler).client
    ended = client.run()
    loop.until(lambda: handler.changes)
    waiting.errback(ZeroDivisionError("mine"))
    with pytest.raises(ZeroDivisionError, match="mine"):
        loop.result(ended)
    nothing_is_left(loop)
    assert len(handler.changes) == 1
    assert client.positions()[0].seqno == 0


def test_what_is_no_deferred_is_a_misuse(make: MakeApi, server: ServerProcess) -> None:
    api = make(place(server), Answering(lambda change: 7))
    with pytest.raises(MisuseError, match="the handler returned int: "):
        api.run()


def test_a_handler_that_waits_for_a_barrier_is_told_instead_of_waiting_for_ever(
    make: MakeApi, server: ServerProcess
) -> None:
    api = make(place(server), Answering(lambda change: api.client.barrier()))
    with pytest.raises(MisuseError, match="a handler cannot wait for a barrier"):
        api.run()


def test_no_more_than_a_batch_is_read_ahead(
    make: MakeApi, loop: Loop, server: ServerProcess
) -> None:
    """Of eight megabytes that the node is allowed to send, while the handler is busy."""
    write(server, keys_of("ahead", 20), 1, b"x" * 400_000)
    waiting: Deferred[None] = Deferred()
    handler = Answering(lambda change: waiting if change.key == b"first" else None)
    api = make(place(server), handler, buffer_bytes=8_000_000)
    api.start()
    loop.until(lambda: handler.changes and not sockets(loop))
    (link,) = api.client._running._links
    assert link._size < 2 * BATCH_MAX_BYTES
    waiting.callback(None)
    loop.until(lambda: b"ahead-19" in handler.documents, LIMIT_S)
    api.stop()


class Owner:
    """Deals with nothing."""

    held = False

    def hear(self) -> None:
        pass

    def left(self, link: TwistedLink) -> None:
        pass


def test_a_link_reads_no_further_when_a_batch_waits() -> None:
    link, transport = TwistedLink(Owner(), NOWHERE, 0.0), StringTransport()
    link.transport = transport
    link.dataReceived(b"x" * (BATCH_MAX_BYTES - 1))
    assert transport.producerState == "producing"
    link.dataReceived(b"y")
    assert transport.producerState == "paused"
    link.read_on()
    assert transport.producerState == "paused"
    assert len(link.take()) == BATCH_MAX_BYTES
    assert transport.producerState == "producing"


# --- stopping -----------------------------------------------------------------------------------


def test_stop_waits_for_the_handler_and_leaves_nothing(
    make: MakeApi, loop: Loop, server: ServerProcess
) -> None:
    waiting: Deferred[None] = Deferred()
    handler = Answering(lambda change: waiting)
    client = make(place(server), handler).client
    order: list[str] = []
    client.run().addCallback(lambda _: order.append("run"))
    loop.until(lambda: handler.changes)
    client.stop().addCallback(lambda _: order.append("stop"))
    client.stop().addCallback(lambda _: order.append("stop again"))
    for _ in range(5):
        loop.reactor.iterate(0)
    assert order == []
    waiting.callback(None)
    loop.until(lambda: len(order) == 3)
    nothing_is_left(loop)
    assert loop.result(client.stop()) is None


def test_to_cancel_a_run_is_to_stop_it(make: MakeApi, loop: Loop, server: ServerProcess) -> None:
    handler = Recorder()
    client = make(place(server), handler).client
    ended = client.run()
    loop.until(lambda: handler.changes)
    ended.cancel()
    with pytest.raises(CancelledError):
        loop.result(ended)
    loop.until(lambda: client._running is None)
    nothing_is_left(loop)
    client.run(until="now")
    loop.result(client.stop())


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_is_stopped_while_it_connects_leaves_nothing(
    make: MakeApi, loop: Loop, tmp_path: Path, tls: bool
) -> None:
    certificate, _ = certificate_for(tmp_path, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0), backlog=1) as deaf:
        there = f"127.0.0.1:{deaf.getsockname()[1]}"
        client = make(there, Recorder(), tls=certificate if tls else "").client
        ended = client.run()
        loop.until(lambda: client._running._links)
        loop.reactor.iterate(0)
        loop.result(client.stop())
        loop.result(ended)
        nothing_is_left(loop)


class Never:
    """An endpoint whose connection neither comes about nor fails."""

    def __init__(self) -> None:
        self.cancelled = 0

    def __call__(self, reactor: Any, host: str, port: int) -> Never:
        return self

    def connect(self, factory: Any) -> Deferred[Any]:
        return Deferred(self._cancel)

    def _cancel(self, _: object) -> None:
        self.cancelled += 1


def test_attempts_to_connect_are_cancelled_in_time_and_at_the_end(
    make: MakeApi, loop: Loop
) -> None:
    never = Never()
    client = make(NOWHERE, Recorder(), endpoint=never, connect_timeout_s=0.05).client
    ended = client.run()
    loop.until(lambda: never.cancelled == 1)
    loop.until(lambda: client._running._links)
    loop.result(client.stop())
    loop.result(ended)
    assert never.cancelled == 2


def test_a_node_that_never_ends_its_handshake_is_given_up(
    make: MakeApi, loop: Loop, tmp_path: Path
) -> None:
    certificate, _ = certificate_for(tmp_path, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        there = f"127.0.0.1:{deaf.getsockname()[1]}"
        options = {"tls": certificate, "connect_timeout_s": 0.1, "patience_s": 0.3}
        with pytest.raises(NodeUnreachable, match="in time"):
            make(there, Recorder(), **options).run()


def test_what_stop_breaks_says_so(make: MakeApi, loop: Loop) -> None:
    client = make(NOWHERE, Recorder()).client
    ended = client.run()
    asked_again: list[Deferred[None]] = []
    barrier = client.barrier()
    barrier.addBoth(lambda broken: (asked_again.append(client.barrier()), broken)[1])
    loop.result(client.stop())
    for waiting in (barrier, *asked_again):
        with pytest.raises(ConnectionLost, match="was stopped"):
            loop.result(waiting)
    assert asked_again
    loop.result(ended)


def test_a_barrier_that_nobody_waits_for_is_forgotten(make: MakeApi, loop: Loop) -> None:
    client = make(NOWHERE, Recorder(), patience_s=None).client
    client.run()
    barrier = client.barrier("mine")
    barrier.cancel()
    with pytest.raises(CancelledError):
        loop.result(barrier)
    again = client.barrier("mine", timeout_s=0.05)
    with pytest.raises(WaitedTooLong):
        loop.result(again)
    loop.result(client.stop())
    nothing_is_left(loop)


# --- imports ------------------------------------------------------------------------------------


def ran(*lines: str) -> str:
    """Run a program in a process of its own and return what it printed."""
    command = [sys.executable, "-W", "error", "-c", "\n".join(lines)]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=LIMIT_S
    ).stdout.strip()


def test_the_blocking_client_imports_no_twisted() -> None:
    shown = ran(
        "import sys, uprmc.client, uprmc.client.blocking, uprmc.client.kv",
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('twisted', 'zope')))",
    )
    assert shown == "[]"


def test_the_twisted_client_installs_no_reactor_by_being_imported_or_given_one() -> None:
    shown = ran(
        "import sys, uprmc.client.twisted_client as t",
        "from twisted.internet.selectreactor import SelectReactor",
        "t.TwistedUprClient('127.0.0.1:1', t.Handler(), reactor=SelectReactor())",
        "print('twisted.internet.reactor' in sys.modules)",
    )
    assert shown == "False"


def test_a_program_with_the_processs_reactor_reaches_nodes_by_name(server: ServerProcess) -> None:
    assert server.upr is not None
    shown = ran(
        "from twisted.internet import task",
        "from uprmc.client import Handler",
        "from uprmc.client.twisted_client import TwistedUprClient",
        "class Printer(Handler):",
        "    async def mutation(self, change):",
        "        print(change.key.decode(), end=' ')",
        "def main(reactor):",
        f"    client = TwistedUprClient('localhost:{server.upr.port}', Printer(), vbuckets=[0])",
        "    return client.run(until='now')",
        "task.react(main)",
    )
    assert shown.startswith("first second")
