"""What is on disk survives: crashes, power losses, full disks, at any step of a flush."""

from __future__ import annotations

import pytest

from tests.contents import table_of
from tests.seeds import seeds
from tests.sim import codec
from tests.sim.client import Client
from tests.sim.faults import ALL_FAULTS
from tests.sim.history import Op
from tests.sim.run import EVERYTHING, Run
from uprmc.errors import StoreFull
from uprmc.record import unpack

pytestmark = pytest.mark.sim


# --- long walks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(default=20))
@pytest.mark.acceptance("D21", "D22", "D23")
def test_everything_promised_survives_whatever_happens(seed: int) -> None:
    """Crashes, power losses, clean stops, full and broken disks, cut connections, all together."""
    Run.random(seed, steps=2_500, faults=ALL_FAULTS, short_lives=seed % 2 == 0)


@pytest.mark.parametrize("seed", seeds(default=20))
def test_without_sync_a_power_loss_takes_no_more_than_what_was_not_synced(seed: int) -> None:
    """With ``--no-sync`` a process may still crash as it likes; a power loss goes back in time."""
    Run.random(seed, steps=2_500, faults=ALL_FAULTS, sync=False)


@pytest.mark.parametrize("seed", seeds(default=20))
def test_a_flush_that_was_acknowledged_is_never_undone(seed: int) -> None:
    """Everything is forgotten again and again, among crashes."""
    weights = {**EVERYTHING, "flush": 8, "set": 60}
    Run.random(seed, steps=2_000, faults=ALL_FAULTS, weights=weights)


# --- by hand ------------------------------------------------------------------------------------


def put(run: Run, key: bytes, value: bytes) -> Op:
    """Store a document and wait for the answer."""
    op = run.done(run.clients[0].store(key, value))
    assert op.status == codec.OK
    return op


def read(run: Run, key: bytes) -> bytes | None:
    """Read a document; ``None`` on a miss."""
    op = run.done(run.clients[0].get(key))
    assert op.status in (codec.OK, codec.NOT_FOUND)
    assert op.reply is not None
    return op.reply.value if op.status == codec.OK else None


def observed(run: Run, key: bytes) -> int:
    """Return the observed state of a document."""
    op = run.done(run.clients[0].observe(key))
    assert op.reply is not None
    return codec.observed(op.reply.value)[0][2]


def write_out(run: Run) -> None:
    """Flush until nothing is left."""
    while run.node.flush_begin():
        run.node.flush_commit()
        run.node.flush_finish()
        run.node.check()


def back(run: Run) -> Client:
    """Connect again after a restart."""
    run.clients[0].connect()
    return run.clients[0]


@pytest.mark.acceptance("D20")
def test_a_client_is_answered_while_the_disk_stands_still() -> None:
    """Accepting is what is answered; OBSERVE tells that it is not on disk yet."""
    run = Run.directed()
    put(run, b"a", b"1")
    assert run.node.flush_begin()
    assert read(run, b"a") == b"1"
    assert observed(run, b"a") == codec.NOT_PERSISTED
    run.node.flush_commit()
    assert observed(run, b"a") == codec.NOT_PERSISTED
    run.node.flush_finish()
    assert observed(run, b"a") == codec.PERSISTED
    run.finish()


@pytest.mark.acceptance("D21")
def test_a_crash_between_commit_and_finish_keeps_the_whole_batch() -> None:
    """The commit is done, only nobody was told."""
    run = Run.directed()
    put(run, b"a", b"1")
    put(run, b"b", b"2")
    run.node.flush_begin()
    run.node.flush_commit()
    run.restart(power=True)
    back(run)
    assert (read(run, b"a"), read(run, b"b")) == (b"1", b"2")
    run.finish()


@pytest.mark.acceptance("D21")
def test_a_crash_before_the_commit_keeps_all_of_the_batch_or_nothing() -> None:
    """Whether the commit got through is the disk's secret, but it did so as a whole."""
    results = set()
    for seed in range(20):
        run = Run.directed()
        run.world.random.seed(seed)
        put(run, b"a", b"1")
        put(run, b"b", b"2")
        run.node.flush_begin()
        run.restart()
        back(run)
        results.add((read(run, b"a"), read(run, b"b")))
        run.finish()
    assert results == {(None, None), (b"1", b"2")}


