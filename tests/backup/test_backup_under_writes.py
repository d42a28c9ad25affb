"""Backups while everything changes: writes, expiries, kills of the program and of the node.

The judge is a model: the writer notes every change with the seqno that the node gave it, so the
state at any seqno of any vBucket is known, whatever moment the manifest names.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from interop.server_process import ServerProcess
from tests.bulk.here import numbered
from tests.bulk.world import HERE, access_to, flush, start, states, store
from uprmc.backup.backups import backup
from uprmc.backup.manifest import Manifest
from uprmc.backup.repository import Repository
from uprmc.backup.restoring import restore
from uprmc.client.kv import KvClient
from uprmc.columnar.access import Access
from uprmc.columnar.errors import BackupIncomplete
from uprmc.jobs.progress import Step
from uprmc.remote.errors import ClientError

KEYS = 150


class Noted(NamedTuple):
    """One change, as whoever made it knows it."""

    seqno: int
    value: bytes | None
    cas: int
    flags: int
    expires: bool


class Writer(threading.Thread):
    """Changes documents until it is told to stop, and notes each change."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        super().__init__(name="writer", daemon=True)
        self._place, self._random = str(server.upr), random.Random(seed)
        self._stop_it = threading.Event()
        self.made: dict[bytes, list[Noted]] = defaultdict(list)
        self.count = 0

    def run(self) -> None:
        with KvClient(self._place) as kv:
            while not self._stop_it.is_set():
                self._change(kv, b"key-%d" % self._random.randrange(KEYS))
                self.count += 1

    def _change(self, kv: KvClient, key: bytes) -> None:
        what = self._random.random()
        if what < 0.2:
            gone = kv.delete(key)
            if gone is not None:
                self.made[key].append(Noted(gone.seqno, None, gone.cas, 0, False))
        elif what < 0.3:
            kv.get(key)  # the node notices that it has expired
        else:
            value = self._random.randbytes(self._random.randrange(200))
            flags = self._random.randrange(2**32)
            expiry = 1 if what < 0.4 else 0
            stored = kv.set(key, value, flags=flags, expiry=expiry)
            self.made[key].append(Noted(stored.seqno, value, stored.cas, flags, bool(expiry)))

    def wait_for(self, changes: int) -> None:
        while self.count < changes:
            assert self.is_alive()
            self.join(0.01)

    def stop(self) -> None:
        self._stop_it.set()
        self.join()

    def at(self, key: bytes, seqno: int) -> Noted | None:
        """Return the newest change of a key up to a seqno."""
        before = [each for each in self.made[key] if each.seqno <= seqno]
        return before[-1] if before else None


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    data = tmp_path_factory.mktemp("nodes")
    with start(data / "source") as source, start(data / "target") as target:
        yield source, target


@pytest.fixture
def nodes(both: tuple[ServerProcess, ServerProcess]) -> tuple[ServerProcess, ServerProcess]:
    for node in both:
        flush(node)
    return both


@pytest.mark.acceptance("D01")
def test_a_backup_under_constant_writes_is_exactly_the_moment_of_its_manifest(
    nodes: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    source, target = nodes
    writer = Writer(source, 6)
    writer.start()
    manifests = []
    for number in range(3):
        writer.wait_for((number + 1) * 300)
        before = writer.count
        manifests.append(backup(access_to(source), tmp_path / "b", engine=HERE, groups=4))
        assert writer.count > before, "it was not written meanwhile"
    writer.stop()
    for at, manifest in enumerate(manifests):
        flush(target)
        report = restore(tmp_path / "b", access_to(target), at=at, engine=HERE)
        assert report.complete
        compare(writer, manifest, target)


def compare(writer: Writer, manifest: Manifest, target: ServerProcess) -> None:
    """See that a node has what the writer had made up to the manifest's seqnos, no more."""
    found = states(target)
    with KvClient(str(target.upr)) as kv:
        for key in (b"key-%d" % n for n in range(KEYS)):
            expected = writer.at(key, manifest.vb[kv.vbucket_of(key)].end)
            actual = found.pop(key, None)
            if expected is None:
                assert actual is None
                continue
            assert actual is not None
            if expected.expires and not actual.document:
                continue  # the node had noticed, by a seqno that the writer was not told
            assert actual.document == (expected.value is not None)
            if expected.value is not None:  # an answer to DELETE does not tell the CAS
                assert (actual.value, actual.cas, actual.flags) == expected[1:4]
    assert not found


# --- kills ----------------------------------------------------------------------------------------

PROGRAM = """
import sys
from uprmc.columnar.access import Access
from uprmc.backup.backups import backup
from uprmc.jobs.engines import LocalEngine
servers, directory, processes = sys.argv[1:]
print("begun", flush=True)
backup(Access((servers,)), directory, engine=LocalEngine(int(processes)), groups=8, rate=4000)
"""


@pytest.mark.crash
def test_a_backup_that_is_killed_leaves_nothing_that_looks_whole(
    nodes: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    source, target = nodes
    store(source, numbered(2_000))
    chance = random.Random(1)
    directory = tmp_path / "b"
    finished = 0
    moments = []
    for processes in (1, 2, 1, 2, 2):
        moment = states(source)
        code = run_and_kill(source, directory, processes, chance.uniform(0.0, 1.2))
        now = increments(directory)
        assert now in (finished, finished + 1)
        assert code == 0 or now == finished or code == -9
        if now > finished:
            moments.append(moment)
            store(source, numbered(50, value=f"new{now}"))
        finished = now
    moments.append(states(source))
    last = backup(access_to(source), directory, engine=HERE, groups=8)
    assert last.number == finished
    assert not Repository(directory).unfinished()
    for at in {0, finished}:
        flush(target)
        assert restore(directory, access_to(target), at=at, engine=HERE).complete
        assert states(target) == moments[at]


def run_and_kill(source: ServerProcess, directory: Path, processes: int, after_s: float) -> int:
    words = [str(source.upr), str(directory), str(processes)]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, env=environment
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"begun\n"
        try:
            return program.wait(after_s)
        except subprocess.TimeoutExpired:
            program.kill()
            return program.wait()


def increments(directory: Path) -> int:
    try:
        return len(Repository(directory).chain().increments)
    except BackupIncomplete:
        return 0
    except ClientError:
        if (directory / "repo.json").exists():
            raise
        return 0


@pytest.mark.crash
def test_a_node_that_is_killed_in_the_middle_leaves_no_increment(
    nodes: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    directory = tmp_path / "b"
    with start(tmp_path / "source") as node:
        store(node, numbered(500))
        backup(access_to(node), directory, engine=HERE, groups=4)
        store(node, numbered(500, value="new"))
        impatient = Access((str(node.upr),), retries=1)

        def kill(step: Step) -> None:
            if step.done == 2:
                node.kill()

        with pytest.raises(ClientError):
            backup(impatient, directory, engine=HERE, progress=kill)
    assert increments(directory) == 1
    _, target = nodes
    with start(tmp_path / "source") as node:
        moment = states(node)
        assert backup(access_to(node), directory, engine=HERE).number == 1
        assert restore(directory, access_to(target), engine=HERE).complete
        assert states(target) == moment
