"""What every verb that talks to a node takes, from options, the environment or a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.cli.here import Here, runner
from tests.cli.support import uprmc as process
from tests.login.files import password_file, users_file
from tests.server.certificates import make_certificate
from uprmc.cli.main import uprmc
from uprmc.cli.node_access import KEYS

#: Verbs that talk to no node, or start one themselves.
_WITHOUT_A_NODE = {
    *("serve", "tap-adapter", "check", "data", "settings", "demo", "user", "spark"),
    *("help", "version"),
    *("manual", "completion"),
}
#: What verbs say otherwise: nodes are arguments, or --source; a server dials for ever.
_OTHERWISE = {"verify": ("--node",), "index serve": ("--node", "--timeout")}
_OPTIONS = ("--node", "--tls", "--tls-ca", "--no-tls-verify", "--user", "--password-file")


def _verbs(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        if found is not None and each not in (_WITHOUT_A_NODE if not name else ()):
            yield from _verbs(found, f"{name} {each}".strip())


_VERBS = dict(_verbs(uprmc))


@pytest.fixture(name="here")
def _here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@pytest.fixture(scope="module", name="secured")
def _secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    """A node with TLS and users, and a directory with what its clients need."""
    directory = tmp_path_factory.mktemp("secured")
    certificate, key = make_certificate(directory)
    users = users_file(directory, ann="read,write,stream,replicate,manage,monitor", bob="read")
    tls = ["--tls-cert", certificate, "--tls-key", key]
    with start_uprmc(
        directory / "data", "--vbuckets", "4", *tls, "--set", f"server.users={users}"
    ) as server:
        for name in ("ann", "bob"):
            password_file(directory, name)
        (directory / "client.toml").write_text(
            f'node = "{server.upr}"\ntls_ca = "{certificate}"\nuser = "ann"\n'
            f'password_file = "{directory}/ann.password"\ntimeout = "4s"\n'
        )
        yield server, directory
        server.stop()


@pytest.mark.parametrize("name", _VERBS)
def test_every_verb_that_talks_to_a_node_has_the_same_options(name: str) -> None:
    options = {text for each in _VERBS[name].params for text in each.opts}
    for wanted in (*_OPTIONS, "--timeout"):
        if wanted in _OTHERWISE.get(name, ()):
            continue
        node_s = f"--node-{wanted.removeprefix('--')}"
        assert wanted in options or node_s in options, (name, wanted)


def test_a_file_says_once_what_all_verbs_need(
    secured: tuple[ServerProcess, Path], here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UPRMC_CLIENT_FILE", str(secured[1] / "client.toml"))
    (tmp_path / "rows.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n')
    backup = tmp_path / "backup"
    for verb in (
        ["load", tmp_path / "rows.jsonl", "--key", "{id}", "--value", "json:all"],
        ["backup", backup],
        ["verify", secured[0].upr, backup],
        ["restore", backup],
    ):
        ended = here(*verb, "--engine", "local", "--progress", "none")
        assert (ended.code, ended.err) == (0, ""), verb
    for verb in (
        ["stats"],
        ["vbucket", "list"],
        ["observe", "a"],
        ["watermarks", "list"],
        ["xdcr", "list"],
        ["compact"],
        ["tail", "--start", "0", "--until-now"],
    ):
        ended = here(*verb)
        assert (ended.code, ended.err) == (0, ""), verb
    assert ended.out.count(" set ") == 2


def test_options_come_before_the_environment_and_that_before_the_file(
    secured: tuple[ServerProcess, Path], here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, directory = secured
    monkeypatch.setenv("UPRMC_CLIENT_FILE", str(directory / "client.toml"))
    monkeypatch.setenv("UPRMC_NODE", "127.0.0.1:1")
    assert "127.0.0.1:1:" in here("stats", "vbucket").line()
    assert here("stats", "vbucket", "--node", server.upr).code == 0
    monkeypatch.setenv("UPRMC_NODE", str(server.upr))
    monkeypatch.setenv("UPRMC_USER", "bob")
    monkeypatch.setenv("UPRMC_PASSWORD_FILE", str(directory / "bob.password"))
    assert "Not authorized" in here("stats", "vbucket").line()
    ann = ["--user", "ann", "--password-file", directory / "ann.password"]
    assert here("stats", "vbucket", *ann).code == 0


def test_the_usual_place_of_the_file_is_that_of_the_desktop(
    secured: tuple[ServerProcess, Path], tmp_path: Path
) -> None:
    (tmp_path / "uprmc").mkdir()
    (tmp_path / "uprmc" / "client.toml").write_text((secured[1] / "client.toml").read_text())
    assert process("vbucket", "list", environment={"XDG_CONFIG_HOME": str(tmp_path)}).code == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('timout = "3s"', "there is no 'timout': did you mean timeout?"),
        ("colour = 1", f"there is no 'colour': it may have {', '.join(KEYS)}"),
        ("node = 11210", "node = 11210: say text such as '127.0.0.1:11210'"),
        ('tls = "yes"', "tls = 'yes': say true or false"),
        ("timeout = true", "timeout = True: say a time such as '5s'"),
        ('timeout = "soon"', "timeout = 'soon': say a time such as '5s'"),
        ('node = "a:1"\ntls = perhaps', "Invalid value (at line 2, column 7)"),
        ('password = "x"', "a password stands in a file of its own: say password_file"),
    ],
)
def test_a_wrong_file_is_told_in_one_line(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "client.toml"
    path.write_text(text)
    monkeypatch.setenv("UPRMC_CLIENT_FILE", str(path))
    for verb in (["stats"], ["backup", tmp_path / "backup"]):
        assert here(*verb).refused() == f"{path}: {why}"
    assert here("stats", "--help").code == 0


def test_a_file_that_is_named_must_exist(
    here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UPRMC_CLIENT_FILE", str(tmp_path / "none"))
    assert here("stats").refused().endswith("there is no such file")


def test_a_user_needs_a_password_file_and_no_password_is_an_option(
    secured: tuple[ServerProcess, Path], here: Here, tmp_path: Path
) -> None:
    node = ["--node", secured[0].upr, "--tls-ca", secured[1] / "cert.pem"]
    assert "'ann' needs a password file" in here("stats", "--user", "ann").refused()
    assert "No such option" in here("stats", *node[:2], "--password", "x").refused()
    absent = here("stats", "--user", "ann", "--password-file", tmp_path / "none").refused()
    assert absent.endswith("none: No such file or directory")
