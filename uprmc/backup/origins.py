"""Where the rows of a backup were first accepted: what came with them, or their place in the log.

A row has extended metadata only if its version had come to the node from elsewhere. For any other
one, the failover log in the manifest and its seqno say the same. A restore sends both, so that a
restored document is known as the same version in every cluster that has it.

Source: ``docs/extensions.md``, Origins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from uprmc.columnar.request_rows import ORIGIN_COLUMN
from uprmc.protocol.origins import ORIGIN_META_BYTES, ORIGIN_META_HEAD

#: (vb_uuid, seqno after which the branch begins), newest first.
Log = Sequence[tuple[int, int]]

_META = np.dtype([("head", f"S{len(ORIGIN_META_HEAD)}"), ("uuid", ">u8"), ("seqno", ">u8")])
assert _META.itemsize == ORIGIN_META_BYTES


def with_origins(batch: pa.RecordBatch, logs: Mapping[int, Log]) -> pa.RecordBatch:
    """Return rows with a column of their origins as extended metadata, instead of ``_meta``."""
    found = _of_logs(np.asarray(batch.column("_vb")), np.asarray(batch.column("_seq")), logs)
    if "_meta" in batch.schema.names:
        metas = batch.column("_meta")
        _put_in(found, metas)
        batch = batch.drop_columns(["_meta"])
    column = pa.Array.from_buffers(
        pa.binary(ORIGIN_META_BYTES), len(found), [None, pa.py_buffer(found.tobytes())]
    )
    return batch.append_column(ORIGIN_COLUMN, column)


def _of_logs(vbuckets: np.ndarray, seqnos: np.ndarray, logs: Mapping[int, Log]) -> np.ndarray:
    """Do what `rollback.origin_here` does, for all rows at once."""
    found: np.ndarray = np.zeros(len(seqnos), _META)
    found["head"], found["seqno"] = ORIGIN_META_HEAD, seqnos
    for number in np.unique(vbuckets).tolist():
        rows = np.flatnonzero(vbuckets == number)
        oldest_first = list(reversed(logs[number]))
        begins = np.array([begin for _, begin in oldest_first], np.int64)
        uuids = np.array([uuid for uuid, _ in oldest_first], np.uint64)
        branches = np.searchsorted(begins, seqnos[rows], side="left") - 1
        found["uuid"][rows] = uuids[np.maximum(branches, 0)]
    return found


def _put_in(found: np.ndarray, metas: pa.Array) -> None:
    """Put in the origins that came with rows; other extended metadata says nothing of them."""
    plain = pc.and_(
        pc.equal(pc.binary_length(metas), ORIGIN_META_BYTES),
        pc.starts_with(metas, ORIGIN_META_HEAD),
    )
    mask = plain.fill_null(False).to_numpy(zero_copy_only=False)
    if mask.any():
        brought = b"".join(metas.filter(pa.array(mask)).to_pylist())
        found[mask] = np.frombuffer(brought, _META)
