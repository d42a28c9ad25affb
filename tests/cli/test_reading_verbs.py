"""What holds for every verb that reads documents, whatever it makes of them.

None of them answers with less than there is, all of them read the same cluster map, reach a node
where it was dialled, and leave each other alone.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.proxy import Proxy
from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from tests.cli.here import Here, runner
from uprmc.client.connection import NodeConnection
from uprmc.client.forgetting import forget
from uprmc.client.kv import KvClient
from uprmc.client.lease import Lease
from uprmc.model import vbucket_of
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode
from uprmc.remote.features import Handshake

#: vBuckets, and the one that is active nowhere where a cluster is incomplete.
COUNT, AWAY = 4, 2

DOCUMENTS = {b"k%d" % number: b"v" for number in range(20)}

#: By what it does, a verb as it is typed; {node}, {key} and {dir} stand for those of the test.
READING = {
    "a document": "get {key} --node {node} --timeout 1s",
    "observing": "observe {key} --node {node} --timeout 1s",
    "keys": "keys --node {node} --timeout 1s",
    "keys counted": "keys k --count --node {node} --timeout 1s",
    "tail": "tail --start 0 --until-now --node {node} --timeout 1s",
    "watching keys": "watch k* --until-now --node {node} --timeout 1s",
    "watching a key": "watch {key} --until-now --node {node} --timeout 1s",
    "mirror": "mirror --to - --until-now --node {node} --timeout 1s",
    "mirror in a file": "mirror --to jsonl:{dir}/x --until-now --node {node} --timeout 1s",
    "mirror in a table": "mirror --to sqlite:{dir}/x --until-now --node {node} --timeout 1s",
    "verify": "verify {node} {node} --lag 0",
    "backup": "backup {dir}/backup --servers {node}",
    "export": "export {dir}/export --servers {node} --checkpoint {dir}/c --trigger available-now",
}

VERBS = pytest.mark.parametrize("verb", READING.values(), ids=READING.keys())

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("data"), "--vbuckets", str(COUNT)) as running:
        with KvClient(str(running.upr)) as kv:
            kv.set_many(DOCUMENTS)
        yield running
        running.stop()


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@pytest.fixture
def run(here: Here, tmp_path: Path) -> Run:
    def run(verb: str, node: object) -> Any:
        key = next(each for each in DOCUMENTS if vbucket_of(each, COUNT) == AWAY).decode()
        return here(*verb.format(node=node, key=key, dir=tmp_path).split())

    return run


@pytest.fixture
def set_map(server: ServerProcess) -> Iterator[Callable[[bytes], None]]:
    """Give the node a map; its own one, as text, is put in place afterwards."""

    def put(text: bytes) -> None:
        with NodeConnection(str(server.upr)) as connection:
            answer = connection.ask(RequestFrame(Opcode.SET_CLUSTER_CONFIG, value=text))
            assert not answer.status

    with NodeConnection(str(server.upr)) as connection:
        own = connection.ask(RequestFrame(Opcode.GET_CLUSTER_CONFIG)).value
    yield put
    put(own)


@pytest.fixture
def incomplete(server: ServerProcess, here: Here) -> Iterator[None]:
    for state in ("dead", "active"):
        assert here("vbucket", "set", AWAY, state, "--node", server.upr).code == 0
        if state == "dead":
            yield


@VERBS
@pytest.mark.usefixtures("incomplete")
def test_a_vbucket_that_is_active_nowhere_is_never_left_out_in_silence(
    verb: str, run: Run, server: ServerProcess
) -> None:
    ended = run(verb, server.upr)
    assert ended.code == 1
    assert f"vBucket {AWAY}" in ended.err or f"vb={AWAY}" in ended.err


@VERBS
def test_a_cluster_map_that_makes_no_sense_hinders_nobody(
    verb: str, run: Run, server: ServerProcess, set_map: Callable[[bytes], None]
) -> None:
    set_map(b'{"rev": 1}')
    assert run(verb, server.upr).code == 0


def test_who_writes_measures_or_forgets_needs_no_map_either(
    here: Here, server: ServerProcess, set_map: Callable[[bytes], None]
) -> None:
    set_map(b'{"vBucketServerMap": {"vBucketMap": 5, "serverList": []}}')
    place = str(server.upr)
    for words in ("set a b", "incr n --initial 5", "del a n"):
        assert here(*words.split(), "--node", place).code == 0
    assert here("bench", "--node", place, "-n", 1, "--keys", 8).code == 0
    assert forget(place, "nobody") == []


@VERBS
def test_a_node_behind_a_forwarded_port_is_reached_there_alone(
    verb: str, run: Run, server: ServerProcess, set_map: Callable[[bytes], None]
) -> None:
    """What it knows of its address often means nothing where the client is."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, Proxy(server.upr) as proxy:
        elsewhere.setblocking(False)
        port = elsewhere.getsockname()[1]
        inner = {"serverList": [f"127.0.0.1:{port}"], "vBucketMap": [[0]] * COUNT}
        this = [{"thisNode": True, "services": {"kv": port}}]
        set_map(json.dumps({"nodesExt": this, "vBucketServerMap": inner}).encode())
        assert run(verb, proxy.address).code == 0
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


