"""A read gives each key once, as it was at one moment, whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from interop.proxy import Proxy
from interop.server_process import ServerProcess, start_uprmc
from tests.bulk.world import compact
from uprmc.client.kv import KvClient
from uprmc.client.lease import Lease as ReferenceLease
from uprmc.columnar.access import Access
from uprmc.columnar.errors import BadOption, LeaseEnded, NoVBucket, RolledBack
from uprmc.columnar.lease import BulkLease, KeptLease, acquire
from uprmc.columnar.nodes import BulkNodes
from uprmc.columnar.read_state import Range, ReadState
from uprmc.columnar.reading import read
from uprmc.columnar.schema import DEFAULT, OPTIONAL, Columns
from uprmc.remote.errors import NodeUnreachable
from uprmc.remote.lease import Grant

VBUCKETS = 8
DOCUMENTS = 6_000
COLUMNS = Columns(key_type="binary")
EVERYTHING = Columns(DEFAULT + OPTIONAL, key_type="binary")


def access(place: object, **more: Any) -> Access:
    return Access((str(place),), **{"retries": 40, "retry_backoff_s": 0.01} | more)


def whole(**more: Any) -> list[Range]:
    return [Range(number, **more) for number in range(VBUCKETS)]


def rows_of(batches: Iterator[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def by_key(rows: list[dict[str, Any]]) -> dict[bytes, dict[str, Any]]:
    """Rows by key; each comes once."""
    found = {row["key"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def fill(place: object, count: int = DOCUMENTS, size: int = 100) -> None:
    with KvClient([str(place)]) as kv:
        kv.set_many({b"document-%d" % n: b"%d:" % n + b"v" * size for n in range(count)})


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node with documents and deletions that no test changes."""
    data = tmp_path_factory.mktemp("data")
    with start_uprmc(data, "--vbuckets", str(VBUCKETS)) as found:
        fill(found.upr)
        with KvClient([str(found.upr)]) as kv:
            kv.delete_many([b"document-%d" % n for n in range(300)])
        yield found


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node with documents that tests change."""
    data = tmp_path_factory.mktemp("data")
    with start_uprmc(data, "--vbuckets", str(VBUCKETS)) as found:
        fill(found.upr)
        yield found


@pytest.fixture
def proxy(filled: ServerProcess) -> Iterator[Proxy]:
    """In front of the node that nobody changes."""
    assert filled.upr
    with Proxy(filled.upr) as found:
        yield found


# --- everything -----------------------------------------------------------------------------------


def test_a_read_is_what_the_node_has_key_by_key(filled: ServerProcess) -> None:
    rows = by_key(rows_of(read(access(filled.upr), whole(), EVERYTHING)))
    assert len(rows) == DOCUMENTS
    with KvClient([str(filled.upr)]) as kv:
        keys = [b"document-%d" % n for n in range(DOCUMENTS)]
        there = kv.get_many(keys)
        for key in keys:
            row = rows[key]
            assert row["_vb"] == kv.vbucket_of(key)
            if key in there:
                assert (row["_op"], row["value"]) == ("set", there[key].value)
                assert row["_cas"] == there[key].cas
            else:
                assert (row["_op"], row["value"], row["_rev"]) == ("delete", None, 2)
                assert row["_exp"] > 1_500_000_000


def test_rows_of_a_vbucket_come_in_their_order_and_all_batches_have_one_schema(
    filled: ServerProcess,
) -> None:
    batches = list(read(access(filled.upr), whole(), EVERYTHING, batch_rows=700))
    assert {batch.schema for batch in batches} == {EVERYTHING.schema}
    assert max(batch.num_rows for batch in batches) == 700
    last = dict.fromkeys(range(VBUCKETS), 0)
    for row in rows_of(iter(batches)):
        assert row["_seq"] > last[row["_vb"]]
        last[row["_vb"]] = row["_seq"]
        assert row["_snap_start"] == 0
        assert row["_snap_end"] >= row["_seq"]


def test_what_was_read_is_told_once_its_rows_are_out(filled: ServerProcess) -> None:
    told: list[ReadState] = []
    seen = dict.fromkeys(range(VBUCKETS), 0)
    for batch in read(access(filled.upr), whole(), COLUMNS, on_done=told.append, batch_rows=500):
        for vbucket in batch["_vb"].to_pylist():
            seen[vbucket] += 1
    with BulkNodes(access(filled.upr)) as nodes:
        standings = nodes.standings(items=True)
    assert sorted(done.vbucket for done in told) == list(range(VBUCKETS))
    for done in told:
        standing = standings[done.vbucket]
        assert (done.start, done.end) == (0, standing.high_seqno)
        assert (done.log, done.uuid) == (standing.log, standing.log[0][0])
        assert done.rows == seen[done.vbucket]
        assert done.rows - done.deletes == standing.items
        assert (done.place, done.purge_seqno) == (str(filled.upr), 0)
    size = sum(done.bytes for done in told)
    expected = rows_of(read(access(filled.upr), whole(), COLUMNS))
    assert size == sum(len(row["key"]) + len(row["value"] or b"") for row in expected)


def test_what_was_read_is_told_with_its_last_batch_and_not_before(filled: ServerProcess) -> None:
    told: list[ReadState] = []
    rows = 0
    for batch in read(access(filled.upr), [Range(3)], COLUMNS, on_done=told.append, batch_rows=7):
        rows += batch.num_rows
        assert [done.rows for done in told] in ([], [rows])
    assert told


def test_deletions_that_were_dropped_for_good_are_no_gap(tmp_path: Path) -> None:
    with start_uprmc(tmp_path / "data", "--vbuckets", "1") as node:
        assert node.upr
        fill(node.upr, 3_000)
        with KvClient([str(node.upr)]) as kv:
            kv.delete_many([b"document-%d" % n for n in range(500)])
            kv.set_many({b"document-%d" % n: b"again" for n in range(500, 1_000)})
        uuid, high = _boundary(node.upr, 0)
        compact(node)
        told: list[ReadState] = []
        rows = by_key(rows_of(read(access(node.upr), [Range(0)], COLUMNS, on_done=told.append)))
        assert set(rows) == {b"document-%d" % n for n in range(500, 3_000)}
        assert (told[0].end, told[0].purge_seqno, told[0].deletes) == (high, 3_500, 0)
        with pytest.raises(RolledBack, match="rollback_to=0"):  # it may lack a deletion
            list(read(access(node.upr), [Range(0, start=2_000, uuid=uuid)], COLUMNS))
        with Proxy(node.upr) as proxy:
            proxy.cut_after(100_000)
            small = access(proxy.address, flow_control_bytes=50_000)
            cut = read(small, [Range(0)], COLUMNS, batch_bytes=20_000)
            assert by_key(rows_of(cut)) == rows
            assert proxy.wait_for_cut(0)


def test_a_batch_is_about_as_large_as_asked_for(filled: ServerProcess) -> None:
    batches = list(read(access(filled.upr), whole(), COLUMNS, batch_bytes=50_000))
    assert len(batches) > 8
    assert sum(batch.num_rows for batch in batches) == DOCUMENTS


def test_nothing_is_read_of_nothing(filled: ServerProcess) -> None:
    assert list(read(access("no-such-host.invalid:1"), [], COLUMNS)) == []


def test_an_empty_vbucket_has_no_rows_and_is_told(tmp_path: Path) -> None:
    told: list[ReadState] = []
    with start_uprmc(tmp_path / "data", "--vbuckets", "2") as node:
        assert (
            list(read(access(node.upr), [Range(0), Range(1)], COLUMNS, on_done=told.append)) == []
        )
    assert [(each.vbucket, each.end, each.rows) for each in told] == [(0, 0, 0), (1, 0, 0)]
    assert all(each.uuid for each in told)


def test_columns_that_nobody_wants_are_not_there(filled: ServerProcess) -> None:
    columns = Columns(("_seq", "_vb"))
    table = pa.Table.from_batches(list(read(access(filled.upr), whole(), columns)))
    assert (table.column_names, table.num_rows) == (["_seq", "_vb"], DOCUMENTS)


def test_without_values_the_node_does_not_send_them(filled: ServerProcess) -> None:
    assert filled.upr
    passed = {}
    for no_value in (False, True):
        with Proxy(filled.upr) as proxy:
            batches = read(access(proxy.address), whole(), COLUMNS, no_value=no_value)
            rows = rows_of(batches)
            passed[no_value] = proxy.passed
            assert len(rows) == DOCUMENTS
            assert all((row["value"] is None) >= no_value for row in rows)
    assert passed[True] < passed[False] - DOCUMENTS * 90


def test_a_json_document_is_told_by_its_datatype(changing: ServerProcess) -> None:
    with KvClient([str(changing.upr)]) as kv:
        kv.set(b"document-0", b'{"a": 1}', datatype=1)
    rows = by_key(rows_of(read(access(changing.upr), whole(), EVERYTHING)))
    assert (rows[b"document-0"]["_datatype"], rows[b"document-1"]["_datatype"]) == (1, 0)
    rows = by_key(rows_of(read(access(changing.upr), whole(), EVERYTHING, no_value=True)))
    assert rows[b"document-0"]["_datatype"] == 1


def test_a_document_that_expired_is_told_from_one_that_was_deleted(
    changing: ServerProcess,
) -> None:
    with KvClient([str(changing.upr)]) as kv:
        kv.set(b"old", b"v", expiry=1_000_000_000)
        kv.delete(b"document-0")
        assert kv.get(b"old") is None  # now the node has noticed
    rows = by_key(rows_of(read(access(changing.upr), whole(), COLUMNS)))
    assert (rows[b"old"]["_op"], rows[b"document-0"]["_op"]) == ("expire", "delete")


def test_a_slow_reader_is_not_flooded(filled: ServerProcess) -> None:
    told: list[ReadState] = []
    batches = read(
        access(filled.upr, flow_control_bytes=2_000), whole(), COLUMNS, on_done=told.append
    )
    assert len(by_key(rows_of(batches))) == DOCUMENTS
    assert len(told) == VBUCKETS


def test_numbers_that_make_no_sense_are_said(filled: ServerProcess) -> None:
    for more in ({"batch_rows": 0}, {"batch_bytes": 0}):
        with pytest.raises(BadOption, match="at least 1"):
            list(read(access(filled.upr), whole(), COLUMNS, **more))  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="in two ranges"):
        list(read(access(filled.upr), [Range(1), Range(1)], COLUMNS))


def test_a_vbucket_that_there_is_not_is_named(filled: ServerProcess) -> None:
    with pytest.raises(NoVBucket, match="vBucket 8: there are only 8"):
        list(read(access(filled.upr), [Range(8)], COLUMNS))


# --- parts ----------------------------------------------------------------------------------------


def _boundary(place: object, vbucket: int) -> tuple[int, int]:
    with BulkNodes(access(place)) as nodes:
        standing = nodes.standings([vbucket])[vbucket]
    return standing.log[0][0], standing.high_seqno


def test_a_range_has_what_lies_above_its_start_and_not_above_its_end(
    filled: ServerProcess,
) -> None:
    uuid, high = _boundary(filled.upr, 3)
    everything = rows_of(read(access(filled.upr), [Range(3)], COLUMNS))
    told: list[ReadState] = []
    part = Range(3, start=400, uuid=uuid, end=600)
    rows = rows_of(read(access(filled.upr), [part], COLUMNS, on_done=told.append))
    assert rows == [row for row in everything if 400 < row["_seq"] <= 600]
    with KeptLease(access(filled.upr), [3], 30) as kept:
        given = read(access(filled.upr), [part], COLUMNS, on_done=told.append, lease=kept.token)
        assert rows_of(given) == rows
    for done in told:
        assert (done.start, done.end, done.rows) == (400, high, len(rows))
    assert len(told) == 2


def test_a_position_in_a_snapshot_goes_on_in_it(filled: ServerProcess) -> None:
    uuid, high = _boundary(filled.upr, 3)
    part = Range(3, start=400, uuid=uuid, snap_start=100, snap_end=high)
    rows = rows_of(read(access(filled.upr), [part], EVERYTHING))
    everything = rows_of(read(access(filled.upr), [Range(3)], COLUMNS))
    assert [row["_seq"] for row in rows] == [r["_seq"] for r in everything if r["_seq"] > 400]
    assert {row["_snap_start"] for row in rows} == {100}


def test_a_range_that_ends_early_is_not_sent_to_its_end(tmp_path: Path) -> None:
    with start_uprmc(tmp_path / "data", "--vbuckets", "1") as node:
        assert node.upr
        with Proxy(node.upr) as proxy:
            _read_a_little_of_much(str(node.upr), proxy)


def _read_a_little_of_much(place: str, proxy: Proxy) -> None:
    keys = [b"y%d" % n for n in range(100)]
    with KvClient([place]) as kv:
        for begin in range(0, len(keys), 20):
            kv.set_many(dict.fromkeys(keys[begin : begin + 20], b"v" * 200_000))
    told: list[ReadState] = []
    rows = rows_of(read(access(proxy.address), [Range(0, end=5)], COLUMNS, on_done=told.append))
    assert [row["_seq"] for row in rows] == [1, 2, 3, 4, 5]
    assert told[0].rows == 5
    assert proxy.passed < len(keys) * 200_000 / 3


def test_a_range_above_everything_has_no_rows(filled: ServerProcess) -> None:
    uuid, high = _boundary(filled.upr, 3)
    told: list[ReadState] = []
    part = Range(3, start=high, uuid=uuid)
    assert list(read(access(filled.upr), [part], COLUMNS, on_done=told.append)) == []
    assert (told[0].start, told[0].end, told[0].rows) == (high, high, 0)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_start_that_is_not_in_the_history_is_rolled_back(
    filled: ServerProcess, ahead: bool
) -> None:
    uuid, high = _boundary(filled.upr, 3)
    part = Range(3, start=high + 5, uuid=uuid) if ahead else Range(3, start=5, uuid=12345)
    with pytest.raises(RolledBack) as caught:
        list(read(access(filled.upr), [part], COLUMNS))
    assert (caught.value.vbucket, caught.value.checkpoint) == (3, part.start)
    assert caught.value.rollback_to == (high if ahead else 0)


# --- leases ---------------------------------------------------------------------------------------


def test_a_lease_gives_the_same_rows_each_time_while_writes_go_on(
    changing: ServerProcess,
) -> None:
    place = str(changing.upr)
    stop = threading.Event()

    def write() -> None:
        with KvClient([place]) as kv:
            turn = 0
            while not stop.is_set():
                turn += 1
                kv.set_many({b"document-%d" % n: b"turn %d" % turn for n in range(0, 2000, 7)})
                kv.delete_many([b"document-%d" % n for n in range(1, 500, 11)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with ReferenceLease(place, range(VBUCKETS), 60) as reference:
            token = BulkLease(
                access(place), [Grant(place, reference.id, tuple(range(VBUCKETS)))], {}, 60
            ).token
            expected = {change.key: change for change in reference.read()}
            for _ in range(2):
                rows = by_key(rows_of(read(access(place), whole(), COLUMNS, lease=token)))
                assert rows.keys() == expected.keys()
                for key, row in rows.items():
                    change = expected[key]
                    assert (row["_op"], row["value"]) == (change.op, change.value)
                    assert (row["_vb"], row["_seq"]) == (change.vbucket, change.seqno)
                    assert (row["_rev"], row["_cas"]) == (change.rev, change.cas)
                    assert row["_vbuuid"] == f"{change.vb_uuid:016x}"
    finally:
        stop.set()
        writer.join()


def test_a_complete_read_under_writes_has_every_key_once(
    changing: ServerProcess,
) -> None:
    place = str(changing.upr)
    stop = threading.Event()

    def write() -> None:
        with KvClient([place]) as kv:
            while not stop.is_set():
                kv.set_many({b"document-%d" % n: b"new" for n in range(0, DOCUMENTS, 3)})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            rows = by_key(rows_of(read(access(place), whole(), COLUMNS, batch_rows=500)))
            assert sum(key.startswith(b"document-") for key in rows) == DOCUMENTS
    finally:
        stop.set()
        writer.join()


def test_a_read_leaves_no_lease_behind(filled: ServerProcess) -> None:
    place = str(filled.upr)
    for batch in read(access(place), whole(), COLUMNS, batch_rows=100):
        assert batch.num_rows == 100
        break
    list(read(access(place), whole(), COLUMNS))
    with BulkNodes(access(place)) as nodes:
        assert int(nodes.connection(place).statistics("leases")["open"]) == 0


def test_a_lease_that_was_given_is_left_alone(filled: ServerProcess) -> None:
    lease = acquire(access(filled.upr), None, 30)
    list(read(access(filled.upr), whole(), COLUMNS, lease=lease.token))
    assert lease.renew() == 30
    lease.release()
    with pytest.raises(LeaseEnded, match=r"has no lease .* any more"):
        list(read(access(filled.upr), whole(), COLUMNS, lease=lease.token))


def test_a_vbucket_that_is_not_in_the_lease_is_named(filled: ServerProcess) -> None:
    with (
        KeptLease(access(filled.upr), [0, 1], 30) as kept,
        pytest.raises(LeaseEnded, match="vb=2 is not in the lease"),
    ):
        list(read(access(filled.upr), [Range(1), Range(2)], COLUMNS, lease=kept.token))


# --- lost connections, killed nodes ---------------------------------------------------------------


def test_a_cut_connection_goes_on_inside_of_the_lease(filled: ServerProcess, proxy: Proxy) -> None:
    expected = rows_of(read(access(filled.upr), whole(), EVERYTHING))
    for given in (False, True):
        lease = acquire(access(proxy.address), None, 60) if given else None
        proxy.cut_after(200_000)
        batches = read(
            access(proxy.address), whole(), EVERYTHING, lease=lease.token if lease else None
        )
        told: dict[int, ReadState] = {}
        rows = rows_of(batches)
        assert proxy.wait_for_cut(0)
        assert by_key(rows).keys() == by_key(expected).keys()
        for vbucket in range(VBUCKETS):
            ours = [row for row in rows if row["_vb"] == vbucket]
            assert ours == [row for row in expected if row["_vb"] == vbucket]
        assert not told


def test_many_cuts_are_survived_as_long_as_something_comes(proxy: Proxy) -> None:
    patient = access(proxy.address, flow_control_bytes=64 * 1024)  # the node is never far ahead
    proxy.cut_after(100_000)
    rows: list[dict[str, Any]] = []
    for batch in read(patient, whole(), COLUMNS, batch_rows=200, hold_back_bytes=0):
        rows += batch.to_pylist()
        if proxy.wait_for_cut(0):
            proxy.cut_after(100_000)
    assert len(by_key(rows)) == len(rows) == DOCUMENTS
    assert proxy.cuts > 3


class _Mortal:
    """A node behind a proxy, which can be killed and started again on the same data."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.node = self._start()
        fill(self.node.upr)
        _persisted(self.node)
        assert self.node.upr
        self.proxy = Proxy(self.node.upr)
        self._thread = threading.Thread(target=self._restart)

    def kill_after(self, count: int) -> None:
        """Kill it when so many bytes have passed, and start it again."""
        self.proxy.cut_after(count)
        self._thread = threading.Thread(target=self._restart)
        self._thread.start()

    def settle(self) -> None:
        """Wait until it is back."""
        self._thread.join()

    def _start(self) -> ServerProcess:
        return start_uprmc(self._data, "--vbuckets", str(VBUCKETS))

    def _restart(self) -> None:
        assert self.proxy.wait_for_cut(20)
        self.node.kill()
        self.node = self._start()
        assert self.node.upr
        self.proxy.target = self.node.upr


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Mortal]:
    found = _Mortal(tmp_path_factory.mktemp("data"))
    with found.proxy:
        yield found
    found.node.__exit__(None, None, None)


