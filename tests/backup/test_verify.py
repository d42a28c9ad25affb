"""Comparing: exactly what was planted is found, whatever the two sides are."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from interop.server_process import ServerProcess
from tests.bulk.here import numbered, remove
from tests.bulk.world import HERE, VBUCKETS, access_to, flush, start, store
from uprmc.backup import comparing, verifying
from uprmc.backup.backups import backup
from uprmc.backup.restoring import restore
from uprmc.backup.verifying import BackupSide, VerifyReport, verify
from uprmc.client.kv import KvClient, Meta
from uprmc.columnar.errors import BackupForeign, BadOption
from uprmc.jobs.engines import LocalEngine
from uprmc.jobs.progress import Step


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """Two with as many vBuckets, and one with fewer."""
    data = tmp_path_factory.mktemp("nodes")
    with (
        start(data / "a") as a,
        start(data / "b") as b,
        start(data / "few", vbuckets=4) as few,
    ):
        yield [a, b, few]


@pytest.fixture(scope="module")
def made(nodes: list[ServerProcess], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of 200 documents, whose node is flushed afterwards."""
    directory = tmp_path_factory.mktemp("made") / "b"
    store(nodes[0], numbered(200), flags=3)
    backup(access_to(nodes[0]), directory, engine=HERE, groups=4)
    remove(nodes[0], b"key-199")
    backup(access_to(nodes[0]), directory, engine=HERE)
    return directory


@pytest.fixture
def copies(nodes: list[ServerProcess], made: Path) -> list[ServerProcess]:
    """All nodes have what the backup has."""
    for node in nodes:
        flush(node)
        restore(made, access_to(node), engine=HERE, check=False)
    return nodes


def compared(a: Any, b: Any, **options: Any) -> VerifyReport:
    sides = [access_to(each) if isinstance(each, ServerProcess) else each for each in (a, b)]
    return verify(*sides, **{"engine": HERE, "lag_s": None, **options})


def found_in(path: Path) -> dict[bytes, str]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {base64.b64decode(row["key"]): row["what"] for row in rows}


def plant(node: ServerProcess) -> dict[bytes, str]:
    """Make every kind of difference; returns what a comparison with `node` as b has to find."""
    with KvClient(str(node.upr)) as kv:
        kv.delete(b"key-1")
        kv.set(b"extra", b"only here")
        for number, change in enumerate(
            ({"flags": 4}, {"rev": 9}, {"cas": 5}, {"expiry": 2**31}), 2
        ):
            key = b"key-%d" % number
            meta = kv.get_meta(key)
            assert meta is not None
            kv.set_with_meta(key, b"value-%d" % number, meta._replace(**change), force=True)
        meta = kv.get_meta(b"key-6")
        assert meta is not None
        kv.set_with_meta(b"key-6", b"value-7", meta, force=True)
    differ = {b"key-%d" % number: "differ" for number in range(2, 7)}
    return {b"key-1": "only_a", b"extra": "only_b"} | differ


def sides(nodes: list[ServerProcess], made: Path) -> dict[str, tuple[Any, Any]]:
    a, b, few = nodes
    return {"nodes": (a, b), "fewer": (a, few), "backup": (made, b), "backup, fewer": (made, few)}


pairs = pytest.mark.parametrize("pair", ["nodes", "fewer", "backup", "backup, fewer"])


@pairs
def test_copies_are_the_same(copies: list[ServerProcess], made: Path, pair: str) -> None:
    # processes of their own once: starting them takes longer than the rest
    engine = LocalEngine(2) if pair == "fewer" else HERE
    report = compared(*sides(copies, made)[pair], engine=engine)
    assert report.same
    assert (report.documents_a, report.documents_b, report.differing) == (199, 199, 0)
    assert report.vbuckets == VBUCKETS
    assert report.summary().startswith("no difference: 199 documents of ")


@pairs
def test_exactly_what_was_planted_is_found(
    copies: list[ServerProcess], made: Path, pair: str, tmp_path: Path
) -> None:
    a, b = sides(copies, made)[pair]
    planted = plant(b)
    report = compared(a, b, out=tmp_path / "found.jsonl")
    assert found_in(tmp_path / "found.jsonl") == planted
    assert (report.only_a, report.only_b, report.differ) == (1, 1, 5)
    assert not report.same
    assert set(report.examples) == {key.decode() for key in planted}
    back = compared(b, a, out=tmp_path / "back.jsonl")
    mirrored = {"only_a": "only_b", "only_b": "only_a", "differ": "differ"}
    assert found_in(tmp_path / "back.jsonl") == {k: mirrored[v] for k, v in planted.items()}
    assert (back.only_a, back.only_b) == (1, 1)


