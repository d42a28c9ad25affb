"""The verbs about streams and vBuckets against real nodes: tail, vbucket, failover-log, observe."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.nursery import popen
from interop.server_process import ServerProcess, start_uprmc
from interop.wire import DELETE, OK, SET, Wire, frame, store
from tests.cli.here import Here, runner
from tests.cli.support import TIMEOUT_S, uprmc
from tests.cli.tailing import Tailing

VBUCKETS = 8

Write = Callable[[int], object]


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@pytest.fixture(scope="module", name="shared")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node whose vBuckets stay as they are; each test takes a vBucket of its own for its keys."""
    data = tmp_path_factory.mktemp("data")
    with start_uprmc(data, "--vbuckets", str(VBUCKETS)) as server:
        yield server
        server.stop()


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A node of its own, for tests that change states or kill it."""
    with start_uprmc(tmp_path / "data", "--vbuckets", str(VBUCKETS)) as server:
        yield server


def writes(wire: Wire, vbucket: int, key: bytes, value: bytes = b"v", **more: int) -> None:
    assert wire.ask(store(SET, key, value, vbucket=vbucket, **more)).status == OK


def writer(server: ServerProcess, vbucket: int) -> Write:
    """Return what writes a document and is to be called with a number."""

    def write(number: int) -> None:
        assert server.upr is not None
        with Wire(server.upr) as wire:
            writes(wire, vbucket, b"k%d" % number)

    return write


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


# --- tail: what there is ------------------------------------------------------------------------


def test_everything_up_to_now_is_printed_and_ends_with_exit_code_0(
    shared: ServerProcess, here: Here
) -> None:
    with Wire(shared.upr) as wire:
        writes(wire, 0, b"a", b"1", flags=7, expiration=3_600)
        writes(wire, 0, b"b", b"\xff\n")
        writes(wire, 0, b"a", b"2")
        assert wire.ask(frame(DELETE, b"b", vbucket=0)).status == OK
        writes(wire, 0, b"c", b"3", flags=9)
    ended = here(
        "tail", "--vbuckets", 0, "--start", 0, "--until-now", "--json", "--node", shared.upr
    )
    assert (ended.code, ended.err) == (0, "")
    a, b, c = rows(ended.out)
    assert (a["op"], a["seqno"], a["key"], a["value"], a["rev"]) == ("set", 3, "a", "2", 2)
    assert (b["op"], b["seqno"], b["key"], b["value"], b["rev"]) == ("delete", 4, "b", None, 2)
    assert (c["flags"], c["expiry"], c["vbucket"]) == (9, 0, 0)
    log = rows(here("failover-log", 0, "--json", "--node", shared.upr).out.replace("\n", ""))
    assert a["vb_uuid"] == log[0][0]["entries"][0]["vb_uuid"]  # type: ignore[index]
    plain = here("tail", "--vbuckets", 0, "--start", 0, "--until-now", "--node", shared.upr)
    assert [line.split()[:3] for line in plain.out.splitlines()] == [
        ["0:3", "set", "a"],
        ["0:4", "delete", "b"],
        ["0:5", "set", "c"],
    ]


def test_what_came_before_now_is_not_printed(shared: ServerProcess, here: Here) -> None:
    writer(shared, 1)(0)
    ended = here("tail", "--until-now", "--node", shared.upr)
    assert (ended.code, ended.out, ended.err) == (0, "", "")


def test_a_seqno_is_where_printing_begins(shared: ServerProcess, here: Here) -> None:
    with Wire(shared.upr) as wire:
        for key in (b"a", b"b", b"c"):
            writes(wire, 2, key)
    ended = here(
        "tail", "--vbuckets", 2, "--start", 2, "--until-now", "--json", "--node", shared.upr
    )
    assert [row["key"] for row in rows(ended.out)] == ["c"]


def test_keys_only_leaves_values_out(shared: ServerProcess, here: Here) -> None:
    with Wire(shared.upr) as wire:
        writes(wire, 3, b"key", b"a-value")
    options = ["--vbuckets", 3, "--start", 0, "--until-now", "--keys-only", "--node", shared.upr]
    assert "a-value" not in here("tail", *options).out
    (row,) = rows(here("tail", *options, "--json").out)
    assert (row["key"], row["value"]) == ("key", None)


def test_snapshots_are_shown_on_request_only(shared: ServerProcess, here: Here) -> None:
    with Wire(shared.upr) as wire:
        writes(wire, 4, b"a")
        writes(wire, 4, b"b")
    options = ["--vbuckets", 4, "--start", 0, "--until-now", "--json", "--node", shared.upr]
    assert {row["op"] for row in rows(here("tail", *options).out)} == {"set"}
    shown = rows(here("tail", *options, "--snapshots").out)
    assert [row["op"] for row in shown] == ["snapshot-begin", "set", "set", "snapshot-end"]
    assert (shown[0]["end"], shown[-1]["end"], shown[-1]["items"]) == (2, 2, 2)


def test_an_expired_document_is_told_apart_from_a_deleted_one(
    shared: ServerProcess, here: Here
) -> None:
    with Wire(shared.upr) as wire:
        writes(wire, 5, b"old", expiration=2_600_000)  # Unix time, long ago
        assert wire.ask(frame(0, b"old", vbucket=5)).status != OK  # finds it expired
    ended = here(
        "tail", "--vbuckets", 5, "--start", 0, "--until-now", "--json", "--node", shared.upr
    )
    assert [row["op"] for row in rows(ended.out)] == ["expire"]


def test_a_thousand_vbuckets_on_one_connection(tmp_path: Path, here: Here) -> None:
    with start_uprmc(tmp_path) as server:
        with Wire(server.memcached) as wire:
            for number in range(3_000):
                wire.send(store(0x11, b"key-%d" % number, b"v"))  # SETQ
            wire.replies_until_noop()
        ended = here("tail", "--start", 0, "--until-now", "--json", "--node", server.upr)
        assert (ended.code, ended.err) == (0, "")
        found = rows(ended.out)
        assert {row["key"] for row in found} == {f"key-{number}" for number in range(3_000)}
        assert len({row["vbucket"] for row in found}) > 900
        listed = json.loads(here("vbucket", "list", "--json", "--node", server.upr).out)
        assert [row["vbucket"] for row in listed] == list(range(1_024))
        assert sum(row["items"] for row in listed) == 3_000
        server.stop()


def test_more_than_the_buffer_goes_through_because_it_is_acknowledged(
    shared: ServerProcess, here: Here
) -> None:
    with Wire(shared.upr) as wire:
        for number in range(12):
            writes(wire, 6, b"big-%d" % number, b"x" * 1_000_000)
    ended = here(
        "tail", "--vbuckets", 6, "--start", 0, "--until-now", "--json", "--node", shared.upr
    )
    assert [len(str(row["value"])) for row in rows(ended.out)] == [1_000_000] * 12


# --- tail: rollback -----------------------------------------------------------------------------


def test_a_seqno_that_the_node_does_not_have_is_one_line(shared: ServerProcess, here: Here) -> None:
    writer(shared, 7)(0)
    options = ["--vbuckets", 7, "--start", 60, "--until-now", "--node", shared.upr]
    ended = here("tail", *options)
    assert ended.code == 1
    said = ended.line()
    assert said.startswith("vBucket 7: the node cannot continue from seqno 60, ")
    assert "its history agrees only up to 1: discard later lines and use --start 1" in said


def test_a_rollback_can_be_obeyed(shared: ServerProcess, here: Here) -> None:
    writer(shared, 7)(0)
    options = ["--vbuckets", 7, "--start", 1, "--uuid", "0x77", "--until-now", "--node", shared.upr]
    assert here("tail", *options).code == 1
    ended = here("tail", *options, "--on-rollback", "rewind", "--json")
    assert ended.code == 0
    first, *rest = rows(ended.out)
    assert first == {"op": "rollback", "vbucket": 7, "seqno": 0}
    assert [row["key"] for row in rest] == ["k0"]
    assert ended.err.startswith("uprmc: vBucket 7: the node cannot continue from seqno 1, ")
    assert ended.err.endswith("; continuing from there\n")


@pytest.mark.acceptance("D24", "D25")
def test_an_older_history_goes_on_up_to_where_it_branched(
    server: ServerProcess, tmp_path: Path, here: Here
) -> None:
    writer(server, 0)(0)
    assert here("observe", "k0", "--vbuckets", 0, "--wait", "--node", server.upr).code == 0
    (log,) = json.loads(here("failover-log", 0, "--json", "--node", server.upr).out)
    old = log["entries"][0]["vb_uuid"]
    server.kill()
    with start_uprmc(tmp_path / "data") as again:
        writer(again, 0)(1)
        options = ["--vbuckets", 0, "--until-now", "--json", "--node", again.upr]
        found = rows(here("tail", *options, "--start", 0).out)
        assert [row["key"] for row in found] == ["k0", "k1"]
        assert found[0]["vb_uuid"] == old
        assert found[1]["vb_uuid"] != old
        agreed = here("tail", *options, "--start", 1, "--uuid", old)
        assert [row["key"] for row in rows(agreed.out)] == ["k1"]
        beyond = here("tail", *options, "--start", 2, "--uuid", old)
        assert beyond.code == 1
        assert "its history agrees only up to 1" in beyond.line()
        again.stop()


# --- tail: as it happens ------------------------------------------------------------------------


def test_changes_are_printed_as_they_happen_until_ctrl_c(shared: ServerProcess) -> None:
    with Tailing(shared, "--json") as tailing:
        first = json.loads(tailing.follows(writer(shared, 1)))
        assert (first["vbucket"], first["op"]) == (1, "set")
        with Wire(shared.upr) as wire:
            writes(wire, 2, b"later")
        while json.loads(tailing.line())["key"] != "later":
            pass
        ended = tailing.interrupt()
    assert (ended.code, ended.out, ended.err) == (0, "", "")


@pytest.mark.parametrize("options", [[], ["--json", "--start", "0"]])
def test_it_ends_quietly_when_nobody_reads_any_more(
    shared: ServerProcess, options: list[str]
) -> None:
    with Tailing(shared, *options) as tailing:
        tailing.follows(writer(shared, 1))
        stdout = tailing.process.stdout
        assert stdout is not None
        stdout.close()  # nothing is written after this: it has to notice by itself
        assert tailing.process.wait(TIMEOUT_S) == 0
        assert tailing.process.stderr is not None
        assert tailing.process.stderr.read() == b""


def test_other_verbs_end_quietly_when_nobody_reads(shared: ServerProcess) -> None:
    command = [sys.executable, "-m", "uprmc", "vbucket", "list", "--node", str(shared.upr)]
    with popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(TIMEOUT_S)) == (b"", 0)


def test_a_terminal_of_few_letters_gets_escapes(shared: ServerProcess) -> None:
    with Wire(shared.upr) as wire:
        writes(wire, 3, "100€".encode())
    options = ["--vbuckets", 3, "--start", 0, "--until-now", "--node", shared.upr]
    ended = uprmc("tail", *options, environment={"PYTHONIOENCODING": "latin-1"})
    assert ended.code == 0
    assert r"100\u20ac" in ended.out


# --- vbucket ------------------------------------------------------------------------------------


def test_the_list_tells_state_history_seqnos_and_documents(
    server: ServerProcess, here: Here
) -> None:
    write = writer(server, 3)
    write(0)
    write(1)
    assert here("observe", "k1", "--vbuckets", 3, "--wait", "--node", server.upr).code == 0
    assert here("vbucket", "set", "1,4-5", "replica", "--node", server.upr).code == 0
    listed = json.loads(here("vbucket", "list", "--json", "--node", server.upr).out)
    (log,) = json.loads(here("failover-log", 3, "--json", "--node", server.upr).out)
    assert listed[3] == {
        "vbucket": 3,
        "state": "active",
        "term": 1,
        "vb_uuid": log["entries"][0]["vb_uuid"],
        "high_seqno": 2,
        "persisted_seqno": 2,
        "items": 2,
    }
    assert [row["vbucket"] for row in listed if row["state"] == "replica"] == [1, 4, 5]
    table = here("vbucket", "list", "--state", "replica", "--node", server.upr).out.splitlines()
    assert [line.split()[:2] for line in table[1:]] == [[n, "replica"] for n in "145"]


def test_a_vbucket_that_becomes_active_begins_a_branch(server: ServerProcess, here: Here) -> None:
    here("vbucket", "set", 2, "replica", "--node", server.upr)
    ended = here("vbucket", "set", 2, "active", "--json", "--node", server.upr)
    assert json.loads(ended.out) == {"vbuckets": [2], "state": "active"}
    (log,) = json.loads(here("failover-log", 2, "--json", "--node", server.upr).out)
    assert len(log["entries"]) == 2
    assert log["term"] == 2
    lines = here("failover-log", 2, "--node", server.upr).out.splitlines()
    newest, older = log["entries"]
    assert [line.split() for line in lines[1:]] == [
        ["2", "2", newest["vb_uuid"], "0"],
        ["2", older["vb_uuid"], "0"],
    ]
    listed = here("vbucket", "list", "--node", server.upr).out.splitlines()
    assert listed[3].split()[:3] == ["2", "active", "2"]


def test_only_dead_vbuckets_are_removed_and_all_of_them_or_none(
    server: ServerProcess, here: Here
) -> None:
    assert here("vbucket", "set", 0, "dead", "--node", server.upr).out == "vBucket 0: dead\n"
    ended = here("vbucket", "rm", "0-1", "--node", server.upr)
    assert ended.code == 1
    assert ended.line().startswith("vBucket 1 is active and only dead ones can be removed: ")
    ended = here("vbucket", "rm", "0,8", "--node", server.upr)
    assert (ended.code, ended.line()) == (
        1,
        "the node does not have vBucket 8; nothing was removed",
    )
    assert here("vbucket", "rm", 0, "--node", server.upr).out == "vBucket 0: removed\n"
    ended = here("vbucket", "rm", 0, "--node", server.upr)
    assert (ended.code, ended.line()) == (
        1,
        "the node does not have vBucket 0; nothing was removed",
    )
    listed = json.loads(here("vbucket", "list", "--json", "--node", server.upr).out)
    assert [row["vbucket"] for row in listed] == list(range(1, VBUCKETS))


def test_force_makes_them_dead_first_and_an_empty_node_has_nothing_to_follow(
    server: ServerProcess, here: Here
) -> None:
    writer(server, 5)(0)
    options = ["--force", "--no-wait", "--json", "--node", server.upr]
    ended = here("vbucket", "rm", "0-7", *options)
    assert json.loads(ended.out) == {"vbuckets": list(range(8)), "state": "removed"}
    assert json.loads(here("vbucket", "list", "--json", "--node", server.upr).out) == []
    assert json.loads(here("failover-log", "--json", "--node", server.upr).out) == []
    ended = here("tail", "--once", "--node", server.upr, "--timeout", 1)
    assert ended.code == 1
    assert ended.line().startswith(f"vBuckets are active at none of {server.upr}")


def test_a_node_of_replicas_is_followed_as_it_is(server: ServerProcess, here: Here) -> None:
    for number in range(5):
        writer(server, number)(number)
    here("vbucket", "set", "0-7", "replica", "--node", server.upr)
    ended = here("tail", "--start", 0, "--until-now", "--json", "--node", server.upr)
    assert (ended.code, len(ended.out.splitlines())) == (0, 5)


def test_numbers_that_the_node_cannot_have(shared: ServerProcess, here: Here) -> None:
    said = here("vbucket", "set", "8-9", "active", "--node", shared.upr).refused()
    assert said == "vBucket 8 is above the highest number that the node can have"
    ended = here("failover-log", "8-9", "--node", shared.upr)
    assert ended.code == 1
    assert ended.line().startswith("vBuckets 8-9: not on this node")
    ended = here("tail", "--vbuckets", "8-9", "--once", "--timeout", 1, "--node", shared.upr)
    assert ended.code == 1
    assert ended.line() == "vbuckets: there is no vBucket 8: say 0 to 7"


# --- failover-log and observe -------------------------------------------------------------------


def test_failover_logs_of_all_or_of_some(shared: ServerProcess, here: Here) -> None:
    table = here("failover-log", "--node", shared.upr).out.splitlines()
    assert [line.split()[0] for line in table[1:]] == [str(n) for n in range(VBUCKETS)]
    some = json.loads(here("failover-log", "2-3", 6, "--json", "--node", shared.upr).out)
    assert [row["vbucket"] for row in some] == [2, 3, 6]
    assert all(row["entries"][-1]["seqno"] == 0 for row in some)


def test_observe_finds_a_key_by_its_hash(shared: ServerProcess, here: Here) -> None:
    with Wire(shared.memcached) as wire:
        writes(wire, 0, "größe".encode())
    ended = here("observe", "größe", "--wait", "--json", "--node", shared.upr)
    assert ended.code == 0
    found = json.loads(ended.out)
    assert (found["key"], found["state"]) == ("größe", "persisted")
    assert int(found["cas"]) > 0
    said = here("observe", "größe", "--vbuckets", found["vbucket"], "--node", shared.upr).out
    assert said == f"größe  vBucket {found['vbucket']}  persisted  CAS {found['cas']}\n"


def test_observe_tells_what_is_not_on_disk_and_gives_up_in_time(tmp_path: Path, here: Here) -> None:
    with start_uprmc(tmp_path, "--vbuckets", "1") as server:
        with Wire(server.upr) as wire:
            assert wire.ask(frame(0x80)).status == OK  # STOP_PERSISTENCE
            writes(wire, 0, b"k")
            ended = here("observe", "k", "--node", server.upr)
            assert (ended.code, ended.out.split("  ")[2]) == (0, "not persisted")
            ended = here("observe", "k", "--wait", "--timeout", "0.05", "--node", server.upr)
            assert ended.code == 1
            assert ended.line() == "k in vBucket 0: not persisted after 0.05 s"
            assert wire.ask(frame(DELETE, b"k")).status == OK
            assert "deleted, not persisted" in here("observe", "k", "--node", server.upr).out
            assert wire.ask(frame(0x81)).status == OK  # START_PERSISTENCE
            assert "not found" in here("observe", "k", "--wait", "--node", server.upr).out
        server.stop()


def test_observe_needs_the_vbucket(server: ServerProcess, here: Here) -> None:
    here("vbucket", "set", 4, "dead", "--node", server.upr)
    ended = here("observe", "k", "--vbuckets", 4, "--node", server.upr)
    assert (ended.code, ended.line()) == (1, "vBucket 4 is not on this node, or dead")


# --- usage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tail", "--form", "0"], "--form"),
        (["tail", "--start", "yesterday"], "say now, 0 for all changes, or a number"),
        (["tail", "--start", "-1"], "'-1' is not a seqno"),
        (["tail", "--start", str(2**64)], "is not a seqno"),
        (["tail", "--vbuckets", "7-3"], "'7-3' is not a list of vBuckets"),
        (["tail", "--uuid", "5"], "give --start SEQNO, too"),
        (["tail", "--start", "5", "--uuid", "zz"], "'zz' is not a vb_uuid"),
        (["tail", "--start", "5", "--uuid", "0"], "'0' is not a vb_uuid"),
        (["tail", "--start", "5", "--uuid", hex(2**64)], "is not a vb_uuid"),
        (["tail", "--on-rollback", "never"], "'never' is not one of 'fail', 'rewind', 'restart'"),
        (["tail", "--node", "127.0.0.1:99999"], "say HOST:PORT"),
        (["vbucket", "lst"], "lst"),
        (["vbucket", "set", "3", "ded"], "'ded' is not one of 'active'"),
        (["vbucket", "set", "3"], "STATE"),
        (["vbucket", "list", "--state", "gone"], "'gone' is not one of"),
        (["vbucket", "rm", "x"], "'x' is not a list of vBuckets"),
        (["failover-log", "x"], "'x' is not a list of vBuckets"),
        (["observe"], "KEY"),
        (["observe", ""], "a key has 1 to 250 bytes, this one 0"),
        (["observe", "k" * 251], "this one 251"),
        (["observe", "k", "--timeout", "-1"], "--timeout"),
        (["observe", "k", "--vbuckets", "65536"], "--vbuckets"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(here: Here, arguments: list[str], said: str) -> None:
    assert said in here(*arguments).refused()


@pytest.mark.parametrize(
    "verb",
    ["tail --timeout 100ms", "vbucket list", "vbucket rm 1", "failover-log", "observe k"],
)
def test_an_unreachable_node_is_one_line_and_exit_code_1(here: Here, verb: str) -> None:
    ended = here(*verb.split(), "--node", "127.0.0.1:1")
    assert ended.code == 1
    assert ended.line().startswith("no node answers at 127.0.0.1:1: ")


def test_debug_adds_the_traceback(here: Here) -> None:
    for arguments in (["--debug", "vbucket", "list"], ["vbucket", "--debug", "list"]):
        ended = here(*arguments, "--node", "127.0.0.1:1")
        assert ended.err.splitlines()[0] == "Traceback (most recent call last):"
        assert ended.err.splitlines()[-1].startswith("uprmc: no node answers")
