"""What a consumer holds of one vBucket, with everything it needs to fall back and to go on.

Source: UPR reference 3.2 (the snapshot range that belongs to a position), 3.4 (falling back).
"""

from __future__ import annotations

from tests.sim import codec
from tests.sim.codec import Position, Version
from tests.sim.judges import complain
from tests.sim.truth import Log, Look, Truth, disagreement


class Copy:
    """See the module docstring."""

    def __init__(self, keep: int) -> None:
        # how many boundaries are kept; what lies further back can only be begun anew
        self.keep = keep
        self.docs: dict[bytes, Version] = {}  # by key, deletions included
        self.log: Log = ()  # the failover log as the server last told it, newest first
        self.boundaries = [0]  # ends of complete snapshots, rising; 0 is always one
        self.last = 0  # seqno of the newest item
        self.snapshot = (0, 0)  # the range that `last` lies in; (last, last) when that is whole
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


# --- judges ---------------------------------------------------------------------------------------
# Judges of streams: what a consumer is told is held against what is true.
#
# They share no code with `uprmc`; the rules are those of the UPR reference (named where they are
# applied), the truth is `truth`. A consumer calls them with what it gets.


Decision = tuple[int, int]


# --- whether a stream may begin -------------------------------------------------------------------


def decide(asked: Position, look: Look) -> Decision:
    """Return (status, seqno) of the answer to a stream request, by section 2.4 and 3.3."""
    if look.state not in (codec.ACTIVE, codec.REPLICA):
        return codec.NOT_MY_VBUCKET, 0
    if asked.flags & codec.ACTIVE_ONLY and look.state != codec.ACTIVE:
        return codec.NOT_MY_VBUCKET, 0
    if asked.start > asked.end or not asked.snapshot_start <= asked.start <= asked.snapshot_end:
        return codec.OUT_OF_RANGE, 0
    if asked.start:
        if asked.start < look.purge:
            return codec.ROLLBACK, 0
        upper = _upper(asked, look)
        if upper is None:
            return codec.ROLLBACK, 0
        first, last = asked.snapshot_start, asked.snapshot_end
        if asked.start == first:
            last = asked.start
        if last > upper:
            if asked.start == last:
                first = asked.start
            return codec.ROLLBACK, upper if upper < first else first
    end = look.high if asked.flags & codec.LATEST else asked.end
    if asked.start > look.high or asked.start > end:
        return codec.OUT_OF_RANGE, 0
    return codec.OK, 0


def _unless_out_of_reach(decision: Decision, look: Look) -> Decision:
    """Nobody is sent back to where a replica in mid-snapshot holds no state itself."""
    status, seqno = decision
    if status == codec.ROLLBACK and seqno > look.complete:
        return codec.TRY_AGAIN, 0
    return decision


def _upper(asked: Position, look: Look) -> int | None:
    """Return the end of what both sides went through, by the newest version they share."""
    ours = _ends(look.log, look.high)
    theirs = _ends(asked.versions or ((asked.uuid, 0),), codec.NEVER)
    for uuid, end in theirs.items():
        if uuid in ours:
            return min(end, ours[uuid])
    return None


def _ends(log: Log, high: int) -> dict[int, int]:
    ends = {}
    for uuid, begin in log:
        ends[uuid] = high
        high = begin
    return ends


