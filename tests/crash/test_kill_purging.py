"""``kill -9`` in the middle of purges: no document is lost, no deletion above the purge seqno."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.wire import DELETE, OK, SET, Wire, frame, store
from uprmc.protocol.management import COMPACT_EXTRAS, CompactFlag
from uprmc.protocol.opcodes import Opcode

pytestmark = pytest.mark.crash

VBUCKETS = 4
BURIED = 400
OPTIONS = ("--vbuckets", str(VBUCKETS), "--set", "purge.min_age_s=0")
OPTIONS += ("--set", "purge.batch_items=20")
NOW = COMPACT_EXTRAS.pack(0, 0, 0, bytes([CompactFlag.AGED | CompactFlag.NO_WAIT]) + bytes(6))


def ask(wire: Wire, *frames: bytes) -> None:
    wire.send(*frames)
    assert all(wire.reply().status == OK for _ in frames)


def bury(wire: Wire, number: int) -> None:
    """Leave deletions in every vBucket and a document behind them, all of it on disk."""
    for vbucket in range(VBUCKETS):
        keys = [b"%d-%d" % (number, each) for each in range(BURIED)]
        ask(wire, *(store(SET, key, b"v", vbucket=vbucket) for key in keys))
        ask(wire, *(frame(DELETE, key, vbucket=vbucket) for key in keys))
        ask(wire, store(SET, b"kept-%d" % number, b"v", vbucket=vbucket))
        seqno = (number + 1) * (2 * BURIED + 1)
        extras = seqno.to_bytes(8, "big")
        ask(wire, frame(Opcode.SEQNO_PERSISTENCE, extras=extras, vbucket=vbucket))


def changes(server: ServerProcess) -> list[tuple[int, int, str]]:
    """Return (vBucket, seqno, what) of everything that the node has."""
    command = [sys.executable, "-m", "uprmc", "tail", "--node", str(server.upr), "--json"]
    command += ["--start", "0", "--until-now"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = map(json.loads, ended.stdout.splitlines())
    return [(line["vbucket"], line["seqno"], line["op"]) for line in lines]


def purge_seqnos(wire: Wire) -> list[int]:
    stats = wire.statistics(b"vbucket-seqno")
    return [int(stats[b"vb_%d:purge_seqno" % number]) for number in range(VBUCKETS)]


@pytest.mark.acceptance("X17")
def test_a_kill_in_the_middle_of_a_purge_loses_no_more_than_the_purge_seqno_says(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    asked_for: int | None = request.config.getoption("--crash-seed")
    seed = secrets.randbits(32) if asked_for is None else asked_for
    print(f"repeat with: pytest tests/crash --crash-seed {seed}")  # noqa: T201 - shown when the test fails
    random = Random(seed)
    each = 2 * BURIED + 1
    before = [0] * VBUCKETS
    for number in range(4):
        with start_uprmc(tmp_path, *OPTIONS) as server:
            assert server.upr is not None
            with Wire(server.upr) as wire:
                bury(wire, number)
                for vbucket in range(VBUCKETS):
                    ask(wire, frame(Opcode.COMPACT_DB, extras=NOW, vbucket=vbucket))
                deadline = time.monotonic() + 60.0
                while purge_seqnos(wire) == before:
                    assert time.monotonic() < deadline, "nothing is purged"
                time.sleep(random.uniform(0.0, 0.1))
                server.kill()
        with start_uprmc(tmp_path, *OPTIONS) as server:
            assert server.upr is not None
            with Wire(server.upr) as wire:
                purged = purge_seqnos(wire)
            assert all(now >= then for now, then in zip(purged, before, strict=True))
            before, found = purged, changes(server)
            for vbucket in range(VBUCKETS):
                left = {(seqno, what) for vb, seqno, what in found if vb == vbucket}
                for past in range(number + 1):
                    end = each * (past + 1)
                    assert (end, "set") in left, "a document is lost"
                    deletions = range(end - BURIED, end)
                    lost = [at for at in deletions if (at, "delete") not in left]
                    assert max(lost, default=0) <= purged[vbucket], "a deletion can be missed"
            server.stop()
