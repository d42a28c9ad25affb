"""What commands do in the three dialects, as a table: request, reply, and what is counted.

``dialects.txt`` holds the table. It was measured with memcached 1.6.18, which the tests ask again
where it is installed; a server is asked through a function, so the table judges sessions without
sockets, our server and memcached alike.

A line is ``dialect | states | request | reply | counters``. The states of the key K before are
missing, text (``abc``, flags 5), number (``10``) and expired. ``⏎`` ends a line of text, LARGE is a
value of so many bytes, and GOOD, BAD and OLD are CAS values: that of the document, a newer and an
older one. In a reply N is a CAS; a binary one is opcode/status/key/value. Binary requests are an
opcode's name with its fields.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from interop.wire import split_replies
from tests.codec.frames import frame

#: What a dialect's request is answered by, with nothing missing.
Ask = Callable[[str, bytes], bytes]

COUNTED = re.compile(r"(cmd|get|delete|incr|decr|touch|cas|auth|store)_\w+|total_items")

_TABLE = Path(__file__).with_name("dialects.txt")
_STATES = {
    "missing": b"",
    "text": b"set %b 5 0 3\r\nabc\r\n",
    "number": b"set %b 5 0 2\r\n10\r\n",
    "expired": b"set %b 0 -1 1\r\nx\r\n",
}
_NAMES = """
get set add replace delete incr decr quit flush getq noop version getk getkq append prepend stat
setq addq replaceq deleteq incrq decrq quitq flushq appendq prependq verbosity touch gat gatq hello
list auth step gatk gatkq
"""
_OPCODES = {name: number for number, name in enumerate(_NAMES.split())}
_STORES = re.compile(r"(set|add|replace)q?")
_COUNTERS = re.compile(r"(incr|decr)q?")
_TOUCHES = re.compile(r"touch|gat")


@dataclass(frozen=True, slots=True)
class Row:
    """One command on one state of its key."""

    dialect: str
    state: str
    request: str
    reply: str
    counters: dict[str, int]

    def __str__(self) -> str:
        return f"{self.dialect} {self.state} {self.request}"


def table() -> Iterator[Row]:
    """Every row of the table."""
    for line in _TABLE.read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        dialect, states, request, reply, counters = (each.strip() for each in line.split("|"))
        for state in states.split():
            yield Row(dialect, state, request, reply, dict(Counter(counters.split())))


def outcome(
    row: Row, key: bytes, ask: Ask, counters: Callable[[], dict[str, int]]
) -> tuple[str, dict[str, int]]:
    """Carry a row out: the reply in the table's form, and what was counted."""
    if _STATES[row.state]:
        assert ask("text", _STATES[row.state] % key) == b"STORED\r\n"
    cas = {"GOOD": 0, "BAD": 2**63, "OLD": 1}
    if row.state in ("text", "number"):
        cas["GOOD"] = int(ask("text", b"gets %b\r\n" % key).split()[4])
    before = counters()
    if row.dialect == "binary":
        said = ask("binary", _binary(row.request, key, cas))
        reply = _shown_binary(said, key)
    else:
        said = ask("text", _text(row.request, key, cas))
        reply = _shown_text(said, key)
    grown = Counter(counters())
    grown.subtract(before)
    return reply, {name: number for name, number in grown.items() if number}


def _text(request: str, key: bytes, cas: dict[str, int]) -> bytes:
    text = re.sub(r"LARGE(\d+)", lambda found: "v" * int(found[1]), request)
    text = re.sub(r"GOOD|BAD|OLD", lambda found: str(cas[found[0]]), text)
    return re.sub(r"\bK\b", key.decode(), text).replace("⏎", "\r\n").encode() + b"\r\n"


def _shown_text(said: bytes, key: bytes) -> str:
    text = said.decode().replace(key.decode(), "K").replace("\r\n", "⏎").removesuffix("⏎")
    text = re.sub(r"\bc[1-9]\d*\b", "cN", text)
    return re.sub(r"(VALUE K \d+ \d+) \d+", r"\1 N", text)


def _binary(request: str, key: bytes, cas: dict[str, int]) -> bytes:
    name, *words = request.split()
    given = dict(word.split("=") for word in words)
    value = b"v" * int(given["size"]) if "size" in given else given.get("v", "").encode()
    expiry = int(given.get("exp", "0"), 0)
    extras = b""
    if _STORES.fullmatch(name):
        extras = struct.pack(">II", 0, expiry)
    elif _COUNTERS.fullmatch(name):
        delta, initial = int(given.get("d", "1")), int(given.get("init", "7"))
        extras = struct.pack(">QQI", delta, initial, expiry)
    elif _TOUCHES.match(name):
        extras = struct.pack(">I", expiry)
    compared = cas[given["cas"]] if "cas" in given else 0
    has_key = name not in ("noop", "version")
    return frame(_OPCODES[name], key if has_key else b"", value, extras, cas=compared)


def _shown_binary(said: bytes, key: bytes) -> str:
    replies, rest = split_replies(said)
    assert not rest
    return " ".join(
        f"{each.opcode:#04x}/{each.status}/{each.key.replace(key, b'K').decode()}/"
        + (each.value.hex() if 0 in each.value else each.value.decode())
        for each in replies
    )
