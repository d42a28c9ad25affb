"""A consumer written from the documentation alone keeps a copy, whatever happens.

`plain_consumer.py` runs as a process of its own and keeps its copy in SQLite; a writer changes
documents; both the node and the consumer are killed meanwhile. In the end the copy must hold what
the node holds, which is asked for over the memcached port: key by key value, flags, expiry, CAS
and revision. ``UPRMC_INTEROP_ITEMS`` sets how many documents the long test writes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from interop.nursery import popen
from interop.server_process import Address, ServerProcess, start_uprmc
from interop.waiting import wait_until
from tests.codec.frames import HEADER, frame

ITEMS = int(os.environ.get("UPRMC_INTEROP_ITEMS", "30000"))
MANY = ITEMS > 200_000
PROGRAM = Path(__file__).with_name("plain_consumer.py")

GET_KQ, SET_Q, DELETE_Q, NOOP, STAT, GETQ_META = 0x0D, 0x11, 0x14, 0x0A, 0x10, 0xA1
STOP_PERSISTENCE, SEQNO_PERSISTENCE, COMPACT_DB, SET_VBUCKET = 0x80, 0xB7, 0xB3, 0x3D
ENABLE_TRAFFIC, DISABLE_TRAFFIC = 0xAD, 0xAE
NOT_FOUND = 0x01

Row = tuple[bytes, int, int, int, int]  # value, flags, expiry, CAS, rev


@pytest.fixture(autouse=True)
def _needs_streams(peer: str) -> None:
    if peer != "uprmc":
        pytest.skip("memcached has no streams")


class Reply(NamedTuple):
    opcode: int
    status: int
    opaque: int
    cas: int
    extras: bytes
    key: bytes
    value: bytes


class Binary:
    """A memcached connection that sends binary requests."""

    def __init__(self, address: Address) -> None:
        self.socket = address.connect(60)
        self._stream = self.socket.makefile("rb")

    def send(self, requests: Iterable[bytes]) -> None:
        self.socket.sendall(b"".join(requests))

    def receive(self) -> Reply:
        header = self._stream.read(HEADER.size)
        if len(header) < HEADER.size:
            raise ConnectionError("the node has hung up")
        _, opcode, keys, extras, _, status, size, opaque, cas = HEADER.unpack(header)
        body = self._stream.read(size)
        if len(body) < size:
            raise ConnectionError("the node has hung up")
        parts = body[:extras], body[extras : extras + keys], body[extras + keys :]
        return Reply(opcode, status, opaque, cas, *parts)

    def all_replies(self, requests: Iterable[bytes]) -> list[Reply]:
        """The replies of quiet requests."""
        self.send([*requests, request(NOOP)])
        return list(iter_until(self.receive, lambda reply: reply.opcode == NOOP))

    def ask(self, *words: object, **more: object) -> Reply:
        self.send([request(*words, **more)])  # type: ignore[arg-type]
        return self.receive()

    def stats(self, group: str = "") -> dict[str, str]:
        self.send([request(STAT, group.encode())])
        replies = iter_until(self.receive, lambda reply: not reply.key)
        return {reply.key.decode(): reply.value.decode() for reply in replies}

    def close(self) -> None:
        self._stream.close()
        self.socket.close()


def iter_until(receive: Callable[[], Reply], last: Callable[[Reply], bool]) -> Iterator[Reply]:
    return itertools.takewhile(lambda reply: not last(reply), iter(receive, None))


def request(
    opcode: int,
    key: bytes = b"",
    extras: bytes = b"",
    value: bytes = b"",
    vbucket: int = 0,
    opaque: int = 0,
) -> bytes:
    return frame(opcode, key, value, extras, vbucket=vbucket, opaque=opaque)


def set_q(key: bytes, value: bytes, flags: int = 0, expiry: int = 0) -> bytes:
    return request(SET_Q, key, struct.pack(">II", flags, expiry), value)


class Node:
    """A server on one directory, through all its restarts; a file tells its present address."""

    def __init__(self, directory: Path, vbuckets: int, *options: str) -> None:
        self.data = directory / "data"
        self.address_file = directory / "upr-address"
        self.options = ("--vbuckets", str(vbuckets), *options)
        self.vbuckets = vbuckets
        self.kills = 0
        self.start()

    def start(self) -> None:
        self.process: ServerProcess = start_uprmc(self.data, *self.options, timeout_s=120)
        new = self.address_file.with_suffix(".new")
        new.write_text(str(self.process.upr))
        new.replace(self.address_file)
        self.client = Binary(self.process.memcached)

    def kill(self) -> None:
        self.kills += 1
        self.client.close()
        self.process.kill()

    def stop(self) -> None:
        self.client.close()
        self.process.stop()

    def upr(self) -> Binary:
        """A new connection to the listener where the vBucket of a request counts."""
        assert self.process.upr is not None
        return Binary(self.process.upr)

    def write(self, requests: Iterable[bytes]) -> None:
        replies = self.client.all_replies(requests)
        assert not replies, replies[0]

    def persist(self) -> None:
        """Return when everything is on disk."""
        with contextlib.closing(self.upr()) as upr:
            for vbucket, (_, high, _) in self.places().items():
                reply = upr.ask(SEQNO_PERSISTENCE, extras=struct.pack(">Q", high), vbucket=vbucket)
                assert reply.status == 0, reply

    def set_state(self, vbucket: int, state: str) -> None:
        extras = struct.pack(">I", ("", "active", "replica", "pending", "dead").index(state))
        with contextlib.closing(self.upr()) as upr:
            assert upr.ask(SET_VBUCKET, extras=extras, vbucket=vbucket).status == 0

    def places(self) -> dict[int, tuple[int, int, int]]:
        """For each vBucket: vb_uuid, high seqno, persisted seqno."""
        stats = self.client.stats("vbucket-seqno")
        names = ("uuid", "high_seqno", "last_persisted_seqno")
        return {
            vbucket: tuple(int(stats[f"vb_{vbucket}:{name}"]) for name in names)
            for vbucket in range(self.vbuckets)
        }

    def documents(self, keys: Iterable[bytes]) -> dict[bytes, Row]:
        """Those of ``keys`` that are there; nothing else may be."""
        found = {}
        for some in batches(keys, 1000):
            asked = [request(GET_KQ, key, opaque=n) for n, key in enumerate(some)]
            asked += [request(GETQ_META, key, opaque=n) for n, key in enumerate(some)]
            replies = self.client.all_replies(asked)
            values = {some[r.opaque]: r for r in replies if r.opcode == GET_KQ}
            for reply in replies:
                if reply.opcode != GETQ_META:
                    continue
                deleted, flags, expiry, rev = struct.unpack(">IIIQ", reply.extras)
                if not deleted:
                    value = values[some[reply.opaque]]
                    assert struct.unpack(">I", value.extras) == (flags,)
                    assert value.cas == reply.cas
                    found[some[reply.opaque]] = (value.value, flags, expiry, reply.cas, rev)
        assert len(found) == int(self.client.stats()["curr_items"])
        return found

    def close(self) -> None:
        self.client.close()
        self.process.__exit__(None, None, None)


def batches(things: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    iterator = iter(things)
    while some := list(itertools.islice(iterator, size)):
        yield some


class Consumer:
    """The program, through all its restarts on one copy."""

    def __init__(self, directory: Path, node: Node, *options: str) -> None:
        self.copy = directory / "copy.sqlite"
        self.log = directory / "consumer.log"
        self.command = [sys.executable, str(PROGRAM), "--node", f"@{node.address_file}"]
        self.command += ["--copy", str(self.copy), *options]
        self.node = node
        self.kills = 0
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = popen(self.command, stdin=subprocess.DEVNULL, stderr=log)
        wait_until(
            lambda: self.rows("SELECT name FROM sqlite_master WHERE name = 'tally'"), self.told
        )

    def kill(self) -> None:
        self.kills += 1
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0, self.told()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def told(self) -> str:
        return f"the consumer counted {self.tally()} and said:\n{self.log.read_text()[-3000:]}"

    def rows(self, query: str) -> list[tuple]:
        if not self.copy.exists():
            return []
        with contextlib.closing(sqlite3.connect(self.copy, timeout=30)) as database:
            return database.execute(query).fetchall()

    def tally(self) -> dict[str, int]:
        return dict(self.rows("SELECT name, count FROM tally"))

    def items(self) -> int:
        tally = self.tally()
        return sum(tally.get(name, 0) for name in ("mutations", "deletions", "expirations"))

    def places(self) -> dict[int, tuple[int, int]]:
        """For each vBucket: vb_uuid and seqno."""
        rows = self.rows("SELECT vbucket, substr(log, 1, 8), seqno FROM place")
        return {vbucket: (int.from_bytes(uuid or b""), seqno) for vbucket, uuid, seqno in rows}

    def documents(self) -> dict[bytes, Row]:
        rows = self.rows("SELECT key, value, flags, expiry, cas, rev FROM document")
        found = {key: tuple(rest) for key, *rest in rows}
        assert len(found) == len(rows), "a key is in two vBuckets"
        return found

    def is_up_to_date(self) -> bool:
        assert self.process.poll() is None, self.told()
        here = self.places()
        there = self.node.places()
        return all(here.get(vb) == (uuid, high) for vb, (uuid, high, _) in there.items())

    def is_ahead_of_the_disk(self) -> bool:
        here, none = self.places(), (0, 0)
        there = self.node.places()
        return any(here.get(vb, none)[1] > disk for vb, (_, _, disk) in there.items())

    def catch_up(self, seconds: float = 60) -> None:
        wait_until(self.is_up_to_date, self.told, seconds)

    def assert_equal(self, keys: Iterable[bytes]) -> int:
        """The copy holds what the node holds, which holds nothing but some of ``keys``."""
        there, here = self.node.documents(keys), self.documents()
        if there != here:
            lines = [
                f"{key!r}: node {there.get(key)}, copy {here.get(key)}"
                for key in sorted(there.keys() | here.keys())
                if there.get(key) != here.get(key)
            ]
            shown = "\n".join(lines[:20])
            pytest.fail(f"{len(lines)} documents differ\n{shown}\n{self.told()}", pytrace=False)
        return len(here)


StartNode = Callable[..., Node]
StartConsumer = Callable[..., Consumer]


@pytest.fixture
def running() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def start_node(running: contextlib.ExitStack, tmp_path: Path) -> StartNode:
    def start(vbuckets: int, *options: str) -> Node:
        node = Node(tmp_path, vbuckets, *options)
        running.callback(node.close)
        return node

    return start


@pytest.fixture
def start_consumer(running: contextlib.ExitStack, tmp_path: Path) -> StartConsumer:
    def start(node: Node, *options: str) -> Consumer:
        consumer = Consumer(tmp_path, node, *options)
        running.callback(consumer.close)
        return consumer

    return start


class Writer(threading.Thread):
    """Makes ``items`` documents, and changes and deletes some of them until it is told to stop."""

    BATCH = 500

    def __init__(self, node: Node, items: int, seed: int) -> None:
        super().__init__()
        self.node = node
        self.items = items  # may be raised
        self.again_from = 0  # after a crash, for some of what was made has been lost
        self.made = 0
        self.accepted = 0
        self.random = random.Random(seed)
        self.stopped = threading.Event()
        self.error: BaseException | None = None

    @property
    def keys(self) -> Iterator[bytes]:
        return (key_of(n) for n in range(self.items))

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                with contextlib.suppress(OSError):  # the node was killed: go on at the next one
                    self._write_until_it_breaks(Binary(self.node.process.memcached))
                self.made = min(self.made, self.again_from)
                self.stopped.wait(0.05)
        except BaseException as error:
            self.error = error
            raise

    def _write_until_it_breaks(self, client: Binary) -> None:
        with contextlib.closing(client):
            while not self.stopped.is_set():
                made, batch = self._batch()
                replies = client.all_replies(batch)
                assert {reply.status for reply in replies} <= {NOT_FOUND}, replies
                self.made = made
                self.accepted += len(batch)
                if made >= self.items:
                    self.stopped.wait(0.05)  # enough for changes to be there at every moment

    def _batch(self) -> tuple[int, list[bytes]]:
        made, batch, draw = self.made, [], self.random
        for _ in range(self.BATCH):
            kind = draw.random()
            if kind < 0.6 and made < self.items:
                n, made = made, made + 1
            else:
                n = draw.randrange(made or 1)
            if kind > 0.9:
                batch.append(request(DELETE_Q, key_of(n)))
                continue
            flags = draw.getrandbits(32) if kind < 0.3 else 0
            expiry = draw.randrange(3_000, 2_000_000) if kind < 0.1 else 0
            text = b"%d " % draw.getrandbits(30)
            batch.append(set_q(key_of(n), text * draw.randrange(8), flags, expiry))
        return made, batch

    def finish(self) -> None:
        self.stopped.set()
        self.join(60)
        assert not self.is_alive()
        assert self.error is None, self.error


def key_of(n: int) -> bytes:
    return b"document-%d" % n


@pytest.mark.acceptance("D02", "P02", "P03")
def test_a_copy_stays_equal_through_crashes_of_the_node_and_of_the_consumer(
    start_node: StartNode, start_consumer: StartConsumer
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    draw = random.Random(seed)
    began = time.monotonic()
    node = start_node(1024 if MANY else 64)
    consumer = start_consumer(node, "--observe-interval", "1")
    writer = Writer(node, 0, seed)
    writer.start()
    kills = 8 if MANY else 4
    try:
        for kill in range(kills):
            received = consumer.items()
            writer.again_from = max(0, writer.items - ITEMS // kills)
            writer.items += ITEMS // kills
            moment = int((kill + draw.random()) / kills * ITEMS)
            some = draw.randrange(ITEMS // kills // 2)
            wait_until(lambda m=moment: writer.made >= m or writer.error, consumer.told, 300)
            wait_until(lambda n=received + some: consumer.items() > n, consumer.told, 300)
            if kill % 2:  # at any moment, or at one at which the consumer is surely ahead
                assert node.client.ask(STOP_PERSISTENCE).status == 0
                wait_until(consumer.is_ahead_of_the_disk, consumer.told, 120)
            if kill == 1:
                consumer.kill()
            node.kill()
            node.start()
            if kill == 1:
                consumer.start()
        wait_until(lambda: writer.made >= ITEMS or writer.error, consumer.told, 300)
        received = consumer.items()
        wait_until(lambda: consumer.items() > received, consumer.told)
        consumer.kill()  # the node lives
        consumer.start()
    finally:
        writer.finish()
    consumer.catch_up(300)
    alive = consumer.assert_equal(writer.keys)
    tally = consumer.tally()
    took = time.monotonic() - began
    print(f"{took:.1f} s, {alive} of {writer.items} documents alive, {writer.accepted} changes")
    print(f"node killed {node.kills} times, consumer {consumer.kills} times; {tally}")
    assert node.kills == kills
    assert consumer.kills == 2
    assert consumer.items() >= alive > ITEMS / 2
    assert tally.get("rolled back", 0) + tally.get("started over", 0) > 0, "nothing was lost"
    assert "misunderstandings" not in tally, consumer.told()


@pytest.mark.acceptance("P03", "D02")
def test_what_the_node_lost_is_undone_and_nothing_else(
    start_node: StartNode, start_consumer: StartConsumer
) -> None:
    node = start_node(1)
    consumer = start_consumer(node)
    node.write(set_q(b"kept-%d" % n, b"1") for n in range(10))
    node.persist()
    consumer.catch_up()
    (old_history,) = consumer.places().values()

    assert node.client.ask(STOP_PERSISTENCE).status == 0
    node.write(set_q(b"kept-%d" % n, b"2") for n in range(5))
    node.write([set_q(b"lost", b"1"), request(DELETE_Q, b"kept-9")])
    consumer.catch_up()
    assert {b"kept-0", b"lost"} <= consumer.documents().keys()
    assert b"kept-9" not in consumer.documents()
    received = consumer.items()
    node.kill()
    node.start()
    consumer.catch_up()

    (new_history,) = consumer.places().values()
    assert new_history[0] != old_history[0]
    assert new_history[1] == old_history[1] == 10
    assert consumer.documents().keys() == {b"kept-%d" % n for n in range(10)}
    assert {value for value, *_ in consumer.documents().values()} == {b"1"}
    consumer.assert_equal([*(b"kept-%d" % n for n in range(10)), b"lost"])
    tally = consumer.tally()
    assert (tally["rolled back"], tally["items undone"]) == (1, 7)
    assert "started over" not in tally
    assert consumer.items() == received, "nothing had to be sent again"


@pytest.mark.acceptance("P02")
def test_after_an_orderly_restart_exactly_the_new_items_are_sent(
    start_node: StartNode, start_consumer: StartConsumer
) -> None:
    node = start_node(64)
    consumer = start_consumer(node)
    node.write(set_q(key_of(n), b"old") for n in range(2_000))
    consumer.catch_up()
    before, logs = consumer.tally(), consumer.rows("SELECT vbucket, log FROM place")

    node.stop()
    node.start()
    node.write(set_q(key_of(n), b"new") for n in range(1_900, 2_100))
    node.write(request(DELETE_Q, key_of(n)) for n in range(30))
    consumer.catch_up()
    consumer.stop()
    node.write(set_q(b"while nobody listened %d" % n, b"") for n in range(50))
    consumer.start()
    consumer.catch_up()

    after = consumer.tally()
    assert after["mutations"] - before["mutations"] == 250
    assert after["deletions"] - before.get("deletions", 0) == 30
    assert not {"rolled back", "started over"} & after.keys()
    assert consumer.rows("SELECT vbucket, log FROM place") == logs, "no new history began"
    keys = [key_of(n) for n in range(2_100)]
    keys += [b"while nobody listened %d" % n for n in range(50)]
    assert consumer.assert_equal(keys) == 2_120


@pytest.mark.acceptance("D26", "P03")
@pytest.mark.parametrize("listening", [True, False], ids=["while it listens", "while it is away"])
def test_flush_all_empties_the_copy(
    start_node: StartNode, start_consumer: StartConsumer, listening: bool
) -> None:
    node = start_node(16)
    consumer = start_consumer(node)
    node.write(set_q(key_of(n), b"old") for n in range(500))
    consumer.catch_up()
    if not listening:
        consumer.stop()
    with node.process.memcached.connect(60) as text:
        text.sendall(b"flush_all\r\n")
        assert text.recv(100) == b"OK\r\n"
    if listening:
        consumer.catch_up()
        assert consumer.documents() == {}
    node.write(set_q(key_of(n), b"new") for n in range(490, 510))
    if not listening:
        consumer.start()
    consumer.catch_up()
    assert consumer.documents().keys() == {key_of(n) for n in range(490, 510)}
    assert consumer.assert_equal(map(key_of, range(510))) == 20
    assert consumer.tally()["started over"] == 16
    assert consumer.tally().get("stream end 2", 0) == (16 if listening else 0)


@pytest.mark.acceptance("D26", "P03")
def test_who_missed_deletions_that_were_dropped_for_good_starts_over(
    start_node: StartNode, start_consumer: StartConsumer
) -> None:
    node = start_node(4)
    consumer = start_consumer(node)
    node.write(set_q(key_of(n), b"") for n in range(400))
    consumer.catch_up()
    consumer.stop()
    node.write(request(DELETE_Q, key_of(n)) for n in range(200))
    node.write(set_q(key_of(n), b"") for n in range(400, 500))
    node.persist()
    with contextlib.closing(node.upr()) as upr:
        for vbucket in range(4):
            everything = struct.pack(">QQB7x", 0, 1 << 40, 1)
            assert upr.ask(COMPACT_DB, extras=everything, vbucket=vbucket).status == 0
    received = consumer.items()
    consumer.start()
    consumer.catch_up()
    assert consumer.assert_equal(map(key_of, range(500))) == 300
    assert consumer.tally()["started over"] == 4
    assert consumer.items() - received == 300


@pytest.mark.acceptance("P02")
def test_a_consumer_that_is_put_off_asks_again_and_goes_on(
    start_node: StartNode, start_consumer: StartConsumer
) -> None:
    node = start_node(2)
    node.write(set_q(key_of(n), b"1") for n in range(50))
    assert node.client.ask(DISABLE_TRAFFIC).status == 0
    consumer = start_consumer(node)
    wait_until(lambda: consumer.tally().get("stream answer 0086", 0) >= 2, consumer.told)
    assert node.client.ask(ENABLE_TRAFFIC).status == 0
    consumer.catch_up()
    assert consumer.assert_equal(map(key_of, range(50))) == 50

    node.set_state(1, "dead")
    wait_until(lambda: consumer.tally().get("stream answer 0007", 0) >= 1, consumer.told)
    node.set_state(1, "active")  # a new history, of which the consumer has everything
    consumer.catch_up()
    node.set_state(0, "replica")
    node.set_state(0, "active")
    node.write(set_q(key_of(n), b"2") for n in range(40, 60))
    consumer.catch_up()
    assert consumer.assert_equal(map(key_of, range(60))) == 60
    assert consumer.items() == 70
    assert not {"rolled back", "started over", "misunderstandings"} & consumer.tally().keys()


@pytest.mark.acceptance("P03")
def test_expired_documents_leave_the_copy(
    start_node: StartNode, start_consumer: StartConsumer
) -> None:
    node = start_node(4, "--set", "engine.expiry_interval_s=1")
    consumer = start_consumer(node)
    node.write(set_q(key_of(n), b"", expiry=1) for n in range(20))
    node.write(set_q(key_of(n), b"", expiry=1_000) for n in range(20, 30))
    wait_until(lambda: consumer.tally().get("expirations", 0) == 20, consumer.told)
    consumer.catch_up()
    assert consumer.assert_equal(map(key_of, range(30))) == 10


def test_a_snapshot_may_be_announced_again_with_a_later_end(
    start_node: StartNode, start_consumer: StartConsumer
) -> None:
    node = start_node(1, "--set", "upr.reading_max_s=0.1")
    node.write(set_q(key_of(n), b"x" * 100) for n in range(5_000))
    consumer = start_consumer(node, "--window", "500")
    wait_until(consumer.items, consumer.told)
    consumer.process.send_signal(signal.SIGSTOP)
    (place,) = consumer.rows("SELECT seqno, snap_end FROM place")
    assert place[0] < place[1], "the snapshot was over too soon"
    node.write(set_q(key_of(n), b"y") for n in range(0, 5_000, 3))
    give_up = "eq_uprq:plain-consumer:stream_0_readings_let_go"
    wait_until(
        lambda: node.client.stats("upr").get(give_up, "0") != "0",
        lambda: str(node.client.stats("upr")),
    )
    consumer.process.send_signal(signal.SIGCONT)
    consumer.catch_up()
    assert consumer.assert_equal(map(key_of, range(5_000))) == 5_000
    assert consumer.tally()["snapshots announced again"] >= 1
    assert "misunderstandings" not in consumer.tally(), consumer.told()


def test_silence_ends_a_connection_at_either_end_and_a_quiet_one_stays(
    start_node: StartNode, start_consumer: StartConsumer
) -> None:
    node = start_node(4)
    consumer = start_consumer(node, "--noop-interval", "0.5")
    node.write(set_q(key_of(n), b"") for n in range(10))
    wait_until(lambda: consumer.tally().get("keep-alives", 0) >= 2, consumer.told)
    assert consumer.tally()["connections"] == 1

    consumer.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: node.client.stats("uprmc")["upr_dead"] == "1", lambda: "the node's patience")
    consumer.process.send_signal(signal.SIGCONT)
    wait_until(lambda: consumer.tally()["connections"] == 2, consumer.told)

    os.kill(node.process.pid, signal.SIGSTOP)
    wait_until(lambda: "silent" in consumer.log.read_text(), consumer.told)
    os.kill(node.process.pid, signal.SIGCONT)
    wait_until(lambda: consumer.tally()["connections"] == 3, consumer.told)
    node.write(set_q(key_of(n), b"") for n in range(5, 15))
    consumer.catch_up()
    assert consumer.assert_equal(map(key_of, range(15))) == 15
    assert consumer.items() == 20