def test_two_backups_are_compared(copies: list[ServerProcess], made: Path, tmp_path: Path) -> None:
    planted = plant(copies[1])
    backup(access_to(copies[1]), tmp_path / "other", engine=HERE, groups=3)
    report = compared(made, tmp_path / "other", out=tmp_path / "found.parquet")
    rows = pq.read_table(tmp_path / "found.parquet").to_pylist()
    assert {row["key"]: row["what"] for row in rows} == planted
    one = next(row for row in rows if row["key"] == b"key-3")
    assert (one["b"]["rev"], one["a"]["size"], one["a"]["deleted"]) == (9, 7, False)
    assert report.differing == len({row["vbucket"] for row in rows})
    assert compared(made, BackupSide(made)).same


def test_two_increments_of_a_chain_are_compared(made: Path) -> None:
    report = compared(BackupSide(made, at=0), BackupSide(made, at=1))
    assert (report.only_a, report.examples) == (1, ("key-199",))
    assert report.newer_b == 1, "its deletion is newer"


@pytest.mark.parametrize(
    ("by", "found"),
    [
        (["value"], {b"key-6"}),
        (["flags"], {b"key-2"}),
        (["rev"], {b"key-3"}),
        (["cas"], {b"key-4"}),
        (["exp"], {b"key-5"}),
        (["key"], set()),
        (["rev", "cas"], {b"key-3", b"key-4"}),
    ],
)
def test_only_what_is_asked_for_counts(
    copies: list[ServerProcess], made: Path, tmp_path: Path, by: list[str], found: set[bytes]
) -> None:
    plant(copies[1])
    compared(made, copies[1], by=by, out=tmp_path / "found.jsonl")
    assert set(found_in(tmp_path / "found.jsonl")) == found | {b"key-1", b"extra"}


def test_expired_documents_are_there_on_neither_side(copies: list[ServerProcess]) -> None:
    past = int(time.time()) - 100
    with KvClient(str(copies[0].upr)) as kv:
        kv.set_with_meta(b"expired", b"gone", Meta(0, past, 1, 1))
        kv.set_with_meta(b"expired too", b"gone", Meta(0, past, 1, 1))
        kv.set_with_meta(b"expires", b"not yet", Meta(0, past + 10_000, 1, 1))
    with KvClient(str(copies[1].upr)) as kv:
        kv.set_with_meta(b"expired too", b"another version", Meta(0, past, 2, 2))
    report = compared(copies[0], copies[1])
    assert (report.examples, report.only_a) == (("expires",), 1)
    later = time.time() + 20_000
    assert compared(copies[0], copies[1], now=lambda: later).same


def test_deletions_count_only_on_request(copies: list[ServerProcess], tmp_path: Path) -> None:
    with KvClient(str(copies[0].upr)) as kv:
        kv.set(b"gone", b"x")
        kv.delete(b"gone")
    assert compared(copies[0], copies[1]).same
    report = compared(copies[0], copies[1], deletes=True)
    assert (report.only_a, report.examples) == (1, ("gone",))


def test_only_some_vbuckets_or_keys(copies: list[ServerProcess]) -> None:
    plant(copies[1])
    with KvClient(str(copies[1].upr)) as kv:
        here = kv.vbucket_of(b"key-6")
    report = compared(copies[0], copies[1], vbuckets=[here])
    assert "key-6" in report.examples
    assert report.vbuckets == 1
    assert compared(copies[0], copies[1], key_prefix="ex").examples == ("extra",)
    for number in (VBUCKETS, -1):
        with pytest.raises(BadOption, match=str(number)):
            compared(copies[0], copies[1], vbuckets=[number])


def test_a_backup_of_some_vbuckets_is_compared_with_those(
    copies: list[ServerProcess], tmp_path: Path
) -> None:
    backup(access_to(copies[0]), tmp_path / "some", vbuckets=[3, 4], engine=HERE)
    for node in copies:
        assert compared(tmp_path / "some", node).same
        assert "2 of 16 vBuckets" in compared(tmp_path / "some", node).summary()
        assert compared(node, tmp_path / "some").same
    remove(copies[2], *numbered(200))
    report = compared(tmp_path / "some", copies[2])
    assert report.only_a == report.documents_a > 0


