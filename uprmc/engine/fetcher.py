"""Bringing evicted values back from disk without making other commands wait.

It has the same three steps as the flusher: `begin` collects what is wanted and opens a store view,
`commit` reads (any thread), `finish` puts the values into the tables and wakes those who asked, all
in one turn: a woken session finds its value before the evictor could evict it again. Any number of
rounds may be under way, also of one key, and end in any order.

A key that is not in the table may have a tombstone on disk; `tombstone` returns it. The answer is
not put into the table, which contains no tombstones that are on disk. It is kept only while
`finish` wakes those who asked, and used only while it must be true. A tombstone leaves the table
with `VBucket.persisted`. So as long as the history and the persisted seqno are the same as when the
view was opened, the view is right about keys that are not in the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from uprmc.engine.reading import ViewGate
from uprmc.engine.stats import Stats
from uprmc.engine.vbucket import VBucket
from uprmc.errors import NotResident, StoreError, TemporaryFailure
from uprmc.model import FailoverLog
from uprmc.record import ABSENT, KIND_AT, LIFE_BITS, seqno_of
from uprmc.storage.interface import Store, StoreView

#: A round takes this many requests before others get a part: for fewer, a worker costs too much.
_LEAST_PART = 8

#: (vBucket, key)
Wanted = tuple[int, bytes]


@dataclass(slots=True)
class _Request:
    wanted: Sequence[Wanted]
    done: Callable[[bool], None]


class _Answer(NamedTuple):
    """The record on disk of a key that is not in the table, and the state for which it is valid."""

    log: FailoverLog
    persisted_seqno: int
    tombstone: bytes | None


@dataclass(slots=True)
class Fetch:
    """One round of reading."""

    view: StoreView
    requests: list[_Request]
    wanted: list[Wanted]
    persisted: dict[int, tuple[FailoverLog, int]]
    # records that were found in the store.
    found: dict[Wanted, bytes | None] = field(default_factory=dict)
    # what could not be read, and why; the rest of the round is not affected.
    unread: dict[Wanted, StoreError] = field(default_factory=dict)
    # callers that wait for the result.
    answers: deque[tuple[Callable[[bool], None], bool]] = field(default_factory=deque)


class Fetcher:
    """Collects keys whose values are wanted, and brings the values back."""

    def __init__(
        self,
        store: Store,
        vbuckets: Mapping[int, VBucket],
        stats: Stats,
        batch_keys: int,
        gate: ViewGate,
    ) -> None:
        self._store = store
        self._vbuckets = vbuckets
        self._stats = stats
        self._batch_keys = batch_keys
        self._gate = gate
        self._waiting: deque[_Request] = deque()
        self._answers: dict[Wanted, _Answer] = {}
        # Called when the first value is wanted, or when reading is possible again.
        self.on_wanted: Callable[[], None] = lambda: None

    @property
    def waiting(self) -> int:
        """Number of requests not yet begun."""
        return len(self._waiting)

    def want(self, wanted: Sequence[Wanted], done: Callable[[bool], None]) -> None:
        """Ask for values; `done` is called once, with ``False`` if they cannot be read.

        ``True`` means "run the command again": the value is there, or the document has changed.
        """
        self._waiting.append(_Request(wanted, done))
        if len(self._waiting) == 1:
            self.on_wanted()

    def tombstone(self, vbucket: VBucket, key: bytes) -> bytes | None:
        """Return the persisted tombstone's record of a key that is not in the table.

        ``None`` means that there is none.

        Raises:
            NotResident: ask for it with `want` and run the command again when `done` is called;
                the answer is there during that call only.
            TemporaryFailure: the store still shows a history that was rolled back.
        """
        if vbucket.rewinding:
            raise TemporaryFailure(f"vBucket {vbucket.id} is being rolled back")
        answer = self._answers.get((vbucket.id, key))
        if answer is None or answer.log is not vbucket.failover_log:
            raise NotResident(vbucket.id, (key,))
        if answer.persisted_seqno != vbucket.persisted_seqno:
            raise NotResident(vbucket.id, (key,))
        return answer.tombstone

    def begin(self, share: int = 1) -> Fetch | None:
        """Take requests for one round, at least one; ``None`` if there is none.

        ``None`` as well while the gate is shut; `on_wanted` is called when it opens.

        Args:
            share: how many rounds can be begun now; this one takes its part of what waits.

        Raises:
            StoreError: the store cannot be read; those who wait have been informed.
        """
        if not self._waiting:
            return None
        if self._gate.is_shut:
            self._gate.when_open(self._opened)
            return None
        view = self._view()
        taken: list[_Request] = []
        wanted: set[Wanted] = set()
        part = max(_LEAST_PART, -(-len(self._waiting) // share))
        while self._waiting and (
            not taken or (len(wanted) < self._batch_keys and len(taken) < part)
        ):
            request = self._waiting.popleft()
            taken.append(request)
            wanted.update(request.wanted)
        persisted = {
            number: (self._vbuckets[number].failover_log, self._vbuckets[number].persisted_seqno)
            for number in {number for number, _ in wanted}
            if number in self._vbuckets
        }
        return Fetch(view, taken, sorted(wanted), persisted)

    def commit(self, fetch: Fetch) -> None:
        """Read. Safe in a worker thread. Call `failed` if it raises."""
        get = fetch.view.get
        for place in fetch.wanted:
            try:
                fetch.found[place] = get(*place)
            except StoreError as error:
                fetch.unread[place] = error

    def finish(self, fetch: Fetch) -> None:
        """Put the values into the tables and wake those who asked."""
        fetch.view.close()
        self._answers = self._answers_of(fetch)
        lost = {place for place in fetch.wanted if not self._install(fetch, place)}
        self._stats.bg_meta_fetched += len(self._answers)
        self._stats.bg_fetched += len(fetch.wanted) - len(lost) - len(self._answers)
        self._stats.bg_fetch_failures += len(lost)
        fetch.answers.extend(
            (request.done, lost.isdisjoint(request.wanted)) for request in fetch.requests
        )
        self.tell(fetch)

    def failed(self, fetch: Fetch) -> None:
        """Report to those who asked that reading failed."""
        fetch.view.close()
        self._stats.bg_fetch_failures += len(fetch.wanted)
        fetch.answers.extend((request.done, False) for request in fetch.requests)
        self.tell(fetch)

    def tell(self, fetch: Fetch) -> None:
        """Call those who asked, each once. If one raises, call again for the others."""
        while fetch.answers:
            done, ok = fetch.answers.popleft()
            done(ok)
        self._answers = {}

    def _opened(self) -> None:
        if self._waiting:
            self.on_wanted()

    def _view(self) -> StoreView:
        try:
            return self._store.view()
        except StoreError:
            requests, self._waiting = self._waiting, deque()
            self._stats.bg_fetch_failures += sum(len(request.wanted) for request in requests)
            for request in requests:
                request.done(False)
            raise

    def _answers_of(self, fetch: Fetch) -> dict[Wanted, _Answer]:
        """Return what was found of the keys that are not in the tables.

        A record above the persisted seqno belongs to a former history that is not yet gone from the
        store.
        """
        answers: dict[Wanted, _Answer] = {}
        for place in fetch.wanted:
            number, key = place
            vbucket = self._vbuckets.get(number)
            if vbucket is None or number not in fetch.persisted or key in vbucket.table:
                continue
            if place in fetch.unread:
                continue
            log, persisted_seqno = fetch.persisted[number]
            record = fetch.found[place]
            if record is not None and (
                not record[KIND_AT] & LIFE_BITS or seqno_of(record) > persisted_seqno
            ):
                record = None
            answers[place] = _Answer(log, persisted_seqno, record)
        return answers

    def _install(self, fetch: Fetch, place: Wanted) -> bool:
        """Put one value into its table; ``False`` if the store should have it but does not."""
        number, key = place
        vbucket = self._vbuckets.get(number)
        if vbucket is None:
            return True
        current = vbucket.table.get(key)
        if current is None:
            return place not in fetch.unread
        if not current[KIND_AT] & ABSENT:
            return True
        record = fetch.found.get(place)
        if record is not None and vbucket.bring_in(record):
            return True
        log, persisted_seqno = fetch.persisted.get(number, ((), 0))
        return log is not vbucket.failover_log or seqno_of(current) > persisted_seqno
