"""``mc_bin_client`` of the package index: the client that ep-engine's own tools were written on.

It knows vBuckets, metadata, persistence and statistics; cbstats, cbepctl and the test runners of
2010 to 2014 are made of it. Its Python 2 is read by `interop.python2`.

Proves: its commands for documents, vBuckets, replicas, metadata, locks, persistence and statistics
work on the ``upr`` listener, where the vBucket that it names counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from interop import python2
from interop import upr_wire as u
from interop.conftest import Start
from interop.server_process import ServerProcess

package: Any = python2.load("mc_bin_client", "memcacheConstants", "mc_bin_client")
if package is None:
    pytest.skip("the client is not installed: pip install mc_bin_client", allow_module_level=True)
mc: Any = package.mc_bin_client
constants: Any = package.memcacheConstants

VB = 3


@pytest.fixture(scope="module")
def module_server(
    start: Start, tmp_path_factory: pytest.TempPathFactory, peer: str
) -> Iterator[ServerProcess]:
    if peer != "uprmc":
        pytest.skip("memcached knows no vBuckets")
    with start(tmp_path_factory.mktemp("data"), "--vbuckets", "16") as process:
        yield process
        process.stop()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    """The client, its commands aimed at one vBucket."""
    assert server.upr is not None
    made = mc.MemcachedClient(server.upr.host, server.upr.port)
    made.vbucketId = VB
    yield made
    made.close()


def refused(error: pytest.ExceptionInfo[Any], status: int) -> bool:
    return bool(error.value.status == status)


def meta_of(client: Any, key: str) -> tuple[int, int, int, int, int]:
    """Deleted, flags, expiry, rev, CAS; the client's own reader is for the form before 2012."""
    _, cas, data = client._doCmd(constants.CMD_GET_META, key, "")
    return *struct.unpack(">IIIQ", data.encode("latin-1")), cas


def test_documents(client: Any) -> None:
    client.set("key", 0, 7, "value")
    flags, cas, value = client.get("key")
    assert (flags, value) == (7, "value")
    client.append("key", "!")
    client.prepend("key", "a ")
    assert client.get("key")[2] == "a value!"
    with pytest.raises(mc.MemcachedError) as error:
        client.cas("key", 0, 0, cas, "stale")
    assert refused(error, constants.ERR_KEY_EEXISTS)
    client.delete("key")
    with pytest.raises(mc.MemcachedError) as error:
        client.get("key")
    assert refused(error, constants.ERR_KEY_ENOENT)
    assert client.incr("n", 5, 10)[0] == 10
    assert client.incr("n", 5)[0] == 15
    assert client.decr("n", 20)[0] == 0


def test_quiet_forms_are_closed_by_a_noop(client: Any) -> None:
    values = {f"key-{number}": f"value-{number}" for number in range(200)}
    assert client.setMulti(0, 0, values) == []
    found = client.getMulti([*values, "missing"])
    assert {key: parts[2] for key, parts in found.items()} == values
    assert client.delMulti(list(values)) == []
    assert client.getMulti(list(values)) == {}


def test_a_vbucket_is_made_changed_and_removed(client: Any) -> None:
    client.set_vbucket_state(VB, "dead")
    client.delete_vbucket(VB)
    with pytest.raises(mc.MemcachedError) as error:
        client.get_vbucket_state(VB)
    assert refused(error, constants.ERR_NOT_MY_VBUCKET)
    for name in ("dead", "replica", "pending", "active"):
        client.set_vbucket_state(VB, name)
        number = constants.VB_STATE_NAMES[name]
        assert client.get_vbucket_state(VB)[2] == struct.pack(">I", number).decode("latin-1")
        assert client.stats("vbucket")[f"vb_{VB}"] == name
    with pytest.raises(mc.MemcachedError) as error:
        client.delete_vbucket(VB)
    assert refused(error, constants.ERR_EINVAL)


def test_a_replica_is_read_by_its_own_command(client: Any) -> None:
    client.set("key", 0, 9, "value")
    with pytest.raises(mc.MemcachedError) as error:
        client.getr("key")
    assert refused(error, constants.ERR_NOT_MY_VBUCKET)
    client.set_vbucket_state(VB, "replica")
    try:
        flags, _, value = client.getr("key")
        assert (flags, value) == (9, "value")
        with pytest.raises(mc.MemcachedError) as error:
            client.get("key")
        assert refused(error, constants.ERR_NOT_MY_VBUCKET)
    finally:
        client.set_vbucket_state(VB, "active")


