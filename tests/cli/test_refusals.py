"""What is wrong is said in one line and by the exit code; ``--debug`` adds the traceback."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from interop.server_process import start_uprmc
from tests.cli.support import Ended, listeners, uprmc
from tests.server.certificates import make_certificate
from uprmc.cli.help import contexts
from uprmc.cli.main import run
from uprmc.cli.main import uprmc as verbs


def here(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ended:
    """Run a command line that never gets as far as a reactor in this process."""
    code = run([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return Ended(code, said.out, said.err)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("UPRMC_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("closed", ["<&- >&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_empty_and_not_an_error(closed: str) -> None:
    script = f"{sys.executable} -m uprmc set k - --node 127.0.0.1:1 {closed}"
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == ("2>&-" not in closed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--memmory", "1G"], "--memmory"),
        (["serve", "now"], "now"),
        (["sevre"], "sevre"),
        (["--wrong"], "--wrong"),
        (["--node", "x", "status"], "options such as --node follow the verb"),
        (["index", "put", "", "f.json"], "no design has such a name: ''"),
        (["index", "delete", "a/b"], "no design has such a name: 'a/b'"),
        (["--json", "keys"], "options such as --json follow the verb"),
        (["vbucket", "--node", "x", "list"], "options such as --node follow the verb"),
        (["check", "--node", "x"], "No such option '--node'; 'uprmc check --help' lists them"),
        (["serve", "--vbuckets", "many"], "--vbuckets"),
        (["serve", "--vbuckets", "3"], "engine.vbuckets: 3 is not a power of two"),
        (["serve", "--vbuckets", "2048"], "engine.vbuckets: 2048 is above the most, 1024"),
        (["serve", "--memory", "12Q"], "'12Q' is not a size such as 512M, 1.5G or 65536"),
        (["serve", "--memory", ""], "is not a size"),
        (["serve", "--memory", "1M"], "memory.quota: 1048576 is below the least"),
        (
            ["serve", "--set", "memory.qouta=1G"],
            "no setting 'memory.qouta'; did you mean memory.quota?",
        ),
        (["serve", "--set", "memory.quota"], "say --set section.name=value"),
        (
            ["serve", "--set", "flush.sync=perhaps"],
            "flush.sync: 'perhaps' is not on or off, yes or no",
        ),
        (["serve", "--set", "log.level=loud"], "log.level: 'loud' is none of"),
        (["serve", "--set", "kv.max_line_bytes=1G"], "kv.max_line_bytes: 1073741824 is above"),
        (["serve", "--config", "/does/not/exist.toml"], "cannot be read: No such file"),
        (["stats", "--node", "somewhere:"], "say HOST:PORT"),
        (["stats", "--node", "host:port"], "say HOST:PORT"),
        (["settings", "--yaml"], "--yaml"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in here(capsys, *arguments).refused()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[memory\nquota=1", "file.toml:1: "),
        ("[memory]\nquota = '1Q'", "memory.quota: '1Q' is not a size"),
        ("[memory]\nqouta = 5", "no setting 'memory.qouta'"),
        ("[memmory]\nquota = 5", "no setting 'memmory.quota'"),
        ("quota = 5", "'quota' stands outside of a [section]"),
        ("[flush]\nsync = 3", "flush.sync: 3 is not"),
        ("[memory]\nquota = 8_388_607", "memory.quota: 8388607 is below"),
        ("\x00", "file.toml:1: "),
    ],
)
def test_a_bad_file_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "file.toml"
    file.write_text(text)
    assert said in here(capsys, "serve", "--config", file).refused()


def test_a_file_that_is_no_text_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file.toml"
    file.write_bytes(b"\xff\xfe\x00")
    assert "file.toml:1: is not text" in here(capsys, "serve", "--config", file).refused()
    assert "cannot be read: Is a directory" in here(capsys, "serve", "--config", tmp_path).refused()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("UPRMC_MEMORY_QOUTA", "1G", "the environment variable UPRMC_MEMORY_QOUTA names no"),
        ("UPRMC_MEMORY_QUOTA", "much", "memory.quota: 'much' is not a size"),
        ("UPRMC_FLUSH_SYNC", "", "flush.sync: '' is not on or off"),
    ],
)
def test_a_bad_environment_variable_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    said: str,
) -> None:
    monkeypatch.setenv(name, value)
    assert said in here(capsys, "serve").refused()


def test_debug_adds_the_traceback_before_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "serve", "--memory", "x"], ["serve", "--debug", "--memory", "x"]):
        ended = here(capsys, *arguments)
        assert ended.code == 2
        lines = ended.err.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[-1].startswith("uprmc: memory.quota: 'x' is not a size")


def test_without_a_verb_there_is_help_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    ended = here(capsys)
    assert ended.code == 2
    for verb in ("serve", "stats", "settings", "demo"):
        assert f"  {verb} " in ended.out + ended.err


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["stats", "--help"]])
def test_help_is_exit_code_0(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    ended = here(capsys, *arguments)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Usage: uprmc")


@pytest.mark.parametrize(
    "context",
    [each for each in contexts(verbs) if isinstance(each.command, click.Group)],
    ids=lambda context: context.command_path,
)
def test_the_list_of_verbs_has_a_whole_sentence_of_one_line_for_each(
    capsys: pytest.CaptureFixture[str], context: click.Context
) -> None:
    group = context.command_path.split()[1:]
    _, _, listed = here(capsys, *group, "--help").out.partition("Commands:\n")
    told = dict(line.split(maxsplit=1) for line in listed.splitlines())
    cut = {verb for verb, summary in told.items() if not re.fullmatch(r"[A-Z].*[^.]\.", summary)}
    assert cut == set()


@pytest.mark.parametrize("context", [*contexts(verbs)], ids=lambda context: context.command_path)
def test_help_fits_on_a_terminal_of_80_columns_and_is_in_sentences(context: click.Context) -> None:
    assert [line for line in context.get_help().splitlines() if len(line) > 80] == []
    records = [param.get_help_record(context) for param in context.command.get_params(context)]
    told = [text for _, text in filter(None, records) if text]
    assert [text for text in told if not re.search(r"\.(  \[.*\])?$", text, re.DOTALL)] == []


# --- files and sockets: as processes, because they get as far as the reactor --------------------


def test_a_directory_in_use_another_vbucket_count_and_a_taken_port_are_refused(
    tmp_path: Path,
) -> None:
    """Two nodes on one directory: the second is refused, the first undisturbed."""
    data = tmp_path / "data"
    with start_uprmc(data, "--vbuckets", "16") as first:
        said = uprmc("serve", "--data", data, *listeners()).refused()
        assert str(data) in said
        place = str(first.memcached)
        other = ["--data", tmp_path / "other", *listeners("--memcached", place)]
        said = uprmc("serve", *other).refused()
        assert said.startswith(f"server.memcached: cannot listen on {place}: Address already in")
        assert said.endswith(f" (pid {first.pid}); say --memcached with another port")
        assert not uprmc("stats", "failovers", "3", "--node", first.upr).code
        first.stop()
    said = uprmc("serve", "--data", data, "--vbuckets", "32", *listeners()).refused()
    assert "16" in said
    assert "32" in said
    with start_uprmc(data) as again:  # as it was made
        lines = uprmc("stats", "failovers", "--json", "--node", again.upr).out
        assert lines.count(":num_entries") == 16
        assert lines.count('num_entries": "1"') == 16
        again.stop()


def test_a_refused_start_leaves_the_directory_clean(tmp_path: Path) -> None:
    with start_uprmc(tmp_path) as server:
        server.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        uprmc("serve", "--data", tmp_path, *listeners("--upr", f"127.0.0.1:{port}")).refused()
    with start_uprmc(tmp_path) as server:
        ended = uprmc("stats", "failovers", "0", "--json", "--node", server.upr)
        assert '"vb_0:num_entries": "1"' in ended.out
        server.stop()


def test_other_refusals_of_places_and_files(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    file = tmp_path / "a-file"
    file.write_text("")
    for options, said in (
        (["--tls-cert", cert], "server.tls_cert and server.tls_key go together"),
        (["--tls-cert", tmp_path / "none", "--tls-key", key], "cannot be read: No such file"),
        (["--tls-cert", cert, "--tls-key", cert], "holds no PEM private key"),
        (["--memcached", "nowhere"], "server.memcached: 'nowhere' is no listener"),
        (["--upr", ":11210"], "server.upr: ':11210' names no address"),
        (["--http", "127.0.0.1:99999"], "server.http: '127.0.0.1:99999' is no listener"),
        (["--data", file], str(file)),
    ):
        data = [] if "--data" in options else ["--data", tmp_path / "data"]
        assert said in uprmc("serve", *data, *listeners(*options)).refused()