class RequestJudge:
    """An answer to a stream request fits how the vBucket looked while it was on its way."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def answered(
        self,
        vbucket: int,
        asked: Position,
        step: int,
        status: int,
        value: bytes,
        *,
        notifier: bool,
        spared: tuple[bool, ...] = (False,),
    ) -> None:
        """Judge an answer to what was asked at `step`.

        Args:
            spared: whether a floor excuses one who has missed purged deletions; both = unknown.
        """
        looks = self._truth.since(vbucket, step)
        busy = self._truth.was_busy(vbucket, step)
        if status == codec.TRY_AGAIN and (busy or any(look.state == 0 for look in looks)):
            return
        told = codec.read64(value) if status == codec.ROLLBACK else 0
        for look in looks:
            at = self._of_notifier(asked, look) if notifier else asked
            seen = [look._replace(purge=0) if floor else look for floor in spared]
            decisions = [_unless_out_of_reach(decide(at, each), each) for each in seen]
            if (status, told) in decisions and (
                status != codec.OK or codec.failover_log(value) == look.log
            ):
                return
        complain(f"vBucket {vbucket}: {asked} was answered {status:#04x} {told}; it was {looks}")

    def _of_notifier(self, asked: Position, look: Look) -> Position:
        start = min(asked.start, look.high)
        return Position(start, codec.NEVER, asked.uuid, start, start, asked.flags, asked.versions)


# --- one stream -----------------------------------------------------------------------------------


class StreamJudge:
    """What one stream delivers is exactly what is true, snapshot by snapshot.

    An announced snapshot must hold the newest version of every key that changed between where the
    stream stood and the announced end, by seqno, and nothing else. It ends with its end. Only an
    announcement of the same snapshot with a later end may come before that.
    """

    def __init__(self, truth: Truth, vbucket: int, uuid: int, copy: Copy) -> None:
        self._truth = truth
        self._vbucket = vbucket
        self._branch = truth.branch(vbucket, uuid)
        self._uuid = uuid
        self._copy = copy
        self._expected: list[Version] = []
        self._place = 0
        self._count = 0
        # ``False`` for a vBucket that holds half a snapshot; then only the form is judged
        self.judged = not truth.now(vbucket).partial
        # the range announced last while it is not whole, else ``None``
        self.marker: tuple[int, int] | None = None
        self.items = 0  # of the present snapshot
        self._judge_start()

    def _judge_start(self) -> None:
        """A consumer that may go on holds a part of the history that it joins."""
        copy = self._copy
        if not self.judged:
            return
        if copy.whole:
            self._compare(copy.last, "may go on")
            return
        for version in copy.docs.values():
            if not self._branch.holds(version):
                complain(f"{self}: may go on at {copy.last} with {version}, which never happened")

    def _compare(self, end: int, what: str) -> None:
        true, purged = self._branch.state(end), self._branch.purged
        wrong = disagreement(self._copy.docs, true, purged)
        if wrong:
            complain(f"{self}: {what} at {end}, but {wrong} (purged up to {purged})")

    def announced(self, start: int, end: int, kind: int, *, acks: bool) -> None:
        last, before = self._copy.last, self.marker
        if kind & 3 not in (codec.MARKER_MEMORY, codec.MARKER_DISK):
            complain(f"{self}: a marker is of kind {kind}")
        if bool(kind & codec.MARKER_ACK) != acks or kind & ~15:
            complain(f"{self}: a marker is of kind {kind}")
        if not start <= last + 1 <= end:
            complain(f"{self}: {start}..{end} is announced to one who stands at {last}")
        if before is not None:
            if start > before[0] or end < before[1]:
                complain(f"{self}: {start}..{end} is announced in the middle of {before}")
        else:
            self.items = 0
        self.marker = (start, end)
        if self.judged:
            if end > self._branch.high:
                complain(f"{self}: {end} is announced, the newest is {self._branch.high}")
            self._expected, self._place = self._branch.segment(last, end), 0

    def came(self, version: Version) -> bool:
        """Judge an item before it is applied; says whether the snapshot is whole with it."""
        if self.marker is None:
            complain(f"{self}: {version} comes outside a snapshot")
        if not self._copy.last < version.seqno <= self.marker[1]:
            complain(f"{self}: {version} comes after {self._copy.last} in {self.marker}")
        self.items += 1
        if self.judged:
            self._match(version)
        return version.seqno == self.marker[1]

    def _match(self, version: Version) -> None:
        while self._place < len(self._expected):
            expected = self._expected[self._place]
            self._place += 1
            if expected == version:
                return
            if not (expected.deleted and expected.seqno <= self._branch.purged):
                complain(f"{self}: {version} comes, {expected} should")
            held = self._copy.docs.get(expected.key)
            if held is not None and not held.deleted:
                complain(f"{self}: the deletion {expected} was dropped, {held} is there")
        complain(f"{self}: {version} comes, which is not in {self.marker}")

    def whole(self) -> None:
        """Judge the consumer's copy at the end of a snapshot."""
        assert self.marker is not None
        end = self.marker[1]
        self.marker = None
        self._count += 1
        if self.judged and self._count % 4 == 1:
            self._compare(end, "stands")

    def __repr__(self) -> str:
        return f"vBucket {self._vbucket} of {self._uuid:x}"


# --- one connection -------------------------------------------------------------------------------


class RoundJudge:
    """vBuckets come by number, one whole snapshot each, and every round that sent one is told."""

    def __init__(self) -> None:
        self.cycle = 0  # number of the round
        self._position = -1
        self._visited = 0
        self._current: int | None = None

    def began(self, vbucket: int, cycle: int) -> None:
        """Judge a PARTITION_START."""
        if cycle != self.cycle:
            complain(f"vBucket {vbucket} begins in round {cycle}, this is {self.cycle}")
        if self._current not in (None, vbucket):
            complain(f"vBucket {vbucket} begins inside {self._current}")
        if self._current is None:
            if vbucket <= self._position:
                complain(f"vBucket {vbucket} comes after {self._position}")
            self._visited += 1
        self._current = self._position = vbucket

    def came(self, vbucket: int) -> None:
        """Judge a marker or an item."""
        if vbucket != self._current:
            complain(f"vBucket {vbucket} speaks in the turn of {self._current}")

    def whole(self, vbucket: int) -> None:
        """A snapshot is whole."""
        self._current = None

    def gone(self, vbucket: int) -> None:
        """A stream has ended."""
        if self._current == vbucket:
            self._current = None

    def completed(self, cycle: int, visited: int, skipped: int, streams: int) -> None:
        """Judge a ROUND_COMPLETE."""
        if self._current is not None:
            complain(f"round {cycle} ends inside vBucket {self._current}")
        if cycle != self.cycle or visited != self._visited or not visited:
            complain(
                f"round {cycle} ends with {visited} visited, this is {self.cycle} "
                f"with {self._visited}"
            )
        if skipped > streams:
            complain(f"{skipped} skipped of {streams} streams")
        self.cycle += 1
        self._position, self._visited = -1, 0


class FlowJudge:
    """No frame that counts is sent while the buffer is full (section 4.6).

    The start of a turn in a round and the marker behind it count as one.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._last = 0
        self.unacked = 0  # bytes that came and were not acknowledged
        self.on = False

    def came(self, opcode: int, size: int) -> None:
        with_last, self._last = self._last == codec.PARTITION_START, opcode
        if self.on and self.unacked >= self._size and not with_last:
            complain(f"{size} bytes come while {self.unacked} of {self._size} are not acknowledged")
        self.unacked += size

    def acked(self, size: int) -> None:
        """Bytes were acknowledged."""
        self.unacked -= size
