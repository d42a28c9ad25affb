"""The registry with everything behind it, in a node without sockets: names, upstreams, commands."""

from __future__ import annotations

import pytest

from interop import tap_wire as t
from tests.kv.harness import Rig, drained
from uprmc.errors import InvalidArguments, TemporaryFailure
from uprmc.ports import Session
from uprmc.protocol.tap import Connect, ConnectFlag
from uprmc.tap_adapter.local import LocalUpstream
from uprmc.tap_adapter.node_tap import NodeTap

ACK, DUMP = ConnectFlag.SUPPORT_ACK, ConnectFlag.DUMP


class World:
    """A node's TAP, its clock, and what its registry told."""

    def __init__(self, *, warm: bool = True, **changes: object) -> None:
        self.rig = Rig(warm=warm, **changes)
        self.now = 1_000.0
        self.map = b'{"rev":1}'
        settings = self.rig.settings.tap
        self.tap = NodeTap(self.rig.services.upr, settings, lambda: self.now, lambda: self.map)
        self.rig.services.tap = self.tap
        self.registry = self.tap.registry
        self.refused: list[tuple[bytes, str]] = []
        self.closed: list[tuple[bytes, str, bool]] = []
        self.registry.on_refused = lambda *told: self.refused.append(told)
        self.registry.on_closed = lambda *told: self.closed.append(told)

    def session(self, name: bytes, flags: int = ACK, **asked: object) -> Session:
        session = self.tap.connect(lambda: None, self.rig.misuse.append)
        session.receive_data(t.connect(name, flags, **asked))  # type: ignore[arg-type]
        return session

    @property
    def producers(self) -> set[bytes]:
        return set(self.rig.services.upr.producers)


def served(session: Session) -> list[t.TapFrame]:
    """Take everything, acknowledging it."""
    found: list[t.TapFrame] = []
    while data := drained(session):
        while data:
            length = 24 + int.from_bytes(data[8:12], "big")
            found.append(t.TapFrame.of(data[:length]))
            data = data[length:]
            if found[-1].wants_ack:
                session.receive_data(t.answer(found[-1]))
    return found


def items(frames: list[t.TapFrame]) -> list[t.TapFrame]:
    return [each for each in frames if each.opcode == t.MUTATION]


def test_a_stream_that_is_over_leaves_nothing_behind() -> None:
    world = World()
    session = world.session(b"one")
    assert world.producers == {b"eq_tapq:one"}
    session.connection_lost()
    assert world.producers == set()
    assert len(world.registry.names) == 0
    assert world.closed == [(b"one", "the client has hung up", False)]


def test_a_dump_ends_in_good_order_and_is_told_so() -> None:
    world = World()
    world.rig.bucket.vbuckets[0].store(b"k", b"v", 0, 0)
    session = world.session(b"dumper", DUMP)
    assert [each.key for each in items(served(session))] == [b"k"]
    assert session.closing
    assert [(name, done) for name, _, done in world.closed] == [(b"dumper", True)]


def test_a_second_connection_closes_the_first_which_then_moves_nothing() -> None:
    world = World(tap__keepalive_s=60.0)
    first, second = world.session(b"one"), world.session(b"one")
    assert drained(first) == b""
    assert first.closing
    first.connection_lost()
    assert world.producers == {b"eq_tapq:one"}
    assert world.registry.names.find(b"one") is not None
    assert served(second)[0].is_opaque(t.AUTO_NACK)


def test_during_warm_up_connects_are_refused_and_no_name_is_touched() -> None:
    world = World(warm=False)
    session = world.session(b"one")
    assert t.TapFrame.of(drained(session)).number == 0x86
    assert session.closing
    assert (len(world.registry.names), world.registry.refusals) == (0, 1)
    assert world.refused == [(b"one", "warming up")]


def test_names_have_a_limit_and_one_more_is_refused() -> None:
    world = World(tap__names=2)
    sessions = [world.session(b"%d" % number) for number in range(3)]
    assert [session.closing for session in sessions] == [False, False, True]
    assert t.TapFrame.of(drained(sessions[2])).number == 0x86
    sessions[0].connection_lost()
    assert not world.session(b"again").closing


