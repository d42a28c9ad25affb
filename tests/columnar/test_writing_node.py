"""Writing to real nodes: every mode, TLS, kills, takeovers, memory that is short."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from interop.replica_pair import Node, ReplicaPair, replicate, take_over, wait_until_level
from interop.server_process import ServerProcess, start_uprmc
from tests.bulk.here import changes, contents, numbered, put
from tests.columnar.write_rows import documents, versions, written
from tests.server.certificates import make_certificate
from uprmc.client.handler import DELETE, EXPIRE
from uprmc.client.kv import KvClient
from uprmc.columnar.access import Access, Tls
from uprmc.columnar.errors import BadRow
from uprmc.columnar.write_options import WriteOptions
from uprmc.columnar.writing import Writer
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode


def of(found: Mapping[bytes, Any], prefix: bytes) -> dict[bytes, Any]:
    """Return one test's documents of a node that several tests use."""
    return {key: value for key, value in found.items() if key.startswith(prefix)}


def test_every_mode_does_on_a_node_what_it_says(node: ServerProcess) -> None:
    rows = numbered(3000, prefix="mode")
    assert written(node.upr, documents(rows)).applied == 3000
    assert of(contents(node), b"mode") == rows
    assert written(node.upr, documents(rows), mode="insert").existed == 3000
    changed = {**numbered(10, prefix="mode", value="other"), b"mode-new": b"document"}
    report = written(node.upr, documents(changed), mode="insert", on_error="skip")
    assert (report.applied, report.errors) == (1, 10)
    assert of(contents(node), b"mode") == {**rows, b"mode-new": b"document"}
    assert written(node.upr, documents(rows), mode="delete").applied == 3000
    assert written(node.upr, documents(rows), mode="delete").missing == 3000
    assert of(contents(node), b"mode") == {b"mode-new": b"document"}


def test_replace_stores_only_what_is_there(node: ServerProcess) -> None:
    put(node, {b"re-1": b"old"})
    report = written(node.upr, documents({b"re-1": b"new", b"re-2": b"new"}), mode="replace")
    assert (report.applied, report.missing) == (1, 1)
    assert of(contents(node), b"re-") == {b"re-1": b"new"}


def test_a_row_with_a_cas_is_written_only_over_the_version_that_it_names(
    node: ServerProcess,
) -> None:
    put(node, {b"cas-1": b"old", b"cas-2": b"old", b"cas-3": b"old"})
    cas = {key: each.cas for key, each in changes(node).items()}
    rows = documents(
        {b"cas-1": b"new", b"cas-2": b"new", b"cas-3": b"new", b"cas-4": b"new", b"cas-5": b"new"},
        version=pa.array([cas[b"cas-1"], cas[b"cas-2"] - 1, None, cas[b"cas-1"], 0], pa.int64()),
    )
    report = written(node.upr, rows, cas_column="version")
    assert (report.applied, report.conflicts) == (3, 2)
    there = {b"cas-1": b"new", b"cas-2": b"old", b"cas-3": b"new", b"cas-5": b"new"}
    assert of(contents(node), b"cas-") == there
    again = written(node.upr, rows, cas_column="version")
    assert (again.applied, again.existed, again.conflicts) == (2, 1, 2)
    with pytest.raises(BadRow, match="the document has another CAS"):
        written(node.upr, rows.slice(1, 1), cas_column="version", on_conflict="error")
    report = written(node.upr, rows.slice(0, 2), mode="delete", cas_column="version")
    assert (report.applied, report.conflicts) == (0, 2)
    fresh = changes(node)[b"cas-1"].cas
    row = documents({b"cas-1": None}, version=pa.array([fresh], pa.int64()))
    assert written(node.upr, row, mode="delete", cas_column="version").applied == 1


def test_one_time_to_live_holds_for_all_rows(node: ServerProcess) -> None:
    written(node.upr, documents({b"live": b"x"}), ttl_s=300)
    assert abs(changes(node)[b"live"].expiry - (time.time() + 300)) < 30


def test_a_replay_with_metadata_changes_nothing_on_a_node(node: ServerProcess) -> None:
    rows = [(b"meta%d" % n, b"v%d" % n, "set", 5, 1000 + n) for n in range(2000)]
    rows += [(b"meta-gone", None, "delete", 3, 77), (b"meta-late", None, "expire", 3, 78)]
    batch = versions(rows)
    assert written(node.upr, batch, mode="append-meta").applied == 2002
    first = of(changes(node), b"meta")
    report = written(node.upr, batch, mode="append-meta")
    assert (report.applied, report.conflicts) == (0, 2002)
    assert of(changes(node), b"meta") == first
    assert (first[b"meta7"].rev, first[b"meta7"].cas, first[b"meta7"].value) == (5, 1007, b"v7")
    assert (first[b"meta-gone"].op, first[b"meta-late"].op) == (DELETE, EXPIRE)
    older = versions([(b"meta7", b"older", "set", 1, 1)])
    assert written(node.upr, older, mode="append-meta", force=True).applied == 1
    assert contents(node)[b"meta7"] == b"older"


