"""What commands do in the three dialects, as a table: request, reply, and what is counted.

``dialects.txt`` holds the table. It was measured with memcached 1.6.18, which the tests ask again
where it is installed; a server is asked through a function, so the table judges sessions without
sockets, our server and memcached alike. A line that memcached answers differently ends in
``| ours``, and one that lets time pass is asked of sessions only.

A line is ``dialect | states | request | reply | counters``. The states of the key K before are
missing, text (``abc``, flags 5), number (``10``), expired, and ``=VALUE`` (flags 5, for 1,000
seconds). In requests and replies ``⏎`` ends a line of text, ``␊`` and ``␍`` are halves of such an
end, ``␠`` is a space, LARGE a value of so many bytes, LONG a key of so many; GOOD, BAD and OLD are
CAS values: that of the document, a newer and an older one. ``+1.5s`` lets time pass.

In a reply N is a CAS, V the version, and ``(closed)`` the end of the connection. Binary requests
are opcodes with fields, apart by ``;``. A binary reply is opcode/status/key/value/extras/CAS,
without the slashes at its end.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from interop.wire import Reply, split_replies
from tests.codec.frames import frame

CLOSED = b"(closed)"
#: All but ``get_flushed``: memcached keeps what was flushed until somebody asks for it.
COUNTED = re.compile(r"(cmd|get|delete|incr|decr|touch|cas|auth|store)_(?!flushed)\w+|total_items")

_TABLE = Path(__file__).with_name("dialects.txt")
_STATES = {
    "missing": b"",
    "text": b"set %b 5 0 3\r\nabc\r\n",
    "number": b"set %b 5 0 2\r\n10\r\n",
    "expired": b"set %b 0 -1 1\r\nx\r\n",
}
_SIGNS = str.maketrans({"⏎": "\r\n", "␊": "\n", "␍": "\r", "␠": " "})
_CELL = re.compile(r" \|(?: |$)")
_STEP = re.compile(r"\+([\d.]+)s")
_NAMES = """
get set add replace delete incr decr quit flush getq noop version getk getkq append prepend stat
setq addq replaceq deleteq incrq decrq quitq flushq appendq prependq verbosity touch gat gatq hello
list auth step gatk gatkq
"""
_OPCODES = {name: number for number, name in enumerate(_NAMES.split())}
_KEYLESS = re.compile(r"(noop|version|quit|flush)q?|verbosity|stat")
_STORES = re.compile(r"(set|add|replace)q?")
_COUNTERS = re.compile(r"(incr|decr)q?")
_TOUCHES = re.compile(r"touch|gat")


class Server(Protocol):
    """Who is asked: a session, our process, memcached."""

    def ask(self, dialect: str, data: bytes) -> bytes:
        """Everything that is said to a request, and `CLOSED` if the connection has ended."""
        ...

    def counters(self) -> dict[str, int]:
        """What it has counted of what `COUNTED` names."""
        ...

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """One request on one state of its key."""

    dialect: str
    state: str
    request: str
    reply: str
    counters: dict[str, int]
    ours: bool

    @property
    def waits(self) -> bool:
        return _STEP.search(self.request) is not None

    def __str__(self) -> str:
        return f"{self.dialect} {self.state} {self.request}"


def table() -> Iterator[Row]:
    """Every row of the table."""
    for line in _TABLE.read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        dialect, states, request, reply, counters, *ours = map(str.strip, _CELL.split(line))
        for state in states.split():
            yield Row(dialect, state, request, reply, dict(Counter(counters.split())), bool(ours))


def outcome(row: Row, key: bytes, server: Server) -> tuple[str, dict[str, int]]:
    """Carry a row out: the reply in the table's form, and what was counted."""
    if row.state.startswith("="):
        value = row.state[1:].translate(_SIGNS).encode()
        before = b"set %b 5 1000 %d\r\n%b\r\n" % (key, len(value), value)
    else:
        before = _STATES[row.state]
        before = before % key if before else b""
    if before:
        assert server.ask("text", before) == b"STORED\r\n"
    cas = {"GOOD": 0, "BAD": 2**63, "OLD": 1}
    if "GOOD" in row.request and before and row.state != "expired":
        cas["GOOD"] = int(server.ask("text", b"gets %b\r\n" % key).split()[4])
    counted = server.counters()
    said: list[str] = []
    for number, part in enumerate(_STEP.split(row.request)):
        if number % 2:
            server.wait(float(part))
        elif row.dialect == "binary":
            asked = _binary(part, key, cas)
            said += _shown_binary(server.ask("binary", b"".join(asked)), key, asked)
        elif asked_text := _text(part, key, cas):
            said.append(_shown_text(server.ask("text", asked_text), key))
    grown = Counter(server.counters())
    grown.subtract(counted)
    reply = (" ; " if row.dialect == "binary" else "").join(said).removesuffix("⏎")
    return reply, {name: number for name, number in grown.items() if number}


