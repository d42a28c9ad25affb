"""What a legacy master pushes is taken as it is, and answered by TAP's rules."""

from __future__ import annotations

import struct

import pytest

from tests.contents import table_of
from tests.kv.harness import NOON
from tests.tap_adapter.push_rig import (
    ACK,
    ACTIVE,
    DEAD,
    INVALID,
    LATER,
    MAP,
    MUTATION,
    NETWORK_ORDER,
    NO_VALUE,
    NOT_MY_VBUCKET,
    OK,
    OPAQUE,
    PENDING,
    REPLICA,
    TOO_LARGE,
    VBUCKET_SET,
    Answer,
    PushRig,
    delete,
    end,
    message,
    mutation,
    opaque,
    start,
    vbucket_set,
)
from uprmc.errors import OutOfPlace
from uprmc.model import Item, Life

#: Vectors of the TAP reference, section 12.
STORED = (
    "80410002100000030000001d0000002a010203040506070800090005ff000000deadbeef"
    "000000000000000000000007026b317631"
)
STORED_SWAPPED = (
    "80410002100000030000001d0000002b010203040506070800090000ff000000efbeadde"
    "6553f1000000000000000007026b317631"
)
KEY_ONLY = (
    "80410002100000030000001b0000002c010203040506070800090006ff000000deadbeef"
    "000000000000000000000007026b31"
)
DELETED = "8042000208000003000000120000002d000000000000000000080001ff00000000000000000000086b31"
FLUSHED = "8043000008000000000000080000002e000000000000000000000001ff000000"
BACKFILL = "80440000080000030000000c00000005000000000000000000040001ff00000000000001"
BACKFILLED = "80440000080000030000000c0000002f000000000000000000040001ff00000000000008"
TO_PENDING = "80450000080000030000000c00000004000000000000000000040001ff00000000000003"
TO_ACTIVE = "80450000080000030000000c00000031000000000000000000040001ff00000000000001"
START_10 = (
    "80460010100000030000003000000032000000000000000000080001ff000000000000000000000000000000"
    "00000005636865636b706f696e745f7374617274000000000000000a"
)
END_10 = (
    "8047000e100000030000002600000033000000000000000000000001ff0000000000000000000000"
    "636865636b706f696e745f656e64000000000000000a"
)
BY_PUMP_TAP = (
    "80410007100000000000002a00000001000000000000000000080004ff000000010203040000000000"
    "000000000000076c65676163793166726f6d2d6d6173746572"
)

pytestmark = pytest.mark.acceptance("D56")


@pytest.fixture
def rig() -> PushRig:
    return PushRig(REPLICA)


def take(rig: PushRig, vector: str) -> Answer | None:
    return rig.take(bytes.fromhex(vector))


# --- versions -------------------------------------------------------------------------------------


def test_a_document_keeps_everything_but_gets_a_seqno_of_ours(rig: PushRig) -> None:
    assert take(rig, STORED) == (MUTATION, OK, 42, b"")
    cas = 0x0102030405060708
    assert rig.item(b"k1", 3) == Item(b"k1", b"v1", 0xDEADBEEF, 0, cas, 1, 7)
    assert rig.item(b"k1", 3).nru == 2  # type: ignore[union-attr]


def test_without_network_byte_order_the_flags_are_swapped_back(rig: PushRig) -> None:
    assert take(rig, STORED_SWAPPED) is None, "nobody asked for an answer"
    item = rig.item(b"k1", 3)
    assert item is not None
    assert (item.flags, item.expiry) == (0xDEADBEEF, 1_700_000_000)


def test_what_pump_tap_pushes_is_stored_with_a_cas_of_ours(rig: PushRig) -> None:
    last = rig.bucket.account.last_cas
    assert take(rig, BY_PUMP_TAP) is None
    item = rig.item(b"legacy1")
    assert item is not None
    assert item == Item(b"legacy1", b"from-master", 0x01020304, 0, item.cas, 1, 7)
    assert item.cas > last


