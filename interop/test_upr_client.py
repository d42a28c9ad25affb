"""``upr`` of the package index: a UPR client of February 2014, which streams from our processes.

It comes from before UPR was released: its stream request has 40 bytes (one seqno where there is a
snapshot today) and it expects markers without a body. It knows no CONTROL and no NOOP; as a manager
it can splice two connections together, which makes one of our processes the replica of another.

Proves: open, failover logs, streams with writes going on, end of a stream, close, resuming,
rollback after a branch, statistics, adding streams, replication and takeover between processes.
"""

from __future__ import annotations

import queue
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from interop import python2
from interop import upr_wire as u
from interop import wire as w
from interop.conftest import Start
from interop.server_process import ServerProcess
from interop.upr_wire import UprWire
from interop.wire import frame

upr: Any = python2.load("upr", "constants", "operation", "connection")
if upr is None:
    pytest.skip("the client is not installed: pip install upr==0.3", allow_module_level=True)

VBUCKETS = 16
OK, ENOENT, EEXISTS, NOT_MY_VBUCKET, RANGE, ROLLBACK = 0x00, 0x01, 0x02, 0x07, 0x22, 0x23

Connect = Callable[..., Any]
Event = dict[str, Any]


@pytest.fixture(scope="module")
def module_server(
    start: Start, tmp_path_factory: pytest.TempPathFactory, peer: str
) -> Iterator[ServerProcess]:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    with start(tmp_path_factory.mktemp("data"), "--vbuckets", str(VBUCKETS)) as process:
        yield process
        process.stop()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """``connect(process)``: the client, connected to a process."""
    clients: list[Any] = []

    def run(process: ServerProcess) -> Any:
        assert process.upr is not None
        client = upr.UprClient(process.upr.host, process.upr.port)
        clients.append(client)
        return client

    yield run
    for client in clients:
        client.conn.close(True)


@pytest.fixture
def kv(server: ServerProcess) -> Iterator[UprWire]:
    """For documents, beside the client."""
    assert server.upr is not None
    with UprWire(server.upr) as connection:
        yield connection


@pytest.fixture
def client(server: ServerProcess, connect: Connect) -> Any:
    """A connection of the client that was opened for streams."""
    made = connect(server)
    assert answer(made.open_producer("feb-2014"))["status"] == OK
    return made


def answer(operation: Any) -> Event:
    """The next thing the client has got for an operation."""
    try:
        event: Event = operation.responses.get(timeout=10)
    except queue.Empty:
        raise AssertionError(f"nothing came for {operation.opcode:#04x}") from None
    return event


def ask(client: Any, operation: Any) -> Event:
    client.conn.queue_operation(operation)
    return answer(operation)


def put(client: Any, key: str, value: str, vbucket: int, flags: int = 0) -> None:
    made = ask(client, upr.operation.Set(key, value, vbucket, flags, 0))
    assert made["status"] == OK


def log_of(client: Any, vbucket: int) -> list[tuple[int, int]]:
    reply = answer(client.get_failover_log(vbucket))
    assert reply["status"] == OK
    return u.failover_log(reply["value"].encode("latin-1"))


class Follower:
    """What a program with this client would do: hold a copy of one vBucket, remember everything."""

    def __init__(self, client: Any, vbucket: int) -> None:
        self.client, self.vbucket = client, vbucket
        self.events: list[Event] = []
        self.log: list[tuple[int, int]] = []
        self.stream: Any = None

    @property
    def seqno(self) -> int:
        return self.events[-1]["by_seqno"] if self.events else 0

    def begin(self, end: int = u.NEVER) -> Event:
        """Ask for everything after what is held; give the answer."""
        uuid, since = self.log[0] if self.log else (0, 0)
        self.stream = self.client.stream_req(self.vbucket, 0, self.seqno, end, uuid, since)
        reply = answer(self.stream)
        if reply["status"] == OK:
            self.log = reply["failover_log"]
        return reply

    def follow(self, seqno: int) -> list[Event]:
        """Read until ``seqno`` is there; give what is new."""
        fresh: list[Event] = []
        while self.seqno < seqno:
            event = answer(self.stream)
            assert event["vbucket"] == self.vbucket
            if event["opcode"] == u.SNAPSHOT_MARKER:
                continue
            assert event["opcode"] in (u.MUTATION, u.DELETION), event
            assert event["by_seqno"] > self.seqno
            self.events.append(event)
            fresh.append(event)
        return fresh

    def roll_back(self, seqno: int) -> None:
        self.events = [event for event in self.events if event["by_seqno"] <= seqno]
        self.log = [entry for entry in self.log if entry[1] <= seqno]

    def documents(self) -> dict[tuple[int, bytes], tuple[bytes, int]]:
        """(vBucket, key) -> value and flags."""
        copy: dict[str, tuple[bytes, int]] = {}
        for event in self.events:
            copy.pop(event["key"], None)
            if event["opcode"] == u.MUTATION:
                copy[event["key"]] = event["value"].encode("latin-1"), event["flags"]
        return {(self.vbucket, key.encode("latin-1")): held for key, held in copy.items()}


