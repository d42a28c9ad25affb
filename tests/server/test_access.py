"""Users of a running node: brakes for guessers, passwords in a thread, reloads, the audit log."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.server.support import Loop
from uprmc.engine.stats import Stats
from uprmc.errors import ConfigError
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import Mechanism
from uprmc.login.scram import ITERATIONS_MIN
from uprmc.login.users import HASH_NAMES, Role, new_user
from uprmc.login.users_file import write_users
from uprmc.server.net.access import (
    CLIENTS_MAX,
    DELAY_MAX_S,
    DELAY_S,
    FORGIVEN_EVERY_S,
    LOGIN_TIMEOUT_S,
    REFUSALS_A_SECOND,
    WAIT_MAX_S,
    WAITING_MAX,
    Audit,
    Brakes,
    UserAccess,
)
from uprmc.server.net.access import (
    FAILURES_MAX as REMEMBERED_MAX,
)

HERE = "127.0.0.1:5"
ANN, WRONG = Credentials("ann", "pencil"), Credentials("ann", "wrong")


def done() -> None:
    """Stand in for what follows a login."""


def write(path: Path, **passwords: str) -> str:
    salts = [b"salt"] * len(HASH_NAMES)
    users = [
        new_user(Credentials(name, password), {Role.READ}, salts, ITERATIONS_MIN)
        for name, password in passwords.items()
    ]
    write_users(str(path), users)
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write(tmp_path / "users.json", ann="pencil", bob="pencil")


@pytest.fixture
def access(loop: Loop, path: str) -> Iterator[UserAccess]:
    made = UserAccess(loop.reactor, path, Stats(), Audit("", lambda: 1e9))
    yield made
    made.stop()


@pytest.fixture
def brakes() -> Brakes:
    return Brakes()


# --- brakes -------------------------------------------------------------------------------------


#: What the answers to one failure after the other wait for.
DELAYS = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def one_after_the_other(
    brakes: Brakes, peers: Iterable[tuple[str, str]], now: float = 0.0
) -> list[float | None]:
    """Fail each after the answer to the one before."""
    found = []
    for peer, name in peers:
        found.append(brakes.failed(peer, name, now))
        now += found[-1] or 0.0
    return found


def test_who_goes_on_failing_waits_longer_with_right_passwords_too(brakes: Brakes) -> None:
    guesses = [(f"10.0.0.7:{port}", f"user{port}") for port in range(8)]
    assert one_after_the_other(brakes, guesses) == pytest.approx(DELAYS)
    now = sum(DELAYS)
    assert brakes.succeeded("10.0.0.8:1", "ann", now) == 0.0
    assert brakes.wait_s("10.0.0.7:9", "ann", now) == DELAY_MAX_S
    assert brakes.succeeded("10.0.0.7:9", "ann", now) == DELAY_MAX_S
    assert brakes.failed("10.0.0.7:1", "bob", now) == DELAY_S  # the success ended it


def test_one_name_from_many_addresses_waits_longer_and_forgives_with_time(brakes: Brakes) -> None:
    guesses = [(f"10.0.{number}.7:1", "ann") for number in range(8)]
    assert one_after_the_other(brakes, guesses) == pytest.approx(DELAYS)
    now = sum(DELAYS)
    assert brakes.succeeded("10.9.0.1:1", "ann", now) == DELAY_MAX_S
    assert brakes.failed("10.9.0.2:1", "ann", now + 1) == DELAY_MAX_S  # and the success did not
    assert brakes.failed("10.9.0.3:1", "bob", now + 1) == DELAY_S
    later = now + 1 + 6 * FORGIVEN_EVERY_S
    assert brakes.succeeded("10.9.0.4:1", "ann", later - 1) == DELAY_S
    assert brakes.succeeded("10.9.0.5:1", "ann", later) == 0.0


@pytest.mark.parametrize(
    ("where", "most"),
    [
        (lambda number: ("10.0.0.7:1", "ann"), 35),  # one every two seconds
        (lambda number: ("10.0.0.7:1", f"user{number}"), 130),  # one every half second
        (lambda number: (f"10.{number >> 8}.{number & 255}.7:1", "ann"), 610),  # ten a second
    ],
    ids=["one name from one address", "many names", "many addresses"],
)
def test_the_number_of_connections_makes_guessing_no_faster(
    brakes: Brakes, where: Callable[[int], tuple[str, str]], most: int
) -> None:
    """A minute of a thousand guesses a second, whose answers nobody waits for."""
    tried = 0
    for number in range(60_000):
        now = number / 1000
        peer, name = where(number)
        waits_s = brakes.failed(peer, name, now)
        assert waits_s is None or waits_s <= WAIT_MAX_S
        tried += waits_s is not None
    assert tried <= most
    assert tried >= most // 2  # those who come slowly are not kept out by those who do not


def test_a_right_password_is_put_off_as_a_wrong_one_is(brakes: Brakes) -> None:
    answers = [brakes.failed("10.0.0.7:1", "ann", 0.0) for _ in range(9)]
    assert answers[:4] == pytest.approx([0.1, 0.3, 0.7, 1.5])
    assert set(answers[4:]) == {None}
    assert brakes.wait_s("10.0.0.7:1", "ann", 0.0) is None
    assert brakes.succeeded("10.0.0.7:1", "ann", 0.0) is None
    assert not brakes.knows("10.0.0.7:1", "ann")
    assert brakes.succeeded("10.0.0.7:1", "ann", 1.5) == pytest.approx(0.8)
    assert brakes.succeeded("10.0.0.7:1", "ann", 1.5) == 0.0


def test_who_comes_from_elsewhere_gets_in_while_others_guess(brakes: Brakes) -> None:
    for number in range(5_000):
        brakes.failed("10.0.0.7:1", "ann", number / 1000)
    assert brakes.succeeded("10.0.0.9:1", "ann", 5.0) is not None


def test_a_clock_that_goes_back_makes_no_failures(brakes: Brakes) -> None:
    brakes.failed("10.0.0.7:1", "ann", 9_000.0)
    assert brakes.succeeded("10.0.0.8:1", "ann", 9_001.0) == DELAY_S


def test_a_user_is_not_slowed_where_she_has_logged_in_before(brakes: Brakes) -> None:
    brakes.succeeded("10.0.0.1:5", "ann", 0.0)
    for number in range(50):
        brakes.failed(f"10.0.{number}.7:1", "ann", 0.0)
        brakes.failed("10.0.0.1:7", "eve", 0.0)
    assert [brakes.succeeded("10.0.0.1:6", "ann", 0.0) for _ in range(100)] == [0.0] * 100
    assert one_after_the_other(brakes, [("10.0.0.1:7", "ann")] * 8) == pytest.approx(DELAYS)
    now = sum(DELAYS)
    # That is all that it can do.
    assert brakes.succeeded("10.0.0.1:6", "ann", now) == DELAY_MAX_S
    assert brakes.succeeded("10.0.0.1:6", "ann", now + 6 * FORGIVEN_EVERY_S) == 0.0


def test_what_is_remembered_of_logins_has_a_limit(brakes: Brakes) -> None:
    for number in range(REMEMBERED_MAX + 1):
        brakes.failed(f"10.1.{number}:1", f"user{number}", 0.0)
        brakes.succeeded(f"10.2.{number}:1", f"other{number}", 0.0)
    sizes = {len(table) for table in (brakes.hosts, brakes.names, brakes.known, brakes._free)}
    assert sizes == {REMEMBERED_MAX}
    assert brakes.failed("10.1.0:1", "user0", 1.0) == DELAY_S  # the oldest is forgotten
    assert brakes.failed("10.1.2:1", "new", 1.0) == 2 * DELAY_S


def test_a_network_of_ipv6_is_one_address(brakes: Brakes) -> None:
    brakes.failed("[2001:db8:1:2::3]:5", "ann", 0.0)
    assert brakes.failed("[2001:db8:1:2:ffff::1]:5", "bob", 1.0) == 2 * DELAY_S
    assert brakes.failed("[2001:db8:1:3::3]:5", "eve", 0.0) == DELAY_S
    brakes.failed("[::ffff:10.0.0.1]:5", "tom", 0.0)
    assert brakes.failed("10.0.0.1:5", "tim", 1.0) == 2 * DELAY_S
    assert brakes.failed("[fe80::1%eth0]:5", "kim", 0.0) == DELAY_S


def test_a_flood_of_failures_is_one_line_in_the_log(access: UserAccess, lines: io.StringIO) -> None:
    for _ in range(50):
        access.refuse("10.0.0.7:1", "upr", "a\nnn", "wrong name or password")
    found = lines.getvalue().splitlines()
    assert len(found) == 1
    assert 'access.login_refused peer=10.0.0.7:1 user="a\\nnn"' in found[0]


# --- passwords ----------------------------------------------------------------------------------


def test_passwords_wait_for_the_thread_up_to_a_limit(access: UserAccess, loop: Loop) -> None:
    answers: list[bool | None] = []
    for _ in range(WAITING_MAX + 1):
        access.check(HERE, ANN, answers.append)
    assert answers == [None]  # the one too many, at once
    loop.until(lambda: len(answers) == WAITING_MAX + 1)
    assert answers.count(True) == WAITING_MAX
    access.admit(HERE, "upr", "ann")
    for _ in range(2 * WAITING_MAX + 1):  # who is known here finds room behind others
        access.check(HERE, ANN, answers.append)
    assert answers.count(None) == 2
    loop.until(lambda: answers.count(True) == 3 * WAITING_MAX)
    access.check(HERE, WRONG, answers.append)
    loop.until(lambda: answers[-1] is False)


def test_a_password_in_clear_is_taken_where_nobody_listens(access: UserAccess) -> None:
    def plain(peer: str, *, tls: bool = False) -> bool:
        return access.door(peer, "upr", tls=tls).plain

    assert plain("127.0.0.1:5")
    assert plain("[::1]:5")
    assert plain("unix")
    assert plain("10.0.0.7:5", tls=True)
    assert not plain("10.0.0.7:5")
    assert not plain("[2001:db8::1]:5")
    assert not plain("[::ffff:10.0.0.7]:5")


# --- reloads ------------------------------------------------------------------------------------


def test_a_reload_revokes_those_who_changed_and_nobody_else(access: UserAccess, path: str) -> None:
    doors = {name: access.door("127.0.0.1:5", "upr", tls=False) for name in ("ann", "bob")}
    for name, door in doors.items():
        door.admit(name, done, done)
    access.reload(path)
    assert not any(door.over(1e9) for door in doors.values())
    write(Path(path), ann="other", bob="pencil", eve="pencil")
    access.reload(path)
    assert [doors["ann"].over(1e9), doors["bob"].over(1e9)] == [True, False]
    write(Path(path), eve="pencil")
    access.reload(path)
    assert doors["bob"].over(1e9)


def test_a_login_that_began_before_a_reload_does_not_outlive_it(
    access: UserAccess, path: str
) -> None:
    begun, checked = (access.door("127.0.0.1:5", "upr", tls=False) for _ in range(2))
    begun.begin(Mechanism.SCRAM_SHA1)
    checked.check(ANN, lambda right: None)
    write(Path(path), ann="other")
    access.reload(path)
    for door in (begun, checked):
        door.admit("ann", done, done)
        assert door.over(1.0)


def test_a_password_of_http_that_changed_while_it_was_checked_is_checked_again(
    access: UserAccess, path: str, loop: Loop
) -> None:
    answers: list[bool | None] = []
    access.check_once(HERE, ANN, answers.append)
    write(Path(path), ann="other")
    access.reload(path)
    loop.until(lambda: answers)
    assert answers == [False]
    assert not access.remembers(ANN)


def test_who_does_not_log_in_in_time_is_disconnected(access: UserAccess) -> None:
    door = access.door("127.0.0.1:5", "upr", tls=False)
    assert not door.over(5.0)
    assert not door.over(5.0 + LOGIN_TIMEOUT_S - 0.001)
    assert door.over(5.0 + LOGIN_TIMEOUT_S)
    door.admit("ann", done, done)
    assert not door.over(1e9)
    door.leave()  # a login that failed
    assert not door.over(1e9 + 1)
    assert door.over(1e9 + 1 + LOGIN_TIMEOUT_S)


@pytest.mark.parametrize("flaw", ["torn", "open", "gone"])
def test_a_bad_file_keeps_the_users(access: UserAccess, path: str, flaw: str) -> None:
    file = Path(path)
    if flaw == "torn":
        file.write_bytes(file.read_bytes()[:-20])
    elif flaw == "open":
        file.chmod(0o644)
    else:
        file.unlink()
    with pytest.raises(ConfigError, match=r"^server\.users: "):
        access.reload(path)
    assert access.users.find("ann") is not None
    assert access.users.knows(ANN)


# --- the audit log ------------------------------------------------------------------------------


def noted(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_did_what_from_where(tmp_path: Path) -> None:
    audit = Audit(str(tmp_path / "audit"), lambda: 1_764_158_400.5)
    audit.note("10.0.0.7:5", "upr", 'a"\nb', "SET_VBUCKET", "allowed")
    audit.close()
    assert noted(tmp_path / "audit") == [
        {
            "time": "2025-11-26T12:00:00.500Z",
            "peer": "10.0.0.7:5",
            "listener": "upr",
            "user": 'a"\nb',
            "action": "SET_VBUCKET",
            "outcome": "allowed",
        }
    ]
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o600


def test_strangers_cannot_fill_it_and_cannot_drown_what_managers_do(tmp_path: Path) -> None:
    now = [1e9]
    audit = Audit(str(tmp_path / "audit"), lambda: now[0])
    for _ in range(REFUSALS_A_SECOND + 5):
        audit.note("p", "upr", "", "GET", "refused")
    audit.note("p", "upr", "ann", "FLUSH", "allowed")
    now[0] += 1
    audit.note("p", "upr", "", "GET", "refused")
    assert (audit.lost, audit.dropped) == (0, 5)
    assert len(noted(tmp_path / "audit")) == REFUSALS_A_SECOND + 2
    audit.close()


def test_a_full_disk_loses_lines_and_says_so_once(lines: io.StringIO) -> None:
    audit = Audit("/dev/full", lambda: 1e9)
    for _ in range(3):
        audit.note("p", "upr", "ann", "login", "allowed")
    assert audit.lost == 3
    assert lines.getvalue().count("audit.failed") == 1
    audit.close()


def test_room_on_the_disk_is_said_once_too(
    tmp_path: Path, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = Audit(str(tmp_path / "audit"), lambda: 1e9)
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: os.fsync(2**31 - 1))
        audit.note("p", "upr", "ann", "login", "allowed")
    for _ in range(2):
        audit.note("p", "upr", "ann", "login", "allowed")
    audit.close()
    assert len(noted(tmp_path / "audit")) == 2
    assert lines.getvalue().count("audit.works_again") == 1


def test_a_line_behind_a_torn_one_is_whole(tmp_path: Path, monkeypatch) -> None:
    audit = Audit(str(tmp_path / "audit"), lambda: 1e9)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    audit.note("p", "upr", "ann", "login", "allowed")
    monkeypatch.undo()
    audit.note("p", "upr", "bob", "login", "allowed")
    audit.close()
    _torn, whole = (tmp_path / "audit").read_text().splitlines()
    assert json.loads(whole)["user"] == "bob"
    assert audit.lost == 1


def test_it_goes_on_in_a_new_file_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = Audit(str(path), lambda: 1e9)
    audit.note("p", "upr", "ann", "login", "allowed")
    path.rename(tmp_path / "old")
    audit.reopen(str(path))
    audit.note("p", "upr", "bob", "login", "allowed")
    assert [each["user"] for each in noted(path)] == ["bob"]
    with pytest.raises(ConfigError, match=r"log\.audit"):
        audit.reopen(str(tmp_path / "none" / "audit"))
    audit.note("p", "upr", "eve", "login", "allowed")  # the old one is kept
    assert [each["user"] for each in noted(path)] == ["bob", "eve"]
    audit.close()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"log\.audit"):
        Audit(str(tmp_path / "pipe"), lambda: 1e9)


# --- registered clients ---------------------------------------------------------------------------


def test_a_registered_client_belongs_to_its_user_until_it_leaves_or_the_user_is_gone(
    access: UserAccess, path: str
) -> None:
    assert access.claims("ann", b"nightly", leaves=False)
    assert not access.claims("bob", b"nightly", leaves=True)
    assert access.claims("ann", b"nightly", leaves=False)
    assert access.claims("ann", b"nightly", leaves=True)
    assert access.claims("bob", b"nightly", leaves=False)
    write(Path(path), ann="pencil")
    access.reload(path)
    assert access.claims("ann", b"nightly", leaves=False)


def test_the_users_of_so_many_clients_are_remembered(access: UserAccess) -> None:
    for number in range(CLIENTS_MAX + 1):
        assert access.claims("ann", b"%d" % number, leaves=False)
    assert access.claims("bob", b"0", leaves=False)
    assert not access.claims("bob", b"2", leaves=False)
