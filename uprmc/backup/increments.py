"""Where an increment begins, and which rows of a chain count: pure rules over manifests.

Every increment's end is a **boundary**: with the rows up to it, the chain has the whole state that
the vBucket had there. The next increment begins at the newest boundary that is still in the node's
history. That is the parent's end, unless history branched before it (the node was killed before
everything was on its disk, or a replica took over): then rows above the boundary are cut off. No
boundary is left after a flush, or when deletions were dropped that the chain has not seen: then the
vBucket is read from the beginning again.

See `docs/streams.md`, rollback.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from uprmc.backup.manifest import FilePart, Manifest, VBucketPart, group_of, read_parts
from uprmc.backup.repository import Increment
from uprmc.columnar.errors import BackupForeign
from uprmc.model import SnapshotRange
from uprmc.rollback import (
    ConsumerPosition,
    VBucketHoldings,
    ends_of_branches,
    history_of,
    rollback_point,
)


@dataclass(frozen=True)
class Beginning:
    """Where an increment's rows of a vBucket begin."""

    start: int = 0  # above this seqno
    uuid: int = 0  # the history it lies in; 0 = the beginning
    cut: int | None = None  # cut, reset: as in the manifest
    reset: bool = False


def beginning(parts: Sequence[VBucketPart], present: VBucketHoldings) -> Beginning:
    """Return where the next increment of a vBucket begins, which is like `present` at its moment.

    `parts` are its own in the increments of the chain, oldest first; none = it is new.
    """
    boundaries = boundaries_of(parts)
    for place, (uuid, seqno) in enumerate(boundaries):
        if not seqno:
            return Beginning(reset=place > 0)
        if _is_shared(uuid, seqno, present):
            return Beginning(seqno, uuid, cut=seqno if place else None)
    return Beginning(reset=bool(parts))


def boundaries_of(parts: Sequence[VBucketPart]) -> list[tuple[int, int]]:
    """Return the places that a vBucket can go back to, newest first: vb_uuid and seqno."""
    found: list[tuple[int, int]] = []
    for part in parts:
        if part.reset:
            found.clear()
        if part.cut is not None:
            found = [each for each in found if each[1] <= part.cut]
        found.append((_history_of(part), part.end))
    return found[::-1]


def _history_of(part: VBucketPart) -> int:
    """Return the history in which the last seqno was given: the newest may have begun after it."""
    return history_of(part.log, part.end) or part.uuid


def _is_shared(uuid: int, seqno: int, present: VBucketHoldings) -> bool:
    return (
        rollback_point(ConsumerPosition(seqno, SnapshotRange(seqno, seqno), uuid), present) is None
    )


def check_same_bucket(
    chain: Sequence[Manifest], present: Mapping[int, VBucketHoldings], where: str
) -> None:
    """See that a node's documents have something to do with those of a chain.

    A node of which no vBucket shares any history with the chain is another one, or was flushed,
    after which its old branches are shared up to 0 only: to take all of it in as an increment would
    hide that.

    Raises:
        BackupForeign: nothing is shared.
    """
    with_history = 0
    for vbucket, now in present.items():
        boundaries = boundaries_of(parts_of(chain, vbucket))
        if not any(seqno for _, seqno in boundaries):
            continue
        with_history += 1
        ends = ends_of_branches(now.failover_log, now.high_seqno)
        if any(min(seqno, ends.get(uuid, 0)) for uuid, seqno in boundaries):
            return
    if with_history:
        raise BackupForeign(
            f"{where} shares no history with the backup: it is another node, or everything was "
            "flushed; a full backup begins a new chain"
        )


def parts_of(chain: Sequence[Manifest], vbucket: int) -> list[VBucketPart]:
    """Return a vBucket's parts in the increments of a chain."""
    return [manifest.vb[vbucket] for manifest in chain if vbucket in manifest.vb]


def limits(chain: Sequence[Manifest]) -> list[dict[int, int]]:
    """Return which rows count: by increment, of each vBucket the greatest seqno that does.

    A vBucket is missing in an increment of which none of its rows count.
    """
    caps: dict[int, int] = {}
    found: list[dict[int, int]] = []
    for manifest in reversed(chain):
        counting: dict[int, int] = {}
        for vbucket, part in manifest.vb.items():
            limit = min(part.end, caps.get(vbucket, part.end))
            if limit > part.start:
                counting[vbucket] = limit
            if part.reset:
                caps[vbucket] = 0
            elif part.cut is not None:
                caps[vbucket] = min(part.cut, caps.get(vbucket, part.cut))
        found.append(counting)
    return found[::-1]


