"""spymemcached 2.12.3, the Java client, as Debian packs it: documents, and its TapClient.

Programs in ``interop/java`` drive it; they are compiled here. What TapClient received is compared
with all that the node holds, key by key, as a UPR consumer reads it.

Proves: MemcachedClient works over both protocols, and logs in by SASL PLAIN; TapClient gets a
complete dump, a complete backfill, live changes without losing one, some vBuckets only, a backfill
of nothing old, keys without values; with and without acknowledgements. takeoverVbuckets() of this
client is not tried: it announces more bytes than it sends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interop import java_programs
from interop import wire as w
from interop.comparison import everything_of
from interop.conftest import Start
from interop.java_programs import Classes, JavaProgram
from interop.server_process import ServerProcess
from interop.tap_copy import Document, Documents
from interop.upr_wire import UprWire
from interop.waiting import wait_until
from tests.login.files import password_of, users_file

pytestmark = [
    pytest.mark.skipif(bool(java_programs.missing()), reason=java_programs.missing() or "-"),
    pytest.mark.acceptance("D56"),
]

VBUCKETS = 16
_AUTH_ERROR = 0x20
Peer = Callable[..., JavaProgram]
Line = dict[str, Any]


@pytest.fixture(scope="module")
def module_server(
    start: Start, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with start(tmp_path_factory.mktemp("data"), "--vbuckets", str(VBUCKETS)) as process:
        yield process
        process.stop()


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Classes:
    return java_programs.compiled(tmp_path_factory.mktemp("classes"))


@pytest.fixture(params=["binary", "text"])
def client(
    request: pytest.FixtureRequest, classes: Classes, server: ServerProcess
) -> Iterator[JavaProgram]:
    address = server.memcached
    words = ("MemcachedPeer", address.host, address.port, request.param)
    with JavaProgram(classes, *words) as program:
        yield program


@pytest.fixture
def tap(classes: Classes, server: ServerProcess, peer: str) -> Iterator[Peer]:
    """``tap("dump", "name")``: TapClient on one stream of the node."""
    if peer != "uprmc":
        pytest.skip("memcached does not speak TAP")
    assert server.upr is not None
    address = server.upr
    programs: list[JavaProgram] = []

    def run(*words: object) -> JavaProgram:
        programs.append(JavaProgram(classes, "TapPeer", address.host, address.port, *words))
        return programs[-1]

    yield run
    for program in programs:
        program.__exit__(None, None, None)


@pytest.fixture
def kv(server: ServerProcess, peer: str) -> Iterator[UprWire]:
    if peer != "uprmc":
        pytest.skip("memcached knows no vBuckets")
    assert server.upr is not None
    with UprWire(server.upr) as connection:
        yield connection


# --- MemcachedClient ----------------------------------------------------------------------------


def test_documents_are_stored_read_and_deleted(client: JavaProgram) -> None:
    assert client.ask("get", "key") == "null"
    flags = 0x5EADBEEF  # in text it writes greater ones as negative numbers
    assert client.ask("set", "key", flags, 0, b"value".hex()) == "true"
    assert client.ask("get", "key") == f"{flags} {b'value'.hex()}"
    assert client.ask("add", "key", 1, 0, "00") == "false"
    assert client.ask("set", "empty", 0, 0, "-") == "true"
    assert client.ask("get", "empty") == "0 -"
    assert client.ask("delete", "key") == "true"
    assert client.ask("delete", "key") == "false"
    assert client.ask("get", "key") == "null"


def test_its_own_types_come_back_as_what_they_were(client: JavaProgram) -> None:
    values = [
        ("string", "x" * 20_000),  # long ones it compresses
        ("integer", "-7"),
        ("long", "123456789012345"),
        ("double", "0.25"),
        ("boolean", "true"),
    ]
    for kind, text in values:
        assert client.ask("setobject", f"key-{kind}", kind, text) == "true"
        assert client.ask("getobject", f"key-{kind}") == f"{kind} {text}"
    assert client.ask("incr", "counter", 5, 10) == "10"
    assert client.ask("incr", "counter", 5, 10) == "15"
    assert client.ask("flush") == "true"
    assert client.ask("get", "counter") == "null"


def test_it_logs_in_by_sasl_plain(
    classes: Classes, start: Start, tmp_path: Path, peer: str
) -> None:
    if peer != "uprmc":
        pytest.skip("users are uprmc's")
    users = users_file(tmp_path, app="read,write")
    with start(tmp_path / "data", "--vbuckets", "4", "--set", f"server.users={users}") as server:
        address = server.memcached
        words = ("MemcachedPeer", address.host, address.port, "binary", "app", password_of("app"))
        with JavaProgram(classes, *words) as program:
            assert program.ask("set", "key", 7, 0, b"value".hex()) == "true"
            assert program.ask("get", "key") == f"7 {b'value'.hex()}"
        with w.Wire(address) as stranger:
            assert stranger.ask(w.frame(w.GET, b"key")).status == _AUTH_ERROR
        server.stop()


# --- TapClient ----------------------------------------------------------------------------------


def fill(kv: UprWire, vbuckets: range = range(VBUCKETS), each: int = 60) -> None:
    """Documents of all kinds of flags, expiry and size, and some deletions."""
    for vbucket in vbuckets:
        stores = [
            w.store(
                w.SETQ,
                b"key-%d-%d" % (vbucket, number),
                bytes([number]) * (number * 7),
                flags=0xDEADBEEF ^ (number << 20),
                expiration=2_000_000_000 + number if number % 3 == 0 else 0,
                vbucket=vbucket,
            )
            for number in range(each)
        ]
        assert kv.replies_until_noop(*stores) == []
        for number in range(0, each, 10):
            kv.delete(vbucket, b"key-%d-%d" % (vbucket, number))


def held(server: ServerProcess, vbuckets: range = range(VBUCKETS)) -> Documents:
    """What the node holds, as a UPR consumer reads it; spymemcached shows no revisions."""
    assert server.upr is not None
    return {
        name: Document(found.value, found.flags, found.time, found.cas, None)
        for name, found in everything_of(server.upr, vbuckets).items()
        if found.is_document
    }


class Received:
    """What TapClient gave its program, line by line."""

    def __init__(self, program: JavaProgram) -> None:
        self.documents: Documents = {}
        self.deleted: set[tuple[int, bytes]] = set()
        self.fixed: set[bool] = set()
        self.end = ""
        self._program = program

    def step(self) -> bool:
        """Take a line; ``False`` at the end."""
        text = self._program.line()
        assert text, self._program.errors()
        line: Line = json.loads(text)
        self.end = line.get("end", "")
        if not self.end:
            self._take(line)
        return not self.end

    def _take(self, line: Line) -> None:
        name = (line["vbucket"], bytes.fromhex(line["key"]))
        assert line["ttl"] == 255, line
        if line["op"] == "MUTATION":
            self.fixed.add(line["fixed"])
            self.documents[name] = Document(
                bytes.fromhex(line["value"]), line["flags"], line["expiry"], line["cas"], None
            )
        elif line["op"] == "DELETE":
            self.deleted.add(name)
            self.documents.pop(name, None)
        else:
            raise AssertionError(line)

    def until(self, true: Callable[[], bool]) -> None:
        while not true():
            assert self.step(), f"the stream ended: {self._program.errors()}"

    def until_complete(self) -> Documents:
        while self.step():
            pass
        assert self.end == "complete", self._program.errors()
        return self.documents


def test_a_dump_is_complete(tap: Peer, kv: UprWire, server: ServerProcess) -> None:
    fill(kv)
    received = Received(tap("dump", "backup"))
    assert received.until_complete() == held(server)
    assert received.fixed == {True}


def test_a_dump_without_acknowledgements_is_complete(
    tap: Peer, kv: UprWire, server: ServerProcess
) -> None:
    fill(kv)
    assert Received(tap("custom", "plain", "dump")).until_complete() == held(server)


def test_a_dump_of_nothing_ends(tap: Peer, kv: UprWire) -> None:
    assert Received(tap("dump", "")).until_complete() == {}


def test_a_dump_of_some_vbuckets(tap: Peer, kv: UprWire, server: ServerProcess) -> None:
    fill(kv)
    received = Received(tap("custom", "some", "dump", "ack", "vbuckets=3,4,5"))
    assert received.until_complete() == held(server, range(3, 6))


def test_more_than_a_window_is_dumped(tap: Peer, kv: UprWire, server: ServerProcess) -> None:
    """ACKs leave one by one, each with a key of 36 bytes."""
    many = [(b"many-%d" % number, b"%d" % number) for number in range(24_000)]
    for vbucket in (1, 2):
        kv.put_many(vbucket, many[vbucket::2])
    received = Received(tap("dump", "many"))
    assert received.until_complete() == held(server)


@pytest.mark.parametrize("words", [("backfill", "b", 0), ("custom", "c", "backfill=0", "ack")])
def test_a_backfill_is_followed_by_live_changes(
    tap: Peer, kv: UprWire, server: ServerProcess, words: tuple[object, ...]
) -> None:
    fill(kv)
    old = held(server)
    received = Received(tap(*words))
    received.until(lambda: received.documents == old)
    kv.put(3, b"live", b"one")
    kv.put(3, b"live", b"two")
    kv.delete(5, b"key-5-1")
    new = held(server)
    received.until(lambda: (5, b"key-5-1") in received.deleted)
    received.until(lambda: received.documents == new)


def test_changes_made_while_it_connects_are_not_lost(
    tap: Peer, kv: UprWire, server: ServerProcess
) -> None:
    """A future backfill age: nothing old; its position is that of its TAP_CONNECT."""
    kv.put(7, b"old", b"before")
    received = Received(tap("custom", "future", f"backfill={2**62}", "ack"))
    wait_for_connection(kv, "eq_tapq:future:")
    expected = {}
    for number in range(50):
        name = b"new-%d" % number
        kv.put(number % VBUCKETS, name)
        expected[number % VBUCKETS, name] = b"value"
    received.until(lambda: expected.keys() <= received.documents.keys())
    assert (7, b"old") not in received.documents
    assert {name: found.value for name, found in received.documents.items()} == expected


def wait_for_connection(kv: UprWire, prefix: str) -> None:
    """Wait until the node lists the client."""
    wait_until(
        lambda: any(name.startswith(prefix) for name in kv.texts(b"tap")),
        lambda: f"{prefix} is not there: {sorted(kv.texts(b'tap'))}",
    )


def test_live_changes_of_one_vbucket_under_checkpoints(
    tap: Peer, kv: UprWire, server: ServerProcess
) -> None:
    """It takes a checkpoint's section for something else, and goes on."""
    fill(kv, range(2, 4), 20)
    program = tap("custom", "ids", "backfill=0", "vbuckets=3", "ack", "checkpoint")
    wanted = held(server, range(3, 4))
    found: dict[bytes, bytes] = {}
    ops = set()
    while found.keys() < {key for _, key in wanted} | {b"live"}:
        line = json.loads(program.line())
        ops.add(line["op"])
        if line["op"] == "MUTATION":
            assert line["vbucket"] == 3
            found[bytes.fromhex(line["key"])] = bytes.fromhex(line["value"])
        if len(found) == len(wanted) and b"live" not in found:
            kv.put(2, b"elsewhere")
            kv.put(3, b"live", b"change")
    assert found[b"live"] == b"change"
    assert "START_CHECKPOINT" in ops


def test_keys_only_has_keys_flags_and_no_values(
    tap: Peer, kv: UprWire, server: ServerProcess
) -> None:
    fill(kv, range(3, 4))
    received = Received(tap("custom", "keys", "dump", "ack", "keys"))
    without = {name: each._replace(value=b"") for name, each in held(server).items()}
    assert received.until_complete() == without


@pytest.mark.acceptance("D01")
def test_what_its_own_client_stored_comes_in_a_dump(
    tap: Peer, client: JavaProgram, server: ServerProcess
) -> None:
    for number in range(300):
        assert client.ask("set", f"key-{number}", number << 8, 0, b"text".hex()) == "true"
    for number in range(0, 300, 7):
        assert client.ask("delete", f"key-{number}") == "true"
    received = Received(tap("dump", "own"))
    documents = received.until_complete()
    assert documents == held(server)
    assert {key for _, key in documents} == {
        b"key-%d" % number for number in range(300) if number % 7
    }


def test_dumps_at_the_same_time_are_complete(tap: Peer, kv: UprWire, server: ServerProcess) -> None:
    fill(kv)
    programs = [tap("dump", f"dump-{number}") for number in range(3)]
    wanted = held(server)
    for program in programs:
        assert Received(program).until_complete() == wanted
