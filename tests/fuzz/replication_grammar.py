"""Requests that operate replicas, and what a producer says to a replica, plausible and broken.

Written from ``docs/extensions.md`` and the UPR reference, sections 2 and 5.
"""

from __future__ import annotations

import struct
from random import Random

#: (opcode, extras, key, value)
Parts = tuple[int, bytes, bytes, bytes]

STREAM_REQUEST, FAILOVER_LOG, GET_VERSION = 0x53, 0x54, 0xE7

PLACES = (b"10.0.0.1:11210", b"10.0.0.2:11210", b"node-3:1", b"[::1]:11210")
_NO_PLACES = (b"", b"10.0.0.1", b"h:0", b"h:65536", b"\xff:1", b"h" * 240 + b":1", b"a b:1", b":1")

_NUMBERS = (0, 1, 2, 3, 0, 1, 2, 3, 4, 0xFFFF)
_ANY_NUMBER = (0, 0, 1, 2, 5, 50, 2**48, 2**63 - 1, 2**63, 2**64 - 1)


def any_u64(random: Random) -> int:
    """Return a number that is small, at a limit, or any."""
    return random.choice((*_ANY_NUMBER, random.getrandbits(16), random.getrandbits(64)))


def operating(random: Random) -> Parts:
    """Return REPLICATE, TAKEOVER or FAILOVER."""
    place = random.choice(PLACES if random.random() < 0.8 else _NO_PLACES)
    count = random.choice((0, 1, 1, 1, 2, 4, 60))
    numbers = [random.choice(_NUMBERS if count > 1 else _NUMBERS[:4]) for _ in range(count)]
    value = struct.pack(f">{count}H", *numbers)
    if random.random() < 0.05:
        value += b"\0"
    kind = random.random()
    if kind < 0.5:
        flags = random.choice((0, 0, 2, 2, 2, 1, 3, 4, 2**32 - 1))
        stops = flags == 1 and random.random() < 0.9
        return 0xD7, struct.pack(">I", flags), b"" if stops else place, value
    return (0xD8, b"", place, value) if kind < 0.75 else (0xD9, b"", b"", value)


def get_version(random: Random, key: bytes) -> Parts:
    """Return GET_VERSION."""
    return GET_VERSION, struct.pack(">Q", any_u64(random)), key, b""


def seqno_acknowledged(random: Random) -> Parts:
    """Return SEQNO_ACKNOWLEDGED."""
    return 0x61, struct.pack(">Q", any_u64(random)), b"", b""


def versioned_marker(random: Random) -> Parts:
    """Return a snapshot marker of version 2.2, as like as not one that makes no sense."""
    start, end = sorted(any_u64(random) for _ in range(2))
    if random.random() < 0.2:
        start, end = end, start
    kind, purged = random.randrange(64), random.choice((0, 0, start, any_u64(random)))
    value = struct.pack(">QQIQQQQ", start, end, kind, end, 0, purged, 0)
    extras = random.choice((b"\2", b"\2", b"\2", b"\0", b"\3"))
    return 0x56, extras, b"", value[: random.choice((52, 52, 52, 52, 44, 36, 0))]


def failover_log(random: Random) -> bytes:
    """Return a failover log as a value: mostly one that a server may have."""
    kind = random.random()
    count = random.choice((0, 1, 1, 2, 5, 40, 3_000)) if kind > 0.5 else 1
    seqnos = sorted((any_u64(random) for _ in range(count)), reverse=kind < 0.9)
    entries = [(random.choice((0, 7, random.getrandbits(48))), seqno) for seqno in seqnos]
    log = b"".join(struct.pack(">QQ", *entry) for entry in entries)
    if kind < 0.5:
        return struct.pack(">QQ", random.getrandbits(48) or 1, 0)
    return log[:-3] if kind > 0.97 else log


def version_answer(random: Random) -> tuple[int, bytes, bytes]:
    """Return (status, extras, value) as of an answer to GET_VERSION, with any numbers."""
    kind = random.random()
    if kind < 0.2:
        return 1, random.choice((b"", struct.pack(">Q", any_u64(random)), b"123")), b""
    if kind < 0.3:
        return random.choice((0x07, 0x81, 0x83, 0x86, 0x20, 0xFFFF)), b"", b""
    life = random.choice((0, 0, 0, 1, 2, 3, 255))
    extras = struct.pack(
        ">QQIIB", any_u64(random), any_u64(random), 7, random.getrandbits(32), life
    )
    return 0, extras[: random.choice((25, 25, 25, 25, 24, 0))], random.randbytes(40)


def answer_to_replica(random: Random) -> tuple[int, int, bytes, bytes]:
    """Return (opcode, status, extras, value) of an answer to what whoever fills replicas asks."""
    kind = random.random()
    if kind < 0.4:
        return STREAM_REQUEST, 0, b"", failover_log(random)
    if kind < 0.6:
        value = struct.pack(">Q", any_u64(random))
        return STREAM_REQUEST, 0x23, b"", value[: random.choice((8, 8, 8, 8, 5))]
    if kind < 0.7:
        return STREAM_REQUEST, random.choice((0x07, 0x22, 0x86, 0xFFFF)), b"", b""
    if kind < 0.85:
        return FAILOVER_LOG, random.choice((0, 0, 0, 1)), b"", failover_log(random)
    return GET_VERSION, *version_answer(random)
