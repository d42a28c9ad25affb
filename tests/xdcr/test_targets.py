"""Targets of other kinds: without our extensions, with TLS, with a login."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.login.files import password_of, users_file
from tests.server.test_dialer import certificate_for
from tests.system.test_replication import delete
from tests.xdcr.cluster import DataCentres, documents, write
from uprmc.errors import ConfigError, InvalidArguments, KeyExists
from uprmc.kv import connection_commands
from uprmc.kv.binary import HANDLERS
from uprmc.protocol.header import encode_response
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.server.work.links import FILE_MAX_BYTES, read_in
from uprmc.xdcr.frames import set_frame

_OURS = (
    Opcode.GET_ALL_VB_SEQNOS,
    Opcode.GET_FAILOVER_LOG,
    Opcode.GET_CLUSTER_CONFIG,
    Opcode.XDCR,
    Opcode.SELECT_BUCKET,
)


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make nodes answer others as a server that knows only metadata; links of their own work."""
    monkeypatch.setattr(connection_commands, "_GRANTED", frozenset())
    for opcode in _OURS:
        monkeypatch.delitem(HANDLERS, opcode)


@pytest.mark.usefixtures("foreign")
def test_a_target_without_any_extension_gets_everything(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 100)
    write(a, 100, 50, b"v" * 1000)
    link = centres.link(a, b)
    centres.until_level(link)
    for number in range(10):
        delete(a, b"k%d" % number)
    centres.until_level(link)
    assert documents(a) == documents(b)
    status = centres.command(a, "status", name="west")
    assert status["target_features"] == []
    assert status["docs_checked"] == 50
    centres.command(a, "checkpoint", name="west")
    assert {row["target_vb_uuid"] for row in status["vbuckets"]} == {"0"}
    centres.stop("a")
    a = centres.start("a")
    link = a.links.by_name["west"]
    centres.until_level(link)
    assert link.counters.docs_written == 0


