"""The test vectors of the TAP reference, section 12, byte for byte.

They were composed or captured there, and read alike by real peers of 2011 to 2014: spymemcached,
pump_tap, gomemcached. Vector 23 is three frames of one program. Header fields stand apart, as in
`upr_frames`; what follows is extras, section, key, value. `tests/protocol/test_tap.py` says what
they mean.
"""

from __future__ import annotations

from tests.golden.upr_frames import Vector

VECTORS = [
    Vector(
        "1",
        "client",
        "CONNECT 'node1': everything, acknowledgements, byte order",
        "80 40 0005 04 00 0000 00000011 00000000 0000000000000000 "
        "000001116e6f6465310000000000000000",
    ),
    Vector(
        "2",
        "client",
        "CONNECT 'backup_1': no backfill, vBuckets 3 and 5, checkpoint 9 of 3, closed ones only",
        "80 40 0008 04 00 0000 00000027 00000000 0000000000000000 "
        "000001d56261636b75705f31ffffffffffffffff000200030005000100030000"
        "00000000000901",
    ),
    Vector(
        "3",
        "client",
        "CONNECT 'mv_3': takeover of vBucket 3, no checkpoint pairs",
        "80 40 0004 04 00 0000 0000000c 00000000 0000000000000000 0000005c6d765f3300010003",
    ),
    Vector(
        "4",
        "producer",
        "MUTATION 42: k1=v1, cas, revision 7, nru 2, flags 0xdeadbeef, answer, byte order",
        "80 41 0002 10 00 0003 0000001d 0000002a 0102030405060708 "
        "00090005ff000000deadbeef000000000000000000000007026b317631",
    ),
    Vector(
        "5",
        "producer",
        "MUTATION 43: the same, expires, old byte order",
        "80 41 0002 10 00 0003 0000001d 0000002b 0102030405060708 "
        "00090000ff000000efbeadde6553f1000000000000000007026b317631",
    ),
    Vector(
        "6",
        "producer",
        "MUTATION 44: the same without its value, byte order",
        "80 41 0002 10 00 0003 0000001b 0000002c 0102030405060708 "
        "00090006ff000000deadbeef000000000000000000000007026b31",
    ),
    Vector(
        "7",
        "producer",
        "DELETE 45: k1, revision 8, answer",
        "80 42 0002 08 00 0003 00000012 0000002d 0000000000000000 "
        "00080001ff00000000000000000000086b31",
    ),
    Vector(
        "8",
        "producer",
        "FLUSH 46, answer",
        "80 43 0000 08 00 0000 00000008 0000002e 0000000000000000 00000001ff000000",
    ),
    Vector(
        "9",
        "producer",
        "OPAQUE 1: auto nack, answer",
        "80 44 0000 08 00 0000 0000000c 00000001 0000000000000000 00040001ff00000000000000",
    ),
    Vector(
        "10",
        "producer",
        "OPAQUE 5: initial stream of vBucket 3, answer",
        "80 44 0000 08 00 0003 0000000c 00000005 0000000000000000 00040001ff00000000000001",
    ),
    Vector(
        "11",
        "producer",
        "OPAQUE 47: end of the backfill of vBucket 3, answer",
        "80 44 0000 08 00 0003 0000000c 0000002f 0000000000000000 00040001ff00000000000008",
    ),
    Vector(
        "12",
        "producer",
        "VBUCKET_SET 4: vBucket 3 is pending, answer",
        "80 45 0000 08 00 0003 0000000c 00000004 0000000000000000 00040001ff00000000000003",
    ),
    Vector(
        "13",
        "producer",
        "VBUCKET_SET 49: vBucket 3 is active, answer",
        "80 45 0000 08 00 0003 0000000c 00000031 0000000000000000 00040001ff00000000000001",
    ),
    Vector(
        "14",
        "producer",
        "CHECKPOINT_START 50: id 10 of vBucket 3, highest deleted revision 5, answer",
        "80 46 0010 10 00 0003 00000030 00000032 0000000000000000 "
        "00080001ff00000000000000000000000000000000000005636865636b706f69"
        "6e745f7374617274000000000000000a",
    ),
    Vector(
        "15",
        "producer",
        "CHECKPOINT_END 51: id 10 of vBucket 3, answer",
        "80 47 000e 10 00 0003 00000026 00000033 0000000000000000 "
        "00000001ff0000000000000000000000636865636b706f696e745f656e640000"
        "00000000000a",
    ),
    Vector(
        "16",
        "producer",
        "NOOP",
        "80 0a 0000 00 00 0000 00000000 00000000 0000000000000000",
    ),
    Vector(
        "17",
        "client",
        "acknowledgement of 42",
        "81 41 0000 00 00 0000 00000000 0000002a 0000000000000000",
    ),
    Vector(
        "18",
        "client",
        "temporary failure of 42",
        "81 41 0000 00 00 0086 00000011 0000002a 0000000000000000 "
        "54656d706f72617279206661696c757265",
    ),
    Vector(
        "19",
        "producer",
        "CONNECT is refused",
        "81 40 0000 00 00 0083 0000000d 00000000 0000000000000000 4e6f7420737570706f72746564",
    ),
    Vector(
        "20",
        "client",
        "DEREGISTER_TAP_CLIENT 'backup_1'",
        "80 9e 0008 00 00 0000 00000008 00000009 0000000000000000 6261636b75705f31",
    ),
    Vector(
        "21",
        "client",
        "CHANGE_VB_FILTER 'node1': vBuckets 3 and 5, nothing closed",
        "80 b0 0005 00 00 0000 0000001b 0000000a 0000000000000000 "
        "6e6f64653100020003000000000000000000050000000000000000",
    ),
    Vector(
        "22",
        "client",
        "spymemcached acknowledges an OPAQUE with a key of 36 bytes",
        "81 44 0024 00 00 0000 00000024 00000001 0000000000000000 "
        "62393565316230652d343337362d343361362d383034372d3262653665666238"
        "36393965",
    ),
    Vector(
        "23a",
        "client",
        "vbucketmigrator -A -N replica1 -b 0",
        "80 40 0008 04 00 0000 00000010 fecafeca 0000000000000000 000000147265706c6963613100010000",
    ),
    Vector(
        "23b",
        "client",
        "vbucketmigrator -A -t -N mv_0 -b 0",
        "80 40 0004 04 00 0000 0000000c fecafeca 0000000000000000 0000001c6d765f3000010000",
    ),
    Vector(
        "23c",
        "client",
        "vbucketmigrator -A -r -N reg1 -b 0",
        "80 40 0004 04 00 0000 0000000c fecafeca 0000000000000000 000000d47265673100010000",
    ),
    Vector(
        "24",
        "producer",
        "pump_tap's sink pushes legacy1=from-master, a section of 8 bytes",
        "80 41 0007 10 00 0000 0000002a 00000001 0000000000000000 "
        "00080004ff000000010203040000000000000000000000076c65676163793166"
        "726f6d2d6d6173746572",
    ),
]

BY_NUMBER = {vector.number: vector for vector in VECTORS}
