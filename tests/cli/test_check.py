"""`uprmc check`: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.here import Here, runner
from tests.contracts.store_values import live, write
from uprmc.record import pack
from uprmc.storage.directory import open_directory


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


def test_a_damaged_record_is_listed_and_the_exit_code_says_so(here: Here, tmp_path: Path) -> None:
    path = tmp_path / "data"
    items = [live(b"k%d" % seqno, seqno, b"value-%d" % seqno) for seqno in (1, 2, 3)]
    store = open_directory(path, uuid=1, vbuckets=1)
    store.commit(write(*items))
    store.close()
    ended = here("check", path)
    assert (ended.code, ended.out) == (0, f"{path}: 3 records, 0 of them damaged\n")
    content = (path / "data.mdb").read_bytes()
    assert content.count(pack(items[1])) >= 1
    (path / "data.mdb").write_bytes(content.replace(b"value-2", b"walue-2"))
    ended = here("check", path)
    assert ended.code == 1
    assert ended.out == (
        f"damaged: k2 (vBucket 0, seqno 2)\n{path}: 3 records, 1 of them damaged\n"
    )
    told = json.loads(here("check", path, "--json").out)
    assert told["records"] == 3
    assert told["damaged"] == [{"vbucket": 0, "seqno": 2, "key": "k2"}]
    assert {file["name"]: file["damage"] for file in told["files"]}["data.mdb"] == []


def test_pages_that_are_damaged_are_told_and_what_is_no_store_is_refused(
    here: Here, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    open_directory(path, uuid=1).close()
    content = (path / "data.mdb").read_bytes()
    (path / "data.mdb").write_bytes(content[:8_192] + bytes(len(content) - 8_192))
    ended = here("check", path)
    assert ended.code == 1
    assert "is not where it should be" in ended.out
    ended = here("check", tmp_path)
    assert ended.code == 2
    assert "holds no uprmc store" in ended.err


def test_what_a_start_would_refuse_is_found(here: Here, tmp_path: Path) -> None:
    path = tmp_path / "data"
    store = open_directory(path, uuid=1)
    for start in range(0, 500, 100):
        store.commit(write(*[live(b"k%d" % n, start + n, b"x" * 3_000) for n in range(1, 30)]))
    store.close()
    size = (path / "data.mdb").stat().st_size
    os.truncate(path / "data.mdb", size - 1)
    ended = here("check", path)
    assert ended.code == 1
    assert "1 bytes are missing at its end" in ended.out
    assert "29 records, 0 of them damaged" in ended.out, "the others are read"
    (path / "data.mdb").unlink()
    ended = here("check", path)
    assert ended.code == 2
    assert "data.mdb is gone" in ended.err
