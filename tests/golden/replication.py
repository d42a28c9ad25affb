"""Frames that replicas are kept and operated with, composed by hand from the tables.

The marker of version 2.2 (UPR reference, 2.7) and SEQNO_ACKNOWLEDGED are the field's, the others
ours: `docs/extensions.md`. Header fields stand apart: magic, opcode, key length, extras length,
datatype, vBucket or status, body length, opaque, CAS; then extras, key, value.
"""

from __future__ import annotations

from tests.golden.upr_frames import Vector

VECTORS = [
    Vector(
        "R1q",
        "P to C",
        "marker of version 2.2: 10 to 12, memory and checkpoint, purged up to 7",
        "80 56 0000 01 00 0005 00000035 00001000 0000000000000000 02"
        "000000000000000a 000000000000000c 00000005 000000000000000c"
        "0000000000000000 0000000000000007 0000000000000000",
    ),
    Vector(
        "R2q",
        "C to P",
        "everything up to 12 is on disk",
        "80 61 0000 08 00 0005 00000008 00001000 0000000000000000 000000000000000c",
    ),
    Vector(
        "R3q",
        "any to S",
        "version of 'k', its value if it is at 100 or below",
        "80 e7 0001 08 00 0005 00000009 00000025 0000000000000000 0000000000000064 6b",
    ),
    Vector(
        "R3r",
        "S to any",
        "'1' at 99, revision 2, flags 0xcafe, JSON",
        "81 e7 0000 19 01 0000 0000001a 00000025 0102030405060708"
        "0000000000000063 0000000000000002 0000cafe 00000000 00 31",
    ),
    Vector(
        "R4r",
        "S to any",
        "it expired at 12, revision 3, in January 2024",
        "81 e7 0000 19 00 0000 00000019 00000026 1112131415161718"
        "000000000000000c 0000000000000003 00000000 65a00000 02",
    ),
    Vector(
        "R5q",
        "any to S",
        "vBuckets 5 and 900 follow 10.0.0.1:11210, documents or not; session token 9",
        "80 d7 000e 04 00 0000 00000016 00000027 0000000000000009 00000002"
        "31302e302e302e313a3131323130 0005 0384",
    ),
    Vector(
        "R5r",
        "S to any",
        "they do",
        "81 d7 0000 00 00 0000 00000000 00000027 0000000000000000",
    ),
    Vector(
        "R6q",
        "any to S",
        "take vBuckets 5 and 900 over from 10.0.0.1:11210",
        "80 d8 000e 00 00 0000 00000012 00000028 0000000000000000"
        "31302e302e302e313a3131323130 0005 0384",
    ),
    Vector(
        "R6r",
        "S to any",
        "5 is taken, 900 was interrupted",
        "81 d8 0000 00 00 0000 00000008 00000028 0000000000000000 0005 0000 0384 0002",
    ),
    Vector(
        "R7q",
        "any to S",
        "promote vBuckets 5 and 900",
        "80 d9 0000 00 00 0000 00000004 00000029 0000000000000000 0005 0384",
    ),
    Vector(
        "R7r",
        "S to any",
        "5 goes on as U1 after 100, 900 as U0 after 0",
        "81 d9 0000 00 00 0000 00000024 00000029 0000000000000000"
        "0005 0000a1b2c3d4e5f6 0000000000000064 0384 00001122334455aa 0000000000000000",
    ),
]

BY_NUMBER = {vector.number: vector for vector in VECTORS}
