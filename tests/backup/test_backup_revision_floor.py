"""A key that was deleted, and its deletion dropped: what a restored node begins it with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from interop.server_process import ServerProcess
from tests.backup.test_manifest import PART, manifest_of
from tests.bulk.cli_run import uprmc
from tests.bulk.here import changes, remove
from tests.bulk.world import HERE, access_to, compact, start, store
from tests.columnar.read_peer import FakeNode, refused
from uprmc.backup.backups import backup
from uprmc.backup.manifest import VBucketPart
from uprmc.backup.restoring import RestoreReport, restore
from uprmc.backup.revision_floors import floors_in, raise_floors
from uprmc.client.kv import KvClient, Meta
from uprmc.columnar.access import Access
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.errors import Refused

REV = 20


def bury(node: ServerProcess, key: bytes) -> None:
    """Delete a document at revision `REV`, and drop the deletion for good."""
    with KvClient(str(node.upr)) as kv:
        kv.set_with_meta(key, b"x", Meta(0, 0, REV - 1, 1))
        others = (b"other-%d" % n for n in range(10_000))
        beside = next(each for each in others if kv.vbucket_of(each) == kv.vbucket_of(key))
    remove(node, key)
    assert changes(node)[key].rev == REV
    store(node, {beside: b"stays"})  # a vBucket's newest change is never dropped
    compact(node)
    assert key not in changes(node)


@pytest.mark.parametrize("vbuckets", [16, 4])
def test_a_key_purged_before_the_backup_begins_above_its_old_revision_after_the_restore(
    tmp_path: Path, vbuckets: int
) -> None:
    directory, local = str(tmp_path / "backup"), ("--engine", "local", "--parallelism", "1")
    with start(tmp_path / "source") as source:
        bury(source, b"key")
        made = uprmc("backup", directory, "--node", str(source.upr), *local)
        assert made.code == 0, made.err
    with start(tmp_path / "target", vbuckets=vbuckets) as target:
        done = uprmc("restore", directory, "--node", str(target.upr), *local)
        assert done.code == 0, done.err
        assert "revision floor" not in done.out
        target.kill()  # what it was told is on its disk
    with start(tmp_path / "target", vbuckets=vbuckets) as target:
        store(target, {b"key": b"new"})
        assert changes(target)[b"key"].rev == REV + 1


def test_a_deletion_that_is_purged_between_two_backups_counts_too(tmp_path: Path) -> None:
    with start(tmp_path / "source") as source, start(tmp_path / "target") as target:
        store(source, {b"first": b"1"})
        backup(access_to(source), tmp_path / "backup", engine=HERE, groups=2, register=False)
        bury(source, b"key")
        backup(access_to(source), tmp_path / "backup", engine=HERE)
        restore(tmp_path / "backup", access_to(target), engine=HERE, dry_run=True)
        store(target, {b"key": b"new"})
        assert changes(target)[b"key"].rev == 1, "a dry run raises nothing"
        remove(target, b"key")
        restore(tmp_path / "backup", access_to(target), engine=HERE)
        store(target, {b"key": b"new"})
        assert changes(target)[b"key"].rev == REV + 1


# --- rules ----------------------------------------------------------------------------------------


def test_the_highest_floor_of_a_chain_counts_and_only_of_vbuckets_that_are_wanted() -> None:
    chain = [
        manifest_of(vb={5: replace(PART, rev_floor=9), 6: replace(PART, rev_floor=3), 7: PART}),
        manifest_of(vb={5: replace(PART, rev_floor=8), 6: replace(PART, rev_floor=4), 7: PART}),
    ]
    assert floors_in(chain, None) == {5: 9, 6: 4}
    assert floors_in(chain, frozenset({6, 7})) == {6: 4}


def test_a_floor_is_a_revision_and_older_manifests_have_none() -> None:
    plain = PART.to_dict()
    assert VBucketPart.of_dict(plain | {"rev_floor": 2**63 - 1}).rev_floor == 2**63 - 1
    with pytest.raises(ValueError, match="no number of something"):
        VBucketPart.of_dict(plain | {"rev_floor": 2**63})
    del plain["rev_floor"]
    assert VBucketPart.of_dict(plain) == PART


@pytest.mark.parametrize("status", [Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED])
def test_a_node_that_cannot_take_a_floor_is_named(status: Status) -> None:
    with FakeNode({0: 1, 1: 1}, vbuckets=2) as node:
        node.instead[Opcode.VBUCKET_FACTS] = lambda frame: refused(frame, status)
        assert raise_floors(Access((node.place,)), {0: 9, 1: 8}, 2) == [node.place]


def test_the_report_says_so() -> None:
    report = RestoreReport("id", "chain-0001", 0, 1, without_floor=["a:1", "b:2"])
    assert "a:1, b:2: the revision floor could not be set" in report.summary()
    assert report.to_dict()["without_floor"] == ["a:1", "b:2"]
    assert report.complete


def test_another_refusal_ends_the_restore() -> None:
    with FakeNode({0: 1}, vbuckets=1) as node:
        node.instead[Opcode.VBUCKET_FACTS] = lambda frame: refused(frame, Status.INVALID_ARGUMENTS)
        with pytest.raises(Refused, match="VBUCKET_FACTS"):
            raise_floors(Access((node.place,)), {0: 9}, 1)


def test_every_vbucket_of_another_number_gets_the_highest_floor() -> None:
    with FakeNode({0: 1, 1: 1}, vbuckets=2) as node:
        assert raise_floors(Access((node.place,)), {0: 9, 3: 8}, 4) == []
        asked = [each for each in node.asked if each.opcode == Opcode.VBUCKET_FACTS]
    assert [(each.vbucket, each.extras) for each in asked] == [
        (0, bytes(15) + b"\x09"),
        (1, bytes(15) + b"\x09"),
    ]


def test_without_floors_nobody_is_asked() -> None:
    assert raise_floors(Access(("127.0.0.1:1",), retries=0), {}, 4) == []
