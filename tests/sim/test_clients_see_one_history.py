"""What clients see of a document is explained by one order of all operations."""

from __future__ import annotations

import pytest

from tests.seeds import seeds
from tests.sim import codec, linearity
from tests.sim.codec import Frame
from tests.sim.faults import NO_FAULTS, Faults
from tests.sim.judges import Op, Verdict
from tests.sim.linearity import ABSENT
from tests.sim.run import EVERYTHING, STORE, StorePlan, StoreRun
from tests.sim.test_store_survives import back, put, read, write_out

pytestmark = pytest.mark.sim

WITHOUT_FLUSH = {kind: weight for kind, weight in EVERYTHING.items() if kind != "flush"}


# --- long walks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(default=20))
@pytest.mark.acceptance("D17")
def test_every_accepted_change_takes_one_seqno_and_a_refused_one_none(seed: int) -> None:
    """Nothing is cut or lost here, so that every change can be counted."""
    faults = Faults(unreadable_s=0.5, full_s=0.7) if seed % 2 else NO_FAULTS
    run = STORE.random(seed, StorePlan(faults, steps=2_000, weights=WITHOUT_FLUSH, clients=4))
    assert run.history.life == 1


@pytest.mark.parametrize("seed", seeds(default=20))
def test_cut_connections_leave_one_history(seed: int) -> None:
    """A request whose connection ended has happened once or not at all."""
    faults = Faults(cut_s=0.1, broken_s=0.5)
    run = STORE.random(seed, StorePlan(faults, steps=2_000, clients=4, short_lives=True))
    assert run.account()["cuts"]


@pytest.mark.parametrize("seed", seeds(default=20))
def test_documents_that_come_and_go_from_memory_stay_what_they_are(seed: int) -> None:
    """Memory is so short that most reads wait for the disk, and the disk is often unreadable."""
    weights = {**WITHOUT_FLUSH, "get": 80, "flush": 1}
    faults = Faults(unreadable_s=0.3, crash_s=1.0)
    run = STORE.random(seed, StorePlan(faults, steps=2_000, weights=weights, quota=4_500))
    assert any("FetchDriver.work" in line for line in run.world.log)


# --- by hand ------------------------------------------------------------------------------------


@pytest.mark.acceptance("D17")
def test_a_refused_change_leaves_the_seqno_where_it_was() -> None:
    """Each kind of refusal, and then one change that is accepted."""
    run = StoreRun.directed()
    put(run, b"a", b"1")
    client = run.clients[0]
    vbuckets = run.node.bucket.vbuckets.values()
    before = {vbucket.id: vbucket.high_seqno for vbucket in vbuckets}
    for op, status in (
        (client.store(b"a", b"2", cas=1), codec.EXISTS),
        (client.store(b"a", b"2", kind="add"), codec.EXISTS),
        (client.store(b"b", b"2", kind="replace"), codec.NOT_FOUND),
        (client.store(b"b", b"2", cas=1), codec.NOT_FOUND),
        (client.append(b"b", b"2"), codec.NOT_STORED),
        (client.append(b"a", b"2", cas=1), codec.EXISTS),
        (client.delete(b"b"), codec.NOT_FOUND),
        (client.delete(b"a", cas=1), codec.EXISTS),
        (client.touch(b"b", 10), codec.NOT_FOUND),
        (client.increment(b"b", 1, create=False), codec.NOT_FOUND),
        (client.increment(b"a", 1, cas=1), codec.EXISTS),
    ):
        assert run.done(op).status == status, op
    assert {vbucket.id: vbucket.high_seqno for vbucket in vbuckets} == before
    accepted = put(run, b"a", b"2")
    assert accepted.reply is not None
    assert accepted.reply.token is not None
    assert accepted.reply.token[1] == before[accepted.vbucket] + 1
    run.finish()


def test_a_cas_is_not_given_out_twice_even_by_a_node_that_restarts_within_a_second() -> None:
    """The change is lost with the crash, but a client still holds its CAS."""
    run = StoreRun.directed()
    lost = put(run, b"a", b"lost")
    run.restart()
    client = back(run)
    kept = put(run, b"a", b"kept")
    assert lost.reply is not None
    assert kept.reply is not None
    assert lost.reply.cas != kept.reply.cas
    refused = run.done(client.store(b"a", b"over", cas=lost.reply.cas))
    assert refused.status == codec.EXISTS
    run.finish()


def test_a_value_fetched_from_before_a_flush_does_not_come_back() -> None:
    """After a flush seqnos begin anew, so the seqno alone does not tell two versions apart.

    The fetch opens its view, then everything is flushed, written anew with the same seqno, brought
    to disk and ejected; only then the fetch ends.
    """
    run = StoreRun.directed()
    reader = run.clients[0]
    writer = run.client(reader.habits)
    writer.connect()
    put(run, b"a", b"old")
    write_out(run)
    vbucket = run.node.bucket.of_key(b"a")
    vbucket.eject(b"a")
    reading = reader.get(b"a")
    run.world.run_until(lambda: run.node.bucket.fetcher.waiting > 0)
    run.node.fetch_begin()
    run.node.fetch_read()

    flushing = writer.flush()
    run.world.run_until(lambda: vbucket.high_seqno == 0)
    write_out(run)
    assert run.done(flushing).status == codec.OK
    assert run.done(writer.store(b"a", b"new")).status == codec.OK
    write_out(run)
    vbucket.eject(b"a")
    run.node.fetch_finish()

    run.world.run_until(lambda: run.node.bucket.fetcher.waiting > 0 or reading.ended is not None)
    if run.node.fetch_begin():
        run.node.fetch_read()
        run.node.fetch_finish()
    run.done(reading)
    assert reading.reply is not None
    assert reading.reply.value == b"new"
    assert read(run, b"a") == b"new"
    run.finish()


