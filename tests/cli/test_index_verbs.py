"""``uprmc index``: what its verbs print, and the one line that each wrong input gets."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.fake_node import FakeNode
from tests.cli.here import runner
from tests.cli.support import Ended
from tests.cli.views_thread import listening
from tests.codec.frames import RESPONSE, Frame, frame
from tests.index.fake_index import FakeService
from tests.index.memory_tree import MemoryTree, entries
from uprmc.index.errors import QueryRefused

MAP = {"emit": [{"key": "$.city", "value": 1}]}
DESIGN = {"views": {"by_city": {"map": MAP}, "counted": {"map": MAP, "reduce": "_count"}}}
STAT = 0x10

Run = Callable[..., Ended]


def run_verb(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ended:
    return runner(capsys)("index", *arguments)


@pytest.fixture
def service() -> FakeService:
    """Two views over three rows."""
    made = FakeService()
    made.keep("d", json.dumps(DESIGN).encode())
    rows = [(b"a", 0, "Ulm", 1), (b"b", 1, "Bonn", {"x": 1}), (b"c", 2, ["Ulm", 7], None)]
    made.groups["d"].trees = [MemoryTree(entries(rows)), MemoryTree(entries(rows), len)]
    return made


@pytest.fixture
def run(
    service: FakeService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """Runs a verb against the listener."""
    for name in ("UPRMC_NODE", "UPRMC_VIEWS"):
        monkeypatch.delenv(name, raising=False)
    with listening(service) as place:
        yield lambda *arguments: run_verb(capsys, *arguments, "--views", place)


def test_a_design_is_stored_shown_listed_and_deleted(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "people.json"
    file.write_text(json.dumps(DESIGN))
    assert run("put", "people", file) == Ended(0, "people: stored\n", "")
    assert run("get", "people").out == json.dumps(DESIGN)
    assert run("list").out.splitlines() == [
        "name    state  views",
        "d       ready  by_city, counted",
        "people  ready  by_city, counted",
    ]
    assert json.loads(run("list", "--json").out)["total_rows"] == 2
    assert run("delete", "people").out == "people: deleted\n"
    gone = run("get", "people")
    assert (gone.code, gone.line()) == (1, "there is no design 'people'")


def test_a_design_is_compacted_and_its_last_change_is_undone(
    run: Run, service: FakeService
) -> None:
    assert run("compact", "d").out == "d: compaction has begun\n"
    assert service.groups["d"].asked == ["compact"]
    assert run("undo", "d").code == 0
    assert service.undone == ["d"]


def test_status_is_a_table_of_all_or_lines_about_one(run: Run) -> None:
    assert run("status").out.splitlines()[0].split()[:3] == ["name", "state", "progress"]
    assert "state                   ready" in run("status", "d").out.splitlines()
    assert json.loads(run("status", "d", "--json").out)["state"] == "ready"
    assert json.loads(run("status", "--json").out)["d"]["state"] == "ready"


def test_status_shows_vbuckets_as_ranges_and_counts_what_there_is_of_each(
    run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {
        "vbuckets": {"active": [*range(1_024)], "pending": [], "passive": [3, 7, 8]},
        "seqnos": {str(number): 5 for number in range(1_024)},
    }
    monkeypatch.setattr(service.groups["d"], "info", lambda: {**here, "nodes": {"h:1": here}})
    lines = run("status", "d").out.splitlines()
    vbuckets = "active: 0-1023, pending: none, passive: 3,7-8"
    assert f"vbuckets                {vbuckets}" in lines
    assert "seqnos                  1024 vBuckets" in lines
    assert f"nodes                   h:1: vbuckets: {vbuckets}, seqnos: 1024 vBuckets" in lines


def test_a_query_tells_of_documents_that_could_not_be_mapped(
    run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [{"id": each, "reason": "its key is too long"} for each in ("a", "big")]
    monkeypatch.setattr(service.groups["d"], "info", lambda: {"map_errors": errors})
    ended = run("query", "d/by_city")
    assert ended.code == 0
    assert ended.err == (
        "uprmc: 2 documents could not be mapped and may lack rows, the last one: id: big, reason: "
        "its key is too long; 'uprmc index status d' lists them\n"
    )


def test_a_query_prints_a_table(run: Run) -> None:
    assert run("query", "d/by_city").out.splitlines() == [
        "key         id  value",
        'Bonn        b   {"x": 1}',
        "Ulm         a   1",
        '["Ulm", 7]  c   null',
    ]
    assert run("query", "d/counted", "--group", "--limit", "1").out == "key   value\nBonn  1\n"
    assert run("query", "d/counted").out == "key   value\nnull  3\n"
    assert run("query", "d/by_city", "--key", '"none"').out == ""


def test_json_is_the_very_answer(run: Run) -> None:
    assert run("query", "d/by_city", "--json", "--limit", "1").out == (
        '{"total_rows":3,"rows":[\n{"id":"b","key":"Bonn","value":{"x":1}}\n],"errors":[]}\n'
    )


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--start", '"C"', "--end", '"Ulm"'], ["a"]),
        (["--start", '"Bonn"', "--end", '"Ulm"', "--exclusive-end"], ["b"]),
        (["--descending", "--skip", "1"], ["a", "b"]),
        (["--keys", '["Ulm", "Bonn"]'], ["a", "b"]),
        (["--key", "null"], []),
        (["--stale", "false", "--at", "1:2:3", "--update-seq", "--include-docs"], ["b", "a", "c"]),
    ],
)
def test_options_reach_the_index(run: Run, options: list[str], ids: list[str]) -> None:
    ended = run("query", "d/by_city", "--json", *options)
    assert [row["id"] for row in json.loads(ended.out)["rows"]] == ids


def test_errors_of_an_answer_are_printed_after_its_rows(run: Run, service: FakeService) -> None:
    def failing(values: list[object]) -> int:
        return 1 // (len(values) - 1)

    tree = service.groups["d"].trees[0]
    service.groups["d"].trees[1] = MemoryTree(list(tree.rows()), failing)
    ended = run("query", "d/counted", "--group")
    assert ended.code == 1
    assert ended.err.startswith("uprmc: 127.0.0.1:8092: view 'counted': the reduce failed")
    as_json = run("query", "d/counted", "--group", "--json")
    assert (as_json.code, len(json.loads(as_json.out)["errors"])) == (1, 3)
    assert as_json.err == "uprmc: the answer is not complete; its errors say why\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["query", "d"], "'d' names no view: say NAME/VIEW"),
        (["query", "/v"], "say NAME/VIEW"),
        (["query", "d/by_city", "--key", "Ulm"], "a string needs quotes"),
        (["query", "d/by_city", "--limit", "-1"], "less than 0"),
        (["query", "d/by_city", "--group"], "group: there is nothing to group"),
        (["query", "d/by_city", "--start", "2", "--end", "1"], "startkey is beyond endkey"),
        (["query", "d/by_city", "--key", "1", "--keys", "[1]"], "key and keys contradict"),
        (["query", "d/by_city", "--stale", "maybe"], "--stale"),
        (["query", "d/by_city", "--at", "1:2"], "is not vb:uuid:seqno"),
        (["put", "d", "/none/x.json"], "/none/x.json cannot be read"),
        (["put", "a/b", "/dev/null"], "no design has such a name"),
        (["put", "d", "/dev/null"], "the body is the design"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_wrong_input_gets_one_line(run: Run, arguments: list[str], said: str) -> None:
    assert said in run(*arguments).refused()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["query", "d/none"], "has no view 'none'"),
        (["query", "none/v"], "there is no design 'none'"),
        (["compact", "none"], "there is no design 'none'"),
        (["delete", "none"], "there is no design 'none'"),
        (["status", "none"], "there is no design 'none'"),
    ],
)
def test_what_is_not_there_is_a_failure(run: Run, arguments: list[str], said: str) -> None:
    ended = run(*arguments)
    assert ended.code == 1
    assert said in ended.line()


def test_a_refusal_of_the_index_is_shown_as_it_is(run: Run, service: FakeService) -> None:
    service.groups["d"].refusal = QueryRefused(504, "timeout", "not indexed within 1 s")
    ended = run("query", "d/by_city", "--timeout", "1s")
    assert (ended.code, ended.line()) == (1, "not indexed within 1 s")
    assert service.groups["d"].asked[0][-1] == 1.0


def test_a_design_that_is_too_large_is_a_failure(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    file.write_bytes(b" " * 5_000_000)
    ended = run("put", "large", file)
    assert ended.code == 1
    assert ended.line().startswith("the body is larger than ")


def asked(capsys: pytest.CaptureFixture[str], place: str) -> Ended:
    return run_verb(capsys, "list", "--views", place, "--timeout", "5s")


def test_an_address_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("somewhere", "h:0", "unix:/x"):
        assert "HOST:PORT" in asked(capsys, place).refused()


def test_nothing_there_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
    ended = asked(capsys, place)
    assert ended.code == 1
    assert f"no views listener answers at {place}" in ended.line()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"ERROR\r\n",
        b"\x81\x00\x00\x00",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
    ],
)
def test_a_stranger_is_a_failure(capsys: pytest.CaptureFixture[str], answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        ended = asked(capsys, f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert ended.code == 1
    assert ended.line()


class ToldOf(FakeNode):
    """A node that answers ``STAT index`` with what it is given."""

    def __init__(self, **found: str) -> None:
        super().__init__(**{f"on_{STAT:02x}": lambda node, asked: self._tell(asked, found)})

    def _tell(self, asked: Frame, found: dict[str, str]) -> None:
        assert asked.key == b"index"
        for name, value in (*found.items(), ("", "")):
            key = name.encode()
            self.raw(frame(STAT, key, value.encode(), magic=RESPONSE, opaque=asked.opaque))


def test_the_node_says_where_its_views_are(
    service: FakeService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UPRMC_VIEWS", raising=False)
    with listening(service) as place:
        anywhere = f"0.0.0.0:{place.rpartition(':')[2]}"
        with ToldOf(views=anywhere, state="ready") as node:
            ended = run_verb(capsys, "list", "--node", node.place)
    assert ended.code == 0
    assert ended.out.startswith("name")


def test_a_node_without_views_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UPRMC_VIEWS", raising=False)
    with ToldOf(views="", state="off") as node:
        ended = run_verb(capsys, "list", "--node", node.place)
    assert ended.code == 1
    assert "has no views listener; name one with --views" in ended.line()
