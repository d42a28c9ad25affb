"""CONTROL: every key of the reference, good and bad values; permits to read the disk.

Source: UPR reference 2.11; design, decision 16.
"""

from __future__ import annotations

import pytest

from tests.upr.peer import (
    CLOSE_STREAM,
    DEAD,
    DELETION,
    EXPIRATION,
    INVALID,
    OK,
    UNSUPPORTED,
    Peer,
    Rig,
    bystander,
    control,
    fill,
    frame,
    hello,
    items,
    opening,
    seqnos,
    stream_request,
    upr_rig,
    write,
)

GOOD = [
    (b"connection_buffer_size", b"1024"),
    (b"connection_buffer_size", b"0"),
    (b"connection_buffer_size", b"4294967295"),
    (b"enable_noop", b"true"),
    (b"enable_noop", b"whatever"),
    (b"set_noop_interval", b"20"),
    (b"set_noop_interval", b"0.1"),
    (b"set_noop_interval", b"10800"),
    (b"set_priority", b"high"),
    (b"set_priority", b"medium"),
    (b"set_priority", b"low"),
    (b"supports_cursor_dropping", b"true"),
    (b"supports_cursor_dropping_vulcan", b"true"),
    (b"send_stream_end_on_client_close_stream", b"true"),
    (b"supports_hifi_MFU", b"true"),
    (b"enable_expiry_opcode", b"true"),
    (b"consumer_name", b"me"),
    (b"backfill_order", b"round-robin"),
    (b"backfill_order", b"sequential"),
    (b"v7_dcp_status_codes", b"true"),
    (b"uprmc_versions", b"true"),
    (b"uprmc_barrier", b"true"),
    (b"uprmc_rounds", b"true"),
    (b"uprmc_snapshot_end", b"true"),
    (b"uprmc_leases", b"true"),
    (b"uprmc_hwt", b"true"),
    (b"uprmc_hwt", b"manage"),
    (b"uprmc_hwt", b"false"),
    (b"uprmc_persisted", b"true"),
    (b"max_marker_version", b"2.2"),
]

BAD = [
    (b"connection_buffer_size", b"-1"),
    (b"connection_buffer_size", b"4294967296"),
    (b"connection_buffer_size", b"1k"),
    (b"connection_buffer_size", b" 1"),
    (b"connection_buffer_size", b"\xb2"),
    (b"connection_buffer_size", b"9" * 5_000),
    (b"set_noop_interval", b"0"),
    (b"set_noop_interval", b"0.09"),
    (b"set_noop_interval", b"10801"),
    (b"set_noop_interval", b"nan"),
    (b"set_noop_interval", b"inf"),
    (b"set_noop_interval", b"soon"),
    (b"set_priority", b"highest"),
    (b"backfill_order", b"random"),
    (b"enable_expiry_opcode", b"TRUE"),
    (b"uprmc_barrier", b"1"),
    (b"connection_buffer_siz", b"1024"),
    (b"connection_buffer_size2", b"1024"),
    (b"enable_ext_metadata", b"true"),
    (b"force_value_compression", b"true"),
    (b"enable_stream_id", b"true"),
    (b"enable_sync_writes", b"true"),
    (b"max_marker_version", b"2.0"),
    (b"max_marker_version", b"3"),
    (b"uprmc_persisted", b"yes"),
    (b"uprmc_hwt", b"yes"),
    (b"nobody knows", b"true"),
    (b"\xff\xfe", b"\x00"),
]


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_what_is_known_is_accepted(rig: Rig, name: bytes, value: bytes) -> None:
    assert Peer.open(rig).ask(control(name, value)).status == OK


@pytest.mark.parametrize(("name", "value"), BAD)
def test_what_makes_no_sense_is_refused_and_the_connection_goes_on(
    rig: Rig, name: bytes, value: bytes
) -> None:
    undisturbed = bystander(rig)
    fill(rig, 0, 3)
    peer = Peer.open(rig)
    answer = peer.ask(control(name, value))
    assert answer.status == INVALID
    assert not peer.closed
    assert peer.side.feed._options.buffer_bytes == 0
    assert seqnos(peer.stream(0)) == [1, 2, 3]
    undisturbed()


def test_a_stream_buffer_is_not_supported(rig: Rig) -> None:
    assert Peer.open(rig).ask(control(b"stream_buffer_size", b"1024")).status == UNSUPPORTED


