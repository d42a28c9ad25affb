"""A peer that reads nothing any more, and every way in which its conversation ends.

A connection whose transport takes nothing is never pulled. Whatever ends the conversation must
reach it all the same: at once it holds nothing of the node, and in the end it is cut off.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from interop import tap_wire as t
from tests.kv.harness import Rig
from tests.server.support import Node, SlowTransport
from tests.upr.peer import (
    ADD_STREAM,
    PRODUCER,
    control,
    frame,
    hello,
    opening,
    stream_request,
)
from uprmc.kv.session import Negotiation
from uprmc.model import VBucketState
from uprmc.protocol.tap import ConnectFlag
from uprmc.server.net.adapter import FAREWELL_S, SessionProtocol
from uprmc.tap_adapter.node_tap import NodeTap

_NAME = b"slow"


class World:
    """A node with much on its disk, and connections to it over transports that a test drains."""

    def __init__(self) -> None:
        self.rig = rig = Rig()
        for number in range(200):
            rig.bucket.vbuckets[0].store(b"k%d" % number, bytes(1_000), 0, 0)
        rig.flush()
        self.node = Node(lambda wake: Negotiation(rig.services, wake, by_key=False))
        rig.services.tap = self.tap = NodeTap(
            rig.services.upr, rig.settings.tap, self.node.clock.seconds, lambda: b""
        )

    def connect(self, *frames: bytes, limit: int = 1_024) -> SessionProtocol:
        """Connect a peer that says this; its transport takes `limit` bytes until it is drained."""
        protocol = self.node.connect(SlowTransport(limit))
        for each in frames:
            protocol.dataReceived(each)
            self.node.turn()
            protocol.tick(self.node.clock.seconds())
        return protocol

    def ticks(self, protocol: SessionProtocol, seconds: float) -> None:
        """Let time pass, with a tick each second."""
        for _ in range(int(seconds)):
            self.node.clock.advance(1)
            self.rig.clock.time += 1
            protocol.tick(self.node.clock.seconds())


def _producer(world: World) -> SessionProtocol:
    noop = control(b"enable_noop", b"true")
    return world.connect(hello(), opening(_NAME), noop, stream_request(0))


def _add_stream(number: int) -> bytes:
    return frame(ADD_STREAM, extras=bytes(4), vbucket=number)


def _consumer(world: World) -> SessionProtocol:
    """The other side of UPR: what it asks for fills the transport already."""
    for number in (1, 2):
        world.rig.bucket.set_state(number, VBucketState.REPLICA)
    return world.connect(hello(), opening(_NAME, 0), *map(_add_stream, (1, 2)), limit=100)


def _tap(world: World) -> SessionProtocol:
    return world.connect(t.connect(_NAME, ConnectFlag(0)))


def _taken_by_upr(world: World, protocol: SessionProtocol) -> None:
    world.connect(opening(_NAME, PRODUCER), limit=1 << 20)


def _taken_by_tap(world: World, protocol: SessionProtocol) -> None:
    world.connect(t.connect(_NAME, ConnectFlag.SUPPORT_ACK), limit=1 << 20)


def _deregistered(world: World, protocol: SessionProtocol) -> None:
    world.tap.registry.deregister(_NAME)


def _silent(world: World, protocol: SessionProtocol) -> None:
    """Its keep-alives are not answered."""
    world.ticks(protocol, 3 * world.rig.settings.upr.noop_interval_s)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (_producer, _taken_by_upr),
        (_producer, _silent),
        (_consumer, _taken_by_upr),
        (_consumer, _silent),
        (_tap, _taken_by_tap),
        (_tap, _deregistered),
    ],
)
def test_however_it_is_closed_it_holds_nothing_and_is_cut_off(
    kind: Callable[[World], SessionProtocol], way: Callable[[World, SessionProtocol], None]
) -> None:
    world = World()
    protocol = kind(world)
    assert "output-full" in world.node.states(), "it was to be one that does not read"
    way(world, protocol)
    world.ticks(protocol, 1)
    assert protocol.session.closing
    assert world.rig.store.grow(), "a view is open, and the store cannot grow"
    assert not world.rig.bucket.flusher.paused
    world.ticks(protocol, FAREWELL_S)
    assert protocol.transport.aborted
    protocol.connectionLost()
    assert _NAME not in world.rig.services.upr.consumers


def test_a_peer_that_is_displaced_in_mid_conversation_begins_nothing_more() -> None:
    world = World()
    first = world.connect(hello(), opening(_NAME), limit=1 << 20)
    second = world.connect(hello(), opening(_NAME), limit=1 << 20)
    first.dataReceived(stream_request(0))
    producers = world.rig.services.upr.producers
    assert [producer.feed.streams for producer in producers.values()] == [{}]
    world.node.turn()
    assert first.transport.disconnecting
    assert not second.transport.disconnecting
