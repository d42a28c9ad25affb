"""Writes data directories as uprmc did before format 3: an independent account of those formats."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import lmdb

from uprmc.model import Item, VBucketHeader

#: Version, lengths of key and value, flags, expiry, CAS, seqno, revision, datatype, life.
HEAD = struct.Struct(">BBIIIQQQBB")


def write_old(
    path: Path, stored: dict[int, tuple[VBucketHeader, Iterable[Item]]], *, format_version: int = 2
) -> None:
    """Make a directory with those vBuckets; a document of the node itself is in it, too."""
    path.mkdir(parents=True)
    with lmdb.open(str(path), max_dbs=4, map_size=1 << 28, sync=False) as environment:
        by_id, by_seq, meta, local = (
            environment.open_db(name) for name in (b"by-id", b"by-seq", b"meta", b"local")
        )
        with environment.begin(write=True) as txn:
            identity = struct.pack(">8sHHQ", b"uprmc\r\n\x00", format_version, 1_024, 0xBEEF)
            txn.put(b"identity", identity, db=meta)
            txn.put(b"=note", b"kept", db=local)
            for number, (header, items) in stored.items():
                prefix = struct.pack(">H", number)
                txn.put(b"vbucket:" + prefix, packed_header(header, format_version), db=meta)
                for item in items:
                    head = packed_head(item)
                    txn.put(prefix + item.key, head, db=by_id)
                    record = head + item.key + (item.value or b"")
                    txn.put(prefix + struct.pack(">Q", item.seqno), record, db=by_seq)


def packed_head(item: Item) -> bytes:
    """Return a head of version 1."""
    length = len(item.value or b"")
    numbers = (item.flags, item.expiry, item.cas, item.seqno, item.rev, item.datatype, item.life)
    return HEAD.pack(1, len(item.key), length, *numbers)


def packed_header(header: VBucketHeader, version: int) -> bytes:
    """Return a header of version 1 or 2."""
    log = b"".join(struct.pack(">QQ", *entry) for entry in header.failover_log)
    snapshot = (header.snapshot.start, header.snapshot.end)
    fixed = struct.pack(
        ">BBHQQQQQ",
        version,
        header.state,
        len(header.failover_log),
        header.high_seqno,
        *snapshot,
        header.purge_seqno,
        header.max_deleted_rev,
    )
    if version > 1:
        fixed += struct.pack(">QQQ", header.term, header.max_cas, header.known_term)
    return fixed + log
