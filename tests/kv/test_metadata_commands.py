"""Metadata on the wire: asked for, brought along, and told after a change."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kv.binary_peer import Peer, Reply, answer, error, frame, store, u64
from tests.kv.harness import NOON, Rig, drained
from uprmc.engine.vbucket import VBucket
from uprmc.model import Life

GET, SET, DELETE, HELLO, NOOP, GETL, FLUSH = 0x00, 0x01, 0x04, 0x1F, 0x0A, 0x94, 0x08
GET_META, GETQ_META = 0xA0, 0xA1
SET_META, SETQ_META, ADD_META, ADDQ_META, DEL_META, DELQ_META = 0xA2, 0xA3, 0xA4, 0xA5, 0xA8, 0xA9
RETURN_META = 0xB2

OK, NOT_FOUND, EXISTS, TOO_LARGE, INVALID, LOCKED, TMPFAIL = 0, 1, 2, 3, 4, 9, 0x86
SKIP_2014, FORCE, REGENERATE, SKIP, IS_EXPIRATION = 1, 2, 4, 8, 0x10
SEQNOS, XERROR, JSON = 0x04, 0x07, 0x0B
ALL_ONES = 2**64 - 1


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return Peer(rig)


def with_meta(
    opcode: int,
    rev: int,
    cas: int = 1000,
    *,
    key: bytes = b"k",
    value: bytes = b"theirs",
    flags: int = 0,
    exptime: int = 0,
    options: int | None = None,
    nmeta: int | None = None,
    header_cas: int = 0,
) -> bytes:
    """A frame of the *_WITH_META family; options and nmeta make the extras longer."""
    extras = struct.pack(">IIQQ", flags, exptime, rev, cas)
    extras += b"" if options is None else struct.pack(">I", options)
    extras += b"" if nmeta is None else struct.pack(">H", nmeta)
    if opcode in (DEL_META, DELQ_META) and nmeta is None:
        value = b""
    return frame(opcode, key, value, extras, cas=header_cas)


def said(peer: Peer, request: bytes) -> Reply:
    (reply,) = peer.ask(request)
    return reply


def status(peer: Peer, request: bytes) -> int:
    """The status of the answer, disk included."""
    peer.session.receive_data(request)
    peer.rig.fetch_all()
    (reply,) = peer.ask()
    return reply.status


def hello(peer: Peer, *features: int) -> None:
    peer.say(frame(HELLO, b"agent", struct.pack(f">{len(features)}H", *features)))


def meta(deleted: int, flags: int, exptime: int, rev: int) -> bytes:
    return struct.pack(">IIIQ", deleted, flags, exptime, rev)


def vbucket(rig: Rig, key: bytes = b"k") -> VBucket:
    return rig.bucket.of_key(key)


# --- GET_META -----------------------------------------------------------------------------------


@pytest.mark.acceptance("D43")
def test_the_metadata_of_a_document_is_the_one_it_has(peer: Peer) -> None:
    cas = peer.put(b"k", b"value", flags=7, expiration=100)
    cas = peer.put(b"k", b"value", flags=8, expiration=100)
    expected = answer(GET_META, extras=meta(0, 8, int(NOON) + 100, 2), cas=cas)
    assert peer.say(frame(GET_META, b"k")) == expected
    assert peer.say(frame(GET_META, b"k", extras=b"\1")) == expected
    quiet = answer(GETQ_META, extras=meta(0, 8, int(NOON) + 100, 2), cas=cas)
    assert peer.say(frame(GETQ_META, b"k")) == quiet


def test_version_2_tells_the_datatype_too(rig: Rig) -> None:
    peer = Peer(rig)
    hello(peer, JSON)
    request = bytearray(store(SET, b"k", b"{}"))
    request[5] = 1
    cas = said(peer, bytes(request)).cas
    plain = Peer(rig)
    expected = answer(GET_META, extras=meta(0, 0, 0, 1) + b"\1", cas=cas)
    assert plain.say(frame(GET_META, b"k", extras=b"\2")) == expected


@pytest.mark.parametrize("version", [b"\0", b"\3", b"\xff", b"\0\0\0\2"])
def test_another_version_is_refused_and_the_conversation_goes_on(
    peer: Peer, version: bytes
) -> None:
    peer.put(b"k", b"value")
    assert peer.say(frame(GET_META, b"k", extras=version), frame(NOOP)) == (
        error(GET_META, INVALID) + answer(NOOP)
    )


def test_a_miss_is_told_and_the_quiet_form_says_nothing(peer: Peer) -> None:
    assert peer.say(frame(GET_META, b"k")) == error(GET_META, NOT_FOUND)
    assert peer.say(frame(GETQ_META, b"k"), frame(NOOP)) == answer(NOOP)
    assert peer.rig.bucket.fetcher.waiting == 0, "where nothing was deleted no disk is asked"
    assert peer.rig.bucket.stats.ops_get_meta == 2


@pytest.mark.acceptance("D19")
def test_a_deletion_that_is_queued_shows_as_deleted_and_the_key_can_be_added_again(
    rig: Rig,
) -> None:
    peer = Peer(rig)
    hello(peer, SEQNOS)
    peer.put(b"k", b"value", flags=7)
    rig.flush()
    gone = said(peer, frame(DELETE, b"k"))
    assert struct.unpack(">QQ", gone.extras)[1] == 2
    shown = said(peer, frame(GET_META, b"k"))
    assert (shown.status, shown.extras) == (OK, meta(1, 7, int(NOON), 2))
    tombstone = vbucket(rig).table.find(b"k")
    assert tombstone is not None
    assert (tombstone.seqno, tombstone.cas) == (2, shown.cas)
    again = said(peer, store(0x02, b"k", b"again"))
    assert again.status == OK
    assert struct.unpack(">QQ", again.extras)[1] == 3
    said(peer, frame(DELETE, b"k"))
    rig.flush()
    assert vbucket(rig).table.find(b"k") is None, "after the flush the entry is gone"
    rig.check()


def test_a_deletion_that_is_only_on_disk_is_fetched_while_others_go_on(rig: Rig) -> None:
    peer, other = Peer(rig), Peer(rig)
    peer.put(b"k", b"value", flags=7)
    peer.say(frame(DELETE, b"k"))
    tombstone = vbucket(rig).table.find(b"k")
    assert tombstone is not None
    rig.flush()
    assert peer.say(frame(GET_META, b"k"), frame(NOOP)) == b"", "commands behind it wait"
    assert peer.session.input_full
    assert other.say(frame(NOOP)) == answer(NOOP)
    rig.fetch_all()
    assert drained(peer.session) == (
        answer(GET_META, extras=meta(1, 7, int(NOON), 2), cas=tombstone.cas) + answer(NOOP)
    )
    assert rig.bucket.stats.bg_meta_fetched == 1
    assert vbucket(rig).table.find(b"k") is None


def test_a_miss_that_the_disk_confirms_is_a_miss(rig: Rig) -> None:
    peer = Peer(rig)
    for key in (b"k", b"other"):
        peer.put(key, b"value")
    number = rig.bucket.vbucket_of(b"k")
    absent = next(
        key for key in (b"%d" % n for n in range(99)) if rig.bucket.vbucket_of(key) == number
    )
    peer.say(frame(DELETE, b"k"))
    rig.flush()
    assert peer.say(frame(GET_META, absent), frame(GETQ_META, absent), frame(NOOP)) == b""
    rig.fetch_all()
    assert drained(peer.session) == error(GET_META, NOT_FOUND) + answer(NOOP)


def test_a_disk_that_cannot_be_read_is_a_temporary_failure(rig: Rig) -> None:
    peer = Peer(rig)
    peer.put(b"k", b"value")
    peer.say(frame(DELETE, b"k"))
    rig.flush()
    assert peer.say(frame(GET_META, b"k")) == b""
    rig.fetch(ok=False)
    assert drained(peer.session) == error(GET_META, TMPFAIL)


def test_an_expired_document_shows_as_deleted_and_stays_what_it_is(rig: Rig) -> None:
    peer = Peer(rig)
    peer.put(b"k", b"value", expiration=10)
    rig.clock.time += 11
    assert said(peer, frame(GET_META, b"k")).extras == meta(1, 0, int(NOON) + 10, 1)
    assert vbucket(rig).high_seqno == 1


def test_a_locked_document_hides_its_cas(peer: Peer) -> None:
    peer.put(b"k", b"value")
    said(peer, frame(GETL, b"k"))
    assert said(peer, frame(GET_META, b"k")).cas == ALL_ONES


def test_metadata_of_a_foreign_vbucket_is_refused(rig: Rig) -> None:
    peer = Peer(rig, by_key=False)
    for opcode in (GET_META, SET_META):
        request = (
            frame(opcode, b"k", vbucket=9)
            if opcode == GET_META
            else frame(opcode, b"k", b"", struct.pack(">IIQQ", 0, 0, 1, 1), vbucket=9)
        )
        assert said(peer, request).status == 7


# --- SET, ADD and DEL_WITH_META -----------------------------------------------------------------


@pytest.mark.acceptance("D43")
def test_a_version_is_stored_with_the_metadata_it_brings(rig: Rig) -> None:
    peer = Peer(rig)
    exptime = int(NOON) + 5  # absolute: as a client's number it would be too
    request = with_meta(SET_META, 9, 1234, flags=7, exptime=exptime)
    assert peer.say(request) == answer(SET_META, cas=1234)
    assert peer.say(frame(GET_META, b"k")) == answer(
        GET_META, extras=meta(0, 7, exptime, 9), cas=1234
    )
    got = said(peer, frame(GET, b"k"))
    assert (got.value, got.extras, got.cas) == (b"theirs", b"\0\0\0\7", 1234)
    rig.eject(b"k")
    rig.check()
    assert rig.bucket.stats.ops_set_meta == 1


def test_a_small_exptime_is_absolute_and_long_past(rig: Rig) -> None:
    peer = Peer(rig)
    assert status(peer, with_meta(SET_META, 1, exptime=100)) == OK
    assert vbucket(rig).item_count == 1
    assert peer.value(b"k") is None
    assert vbucket(rig).high_seqno == 2, "it expired at the first access"


@pytest.mark.parametrize("opcode", [SET_META, ADD_META, DEL_META])
def test_after_hello_the_reply_tells_the_place_in_the_order(rig: Rig, opcode: int) -> None:
    peer = Peer(rig)
    hello(peer, SEQNOS)
    uuid = vbucket(rig).failover_log[0].uuid
    expected = answer(opcode, extras=u64(uuid) + u64(1), cas=1000)
    assert peer.say(with_meta(opcode, 9)) == expected


@pytest.mark.parametrize("opcode", [SETQ_META, ADDQ_META, DELQ_META])
def test_quiet_forms_tell_only_what_went_wrong(rig: Rig, opcode: int) -> None:
    peer = Peer(rig)
    assert peer.say(with_meta(opcode, 9), frame(NOOP)) == answer(NOOP)
    if opcode == ADDQ_META:
        assert rig.item(b"k") is not None
    assert peer.say(with_meta(opcode, 9), frame(NOOP)) == error(opcode, EXISTS) + answer(NOOP)


def test_the_loser_hears_that_the_document_exists(rig: Rig) -> None:
    peer = Peer(rig)
    assert status(peer, with_meta(SET_META, 5, 50, flags=1, exptime=int(NOON) + 9)) == OK
    for losing in (
        with_meta(SET_META, 4, 60),
        with_meta(SET_META, 5, 49),
        with_meta(SET_META, 5, 50, flags=2, exptime=int(NOON) + 8),
        with_meta(SET_META, 5, 50, flags=1, exptime=int(NOON) + 9),
        with_meta(DEL_META, 5, 50, flags=9, exptime=int(NOON) + 99),
    ):
        assert peer.say(losing) == error(losing[1], EXISTS)
    assert vbucket(rig).high_seqno == 1
    assert rig.bucket.stats.ops_set_meta_res_fail == 4
    assert rig.bucket.stats.ops_del_meta_res_fail == 1
    assert status(peer, with_meta(SET_META, 5, 50, flags=2, exptime=int(NOON) + 9)) == OK


def test_a_deletion_leaves_a_tombstone_even_where_nothing_was(rig: Rig) -> None:
    peer = Peer(rig)
    assert peer.say(with_meta(DEL_META, 9, 1234, flags=7)) == answer(DEL_META, cas=1234)
    assert said(peer, frame(GET_META, b"k")).extras == meta(1, 7, int(NOON), 9)
    rig.flush()
    assert status(peer, with_meta(SET_META, 8)) == EXISTS
    assert status(peer, with_meta(SET_META, 10)) == OK
    assert status(peer, with_meta(DEL_META, 11)) == OK
    assert peer.value(b"k") is None
    rig.check()


def test_a_set_that_a_tombstone_on_disk_may_refuse_waits_and_keeps_the_order(rig: Rig) -> None:
    peer = Peer(rig)
    peer.say(with_meta(DEL_META, 9, 1234))
    rig.flush()
    assert peer.say(with_meta(SET_META, 9, 1235), frame(GET, b"k")) == b""
    rig.fetch_all()
    assert drained(peer.session) == (
        answer(SET_META, cas=1235) + answer(GET, extras=bytes(4), value=b"theirs", cas=1235)
    )


@pytest.mark.acceptance("X02")
def test_versions_that_come_together_wait_for_one_round_of_reading(rig: Rig) -> None:
    """A restore sends thousands, each of which a tombstone on disk might outrank."""
    peer = Peer(rig)
    keys = [b"key-%03d" % number for number in range(200)]
    for rev, key in enumerate(keys[::2], start=9):
        peer.say(with_meta(DEL_META, rev, 1234, key=key))
    rig.flush()
    sets = [with_meta(SET_META, 8, 1235, key=key) for key in keys]
    assert peer.say(b"".join(sets)) == b""
    assert rig.fetch_all() == 1
    expected = [error(SET_META, EXISTS), answer(SET_META, cas=1235)] * 100
    assert drained(peer.session) == b"".join(expected)


def test_more_versions_than_one_round_takes_wait_for_several(rig: Rig) -> None:
    peer = Peer(rig)
    peer.say(with_meta(DEL_META, 9, 1234))
    rig.flush()
    sets = [with_meta(SET_META, 8, 1235, key=b"key-%04d" % number) for number in range(1_100)]
    peer.say(b"".join(sets))
    assert rig.fetch_all() == 2  # a quarter of them is in the vBucket that has a tombstone
    assert drained(peer.session) == answer(SET_META, cas=1235) * 1_100


def test_a_peer_that_goes_while_the_disk_is_read_changes_nothing(rig: Rig) -> None:
    peer = Peer(rig)
    peer.say(with_meta(DEL_META, 9, 1234))
    rig.flush()
    peer.say(with_meta(SET_META, 9, 1235))
    peer.session.connection_lost()
    rig.fetch_all()
    assert vbucket(rig).high_seqno == 1


def test_two_peers_that_wait_for_one_tombstone_are_decided_one_after_the_other(rig: Rig) -> None:
    one, other = Peer(rig), Peer(rig)
    one.say(with_meta(DEL_META, 9, 1234))
    rig.flush()
    one.say(with_meta(SET_META, 9, 1236))
    other.say(with_meta(SET_META, 9, 1235))
    rig.fetch_all()
    assert drained(one.session) == answer(SET_META, cas=1236)
    assert drained(other.session) == error(SET_META, EXISTS)


# --- what is demanded of the document that is there ---------------------------------------------


def test_the_header_s_cas_compares_as_in_a_set(rig: Rig) -> None:
    peer = Peer(rig)
    cas = peer.put(b"k", b"ours")
    assert status(peer, with_meta(SET_META, 9, header_cas=cas + 1)) == EXISTS
    assert status(peer, with_meta(SET_META, 9, key=b"absent", header_cas=cas)) == NOT_FOUND
    assert status(peer, with_meta(SET_META, 9, 1234, header_cas=cas)) == OK
    assert status(peer, with_meta(DEL_META, 10, 1235, header_cas=cas)) == EXISTS
    assert status(peer, with_meta(DEL_META, 10, 1235, header_cas=1234)) == OK
    assert rig.bucket.stats.ops_set_meta_res_fail == 0


def test_the_cas_that_get_meta_told_of_a_tombstone_passes(rig: Rig) -> None:
    peer = Peer(rig)
    peer.put(b"k", b"ours")
    peer.say(frame(DELETE, b"k"))
    shown = said(peer, frame(GET_META, b"k"))
    rig.flush()
    assert status(peer, with_meta(SET_META, 9, header_cas=shown.cas)) == OK


def test_add_finds_what_is_there(peer: Peer) -> None:
    peer.put(b"k", b"ours")
    assert peer.say(with_meta(ADD_META, 9)) == error(ADD_META, EXISTS)
    assert peer.say(with_meta(ADD_META, 9, options=SKIP)) == error(ADD_META, EXISTS)
    peer.say(frame(DELETE, b"k"))
    assert peer.say(with_meta(ADD_META, 2, 1)) == error(ADD_META, EXISTS)
    assert peer.say(with_meta(ADD_META, 9)) == answer(ADD_META, cas=1000)


def test_a_lock_holds_versions_from_elsewhere_off(rig: Rig) -> None:
    old, new = Peer(rig), Peer(rig)
    hello(new, XERROR)
    old.put(b"k", b"ours")
    cas = said(old, frame(GETL, b"k")).cas
    assert status(old, with_meta(SET_META, 9)) == EXISTS
    assert status(new, with_meta(SET_META, 9)) == LOCKED
    assert status(new, with_meta(SET_META, 9, header_cas=cas)) == OK


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("greeted", "options", "expected"),
    [
        (False, None, EXISTS),
        (False, 0, EXISTS),
        (False, SKIP_2014, OK),
        (False, SKIP, OK),
        (False, FORCE, EXISTS),
        (True, SKIP_2014, EXISTS),
        (True, FORCE, EXISTS),
        (True, SKIP, OK),
        (True, SKIP | FORCE | SKIP_2014, OK),
        (True, SKIP | REGENERATE, OK),
        (True, REGENERATE, INVALID),
        (True, REGENERATE | SKIP_2014, INVALID),
        (True, IS_EXPIRATION | SKIP, INVALID),
        (True, 0x20, INVALID),
        (True, 0x80000000 | SKIP, INVALID),
    ],
)
@pytest.mark.parametrize("nmeta", [None, 0])
def test_options_of_a_set_that_would_lose(
    peer: Peer, greeted: bool, options: int | None, expected: int, nmeta: int | None
) -> None:
    if greeted:
        hello(peer)
    status(peer, with_meta(SET_META, 9, 99))
    assert status(peer, with_meta(SET_META, 3, 33, options=options, nmeta=nmeta)) == expected


def test_a_new_cas_is_made_on_demand(rig: Rig) -> None:
    peer = Peer(rig)
    last = peer.put(b"other", b"value")
    reply = said(peer, with_meta(SET_META, 3, 33, options=SKIP | REGENERATE))
    assert reply.cas == last + 1
    assert said(peer, frame(GET, b"k")).cas == last + 1


def test_a_deletion_may_be_an_expiration(rig: Rig) -> None:
    peer = Peer(rig)
    assert status(peer, with_meta(DEL_META, 3, options=IS_EXPIRATION)) == OK
    known = vbucket(rig).table.find(b"k")
    assert known is not None
    assert known.life == Life.EXPIRED


# --- extended metadata --------------------------------------------------------------------------

ADJUSTED_TIME = b"\1" + b"\1\0\x08" + bytes(8) + b"\2\0\1\0"


@pytest.mark.parametrize("options", [None, SKIP])
@pytest.mark.parametrize("opcode", [SET_META, DEL_META])
def test_extended_metadata_is_no_part_of_the_value(
    rig: Rig, opcode: int, options: int | None
) -> None:
    peer = Peer(rig)
    body = b"" if opcode == DEL_META else b"body"
    nmeta = len(ADJUSTED_TIME)
    request = with_meta(opcode, 9, value=body + ADJUSTED_TIME, options=options, nmeta=nmeta)
    assert peer.say(request) == answer(opcode, cas=1000)
    assert peer.value(b"k") == (body or None)


@pytest.mark.parametrize(
    ("value", "nmeta"),
    [
        (b"", 1),
        (b"\1", 2),
        (b"body", 5),
        (b"body\2", 1),
        (b"body" + ADJUSTED_TIME[:-1], len(ADJUSTED_TIME) - 1),
        (b"body" + ADJUSTED_TIME, len(ADJUSTED_TIME) - 1),
        (b"x", 0xFFFF),
    ],
)
def test_malformed_extended_metadata_is_refused(peer: Peer, value: bytes, nmeta: int) -> None:
    assert peer.say(with_meta(SET_META, 9, value=value, nmeta=nmeta), frame(NOOP)) == (
        error(SET_META, INVALID) + answer(NOOP)
    )


def test_a_deletion_has_no_value(peer: Peer) -> None:
    request = frame(DEL_META, b"k", b"value", struct.pack(">IIQQ", 0, 0, 9, 1))
    assert peer.say(request, frame(NOOP)) == error(DEL_META, INVALID) + answer(NOOP)


# --- limits -------------------------------------------------------------------------------------


def test_numbers_that_would_exhaust_ours_are_refused(rig: Rig) -> None:
    peer = Peer(rig)
    for rev, cas, expected in (
        (2**63, 1, INVALID),
        (ALL_ONES, 1, INVALID),
        (1, 0, EXISTS),
        (1, ALL_ONES, EXISTS),
        (1, ALL_ONES - 1, INVALID),
        (1, int((NOON + 25 * 3600) * 1e9), INVALID),
    ):
        for opcode in (SET_META, DEL_META):
            for options in (None, SKIP):
                assert status(peer, with_meta(opcode, rev, cas, options=options)) == expected
    assert vbucket(rig).high_seqno == 0
    assert status(peer, with_meta(DEL_META, 2**63 - 1, int(NOON * 1e9))) == OK
    assert peer.put(b"k", b"ours") > int(NOON * 1e9)
    rig.flush()
    rig.check()


def test_a_value_beyond_the_item_limit_is_refused_and_removes_nothing() -> None:
    rig = Rig(kv__max_item_bytes=2_048)
    peer = Peer(rig)
    peer.put(b"k", b"ours")
    most = rig.services.most_value_bytes(1)
    for size in (most + 1, 2_049):
        assert status(peer, with_meta(SET_META, 9, value=bytes(size))) == TOO_LARGE
    assert peer.value(b"k") == b"ours"
    assert status(peer, with_meta(SET_META, 9, value=bytes(most))) == OK


@given(
    st.sampled_from([SET_META, SETQ_META, ADD_META, DEL_META, DELQ_META, GET_META, RETURN_META]),
    st.binary(max_size=32),
    st.binary(max_size=40),
)
def test_whatever_the_body_every_request_is_answered(
    opcode: int, extras: bytes, value: bytes
) -> None:
    rig = Rig()
    peer = Peer(rig)
    peer.say(frame(opcode, b"k", value, extras))
    rig.fetch_all()
    assert peer.say(frame(NOOP)).endswith(answer(NOOP))
    rig.flush()
    rig.check()


# --- RETURN_META --------------------------------------------------------------------------------


def return_meta(
    kind: int, value: bytes = b"", *, flags: int = 0, exptime: int = 0, cas: int = 0
) -> bytes:
    return frame(RETURN_META, b"k", value, struct.pack(">III", kind, flags, exptime), cas=cas)


def test_a_change_tells_the_metadata_it_made(rig: Rig) -> None:
    peer = Peer(rig)
    added = said(peer, return_meta(2, b"one", flags=7, exptime=100))
    assert (added.status, added.extras) == (OK, struct.pack(">IIQ", 7, int(NOON) + 100, 1))
    assert said(peer, frame(GET, b"k")).cas == added.cas
    stored = said(peer, return_meta(1, b"two", flags=8, cas=added.cas))
    assert (stored.status, stored.extras) == (OK, struct.pack(">IIQ", 8, 0, 2))
    assert peer.value(b"k") == b"two"
    deleted = said(peer, return_meta(3, cas=stored.cas))
    assert (deleted.status, deleted.extras) == (OK, struct.pack(">IIQ", 8, int(NOON), 3))
    shown = said(peer, frame(GET_META, b"k"))
    assert (shown.extras[4:], shown.cas) == (deleted.extras, deleted.cas)
    stats = rig.bucket.stats
    assert (stats.ops_set_ret_meta, stats.ops_del_ret_meta) == (2, 1)


def test_a_change_with_metadata_is_refused_like_any_other() -> None:
    rig = Rig(kv__max_item_bytes=2_048)
    peer = Peer(rig)
    assert peer.say(return_meta(3)) == error(RETURN_META, NOT_FOUND)
    cas = said(peer, return_meta(1, b"one")).cas
    for request, expected in (
        (return_meta(2, b"two"), EXISTS),
        (return_meta(1, b"two", cas=cas + 1), EXISTS),
        (return_meta(3, cas=cas + 1), EXISTS),
        (return_meta(1, bytes(2_048)), TOO_LARGE),
        (return_meta(0, b"two"), INVALID),
        (return_meta(4, b"two"), INVALID),
    ):
        assert peer.say(request) == error(RETURN_META, expected)
    assert peer.value(b"k") == b"one"
