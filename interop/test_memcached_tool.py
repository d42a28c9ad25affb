"""memcached's own ``memcached-tool``, run as the program it is, here and in front of memcached."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.server_process import ServerProcess, memcached_program, start_memcached, start_uprmc
from interop.wire import Wire

_PLACES = ("/usr/share/memcached/scripts/memcached-tool", shutil.which("memcached-tool") or "")


@pytest.fixture(scope="module")
def program() -> str:
    found = [place for place in _PLACES if place and Path(place).exists()]
    if not found or memcached_program() is None or shutil.which("perl") is None:
        pytest.skip("memcached-tool is not installed: apt-get install memcached perl")
    return found[0]


@pytest.fixture(scope="module", params=["uprmc", "memcached"])
def filled(
    request: pytest.FixtureRequest, program: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with a few documents; memcached shows that the expectations are its own."""
    if request.param == "memcached":
        server = start_memcached()
    else:
        server = start_uprmc(tmp_path_factory.mktemp("data"))
    with server:
        with Wire(server.memcached) as wire:
            wire.talk(b"set plain 5 0 2\r\nhi\r\n", b"STORED\r\n")
            wire.talk(b"set a%20b 0 1000 5\r\nx\r\ny \r\n", b"STORED\r\n")
            wire.talk(b"set large 0 0 2000\r\n" + b"v" * 2000 + b"\r\n", b"STORED\r\n")
        yield server


def tool(program: str, server: ServerProcess, *words: str) -> str:
    ran = subprocess.run(
        ["perl", program, str(server.memcached), *words],
        capture_output=True,
        timeout=60,
        check=True,
    )
    return ran.stdout.decode()


def test_keys_lists_every_key(program: str, filled: ServerProcess) -> None:
    lines = tool(program, filled, "keys").splitlines()
    found = {line.split()[0]: line.split()[1] for line in lines}
    assert set(found) == {"key=plain", "key=a%2520b", "key=large"}
    assert found["key=plain"] == "exp=-1"
    assert int(found["key=a%2520b"].removeprefix("exp=")) > 1_700_000_000
    assert len(tool(program, filled, "keys", "2").splitlines()) == 2


def test_dump_writes_commands_that_store_everything_again(
    program: str, filled: ServerProcess
) -> None:
    said = tool(program, filled, "dump")
    assert "add plain 5 0 2\r\nhi\r\n" in said
    assert re.search(r"add a%20b 0 1\d{9} 5\r\nx\r\ny \r\n", said)
    assert "add large 0 0 2000\r\n" + "v" * 2000 in said


def test_display_shows_classes_with_pages(program: str, filled: ServerProcess) -> None:
    header, *rows = tool(program, filled, "display").splitlines()
    assert header.split()[:5] == ["#", "Item_Size", "Max_age", "Pages", "Count"]
    assert sum(int(row.split()[4]) for row in rows) == 3
    assert all(int(row.split()[3]) >= 1 for row in rows)
    assert all(re.fullmatch(r"[\d.]+[BK]", row.split()[1]) for row in rows)


@pytest.mark.parametrize("mode", ["stats", "settings", "sizes"])
def test_the_other_modes_show_a_line_for_each_number(
    program: str, filled: ServerProcess, mode: str
) -> None:
    header, *rows = tool(program, filled, mode).splitlines()
    assert header.startswith(f"#{filled.memcached}")
    shown = dict(row.split() for row in rows if len(row.split()) == 2)
    if mode == "sizes":
        assert shown == {"sizes_status": "disabled"} or sum(map(int, shown.values())) == 3
    else:
        assert {"stats": "curr_items", "settings": "maxbytes"}[mode] in shown


def test_a_dump_that_nobody_reads_keeps_no_other_waiting(
    program: str, filled: ServerProcess, request: pytest.FixtureRequest
) -> None:
    """memcached answers BUSY, for which the tool waits for ever."""
    if "[memcached" in request.node.name:
        pytest.skip("it hangs there")
    with Wire(filled.memcached) as wire:
        for number in range(20_000):
            wire.send(b"set many-%05d 0 0 1 noreply\r\nx\r\n" % number)
        wire.talk(b"version\r\n", b"VERSION 1.6.18\r\n")
        with Wire(filled.memcached) as stalled:
            stalled.send(b"lru_crawler metadump all\r\n")
            assert len(tool(program, filled, "keys").splitlines()) == 20_003
        wire.send(b"flush_all\r\n")
        assert wire.line() == b"OK\r\n"


@pytest.mark.parametrize("mode", ["display", "keys", "dump", "sizes"])
def test_an_empty_server_has_nothing_to_show(
    program: str, filled: ServerProcess, mode: str
) -> None:
    """The tests before have left nothing here; memcached keeps its classes."""
    with Wire(filled.memcached) as wire:
        wire.talk(b"flush_all\r\n", b"OK\r\n")
    lines = tool(program, filled, mode).splitlines()
    if mode in ("keys", "dump"):
        assert lines == []
    else:
        assert lines[0].strip().startswith("#")
