"""``kill -9`` of an active and its replica, together or apart: what each said is on disk is there.

As `test_kill`, with a replica beside: the active is judged after every restart, the replica is
compared with it once it is level, and at the end the active does not come back: the replica, killed
as well, has to show everything that it had said is on its own disk.
"""

from __future__ import annotations

import secrets
import struct
import time
from pathlib import Path
from random import Random

import pytest

from interop import upr_wire as u
from interop.comparison import expect_equal
from interop.replica_pair import Node, ReplicaPair, fail_over, replicate, wait_until_level
from interop.wire import frame
from tests.crash.judge import Judge
from tests.crash.test_kill import KEYS
from tests.crash.writer import Writer, read_all

pytestmark = pytest.mark.crash

VBUCKETS = range(1_024)
LONGEST_WRITING_S = 0.8


@pytest.mark.acceptance("D51", "D54")
def test_what_a_replica_said_is_on_its_disk_survives_its_active(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds: int = max(2, request.config.getoption("--crash-rounds") // 4)
    asked_for: int | None = request.config.getoption("--crash-seed")
    seed = secrets.randbits(32) if asked_for is None else asked_for
    print(f"repeat with: pytest tests/crash --crash-seed {seed}")  # noqa: T201 - shown when the test fails
    random, judge, version = Random(seed), Judge(), 0

    with ReplicaPair(tmp_path, "--set", "upr.redial_max_s=0.3") as pair:
        replicate(pair.b, pair.dialled(pair.a))
        for number in range(rounds):
            version = write(pair.a, random, judge, version, kill=True)
            if random.random() < 0.7:
                pair.b.kill()
                pair.b.start()
            pair.a.start()
            complaints = judge.restarted(read_all(pair.a.upr, judge.keys))
            assert not complaints, f"seed {seed}, round {number}: " + "\n".join(complaints[:20])
            wait_until_level(pair.a, pair.b)
            expect_equal(pair.a.upr, pair.b.upr, VBUCKETS)

        write(pair.a, random, judge, version, kill=False)
        wait_until_level(pair.a, pair.b)
        wait_until_on_disk(pair.b)
        judge.confirm_everything()
        pair.a.kill()
        pair.b.kill()
        pair.b.start()
        fail_over(pair.b, VBUCKETS)
        complaints = judge.restarted(read_all(pair.b.upr, judge.keys))
        assert not complaints, f"seed {seed}, at the end: " + "\n".join(complaints[:20])
        pair.b.stop()


def write(node: Node, random: Random, judge: Judge, version: int, *, kill: bool) -> int:
    """Write for a while, then kill the node or read all answers; gives the last version."""
    writer = Writer(node.upr, KEYS, random, judge, version)
    try:
        writer.write_until(time.monotonic() + random.uniform(0.01, LONGEST_WRITING_S))
        if kill:
            node.kill()
            writer.drain()
        else:
            writer.finish(30.0)
    finally:
        writer.close()
    return writer.version


def wait_until_on_disk(node: Node) -> None:
    """The node answers when everything it holds is on its disk."""
    with node.wire() as wire:
        asked = [
            frame(u.SEQNO_PERSISTENCE, extras=struct.pack(">Q", seqno), vbucket=number)
            for number, seqno in wire.high_seqnos().items()
        ]
        assert {answer.status for answer in wire.replies_until_noop(*asked)} == {0}
