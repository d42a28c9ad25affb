"""What TAP clients and TAP masters send, plausible and broken; with the simulator's own codec.

A client's answers are made without a look at what it was sent: numbers of messages are small and
rise by one or two, so that many of them fit.

Source: TAP reference, sections 2 to 5, 7 and 13.
"""

from __future__ import annotations

import struct
from random import Random

from tests.sim import codec
from tests.sim import tap_codec as tap

_KEYS = [b"k%d" % number for number in range(20)] + [b"n", b"x" * 250]
_NAMES = (b"", b"", b"node1", b"backup_1", b"n" * 250, b"\xff\x00")
_PUSHED = tuple(range(0x41, 0x48))

#: Flags that are asked for; every bit that there is, and some that there are not.
_FLAGS = (
    *(tap.SUPPORT_ACK, tap.SUPPORT_ACK, tap.SUPPORT_ACK | tap.CHECKPOINT, 0, 0x54, 0x1D4, 0x1D5),
    *(tap.DUMP, tap.DUMP | tap.SUPPORT_ACK, 0x112, tap.LIST | tap.SUPPORT_ACK, 0x90, 0xF0, 0x70),
    *(tap.LIST | tap.TAKEOVER | tap.SUPPORT_ACK, tap.BACKFILL, tap.BACKFILL | tap.SUPPORT_ACK),
    *(tap.CHECKPOINT, tap.CHECKPOINT | tap.BACKFILL, tap.CHECKPOINT | tap.BACKFILL),
)
_IMPOSSIBLE = (0x200, 0xFFFFFFFF, tap.DUMP | tap.LIST | tap.TAKEOVER, tap.TAKEOVER, 0x80000010)


def _number(random: Random) -> int:
    return random.choice((random.randrange(12), random.randrange(80), random.getrandbits(32)))


def _u64(random: Random) -> int:
    return random.choice((0, 1, 2, 7, random.getrandbits(16), 2**63, 2**64 - 1))


# --- a client -----------------------------------------------------------------------------------


def greeting(random: Random) -> bytes:
    """Return some writes, and the connect: most often one that is granted."""
    writes = b"".join(_write(random) for _ in range(random.choice((0, 3, 20))))
    return writes + connect(random)


def _write(random: Random) -> bytes:
    key, number = random.choice(_KEYS), random.randrange(4)
    if random.random() < 0.2:
        return codec.frame(codec.DELETE, key=key, vbucket=number)
    value = random.randbytes(random.choice((0, 10, 300)))
    extras = codec.store_extras(random.getrandbits(32), random.choice((0, 0, 100)))
    return codec.frame(codec.SET, key=key, extras=extras, value=value, vbucket=number)


def connect(random: Random) -> bytes:
    """Return a TAP_CONNECT; one of six cannot be granted."""
    flags = random.choice(_FLAGS)
    if random.random() < 0.16:
        return _bad_connect(random, flags)
    return tap.connect(
        random.choice(_NAMES),
        flags,
        age=random.choice((0, 1_700_000_000, tap.FUTURE, 0xFFFFFFFF)),
        vbuckets=random.choice(((), (0,), (1, 2), (3, 3), (2, 900), tuple(range(4)))),
        closed=random.choice((None, {}, {1: 5}, {number: _u64(random) for number in range(4)})),
        closed_only=random.choice((None, None, True, False)),
    )


def _bad_connect(random: Random, flags: int) -> bytes:
    name = random.choice(_NAMES)
    extras = flags.to_bytes(4, "big")
    listed = (tap.LIST | tap.SUPPORT_ACK).to_bytes(4, "big")
    pairs = (tap.CHECKPOINT | tap.SUPPORT_ACK).to_bytes(4, "big")
    return random.choice(
        (
            tap.connect(name, random.choice(_IMPOSSIBLE), vbuckets=(1,)),
            tap.connect(b"n" * random.choice((251, 300, 60_000)), flags),
            tap.frame(tap.CONNECT, extras=listed, key=name, value=b"\0\5\0\1"),
            tap.frame(tap.CONNECT, extras=listed, key=name, value=b"\0"),
            tap.frame(tap.CONNECT, extras=pairs, key=name, value=b"\0\2" + bytes(13)),
            tap.frame(tap.CONNECT, extras=b"\0\0\0\1", key=name, value=bytes(7)),
            tap.frame(tap.CONNECT, extras=extras[:3], key=name),
            tap.frame(tap.CONNECT, extras=extras + b"\0", key=name),
            tap.frame(tap.CONNECT, key=name, value=random.randbytes(9)),
            tap.frame(tap.CONNECT, extras=extras, key=name, value=random.randbytes(70)),
        )
    )


def client_request(random: Random) -> bytes:
    """Return what a client sends while it is streamed to."""
    kind = random.random()
    if kind < 0.75:
        return _answer(random)
    if kind < 0.8:
        return tap.answer(tap.NOOP, 0, key=random.choice((b"", b"k")))
    if kind < 0.82:
        return connect(random)
    return _command(random)


def _answer(random: Random) -> bytes:
    """Return an answer to something, or to nothing, with what some clients put into it."""
    opcode = random.choice((*_PUSHED, tap.OPAQUE, tap.MUTATION))
    if random.random() < 0.03:
        opcode = random.randrange(256)
    status = random.choices((0, 0x85, 0x86, 1, 7, 0xFFFF), (100, 4, 6, 0.3, 0.3, 0.3))[0]
    body = random.choice((b"", b"", b"", b"Temporary failure", random.randbytes(36), bytes(5_000)))
    if random.random() < 0.02:
        body = bytes(70_000)
    return tap.frame(
        opcode,
        extras=random.choice((b"", b"", b"", b"\0" * 8)),
        key=random.choice((b"", random.randbytes(36))),
        value=body,
        vbucket=status,
        opaque=_number(random),
        magic=0x81,
    )


