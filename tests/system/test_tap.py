"""TAP on a real node's sockets: dump, backfill and live changes, resume by name, push, the rest."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop import tap_wire as t
from interop.tap_wire import TapFrame
from interop.wire import GET, HEADER, SET, STAT, frame, split_replies, store
from tests.contents import table_of
from tests.server.support import Client, Loop
from tests.system.support import node_here
from uprmc.engine.replica import begin_again
from uprmc.model import VBucketState
from uprmc.server.node import Node

GET_VBUCKET = 0x3D + 1


class TapClient:
    """A raw client on a node's socket; it acknowledges what asks for it, unless it is told not to.

    Attributes:
        received: every frame so far.
    """

    def __init__(self, loop: Loop, node: Node, listener: str = "memcached") -> None:
        self.loop = loop
        self.socket: Client = loop.client(node.addresses()[listener])
        self.received: list[TapFrame] = []
        self.acks = True
        self._rest = b""

    def send(self, *frames: bytes) -> None:
        self.socket.socket.sendall(b"".join(frames))

    def poll(self) -> bool:
        """Take what has arrived, and acknowledge."""
        self.socket.poll()
        self._rest += bytes(self.socket.received)
        self.socket.received.clear()
        while len(self._rest) >= HEADER.size:
            length = HEADER.size + int.from_bytes(self._rest[8:12], "big")
            if len(self._rest) < length:
                break
            self._take(TapFrame.of(self._rest[:length]))
            self._rest = self._rest[length:]
        return self.socket.closed

    def _take(self, got: TapFrame) -> None:
        self.received.append(got)
        if not got.is_reply and got.wants_ack and self.acks:
            self.send(t.answer(got))

    def until(self, condition: Callable[[TapClient], object]) -> None:
        def look() -> object:
            self.poll()
            return condition(self)

        self.loop.until(look)

    def until_closed(self) -> None:
        self.until(lambda client: client.socket.closed)

    def reply(self) -> TapFrame:
        """Wait for the next reply, and return it."""
        before = len(self.replies)
        self.until(lambda client: len(client.replies) > before)
        return self.replies[-1]

    @property
    def replies(self) -> list[TapFrame]:
        return [each for each in self.received if each.is_reply]

    @property
    def items(self) -> dict[bytes, bytes | None]:
        """What a client has now that carries out what it got."""
        found: dict[bytes, bytes | None] = {}
        for each in self.received:
            if each.opcode == t.MUTATION:
                found[each.key] = each.value
            elif each.opcode == t.DELETE:
                found.pop(each.key, None)
        return found

    def opaques(self, code: int) -> list[int]:
        """The vBuckets of each OPAQUE of that code."""
        return [each.number for each in self.received if not each.is_reply and each.is_opaque(code)]

    def close(self) -> None:
        self.socket.socket.close()


@contextmanager
def filled(tmp_path: Path, count: int = 300, **changes: object) -> Iterator[tuple[Node, Loop]]:
    """A node with `count` documents over its four vBuckets, half of them on disk only."""
    with node_here(tmp_path, **changes) as (node, loop):
        for number in range(count):
            put(node, b"key-%d" % number, b"value-%d" % number)
        loop.until(lambda: node.bucket.flusher.queued == 0)
        for vbucket in node.bucket.vbuckets.values():
            for item in list(table_of(vbucket).values())[::2]:
                vbucket.eject(item.key)
        yield node, loop


def put(node: Node, key: bytes, value: bytes) -> None:
    node.bucket.of_key(key).store(key, value, 0xDEADBEEF, 0)


def expected(count: int = 300) -> dict[bytes, bytes | None]:
    return {b"key-%d" % number: b"value-%d" % number for number in range(count)}


@pytest.fixture(params=["memcached", "upr"])
def listener(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- dump ---------------------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
@pytest.mark.parametrize("flags", [t.DUMP, t.DUMP | t.SUPPORT_ACK | t.FIX_FLAGS])
def test_a_dump_brings_every_document_and_ends_by_a_plain_close(
    tmp_path: Path, listener: str, flags: int
) -> None:
    with filled(tmp_path) as (node, loop):
        client = TapClient(loop, node, listener)
        client.send(t.connect(b"dumper", flags))
        client.until_closed()
        assert client.items == expected()
        orders = {each.item[0] for each in client.received if each.opcode == t.MUTATION}
        assert orders == {0xDEADBEEF if flags & t.FIX_FLAGS else 0xEFBEADDE}
        loop.until(lambda: not node.tap.registry.names.find(b"dumper"))
        assert node.upr.producers == {}


def test_a_dump_of_nothing_closes_at_once(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.send(t.connect(b"", t.DUMP))
        client.until_closed()
        assert client.received == []


# --- backfill and live --------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
def test_a_backfill_is_followed_by_live_changes(tmp_path: Path, listener: str) -> None:
    with filled(tmp_path) as (node, loop):
        client = TapClient(loop, node, listener)
        client.send(t.connect(b"replica1", t.SUPPORT_ACK | t.CHECKPOINT | t.FIX_FLAGS))
        client.until(lambda c: len(c.opaques(t.CLOSE_BACKFILL)) == 4)
        assert client.items == expected()
        assert sorted(client.opaques(t.INITIAL)) == [0, 1, 2, 3]
        assert client.received[0].is_opaque(t.AUTO_NACK)
        assert client.received[1].is_opaque(t.SYNC)
        writer = loop.client(node.addresses()["memcached"])
        writer.socket.sendall(store(SET, b"live", b"1") + frame(0x04, b"key-7"))
        client.until(lambda c: b"live" in c.items and b"key-7" not in c.items)
        assert client.items == {k: v for k, v in expected().items() if k != b"key-7"} | {
            b"live": b"1"
        }


def test_a_client_that_never_acknowledges_asks_for_no_acks_and_gets_everything(
    tmp_path: Path,
) -> None:
    with filled(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.acks = False
        client.send(t.connect(b"tap.py", 0))
        client.until(lambda c: c.items == expected())
        put(node, b"live", b"1")
        client.until(lambda c: c.items.get(b"live") == b"1")


@pytest.mark.acceptance("D56")
@pytest.mark.parametrize(
    ("flags", "vbuckets"),
    [
        (0, None),
        (t.SUPPORT_ACK, None),
        (t.SUPPORT_ACK | t.CHECKPOINT | t.REGISTERED, None),
        (t.SUPPORT_ACK | t.LIST, [0, 1, 2, 3]),
    ],
)
def test_flush_all_is_one_flush_on_a_live_stream(
    tmp_path: Path, flags: int, vbuckets: list[int] | None
) -> None:
    with filled(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.send(t.connect(b"replica1", flags, vbuckets=vbuckets))
        client.until(lambda c: len(c.opaques(t.CLOSE_BACKFILL)) == 4)
        for number in (1, 2):
            client.received.clear()
            writer = loop.client(node.addresses()["memcached"])
            writer.socket.sendall(b"flush_all\r\n")
            client.until(lambda c: any(each.opcode == t.FLUSH for each in c.received))
            put(node, b"live", b"%d" % number)
            client.until(lambda c, n=number: c.items.get(b"live") == b"%d" % n)
            assert [e.opcode for e in client.received].count(t.FLUSH) == 1
            assert not [e for e in client.received if e.opcode == t.OPAQUE]
            assert client.items == {b"live": b"%d" % number}


@pytest.mark.acceptance("D56")
def test_flush_all_empties_each_vbucket_of_a_client_that_has_named_some(tmp_path: Path) -> None:
    """A FLUSH would empty what it may have from elsewhere."""
    with filled(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.send(t.connect(b"part", t.SUPPORT_ACK | t.LIST, vbuckets=[1, 2]))
        client.until(lambda c: len(c.opaques(t.CLOSE_BACKFILL)) == 2)
        client.received.clear()
        loop.client(node.addresses()["memcached"]).socket.sendall(b"flush_all\r\n")
        client.until(lambda c: len(c.opaques(t.CLOSE_BACKFILL)) == 2)
        assert sorted(client.opaques(t.INITIAL)) == [1, 2]
        assert t.FLUSH not in {each.opcode for each in client.received}


@pytest.mark.acceptance("D56")
@pytest.mark.parametrize("flags", [0, t.SUPPORT_ACK])
def test_a_vbucket_that_is_emptied_gets_the_beginning_and_the_end_of_a_backfill(
    tmp_path: Path, flags: int
) -> None:
    with filled(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.send(t.connect(b"replica1", flags))
        client.until(lambda c: len(c.opaques(t.CLOSE_BACKFILL)) == 4)
        client.received.clear()
        begin_again(node.bucket, node.bucket.vbuckets[2])
        client.until(lambda c: c.opaques(t.CLOSE_BACKFILL))
        assert [client.opaques(t.INITIAL), client.opaques(t.CLOSE_BACKFILL)] == [[2], [2]]
        begin_again(node.bucket, node.bucket.vbuckets[2])
        begin_again(node.bucket, node.bucket.vbuckets[2])
        item = node.bucket.vbuckets[2].store(b"live", b"1", 0, 0)
        client.until(lambda c: b"live" in c.items)
        assert item.seqno == 1
        assert t.FLUSH not in {each.opcode for each in client.received}


def test_who_asks_for_acks_and_gives_none_gets_the_first_opaque_alone(tmp_path: Path) -> None:
    with filled(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.acks = False
        client.send(t.connect(b"silent", t.SUPPORT_ACK))
        client.until(lambda c: c.received)
        put(node, b"live", b"1")
        client.until(lambda c: len(c.received) >= 1)
        assert client.items == {}
        client.acks = True
        for each in list(client.received):
            client.send(t.answer(each))
        client.until(lambda c: c.items == expected() | {b"live": b"1"})


@pytest.mark.acceptance("D56")
def test_a_takeover_makes_the_client_active_and_the_node_gives_the_vbucket_away(
    tmp_path: Path,
) -> None:
    with filled(tmp_path) as (node, loop):
        owned = {key: i.value for key, i in table_of(node.bucket.vbuckets[3]).items()}
        client = TapClient(loop, node)
        flags = t.SUPPORT_ACK | t.LIST | t.TAKEOVER
        client.send(t.connect(b"mover", flags, vbuckets=[3]))
        client.until_closed()
        states = [(e.number, e.code) for e in client.received if e.opcode == t.VBUCKET_SET]
        assert states == [(3, VBucketState.PENDING), (3, VBucketState.ACTIVE)]
        assert client.received[-1].opcode == t.VBUCKET_SET
        assert set(client.items) == set(owned)
        assert node.bucket.vbuckets[3].state == VBucketState.DEAD


# --- names --------------------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
def test_a_registered_client_goes_on_where_it_was_also_after_a_restart(tmp_path: Path) -> None:
    flags = t.SUPPORT_ACK | t.REGISTERED
    with filled(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.send(t.connect(b"backup", flags))
        client.until(lambda c: len(c.opaques(t.CLOSE_BACKFILL)) == 4)
        client.close()
        loop.until(lambda: not node.upr.producers)
        put(node, b"one", b"1")
        again = TapClient(loop, node)
        again.send(t.connect(b"backup", flags))
        again.until(lambda c: b"one" in c.items)
        assert again.items == {b"one": b"1"}
        again.until(lambda c: len(c.opaques(t.INITIAL)) == 0 and c.received[-1].wants_ack)
        again.close()
        loop.until(lambda: not node.upr.producers)
        put(node, b"two", b"2")
    with node_here(tmp_path) as (node, loop):
        later = TapClient(loop, node)
        later.send(t.connect(b"backup", flags))
        later.until(lambda c: b"two" in c.items)
        assert later.opaques(t.INITIAL) == []
        assert set(later.items) <= {b"one", b"two"}


def test_the_second_connection_of_a_name_takes_the_stream_over(tmp_path: Path) -> None:
    with filled(tmp_path, tap__keepalive_s=60.0) as (node, loop):
        first = TapClient(loop, node)
        first.send(t.connect(b"replica", t.SUPPORT_ACK))
        first.until(lambda c: len(c.opaques(t.CLOSE_BACKFILL)) == 4)
        first.send(frame(t.NOOP))
        first.reply()  # its acknowledgements have come, too: they may be overtaken by `second`
        second = TapClient(loop, node)
        second.send(t.connect(b"replica", t.SUPPORT_ACK))
        first.until_closed()
        put(node, b"live", b"1")
        second.until(lambda c: b"live" in c.items)
        assert second.opaques(t.INITIAL) == []


def test_a_deregistered_client_is_hung_up_on_and_forgotten(tmp_path: Path) -> None:
    with filled(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.send(t.connect(b"backup", t.SUPPORT_ACK | t.REGISTERED))
        client.until(lambda c: len(c.opaques(t.CLOSE_BACKFILL)) == 4)
        manager = TapClient(loop, node)
        manager.send(frame(t.DEREGISTER, b"backup"))
        assert manager.reply().number == 0
        client.until_closed()
        assert node.tap.registry.names.find(b"backup") is None


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
def test_an_impossible_connect_is_refused_and_others_are_undisturbed(tmp_path: Path) -> None:
    with filled(tmp_path) as (node, loop):
        other = TapClient(loop, node)
        other.send(t.connect(b"other", t.SUPPORT_ACK))
        refused = TapClient(loop, node)
        refused.send(t.connect(b"bad", 0x8000))
        refused.until_closed()
        assert [(each.opcode, each.number) for each in refused.replies] == [(t.CONNECT, 0x83)]
        other.until(lambda c: c.items == expected())
        assert node.tap.registry.refusals == 1


def test_a_node_that_speaks_no_tap_says_so_and_keeps_the_connection(tmp_path: Path) -> None:
    with node_here(tmp_path, tap__enabled=False) as (node, loop):
        client = TapClient(loop, node)
        for request in (t.connect(b"x", 0), t.mutation(0, 1, b"k", b"v", flags=1)):
            client.send(request)
            assert client.reply().number == 0x81
        client.send(frame(STAT, b"tap"))
        client.until(lambda c: c.replies[-1].opcode == STAT and not c.replies[-1].key_length)
        assert not client.socket.closed


# --- push ---------------------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
def test_a_legacy_master_fills_a_vbucket_and_makes_it_active(tmp_path: Path, listener: str) -> None:
    with node_here(tmp_path) as (node, loop):
        node.bucket.set_state(2, VBucketState.REPLICA)
        client = TapClient(loop, node, listener)
        client.send(
            t.opaque_message(t.AUTO_NACK, 0, 1),
            t.opaque_message(t.INITIAL, 2, 2),
            *[t.mutation(2, 10 + n, b"k%d" % n, b"v%d" % n, cas=500 + n, rev=7) for n in range(50)],
            t.opaque_message(t.CLOSE_BACKFILL, 2, 100),
            t.vbucket_set(VBucketState.ACTIVE, 2, 101),
            frame(GET_VBUCKET, vbucket=2),
        )
        client.until(lambda c: any(each.opcode == GET_VBUCKET for each in c.replies))
        assert [(each.opcode, each.number, each.opaque) for each in client.replies] == [
            (t.OPAQUE, 0, 1),
            (t.OPAQUE, 0, 2),
            (t.OPAQUE, 0, 100),
            (t.VBUCKET_SET, 0, 101),
            (GET_VBUCKET, 0, 0),
        ]
        vbucket = node.bucket.vbuckets[2]
        assert vbucket.state == VBucketState.ACTIVE
        assert {(i.key, i.value, i.cas, i.rev) for i in table_of(vbucket).values()} == {
            (b"k%d" % n, b"v%d" % n, 500 + n, 7) for n in range(50)
        }


def test_what_is_pushed_into_one_node_comes_out_of_it_by_tap(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        reader = TapClient(loop, node)
        reader.send(t.connect(b"reader", t.SUPPORT_ACK | t.FIX_FLAGS))
        reader.until(lambda c: c.received)
        pusher = TapClient(loop, node)
        pusher.send(t.mutation(1, 7, b"k", b"v", item_flags=0x11223344, flags=t.ACK | 4, cas=99))
        assert pusher.reply().number == 0
        reader.until(lambda c: b"k" in c.items)
        (got,) = [each for each in reader.received if each.opcode == t.MUTATION]
        assert (got.number, got.item[0], got.cas) == (1, 0x11223344, 99)


def test_a_malformed_push_ends_its_connection_only(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        bad, good = TapClient(loop, node), TapClient(loop, node)
        bad.send(t.message(t.VBUCKET_SET, 0, 1, specific=b"\0\0\0\x09", flags=t.ACK))
        bad.until_closed()
        assert bad.replies == []
        good.send(frame(GET, b"missing"))
        assert good.reply().number == 1
        assert node.bucket.stats.protocol_errors == 1


# --- looking ------------------------------------------------------------------------------------


def test_a_client_shows_in_the_statistics_of_old_tools(tmp_path: Path) -> None:
    with filled(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.send(t.connect(b"replica1", t.SUPPORT_ACK))
        client.until(lambda c: len(c.opaques(t.CLOSE_BACKFILL)) == 4)
        asking = loop.client(node.addresses()["memcached"])
        asking.socket.sendall(frame(STAT, b"tap"))
        data, replies = b"", []
        while not replies or replies[-1].key:
            data += asking.read(1)
            replies, _ = split_replies(data)
        found = {each.key.decode(): each.value.decode() for each in replies}
        assert found["ep_tap_count"] == "1"
        assert found["eq_tapq:replica1:connected"] == "true"
        assert found["eq_tapq:replica1:type"] == "producer"


def test_the_flag_byte_order_of_a_pushed_item_is_swapped_unless_it_is_said(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        client = TapClient(loop, node)
        client.send(
            t.mutation(0, 1, b"swapped", b"v", item_flags=0xEFBEADDE, flags=t.ACK),
            t.mutation(0, 2, b"right", b"v", item_flags=0xDEADBEEF, flags=t.ACK | 4),
        )
        client.until(lambda c: len(c.replies) == 2)
        table = table_of(node.bucket.vbuckets[0])
        assert {item.flags for item in table.values()} == {0xDEADBEEF}
        assert struct.pack(">I", 0xDEADBEEF) == bytes.fromhex("deadbeef")
