"""Documents by hand, and what else is done with them, at a node with users."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from interop.server_process import start_uprmc
from tests.cli.here import runner
from tests.cli.support import Ended
from tests.login.files import password_file, users_file
from uprmc.client.kv import KvClient

Ask = Callable[..., Ended]


TESTS_IN_ORDER = ["get", "set", "incr", "touch", "ping", "del"]


#: As users of memcached type it, and what is left of the number.
COUNTED = (
    ("incr", "a:n", 5),
    ("incr", "a:n", -1),
    ("decr", "a:n"),
    ("decr", "a:n", 9),
)


class Site(NamedTuple):
    """A node, and files with passwords of its users by name."""

    upr: str
    passwords: dict[str, str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("users")
    users = users_file(directory, ann="read,write,stream", bob="read,stream")
    data = tmp_path_factory.mktemp("data")
    with start_uprmc(data, "--vbuckets", "4", "--set", f"server.users={users}") as server:
        names = {name: password_file(directory, name) for name in ("ann", "bob")}
        yield Site(str(server.upr), names)
        server.stop()


@pytest.fixture
def ask(site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a verb as ann, or as `user`; who they are comes from the environment."""
    here = runner(capsys)

    def asked(*arguments: object, user: str = "ann") -> Ended:
        monkeypatch.setenv("UPRMC_NODE", site.upr)
        monkeypatch.setenv("UPRMC_USER", user)
        monkeypatch.setenv("UPRMC_PASSWORD_FILE", site.passwords[user])
        return here(*arguments)

    return asked


def test_what_is_set_can_be_read_counted_touched_listed_and_deleted(ask: Ask) -> None:
    assert ask("set", "a:greeting", "hello", "--wait").code == 0
    assert ask("get", "a:greeting").out == "hello"
    assert ask("set", "a:greeting", "x", "--add").line() == "a:greeting exists"
    assert ask("set", "a:none", "x", "--replace").line() == "there is no document a:none"
    cas = json.loads(ask("get", "a:greeting", "--json").out)["cas"]
    assert ask("set", "a:greeting", "y", "--cas", int(cas) + 1).line() == (
        "a:greeting exists with another CAS"
    )
    assert ask("set", "a:greeting", "y", "--cas", cas, "--ttl", "40d").code == 0
    assert ask("incr", "a:n").line() == "there is no document a:n: create it with --initial"
    assert ask("incr", "a:n", "--initial", 5).out == "5\n"
    assert ask("incr", "a:n", "--by", -7).out == "0\n"
    assert [ask(*words).out for words in COUNTED] == ["5\n", "4\n", "3\n", "0\n"]
    assert ask("incr", "a:greeting").line() == "the value of a:greeting is no whole number"
    assert ask("ttl", "a:n").out == "never\n"
    assert ask("touch", "a:n", "5m").code == 0
    assert 290 <= int(ask("ttl", "a:n").out) <= 300
    ended = ask("ttl", "a:n", "a:none", "--json")
    assert (ended.code, ended.err) == (1, "uprmc: there is no document a:none\n")
    found = json.loads(ask("get", "a:n", "--json").out)
    assert 290 <= found["ttl"] <= json.loads(ended.out)["ttl"] <= 300
    assert found["expires"] == json.loads(ended.out)["expires"]
    assert json.loads(ask("get", "a:greeting", "--json").out)["cas"].isdecimal()
    rows = [json.loads(line) for line in ask("keys", "a:", "--json").out.splitlines()]
    assert {row["key"] for row in rows} == {"a:greeting", "a:n"}
    assert all(row["expires"] for row in rows)
    assert ask("keys", "a:", "--count").out == "2\n"
    assert ask("keys", "a:*", "--count").out == "2\n"
    assert ask("keys", "*:n").out == "a:n\n"
    assert ask("keys", "a:\\*").out == ""
    followed = ask("tail", "--start", 0, "--until-now", "--prefix", "a:n", "--json").out
    assert {json.loads(line)["key"] for line in followed.splitlines()} == {"a:n"}
    assert len(ask("keys", "--limit", 1).out.splitlines()) == 1
    ended = ask("del", "a:greeting", "a:n", "a:none")
    assert (ended.code, ended.line()) == (1, "there is no document a:none")
    assert ask("keys", "a:").out == ""
    ended = ask("get", "a:greeting")
    assert (ended.code, ended.line()) == (1, "there is no document a:greeting")


