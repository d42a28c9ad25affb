"""TAP on a real node's sockets: what a reviewer tried that a client might do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from interop import tap_wire as t
from tests.system.support import node_here
from tests.system.test_tap import TapClient, expected, filled, put

pytestmark = pytest.mark.acceptance("D56")


def test_a_client_that_closes_its_half_gets_its_dump_also_when_the_disk_is_busy(
    tmp_path: Path,
) -> None:
    with filled(tmp_path) as (node, loop):
        permits = node.upr.backfills
        for _ in range(permits.limit):
            assert permits.take(_unused)
        client = TapClient(loop, node)
        client.send(t.connect(b"half", t.DUMP))
        client.socket.socket.shutdown(socket.SHUT_WR)
        client.until(lambda client: len(client.opaques(t.INITIAL)) == 4)
        turns = iter(range(20))
        loop.until(lambda: next(turns, None) is None)
        for _ in range(permits.limit):
            permits.free(_unused)
        client.until_closed()
        assert client.items == expected()


def _unused() -> bool:
    return False


def test_checkpoints_of_many_vbuckets_reach_a_registered_client_together(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.send(t.connect(b"reg", t.SUPPORT_ACK | t.CHECKPOINT | t.REGISTERED))
        everywhere = sorted(node.bucket.vbuckets)
        client.until(lambda client: sorted(client.opaques(t.CLOSE_BACKFILL)) == everywhere)
        for number in range(64):
            put(node, b"key-%d" % number, b"value")
        client.until(lambda client: len(client.items) == 64)
        opcodes = [each.opcode for each in client.received]
        begun = opcodes.index(t.CHECKPOINT_START)
        count = len(everywhere)
        assert opcodes[begun : begun + count] == [t.CHECKPOINT_START] * count