def test_our_own_target_grants_all_extensions(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    link = centres.link(a, b)
    centres.loop.until(lambda: link.nodes.ready)
    features = centres.command(a, "status", name="west")["target_features"]
    assert features == ["terms", "origins", "checkpoints"]


def test_a_link_over_tls(centres: DataCentres, tmp_path: Path) -> None:
    certificate, key = certificate_for(tmp_path, "127.0.0.1")
    a = centres.start("a", xdcr__files=str(tmp_path))
    b = centres.start("b", server__tls_cert=certificate, server__tls_key=key)
    write(a, 0, 100)
    link = centres.link(a, b, tls_ca=certificate)
    centres.until_level(link)
    assert documents(a) == documents(b)


@pytest.mark.parametrize(
    ("at_target", "at_link", "told"),
    [
        (False, True, "it does not speak TLS: leave --tls-ca out"),
        (True, False, "does it want TLS (--tls-ca)?"),
    ],
    ids=["TLS to a plain listener", "plain to a TLS listener"],
)
def test_a_link_that_speaks_tls_where_the_target_does_not_says_so_at_once(
    centres: DataCentres, tmp_path: Path, at_target: bool, at_link: bool, told: str
) -> None:
    certificate, key = certificate_for(tmp_path, "127.0.0.1")
    a = centres.start("a", xdcr__files=str(tmp_path), xdcr__dial_timeout_s=600.0)
    served = {"server__tls_cert": certificate, "server__tls_key": key} if at_target else {}
    b = centres.start("b", **served)
    centres.link(a, b, tls_ca=certificate if at_link else "")

    def error() -> str:
        (node,) = centres.command(a, "status", name="west")["nodes"]
        assert not node["connected"]
        return str(node["error"])

    centres.loop.until(error, 10.0)
    assert told in error()
    status = centres.command(a, "status", name="west")
    assert told in status["last_errors"][-1]
    centres.command(a, "delete", name="west")
    write(a, 0, 10)
    centres.until_level(centres.link(a, b, tls_ca=certificate if at_target else ""))


def test_a_file_that_cannot_be_read_is_an_error_until_it_can(
    centres: DataCentres, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    a, b = centres.start("a", xdcr__files=str(tmp_path)), centres.start("b")
    given = {"user": "u", "password_file": str(password)}
    with pytest.raises(InvalidArguments, match=r"--password-file: .*password cannot be read"):
        centres.link(a, b, **given)
    assert a.links.by_name == {}
    password.write_text("secret")
    link = centres.link(a, b, **given)
    centres.loop.until(lambda: "knows no logins" in link.error)
    password.unlink()
    centres.command(a, "resume", name="west")
    centres.loop.until(lambda: "password cannot be read" in link.error)
    assert "--password-file" in link.error
    password.write_text("secret")
    centres.command(a, "resume", name="west")
    centres.loop.until(lambda: "knows no logins" in link.error)


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_authorities_that_cannot_be_used_are_refused(
    centres: DataCentres, tmp_path: Path, text: str | None
) -> None:
    a, b = centres.start("a", xdcr__files=str(tmp_path)), centres.start("b")
    if text is not None:
        (tmp_path / "ca.pem").write_text(text)
    with pytest.raises(InvalidArguments, match=r"--tls-ca: .*ca\.pem"):
        centres.link(a, b, tls_ca=str(tmp_path / "ca.pem"))


def test_a_certificate_that_is_not_trusted_is_told_in_the_words_of_links(
    centres: DataCentres, tmp_path: Path
) -> None:
    (tmp_path / "others").mkdir()
    certificate, key = certificate_for(tmp_path, "127.0.0.1")
    others, _ = certificate_for(tmp_path / "others", "127.0.0.1")
    a = centres.start("a", xdcr__files=str(tmp_path), xdcr__dial_timeout_s=600.0)
    b = centres.start("b", server__tls_cert=certificate, server__tls_key=key)
    link = centres.link(a, b, tls_ca=others)

    def is_told() -> bool:
        link.change(link.spec)  # wakes its connections, also during the handshake
        (node,) = link.nodes.shown()
        return bool(node["error"])

    centres.loop.until(is_told)
    (node,) = link.nodes.shown()
    assert "not certified by --tls-ca" in str(node["error"])
    assert any("not certified by --tls-ca" in each for each in link.errors.shown())


def test_a_target_that_is_no_node_is_named_with_what_is_wrong(centres: DataCentres) -> None:
    a = centres.start("a")
    web = centres.start("b", server__http="127.0.0.1:0").addresses()["http"]
    write(a, 0, 10)
    link = centres.link(a, web)
    centres.loop.until(lambda: link.errors.shown())
    (node,) = centres.command(a, "status", name="west")["nodes"]
    assert node["error"] == "it breaks the protocol: unknown magic 0x48"
    assert link.progress.lag_seconds < 60, "it counts from when the link was made"


def test_a_target_that_offers_no_login_is_an_error(centres: DataCentres, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    a, b = centres.start("a", xdcr__files=str(tmp_path)), centres.start("b")
    link = centres.link(a, b, user="u", password_file=str(tmp_path / "password"))
    centres.loop.until(lambda: link.state == "error")
    assert "knows no logins" in link.error


@pytest.mark.parametrize("password", [password_of("link"), "wrong"])
def test_the_link_logs_in_where_the_target_has_users(
    centres: DataCentres, tmp_path: Path, password: str
) -> None:
    users = users_file(tmp_path, link="read,write,stream,replicate,manage,monitor")
    (tmp_path / "password").write_text(password)
    a, b = centres.start("a", xdcr__files=str(tmp_path)), centres.start("b", server__users=users)
    write(a, 0, 10)
    link = centres.link(a, b, user="link", password_file=str(tmp_path / "password"))
    if password == "wrong":
        centres.loop.until(lambda: link.state == "error")
        assert "does not let 'link' in" in link.error
    else:
        centres.until_level(link)
        assert documents(a) == documents(b)


def test_a_link_without_a_user_is_told_what_a_target_with_users_wants(
    centres: DataCentres, tmp_path: Path
) -> None:
    a, b = (
        centres.start("a"),
        centres.start("b", server__users=users_file(tmp_path, link="replicate")),
    )
    link = centres.link(a, b)
    centres.loop.until(lambda: link.state == "error")
    assert "make the link with --user and --password-file" in link.error


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.ACCESS_DENIED, "gives no access"),
        (Status.AUTH_ERROR, "gives no access"),
        (Status.UNKNOWN_COMMAND, "does not know SETQ_WITH_META"),
    ],
)
def test_a_refusal_that_time_does_not_make_good_stops_the_link(
    centres: DataCentres, status: Status, reason: str
) -> None:
    a, b = centres.start("a"), centres.start("b")
    link = centres.link(a, b)
    centres.loop.until(lambda: link.nodes.ready)
    (target,) = link.nodes.ready
    windows = target.windows
    opaque = windows.opaque
    windows.add(windows.current, set_frame(0, opaque, b"kv", 1, (0, 0, 1, 1), 0))
    target.receive_data(encode_response(Opcode.SETQ_WITH_META, status, opaque=opaque))
    assert link.state == "error"
    assert reason in link.error
    write(a, 0, 10)
    assert centres.command(a, "resume", name="west")["state"] == "running"
    centres.until_level(link)
    assert documents(a) == documents(b)


