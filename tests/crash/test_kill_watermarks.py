"""``kill -9`` of a source and its replica: who is promoted still knows whom it must wait for."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from interop.replica_pair import Node, ReplicaPair, fail_over, replicate, wait_until_level
from interop.waiting import wait_until
from interop.wire import DELETE, OK, SET, frame, store
from uprmc.protocol.management import COMPACT_EXTRAS
from uprmc.protocol.opcodes import Opcode

pytestmark = pytest.mark.crash

VBUCKET = 5
OPTIONS = ("upr.redial_max_s=0.3", "upr.watermarks_interval_s=0.1", "purge.min_age_s=0")
EVERYTHING = COMPACT_EXTRAS.pack(0, 0, 1, bytes(7))


def statistics(node: Node) -> dict[str, str]:
    with node.wire() as wire:
        found = wire.statistics(b"watermarks %d" % VBUCKET)
    return {key.decode(): value.decode() for key, value in found.items()}


def ask(node: Node, *frames: bytes) -> None:
    with node.wire() as wire:
        assert {answer.status for answer in wire.replies_until_noop(*frames)} == {OK}


def bury(node: Node, name: str) -> None:
    keys = [b"%s-%d" % (name.encode(), number) for number in range(20)]
    ask(
        node,
        *(store(SET, key, b"v", vbucket=VBUCKET) for key in keys),
        *(frame(DELETE, key, vbucket=VBUCKET) for key in keys[:10]),
        store(SET, b"last", b"v", vbucket=VBUCKET),
    )


def register(node: Node, seqno: int) -> None:
    command = [sys.executable, "-m", "uprmc", "watermarks", "set", "east", "--kind", "xdcr"]
    command += ["--seqno", str(seqno), "--vbuckets", str(VBUCKET), "--node", str(node.upr)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def watermark(node: Node) -> str | None:
    return statistics(node).get(f"vb_{VBUCKET}:row_east:watermark")


@pytest.mark.acceptance("X20", "X22", "X26")
def test_a_promoted_replica_that_was_killed_keeps_what_a_client_needs(tmp_path: Path) -> None:
    options = [word for each in OPTIONS for word in ("--set", each)]
    with ReplicaPair(tmp_path, *options) as pair:
        replicate(pair.b, pair.dialled(pair.a))
        bury(pair.a, "one")
        wait_until_level(pair.a, pair.b)
        register(pair.a, 15)
        known = partial(watermark, pair.b)
        wait_until(lambda: known() == "15", lambda: f"the replica has {known()}", 60.0)
        bury(pair.a, "two")
        wait_until_level(pair.a, pair.b)
        with pair.b.wire() as wire:
            (high,) = {seqno for vb, seqno in wire.high_seqnos().items() if vb == VBUCKET}
            wire.send(frame(Opcode.SEQNO_PERSISTENCE, extras=high.to_bytes(8, "big"), vbucket=5))
            assert wire.reply().status == OK
        pair.a.kill()
        pair.b.kill()
        pair.b.start()
        assert watermark(pair.b) == "15"
        fail_over(pair.b, [VBUCKET])
        assert watermark(pair.b) == "15"
        bury(pair.b, "three")
        ask(pair.b, frame(Opcode.COMPACT_DB, extras=EVERYTHING, vbucket=VBUCKET))
        found = statistics(pair.b)
        assert int(found[f"vb_{VBUCKET}:purge_seqno"]) <= 15
        assert found[f"vb_{VBUCKET}:limited_by"] == "east"
        pair.b.stop()
