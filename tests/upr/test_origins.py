"""Origins on streams: replicas have them, in a chain too, and a rollback puts them back."""

from __future__ import annotations

import struct

import pytest

from tests.upr.link_rig import Pair, replica_rig
from tests.upr.peer import ACTIVE, DELETION, MUTATION, REPLICA, Rig, upr_rig
from tests.upr.test_link_rollback import everything, same
from uprmc.client.decoder import Decoder
from uprmc.engine.with_meta import Demand, accept_version
from uprmc.model import FailoverEntry, Item, Life, Origin, SnapshotRange
from uprmc.protocol.upr import Marker
from uprmc.record import pack
from uprmc.remote.batch import Batch
from uprmc.remote.stream import StreamState

THERE = Origin(0xA1B2, 7)


def bring(rig: Rig, key: bytes, rev: int = 5, life: int = Life.LIVE, seqno: int = 7) -> None:
    """Accept a version from another cluster."""
    value = None if life else b"from there"
    item = Item(key, value, 0, 0, 77, 0, rev, 0, life, origin=Origin(THERE.uuid, seqno))
    accept_version(rig.bucket, rig.bucket.vbuckets[0], pack(item), Demand(skip_conflicts=True))


def filled() -> Rig:
    rig = upr_rig()
    vbucket = rig.bucket.vbuckets[0]
    vbucket.store(b"own", b"v", 0, 0)
    bring(rig, b"document")
    bring(rig, b"gone", life=Life.DELETED, seqno=8)
    bring(rig, b"expired", life=Life.EXPIRED, seqno=9)
    vbucket.store(b"own too", b"v", 0, 0)
    return rig


def origins(rig: Rig) -> dict[bytes, Origin | None]:
    return {fields[0]: fields[-1] for fields in everything(rig)}  # type: ignore[misc]


@pytest.mark.parametrize("cut", [0, 13])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_replica_has_the_origins_of_its_source(flushed: bool, cut: int) -> None:
    source, target = filled(), replica_rig()
    if flushed:
        source.flush()
    pair = Pair(source, target, cut=cut)
    pair.run()
    pair.link.follow([0])
    pair.run()
    same(source, target)
    assert origins(target) == {
        b"own": None,
        b"document": Origin(THERE.uuid, 7),
        b"gone": Origin(THERE.uuid, 8),
        b"expired": Origin(THERE.uuid, 9),
        b"own too": None,
    }


def test_a_replica_of_a_replica_has_them_too() -> None:
    source, middle, last = filled(), replica_rig(), replica_rig()
    for one, other in ((source, middle), (middle, last)):
        pair = Pair(one, other)
        pair.run()
        pair.link.follow([0])
        pair.run()
    same(source, last)


def test_a_rollback_puts_versions_back_with_their_origins() -> None:
    source, lost = filled(), replica_rig()
    pair = Pair(source, lost)
    pair.run()
    pair.link.follow([0])
    pair.run()
    pair.link.connection_lost()
    lost.bucket.set_state(0, ACTIVE)
    for key in (b"document", b"gone", b"own"):
        lost.bucket.vbuckets[0].store(key, b"lost", 0, 0)
    lost.flush()
    lost.bucket.set_state(0, REPLICA)
    source.bucket.vbuckets[0].known_term = lost.bucket.vbuckets[0].term
    source.bucket.vbuckets[0].promote()
    again = Pair(source, lost)
    again.run()
    again.link.follow([0])
    again.run()
    same(source, lost)
    assert origins(lost)[b"document"] == Origin(THERE.uuid, 7)


def test_a_batch_tells_the_origin_of_every_item() -> None:
    def frame(opcode: int, seqno: int, extras: bytes, value: bytes) -> bytes:
        body = extras + b"k%d" % seqno + value
        head = struct.pack(">BBHBBHIIQ", 0x80, opcode, 2, len(extras), 0, 0, len(body), 9, 77)
        return head + body

    def mutation(seqno: int, value: bytes, meta: bytes = b"") -> bytes:
        extras = struct.pack(">QQIIIHB", seqno, 1, 0, 0, 0, len(meta), 0)
        return frame(MUTATION, seqno, extras, value + meta)

    meta = b"\x01\xe0\x00\x10" + struct.pack(">QQ", *THERE)
    frames = [
        mutation(1, b"old branch"),
        mutation(2, b"new branch"),
        mutation(3, b"from there", meta),
        mutation(4, b"", meta),
        frame(DELETION, 5, struct.pack(">QQIB", 5, 1, 99, 0), meta),
        frame(DELETION, 6, struct.pack(">QQH", 6, 1, 20), meta),
        frame(DELETION, 7, struct.pack(">QQIB", 7, 1, 99, 0), b""),
    ]
    decoder = Decoder("node:1")
    stream = StreamState(0, 9, 0, SnapshotRange(0, 0))
    stream.accept((FailoverEntry(20, 1), FailoverEntry(10, 0)))
    decoder.streams[9] = stream
    stream.announce(Marker(1, 7, 1, 0))
    (batch,) = decoder.feed(b"".join(frames))
    assert isinstance(batch, Batch)
    assert batch.origins == [
        Origin(10, 1),
        Origin(20, 2),
        THERE,
        THERE,
        THERE,
        THERE,
        Origin(20, 7),
    ]
    assert batch.values[:4] == [b"old branch", b"new branch", b"from there", b""]