def test_a_refused_value_leaves_the_older_one(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.controls(connection_buffer_size=b"100", set_noop_interval=b"7")
    peer.ask(control(b"connection_buffer_size", b"x"))
    peer.ask(control(b"set_noop_interval", b"x"))
    assert peer.side.options.buffer_bytes == 100
    assert peer.side.keepalive.interval_s == 7


def test_what_go_feeds_send_first_is_accepted_in_one_piece(rig: Rig) -> None:
    fill(rig, 0, 2)
    peer = Peer(rig)
    frames = peer.say(
        opening(),
        control(b"connection_buffer_size", b"20971520"),
        control(b"enable_noop", b"true"),
        control(b"set_noop_interval", b"120"),
        control(b"set_priority", b"high"),
        stream_request(0),
    )
    assert [each.status for each in frames if each.is_reply] == [OK] * 6
    assert seqnos(frames) == [1, 2]


# --- expirations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "asked", "opcode", "extras"),
    [
        (1, False, DELETION, 18),
        (1, True, DELETION, 18),
        (0x21, False, DELETION, 21),
        (0x21, True, EXPIRATION, 20),
    ],
)
def test_expirations_come_as_such_only_if_flag_and_key_ask_for_it(
    rig: Rig, flag: int, asked: bool, opcode: int, extras: int
) -> None:
    part = rig.bucket.vbuckets[0]
    part.store(b"k", b"v", 0, int(rig.clock.time) + 10)
    rig.clock.time += 11
    assert part.find(b"k") is None
    peer = Peer.open(rig, b"c", flag)
    if asked:
        peer.controls(enable_expiry_opcode=b"true")
    (gone,) = items(peer.stream(0))
    assert (gone.opcode, len(gone.extras), gone.seqno, gone.rev) == (opcode, extras, 2, 2)
    assert gone.value == b""


# --- datatypes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("features", "expected"), [((), 0), ((0x0B,), 1), ((0x01,), 1)])
def test_datatype_bits_come_after_hello_only(
    rig: Rig, features: tuple[int, ...], expected: int
) -> None:
    rig.bucket.vbuckets[0].store(b"k", b"{}", 0, 0, datatype=1)
    peer = Peer(rig)
    peer.say(*([hello(*features)] if features else []), opening())
    (item,) = items(peer.stream(0))
    assert item.datatype == expected


# --- permits to read the disk ---------------------------------------------------------------------


def backfilling(rig: Rig, vbuckets: int, count: int = 30) -> None:
    for number in range(vbuckets):
        fill(rig, number, count, b"x" * 500)
    rig.flush()


def reading(peer: Peer) -> int:
    return peer.side.feed.readings.from_disk  # type: ignore[no-any-return]


@pytest.mark.parametrize("limit", [1, 3])
def test_a_connection_reads_the_disk_for_so_many_streams_at_a_time(limit: int) -> None:
    rig = upr_rig(engine__vbuckets=8, upr__backfills_per_connection=limit)
    backfilling(rig, 8)
    peer = Peer.open(rig)
    peer.send(*(stream_request(n) for n in range(8)))
    most = 0
    while len(seqnos(peer.received)) < 8 * 30:
        peer.turn(2_000)
        most = max(most, reading(peer))
        assert rig.services.upr.backfills.used == reading(peer) <= limit
    assert most == limit
    for number in range(8):
        assert seqnos(peer.received, number) == list(range(1, 31))


def test_sequential_means_one_after_the_other() -> None:
    rig = upr_rig(engine__vbuckets=8)
    backfilling(rig, 4)
    peer = Peer.open(rig)
    peer.controls(backfill_order=b"sequential")
    peer.send(*(stream_request(n) for n in range(4)))
    peer.drain()
    order = [each.vbucket for each in items(peer.received)]
    assert order == sorted(order)
    assert len(order) == 4 * 30


