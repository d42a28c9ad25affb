"""The rules of transitive checkpoints as a machine: A -> B and B -> C in any order, cut and purged.

The engines, the records and the rules are the real ones; links are walked by hand. If C has a
checkpoint of A that came over B, nothing of A up to there may be older or missing at C, because a
link from A to C would not send it.

Source: systems reference (h), second model; (d).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.engine.support import Node
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.with_meta import Demand, accept_version
from uprmc.errors import KeyExists, KeyNotFound, NotResident
from uprmc.model import Item, SnapshotRange
from uprmc.record import pack
from uprmc.rollback import origin_here
from uprmc.xdcr.checkpointing import Checkpointing
from uprmc.xdcr.received import ReceivedRecords, due, row_of
from uprmc.xdcr.resuming import Resuming
from uprmc.xdcr.shipment import NOWHERE, Debts, LinkPosition, Shipment
from uprmc.xdcr.target import TargetVBucket

KEYS = st.sampled_from([b"a", b"b", b"c"])
A, B, C = "aaaa", "bbbb", "cccc"


def stored(node: Node) -> list[Item]:
    """Return everything a node has, deletions included, in the order of its stream."""
    node.flush()
    view = node.bucket.store.view()
    items = list(view.changes_after(0, 0))
    view.close()
    return items


def send(item: Item, source: Node, target: Node) -> None:
    """Let a version arrive."""
    origin = item.origin or origin_here(source.vbucket.failover_log, item.seqno)
    fields = {name: getattr(item, name) for name in ("key", "value", "flags", "cas", "rev", "life")}
    version = pack(Item(**fields, expiry=0, seqno=0, origin=origin))
    for _ in range(2):
        try:
            accept_version(target.bucket, target.vbucket, version, Demand())
        except NotResident:
            target.fetch(item.key)
            continue
        except (KeyExists, KeyNotFound):
            pass
        return


class Machine(RuleBasedStateMachine):
    """See the module docstring.

    Attributes:
        shipment: of the link B -> C, ``None`` = it does not run.
        left: what it has still to send of its snapshot.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = Node(), Node(), Node()
        self.at_b, self.at_c = (ReceivedRecords(n.bucket, pytest.fail) for n in (self.b, self.c))
        self.shipment: Shipment | None = None
        self.left: list[Item] = []
        self.end = 0
        self.purged: dict[bytes, Item] = {}

    def node(self, name: str) -> Node:
        return {A: self.a, B: self.b, C: self.c}[name]

    @rule(name=st.sampled_from([A, A, B, C]), key=KEYS)
    def write(self, name: str, key: bytes) -> None:
        self.node(name).vbucket.store(key, b"v", 0, 0)

    @rule(name=st.sampled_from([A, A, B]), key=KEYS)
    def delete(self, name: str, key: bytes) -> None:
        try:
            self.node(name).vbucket.delete(key)
        except KeyNotFound:
            return

    @precondition(lambda self: self.shipment is None)
    @rule()
    def purge_at_b(self) -> None:
        """While the link runs its watermark would not allow it."""
        self.b.flush()
        compactor = self.b.bucket.compactor
        self.b.bucket.compact(0, PurgeRule(every=True), lambda _: None)
        while compactor.waiting:
            look = compactor.begin()
            if look is None:
                self.b.flush()
                continue
            compactor.read(look)
            compactor.finish(look)
        self.b.flush()

    @rule()
    def a_to_b(self) -> None:
        """It sends everything, and tells B what it has now."""
        for item in stored(self.a):
            send(item, self.a, self.b)
        if self.a.vbucket.high_seqno:
            self.at_b.tell(self.record_of_a(self.a.vbucket.high_seqno))

    def record_of_a(self, seqno: int) -> dict[str, Any]:
        uuid = str(self.a.vbucket.failover_log[0].uuid)
        numbers = {"vbucket": 0, "source_vb_uuid": uuid, "source_seqno": seqno}
        texts = {"source_bucket_uuid": A, "filter_hash": "", "link_id": "l", "session_id": "s"}
        return {**numbers, **texts, "via": []}

    @rule()
    def a_to_c(self) -> None:
        """A link of earlier, which nobody remembers."""
        for item in stored(self.a):
            send(item, self.a, self.c)

    @precondition(lambda self: self.shipment is None)
    @rule()
    def b_to_c_begins(self) -> None:
        self.left = stored(self.b)
        self.end = self.b.vbucket.high_seqno
        vbucket, held = self.b.vbucket, TargetVBucket(1, self.c.vbucket.high_seqno, ())
        made = Shipment(
            vbucket, "c:1", cast("Any", None), (0, held.seqno), NOWHERE, {}, Debts(1, 1)
        )
        made.clean = Resuming._is_clean(cast("Any", None), vbucket, None, held)
        self.shipment = made

    @precondition(lambda self: self.shipment is not None)
    @rule(items=st.integers(1, 3))
    def b_to_c_goes_on(self, items: int) -> None:
        shipment = self.shipment
        assert shipment is not None
        if not self.left and self.b.vbucket.high_seqno > self.end:
            self.left = [item for item in stored(self.b) if item.seqno > self.end]
            self.end = self.b.vbucket.high_seqno
        for item in self.left[:items]:
            send(item, self.b, self.c)
            begin = min(shipment.through.seqno, shipment.through.snapshot.start)
            shipment.through = LinkPosition(item.seqno, SnapshotRange(begin, self.end))
        del self.left[:items]
        if not self.left:
            shipment.through = LinkPosition(self.end, SnapshotRange(self.end, self.end))
        self.pass_on(shipment)

    def pass_on(self, shipment: Shipment) -> None:
        if Checkpointing._may_pass_on(cast("Any", None), shipment):
            for record in due(self.at_b.valid(self.b.vbucket), shipment.through.seqno, "", C):
                floor = self.b.vbucket.max_deleted_rev
                row = {**row_of(record._replace(via=(B,))), "vbucket": 0, "rev_floor": floor}
                self.at_c.tell(row)

    @precondition(lambda self: self.shipment is not None)
    @rule()
    def b_to_c_is_cut(self) -> None:
        self.shipment = None

    @invariant()
    def what_a_checkpoint_says_is_there(self) -> None:
        told = [row for row in self.at_c.shown([0], A) if row["via"]]
        upto = max((row["source_seqno"] for row in told), default=0)
        if not upto:
            return
        there = {item.key: item for item in stored(self.c)}
        for item in stored(self.a):
            if item.seqno > upto:
                continue
            found = there.get(item.key)
            if found is None:
                assert item.life or self.was_deleted_at_b(item), f"C lacks {item}"
            else:
                assert (found.rev, found.cas) >= (item.rev, item.cas), f"C has {found}, A {item}"

    def was_deleted_at_b(self, item: Item) -> bool:
        """B has deleted it and has dropped that: a full run would bring it back."""
        here = {each.key: each for each in stored(self.b)}.get(item.key)
        return here is None and self.b.vbucket.max_deleted_rev >= item.rev


