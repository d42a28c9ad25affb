"""Where a consumer stands in one vBucket, and where it goes back to: pure rules, no wire, no disk.

A `Place` holds what is saved (`state.Saved`) and what is only known while the process lives. Four
seqnos matter, in this order: `ring_from` <= `whole` <= `seqno` <= `applied`.

- `ring_from`: every key that came after it is in the ring;
- `whole`: the end of the last snapshot that was handed over completely;
- `seqno`: the last change that was handed over; above `whole` inside of a snapshot;
- `applied`: the handler may have seen changes up to here. It is above `seqno` after a crash (the
  ring was written, then the changes were handed over, then the process died) and after an undo
  (documents were fetched that are newer than the place). As long as it is, a history that leaves
  ours below it makes those keys wrong, although the node would stream from `seqno` without a word.

Source: ``docs/streams.md``, rollback; systems reference g.2, g.3; acceptance rows D13, D14, D44 to
D49, P09, P10, P19.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from uprmc import rollback
from uprmc.client.state import Saved
from uprmc.model import SEQNO_MAX, FailoverEntry, FailoverLog, SnapshotRange
from uprmc.rollback import Held, history_of, rollback_point, shared_until

#: A node reads so many known versions of a stream request.
VERSIONS_MAX = 25

#: The keys that are kept are counted in about so many pieces, however few come at a time.
_PIECES = 128


class Position(NamedTuple):
    """A place that a program may keep and begin from: after `seqno` of the history `vb_uuid`."""

    seqno: int
    vb_uuid: int


class Asked(NamedTuple):
    """What a stream request says of a place."""

    seqno: int
    snapshot: SnapshotRange
    uuid: int
    known_versions: FailoverLog
    term: int = 0


class Place:
    """See the module docstring.

    Attributes:
        vbucket: whose.
        end: the end of the snapshot that `seqno` lies in; `whole` when that is complete.
        log: the failover log of the history that was followed, newest first.
        purge_seqno: highest seqno of a dropped tombstone, as the node told last.
        term: the highest that any node told.
        kept: whether the state has a row for it.
        inside: `snapshot_begin` was told and `snapshot_end` not yet.
        lost: seqnos that were undone and not told yet: first and last.
        followed: newest history that the handler knows of, 0 = none.
        at_now: nothing came yet, and the program wanted only what is new.
        begin_at: instead of what is new, what comes after this seqno of the newest history.
        durable: what the state has of it, ``None`` = nothing.
        stood_at: nothing up to this seqno is wanted.
    """

    __slots__ = ("_chunks", "_entries", "applied", "at_now", "begin_at", "durable", "end",
                 "followed", "inside", "kept", "log", "lost", "purge_seqno", "ring_from", "seqno",
                 "stood_at", "term", "vbucket", "whole")  # fmt: skip

    def __init__(self, vbucket: int) -> None:
        self.vbucket = vbucket
        self.log: FailoverLog = ()
        self.seqno = self.whole = self.end = self.applied = 0
        self.ring_from = self.purge_seqno = self.term = self.stood_at = 0
        self.durable: Saved | None = None
        self.kept = self.inside = self.at_now = False
        self.begin_at: int | None = None
        self.lost: tuple[int, int] | None = None
        self.followed = 0
        self._chunks: deque[tuple[int, int]] = deque()
        self._entries = 0

    @classmethod
    def of(cls, vbucket: int, saved: Saved, ring_end: int, ring_entries: int) -> Place:
        """Return what a state tells: its row, the ring's last seqno, how many keys at least."""
        place = cls(vbucket)
        place.log = saved.log
        place.seqno, (place.whole, place.end) = saved.seqno, saved.snapshot
        place.ring_from, place.purge_seqno = saved.ring_from, saved.purge_seqno
        place.term = saved.term
        place.applied = max(saved.seqno, ring_end)
        place.kept = True
        place.durable = saved
        place.followed = saved.log[0].uuid if saved.log else 0
        if ring_entries:
            place._chunks.append((place.applied, ring_entries))
            place._entries = ring_entries
        return place

    # --- what is saved and asked ----------------------------------------------------------------

    def saved(self, *, inside: bool) -> Saved:
        """Return what to save: the place, or only its last whole snapshot unless `inside`."""
        return self.saved_at(self.seqno if inside else self.whole)

    def saved_at(self, seqno: int) -> Saved:
        """Return what to save of a place that is at `seqno` of the present snapshot."""
        end = seqno if seqno == self.whole else self.end
        snapshot = tuple.__new__(SnapshotRange, (self.whole, end))
        numbers = (seqno, snapshot, self.log, self.ring_from, self.purge_seqno, self.term)
        return tuple.__new__(Saved, numbers)

    def asked(self) -> Asked:
        """Return what to ask a node for.

        The uuid is that of the history in which `seqno` was given: a newer one that begins right
        there names nothing that we hold, and may be unknown where the older is not.
        """
        seqno = self.seqno
        end = self.end if seqno > self.whole else seqno
        snapshot = SnapshotRange(self.whole if seqno > self.whole else seqno, end)
        known = tuple(entry for entry in self.log if entry.seqno <= seqno)[:VERSIONS_MAX]
        known = known or self.log[:VERSIONS_MAX]  # older than all that the log has kept
        uuid = (history_of(known, seqno) or known[0].uuid) if known else 0
        return Asked(seqno, snapshot, uuid, known, self.term)

    @property
    def position(self) -> Position:
        """The last whole snapshot, as a program may keep it."""
        return Position(self.whole, history_of(self.log, self.whole))

    @property
    def watermark(self) -> Position:
        """The last whole snapshot of which the state says that it is durable."""
        seqno, log = self.stood_at, self.log
        if self.durable is not None:
            seqno, log = self.durable.snapshot.start, self.durable.log
        return Position(seqno, history_of(log, seqno))

    @property
    def pieces(self) -> int:
        """In how many pieces the ring's keys are counted."""
        return len(self._chunks)

    @property
    def settled(self) -> bool:
        """Whether the handler has seen nothing beyond the place."""
        return self.applied <= self.seqno

    @property
    def held(self) -> int:
        """Up to where the handler may have seen changes."""
        return max(self.seqno, self.applied)

    @property
    def unfinished_from_zero(self) -> bool:
        """Whether the handler may hold things although the place is the beginning."""
        return self.kept and not self.seqno

    # --- two histories --------------------------------------------------------------------------

    def agreed(self, log: Sequence[FailoverEntry]) -> int | None:
        """Return how far back a node with this log would send us, ``None`` if not at all.

        The same rule as the node's, on the other side (row D14): the newest common history, the
        smaller of its two ends, and never into the middle of a snapshot.
        """
        seqno, snapshot, _, known, _ = self.asked()
        if not seqno:
            return None
        uuid = known[0].uuid if known else 0
        position = rollback.Position(seqno, snapshot, uuid, known)
        return rollback_point(position, Held(tuple(log), SEQNO_MAX, 0))

    def holds_until(self, log: Sequence[FailoverEntry]) -> int:
        """Return up to which seqno what the handler may have seen belongs to a node's history."""
        until = shared_until(log, SEQNO_MAX, self.log, self.applied)
        return 0 if until is None else until

    def adopt(self, log: FailoverLog) -> bool:
        """Take over the log of a node that accepted the place; ``False``: not before an undo."""
        if not self.settled and self.holds_until(log) < self.applied:
            return False
        self.log = log
        return True

    # --- going back -----------------------------------------------------------------------------

    def target(self, seqno: int, boundaries: Iterable[int], *, native: bool) -> int:
        """Return where to go back to, told that history is shared up to `seqno`; 0 = start over.

        The newest boundary at or below it (row P10). With a ring any seqno of a whole snapshot
        will do, should no boundary be left: every key that came later is fetched anew. Beyond the
        ring there is only the beginning (row D47).
        """
        seqno = min(seqno, self.whole)
        known = [end for end in (*boundaries, self.whole) if 0 < end <= seqno]
        if native:
            return max(known, default=0)
        if seqno < self.ring_from:
            return 0
        return max((end for end in known if end >= self.ring_from), default=seqno)

    def go_back(self, seqno: int) -> None:
        """Stand at `seqno` from now on; the handler is yet to undo what came later."""
        if seqno < self.held:
            first, last = self.lost or (seqno + 1, self.held)
            self.lost = (min(first, seqno + 1), max(last, self.held))
        self.seqno = self.whole = self.end = seqno
        self.inside = False

    def went_back(self, seqno: int, log: FailoverLog, applied: int) -> None:
        """The handler has; it may have seen up to `applied` of the new history."""
        self.go_back(seqno)
        self.log = log
        self.applied = max(seqno, applied)
        self.ring_from = min(self.ring_from, seqno)
        while self._chunks and self._chunks[-1][0] > seqno:
            self._entries -= self._chunks.pop()[1]

    def start_over(self) -> None:
        """Stand at the beginning; the handler holds nothing."""
        self.went_back(0, (), 0)
        self.purge_seqno = self.ring_from = self._entries = self.stood_at = 0
        self._chunks.clear()
        self.kept, self.durable = False, None

    def stand_at(self, seqno: int, log: FailoverLog, snapshot: SnapshotRange | None = None) -> None:
        """Stand where the program says, or the node's present is; nothing came before that.

        Without `snapshot`, that is at the end of one.
        """
        self.log = log
        self.seqno = self.applied = self.ring_from = seqno
        self.whole, self.end = snapshot or (seqno, seqno)
        self.stood_at = self.whole

    # --- going on -------------------------------------------------------------------------------

    def begin(self, end: int, purge_seqno: int) -> None:
        """A snapshot up to `end` was announced."""
        self.end = end
        if purge_seqno > self.purge_seqno:
            self.purge_seqno = purge_seqno

    def take(self, seqno: int) -> None:
        """Everything up to `seqno` was handed over."""
        self.seqno = seqno
        if seqno > self.applied:
            self.applied = seqno
        self.at_now = False

    def complete(self, end: int, purge_seqno: int = 0) -> None:
        """The snapshot that ends here was handed over completely, and was announced with this."""
        self.seqno = self.whole = self.end = end
        if purge_seqno > self.purge_seqno:
            self.purge_seqno = purge_seqno
        if end > self.applied:
            self.applied = end
        self.at_now = False

    def remember(self, last_seqno: int, entries: int, keep: int) -> int | None:
        """Count keys that are being written to the ring; return up to where old ones may go.

        At least `keep` are kept, and all above the last whole snapshot. Before the first one is
        whole the only way back is the beginning, so nothing more is needed.
        """
        chunks = self._chunks
        if chunks and chunks[-1][1] < keep // _PIECES and self.whole:
            chunks[-1] = (last_seqno, chunks[-1][1] + entries)
        else:
            chunks.append((last_seqno, entries))
        self._entries += entries
        if last_seqno > self.applied:
            self.applied = last_seqno
        if self._entries < keep:
            return None
        limit, trimmed = self.whole or self.seqno, None
        while self._entries - chunks[0][1] >= keep and chunks[0][0] <= limit and len(chunks) > 1:
            trimmed, count = chunks.popleft()
            self._entries -= count
        if trimmed is not None:
            self.ring_from = max(self.ring_from, trimmed)
        return trimmed
