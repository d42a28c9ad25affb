"""Managing a real node: what its managers set reaches the parts that do the work."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from interop.wire import (
    DECR,
    FLUSH,
    GET,
    HEADER,
    SET,
    Reply,
    counter,
    frame,
    split_replies,
    store,
    vbucket_of,
)
from tests.server.support import Client, Loop
from tests.system.support import node_here

STOP_PERSISTENCE, START_PERSISTENCE, SET_PARAM = 0x80, 0x81, 0x82
DISABLE_TRAFFIC, GET_CLUSTER_CONFIG, SEQNO_PERSISTENCE = 0xAE, 0xB5, 0xB7
SET_VBUCKET, DEL_VBUCKET, GET_FAILOVER_LOG = 0x3D, 0x3F, 0x96
COMPACT_DB = 0xB3
OK, NOT_MY_VBUCKET, TEMPORARY_FAILURE = 0x00, 0x07, 0x86


def ask(client: Client, request: bytes) -> Reply:
    """Send a request and wait for its reply."""
    client.socket.send(request)
    data = b""
    while True:
        data += client.read(1)
        assert not client.closed
        replies, rest = split_replies(data)
        if replies:
            assert (len(replies), rest) == (1, b"")
            return replies[0]


def param(name: bytes, text: bytes) -> bytes:
    return frame(SET_PARAM, name, text, struct.pack(">I", 1))


def client_of(loop: Loop, node) -> Client:
    return loop.client(node.addresses()["upr"])


def test_a_node_tells_where_it_really_listens(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        reply = ask(client_of(loop, node), frame(GET_CLUSTER_CONFIG))
        found = json.loads(reply.value)
        ports = {name: int(text.rpartition(":")[2]) for name, text in node.addresses().items()}
        services = {"kv": ports["upr"], "mgmt": ports["http"]}
        assert found["nodesExt"] == [{"thisNode": True, "services": services}]
        assert int(found["uuid"], 16) == node.bucket.store.identity().uuid


def test_expired_documents_are_looked_for_as_often_as_was_asked(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        client = client_of(loop, node)
        assert ask(client, store(SET, b"k", b"v", expiration=1)).status == OK
        assert ask(client, param(b"exp_pager_stime", b"1")).status == OK
        loop.until(lambda: node.bucket.stats.expired_pager == 1)


def test_nothing_that_waits_for_the_disk_hangs_while_persistence_is_stopped(
    tmp_path: Path,
) -> None:
    with node_here(tmp_path) as (node, loop):
        client = client_of(loop, node)
        assert ask(client, store(SET, b"k", b"v")).status == OK
        assert ask(client, frame(SET_VBUCKET, extras=struct.pack(">I", 4), vbucket=1)).status == OK
        assert ask(client, frame(STOP_PERSISTENCE)).status == OK
        for waiting in (
            frame(FLUSH),
            frame(DEL_VBUCKET, vbucket=1),
            frame(COMPACT_DB, extras=bytes(24)),
        ):
            assert ask(client, waiting).status == TEMPORARY_FAILURE
        text = loop.client(node.addresses()["memcached"])
        text.socket.send(b"flush_all\r\n")
        assert text.read(32) == b"SERVER_ERROR temporary failure\r\n"
        assert ask(client, frame(START_PERSISTENCE)).status == OK
        loop.until(lambda: not node.bucket.flusher.pending)
        assert ask(client, frame(FLUSH)).status == OK


@pytest.mark.parametrize(("listener", "kept"), [("memcached", b"99 "), ("upr", b"99")])
def test_a_counter_keeps_its_length_on_the_memcached_listener_only(
    tmp_path: Path, listener: str, kept: bytes
) -> None:
    key = next(key for key in (b"n%d" % number for number in range(99)) if not vbucket_of(key, 4))
    with node_here(tmp_path) as (node, loop):
        place = node.addresses()[listener]
        client, text = loop.client(place), loop.client(place)
        assert ask(client, store(SET, key, b"100")).status == OK
        assert ask(client, counter(DECR, key, 1)).status == OK
        assert ask(client, frame(GET, key)).value == kept
        assert ask(client, store(SET, key, b"100")).status == OK
        text.socket.send(b"decr " + key + b" 1\r\n")
        assert text.read(4) == b"99\r\n"
        assert ask(client, frame(GET, key)).value == kept


def test_a_node_whose_clients_are_shut_out_stops_in_order(tmp_path: Path) -> None:
    with node_here(tmp_path, flush__min_delay_s=60.0, flush__max_delay_s=60.0) as (node, loop):
        client = client_of(loop, node)
        assert ask(client, store(SET, b"k", b"v")).status == OK
        assert ask(client, frame(STOP_PERSISTENCE)).status == OK
        assert ask(client, frame(DISABLE_TRAFFIC)).status == OK
    with node_here(tmp_path) as (node, _):
        assert node.warmup.was_clean
        assert node.bucket.vbuckets[0].item_count == 1


def test_stopped_persistence_holds_up_who_waits_for_it_and_nobody_else(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        client, other = client_of(loop, node), client_of(loop, node)
        assert ask(client, frame(STOP_PERSISTENCE)).status == OK
        assert ask(client, store(SET, b"k", b"v")).status == OK
        client.socket.send(frame(SEQNO_PERSISTENCE, extras=struct.pack(">Q", 1)))
        assert ask(other, store(SET, b"l", b"v")).status == OK
        assert node.bucket.vbuckets[0].persisted_seqno == 0
        assert ask(other, frame(START_PERSISTENCE)).status == OK
        assert client.read(HEADER.size)[6:8] == b"\0\0"
        assert node.bucket.vbuckets[0].persisted_seqno >= 1


def test_a_deleted_vbucket_is_still_gone_after_a_restart(tmp_path: Path) -> None:
    with node_here(tmp_path) as (node, loop):
        client = client_of(loop, node)
        dead = frame(SET_VBUCKET, extras=struct.pack(">I", 4), vbucket=3)
        assert ask(client, store(SET, b"k", b"v", vbucket=3)).status == OK
        assert ask(client, dead).status == OK
        assert ask(client, frame(DEL_VBUCKET, vbucket=3)).status == OK
        view = node.bucket.store.view()
        assert view.header(3) is None
        view.close()
    with node_here(tmp_path) as (node, loop):
        client = client_of(loop, node)
        assert ask(client, frame(GET_FAILOVER_LOG, vbucket=3)).status == NOT_MY_VBUCKET
        assert ask(client, frame(GET_FAILOVER_LOG, vbucket=2)).status == OK
