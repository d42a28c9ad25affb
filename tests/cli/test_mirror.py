"""``uprmc mirror``: its target ends with the node's documents, whatever is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from interop.server_process import ANY_PORT, ServerProcess, start_uprmc
from interop.waiting import wait_until
from interop.wire import DELETE, SET, ClosedError, Wire, frame, store
from tests.cli.here import Here, runner
from tests.sinks.sink_contract import Documents
from tests.sinks.test_http_post import Receiver, receiving
from tests.sinks.test_json_file import TestJsonFile as JsonFileReader
from tests.sinks.test_sqlite_mirror import TestSqliteMirror as SqliteReader
from uprmc.client import changes

VBUCKETS = 4
_ROUNDS = 4


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@pytest.fixture(name="receiver")
def _receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def documents_of(server: ServerProcess) -> Documents:
    found: Documents = {number: {} for number in range(VBUCKETS)}
    for change in changes(str(server.upr), until="now"):
        if change.op == "set":
            found[change.vbucket][change.key] = change.value
        else:
            found[change.vbucket].pop(change.key, None)
    return found


class Writing:
    """Sets and deletes few keys as quickly as it can, until its node dies or it is stopped."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        assert server.upr is not None
        self._place, self._random = server.upr, random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError, ClosedError), Wire(self._place) as wire:
            while not self._over.is_set():
                number = self._random.randrange(200)
                key, vbucket = b"key%d" % number, number % VBUCKETS
                if number % 5:
                    value = b"%d" % self._random.randrange(1_000_000)
                    wire.ask(store(SET, key, value, vbucket=vbucket))
                else:
                    wire.ask(frame(DELETE, key=key, vbucket=vbucket))
                self.count += 1

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def mirroring(target: list[str], place: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "uprmc", "mirror", *target, "--node", str(place)]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["jsonl", "sqlite", "http"])
def test_kill_9_of_either_side_again_and_again_leaves_nothing_wrong(
    tmp_path: Path, kind: str, receiver: Receiver
) -> None:
    target = {
        "jsonl": ["--to", f"jsonl:{tmp_path}/x.jsonl", "--rotate", "20k"],
        "sqlite": ["--to", f"sqlite:{tmp_path}/x.db"],
        "http": ["--to", receiver.url, "--state", f"{tmp_path}/state.db"],
    }[kind]
    chance = random.Random(kind)
    options = ["--vbuckets", str(VBUCKETS), "--upr"]
    place: object = ANY_PORT
    for number in range(_ROUNDS):
        with start_uprmc(tmp_path / "data", *options, str(place)) as server:
            place = server.upr
            mirror = mirroring(target, place)
            writing = Writing(server, number)
            goal = chance.randrange(300, 2_000)
            wait_until(lambda: writing.count >= goal)  # noqa: B023
            victims = [mirror.kill, server.kill]
            chance.shuffle(victims)
            for kill in victims:
                kill()
            writing.stop()
            ended(mirror)
    with start_uprmc(tmp_path / "data", *options, str(place)) as server:
        assert ended(mirroring([*target, "--until-now"], place))[0] == 0
        found = {
            "jsonl": lambda: JsonFileReader().documents(tmp_path),
            "sqlite": lambda: SqliteReader().documents(tmp_path),
            "http": lambda: receiver.reader.documents,
        }[kind]()
        expected = documents_of(server)
        assert {number: found.get(number, {}) for number in range(VBUCKETS)} == expected
        server.stop()


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ["--vbuckets", str(VBUCKETS), "--no-sync"]
    with start_uprmc(tmp_path_factory.mktemp("data"), *options) as server:
        assert server.upr is not None
        with Wire(server.upr) as wire:
            wire.ask(store(SET, b"a", b"1", vbucket=1))
        yield server
        server.stop()


def test_sigterm_ends_it_in_order_and_saves_what_was_delivered(
    server: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    mirror = mirroring(["--to", f"jsonl:{path}"], server.upr)
    wait_until(lambda: path.exists() and path.read_bytes().endswith(b"\n"))
    mirror.send_signal(signal.SIGTERM)
    assert ended(mirror) == (0, b"")


def test_sigterm_ends_it_while_the_receiver_is_down(server: ServerProcess, tmp_path: Path) -> None:
    target = ["--to", "http://127.0.0.1:1/", "--state", str(tmp_path / "state.db")]
    mirror = mirroring(target, server.upr)
    assert mirror.stderr is not None
    assert b"trying again" in mirror.stderr.readline()
    mirror.send_signal(signal.SIGTERM)
    assert ended(mirror)[0] == 0


def test_totals_are_told_as_json(server: ServerProcess, tmp_path: Path, here: Here) -> None:
    given = ["mirror", "--to", f"sqlite:{tmp_path}/x.db", "--until-now", "--json"]
    first, again = (here(*given, "--node", server.upr) for _ in range(2))
    assert json.loads(first.out) == {"changes": 1, "skipped": 0}
    assert json.loads(again.out) == {"changes": 0, "skipped": 0}


@pytest.mark.parametrize("target", ["-", "jsonl:-"])
def test_a_hyphen_is_standard_output(
    target: str, server: ServerProcess, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = here("mirror", "--to", target, "--until-now", "--node", server.upr)
    assert json.loads(ended.out)["key"] == "a"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--to", "jsnl:x"], "did you mean jsonl:x?"),
        (["--to", "x"], "there is no such target: say -, jsonl:FILE"),
        (["--to", "http://h/"], "http: say --state FILE, in which positions are kept"),
        (["--to", "kafka:t", "--state", "s"], "say kafka:TOPIC@HOST:PORT,..."),
        (["--to", "sqlite:x", "--state", "s"], "sqlite keeps positions with the data"),
        (["--to", "sqlite:x", "--rotate", "1M"], "--rotate is for jsonl, not for sqlite"),
        (["--to", "http://h/", "--state", "s", "--header", "x"], "say 'NAME: VALUE', or @FILE"),
        (["--to", "-", "--json"], "standard output has the changes already"),
        (["--to", "sqlite:"], "say sqlite:FILE"),
        (["--to", "jsonl:."], "is no file: name one, or say - for standard output"),
        (["--to", "jsonl:/dev/fd/0/x"], "see that the directory exists"),
        (["--to", "sqlite:."], "see that the directory exists"),
        (["--to", "http://h:x/", "--state", "s"], "'http://h:x/' is no URL"),
        (["--to", "http://h/a b", "--state", "s"], "'/a b' cannot be asked for"),
        (["--to", "http://h/", "--state", "s", "--header", "é: c"], "'é' is no header"),
        (["--to", "http://h/", "--state", "s", "--header", "@x"], "--header @x: cannot be read"),
        (["--to", "http://h/", "--state", "no/s"], "see that the directory exists"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    options: list[str], words: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = here("mirror", *options)
    assert (refused.code, words in refused.line()) == (2, True), refused.err
    assert list(tmp_path.iterdir()) == []


def test_a_state_belongs_to_one_target(server: ServerProcess, tmp_path: Path, here: Here) -> None:
    given = ["--state", tmp_path / "s", "--until-now", "--node", server.upr]
    assert here("mirror", "--to", "http://127.0.0.1:1/a", "--retry", "0.1", *given).code == 1
    other = here("mirror", "--to", "http://127.0.0.1:1/b", *given)
    assert (other.code, "give each consumer a state of its own" in other.line()) == (2, True)
