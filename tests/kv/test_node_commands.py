"""What managers ask of a node as a whole: persistence, traffic, parameters, cluster map."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kv.binary_peer import Peer, answer, error, frame, store, u32, u64
from tests.kv.harness import Rig, talk
from uprmc import units
from uprmc.kv.cluster_map import ServedMap
from uprmc.model import VBucketState

GET, SET, DELETE, NOOP, HELLO = 0x00, 0x01, 0x04, 0x0A, 0x1F
STOP, START, SET_PARAM, SELECT = 0x80, 0x81, 0x82, 0x89
ENABLE, DISABLE, SET_MAP, GET_MAP = 0xAD, 0xAE, 0xB4, 0xB5
SET_TOKEN, GET_TOKEN = 0xF4, 0xF5

OK, ENOENT, EEXISTS, EINVAL, TMPFAIL = 0, 1, 2, 4, 0x86
FLUSH, TAP, CHECKPOINT, DCP, VBUCKET = range(1, 6)
MIB = 1024 * 1024


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return Peer(rig)


# --- persistence --------------------------------------------------------------------------------


def test_persistence_stops_and_starts_and_either_may_be_said_twice(rig: Rig, peer: Peer) -> None:
    flusher = rig.bucket.flusher
    assert not flusher.paused
    for _ in range(2):
        assert peer.say(frame(STOP)) == answer(STOP)
        assert flusher.paused
    peer.put(b"k", b"v")  # accepted all the same
    announced: list[bool] = []
    rig.bucket.account.on_dirty = lambda: announced.append(True)
    for _ in range(2):
        assert peer.say(frame(START)) == answer(START)
        assert not flusher.paused
    assert announced


FLUSH_NOW, REMOVE = frame(0x08), frame(0x3F, vbucket=1)
COMPACT = frame(0xB3, extras=bytes(16) + b"\x01" + bytes(7))  # every tombstone of vBucket 0


def with_a_dead_vbucket(rig: Rig) -> Peer:
    """Return a manager of a node that has something to flush, compact and remove."""
    manager = Peer(rig, by_key=False)
    manager.put(b"k", b"v")
    manager.ask(frame(DELETE, b"k"))
    manager.put(b"newer", b"v")
    rig.bucket.set_state(1, VBucketState.DEAD)
    rig.flush()
    return manager


@pytest.mark.parametrize("command", [FLUSH_NOW, REMOVE, COMPACT], ids=["flush", "del", "compact"])
def test_what_waits_for_the_disk_is_answered_at_once_while_persistence_is_stopped(
    rig: Rig, command: bytes
) -> None:
    peer = with_a_dead_vbucket(rig)
    peer.say(frame(STOP))
    assert [reply.status for reply in peer.ask(command, frame(NOOP))] == [TMPFAIL, OK]


@pytest.mark.parametrize("command", [FLUSH_NOW, REMOVE, COMPACT], ids=["flush", "del", "compact"])
def test_what_waits_for_the_disk_is_answered_when_persistence_is_stopped_meanwhile(
    rig: Rig, command: bytes
) -> None:
    peer = with_a_dead_vbucket(rig)
    assert peer.say(command) == b""
    compactor = rig.bucket.compactor
    while (scan := compactor.begin()) is not None:  # it waits for a commit, too
        compactor.read(scan)
        compactor.finish(scan)
    assert Peer(rig).say(frame(STOP)) == answer(STOP)
    assert [reply.status for reply in peer.ask(frame(NOOP))] == [TMPFAIL, OK]
    assert Peer(rig).say(frame(START)) == answer(START)
    rig.flush()
    assert peer.say() == b""


def test_flush_all_is_answered_at_once_while_persistence_is_stopped(rig: Rig) -> None:
    text = rig.text()
    assert talk(text, b"set k 0 0 1\r\nv\r\n") == b"STORED\r\n"
    rig.bucket.flusher.pause()
    answers = talk(text, b"flush_all\r\nflush_all noreply\r\nget k\r\nflush_all 10\r\n")
    assert answers == b"SERVER_ERROR temporary failure\r\nEND\r\nOK\r\n"


def test_a_flush_while_persistence_is_stopped_reaches_the_disk_when_it_is_started(
    rig: Rig,
) -> None:
    peer = Peer(rig)
    peer.put(b"k", b"v")
    rig.flush()
    peer.say(frame(STOP), FLUSH_NOW, frame(START))
    rig.flush()
    view = rig.store.view()
    assert view.count() == 0
    view.close()


def test_a_flush_that_a_commit_under_way_holds_is_answered_by_its_end(rig: Rig) -> None:
    peer = Peer(rig)
    assert peer.say(FLUSH_NOW) == b""
    flusher = rig.bucket.flusher
    flush = flusher.begin()
    assert flush is not None
    Peer(rig).say(frame(STOP))
    assert peer.say() == b""
    flusher.commit(flush)
    flusher.finish(flush)
    assert peer.say() == answer(0x08)


# --- traffic ------------------------------------------------------------------------------------


def test_clients_are_shut_out_and_let_in_again(rig: Rig, peer: Peer) -> None:
    peer.put(b"k", b"v")
    assert peer.say(frame(DISABLE)) == answer(DISABLE)
    assert peer.say(frame(GET, b"k")) == error(GET, TMPFAIL)
    assert peer.say(store(SET, b"k", b"w")) == error(SET, TMPFAIL)
    assert peer.say(frame(ENABLE)) == answer(ENABLE)
    assert peer.value(b"k") == b"v"


@pytest.mark.parametrize("opcode", [ENABLE, DISABLE])
def test_during_warm_up_the_doors_stay_as_they_are(opcode: int) -> None:
    rig = Rig(warm=False)
    peer = Peer(rig)
    assert peer.say(frame(opcode), frame(NOOP)) == error(opcode, TMPFAIL) + answer(NOOP)
    assert not rig.bucket.traffic
    rig.bucket.let_traffic_in()
    assert peer.say(frame(opcode)) == answer(opcode)


# --- parameters ---------------------------------------------------------------------------------


def param(name: str, text: str, group: int = FLUSH, **more: Any) -> bytes:
    return frame(SET_PARAM, name.encode(), text.encode(), extras=u32(group), **more)


def accepted(peer: Peer, name: str, text: str) -> bool:
    return peer.say(param(name, text)) == answer(SET_PARAM, value=b"Updated")


def refusal(peer: Peer, request: bytes) -> tuple[int, str]:
    """The status and the reason, which a tool prints; the conversation goes on."""
    before = peer.rig.bucket.settings
    refused, noop = peer.ask(request, frame(NOOP))
    assert noop.status == OK
    assert peer.rig.bucket.settings is before
    return refused.status, refused.value.decode()


def test_the_quota_takes_the_marks_with_it(rig: Rig, peer: Peer) -> None:
    account = rig.bucket.account
    account.exhausted = True
    assert accepted(peer, "max_size", str(100 * MIB))
    assert (account.quota, account.low_mark, account.high_mark) == (100 * MIB, 75 * MIB, 85 * MIB)
    assert account.write_limit == account.mutation_limit == 93 * MIB
    assert not account.exhausted
    assert accepted(peer, "max_size", "64M")
    assert rig.bucket.settings.memory.quota == account.quota == 64 * MIB


@pytest.mark.parametrize("text", ["50000000", "50000001", "50000002", "50000003"])
def test_a_mark_is_set_to_the_byte(rig: Rig, peer: Peer, text: str) -> None:
    assert accepted(peer, "max_size", "100000003")
    assert accepted(peer, "mem_low_wat", text)
    assert rig.bucket.account.low_mark == int(text)
    assert accepted(peer, "mem_high_wat", "60000007")
    assert (rig.bucket.account.low_mark, rig.bucket.account.high_mark) == (int(text), 60_000_007)


def test_marks_may_be_shares_and_move_with_the_quota(rig: Rig, peer: Peer) -> None:
    assert accepted(peer, "max_size", "100M")
    assert accepted(peer, "mem_low_wat", "50%")
    assert accepted(peer, "mem_high_wat", "60%")
    assert accepted(peer, "mutation_mem_threshold", "70")
    account = rig.bucket.account
    assert (account.low_mark, account.high_mark) == (50 * MIB, 60 * MIB)
    assert account.write_limit == 70 * MIB
    assert accepted(peer, "max_size", "200M")
    assert (account.low_mark, account.high_mark) == (100 * MIB, 120 * MIB)


def test_a_mark_does_not_end_the_refusal_of_a_full_disk(rig: Rig, peer: Peer) -> None:
    peer.put(b"k", b"v")
    rig.fail_flush()
    assert accepted(peer, "mutation_mem_threshold", "90")
    assert peer.say(store(SET, b"k", b"w"))[24:].startswith(b"Temporary failure: the disk")


def test_commits_are_made_by_the_new_settings(rig: Rig, peer: Peer) -> None:
    peer.put(b"k", b"v")
    flusher = rig.bucket.flusher
    assert accepted(peer, "min_data_age", "1")
    assert accepted(peer, "queue_age_cap", "3")
    assert flusher.delay(0.5, 0.0) == pytest.approx(0.5)
    assert flusher.delay(2.5, 10.0) == pytest.approx(0.5)
    assert accepted(peer, "max_txn_size", "7")
    assert rig.bucket.settings.flush.batch_items == 7


def test_expired_documents_are_looked_for_at_the_new_interval(rig: Rig, peer: Peer) -> None:
    heard: list[float] = []
    rig.services.control.expire_every = heard.append
    assert accepted(peer, "exp_pager_stime", "600")
    assert accepted(peer, "max_txn_size", "7")
    assert heard == [600.0]
    assert rig.bucket.settings.engine.expiry_interval_s == 600.0


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("no_such", FLUSH),
        ("max_siz", FLUSH),
        ("", FLUSH),
        ("max_size", TAP),
        ("max_size", VBUCKET),
        ("chk_max_items", CHECKPOINT),
        ("tap_keepalive", TAP),
        ("dcp_consumer_process_buffered_messages_yield_limit"[:31], DCP),
        ("bg_fetch_delay", FLUSH),
        ("memory.quota", FLUSH),
    ],
)
def test_a_name_that_means_nothing_here_is_not_found(peer: Peer, name: str, group: int) -> None:
    if not name:
        name = "\xff"
    status, text = refusal(peer, param(name, "1", group))
    assert status == ENOENT
    assert "no parameter" in text


@pytest.mark.parametrize("group", [0, 6, 0xFFFFFFFF])
def test_a_group_that_there_is_not(peer: Peer, group: int) -> None:
    assert refusal(peer, param("max_size", "100M", group))[0] == EINVAL


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max_size", "1"),
        ("max_size", str(units.size("4096G") + 1)),
        ("max_size", "-100"),
        ("max_size", "lots"),
        ("max_size", "9" * 500),
        ("max_size", "nan"),
        ("max_size", "\xb2"),
        ("mem_low_wat", "86%"),  # above the high mark
        ("mem_high_wat", "94%"),  # above the limit for writes: nobody would make room
        ("mem_high_wat", "5"),
        ("mem_high_wat", "%"),
        ("mutation_mem_threshold", "101"),
        ("mutation_mem_threshold", "80"),  # below the high mark
        ("mutation_mem_threshold", "nan"),
        ("mutation_mem_threshold", "1e400"),
        ("exp_pager_stime", "0"),
        ("exp_pager_stime", "604801"),
        ("exp_pager_stime", "inf"),
        ("min_data_age", "61"),
        ("queue_age_cap", "-1"),
        ("max_txn_size", "0"),
        ("max_txn_size", "1.5"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_reason(peer: Peer, name: str, text: str) -> None:
    status, reason = refusal(peer, param(name, text))
    assert status == EINVAL
    assert reason.startswith(f"{name}: ")
    assert "\n" not in reason


def test_the_quota_must_hold_the_largest_item() -> None:
    peer = Peer(Rig(kv__max_item_bytes=100 * MIB))
    assert refusal(peer, param("max_size", "100M"))[0] == EINVAL
    assert accepted(peer, "max_size", "200M")


def test_names_and_values_have_a_length(peer: Peer) -> None:
    assert refusal(peer, param("n" * 31, "1"))[0] == ENOENT
    assert refusal(peer, param("n" * 32, "1"))[0] == EINVAL
    assert peer.ask(param("max_size", "0" * 502 + "104857600"))[0].status == OK
    assert refusal(peer, param("max_size", "0" * 503 + "104857600"))[0] == EINVAL


# --- the session token --------------------------------------------------------------------------


def test_a_token_is_set_by_whoever_knows_the_last_one(peer: Peer) -> None:
    assert peer.say(frame(GET_TOKEN)) == answer(GET_TOKEN)
    assert peer.say(frame(SET_TOKEN, extras=u64(7))) == answer(SET_TOKEN, cas=7)
    assert peer.say(frame(SET_TOKEN, extras=u64(8), cas=6)) == error(SET_TOKEN, EEXISTS)
    assert Peer(peer.rig).say(frame(GET_TOKEN)) == answer(GET_TOKEN, cas=7)
    assert peer.say(frame(SET_TOKEN, extras=u64(8), cas=7)) == answer(SET_TOKEN, cas=8)
    assert peer.say(frame(SET_TOKEN, extras=u64(9))) == answer(SET_TOKEN, cas=9)
    assert peer.say(frame(SET_TOKEN, extras=u64(0))) == error(SET_TOKEN, EINVAL)


@pytest.mark.parametrize("request_", [param("max_size", "64M"), frame(SET_MAP, value=b"{}")])
def test_commands_of_another_managers_session_are_refused(peer: Peer, request_: bytes) -> None:
    def said(cas: int) -> int:
        return peer.ask(request_[:16] + u64(cas) + request_[24:])[0].status

    peer.ask(frame(SET_TOKEN, extras=u64(7)))
    before = peer.rig.bucket.settings
    assert said(6) == EEXISTS
    assert peer.rig.bucket.settings is before
    assert said(7) == said(0) == OK


# --- the cluster map ----------------------------------------------------------------------------


def mapped(rig: Rig, **addresses: str) -> Peer:
    rig.services.control.cluster_map = ServedMap(lambda: addresses, uuid=0xABC)
    return Peer(rig)


def cluster_map(peer: Peer) -> dict[str, Any]:
    (reply,) = peer.ask(frame(GET_MAP))
    assert reply.status == OK
    document: dict[str, Any] = json.loads(reply.value)
    return document


def test_a_node_describes_itself_as_sdks_want_it(rig: Rig) -> None:
    peer = mapped(rig, upr="127.0.0.1:21500", http="[::1]:8091", memcached="unix:/run/x")
    rig.bucket.set_state(2, VBucketState.REPLICA)
    found = cluster_map(peer)
    assert found["name"] == "default"
    assert found["nodeLocator"] == "vbucket"
    assert found["uuid"] == f"{0xABC:032x}"
    assert found["nodesExt"] == [{"thisNode": True, "services": {"kv": 21500, "mgmt": 8091}}]
    assert found["nodes"] == [{"hostname": "$HOST:8091", "ports": {"direct": 21500}}]
    assert found["vBucketServerMap"] == {
        "hashAlgorithm": "CRC",
        "numReplicas": 0,
        "serverList": ["$HOST:21500"],
        "vBucketMap": [[0], [0], [-1], [0]],
        "terms": [1, 1, 1, 1],
    }


def test_the_map_gets_a_new_revision_when_it_says_something_new(rig: Rig) -> None:
    peer = mapped(rig, upr="127.0.0.1:21500")
    first = cluster_map(peer)
    assert cluster_map(peer) == first
    assert first["revEpoch"] == int(rig.clock.time)
    rig.clock.time += 10
    rig.bucket.set_state(1, VBucketState.DEAD)
    second = cluster_map(peer)
    assert (second["revEpoch"], second["rev"]) == (first["revEpoch"], first["rev"] + 1)
    assert second["vBucketServerMap"]["vBucketMap"][1] == [-1]


def test_traffic_that_is_shut_out_moves_no_vbucket(rig: Rig) -> None:
    peer = mapped(rig, upr="127.0.0.1:21500")
    first = cluster_map(peer)
    peer.ask(frame(DISABLE))
    assert cluster_map(peer) == first


def test_with_tls_and_without_http_the_services_have_other_names(rig: Rig) -> None:
    rig.services.control.cluster_map = ServedMap(lambda: {"upr": "[::1]:7"}, tls=True)
    assert cluster_map(Peer(rig))["nodesExt"] == [{"thisNode": True, "services": {"kvSSL": 7}}]
    places = {"upr": "h:7", "http": "h:8", "views": "h:9"}
    rig.services.control.cluster_map = ServedMap(lambda: places, tls=True, https=True)
    found = cluster_map(Peer(rig))
    assert found["nodesExt"][0]["services"] == {"kvSSL": 7, "mgmtSSL": 8, "capiSSL": 9}
    assert found["nodes"][0]["couchApiBaseHTTPS"] == "https://$HOST:9/default"
    assert "couchApiBase" not in found["nodes"][0]


@pytest.mark.parametrize("addresses", [{}, {"upr": "unix:/run/uprmc"}, {"memcached": "h:1"}])
def test_without_a_port_there_is_no_map(rig: Rig, addresses: dict[str, str]) -> None:
    assert mapped(rig, **addresses).say(frame(GET_MAP)) == error(GET_MAP, ENOENT)


def test_a_map_that_was_set_is_answered_as_it_is(rig: Rig) -> None:
    peer = mapped(rig, upr="127.0.0.1:21500")
    text = b' { "rev" : 5 } '
    assert peer.say(frame(SET_MAP, value=text)) == answer(SET_MAP)
    assert Peer(rig).say(frame(GET_MAP)) == answer(GET_MAP, value=text)
    peer.ask(frame(HELLO, value=b"\0\x0b"))
    assert peer.say(frame(GET_MAP)) == answer(GET_MAP, value=text, datatype=1)


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"5",
        b"[]",
        b'{"rev": NaN}',
        "{}".encode("utf-16"),
        b'"{}"',
        b"\xff\xfe{}",
        b"[" * 100_000,
        b"9" * 10_000,
    ],
)
def test_a_map_must_be_a_json_object(rig: Rig, text: bytes) -> None:
    peer = mapped(rig, upr="127.0.0.1:21500")
    assert peer.say(frame(SET_MAP, value=text), frame(NOOP)) == error(SET_MAP, EINVAL) + answer(
        NOOP
    )
    assert cluster_map(peer)["name"] == "default"


# --- SELECT_BUCKET ------------------------------------------------------------------------------


def test_the_only_bucket_may_be_selected(peer: Peer) -> None:
    assert peer.say(frame(SELECT, b"default")) == answer(SELECT)
    assert peer.say(frame(SELECT)) == answer(SELECT)
    for name in (b"other", b"Default", b"default "):
        assert peer.say(frame(SELECT, name)) == error(SELECT, ENOENT)


def test_hello_says_that_buckets_can_be_selected(peer: Peer) -> None:
    assert peer.say(frame(HELLO, value=b"\0\x08")) == answer(HELLO, value=b"\0\x08")


# --- warm-up ------------------------------------------------------------------------------------


def test_during_warm_up_a_node_can_be_managed() -> None:
    rig = Rig(warm=False)
    peer = mapped(rig, upr="127.0.0.1:21500")
    for request in (
        frame(STOP),
        frame(START),
        param("max_size", "64M"),
        frame(SET_TOKEN, extras=u64(1)),
        frame(GET_TOKEN),
        frame(GET_MAP),
        frame(SET_MAP, value=b"{}"),
        frame(SELECT, b"default"),
    ):
        assert peer.ask(request)[0].status == OK