def test_a_deletion_leaves_a_tombstone_of_its_revision(rig: PushRig) -> None:
    take(rig, STORED)
    assert take(rig, DELETED) == (0x42, OK, 45, b"")
    tombstone = rig.bucket.vbuckets[3].table.find(b"k1")
    assert tombstone is not None
    assert (tombstone.life, tombstone.rev, tombstone.seqno) == (Life.DELETED, 8, 2)
    assert tombstone.cas > 0x0102030405060708
    assert tombstone.expiry == NOON


def test_a_deletion_keeps_its_cas_and_revision_0_counts_as_1(rig: PushRig) -> None:
    rig.push(delete(b"a", rev=0, cas=5))
    tombstone = rig.vbucket.table.find(b"a")
    assert tombstone is not None
    assert (tombstone.cas, tombstone.rev) == (5, 1)


def test_deleting_what_is_not_there_succeeds(rig: PushRig) -> None:
    assert rig.take(delete(b"a", rev=4, flags=ACK)) == (0x42, OK, 0, b"")
    assert rig.take(delete(b"b", rev=None, flags=ACK)) == (0x42, OK, 0, b"")
    assert rig.vbucket.table.find(b"b") is None


def test_an_older_version_overwrites_a_newer_one(rig: PushRig) -> None:
    rig.push(mutation(b"a", b"newer", rev=9, cas=900), mutation(b"a", b"older", rev=2, cas=100))
    assert rig.item(b"a") == Item(b"a", b"older", 0, 0, 100, 2, 2)


def test_masters_of_the_1_8_kind_set_and_delete_like_clients(rig: PushRig) -> None:
    rig.push(mutation(b"a", rev=7, cas=5))
    last = rig.bucket.account.last_cas
    rig.push(mutation(b"a", b"x", rev=None, cas=66), mutation(b"b", rev=None, cas=66))
    first, second = rig.item(b"a"), rig.item(b"b")
    assert first is not None
    assert second is not None
    assert (first.cas, first.rev) == (last + 1, 8)
    assert (second.cas, second.rev) == (last + 2, 1)
    rig.push(delete(b"a", rev=None, cas=66))
    tombstone = rig.vbucket.table.find(b"a")
    assert tombstone is not None
    assert (tombstone.life, tombstone.cas, tombstone.rev) == (Life.DELETED, last + 3, 9)


@pytest.mark.parametrize(("sent", "kept"), [(0, 0), (3, 3), (4, 2), (255, 2), (None, 2)])
def test_nru_is_kept_if_there_is_such_a_one(rig: PushRig, sent: int | None, kept: int) -> None:
    rig.push(mutation(b"a", nru=sent))
    item = rig.item(b"a")
    assert item is not None
    assert item.nru == kept


def test_an_expired_document_is_stored_as_it_is(rig: PushRig) -> None:
    rig.push(mutation(b"a", expiration=int(NOON) - 10))
    item = rig.item(b"a")
    assert item is not None
    assert item.expiry == int(NOON) - 10


def test_an_empty_value_is_a_value(rig: PushRig) -> None:
    rig.push(mutation(b"a", b""))
    assert rig.item(b"a").value == b""  # type: ignore[union-attr]


def test_cas_values_given_out_here_stay_above_those_that_came(rig: PushRig) -> None:
    ahead = rig.bucket.account.last_cas + 1_000_000
    rig.push(mutation(b"a", cas=ahead), mutation(b"b", cas=0))
    assert rig.item(b"b").cas > ahead  # type: ignore[union-attr]


def test_what_was_not_acknowledged_comes_again_without_harm(rig: PushRig) -> None:
    sent = [mutation(b"a", b"1", rev=3, cas=30), delete(b"b", rev=2, cas=31)]
    rig.push(*sent)
    before = rig.item(b"a")
    rig.reconnect()
    rig.push(*sent)
    after = rig.item(b"a")
    assert before is not None
    assert after is not None
    assert (after.value, after.cas, after.rev, after.flags) == (b"1", 30, 3, 0)
    assert after.seqno > before.seqno
    rig.check()


def test_the_vbucket_of_the_header_counts_and_not_the_key(rig: PushRig) -> None:
    for number in range(4):
        rig.push(mutation(b"same key", b"%d" % number, vbucket=number))
    for number in range(4):
        assert rig.item(b"same key", number).value == b"%d" % number  # type: ignore[union-attr]


