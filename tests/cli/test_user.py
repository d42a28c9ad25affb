"""``uprmc user``: who may log in, in a file that nobody else can read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.here import Here, runner
from uprmc.cli import user as verb
from uprmc.errors import ConfigError
from uprmc.login.credentials import Credentials
from uprmc.login.users import USERS_MAX, Role, User, Users
from uprmc.login.users_file import read_file, read_users, write_users

SECRET = bytes(32)


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    return runner(capsys)


@pytest.fixture
def password(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("her secret\nanother line\n")
    return file


@pytest.fixture
def users(tmp_path: Path, here: Here, password: Path) -> Path:
    file = tmp_path / "users.json"
    added = here(
        *("user", "add", "ann", "--role", "read,write", "--role", "monitor"),
        *("--password-file", password, "--users", file),
    )
    assert (added.code, added.out) == (0, "added ann: monitor,read,write\n"), added
    return file


def knows(file: Path, name: str, password: str) -> bool:
    return Users(read_users(str(file)), SECRET).knows(Credentials(name, password))


def test_a_user_is_added_with_salted_keys_that_only_the_owner_can_read(users: Path) -> None:
    assert users.stat().st_mode & 0o777 == 0o600
    assert "her secret" not in users.read_text()
    assert knows(users, "ann", "her secret")
    assert not knows(users, "ann", "another line")
    assert not knows(users, "bob", "her secret")
    assert sorted(each.name for each in users.parent.iterdir()) == ["password", "users.json"]


def test_two_users_with_one_password_share_no_key(here: Here, users: Path, password: Path) -> None:
    here("user", "add", "bob", "--role", "read", "--password-file", password, "--users", users)
    ann, bob = read_users(str(users))
    kept = [*ann.verifiers.values(), *bob.verifiers.values()]
    assert len({each.salt for each in kept}) == len({each.stored_key for each in kept}) == 6


def test_roles_passwords_and_users_change_in_place(here: Here, users: Path, password: Path) -> None:
    assert here("user", "roles", "ann", "--role", "stream", "--users", users).code == 0
    password.write_text("new")
    options = ("--password-file", password, "--users", users, "--iterations", "5000")
    assert here("user", "passwd", "ann", *options).code == 0
    assert knows(users, "ann", "new")
    assert read_users(str(users))[0].verifiers["sha256"].iterations == 5_000
    assert here("user", "list", "--users", users).out == "ann  stream\n"
    listed = json.loads(here("user", "list", "--json", "--users", users).out)
    assert listed == [{"name": "ann", "roles": ["stream"]}]
    assert here("user", "remove", "ann", "--users", users).out == "removed ann\n"
    assert read_users(str(users)) == []


def test_a_terminal_is_asked_twice(
    here: Here, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(verb.sys.stdin, "isatty", lambda: True, raising=False)

    def prompt(text: str, **options: object) -> str:
        asked.append(options)
        return "typed"

    monkeypatch.setattr(verb.click, "prompt", prompt)
    assert here("user", "passwd", "ann", "--users", users).code == 0
    assert asked == [{"hide_input": True, "confirmation_prompt": True, "err": True}]
    assert knows(users, "ann", "typed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "ann", "--role", "read"], "there is a user 'ann'"),
        (["add", "bob", "--role", "reed"], "there is no role 'reed': did you mean read?"),
        (["add", "bob", "--role", ","], "no role is named"),
        (["add", "bob", "--role", "read"], "there is no terminal to ask for the password"),
        (["add", " bob", "--role", "read"], "has blanks around it"),
        (["add", "b\x1bob", "--role", "read"], "does not print"),
        (["add", "b" * 256, "--role", "read"], "the user name is longer than 255 bytes"),
        (["add", "", "--role", "read"], "the user name is empty"),
        (["passwd", "bob"], "there is no user 'bob'"),
        (["passwd", "ann", "--password-file", "/nowhere/pw"], "No such file"),
        (["passwd", "ann", "--iterations", "4095"], "4095 is not in the range"),
        (["roles", "bob", "--role", "read"], "there is no user 'bob'"),
        (["remove", "bob"], "there is no user 'bob'"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_changes_nothing(
    here: Here, users: Path, words: list[str], said: str
) -> None:
    before = users.read_bytes()
    assert said in here("user", *words, "--users", users).refused()
    assert users.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"uprmc_users": 1,\n "users": [', "line 2: "),
        ("[]", "this is no users file of version 1"),
        ('{"uprmc_users": 2, "users": []}', "this is no users file of version 1"),
        ('{"uprmc_users": 1, "users": [{"name": "ann"}]}', "user 1 is incomplete"),
        ("\xff", "is not UTF-8"),
        ("[" * 100_000, "this is no users file"),
    ],
)
def test_a_torn_file_is_refused_in_one_line(
    here: Here, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "torn"
    file.write_bytes(text.encode("latin-1"))
    file.chmod(0o600)
    assert said in here("user", "list", "--users", file).refused()


def test_a_file_that_others_can_use_is_refused(here: Here, users: Path, tmp_path: Path) -> None:
    users.chmod(0o640)
    assert f"say chmod 600 {users}" in here("user", "list", "--users", users).refused()
    os.mkfifo(tmp_path / "pipe", 0o600)  # which would keep a reader for ever
    assert "no regular file" in here("user", "list", "--users", tmp_path / "pipe").refused()
    assert "is no regular file" in here("user", "list", "--users", tmp_path).refused()
    assert "No such file" in here("user", "list", "--users", tmp_path / "none").refused()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = users.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_users(str(users), [])
    assert users.read_bytes() == before
    assert sorted(each.name for each in users.parent.iterdir()) == ["password", "users.json"]


def test_more_users_than_a_node_takes_are_refused(users: Path) -> None:
    (ann,) = read_users(str(users))
    many = [User(f"u{n}", frozenset({Role.READ}), ann.verifiers) for n in range(USERS_MAX + 1)]
    with pytest.raises(ConfigError, match="at most"):
        write_users(str(users), many)
    write_users(str(users), many[:USERS_MAX])
    assert len(read_users(str(users))) == USERS_MAX


def test_what_strangers_are_asked_outlives_restarts_and_changes(
    here: Here, users: Path, password: Path
) -> None:
    def asked() -> bytes:
        return Users(*read_file(str(users))).verifier("stranger", "sha256").salt

    before = asked()
    assert asked() == before
    here("user", "add", "bob", "--role", "read", "--password-file", password, "--users", users)
    here("user", "remove", "ann", "--users", users)
    assert asked() == before


def test_a_users_file_without_a_secret_gets_one_and_a_bad_one_is_refused(
    here: Here, users: Path, password: Path
) -> None:
    found = json.loads(users.read_text())
    for secret in (5, "!", "c2hvcnQ="):
        users.write_text(json.dumps({**found, "secret": secret}))
        with pytest.raises(ConfigError, match="its secret is none"):
            read_users(str(users))
    del found["secret"]
    users.write_text(json.dumps(found))
    assert read_file(str(users)) == read_file(str(users))
    here("user", "roles", "ann", "--role", "read", "--users", users)
    assert "secret" in json.loads(users.read_text())
