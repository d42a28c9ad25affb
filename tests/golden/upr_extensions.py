"""Frames of what this server adds to UPR, composed by hand from the tables, field by field.

Barriers, rounds and snapshot ends: UPR reference, section 7. Leases: `docs/extensions.md`. Header
fields stand apart: magic, opcode, key length, extras length, datatype, vBucket or status, body
length, opaque, CAS; then extras, key, value.
"""

from __future__ import annotations

from tests.golden.upr_frames import Vector

VECTORS = [
    Vector(
        "X1q",
        "C to P",
        "barrier 'c1'",
        "80 e8 0002 00 00 0000 00000002 00000021 0000000000000000 6331",
    ),
    Vector(
        "X1r",
        "P to C",
        "barrier taken in cycle 7 while vBucket 5 has its turn",
        "81 e8 0000 08 00 0000 00000008 00000021 0000000000000000 00000007 0005 0000",
    ),
    Vector(
        "X2q",
        "P to C",
        "barrier 'c1' reached in cycle 8 after 300 frames",
        "80 e9 0002 08 00 0000 0000000a 00000021 0000000000000000 00000008 0000012c 6331",
    ),
    Vector(
        "X3q",
        "P to C",
        "the turn of vBucket 5 in cycle 8: beyond 10, up to 12",
        "80 ea 0000 14 00 0005 00000014 00001000 0000000000000000"
        "000000000000000a 000000000000000c 00000008",
    ),
    Vector(
        "X4q",
        "P to C",
        "round 8 complete: 3 visited, 1021 skipped",
        "80 eb 0000 0c 00 0000 0000000c 00000011 0000000000000000 00000008 00000003 000003fd",
    ),
    Vector(
        "X5q",
        "P to C",
        "the snapshot of vBucket 5 ends at 12 with 2 items",
        "80 ec 0000 0c 00 0005 0000000c 00001000 0000000000000000 000000000000000c 00000002",
    ),
    Vector(
        "X6q",
        "any to S",
        "lease vBuckets 5 and 900 for 600 s",
        "80 e4 0000 04 00 0000 00000008 00000022 0000000000000000 00000258 0005 0384",
    ),
    Vector(
        "X6s",
        "any to S",
        "lease vBucket 5 for 600 s, if 2 leases stay free",
        "80 e4 0000 08 00 0000 0000000a 00000022 0000000000000000 00000258 00000002 0005",
    ),
    Vector(
        "X6r",
        "S to any",
        "leased for 300 s: vBucket 5 of U1 at 100, purged up to 7",
        "81 e4 0000 0c 00 0000 00000026 00000022 0000000000000000 1122334455667788 0000012c"
        "0005 0000a1b2c3d4e5f6 0000000000000064 0000000000000007",
    ),
    Vector(
        "X7q",
        "any to S",
        "renew the lease for 600 s",
        "80 e5 0000 0c 00 0000 0000000c 00000023 0000000000000000 1122334455667788 00000258",
    ),
    Vector(
        "X7r",
        "S to any",
        "renewed for 600 s",
        "81 e5 0000 0c 00 0000 0000000c 00000023 0000000000000000 1122334455667788 00000258",
    ),
    Vector(
        "X8q",
        "any to S",
        "release the lease",
        "80 e6 0000 08 00 0000 00000008 00000024 0000000000000000 1122334455667788",
    ),
    Vector(
        "X8r",
        "S to any",
        "released",
        "81 e6 0000 00 00 0000 00000000 00000024 0000000000000000",
    ),
]

BY_NUMBER = {vector.number: vector for vector in VECTORS}

#: The value of a stream request as the reference writes it (section 7).
KNOWN_VERSIONS = (
    b'{"known_versions":[{"id":"0000a1b2c3d4e5f6","seq":100},{"id":"00001122334455aa","seq":0}],'
    b'"log":"full"}'
)