# --- text ---------------------------------------------------------------------------------------


def _text(request: str, key: bytes, cas: dict[str, int]) -> bytes:
    text = request.strip(" ").removeprefix("⏎").removesuffix("⏎")
    if not text and request.strip():
        text = "⏎"
    text = re.sub(r"GOOD|BAD|OLD", lambda found: str(cas[found[0]]), text)
    data = re.sub(r"\bK\b", key.decode(), text).translate(_SIGNS).encode()
    data = re.sub(rb"(LARGE|LONG)(\d+)", lambda found: b"v" * int(found[2]), data)
    return data + b"\r\n" if request.strip() else b""


def _shown_text(said: bytes, key: bytes) -> str:
    text = said.decode().replace(key.decode(), "K").replace("\r\n", "⏎")
    text = text.replace("\r", "␍").replace("\n", "␊")
    text = re.sub(r" (?=⏎|$)", "␠", text)
    text = re.sub(r"v{1000,}", lambda found: f"LARGE{len(found[0])}", text)
    text = re.sub(r"v{200,}", lambda found: f"LONG{len(found[0])}", text)
    text = re.sub(r"\bc[1-9]\d*\b", "cN", text)
    text = re.sub(r"VERSION [\d.]+", "VERSION V", text)
    return re.sub(r"(VALUE K \d+ \d+) \d+", r"\1 N", text)


# --- binary -------------------------------------------------------------------------------------


def _binary(requests: str, key: bytes, cas: dict[str, int]) -> list[bytes]:
    return [
        _request(request.split(), 0xC0FFEE00 + number, key, cas)
        for number, request in enumerate(requests.split(";"))
        if request.strip()
    ]


def _request(words: list[str], opaque: int, key: bytes, cas: dict[str, int]) -> bytes:
    name = words[0]
    given = dict(word.split("=") for word in words[1:])
    value = b"v" * int(given["size"]) if "size" in given else given.get("v", "").encode()
    expiry, flags = int(given.get("exp", "0"), 0), int(given.get("f", "0"))
    extras = b""
    if "ext" in given:
        extras = bytes.fromhex(given["ext"])
    elif _STORES.fullmatch(name):
        extras = struct.pack(">II", flags, expiry)
    elif _COUNTERS.fullmatch(name):
        delta, initial = int(given.get("d", "1")), int(given.get("init", "7"))
        extras = struct.pack(">QQI", delta, initial, expiry)
    elif _TOUCHES.match(name) or (name.startswith("flush") and "exp" in given):
        extras = struct.pack(">I", expiry)
    if "k" in given:
        key = given["k"].encode()
    elif "klong" in given:
        key = b"k" * int(given["klong"])
    elif _KEYLESS.fullmatch(name):
        key = b""
    lengths = {"klen": "key_length", "xlen": "extras_length", "blen": "body_length"}
    forged = {lengths[each]: int(given[each]) for each in lengths if each in given}
    return frame(
        _OPCODES[name] if name in _OPCODES else int(name, 16),
        key,
        value,
        extras,
        cas=cas[given["cas"]] if "cas" in given else 0,
        opaque=opaque,
        vbucket=int(given.get("vb", "0")),
        datatype=int(given.get("dt", "0")),
        magic=int(given.get("magic", "0x80"), 0),
        **forged,
    )


def _shown_binary(said: bytes, key: bytes, asked: list[bytes]) -> list[str]:
    closed = said.endswith(CLOSED)
    replies, rest = split_replies(said.removesuffix(CLOSED))
    assert not rest
    opaques = {(each[1], each[12:16]) for each in asked}
    for reply in replies:
        assert (reply.opcode, struct.pack(">I", reply.opaque)) in opaques, reply
    return [*(_shown(each, key) for each in replies), *["(closed)"] * closed]


def _shown(reply: Reply, key: bytes) -> str:
    value = re.sub(rb"v{1000,}", lambda found: b"LARGE%d" % len(found[0]), reply.value)
    if reply.opcode == _OPCODES["version"] and not reply.status:
        value = b"V"
    parts = [
        f"{reply.opcode:#04x}/{reply.status}",
        re.sub(r"k{200,}", "LONG", reply.key.decode().replace(key.decode(), "K")),
        value.decode() if value.isascii() and 0 not in value else value.hex(),
        reply.extras.hex(),
        "N" if reply.cas else "",
    ]
    return "/".join(parts).rstrip("/")
