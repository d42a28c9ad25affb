"""A process that commits is killed at a random moment: what is left is one committed state."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest

from interop.nursery import popen
from tests.contracts.store_values import by_id, by_seq
from tests.storage.processes import ROOT, python_command
from uprmc.storage.directory import open_directory

KEYS = 150
VBUCKETS = (0, 5)

WRITER = """
import sys
from pathlib import Path
from tests.contents import change_of
from tests.contracts.store_values import header, live
from tests.storage.test_kill import KEYS, VBUCKETS
from uprmc.errors import StoreMapFull
from uprmc.storage.directory import open_directory
from uprmc.storage.interface import CommitBatch

store = open_directory(Path(sys.argv[1]), uuid=1, sync=sys.argv[2] == "sync")
number = int(store.local(b"number") or 0)
while True:
    number += 1
    first = number * KEYS
    value = b"%d," % number * 90
    items = [live(b"key-%03d" % at, first + at, value) for at in range(KEYS)]
    changes = [change_of(vbucket, header(first), items) for vbucket in VBUCKETS]
    store.commit(CommitBatch(changes, local={b"number": b"%d" % number}))
    sys.stdout.write("%d\\n" % number)
    sys.stdout.flush()
"""


def killed_after(path: Path, mode: str, lines: int) -> int:
    """Let the writer tell of so many commits, kill it in the next, return the last one it told."""
    with popen(
        python_command(WRITER, str(path), mode), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        told += writer.stdout.read().splitlines()
    return int(told[-1])


@pytest.mark.crash
@pytest.mark.acceptance("D21")
@pytest.mark.parametrize("mode", ["sync", "nosync"])
def test_a_killed_writer_leaves_exactly_one_committed_state(tmp_path: Path, mode: str) -> None:
    random, path = Random(mode), tmp_path / "data"
    for _ in range(5):
        told = killed_after(path, mode, random.randint(1, 60))
        store = open_directory(path, uuid=2)
        number = int(store.local(b"number") or 0)
        assert number >= told
        view = store.view()
        first = number * KEYS
        expected = [(b"key-%03d" % at, first + at) for at in range(KEYS)]
        for vbucket in VBUCKETS:
            assert by_seq(view, vbucket) == expected
            assert by_id(view, vbucket) == [(vbucket, *pair) for pair in expected]
            stored = view.header(vbucket)
            assert stored is not None
            assert stored.high_seqno == first
            assert {item.value for item in view.changes_after(vbucket, 0)} == {b"%d," % number * 90}
        assert view.count() == KEYS * len(VBUCKETS)
        view.close()
        store.close()