def test_keys_are_printed_in_bounded_memory_however_many_there_are(ask: Ask) -> None:
    count = 50_000
    filled = ask("bench", "-n", 1, "--keys", count, "--size", 1, "--prefix", "m:", "-P", 64)
    assert filled.code == 0
    tracemalloc.start()
    try:
        assert ask("keys", "m:", "--count").out == f"{count}\n"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 320 * count  # a list of all of them takes 500 bytes for each


def test_a_watch_shows_one_document_or_all_whose_keys_begin_so(ask: Ask) -> None:
    for key in ("w:1", "w:2", "other"):
        ask("set", key, key)
    one = ask("watch", "w:1", "--until-now", "--json").out.splitlines()
    assert [json.loads(line)["value"] for line in one] == ["w:1"]
    some = ask("watch", "w:*", "--until-now", "--json").out.splitlines()
    assert {json.loads(line)["key"] for line in some} == {"w:1", "w:2"}
    assert ask("watch", "w:*", "--until-now", "--changes-only").out == ""


def test_ping_tells_how_fast_a_node_answers(ask: Ask) -> None:
    found = json.loads(ask("ping", "-c", 3, "--every", 0, "--json").out)
    assert found["count"] == 3
    assert 0 < found["min_ms"] <= found["avg_ms"] <= found["max_ms"]
    assert found["connected_ms"] > 0
    assert (found["listener"], found["tls_version"]) == ("upr", None)
    first, _, last = ask("ping", "-c", 1).out.splitlines()
    assert ", logged in as ann; connected in " in first
    assert last.startswith("1 answer: min ")


def test_a_bench_tells_percentiles_and_leaves_other_documents_alone(ask: Ask) -> None:
    ask("set", "b:mine", "x")
    shape = ("-n", 300, "-c", 4, "-P", 8, "--ratio", "0.5", "--keys", 50, "--processes", 2)
    ended = ask("bench", *shape, "--prefix", "b:", "--json", "--cleanup")
    assert ended.code == 0
    assert "only those whose keys begin with b: are written" in ended.err
    found = json.loads(ended.out)
    assert (found["requests"], found["misses"], found["refused"]) == (300, 0, {})
    commands = found["commands"]
    assert commands["get"]["count"] + commands["set"]["count"] == 300
    for each in commands.values():
        assert 0 < each["p50_ms"] <= each["p99_ms"] <= each["p99_9_ms"] <= each["max_ms"]
    assert ask("keys", "b:").out == "b:mine\n"
    people = ask("bench", "-n", 10, "--keys", 5, "--prefix", "b:", "--ttl", "5m").out
    assert people.startswith("10 requests in ")
    assert "p99.9 ms" in people


@pytest.mark.parametrize("protocol", [[], ["--text"]])
def test_a_bench_measures_each_command_by_name(ask: Ask, protocol: list[str]) -> None:
    shape = ("-t", "get,set,incr,touch,ping,del", "-n", 40, "-c", 3, "-P", 4, "-r", 5, *protocol)
    ended = ask("bench", *shape, "--prefix", "n:", "--csv", "--cleanup")
    assert ended.code == 0, ended.err
    head, *rows = [line.split(",") for line in ended.out.splitlines()]
    assert head[:3] == ["test", "count", "per_s"]
    assert [row[:2] for row in rows] == [[test, "40"] for test in TESTS_IN_ORDER]
    assert ask("keys", "n:").out == ""
    short = ask("bench", *shape, "-t", "get", "-q", "--prefix", "n:", "--no-fill", "--cleanup")
    assert re.match(r"get: [\d,]+ per second, p50 [\d.]+ ms\n40 requests found no", short.out)


def test_top_tells_what_a_node_does(ask: Ask) -> None:
    ask("set", "t:1", "x")
    found = json.loads(ask("top", "--once", "--every", "0.1", "--json").out)
    assert found["ready"] is True
    assert found["vbuckets"]["active"] == 4
    assert found["items"] > 0 < found["memory"]["used"] < found["memory"]["quota"]
    assert found["index"]
    assert "hits " in ask("top", "--once", "--every", "0.1").out


