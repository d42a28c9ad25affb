"""Origins in backups: what came from elsewhere keeps its own, all else is known by its place."""

from __future__ import annotations

import struct
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
from uprmc.backup.restoring import restore, with_origins
from uprmc.model import Origin, vbucket_of
from uprmc.protocol.origins import decode_origin, encode_origin
from uprmc.rollback import origin_here

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
