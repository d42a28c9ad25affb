"""One version of one document as packed bytes: the form in memory, on disk and nearly on the wire.

A record never changes. Tables, write queues, commits, stored entries, streams and warm-up all pass
on the same bytes; `uprmc.model.Item` is the decoded view for code that is not hot.

A **record** is a front of 24 bytes, optional sections, the key, and a tail::

    front   0  1  format version, 2
            1  1  kind: see the bits below
            2  1  datatype
            3  4  expiry; for a tombstone the time of the deletion
            7  1  length of the key
            8  8  revision
           16  8  seqno
           24     16 bytes of origin if the kind says so (where the version was accepted first)
                  the key
    tail       8  CAS
               4  flags
                  the value

All numbers are big-endian. The tail is what a GET of the binary protocol answers behind the first
16 bytes of its header, so an answer is one slice of the record.

A kind's lowest two bits are the `Life`. `ABSENT` marks a document whose value is only on disk: its
tail ends after the flags. The two highest bits are the **age** of the value in memory, a hint for
the pager: 0 in a record as it was made, and on disk, always.
"""

from __future__ import annotations

import struct

RECORD_VERSION = 2

#: Bits of a kind.
LIFE_BITS = 0x03
ABSENT = 0x04
ORIGIN = 0x08
AGE_BITS = 0xC0
#: Ages, from the youngest. A record is made as `UNREAD`; a read makes it `READ`, each sweep of the
#: pager makes it one step older.
READ, READ_BEFORE, UNREAD, COLD = 0x80, 0xC0, 0x00, 0x40

FRONT = struct.Struct(">BBBIBQQ")
assert FRONT.size == 24
FRONT_BYTES = FRONT.size
TAIL = struct.Struct(">QI")
assert TAIL.size == 12
TAIL_BYTES = TAIL.size
ORIGIN_BYTES = 16

#: Where the front has what is asked for alone.
KIND_AT = 1
SEQNO_AT = 16
SEQNO = struct.Struct(">Q")

#: What the record of a resident document begins with that was read, is plain bytes and never
#: expires: nothing has to be looked at before its tail is sent.
PLAIN_AND_READ = struct.pack(">BBBI", RECORD_VERSION, READ, 0, 0)