@pytest.mark.parametrize("state", [ACTIVE, REPLICA, PENDING])
def test_versions_are_taken_in_each_living_state(state: int) -> None:
    rig = PushRig(state)  # type: ignore[arg-type]
    rig.push(mutation(b"a"), delete(b"a", rev=2), mutation(b"b"))
    assert rig.vbucket.high_seqno == 3
    assert rig.vbucket.state == state


def test_clients_read_what_is_pushed_into_an_active_vbucket() -> None:
    rig = PushRig()
    rig.push(mutation(b"a", b"pushed", item_flags=9))
    found = rig.vbucket.get(b"a")
    assert found is not None
    assert (found.value, found.flags) == (b"pushed", 9)


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        mutation(b"a", flags=ACK | NETWORK_ORDER, opaque=7),
        delete(b"a", flags=ACK, opaque=7),
        message(0x43, flags=ACK, opaque=7),
        opaque(0, flags=ACK, opaque=7),
        opaque(99, flags=ACK, opaque=7),
        vbucket_set(PENDING, flags=ACK, opaque=7),
        start(1, flags=ACK, opaque=7),
        end(1, flags=ACK, opaque=7),
    ],
)
def test_an_answer_is_a_header_alone_and_comes_only_if_asked_for(
    rig: PushRig, frame: bytes
) -> None:
    assert rig.take(frame) == (frame[1], OK, 7, b"")
    assert rig.consumer.acks == 1
    rig.reconnect()
    silent = bytearray(frame)
    silent[27] &= ~ACK
    assert rig.take(bytes(silent)) is None


def test_an_error_is_answered_though_nobody_asked(rig: PushRig) -> None:
    rig.bucket.set_state(0, DEAD)
    assert rig.take(mutation(b"a", opaque=9)) == (MUTATION, NOT_MY_VBUCKET, 9, MAP)
    assert rig.consumer.nacks == 1
    assert "vBucket 0" in rig.consumer.last_refusal


@pytest.mark.parametrize(
    "frame",
    [
        mutation(b"a", ttl=0),
        delete(b"a", ttl=0),
        message(0x43, ttl=0),
        opaque(1, ttl=0),
        vbucket_set(ACTIVE, ttl=0),
        start(1, ttl=0),
        end(1, ttl=0),
    ],
)
def test_the_last_hop_is_refused_and_does_nothing(rig: PushRig, frame: bytes) -> None:
    rig.push(mutation(b"here"))
    assert rig.refused(frame) == INVALID


def test_one_hop_left_is_enough(rig: PushRig) -> None:
    rig.push(mutation(b"a", ttl=1))
    assert rig.item(b"a") is not None


@pytest.mark.parametrize(
    "frame",
    [mutation(b"a"), delete(b"a"), opaque(1), start(1), end(1)],
)
def test_missing_and_dead_vbuckets_are_not_ours(rig: PushRig, frame: bytes) -> None:
    rig.bucket.set_state(0, DEAD)
    assert rig.refused(frame) == NOT_MY_VBUCKET
    rig.bucket.remove(0, lambda _: None)
    assert rig.refused(frame) == NOT_MY_VBUCKET
    beyond = bytearray(frame)
    beyond[6:8] = b"\xff\xff"
    assert rig.refused(bytes(beyond)) == NOT_MY_VBUCKET


def test_a_document_without_its_value_is_refused(rig: PushRig) -> None:
    assert rig.refused(bytes.fromhex(KEY_ONLY)) == INVALID
    assert rig.refused(mutation(b"a", b"", flags=NO_VALUE)) == INVALID


def test_values_are_refused_from_one_byte_above_the_limit(rig: PushRig) -> None:
    most = rig.rig.settings.kv.max_item_bytes
    rig.push(mutation(b"a", bytes(most)))
    assert rig.refused(mutation(b"a", bytes(most + 1))) == TOO_LARGE
    assert rig.consumer.counters.num_mutation_failed == 1


