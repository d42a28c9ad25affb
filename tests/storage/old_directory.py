"""Writes data directories as uprmc did before format 3: an independent account of those formats."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import lmdb

from uprmc.model import Item, VBucketHeader
from uprmc.record import pack

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


def write_4(path: Path, stored: dict[int, tuple[VBucketHeader, Iterable[Item]]]) -> None:
    """Make a directory of format 4: segments of up to seven records, every tenth of them stale."""
    path.mkdir(parents=True)
    with lmdb.open(str(path), max_dbs=5, map_size=1 << 28, sync=False) as environment:
        by_id, by_seq, meta, local, stale = (
            environment.open_db(name) for name in (b"by-id", b"by-seq", b"meta", b"local", b"stale")
        )
        with environment.begin(write=True) as txn:
            identity = struct.pack(">8sHHQB", b"uprmc\r\n\x00", 4, 1_024, 0xBEEF, 0)
            txn.put(b"identity", identity, db=meta)
            txn.put(b"extent", bytes(8), db=meta)
            txn.put(b"=note", b"kept", db=local)
            for number, (header, items) in stored.items():
                prefix = struct.pack(">H", number)
                txn.put(b"vbucket:" + prefix, packed_header(header, 2), db=meta)
                records: list[bytes] = []
                for at, item in enumerate(items):
                    record, seqno = pack(item), struct.pack(">Q", item.seqno)
                    alone = b"\1" if len(record) > 2_040 else b""
                    txn.put(prefix + item.key, seqno + alone, db=by_id)
                    if at % 10 == 9 and not alone:
                        former = struct.pack(">Q", item.seqno - 1)
                        txn.put(prefix + former, b"", db=stale)
                        records.append(record[:16] + former + record[24:])
                    if alone and records:
                        _put_4(txn, by_seq, prefix, records)
                    records.append(record)
                    if alone or len(records) > 6:
                        _put_4(txn, by_seq, prefix, records)
                if records:
                    _put_4(txn, by_seq, prefix, records)


def _put_4(
    txn: lmdb.Transaction[bytes], by_seq: lmdb._Database, prefix: bytes, records: list[bytes]
) -> None:
    lengths = [len(record) for record in records]
    head = struct.pack(f">H{len(records)}I", len(records), *lengths)
    txn.put(prefix + records[-1][16:24], head + b"".join(records), db=by_seq)
    records.clear()


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
