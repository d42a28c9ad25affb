"""Requests of UPR, of its extensions and of those who look after vBuckets, plausible and broken.

Written from the references' tables, like everything in `grammar`: UPR reference, sections 2, 6, 7.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random

from tests.codec.frames import RESPONSE, frame
from tests.fuzz import replication_grammar as replicas
from tests.sim import codec

#: (opcode, extras, key, value)
Parts = tuple[int, bytes, bytes, bytes]

_KEYS = [b"k%d" % number for number in range(20)] + [b"n"]
_NAMES = (b"idx:1", b"repl", b"n" * 200, b"n" * 250, b"\xff\x00")
_FLAGS = (0, 1, 1, 1, 1, 2, 0x21, 0x29, 0x40, 0x80000000)
_STREAM_FLAGS = (0, 0, 0, 1, 2, 4, 0x10, 0x20, 0x40, 0x80, 0xFFFFFFFF)
_SWITCHES = (
    b"enable_noop",
    b"set_noop_interval",
    b"set_priority",
    b"connection_buffer_size",
    b"stream_buffer_size",
    b"supports_cursor_dropping",
    b"send_stream_end_on_client_close_stream",
    b"enable_expiry_opcode",
    b"enable_stream_id",
    b"backfill_order",
    b"v7_dcp_status_codes",
    b"max_marker_version",
    b"uprmc_persisted",
    b"uprmc_versions",
    b"uprmc_barrier",
    b"uprmc_rounds",
    b"uprmc_snapshot_end",
    b"uprmc_leases",
    b"uprmc_vbucket_facts",
    b"uprmc_nothing",
)
_SETTINGS = (b"true", b"true", b"true", b"false", b"0", b"1024", b"1e3", b"-1", b"nan", b"high")
#: Nothing that takes the memory away: a well-behaved peer must be served beside this.
_PARAMETERS = (b"exp_pager_stime", b"max_txn_size", b"queue_age_cap", b"min_data_age", b"nothing")


def _u64(random: Random) -> int:
    return random.choice((0, 0, 1, 2, 5, 50, random.getrandbits(16), 2**48, 2**64 - 1))


def _extras(layout: str, *numbers: int) -> bytes:
    return struct.pack(">" + layout, *numbers)


def _seqnos(random: Random) -> list[int]:
    """Return start, end, uuid, snapshot start, snapshot end; half of them fit together."""
    start = random.choice((0, 0, 0, 1, 10, 100, 2**64 - 1))
    uuid = random.choice((0, random.getrandbits(48)))
    if random.random() < 0.7:
        end = random.choice((2**64 - 1, 2**64 - 1, start, start + 5 & 2**64 - 1))
        return [start, end, uuid, start, start]
    return [start, _u64(random), uuid, _u64(random), _u64(random)]


# --- UPR ----------------------------------------------------------------------------------------


def _open(random: Random) -> Parts:
    return 0x50, _extras("II", 0, random.choice(_FLAGS)), random.choice(_NAMES), b""


def _stream(random: Random) -> Parts:
    start, end, uuid, low, high = _seqnos(random)
    numbers = random.choice(_STREAM_FLAGS), 0, start, end, uuid
    if random.random() < 0.1:
        return 0x53, _extras("IIQQQQ", *numbers, low), b"", b""
    return 0x53, _extras("IIQQQQQ", *numbers, low, high), b"", _options(random)


def _options(random: Random) -> bytes:
    """Return the value of a stream request: mostly none, else JSON, right or wrong."""
    kind = random.random()
    if kind < 0.6:
        return b""
    if kind < 0.7:
        return random.choice((b"{", b"[]", b"null", b"[" * 5_000, b"\xff\xfe", b'{"sid":1}'))
    document: dict[str, object] = {}
    if random.random() < 0.7:
        document["known_versions"] = [
            {"id": f"{random.getrandbits(48):016x}", "seq": _u64(random)}
            for _ in range(random.choice((0, 1, 3, 30)))
        ]
    if random.random() < 0.3:
        document["log"] = random.choice(("full", "current", 5, None))
    if random.random() < 0.3:
        lease = random.choice((1, random.getrandbits(64)))
        document["lease"] = random.choice((f"{lease:016x}", lease))
    return json.dumps(document).encode()


def _control(random: Random) -> Parts:
    name, setting = random.choice(_SWITCHES), random.choice(_SETTINGS)
    if name == b"max_marker_version":
        setting = random.choice((b"2.2", b"2.2", b"2.0", b"1.0", b"3", b"true", b""))
    if name.startswith(b"uprmc") and random.random() < 0.7:
        setting = b"true"
    return 0x5E, b"", name, setting


def _to_producer(random: Random) -> Parts:
    """Return what a producer hears beside that."""
    return random.choice(
        (
            (0x52, b"", b"", b""),
            (0x54, b"", b"", b""),
            (0x5C, b"", b"", b""),
            (0x5D, _extras("I", random.choice((0, 44, 1_000, 2**32 - 1))), b"", b""),
            (0x5D, _extras("I", random.choice((44, 128, 100_000))), b"", b""),
            replicas.seqno_acknowledged(random),
            (0xE8, b"", random.choice((b"c", b"cookie", random.randbytes(8), b"c" * 129)), b""),
            (0xE8, b"", random.randbytes(random.choice((1, 8, 128))), b""),
        )
    )


def _to_consumer(random: Random) -> Parts:
    """Return what only a consumer should hear: a producer may hang up."""
    seqnos = _u64(random), _u64(random)
    key = random.choice(_KEYS)
    return random.choice(
        (
            (0x51, _extras("I", random.choice(_STREAM_FLAGS)), b"", b""),
            (0x55, _extras("I", random.randrange(10)), b"", b""),
            (0x56, _extras("QQI", *seqnos, random.randrange(64)), b"", b""),
            (0x56, _extras("QQI", 0, 2**63, 1), b"", b""),
            replicas.versioned_marker(random),
            (0x57, _extras("QQIIIHB", *seqnos, 7, 0, 0, random.choice((0, 5)), 0), key, b"value"),
            (0x58, _extras("QQH", *seqnos, 0), key, b""),
            (0x58, _extras("QQIB", *seqnos, 1, 0), key, b""),
            (0x59, _extras("QQI", *seqnos, 1), key, b""),
            (0x5A, b"", b"", b""),
            (0x5B, _extras("B", random.randrange(6)), b"", b""),
            (0xE9, _extras("II", 1, 1), key, b""),
            (0xEA, _extras("QQI", 1, 2, 3), b"", b""),
            (0xEB, _extras("III", 1, 2, 3), b"", b""),
            (0xEC, _extras("QI", 1, 2), b"", b""),
        )
    )


def _leases(random: Random) -> Parts:
    lease = random.choice((0, 1, 2, random.getrandbits(64)))
    numbers = [random.choice((0, 1, 2, 3, 3, 900)) for _ in range(random.choice((0, 0, 1, 4, 50)))]
    lifetime = random.choice((0, 1, 60, 2**32 - 1))
    return random.choice(
        (
            (0xE4, _extras("I", lifetime), b"", _extras("H" * len(numbers), *numbers)),
            (0xE5, _extras("QI", lease, lifetime), b"", b""),
            (0xE6, _extras("Q", lease), b"", b""),
        )
    )


# --- vBuckets, metadata -------------------------------------------------------------------------


def _vbuckets(random: Random) -> Parts:
    state = random.choice((1, 1, 1, 2, 3, 4, 4, 0, 5))
    return random.choice(
        (
            (0x3D, _extras("I", state), b"", b""),
            (0x3D, b"", b"", _extras("I", state)),
            (0x3D, _extras("B", state), b"", random.choice((b"", b"{}", b"{"))),
            (0x3E, b"", random.choice((b"", b"1", b"x")), b""),
            (0x3F, b"", b"", random.choice((b"", b"async=0", b"async=1"))),
            (0x48, b"", b"", b""),
            (0x48, _extras("I", random.randrange(6)), b"", b""),
            (0x48, _extras("II", 0, random.randrange(9)), b"", b""),
            (0x96, b"", b"", b""),
            (0xB3, _extras("QQB7x", _u64(random), _u64(random), random.randrange(2)), b"", b""),
            (0xB7, _extras("Q", _u64(random)), b"", b""),
        )
    )


def _node(random: Random) -> Parts:
    key = random.choice(_KEYS)
    group, name = random.randrange(7), random.choice(_PARAMETERS)
    return random.choice(
        (
            (0x80, b"", b"", b""),
            (0x81, b"", b"", b""),
            (0x82, _extras("I", group), name, random.choice((b"1", b"true", b"-5", b"x" * 600))),
            (0x83, b"", key, b""),
            (0x89, b"", b"default", b""),
            (0x93, b"", key, b""),
            (0xAD, b"", b"", b""),
            (0xAE, b"", b"", b""),
            (0xB4, b"", b"", random.choice((b'{"rev":1}', b"{", random.randbytes(30)))),
            (0xB5, b"", b"", b""),
            (0xB6, b"", b"", b""),
            (0xB8, random.choice((b"", _extras("I", 5), _extras("I", 2**32 - 1))), key, b""),
            (0xF4, _extras("Q", random.choice((0, 1))), b"", b""),
            (0xF5, b"", b"", b""),
        )
    )


def _metadata(random: Random) -> Parts:
    key = random.choice(_KEYS)
    if random.random() < 0.15:
        return replicas.get_version(random, key)
    if random.random() < 0.3:
        version = random.choice((b"", b"\1", b"\2", b"\3"))
        return random.choice((0xA0, 0xA1)), version, key, b""
    if random.random() < 0.1:
        return 0xB2, _extras("III", random.randrange(5), 7, random.choice((0, 60))), key, b"value"
    opcode = random.choice((0xA2, 0xA2, 0xA3, 0xA4, 0xA5, 0xA8, 0xA8, 0xA9))
    extras = _extras("IIQQ", 7, random.choice((0, 60, 2**32 - 1)), _u64(random), _u64(random))
    value = b"" if opcode >= 0xA8 else random.randbytes(random.randint(0, 60))
    if random.random() < 0.4:
        extras += _extras("I", random.choice((0, 1, 2, 4, 8, 0x0C, 0x1F, 2**32 - 1)))
    if random.random() < 0.3:
        nmeta = random.choice((b"", b"\1\1\0\1x", b"\1\1\xff\xffx", b"\2", random.randbytes(9)))
        length = random.choice((len(nmeta), len(nmeta), 5, 0xFFFF))
        extras, value = extras + _extras("H", length), value + nmeta
    return opcode, extras, key, value


# --- all of them --------------------------------------------------------------------------------

_MANAGEMENT: tuple[Callable[[Random], Parts], ...] = (
    *(_vbuckets, _node, _metadata, _metadata),
    replicas.operating,
)
_UPR: tuple[Callable[[Random], Parts], ...] = (_stream, _stream, _control, _to_producer, _leases)

#: A second OPEN, or what goes the other way: mostly the end of a connection.
_OUT_OF_PLACE: tuple[Callable[[Random], Parts], ...] = (_open, _to_consumer, _to_consumer)


def management_request(random: Random) -> bytes:
    """Return a request about vBuckets, the node or metadata."""
    return _frame(random, random.choice(_MANAGEMENT)(random))


def upr_request(random: Random) -> bytes:
    """Return what a UPR peer sends, with now and then the answer to something that we may ask."""
    if random.random() < 0.06:
        return _answer(random)
    kinds = _OUT_OF_PLACE if random.random() < 0.02 else _UPR
    return _frame(random, random.choice(kinds)(random))


def upr_greeting(random: Random) -> bytes:
    """Return what a UPR connection begins with, nearly always well-formed."""
    return _frame(random, _open(random))


def filling_request(random: Random) -> bytes:
    """Return what comes on a connection that fills replicas: streams, and answers to requests."""
    kind = random.random()
    if kind < 0.4:
        return _answer(random)
    if kind < 0.5:
        return _frame(random, (0x51, _extras("I", random.choice((0, 0, 1))), b"", b""))
    if kind < 0.65:
        return _frame(random, (0x3D, _extras("I", 2), b"", b""))
    return _frame(random, (_to_consumer if kind < 0.95 else _vbuckets)(random))


def filling_greeting(random: Random) -> bytes:
    """Return what a connection begins with that fills replicas."""
    name = random.choice(_NAMES)
    return _frame(random, (0x50, _extras("II", 0, 0), name, b""))


def _frame(random: Random, parts: Parts) -> bytes:
    opcode, extras, key, value = parts
    if random.random() < 0.1:
        extras, key, value = _misshapen(random, extras, key, value)
    return codec.frame(
        opcode,
        key=key,
        extras=extras,
        value=value,
        vbucket=random.choice((0, 1, 2, 3, 0, 1, 2, 3, 4, 0xFFFF)),
        opaque=random.choice((1, 2, random.getrandbits(32))),
        cas=random.choice((0, 0, 0, 1, random.getrandbits(64))),
    )


def _misshapen(
    random: Random, extras: bytes, key: bytes, value: bytes
) -> tuple[bytes, bytes, bytes]:
    """Return a body of another shape, in a frame whose lengths agree."""
    return random.choice(
        (
            (extras[:-1], key, value),
            (extras + b"\0", key, value),
            (extras, b"" if key else b"k1", value),
            (extras, b"y" * 251, value),
            (extras, key, b"" if value else random.randbytes(9)),
            (random.randbytes(random.choice((4, 8, 18, 20, 31, 40, 48))), key, value),
        )
    )


def _answer(random: Random) -> bytes:
    opcode, status = random.choice((0x56, 0x57, 0x5B, 0x5C, 0x5C)), random.choice((0, 0, 1, 0x22))
    extras = value = b""
    if random.random() < 0.5:
        opcode, status, extras, value = replicas.answer_to_replica(random)
    opaque = random.choice((0, 1, 2, 3, random.getrandbits(32)))
    return frame(opcode, b"", value, extras, vbucket=status, opaque=opaque, cas=1, magic=RESPONSE)