@pytest.mark.parametrize("key", [b"", b"x" * 251])
def test_keys_that_no_document_can_have_are_refused(rig: PushRig, key: bytes) -> None:
    assert rig.refused(mutation(key)) == INVALID
    assert rig.refused(delete(key)) == INVALID
    rig.push(mutation(b"x" * 250))


def test_numbers_after_which_ours_would_end_are_refused(rig: PushRig) -> None:
    most_cas = (int(NOON) + 24 * 3600) * 1_000_000_000
    rig.push(mutation(b"a", cas=most_cas), mutation(b"a", rev=2**63 - 1))
    assert rig.refused(mutation(b"a", cas=most_cas + 1)) == INVALID
    assert rig.refused(delete(b"a", cas=2**64 - 1)) == INVALID
    assert rig.refused(mutation(b"a", rev=2**63)) == INVALID
    assert rig.refused(start(4, deleted_rev=2**63)) == INVALID
    rig.push(mutation(b"b", rev=None))
    assert rig.item(b"b").cas > most_cas  # type: ignore[union-attr]


def test_no_room_is_a_temporary_failure(rig: PushRig) -> None:
    rig.bucket.account.write_limit = rig.bucket.account.used - 1
    assert rig.refused(mutation(b"a")) == LATER
    rig.bucket.account.exhausted = True
    assert rig.refused(mutation(b"a")) == LATER


def test_a_full_disk_is_a_temporary_failure(rig: PushRig) -> None:
    rig.push(mutation(b"a"))
    rig.rig.fail_flush()
    assert rig.refused(mutation(b"b")) == LATER
    assert rig.refused(delete(b"a")) == LATER
    rig.rig.flush()
    rig.push(mutation(b"b"), delete(b"a"))


def test_before_warm_up_is_over_everything_is_a_temporary_failure(rig: PushRig) -> None:
    rig.bucket.shut_traffic_out()
    for frame in (mutation(b"a"), opaque(1), opaque(2), vbucket_set(ACTIVE), message(0x43)):
        assert rig.refused(frame) == LATER
    assert not rig.consumer.follows_checkpoints


def test_a_clients_lock_holds_against_the_master_and_lapses() -> None:
    rig = PushRig()
    rig.push(mutation(b"a", b"1"))
    rig.vbucket.lock(b"a", 15)
    assert rig.refused(mutation(b"a", b"2")) == LATER
    assert rig.refused(delete(b"a")) == LATER
    rig.rig.clock.time += 15
    rig.push(mutation(b"a", b"2"))
    assert rig.item(b"a").value == b"2"  # type: ignore[union-attr]


def test_locks_of_an_active_past_do_not_count_in_a_replica() -> None:
    rig = PushRig()
    rig.push(mutation(b"a", b"1"))
    rig.vbucket.lock(b"a", 15)
    rig.bucket.set_state(0, REPLICA)
    rig.push(mutation(b"a", b"2"))
    assert not rig.vbucket.locks


# --- what ends a connection -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        vbucket_set(0),
        vbucket_set(5),
        message(VBUCKET_SET),
        message(VBUCKET_SET, specific=b"\0\0\1"),
        message(0x46, item=(0, 0), key=b"checkpoint_start"),
        message(0x47, item=(0, 0), key=b"checkpoint_end", value=b"\0\0\0\1"),
        message(MUTATION, key=b"a", value=b"no item extras"),
        message(0x42, key=b"a", item=(0, 0)),
        message(0x42, key=b"a")[:24] + struct.pack(">HHB3x", 300, 0, 255) + b"a",
    ],
)
def test_a_master_that_breaks_the_protocol_is_hung_up_on(rig: PushRig, frame: bytes) -> None:
    rig.push(mutation(b"here"))
    before = rig.snapshot()
    with pytest.raises(OutOfPlace):
        rig.take(frame)
    assert rig.snapshot() == before


def test_a_checkpoint_must_end_with_the_id_it_began_with(rig: PushRig) -> None:
    rig.push(start(4), mutation(b"a"))
    with pytest.raises(OutOfPlace, match="checkpoint 5 ends, 4 is the open one"):
        rig.take(end(5))
    assert rig.consumer.counters.num_checkpoint_end_failed == 1
    assert rig.vbucket.receiving is not None


