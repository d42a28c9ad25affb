"""Links between node processes, each of which is killed in turn; and the verbs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from interop.server_process import ServerProcess, start_uprmc
from interop.waiting import wait_until
from tests.cli.here import Here, runner
from uprmc.client.kv import KvClient
from uprmc.errors import UprmcError

KEYS = [b"key-%d" % number for number in range(2_000)]

#: Writes of the test that kills, and how many come at once.
WRITES = int(os.environ.get("XDCR_KILL_WRITES", "14000"))
BATCH = 500


class Centre:
    """A node process that is started again where it was."""

    def __init__(self, stack: ExitStack, directory: Path, vbuckets: int = 16) -> None:
        self._stack = stack
        self._vbuckets = vbuckets
        self._directory = directory
        self._server: ServerProcess | None = None
        self.place = ""
        self.start()

    def start(self) -> None:
        same = ["--upr", self.place] if self.place else []
        server = start_uprmc(self._directory, "--vbuckets", str(self._vbuckets), *same)
        self._server = self._stack.enter_context(server)
        self.place = str(server.upr)

    def kill(self) -> None:
        """Kill it, and start it again."""
        assert self._server is not None
        self._server.kill()
        self.start()

    def documents(self, keys: Sequence[bytes] = KEYS) -> dict[bytes, tuple[Any, ...]]:
        with KvClient([self.place]) as kv:
            found = kv.get_many(keys)
        return {key: (each.value, each.cas, each.flags) for key, each in found.items()}


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Centre, Centre]]:
    with ExitStack() as stack:
        yield Centre(stack, tmp_path / "a"), Centre(stack, tmp_path / "b")


@pytest.fixture
def wide_pair(tmp_path: Path) -> Iterator[tuple[Centre, Centre]]:
    """Nodes with so many vBuckets that one answer is not about all of them."""
    with ExitStack() as stack:
        yield tuple(Centre(stack, tmp_path / name, 512) for name in "ab")  # type: ignore[misc]


def until_same(a: Centre, b: Centre, keys: Sequence[bytes] = KEYS, limit_s: float = 60.0) -> int:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            ours, theirs = a.documents(keys), b.documents(keys)
        except UprmcError:
            ours, theirs = {}, {b"": ()}
        if ours == theirs:
            return len(ours)
        assert time.monotonic() < deadline, f"{len(ours)} and {len(theirs)} documents"
        time.sleep(0.05)


def write(centre: Centre, value: bytes) -> None:
    with KvClient([centre.place]) as kv:
        kv.set_many(dict.fromkeys(KEYS, value))
        kv.delete_many(KEYS[::10])


def test_a_link_survives_that_its_source_and_its_target_are_killed_while_it_sends(
    pair: tuple[Centre, Centre], here: Here
) -> None:
    """Both ends have the same documents afterwards, and all that was written since the source died.

    A link runs in the process of its source: it is killed with it. `XDCR_KILL_WRITES=1000000` in
    the environment makes it the long form, which needs `--timeout=0` as well.
    """
    a, b = pair
    command = ("xdcr", "create", "west", "--to", b.place, "--set", "ship=persisted")
    assert here(*command, "--node", a.place).code == 0
    keys = [b"key-%d" % number for number in range(max(2_000, WRITES // 10))]
    victims = {WRITES * each // 7 // BATCH: (b, a)[each % 2] for each in range(1, 7)}
    since: dict[bytes, bytes | None] = {}
    for number in range(WRITES // BATCH):
        at = number * BATCH % len(keys)
        with KvClient([a.place]) as kv:
            written = dict.fromkeys(keys[at : at + BATCH], b"written in batch %d" % number)
            gone = list(written)[::10]
            kv.set_many(written)
            kv.delete_many(gone)
        since.update({**written, **dict.fromkeys(gone)})
        victim = victims.get(number)
        if victim is not None:
            victim.kill()
        if victim is a:
            since.clear()  # what was not on its disk is lost
    assert until_same(a, b, keys, 60.0 + WRITES / 2_000)
    found = b.documents(keys)
    assert {key: found[key][0] if key in found else None for key in since} == since
    status = json.loads(here("xdcr", "status", "west", "--node", a.place, "--json").out)
    assert status["state"] == "running"
    assert status["branches"] == []


def test_the_verbs_answer_people_and_programs(wide_pair: tuple[Centre, Centre], here: Here) -> None:
    a, b = wide_pair

    def xdcr(*words: str) -> str:
        ended = here("xdcr", *words, "--node", a.place)
        assert ended.code == 0, ended
        return ended.out

    write(a, b"v")
    assert xdcr("create", "west", "--to", b.place) == "west: made\n"
    until_same(a, b)
    assert "west" in xdcr("list")
    assert json.loads(xdcr("list", "--json"))[0]["name"] == "west"
    assert "batch_items             100" in xdcr("set", "west", "batch_items=100")
    assert xdcr("checkpoint", "west").startswith("west: running")
    records = json.loads(xdcr("checkpoints", "west", "--json"))["own"]
    vbuckets = json.loads(xdcr("status", "west", "--json"))["vbuckets"]
    assert [each["vbucket"] for each in vbuckets] == list(range(512))
    used = [each["vbucket"] for each in vbuckets if each["high_seqno"]]
    assert [each["vbucket"] for each in records] == used
    assert xdcr("pause", "west") == "west: paused, 0 changes left\n"
    assert "state                   paused" in xdcr("status", "west")
    assert xdcr("resume", "west") == "west: running, 0 changes left\n"
    assert xdcr("delete", "west") == "west: deleted\n"


@pytest.mark.acceptance("X08")
def test_an_outpaced_link_is_reconciled_from_the_command_line(
    pair: tuple[Centre, Centre], here: Here
) -> None:
    a, b = pair

    def uprmc(*words: str, at: Centre = a) -> str:
        ended = here(*words, "--node", at.place)
        assert ended.code == 0, ended
        return ended.out

    uprmc("xdcr", "create", "west", "--to", b.place)
    uprmc("xdcr", "create", "east", "--to", a.place, at=b)
    write(a, b"v")
    until_same(a, b)
    uprmc("xdcr", "checkpoint", "west")
    uprmc("xdcr", "pause", "west")
    with KvClient([a.place]) as kv:
        kv.delete_many(KEYS[1::10])
        kv.set_many(dict.fromkeys(KEYS[2::10], b"newer"))  # the newest seqno is never dropped
    uprmc("xdcr", "set", "west", "batch_items=100")  # answered when all of this is on disk
    uprmc("compact", "--force", "--wait")
    uprmc("xdcr", "resume", "west")

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(uprmc("xdcr", "status", "west", "--json"))
        return found

    wait_until(lambda: len(status()["needs_reconcile"]) == 16, "all vBuckets stop")
    assert status()["state"] == "needs_reconcile"
    dry = json.loads(uprmc("xdcr", "reconcile", "west", "--dry-run", "--json"))
    listed = {key.encode() for row in dry["vbuckets"] for key in row["keys"]}
    assert listed == set(KEYS[1::10])
    assert len(b.documents()) == len(KEYS) * 9 // 10
    text = uprmc("xdcr", "reconcile", "west")
    assert text.splitlines()[0].split() == list(dry["vbuckets"][0])
    assert until_same(a, b) == len(KEYS) * 8 // 10


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("status", "east"), 1, "there is no link 'east'"),
        (("reconcile", "east", "--dry-run"), 1, "there is no link 'east'"),
        (("create", "x", "--to", "nowhere:x"), 2, "'nowhere:x' is no target"),
        (("create", "x", "--to", "h:1", "--set", "colour=1"), 2, "no setting 'colour'"),
        (("create", "x", "--to", "h:1", "--set", "batch_items"), 2, "use KEY=VALUE"),
        (("set", "x", "batch_items=1"), 1, "there is no link 'x'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    pair: tuple[Centre, Centre], here: Here, words: tuple[str, ...], code: int, reason: str
) -> None:
    ended = here("xdcr", *words, "--node", pair[0].place)
    assert ended.code == code
    assert reason in ended.line()
