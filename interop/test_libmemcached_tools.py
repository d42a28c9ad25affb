"""The command line tools that come with libmemcached, run as the programs they are.

Proves that memcp, memcat, memrm, memexist, memtouch, memflush and memstat work over the text and
the binary protocol, memping and memdump over the one they speak (memdump reads
``stats cachedump``), judged by their output and exit codes. Debian installs them as memccp,
memccat, ...; both names are looked for.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from interop.server_process import ServerProcess
from interop.wire import Wire

Tool = Callable[..., subprocess.CompletedProcess[bytes]]


def _program(name: str) -> str:
    found = shutil.which(f"memc{name}") or shutil.which(f"mem{name}")
    if found is None:
        pytest.skip(f"mem{name} is not installed: apt-get install libmemcached-tools")
    return found


@pytest.fixture
def run(server: ServerProcess) -> Tool:
    """``run("cat", "key")`` runs memcat with the server's address and gives the ended process."""

    def tool(name: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [_program(name), f"--servers={server.memcached}", *words],
            capture_output=True,
            timeout=60,
            check=False,
        )

    return tool


@pytest.fixture(params=["text", "binary"])
def options(request: pytest.FixtureRequest) -> list[str]:
    """The tool's options for one protocol."""
    return ["--binary"] if request.param == "binary" else []


@pytest.fixture
def two_files(tmp_path: Path) -> list[str]:
    contents = {"hello.txt": b"hello\n", "lines.bin": b"x\r\ny\x00END\r\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return [str(tmp_path / name) for name in contents]


def test_memcp_stores_files_and_memcat_gives_them_back(
    run: Tool, options: list[str], two_files: list[str]
) -> None:
    assert run("cp", *options, *two_files).returncode == 0
    shown = run("cat", *options, "hello.txt", "lines.bin")
    assert shown.returncode == 0
    assert shown.stdout == b"hello\n\nx\r\ny\x00END\r\n\n"


def test_memcp_add_and_replace_respect_what_is_there(
    run: Tool, options: list[str], two_files: list[str]
) -> None:
    assert run("cp", *options, "--replace", two_files[0]).returncode == 1
    assert run("cp", *options, "--add", two_files[0]).returncode == 0
    assert run("cp", *options, "--add", two_files[0]).returncode == 1
    assert run("cp", *options, "--replace", two_files[0]).returncode == 0


def test_memcat_shows_the_flags_memcp_stored(
    run: Tool, options: list[str], two_files: list[str]
) -> None:
    assert run("cp", *options, "--flags=77", two_files[0]).returncode == 0
    shown = run("cat", *options, "--flags", "hello.txt")
    assert shown.returncode == 0
    assert b"77" in shown.stdout


def test_memcat_of_a_missing_key_fails(run: Tool, options: list[str]) -> None:
    missed = run("cat", *options, "no-such-key")
    assert missed.returncode == 1
    assert missed.stdout == b""


def test_memexist_tells_present_from_missing_and_changes_nothing(
    run: Tool, options: list[str], two_files: list[str]
) -> None:
    run("cp", *options, two_files[0])
    assert run("exist", *options, "hello.txt").returncode == 0
    assert run("exist", *options, "no-such-key").returncode == 1
    assert run("cat", *options, "hello.txt").stdout == b"hello\n\n"
    assert run("cat", *options, "no-such-key").returncode == 1


def test_memrm_removes_a_key_once(run: Tool, options: list[str], two_files: list[str]) -> None:
    run("cp", *options, *two_files)
    assert run("rm", *options, "hello.txt").returncode == 0
    assert run("rm", *options, "hello.txt").returncode == 1
    assert run("exist", *options, "hello.txt").returncode == 1
    assert run("exist", *options, "lines.bin").returncode == 0


def test_memtouch_reaches_existing_keys_only(
    run: Tool, options: list[str], two_files: list[str]
) -> None:
    run("cp", *options, two_files[0])
    assert run("touch", *options, "--expire=100", "hello.txt").returncode == 0
    assert run("touch", *options, "--expire=100", "no-such-key").returncode == 1
    assert run("exist", *options, "hello.txt").returncode == 0


def test_memflush_empties_the_server(run: Tool, options: list[str], two_files: list[str]) -> None:
    run("cp", *options, *two_files)
    assert run("flush", *options).returncode == 0
    assert run("exist", *options, "hello.txt").returncode == 1
    assert run("exist", *options, "lines.bin").returncode == 1


def test_memstat_prints_the_statistics_of_this_server(
    run: Tool, options: list[str], server: ServerProcess
) -> None:
    shown = run("stat", *options)
    assert shown.returncode == 0
    lines = dict(
        line.strip().split(": ", 1) for line in shown.stdout.decode().splitlines() if ": " in line
    )
    assert lines["pid"] == str(server.pid)
    assert {"uptime", "version", "curr_items", "cmd_get", "cmd_set", "bytes"} <= set(lines)


def test_memstat_asks_for_the_version(run: Tool, options: list[str], server: ServerProcess) -> None:
    shown = run("stat", *options, "--server-version")
    assert shown.returncode == 0
    # libmemcached 1.1 prints it on standard error.
    assert str(server.memcached).encode() in shown.stdout + shown.stderr


def test_memping_reaches_the_server(run: Tool) -> None:
    assert run("ping").returncode == 0


def test_memdump_lists_every_key(run: Tool, server: ServerProcess) -> None:
    keys = {b"dump-%d" % number for number in range(50)}
    with Wire(server.memcached) as wire:
        for key in keys:
            wire.talk(b"set " + key + b" 0 0 1\r\nv\r\n", b"STORED\r\n")
    shown = run("dump")
    assert shown.returncode == 0
    assert set(shown.stdout.split()) == keys