def test_flags_and_expiry_reach_the_document(node: ServerProcess) -> None:
    rows = documents([(b"flags", b"v"), (b"flags for ever", b"v")], f=[5, 6], ttl=[1000, None])
    written(node.upr, rows, flags_column="f", ttl_column="ttl")
    with KvClient(str(node.upr)) as kv:
        short, long = kv.get_meta(b"flags"), kv.get_meta(b"flags for ever")
    assert short is not None
    assert long is not None
    assert (short.flags, long.flags, long.expiry) == (5, 6, 0)
    assert short.expiry > 1_700_000_000


def test_a_value_over_the_node_s_limit_is_an_error_and_the_old_document_stays(
    node: ServerProcess,
) -> None:
    put(node, {b"large": b"old"})
    rows = documents(
        [(b"large", bytes(2**20)), (b"fits", bytes(2**20 - 100)), (b"over", bytes(2**20 - 10))]
    )
    report = written(node.upr, rows, on_error="skip")
    assert (report.applied, report.errors) == (1, 2)
    assert contents(node)[b"large"] == b"old"
    with pytest.raises(BadRow, match="VALUE_TOO_LARGE"):
        written(node.upr, rows)


def test_a_locked_document_is_waited_for(node: ServerProcess) -> None:
    put(node, {b"locked": b"old"})
    with KvClient(str(node.upr)) as kv:
        vbucket = kv.vbucket_of(b"locked")
    assert node.upr is not None
    with node.upr.connect() as line:
        lock = RequestFrame(Opcode.GETL, b"locked", (1).to_bytes(4, "big"), vbucket=vbucket)
        line.sendall(lock.encode())
        line.recv(4096)
        report = written(node.upr, documents({b"locked": b"new"}))
    assert report.retried > 0
    assert contents(node)[b"locked"] == b"new"


@pytest.mark.parametrize("durability", ["none", "persist"])
def test_writing_over_tls(tmp_path: Path, durability: str) -> None:
    certificate, key = make_certificate(tmp_path)
    options = ["--tls-cert", certificate, "--tls-key", key, "--vbuckets", "64"]
    rows = {b"k%d" % n: bytes(1000) for n in range(3000)}
    with start_uprmc(tmp_path / "data", *options) as server:
        access = Access((str(server.upr),), tls=Tls(verify=False))
        for mode, counter in (("insert", "applied"), ("insert", "existed"), ("delete", "applied")):
            with Writer(WriteOptions(access, mode=mode, durability=durability)) as writer:  # type: ignore[arg-type]
                writer.write(documents(rows))
                assert getattr(writer.finish(), counter) == 3000


# --- nodes that go away ---------------------------------------------------------------------------


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "mortal", "--vbuckets", "64")
    try:
        node.start()
        yield node
    finally:
        node.end()


@pytest.mark.parametrize("mode", ["upsert", "append-meta"])
def test_a_node_killed_and_started_again_lacks_nothing_that_was_reported(
    mortal: Node, mode: Any
) -> None:
    """Killed while rows are on their way: all are there in the end, with their last value."""
    rows = [(f"k{n % 7000}".encode(), b"v%d" % n, "set", n + 1, n + 1) for n in range(10_000)]
    batches = [versions(rows[at : at + 500]) for at in range(0, len(rows), 500)]
    options = WriteOptions(Access((str(mortal.upr),)), mode=mode, durability="persist")
    with Writer(options) as writer:
        for number, batch in enumerate(batches):
            if number == 7:
                again = threading.Thread(target=kill_and_start, args=(mortal,))
                again.start()
                writer.write(batch)
                again.join()
            else:
                writer.write(batch)
        report = writer.finish()
    mortal.kill()
    mortal.start()
    assert report.balanced
    assert report.errors == 0
    assert report.retried > 0
    assert report.resent > 0
    expected = {key: value for key, value, *_ in rows}
    assert contents(mortal.server) == expected


def kill_and_start(node: Node) -> None:
    node.kill()
    node.start()


def test_a_takeover_in_mid_write_is_followed(tmp_path: Path) -> None:
    rows = numbered(6000)
    parts = list(rows.items())
    with ReplicaPair(tmp_path, "--vbuckets", "16") as pair:
        replicate(pair.b, pair.dialled(pair.a))
        wait_until_level(pair.a, pair.b)
        access = Access((str(pair.a.upr), str(pair.b.upr)))
        with Writer(WriteOptions(access, durability="persist")) as writer:
            writer.write(documents(parts[:3000]))
            take_over(pair.b, pair.dialled(pair.a), range(8))
            writer.write(documents(parts[3000:]))
            report = writer.finish()
        assert (report.applied, report.errors) == (6000, 0)
        assert report.retried > 0
        with KvClient([str(pair.a.upr), str(pair.b.upr)]) as kv:
            found = {key: each.value for key, each in kv.get_many(rows).items()}
        assert found == rows


def test_a_node_short_of_memory_takes_all_in_the_end(tmp_path: Path) -> None:
    """More than fits into memory: temporary failures until the pager has made room."""
    options = ["--vbuckets", "16", "--set", "memory.quota=8388608"]
    rows = [(b"k%d" % n, bytes(4096)) for n in range(6000)]
    with start_uprmc(tmp_path / "data", *options) as server:
        report = written(server.upr, documents(rows))
        assert report.applied == 6000
        assert report.retried > 0
        with KvClient(str(server.upr)) as kv:
            assert len(kv.get_many([key for key, _ in rows[::50]])) == 120