def test_a_refused_change_does_not_open_a_lock() -> None:
    """The lock's holder asks for something impossible; the lock is still there afterwards."""
    run = StoreRun.directed()
    client = run.clients[0]
    put(run, b"a", b"no number")
    locked = run.done(client.get_and_lock(b"a", 15))
    assert locked.reply is not None
    refused = run.done(client.increment(b"a", 1, cas=locked.reply.cas))
    assert refused.status == codec.BAD_DELTA
    run.history.ops.remove(refused)  # the judge knows counters only
    assert run.done(client.store(b"a", b"2")).status == codec.LOCKED
    assert run.done(client.store(b"a", b"3", cas=locked.reply.cas)).status == codec.OK
    run.finish()


def test_a_document_set_over_an_expired_locked_one_is_not_locked() -> None:
    """The lock belonged to the document that is gone."""
    run = StoreRun.directed()
    client = run.clients[0]
    run.done(client.store(b"a", b"1", exptime=2))
    assert run.done(client.get_and_lock(b"a", 15)).status == codec.OK
    run.world.run_for(3.0)
    put(run, b"a", b"2")
    put(run, b"a", b"3")
    assert read(run, b"a") == b"3"
    run.finish()


# --- the judge of one document, on histories made by hand -----------------------------------------


class Script:
    """Operations on one document with chosen intervals and replies."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def op(
        self,
        kind: str,
        began: int,
        ended: int,
        status: int | None = codec.OK,
        *,
        client: str = "c",
        value: bytes = b"",
        cas: int = 0,
        new_cas: int = 0,
    ) -> Script:
        """Add one; a `status` of ``None`` means that no reply came."""
        op = Op(kind, b"k", 0, client, 1, 0, began, value=value, cas=cas, lock_status=True)
        op.began, op.ended = began, ended
        op.began_at, op.ended_at = float(began), float(ended)
        if status is not None:
            shown = value if kind == "get" and status == codec.OK else b""
            extras = bytes(4) if kind == "get" and status == codec.OK else b""
            op.reply = Frame(True, 0, status, began, new_cas, extras, b"", shown)
        self.ops.append(op)
        return self

    def judged(self) -> None:
        """Have it judged."""
        linearity.judge_key(b"k", ABSENT, self.ops)


def test_a_read_that_overlaps_a_write_may_see_the_old_or_the_new_value() -> None:
    """Both orders are possible as long as both are under way."""
    for seen, cas in ((b"1", 1), (b"2", 2)):
        script = Script().op("set", 1, 2, value=b"1", new_cas=1)
        script.op("set", 3, 6, value=b"2", new_cas=2)
        script.op("get", 4, 5, value=seen, new_cas=cas, client="d").judged()


def test_a_stale_read_is_noticed() -> None:
    """The write had been answered before the read began."""
    script = Script().op("set", 1, 2, value=b"1", new_cas=1)
    script.op("set", 3, 4, value=b"2", new_cas=2)
    script.op("get", 5, 6, value=b"1", new_cas=1, client="d")
    with pytest.raises(Verdict, match="nothing explains"):
        script.judged()


def test_two_reads_that_disagree_about_the_order_are_noticed() -> None:
    """Once the new value was seen the old one does not come back."""
    script = Script().op("set", 1, 2, value=b"1", new_cas=1)
    script.op("set", 3, 10, value=b"2", new_cas=2)
    script.op("get", 4, 5, value=b"2", new_cas=2, client="d")
    script.op("get", 6, 7, value=b"1", new_cas=1, client="e")
    with pytest.raises(Verdict, match="nothing explains"):
        script.judged()


def test_a_write_without_an_answer_may_have_happened_but_only_once() -> None:
    """Seen, then overwritten, then seen again: that is twice."""
    script = Script().op("set", 1, 3, None, value=b"1")
    script.op("get", 4, 5, value=b"1", new_cas=1, client="d").judged()
    script.op("set", 6, 7, value=b"2", new_cas=2).judged()
    script.op("get", 8, 9, value=b"1", new_cas=1, client="d")
    with pytest.raises(Verdict, match="nothing explains"):
        script.judged()


def test_an_accepted_change_with_the_wrong_cas_is_noticed() -> None:
    """And so is one that was refused with the right CAS."""
    right = Script().op("set", 1, 2, value=b"1", new_cas=1)
    right.op("set", 3, 4, value=b"2", cas=1, new_cas=2).judged()
    wrong = Script().op("set", 1, 2, value=b"1", new_cas=1)
    wrong.op("set", 3, 4, value=b"2", cas=7, new_cas=2)
    with pytest.raises(Verdict, match="nothing explains"):
        wrong.judged()
    refused = Script().op("set", 1, 2, value=b"1", new_cas=1)
    refused.op("set", 3, 4, codec.EXISTS, value=b"2", cas=1)
    with pytest.raises(Verdict, match="nothing explains"):
        refused.judged()
