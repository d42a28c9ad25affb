"""Connections that a node opens: ends that nobody helps with, names that are none."""

from __future__ import annotations

import socket

import pytest

from tests.server.support import Loop
from tests.server.test_dialer import World, deaf, place_of

__all__ = ["deaf"]


@pytest.fixture
def world(loop: Loop) -> World:
    return World(loop)


def test_a_session_that_has_had_enough_does_not_wait_for_a_silent_peer(
    world: World, deaf: socket.socket, loop: Loop
) -> None:
    world.dial(place_of(deaf))
    loop.until(lambda: world.sessions)
    (session,) = world.sessions
    accepted, _ = deaf.accept()
    with accepted:
        session.out.append(b"x" * (32 << 20))  # never taken
        session.wake()
        loop.until(lambda: session.out == [])
        session.closing = True
        world.connections.tick()
        loop.until(lambda: session.lost, 5.0)
    assert world.connections.current == 0


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example", "."])
def test_a_name_that_cannot_be_one_is_not_known(world: World, host: str) -> None:
    assert world.failure(f"{host}:1") == f"host {host} is not known"
