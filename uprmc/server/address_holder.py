"""Which process has an address that another one wants, as far as Linux tells us in /proc.

The kernel lists listening sockets by inode; a process that has one has a link to it among its file
descriptors. Those of other users can be read by root alone.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"
_NAME_MAX = 64
_ANY = ("0.0.0.0", "::")


def who_has_port(host: str, port: int, proc: Path = _PROC) -> str:
    """Return ``memcached (pid 17)``, or who else it may be; empty = it cannot be known at all."""
    return _named(_port_inodes(host, port, proc), proc)


def who_has_path(path: str, proc: Path = _PROC) -> str:
    """Return the same of a unix socket."""
    return _named(_path_inodes(os.path.abspath(path), proc), proc)


def _named(inodes: set[str], proc: Path) -> str:
    if not inodes:
        return ""
    links = {f"socket:[{inode}]" for inode in inodes}
    for process in _processes(proc):
        if links & set(_links(process)):
            return f"{_program(process)} (pid {process.name})"
    return "a process of another user"


def _processes(proc: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(
            (each for each in proc.iterdir() if each.name.isdecimal()), key=lambda p: int(p.name)
        )


def _links(process: Path) -> Iterator[str]:
    with suppress(OSError):
        for each in (process / "fd").iterdir():
            with suppress(OSError):  # it is closed meanwhile
                yield os.readlink(each)


def _program(process: Path) -> str:
    """Return what it was started as; of Python the program that it runs."""
    try:
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "a process"
    names = [os.path.basename(word) for word in words if word and not word.startswith("-")]
    if len(names) > 1 and names[0].startswith("python"):
        names.pop(0)
    name = names[0] if names else "a process"
    return "".join(each for each in name if each.isprintable())[:_NAME_MAX]


def _port_inodes(host: str, port: int, proc: Path) -> set[str]:
    wanted = _addresses(host)
    found = set()
    for words in (*_rows(proc / "net" / "tcp"), *_rows(proc / "net" / "tcp6")):
        address, _, its_port = words[1].partition(":")
        if words[3] != _LISTENING or int(its_port, 16) != port:
            continue
        there = _address(address)
        if there in wanted or there in _ANY or wanted & set(_ANY):
            found.add(words[9])
    return found


def _addresses(host: str) -> set[str]:
    """Return the addresses that a name has, or the one that it is; it is bound already."""
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError:
        return {host}


def _address(text: str) -> str:
    """Read the kernel's form: words of 32 bits in this machine's order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed).removeprefix("::ffff:")


def _path_inodes(path: str, proc: Path) -> set[str]:
    return {words[6] for words in _rows(proc / "net" / "unix") if words[7:] == [path]}


def _rows(path: Path) -> Iterator[list[str]]:
    with suppress(OSError), path.open(encoding="utf-8", errors="surrogateescape") as lines:
        next(lines, "")
        for line in lines:
            yield line.split()
