"""Documents by `KvClient`, on a real node: what is stored comes back, refusals have names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.wire import vbucket_of
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.client.kv import Document, KvClient, Meta, OutcomeUnknown, SomeFailed
from uprmc.errors import (
    ConfigError,
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    Locked,
    NotMyVBucket,
    TooLarge,
)
from uprmc.model import VBucketState
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.management import SET_VBUCKET_EXTRAS
from uprmc.protocol.opcodes import DataType, ObservedState, Opcode

VBUCKETS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("kv") / "data"
    with start_uprmc(data, "--vbuckets", str(VBUCKETS), "--no-sync") as server:
        yield server
        server.stop()


@pytest.fixture(scope="module")
def kv(server: ServerProcess) -> Iterator[KvClient]:
    with KvClient(str(server.upr)) as kv:
        yield kv


def set_state(place: object, vbucket: int, state: VBucketState) -> None:
    with NodeConnection(str(place)) as connection:
        extras = SET_VBUCKET_EXTRAS.pack(state)
        request = RequestFrame(Opcode.SET_VBUCKET, extras=extras, vbucket=vbucket)
        assert connection.ask(request).status == 0


# --- one document -------------------------------------------------------------------------------


def test_a_document_comes_back_with_its_flags_and_cas(kv: KvClient) -> None:
    stored = kv.set(b"one", b"\x00value\xff", flags=0xFFFFFFFF)
    assert kv.get(b"one") == Document(b"\x00value\xff", 0xFFFFFFFF, stored.cas, 0)
    assert stored.cas
    assert stored.vb_uuid


def test_a_change_tells_its_place_in_the_history(kv: KvClient) -> None:
    first, second = kv.set(b"place", b"1"), kv.set(b"place", b"2")
    deleted = kv.delete(b"place")
    assert deleted is not None
    assert first.seqno < second.seqno < deleted.seqno
    assert first.vb_uuid == second.vb_uuid == deleted.vb_uuid


def test_what_is_not_there_is_none(kv: KvClient) -> None:
    assert kv.get(b"absent") is None
    assert kv.get_meta(b"absent") is None
    assert kv.delete(b"absent") is None


def test_an_empty_value_is_a_document(kv: KvClient) -> None:
    kv.set(b"empty", b"")
    found = kv.get(b"empty")
    assert found is not None
    assert found.value == b""


def test_a_datatype_comes_back(kv: KvClient) -> None:
    kv.set(b"json", b"{}", datatype=DataType.JSON)
    found = kv.get(b"json")
    assert found is not None
    assert found.datatype == DataType.JSON


def test_a_document_with_a_ttl_tells_when_it_expires(kv: KvClient) -> None:
    when = int(time.time()) + 5000
    kv.set(b"mortal", b"v", expiry=when)
    meta = kv.get_meta(b"mortal")
    assert meta is not None
    assert meta.expiry == when


@pytest.mark.acceptance("P04")
def test_keys_go_to_the_vbuckets_that_other_clients_compute(kv: KvClient) -> None:
    assert kv.vbuckets == VBUCKETS
    for key in (b"a", b"key-17", b"\xff" * 250):
        assert kv.vbucket_of(key) == vbucket_of(key, VBUCKETS)
        kv.set(key, b"v")
        assert kv.observe([key])[key].vbucket == vbucket_of(key, VBUCKETS)


# --- refusals have names ------------------------------------------------------------------------


def test_a_cas_that_was_overtaken_is_refused_by_name(kv: KvClient) -> None:
    old = kv.set(b"cas", b"1")
    new = kv.set(b"cas", b"2", cas=old.cas)
    with pytest.raises(KeyExists, match="Data exists for key"):
        kv.set(b"cas", b"3", cas=old.cas)
    with pytest.raises(KeyExists):
        kv.delete(b"cas", cas=old.cas)
    assert kv.delete(b"cas", cas=new.cas)
    with pytest.raises(KeyNotFound):
        kv.set(b"cas", b"4", cas=new.cas)


def test_a_value_that_is_too_large_is_refused_by_name_and_the_rest_goes_on(kv: KvClient) -> None:
    documents = {b"large-0": b"v", b"large-1": b"v" * (21 << 20), b"large-2": b"v"}
    with pytest.raises(SomeFailed, match=r"1 of 3 failed, the first \(b'large-1'\): Too l") as told:
        kv.set_many(documents)
    assert isinstance(told.value.failed[b"large-1"], TooLarge)
    assert told.value.done.keys() == {b"large-0", b"large-2"}
    assert told.value.unknown == []
    assert kv.get_many(documents).keys() == {b"large-0", b"large-2"}


def test_a_locked_document_is_refused_by_name(kv: KvClient, server: ServerProcess) -> None:
    kv.set(b"locked", b"1")
    with NodeConnection(str(server.upr)) as connection:
        vbucket = kv.vbucket_of(b"locked")
        answer = connection.ask(RequestFrame(Opcode.GETL, key=b"locked", vbucket=vbucket))
        assert answer.status == 0
        with pytest.raises(Locked):
            kv.set(b"locked", b"2")
        unlock = RequestFrame(Opcode.UNLOCK, key=b"locked", vbucket=vbucket, cas=answer.cas)
        assert connection.ask(unlock).status == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda kv: kv.get(b""),
        lambda kv: kv.get(b"k" * 251),
        lambda kv: kv.get_many([b"k", b""]),
        lambda kv: kv.set(b"k", b"v", flags=2**32),
        lambda kv: kv.set(b"k", b"v", expiry=-1),
        lambda kv: kv.set(b"k", b"v", cas=2**64),
        lambda kv: kv.set(b"k", b"v", datatype=256),
        lambda kv: kv.set_with_meta(b"k", b"v", Meta(0, 0, 2**64, 1)),
    ],
)
def test_what_fits_into_no_request_is_refused_before_anything_is_sent(
    kv: KvClient, ask: Callable[[KvClient], object]
) -> None:
    with pytest.raises(InvalidArguments):
        ask(kv)
    assert kv.get(b"absent") is None, "the connection goes on"


# --- many ---------------------------------------------------------------------------------------


def test_many_documents_are_stored_read_and_deleted(kv: KvClient) -> None:
    documents = {b"many-%d" % number: b"v%d" % number * (number % 50) for number in range(3000)}
    stored = kv.set_many(documents, flags=3)
    assert stored.keys() == documents.keys()
    found = kv.get_many([*documents, b"absent"])
    assert {key: document.value for key, document in found.items()} == documents
    assert all(found[key].cas == stored[key].cas for key in documents)
    assert {document.flags for document in found.values()} == {3}
    assert kv.delete_many([*documents, b"absent"]).keys() == documents.keys()
    assert kv.get_many(documents) == {}


def test_large_values_go_through_both_ways(kv: KvClient) -> None:
    """Requests and answers together are more than the buffers of both ends hold."""
    documents = {b"big-%d" % number: bytes([number]) * 1_000_000 for number in range(24)}
    kv.set_many(documents)
    found = kv.get_many(documents)
    assert {key: document.value for key, document in found.items()} == documents


def test_a_key_that_is_named_twice_is_asked_for_once(kv: KvClient) -> None:
    kv.set(b"twice", b"v")
    assert kv.get_many(iter([b"twice", b"twice"])).keys() == {b"twice"}


def test_nothing_asked_is_nothing_answered(kv: KvClient) -> None:
    assert kv.get_many([]) == kv.set_many({}) == kv.delete_many([]) == kv.observe([]) == {}


# --- metadata -----------------------------------------------------------------------------------


@pytest.mark.acceptance("D43")
def test_metadata_are_taken_over_as_they_are(kv: KvClient) -> None:
    meta = Meta(flags=7, expiry=2**32 - 1, rev=90, cas=2**50 + 5, datatype=DataType.JSON)
    assert kv.set_with_meta(b"meta", b"{}", meta).cas == meta.cas
    assert kv.get_meta(b"meta") == meta
    assert kv.get(b"meta") == Document(b"{}", 7, meta.cas, DataType.JSON)


def test_an_older_version_loses_unless_it_is_forced(kv: KvClient) -> None:
    kv.set_with_meta(b"conflict", b"new", Meta(0, 0, 9, 900))
    old = Meta(0, 0, 5, 500)
    with pytest.raises(KeyExists):
        kv.set_with_meta(b"conflict", b"old", old)
    kv.set_with_meta(b"conflict", b"old", old, force=True)
    assert kv.get_meta(b"conflict") == old


def test_a_deletion_made_elsewhere_leaves_its_tombstone(kv: KvClient) -> None:
    kv.set_with_meta(b"gone", b"v", Meta(0, 0, 3, 300))
    kv.delete_with_meta(b"gone", Meta(0, 0, 4, 400))
    assert kv.get(b"gone") is None
    assert tombstone(kv, b"gone") == (4, 400)
    kv.delete_with_meta(b"gone", Meta(0, 0, 2, 200), force=True, expired=True)
    assert tombstone(kv, b"gone") == (2, 200)


def tombstone(kv: KvClient, key: bytes) -> tuple[int, int]:
    meta = kv.get_meta(key)
    assert meta is not None
    assert meta.deleted
    return meta.rev, meta.cas


def test_a_version_can_be_bound_to_the_one_that_is_there(kv: KvClient) -> None:
    stored = kv.set(b"bound", b"1")
    newer = Meta(0, 0, 50, stored.cas + 50)
    with pytest.raises(KeyExists):
        kv.set_with_meta(b"bound", b"2", newer, cas=stored.cas + 1)
    kv.set_with_meta(b"bound", b"2", newer, cas=stored.cas)
    with pytest.raises(KeyExists):
        kv.delete_with_meta(b"bound", Meta(0, 0, 60, 1), cas=stored.cas)


def test_observing_tells_what_is_on_disk(kv: KvClient) -> None:
    kv.set(b"seen", b"v")
    deadline = time.monotonic() + 20
    while kv.observe([b"seen"])[b"seen"].state != ObservedState.PERSISTED:
        assert time.monotonic() < deadline
    states = {key: found.state for key, found in kv.observe([b"seen", b"absent"]).items()}
    assert states == {b"seen": ObservedState.PERSISTED, b"absent": ObservedState.NOT_FOUND}


# --- nodes that come and go ---------------------------------------------------------------------


@pytest.mark.acceptance("D26")
def test_a_vbucket_that_moves_is_followed(tmp_path: Path) -> None:
    options = ("--vbuckets", "4", "--no-sync")
    with (
        start_uprmc(tmp_path / "a", *options) as a,
        start_uprmc(tmp_path / "b", *options) as b,
    ):
        for vbucket in range(4):
            set_state(b.upr, vbucket, VBucketState.DEAD)
        with KvClient([str(a.upr), str(b.upr)]) as kv:
            documents = {b"key-%d" % number: b"1" for number in range(100)}
            kv.set_many(documents)
            for vbucket in (0, 1):
                set_state(a.upr, vbucket, VBucketState.DEAD)
                set_state(b.upr, vbucket, VBucketState.ACTIVE)
            kv.set_many(dict.fromkeys(documents, b"2"))
            found = kv.get_many(documents)
            assert {document.value for document in found.values()} == {b"2"}
            assert found.keys() == documents.keys()
        a.stop()
        b.stop()


def test_a_vbucket_that_nobody_has_is_told(tmp_path: Path) -> None:
    with start_uprmc(tmp_path / "a", "--vbuckets", "1", "--no-sync") as server:
        with KvClient(str(server.upr), retry_s=0.05) as kv:
            set_state(server.upr, 0, VBucketState.REPLICA)
            with pytest.raises(NotMyVBucket, match="vBucket 0 is active at none of 127"):
                kv.get(b"k")
        server.stop()


@pytest.mark.crash
def test_a_node_that_is_killed_and_comes_back_is_found_again(tmp_path: Path) -> None:
    with start_uprmc(tmp_path / "a", "--vbuckets", "4") as server:
        place = str(server.upr)
        with KvClient(place, retry_s=0.05) as kv:
            kv.set(b"k", b"v")
            server.kill()
            with pytest.raises((NodeError, OutcomeUnknown)) as told:
                kv.set(b"k", b"w")
            assert place in str(told.value)
            with pytest.raises(
                NodeError, match=f"is active at none of .*; no node answers at {place}"
            ):
                kv.get(b"k")
            with start_uprmc(tmp_path / "a", "--upr", place) as again:
                assert kv.set(b"k", b"x").cas
                again.stop()


def test_a_place_where_nobody_listens_is_told() -> None:
    with pytest.raises(NodeError, match=r"no node answers at 127\.0\.0\.1:1: .*is it running\?"):
        KvClient("127.0.0.1:1")
    with pytest.raises(ConfigError, match="say HOST:PORT"):
        KvClient("localhost:")


def test_a_web_server_is_no_node(server: ServerProcess) -> None:
    with pytest.raises(NodeError, match=f"at {server.http}"):
        KvClient(str(server.http), timeout_s=2)


def test_the_memcached_listener_will_do(server: ServerProcess) -> None:
    with KvClient(str(server.memcached)) as kv:
        kv.set(b"other door", b"v")
        assert kv.get_many([b"other door"])