def _command(random: Random) -> bytes:
    name = random.choice(_NAMES)
    pairs = b"".join(struct.pack(">HQ", random.randrange(5), _u64(random)) for _ in range(2))
    few = random.choice((b"", b"\0\0", b"\0\2" + pairs, b"\0\3" + pairs, b"\0\1" + pairs))
    return random.choice(
        (
            codec.frame(0x0A),
            codec.frame(0x0B),
            codec.frame(0x10, key=random.choice((b"", b"tap", b"tapagg _", b"tap-vbtakeover 1 x"))),
            codec.frame(0x1F, key=b"fuzz", value=codec.hello_value([3, 4])),
            codec.frame(0x20),
            codec.frame(0x00, key=b"k1"),
            codec.frame(0x9E, key=name),
            codec.frame(0x9F),
            codec.frame(0xB0, key=name, value=few),
            codec.frame(random.randrange(256), key=name, value=few),
        )
    )


# --- a master -----------------------------------------------------------------------------------


def push(random: Random) -> bytes:
    """Return what a master sends, with now and then an ordinary command in between."""
    kind = random.random()
    if kind < 0.1:
        state = random.choice((1, 2, 2, 3, 4))
        number = random.randrange(4)
        return codec.frame(0x3D, extras=state.to_bytes(4, "big"), vbucket=number)
    if kind < 0.2:
        return _command(random)
    if kind < 0.25:
        return _write(random)
    if kind < 0.32:
        return _misshapen(random)
    return _message(random)


def _common(random: Random) -> dict[str, int]:
    return {
        "vbucket": random.choice((0, 1, 2, 3, 3, 4, 0xFFFF)),
        "flags": random.choice((0, tap.ACK, tap.ACK | tap.NETWORK_ORDER, 0xFFFF)),
    }


def _message(random: Random) -> bytes:
    common, opcode, sequence = _common(random), random.choice(_PUSHED), _number(random)
    key = random.choice(_KEYS)
    cas = random.choice((0, 1, 1_700_000_000_000_000_000, _u64(random)))
    if opcode in (tap.MUTATION, tap.DELETE):
        rev = random.choice((b"", tap.number64(7), tap.number64(_u64(random)) + b"\2", b"\0" * 3))
        if opcode == tap.DELETE:
            return tap.pushed(opcode, sequence, specific=rev, key=key, cas=cas, **common)
        value = random.randbytes(random.choice((0, 10, 300, 4_097)))
        item = (random.getrandbits(32), random.choice((0, 5, 1_800_000_000)))
        return tap.pushed(
            opcode, sequence, specific=rev, key=key, value=value, cas=cas, item=item, **common
        )
    if opcode == tap.OPAQUE:
        command = random.choice((0, 1, 1, 2, 2, 8, 3, 4, 5, 6, 7, 9, 2**32 - 1))
        return tap.pushed(opcode, sequence, specific=tap.number32(command), **common)
    if opcode == tap.VBUCKET_SET:
        state = random.choices((1, 2, 3, 4, 0, 9), (2, 6, 4, 1, 0.3, 0.3))[0]
        return tap.pushed(opcode, sequence, specific=tap.number32(state), **common)
    if opcode == tap.FLUSH:
        if random.random() < 0.8:
            return _message(random)
        return tap.pushed(opcode, sequence, **common)
    return _checkpoint(random, opcode, sequence, common)


def _checkpoint(random: Random, opcode: int, sequence: int, common: dict[str, int]) -> bytes:
    number = random.choice((0, 1, 1, 1, 2, 3, _u64(random)))
    start = opcode == tap.START
    return tap.pushed(
        opcode,
        sequence,
        specific=tap.number64(_u64(random)) if start else b"",
        key=b"checkpoint_start" if start else b"checkpoint_end",
        value=tap.number64(number),
        item=(0, 0),
        **common,
    )


def _misshapen(random: Random) -> bytes:
    """Return a message whose lengths or sections are not those of its opcode."""
    opcode, key = random.choice(_PUSHED), random.choice((b"", b"k1", b"y" * 251, b"y" * 300))
    declared = random.choice((0, 1, 3, 5, 7, 8, 9, 10, 200, 0xFFFF))
    ttl = random.choice((0, 255))
    extras = struct.pack(">HHB3s", declared, random.choice((0, 1, 6)), ttl, random.randbytes(3))
    if random.random() < 0.5:
        extras += bytes(8)
    if random.random() < 0.4:
        extras = extras[: random.choice((0, 4, 7, 12, 15))] + bytes(random.choice((0, 1, 17)))
    return tap.frame(
        opcode,
        extras=extras,
        section=random.randbytes(random.choice((0, declared % 20, 8, 9))),
        key=key,
        value=random.randbytes(random.choice((0, 1, 7, 8, 20))),
        vbucket=random.randrange(4),
        opaque=_number(random),
    )


def push_greeting(random: Random) -> bytes:
    """Return what a master begins with."""
    frames = [codec.frame(0x3D, extras=tap.number32(2), vbucket=number) for number in range(4)]
    frames.append(tap.pushed(tap.OPAQUE, 1, specific=tap.number32(0), flags=tap.ACK))
    if random.random() < 0.6:
        frames.append(tap.pushed(tap.OPAQUE, 2, specific=tap.number32(2), flags=tap.ACK))
    if random.random() < 0.6:
        frames.append(tap.pushed(tap.OPAQUE, 3, specific=tap.number32(1), flags=tap.ACK, vbucket=1))
    return b"".join(frames)
