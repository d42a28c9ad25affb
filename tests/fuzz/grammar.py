"""Valid requests of both protocols, and ways to spoil them.

The requests come from a grammar of our own, built on the simulator's codec, not on `uprmc`: half of
what is sent is right, so that spoiled bytes meet a session that has something to lose.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from tests.codec.frames import HEADER
from tests.fuzz.upr_grammar import management_request, upr_request
from tests.sim import codec

#: Few keys, so that requests meet; the last ones are too long or odd.
KEYS = [b"k%d" % number for number in range(20)] + [b"n", b"x" * 250, b"y" * 251, b"\xff\x00 \r\n"]

_STORES = (0x01, 0x02, 0x03, 0x11, 0x12, 0x13)
_KEY_ONLY = (0x00, 0x04, 0x09, 0x0C, 0x0D, 0x14, 0x95)
_EXTENDS = (0x0E, 0x0F, 0x19, 0x1A)
_COUNTERS = (0x05, 0x06, 0x15, 0x16)
_TOUCHES = (0x1C, 0x1D, 0x1E, 0x23, 0x24, 0x94)
_BARE = (0x0A, 0x0B, 0x20)
#: They end the connection or forget everything.
_RARE = (0x07, 0x17, 0x08, 0x18)


def value(random: Random) -> bytes:
    """Return a body: mostly short, sometimes a number, sometimes at a limit."""
    kind = random.random()
    if kind < 0.2:
        return b"%d" % random.getrandbits(random.choice((4, 32, 64, 70)))
    if kind < 0.9:
        return random.randbytes(random.randint(0, 60))
    return random.randbytes(random.choice((1_000, 4_000, 4_095, 4_096, 4_097, 9_000)))


def _number32(random: Random) -> int:
    return random.choice((0, 1, 5, 60, 2_592_000, 2_592_001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))


# --- binary -------------------------------------------------------------------------------------


def binary_request(random: Random) -> bytes:
    """Return a valid frame of any opcode, known ones mostly."""
    kind = random.random()
    if kind < 0.06:
        return management_request(random)
    if kind < 0.065:
        return upr_request(random)
    key = random.choice(KEYS[:22])
    opcode, extras, body, bare = _parts(random)
    cas = random.choice((0, 0, 0, 1, random.getrandbits(64)))
    return codec.frame(
        opcode,
        key=b"" if bare else key,
        extras=extras,
        value=body,
        vbucket=random.choice((0, 1, 2, 3, 7, 0xFFFF)),
        opaque=random.getrandbits(32),
        cas=cas,
    )


def upr_conversation(random: Random) -> bytes:
    """Return what a peer that streams may send: UPR mostly, and writes that are to be streamed."""
    kind = random.random()
    if kind < 0.6:
        return upr_request(random)
    return management_request(random) if kind < 0.7 else binary_request(random)


def _parts(random: Random) -> tuple[int, bytes, bytes, bool]:
    """Return (opcode, extras, value, whether it goes without a key)."""
    kind = random.choices(
        ("store", "key", "extend", "count", "touch", "bare", "observe", "other", "rare"),
        (30, 25, 8, 8, 8, 6, 6, 6, 0.3),
    )[0]
    if kind == "store":
        extras = struct.pack(">II", random.getrandbits(32), _number32(random))
        return random.choice(_STORES), extras, value(random), False
    if kind == "key":
        return random.choice(_KEY_ONLY), b"", b"", False
    if kind == "extend":
        return random.choice(_EXTENDS), b"", value(random), False
    if kind == "count":
        extras = struct.pack(">QQI", random.getrandbits(64), 7, _number32(random))
        return random.choice(_COUNTERS), extras, b"", False
    if kind == "touch":
        return random.choice(_TOUCHES), struct.pack(">I", _number32(random)), b"", False
    if kind == "bare":
        return random.choice(_BARE), b"", b"", True
    if kind == "observe":
        if random.random() < 0.5:
            return 0x91, b"", random.randbytes(8), True
        keys = [(random.randrange(4), random.choice(KEYS)) for _ in range(random.randint(1, 4))]
        return 0x92, b"", codec.observe_value(keys), True
    if kind == "rare":
        return random.choice(_RARE), b"", b"", True
    return random.choice(
        (
            (0x10, b"", b"", random.random() < 0.5),
            (0x1B, struct.pack(">I", 1), b"", True),
            (0x1F, b"", codec.hello_value([random.randrange(0x20) for _ in range(5)]), False),
            (0x21, b"", b"\0user\0password", False),
            (random.randrange(256), b"", value(random), False),
        )
    )


def spoil_header(random: Random, frame: bytes) -> bytes:
    """Change one field of a frame's header."""
    if len(frame) < 24:
        return frame
    fields = list(HEADER.unpack_from(frame))
    place = random.randrange(len(fields))
    limits = (0xFF, 0xFF, 0xFFFF, 0xFF, 0xFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 2**64 - 1)
    near = fields[place] + random.choice((-1, 1, 8, -8))
    some = (0, limits[place], random.randint(0, limits[place]), near, random.randrange(300))
    fields[place] = random.choice(some) & limits[place]
    return HEADER.pack(*fields) + frame[24:]


