"""What a header of an index file says, as bytes.

A header stands at the start of a 4 KiB block: the file's own magic (24: 8 fixed, 16 random, so that
nothing a user stores can pass for one), size of the body (4), CRC-32 of what follows (4), flags
(4), then where the header before this one stands (8), CRC-32 of what was appended between both
(4), and the body, compressed by zlib. Flag 1: what was appended is on disk for sure, since it was
synced before the header was written; without it, it has to be read to be believed.

Source: systems reference c.3.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from uprmc.index.errors import Damaged
from uprmc.index.tree.nodes import Pointer
from uprmc.index.tree.records import pack_pointer, unpack_pointer

__all__ = ["BLOCK", "MAGIC", "VERSION", "Header", "Position", "decode_header", "encode_header"]

#: Size of blocks, in bytes: headers stand at their starts only.
BLOCK = 4096
#: First bytes of each header, before the file's identity.
MAGIC = b"uprmcIX\x01"
#: Of the format; a file of another one is refused.
VERSION = 1

_fixed = struct.Struct(">HHQB")
_position = struct.Struct(">HQQQ")
_log = struct.Struct(">HH")
_purge = struct.Struct(">HQ")
_size = struct.Struct(">I")


class Position(NamedTuple):
    """How far a vBucket is indexed.

    Attributes:
        seqno: of the last change whose rows are in the trees.
        snap_start, snap_end: of the snapshot that it came in.
    """

    seqno: int
    snap_start: int
    snap_end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A state of an index that can be returned to.

    Attributes:
        signature: of the design that the rows were made by.
        num_vbuckets: of the bucket.
        active, passive, cleanup: bitmaps of the vBuckets in these states.
        positions: for each vBucket that is indexed.
        logs: failover logs of the vBuckets, newest entry first: (vb_uuid, seqno).
        purge_seqnos: of the vBuckets, as the source last said.
        epoch: of the vBucket states.
        roots: of the id tree and of each view's tree; ``None`` = empty.
        replica: is a replica index.
        extra: whatever else its owner keeps.
        version: of the format.
        offset, end: where it stands in the file and where it ends, once it was written.
        previous: where the header before it stands; 0 = there is none.
    """

    signature: str = ""
    num_vbuckets: int = 0
    active: int = 0
    passive: int = 0
    cleanup: int = 0
    positions: Mapping[int, Position] = field(default_factory=dict)
    logs: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    purge_seqnos: Mapping[int, int] = field(default_factory=dict)
    epoch: int = 0
    roots: tuple[Pointer | None, ...] = ()
    replica: bool = False
    extra: bytes = b""
    version: int = VERSION
    offset: int = 0
    end: int = 0
    previous: int = 0

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Rows of the id tree and of each view's."""
        return tuple(root.rows if root else 0 for root in self.roots)

    @property
    def data_bytes(self) -> int:
        """Bytes of the file that the trees need; the others are garbage or headers."""
        return sum(root.bytes for root in self.roots if root)


def encode_header(header: Header) -> bytes:
    """Return the body of a header."""
    parts = [
        _fixed.pack(header.version, header.num_vbuckets, header.epoch, header.replica),
        _sized(header.signature.encode()),
        *(_sized(_bitmap(bits)) for bits in (header.active, header.passive, header.cleanup)),
        _table(_position.pack(vb, *where) for vb, where in header.positions.items()),
        _table(_packed_log(vb, log) for vb, log in header.logs.items()),
        _table(_purge.pack(vb, seqno) for vb, seqno in header.purge_seqnos.items()),
        _table(_sized(pack_pointer(root) if root else b"") for root in header.roots),
        _sized(header.extra),
    ]
    return zlib.compress(b"".join(parts), 1)


def _bitmap(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _sized(data: bytes) -> bytes:
    return _size.pack(len(data)) + data


def _table(rows: Iterable[bytes]) -> bytes:
    packed = list(rows)
    return b"".join([_size.pack(len(packed)), *packed])


def _packed_log(vbucket: int, log: tuple[tuple[int, int], ...]) -> bytes:
    numbers = [number for entry in log for number in entry]
    return _log.pack(vbucket, len(log)) + struct.pack(f">{len(numbers)}Q", *numbers)


def decode_header(body: bytes, *, offset: int, end: int, previous: int) -> Header:
    """Return the header of a body whose checksum was right.

    Raises:
        Damaged: it is of another version, or cannot be read nevertheless.
    """
    try:
        return _Reader(zlib.decompress(body)).header(offset, end, previous)
    except (struct.error, zlib.error, ValueError) as error:
        raise Damaged(f"a header cannot be read: {error}") from None


class _Reader:
    """Reads one field after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def header(self, offset: int, end: int, previous: int) -> Header:
        version, num_vbuckets, epoch, replica = self._take(_fixed)
        if version != VERSION:
            raise Damaged(f"the file has format {version}, this program reads {VERSION}")
        return Header(
            version=version,
            num_vbuckets=num_vbuckets,
            epoch=epoch,
            replica=bool(replica),
            signature=self._bytes().decode(),
            active=self._bits(),
            passive=self._bits(),
            cleanup=self._bits(),
            positions=dict(self._position() for _ in range(self._count())),
            logs=dict(self._log() for _ in range(self._count())),
            purge_seqnos=dict(self._purge() for _ in range(self._count())),
            roots=tuple([self._root() for _ in range(self._count())]),
            extra=self._bytes(),
            offset=offset,
            end=end,
            previous=previous,
        )

    def _take(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def _count(self) -> int:
        return self._take(_size)[0]

    def _bytes(self) -> bytes:
        size = self._count()
        self._at += size
        return self._data[self._at - size : self._at]

    def _bits(self) -> int:
        return int.from_bytes(self._bytes(), "little")

    def _position(self) -> tuple[int, Position]:
        vbucket, *where = self._take(_position)
        return vbucket, Position(*where)

    def _purge(self) -> tuple[int, int]:
        vbucket, seqno = self._take(_purge)
        return vbucket, seqno

    def _log(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        vbucket, entries = self._take(_log)
        numbers = self._take(struct.Struct(f">{2 * entries}Q"))
        return vbucket, tuple(zip(numbers[::2], numbers[1::2], strict=True))

    def _root(self) -> Pointer | None:
        packed = self._bytes()
        return unpack_pointer(packed, 0)[0] if packed else None
