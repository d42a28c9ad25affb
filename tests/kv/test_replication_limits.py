"""Commands that operate replicas, in bad moments and with much in them."""

from __future__ import annotations

import pytest

from tests.kv.test_replication_commands import (
    ACTIVE,
    FAILOVER,
    NOOP,
    OK,
    RANGE,
    TAKEOVER,
    TEMPORARY,
    A,
    Peer,
    World,
    frame,
    one,
    peer,
    refused,
    replicate,
    vbuckets,
    world,
)

__all__ = ["peer", "world"]


@pytest.mark.parametrize("request_", [replicate(A, 0), frame(FAILOVER, b"", vbuckets(0))])
def test_nobody_waits_for_a_disk_that_nobody_writes_to(
    world: World, peer: Peer, request_: bytes
) -> None:
    world.bucket.flusher.pause()
    answer, after = peer.ask(request_, frame(NOOP))
    assert (answer.status, after.opcode) == (TEMPORARY, NOOP)
    assert b"not on disk yet" in answer.value
    assert b"persistence is stopped" in answer.value
    world.bucket.flusher.resume()
    world.rig.flush()
    assert peer.ask() == []


@pytest.mark.parametrize("request_", [FAILOVER, TAKEOVER])
def test_one_vbucket_named_65536_times_is_one(world: World, peer: Peer, request_: int) -> None:
    if request_ == FAILOVER:
        reply = one(peer, frame(FAILOVER, b"", vbuckets(*[1] * 65_536)))
        assert (reply.status, len(reply.value)) == (OK, 18)
        return
    assert peer.ask(frame(TAKEOVER, A.encode(), vbuckets(*[1] * 65_536))) == []
    assert world.replication.handovers[0].numbers == [1]


def test_every_number_that_there_can_be_is_refused_in_one_short_line(
    world: World, peer: Peer
) -> None:
    for numbers in (range(65_536), range(0, 65_536, 2)):
        status, text = refused(peer, frame(FAILOVER, b"", vbuckets(*numbers)))
        assert (status, len(text) < 300) == (RANGE, True)
    assert world.states() == [ACTIVE] * 4