_SETTINGS = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.mark.acceptance("C09", "C11", "C12")
def test_what_a_passed_on_checkpoint_says_is_there() -> None:
    run_state_machine_as_test(Machine, settings=_SETTINGS)


def ruh_roh() -> Machine:
    """An edit at B moves a document of A behind the record; the stream to C is in between."""
    machine = Machine()
    for key in (b"a", b"b", b"c"):
        machine.write(A, key)
    machine.a_to_b()
    machine.write(B, b"b")
    machine.b_to_c_begins()
    machine.b_to_c_goes_on(2)
    return machine


def purge_trap() -> Machine:
    """A deletes what C has got earlier; B gets the deletion and drops it before C hears of it."""
    machine = Machine()
    machine.write(A, b"a")
    machine.a_to_c()
    machine.delete(A, b"a")
    machine.a_to_b()
    machine.write(B, b"b")
    machine.purge_at_b()
    machine.b_to_c_begins()
    machine.b_to_c_goes_on(3)
    return machine


@pytest.mark.parametrize("story", [ruh_roh, purge_trap])
def test_nothing_is_passed_on_too_early(
    story: Callable[[], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the machine's invariant notices if the rule is broken."""
    story().what_a_checkpoint_says_is_there()
    monkeypatch.setattr(
        Checkpointing, "_may_pass_on", lambda _, shipment: bool(shipment.through.seqno)
    )
    with pytest.raises(AssertionError, match=r"^C (lacks|has) "):
        story().what_a_checkpoint_says_is_there()
