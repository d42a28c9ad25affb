"""Deletions are kept for a stream: its rows in the watermark tables of a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.replica_pair import Node
from tests.bulk.here import contents, numbered, put, remove
from tests.bulk.world import compact, persist
from tests.spark.stream_rows import Stream, connected, options_for, rows_of
from uprmc.cli.main import run as cli
from uprmc.columnar.errors import DataLost
from uprmc.columnar.lease import of_token
from uprmc.protocol.control import MANAGE, WATERMARKS
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode, OpenFlag
from uprmc.protocol.upr import OPEN_EXTRAS
from uprmc.remote.registering import removal
from uprmc.spark.feeding import feed
from uprmc.spark.offsets import parsed

VBUCKETS = 4
DOCUMENTS = numbered(60)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path / "data", "--vbuckets", str(VBUCKETS))
    found.start()
    put(found.server, DOCUMENTS)
    yield found
    found.end()


def stream(node: Node, **changes: Any) -> Stream:
    return Stream(options_for(str(node.upr), **changes))


def watermarks_of(node: Node) -> dict[int, int]:
    return {vbucket: int(row["watermark"]) for (vbucket, _), row in rows_of(node).items()}


def forget(node: Node) -> None:
    """Remove all rows, as if they had expired."""
    rows = rows_of(node)
    with connected(node) as connection:
        opening = RequestFrame(
            Opcode.UPR_OPEN, key=b"manager", extras=OPEN_EXTRAS.pack(0, OpenFlag.PRODUCER)
        )
        manage = RequestFrame(Opcode.UPR_CONTROL, key=WATERMARKS, value=MANAGE)
        removals = [removal(name.encode(), vbucket) for vbucket, name in rows]
        connection.require([opening, manage, *removals])


def delete_and_drop(node: Node) -> None:
    """Delete half of the documents, and drop what deletions may be dropped."""
    remove(node.server, *(key for n, key in enumerate(DOCUMENTS) if n % 2))
    put(node.server, numbered(60, prefix="other"))
    compact(node.server)


def test_deletions_are_kept_until_the_stream_has_committed_them(node: Node) -> None:
    with stream(node) as found:
        found.catch_up()
        delete_and_drop(node)
        found.catch_up()
        assert found.sink.documents() == contents(node.server)
        assert not found.sink.controls
        assert sum(row["_op"] == "delete" for row in found.sink.rows.values()) == 30


@pytest.mark.parametrize("lost", [False, True], ids=["the batch's lease", "a task's own lease"])
def test_what_a_registered_stream_has_committed_is_kept_by_no_age(
    lost: bool, node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    with stream(node) as found:
        found.catch_up()
        remove(node.server, *DOCUMENTS)
        put(node.server, numbered(60, prefix="other"))
        if lost:
            found.plan()
            assert found.offset.lease is not None
            of_token(found.options.access, found.offset.lease).release()
            found.sink.apply(found.read())
        found.catch_up()
    persist(node.server)
    assert cli(["compact", "--wait", "--json", "--node", str(node.upr)]) == 0
    assert json.loads(capsys.readouterr().out)["dropped"] == 60
    assert found.sink.documents() == contents(node.server)


def test_a_batch_that_is_planned_or_read_is_not_reported_before_its_commit(node: Node) -> None:
    with stream(node) as found:
        assert found.plan()
        found.sink.apply(found.read())
        assert set(watermarks_of(node).values()) == {0}
        found.follower.committed(found.offset)
    assert watermarks_of(node) == {n: each.seqno for n, each in found.offset.positions.items()}


def test_a_batch_that_ends_inside_a_snapshot_reports_the_complete_state_before(node: Node) -> None:
    with stream(node) as found:
        found.batch(20)
        found.follower.committed(found.offset)
        assert found.offset.under_way
    assert set(watermarks_of(node).values()) == {0}


def test_rows_are_of_kind_spark_and_their_id_is_in_the_checkpoint_for_life(node: Node) -> None:
    with stream(node) as found:
        found.catch_up()
        name = json.loads(found.offset.to_json())["id"]
        found.restart()
        put(node.server, numbered(10, prefix="more"))
        found.catch_up()
    rows = rows_of(node)
    assert {of for _, of in rows} == {name}
    assert {row["kind"] for row in rows.values()} == {"spark"}
    assert found.offset.instance == name


def test_a_batch_that_is_repeated_by_a_new_driver_is_registered_under_its_own_id(
    node: Node,
) -> None:
    with stream(node) as found:
        found.plan()
        name = found.offset.instance
        forget(node)
        found.restart()
        found.last = (found.follower.initial(), found.offset)
        found.read()
    assert {of for _, of in rows_of(node)} == {name}


def test_a_checkpoint_of_an_older_program_gets_an_id(node: Node) -> None:
    with stream(node, register=False) as found:
        found.catch_up()
        assert found.offset.instance is None
        found.restart(register=True)
        found.catch_up()
        assert found.offset.instance is not None
    assert {of for _, of in rows_of(node)} == {found.offset.instance}


def test_a_stream_that_does_not_want_to_be_registered_is_not(node: Node) -> None:
    with stream(node, register=False) as found:
        found.catch_up()
    assert rows_of(node) == {}


def test_the_lifetime_of_the_rows_can_be_chosen(node: Node) -> None:
    with stream(node, register_s=77) as found:
        found.catch_up()
    assert {row["expires_in_s"] for row in rows_of(node).values()} == {"77"}


@pytest.mark.acceptance("X19")
def test_a_stream_that_was_forgotten_fails_when_its_deletions_are_gone(node: Node) -> None:
    with stream(node) as found:
        found.catch_up()
        forget(node)
        found.restart()
        delete_and_drop(node)
        with pytest.raises(DataLost, match=r"were dropped for good.*onPurged=restart"):
            found.catch_up()
        assert rows_of(node) == {}


@pytest.mark.acceptance("X19")
def test_a_stream_that_was_forgotten_may_begin_again_and_is_registered_again(node: Node) -> None:
    with stream(node, on_purged="restart") as found:
        found.catch_up()
        forget(node)
        found.restart()
        delete_and_drop(node)
        found.catch_up()
        assert {row["_seq"] for row in found.sink.controls} == {0}
        assert found.sink.documents() == contents(node.server)
        remove(node.server, *list(DOCUMENTS)[:2])
        compact(node.server)
        found.catch_up()
        assert found.sink.documents() == contents(node.server)
    assert set(watermarks_of(node)) == set(range(VBUCKETS))


def test_a_feed_of_files_registers_and_reports_too(node: Node, tmp_path: Path) -> None:
    to, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    feed(str(node.upr), to, checkpoint, format="jsonl")
    newest = max((checkpoint / "offsets").iterdir(), key=lambda each: int(each.name))
    offset = parsed(newest.read_text(encoding="utf-8"))
    assert {of for _, of in rows_of(node)} == {offset.instance}
    assert watermarks_of(node) == {n: each.seqno for n, each in offset.positions.items()}
