"""``uprmc status``: whether a node is well, by one line and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interop.server_process import start_uprmc
from tests.cli.here import runner
from tests.login.files import password_file, users_file

NOBODY = "127.0.0.1:1"


def test_a_node_is_well_or_something_is_wrong_or_nobody_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = runner(capsys)
    users = users_file(tmp_path, ann="monitor", bob="read")
    login = ("--vbuckets", "4", "--set", f"server.users={users}")
    with start_uprmc(tmp_path / "data", *login) as node:

        def ask(name: str, *words: object) -> list[object]:
            return ["--node", node.upr, "--user", name,
                    "--password-file", password_file(tmp_path, name), *words]  # fmt: skip

        ended = here("status", *ask("ann"))
        assert ended.code == 0
        assert ended.out.startswith(f"{node.upr} ok: 0 documents, vBuckets: 4 active, ")
        assert ended.out.count("\n") == 1
        ended = here("status", *ask("bob"))
        assert ended.code == 2
        assert "health" in ended.line()
        first = here("ping", *ask("bob", "-c", 1)).out.splitlines()[0]
        assert " is uprmc (its version needs monitor) (as memcached " in first
        node.stop()
    source = ("--vbuckets", "4", "--source", NOBODY)
    with start_uprmc(tmp_path / "replica", *source) as node:
        ended = here("status", "--node", node.upr)
        assert ended.code == 1
        head, more = ended.out.splitlines()
        assert head.startswith(f"{node.upr} failing: The node at {NOBODY} is not followed: ")
        assert more.endswith(": see 'uprmc stats replication'")
        told = json.loads(here("status", "--node", node.upr, "--json").out)
        assert (told["state"], told["node"]["vbuckets_replica"]) == ("failing", 4)
        (problem,) = told["problems"]
        assert problem.keys() == {"what", "since", "do"}
        node.stop()
    ended = here("status", "--node", NOBODY)
    assert (ended.code, ended.line()) == (
        2,
        f"no node answers at {NOBODY}: Connection refused; is it running?",
    )
    ended = here("status", "--node", NOBODY, "--json")
    assert (ended.code, json.loads(ended.out)["state"]) == (2, "failing")