# --- the newest rows of a chain ------------------------------------------------------------------
# The state of a chain at one of its increments: the newest row of every key, from files alone.
#
# Increments are gone through from the newest to the oldest. In each, rows that a later one cut
# off do not count, and neither do rows of keys that were seen already: what is left is the newest
# version of its key, a document or a deletion. Keys are looked at first, without their values; of
# the full backup, which is the largest and the last, not even the keys are kept.


@dataclass(frozen=True)
class Layer:
    """What one increment has of a group."""

    increment: str  # its directory
    files: tuple[FilePart, ...]  # of the group
    limits: Mapping[int, int]  # of each vBucket that counts here, the greatest seqno that does


@dataclass(frozen=True)
class Selection:
    """Which rows are wanted."""

    vbuckets: frozenset[int] | None = None  # by number; ``None`` = all
    prefix: bytes = b""  # of the keys


def layers_of(
    increments: Sequence[Increment], selection: Selection = Selection()
) -> dict[int, list[Layer]]:
    """Return what there is to read of each group, newest first.

    Groups of which nothing counts or is wanted are left out.
    """
    found: dict[int, list[Layer]] = {}
    wanted = selection.vbuckets
    every_limit = limits([each.manifest for each in increments])
    for increment, counting in zip(reversed(increments), reversed(every_limit), strict=True):
        manifest = increment.manifest
        groups = manifest.options["groups"]
        by_group: dict[int, dict[int, int]] = {}
        for vbucket, limit in counting.items():
            if (wanted is None or vbucket in wanted) and manifest.vb[vbucket].rows:
                group = group_of(vbucket, manifest.vbuckets, groups)
                by_group.setdefault(group, {})[vbucket] = limit
        for group, its_limits in by_group.items():
            files = tuple(file for file in manifest.files if file.group == group)
            layer = Layer(str(increment.path.absolute()), files, its_limits)
            found.setdefault(group, []).append(layer)
    return dict(sorted(found.items()))


def newest_rows(
    layers: Sequence[Layer], columns: Sequence[str] | None = None, prefix: bytes = b""
) -> Iterator[pa.RecordBatch]:
    """Yield the newest row of every key of a group, deletions too, of keys with a prefix.

    The layers are as `layers_of` returns them, newest first.

    Raises:
        BackupDamaged: a file is missing or torn.
    """
    seen: list[Any] = []
    for depth, layer in enumerate(layers):
        masks, keys = _newest(layer, seen, prefix)
        if depth < len(layers) - 1:
            seen.append(keys)
        batches = read_parts(Path(layer.increment), layer.files, columns)
        for batch, mask in zip(batches, masks, strict=True):
            found = batch if mask.all() else batch.filter(pa.array(mask))
            if len(found):
                yield found


def _newest(layer: Layer, seen: list[Any], prefix: bytes) -> tuple[list[Any], Any]:
    """Return which rows of a layer are the newest of their keys, batch by batch, and their keys."""
    caps = _caps(layer.limits)
    known = pa.chunked_array(seen, pa.binary()).combine_chunks() if seen else None
    masks, keys = [], []
    for batch in read_parts(Path(layer.increment), layer.files, ["key", "_vb", "_seq"]):
        names = batch.column("key")
        mask = np.asarray(batch.column("_seq")) <= caps[np.asarray(batch.column("_vb"))]
        if prefix:
            mask &= _truth(pc.starts_with(names, prefix))
        if known is not None:
            mask &= ~_truth(pc.is_in(names, value_set=known))
        masks.append(mask)
        keys.append(names.filter(pa.array(mask)))
    return masks, pa.chunked_array(keys, pa.binary()).combine_chunks()


def _caps(limits: Mapping[int, int]) -> Any:
    """Return the greatest seqno that counts by vBucket, as an array; -1 where none does."""
    caps: Any = np.full(1 << 16, -1, np.int64)
    for vbucket, limit in limits.items():
        caps[vbucket] = limit
    return caps


def _truth(mask: Any) -> Any:
    return mask.to_numpy(zero_copy_only=False)