def expect_equal(kv: UprWire, follower: Follower) -> None:
    """The follower's copy must be what the server has, key by key, with nothing missing."""
    copy = follower.documents()
    found: dict[Any, Any] = u.documents(kv, copy)
    assert copy == {name: held[:2] for name, held in found.items()}
    assert len(copy) == u.item_counts(kv)[follower.vbucket]


# --- connections ------------------------------------------------------------------------------


@pytest.mark.acceptance("D24")
def test_it_reads_failover_logs(client: Any, kv: UprWire) -> None:
    for vbucket in range(VBUCKETS):
        known = kv.texts(b"failovers %d" % vbucket)
        uuid, seqno = int(known[f"vb_{vbucket}:0:id"]), int(known[f"vb_{vbucket}:0:seq"])
        assert log_of(client, vbucket)[0] == (uuid, seqno)
    assert answer(client.get_failover_log(900))["status"] == NOT_MY_VBUCKET


def test_a_second_connection_of_the_same_name_replaces_the_first(
    server: ServerProcess, client: Any, connect: Connect
) -> None:
    waiting = client.stream_req(0, 0, 0, u.NEVER, 0, 0)
    assert answer(waiting)["status"] == OK
    assert answer(connect(server).open_producer("feb-2014"))["status"] == OK
    assert answer(waiting)["status"] == upr.constants.ERR_ECLIENT


def test_it_authenticates_where_nothing_is_asked(
    server: ServerProcess, connect: Connect, kv: UprWire
) -> None:
    client = connect(server)
    assert "status" in answer(client.sasl_auth_plain("default", ""))
    assert answer(client.open_producer("after-auth"))["status"] == OK


# --- streams ----------------------------------------------------------------------------------


@pytest.mark.acceptance("D41")
def test_it_follows_every_vbucket_while_writes_go_on(client: Any, kv: UprWire) -> None:
    followers = [Follower(client, vbucket) for vbucket in range(VBUCKETS)]

    def write(first: int) -> None:
        for number in range(first, first + 40):
            for vbucket in range(VBUCKETS):
                pairs = [(b"k%d" % (number * 7 % 50), b"\0\xff value %d" % number)]
                kv.put_many(vbucket, pairs)
                if number % 5 == 0:
                    kv.call(frame(w.DELETE, b"k%d" % (number * 3 % 50), vbucket=vbucket))

    write(0)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, 40)
        for follower in followers:
            assert follower.begin()["status"] == OK
        writing.result()
    for vbucket, seqno in kv.high_seqnos().items():
        followers[vbucket].follow(seqno)
        expect_equal(kv, followers[vbucket])


@pytest.mark.acceptance("P14")
def test_metadata_arrives_as_the_server_has_it(client: Any, kv: UprWire) -> None:
    before = kv.high_seqnos()[2]
    for number in range(3):
        put(client, "doc", f"version {number}", 2, flags=0xCAFE)
    follower = Follower(client, 2)
    follower.log = log_of(client, 2)
    assert follower.begin(before + 3)["status"] == OK
    event = follower.follow(before + 3)[-1]
    assert event["key"] == "doc"
    assert event["value"] == "version 2"
    assert event["flags"] == 0xCAFE
    assert event["expiration"] == event["lock_time"] == 0
    assert event["rev_seqno"] >= 3
    assert answer(follower.stream) == {"opcode": u.STREAM_END, "vbucket": 2, "flags": u.END_OK}


