"""A consumer is registered with its nodes: they keep deletions until its state has them.

Source: contracts of the systems to come, section 2; `reference/systems.md` a.2 to a.4; rows X05,
X08, X14, X19, X29.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.client.consumer_world import Mirror, World, live, node, write
from tests.kv.harness import Rig
from tests.upr.test_watermarks_on_the_wire import purge
from uprmc.client import UprClient
from uprmc.client.errors import DeletionsPurged, MisuseError
from uprmc.client.node_session import NodeSession
from uprmc.client.options import Registration
from uprmc.client.sqlite_state import SqliteState
from uprmc.client.state import MemoryState, Saved
from uprmc.engine.watermarks.rows import Kind, Row
from uprmc.protocol import control
from uprmc.protocol.upr_many import StreamStart
from uprmc.remote.registering import Instance, Purged, name_tag
from uprmc.upr.peer import Answer
from uprmc.upr.producer import Producer

TAG = name_tag("me")
ME = Instance(b"me", Kind.INDEX, 60)


def rows(rig: Rig, vbucket: int = 0) -> list[Row]:
    return rig.bucket.watermarks.rows(rig.bucket.vbuckets[vbucket])


def followed(rig: Rig, **options: Any) -> tuple[World, Mirror]:
    mirror = Mirror()
    world = World(mirror, rig, **{"instance": ME, **options})
    world.until(lambda: rows(rig), 2)
    settle(world, rig)
    return world, mirror


def settle(world: World, rig: Rig) -> None:
    """Let reports be made, taken and written."""
    for _ in range(3):
        world.settle(1.1)
        rig.flush()


def test_it_is_registered_before_its_first_stream_and_reports_what_its_state_has() -> None:
    rig = node()
    write(rig, 0, a="1", b="2")
    world, mirror = followed(rig)
    (row,) = rows(rig)
    assert (row.id, row.kind, row.watermark, row.floor, row.lifetime_s) == (b"me", 2, 2, None, 60)
    assert len(rig.bucket.watermarks._tables) == len(rig.bucket.vbuckets)
    write(rig, 0, c="3")
    settle(world, rig)
    assert [each.watermark for each in rows(rig)] == [3]
    assert mirror.docs[0] == live(rig)


def test_it_is_registered_before_each_stream_where_they_are_asked_for_one_by_one() -> None:
    rig, seen = node(), []
    start, grant = Producer.start, NodeSession.grant

    def noted(producer: Producer, wanted: StreamStart, **how: bool) -> Answer:
        seen.append(bool(rows(rig, wanted.vbucket)))
        return start(producer, wanted, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Producer, "start", noted)
        alone = {control.STREAM_REQUESTS}
        patch.setattr(NodeSession, "grant", lambda session, keys: grant(session, keys - alone))
        followed(rig)
    assert seen == [True] * len(rig.bucket.vbuckets)


@pytest.mark.acceptance("X05")
def test_while_it_is_away_its_deletions_are_kept_and_then_they_come() -> None:
    rig = node()
    write(rig, 0, a="1", b="2", c="3")
    world, mirror = followed(rig)
    world.cut()
    write(rig, 0, a="")
    write(rig, 0, d="4")
    assert purge(rig) == 0
    world.restart()
    settle(world, rig)
    assert mirror.docs[0] == live(rig)
    assert mirror.told("rollback") == []
    write(rig, 0, b="")
    write(rig, 0, e="5")
    settle(world, rig)
    assert purge(rig) == 6


def outpaced(rig: Rig, **options: Any) -> tuple[World, Mirror]:
    """Return a consumer that comes back after its row has expired and deletions were purged."""
    write(rig, 0, a="1", b="2", c="3")
    world, mirror = followed(rig, **options)
    world.cut()
    write(rig, 0, a="")
    write(rig, 0, d="4")
    rig.flush()
    rig.clock.time += 61
    assert purge(rig) == 4
    world.restart()
    return world, mirror


@pytest.mark.acceptance("X19")
def test_one_whose_deletions_were_purged_begins_at_zero() -> None:
    rig = node()
    world, mirror = outpaced(rig)
    settle(world, rig)
    assert mirror.told("rollback") == [(0, 0)]
    assert mirror.docs[0] == live(rig)
    assert [each.watermark for each in rows(rig)] == [5]


@pytest.mark.parametrize("options", [{"on_purged": "fail"}, {"on_rollback": "fail"}])
def test_or_it_fails_and_says_why(options: Any) -> None:
    rig = node()
    began = int(rig.clock.now())
    world, mirror = outpaced(rig, **options)
    with pytest.raises(DeletionsPurged, match=r"after seqno 3, .* purged up to 4, registered at 3"):
        world.settle(1)
    assert mirror.told("rollback") == []
    world.restart(on_purged="fail")
    with pytest.raises(DeletionsPurged) as caught:
        world.settle(1)
    assert caught.value.purged == Purged(4, 3, began + 60)


def test_or_the_program_decides() -> None:
    rig, asked = node(), list[Any]()

    def decide(*why: Any) -> str:
        asked.append(why)
        return "restart"

    world, mirror = outpaced(rig, on_purged=decide)
    settle(world, rig)
    assert [(vbucket, seqno, purged.until) for vbucket, seqno, purged in asked] == [(0, 3, 4)]
    assert mirror.docs[0] == live(rig)


@pytest.mark.acceptance("X19")
def test_it_is_asked_for_each_vbucket_whose_deletions_were_purged() -> None:
    """An index drops and builds anew what belongs to these vBuckets, and keeps the others."""
    rig, asked = node(), list[tuple[int, int, int]]()

    def decide(vbucket: int, seqno: int, purged: Purged) -> str:
        asked.append((vbucket, seqno, purged.until))
        return "restart"

    for vbucket in (0, 1, 2):
        write(rig, vbucket, a="1", b="2", c="3")
    world, mirror = followed(rig, on_purged=decide)
    world.cut()
    for vbucket in (0, 2):
        write(rig, vbucket, a="")
        write(rig, vbucket, d="4")
    rig.flush()
    rig.clock.time += 61
    for vbucket in (0, 1, 2):
        purge(rig, vbucket=vbucket)
    world.restart()
    settle(world, rig)
    assert asked == [(0, 3, 4), (2, 3, 4)]
    assert mirror.told("rollback") == [(0, 0), (2, 0)]
    for vbucket in (0, 1, 2):
        assert mirror.docs[vbucket] == live(rig, vbucket)
        assert [(each.kind, each.lifetime_s) for each in rows(rig, vbucket)] == [(Kind.INDEX, 60)]


def test_of_what_is_not_saved_nothing_is_reported() -> None:
    rig = node()
    write(rig, 0, a="1")
    world, _ = followed(rig)
    world.state.failure = RuntimeError("no room")  # type: ignore[attr-defined]
    write(rig, 0, b="2")
    with pytest.raises(RuntimeError):
        world.settle(2)
    assert [each.watermark for each in rows(rig)] == [1]


def test_one_that_begins_at_the_present_needs_no_older_deletions() -> None:
    rig = node()
    write(rig, 0, a="1", b="2")
    followed(rig, start="now")
    assert [(each.watermark, each.floor) for each in rows(rig)] == [(2, None)]


def test_without_an_instance_no_row_is_made() -> None:
    rig, mirror = node(), Mirror()
    write(rig, 0, a="1")
    World(mirror, rig).settle(3)
    rig.flush()
    assert rows(rig) == []


def test_a_consumer_whose_state_outlives_it_is_registered_unless_it_says_no(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "state.db", name="c", vbuckets=4)
    first = Registration().of(state, "me")
    assert first == Instance(state.instance.encode(), meta=TAG)
    assert Registration(register=False).of(state, "me") is None
    nightly = Instance(b"nightly", Kind.BACKUP, 90)
    assert Registration("backup", "nightly", 90).of(state, "me") == nightly
    assert Registration(True).of(state, "me") == Instance(b"nightly", meta=TAG)
    assert Registration().of(MemoryState(), "me") is None
    assert Registration(instance="mine").of(MemoryState(), "me") == Instance(b"mine")
    named = Registration("index").of(MemoryState(), "me")
    assert named is not None
    assert (len(named.id), named.kind) == (32, Kind.INDEX)
    state.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"register": "nobody"}, "no kind 'nobody': say other, xdcr"),
        ({"instance": ""}, "say 1 to 64 bytes"),
        ({"instance": "x" * 65}, "say 1 to 64 bytes"),
        ({"register": True, "register_s": -1}, "register_s -1: say at least 0"),
    ],
)
def test_a_registration_that_makes_no_sense_is_refused(options: Any, words: str) -> None:
    with pytest.raises(MisuseError, match=words):
        UprClient("127.0.0.1:1", Mirror(), **options)


class WrittenLater(MemoryState):
    """A state whose commits are durable when it says so, like headers of a file."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[int, Saved] = {}

    def durable_of(self, vbucket: int) -> Saved | None:
        return self.written.get(vbucket)


def test_a_state_whose_commits_are_durable_later_reports_only_what_is() -> None:
    rig, state = node(), WrittenLater()
    write(rig, 0, a="1", b="2")
    world, _ = followed(rig, state=state)
    assert [each.watermark for each in rows(rig)] == [0]
    state.written = state.load()
    settle(world, rig)
    assert [each.watermark for each in rows(rig)] == [2]
