"""What a batch read plans and does, on a real node, without a JVM: the rules behind ``source``."""

from __future__ import annotations

import json
import os
import pickle
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop.server_process import ServerProcess, start_uprmc
from tests.bulk import here
from tests.bulk.world import HERE, access_to, ask, compact
from tests.spark.conftest import VBUCKETS
from uprmc.backup.backups import backup
from uprmc.backup.verifying import verify
from uprmc.columnar.connection import dialled
from uprmc.columnar.errors import (
    BadOption,
    DataLost,
    LeaseEnded,
    NoVBucket,
    RolledBack,
    VBucketsChanged,
)
from uprmc.columnar.lease import of_token
from uprmc.columnar.nodes import BulkNodes
from uprmc.columnar.schema import DEFAULT
from uprmc.model import VBucketState
from uprmc.protocol.opcodes import Opcode
from uprmc.remote.errors import LeaseRefused
from uprmc.spark import batch
from uprmc.spark.api import current_offsets, hold
from uprmc.spark.batch import NotLookedUp, ReadTask, plan, run
from uprmc.spark.options import IDLE_S, SPARE_LEASES, read_options
from uprmc.spark.partitions import TASK_ITEMS_MIN, VBUCKET_WEIGHT, groups, parts_for
from uprmc.spark.pushdown import EVERYTHING, Wanted

COUNT = 500
ACTIVE, REPLICA, PENDING, DEAD = VBucketState


@pytest.fixture(scope="module", autouse=True)
def _filled(node: ServerProcess) -> None:
    here.put(node, here.numbered(COUNT))


