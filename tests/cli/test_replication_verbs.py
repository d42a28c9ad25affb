"""replicate, takeover, failover and ``serve --source`` against real nodes."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.proxy import lasting_port
from interop.server_process import Address, ServerProcess, start_uprmc
from interop.wire import GET, OK, SET, Wire, frame, store
from tests.cli.fake_node import CLOSE, FakeNode
from tests.cli.here import Here, runner
from tests.cli.support import listeners, uprmc

VBUCKETS = 8
NOT_MINE = 0x07
STAT = 0x10
SMALL = ("--vbuckets", str(VBUCKETS), "--set", "upr.redial_max_s=0.2")


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


Start = Callable[..., ServerProcess]


@pytest.fixture(name="start")
def _start(tmp_path: Path) -> Iterator[Start]:
    """Return what starts a node of a name; all are killed in the end."""
    with ExitStack() as stack:

        def start(name: str, *options: str) -> ServerProcess:
            return stack.enter_context(start_uprmc(tmp_path / name, *SMALL, *options))

        yield start


@pytest.fixture(name="nodes")
def _nodes(start: Start) -> tuple[ServerProcess, ServerProcess]:
    return start("a"), start("b")


def put(server: ServerProcess, number: int, key: bytes, value: bytes = b"v") -> None:
    with Wire(server.upr) as wire:
        assert wire.ask(store(SET, key, value, vbucket=number)).status == OK


def value(server: ServerProcess, number: int, key: bytes) -> bytes | None:
    with Wire(server.upr) as wire:
        reply = wire.ask(frame(GET, key, vbucket=number))
    return None if reply.status else reply.value


def states(here: Here, server: ServerProcess) -> dict[int, str]:
    ended = here("vbucket", "list", "--json", "--node", server.upr)
    return {row["vbucket"]: row["state"] for row in json.loads(ended.out)}


def logs(here: Here, server: ServerProcess) -> object:
    rows = json.loads(here("failover-log", "--json", "--node", server.upr).out)
    return [(row["vbucket"], row["entries"]) for row in rows]


def stats(here: Here, server: ServerProcess) -> dict[str, str]:
    return json.loads(here("stats", "replication", "--json", "--node", server.upr).out)


def follow(here: Here, replica: ServerProcess, source: ServerProcess, *options: object) -> str:
    ended = here("replicate", "--node", replica.upr, "--source", source.upr, "--wait", *options)
    assert (ended.code, ended.err) == (0, ""), ended
    return ended.out


# --- replicate ----------------------------------------------------------------------------------


def test_replicate_waits_until_nothing_is_lacking_and_goes_on_after_kill_9_of_the_replica(
    nodes: tuple[ServerProcess, ServerProcess], start: Start, here: Here
) -> None:
    a, b = nodes
    for number in range(VBUCKETS):
        put(a, number, b"before")
    out = follow(here, b, a)
    assert out == f"vBuckets 0-7: following {a.upr}, 8 streaming, 0 changes behind\n"
    assert set(states(here, b).values()) == {"replica"}
    b.kill()
    put(a, 3, b"meanwhile")
    b = start("b")
    follow(here, b, a)
    assert uprmc("failover", "--node", b.upr).code == 0
    assert [value(b, 3, key) for key in (b"before", b"meanwhile")] == [b"v", b"v"]


def test_some_vbuckets_follow_and_stop_following(
    nodes: tuple[ServerProcess, ServerProcess], here: Here
) -> None:
    a, b = nodes
    follow(here, b, a, "--vbuckets", "0-2,5")
    ended = here("replicate", "--node", b.upr, "--stop", "--vbuckets", "1-2")
    assert (ended.code, ended.out) == (0, "vBuckets 1-2: no longer following a source\n")
    assert [number for number, state in states(here, b).items() if state == "replica"] == [
        *(0, 1, 2, 5)
    ]
    ended = here("replicate", "--node", b.upr, "--source", a.upr, "--vbuckets", "0", "--json")
    (row,) = json.loads(ended.out)["following"]
    assert (row["vbucket"], row["source"], row["error"]) == (0, str(a.upr), "")
    ended = here("replicate", "--node", b.upr, "--stop")
    assert ended.out == "all vBuckets: no longer following a source\n"
    assert stats(here, b)["sources"] == "0"


def test_active_vbuckets_with_changes_are_given_up_only_with_demote(
    nodes: tuple[ServerProcess, ServerProcess], here: Here
) -> None:
    a, b = nodes
    put(a, 2, b"theirs")
    put(b, 2, b"ours")
    ended = here("replicate", "--node", b.upr, "--source", a.upr)
    assert ended.code == 1
    assert ended.line().startswith(f"{b.upr}: vBucket 2: active here, with changes: say DEMOTE")
    assert set(states(here, b).values()) == {"active"}
    follow(here, b, a, "--demote")
    here("failover", "--node", b.upr)
    assert (value(b, 2, b"ours"), value(b, 2, b"theirs")) == (None, b"v")


def test_a_source_that_is_not_there_is_told_and_written_down_all_the_same(
    nodes: tuple[ServerProcess, ServerProcess], here: Here
) -> None:
    _, b = nodes
    nobody = f"127.0.0.1:{lasting_port()}"
    ended = here("replicate", "--node", b.upr, "--source", nobody)
    assert ended.code == 0
    assert ended.err.startswith(f"uprmc: {nobody} does not send data yet: connection refused")
    assert "0 streaming" in ended.out
    ended = here("replicate", "--node", b.upr, "--source", nobody, "--wait", "--timeout", "0.3")
    assert ended.code == 1
    assert "not up to date with" in ended.line()
    assert "connection refused" in ended.line()


def test_a_source_that_accepts_and_says_nothing_is_told(
    nodes: tuple[ServerProcess, ServerProcess], here: Here
) -> None:
    _, b = nodes
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        ended = here("replicate", "--node", b.upr, "--source", place)
    assert ended.code == 0
    assert ended.err == (
        f"uprmc: {place} does not send data yet: no answer so far (the node keeps trying)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replicate",), "say either --source HOST:PORT or --stop"),
        (("replicate", "--stop", "--source", "a:1"), "say either --source HOST:PORT or --stop"),
        (("replicate", "--stop", "--wait"), "only --vbuckets can be combined with --stop"),
        (("replicate", "--stop", "--demote"), "only --vbuckets can be combined with --stop"),
        (("replicate", "--source", "a:1", "--vbuckets", "3-1"), "'3-1' is not a list of vBuckets"),
        (("replicate", "--form", "a:1"), "No such option '--form'"),
        (("replicate", "--source", "a:1", "--node", "a"), "'a' is no node: say HOST:PORT"),
        (("replicate", "--source", "a:1", "extra"), "unexpected extra argument"),
        (("takeover",), "Missing option '--to'"),
        (("takeover", "--to", "a:1", "--vbuckets", ""), "'' is not a list of vBuckets"),
        (("failover", "--vbuckets", "x"), "'x' is not a list of vBuckets"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    here: Here, arguments: tuple[str, ...], words: str
) -> None:
    assert words in here(*arguments).refused()


@pytest.mark.parametrize("verb", ["replicate", "takeover", "failover"])
def test_each_verb_tells_about_itself(here: Here, verb: str) -> None:
    ended = here(verb, "--help")
    assert ended.code == 0
    assert "--node" in ended.out
    assert "--vbuckets" in ended.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("replicate", "--source", "a:1"),
        ("replicate", "--stop"),
        ("takeover", "--to", "a:1"),
        ("failover",),
    ],
)
def test_a_node_that_is_not_there_is_exit_code_1(here: Here, arguments: tuple[str, ...]) -> None:
    ended = here(*arguments, "--node", f"127.0.0.1:{lasting_port()}")
    assert ended.code == 1
    assert "no node answers at" in ended.line()


def test_what_a_node_refuses_is_said_in_its_words(
    nodes: tuple[ServerProcess, ServerProcess], here: Here
) -> None:
    a, _ = nodes
    for arguments, words in (
        (("replicate", "--source", "nonsense"), "'nonsense' is not a source: use HOST:PORT"),
        (("replicate", "--source", a.upr), "is this node itself"),
        (("replicate", "--source", "b:1", "--vbuckets", 8), "this node's highest is 7"),
        (("failover", "--vbuckets", 8), "this node's highest is 7"),
        (("failover",), "has no replicas: there is nothing to promote"),
        (("takeover", "--to", a.upr), "is this node itself"),
        (("takeover", "--to", a.upr, "--vbuckets", 8), "does not have vBucket 8"),
    ):
        ended = here(*arguments, "--node", a.upr)
        assert ended.code == 1
        assert words in ended.line()


def test_a_node_that_knows_no_such_command_is_understood(here: Here) -> None:
    def unknown(node: FakeNode, asked: object) -> None:
        node.reply(asked, 0x81, b"Unknown command")

    with FakeNode(on_d7=unknown) as fake:
        ended = here("replicate", "--node", fake.place, "--source", "a:1")
    assert "does not know this command: is it an older uprmc?" in ended.line()


# --- serve --source -------------------------------------------------------------------------------


def test_a_new_node_begins_as_a_replica_and_keeps_that_when_it_is_started_again(
    start: Start, here: Here
) -> None:
    a = start("a")
    put(a, 1, b"k")
    b = start("b", "--source", str(a.upr))
    follow(here, b, a)
    b.kill()
    b = start("b", "--source", str(a.upr))
    follow(here, b, a)
    assert set(states(here, b).values()) == {"replica"}
    uprmc("failover", "--node", b.upr)
    b.stop()
    b = start("b", "--source", str(a.upr))
    assert set(states(here, b).values()) == {"active"}


@pytest.mark.parametrize("place", ["nonsense", "127.0.0.1:99999", ""])
def test_a_bad_source_of_a_new_node_is_refused_at_the_start(tmp_path: Path, place: str) -> None:
    ended = uprmc("serve", "--data", tmp_path / "data", *listeners(), "--source", place)
    assert ended.code == 2
    last = ended.err.splitlines()[-1]
    assert last.startswith("uprmc: --source: ")
    assert last.endswith("is not a source: use HOST:PORT")
    assert ended.out == ""


# --- failover -----------------------------------------------------------------------------------


@pytest.mark.acceptance("P17")
def test_a_failover_after_kill_9_of_the_active_and_its_return_as_a_replica(
    nodes: tuple[ServerProcess, ServerProcess], start: Start, here: Here
) -> None:
    a, b = nodes
    for number in range(VBUCKETS):
        put(a, number, b"before")
    follow(here, b, a)
    a.kill()
    ended = here("failover", "--node", b.upr, "--json")
    branches = json.loads(ended.out)
    assert [(row["vbucket"], row["begins_after"]) for row in branches] == [
        (number, 1) for number in range(VBUCKETS)
    ]
    put(b, 0, b"after")
    a = start("a")
    put(a, 0, b"nobody else has it")
    follow(here, a, b, "--demote")
    assert logs(here, a) == logs(here, b)
    ended = here("takeover", "--node", b.upr, "--to", a.upr)
    assert ended.out == f"vBuckets 0-7: active at {a.upr}, dead at {b.upr}\n"
    found = [value(a, 0, key) for key in (b"before", b"after", b"nobody else has it")]
    assert found == [b"v", b"v", None]


def test_some_vbuckets_fail_over_and_the_rest_follows_on(
    nodes: tuple[ServerProcess, ServerProcess], here: Here
) -> None:
    a, b = nodes
    follow(here, b, a)
    ended = here("failover", "--node", b.upr, "--vbuckets", "2-3")
    assert (ended.code, ended.out) == (0, f"vBuckets 2-3: active at {b.upr}\n")
    assert stats(here, b)["vbuckets"] == "6"


# --- takeover -----------------------------------------------------------------------------------


class Writer:
    """Writes one document after the other, each until some node takes it, and remembers all."""

    def __init__(self, *places: Address) -> None:
        self.acknowledged: list[tuple[int, bytes]] = []
        self.longest_s = 0.0
        self.switches = 0
        self._places = places
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def until(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.acknowledged) < count:
            assert time.monotonic() < deadline, "the writer got nowhere"
            time.sleep(0.001)

    def _run(self) -> None:
        wires = [Wire(place) for place in self._places]
        at = [0] * VBUCKETS
        count = 0
        while not self._ended.is_set():
            number, key = count % VBUCKETS, b"w%d" % count
            began = time.monotonic()
            while wires[at[number]].ask(store(SET, key, key, vbucket=number)).status == NOT_MINE:
                at[number] = 1 - at[number]
                self.switches += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.acknowledged.append((number, key))
            count += 1
        for wire in wires:
            wire.close()


@pytest.mark.acceptance("D52")
def test_a_takeover_under_writes_loses_none_leaves_the_logs_and_is_short(
    nodes: tuple[ServerProcess, ServerProcess], here: Here
) -> None:
    a, b = nodes
    follow(here, b, a)
    before = logs(here, a)
    with Writer(a.upr, b.upr) as writer:
        writer.until(500)
        ended = here("takeover", "--node", a.upr, "--to", b.upr, "--swap")
        assert (ended.code, ended.err) == (0, "")
        assert ended.out == f"vBuckets 0-7: active at {b.upr}, a replica at {a.upr}\n"
        writer.until(len(writer.acknowledged) + 500)
    assert writer.switches >= VBUCKETS
    assert writer.longest_s < 2.0  # the figure is measured by a benchmark, alone on a machine
    with Wire(b.upr) as wire:
        lost = [
            key
            for number, key in writer.acknowledged
            if wire.ask(frame(GET, key, vbucket=number)).value != key
        ]
    assert lost == []
    assert logs(here, a) == logs(here, b) == before
    follow(here, a, b)
    assert set(states(here, a).values()) == {"replica"}
    assert stats(here, a)["rollbacks"] == stats(here, b)["rollbacks"] == "0"


def test_what_is_not_active_at_the_node_is_not_handed_over(
    nodes: tuple[ServerProcess, ServerProcess], here: Here
) -> None:
    a, b = nodes
    here("vbucket", "set", "3", "replica", "--node", a.upr)
    ended = here("takeover", "--node", a.upr, "--to", b.upr, "--vbuckets", "2-3")
    assert ended.line() == f"vBucket 3 not active at {a.upr}: nothing to hand over"
    assert states(here, a)[2] == "active"


def test_a_target_that_holds_changes_of_its_own_refuses_and_nothing_changes(
    nodes: tuple[ServerProcess, ServerProcess], here: Here
) -> None:
    a, b = nodes
    put(b, 1, b"k")
    ended = here("takeover", "--node", a.upr, "--to", b.upr)
    assert ended.code == 1
    assert "vBucket 1: active here, with changes" in ended.line()
    assert ended.line().endswith(f"nothing has changed, they are active at {a.upr}")
    assert set(states(here, a).values()) == {"active"}


def outcomes(*rows: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">HH", *row) for row in rows)


def target(reply: bytes, state: int) -> FakeNode:
    """A target that answers a takeover with this and says that its vBuckets are in that state."""

    def stat(node: FakeNode, asked: object) -> None:
        node.send(0x81, STAT, key=b"last_takeover_error", value=b"vBucket 1: connection lost")
        node.reply(asked)

    return FakeNode(
        on_d8=lambda node, asked: node.reply(asked, value=reply),
        on_3e=lambda node, asked: node.reply(asked, value=struct.pack(">I", state)),
        on_10=stat,
    )


def test_what_was_interrupted_is_made_active_at_the_source_again(start: Start, here: Here) -> None:
    a = start("a")
    here("vbucket", "set", "1", "dead", "--node", a.upr)
    here("vbucket", "set", "1", "active", "--node", a.upr)
    with target(outcomes((0, 0), (1, 2), (2, 1)), state=2) as fake:
        dead_in_the_meantime(here, a, fake)
        ended = here("takeover", "--node", a.upr, "--to", fake.place, "--vbuckets", "0-2", "--json")
    assert ended.code == 1
    found = json.loads(ended.out)
    assert (found["taken"], found["refused"], found["interrupted"]) == ([0], [2], [1])
    assert found["reactivated"] == [1]
    assert states(here, a)[1] == "active"
    (line,) = ended.err.splitlines()
    assert f"vBucket 2 refused, still at {a.upr}" in line
    assert f"vBucket 1 active at {a.upr} again, on a new branch" in line
    assert line.endswith("vBucket 1: connection lost")


def test_a_source_is_not_reactivated_while_the_target_is_active(start: Start, here: Here) -> None:
    a = start("a")
    with target(outcomes((1, 2)), state=1) as fake:
        dead_in_the_meantime(here, a, fake)
        ended = here("takeover", "--node", a.upr, "--to", fake.place, "--vbuckets", "1", "--json")
    assert json.loads(ended.out)["reactivated"] == []
    assert states(here, a)[1] == "dead"


def test_a_target_that_is_lost_on_the_way_leaves_the_decision_to_the_operator(
    start: Start, here: Here
) -> None:
    a = start("a")
    with target(b"", state=2) as fake:
        dead_in_the_meantime(here, a, fake, then_hang_up=True)
        ended = here("takeover", "--node", a.upr, "--to", fake.place, "--vbuckets", "0-1")
    assert ended.code == 1
    assert (
        f"vBucket 1 dead at {a.upr}: see 'uprmc vbucket list --node {fake.place}'" in ended.line()
    )
    assert states(here, a)[1] == "dead"


def dead_in_the_meantime(
    here: Here, source: ServerProcess, fake: FakeNode, *, then_hang_up: bool = False
) -> None:
    """Let the source stop serving vBucket 1 while the target is being asked."""
    answer = fake._answers["on_d8"]

    def answered(node: FakeNode, asked: object) -> object:
        with Wire(source.upr) as wire:
            assert wire.ask(frame(0x3D, b"", b"", struct.pack(">I", 4), vbucket=1)).status == OK
        return CLOSE if then_hang_up else answer(node, asked)

    fake._answers["on_d8"] = answered
