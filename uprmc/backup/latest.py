"""The state of a chain at one of its increments: the newest row of every key, from files alone.

Increments are gone through from the newest to the oldest. In each, rows that a later one cut off do
not count, and neither do rows of keys that were seen already: what is left is the newest version of
its key, a document or a deletion. Keys are looked at first, without their values; of the full
backup, which is the largest and the last, not even the keys are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from uprmc.backup.increments import limits
from uprmc.backup.manifest import FilePart, group_of
from uprmc.backup.parts import read_parts
from uprmc.backup.repository import Increment


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
    """Yield the newest row of every key of a group; deletions, too.

    Args:
        layers: newest first, as `layers_of` returns them.
        columns: of the batches; ``None`` = all.
        prefix: only keys that begin so.

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
