"""The verbs that print: settings, stats, demo."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.cli.here import Here, runner
from tests.cli.support import uprmc
from tests.codec.frames import Frame
from tests.codec.node import ScriptedNode
from uprmc.cli.stats import BY_VBUCKET, GROUPS, memory_of, sentences
from uprmc.config import describe
from uprmc.server.stats import statistics


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_uprmc(tmp_path_factory.mktemp("data"), "--vbuckets", "4") as server:
        yield server
        server.stop()


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


def test_settings_lists_every_setting(here: Here) -> None:
    ended = here("settings")
    assert (ended.code, ended.err) == (0, "")
    for info in describe():
        assert f"{info.name} = " in ended.out
        assert info.doc in ended.out


def test_settings_as_json_can_be_read_by_a_program(here: Here) -> None:
    rows = json.loads(here("settings", "--json").out)
    assert [row["name"] for row in rows] == [info.name for info in describe()]
    quota = next(row for row in rows if row["name"] == "memory.quota")
    assert quota["default"] == 1 << 30
    assert quota["least"] < quota["default"] < quota["most"]
    assert {"unit", "help"} <= quota.keys()


def test_stats_prints_the_general_group(server: ServerProcess, here: Here) -> None:
    ended = uprmc("stats", "--node", server.upr)
    assert (ended.code, ended.err) == (0, "")
    found = dict(line.split(maxsplit=1) for line in ended.out.splitlines() if " " in line.strip())
    assert found["pid"] == str(server.pid)
    assert here("stats", "--node", server.memcached).code == 0


@pytest.mark.parametrize("group", [[], ["settings"], ["vbucket-details", "3"], ["uprmc"]])
def test_stats_as_json(server: ServerProcess, here: Here, group: list[str]) -> None:
    found = json.loads(here("stats", *group, "--json", "--node", server.upr).out)
    assert found
    assert all(isinstance(value, str) for value in found.values())


def test_why_memory_is_full_is_said_in_sentences_and_in_numbers(
    server: ServerProcess, here: Here
) -> None:
    ended = here("stats", "memory", "--why", "--node", server.upr)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Documents take 0 bytes of the quota of 1.0 GiB (0 %).")
    found = json.loads(here("stats", "memory", "--why", "--json", "--node", server.upr).out)
    assert sum(use["bytes"] for use in found["uses"]) == pytest.approx(found["process"], rel=0.2)
    assert found["why"][0] == ended.out.splitlines()[0]
    refused = here("stats", "--why", "--node", server.upr)
    assert (refused.code, refused.out) == (2, "")
    assert "uprmc stats memory --why" in refused.err


@pytest.mark.parametrize(
    ("used", "keys", "queued", "said"),
    [
        (50, 10, 0, "Values are evicted above 85 bytes."),
        (90, 10, 0, "Values that are persisted are being evicted; writes are accepted."),
        (95, 10, 0, "Writes are refused until there is room."),
        (95, 90, 0, "Keys and bookkeeping of 7 documents alone are above the mark"),
        (95, 10, 6, "6 changes are not persisted yet, so their values cannot be evicted"),
    ],
)
def test_why_names_what_fills_the_quota(used: int, keys: int, queued: int, said: str) -> None:
    memory = {"mem_used": used, "ep_max_size": 100, "ep_mem_high_wat": 85}
    memory |= {"ep_mutation_mem_limit": 93, "total_rss_bytes": 300}
    uses = {"values": (used - keys, 7), "keys": (keys, 7), "queue": (1, queued)}
    holders = {"leases:bytes": "200", "leases:number": "3", "leases:what": "snapshot leases"}
    for name, (size, number) in uses.items():
        holders |= {f"{name}:bytes": f"{size}", f"{name}:number": f"{number}"}
        holders[f"{name}:what"] = name
    told = list(sentences(memory_of({name: str(value) for name, value in memory.items()}, holders)))
    assert any(said in each for each in told)
    assert any("most of it snapshot leases. `uprmc stats leases`" in each for each in told)


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (["bogus"], "the node has no statistics group 'bogus': 'uprmc stats --help' lists them"),
        (["memry"], "the node has no statistics group 'memry': did you mean memory?"),
        (["failovers", "4"], "statistics 'failovers 4': the node does not have that vBucket"),
        (["failovers", "x"], "statistics 'failovers x' refused: Invalid arguments (0004)"),
    ],
)
def test_a_group_that_cannot_be_had_is_one_line_and_exit_code_1(
    server: ServerProcess, here: Here, group: list[str], said: str
) -> None:
    ended = here("stats", *group, "--node", server.upr)
    assert ended.code == 1
    assert ended.line() == said


def test_help_lists_the_groups_that_a_node_has() -> None:
    whole_names = {"", *GROUPS}
    assert whole_names == {*statistics._GROUPS, "tapagg", "dcpagg", "upragg"}
    assert {*BY_VBUCKET} == {*statistics._BY_VBUCKET}


def test_nobody_listening_is_one_line_and_exit_code_1(here: Here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
    ended = here("stats", "--node", place)
    assert ended.code == 1
    assert ended.line().startswith(f"no node answers at {place}: ")


def test_one_who_hangs_up_without_an_answer_is_one_line_and_exit_code_1(here: Here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.recv(24)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        ended = here("stats", "--node", place)
        thread.join()
    assert ended.code == 1
    assert ended.line() == (
        f"the node at {place} closed the connection; does its listener speak TLS?"
    )


class _Silent(ScriptedNode):
    """Does not answer; whoever asks it presses Ctrl-C."""

    def answers(self, asked: Frame) -> Iterable[bytes]:
        os.kill(os.getpid(), signal.SIGINT)
        return []


def test_ctrl_c_is_exit_code_130_without_a_traceback(here: Here) -> None:
    with _Silent() as node:
        ended = here("stats", "--node", node.place)
    assert (ended.code, ended.out, ended.err.strip()) == (130, "", "uprmc: interrupted")


def test_demo_tells_its_story(tmp_path: Path) -> None:
    ended = uprmc("demo", "--limit", "700", "--keep", tmp_path / "kept")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert [line[:2] for line in lines] == ["1.", "2.", "3.", "4.", "5.", "6."]
    assert "loaded 700 documents" in lines[1]
    assert lines[5].startswith("6. read all 700 documents back, every one as written")
    assert (tmp_path / "kept" / "data.mdb").exists()