@VERBS
def test_a_node_that_its_map_calls_otherwise_is_one_node(
    verb: str, run: Run, server: ServerProcess, set_map: Callable[[bytes], None]
) -> None:
    """One map for all nodes marks none of them, and whoever dials a tunnel knows another name."""
    inner = {"serverList": [str(server.upr)], "vBucketMap": [[0]] * COUNT}
    set_map(json.dumps({"vBucketServerMap": inner}).encode())
    with Proxy(server.upr) as proxy:
        assert run(verb, proxy.address).code == 0


@pytest.mark.parametrize("verb", [READING[each] for each in ("a document", "mirror", "export")])
def test_a_map_with_too_few_vbuckets_hides_nothing(
    verb: str, run: Run, server: ServerProcess, set_map: Callable[[bytes], None]
) -> None:
    for few in (COUNT - 1, COUNT // 2):
        inner = {"serverList": [str(server.upr)], "vBucketMap": [[0]] * few}
        set_map(json.dumps({"vBucketServerMap": inner}).encode())
        ended = run(verb, server.upr)
        assert few % 2 == 0 or ended.code == 0, "keys are spread over a power of two"
        assert ended.code == 0 or "set another map there" in ended.err


@VERBS
def test_several_at_a_time_have_connections_of_different_names(
    verb: str, run: Run, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node ends the older of two connections with one name.

    Who reports for a registered client takes its name on purpose: it succeeds an earlier process.
    """
    names: list[bytes] = []
    whole = Handshake.open

    def noted(shape: Handshake, name: bytes, *more: int) -> RequestFrame:
        if not name.startswith(b"registers "):
            names.append(name)
        return whole(shape, name, *more)

    monkeypatch.setattr(Handshake, "open", noted)
    for _ in range(2):
        assert run(verb, server.upr).code == 0
    assert len(names) == len(set(names))


def test_leases_that_are_read_at_one_time_do_not_end_each_other(server: ServerProcess) -> None:
    place = str(server.upr)
    with Lease(place, (), 60) as one, Lease(place, (), 60) as other:
        pairs = zip(one.read(), other.read(), strict=True)
        assert {a.key for a, b in pairs if a == b and a.op == "set"} >= DOCUMENTS.keys()


def test_a_lease_that_is_read_slowly_lives_on(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is somebody who turns pages: keep-alives are answered, the lease is renewed."""
    monkeypatch.setattr("uprmc.client.lease.NOOP_INTERVAL_S", 0.2)
    renewed: list[float] = []
    whole = Lease.renew

    def noted(lease: Lease, lifetime_s: float) -> None:
        whole(lease, lifetime_s)
        renewed.append(lifetime_s)

    monkeypatch.setattr(Lease, "renew", noted)
    with Lease(str(server.upr), (), 60) as lease:
        lease._renew_at = 0.0
        changes = lease.read(renews=True)
        keys = {next(changes).key}
        wait_until(lambda: len(renewed) >= 1)
        lease._renew_at = 0.0
        wait_until(lambda: len(renewed) >= 2)
        assert keys | {change.key for change in changes} >= DOCUMENTS.keys()


def test_a_replica_alone_has_no_keys_and_is_compared_with_its_source(
    here: Here, tmp_path: Path, server: ServerProcess, set_map: Callable[[bytes], None]
) -> None:
    """Also if a map says of each that they belong together; then neither is read twice."""
    source = str(server.upr)
    with start_uprmc(tmp_path / "b", "--vbuckets", str(COUNT), "--source", source) as copy:
        replica = str(copy.upr)
        ended = here("replicate", "--node", replica, "--source", source, "--wait")
        assert ended.code == 0
        ended = here("keys", "--node", replica, "--timeout", "1s")
        assert (ended.code, ended.out) == (1, "")
        assert "no difference" in here("verify", source, replica, "--lag", 0).out
        assert here("replicate", "--node", replica, "--stop").code == 0
        assert here("set", "later", "x", "--node", source).code == 0
        inner = {"serverList": [source, replica], "vBucketMap": [[0]] * COUNT}
        this = [{"thisNode": True, "services": {"kv": server.upr.port}}]
        set_map(json.dumps({"nodesExt": this, "vBucketServerMap": inner}).encode())
        ended = here("verify", replica, source, "--lag", 0)
        assert ended.code == 1
        assert f"1 only in node {source} " in ended.out
        assert here("del", "later", "--node", source).code == 0
        copy.stop()


def test_who_reads_to_the_end_says_that_a_node_cannot_read_its_disk(
    here: Here, tmp_path: Path
) -> None:
    """The stream ends there again and again; nobody waits for it without an end."""
    with start_uprmc(tmp_path / "data", "--vbuckets", "1") as node:
        with KvClient(str(node.upr)) as kv:
            kv.set_many({b"k%d" % number: b"value-%d" % number for number in range(9)})
        node.stop()
    file = tmp_path / "data" / "data.mdb"
    content = file.read_bytes()
    assert b"value-5" in content
    file.write_bytes(content.replace(b"value-5", b"walue-5"))
    with start_uprmc(tmp_path / "data") as node:
        for verb in ("tail", "mirror", "watching keys", "keys"):
            words = READING[verb].format(node=node.upr, dir=tmp_path).split()
            ended = here(*words)
            assert ended.code == 1, verb
            assert "event damaged_record" in ended.err, verb
        ended = here("status", "--node", node.upr)
        assert ended.code == 1
        assert "damaged" in ended.out
        node.stop()