def rows(
    servers: str, wanted: Wanted = EVERYTHING, tasks: list[ReadTask] | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Plan and do a read as Spark would, tasks by way of pickle."""
    chosen = read_options({"servers": servers, **options})
    planned = plan(chosen, wanted) if tasks is None else tasks
    assert planned
    return [
        row
        for task in planned
        for part in run(chosen, wanted, pickle.loads(pickle.dumps(task)))
        for row in part.to_pylist()
    ]


def keys(found: list[dict[str, Any]]) -> set[bytes]:
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"].encode() for row in found}


def test_all_tasks_together_read_every_document_once(node: ServerProcess, servers: str) -> None:
    for partitions in ("1", "3", "64", "100"):
        assert keys(rows(servers, numPartitions=partitions)) == set(here.changes(node))


def test_a_number_of_partitions_is_obeyed_up_to_the_number_of_vbuckets(servers: str) -> None:
    for asked, expected in ((1, 1), (5, 5), (VBUCKETS, VBUCKETS), (VBUCKETS + 1, VBUCKETS)):
        options = read_options({"servers": servers, "numPartitions": str(asked)})
        assert len(plan(options)) == expected


def test_the_time_of_a_version_is_that_of_its_cas(servers: str) -> None:
    found = rows(servers, columns="_time,_cas")
    for row in found:
        assert abs((datetime.now(UTC) - row["_time"]).total_seconds()) < 3_600
        assert row["_time"] == datetime.fromtimestamp(0, UTC) + timedelta(
            microseconds=row["_cas"] // 1_000
        )


def test_few_documents_are_one_task(servers: str) -> None:
    assert len(plan(read_options({"servers": servers}))) == 1


def test_only_the_vbuckets_asked_for_are_read(node: ServerProcess, servers: str) -> None:
    expected = {key for key, each in here.changes(node).items() if each.vbucket in (1, 5)}
    assert keys(rows(servers, vbuckets="1,5")) == expected
    assert keys(rows(servers, Wanted(vbuckets=frozenset({1, 5, 900})))) == expected
    both = rows(servers, Wanted(vbuckets=frozenset({5, 6})), vbuckets="1,5")
    assert {row["_vb"] for row in both} == {5}


@pytest.mark.parametrize("form", [{}, {"keyType": "binary", "u64": "decimal"}, {"noValue": "true"}])
def test_keys_that_are_named_give_the_rows_of_a_read(
    node: ServerProcess, servers: str, form: dict[str, str]
) -> None:
    here.put(node, {b"gone": b"x"})
    here.remove(node, b"gone")
    asked = frozenset((b"key-1", b"key-7", b"gone", b"never was"))
    every = {"columns": ",".join(n for n in (*DEFAULT, "_datatype", "_time") if n != "value")}
    options = {**form, **(every if "noValue" in form else {})}
    text = [each if "keyType" in form else each.decode() for each in asked]
    expected = [row for row in rows(servers, **options) if row["key"] in text]
    found = rows(servers, Wanted(keys=asked), **options)
    assert sorted(found, key=itemgetter("_seq")) == sorted(expected, key=itemgetter("_seq"))
    assert len(found) == 3
    for other in ({"columns": "key,_snap_end"}, {"snapshot": "held"}, {"vbuckets": "0-63"}):
        read = rows(servers, Wanted(keys=asked), **other)
        assert {row["key"] for row in read} == {"key-1", "key-7", "gone"}


def test_looking_up_asks_for_no_more_than_the_keys(
    node: ServerProcess, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "rows", None)
    (row,) = rows(servers, Wanted(keys=frozenset({b"key-2"})))
    assert row["key"] == "key-2"


def test_a_node_that_does_not_look_up_is_read(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> Iterator[Any]:
        raise NotLookedUp
        yield

    monkeypatch.setattr(batch, "looked_up", refused)
    (row,) = rows(servers, Wanted(keys=frozenset({b"key-2"})))
    assert row["key"] == "key-2"


def test_nothing_to_read_is_one_task_that_does_nothing(servers: str) -> None:
    options = read_options({"servers": servers})
    wanted = Wanted(vbuckets=frozenset())
    assert plan(options, wanted) == [ReadTask()]
    assert list(run(options, wanted, ReadTask())) == []


def test_a_vbucket_that_cannot_be_is_refused(servers: str) -> None:
    with pytest.raises(BadOption, match="there is no 64, there are 64"):
        plan(read_options({"servers": servers, "vbuckets": "0-64"}))


def test_a_vbucket_that_no_node_has_is_a_gap_that_is_told(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lacking(BulkNodes):
        def refresh(self) -> None:
            super().refresh()
            self.owners.pop(5, None)

    monkeypatch.setattr(batch, "BulkNodes", Lacking)
    with pytest.raises(NoVBucket, match="vb=5 is active on no node"):
        plan(read_options({"servers": servers}))
    left = plan(read_options({"servers": servers, "failOnDataLoss": "false"}))
    read = {each.vbucket for task in left for each in task.ranges}
    assert read == set(range(VBUCKETS)) - {5}


def test_every_task_of_a_held_read_reads_one_moment(node: ServerProcess, servers: str) -> None:
    options = read_options({"servers": servers, "snapshot": "held", "numPartitions": "4"})
    tasks = plan(options)
    (token,) = {task.lease for task in tasks}
    assert token is not None
    before = rows(servers, tasks=tasks, snapshot="held")
    here.put(node, {b"key-1": b"changed", b"new": b"x"})
    again = rows(servers, tasks=tasks, snapshot="held")
    assert sorted(map(str, before)) == sorted(map(str, again))
    here.remove(node, b"new")
    of_token(options.access, token).release()
    with pytest.raises(LeaseEnded):
        rows(servers, tasks=tasks, snapshot="held")


def open_leases(servers: str) -> list[int]:
    """Return the seconds that each lease of the node has left."""
    with dialled(servers, read_options({"servers": servers}).access) as connection:
        told = connection.statistics("leases")
    return sorted(int(value) for name, value in told.items() if name.endswith("seconds_left"))


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where DataFrames of this test keep their leases."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row["_vb"], row["_seq"]))


def test_all_actions_of_a_dataframe_read_one_lease_which_is_short_after_them(
    node: ServerProcess, servers: str, own_files: Path
) -> None:
    before = len(open_leases(servers))
    frame = {"snapshot": "held", "frame": "mine"}
    options = read_options({"servers": servers, **frame})
    tasks = plan(options)
    (token,) = {task.lease for task in tasks}
    assert token is not None
    assert open_leases(servers)[-1] > IDLE_S, "until its first task comes it is kept for longer"
    first = rows(servers, tasks=tasks, **frame)
    assert open_leases(servers)[-1] <= IDLE_S
    here.put(node, here.numbered(5, prefix="frame"))
    assert in_order(rows(servers, **frame)) == in_order(first), (
        "tasks may be planned in another order"
    )
    narrow = Wanted(vbuckets=frozenset({3}), after=1)
    part = rows(servers, narrow, **frame)
    assert part == [row for row in first if row["_vb"] == 3 and row["_seq"] > 1]
    assert len(open_leases(servers)) == before + 1
    others = rows(servers, **(frame | {"frame": "another"}))
    assert len(others) == len(first) + 5
    assert len(open_leases(servers)) == before + 2
    of_token(options.access, token).release()
    assert len(rows(servers, **frame)) == len(first) + 5, "it goes on with a later moment"


def test_a_dataframe_without_files_of_its_own_has_a_lease_for_each_action(
    servers: str, own_files: Path
) -> None:
    frame = {"servers": servers, "snapshot": "held", "frame": "open"}
    (own_files / f"uprmc-frames-{os.getuid()}").mkdir(mode=0o777)
    (own_files / f"uprmc-frames-{os.getuid()}").chmod(0o777)
    leases = {task.lease for _ in range(2) for task in plan(read_options(frame))}
    assert len(leases) == 2
    for each in leases:
        of_token(read_options(frame).access, each or "").release()


def test_reads_leave_leases_for_backups(tmp_path: Path) -> None:
    with start_uprmc(tmp_path / "data", "--vbuckets", "4") as node:
        place = str(node.upr)
        held = {"servers": place, "snapshot": "held", "readTimeout": "0.1"}
        for _ in range(16 - SPARE_LEASES):
            plan(read_options(held))
        with pytest.raises(LeaseRefused):
            plan(read_options(held))
        with pytest.raises(LeaseRefused):
            hold(place, readTimeout=0.1)
        assert backup(access_to(node), tmp_path / "b", engine=HERE).rows == 0
        assert verify(tmp_path / "b", access_to(node), engine=HERE).same


def test_a_lease_that_is_given_decides_which_vbuckets_there_are(
    node: ServerProcess, servers: str
) -> None:
    with hold(servers, seconds=30, vbuckets=[1, 2]) as lease:
        found = rows(servers, lease=lease.token)
        assert {row["_vb"] for row in found} == {1, 2}
        assert {row["_vb"] for row in rows(servers, lease=lease.token, vbuckets="2")} == {2}
        with pytest.raises(BadOption, match="vb=3 is not in the lease"):
            rows(servers, lease=lease.token, vbuckets="3")


def test_a_lease_is_read_to_its_end_after_its_vbuckets_have_left_the_node(tmp_path: Path) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "8") as own:
        place = str(own.upr)
        here.put(own, here.numbered(COUNT))
        with hold(place, seconds=60) as lease:
            before = rows(place, lease=lease.token)
            assert len(before) == COUNT
            for number, state in enumerate((DEAD, PENDING, REPLICA, DEAD, DEAD, DEAD, DEAD, DEAD)):
                ask(own, Opcode.SET_VBUCKET, number, struct.pack(">I", state))
                if number in (4, 5):
                    ask(own, Opcode.DEL_VBUCKET, number)
            ask(own, Opcode.SET_VBUCKET, 5, struct.pack(">I", ACTIVE))
            again = rows(place, lease=lease.token)
            assert sorted(map(str, before)) == sorted(map(str, again))
            token = lease.token
        with pytest.raises(LeaseEnded):
            rows(place, lease=token)


@pytest.mark.parametrize("snapshot", ["complete", "held", "bounded"])
def test_a_filter_by_seqno_gives_the_same_rows_as_a_look_at_each(
    servers: str, snapshot: str
) -> None:
    everything = rows(servers)
    for after in (0, 1, 5, 9, 1_000_000):
        found = rows(servers, Wanted(after=after), snapshot=snapshot)
        assert keys(found) == keys([row for row in everything if row["_seq"] > after])


def test_all_filters_hold_at_once(servers: str) -> None:
    wanted = Wanted(after=2, ops=frozenset({"set"}), prefixes=("key-1", "key-12"))
    found = rows(servers, wanted)
    expected = [row for row in rows(servers) if row["_seq"] > 2 and row["key"].startswith("key-12")]
    assert keys(found) == keys(expected)


# --- offsets --------------------------------------------------------------------------------------


def test_offsets_are_where_a_bounded_read_ends_and_the_next_begins(
    node: ServerProcess, servers: str
) -> None:
    noted = current_offsets(servers)
    here.put(node, here.numbered(40, prefix="more"))
    later = rows(servers, startingOffsets=noted)
    assert keys(later) == set(here.numbered(40, prefix="more"))
    earlier = rows(servers, snapshot="bounded", endingOffsets=noted)
    assert keys(earlier) == set(here.changes(node)) - keys(later)
    nothing = rows(servers, snapshot="bounded", startingOffsets=noted, endingOffsets=noted)
    assert nothing == []
    here.remove(node, *here.numbered(40, prefix="more"))


def test_a_read_begins_at_a_point_in_time(node: ServerProcess, servers: str) -> None:
    here.put(node, here.numbered(40, prefix="late"))
    everything = here.changes(node)
    moment_us = everything[b"late-0"].cas // 1_000
    first: dict[int, int] = {}
    for each in everything.values():
        if each.cas // 1_000 >= moment_us:
            first[each.vbucket] = min(each.seqno, first.get(each.vbucket, each.seqno))
    expected = {
        key
        for key, each in everything.items()
        if each.vbucket in first and each.seqno >= first[each.vbucket]
    }
    assert set(here.numbered(40, prefix="late")) <= expected < set(everything)
    since = {
        "startingTimestamp": f"{datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment_us)}"
    }
    assert keys(rows(servers, **since)) == expected
    assert keys(rows(servers, Wanted(keys=frozenset(expected)), **since)) == expected
    assert rows(servers, Wanted(keys=frozenset({b"key-1"})), **since) == []
    with hold(servers) as lease:
        here.remove(node, *here.numbered(40, prefix="late"))
        for snapshot in ({"snapshot": "held"}, {"snapshot": "bounded"}):
            found = rows(servers, **snapshot, **since)
            assert {row["_op"] for row in found if row["key"].startswith("late")} == {"delete"}
        assert keys(rows(servers, lease=lease.token, **since)) == expected
    options = read_options({"servers": servers, **since})
    here.put(node, here.numbered(60, prefix="other"))  # newest changes are never dropped
    compact(node)
    with pytest.raises(DataLost, match=r"^UPRMC_DATA_LOSS vb=\d+: deletions up to seqno \d+ were"):
        plan(options)
    left = rows(servers, failOnDataLoss="false", **since)
    assert keys(left) >= set(here.numbered(60, prefix="other"))
    here.remove(node, *here.numbered(60, prefix="other"))


def test_from_the_latest_on_there_is_nothing_yet(servers: str) -> None:
    assert rows(servers, startingOffsets="latest") == []


def test_a_read_that_is_bounded_when_it_is_planned_misses_what_is_rewritten_since(
    node: ServerProcess, servers: str
) -> None:
    options = read_options({"servers": servers, "snapshot": "bounded"})
    tasks = plan(options)
    here.put(node, {b"key-2": b"rewritten"})
    assert b"key-2" not in keys(rows(servers, tasks=tasks, snapshot="bounded"))
    assert b"key-2" in keys(rows(servers, tasks=plan(replace(options, snapshot="complete"))))


def test_offsets_of_another_number_of_vbuckets_are_refused(servers: str) -> None:
    with pytest.raises(VBucketsChanged, match="of 32 vBuckets, the nodes have 64"):
        rows(servers, startingOffsets=json.dumps({"v": 1, "n": 32, "vb": {}}))


def test_an_end_in_a_lost_history_is_refused(servers: str) -> None:
    end = json.dumps({"5": {"u": "00000000000000ff", "s": 1}})
    with pytest.raises(RolledBack, match=r"vb=5 checkpoint=1 rollback_to=0"):
        rows(servers, snapshot="bounded", endingOffsets=end)


def test_a_start_in_a_lost_history_is_refused(servers: str) -> None:
    start = json.dumps({"5": {"u": "00000000000000ff", "s": 1}})
    with pytest.raises(RolledBack, match=r"vb=5 checkpoint=1"):
        rows(servers, startingOffsets=start)


# --- as Spark calls it ----------------------------------------------------------------------------


def test_what_spark_pickles_reads_the_same_on_the_other_side(servers: str) -> None:
    pyspark = pytest.importorskip("pyspark.sql.types")
    from uprmc.spark.source import UprmcDataSource

    source: Any = pickle.loads(
        pickle.dumps(UprmcDataSource({"servers": servers, "columns": "key"}))
    )
    assert source.schema() == "key STRING"
    schema = pyspark.StructType([pyspark.StructField("key", pyspark.StringType())])
    reader = pickle.loads(pickle.dumps(source.reader(schema=schema)))
    partitions = reader.partitions()
    assert isinstance(partitions, list)

    def read(partition: Any) -> Iterator[Any]:
        return reader.read(pickle.loads(pickle.dumps(partition)))  # type: ignore[no-any-return]

    found = [part for partition in partitions for part in read(partition)]
    assert sum(part.num_rows for part in found) >= COUNT
    assert {part.schema for part in found} == {found[0].schema}


# --- partitions -----------------------------------------------------------------------------------
# vBuckets over tasks: each exactly once, none alone at a loss, one node a task.


NODE = "a:1"

COUNTS = st.dictionaries(st.integers(0, 1023), st.integers(0, 100_000), min_size=1, max_size=64)


def owned(items: dict[int, int], *places: str) -> dict[int, str]:
    names = places or (NODE,)
    return {vbucket: names[vbucket % len(names)] for vbucket in items}


@given(COUNTS, st.integers(1, 100), st.integers(1, 4))
def test_every_vbucket_is_in_exactly_one_group_and_no_group_is_empty(
    items: dict[int, int], parts: int, nodes: int
) -> None:
    owners = owned(items, *[f"n{n}:1" for n in range(nodes)])
    found = groups(items, owners, parts)
    assert sorted(vbucket for group in found for vbucket in group) == sorted(items)
    assert all(found)
    assert len(found) <= max(parts, len(set(owners.values())))
    for group in found:
        assert len({owners[vbucket] for vbucket in group}) == 1


@given(COUNTS, st.integers(1, 16))
def test_no_group_is_heavier_than_the_lightest_by_more_than_one_vbucket(
    items: dict[int, int], parts: int
) -> None:
    found = groups(items, owned(items), parts)
    weights = [sum(items[vbucket] + VBUCKET_WEIGHT for vbucket in group) for group in found]
    heaviest = max(items.values()) + VBUCKET_WEIGHT
    assert max(weights) - min(weights) <= heaviest
    assert weights == sorted(weights, reverse=True)


def test_one_large_vbucket_gets_a_task_of_its_own() -> None:
    items = {0: 1_000_000, **dict.fromkeys(range(1, 9), 10)}
    assert groups(items, owned(items), 2) == [(0,), (1, 2, 3, 4, 5, 6, 7, 8)]


def test_empty_vbuckets_are_spread_too() -> None:
    items = dict.fromkeys(range(8), 0)
    assert [len(group) for group in groups(items, owned(items), 4)] == [2, 2, 2, 2]


def test_a_node_with_more_documents_has_more_tasks() -> None:
    items = {0: 90_000, 2: 90_000, 4: 90_000, 1: 10}
    found = groups(items, owned(items, "even:1", "odd:1"), 4)
    assert sorted(found) == [(0,), (1,), (2,), (4,)]


def test_more_nodes_than_tasks_means_a_task_for_each_node() -> None:
    items = {0: 1, 1: 1, 2: 1}
    assert len(groups(items, owned(items, "a:1", "b:1", "c:1"), 1)) == 3


def test_nothing_makes_no_group() -> None:
    assert groups({}, {}, 4) == []


def test_few_documents_are_not_worth_many_tasks() -> None:
    assert parts_for(0, 64, 8) == 1
    assert parts_for(TASK_ITEMS_MIN, 64, 8) == 1
    assert parts_for(TASK_ITEMS_MIN + 1, 64, 8) == 2
    assert parts_for(10**9, 64, 8) == 8
    assert parts_for(10**9, 4, 8) == 4