def test_bandwidth_is_limited(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b")
    write(a, 0, 100, b"v" * 200)
    link = centres.link(a, b, set={"bandwidth": "100K"})
    began = link.clock.monotonic()
    centres.until_level(link)
    took = link.clock.monotonic() - began
    size = link.counters.data_bytes
    assert size > 20_000
    assert took >= (size - 20_000) / 102_400  # a tenth of a second may go at once
    assert documents(a) == documents(b)


def test_a_target_that_resolves_conflicts_otherwise_is_an_error(centres: DataCentres) -> None:
    a, b = centres.start("a"), centres.start("b", engine__conflict_resolution="timestamp")
    link = centres.link(a, b)
    centres.loop.until(lambda: link.state == "error")
    assert "by lww and this node by seqno" in link.error


def test_with_timestamps_the_version_with_the_higher_cas_wins_at_both_ends(
    centres: DataCentres,
) -> None:
    a, b = (centres.start(name, engine__conflict_resolution="timestamp") for name in "ab")
    for _ in range(5):
        a.bucket.vbuckets[0].store(b"k", b"older" * 100, 0, 0)
    b.bucket.vbuckets[0].store(b"k", b"newer", 0, 0)
    there = centres.link(a, b)
    centres.until_level(there)
    back = centres.link(b, a)
    centres.until_level(there, back)
    assert documents(a) == documents(b)
    assert documents(a)[b"k"][0] == b"newer"
    assert there.counters.docs_failed_cr_source == 1


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files that links may have, beside some that they may not."""
    (tmp_path / "secret").write_text("root:x")
    found = tmp_path / "files"
    (found / "deeper").mkdir(parents=True)
    (found / "password").write_text("word\n")
    (found / "deeper" / "password").write_text("word")
    (found / "inside").symlink_to("deeper/password")
    (found / "outside").symlink_to(tmp_path / "secret")
    (found / "up").symlink_to(tmp_path)
    (found / "empty").touch()
    (found / "large").write_bytes(b"x" * (FILE_MAX_BYTES + 1))
    (found / "fits").write_bytes(b"x\n" + b"x" * (FILE_MAX_BYTES - 2))
    os.mkfifo(found / "pipe")
    return found


@pytest.mark.parametrize(
    "name", ["password", "{}/password", "./deeper/../password", "deeper/password", "inside", "fits"]
)
def test_a_file_of_a_link_lies_in_the_folder_that_the_settings_name(
    folder: Path, name: str
) -> None:
    assert read_in(str(folder), name.format(folder), "--x")[:1] in (b"w", b"x")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/etc/shadow", "is not in"),
        ("/none/at/all", "is not in"),
        ("{}", "is not in"),
        ("", "is not in"),
        ("..", "is not in"),
        ("../secret", "is not in"),
        ("../none", "is not in"),
        ("{}/../secret", "is not in"),
        ("{}-beside/secret", "is not in"),
        ("outside", "is not in"),
        ("up/secret", "is not in"),
        ("up/none", "is not in|cannot be read"),
        ("none", "cannot be read: No such file"),
        ("deeper", "is no regular file"),
        ("pipe", "is no regular file"),
        ("large", "larger than 1048576 bytes"),
        ("a\0b", "is no path"),
        ("\ud800", "is no path"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
)
def test_other_files_are_refused_and_nothing_is_said_of_what_lies_elsewhere(
    folder: Path, name: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        read_in(str(folder), name.format(folder), "--password-file")
    assert str(caught.value).startswith("--password-file: ")
    assert "root" not in str(caught.value).replace(str(folder), "")


def test_without_a_folder_links_name_no_files(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"set xdcr\.files"):
        read_in("", str(folder / "password"), "--tls-ca")


def test_a_link_that_names_a_file_of_others_or_a_pipe_is_refused_and_the_node_goes_on(
    centres: DataCentres, folder: Path
) -> None:
    a = centres.start("a", xdcr__files=str(folder))
    given = {"name": "west", "to": "127.0.0.1:9"}
    for path in ("/etc/passwd", "outside", "pipe"):
        for files in ({"user": "u", "password_file": path}, {"tls_ca": path}):
            with pytest.raises(InvalidArguments):
                centres.command(a, "create", **given, **files)
    with pytest.raises(InvalidArguments, match="its first line is empty"):
        centres.command(a, "create", **given, user="u", password_file="empty")
    assert a.links.by_name == {}
    centres.command(a, "create", **given, user="u", password_file="inside")
    with pytest.raises(KeyExists):
        centres.command(a, "create", **given)


def test_a_kept_link_whose_file_lies_elsewhere_ends_in_an_error(
    centres: DataCentres, folder: Path
) -> None:
    a, b = centres.start("a", xdcr__files=str(folder)), centres.start("b")
    link = centres.link(a, b, user="u", password_file="password")
    centres.loop.until(lambda: link.error)
    old = replace(link.spec, password_file="/etc/passwd")
    link.resume(old)
    centres.loop.until(lambda: "is not in" in link.error)
    write(a, 0, 1)


def test_a_link_that_is_deleted_while_its_files_are_read_dials_nobody(
    centres: DataCentres, folder: Path
) -> None:
    a, b = centres.start("a", xdcr__files=str(folder)), centres.start("b")
    link = centres.link(a, b, user="u", password_file="password")
    link.tick(a.bucket.clock.monotonic())
    centres.command(a, "delete", name="west")
    centres.loop.until(lambda: a.links.by_name == {})
    assert not link.nodes.ready
