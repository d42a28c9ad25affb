"""A net never seen to catch anything is not yet a net: each rule broken on purpose is noticed.

Every test breaks one rule of the engine in a run that is otherwise as usual, and expects a verdict
within some seeds. If the engine is changed so that a rule lives elsewhere, the break has to move
with it: a break that no longer breaks fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sim import codec, linearity
from tests.sim.codec import Reply
from tests.sim.disk import DiskStore
from tests.sim.faults import ALL_FAULTS, Faults
from tests.sim.history import Op
from tests.sim.judges import Verdict
from tests.sim.linearity import ABSENT
from tests.sim.noticing import notice
from tests.sim.run import Run
from uprmc.engine.bucket import Bucket
from uprmc.engine.flusher import Flush, Flusher
from uprmc.engine.memory import Evictor, MemoryAccount
from uprmc.engine.vbucket import Table, VBucket
from uprmc.engine.write_queue import WriteQueue
from uprmc.errors import CommandError, StoreError
from uprmc.kv.conversation import Conversation
from uprmc.model import SnapshotRange, VBucketHeader
from uprmc.record import key_of, pack, seqno_of, unpack
from uprmc.storage.interface import CommitBatch

pytestmark = pytest.mark.sim

Patch = Callable[[pytest.MonkeyPatch], None]

#: What the judge of promises says.
_PROMISE = "reported as on disk|observed on disk|was promised|is undone|below the last complete"

#: What a check of the engine's own says: mostly nothing but that it failed.
_CHECK = r"seed \d+: $|a dirty value"

#: How many seeds a broken rule may hide from; by far most are noticed with the first.
_SEEDS = 40


def _finish_before_commit(patch: pytest.MonkeyPatch) -> None:
    """Tell the engine that a batch is on disk, and write it a little later."""

    def commit(flusher: Flusher, flush: Flush) -> None:
        store: Any = flusher._store

        def write() -> None:
            if not store._medium.closed:
                store._disk.write(flush.batch)

        store._disk._world.after(0.02, write)

    patch.setattr(Flusher, "commit", commit)


def _drop_by_key(patch: pytest.MonkeyPatch) -> None:
    """After a commit drop the queue's entries of the keys in it, whatever version they are."""
    persisted = VBucket.persisted

    def drop(vbucket: VBucket, records: list[bytes], *rest: Any) -> None:
        persisted(vbucket, records, *rest)
        for key in map(key_of, records):
            current = vbucket.table.get(key)
            if current is not None:
                vbucket.queue.retire(seqno_of(current))

    patch.setattr(VBucket, "persisted", drop)


def _ignore_failed_commits(patch: pytest.MonkeyPatch) -> None:
    """Neither refuse writes nor keep the queue when a commit failed."""

    def failed(flusher: Flusher, flush: Flush, error: StoreError) -> None:
        flusher.finish(flush)

    patch.setattr(Flusher, "failed", failed)


def _keep_the_clean_mark(patch: pytest.MonkeyPatch) -> None:
    """Forget to remove the mark at the start."""
    commit = DiskStore.commit

    def keep(store: DiskStore, batch: CommitBatch) -> None:
        if None not in batch.local.values():
            commit(store, batch)

    patch.setattr(DiskStore, "commit", keep)


def _eject_dirty_values(patch: pytest.MonkeyPatch) -> None:
    """Let the pager take what is not on disk."""

    def sweep(pager: Evictor, vbucket: VBucket, records: list[bytes]) -> None:
        for record in records:
            key = key_of(record)
            if unpack(record).value is not None and vbucket.table.get(key) is record:
                vbucket.table.eject(key, record)

    patch.setattr(Evictor, "_sweep", sweep)
    patch.setattr(VBucket, "check", lambda vbucket: None)  # the judges must see it without


def _waste_a_seqno_on_refusal(patch: pytest.MonkeyPatch) -> None:
    """Count a change before it is accepted."""
    check = VBucket._check_store

    def wasteful(vbucket: VBucket, *arguments: Any) -> None:
        try:
            check(vbucket, *arguments)
        except CommandError:
            vbucket.high_seqno += 1
            raise

    patch.setattr(VBucket, "_check_store", wasteful)


