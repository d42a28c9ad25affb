"""What every ready-made sink promises: its reader ends with the documents of the node.

A subclass makes sinks at one place again and again, as processes that die and are started again do,
and tells what a reader has made of what is there. The node's rules and the consumer's are the real
ones (`tests.client.consumer_world`); a crash is an exception out of a commit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
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

#: By vBucket, (vb_uuid, seqno).
Changes = dict[int, set[tuple[int, int]]]

_POINTS_MAX = 150


class Lines:
    """A reader of lines of JSON, as `uprmc.sinks.sink` tells to read them.

    Attributes:
        documents: by vBucket.
        repeated: ids that came twice.
        changes: by vBucket, the history and seqno of each change that no line has made void.
    """

    def __init__(self) -> None:
        self.documents: Documents = {}
        self.repeated: list[str] = []
        self.changes: Changes = {}
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
            kept = self.changes.get(row["vbucket"], ())
            self.changes[row["vbucket"]] = {each for each in kept if each[1] <= row["seqno"]}
            if not row["seqno"]:
                here.clear()
            return
        if "id" in row:
            if row["id"] in seen:
                self.repeated.append(row["id"])
                return
            seen[row["id"]] = row["seqno"]
            self.changes.setdefault(row["vbucket"], set()).add((int(row["vb_uuid"]), row["seqno"]))
        key = row["key"].encode()
        if row["op"] == "set":
            here[key] = row["value"].encode()
        else:
            here.pop(key, None)


class SinkContract:
    """Inherit, and define `open` and `documents`.

    Attributes:
        every: a crash is tried at each so many commits; `tests.sim.sinks` tries all of them.
    """

    every = 1

    def open(self, place: Path) -> Sink:
        """Return a sink, as a new process makes it."""
        raise NotImplementedError

    def documents(self, place: Path) -> Documents:
        """Return what a reader has."""
        raise NotImplementedError

    def changes(self, place: Path) -> Changes:
        """Return which changes a reader holds to be true, if it is told more than documents."""
        return {}

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
        log = rig.bucket.vbuckets[vbucket].failover_log
        ends = {log[0].uuid: 2**64} | {old.uuid: new.seqno for new, old in pairwise(log)}
        held = self.changes(place).get(vbucket, set())
        void = [each for each in held if each[1] > ends.get(each[0], 0)]
        assert not void, f"nobody said that {void} are void"

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
        for vbucket in (0, 1):
            write(old, vbucket, a="1", b="2", gone="3")
            replicate(old, new, vbucket)
        consumer.go_on()
        for vbucket in (0, 1):
            write(old, vbucket, a="lost", b="", new="lost")
        consumer.go_on()
        for vbucket in (0, 1):
            fail_over(old, new, vbucket)
            write(new, vbucket, c="4")
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

    def _at_each_point(self, tmp_path: Path, prepare: Callable[[_Following, int], None]) -> None:
        """Tell a story with a death at the first, second, ... point until there is none there."""
        for number in range(1, _POINTS_MAX, self.every):
            place = tmp_path / str(number)
            place.mkdir()
            old, new = node(), standby(1000)
            with self.following(place, old, new) as consumer:
                prepare(consumer, number)
                self._lost(consumer, old, new)
                for vbucket in (0, 1):
                    write(new, vbucket, d="5", a="")
                consumer.go_on(2)
                for vbucket in (0, 1):
                    self.same(place, new, vbucket)
                if not consumer.deaths:
                    assert number > 4
                    return
        raise AssertionError("more points than expected")

    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_at_any_commit_leaves_nothing_wrong(self, tmp_path: Path, after: bool) -> None:
        def prepare(consumer: _Following, number: int) -> None:
            consumer.commits.at, consumer.commits.after = number, after

        self._at_each_point(tmp_path, prepare)

    @pytest.mark.parametrize("after", [False, True])
    def test_who_dies_twice_while_it_goes_back_begins_with_the_first_step_each_time(
        self, tmp_path: Path, after: bool
    ) -> None:
        def prepare(consumer: _Following, number: int) -> None:
            consumer.calls.at, consumer.calls.after = number, after
            consumer.commits.again = 1 + number % 3

        self._at_each_point(tmp_path, prepare)

    def test_a_history_that_returns_while_one_goes_back_comes_whole(self, tmp_path: Path) -> None:
        for number in range(1, _POINTS_MAX, self.every):
            place = tmp_path / str(number)
            place.mkdir()
            old, new = node(), standby(1000)
            with self.following(place, old, new) as consumer:
                consumer.calls.at = number
                consumer.returns = lambda: (fail_over(new, old, 0), fail_over(new, old, 1))  # noqa: B023
                self._lost(consumer, old, new)
                consumer.go_on(5)
                for vbucket in (0, 1):
                    self.same(place, old if consumer.deaths else new, vbucket)
                if not consumer.deaths:
                    return
        raise AssertionError("more points than expected")


class _Points:
    """Places at which a process may die.

    Attributes:
        count: how many there were in all lives.
        at: at which it dies, 0 = at none; `after` = when it is done.
        again: so many points after its first death it dies once more.
    """

    def __init__(self) -> None:
        self.count = self.at = self.again = 0
        self.after = False

    def passed(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        """Return an effect that is such a place."""

        def point(*given: Any) -> Any:
            self.count += 1
            dies = self.count == self.at
            if dies and not self.after:
                raise Crash
            found = effect(*given)
            if dies:
                raise Crash
            return found

        return point


class _Following:
    """A consumer that dies and comes back.

    Attributes:
        commits: points at which positions are written.
        calls: points at which the sink is told to go back, or what takes something back.
        deaths: how often it has died.
        returns: called once, at its first death.
    """

    def __init__(self, contract: SinkContract, place: Path, rigs: tuple[Rig, ...]) -> None:
        self._contract, self._place = contract, place
        self.commits, self.calls = _Points(), _Points()
        self.deaths = 0
        self.returns: Callable[[], object] = lambda: None
        self._open()
        self._world = World(
            self._sink, *rigs, state=self._state, vbuckets=frozenset({0, 1}), buffer_bytes=400
        )

    def _open(self) -> None:
        self._sink = sink = self._contract.open(self._place)
        state: Any = sink.state or SqliteState(self._place / "state.db", name="sink")
        self._state = state
        state.commit = self.commits.passed(state.commit)
        state.forget = self.commits.passed(state.forget)
        for name in ("rollback", "undo"):
            setattr(sink, name, self.calls.passed(getattr(sink, name)))

    def go_on(self, seconds: float = 0.5) -> None:
        """Follow for a while; a crash is survived, and so is a second one."""
        for _ in range(3):
            try:
                self._world.settle(seconds)
            except Crash:
                self.die()
            else:
                return
        raise AssertionError("it dies more often than it is told to")

    def die(self) -> None:
        """End without another word, and begin again."""
        self.deaths += 1
        if self.deaths == 1:
            self.returns()
            if self.commits.again:
                self.commits.at = self.commits.count + self.commits.again
        self.end()
        self._open()
        self._world.handler, self._world.state = self._sink, self._state
        self._world.restart()

    def end(self) -> None:
        self._sink.close()
        self._state.close()
