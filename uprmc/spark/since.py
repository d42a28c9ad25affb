"""Where a read begins that starts at a point in time: option ``startingTimestamp``.

The time of a version is its CAS, the column `_time`: seqnos rise with it where a node makes the
versions itself, but not where XDCR, a restore or `append-meta` brings versions that were made
elsewhere. So nothing can be bisected: keys and metadata of a lease are read once, without values
and without keeping any of it, and each vBucket begins before the first seqno whose change is at or
after the time. No such change is left out. Changes behind that place come with it, whatever their
time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from uprmc.columnar.read_state import SEQNO_MAX, Range, ReadState
from uprmc.columnar.reading import read
from uprmc.columnar.schema import Columns
from uprmc.remote.ranges import VBUCKETS_MAX
from uprmc.rollback import history_of
from uprmc.spark.offsets import OffsetPosition
from uprmc.spark.options import ReadOptions

_COLUMNS = Columns(("_vb", "_seq", "_time"))


@dataclass(frozen=True)
class Begin:
    """Where one vBucket begins."""

    position: OffsetPosition  # all that is older lies at or below it
    purge_seqno: int  # deletions up to here may be missing

    @property
    def lossy(self) -> bool:
        """Whether deletions above it may be missing."""
        return 0 < self.position.seqno < self.purge_seqno


def begins(
    options: ReadOptions, vbuckets: Iterable[int], lease: str | None = None
) -> dict[int, Begin]:
    """Return where vBuckets begin at `ReadOptions.starting_timestamp`.

    Args:
        options: of the read.
        vbuckets: which.
        lease: token of the lease to look at; ``None`` = one of its own, of now.

    Raises:
        As `reading.read`.
    """
    assert options.starting_timestamp is not None
    places = _Places(options.starting_timestamp)
    batches = read(
        options.access,
        [Range(number) for number in vbuckets],
        _COLUMNS,
        lease=lease,
        batch_rows=options.batch_rows,
        no_value=True,
        on_done=places.end,
        lease_s=options.lease_s,
    )
    for batch in batches:
        places.look(*(batch.column(n).to_numpy(zero_copy_only=False) for n in range(3)))
    return places.found()


class _Places:
    """By vBucket the first seqno that is new enough, and the last one before it."""

    def __init__(self, moment_us: int) -> None:
        self._moment = np.datetime64(moment_us, "us")
        self._first: Any = np.full(VBUCKETS_MAX, SEQNO_MAX, np.int64)
        self._before: Any = np.zeros(VBUCKETS_MAX, np.int64)
        self._ended: list[ReadState] = []

    def look(self, vbucket: Any, seqno: Any, time: Any) -> None:
        """Take rows in; seqnos of a vBucket rise from call to call."""
        new = time >= self._moment
        np.minimum.at(self._first, vbucket[new], seqno[new])
        before = seqno < self._first[vbucket]
        np.maximum.at(self._before, vbucket[before], seqno[before])

    def end(self, state: ReadState) -> None:
        """All of a vBucket has come, or will have with the next call."""
        self._ended.append(state)

    def found(self) -> dict[int, Begin]:
        """Return where each vBucket begins; without a change that is new enough, at its end."""
        return {each.vbucket: self._begin(each) for each in self._ended}

    def _begin(self, state: ReadState) -> Begin:
        is_there = self._first[state.vbucket] < SEQNO_MAX
        seqno = int(self._before[state.vbucket]) if is_there else state.end
        uuid = history_of(state.log, seqno)
        return Begin(OffsetPosition(uuid, seqno), state.purge_seqno)
