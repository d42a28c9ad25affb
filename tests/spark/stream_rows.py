"""A stream driven by hand, as Spark would, and a sink of changes that obeys control rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from interop.replica_pair import Node
from uprmc.columnar.access import Access
from uprmc.columnar.connection import dialled
from uprmc.columnar.schema import Columns
from uprmc.remote.blocking import NodeConnection
from uprmc.spark.following import SparkFollower
from uprmc.spark.offsets import Offset, parsed
from uprmc.spark.options import ReadOptions
from uprmc.spark.stream_task import ROLLBACK, run

Row = dict[str, Any]


def options_for(servers: str, **changes: Any) -> ReadOptions:
    """Read options of a stream, keys as bytes, one task after the other."""
    access = Access(tuple(servers.split(",")), retries=3, read_timeout_s=20)
    return replace(ReadOptions(access, Columns(key_type="binary")), **changes)


def connected(node: Node) -> NodeConnection:
    return dialled(str(node.upr), Access((str(node.upr),)))


def rows_of(node: Node) -> dict[tuple[int, str], dict[str, str]]:
    """What a node remembers, by vBucket and id."""
    found: dict[tuple[int, str], dict[str, str]] = {}
    with connected(node) as connection:
        for name, value in connection.statistics("watermarks").items():
            vbucket, _, what = name.partition(":")
            if what.startswith("row_"):
                of, _, field = what.removeprefix("row_").rpartition(":")
                found.setdefault((int(vbucket.removeprefix("vb_")), of), {})[field] = value
    return found


class Changes:
    """Every change by vBucket, history and seqno, as a table of changes holds it."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str, int], Row] = {}
        self.repeated = 0
        self.controls: list[Row] = []

    def apply(self, rows: Iterable[Row]) -> None:
        """Take a batch in: first what it undoes, then what it brings."""
        rows = list(rows)
        for row in rows:
            if row["_op"] == ROLLBACK:
                self.controls.append(row)
                self.rows = {
                    identity: held
                    for identity, held in self.rows.items()
                    if held["_vb"] != row["_vb"] or held["_seq"] <= row["_seq"]
                }
        for row in rows:
            if row["_op"] != ROLLBACK:
                identity = (row["_vb"], row["_vbuuid"], row["_seq"])
                self.repeated += identity in self.rows
                assert self.rows.setdefault(identity, row) == row, identity

    def documents(self) -> dict[bytes, bytes]:
        """The newest version of every key."""
        newest: dict[bytes, Row] = {}
        for row in sorted(self.rows.values(), key=lambda row: int(row["_seq"])):
            newest[row["key"]] = row
        return {key: row["value"] for key, row in newest.items() if row["_op"] == "set"}


class Stream:
    """A driver that can be replaced, an offset that stays, and a sink."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.sink = Changes()
        self.follower = SparkFollower(options)
        self.offset = self.follower.initial()
        self.last: tuple[Offset, Offset] | None = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.follower.close()

    def restart(self, **changes: Any) -> None:
        """The driver's process ends and another one begins from what was kept."""
        self.follower.close()
        self.options = replace(self.options, **changes)
        self.follower = SparkFollower(self.options)
        self.offset = parsed(self.offset.to_json())

    def plan(self, rows: int | None = None) -> bool:
        """Find the end of the next batch; returns whether there is one."""
        end = self.follower.latest(self.offset, rows)
        if end.to_json() == self.offset.to_json():
            return False
        self.last, self.offset = (self.offset, end), end
        return True

    def read(self) -> list[Row]:
        """Run the tasks of the last batch."""
        assert self.last is not None
        start, end = (parsed(each.to_json()) for each in self.last)
        return [
            row
            for task in self.follower.plan(start, end)
            for batch in run(self.options, task)
            for row in batch.to_pylist()
        ]

    def batch(self, rows: int | None = None) -> list[Row] | None:
        """Run one batch; ``None`` if there was none."""
        if not self.plan(rows):
            return None
        assert self.last is not None
        self.follower.committed(self.last[0])
        found = self.read()
        self.sink.apply(found)
        return found

    def catch_up(self, rows: int | None = None) -> int:
        """Run batches until nothing is new; returns how many had rows."""
        count = 0
        for _ in range(1000):
            found = self.batch(rows)
            if found is None:
                return count
            count += bool(found)
        raise AssertionError("it never comes to rest")
