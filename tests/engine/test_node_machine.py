"""Everything at once: random commands, flushes in steps, ejections, resets, crashes, one model.

The model is the list of what was accepted. What the vBucket shows must be the end of that list;
what a crash leaves must be the list cut at the stored seqno or, within a long flush, whatever had
been complete before it; what a view shows is what was queued when it was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.contents import queued, table_of
from tests.engine.support import Node, settings_of
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.flusher import Flush
from uprmc.engine.vbucket import StoreMode, counter_text, parse_counter, shifted
from uprmc.engine.write_queue import QueueView
from uprmc.errors import CommandError, NotResident, StoreFull, TemporaryFailure
from uprmc.model import Item

KEYS = [b"a", b"b", b"c", b"d", b"e"]
keys = st.sampled_from(KEYS)
values = st.sampled_from([b"", b"1", b"17  ", b"word", bytes(300)])
which_cas = st.sampled_from(["none", "none", "none", "right", "wrong"])
LIMIT = 400


class Document(NamedTuple):
    """What a client sees of a document."""

    value: bytes
    flags: int
    expiry: int


class Change(NamedTuple):
    """One accepted change; `document` is ``None`` when it went."""

    seqno: int
    key: bytes
    document: Document | None
    rev: int


class History:
    """One branch: documents it began with, and every change accepted since."""

    def __init__(self, start: int = 0, base: dict[bytes, Change] | None = None) -> None:
        self.start = start
        self.base = base or {}
        self.changes: list[Change] = []

    @property
    def high_seqno(self) -> int:
        return self.start + len(self.changes)

    def newest(self, upto: int | None = None) -> dict[bytes, Change]:
        """The last change of every key, up to a seqno."""
        count = len(self.changes) if upto is None else upto - self.start
        return {**self.base, **{change.key: change for change in self.changes[:count]}}

    def documents(self) -> dict[bytes, Document]:
        return {key: c.document for key, c in self.newest().items() if c.document is not None}

    def accept(self, key: bytes, document: Document | None, item: Item) -> None:
        """Add what the engine says it accepted, if it is what may come next."""
        before = self.newest().get(key)
        assert item.seqno == self.high_seqno + 1, "each accepted change takes the next seqno"
        assert item.key == key
        assert before is None or item.rev > before.rev, "a revision did not rise"
        self.changes.append(Change(item.seqno, key, document, item.rev))


class NodeMachine(RuleBasedStateMachine):
    """One vBucket of one node, and its history."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node(settings_of(flush={"batch_items": 64}))
        self.history = self.stored = self.being_written = History()
        self.flush: Flush | None = None
        self.committed = False
        self.refusing = False
        self.views: list[tuple[QueueView, list[int]]] = []

    # --- commands -------------------------------------------------------------------------------

    def cas(self, key: bytes, which: str) -> int:
        item = self.node.vbucket.table.find(key)
        if which == "none":
            return 0
        return (item.cas if item else 0) + (1 if which == "wrong" else 0) or 4711

    def run(
        self, action: Callable[[], Item], *, allowed: bool, changes: bool = True
    ) -> Item | None:
        """Run a command, fetching what it needs; ``None`` if it was rightly refused."""
        try:
            item = action()
        except NotResident as missing:
            self.fetch_all(missing.keys)
            return self.run(action, allowed=allowed, changes=changes)
        except TemporaryFailure:
            assert self.refusing
            return None
        except CommandError:
            assert not allowed
            return None
        assert allowed
        assert not (changes and self.refusing), "accepted what could not be kept"
        return item

    def fetch_all(self, wanted: Sequence[bytes]) -> None:
        assert self.node.fetch(*wanted)

    @rule(
        key=keys,
        value=values,
        flags=st.integers(0, 3),
        ttl=st.sampled_from([0, 0, 1, 100]),
        mode=st.sampled_from(StoreMode),
        which=which_cas,
    )
    def store(
        self, key: bytes, value: bytes, flags: int, ttl: int, mode: StoreMode, which: str
    ) -> None:
        there = key in self.history.documents()
        plain = mode == StoreMode.SET or there == (mode == StoreMode.REPLACE)
        allowed = plain if which == "none" else there and which == "right"
        expiry = int(self.node.clock.now()) + ttl if ttl else 0
        cas = self.cas(key, which)
        vbucket = self.node.vbucket
        item = self.run(
            lambda: vbucket.store(key, value, flags, expiry, cas, mode=mode), allowed=allowed
        )
        if item:
            self.history.accept(key, Document(value, flags, expiry), item)

    @rule(key=keys, which=which_cas)
    def delete(self, key: bytes, which: str) -> None:
        allowed = key in self.history.documents() and which != "wrong"
        cas = self.cas(key, which)
        item = self.run(lambda: self.node.vbucket.delete(key, cas), allowed=allowed)
        if item:
            self.history.accept(key, None, item)

    @rule(key=keys, piece=values, front=st.booleans(), which=which_cas)
    def extend(self, key: bytes, piece: bytes, front: bool, which: str) -> None:
        old = self.history.documents().get(key)
        value = b"" if old is None else piece + old.value if front else old.value + piece
        allowed = old is not None and which != "wrong" and len(value) <= LIMIT
        cas = self.cas(key, which)
        vbucket = self.node.vbucket
        item = self.run(
            lambda: vbucket.extend(key, piece, cas, front=front, limit_bytes=LIMIT),
            allowed=allowed,
        )
        if item:
            assert old is not None
            self.history.accept(key, old._replace(value=value), item)

    @rule(key=keys, delta=st.integers(-20, 20), which=which_cas, create=st.booleans())
    def add_delta(self, key: bytes, delta: int, which: str, create: bool) -> None:
        old = self.history.documents().get(key)
        number = parse_counter(old.value) if old else None
        allowed = create if old is None else which != "wrong" and number is not None
        cas = self.cas(key, which)
        vbucket = self.node.vbucket
        initial = 5 if create else None
        item = self.run(
            lambda: vbucket.add_delta(key, delta, cas, initial=initial)[1], allowed=allowed
        )
        if item and old is None:
            self.history.accept(key, Document(b"5", 0, 0), item)
        elif item:
            assert number is not None
            text = counter_text(shifted(number, delta), len(old.value))
            self.history.accept(key, old._replace(value=text), item)

    @rule(key=keys, ttl=st.sampled_from([0, 1, 100]))
    def touch(self, key: bytes, ttl: int) -> None:
        old = self.history.documents().get(key)
        expiry = int(self.node.clock.now()) + ttl if ttl else 0
        changes = old is not None and old.expiry != expiry
        before = self.node.vbucket.table.find(key)
        item = self.run(
            lambda: self.node.vbucket.touch(key, expiry), allowed=old is not None, changes=changes
        )
        if item and changes:
            assert old is not None
            assert before is not None
            assert item.cas == before.cas
            self.history.accept(key, old._replace(expiry=expiry), item)

    @rule(count=st.integers(60, 140))
    def write_a_lot(self, count: int) -> None:
        """Enough for a flush in several commits."""
        for number in range(count if not self.refusing else 0):
            key = b"many-%d" % number
            item = self.node.vbucket.store(key, b"x", 0, 0)
            self.history.accept(key, Document(b"x", 0, 0), item)

    @rule(seconds=st.sampled_from([1, 100]))
    def let_time_pass(self, seconds: int) -> None:
        self.node.clock.advance(seconds)
        self.expire_what_is_due()

    def expire_what_is_due(self) -> None:
        for key, document in self.history.documents().items():
            due = 0 < document.expiry <= self.node.clock.now()
            assert (self.node.vbucket.find(key) is None) == due
            if due:
                tombstone = self.node.vbucket.table.find(key)
                assert tombstone is not None
                self.history.accept(key, None, tombstone)

    # --- disk and memory ------------------------------------------------------------------------

    @precondition(lambda self: self.flush is None)
    @rule()
    def begin(self) -> None:
        self.flush = self.node.bucket.flusher.begin()
        self.committed = False
        self.being_written = self.history

    @precondition(lambda self: self.flush is not None and not self.committed)
    @rule()
    def commit(self) -> None:
        assert self.flush is not None
        self.node.bucket.flusher.commit(self.flush)
        self.committed = True
        self.stored = self.being_written

    @precondition(lambda self: self.flush is not None and self.committed)
    @rule()
    def finish(self) -> None:
        assert self.flush is not None
        self.node.bucket.flusher.finish(self.flush)
        self.flush = None
        self.refusing = False

    @precondition(lambda self: self.flush is not None and not self.committed)
    @rule()
    def fail(self) -> None:
        assert self.flush is not None
        self.node.bucket.flusher.failed(self.flush, StoreFull("disk full"))
        self.flush = None
        self.refusing = True

    @precondition(lambda self: self.flush is None)
    @rule()
    def flush_everything(self) -> None:
        if self.node.vbucket.dirty:
            self.node.flush()
            self.stored = self.history
            self.refusing = False
        assert self.node.vbucket.persisted_seqno == self.history.high_seqno

    @rule(key=keys)
    def eject(self, key: bytes) -> None:
        item = table_of(self.node.vbucket).get(key)
        if item and item.value is not None and item.seqno <= self.node.vbucket.persisted_seqno:
            self.node.vbucket.eject(item.key)

    @rule(key=keys)
    def fetch(self, key: bytes) -> None:
        assert self.node.fetch(key)

    @precondition(lambda self: len(self.views) < 5)
    @rule()
    def open_view(self) -> None:
        persisted = self.node.vbucket.persisted_seqno
        queued = [c.seqno for c in self.history.newest().values() if c.seqno > persisted]
        self.views.append((self.node.vbucket.queue.open_view(), sorted(queued)))

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def close_view(self, data: st.DataObject) -> None:
        self.views.pop(data.draw(st.integers(0, len(self.views) - 1)))[0].close()

    @rule()
    def forget_everything(self) -> None:
        self.node.bucket.flush(0, lambda _: None)
        self.history = History()

    # --- ends -----------------------------------------------------------------------------------

    @rule()
    def crash(self) -> None:
        header = self.node.header()
        complete = last_complete_seqno(header.high_seqno, header.snapshot)
        assert complete >= self.stored.start
        self.begin_again()
        vbucket = self.node.vbucket
        assert vbucket.high_seqno == header.high_seqno
        assert vbucket.failover_log[0].seqno == complete
        self.judge_what_is_left(complete)
        base = {
            key: Change(item.seqno, key, self.document(item), item.rev)
            for key, item in self.node.stored().items()
        }
        self.history = self.stored = History(vbucket.high_seqno, base)
        self.expire_what_is_due()

    def judge_what_is_left(self, complete: int) -> None:
        high = self.node.vbucket.high_seqno
        found = {item.key: item for item in self.node.stored().values()}
        known = {change.seqno: change for change in self.stored.newest(high).values()}
        known.update((change.seqno, change) for change in self.stored.changes)
        for item in found.values():
            assert known[item.seqno].document == self.document(item), "nobody wrote that"
        if complete == high:
            expected = self.stored.newest(high)
            assert {key: item.seqno for key, item in found.items()} == {
                key: change.seqno for key, change in expected.items()
            }
        for key, change in self.stored.newest(complete).items():
            assert found[key].seqno >= change.seqno, "older than what was complete"

    @staticmethod
    def document(item: Item) -> Document | None:
        return None if item.life else Document(item.value or b"", item.flags, item.expiry)

    @precondition(lambda self: self.flush is None)
    @rule()
    def stop_in_order(self) -> None:
        log = self.node.vbucket.failover_log
        self.node.stop()
        self.begin_again()
        assert self.node.vbucket.failover_log == log
        start, newest = self.history.high_seqno, self.history.newest()
        self.history = self.stored = History(start, newest)
        self.expire_what_is_due()

    def begin_again(self) -> None:
        for view, _ in self.views:
            view.close()
        self.views.clear()
        self.node.clock.advance(1)
        self.node = self.node.restarted()
        self.flush = None
        self.refusing = False

    # --- what must hold -------------------------------------------------------------------------

    @invariant()
    def the_table_is_the_end_of_the_history(self) -> None:
        vbucket = self.node.vbucket
        assert vbucket.high_seqno == self.history.high_seqno
        newest = self.history.newest()
        shown = {key: item for key, item in table_of(vbucket).items() if not item.life}
        assert shown.keys() == self.history.documents().keys()
        assert vbucket.item_count == len(shown)
        for key, change in newest.items():
            item = vbucket.table.find(key)
            if change.document is None and change.seqno <= vbucket.persisted_seqno:
                assert item is None, "a persisted deletion stayed"
                continue
            assert item is not None
            assert (item.seqno, item.rev) == (change.seqno, change.rev)
            if change.document is None:
                assert item.life
            elif item.value is not None:
                assert self.document(item) == change.document

    @invariant()
    def views_stay_as_they_were(self) -> None:
        for view, expected in self.views:
            assert [item.seqno for item in queued(view)] == expected

    @invariant()
    def accounts_and_lists_are_right(self) -> None:
        self.node.check()
        vbucket = self.node.vbucket
        if self.flush is None and vbucket.queue.live:
            assert vbucket.dirty, "something is queued and nobody will write it"

    def teardown(self) -> None:
        for view, _ in self.views:
            view.close()
        if self.flush is None:
            self.node.flush()
            assert self.node.vbucket.queue.retired == 0
            assert self.node.vbucket.queue.open_views == 0


TestNodeMachine = pytest.mark.acceptance("D17", "D19", "D21", "D22", "D23")(NodeMachine.TestCase)
TestNodeMachine.settings = settings(max_examples=80, stateful_step_count=50)
