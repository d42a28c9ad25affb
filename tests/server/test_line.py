"""A chunk that is received, served and answered in one call looks to the peer like any other."""

from __future__ import annotations

import random

import pytest

from tests.codec.frames import frame
from tests.kv.harness import Rig
from tests.server.support import Client, Loop, Node
from tests.server.test_listener import Served
from uprmc.core.form import COMPILED, FORM
from uprmc.kv.binary import BinarySession
from uprmc.server.net.transport import Direct

GET, SET, DELETE, NOOP, GETKQ, VERSION, APPEND = 0x00, 0x01, 0x04, 0x0A, 0x0D, 0x0B, 0x0E


def requests(seed: int, count: int, value_bytes: int) -> list[bytes]:
    """Return many gets, some sets, and now and then what the core leaves to the session."""
    chance, made = random.Random(seed), []
    for _ in range(count):
        key = b"key-%d" % chance.randrange(20)
        opcode = chance.choice([GET] * 6 + [SET] * 3 + [GETKQ, NOOP, VERSION, DELETE, APPEND])
        if opcode == SET:
            made.append(frame(SET, key, bytes(chance.randrange(value_bytes)), bytes(8)))
        elif opcode == APPEND:
            made.append(frame(APPEND, key, b"more"))
        else:
            made.append(frame(opcode, b"" if opcode in (NOOP, VERSION) else key))
    return made


class Talk:
    """A client and a node that it is connected to; `expected` is a session without connection."""

    def __init__(self, loop: Loop, receive_buffer: int = 0) -> None:
        self.rig, self.plain = Rig(), Rig()
        make = self.rig.services
        self.node = Node(lambda wake: BinarySession(make, wake, by_key=True))
        self.served = Served(loop, "127.0.0.1:0", self.node)
        self.client: Client = loop.client(self.served.listener.address, receive_buffer)
        self.session = BinarySession(self.plain.services, lambda: None, by_key=True)

    def took(self, size: int) -> bool:
        """Let the node have another turn; tell whether so much has come."""
        self.node.turn()
        self.client.poll()
        return len(self.client.received) >= size

    def expected(self, data: bytes) -> bytes:
        self.session.receive_data(data)
        replies = b""
        while pieces := self.session.data_to_send(1 << 20):
            replies += b"".join(pieces)
        return replies


@pytest.mark.parametrize("seed", range(3))
def test_replies_and_counters_are_those_of_a_session(loop: Loop, seed: int) -> None:
    talk = Talk(loop)
    chance = random.Random(seed)
    made = requests(seed, 300, 300)
    while made:
        count = chance.choice((1, 1, 1, 5, 20))
        some, made = made[:count], made[count:]
        data = b"".join(some) + frame(NOOP)
        cut = chance.choice((0, 0, chance.randrange(len(data))))
        replies = talk.expected(data)
        for part in filter(None, (data[:cut], data[cut:])):
            talk.client.socket.sendall(part)
            loop.reactor.iterate(0.001)
        assert talk.client.read(len(replies)) == replies
    for name in ("cmd_get", "get_hits", "get_misses", "cmd_set", "total_items"):
        ours, theirs = talk.rig.bucket.stats, talk.plain.bucket.stats
        assert getattr(ours, name) == getattr(theirs, name)
    talk.served.stop()


def test_a_peer_that_takes_its_replies_slowly_gets_all_of_them(loop: Loop) -> None:
    talk = Talk(loop, receive_buffer=100_000)
    stored = frame(SET, b"big", bytes(100_000), bytes(8))
    talk.client.socket.sendall(stored)
    replies = talk.expected(stored)
    for _ in range(60):
        talk.client.socket.sendall(frame(GET, b"big"))
        replies += talk.expected(frame(GET, b"big"))
        loop.reactor.iterate(0.001)
    loop.until(lambda: talk.took(len(replies)))
    assert talk.client.received == replies
    talk.served.stop()


def test_lines_are_there_where_the_core_is_compiled_and_go_with_their_connection(
    loop: Loop,
) -> None:
    talk = Talk(loop)
    loop.until(lambda: talk.node.states())
    (connection,) = [each for each in loop.reactor.getReaders() if isinstance(each, Direct)]
    assert (connection.line is not None) is (FORM == COMPILED)
    talk.client.socket.close()
    loop.until(lambda: not talk.node.states())
    assert connection.line is None
    talk.served.stop()


@pytest.mark.skipif(FORM != COMPILED, reason="there are no lines")
def test_a_bug_ends_the_connection_and_is_counted(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: object, serving: object) -> None:
        raise RuntimeError("a bug")

    talk = Talk(loop)
    monkeypatch.setattr(BinarySession, "_count_served", fail)
    talk.client.socket.sendall(frame(SET, b"key", b"value", bytes(8)))
    talk.client.read_all()
    assert talk.node.connections.session_errors == 1
    talk.served.stop()
