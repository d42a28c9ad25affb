"""What every ready-made sink promises: its reader ends with the documents of the node.

A subclass makes sinks at one place again and again, as processes that die and are started again do,
and tells what a reader has made of what is there. The node's rules and the consumer's are the real
ones (`tests.client.consumer_world`); a crash is an exception out of a commit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.client.consumer_world import (
    Crash,
    World,
    fail_over,
    live,
    node,
    replicate,
    standby,
    write,
)
from tests.kv.harness import Rig
from uprmc.client.sqlite_state import SqliteState
from uprmc.sinks.sink import Sink

Documents = dict[int, dict[bytes, bytes | None]]

_POINTS_MAX = 60


class Lines:
    """A reader of lines of JSON, as `uprmc.sinks.records` tells to read them.

    Attributes:
        documents: by vBucket.
        repeated: ids that came twice.
    """

    def __init__(self) -> None:
        self.documents: Documents = {}
        self.repeated: list[str] = []
        self._seen: dict[int, dict[str, int]] = {}

    def take(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._one(json.loads(line))

    def _one(self, row: dict[str, Any]) -> None:
        here = self.documents.setdefault(row["vbucket"], {})
        seen = self._seen.setdefault(row["vbucket"], {})
        if row["op"] == "rollback":
            for known in [each for each, seqno in seen.items() if seqno > row["seqno"]]:
                del seen[known]
            if not row["seqno"]:
                here.clear()
            return
        if "id" in row:
            if row["id"] in seen:
                self.repeated.append(row["id"])
                return
            seen[row["id"]] = row["seqno"]
        key = row["key"].encode()
        if row["op"] == "set":
            here[key] = row["value"].encode()
        else:
            here.pop(key, None)


class SinkContract:
    """Inherit, and define `open` and `documents`.

    Attributes:
        every: a crash is tried at each so many commits; `tests.sim.sink_run` tries all of them.
    """

    every = 1

    def open(self, place: Path) -> Sink:
        """Return a sink, as a new process makes it."""
        raise NotImplementedError

    def documents(self, place: Path) -> Documents:
        """Return what a reader has."""
        raise NotImplementedError

    # --- the consumer ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def following(self, place: Path, *rigs: Rig) -> Iterator[_Following]:
        found = _Following(self, place, rigs)
        try:
            yield found
        finally:
            found.end()

    def same(self, place: Path, rig: Rig, vbucket: int = 0) -> None:
        assert self.documents(place).get(vbucket, {}) == live(rig, vbucket)

    # --- promises -------------------------------------------------------------------------------

    def test_the_reader_has_what_the_node_has_and_it_resumes(self, tmp_path: Path) -> None:
        rig = node()
        write(rig, 0, a="1", b="2")
        write(rig, 1, x="1")
        with self.following(tmp_path, rig) as consumer:
            consumer.go_on()
            write(rig, 0, a="", c="3")
            consumer.go_on()
            self.same(tmp_path, rig)
            self.same(tmp_path, rig, 1)
            consumer.die()
            write(rig, 0, b="4")
            consumer.go_on()
            self.same(tmp_path, rig)

    def test_what_a_failover_lost_is_taken_back(self, tmp_path: Path) -> None:
        old, new = node(), standby(1000)
        with self.following(tmp_path, old, new) as consumer:
            self._lost(consumer, old, new)
            self.same(tmp_path, new)

    def _lost(self, consumer: _Following, old: Rig, new: Rig) -> None:
        write(old, 0, a="1", b="2", gone="3")
        replicate(old, new)
        consumer.go_on()
        write(old, 0, a="lost", b="", new="lost")
        consumer.go_on()
        fail_over(old, new)
        write(new, 0, c="4")
        consumer.go_on(5)

    def test_a_history_that_nothing_is_shared_with_begins_anew(self, tmp_path: Path) -> None:
        old, new = node(), standby(1000)
        write(old, 0, a="1", b="2")
        with self.following(tmp_path, old, new) as consumer:
            consumer.go_on()
            fail_over(old, new)
            write(new, 0, c="4")
            consumer.go_on(5)
            self.same(tmp_path, new)

    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_at_any_commit_leaves_nothing_wrong(self, tmp_path: Path, after: bool) -> None:
        for number in range(1, _POINTS_MAX, self.every):
            place = tmp_path / str(number)
            place.mkdir()
            old, new = node(), standby(1000)
            with self.following(place, old, new) as consumer:
                consumer.crash_at, consumer.crash_after = number, after
                self._lost(consumer, old, new)
                write(new, 0, d="5", a="")
                consumer.go_on(2)
                self.same(place, new)
                if consumer.crash_at > consumer.commits:
                    assert number > 4
                    return
        raise AssertionError("more commits than expected")


class _Following:
    """A consumer that dies and comes back.

    Attributes:
        commits: how many there were in all lives.
        crash_at: at which the process dies, 0 = at none; `crash_after` = when it is done.
    """

    def __init__(self, contract: SinkContract, place: Path, rigs: tuple[Rig, ...]) -> None:
        self._contract, self._place = contract, place
        self.commits = self.crash_at = 0
        self.crash_after = False
        self._open()
        self._world = World(
            self._sink, *rigs, state=self._state, vbuckets=frozenset({0, 1}), buffer_bytes=400
        )

    def _open(self) -> None:
        self._sink = self._contract.open(self._place)
        state: Any = self._sink.state or SqliteState(self._place / "state.db", name="sink")
        self._state = state
        commit = state.commit

        def counted(saved: Mapping[int, Any], *rest: Any) -> None:
            self.commits += 1
            if self.commits == self.crash_at and not self.crash_after:
                raise Crash
            commit(saved, *rest)
            if self.commits == self.crash_at:
                raise Crash

        state.commit = counted

    def go_on(self, seconds: float = 0.5) -> None:
        """Follow for a while; a crash is survived."""
        try:
            self._world.settle(seconds)
        except Crash:
            self.die()
            self._world.settle(seconds)

    def die(self) -> None:
        """End without another word, and begin again."""
        self.end()
        self._open()
        self._world.handler, self._world.state = self._sink, self._state
        self._world.restart()

    def end(self) -> None:
        self._sink.close()
        self._state.close()
