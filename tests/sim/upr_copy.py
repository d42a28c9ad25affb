"""What a consumer holds of one vBucket, with everything it needs to fall back and to go on.

Source: UPR reference 3.2 (the snapshot range that belongs to a position), 3.4 (falling back).
"""

from __future__ import annotations

from tests.sim.upr_codec import Position, Version

Log = tuple[tuple[int, int], ...]


class Copy:
    """See the module docstring.

    Attributes:
        docs: by key, deletions included.
        log: the failover log as the server last told it, newest first.
        boundaries: ends of complete snapshots, rising; 0 is always one.
        last: seqno of the newest item.
        snapshot: the range that `last` lies in; (last, last) when that is whole.
        keep: how many boundaries are kept; what lies further back can only be begun anew.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.docs: dict[bytes, Version] = {}
        self.log: Log = ()
        self.boundaries = [0]
        self.last = 0
        self.snapshot = (0, 0)
        self._undo: list[tuple[int, bytes, Version | None]] = []

    @property
    def whole(self) -> bool:
        """Whether it stands at the end of a complete snapshot."""
        return self.last == self.boundaries[-1]

    def apply(self, version: Version, snapshot: tuple[int, int]) -> None:
        """Take an item of an announced snapshot."""
        self._undo.append((version.seqno, version.key, self.docs.get(version.key)))
        self.docs[version.key] = version
        self.last, self.snapshot = version.seqno, snapshot

    def complete(self) -> None:
        """Take note that the snapshot is whole."""
        self.boundaries.append(self.last)
        self.snapshot = (self.last, self.last)
        if len(self.boundaries) > self.keep + 1:
            del self.boundaries[1]
            oldest = self.boundaries[1]
            self._undo = [entry for entry in self._undo if entry[0] > oldest]

    def roll_back(self, seqno: int) -> None:
        """Fall back to the newest boundary at or below `seqno`, and forget later branches."""
        boundary = max(each for each in self.boundaries if each <= seqno)
        if boundary == 0:
            self.docs, self._undo = {}, []
        while self._undo and self._undo[-1][0] > boundary:
            _, key, before = self._undo.pop()
            if before is None:
                del self.docs[key]
            else:
                self.docs[key] = before
        self.boundaries = [each for each in self.boundaries if each <= boundary]
        self.log = tuple(entry for entry in self.log if entry[1] <= boundary)
        self.last, self.snapshot = boundary, (boundary, boundary)

    def to_boundary(self) -> None:
        """Drop the snapshot that is not whole, as a consumer does that keeps only whole ones."""
        if not self.whole:
            log = self.log
            self.roll_back(self.boundaries[-1])
            self.log = log

    def position(self, end: int, flags: int, *, versions: bool) -> Position:
        """Return what to ask for."""
        known = tuple(entry for entry in self.log if entry[1] <= self.last)
        uuid = known[0][0] if known else 0
        return Position(self.last, end, uuid, *self.snapshot, flags, known if versions else ())

    def stored(self) -> Copy:
        """Return what is found again after a crash of the consumer, if this is now written down."""
        copy = Copy(self.keep)
        copy.docs, copy.log = dict(self.docs), self.log
        copy.boundaries, copy._undo = list(self.boundaries), list(self._undo)
        copy.last, copy.snapshot = self.last, self.snapshot
        return copy
