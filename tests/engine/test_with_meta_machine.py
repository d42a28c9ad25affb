"""Conflict resolution against a model that has every newest version at hand, in one dict.

The real thing has tombstones in the table, on disk, or half way. Flushes and readings of the disk
are begun, carried out and finished at any moment, so that an answer may be out of date when it
comes. However that goes, each version must fare as it does in the model at that moment.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.contents import table_of
from tests.engine.support import Node, settings_of
from uprmc.engine.fetcher import Fetch
from uprmc.engine.flusher import Flush
from uprmc.engine.with_meta import Demand, accept_version
from uprmc.errors import KeyExists, NotResident
from uprmc.model import Item, Life
from uprmc.record import pack, unpack

KEYS = st.sampled_from([b"a", b"b"])
REVS = st.integers(1, 12)
CASES = st.integers(1, 4)
LIVES = st.sampled_from([Life.LIVE, Life.DELETED, Life.EXPIRED])

VERSIONS = st.builds(
    lambda key, rev, cas, flags, life: Item(
        key, None if life else b"theirs", flags, 0, cas, 0, rev, 0, life
    ),
    KEYS,
    REVS,
    CASES,
    st.integers(0, 1),
    LIVES,
)


def outranks(incoming: Item, present: Item) -> bool:
    """The rule as the reference tells it, in another form than the engine's."""
    if incoming.rev != present.rev:
        return incoming.rev > present.rev
    if incoming.cas != present.cas:
        return incoming.cas > present.cas
    return not incoming.life and incoming.flags > present.flags


class Machine(RuleBasedStateMachine):
    """One vBucket and its model.

    Attributes:
        newest: key -> newest version, tombstones included.
        flush, fetch: what is under way, and whether it has been carried out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.node = Node(settings_of(flush={"batch_items": 2}))
        self.newest: dict[bytes, Item] = {}
        self.flush: tuple[Flush, bool] | None = None
        self.fetch: tuple[Fetch, bool] | None = None

    def run(self, key: bytes, command: Callable[[], None]) -> None:
        """Carry a command out, again and again until what it needs from disk is there."""
        try:
            command()
        except NotResident:
            self.node.bucket.fetcher.want([(0, key)], lambda _ok: self.run(key, command))

    # --- commands -------------------------------------------------------------------------------

    @rule(incoming=VERSIONS, skip=st.booleans() | st.just(False))
    def a_version_comes(self, incoming: Item, skip: bool) -> None:
        def command() -> None:
            present = self.newest.get(incoming.key)
            wins = skip or present is None or outranks(incoming, present)
            try:
                demand = Demand(skip_conflicts=skip)
                vbucket = self.node.vbucket
                record = accept_version(self.node.bucket, vbucket, pack(incoming), demand)
            except KeyExists:
                assert not wins, (incoming, present)
            else:
                assert wins, (incoming, present)
                self.newest[incoming.key] = unpack(record)

        self.run(incoming.key, command)

    @rule(key=KEYS)
    def the_metadata_is_asked(self, key: bytes) -> None:
        def command() -> None:
            item = self.node.vbucket.table.find(key)
            if item is None:
                record = self.node.bucket.fetcher.tombstone(self.node.vbucket, key)
                item = None if record is None else unpack(record)
            known = self.newest.get(key)
            assert item == (known and known.with_value(item.value if item else None))

        self.run(key, command)

    @rule(key=KEYS)
    def a_client_sets(self, key: bytes) -> None:
        self.newest[key] = self.node.set(key, b"ours")

    @rule(key=KEYS)
    def a_client_deletes(self, key: bytes) -> None:
        if self.node.vbucket.find(key) is not None:
            self.newest[key] = self.node.vbucket.delete(key)

    @precondition(lambda self: self.fetch is not None and self.flush is None)
    @rule(key=KEYS)
    def a_key_comes_and_goes_while_the_disk_is_read(self, key: bytes) -> None:
        self.a_client_sets(key)
        self.a_client_deletes(key)
        self.everything_is_flushed()

    @rule(key=KEYS)
    def a_value_is_ejected(self, key: bytes) -> None:
        item = table_of(self.node.vbucket).get(key)
        if item and item.value is not None and item.seqno <= self.node.vbucket.persisted_seqno:
            self.node.eject(key)

    @rule(one_in_five=st.integers(1, 5))
    def everything_is_forgotten(self, one_in_five: int) -> None:
        if one_in_five == 1:
            self.node.bucket.flush(0, lambda _: None)
            self.newest.clear()

    # --- the disk -------------------------------------------------------------------------------

    @precondition(lambda self: self.flush is None)
    @rule()
    def a_flush_begins(self) -> None:
        flush = self.node.bucket.flusher.begin()
        self.flush = (flush, False) if flush else None

    @precondition(lambda self: self.flush is not None)
    @rule()
    def a_flush_goes_on(self) -> None:
        assert self.flush is not None
        flush, written = self.flush
        if written:
            self.flush = None
            self.node.bucket.flusher.finish(flush)
        else:
            self.node.bucket.flusher.commit(flush)
            self.flush = flush, True

    @precondition(lambda self: self.flush is None)
    @rule()
    def everything_is_flushed(self) -> None:
        self.node.flush()

    @precondition(lambda self: self.fetch is None)
    @rule()
    def a_reading_begins(self) -> None:
        fetch = self.node.bucket.fetcher.begin()
        self.fetch = (fetch, False) if fetch else None

    @precondition(lambda self: self.fetch is not None)
    @rule()
    def a_reading_goes_on(self) -> None:
        assert self.fetch is not None
        fetch, read = self.fetch
        if read:
            self.fetch = None
            self.node.bucket.fetcher.finish(fetch)
        else:
            self.node.bucket.fetcher.commit(fetch)
            self.fetch = fetch, True

    @precondition(lambda self: self.flush is None and self.fetch is None)
    @precondition(lambda self: not self.node.bucket.fetcher.waiting)
    @rule()
    def the_node_is_restarted_in_order(self) -> None:
        self.node.stop()
        self.node = self.node.restarted()

    # --- at any time ----------------------------------------------------------------------------

    @invariant()
    def the_accounts_are_right(self) -> None:
        self.node.check()

    @invariant()
    def no_tombstone_is_above_the_bound(self) -> None:
        """What the engine leans on when it does not look at the disk."""
        bound = self.node.vbucket.max_deleted_rev
        assert all(item.rev <= bound for item in self.newest.values() if item.life)

    def teardown(self) -> None:
        """Whoever waits gets an answer as soon as nothing else happens."""
        for _ in range(3):
            if self.flush is not None:
                self.a_flush_goes_on()
        for _ in range(10):
            if self.fetch is None:
                self.a_reading_begins()
            else:
                self.a_reading_goes_on()
        assert self.node.bucket.fetcher.waiting == 0


TestConflictResolution = Machine.TestCase
TestConflictResolution.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