def _start_cas_at_one(patch: pytest.MonkeyPatch) -> None:
    """Begin the CAS counter anew with each process, and look at no clock."""
    patch.setattr(MemoryAccount, "tell_time", lambda account, now_s: None)
    patch.setattr(Bucket, "leave_lost_cas_behind", lambda bucket, vbucket: None)
    patch.setattr(VBucket, "know_cas", lambda vbucket, cas: None)


def _forget_tombstones_by_key(patch: pytest.MonkeyPatch) -> None:
    """Drop a key whose deletion is on disk though it was set again meanwhile."""

    persisted = VBucket.persisted

    def forget(vbucket: VBucket, records: list[bytes], *rest: Any) -> None:
        persisted(vbucket, records, *rest)
        for record in records:
            key = key_of(record)
            if unpack(record).life and key in vbucket.table:
                vbucket.table.remove(key)

    patch.setattr(VBucket, "persisted", forget)


def _answer_flush_at_once(patch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk."""
    patch.setattr(Flusher, "when_durable", lambda flusher, waiter, patient=True: waiter(True))


def _report_the_queue_as_on_disk(patch: pytest.MonkeyPatch) -> None:
    """Let OBSERVE_SEQNO tell what was accepted."""
    patch.setattr(Flusher, "durable_seqno", lambda flusher, vbucket: vbucket.high_seqno)


def _flush_by_views(patch: pytest.MonkeyPatch) -> None:
    """Take no vBucket at once: what is broken concerns flushes in several commits."""
    patch.setattr("uprmc.engine.flusher.SHORT_ITEMS", -1)


def _report_parts_of_a_flush_as_on_disk(patch: pytest.MonkeyPatch) -> None:
    """Let OBSERVE_SEQNO tell how far a flush in several commits has come."""
    _flush_by_views(patch)
    patch.setattr(Flusher, "durable_seqno", lambda flusher, vbucket: vbucket.persisted_seqno)


def _call_every_part_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Store a range that says "complete" after each of several commits."""
    _flush_by_views(patch)
    header = VBucket.header

    def complete(vbucket: VBucket, high_seqno: int, snapshot: SnapshotRange) -> VBucketHeader:
        return header(vbucket, high_seqno, SnapshotRange(high_seqno, high_seqno))

    patch.setattr(VBucket, "header", complete)


def _never_branch(patch: pytest.MonkeyPatch) -> None:
    """Take every start for one after a clean stop."""
    restore = Bucket.restore

    def forgiving(bucket: Bucket, number: int, header: Any, *, clean: bool) -> VBucket:
        return restore(bucket, number, header, clean=True)

    patch.setattr(Bucket, "restore", forgiving)


def _answer_in_another_order(patch: pytest.MonkeyPatch) -> None:
    """Send what is newest first."""
    pull = Conversation.data_to_send

    def reversed_pieces(conversation: Conversation, budget: int) -> list[bytes]:
        return pull(conversation, budget)[::-1]

    patch.setattr(Conversation, "data_to_send", reversed_pieces)


def _forget_ejected_bytes(patch: pytest.MonkeyPatch) -> None:
    """Do not give back what an ejected value took."""
    eject = Table.eject

    def careless(table: Table, key: bytes, record: bytes) -> None:
        eject(table, key, record)
        table._account.used += 1

    patch.setattr(Table, "eject", careless)


def _accept_any_cas(patch: pytest.MonkeyPatch) -> None:
    """Compare nothing."""
    patch.setattr(VBucket, "_check_cas", lambda *arguments: None)


def _skip_a_failed_batch(patch: pytest.MonkeyPatch) -> None:
    """Refuse writes as one should, but go on behind what could not be written."""
    _flush_by_views(patch)
    failed = Flusher.failed

    def skip(flusher: Flusher, flush: Flush, error: StoreError) -> None:
        failed(flusher, flush, error)
        for part in flush.parts:
            part.cursor.position = part.upto

    patch.setattr(Flusher, "failed", skip)


def _bring_in_whatever_was_read(patch: pytest.MonkeyPatch) -> None:
    """Give a fetched value to a newer version of its document."""

    def careless(vbucket: VBucket, record: bytes) -> bool:
        item, present = unpack(record), vbucket.table.get(key_of(record))
        if present is None or unpack(present).life or not item.value:
            return False
        newer = pack(unpack(present).with_value(item.value))
        vbucket.table.put(item.key, newer, present)
        return True

    patch.setattr(VBucket, "bring_in", careless)
    patch.setattr("uprmc.engine.fetcher.Fetcher._install", _install_whatever_was_read)


def _install_whatever_was_read(fetcher: Any, fetch: Any, place: tuple[int, bytes]) -> bool:
    vbucket, record = fetcher._vbuckets[place[0]], fetch.found.get(place)
    return record is None or vbucket.bring_in(record) or True


def _show_retired_entries(patch: pytest.MonkeyPatch) -> None:
    """Let an overwritten entry stay in the queue."""
    put = WriteQueue.put

    def careless(queue: WriteQueue, seqno: int, record: bytes, replaced_seqno: int) -> None:
        put(queue, seqno, record, 0)

    patch.setattr(WriteQueue, "put", careless)
    patch.setattr(WriteQueue, "check", lambda queue: None)


def _forget_locks(patch: pytest.MonkeyPatch) -> None:
    """Let everybody write."""
    patch.setattr(VBucket, "_live_lock", lambda vbucket, key: None)


@pytest.mark.parametrize(
    ("break_it", "verdict"),
    [
        (_finish_before_commit, f"{_PROMISE}|is committed after|was known, and got"),
        (_drop_by_key, f"{_PROMISE}|persisted tombstone|has not happened|are not empty"),
        (_ignore_failed_commits, f"{_PROMISE}|is committed after|is stored with items up to"),
        (_keep_the_clean_mark, "unclean restart|has an old name"),
        (_never_branch, "unclean restart|has an old name"),
        (_eject_dirty_values, "has no value and is not on disk"),
        (_waste_a_seqno_on_refusal, "seqnos rose by|an unclean restart at"),
        (_start_cas_at_one, "CAS .* names"),
        (_forget_tombstones_by_key, rf"nothing explains|two live entries|{_CHECK}"),
        (_answer_flush_at_once, "a flush that was acknowledged is undone"),
        (_report_the_queue_as_on_disk, "reported as on disk"),
        (_report_parts_of_a_flush_as_on_disk, "reported as on disk"),
        (_call_every_part_a_snapshot, "lies below the last complete seqno"),
        (_answer_in_another_order, "a reply begins|was passed over|was answered with"),
        (_forget_ejected_bytes, "bytes are accounted"),
        (_accept_any_cas, "nothing explains"),
        (_forget_locks, "nothing explains"),
        (_skip_a_failed_batch, f"{_PROMISE}|is stored with items up to|is committed after"),
        (_bring_in_whatever_was_read, "nothing explains|CAS .* names"),
        (_show_retired_entries, "a key comes twice"),
    ],
)
def test_a_broken_rule_is_noticed(
    break_it: Patch, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a judge, and by the right one where there is only one who can."""
    break_it(monkeypatch)
    plan = _PLANS.get(break_it, _USUAL)
    notice(break_it, lambda seed: Run.random(seed, short_lives=True, **plan), verdict, _SEEDS)


_USUAL: dict[str, Any] = {"steps": 2_500, "faults": ALL_FAULTS}

#: Flushes take several commits where much is written; a crash in the middle shows what was said.
_BUSY: dict[str, Any] = {
    "steps": 4_000,
    "faults": Faults(crash_s=0.1),
    "clients": 10,
    "quota": 50_000,
    "weights": {"set": 60, "observe_seqno": 60},
}

#: Runs in which a rule is needed often, for those that the usual ones seldom need.
_PLANS: dict[Patch, dict[str, Any]] = {
    _report_parts_of_a_flush_as_on_disk: _BUSY,
    _call_every_part_a_snapshot: _BUSY,
}


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
            op.reply = Reply(0, status, began, new_cas, extras, b"", shown)
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
