"""replicate, takeover, failover and ``serve --source``: refusals, and peers that do not help.

What they do is told in `tests/scenarios`.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.proxy import lasting_port
from interop.server_process import ServerProcess, start_uprmc
from interop.wire import OK, SET, Wire, frame, store
from tests.cli.fake_node import CLOSE, FakeNode
from tests.cli.here import Here, runner
from tests.cli.support import listeners, uprmc
from tests.codec.frames import Frame
from tests.codec.frames import reply as answer
from uprmc.cli.replicas import FollowedSource

VBUCKETS = 8
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


def states(here: Here, server: ServerProcess) -> dict[int, str]:
    ended = here("vbucket", "list", "--json", "--node", server.upr)
    return {row["vbucket"]: row["state"] for row in json.loads(ended.out)}


# --- replicate ----------------------------------------------------------------------------------


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
        (("replicate", "--source", "a:1", "--node", "a:"), "'a:' is no node: say HOST:PORT"),
        (("replicate", "--source", "a:1", "extra"), "unexpected extra argument"),
        (("replicate", "--source", "non sense"), "'non sense' is not HOST:PORT"),
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


def test_a_replica_is_level_once_it_knows_how_far_its_source_is() -> None:
    following = FollowedSource("a:1", "streaming", lag_items=0, known=True, error="")
    assert following.level
    assert not following._replace(known=False).level
    assert not following._replace(lag_items=1).level
    assert not following._replace(state="asked").level


# --- serve --source -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["127.0.0.1:99999", "unix:/tmp/nowhere", ""])
def test_a_bad_source_of_a_new_node_is_refused_at_the_start(tmp_path: Path, place: str) -> None:
    ended = uprmc("serve", "--data", tmp_path / "data", *listeners(), "--source", place)
    assert ended.code == 2
    last = ended.err.splitlines()[-1]
    assert "--source" in last
    assert "HOST:PORT" in last
    assert ended.out == ""


def test_a_source_with_another_number_of_vbuckets_is_refused_before_anything_is_made(
    start: Start, tmp_path: Path
) -> None:
    node, data = start("source"), tmp_path / "data"
    ended = uprmc("serve", "--data", data, *listeners(), "--source", node.upr)
    assert ended.code == 2
    assert ended.err.splitlines()[-1] == (
        f"uprmc: --source: {node.upr} has {VBUCKETS} vBuckets and this node 1024: "
        f"say --vbuckets {VBUCKETS} with a new data directory"
    )
    assert not data.exists()


# --- takeover -----------------------------------------------------------------------------------


def outcomes(*rows: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">HH", *row) for row in rows)


def target(reply: bytes, state: int) -> FakeNode:
    """A target that answers a takeover with this and says that its vBuckets are in that state."""

    def stat(node: FakeNode, asked: Frame) -> None:
        row = b"last_takeover_error", b"vBucket 1: connection lost"
        node.raw(answer(asked, key=row[0], value=row[1]))
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
