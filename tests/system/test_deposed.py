"""A replica is promoted, and the old active comes back and believes in itself: who is asked?

Real processes. The old active crashes a few times more, so its failover logs get longer than those
of the promoted node; or it is never restarted and nobody tells it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.replica_pair import (
    Node,
    ReplicaPair,
    fail_over,
    replicate,
    verb,
    wait_until_level,
)
from interop.waiting import wait_until
from uprmc.client import Change, Handler, SqliteState, UprClient
from uprmc.client.errors import NotActive
from uprmc.client.kv import KvClient, OutcomeUnknown, SomeFailed

VBUCKETS = range(8)
KEYS = [b"key-%d" % number for number in range(40)]

#: Entries that crashes add to each failover log of the old active.
CRASHES = 3


class Copy(Handler):
    """What the nodes hold, as far as a consumer was told."""

    def __init__(self) -> None:
        self.documents: dict[bytes, bytes | None] = {}

    def mutation(self, change: Change) -> None:
        self.documents[change.key] = change.value

    def undo(self, vbucket: int, key: bytes, document: object) -> None:
        self.documents[key] = getattr(document, "value", None)

    def rollback(self, vbucket: int, seqno: int) -> None:
        """All of it comes again."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicaPair]:
    """`b` follows `a` and holds what it holds."""
    with ReplicaPair(tmp_path, "--vbuckets", "8") as found:
        with KvClient(str(found.a.upr)) as kv:
            kv.set_many(dict.fromkeys(KEYS, b"before"))
        replicate(found.b, found.dialled(found.a))
        wait_until_level(found.a, found.b)
        yield found


def failed_over(pair: ReplicaPair) -> None:
    """The active dies, its replica is promoted and written to; the old one comes back."""
    pair.a.kill()
    fail_over(pair.b, VBUCKETS)
    write(pair)
    for _ in range(CRASHES):
        pair.a.start()
        pair.a.kill()
    pair.a.start()


def write(pair: ReplicaPair) -> None:
    with KvClient(str(pair.b.upr)) as kv:
        kv.set_many(dict.fromkeys(KEYS, b"after"))


def active(node: Node) -> list[dict[str, object]]:
    """Return the vBuckets that a node calls active."""
    rows = json.loads(verb("vbucket", "list", "--node", node.upr, "--json").stdout)
    return [row for row in rows if row["state"] == "active"]


def held(place: object) -> dict[bytes, bytes]:
    """What a node says when it is asked alone."""
    with KvClient(str(place)) as kv:
        return {key: found.value for key, found in kv.get_many(KEYS).items()}


@pytest.mark.acceptance("D33")
def test_nobody_reads_from_or_writes_to_a_deposed_active(pair: ReplicaPair, tmp_path: Path) -> None:
    a, b = str(pair.a.upr), str(pair.b.upr)
    state = tmp_path / "state.db"
    before = Copy()
    with UprClient([a, b], before, state=state, name="old", total_vbuckets=8) as client:
        client.run("now")
    with KvClient([a, b]) as kept:
        kept.set(KEYS[0], b"before")
        wait_until_level(pair.a, pair.b)
        failed_over(pair)

        for places in ([a, b], [b, a]):
            fresh = Copy()
            with UprClient(places, fresh) as client:
                client.run("now")
            assert fresh.documents == dict.fromkeys(KEYS, b"after")
        with UprClient([a, b], before, state=state, name="old", total_vbuckets=8) as client:
            client.run("now")
        assert before.documents == dict.fromkeys(KEYS, b"after")

        for number in range(8):
            try:
                kept.set(KEYS[number], b"late")
            except OutcomeUnknown:  # its connection was dead
                kept.set(KEYS[number], b"late")
    assert set(held(b).values()) == {b"after", b"late"}
    assert not active(pair.a)


@pytest.mark.acceptance("D33")
def test_a_deposed_node_is_told_as_soon_as_a_follower_of_the_new_one_sees_it(
    pair: ReplicaPair,
) -> None:
    """Who knows only the old one is refused then."""
    places = [str(pair.a.upr), str(pair.b.upr)]
    with UprClient(places, Copy()) as client:
        client.start()
        client.barrier(timeout_s=20)
        failed_over(pair)
        wait_until(lambda: not active(pair.a), "the deposed node serves on")


@pytest.mark.acceptance("D33")
def test_a_client_that_lives_on_finds_the_right_node_by_a_new_connection(
    pair: ReplicaPair,
) -> None:
    """Its connection to the promoted node is stale, for that one has restarted."""
    with KvClient([str(pair.a.upr), str(pair.b.upr)], retry_s=20) as kept:
        kept.get_many(KEYS)
        failed_over(pair)
        kept.get_many(KEYS)
        pair.b.stop()
        pair.b.start()
        for key in KEYS:
            try:
                kept.set(key, b"late")
            except (OutcomeUnknown, SomeFailed):
                kept.set(key, b"late")
    assert not active(pair.a)
    assert held(pair.b.upr) == dict.fromkeys(KEYS, b"late")


@pytest.mark.acceptance("D16", "D33")
def test_a_deposed_active_that_never_restarted_is_not_followed_by_who_has_a_state(
    pair: ReplicaPair, tmp_path: Path
) -> None:
    """It answers at once and its term is the one that the state knows: the other is asked, too."""
    state = SqliteState(tmp_path / "state.db", name="copy", vbuckets=8)
    copy, places = Copy(), [str(pair.a.upr), str(pair.b.upr)]
    with UprClient(places, copy, state=state) as client:
        client.run("now")
    pair.to_a.stop()  # the replica hears nothing more of it
    fail_over(pair.b, VBUCKETS)
    write(pair)
    with UprClient(places, copy, state=state) as client:
        client.run("now")
    assert copy.documents == dict.fromkeys(KEYS, b"after")

    pair.b.stop()
    with (
        UprClient(places, copy, state=state, patience_s=1.0) as client,
        pytest.raises(NotActive, match="vBuckets 0-7 are active at none of") as told,
    ):
        client.run("now")
    assert told.value.vbuckets == tuple(VBUCKETS)
    assert f"no node answers at {pair.b.upr}" in str(told.value)
    state.close()


@pytest.mark.acceptance("D16")
def test_now_and_barriers_fail_with_what_is_missing(pair: ReplicaPair) -> None:
    replica = str(pair.b.upr)
    with (
        UprClient(replica, Copy(), patience_s=0.5) as client,
        pytest.raises(NotActive, match="vBuckets 0-7 are active at none of"),
    ):
        client.run("now")
    with (
        UprClient(replica, Copy(), patience_s=0.5) as client,
        pytest.raises(NotActive, match="vBuckets 0-7 are active at none of"),
    ):
        client.barrier(timeout_s=20)


def test_a_backup_has_the_promoted_nodes_data_or_fails(pair: ReplicaPair, tmp_path: Path) -> None:
    servers = f"{pair.a.upr},{pair.b.upr}"
    failed_over(pair)
    for order in (servers, ",".join(reversed(servers.split(",")))):
        directory = tmp_path / order.partition(",")[0].replace(":", "-")
        words = ("backup", directory, "--servers", order, "--engine", "local")
        verb(*words)
        (manifest,) = directory.glob("*/*/manifest.json")
        parts = json.loads(manifest.read_text())["vb"].values()
        assert {part["term"] for part in parts} == {2}
        assert all(len(part["log"]) == 2 for part in parts)
    pair.b.stop()
    done = verb(*words, expect=None)
    assert done.returncode != 0
    assert "vBuckets 0-7 are active at none of" in done.stderr
