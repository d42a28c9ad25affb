"""Packets of the binary protocol, byte for byte, each with the frame that it is.

The UPR reference has V26 and V27 (section 9); the others are composed by hand from the tables of
the memcached reference, sections 2.1 to 2.8, field by field: magic, opcode, key length, extras
length, datatype, vBucket or status, body length, opaque, CAS, then extras, key, value.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.protocol.header import Frame, RequestFrame, ResponseFrame


class Golden(NamedTuple):
    """One packet: what it shows, its bytes in hex, spaces ignored, and what it means."""

    name: str
    hex: str
    frame: Frame

    @property
    def packet(self) -> bytes:
        return bytes.fromhex(self.hex)


FRAMES = [
    Golden(
        "get",
        "80 00 0005 00 00 0000 00000005 00000000 0000000000000000 48656c6c6f",
        RequestFrame(0x00, key=b"Hello"),
    ),
    Golden(
        "get hit",
        "81 00 0000 04 00 0000 00000009 00000000 0000000000000001 deadbeef 576f726c64",
        ResponseFrame(0x00, extras=b"\xde\xad\xbe\xef", value=b"World", cas=1),
    ),
    Golden(
        "getk hit",
        "81 0c 0005 04 00 0000 0000000e 00000007 0000000000000001 deadbeef 48656c6c6f 576f726c64",
        ResponseFrame(
            0x0C, key=b"Hello", extras=b"\xde\xad\xbe\xef", value=b"World", opaque=7, cas=1
        ),
    ),
    Golden(
        "get miss",
        "81 00 0000 00 00 0001 00000009 00000000 0000000000000000 4e6f7420666f756e64",
        ResponseFrame(0x00, 0x0001, value=b"Not found"),
    ),
    Golden(
        "getk miss carries the key and no text",
        "81 0c 0001 00 00 0001 00000001 0000002a 0000000000000000 6b",
        ResponseFrame(0x0C, 0x0001, key=b"k", opaque=42),
    ),
    Golden(
        "set with flags, expiration and cas",
        "80 01 0001 08 00 0000 0000000b 01020304 000000000000000c 0000cafe 00000e10 6b 3432",
        RequestFrame(
            0x01,
            key=b"k",
            extras=b"\x00\x00\xca\xfe\x00\x00\x0e\x10",
            value=b"42",
            opaque=0x01020304,
            cas=12,
        ),
    ),
    Golden(
        "set stored",
        "81 01 0000 00 00 0000 00000000 01020304 000000000000000d",
        ResponseFrame(0x01, opaque=0x01020304, cas=13),
    ),
    Golden(
        "setq with another cas answers with the quiet opcode",
        "81 11 0000 00 00 0002 00000014 00000000 0000000000000000"
        "4461746120657869737473 20 666f72 20 6b65792e",
        ResponseFrame(0x11, 0x0002, value=b"Data exists for key."),
    ),
    Golden(
        "increment by 1 from 5, do not create",
        "80 05 0001 14 00 0000 00000015 00000000 0000000000000000"
        "0000000000000001 0000000000000005 ffffffff 6e",
        RequestFrame(0x05, key=b"n", extras=bytes([*[0] * 7, 1, *[0] * 7, 5, *[255] * 4])),
    ),
    Golden(
        "increment's number",
        "81 05 0000 00 00 0000 00000008 00000000 0000000000000009 0000000000000006",
        ResponseFrame(0x05, value=bytes([*[0] * 7, 6]), cas=9),
    ),
    Golden(
        "delete in vBucket 1023",
        "80 04 0001 00 00 03ff 00000001 00000000 0000000000000000 6b",
        RequestFrame(0x04, key=b"k", vbucket=1023),
    ),
    Golden(
        "flush in ten seconds",
        "80 08 0000 04 00 0000 00000004 00000000 0000000000000000 0000000a",
        RequestFrame(0x08, extras=b"\x00\x00\x00\x0a"),
    ),
    Golden(
        "noop",
        "80 0a 0000 00 00 0000 00000000 ffffffff 0000000000000000",
        RequestFrame(0x0A, opaque=0xFFFFFFFF),
    ),
    Golden(
        "version",
        "81 0b 0000 00 00 0000 00000006 00000000 0000000000000000 312e362e3138",
        ResponseFrame(0x0B, value=b"1.6.18"),
    ),
    Golden(
        "append has no extras",
        "80 0e 0005 00 00 0000 00000006 00000000 0000000000000000 48656c6c6f 21",
        RequestFrame(0x0E, key=b"Hello", value=b"!"),
    ),
    Golden(
        "one statistic",
        "81 10 0003 00 00 0000 00000007 00000000 0000000000000000 706964 33303738",
        ResponseFrame(0x10, key=b"pid", value=b"3078"),
    ),
    Golden(
        "end of statistics",
        "81 10 0000 00 00 0000 00000000 00000000 0000000000000000",
        ResponseFrame(0x10),
    ),
    Golden(
        "touch",
        "80 1c 0001 04 00 0000 00000005 00000000 0000000000000000 00000e10 6b",
        RequestFrame(0x1C, key=b"k", extras=b"\x00\x00\x0e\x10"),
    ),
    Golden(
        "hello for mutation seqno and xerror",
        "80 1f 0003 00 00 0000 00000007 00000000 0000000000000000 617070 00040007",
        RequestFrame(0x1F, key=b"app", value=b"\x00\x04\x00\x07"),
    ),
    Golden(
        "getl for 15 seconds",
        "80 94 0001 04 00 0005 00000005 00000000 0000000000000000 0000000f 6b",
        RequestFrame(0x94, key=b"k", extras=b"\x00\x00\x00\x0f", vbucket=5),
    ),
    Golden(
        "unlock",
        "80 95 0001 00 00 0005 00000001 00000000 0123456789abcdef 6b",
        RequestFrame(0x95, key=b"k", vbucket=5, cas=0x0123456789ABCDEF),
    ),
    Golden(
        "V26q observe_seqno",
        "8091000000000005000000080000001e000000000000000000001122334455aa",
        RequestFrame(0x91, value=bytes.fromhex("00001122334455aa"), vbucket=5, opaque=0x1E),
    ),
    Golden(
        "V26r observe_seqno after a failover",
        "81910000000000000000002b0000001e00000000000000000100050000a1b2c3d4e5f6000000000000006e"
        "000000000000007000001122334455aa0000000000000064",
        ResponseFrame(
            0x91,
            value=bytes.fromhex(
                "01 0005 0000a1b2c3d4e5f6 000000000000006e 0000000000000070"
                "00001122334455aa 0000000000000064"
            ),
            opaque=0x1E,
        ),
    ),
    Golden(
        "V27q observe",
        "8092000000000000000000050000001f0000000000000000000500016b",
        RequestFrame(0x92, value=bytes.fromhex("0005 0001 6b"), opaque=0x1F),
    ),
    Golden(
        "V27r observe: persisted",
        "81920000000000000000000e0000001f0000000000000000000500016b010000000000000099",
        ResponseFrame(0x92, value=bytes.fromhex("0005 0001 6b 01 0000000000000099"), opaque=0x1F),
    ),
]
