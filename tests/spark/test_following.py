"""The driver of a stream against a real node: leases, limits, repeated batches, killed nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.replica_pair import Node, ReplicaPair, fail_over, replicate, wait_until_level
from interop.server_process import ServerProcess, start_uprmc
from tests.bulk.here import changes, contents, numbered, put, remove
from tests.bulk.world import ask, compact, flush, persist, stop_persistence
from tests.columnar.write_rows import versions, written
from tests.spark.stream_rows import Stream, options_for
from uprmc.columnar.access import Access
from uprmc.columnar.connection import dialled
from uprmc.columnar.errors import BadFile, DataLost, NoVBucket, RolledBack, VBucketsChanged
from uprmc.columnar.lease import BulkLease, of_token
from uprmc.model import vbucket_of
from uprmc.protocol.opcodes import Opcode
from uprmc.spark.offsets import parsed
from uprmc.spark.stream_task import run

VBUCKETS = 8
DEAD = 4


class Calm:
    """A node that no test of this module kills; each begins with an empty one."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.upr = server.upr


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("data"), "--vbuckets", str(VBUCKETS)) as found:
        yield found


@pytest.fixture
def calm(lasting: ServerProcess) -> Calm:
    flush(lasting)
    return Calm(lasting)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node that may be killed and started again in the same place."""
    found = Node(tmp_path / "data", "--vbuckets", str(VBUCKETS))
    found.start()
    yield found
    found.end()


def stream(node: Node | Calm, **changes: object) -> Stream:
    """A stream; at a node that tests share it leaves nothing behind that keeps deletions."""
    return Stream(options_for(str(node.upr), **{"register": isinstance(node, Node)} | changes))


def leases_of(node: Calm) -> int:
    """How many leases a node holds."""
    with dialled(str(node.upr), Access((str(node.upr),))) as connection:
        return int(connection.statistics("leases")["open"])


def lose_lease(found: Stream) -> None:
    """As if its time were over."""
    token = found.offset.lease
    assert token is not None
    of_token(found.options.access, token).release()


def check(found: Stream, node: Node | Calm) -> None:
    """The sink holds what the node holds."""
    assert found.sink.documents() == contents(node.server)


# --- a node that lives ----------------------------------------------------------------------------


def test_limited_batches_give_every_change_once(calm: Calm) -> None:
    put(calm.server, numbered(200))
    with stream(calm) as found:
        assert found.catch_up(30) >= 6
        check(found, calm)
        put(calm.server, numbered(20, value="again"))
        remove(calm.server, b"key-3", b"key-150")
        assert found.catch_up() == 1
        check(found, calm)
        assert found.sink.repeated == 0
        assert not found.sink.controls
        assert {(vbucket, seqno) for vbucket, _, seqno in found.sink.rows} >= {
            (change.vbucket, change.seqno) for change in changes(calm.server).values()
        }


def test_nothing_new_is_the_same_text_and_no_lease_is_left(calm: Calm) -> None:
    before_it = leases_of(calm)
    put(calm.server, numbered(10))
    with stream(calm) as found:
        found.catch_up()
        assert found.offset.lease is None
        before = found.offset.to_json()
        assert found.follower.latest(parsed(before)).to_json() == before
        assert leases_of(calm) == before_it


def test_a_repeated_batch_is_the_same_however_much_was_written_since(calm: Calm) -> None:
    put(calm.server, numbered(100))
    with stream(calm) as found:
        assert found.plan()
        first = found.read()
        put(calm.server, numbered(50, value="later"))
        remove(calm.server, b"key-99")
        assert sorted(map(str, found.read())) == sorted(map(str, first))
        assert len(first) == 100


def test_another_driver_goes_on_in_the_middle_of_a_lease(calm: Calm) -> None:
    put(calm.server, numbered(100))
    with stream(calm) as found:
        found.batch(30)
        lease = found.offset.lease
        put(calm.server, numbered(100, value="later"))
        found.restart()
        found.batch(30)
        assert found.offset.lease == lease
        found.catch_up(30)
        check(found, calm)
        assert found.sink.repeated == 0


def test_drivers_that_are_killed_do_not_use_up_the_leases(calm: Calm) -> None:
    before_it = leases_of(calm)
    with stream(calm) as found:
        for turn in range(5):
            put(calm.server, numbered(20, value=f"turn-{turn}"))
            found.batch()
            found.restart()
        assert leases_of(calm) == before_it + 1
        found.catch_up()
        assert leases_of(calm) == before_it


def test_what_there_is_now_ends_though_writes_go_on(calm: Calm) -> None:
    put(calm.server, numbered(100))
    with stream(calm) as found:
        found.follower.stop_at_now()
        put(calm.server, numbered(5, value="before the first look"))
        rows = 0
        while (batch := found.batch(40)) is not None:
            rows += len(batch)
            put(calm.server, numbered(100, value=f"later-{rows}"))
        assert rows == 100
        assert found.sink.repeated == 0


def test_latest_is_asked_once_and_gives_only_what_is_new(calm: Calm) -> None:
    put(calm.server, numbered(50))
    with stream(calm, starting_offsets="latest") as found:
        put(calm.server, numbered(5, value="new"))
        assert found.follower.initial() == found.offset
        found.catch_up()
        assert found.sink.documents() == numbered(5, value="new")


def test_a_stream_begins_where_json_says(calm: Calm) -> None:
    put(calm.server, numbered(50))
    with stream(calm) as first:
        first.catch_up()
        place = first.offset.to_json()
    put(calm.server, numbered(3, value="new"))
    with stream(calm, starting_offsets=place) as found:
        found.catch_up()
        assert found.sink.documents() == numbered(3, value="new")


def since(node: Calm, moment_us: int) -> set[tuple[int, int]]:
    """Every change from the first one on that is at or after a time, by vBucket and seqno."""
    found: set[tuple[int, int]] = set()
    for number in range(VBUCKETS):
        there = [each for each in changes(node.server).values() if each.vbucket == number]
        new = [each.seqno for each in there if each.cas // 1_000 >= moment_us]
        found |= {(number, each.seqno) for each in there if new and each.seqno >= min(new)}
    return found


def test_a_stream_begins_at_a_point_in_time(calm: Calm) -> None:
    put(calm.server, numbered(60))
    remove(calm.server, *numbered(8))
    put(calm.server, numbered(60, prefix="later"))
    moment_us = changes(calm.server)[b"later-0"].cas // 1_000
    old = [(f"old-{n}".encode(), b"x", "set", 1, 1_000_000) for n in range(20)]
    written(calm.upr, versions(old), mode="append-meta")  # made elsewhere, long ago
    expected = since(calm, moment_us)
    with stream(calm, starting_timestamp=moment_us, batch_rows=7) as found:
        assert found.catch_up() == 1
        rows = found.sink.rows.values()
        assert {(row["_vb"], row["_seq"]) for row in rows} == expected
        assert numbered(60, prefix="later").keys() <= found.sink.documents().keys()
        assert not numbered(60).keys() & {row["key"] for row in rows}
        assert any(row["key"].startswith(b"old") for row in rows)
        put(calm.server, numbered(5))
        found.catch_up()
        assert len(found.sink.rows) == len(expected) + 5
    with stream(calm, starting_timestamp=2**52) as found:
        assert found.batch() is None
    with stream(calm, starting_timestamp=0) as found:
        found.catch_up()
        check(found, calm)


def test_a_point_in_time_before_deletions_that_were_dropped(calm: Calm) -> None:
    put(calm.server, numbered(60))
    moment_us = max(each.cas for each in changes(calm.server).values()) // 1_000 + 1
    delete_and_drop(calm, last="other")
    with (
        stream(calm, starting_timestamp=moment_us) as found,
        pytest.raises(DataLost, match="were dropped for good"),
    ):
        found.catch_up()
    with stream(calm, starting_timestamp=moment_us, on_purged="restart") as found:
        found.catch_up()
        check(found, calm)


def test_only_the_vbuckets_that_are_named_are_followed(calm: Calm) -> None:
    put(calm.server, numbered(100))
    with stream(calm, vbuckets=(2, 5)) as found:
        found.catch_up()
        assert {row["_vb"] for row in found.sink.rows.values()} == {2, 5}
        expected = {
            key: change.value
            for key, change in changes(calm.server).items()
            if change.vbucket in (2, 5)
        }
        assert found.sink.documents() == expected


# --- leases that end ------------------------------------------------------------------------------


def test_without_its_lease_a_batch_gives_what_there_is_now(calm: Calm) -> None:
    put(calm.server, numbered(60))
    with stream(calm) as found:
        found.plan(30)
        put(calm.server, numbered(60, value="later"))
        lose_lease(found)
        found.sink.apply(found.read())
        assert found.sink.documents() == numbered(60, value="later")
        found.catch_up()
        check(found, calm)
        assert found.sink.repeated == 60
        assert not found.sink.controls


def test_a_lease_that_ends_between_two_batches_leaves_no_trace(calm: Calm) -> None:
    put(calm.server, numbered(60))
    with stream(calm) as found:
        found.batch(20)
        put(calm.server, numbered(60, value="later"))
        lose_lease(found)
        found.catch_up(20)
        check(found, calm)
        assert found.sink.repeated == 0


def test_a_lease_that_ends_while_it_is_read_is_replaced(calm: Calm) -> None:
    put(calm.server, numbered(300))
    with stream(calm, batch_rows=10) as found:
        found.plan()
        assert found.last is not None
        (task,) = found.follower.plan(*found.last)
        batches = run(found.options, task)
        rows = next(batches).to_pylist()
        lose_lease(found)
        put(calm.server, numbered(30, value="later"))
        rows += [row for batch in batches for row in batch.to_pylist()]
        found.sink.apply(rows)
        found.catch_up()
        check(found, calm)


# --- nodes that are killed ------------------------------------------------------------------------


def test_a_node_that_lost_nothing_is_followed_on(node: Node) -> None:
    put(node.server, numbered(60))
    with stream(node) as found:
        found.catch_up()
        node.stop()
        node.start()
        put(node.server, numbered(10, value="later"))
        found.catch_up()
        check(found, node)
        assert found.sink.repeated == 0


def test_a_node_that_is_killed_before_a_batch_is_read(node: Node) -> None:
    put(node.server, numbered(60))
    with stream(node) as found:
        found.plan()
        persist(node.server)
        node.kill()
        node.start()
        put(node.server, numbered(10, value="later"))
        found.sink.apply(found.read())
        found.catch_up()
        check(found, node)
        assert not found.sink.controls


def branched(node: Node, found: Stream) -> None:
    """The stream has read what the node then forgets; others take their seqnos."""
    put(node.server, numbered(60))
    found.catch_up()
    persist(node.server)
    stop_persistence(node.server)
    put(node.server, numbered(40, value="lost"))
    found.catch_up()
    assert b"lost-7" in found.sink.documents().values()
    node.kill()
    node.start()
    put(node.server, numbered(20, value="new"))


@pytest.mark.acceptance("D12")
def test_a_branch_of_history_stops_a_stream_that_cannot_undo(node: Node) -> None:
    with stream(node) as found:
        branched(node, found)
        with pytest.raises(RolledBack) as told:
            found.catch_up()
        assert f"vb={told.value.vbucket} checkpoint=" in str(told.value)
        assert "onRollback=rewind" in str(told.value)


@pytest.mark.acceptance("D12")
@pytest.mark.parametrize("rows", [None, 7])
def test_a_stream_rewinds_to_its_last_complete_state_in_shared_history(
    node: Node, rows: int | None
) -> None:
    with stream(node, on_rollback="rewind") as found:
        branched(node, found)
        found.catch_up(rows)
        assert found.sink.controls
        assert min(row["_seq"] for row in found.sink.controls) > 0
        check(found, node)
        put(node.server, numbered(60, value="on and on"))
        found.catch_up(rows)
        check(found, node)


def test_a_stream_restarts_a_vbucket_whose_history_branched(node: Node) -> None:
    with stream(node, on_rollback="restart") as found:
        branched(node, found)
        found.catch_up()
        assert {row["_seq"] for row in found.sink.controls} == {0}
        assert {row["key"] for row in found.sink.controls} == {None}
        check(found, node)


def test_a_batch_whose_history_is_gone_when_it_is_read(node: Node) -> None:
    with stream(node, on_rollback="rewind") as found:
        put(node.server, numbered(60))
        found.catch_up()
        persist(node.server)
        stop_persistence(node.server)
        put(node.server, numbered(40, value="lost"))
        found.plan()
        node.kill()
        node.start()
        put(node.server, numbered(20, value="new"))
        found.sink.apply(found.read())
        found.catch_up()
        check(found, node)


def test_a_driver_that_may_not_go_back_says_so_when_a_batch_is_repeated(node: Node) -> None:
    with stream(node) as found:
        put(node.server, numbered(60))
        found.catch_up()
        persist(node.server)
        stop_persistence(node.server)
        put(node.server, numbered(40, value="lost"))
        found.catch_up()
        put(node.server, numbered(40, value="lost, too"))
        found.plan()
        node.kill()
        node.start()
        with pytest.raises(RolledBack):
            found.read()


def test_everything_is_flushed(calm: Calm) -> None:
    with stream(calm, on_rollback="rewind") as found:
        put(calm.server, numbered(60))
        found.catch_up()
        flush(calm.server)
        put(calm.server, numbered(3, value="new"))
        found.catch_up()
        assert found.sink.documents() == numbered(3, value="new")


# --- what cannot be had ---------------------------------------------------------------------------


def test_another_number_of_vbuckets_is_refused(calm: Calm) -> None:
    with stream(calm) as found:
        found.offset = parsed('{"v":1,"n":16,"vb":{}}')
        with pytest.raises(VBucketsChanged, match="8 vBuckets, this stream began with 16"):
            found.batch()


def test_a_vbucket_that_is_gone(node: Node) -> None:
    put(node.server, numbered(60))
    with stream(node) as found:
        found.catch_up()
        ask(node.server, Opcode.SET_VBUCKET, 3, bytes((0, 0, 0, DEAD)))
        with pytest.raises(NoVBucket, match="vb=3"):
            found.batch()
        kept = found.offset.at(3)
        found.restart(fail_on_data_loss=False)
        put_elsewhere = {key: b"new" for key in numbered(60) if vbucket_of(key, VBUCKETS) != 3}
        put(node.server, put_elsewhere)
        found.catch_up()
        assert found.offset.at(3) == kept


def test_a_damaged_offset_is_refused() -> None:
    with pytest.raises(BadFile, match="is no offset"):
        parsed('{"v":1,"n":8,"vb":{"9":{"u":"1","s":5}}}')


# --- deletions that were dropped ------------------------------------------------------------------


def delete_and_drop(node: Calm, *, last: str) -> None:
    """Delete half of the documents, and drop the deletions for good."""
    remove(node.server, *(key for n, key in enumerate(numbered(60)) if n % 2))
    put(node.server, numbered(60, prefix=last))  # a vBucket's newest change is never dropped
    compact(node.server)


def test_dropped_deletions_do_not_break_the_first_reading(calm: Calm) -> None:
    put(calm.server, numbered(60))
    delete_and_drop(calm, last="other")
    with stream(calm) as found:
        found.catch_up(5)
        check(found, calm)
        assert not found.sink.controls


def test_deletions_that_were_dropped_before_they_were_seen(calm: Calm) -> None:
    put(calm.server, numbered(60))
    with stream(calm) as found:
        found.catch_up()
        delete_and_drop(calm, last="other")
        with pytest.raises(DataLost, match="were dropped for good"):
            found.catch_up()
        found.restart(fail_on_data_loss=False)
        found.catch_up()
        assert {row["_seq"] for row in found.sink.controls} == {0}
        check(found, calm)


def test_deletions_that_are_dropped_before_a_batch_is_repeated(calm: Calm) -> None:
    put(calm.server, numbered(60))
    with stream(calm, fail_on_data_loss=False) as found:
        found.catch_up()
        put(calm.server, numbered(60, value="later"))
        found.plan()
        delete_and_drop(calm, last="other")
        lose_lease(found)
        found.sink.apply(found.read())
        check(found, calm)
        found.catch_up()
        check(found, calm)


# --- failover -------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicaPair]:
    """Two nodes; b follows a and holds what a holds."""
    with ReplicaPair(tmp_path, "--vbuckets", str(VBUCKETS)) as found:
        put(found.a.server, numbered(60))
        replicate(found.b, found.dialled(found.a))
        wait_until_level(found.a, found.b)
        yield found


def both(pair: ReplicaPair, **changes: object) -> Stream:
    return Stream(options_for(f"{pair.a.upr},{pair.b.upr}", **changes))


def take_over(pair: ReplicaPair) -> None:
    pair.a.kill()
    fail_over(pair.b, range(VBUCKETS))


@pytest.mark.acceptance("D53")
def test_a_stream_follows_a_replica_that_was_behind(pair: ReplicaPair) -> None:
    with both(pair, on_rollback="rewind") as found:
        found.catch_up()
        pair.to_a.refuse()
        pair.to_a.cut()
        put(pair.a.server, numbered(40, value="lost"))
        found.catch_up()
        take_over(pair)
        put(pair.b.server, numbered(10, value="new"))
        found.catch_up()
        assert found.sink.controls
        check(found, Calm(pair.b.server))


def test_a_stream_does_not_notice_a_replica_that_was_level(pair: ReplicaPair) -> None:
    with both(pair) as found:
        found.catch_up()
        take_over(pair)
        put(pair.b.server, numbered(10, value="new"))
        found.catch_up()
        assert found.sink.repeated == 0
        check(found, Calm(pair.b.server))


def test_what_was_read_after_a_failover_does_not_count_as_complete(pair: ReplicaPair) -> None:
    """The tasks may have read from the replica what another failover would lose."""
    with both(pair, on_rollback="rewind") as found:
        found.plan()
        take_over(pair)
        put(pair.b.server, numbered(10, value="new"))
        found.sink.apply(found.read())
        check(found, Calm(pair.b.server))
        found.catch_up()
        assert {row["_seq"] for row in found.sink.controls} == {0}
        check(found, Calm(pair.b.server))


def test_a_limit_counts_rows_and_not_what_was_overwritten(calm: Calm) -> None:
    for number in range(20):
        put(calm.server, numbered(100, value=f"v{number}-"))
    put(calm.server, numbered(1, prefix="single"))
    with stream(calm) as found:
        sizes = [len(found.batch(30) or ()) for _ in range(6)]
    assert sizes == [30, 30, 30, 11, 0, 0]


def test_an_older_node_s_seqnos_are_counted_instead(
    calm: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BulkLease, "reached", lambda *_: None)
    put(calm.server, numbered(100))
    put(calm.server, numbered(100))
    with stream(calm) as found:
        sizes = [len(found.batch(30) or ()) for _ in range(9)]
    assert sum(sizes) == 100
    assert max(sizes) <= 30
