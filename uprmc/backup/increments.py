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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from uprmc.backup.manifest import Manifest, VBucketPart
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
    """Where an increment's rows of a vBucket begin.

    Attributes:
        start: above this seqno.
        uuid: the history it lies in; 0 = the beginning.
        cut, reset: as in the manifest.
    """

    start: int = 0
    uuid: int = 0
    cut: int | None = None
    reset: bool = False


def beginning(parts: Sequence[VBucketPart], present: VBucketHoldings) -> Beginning:
    """Return where the next increment of a vBucket begins.

    Args:
        parts: of this vBucket, in the increments of the chain, oldest first; none = it is new.
        present: what the vBucket is like at the moment of the increment.
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