def test_a_stream_ends_when_its_vbucket_changes_its_state(client: Any, kv: UprWire) -> None:
    put(client, "last", "", 3)
    follower = Follower(client, 3)
    follower.begin()
    follower.follow(kv.high_seqnos()[3])
    try:
        kv.set_state(3, u.REPLICA)
        ended = answer(follower.stream)
        assert (ended["opcode"], ended["flags"]) == (u.STREAM_END, u.END_STATE)
    finally:
        kv.set_state(3, u.ACTIVE)


def test_a_stream_is_closed_once(client: Any) -> None:
    assert Follower(client, 4).begin()["status"] == OK
    assert answer(client.close_stream(4))["status"] == OK
    assert answer(client.close_stream(4))["status"] == ENOENT
    assert Follower(client, 4).begin()["status"] == OK


def test_wrong_requests_have_their_own_statuses(client: Any) -> None:
    uuid, since = log_of(client, 6)[0]
    assert answer(client.stream_req(900, 0, 0, 9, 0, 0))["status"] == NOT_MY_VBUCKET
    assert answer(client.stream_req(6, 0, 9, 3, uuid, since))["status"] == RANGE
    unknown = answer(client.stream_req(6, 0, 9, 20, uuid ^ 1, since))
    assert unknown["status"] == ROLLBACK
    assert struct.unpack(">Q", unknown["err_msg"].encode("latin-1")) == (0,)
    assert answer(client.stream_req(6, 0, 0, u.NEVER, 0, 0))["status"] == OK
    assert answer(client.stream_req(6, 0, 0, u.NEVER, 0, 0))["status"] == EEXISTS


def test_statistics_name_the_connection_and_its_stream(client: Any) -> None:
    follower = Follower(client, 7)
    follower.begin()
    stats = ask(client, upr.operation.Stats("upr"))["value"]
    assert stats["eq_uprq:feb-2014:type"] == "producer"
    assert stats["eq_uprq:feb-2014:flow_control"] == "disabled"
    assert stats["eq_uprq:feb-2014:noop_enabled"] == "false"
    assert stats["eq_uprq:feb-2014:stream_7_opaque"] == str(follower.stream.opaque)
    today = ask(client, upr.operation.Stats("dcp"))["value"]
    assert today["eq_dcpq:feb-2014:stream_7_opaque"] == str(follower.stream.opaque)


# --- interruptions ----------------------------------------------------------------------------


@pytest.mark.acceptance("P02")
def test_it_resumes_where_it_stopped_and_gets_only_what_is_new(
    server: ServerProcess, connect: Connect, kv: UprWire
) -> None:
    first = connect(server)
    answer(first.open_producer("resume"))
    kv.put_many(8, [(b"%d" % number, b"old") for number in range(100)])
    follower = Follower(first, 8)
    follower.begin()
    follower.follow(kv.high_seqnos()[8])
    first.conn.close(True)
    kv.put_many(8, [(b"%d" % number, b"new") for number in range(10, 17)])
    follower.client = connect(server)
    answer(follower.client.open_producer("resume"))
    assert follower.begin()["status"] == OK
    fresh = follower.follow(kv.high_seqnos()[8])
    assert sorted(event["key"] for event in fresh) == [str(number) for number in range(10, 17)]
    expect_equal(kv, follower)


@pytest.mark.acceptance("P03", "P08", "P17")
def test_it_rolls_back_what_a_killed_server_has_lost(
    start: Start, connect: Connect, tmp_path: Path, peer: str
) -> None:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    with start(tmp_path, "--vbuckets", str(VBUCKETS)) as process:
        assert process.upr is not None
        follower = Follower(connect(process), 1)
        answer(follower.client.open_producer("before"))
        with UprWire(process.upr) as kv:
            kv.put_many(1, [(b"%d" % number, b"kept") for number in range(50)])
            kept = kv.high_seqnos()[1]
            kv.wait_until_persisted(1, kept)
            follower.begin()
            follower.follow(kept)
            kv.command(frame(u.STOP_PERSISTENCE))
            kv.put_many(1, [(b"%d" % number, b"lost") for number in range(40, 60)])
            follower.follow(kv.high_seqnos()[1])
        process.kill()
    with start(tmp_path) as process:
        assert process.upr is not None
        follower.client = connect(process)
        answer(follower.client.open_producer("after"))
        reply = follower.begin()
        assert reply["status"] == ROLLBACK
        (point,) = struct.unpack(">Q", reply["err_msg"].encode("latin-1"))
        assert point == kept
        follower.roll_back(point)
        with UprWire(process.upr) as kv:
            kv.put_many(1, [(b"%d" % number, b"later") for number in range(45, 70)])
            assert follower.begin()["status"] == OK
            assert [since for _, since in follower.log] == [kept, 0]
            follower.follow(kv.high_seqnos()[1])
            expect_equal(kv, follower)
        process.stop()


