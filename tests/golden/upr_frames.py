"""The test vectors of the UPR reference, section 9, byte for byte.

Each was composed by hand there; most were read or written alike by real peers of 2014 to 2022.
``q`` is a request (0x80), ``r`` a response (0x81); names are the reference's. C is a consumer, P a
producer, M a manager, S any server. `tests/protocol/test_upr.py` says what they mean.
"""

from __future__ import annotations

from typing import NamedTuple


class Vector(NamedTuple):
    """One frame: its number, who sends it, what it is, its bytes in hex, spaces ignored."""

    number: str
    direction: str
    what: str
    hex: str

    @property
    def packet(self) -> bytes:
        return bytes.fromhex(self.hex)


VECTORS = [
    Vector(
        "V1q",
        "C to P",
        "open producer 'idx:1'",
        "80 50 0005 08 00 0000 0000000d 00000011 000000000000000000000000000000016964783a31",
    ),
    Vector(
        "V1r",
        "P to C",
        "open ok",
        "81 50 0000 00 00 0000 00000000 00000011 0000000000000000",
    ),
    Vector(
        "V2q",
        "M to C",
        "open consumer 'repl'",
        "80 50 0004 08 00 0000 0000000c 00000012 000000000000000000000000000000007265706c",
    ),
    Vector(
        "V2r",
        "C to M",
        "open ok",
        "81 50 0000 00 00 0000 00000000 00000012 0000000000000000",
    ),
    Vector(
        "V3q",
        "C to P",
        "control connection_buffer_size=1024",
        "80 5e 0016 00 00 0000 0000001a 00000013 0000000000000000"
        "636f6e6e656374696f6e5f6275666665725f73697a6531303234",
    ),
    Vector(
        "V3r",
        "P to C",
        "control ok",
        "81 5e 0000 00 00 0000 00000000 00000013 0000000000000000",
    ),
    Vector(
        "V4q",
        "C to P",
        "get failover log vb 5",
        "80 54 0000 00 00 0005 00000000 00000014 0000000000000000",
    ),
    Vector(
        "V4r",
        "P to C",
        "failover log, two entries newest first",
        "81 54 0000 00 00 0000 00000020 00000014 0000000000000000"
        "0000a1b2c3d4e5f6000000000000006400001122334455aa0000000000000000",
    ),
    Vector(
        "V5q",
        "C to P",
        "stream request vb 5 start 10 end max",
        "80 53 0000 30 00 0005 00000030 00001000 0000000000000000"
        "0000000000000000000000000000000affffffffffffffff0000a1b2c3d4e5f6000000000000000a"
        "000000000000000a",
    ),
    Vector(
        "V5r",
        "P to C",
        "stream request ok",
        "81 53 0000 00 00 0000 00000020 00001000 0000000000000000"
        "0000a1b2c3d4e5f6000000000000006400001122334455aa0000000000000000",
    ),
    Vector(
        "V6q",
        "C to P",
        "stream request vb 5 start 150 of old branch, snapshot 120..150",
        "80 53 0000 30 00 0005 00000030 00001001 0000000000000000"
        "00000000000000000000000000000096ffffffffffffffff00001122334455aa0000000000000078"
        "0000000000000096",
    ),
    Vector(
        "V6r",
        "P to C",
        "rollback to 100",
        "81 53 0000 00 00 0023 00000008 00001001 00000000000000000000000000000064",
    ),
    Vector(
        "V7q",
        "C to P",
        "stream request start > end",
        "80 53 0000 30 00 0005 00000030 00001002 0000000000000000"
        "0000000000000000000000000000000900000000000000030000a1b2c3d4e5f60000000000000009"
        "0000000000000009",
    ),
    Vector(
        "V7r",
        "P to C",
        "ERANGE",
        "81 53 0000 00 00 0022 00000000 00001002 0000000000000000",
    ),
    Vector(
        "V8q",
        "P to C",
        "snapshot marker 10..12 memory|checkpoint",
        "80 56 0000 14 00 0005 00000014 00001000 0000000000000000"
        "000000000000000a000000000000000c00000005",
    ),
    Vector(
        "V9q",
        "P to C",
        "mutation seq 11 rev 2 flags 0xcafe exp 0",
        "80 57 0005 1f 01 0005 0000002b 00001000 0102030405060708"
        "000000000000000b00000000000000020000cafe000000000000000000000068656c6c6f7b226122"
        "3a317d",
    ),
    Vector(
        "V10q",
        "P to C",
        "deletion seq 12 rev 3",
        "80 58 0003 12 00 0005 00000015 00001000 1112131415161718"
        "000000000000000c00000000000000030000627965",
    ),
    Vector(
        "V11q",
        "P to C",
        "expiration seq 13 rev 4, 3.0 form",
        "80 59 0003 12 00 0005 00000015 00001000 2122232425262728"
        "000000000000000d0000000000000004000074746c",
    ),
    Vector(
        "V12q",
        "P to C",
        "expiration seq 13 rev 4, today, delete time",
        "80 59 0003 14 00 0005 00000017 00001000 2122232425262728"
        "000000000000000d000000000000000465a0000074746c",
    ),
    Vector(
        "V13q",
        "P to C",
        "deletion v2 seq 12 rev 3 with delete time",
        "80 58 0003 15 00 0005 00000018 00001000 1112131415161718"
        "000000000000000c000000000000000365a0000000627965",
    ),
    Vector(
        "V14q",
        "P to C",
        "stream end, state changed",
        "80 55 0000 04 00 0005 00000004 00001000 000000000000000000000002",
    ),
    Vector(
        "V15q",
        "P to C",
        "noop",
        "80 5c 0000 00 00 0000 00000000 00000077 0000000000000000",
    ),
    Vector(
        "V15r",
        "C to P",
        "noop response",
        "81 5c 0000 00 00 0000 00000000 00000077 0000000000000000",
    ),
    Vector(
        "V16q",
        "C to P",
        "buffer ack 4096",
        "80 5d 0000 04 00 0000 00000004 00000015 000000000000000000001000",
    ),
    Vector(
        "V17q",
        "M to C",
        "add stream vb 5 takeover",
        "80 51 0000 04 00 0005 00000004 00000016 000000000000000000000001",
    ),
    Vector(
        "V17r",
        "C to M",
        "add stream ok, stream opaque 3",
        "81 51 0000 04 00 0000 00000004 00000016 000000000000000000000003",
    ),
    Vector(
        "V18q",
        "C to P",
        "close stream vb 5",
        "80 52 0000 00 00 0005 00000000 00000017 0000000000000000",
    ),
    Vector(
        "V18r",
        "P to C",
        "close stream ok",
        "81 52 0000 00 00 0000 00000000 00000017 0000000000000000",
    ),
    Vector(
        "V19q",
        "P to C",
        "set vbucket state vb 5 pending (value 3)",
        "80 5b 0000 01 00 0005 00000001 00001000 000000000000000003",
    ),
    Vector(
        "V19r",
        "C to P",
        "set vbucket state ok",
        "81 5b 0000 00 00 0000 00000000 00001000 0000000000000000",
    ),
    Vector(
        "V20q",
        "C to P",
        "get failover log vb 900 not here",
        "80 54 0000 00 00 0384 00000000 00000018 0000000000000000",
    ),
    Vector(
        "V20r",
        "P to C",
        "not my vbucket",
        "81 54 0000 00 00 0007 00000000 00000018 0000000000000000",
    ),
    Vector(
        "V21q",
        "any to S",
        "set_vbucket vb 5 replica",
        "80 3d 0000 04 00 0005 00000004 00000019 000000000000000000000002",
    ),
    Vector(
        "V21r",
        "S to any",
        "ok",
        "81 3d 0000 00 00 0000 00000000 00000019 0000000000000000",
    ),
    Vector(
        "V22q",
        "any to S",
        "get_vbucket vb 5",
        "80 3e 0000 00 00 0005 00000000 0000001a 0000000000000000",
    ),
    Vector(
        "V22r",
        "S to any",
        "replica",
        "81 3e 0000 00 00 0000 00000004 0000001a 000000000000000000000002",
    ),
    Vector(
        "V23q",
        "any to S",
        "get_all_vb_seqnos active only",
        "80 48 0000 04 00 0000 00000004 0000001b 000000000000000000000001",
    ),
    Vector(
        "V23r",
        "S to any",
        "vb0=21554 vb5=12",
        "81 48 0000 00 00 0000 00000014 0000001b 0000000000000000"
        "000000000000000054320005000000000000000c",
    ),
    Vector(
        "V24q",
        "any to S",
        "set_with_meta 'k'='v' rev 9 cas 0x99 flags 7 exp 0",
        "80 a2 0001 18 00 0005 0000001a 0000001c 0000000000000000"
        "0000000700000000000000000000000900000000000000996b76",
    ),
    Vector(
        "V24r",
        "S to any",
        "ok, cas echoed",
        "81 a2 0000 00 00 0000 00000000 0000001c 0000000000000099",
    ),
    Vector(
        "V25q",
        "any to S",
        "get_meta 'k'",
        "80 a0 0001 00 00 0005 00000001 0000001d 00000000000000006b",
    ),
    Vector(
        "V25r",
        "S to any",
        "live, flags 7, exp 0, rev 9, cas 0x99",
        "81 a0 0000 14 00 0000 00000014 0000001d 0000000000000099"
        "0000000000000007000000000000000000000009",
    ),
    Vector(
        "V26q",
        "any to S",
        "observe_seqno vb 5 uuid U0",
        "80 91 0000 00 00 0005 00000008 0000001e 000000000000000000001122334455aa",
    ),
    Vector(
        "V26r",
        "S to any",
        "format 1 (failed over): new uuid, persisted 110, current 112, old uuid, last seqno of old "
        "branch 100",
        "81 91 0000 00 00 0000 0000002b 0000001e 0000000000000000"
        "0100050000a1b2c3d4e5f6000000000000006e000000000000007000001122334455aa0000000000"
        "000064",
    ),
    Vector(
        "V27q",
        "any to S",
        "observe 'k' in vb 5",
        "80 92 0000 00 00 0000 00000005 0000001f 0000000000000000000500016b",
    ),
    Vector(
        "V27r",
        "S to any",
        "persisted, cas 0x99",
        "81 92 0000 00 00 0000 0000000e 0000001f 0000000000000000000500016b010000000000000099",
    ),
    Vector(
        "V28q",
        "any to S",
        "compact_db vb 5 purge before seq 100",
        "80 b3 0000 18 00 0005 00000018 00000020 0000000000000000"
        "000000000000000000000000000000640000000000000000",
    ),
    Vector(
        "V28r",
        "S to any",
        "ok",
        "81 b3 0000 00 00 0000 00000000 00000020 0000000000000000",
    ),
    Vector(
        "V29q",
        "C to P",
        "first-form stream request (40-byte extras, high_seqno)",
        "80 53 0000 28 00 0005 00000028 00001003 0000000000000000"
        "0000000000000000000000000000000affffffffffffffff0000a1b2c3d4e5f60000000000000064",
    ),
    Vector(
        "V30q",
        "P to C",
        "first-form snapshot marker, no extras",
        "80 56 0000 00 00 0005 00000000 00001003 0000000000000000",
    ),
]

BY_NUMBER = {vector.number: vector for vector in VECTORS}
