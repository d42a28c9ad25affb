"""``uprmc watermarks`` against a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.wire import DELETE, OK, SET, Wire, frame, store
from tests.cli.here import Here, runner
from uprmc.client import UprClient
from uprmc.client.handler import Handler


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path / "data", "--vbuckets", "4") as server:
        assert server.upr is not None
        with Wire(server.upr) as wire:
            for key in (b"a", b"b", b"c"):
                assert wire.ask(store(SET, key, b"v", vbucket=1)).status == OK
            assert wire.ask(frame(DELETE, key=b"a", vbucket=1)).status == OK
        yield server


def listed(here: Here, server: ServerProcess, *more: str) -> list[dict[str, Any]]:
    ended = here("watermarks", "list", "--json", "--node", server.upr, *more)
    assert (ended.code, ended.err) == (0, "")
    found: list[dict[str, Any]] = json.loads(ended.out)["vbuckets"]
    return found


@pytest.mark.acceptance("X10")
def test_a_row_that_is_set_by_hand_is_listed_and_removed(here: Here, server: ServerProcess) -> None:
    arguments = ("--kind", "backup", "--seqno", "2", "--vbuckets", "1", "--expires", "2h")
    ended = here("watermarks", "set", "nightly", *arguments, "--node", server.upr)
    assert (ended.code, ended.out) == (0, "nightly: set in vBucket 1\n")
    (vbucket,) = listed(here, server, "--vbuckets", "1")
    (row,) = vbucket.pop("rows")
    assert vbucket == {
        "vbucket": 1,
        "high_seqno": 4,
        "purge_seqno": 0,
        "limit": 2,
        "limited_by": "nightly",
        "tombstones": 1,
        "tombstone_bytes": 37,
        "incomplete": False,
    }
    assert isinstance(row.pop("vb_uuid"), str)
    assert row.pop("expires_at") == row.pop("reported_at") + 7_200
    assert row == {
        "id": "nightly",
        "kind": "backup",
        "watermark": 2,
        "floor": None,
        "expires_in_s": 7_200,
        "pinned_tombstones": 1,
        "pinned_bytes": 37,
        "meta": "",
        "name": None,
    }
    head, line = here("watermarks", "list", "--node", server.upr).out.splitlines()
    assert head.split() == [
        *("client", "kind", "vBuckets", "building", "limits", "behind"),
        *("pinned", "pinned_bytes", "reported", "expires", "id"),
    ]
    assert line.split()[:8] == ["nightly", "backup", "1", "0", "1", "2", "1", "37"]
    head, line = here(
        "watermarks", "list", "--vbuckets", "1", "--node", server.upr
    ).out.splitlines()
    assert line.split() == ["1", "4", "0", "2", "nightly", "backup", "2"]
    ended = here("watermarks", "remove", "nightly", "--node", server.upr, "--json")
    assert json.loads(ended.out) == {"vbuckets": [1], "id": "nightly", "done": "removed"}
    assert [each["rows"] for each in listed(here, server)] == [[]] * 4


class _Nothing(Handler):
    """Takes changes and forgets them."""


def test_a_client_that_has_told_its_name_is_listed_by_it(here: Here, server: ServerProcess) -> None:
    names = {"name": "orders-cache", "register": "other"}
    with UprClient(str(server.upr), _Nothing(), **names) as client:
        client.run("now")
        _, line = here("watermarks", "list", "--node", server.upr).out.splitlines()
        assert (line.split()[0], len(line.split()[-1])) == ("orders-cache", 32)
        rows = [row for each in listed(here, server) for row in each["rows"]]
        assert {row["name"] for row in rows} == {"orders-cache"}
    ended = here("watermarks", "remove", "orders-cache", "--node", server.upr)
    assert "no vBucket has a row 'orders-cache': say an id" in ended.line()


def test_a_client_is_set_in_all_active_vbuckets(here: Here, server: ServerProcess) -> None:
    arguments = ("set", "x", "--kind", "xdcr", "--seqno", "0", "--node", server.upr)
    assert here("watermarks", *arguments).code == 0
    assert [each["limited_by"] for each in listed(here, server)] == [None, "x", None, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("set", "x", "--kind", "other", "--seqno", "1"),
            "vBuckets 0,2-3 refused it: the seqno is",
        ),
        (("remove", "x"), "no vBucket has a row 'x'"),
        (("list", "--vbuckets", "3-5"), "the node does not have vBuckets 4-5"),
        (("remove", "x", "--vbuckets", "2"), "vBucket 2 refused it: it has no such row"),
    ],
)
def test_what_is_refused_is_told(
    here: Here, server: ServerProcess, arguments: tuple[str, ...], said: str
) -> None:
    ended = here("watermarks", *arguments, "--node", server.upr)
    assert ended.code == 1
    assert said in ended.err


def test_an_id_that_no_node_takes_is_a_wrong_argument(here: Here, server: ServerProcess) -> None:
    arguments = ("--kind", "other", "--seqno", "0", "--node", server.upr)
    assert (
        here("watermarks", "set", "x" * 64, *arguments[:2], "--vbuckets", "0", *arguments[2:]).code
        == 0
    )
    for name in ("", "x" * 65):
        ended = here("watermarks", "set", name, *arguments)
        assert ended.code == 2
        assert ended.err == f"uprmc: an id has 1 to 64 bytes, not {len(name)}\n"
