"""One vBucket of a link on its way to the target: what was sent, and what has arrived.

Sequence numbers have gaps, and batches are settled out of order when some of their items have to be
sent again. So positions are kept in the order of the stream, each with its batch: the vBucket has
arrived up to a position when that batch and all earlier ones are settled.

What the target refuses for good is a *debt*: it is tried again from time to time, later items go on
meanwhile, and the vBucket has not arrived beyond it. A debt ends when the target accepts the
version, or a newer one of the key, or its deletion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from uprmc.engine.vbucket import VBucket
from uprmc.model import SEQNO_MAX, SnapshotRange
from uprmc.remote.stream import StreamState
from uprmc.xdcr.checkpoint import Record
from uprmc.xdcr.reading import Start
from uprmc.xdcr.windows import LinkWindow

# --- counters -------------------------------------------------------------------------------------
# What a link has done since it was started on this node; names as in ``uprmc xdcr status``.


#: Errors that are kept for ``last_errors``.
KEPT_ERRORS = 20


@dataclass(slots=True)
class Counters:
    """The counters of one link."""

    docs_written: int = 0  # documents and deletions that the target has stored
    docs_checked: int = 0  # look-ups of the target's version
    docs_opt_repd: int = 0  # documents that were sent without a look-up
    docs_filtered: int = 0  # items that the filter left out
    docs_failed_cr_source: int = 0  # documents not sent: the target's version is newer
    docs_failed_cr_target: int = 0  # items that the target refused: its version is newer
    docs_refused: int = 0  # items that it has refused for another reason; see the errors
    deletions_written: int = 0  # of `docs_written`
    echoes_stopped: int = 0  # versions not sent because they come from the target
    data_bytes: int = 0  # of requests that were sent
    docs_reconciled: int = 0  # documents that `uprmc xdcr reconcile` has deleted at the target
    checkpoints: int = 0
    failed_checkpoints: int = 0

    def shown(self) -> dict[str, int]:
        """Return all of them by name."""
        return asdict(self)


@dataclass(slots=True)
class Errors:
    """The newest errors, each once, the newest last."""

    _kept: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_ERRORS))

    def add(self, text: str) -> None:
        """Keep an error."""
        if text in self._kept:
            self._kept.remove(text)
        self._kept.append(text)

    def shown(self) -> list[str]:
        """Return what is kept."""
        return list(self._kept)


# --- shipment -------------------------------------------------------------------------------------


#: Groups of deletions that were not sent back, at most.
_ECHOES_MAX = 64


class LinkPosition(NamedTuple):
    """A place in the stream: the seqno, and the snapshot it is in; both bounds equal at its end."""

    seqno: int
    snapshot: SnapshotRange

    @property
    def is_whole(self) -> bool:
        """Whether it is the end of a snapshot."""
        return self.seqno == self.snapshot.end

    @property
    def whole(self) -> int:
        """The last seqno at which the snapshot, or the one before it, was complete."""
        return self.seqno if self.seqno == self.snapshot.end else self.snapshot.start


NOWHERE = LinkPosition(0, SnapshotRange(0, 0))


def position_in(snapshot: SnapshotRange, seqno: int) -> LinkPosition:
    """Return the position of an item, given the snapshot that was announced when it was read."""
    return LinkPosition(seqno, SnapshotRange(min(seqno, snapshot.start), snapshot.end))


@dataclass(slots=True, eq=False)
class Debt:
    """A version that the target refuses."""

    frame: bytes  # the request
    why: str
    since: float  # monotonic time of the first refusal
    window: LinkWindow  # the batch behind which nothing has arrived
    at: int  # its place among all that was sent: a later one of the key is newer
    trial: LinkWindow | None = None  # the batch in which it is tried again
    replaced_in: LinkWindow | None = None  # the batch that has a newer version of the key


class Debts:
    """The debts of all vBuckets of one link."""

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self.by_vbucket: dict[int, dict[bytes, Debt]] = {}
        self.count = self.bytes = 0
        self._items_max, self._bytes_max = items_max, bytes_max

    def __iter__(self) -> Iterator[tuple[int, bytes, Debt]]:
        for number, owed in self.by_vbucket.items():
            for key, debt in owed.items():
                yield number, key, debt

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be read before some of them are settled."""
        return self.count >= self._items_max or self.bytes >= self._bytes_max

    @property
    def oldest(self) -> float:
        """Since when there has been one; call it only if there is."""
        return min(debt.since for _, _, debt in self)

    @property
    def why(self) -> str:
        """What people see; empty = there is none."""
        if not self.count:
            return ""
        number, key, debt = next(iter(self))
        one = f"{shown(key)} of vBucket {number}: the target refuses it: {debt.why}"
        return one if self.count == 1 else f"{self.count} documents are refused, e. g. {one}"

    def add(self, owed: dict[bytes, Debt], number: int, key: bytes, debt: Debt) -> None:
        """Add one of a vBucket."""
        self.remove(number, key, owed)
        self.by_vbucket[number] = owed
        owed[key] = debt
        self.count += 1
        self.bytes += len(debt.frame)

    def remove(self, number: int, key: bytes, owed: dict[bytes, Debt]) -> None:
        """Remove one, if it is there."""
        debt = owed.pop(key, None)
        if debt is not None:
            self.count -= 1
            self.bytes -= len(debt.frame)
            if not owed:
                self.by_vbucket.pop(number, None)