def test_an_upstream_that_cannot_be_had_leaves_the_name_as_it_was() -> None:
    world = World()

    def fail(name: bytes, values: bool, wake: object) -> LocalUpstream:
        raise TemporaryFailure("gone")

    world.registry._make_upstream = fail
    with pytest.raises(TemporaryFailure):
        world.registry.open(Connect(b"one", ACK | ConnectFlag.REGISTERED_CLIENT), lambda: None)
    known = world.registry.names.find(b"one")
    assert known is not None
    assert known.producer is None
    assert world.registry.connects == 0


def test_a_filter_is_changed_for_a_connected_client_only() -> None:
    world = World(tap__keepalive_s=60.0)
    world.rig.bucket.vbuckets[1].store(b"k", b"v", 0, 0)
    session = world.session(b"one", ACK | ConnectFlag.LIST_VBUCKETS, vbuckets=[0])
    served(session)
    world.tap.change_filter(b"one", {1: 0})
    frames = served(session)
    assert frames[0].is_opaque(t.FILTER_CHANGED)
    assert [each.key for each in items(frames)] == [b"k"]
    session.connection_lost()
    for name in (b"one", b"nobody"):
        with pytest.raises(InvalidArguments):
            world.tap.change_filter(name, {1: 0})


def test_a_reset_of_the_chain_has_everybody_begin_anew() -> None:
    world = World(tap__keepalive_s=60.0)
    world.rig.bucket.vbuckets[0].store(b"k", b"v", 0, 0)
    here, away = world.session(b"here"), world.session(b"away")
    for session in (here, away):
        served(session)
    away.connection_lost()
    world.tap.reset_chain()
    for session in (here, world.session(b"away")):
        frames = served(session)
        assert any(each.is_opaque(t.INITIAL) and each.number == 0 for each in frames)
        assert b"k" in [each.key for each in items(frames)]


def test_without_a_reset_who_comes_back_gets_nothing_twice() -> None:
    world = World(tap__keepalive_s=60.0)
    world.rig.bucket.vbuckets[0].store(b"k", b"v", 0, 0)
    first = world.session(b"one")
    served(first)
    first.connection_lost()
    frames = served(world.session(b"one"))
    assert [each.opcode for each in frames if not each.is_opaque(t.AUTO_NACK)] == []


def test_a_name_that_is_gone_for_too_long_is_forgotten_by_the_tick() -> None:
    world = World(tap__keepalive_s=60.0)
    world.session(b"one").connection_lost()
    for step, known in ((59.0, 1), (2.0, 0)):
        world.now += step
        world.registry.tick()
        assert len(world.registry.names) == known


def test_keys_only_brings_no_values() -> None:
    world = World()
    world.rig.bucket.vbuckets[0].store(b"k", b"value", 0, 0)
    (item,) = items(served(world.session(b"one", DUMP | ConnectFlag.REQUEST_KEYS_ONLY)))
    assert (item.key, item.value, item.flags & t.NO_VALUE) == (b"k", b"", t.NO_VALUE)


def test_who_pushes_to_a_vbucket_that_is_not_here_gets_the_cluster_map() -> None:
    world = World()
    push = world.tap.consumer()
    message = t.TapFrame.of(t.mutation(9, 5, b"k", b"v"))
    answer = push.take(t.MUTATION, 9, 5, 0, message.extras, 1, message.rest)
    assert answer is not None
    assert (t.TapFrame.of(answer).number, t.TapFrame.of(answer).rest) == (7, world.map)
    push.close()
    assert world.tap.pushes.pushers == []


def test_what_was_damaged_on_disk_is_told_at_the_start() -> None:
    world = World()
    session = world.session(b"backup", ACK | ConnectFlag.REGISTERED_CLIENT)
    drained(session)
    world.rig.flush()
    served(session)
    keeper_world = NodeTap(
        world.rig.services.upr, world.rig.settings.tap, lambda: 0.0, lambda: None
    )
    assert (keeper_world.trouble, len(keeper_world.registry.names)) == ([], 1)
    world.rig.bucket.flusher.write_local(b"uprmc/tap/0", b"\0\6backup{", lambda _: None)
    world.rig.flush()
    damaged = NodeTap(world.rig.services.upr, world.rig.settings.tap, lambda: 0.0, lambda: None)
    assert len(damaged.trouble) == 1
    assert "backup" in damaged.trouble[0]
