"""``tap`` and ``mc_bin_client`` of the package index, which speak TAP: Python 2, from 2014.

``tap`` is the reader of couchbase-cli's pump_tap as a program of its own: it asks for a dump, with
acknowledgements and item flags in order, and a batch of its messages ends at each acknowledgement.
``mc_bin_client`` has what it needs, and DEREGISTER. Their Python 2 is read by `interop.python2`.

Two things are done for ``tap``: it logs in, and does not expect that nobody has to, so here its
login does nothing; and for "unexpected TAP message" it returns one value where two are taken.

Proves: pump_tap's reader gets a complete dump, of any number of batches; DEREGISTER and the
statistics that tools read work from the client that knows them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from interop import python2
from interop import wire as w
from interop.comparison import everything_of
from interop.conftest import Start
from interop.server_process import ServerProcess
from interop.tap_copy import Document, Documents
from interop.upr_wire import UprWire

package: Any = python2.load("mc_bin_client", "memcacheConstants", "mc_bin_client")
if package is None:
    pytest.skip("it is not installed: pip install mc_bin_client==1.0.1", allow_module_level=True)
tap: Any = python2.load("tap")
if tap is None:
    pytest.skip("it is not installed: pip install tap==0.2", allow_module_level=True)
mc: Any = package.mc_bin_client
constants: Any = package.memcacheConstants

pytestmark = pytest.mark.acceptance("D56")

VBUCKETS = 16


class Client(mc.MemcachedClient):  # type: ignore[misc]
    """A client for servers without logins."""

    def sasl_auth_cram_md5(self, user: str, password: str) -> None:
        """There is none."""


@pytest.fixture(scope="module")
def module_server(
    start: Start, tmp_path_factory: pytest.TempPathFactory, peer: str
) -> Iterator[ServerProcess]:
    if peer != "uprmc":
        pytest.skip("memcached does not speak TAP")
    with start(tmp_path_factory.mktemp("data"), "--vbuckets", str(VBUCKETS)) as process:
        yield process
        process.stop()


@pytest.fixture
def kv(server: ServerProcess) -> Iterator[UprWire]:
    assert server.upr is not None
    with UprWire(server.upr) as connection:
        yield connection


@pytest.fixture
def reader(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The reader of pump_tap, connected."""
    assert server.upr is not None
    monkeypatch.setattr(mc, "MemcachedClient", Client)
    made = tap.TAP(server.upr.host, server.upr.port)
    yield made
    made.tap_conn.close()


def batches(reader: Any) -> list[list[tuple[Any, ...]]]:
    """All batches, up to its end of the dump."""
    found = []
    while True:
        trouble, batch = reader.provide_batch()
        assert not trouble, trouble
        if batch is not None:
            found.append(batch.msgs)
        if reader.tap_done or batch is None:
            return found


def documents(messages: list[tuple[Any, ...]]) -> Documents:
    found: Documents = {}
    for cmd, vbucket, key, flags, expiry, cas, meta, value in messages:
        name = (vbucket, key.encode("latin-1"))
        if cmd == constants.CMD_TAP_DELETE:
            found.pop(name, None)
            continue
        rev, nru = struct.unpack(">QB", meta.encode("latin-1"))
        assert 0 <= nru <= 3
        found[name] = Document(value.encode("latin-1"), flags, expiry, cas, rev)
    return found


def held(server: ServerProcess) -> Documents:
    assert server.upr is not None
    return {
        name: Document(found.value, found.flags, found.time, found.cas, found.rev)
        for name, found in everything_of(server.upr, range(VBUCKETS)).items()
        if found.is_document
    }


@pytest.mark.parametrize("each", [0, 5, 400])
def test_pump_taps_reader_gets_a_complete_dump(
    server: ServerProcess, kv: UprWire, each: int, request: pytest.FixtureRequest
) -> None:
    for vbucket in range(VBUCKETS):
        stores = [
            w.store(
                w.SETQ, b"key-%d" % n, bytes([n % 256]) * n, flags=0xDEADBEEF + n, vbucket=vbucket
            )
            for n in range(each)
        ]
        assert kv.replies_until_noop(*stores) == []
        if each:
            kv.put(vbucket, b"key-1", b"again")
            kv.delete(vbucket, b"key-2")
    reader = request.getfixturevalue("reader")
    found = batches(reader)
    assert documents([message for batch in found for message in batch]) == held(server)
    if each == 400:
        assert len(found) > 3
        assert reader.num_msg >= VBUCKETS * 399


def test_the_reader_ends_after_an_acknowledgement(reader: Any) -> None:
    """End of file is the end of a dump for it only if its last word was one."""
    assert documents([message for batch in batches(reader) for message in batch]) == {}
    assert reader.ack_last


def test_a_name_is_deregistered(server: ServerProcess) -> None:
    assert server.upr is not None
    client = mc.MemcachedClient(server.upr.host, server.upr.port)
    assert client.deregister_tap_client("nobody")[2] == ""
    client.close()


def test_statistics_that_tools_read(server: ServerProcess) -> None:
    assert server.upr is not None
    client = mc.MemcachedClient(server.upr.host, server.upr.port)
    stats = client.stats("tap")
    wanted = {"ep_tap_ack_interval", "ep_tap_ack_window_size", "ep_tap_ack_grace_period"}
    assert (wanted | {"ep_tap_backoff_period", "ep_tap_count"}) - stats.keys() == set()
    client.close()
