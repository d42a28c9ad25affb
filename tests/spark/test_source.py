"""``spark.read.format("uprmc")`` in a real Spark, compared with what the node itself tells.

Rules are tested without a JVM beside this; here is what only Spark can show: that it finds the
format, repeats tasks, prunes nothing, pushes filters or does not, and shows our code words.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import uprmc.spark
from interop.server_process import ServerProcess, start_uprmc
from tests.bulk import here
from tests.login.files import password_file, users_file
from tests.server.certificates import make_certificate
from tests.spark.refusing import refusal
from uprmc.columnar.access import Access
from uprmc.columnar.connection import dialled
from uprmc.spark.session import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COUNT = 2_000
STILL = here.numbered(COUNT, prefix="still")
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module", autouse=True)
def _filled(node: ServerProcess) -> None:
    here.put(node, STILL, flags=7)
    here.put(node, {b"gone": b"x"})
    here.remove(node, b"gone")


@pytest.fixture
def load(spark: SparkSession, servers: str) -> Callable[..., DataFrame]:
    """Return what a user's program would say, with options."""

    def loaded(**options: Any) -> DataFrame:
        reader: Any = spark.read.format("uprmc").option("servers", servers)
        return reader.options(**options).load()

    return loaded


def keys(rows: DataFrame) -> list[str]:
    return [row["key"] for row in rows.select("key").collect()]


def documents(rows: DataFrame) -> dict[bytes, bytes]:
    """Return the documents among rows; a key that comes twice is an error."""
    found = rows.collect()
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"].encode(): bytes(row["value"]) for row in found if row["_op"] == "set"}


# --- complete -------------------------------------------------------------------------------------


def test_spark_finds_the_format_by_itself_and_reads_what_the_node_has(
    load: Callable[..., DataFrame], node: ServerProcess
) -> None:
    rows = {row["key"].encode(): row for row in load().collect()}
    there = here.changes(node)
    assert set(rows) == set(there)
    for key, change in there.items():
        row = rows[key]
        assert row["_op"] == change.op
        value = None if row["value"] is None else bytes(row["value"])
        assert (value or b"") == (change.value or b"")
        assert (row["_vb"], row["_seq"], row["_rev"]) == (change.vbucket, change.seqno, change.rev)
        assert row["_cas"] == change.cas
        assert row["_vbuuid"] == f"{change.vb_uuid:016x}"
        if change.op == "set":
            assert row["_flags"] == 7
    assert rows[b"gone"]["_op"] == "delete"


@pytest.mark.acceptance("D01")
def test_a_read_during_writes_has_every_key_once_and_no_torn_state(
    load: Callable[..., DataFrame], node: ServerProcess
) -> None:
    moving = [f"moving-{n}".encode() for n in range(500)]
    here.put(node, dict.fromkeys(moving, b"0"))
    with here.Writing(node, moving) as writing:
        for _ in range(3):
            before = writing.rounds
            found = documents(load(numPartitions=4))
            after = writing.rounds + 1
            assert {key: found[key] for key in STILL} == STILL
            assert all(before <= int(found[key]) <= after for key in moving)
    here.remove(node, *moving)


def test_a_table_of_the_catalog_is_told_what_works_instead(
    spark: SparkSession, servers: str
) -> None:
    form = "UPRMC_OPTION .*Say CREATE TEMPORARY VIEW name USING uprmc"
    with pytest.raises(Exception, match=form):
        spark.sql(f"CREATE TABLE documents USING uprmc OPTIONS (servers '{servers}')")
    spark.sql("CREATE TABLE documents (key STRING, value BINARY) USING uprmc")
    try:
        with pytest.raises(Exception, match=form):
            spark.table("documents").collect()
    finally:
        spark.sql("DROP TABLE documents")