def test_an_end_that_is_repeated_is_fine_and_another_one_is_not(rig: PushRig) -> None:
    rig.push(start(4), end(4), end(4))
    with pytest.raises(OutOfPlace):
        rig.take(end(5))


def test_on_an_active_vbucket_checkpoints_are_ignored() -> None:
    rig = PushRig()
    rig.push(start(4), mutation(b"a"), end(9))
    assert rig.vbucket.receiving is None


# --- OPAQUE, VBUCKET_SET, FLUSH -------------------------------------------------------------------


@pytest.mark.parametrize("code", [3, 4, 5, 6, 7, 9, 2**32 - 1])
def test_other_opaques_change_nothing(rig: PushRig, code: int) -> None:
    rig.push(mutation(b"a"))
    before = rig.snapshot()
    assert rig.take(opaque(code, flags=ACK)) == (OPAQUE, OK, 0, b"")
    assert rig.snapshot() == before
    assert rig.consumer.counters.num_unknown == (code > 8)


def test_an_opaque_of_an_odd_length_is_ignored(rig: PushRig) -> None:
    rig.push(mutation(b"a"))
    assert rig.take(message(OPAQUE, specific=b"\0\0\0\0\1", flags=ACK)) == (OPAQUE, OK, 0, b"")
    assert rig.item(b"a") is not None


def test_opaque_1_empties_its_vbucket_under_a_new_history(rig: PushRig) -> None:
    rig.push(mutation(b"a", vbucket=3), mutation(b"a", vbucket=2))
    (old, *_) = rig.bucket.vbuckets[3].failover_log
    assert take(rig, BACKFILL) == (OPAQUE, OK, 5, b"")
    vbucket = rig.bucket.vbuckets[3]
    assert (vbucket.high_seqno, vbucket.state, table_of(vbucket)) == (0, REPLICA, {})
    ((uuid, seqno),) = vbucket.failover_log
    assert uuid != old.uuid
    assert seqno == 0
    assert rig.item(b"a", 2) is not None
    rig.push(mutation(b"b", vbucket=3))
    assert vbucket.failover_log == ((uuid, 0),), "the backfill goes on in the history it began"
    take(rig, BACKFILLED)
    rig.rig.flush()
    rig.check()


def test_an_active_vbucket_is_emptied_and_gets_nothing_of_a_backfill() -> None:
    rig = PushRig()
    rig.push(mutation(b"a"), opaque(2), opaque(1))
    assert rig.refused(mutation(b"b")) == NOT_MY_VBUCKET
    assert not table_of(rig.vbucket)
    rig.push(opaque(8), mutation(b"b"))
    assert set(table_of(rig.vbucket)) == {b"b"}


def test_a_vbucket_that_becomes_active_in_mid_backfill_gets_no_more_of_it(rig: PushRig) -> None:
    rig.push(opaque(2), opaque(1), mutation(b"a"))
    rig.bucket.set_state(0, ACTIVE)
    assert rig.refused(mutation(b"b")) == NOT_MY_VBUCKET
    assert rig.refused(delete(b"a")) == NOT_MY_VBUCKET


def test_without_checkpoints_an_active_vbucket_is_emptied_and_filled() -> None:
    rig = PushRig()
    rig.push(mutation(b"a"), opaque(1), mutation(b"b"), opaque(8))
    assert set(table_of(rig.vbucket)) == {b"b"}


def test_a_flush_empties_every_vbucket(rig: PushRig) -> None:
    rig.bucket.set_state(1, ACTIVE)
    for number in range(4):
        rig.push(mutation(b"a", vbucket=number))
    logs = {number: each.failover_log for number, each in rig.bucket.vbuckets.items()}
    assert take(rig, FLUSHED) == (0x43, OK, 46, b"")
    for number, each in rig.bucket.vbuckets.items():
        assert (each.high_seqno, table_of(each)) == (0, {})
        assert each.failover_log[0].uuid not in {entry.uuid for entry in logs[number]}
    log = rig.vbucket.failover_log
    rig.push(mutation(b"b"))
    assert rig.vbucket.failover_log == log
    rig.rig.flush()
    rig.check()


