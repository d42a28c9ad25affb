"""Manifests: written and read again they say the same; whatever was changed in them is noticed."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop.server_process import ServerProcess
from interop.wire import Wire, frame
from tests.bulk.here import remove
from tests.bulk.world import HERE, access_to, start, store
from uprmc.backup.backups import backup
from uprmc.backup.digest import Digest
from uprmc.backup.manifest import (
    FORMAT,
    FilePart,
    Manifest,
    VBucketPart,
    read_manifest,
)
from uprmc.backup.restoring import restore, with_origins
from uprmc.columnar.errors import BackupDamaged, BackupForeign
from uprmc.model import Origin, vbucket_of
from uprmc.protocol.origins import decode_origin, encode_origin
from uprmc.rollback import origin_here

PART = VBucketPart(
    0xA1, 3, 9, 2, 1, 40, 1, ((0xA1, 5), (0xFFFF_FFFF_FFFF_FFFF, 0)), Digest(2, 2**64 - 1), 3
)
FILE = FilePart("data/vbg=0000/part-1.parquet", 0, 2, 100, "ab" * 32)


def manifest_of(**changes: object) -> Manifest:
    plain = Manifest(
        repository="r",
        chain="c",
        number=1,
        id="i",
        parent="p",
        parent_digest="d",
        kind="incr",
        tool="uprmc test",
        began="2026-01-01T00:00:00.000Z",
        ended="2026-01-01T00:00:01.000Z",
        vbuckets=64,
        options={"values": True, "groups": 16},
        columns={"key": "binary"},
        vb={5: PART},
        files=(FILE,),
    )
    return replace(plain, **changes).sealed()  # type: ignore[arg-type]


def saved(path: Path, manifest: Manifest) -> Path:
    file = path / "manifest.json"
    file.write_text(manifest.to_json())
    return file


def test_a_manifest_says_the_same_after_it_was_read(tmp_path: Path) -> None:
    manifest = manifest_of()
    assert read_manifest(saved(tmp_path, manifest)) == manifest


def test_a_manifest_sums_up_its_vbuckets() -> None:
    manifest = manifest_of(vb={5: PART, 6: PART}, files=(FILE, FILE))
    assert (manifest.rows, manifest.deletes, manifest.bytes) == (4, 2, 80)
    assert manifest.file_bytes == 200
    assert "increment 1 of chain c: 4 rows (2 deletions)" in manifest.summary()
    assert "2 vBuckets were cut, 0 are complete again" in manifest.summary()


numbers = st.integers(0, 2**63 - 1)


@given(st.integers(0, 2**64 - 1), numbers, numbers, st.booleans(), st.none() | numbers)
def test_a_vbucket_says_the_same_after_it_was_read(
    uuid: int, one: int, other: int, reset: bool, cut: int | None
) -> None:
    start, end = sorted((one, other))
    part = VBucketPart(uuid, start, end, log=((uuid, start),), cut=cut, reset=reset)
    assert VBucketPart.of_dict(json.loads(json.dumps(part.to_dict()))) == part


@pytest.mark.parametrize("cut", [0, 1, 50, -1])
def test_a_torn_manifest_is_damaged(tmp_path: Path, cut: int) -> None:
    file = saved(tmp_path, manifest_of())
    file.write_bytes(file.read_bytes()[:cut])
    if cut == -1:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BackupDamaged, match=str(file)):
        read_manifest(file)


@given(st.data())
def test_no_byte_of_a_manifest_can_be_changed_unnoticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    manifest = manifest_of()
    text = bytearray(manifest.to_json().encode())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("changed") / "manifest.json"
    file.write_bytes(text)
    try:
        found = read_manifest(file)
    except (BackupDamaged, BackupForeign):
        return
    assert found == manifest  # the byte was the same, or a blank


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"format": 1}', "[" * 100_000])
def test_what_is_no_manifest_is_damaged(tmp_path: Path, text: str) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(text)
    with pytest.raises(BackupDamaged):
        read_manifest(file)


def test_a_missing_manifest_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(BackupDamaged, match="FileNotFoundError"):
        read_manifest(tmp_path / "manifest.json")


def test_a_format_of_the_future_is_named(tmp_path: Path) -> None:
    file = saved(tmp_path, manifest_of())
    file.write_text(file.read_text().replace(f'"format": {FORMAT}', '"format": 9'))
    with pytest.raises(BackupForeign, match="format 9"):
        read_manifest(file)


@pytest.mark.parametrize(
    "manifest",
    [
        manifest_of(kind="full"),
        manifest_of(kind="other"),
        manifest_of(files=()),
        manifest_of(vb={5: replace(PART, start=10)}),
        manifest_of(vb={5: replace(PART, deletes=3)}),
        manifest_of(vb={5: replace(PART, digest=Digest(3, 1))}),
        manifest_of(vb={5: replace(PART, purge_seqno=-1)}),
        manifest_of(files=(replace(FILE, path="../other"),)),
        manifest_of(files=(replace(FILE, path="/etc/passwd"),)),
        manifest_of(vb={5: replace(PART, end=2**63)}),
        manifest_of(vb={5: replace(PART, uuid=2**64)}),
        manifest_of(vb={5: replace(PART, log=((2**64, 0),))}),
        manifest_of(vbuckets=5),
        manifest_of(vbuckets=65_537),
        manifest_of(vb={}, files=()),
        manifest_of(options={"groups": 65}),
        manifest_of(options={}),
    ],
)
def test_a_manifest_that_contradicts_itself_is_damaged(tmp_path: Path, manifest: Manifest) -> None:
    with pytest.raises(BackupDamaged):
        read_manifest(saved(tmp_path, manifest))


# --- origins --------------------------------------------------------------------------------------
# Origins in backups: what came from elsewhere keeps its own, all else is known by its place.


HELLO, SET_META, DEL_META, GET_VERSION, FAILOVER_LOG = 0x1F, 0xA2, 0xA8, 0xE7, 0x96
THERE = Origin(0xA1B2C3D4E5F6, 77)


def bring(node: ServerProcess, opcode: int, key: bytes, value: bytes, seqno: int) -> None:
    meta = encode_origin(Origin(THERE.uuid, seqno))
    extras = struct.pack(">IIQQH", 7, 0, 9, 1_000 + seqno, len(meta))
    with Wire(node.memcached) as wire:
        assert wire.ask(frame(opcode, key, value + meta, extras)).status == 0


def origin_of(node: ServerProcess, key: bytes, vbuckets: int) -> Origin:
    """Where a node says that its version of a key was first accepted."""
    number = vbucket_of(key, vbuckets)
    assert node.upr is not None
    with Wire(node.upr) as wire:
        assert wire.ask(frame(HELLO, b"t", struct.pack(">H", 0x5502))).value
        extras = struct.pack(">Q", 2**64 - 1)
        reply = wire.ask(frame(GET_VERSION, key, extras=extras, vbucket=number))
        log = wire.ask(frame(FAILOVER_LOG, vbucket=number)).value
    assert reply.status == 0
    if len(reply.extras) == 41:
        return Origin(*struct.unpack(">QQ", reply.extras[25:]))
    (seqno,) = struct.unpack_from(">Q", reply.extras)
    return origin_here(list(struct.iter_unpack(">QQ", log)), seqno)


@pytest.mark.parametrize("force", [False, True])
def test_a_restored_version_has_the_origin_of_the_one_that_was_backed_up(
    tmp_path: Path, force: bool
) -> None:
    keys = [b"own", b"gone", b"theirs", b"theirs gone", b"new"]
    with start(tmp_path / "source") as source, start(tmp_path / "target", vbuckets=4) as target:
        store(source, {b"own": b"v", b"gone": b"v"})
        bring(source, SET_META, b"theirs", b"from there", 5)
        backup(access_to(source), tmp_path / "backup", engine=HERE)
        bring(source, DEL_META, b"theirs gone", b"", 6)
        remove(source, b"gone")
        store(source, {b"new": b"v"})
        backup(access_to(source), tmp_path / "backup", engine=HERE)
        report = restore(tmp_path / "backup", access_to(target), engine=HERE, force=force)
        assert report.complete
        expected = {key: origin_of(source, key, 16) for key in keys}
        assert expected[b"theirs"] == Origin(THERE.uuid, 5)
        assert expected[b"theirs gone"] == Origin(THERE.uuid, 6)
        assert {key: origin_of(target, key, 4) for key in keys} == expected
        again = restore(tmp_path / "backup", access_to(source), engine=HERE)
        assert again.written.applied == 0, "where it came from nothing wins over itself"


LOGS = {
    3: ((30, 9), (20, 4), (10, 0)),
    5: ((2**64 - 1, 7), (50, 3)),
}
metas = st.sampled_from([None, b"", b"\x01\x02\x00\x01\x00", encode_origin(THERE)])


@given(st.lists(st.tuples(st.sampled_from([3, 5]), st.integers(1, 12), metas), max_size=20))
def test_rows_without_an_origin_get_the_one_of_their_place(
    rows: list[tuple[int, int, bytes | None]],
) -> None:
    vbuckets, seqnos, brought = ([row[at] for row in rows] for at in range(3))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(vbuckets, pa.int32()),
            pa.array(seqnos, pa.int64()),
            pa.array(brought, pa.binary()),
        ],
        names=["_vb", "_seq", "_meta"],
    )
    found = with_origins(batch, LOGS)
    assert found.schema.names == ["_vb", "_seq", "_origin"]
    told = [decode_origin(meta) for meta in found.column("_origin").to_pylist()]
    assert told == [
        THERE if meta == encode_origin(THERE) else origin_here(LOGS[vbucket], seqno)
        for vbucket, seqno, meta in rows
    ]


def test_a_backup_of_an_older_version_has_no_column_of_extended_metadata() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([3], pa.int32()), pa.array([5], pa.int64())], names=["_vb", "_seq"]
    )
    (meta,) = with_origins(batch, LOGS).column("_origin").to_pylist()
    assert decode_origin(meta) == Origin(20, 5)
