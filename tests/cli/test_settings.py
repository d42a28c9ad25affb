"""``uprmc settings``, and the options of memcached that ``uprmc serve`` understands."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from interop.server_process import start_uprmc
from interop.wire import Wire
from tests.cli.here import Here, runner
from uprmc.cli.serve import ADVICE, IGNORED, MEANT, given_by_options, serve
from uprmc.config import Settings, describe, load, values_of


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


# --- a sample ---------------------------------------------------------------------------------


def test_the_sample_changes_nothing_and_has_every_setting(here: Here, tmp_path: Path) -> None:
    ended = here("settings", "--sample")
    assert ended.code == 0
    file = tmp_path / "sample.toml"
    file.write_text(ended.out)
    assert load(file, {}, {}) == Settings()
    file.write_text(re.sub(r"^#(?! |$)", "", ended.out, flags=re.M))
    assert load(file, {}, {}) == Settings()
    names = {f"{s}.{n}" for s, table in tomllib.loads(file.read_text()).items() for n in table}
    assert names == {info.name for info in describe()}


# --- what is in force -------------------------------------------------------------------------


def test_each_value_in_force_is_shown_with_its_origin(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "uprmc.toml"
    file.write_text("[memory]\nquota = '2G'\n")
    monkeypatch.setenv("UPRMC_FLUSH_SYNC", "off")
    options = ["--config", file, "--set", "log.level=warn"]
    rows = json.loads(here("settings", "--effective", *options, "--json").out)
    shown = {row["name"]: (row["value"], row["origin"]) for row in rows}
    assert shown["memory.quota"] == (2**31, f"{file}:2")
    assert shown["flush.sync"] == (False, "UPRMC_FLUSH_SYNC")
    assert shown["log.level"] == ("warn", "--set")
    assert shown["log.format"] == ("text", "default")
    assert "memory.quota = 2147483648" in here("settings", "--effective", *options).out


def test_options_of_effective_alone_say_so(here: Here) -> None:
    for options in (["--node", "127.0.0.1:1"], ["--set", "log.level=warn"]):
        assert "need --effective" in here("settings", *options).refused()


def test_a_running_node_tells_its_values_and_their_origins(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "uprmc.toml"
    file.write_text("\n[kv]\nmax_line_bytes = 4096\n")
    options = ["--config", str(file), "-m", "64", "-c", "50", "-v"]
    with start_uprmc(tmp_path / "data", "--vbuckets", "4", *options) as server:
        with Wire(server.memcached) as wire:
            wire.socket.sendall(b"cache_memlimit 65\r\n")
            assert wire.socket.recv(9) == b"OK\r\n"
        ended = here("settings", "--effective", "--node", server.upr, "--json")
        shown = {row["name"]: (row["value"], row["origin"]) for row in json.loads(ended.out)}
        astray = here("settings", "--effective", "--node", server.http).line()
        assert astray.startswith(f"an HTTP server answers at {server.http}")
        server.stop()
    assert list(shown) == [name for name, _ in values_of(Settings())]
    assert shown["memory.quota"] == (str(65 * 2**20), "changed since the start")
    assert shown["kv.max_line_bytes"] == ("4096", f"{file}:3")
    assert shown["server.max_connections"] == ("50", "-c")
    assert shown["log.level"] == ("debug", "-v")
    assert shown["server.memcached"] == ("127.0.0.1:0", "--memcached")
    assert shown["engine.vbuckets"] == ("4", "data directory")


# --- memcached's options ----------------------------------------------------------------------


def understood(line: str) -> dict[str, str]:
    """Return what the options of a line of memcached's set."""
    context = serve.make_context("serve", shlex.split(line))
    options = {
        name: value
        for name, value in context.params.items()
        if name not in ("config", "changes", "source", "debug")
    }
    given, _ = given_by_options((), options)
    return {name: str(value) for name, value in given.items()}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", {}),
        ("-m 64", {"memory.quota": "64M"}),
        ("-m64 -U 0", {"memory.quota": "64M"}),
        ("-m 1.5G", {"memory.quota": "1.5G"}),
        ("-p 11311", {"server.memcached": "127.0.0.1:11311"}),
        ("-l 0.0.0.0", {"server.memcached": "0.0.0.0:11211"}),
        ("-l ::1 -p 5", {"server.memcached": "[::1]:5"}),
        ("-l 10.0.0.1:5", {"server.memcached": "10.0.0.1:5"}),
        ("-s /run/mc.sock", {"server.memcached": "unix:/run/mc.sock"}),
        ("-s /a:b", {"server.memcached": "unix:/a\\:b"}),
        ("-s /x -a 0770", {"server.memcached": "unix:/x", "server.unix_mode": "0770"}),
        ("-l ::1 -l 10.0.0.1", {"server.memcached": "[::1]:11211,10.0.0.1:11211"}),
        ("-l 10.0.0.1,10.0.0.2 -p 5", {"server.memcached": "10.0.0.1:5,10.0.0.2:5"}),
        ("-l 10.0.0.1 -l 10.0.0.1", {"server.memcached": "10.0.0.1:11211"}),
        ("-l 10.0.0.1:5,h:7 -l ::1", {"server.memcached": "10.0.0.1:5,h:7,[::1]:11211"}),
        ("-vv -c 1024", {"log.level": "debug", "server.max_connections": "1024"}),
        ("-I 2m -b 512", {"kv.max_item_bytes": "2m", "server.listen_backlog": "512"}),
    ],
)
def test_options_of_memcached_are_understood(line: str, found: dict[str, str]) -> None:
    assert understood(line) == found


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-U 11211", "UDP is not served"),
        ("-l 10.0.0.1,h:7 -p 5", "-l h:7 and -p 5 name two ports"),
        ("-a 787 -s /x", "server.unix_mode: '787' are no permissions in octal"),
        ("-p 1 -p 2", "-p is given 2 times: say it once"),
        ("-m 64 -m 64", "-m is given 2 times"),
        ("-s /x -s /y", "-s is given 2 times"),
        ("--data a --data b --data c", "--data is given 3 times"),
        ("--upr 127.0.0.1:1 --upr 127.0.0.1:2", "--upr is given 2 times"),
        ("--source a:1 --source b:1", "--source is given 2 times"),
        ("--sync --no-sync", "--sync is given 2 times"),
        ("--set flush.sync=no --set flush.sync=yes", "--set flush.sync is given twice"),
        ("--memory 1G --set memory.quota=2G", "--set and --memory both say memory.quota"),
        ("-m 64 --memory 64M", "-m and --memory both say memory.quota"),
        ("-s /x --set server.memcached=h:1", "--set and -s both say server.memcached"),
        ("-l 10.0.0.1:5 -p 6", "name two ports"),
        ("-p 1 -s /x", "-p or -l and -s name the same listener"),
        ("-p 1 --memcached 127.0.0.1:2", "-p or -l and --memcached name the same listener"),
        ("-m much", "memory.quota: 'much' is not a size"),
        ("-p x", "'x' is not a valid integer"),
        ("-d", "there is no -d: it stays in the foreground"),
        ("-x", "there is no -x: 'uprmc serve --help' lists the options"),
    ],
)
def test_what_memcached_can_and_we_cannot_is_refused_with_advice(
    here: Here, line: str, said: str
) -> None:
    assert said in here("serve", *line.split()).refused()


def test_every_option_of_memcached_has_one_row() -> None:
    tables = [{*MEANT}, {*IGNORED}, {*ADVICE}, {"-p", "-l", "-s", "-U", "-v"}]
    assert sum(map(len, tables)) == len(set().union(*tables))