def test_vbucket_set_makes_and_changes_vbuckets_at_once(rig: PushRig) -> None:
    rig.bucket.set_state(3, DEAD)
    rig.bucket.remove(3, lambda _: None)
    assert take(rig, TO_PENDING) == (VBUCKET_SET, OK, 4, b"")
    assert rig.bucket.vbuckets[3].state == PENDING
    assert take(rig, TO_ACTIVE) == (VBUCKET_SET, OK, 49, b"")
    assert rig.bucket.active[3] is rig.bucket.vbuckets[3]
    assert rig.refused(vbucket_set(ACTIVE, 4)) == NOT_MY_VBUCKET


def test_a_takeover_ends_with_a_branch_where_all_was_received(rig: PushRig) -> None:
    """The whole of it, by the vectors where there are any."""
    for vector in (TO_PENDING, BACKFILL, STORED, BACKFILLED, START_10, DELETED):
        answer = take(rig, vector)
        assert answer is not None
        assert answer.status == OK
    rig.push(mutation(b"k2", vbucket=3))
    vbucket = rig.bucket.vbuckets[3]
    ((old, _),) = vbucket.failover_log
    assert vbucket.whole_seqno == 1
    take(rig, TO_ACTIVE)
    assert vbucket.failover_log[0].seqno == vbucket.high_seqno == 3
    assert [entry.uuid for entry in vbucket.failover_log][1:] == [old]
    log = vbucket.failover_log
    take(rig, TO_ACTIVE)
    assert vbucket.failover_log == log, "the same message again changes nothing"


def test_a_promotion_in_mid_backfill_branches_where_the_last_whole_state_was(rig: PushRig) -> None:
    rig.push(opaque(2), opaque(1), mutation(b"a"), vbucket_set(ACTIVE))
    assert rig.vbucket.failover_log[0].seqno == 0
    assert rig.vbucket.receiving is None


def test_new_documents_outrank_deletions_that_the_master_has_had(rig: PushRig) -> None:
    assert take(rig, START_10) == (0x46, OK, 50, b"")
    rig.push(mutation(b"new", rev=None, vbucket=3))
    assert rig.item(b"new", 3).rev == 6  # type: ignore[union-attr]
    assert take(rig, END_10) == (0x47, OK, 51, b"")


# --- statistics -----------------------------------------------------------------------------------


def test_each_message_counts_once_under_its_name(rig: PushRig) -> None:
    rig.push(
        opaque(0),
        opaque(2),
        mutation(b"a"),
        mutation(b"b"),
        delete(b"a"),
        start(1),
        end(1),
        vbucket_set(PENDING),
        message(0x43),
    )
    for frame in (mutation(b"", vbucket=9), delete(b"a", vbucket=9), start(2, 9), end(2, 9)):
        rig.refused(frame)
    for frame in (opaque(1, 9), vbucket_set(ACTIVE, 9), message(0x43, ttl=0)):
        rig.refused(frame)
    with pytest.raises(OutOfPlace):
        rig.take(message(MUTATION))
    assert rig.consumer.counters.rows() == [
        ("num_mutation", 2),
        ("num_mutation_failed", 1),
        ("num_delete", 1),
        ("num_delete_failed", 1),
        ("num_flush", 1),
        ("num_flush_failed", 1),
        ("num_opaque", 2),
        ("num_opaque_failed", 1),
        ("num_vbucket_set", 1),
        ("num_vbucket_set_failed", 1),
        ("num_checkpoint_start", 1),
        ("num_checkpoint_start_failed", 1),
        ("num_checkpoint_end", 1),
        ("num_checkpoint_end_failed", 1),
        ("num_unknown", 1),
    ]
    assert rig.consumer.understands_nacks
    assert rig.consumer.follows_checkpoints


def test_totals_outlive_their_connections(rig: PushRig) -> None:
    rig.push(mutation(b"a"))
    first = rig.consumer
    rig.reconnect()
    first.close()
    rig.push(mutation(b"a"))
    assert rig.pushes.total.num_mutation == 2
    assert [each.name for each in rig.pushes.pushers] == ["push_2"]
    assert rig.pushes.connections == 2
