"""``docs/client.md`` tells the truth: its programs run, its tables name everything there is.

Proves: what a stranger copies from the page works against a real node.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.client_page import TEXT, Block, blocks
from interop.consumer_program import Program, rows_of
from interop.nursery import run
from interop.replica_pair import ReplicaPair, replicate, wait_until_level
from interop.waiting import wait_until
from tests.documents import names, rows, section
from uprmc.client import Change, Handler, StateStore, errors, kv, position
from uprmc.client.core import BARRIERS_MAX, NodeMetrics, Options, VBucketMetrics
from uprmc.client.handler import BatchHandler, DurableHandler
from uprmc.protocol.upr_extensions import COOKIE_MAX_BYTES
from uprmc.remote import errors as remote_errors
from uprmc.remote.directory import NODES_MAX
from uprmc.remote.registering import Purged

PYTHON = [each for each in blocks() if each.kind == "python"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, peer: str) -> Iterator[ReplicaPair]:
    """Two nodes with the default settings, the second one a replica of the first."""
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    with ReplicaPair(tmp_path_factory.mktemp("pair")) as made:
        with made.a.wire() as wire:
            wire.put_many(1, [(b"key-%d" % number, b"value") for number in range(20)])
            wire.delete(1, b"key-3")
        replicate(made.b, made.a.upr)
        wait_until_level(made.a, made.b)
        yield made


@pytest.mark.parametrize("block", PYTHON, ids=lambda each: f"line-{each.line}")
def test_every_program_of_the_page_runs(block: Block, pair: ReplicaPair, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(block.program([pair.a.upr, pair.b.upr]), encoding="utf-8")
    if not block.endless:
        command = [sys.executable, str(path)]
        code, _, errors = run(command, text=True, cwd=tmp_path)
        assert (code, errors) == (0, "")
        return
    with Program(path, directory=tmp_path) as program:
        program.start(unbuffered=True)
        prints = "print(" in block.text
        mirror = lambda: rows_of(tmp_path / "mirror.db", "SELECT key FROM documents")  # noqa: E731
        wait_until(lambda: b"key-7" in str(program.said() or mirror()).encode(), program.said)
        if prints:
            program.kill()
            assert "Traceback" not in program.said()
        else:
            program.interrupt()
            assert program.said() == ""


def test_the_page_has_programs_and_pictures_only() -> None:
    assert {each.kind for each in blocks()} == {"python", ""}
    assert len(PYTHON) >= 10


# --- tables -------------------------------------------------------------------------------------


def test_errors_and_fields_that_the_page_mentions_exist() -> None:
    kinds = {
        name: kind for module in (errors, kv, remote_errors) for name, kind in vars(module).items()
    }
    text = " ".join(section(TEXT, "## Errors").split()).partition("Some have fields:")[2]
    told = re.findall(r"`([A-Z]\w+)`|`([a-z_]+)`", text)
    assert {name for name, _ in told if name} <= kinds.keys()
    assert {field for _, field in told if field} == {
        *("vbuckets", "vbucket", "held_seqno", "seqno", "purged"),
        *Purged._fields,
        *("done", "failed", "unknown"),
    }


def test_every_method_of_a_handler_is_told_with_its_arguments() -> None:
    told = {}
    for name in names(section(TEXT, "## The handler")):
        method, _, arguments = name.rstrip(")").partition("(")
        told[method] = [each for each in arguments.split(", ") if each]
    optional = {"changes": BatchHandler.changes, "durable": DurableHandler.durable}
    found = {**vars(Handler), **optional}
    expected = {
        name: list(method.__code__.co_varnames[1 : method.__code__.co_argcount])
        for name, method in found.items()
        if callable(method) and not name.startswith("_")
    }
    assert told == expected


def test_every_field_of_a_change_is_told() -> None:
    text = section(TEXT, "## The handler")
    sentence = text[text.index("`Change` has") : text.index("; `Document`")]
    told = set(re.findall(r"`(\w+)`", sentence)) - {"Change", "set", "delete", "expire"}
    assert told == set(Change._fields)


def test_every_metric_is_told() -> None:
    text = section(TEXT, "## Metrics")
    assert set(names(text)) == set(VBucketMetrics._fields)
    by_node = text[text.index("By node") :]
    assert all(f"`{field}`" in by_node for field in NodeMetrics._fields)


def test_every_limit_is_told() -> None:
    told = {row[0]: row[1] for row in rows(section(TEXT, "## Limits"))}
    options = Options()
    assert told["bytes that a node may send ahead of the handler"] == (
        f"`buffer_bytes`, {options.buffer_bytes >> 20} MiB"
    )
    assert f"`ring_items`, {options.ring_items:,}" in told["keys in the ring of each vBucket"]
    assert f"({options.noop_interval_s:g} s)" in told["silence after which a connection is closed"]
    assert told["waiting barriers"] == f"{BARRIERS_MAX:,}, fixed"
    assert told["text of a barrier"] == f"{COOKIE_MAX_BYTES} bytes, fixed"
    assert told["nodes learned from cluster maps"] == f"{NODES_MAX}, fixed"
    offered = told["known versions that are sent to a node"]
    assert offered == f"{position.VERSIONS_MAX}, fixed"


def test_how_many_methods_a_state_needs_is_told() -> None:
    methods = [name for name in vars(StateStore) if callable(getattr(StateStore, name))]
    public = [name for name in methods if not name.startswith("_")]
    words = {5: "five", 6: "six", 7: "seven"}
    assert f"({words[len(public)]} methods, " in section(TEXT, "## Delivery guarantees")