@pytest.mark.acceptance("D22")
def test_a_document_overwritten_during_a_commit_lands_in_the_next_batch() -> None:
    """Only what was persisted leaves the queue."""
    run = Run.directed()
    put(run, b"a", b"old")
    run.node.flush_begin()
    put(run, b"a", b"new")
    run.node.flush_commit()
    put(run, b"a", b"newest")
    run.node.flush_finish()
    assert observed(run, b"a") == codec.NOT_PERSISTED
    assert run.node.flush_begin()
    assert run.node.flush is not None
    assert [unpack(each).value for each in run.node.flush.batch.changes[0].records] == [b"newest"]
    run.node.flush_commit()
    run.node.flush_finish()
    assert observed(run, b"a") == codec.PERSISTED
    run.restart(power=True)
    back(run)
    assert read(run, b"a") == b"newest"
    run.finish()


@pytest.mark.acceptance("D23")
def test_a_document_deleted_and_set_again_during_a_flush_survives() -> None:
    """The deletion that was persisted is not the newest version of the key any more."""
    run = Run.directed()
    put(run, b"a", b"old")
    write_out(run)
    assert run.done(run.clients[0].delete(b"a")).status == codec.OK
    assert observed(run, b"a") == codec.DELETED
    run.node.flush_begin()
    put(run, b"a", b"again")
    run.node.flush_commit()
    run.node.flush_finish()
    assert read(run, b"a") == b"again"
    write_out(run)
    run.restart(power=True)
    back(run)
    assert read(run, b"a") == b"again"
    run.finish()


@pytest.mark.acceptance("D19")
def test_a_deleted_document_is_observed_as_gone_only_once_that_is_on_disk() -> None:
    """Until then a crash could bring it back, and OBSERVE says so."""
    run = Run.directed()
    put(run, b"a", b"1")
    write_out(run)
    run.done(run.clients[0].delete(b"a"))
    run.node.flush_begin()
    run.node.flush_commit()
    assert observed(run, b"a") == codec.DELETED
    run.node.flush_finish()
    assert observed(run, b"a") == codec.ABSENT
    assert b"a" not in table_of(run.node.bucket.of_key(b"a"))
    run.restart(power=True)
    back(run)
    assert read(run, b"a") is None
    run.finish()


@pytest.mark.acceptance("D18")
def test_a_thousand_writes_of_one_key_leave_one_entry_in_the_queue() -> None:
    """An overwritten queued item drops its older entry."""
    run = Run.directed()
    for number in range(1_000):
        run.clients[0].store(b"a", b"%d" % number)
    run.rest_of_clients()
    vbucket = run.node.bucket.of_key(b"a")
    assert (vbucket.queue.live, vbucket.high_seqno) == (1, 1_000)
    write_out(run)
    run.finish()


def test_while_the_disk_is_full_writes_are_refused_and_reads_go_on() -> None:
    """What was accepted before stays queued and reaches the disk when there is room again."""
    run = Run.directed()
    put(run, b"a", b"1")
    run.disk.full = True
    run.node.flush_begin()
    with pytest.raises(StoreFull) as caught:
        run.node.flush_commit()
    run.node.flush_fail(caught.value)
    client = run.clients[0]
    for refused in (
        client.store(b"b", b"2"),
        client.delete(b"a"),
        client.append(b"a", b"+"),
        client.touch(b"a", 100),
        client.increment(b"n1", 1),
    ):
        assert run.done(refused).status == codec.TRY_AGAIN
    assert read(run, b"a") == b"1"
    assert observed(run, b"a") == codec.NOT_PERSISTED

    run.disk.full = False
    write_out(run)
    assert observed(run, b"a") == codec.PERSISTED
    put(run, b"b", b"2")
    run.finish()