# --- text ---------------------------------------------------------------------------------------

_WORDS = (b"noreply", b"0", b"-1", b"1", b"18446744073709551615", b"18446744073709551616", b"k1")
_META_FLAGS = (
    b"b c f h k l q s t u v x I L O N P R T C E F M D J 0".replace(b" ", b""),
    (b"", b"0", b"30", b"-1", b"abc", b"S", b"A", b"99999999999999999999"),
)


def text_request(random: Random) -> bytes:
    """Return a valid command, with its data block if it has one."""
    return random.choices(
        (_storage, _retrieval, _short, _meta, _meta_store, _other), (30, 25, 15, 15, 10, 6)
    )[0](random)


def _key(random: Random) -> bytes:
    return random.choice(KEYS[:23])


def _storage(random: Random) -> bytes:
    command = random.choice((b"set", b"set", b"add", b"replace", b"append", b"prepend", b"cas"))
    body = value(random)
    words = [command, _key(random), b"%d" % random.getrandbits(16)]
    words += [b"%d" % random.choice((0, 0, 60, -1, 2_592_001)), b"%d" % len(body)]
    if command == b"cas":
        words.append(b"%d" % random.getrandbits(64))
    if random.random() < 0.2:
        words.append(b"noreply")
    return b" ".join(words) + b"\r\n" + body + b"\r\n"


def _retrieval(random: Random) -> bytes:
    command = random.choice((b"get", b"get", b"gets", b"gat 100", b"gats 0"))
    keys = [_key(random) for _ in range(random.choice((1, 1, 2, 5, 30)))]
    return b" ".join([command, *keys]) + b"\r\n"


def _short(random: Random) -> bytes:
    command = random.choice((b"delete", b"incr", b"decr", b"touch"))
    words = [command, _key(random)]
    if command != b"delete":
        words.append(b"%d" % random.getrandbits(random.choice((3, 31, 64))))
    if random.random() < 0.2:
        words.append(b"noreply")
    return b" ".join(words) + b"\r\n"


def _flags(random: Random) -> list[bytes]:
    letters, tokens = _META_FLAGS
    return [
        bytes([random.choice(letters)]) + random.choice(tokens) for _ in range(random.randint(0, 6))
    ]


def _meta(random: Random) -> bytes:
    command = random.choice((b"mg", b"mg", b"md", b"ma", b"me"))
    return b" ".join([command, _key(random), *_flags(random)]) + b"\r\n"


def _meta_store(random: Random) -> bytes:
    body = value(random)
    words = [b"ms", _key(random), b"%d" % len(body), *_flags(random)]
    return b" ".join(words) + b"\r\n" + body + b"\r\n"


def _other(random: Random) -> bytes:
    commands = (
        b"version",
        b"mn",
        b"stats",
        b"stats reset",
        b"stats nonsense",
        b"verbosity 1",
        b"cache_memlimit 100",
        b"shutdown",
        b"",
        b" ",
        b"get",
    )
    rare = (b"flush_all", b"flush_all 5", b"flush_all noreply", b"quit")
    command = random.choice(rare if random.random() < 0.03 else commands)
    return command + random.choice((b"\r\n", b"\n"))


def spoil_line(random: Random, request: bytes) -> bytes:
    """Change, add, drop or repeat a word of a command's line."""
    line, newline, rest = request.partition(b"\n")
    words = line.split(b" ")
    place = random.randrange(len(words))
    word = random.choice((*_WORDS, random.randbytes(random.randint(0, 5)), b"k" * 300))
    change = random.randrange(4)
    if change == 0:
        words[place] = word
    elif change == 1:
        words.insert(place, word)
    elif change == 2:
        del words[place]
    else:
        words += words[place:] * random.choice((1, 1, 50))
    return b" ".join(words) + newline + rest


# --- either -------------------------------------------------------------------------------------

Request = Callable[[Random], bytes]
Spoil = Callable[[Random, bytes], bytes]


def spoil_bytes(random: Random, request: bytes) -> bytes:
    """Flip, insert, drop or double some bytes anywhere."""
    data = bytearray(request)
    for _ in range(random.choice((1, 1, 2, 8))):
        place = random.randrange(len(data) + 1)
        change = random.randrange(4)
        if change == 0 and place < len(data):
            data[place] ^= 1 << random.randrange(8)
        elif change == 1:
            data[place:place] = random.randbytes(random.randint(1, 4))
        elif change == 2:
            del data[place : place + random.randint(1, 30)]
        else:
            data[place:place] = data[place : place + random.randint(1, 30)]
    return bytes(data)


def spoiled(random: Random, request: bytes, other: bytes, spoil: Spoil) -> bytes:
    """Return a request as it should not be; `other` is what may be spliced into it."""
    change = random.randrange(5)
    if change == 0:
        return request[: random.randint(0, len(request))]
    if change == 1:
        return request[: random.randint(0, len(request))] + other[random.randint(0, len(other)) :]
    if change == 2:
        return spoil_bytes(random, request)
    return spoil(random, request)
