"""Manifests: written and read again they say the same; whatever was changed in them is noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.backup.digest import Digest
from uprmc.backup.manifest import (
    FORMAT,
    FilePart,
    Manifest,
    VBucketPart,
    read_manifest,
)
from uprmc.columnar.errors import BackupDamaged, BackupForeign

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