def test_a_full_map_grows_once_nobody_reads() -> None:
    """A node with its own timers gets through it by itself, though a view is open for a while."""
    run = Run(0, quota=1_000_000)
    run.start()
    run.client(run.habits(0, EVERYTHING, short_lives=False)).connect()
    view = run.node.bucket.store.view()
    run.disk.map_full = True
    put(run, b"a", b"1")
    run.world.run_for(0.2)
    assert observed(run, b"a") == codec.NOT_PERSISTED
    view.close()
    run.world.run_until(lambda: run.node.quiet)
    assert observed(run, b"a") == codec.PERSISTED
    run.finish()


def test_after_a_clean_stop_everything_is_there_and_history_goes_on() -> None:
    """Nothing was flushed before; the stop did it."""
    run = Run.directed()
    put(run, b"a", b"1")
    before = {number: v.failover_log for number, v in run.node.bucket.vbuckets.items()}
    run.stop_and_start()
    back(run)
    assert read(run, b"a") == b"1"
    assert {n: v.failover_log for n, v in run.node.bucket.vbuckets.items()} == before
    run.finish()


@pytest.mark.acceptance("D11")
def test_every_unclean_start_adds_one_branch_and_a_clean_one_none() -> None:
    """Also when it dies again at once, and when a clean stop lies in between."""
    run = Run.directed()

    def lengths() -> set[int]:
        return {len(vbucket.failover_log) for vbucket in run.node.bucket.vbuckets.values()}

    assert lengths() == {1}
    run.restart()
    assert lengths() == {2}
    run.restart(power=True)
    assert lengths() == {3}
    run.stop_and_start()
    assert lengths() == {3}
    run.restart()
    assert lengths() == {4}
    run.finish()


def test_a_power_loss_without_sync_after_a_clean_start_is_not_taken_for_a_clean_stop() -> None:
    """The removal of the mark must be on the device before the first write is accepted."""
    run = Run.directed(sync=False)
    put(run, b"a", b"1")
    run.stop_and_start()
    back(run)
    first = put(run, b"a", b"lost")
    write_out(run)
    run.restart(power=True)
    back(run)
    assert read(run, b"a") == b"1"
    second = put(run, b"a", b"2")
    assert first.reply is not None
    assert second.reply is not None
    assert first.reply.token != second.reply.token
    run.finish()


def test_without_sync_a_crash_of_the_process_loses_nothing_that_was_committed() -> None:
    """The kernel has it."""
    run = Run.directed(sync=False)
    put(run, b"a", b"1")
    write_out(run)
    run.restart()
    back(run)
    assert read(run, b"a") == b"1"
    run.finish()


def test_a_flush_is_answered_when_it_is_on_disk_and_a_crash_does_not_undo_it() -> None:
    """Not before: until then a crash could bring the documents back."""
    run = Run.directed()
    put(run, b"a", b"1")
    write_out(run)
    flushing = run.clients[0].flush()
    run.world.run_for(1.0)
    assert flushing.ended is None
    run.node.flush_begin()
    run.node.flush_commit()
    run.world.run_for(1.0)
    assert flushing.ended is None
    run.node.flush_finish()
    assert run.done(flushing).status == codec.OK
    run.restart(power=True)
    back(run)
    assert read(run, b"a") is None
    run.finish()


def test_a_seqno_is_reported_as_on_disk_only_when_every_change_below_it_is() -> None:
    """A long queue goes to disk in several commits, and holds only the newest version of a key.

    Here `moved` is changed early and again at the end. Until the last commit neither change is on
    disk, although seqnos above the first are.
    """
    run = Run.directed()
    client = run.clients[0]
    moved = b"a"
    number = codec.vbucket_of(moved, 2)
    others = [b"k%d" % n for n in range(60) if codec.vbucket_of(b"k%d" % n, 2) == number][:20]
    first = put(run, moved, b"first")
    for key in others:
        put(run, key, key)
    put(run, moved, b"second")
    assert first.reply is not None
    assert first.reply.token is not None
    uuid, seqno = first.reply.token

    commits = 0
    while run.node.flush_begin():
        run.node.flush_commit()
        run.node.flush_finish()
        commits += 1
        op = run.done(client.observe_seqno(number, uuid))
        assert op.reply is not None
        on_disk = run.store_judge.newest.vbuckets[number][1]
        assert moved in on_disk or codec.seqno_report(op.reply.value).persisted < seqno
    assert commits > 2
    run.finish()
