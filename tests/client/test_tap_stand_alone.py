"""The whole adapter on a remote upstream, in this process: branches of history, and what is lost.

Clients are `interop.tap_copy`'s, nodes are real ones without sockets.
"""

from __future__ import annotations

from typing import Any

import pytest

from interop import tap_wire as t
from interop.tap_copy import Document, Documents, TapCopy
from tests.client.consumer_world import ServerEnd, fail_over, node, replicate, standby
from tests.client.consumer_world import write as store
from tests.client.tap_world import PLACE, Call
from tests.contents import table_of
from tests.kv.harness import ManualClock, Rig
from uprmc.client.tap_state import MemoryKeeper
from uprmc.client.tap_upstream import RemoteUpstream, connection_name
from uprmc.config import TapSettings
from uprmc.tap_adapter.names import Names
from uprmc.tap_adapter.session import TapRegistry, TapSession
from uprmc.tap_adapter.upstream import Upstream

LIVE = t.BACKFILL | t.SUPPORT_ACK | t.FIX_FLAGS

_ROUNDS_MAX = 20_000


class Adapter:
    """A door whose upstream is a node that may change; time passes when a test says so.

    Attributes:
        rig: the node that answers who dials now; ``None`` = nobody does.
        closed: why clients were hung up on.
    """

    def __init__(self, rig: Rig | None, **settings: Any) -> None:
        self.rig = rig
        self.now = 1000.0
        self.closed: list[str] = []
        self._calls: list[tuple[Call, ServerEnd]] = []
        found = TapSettings(**settings)
        names = Names(found, MemoryKeeper())
        self.registry = TapRegistry(found, names, self._upstream, ManualClock(), lambda: self.now)
        self.registry.on_closed = lambda name, why, done: self.closed.append(why)

    def _upstream(self, name: bytes, values: bool, wake: Any) -> Upstream:
        call = Call()
        made = RemoteUpstream(call, PLACE, connection_name(name), values, wake)
        if self.rig is None:
            call.failed("connection refused")
        else:
            call.connect()
            self._calls.append((call, ServerEnd(self.rig)))
        return made

    def carry(self) -> bool:
        """Carry what is there between upstreams and nodes."""
        moved = False
        for call, end in self._calls:
            if call.session is not None and not call.abandoned:
                moved |= call.carry(end)
        return moved or bool(self.rig and self.rig.fetch())

    def cut(self) -> None:
        """Lose every connection to the node."""
        for call, end in self._calls:
            end.session.connection_lost()
            if call.session is not None:
                call.session.connection_lost()
        self._calls.clear()


class Client:
    """A TAP client in this process, with a copy that may be older than it."""

    def __init__(self, adapter: Adapter, request: bytes, copy: TapCopy | None = None) -> None:
        self.copy = copy or TapCopy()
        self.copy.begin()
        self.acks = True
        self._unanswered: list[t.TapFrame] = []
        self._adapter = adapter
        self._rest = b""
        self._session: TapSession = TapSession(adapter.registry, lambda: None)
        self._session.receive_data(request)

    @property
    def closed(self) -> bool:
        return self._session.closing

    def settle(self) -> None:
        """Let everything arrive and be acknowledged."""
        for _ in range(_ROUNDS_MAX):
            moved = self._adapter.carry()
            pieces = self._session.data_to_send(1 << 16)
            self._take(b"".join(pieces))
            if not moved and not pieces:
                return
        raise AssertionError("it never comes to rest")

    def tick(self, seconds: float) -> None:
        self._adapter.now += seconds
        self._session.tick(self._adapter.now)
        self.settle()

    def answer(self) -> None:
        """Acknowledge what was not, and everything from now on."""
        self.acks = True
        asked, self._unanswered = self._unanswered, []
        for frame in asked:
            self._session.receive_data(t.answer(frame))

    def hang_up(self) -> None:
        self._session.connection_lost()

    def _take(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= 24:
            end = 24 + int.from_bytes(self._rest[8:12], "big")
            if len(self._rest) < end:
                return
            frame, self._rest = t.TapFrame.of(self._rest[:end]), self._rest[end:]
            self.copy.take(frame)
            if frame.opcode != t.NOOP and frame.wants_ack:
                self._unanswered.append(frame)
        if self.acks:
            self.answer()


def documents(rig: Rig) -> Documents:
    return {
        (number, item.key): Document(item.value or b"", item.flags, item.expiry, item.cas, item.rev)
        for number, part in rig.bucket.vbuckets.items()
        for item in table_of(part).values()
        if not item.life
    }


@pytest.mark.parametrize("rollback", ["rewind", "restart"])
def test_a_branch_of_history_is_mended_as_asked(rollback: str) -> None:
    first, second = node(100), standby(300)
    store(first, 0, shared="1", changed="1", removed="1")
    replicate(first, second)
    adapter = Adapter(first, rollback=rollback, keepalive_s=60.0)
    asked = t.connect(b"replica1", LIVE, oldest=0)
    client = Client(adapter, asked)
    client.settle()
    store(first, 0, changed="lost", new="lost", removed="")
    client.settle()
    assert client.copy.documents == documents(first)
    client.hang_up()
    adapter.cut()
    fail_over(first, second)
    store(second, 0, other="2")
    adapter.rig = second
    resets = client.copy.kinds[t.OPAQUE, t.INITIAL]
    client = Client(adapter, asked, client.copy)
    client.settle()
    assert client.copy.documents == documents(second)
    began_anew = client.copy.kinds[t.OPAQUE, t.INITIAL] - resets
    assert began_anew == (1 if rollback == "restart" else 0)


def test_a_client_that_is_gated_is_hung_up_on_when_the_upstream_is_gone() -> None:
    adapter = Adapter(node(100))
    client = Client(adapter, t.connect(b"sleepy", LIVE))
    client.acks = False
    client.settle()
    adapter.cut()
    client.tick(1.0)
    assert client.closed
    assert adapter.closed == ["the connection to the upstream at upstream:1 ended"]


def test_a_client_whose_upstream_cannot_be_dialled_is_hung_up_on() -> None:
    adapter = Adapter(None)
    client = Client(adapter, t.connect(b"early", t.BACKFILL))
    client.settle()
    client.tick(1.0)
    assert client.closed
    assert adapter.closed == ["the upstream at upstream:1: connection refused"]
    adapter.rig = node(100)
    store(adapter.rig, 0, a="1")
    client = Client(adapter, t.connect(b"early", t.BACKFILL | t.FIX_FLAGS))
    client.settle()
    assert client.copy.documents == documents(adapter.rig)


def test_what_is_written_between_the_connect_and_the_first_ack_is_not_missed() -> None:
    rig = node(100)
    store(rig, 0, before="1")
    client = Client(Adapter(rig), t.connect(b"now", LIVE, oldest=t.NO_BACKFILL))
    client.acks = False
    client.settle()
    store(rig, 0, meanwhile="1")
    client.settle()
    assert client.copy.documents == {}
    client.answer()
    client.settle()
    assert set(client.copy.documents) == {(0, b"meanwhile")}