def test_who_may_only_read_cannot_write(ask: Ask) -> None:
    ended = ask("set", "k", "v", user="bob")
    assert ended.code == 1
    assert "Not authorized: needs write" in ended.line()
    assert ask("keys", user="bob").code == 0


def test_who_does_not_log_in_is_told_so(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], site: Site
) -> None:
    for name in ("UPRMC_USER", "UPRMC_PASSWORD_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UPRMC_NODE", site.upr)
    ended = runner(capsys)("get", "k")
    assert ended.code == 1
    assert ended.line().endswith("serves users only: say --user NAME and --password-file FILE")


def test_a_flush_is_asked_for_and_deletes_everything(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = runner(capsys)
    with start_uprmc(tmp_path_factory.mktemp("data"), "--vbuckets", "4") as server:
        monkeypatch.setenv("UPRMC_NODE", str(server.upr))
        assert here("set", "k", "v").code == 0
        asked = f"this deletes every document of {server.upr} (1): say --yes if you mean it"
        assert here("flush").refused() == asked
        assert here("get", "k").out == "v"
        assert here("flush", "--yes").out == f"deleted every document of {server.upr} (1)\n"
        assert here("get", "k").code == 1
        for number in range(4):
            assert here("vbucket", "set", number, "replica").code == 0
        assert "has no active vBuckets" in here("flush", "--yes").line()
        server.stop()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["get"], "Missing argument 'KEY...'; say uprmc get [OPTIONS] KEY..."),
        (["set", "k", "v", "w"], "extra argument (w); say uprmc set [OPTIONS] KEY [VALUE]"),
        (["incr", "k", "--by", "x"], "'x' is not a whole number"),
        (["incr", "k", "x"], "'x' is not a whole number"),
        (["incr", "k", "1", "--by", "2"], "N and --by exclude each other"),
        (["get", ""], "a key has 1 to 250 bytes, this one 0"),
        (["set", "k", "v", "--add", "--replace"], "--add, --replace and --cas exclude each other"),
        (["set", "k", "v", "--file", __file__], "a value and --file exclude each other"),
        (["set", "k", "v", "--ttl", "1parsec"], "'1parsec' is not a time"),
    ],
)
def test_misuse_is_one_line(ask: Ask, words: list[str], said: str) -> None:
    assert said in ask(*words).refused()


def test_a_dump_has_readable_documents_of_one_moment_which_load_takes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = runner(capsys)
    with start_uprmc(tmp_path / "data", "--vbuckets", "2") as other:
        place = ("--node", str(other.upr))
        with KvClient(str(other.upr)) as kv:
            kv.set(b"dump:text", '{"name": "Zoë"}'.encode(), flags=7)
            kv.set(b"dump:\xff", b"\x00\xfe", expiry=500)
            kv.set(b"else", b"x")
        file = tmp_path / "documents.jsonl"
        assert ask("dump", "dump:*", "--out", file, *place) == Ended(0, "", "")
        lines = {row["key"]: row for row in map(json.loads, file.read_text().splitlines())}
        text, raw = lines["dump:text"], lines["ZHVtcDr/"]
        assert (text["value"], text["flags"], text["ttl"]) == ('{"name": "Zoë"}', 7, 0)
        assert "Zoë" in file.read_text()
        assert (raw["key_encoding"], raw["value_encoding"]) == ("base64", "base64")
        assert 0 < raw["ttl"] <= 500
        everything = ask("dump", *place).out.splitlines()
        assert len(everything) == 3
        with KvClient(str(other.upr)) as kv:
            kv.delete_many([b"dump:text", b"dump:\xff"])
        how = ("--flags", "flags", "--ttl", "ttl", "--parallelism", "1")
        assert ask("load", file, *how, *place).code == 0
        with KvClient(str(other.upr)) as kv:
            found = kv.get_many([b"dump:text", b"dump:\xff"])
        assert {key: (each.value, each.flags) for key, each in found.items()} == {
            b"dump:text": ('{"name": "Zoë"}'.encode(), 7),
            b"dump:\xff": (b"\x00\xfe", 0),
        }
        assert "--out" in ask("dump", "--out", file / "beside", *place).err