def test_a_task_that_fails_once_or_is_killed_gives_each_key_once(
    load: Callable[..., DataFrame], node: ServerProcess
) -> None:
    def failing(kill: bool) -> Callable[[Iterator[Any]], Iterator[Any]]:
        def once(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            first = TaskContext.get().attemptNumber() == 0  # type: ignore[union-attr]
            for batch in batches:
                yield batch
                if first and kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                if first:
                    raise RuntimeError("once")

        return once

    rows = load(columns="key,value,_op", batchRows=100)
    for kill in (False, True):
        again = rows.mapInArrow(failing(kill), rows.schema)
        assert documents(again) == here.contents(node)


# --- held and bounded -----------------------------------------------------------------------------


def test_what_is_held_is_the_same_at_every_read_and_for_every_client(
    load: Callable[..., DataFrame], spark: SparkSession, node: ServerProcess, servers: str
) -> None:
    moving = [f"held-{n}".encode() for n in range(200)]
    here.put(node, dict.fromkeys(moving, b"0"))
    with here.Writing(node, moving), uprmc.spark.hold(servers, seconds=60) as lease:
        reads = [
            sorted(map(tuple, uprmc.spark.read(spark, servers, lease=lease).collect()))
            for _ in range(2)
        ]
        (grant,) = lease.lease.grants
        expected = here.leased(node, grant.id)
    assert reads[0] == reads[1]
    found = [
        (row[0].encode(), row[4], None if row[1] is None else bytes(row[1])) for row in reads[0]
    ]
    assert found == expected
    here.remove(node, *moving)


def test_a_frame_that_is_held_counts_the_same_twice_though_documents_are_added(
    load: Callable[..., DataFrame], node: ServerProcess
) -> None:
    rows = load(snapshot="held", leaseSeconds=30, columns="key")
    before = rows.count()
    here.put(node, {b"added while held": b"x"})
    assert rows.count() == before


def test_a_bounded_read_goes_on_from_offsets_that_were_noted(
    load: Callable[..., DataFrame], node: ServerProcess, servers: str
) -> None:
    noted = uprmc.spark.current_offsets(servers)
    here.put(node, here.numbered(50, prefix="later"))
    rows = load(snapshot="bounded", startingOffsets=noted)
    assert sorted(keys(rows)) == sorted(f"later-{n}" for n in range(50))


# --- columns --------------------------------------------------------------------------------------


def test_columns_types_and_vbuckets_are_chosen_by_options(
    load: Callable[..., DataFrame], node: ServerProcess
) -> None:
    rows = load(columns="_seq,key", vbuckets="0-9,63", keyType="binary")
    assert rows.dtypes == [("_seq", "bigint"), ("key", "binary")]
    expected = {
        (change.seqno, change.key)
        for change in here.changes(node).values()
        if change.vbucket in (*range(10), 63)
    }
    assert {(row["_seq"], bytes(row["key"])) for row in rows.collect()} == expected
    names = "_cas,_rev,key,_datatype,_snap_start,_snap_end,_backfill,_meta"
    (row,) = load(columns=names, u64="decimal", noValue="true", vbuckets="0").take(1)
    assert isinstance(row["_cas"], Decimal)
    assert row["_cas"] == here.changes(node)[row["key"].encode()].cas
    assert row["_snap_end"] >= 1


def test_a_schema_of_the_users_own_chooses_columns(spark: SparkSession, servers: str) -> None:
    reader = spark.read.format("uprmc").option("servers", servers)
    rows = reader.schema("key binary, _cas decimal(20,0)").load()
    assert rows.columns == ["key", "_cas"]
    assert bytes(rows.take(1)[0]["key"])
    wrong = spark.read.format("uprmc").option("servers", servers).schema("value string").load()
    assert "UPRMC_SCHEMA column value has type binary, not string" in refusal(wrong.collect)


def test_an_empty_node_gives_no_rows_and_keys_that_are_no_text_none_unless_they_are_wanted(
    spark: SparkSession, tmp_path: Path
) -> None:
    with start_uprmc(tmp_path / "data", "--vbuckets", "4") as server:

        def read(**options: Any) -> DataFrame:
            return uprmc.spark.read(spark, str(server.upr), columns="key", **options)

        assert read().collect() == []
        here.put(server, {b"fine": b"1", b"\xff\xfe": b"2"})
        assert "UPRMC_KEY_NOT_UTF8" in refusal(read().collect)
        assert sorted(keys(read(mode="PERMISSIVE"))) == ["\\xff\\xfe", "fine"]
        assert keys(read(mode="DROPMALFORMED")) == ["fine"]
        assert {bytes(key) for key in keys(read(key_type="binary"))} == {b"fine", b"\xff\xfe"}


def test_json_documents_become_columns(spark: SparkSession, tmp_path: Path) -> None:
    with start_uprmc(tmp_path / "data", "--vbuckets", "4") as server:
        here.put(server, {b"a": b'{"name": "Ada", "born": 1815}', b"b": b'{"born": 1912}'})
        here.put(server, {b"c": b"no json", b"d": b"{}"})
        here.remove(server, b"d")
        schema = uprmc.spark.infer_schema(spark, str(server.upr))
        assert schema.simpleString() == "struct<born:bigint,name:string>"
        rows = uprmc.spark.read_json(spark, str(server.upr), schema, columns="key,_seq")
        found = {row["key"]: row["doc"] for row in rows.collect()}
        assert found["a"].asDict() == {"name": "Ada", "born": 1815}
        assert found["b"]["name"] is None
        assert set(found) == {"a", "b", "c"}


def test_no_value_is_lost_to_a_name_that_differs_in_case_or_comes_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    texts = [b'{"Id": 1}', b'{"iD": 2}', b'{"l": [{"p": 3}, {"P": 4}]}', b'{"d": 5, "d": "six"}']
    with start_uprmc(tmp_path / "data", "--vbuckets", "4") as server:
        here.put(server, {b"%d" % n: text for n, text in enumerate(texts)})
        before = spark.conf.get("spark.sql.caseSensitive")
        rows = uprmc.spark.read_json(spark, str(server.upr)).collect()
        assert spark.conf.get("spark.sql.caseSensitive") == before
    found = {row["key"]: row["doc"].asDict(True) for row in rows}
    assert [sorted(found["0"]), found["0"]["Id"], found["1"]["iD"]] == [
        ["Id", "d", "iD", "l"],
        1,
        2,
    ]
    assert found["2"]["l"] == [{"p": 3, "P": None}, {"p": None, "P": 4}]
    assert found["3"]["d"] == "six"


def test_all_actions_of_a_dataframe_read_one_moment_from_one_lease(
    load: Callable[..., DataFrame], servers: str, node: ServerProcess
) -> None:
    def granted() -> int:
        with dialled(servers, Access((servers,))) as connection:
            return int(connection.statistics("leases")["granted"])

    before = granted()
    rows = load(snapshot="held")
    first = rows.count()
    here.put(node, here.numbered(3, prefix="between-actions"))
    assert rows.count() == first
    assert rows.where("_vb >= 0").select("key").distinct().count() == first
    assert granted() == before + 1
    assert load(snapshot="held").count() == first + 3


ODD = {
    b"a": b'{"a": 1, "A": "twin", "b.c": 2, "x`y": 3, "_corrupt_record": "mine", "n": {"z.z": 4}}',
    b"b": b'{"a": "a text"}',
    b"c": b"{}",
    **{
        b"no-%d" % n: value
        for n, value in enumerate(
            (b"[1]", b"5", b'"x"', b"null", b"", b'{"a":', b'[{"a": 1}]', b"\xff")
        )
    },
}


def test_field_names_are_literal_and_what_is_no_object_is_null(
    spark: SparkSession, tmp_path: Path
) -> None:
    with start_uprmc(tmp_path / "data", "--vbuckets", "4") as server:
        place = str(server.upr)
        here.put(server, ODD)
        names = uprmc.spark.infer_schema(spark, place, vbuckets="0-3").fieldNames()
        assert sorted(names) == ["A", "_corrupt_record", "a", "b.c", "n", "x`y"]
        found = {row["key"]: row["doc"] for row in uprmc.spark.read_json(spark, place).collect()}
        assert found["a"].asDict(True) == {
            "A": "twin",
            "_corrupt_record": "mine",
            "a": "1",
            "b.c": 2,
            "x`y": 3,
            "n": {"z.z": 4},
        }
        assert found["b"]["a"] == "a text"
        assert found["c"].asDict() == dict.fromkeys(names)
        assert {key: doc for key, doc in found.items() if key.startswith("no-")} == {
            f"no-{n}": None for n in range(8)
        }
        numbers = uprmc.spark.read_json(spark, place, "a int, _corrupt_record string")
        other = {row["key"]: row["doc"] for row in numbers.collect()}
        assert (other["b"]["a"], other["b"]["_corrupt_record"]) == (None, '{"a": "a text"}')
        assert other["no-0"]["_corrupt_record"] == "[1]"
        strict = uprmc.spark.read_json(spark, place, "a string", mode="FAILFAST")
        with pytest.raises(Exception, match="MALFORMED_RECORD"):
            strict.collect()


# --- filters --------------------------------------------------------------------------------------


def test_filters_are_pushed_once_the_format_is_registered(
    load: Callable[..., DataFrame], spark: SparkSession, node: ServerProcess
) -> None:
    def narrowed(rows: DataFrame) -> DataFrame:
        return rows.where("_vb in (3, 5) and _seq > 10 and _op = 'set' and key like 'still-1%'")

    def plan(rows: DataFrame) -> str:
        text: str = rows._jdf.queryExecution().executedPlan().toString()
        return text

    spark.conf.unset(PUSHDOWN)
    expected = sorted(keys(narrowed(load())))
    assert expected
    assert "Filter (" in plan(narrowed(load()))
    register(spark)
    try:
        pushed = narrowed(load())
        assert sorted(keys(pushed)) == expected
        assert "Filter (" not in plan(pushed)
        assert load().where("_vb = 70 and length(key) > 1").count() == 0
        by_key = load().where(f"key in ('{expected[0]}', 'never was') and key is not null")
        assert keys(by_key) == [expected[0]]
        assert "Filter (" not in plan(by_key)
        assert "Filter (" in plan(narrowed(load(pushdown="false")))
    finally:
        spark.conf.unset(PUSHDOWN)


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_wrong_option_is_told_by_name(load: Callable[..., DataFrame]) -> None:
    told = refusal(lambda: load(vbuckets="64").collect())
    assert "UPRMC_OPTION" in told
    assert "there is no 64, there are 64" in told


def test_a_node_that_does_not_answer_is_told_by_its_place(spark: SparkSession) -> None:
    reader = spark.read.format("uprmc").option("servers", "127.0.0.1:1").option("retries", 0)
    told = refusal(lambda: reader.load().collect())
    assert "UPRMC_UNREACHABLE" in told
    assert "127.0.0.1:1" in told


def test_a_server_that_is_killed_and_comes_back_does_not_hurt_a_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, begun, killed = (tmp_path / name for name in ("data", "begun", "killed"))
    server = start_uprmc(data, "--vbuckets", "64")
    documents_there = {f"k{n}".encode(): b"v" * 1000 for n in range(10_000)}
    here.put(server, documents_there)

    def marking(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            begun.touch()
            while not killed.exists():  # the source is read no further meanwhile
                time.sleep(0.01)
            yield batch

    rows = uprmc.spark.read(
        spark, str(server.upr), columns="key,value,_op", flowControlBytes="64k", batchRows=200
    )
    with here.AtSight(begun, lambda: here.restarted(server, data, killed)) as restart:
        found = documents(rows.mapInArrow(marking, rows.schema))
    with restart.result as again:
        assert found == documents_there
        assert again.running


# --- TLS and users --------------------------------------------------------------------------------


def test_a_node_with_tls_and_users_is_written_read_and_followed(
    spark: SparkSession, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    users = users_file(tmp_path, ann="read,write,stream", sam="stream")
    secured = ["--tls-cert", certificate, "--tls-key", key, "--set", f"server.users={users}"]
    with start_uprmc(tmp_path / "data", "--vbuckets", "4", *secured) as server:
        nobody = {"servers": str(server.upr), "tlsCaFile": certificate}

        def logged_in(name: str) -> dict[str, str]:
            return {**nobody, "username": name, "passwordFile": password_file(tmp_path, name)}

        def read(**options: str) -> list[Any]:
            return spark.read.format("uprmc").options(**options).load().collect()

        rows = spark.createDataFrame([("a", b"1"), ("b", b"2")], "key string, value binary")
        writer = rows.write.format("uprmc").mode("append")
        writer.options(**logged_in("ann")).save()
        assert {row["key"] for row in read(**logged_in("sam"))} == {"a", "b"}
        query = (
            spark.readStream.format("uprmc")
            .options(**logged_in("sam"))
            .load()
            .writeStream.format("memory")
            .queryName("followed")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert spark.table("followed").count() == 2
        spark.catalog.dropTempView("followed")
        assert "UPRMC_AUTH" in refusal(lambda: read(**nobody))
        assert "REFUSED" in refusal(lambda: writer.options(**logged_in("sam")).save())
