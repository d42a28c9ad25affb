"""Where a pushing master's snapshots begin and end, as its messages tell on one connection.

A master's backfill is one snapshot, and each of its checkpoints is one. Whatever lies between is no
state that the master had, so nobody who follows our copy by UPR may be shown it: the vBucket is
"receiving" (`VBucket.receiving`) from the first such version until a boundary comes.

========================  =========================================================================
message                   what it says of a snapshot that is open
========================  =========================================================================
OPAQUE 8                  the backfill is whole
CHECKPOINT_START, id > 0  the backfill is whole; so is a checkpoint of a lower id that was opened
                          here. The same id again says nothing: it is sent once more from its start
CHECKPOINT_END            the checkpoint is whole
VBUCKET_SET active        whole, unless a backfill is going on: in a takeover it is the last message
========================  =========================================================================

A master that follows no checkpoints (no OPAQUE 2) and is in no backfill says nothing of this kind.
Its order is that of its own queue, so every version is a boundary as good as any; also its ACK
flags mark none, for most of them mean no more than that so many messages have gone by.

Note: **a lost connection ends nothing.** A backfill or checkpoint that was received in part stays
so, on disk too, through restarts of this node. A master that comes back sends what was not
acknowledged and goes on to the next boundary, or begins again with OPAQUE 1. The id of the
checkpoint is then not known, so any END is accepted. If the master never comes back, consumers of
this node stay at the newest complete state until an operator decides about the copy: the vBucket is
made active (SET_VBUCKET, VBUCKET_SET, FAILOVER; this begins a branch at that state, and everything
received is passed on), or another master fills it. A replica whose UPR source has died in the
middle of a snapshot does the same. No time-out could do better: it would pass on a part as if it
were complete.

Source: TAP reference, sections 5, 9 and 11.
"""

from __future__ import annotations

from uprmc.errors import OutOfPlace


class Boundaries:
    """The snapshots of one pushing master.

    It never holds more than one entry for each vBucket of the bucket.

    Attributes:
        follows_checkpoints: whether the master has said that it tells its checkpoints.
    """

    def __init__(self) -> None:
        self.follows_checkpoints = False
        self._backfills: set[int] = set()
        self._open: dict[int, int] = {}
        self._ended: dict[int, int] = {}

    def is_inside(self, number: int) -> bool:
        """Tell whether a version that comes now has more to follow until a state is whole."""
        return self.follows_checkpoints or number in self._backfills or number in self._open

    def is_backfill(self, number: int) -> bool:
        """Tell whether a backfill is going on."""
        return number in self._backfills

    def open_checkpoint(self, number: int) -> int | None:
        """Return the id of the checkpoint that is open, if one was opened on this connection."""
        return self._open.get(number)

    # --- what comes; the result says whether what is open is whole now --------------------------

    def begin_backfill(self, number: int) -> None:
        """The vBucket was emptied; what comes fills it."""
        self._backfills.add(number)
        self._open.pop(number, None)
        self._ended.pop(number, None)

    def end_backfill(self, number: int) -> bool:
        """The master has sent all of the backfill; it is no boundary within a checkpoint."""
        self._backfills.discard(number)
        return not self._open.get(number)

    def start(self, number: int, checkpoint_id: int) -> bool:
        """The master begins a checkpoint; id 0 is a backfill that it is getting itself."""
        before = self._open.get(number)
        whole = before is not None and before < checkpoint_id
        if checkpoint_id and number in self._backfills:
            self._backfills.discard(number)
            whole = True
        self._open[number] = checkpoint_id
        self._ended.pop(number, None)
        return whole

    def end(self, number: int, checkpoint_id: int) -> bool:
        """The master has sent all of a checkpoint.

        Raises:
            OutOfPlace: another one is open, or was ended last, and none was opened since.
        """
        expected = self._open.get(number, self._ended.get(number, checkpoint_id))
        if expected != checkpoint_id:
            raise OutOfPlace(
                f"vBucket {number}: checkpoint {checkpoint_id} ends, {expected} is the open one"
            )
        self._open.pop(number, None)
        self._ended[number] = checkpoint_id
        return number not in self._backfills

    def promote(self, number: int) -> bool:
        """The master has given the vBucket away to us; nothing of it comes any more."""
        whole = number not in self._backfills
        self.forget(number)
        return whole

    def forget(self, number: int) -> None:
        """Nothing is open any more."""
        self._backfills.discard(number)
        self._open.pop(number, None)
        self._ended.pop(number, None)