def test_all_connections_together_have_so_many_permits() -> None:
    rig = upr_rig(engine__vbuckets=8, upr__backfills=3)
    backfilling(rig, 8)
    peers = [Peer.open(rig, b"%d" % n) for n in range(3)]
    for peer in peers:
        peer.send(*(stream_request(n) for n in range(8)))
    most = 0
    for _ in range(10_000):
        for peer in peers:
            peer.turn(1_500)
        used = rig.services.upr.backfills.used
        most = max(most, used)
        assert used == sum(map(reading, peers)) <= 3
        if all(len(seqnos(peer.received)) == 240 for peer in peers):
            break
    assert most == 3
    assert [len(seqnos(peer.received)) for peer in peers] == [240] * 3
    assert rig.services.upr.backfills.used == 0


def test_a_connection_with_many_backfills_leaves_room_to_others() -> None:
    rig = upr_rig(engine__vbuckets=64, upr__backfills=1)
    backfilling(rig, 64)
    greedy, modest = Peer.open(rig, b"greedy"), Peer.open(rig, b"modest")
    greedy.send(*(stream_request(n) for n in range(64)))
    greedy.turn()
    modest.send(stream_request(0))
    modest.turn()
    turns = 0
    while len(seqnos(modest.received)) < 30:
        greedy.turn()
        modest.turn()
        turns += 1
        assert turns < 20
    assert len(seqnos(greedy.received)) < 10 * 30
    greedy.drain()
    assert len(seqnos(greedy.received)) == 64 * 30


def test_who_was_called_and_takes_no_permit_holds_nobody_up() -> None:
    rig = upr_rig(engine__vbuckets=8, upr__backfills=1)
    backfilling(rig, 2)
    first, stuck, third = (Peer.open(rig, name) for name in (b"1", b"2", b"3"))
    first.send(stream_request(0))
    first.turn(1_000)
    stuck.send(stream_request(0))
    stuck.turn()
    third.send(stream_request(0), stream_request(1))
    third.turn()
    first.drain()  # the stuck one is called, and its transport takes nothing
    third.drain()
    assert len(seqnos(third.received)) == 60
    stuck.drain()
    assert len(seqnos(stuck.received)) == 30


def test_the_giver_goes_on_when_those_who_were_called_do_not_come() -> None:
    rig = upr_rig(engine__vbuckets=8, upr__backfills=1)
    backfilling(rig, 2)
    first, stuck = Peer.open(rig, b"1"), Peer.open(rig, b"2")
    first.send(stream_request(0), stream_request(1))
    first.turn(1_000)
    stuck.send(stream_request(0))
    stuck.turn()
    first.drain()
    assert len(seqnos(first.received)) == 30
    first.session.tick(1.0)
    first.drain()
    assert len(seqnos(first.received)) == 60


@pytest.mark.parametrize("how", ["close", "lose", "state", "fail", "give up"])
def test_a_permit_comes_back_however_the_reading_ends(how: str) -> None:
    rig = upr_rig(engine__vbuckets=8, upr__backfills=1)
    backfilling(rig, 2)
    first, second = Peer.modern(rig, b"1"), Peer.open(rig, b"2")
    first.send(stream_request(0))
    first.turn(1_000)
    assert reading(first) == 1
    second.send(stream_request(1))
    assert seqnos(second.turn()) == []
    if how == "close":
        first.say(frame(CLOSE_STREAM))
    elif how == "lose":
        first.lose()
    elif how == "state":
        rig.bucket.set_state(0, DEAD)
    elif how == "fail":
        for view in list(rig.store._views):
            view.close()
        first.turn()
    else:
        rig.services.upr.release_views()
    second.drain()
    assert len(seqnos(second.received)) == 30
    assert rig.services.upr.backfills.used == 0


def test_a_stream_that_waits_for_a_permit_can_be_closed(rig: Rig) -> None:
    hub = rig.services.upr
    backfilling(rig, 2)
    hub.backfills.used = hub.backfills.limit
    peer = Peer.open(rig)
    peer.stream(0)
    peer.stream(1)
    assert peer.ask(frame(CLOSE_STREAM)).status == OK
    hub.backfills.free(lambda: False)
    assert seqnos(peer.drain(), 0) == []
    assert len(seqnos(peer.received, 1)) == 30


def test_memory_needs_no_permit(rig: Rig) -> None:
    hub = rig.services.upr
    hub.backfills.used = hub.backfills.limit
    fill(rig, 0, 3)
    peer = Peer.open(rig)
    assert seqnos(peer.stream(0)) == [1, 2, 3]
    write(rig, 0, b"k")
    assert seqnos(peer.drain()) == [4]