# --- the second look ------------------------------------------------------------------------------


def test_what_was_on_its_way_is_no_difference(copies: list[ServerProcess]) -> None:
    a, b = copies[:2]
    store(a, {b"key-7": b"on its way", b"key-8": b"lost"})

    def arrives(seconds: float) -> None:
        assert seconds == 9
        with KvClient(str(a.upr)) as source, KvClient(str(b.upr)) as copy:
            meta = source.get_meta(b"key-7")
            assert meta is not None
            copy.set_with_meta(b"key-7", b"on its way", meta)

    report = compared(a, b, lag_s=9, sleep=arrives)
    assert (report.looks, report.settled, report.examples) == (2, 1, ("key-8",))


def test_what_changes_all_the_time_on_both_sides_is_no_difference(
    copies: list[ServerProcess],
) -> None:
    a, b = copies[:2]

    def change(seconds: float) -> None:
        store(a, {b"hot": b"3", b"stuck": b"3"})
        store(b, {b"hot": b"2"})

    store(a, {b"hot": b"2", b"stuck": b"2"})
    store(b, {b"hot": b"1", b"stuck": b"1"})
    report = compared(a, b, lag_s=0, sleep=change)
    assert report.examples == ("stuck",)


def test_a_difference_that_appears_at_the_second_look_is_not_reported(
    copies: list[ServerProcess],
) -> None:
    a, b = copies[:2]
    store(a, {b"key-7": b"x"})
    report = compared(a, b, lag_s=0, sleep=lambda _: store(a, {b"key-9": b"new"}))
    assert report.examples == ("key-7",)


def test_nothing_is_waited_for_without_a_difference(copies: list[ServerProcess]) -> None:
    def never(seconds: float) -> None:
        raise AssertionError

    assert compared(copies[0], copies[1], lag_s=5, sleep=never).looks == 1


def test_two_backups_need_no_second_look(made: Path) -> None:
    sides = BackupSide(made, at=0), BackupSide(made, at=1)
    assert compared(*sides, lag_s=1_000).looks == 1


# --- limits and bad input -------------------------------------------------------------------------


@pytest.mark.parametrize("most", [3, 4])
def test_more_differences_than_are_listed_are_counted(
    copies: list[ServerProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    monkeypatch.setattr(comparing, "LISTED_MAX", most)
    monkeypatch.setattr(verifying, "_TASKS_EACH", 1)
    store(copies[0], numbered(4, prefix="new"))
    report = compared(copies[0], copies[1], lag_s=0, sleep=lambda _: None, out=tmp_path / "f.jsonl")
    assert report.only_a == 4
    assert len(found_in(tmp_path / "f.jsonl")) == most


def test_every_task_is_told(copies: list[ServerProcess]) -> None:
    plant(copies[1])
    steps: list[Step] = []
    compared(copies[0], copies[1], progress=steps.append)
    for what in ("reading a", "reading b", "comparing"):
        last = [step for step in steps if step.what == what][-1]
        assert last.done == last.of


def test_a_report_says_it_all_in_json(copies: list[ServerProcess], made: Path) -> None:
    found = json.loads(compared(made, copies[0]).to_json())
    assert (found["same"], found["documents_a"], found["out"]) == (True, 199, None)


def test_a_backup_without_values_is_compared_without(
    copies: list[ServerProcess], tmp_path: Path
) -> None:
    backup(access_to(copies[0]), tmp_path / "keys", no_value=True, engine=HERE)
    report = compared(tmp_path / "keys", copies[0])
    assert report.same
    assert "value" not in report.by
    with pytest.raises(BadOption, match="by=value"):
        compared(tmp_path / "keys", copies[0], by=["value"])


def test_an_unknown_field_is_named(made: Path) -> None:
    with pytest.raises(BadOption, match="by=colour"):
        compared(made, made, by=["colour"])


def test_what_is_no_backup_is_told(copies: list[ServerProcess], tmp_path: Path) -> None:
    with pytest.raises(BackupForeign, match="is no backup"):
        compared(copies[0], tmp_path)


def test_backups_without_a_common_vbucket_are_not_the_same(
    copies: list[ServerProcess], tmp_path: Path
) -> None:
    for number in (1, 2):
        backup(access_to(copies[0]), tmp_path / str(number), vbuckets=[number], engine=HERE)
    with pytest.raises(BadOption, match="no vBucket in common"):
        verify(tmp_path / "1", tmp_path / "2", engine=HERE)
