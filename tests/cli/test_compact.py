"""`uprmc compact` against real nodes: purging now, by force, and a compacted copy of the data."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.wire import DELETE, GET, OK, SET, Wire, frame, store
from tests.cli.here import Here, runner
from uprmc.protocol.opcodes import Opcode
from uprmc.storage import compacted_copy
from uprmc.storage.lmdb_files import DATA_FILE

VBUCKETS = 4


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path / "data", "--vbuckets", str(VBUCKETS)) as server:
        yield server
        server.stop()


def bury(server: ServerProcess, vbucket: int, count: int, value: bytes = b"v") -> None:
    """Make documents and delete them, and leave one behind them; all of it is on disk then."""
    assert server.upr is not None
    keys = [b"k%d" % number for number in range(count)]
    with Wire(server.upr) as wire:
        for key in keys:
            assert wire.ask(store(SET, key, value, vbucket=vbucket)).status == OK
        persist(wire, vbucket, count)
        for key in keys:
            assert wire.ask(frame(DELETE, key, vbucket=vbucket)).status == OK
        assert wire.ask(store(SET, b"last", b"v", vbucket=vbucket)).status == OK
        persist(wire, vbucket, 2 * count + 1)


def persist(wire: Wire, vbucket: int, seqno: int) -> None:
    extras = seqno.to_bytes(8, "big")
    answer = wire.ask(frame(Opcode.SEQNO_PERSISTENCE, extras=extras, vbucket=vbucket))
    assert answer.status == OK


def compact(here: Here, server: ServerProcess, *options: object) -> dict[str, object]:
    ended = here("compact", "--node", server.upr, "--json", *options)
    assert (ended.code, ended.err) == (0, "")
    told: dict[str, object] = json.loads(ended.out)
    return told


@pytest.mark.acceptance("X07", "X17")
def test_it_purges_what_nobody_needs_and_tells_what_it_did(
    server: ServerProcess, here: Here
) -> None:
    bury(server, 1, 3)
    told = compact(here, server, "--vbuckets", "1", "--wait")
    assert told["dropped"] == 3
    assert told["vbuckets"] == [
        {
            "vbucket": 1,
            "purge_seqno_before": 0,
            "purge_seqno": 6,
            "dropped": 3,
            "limited_by": None,
        }
    ]
    table = here("compact", "--node", server.upr, "--wait").out.splitlines()
    assert table[-1] == "0 deletions were purged"
    page = urlopen(f"http://{server.http}/events").read()
    (event,) = json.loads(page)["events"]
    assert event.pop("time").endswith("Z")
    assert event == {
        "event": "purge",
        "vb": 1,
        "from": 0,
        "to": 6,
        "dropped": 3,
        "limited_by": None,
    }
    metrics = urlopen(f"http://{server.http}/metrics").read()
    assert b"\nuprmc_tombstones 0.0\n" in metrics
    assert b"\nuprmc_purge_seqno_lag 1.0\n" in metrics


def test_without_waiting_it_ends_at_once_and_the_node_purges(
    server: ServerProcess, here: Here
) -> None:
    bury(server, 0, 3)
    assert compact(here, server, "--vbuckets", "0") == {"vbuckets": [0], "state": "purging"}
    assert compact(here, server, "--vbuckets", "0", "--wait")["vbuckets"][0]["purge_seqno"] == 6


def test_young_deletions_and_those_that_somebody_needs_go_by_force_only(
    tmp_path: Path, here: Here
) -> None:
    options = ("--vbuckets", "2", "--set", "purge.min_age_s=1h")
    with start_uprmc(tmp_path, *options) as server:
        bury(server, 0, 3)
        assert compact(here, server, "--wait")["dropped"] == 0
        forced = here("compact", "--node", server.upr, "--wait", "--force")
        assert forced.out.splitlines()[-1] == "3 deletions were purged"
        server.stop()


def test_a_compacted_copy_is_smaller_and_a_node_serves_it(
    server: ServerProcess, tmp_path: Path, here: Here
) -> None:
    bury(server, 0, 300, b"v" * 10_000)
    compact(here, server, "--wait")
    copy = tmp_path / "copy"
    told = here("compact", "--node", server.upr, "--to", copy)
    assert (told.code, told.err) == (0, "")
    again = here("compact", "--node", server.upr, "--to", copy)
    assert again.code == 2
    assert "is not empty" in again.err
    assert [entry.name for entry in copy.iterdir()] == [DATA_FILE]
    sizes = [(where / DATA_FILE).stat().st_size for where in (tmp_path / "data", copy)]
    assert sizes[1] < sizes[0] / 4
    assert server.upr is not None
    with start_uprmc(copy) as copied, Wire(copied.upr) as wire:
        assert wire.ask(frame(GET, b"last", vbucket=0)).value == b"v"
        details = here("stats", "vbucket-seqno 0", "--node", copied.upr).out
        assert "vb_0:purge_seqno" in details
        assert "600" in details
        copied.stop()


def test_a_copy_of_a_running_node_begins_a_branch_of_its_own(
    server: ServerProcess, tmp_path: Path, here: Here
) -> None:
    """Both may run: what the copy accepts is not taken for what the original accepts."""
    bury(server, 0, 3)
    assert server.upr is not None
    with Wire(server.upr) as wire:
        original = wire.statistics(b"failovers 0")
    assert here("compact", "--node", server.upr, "--to", tmp_path / "copy").code == 0
    with start_uprmc(tmp_path / "copy") as copied:
        assert copied.upr is not None
        with Wire(copied.upr) as wire:
            branch = wire.statistics(b"failovers 0")
        copied.stop()
    assert branch[b"vb_0:0:id"] != original[b"vb_0:0:id"] == branch[b"vb_0:1:id"]


def test_a_copy_that_was_interrupted_is_no_data_directory_and_is_written_again(
    server: ServerProcess, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(server, 0, 3)
    copy = tmp_path / "copy"

    def refuse(_source: Path, partial: Path) -> None:
        partial.write_bytes(b"the beginning")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(compacted_copy, "_write", refuse)
        failed = here("compact", "--node", server.upr, "--to", copy)
    assert failed.code == 1
    assert "No space left on device" in failed.err
    assert list(copy.iterdir()) == []
    (copy / ".data.mdb.partial").write_bytes(b"what a kill leaves")
    assert here("compact", "--data", tmp_path / "data", "--to", copy).code == 0
    assert [entry.name for entry in copy.iterdir()] == [DATA_FILE]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "x", "--wait"], "--to purges nothing"),
        (["--data", "x"], "--data goes with --to"),
        (["--data", "nowhere", "--to", "x"], "nowhere holds no uprmc store"),
    ],
)
def test_contradictions_are_one_line(here: Here, arguments: list[str], said: str) -> None:
    ended = here("compact", *arguments)
    assert ended.code == 2
    assert said in ended.err
