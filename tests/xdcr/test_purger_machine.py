"""A link as a client of the purger: away, outpaced, and back, with a link back or without one.

Two simulated clusters with real links; only the first one writes. Deletions are purged, the link is
paused or cut off, its row expires or is removed, and the target loses power. A link with a link
back is outpaced only if its row is removed, and stops then; one without begins at zero. Once what
has stopped is reconciled, both clusters have exactly the documents that were written and not
deleted.

Source: systems reference (h), first model; a.3, a.8.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.sim.faults import NO_FAULTS
from tests.sim.links import LinksRun, Plan, routes
from tests.sim.node import SMALL
from tests.sim.world import World
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.watermarks.table import MANAGER
from uprmc.errors import KeyNotFound
from uprmc.xdcr.reading import LinkReading
from uprmc.xdcr.resuming import Resuming

pytestmark = pytest.mark.sim

KEYS = [b"a", b"b", b"c", b"d"]
LINK, ROW = "0to1", b"xdcr:0to1"

#: Longer than the rows of links without a link back live.
LONG_S = 3_700


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let little data come in many portions."""
    for module, name, value in SMALL:
        monkeypatch.setattr(f"{module}.{name}", value)


class Machine(RuleBasedStateMachine):
    """See the module docstring.

    Attributes:
        run: the clusters and links, and the judges.
        documents: what was written and not deleted.
    """

    run: LinksRun | None = None

    @initialize(two_way=st.booleans())
    def begin(self, two_way: bool) -> None:
        ways = routes("pair") if two_way else routes("pair")[:1]
        plan = Plan(ways, NO_FAULTS, vbuckets=1, purge_s=0.0, varied_wires=False)
        self.run = LinksRun(World(0), plan)
        self.run.start()
        self.documents: dict[bytes, bytes] = {}
        self.written = 0

    @property
    def clusters(self) -> LinksRun:
        assert self.run is not None
        return self.run

    @property
    def source(self) -> Any:
        return self.clusters.nodes[0]

    @property
    def link(self) -> Any:
        return self.source.xdcr.by_name[LINK]

    # --- what happens ---------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS))
    def write(self, key: bytes) -> None:
        self.written += 1
        value = self.documents[key] = b"%d" % self.written
        self.source.bucket.active[0].store(key, value, 0, 0)

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: bytes) -> None:
        if self.documents.pop(key, None) is not None:
            self.source.bucket.active[0].delete(key)

    @rule(steps=st.sampled_from([10, 100, 400]))
    def go_on(self, steps: int) -> None:
        self.clusters.world.run(steps)

    @rule(place=st.sampled_from([0, 1]))
    def purge(self, place: int) -> None:
        node = self.clusters.nodes[place]
        if node.serving:
            node.bucket.compact(0, PurgeRule(every=True), lambda _: None)
        self.clusters.world.run(60)

    @rule()
    def pause(self) -> None:
        if not self.link.spec.paused:
            self.source.command("pause", name=LINK)
        self.clusters.world.run(30)

    @rule()
    def resume(self) -> None:
        self.source.command("resume", name=LINK)

    @rule()
    def checkpoint(self) -> None:
        if self.link.shipments:
            self.source.command("checkpoint", name=LINK)

    @rule(apart=st.booleans())
    def part(self, apart: bool) -> None:
        if apart:
            self.clusters.net.part("n0", "n1")
        else:
            self.clusters.net.parted.clear()

    @rule()
    def the_target_loses_power(self) -> None:
        target = self.clusters.nodes[1]
        if target.up:
            target.crash(power=True)
            target.start()

    @rule()
    def let_time_pass(self) -> None:
        self.clusters.world.set_wall_clock(LONG_S)

    @rule()
    def remove_the_row(self) -> None:
        with suppress(KeyNotFound):
            watermarks = self.source.bucket.watermarks
            watermarks.remove(self.source.bucket.active[0], ROW, MANAGER)

    @rule(key=st.sampled_from(KEYS), how=st.sampled_from([let_time_pass, remove_the_row]))
    def outpace(self, key: bytes, how: Callable[[Machine], None]) -> None:
        """Purge a deletion while the link is away and its row, if it expires, is gone."""
        self.write(key)
        self.go_on(400)
        self.pause()
        self.delete(key)
        self.write(KEYS[0])  # the newest seqno is never dropped
        self.go_on(100)
        how(self)
        self.purge(0)
        self.resume()

    # --- what must be so ------------------------------------------------------------------------

    @invariant()
    def no_live_row_is_below_the_purge_seqno(self) -> None:
        if self.run is None:
            return
        bucket = self.source.bucket
        vbucket, now = bucket.active[0], bucket.clock.now()
        for row in bucket.watermarks.rows(vbucket):
            lives = not row.lifetime_s or now <= row.reported_at + row.lifetime_s
            if lives and (row.watermark or row.floor is not None):
                assert row.effective >= vbucket.purge_seqno, row

    def teardown(self) -> None:
        if self.run is None:
            return
        run = self.run
        run.heal()
        run.rest()
        if len(run.plan.routes) == 1:  # it has begun at zero: the target may have too much
            self.source.command("reconcile", name=LINK)
            run._until(lambda: not self.link.reconciliation.running, "repairs")
            assert not self.link.reconciliation.error
            run.rest()
        run.finish()
        for node in run.nodes:
            found = run.truth.book(node.name, 0).now()
            live = {version.key: version.value for _, version in found if not version.deleted}
            assert live == self.documents, node.name


_SETTINGS = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


@pytest.mark.acceptance("X05", "X06", "X19")
def test_a_link_that_is_outpaced_leaves_nothing_wrong_behind() -> None:
    run_state_machine_as_test(Machine, settings=_SETTINGS)


def outpaced(how: Callable[[Machine], None]) -> Machine:
    """A link with a link back; the target lacks a deletion that was purged, if it can be."""
    machine = Machine()
    machine.begin(True)
    machine.outpace(b"b", how)
    return machine


def test_a_link_with_a_link_back_stops_where_it_is_outpaced() -> None:
    machine = outpaced(Machine.remove_the_row)
    machine.clusters._until(lambda: machine.link.state == "needs_reconcile", "links")
    machine.teardown()


def test_time_alone_does_not_outpace_a_link_with_a_link_back() -> None:
    machine = outpaced(Machine.let_time_pass)
    machine.teardown()
    assert not machine.source.events


def _never_stop(patch: pytest.MonkeyPatch) -> None:
    """Begin at zero although deletions were purged that the target lacks."""
    patch.setattr(Resuming, "_has_missed", lambda *_: False)


def _let_rows_expire(patch: pytest.MonkeyPatch) -> None:
    """Let rows of links with a link back expire by time, and do not mind."""
    keep = LinkReading.keep_rows
    patch.setattr(LinkReading, "keep_rows", lambda self, *, lasting: keep(self, lasting=False))
    _never_stop(patch)


@pytest.mark.parametrize("break_it", [_never_stop, _let_rows_expire])
def test_the_machine_notices(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    phases = settings(_SETTINGS, max_examples=100, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=phases)