@pytest.mark.crash
def test_a_node_that_is_killed_and_restarted_in_mid_read_gives_each_key_once(
    mortal: _Mortal,
) -> None:
    told: list[ReadState] = []
    patient = access(mortal.proxy.address, retries=200, retry_backoff_s=0.05)
    mortal.kill_after(300_000)
    try:
        rows = rows_of(read(patient, whole(), COLUMNS, on_done=told.append))
    finally:
        mortal.settle()
    assert len(by_key(rows)) == DOCUMENTS
    assert sorted(done.vbucket for done in told) == list(range(VBUCKETS))
    assert sum(done.rows for done in told) == len(rows)


@pytest.mark.crash
def test_a_lease_that_was_given_ends_with_its_node(mortal: _Mortal) -> None:
    patient = access(mortal.proxy.address, retries=200, retry_backoff_s=0.05)
    lease = acquire(patient, None, 60)
    mortal.kill_after(300_000)
    try:
        with pytest.raises(LeaseEnded, match=r"has no lease .* any more"):
            list(read(patient, whole(), COLUMNS, lease=lease.token))
    finally:
        mortal.settle()


@pytest.mark.crash
def test_rows_that_are_out_cannot_be_taken_back(mortal: _Mortal) -> None:
    patient = access(mortal.proxy.address, retries=200, retry_backoff_s=0.05)
    mortal.kill_after(500_000)
    try:
        with pytest.raises(LeaseEnded, match=r"rows of vb=. are out"):
            for _ in read(patient, whole(), COLUMNS, hold_back_bytes=0, batch_rows=100):
                pass
    finally:
        mortal.settle()


def test_a_node_that_goes_away_is_unreachable_and_one_that_is_back_is_read(
    filled: ServerProcess, proxy: Proxy
) -> None:
    impatient = access(proxy.address, retries=2, retry_backoff_s=0.001)
    batches = read(impatient, whole(), COLUMNS, batch_rows=100, hold_back_bytes=0)
    next(batches)
    proxy.refuse()
    proxy.cut()
    with pytest.raises(NodeUnreachable):
        list(batches)
    proxy.refuse(False)
    assert len(rows_of(read(impatient, whole(), COLUMNS))) == DOCUMENTS


def _persisted(node: ServerProcess) -> None:
    """Wait until everything is on disk, so that a kill loses nothing."""
    assert node.upr
    with BulkNodes(access(node.upr)) as nodes:
        for vbucket, standing in nodes.standings().items():
            while nodes.persisted(vbucket, standing.log[0][0]) < standing.high_seqno:
                pass