def shown(key: bytes) -> str:
    """Return a key as messages name it."""
    return f"key {key[:80].decode('utf-8', 'backslashreplace')!r}"


class Shipment:
    """One vBucket of a link on its way."""

    __slots__ = (
        "_all_debts",
        "_behind",
        "_echo",
        "_echoes",
        "_under_way",
        "arrived",
        "clean",
        "dead",
        "debts",
        "front",
        "is_known_there",
        "moved",
        "passed_on",
        "place",
        "purged",
        "stream",
        "target_seqno",
        "target_uuid",
        "tells_expirations",
        "tells_origins",
        "theirs",
        "theirs_purged",
        "through",
        "vbucket",
    )

    def __init__(
        self,
        vbucket: VBucket,
        place: str,
        stream: StreamState,
        target: tuple[int, int],
        through: LinkPosition,
        moved: dict[int, None],
        debts: Debts,
    ) -> None:
        self.vbucket = vbucket
        self.moved = moved  # gets the vBucket's number when it has arrived further
        self.place = place  # the node of the target
        self.stream = stream  # what is read
        # The target's newest history when it began, 0 = it tells none; and its high seqno as of
        # the last checkpoint.
        self.target_uuid, self.target_seqno = target
        self.through = through  # everything up to here has arrived
        self.front = through  # and up to here everything but the debts
        self.debts: dict[bytes, Debt] = {}  # what the target refuses, by key
        self._all_debts = debts
        self._behind: deque[tuple[set[bytes], LinkPosition]] = deque()  # positions behind debts
        # Histories of the target, each with its last seqno: what was first accepted there is not
        # sent back.
        self.theirs: dict[int, int] = {}
        self.tells_origins = self.tells_expirations = False  # the target knows these
        # Whether the target misses no deletion; ``None`` = the first snapshot will show.
        self.clean: bool | None = None
        self.passed_on: dict[str, tuple[int, int]] = {}  # by source, the newest record passed on
        self.purged = 0  # see `Record`
        self.theirs_purged = 0  # up to where the target had purged deletions, as of the last answer
        # What came up to here has arrived before; only deletions that came from the target are read
        # again, because it has purged them.
        self.arrived = 0
        self.dead = False  # nothing of it counts any more
        # The target knows the newest checkpoint that is the end of a snapshot, or is being sent it.
        self.is_known_there = False
        self._under_way: deque[tuple[LinkWindow, LinkPosition, int]] = deque()
        self._echo = SEQNO_MAX
        self._echoes: list[tuple[int, int]] = []

    def sent(self, window: LinkWindow, position: LinkPosition) -> None:
        """Take note that everything up to a position is in a batch, or in earlier ones."""
        under_way, echo = self._under_way, self._echo
        self._echo = SEQNO_MAX
        if under_way and under_way[-1][0] is window:
            under_way[-1] = (window, position, min(echo, under_way[-1][2]))
        else:
            under_way.append((window, position, echo))
            window.arrivals.append(self._arrived)

    def _arrived(self, _: LinkWindow) -> None:
        under_way, behind = self._under_way, self._behind
        while under_way and not under_way[0][0].open:
            window, self.front, echo = under_way.popleft()
            if echo != SEQNO_MAX:
                self.note_echo(self.front.seqno, echo)
            owed = {key for key, debt in self.debts.items() if debt.window is window}
            if owed:
                behind.append((owed, self.front))
            elif behind:
                behind[-1] = (behind[-1][0], self.front)
            else:
                self.through = self.front
            for key in [k for k, debt in self.debts.items() if debt.replaced_in is window]:
                self.paid(key)
        self.moved[self.vbucket.id] = None

    # --- what is refused ------------------------------------------------------------------------

    def owe(self, key: bytes, debt: Debt) -> None:
        """Take note that the target refuses a version in a batch that is not settled yet.

        Of two versions of a key only the newer one is a debt; it is refused first where the older
        one is looked up. The vBucket has not arrived beyond the earlier one's batch either way.
        """
        other = self.debts.get(key)
        if other is not None:
            both = debt.window, other.window
            first = next((w for w, _, _ in self._under_way if w in both), debt.window)
            debt.window = other.window = first
            if other.at > debt.at:
                return
        self._all_debts.add(self.debts, self.vbucket.id, key, debt)

    def paid(self, key: bytes) -> None:
        """A debt is none any more: the version is accepted, replaced, or given up."""
        self._all_debts.remove(self.vbucket.id, key, self.debts)
        behind = self._behind
        for owed, _ in behind:
            owed.discard(key)
        if behind and not behind[0][0]:
            while behind and not behind[0][0]:
                _, self.through = behind.popleft()
            self.moved[self.vbucket.id] = None

    def end(self) -> None:
        """Nothing of it counts any more: the stream begins again, perhaps further back."""
        self.dead = True
        for key in list(self.debts):
            self._all_debts.remove(self.vbucket.id, key, self.debts)

    # --- deletions that come from the target ----------------------------------------------------

    def is_needed(self, seqno: int) -> bool:
        """Tell whether the target may need a deletion back that has this seqno there.

        It may if the target has purged it, because an older version that was under way may have
        been accepted then. If it has not, that is found out later: `lacks`.
        """
        if seqno <= self.theirs_purged:
            return True
        self._echo = min(self._echo, seqno)
        return False

    def note_echo(self, through: int, seqno: int) -> None:
        """Take note of a deletion that was not sent back; what was up to `through` has arrived."""
        echoes = self._echoes
        echoes.append((through, seqno))
        if len(echoes) > _ECHOES_MAX:
            (_, one), (last, other) = echoes[-2:]
            echoes[-2:] = [(last, min(one, other))]

    @property
    def lowest_echo(self) -> int:
        """The lowest seqno at the target of those that may be lacking there by now."""
        return min((seqno for _, seqno in self._echoes), default=SEQNO_MAX)

    def lacks(self, upto: int, purged: int) -> bool:
        """Tell whether the target may lack a deletion that was not sent back.

        Args:
            upto: what was up to here had arrived when it was asked.
            purged: it has purged its deletions up to there. What came before is in order, unless it
                lacks one.
        """
        self.theirs_purged = max(self.theirs_purged, purged)
        if any(seqno <= purged for through, seqno in self._echoes if through <= upto):
            return True
        self._echoes = [echo for echo in self._echoes if echo[0] > upto]
        return False

    def record(self, position: LinkPosition, target_seqno: int, created: int) -> Record:
        """Return a checkpoint of a position that has arrived."""
        seqno, snapshot = position
        uuid = self.stream.history_of(seqno)
        return Record(
            uuid,
            seqno,
            snapshot.start,
            snapshot.end,
            self.target_uuid,
            target_seqno,
            created,
            int(self.clean or False),
            self.purged,
        )


def start_of(record: Record) -> Start:
    """Return where a stream begins that goes on at a record."""
    snapshot = SnapshotRange(record.snapshot_start, record.snapshot_end)
    return Start(record.uuid, record.seqno, snapshot)


def position_of(record: Record) -> LinkPosition:
    """Return the position of a record."""
    return LinkPosition(record.seqno, SnapshotRange(record.snapshot_start, record.snapshot_end))