def test_the_greater_rev_wins(client: Any) -> None:
    client.setWithMeta("key", "theirs", 0, 5, 20, 0x99)
    assert meta_of(client, "key") == (0, 5, 0, 20, 0x99)
    with pytest.raises(mc.MemcachedError) as error:
        client.setWithMeta("key", "older", 0, 0, 19, 0x999)
    assert refused(error, constants.ERR_KEY_EEXISTS)
    client.setWithMeta("key", "newer", 0, 0, 21, 0x77)
    assert client.get("key")[1:] == (0x77, "newer")
    with pytest.raises(mc.MemcachedError) as error:
        client.addWithMeta("key", "added", 0, 0, 30, 1)
    assert refused(error, constants.ERR_KEY_EEXISTS)


def test_metadata_of_a_deleted_document_can_be_read(client: Any) -> None:
    client.set("key", 0, 0, "value")
    rev = meta_of(client, "key")[3]
    client.delete("key")
    deleted, _, _, new_rev, _ = meta_of(client, "key")
    assert (deleted, new_rev) == (1, rev + 1)


@pytest.mark.acceptance("D20")
def test_observe_tells_what_is_on_disk(client: Any) -> None:
    client.stop_persistence()
    assert client.stats()["ep_flusher_state"] == "paused"
    try:
        client.set("key", 0, 0, "value")
        assert client.observe("key", VB)[3] == 0
    finally:
        client.start_persistence()
    assert client.stats()["ep_flusher_state"] == "running"
    seqno = int(client.stats(f"vbucket-seqno {VB}")[f"vb_{VB}:high_seqno"])
    extras = struct.pack(">Q", seqno).decode("latin-1")
    client._doCmd(u.SEQNO_PERSISTENCE, "", "", extras)
    assert client.observe("key", VB)[3] == 1
    assert client.evict_key("key")[2] == "Ejected."
    assert client.get("key")[2] == "value"


def test_a_locked_document_is_written_by_its_holder_only(client: Any) -> None:
    client.set("key", 0, 0, "value")
    _, lock, _ = client.getl("key", 10)
    assert client.get("key")[1] == 2**64 - 1
    with pytest.raises(mc.MemcachedError) as error:
        client.getl("key")
    assert refused(error, constants.ERR_ETMPFAIL)
    with pytest.raises(mc.MemcachedError) as error:
        client.set("key", 0, 0, "other")
    assert refused(error, constants.ERR_KEY_EEXISTS)
    client.cas("key", 0, 0, lock, "mine")
    assert client.get("key")[2] == "mine"


def test_expiry_is_set_by_touch_and_by_get_and_touch(client: Any) -> None:
    client.set("key", 0, 3, "value")
    client.touch("key", 2_000_000_000)
    assert meta_of(client, "key")[2] == 2_000_000_000
    flags, _, value = client.gat("key", 2_100_000_000)
    assert (flags, value) == (3, "value")
    assert meta_of(client, "key")[2] == 2_100_000_000


def test_an_unknown_parameter_is_refused(client: Any) -> None:
    with pytest.raises(mc.MemcachedError) as error:
        client.set_param("no_such_name", "1", constants.ENGINE_PARAM_FLUSH)
    assert refused(error, constants.ERR_KEY_ENOENT)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("", "curr_items"),
        ("", "ep_queue_size"),
        ("vbucket-details", f"vb_{VB}:num_items"),
        ("vbucket-seqno", f"vb_{VB}:uuid"),
        ("failovers", f"vb_{VB}:0:id"),
        ("checkpoint", f"vb_{VB}:open_checkpoint_id"),
        ("hash", f"vb_{VB}:mem_size_counted"),
        ("tap", "ep_tap_backoff_period"),
        ("upr", "ep_upr_count"),
        ("dcp", "ep_dcp_count"),
    ],
)
def test_statistics_that_tools_read(client: Any, group: str, name: str) -> None:
    assert name in client.stats(group)


def test_version_and_noop(client: Any) -> None:
    assert client.version()[2]
    client.noop()
