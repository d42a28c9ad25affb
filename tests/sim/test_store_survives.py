"""What is on disk survives: crashes, power losses, full disks, at any step of a flush."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contents import table_of
from tests.seeds import seeds
from tests.sim import codec
from tests.sim.client import Client
from tests.sim.disk import DiskStore
from tests.sim.faults import ALL_FAULTS, NO_FAULTS, Faults
from tests.sim.judges import Op
from tests.sim.noticing import Break, broken, cases, instead, notice, skip, swap
from tests.sim.run import EVERYTHING, STORE, StorePlan, StoreRun
from tests.sim.world import World
from uprmc.engine import flusher as flusher_module
from uprmc.engine.bucket import Bucket
from uprmc.engine.fetcher import Fetcher
from uprmc.engine.flusher import Flush, Flusher
from uprmc.engine.memory import Evictor, MemoryAccount
from uprmc.engine.vbucket import Table, VBucket
from uprmc.engine.write_queue import WriteQueue
from uprmc.errors import CommandError, StoreError, StoreFull
from uprmc.kv.conversation import Conversation
from uprmc.model import SnapshotRange
from uprmc.record import key_of, pack, seqno_of, unpack
from uprmc.storage.interface import CommitBatch

pytestmark = pytest.mark.sim


# --- long walks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(default=20))
@pytest.mark.acceptance("D21", "D22", "D23")
def test_everything_promised_survives_whatever_happens(seed: int) -> None:
    """Crashes, power losses, clean stops, full and broken disks, cut connections, all together."""
    STORE.random(seed, StorePlan(ALL_FAULTS, short_lives=seed % 2 == 0))


@pytest.mark.parametrize("seed", seeds(default=20))
def test_without_sync_a_power_loss_takes_no_more_than_what_was_not_synced(seed: int) -> None:
    """With ``--no-sync`` a process may still crash as it likes; a power loss goes back in time."""
    STORE.random(seed, StorePlan(ALL_FAULTS, sync=False))


@pytest.mark.parametrize("seed", seeds(default=20))
def test_a_flush_that_was_acknowledged_is_never_undone(seed: int) -> None:
    """Everything is forgotten again and again, among crashes."""
    weights = {**EVERYTHING, "flush": 8, "set": 60}
    STORE.random(seed, StorePlan(ALL_FAULTS, steps=2_000, weights=weights))


# --- by hand ------------------------------------------------------------------------------------


def put(run: StoreRun, key: bytes, value: bytes) -> Op:
    """Store a document and wait for the answer."""
    op = run.done(run.clients[0].store(key, value))
    assert op.status == codec.OK
    return op


def read(run: StoreRun, key: bytes) -> bytes | None:
    """Read a document; ``None`` on a miss."""
    op = run.done(run.clients[0].get(key))
    assert op.status in (codec.OK, codec.NOT_FOUND)
    assert op.reply is not None
    return op.reply.value if op.status == codec.OK else None


def observed(run: StoreRun, key: bytes) -> int:
    """Return the observed state of a document."""
    op = run.done(run.clients[0].observe(key))
    assert op.reply is not None
    return codec.observed(op.reply.value)[0][2]


def write_out(run: StoreRun) -> None:
    """Flush until nothing is left."""
    while run.node.flush_begin():
        run.node.flush_commit()
        run.node.flush_finish()
        run.node.check()


def back(run: StoreRun) -> Client:
    """Connect again after a restart."""
    run.clients[0].connect()
    return run.clients[0]


@pytest.mark.acceptance("D20")
def test_a_client_is_answered_while_the_disk_stands_still() -> None:
    """Accepting is what is answered; OBSERVE tells that it is not on disk yet."""
    run = StoreRun.directed()
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
    run = StoreRun.directed()
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
        run = StoreRun.directed()
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
    run = StoreRun.directed()
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
    run = StoreRun.directed()
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
    run = StoreRun.directed()
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
    run = StoreRun.directed()
    for number in range(1_000):
        run.clients[0].store(b"a", b"%d" % number)
    run.rest_of_clients()
    vbucket = run.node.bucket.of_key(b"a")
    assert (vbucket.queue.live, vbucket.high_seqno) == (1, 1_000)
    write_out(run)
    run.finish()


def test_while_the_disk_is_full_writes_are_refused_and_reads_go_on() -> None:
    """What was accepted before stays queued and reaches the disk when there is room again."""
    run = StoreRun.directed()
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
    run = StoreRun(World(0), StorePlan(NO_FAULTS, quota=1_000_000, clients=1))
    run.start()
    run.clients[0].connect()
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
    run = StoreRun.directed()
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
    run = StoreRun.directed()

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
    run = StoreRun.directed(sync=False)
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
    run = StoreRun.directed(sync=False)
    put(run, b"a", b"1")
    write_out(run)
    run.restart()
    back(run)
    assert read(run, b"a") == b"1"
    run.finish()


def test_a_flush_is_answered_when_it_is_on_disk_and_a_crash_does_not_undo_it() -> None:
    """Not before: until then a crash could bring the documents back."""
    run = StoreRun.directed()
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
    run = StoreRun.directed()
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
        on_disk = run.node.store_judge.newest.vbuckets[number][1]
        assert moved in on_disk or codec.seqno_report(op.reply.value).persisted < seqno
    assert commits > 2
    run.finish()


# --- judges speak ---------------------------------------------------------------------------------

#: What the judge of promises says.
_PROMISE = "reported as on disk|observed on disk|was promised|is undone|below the last complete"

#: What a check of the engine's own says: mostly nothing but that it failed.
_CHECK = r"seed \d+: $|a dirty value"

#: How many seeds a broken rule may hide from; by far most are noticed with the first.
_SEEDS = 40


def _a_little_later(flusher: Any, flush: Flush) -> None:
    store = flusher._store

    def write() -> None:
        if not store._medium.closed:
            store._disk.write(flush.batch)

    store._disk._world.after(0.02, write)


def _retire_by_key(whole: Any, vbucket: VBucket, records: list[bytes], *rest: Any) -> None:
    whole(vbucket, records, *rest)
    for key in map(key_of, records):
        current = vbucket.table.get(key)
        if current is not None:
            vbucket.queue.retire(seqno_of(current))


def _forget_by_key(whole: Any, vbucket: VBucket, records: list[bytes], *rest: Any) -> None:
    whole(vbucket, records, *rest)
    for record in records:
        key = key_of(record)
        if unpack(record).life and key in vbucket.table:
            vbucket.table.remove(key)


def _keep_the_mark(whole: Any, store: DiskStore, batch: CommitBatch) -> None:
    if None not in batch.local.values():
        whole(store, batch)


def _take_dirty_values(pager: Evictor, vbucket: VBucket, records: list[bytes]) -> None:
    for record in records:
        key = key_of(record)
        if unpack(record).value is not None and vbucket.table.get(key) is record:
            vbucket.table.eject(key, record)


def _waste_a_seqno(whole: Any, vbucket: VBucket, *given: Any) -> None:
    try:
        whole(vbucket, *given)
    except CommandError:
        vbucket.high_seqno += 1
        raise


def _keep_what_it_took(whole: Any, table: Table, key: bytes, record: bytes) -> None:
    whole(table, key, record)
    table._account.used += 1


def _go_on_behind_it(whole: Any, flusher: Flusher, flush: Flush, error: StoreError) -> None:
    whole(flusher, flush, error)
    for part in flush.parts:
        part.cursor.position = part.upto


def _bring_in_whatever_was_read(vbucket: VBucket, record: bytes) -> bool:
    item, present = unpack(record), vbucket.table.get(key_of(record))
    if present is None or unpack(present).life or not item.value:
        return False
    vbucket.table.put(item.key, pack(unpack(present).with_value(item.value)), present)
    return True


def _install_whatever_was_read(fetcher: Any, fetch: Any, place: tuple[int, bytes]) -> bool:
    vbucket, record = fetcher._vbuckets[place[0]], fetch.found.get(place)
    return record is None or vbucket.bring_in(record) or True


#: What is broken concerns flushes in several commits.
_NOTHING_AT_ONCE = swap(flusher_module, "SHORT_ITEMS", -1)

#: Flushes take several commits where much is written; a crash in the middle shows what was said.
_BUSY = StorePlan(
    Faults(crash_s=0.1),
    steps=4_000,
    clients=10,
    quota=50_000,
    weights={"set": 60, "observe_seqno": 60},
    short_lives=True,
)

_BREAKS = (
    broken(
        "tell the engine that a batch is on disk, and write it a little later",
        swap(Flusher, "commit", _a_little_later),
        said=f"{_PROMISE}|is committed after|was known, and got",
        seed=12,
    ),
    broken(
        "drop the queue's entries of the keys of a commit, whatever version they are",
        instead(VBucket, "persisted", _retire_by_key),
        said=f"{_PROMISE}|persisted tombstone|has not happened|are not empty",
        seed=1,
    ),
    broken(
        "neither refuse writes nor keep the queue when a commit failed",
        swap(Flusher, "failed", lambda flusher, flush, error: flusher.finish(flush)),
        said=f"{_PROMISE}|is committed after|is stored with items up to",
        seed=1,
    ),
    broken(
        "do not remove the mark of a clean stop at the start",
        instead(DiskStore, "commit", _keep_the_mark),
        said="unclean restart|has an old name",
    ),
    broken(
        "take every start for one after a clean stop",
        instead(
            Bucket,
            "restore",
            lambda whole, bucket, number, header, *, clean: whole(
                bucket, number, header, clean=True
            ),
        ),
        said="unclean restart|has an old name",
    ),
    broken(
        "eject what is not on disk",
        swap(Evictor, "_sweep", _take_dirty_values),
        skip(VBucket, "check"),  # the judges must see it without
        said="has no value and is not on disk",
    ),
    broken(
        "count a change before it is accepted",
        instead(VBucket, "_check_store", _waste_a_seqno),
        said="seqnos rose by|an unclean restart at",
    ),
    broken(
        "begin the CAS counter anew with each process, and look at no clock",
        skip(MemoryAccount, "tell_time"),
        skip(Bucket, "leave_lost_cas_behind"),
        skip(VBucket, "know_cas"),
        said="CAS .* names",
    ),
    broken(
        "drop a key whose deletion is on disk though it was set again meanwhile",
        instead(VBucket, "persisted", _forget_by_key),
        said=rf"nothing explains|two live entries|{_CHECK}",
        seed=6,
    ),
    broken(
        "answer a flush at once",
        swap(Flusher, "when_durable", lambda flusher, waiter, patient=True: waiter(True)),
        said="a flush that was acknowledged is undone",
        seed=1,
    ),
    broken(
        "let OBSERVE_SEQNO report what was accepted",
        swap(Flusher, "durable_seqno", lambda flusher, vbucket: vbucket.high_seqno),
        said="reported as on disk",
        seed=4,
    ),
    broken(
        "let OBSERVE_SEQNO report how far a flush in several commits has come",
        _NOTHING_AT_ONCE,
        swap(Flusher, "durable_seqno", lambda flusher, vbucket: vbucket.persisted_seqno),
        said="reported as on disk",
        plan=_BUSY,
    ),
    broken(
        "store a range that says that all is there after each of several commits",
        _NOTHING_AT_ONCE,
        instead(
            VBucket,
            "header",
            lambda whole, vbucket, high, _: whole(vbucket, high, SnapshotRange(high, high)),
        ),
        said="lies below the last complete seqno",
        plan=_BUSY,
    ),
    broken(
        "send what is newest first",
        instead(
            Conversation, "data_to_send", lambda whole, each, budget: whole(each, budget)[::-1]
        ),
        said="a frame begins|was passed over|was answered with",
    ),
    broken(
        "do not give back what an ejected value took",
        instead(Table, "eject", _keep_what_it_took),
        said="bytes are accounted",
    ),
    broken("compare no CAS", skip(VBucket, "_check_cas"), said="nothing explains"),
    broken("forget locks", skip(VBucket, "_live_lock"), said="nothing explains"),
    broken(
        "refuse writes as one should, but go on behind what could not be written",
        _NOTHING_AT_ONCE,
        instead(Flusher, "failed", _go_on_behind_it),
        said=f"{_PROMISE}|is stored with items up to|is committed after",
        seed=2,
    ),
    broken(
        "give a fetched value to a newer version of its document",
        swap(VBucket, "bring_in", _bring_in_whatever_was_read),
        swap(Fetcher, "_install", _install_whatever_was_read),
        said="nothing explains|CAS .* names",
    ),
    broken(
        "let an overwritten entry stay in the queue",
        instead(
            WriteQueue, "put", lambda whole, queue, seqno, record, _: whole(queue, seqno, record, 0)
        ),
        skip(WriteQueue, "check"),
        said="a key comes twice",
    ),
)


@cases(_BREAKS)
def test_a_broken_rule_is_noticed(case: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a judge, and by the right one where there is only one who can."""
    notice(case, monkeypatch, STORE.random, _SEEDS)