# --- the manager ------------------------------------------------------------------------------


def test_it_adds_and_closes_streams_of_a_consumer(
    server: ServerProcess, connect: Connect, kv: UprWire
) -> None:
    """Alone it answers the stream request itself, with a log of one entry."""
    kv.remake(9, u.REPLICA)
    try:
        client = connect(server)
        assert answer(client.open_consumer("manager"))["status"] == OK
        assert answer(client.add_stream(10, 0))["status"] == NOT_MY_VBUCKET
        added = answer(client.add_stream(9, 0))
        assert (added["status"], added["extlen"]) == (OK, 4)
        assert answer(client.add_stream(9, 0))["status"] == EEXISTS
        made_up = int.from_bytes(struct.pack("<Q", 123456), "big")
        assert kv.texts(b"failovers 9")["vb_9:0:id"] == str(made_up)
        assert answer(client.close_stream(9))["status"] == OK
        assert answer(client.close_stream(9))["status"] == ENOENT
    finally:
        kv.remake(9)


@pytest.mark.acceptance("P16", "D52")
def test_it_makes_one_process_the_replica_of_another_and_hands_over(
    start: Start, server: ServerProcess, connect: Connect, kv: UprWire, tmp_path: Path
) -> None:
    vbucket = 11
    kv.put_many(vbucket, [(b"%d" % number, b"before %d" % number) for number in range(300)])
    for number in range(0, 300, 3):
        kv.delete(vbucket, b"%d" % number)
    with start(tmp_path, "--vbuckets", str(VBUCKETS)) as replica:
        assert replica.upr is not None
        with UprWire(replica.upr) as other:
            other.remake(vbucket, u.REPLICA)
            consumer, producer = connect(replica), connect(server)
            assert answer(consumer.open_consumer("splice"))["status"] == OK
            assert answer(producer.open_producer("splice"))["status"] == OK
            consumer.set_proxy(producer)
            producer.set_proxy(consumer)
            assert answer(consumer.add_stream(vbucket, 0))["status"] == OK
            kv.put_many(vbucket, [(b"live-%d" % number, b"!") for number in range(50)])
            high = kv.high_seqnos()[vbucket]
            other.wait_until_persisted(vbucket, high)
            expect_same_history(kv, other, vbucket)
            stats = kv.texts(b"upr")
            assert stats["eq_uprq:splice:flow_control"] == "enabled"
            assert stats["eq_uprq:splice:noop_enabled"] == "true"

            assert answer(consumer.close_stream(vbucket))["status"] == OK
            assert answer(producer.close_stream(vbucket))["status"] == OK
            log = log_of(producer, vbucket)
            assert answer(consumer.add_stream(vbucket, u.TAKEOVER))["status"] == OK
            wait_for_state(other, vbucket, u.ACTIVE)
            assert state_of(kv, vbucket) == u.DEAD
            reader = connect(replica)
            answer(reader.open_producer("reader"))
            assert log_of(reader, vbucket) == log
            follower = Follower(reader, vbucket)
            assert follower.begin()["status"] == OK
            follower.follow(high)
            expect_equal(other, follower)
        consumer.conn.close(True)
        producer.conn.close(True)
        replica.stop()
    kv.remake(vbucket)


def expect_same_history(kv: UprWire, other: UprWire, vbucket: int) -> None:
    for name in ("high_seqno", "uuid", "purge_seqno"):
        group = b"vbucket-seqno %d" % vbucket
        key = f"vb_{vbucket}:{name}"
        assert kv.texts(group)[key] == other.texts(group)[key]
    assert u.item_counts(kv)[vbucket] == u.item_counts(other)[vbucket]


def state_of(kv: UprWire, vbucket: int) -> int:
    return int.from_bytes(kv.command(frame(u.GET_VBUCKET, vbucket=vbucket)).value, "big")


def wait_for_state(kv: UprWire, vbucket: int, state: int) -> None:
    """Ask again and again: two processes and a third that passes frames on settle it."""
    deadline = time.monotonic() + 10
    while state_of(kv, vbucket) != state:
        assert time.monotonic() < deadline, f"vBucket {vbucket} did not get into state {state}"
