"""Where a version was first accepted: brought by *_WITH_META, kept by all that does not change it.

In the compiled form, the core serves these commands as far as nothing could refuse them; it must
come to what the rules come to.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kv.binary_peer import Peer, frame, store
from tests.kv.harness import Rig, drained
from uprmc.model import Item, Life, Origin
from uprmc.record import stored_origin, unpack

SET_META, SETQ_META, ADD_META, DEL_META, GET_VERSION, HELLO = 0xA2, 0xA3, 0xA4, 0xA8, 0xE7, 0x1F
GETL, TOUCH, APPEND, GET, GETK = 0x94, 0x1C, 0x0E, 0x00, 0x0C
OK, EXISTS, INVALID = 0, 2, 4
ORIGINS = 0x5502
IS_EXPIRATION = 0x10
THERE = Origin(0xA1B2C3D4E5F6, 99)


@pytest.fixture
def rig() -> Rig:
    return Rig(engine__vbuckets=1)


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return Peer(rig)


def meta_of(origin: Origin) -> bytes:
    return b"\x01\xe0\x00\x10" + struct.pack(">QQ", *origin)


def with_meta(
    opcode: int,
    rev: int = 9,
    cas: int = 1_000,
    *,
    key: bytes = b"k",
    value: bytes = b"theirs",
    flags: int = 7,
    exptime: int = 0,
    meta: bytes | None = meta_of(THERE),
    options: int | None = None,
) -> bytes:
    extras = struct.pack(">IIQQ", flags, exptime, rev, cas)
    extras += b"" if options is None else struct.pack(">I", options)
    extras += b"" if meta is None else struct.pack(">H", len(meta))
    value = b"" if opcode == DEL_META else value
    return frame(opcode, key, value + (meta or b""), extras)


def said(peer: Peer, request: bytes) -> int:
    """The status of the answer, disk included."""
    peer.session.receive_data(request)
    peer.rig.fetch_all()
    (reply,) = peer.ask()
    return reply.status


def kept(rig: Rig, key: bytes = b"k") -> Item:
    """The version as it is on disk and as a table has it after a restart."""
    rig.flush()
    view = rig.store.view()
    try:
        found = [item for item in view.changes_after(0, 0) if item.key == key]
    finally:
        view.close()
    (item,) = found
    return item


@pytest.mark.parametrize("options", [None, 0])
@pytest.mark.parametrize("opcode", [SET_META, ADD_META])
def test_a_document_keeps_its_origin(
    rig: Rig, peer: Peer, opcode: int, options: int | None
) -> None:
    assert said(peer, with_meta(opcode, options=options)) == OK
    expected = Item(b"k", b"theirs", 7, 0, 1_000, 1, 9, origin=THERE)
    record = rig.bucket.vbuckets[0].table.get(b"k")
    assert record is not None
    assert unpack(record) == kept(rig) == expected


@pytest.mark.parametrize(("options", "life"), [(None, 1), (IS_EXPIRATION, 2)])
def test_a_tombstone_keeps_its_origin(rig: Rig, peer: Peer, options: int | None, life: int) -> None:
    assert said(peer, with_meta(DEL_META, options=options)) == OK
    item = kept(rig)
    assert (item.life, item.value, item.origin) == (Life(life), None, THERE)


def test_a_document_with_an_origin_is_read_as_any_other(rig: Rig, peer: Peer) -> None:
    for number, value in enumerate([b"", b"short", bytes(20_000)]):
        key = b"key-%d" % number
        assert said(peer, with_meta(SET_META, key=key, value=value)) == OK
        for _ in range(2):
            (reply,) = peer.ask(frame(GET, key))
            assert (reply.value, reply.extras, reply.cas) == (value, b"\0\0\0\x07", 1_000)
            (reply,) = peer.ask(frame(GETK, key))
            assert (reply.key, reply.value, reply.cas) == (key, value, 1_000)
        text = rig.text()
        text.receive_data(b"get %b\r\ngets %b\r\n" % (key, key))
        hit = b"VALUE %b 7 %d" % (key, len(value))
        body = b"\r\n%b\r\nEND\r\n" % value
        assert drained(text) == hit + body + hit + b" 1000" + body
    assert kept(rig, b"key-1").origin == THERE, "reading changes nothing"
    rig.bucket.vbuckets[0].check()


def test_a_value_that_went_to_disk_comes_back_with_its_origin(rig: Rig, peer: Peer) -> None:
    peer.say(with_meta(SET_META))
    rig.flush()
    vbucket = rig.bucket.vbuckets[0]
    used = rig.bucket.account.used
    vbucket.eject(b"k")
    vbucket.check()
    (absent,) = vbucket.table.records()
    assert stored_origin(absent) == THERE
    peer.session.receive_data(frame(GET, b"k"))
    rig.fetch_all()
    (reply,) = peer.ask()
    assert reply.value == b"theirs"
    (back,) = vbucket.table.records()
    assert stored_origin(back) == THERE
    assert rig.bucket.account.used == used


@pytest.mark.parametrize(
    "change",
    [
        store(0x01, b"k", b"ours"),
        frame(APPEND, b"k", b"more"),
        frame(TOUCH, b"k", extras=struct.pack(">I", 100)),
        frame(0x04, b"k"),
    ],
    ids=["set", "append", "touch", "delete"],
)
def test_a_change_made_here_is_a_version_of_this_place(rig: Rig, peer: Peer, change: bytes) -> None:
    peer.say(with_meta(SET_META))
    (reply,) = peer.ask(change)
    assert reply.status == OK
    item = kept(rig)
    assert (item.rev, item.origin) == (10, None)


def test_cas_and_swap_knows_the_cas_of_a_version_with_an_origin(peer: Peer) -> None:
    peer.say(with_meta(SET_META))
    (reply,) = peer.ask(store(0x01, b"k", b"ours", cas=999))
    assert reply.status == EXISTS
    (reply,) = peer.ask(store(0x01, b"k", b"ours", cas=1_000))
    assert reply.status == OK


@pytest.mark.parametrize("opcode", [SET_META, DEL_META])
@pytest.mark.parametrize(
    "meta",
    [
        meta_of(Origin(0, 1)),
        meta_of(Origin(1, 0)),
        b"\x01\xe0\x00\x08" + bytes(8),
        b"\x02\xe0\x00\x10" + bytes(16),
        b"\x01\xe0\x00\x11" + bytes(16),
    ],
)
def test_what_is_no_origin_is_refused(rig: Rig, peer: Peer, opcode: int, meta: bytes) -> None:
    assert said(peer, with_meta(opcode, meta=meta)) == INVALID
    assert rig.bucket.vbuckets[0].high_seqno == 0


@pytest.mark.parametrize("meta", [b"", b"\x01\x01\x00\x10" + bytes(16), b"\x01\x02\x00\x01\x00"])
def test_other_extended_metadata_is_accepted_and_left_out(
    rig: Rig, peer: Peer, meta: bytes
) -> None:
    assert said(peer, with_meta(SET_META, meta=meta)) == OK
    assert kept(rig) == Item(b"k", b"theirs", 7, 0, 1_000, 1, 9)


def test_an_origin_may_stand_among_other_entries(rig: Rig, peer: Peer) -> None:
    meta = b"\x01\x02\x00\x01\x00" + meta_of(THERE)[1:] + b"\x01\x00\x01\x05"
    assert said(peer, with_meta(SET_META, meta=meta)) == OK
    assert kept(rig).origin == THERE


def test_the_version_that_comes_back_from_elsewhere_loses(rig: Rig, peer: Peer) -> None:
    peer.put(b"k", b"ours")
    ours = kept(rig)
    uuid = rig.bucket.vbuckets[0].failover_log[0].uuid
    echo = with_meta(
        SET_META, ours.rev, ours.cas, flags=ours.flags, meta=meta_of(Origin(uuid, ours.seqno))
    )
    assert said(peer, echo) == EXISTS
    assert said(peer, with_meta(SET_META, ours.rev, ours.cas, flags=0, meta=None)) == EXISTS


@pytest.mark.parametrize(("life", "other_life"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_both_ends_keep_the_same_of_two_equal_versions(life: int, other_life: int) -> None:
    """Two data centres made versions with equal numbers: the larger origin stays at both."""
    ends = [Rig(engine__vbuckets=1), Rig(engine__vbuckets=1)]
    opcodes = [SET_META, DEL_META]
    lives = [life, other_life]
    origins = [Origin(5, 1), Origin(6, 1)]
    versions = [
        with_meta(opcodes[lives[at]], flags=0, value=b"of %d" % at, meta=meta_of(origins[at]))
        for at in (0, 1)
    ]
    for rig, order in zip(ends, (versions, versions[::-1]), strict=True):
        peer = Peer(rig)
        for version in order:
            said(peer, version)
    ours, theirs = (kept(rig) for rig in ends)
    assert (ours.life, ours.value, ours.origin) == (theirs.life, theirs.value, theirs.origin)
    assert ours.origin == origins[1]


def test_the_newest_version_is_told_with_its_origin_to_those_who_asked(
    rig: Rig, peer: Peer
) -> None:
    peer.say(with_meta(SET_META))
    ask = frame(GET_VERSION, b"k", extras=struct.pack(">Q", 2**64 - 1))
    numbers = struct.pack(">QQIIB", 1, 9, 7, 0, 0)
    (reply,) = peer.ask(ask)
    assert (reply.extras, reply.value) == (numbers, b"theirs")
    (reply,) = peer.ask(frame(HELLO, b"agent", struct.pack(">H", ORIGINS)))
    assert reply.value == struct.pack(">H", ORIGINS)
    (reply,) = peer.ask(ask)
    assert (reply.extras, reply.value) == (numbers + struct.pack(">QQ", *THERE), b"theirs")
    peer.put(b"k", b"ours")
    (reply,) = peer.ask(ask)
    assert len(reply.extras) == len(numbers), "it was accepted here"


small = st.integers(0, 3)
commands = st.lists(
    st.tuples(
        st.sampled_from([SET_META, SETQ_META, DEL_META]),
        st.sampled_from([b"a", b"b"]),
        st.integers(1, 3),
        st.integers(1, 3),
        small,
        st.none() | st.builds(Origin, st.integers(1, 3), st.integers(1, 3)),
    ),
    max_size=20,
)


@pytest.mark.parametrize("rule", ["revision", "timestamp"])
@given(commands=commands)
def test_the_short_way_comes_to_what_the_rules_come_to(
    rule: str, commands: list[tuple[int, bytes, int, int, int, Origin | None]]
) -> None:
    """An option of 0 makes the extras longer: such a frame always goes by the rules."""
    ends = []
    for options in (None, 0):
        rig = Rig(engine__vbuckets=1, engine__conflict_resolution=rule)
        peer, answers = Peer(rig), list[bytes]()
        for opcode, key, rev, cas, flags, origin in commands:
            meta = None if origin is None else meta_of(origin)
            request = with_meta(
                opcode, rev, cas, key=key, flags=flags, meta=meta, options=options,
                value=b"%d %d" % (rev, flags),
            )  # fmt: skip
            peer.session.receive_data(request)
            rig.fetch_all()
            answers.append(drained(peer.session))
        rig.flush()
        view = rig.store.view()
        items = [item._fields() for item in view.changes_after(0, 0)]
        stats = rig.bucket.stats
        ends.append((items, answers, stats.ops_set_meta, stats.ops_set_meta_res_fail))
        view.close()
        rig.bucket.vbuckets[0].check()
    assert ends[0] == ends[1]


@pytest.mark.parametrize("options", [None, 0])
def test_a_cas_that_is_far_from_the_clock_is_counted(
    rig: Rig, peer: Peer, options: int | None
) -> None:
    now = int(rig.clock.now())
    for number, seconds in enumerate([-6, -4, 0, 4, 6, 7]):
        cas = (now + seconds) * 1_000_000_000
        request = with_meta(SET_META, cas=cas, key=b"k%d" % number, options=options)
        assert said(peer, request) == OK
    stats = rig.bucket.stats
    assert (stats.ops_set_meta, stats.cas_ahead, stats.cas_behind) == (6, 2, 1)
