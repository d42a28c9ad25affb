"""The stand-alone adapter's upstream: any producer, old or new, good or bad, as a `pull`."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.consumer_world import ACTIVE, DEAD, REPLICA, fail_over, node, replicate, standby
from tests.client.consumer_world import write as store
from tests.client.fake_producer import FakeProducer, accepted, pairs, rollback
from tests.client.tap_world import Joined
from tests.contents import table_of
from tests.upr import peer
from tests.upr.peer import Frame, frame, marker, mutation, response, write
from uprmc.client.tap_upstream import NAME_MAX_BYTES, FramePasser, RemoteUpstream, connection_name
from uprmc.model import FailoverEntry, Item, Life, SnapshotRange
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote.stream import StreamState
from uprmc.tap_adapter.upstream import Upstream, UpstreamVBucket

STAT, VERSION = 0x10, 0xE7


def serves(upstream: Upstream) -> Upstream:
    """The type checker's word that it is one."""
    return upstream


# --- a real node ----------------------------------------------------------------------------------


def test_a_survey_tells_states_seqnos_and_histories() -> None:
    rig = node(100)
    write(rig, 0, b"a", b"b")
    rig.bucket.set_state(1, REPLICA)
    rig.bucket.set_state(2, DEAD)
    joined = Joined(rig)
    uuid = rig.bucket.vbuckets[0].failover_log[0].uuid
    found = joined.survey()
    assert found[0] == UpstreamVBucket(ACTIVE, 2, uuid)
    assert found[1].state == REPLICA
    assert sorted(found) == [0, 1, 3]
    assert sorted(joined.survey([3, 0, 9])) == [0, 3]
    assert joined.survey([9]) == {}
    assert serves(joined.upstream).closed == ""


def test_what_is_asked_before_the_connection_is_made_waits() -> None:
    rig = node(100)
    write(rig, 0, b"a")
    joined = Joined(rig, connect=False)
    found: list[dict[int, UpstreamVBucket]] = []
    joined.upstream.survey([0], found.append)
    assert found == []
    joined.connect()
    assert found[0][0].high_seqno == 1
    assert joined.woken


def test_a_stream_comes_as_the_frames_that_the_node_sent() -> None:
    rig = node(100)
    write(rig, 0, b"a", b"b", value=b"x" * 100)
    joined = Joined(rig)
    ((status, log),) = joined.open(0, opaque=77, end=2)
    assert status == Status.SUCCESS
    assert log == pairs(*rig.bucket.vbuckets[0].failover_log)
    frames = joined.drain()
    assert peer.kinds(frames) == [peer.MARKER, peer.MUTATION, peer.MUTATION, peer.STREAM_END]
    assert {each.opaque for each in frames} == {77}
    assert [each.key for each in frames[1:3]] == [b"a", b"b"]
    assert frames[1].value == b"x" * 100


def test_a_mutation_is_two_pieces_so_that_nothing_need_be_cut_again() -> None:
    rig = node(100)
    write(rig, 0, b"key", value=b"value")
    joined = Joined(rig)
    joined.open(0)
    joined.drain()
    at = joined.pieces.index(b"keyvalue")
    assert len(joined.pieces[at - 1]) == 24 + 31


def test_live_changes_and_deletions_come_and_wake_the_adapter() -> None:
    rig = node(100)
    joined = Joined(rig)
    joined.open(0)
    joined.drain()
    woken = joined.woken
    store(rig, 0, a="1")
    store(rig, 0, a="")
    joined.settle()
    assert joined.woken > woken
    assert peer.seqnos(joined.drain())[-1] == 2
    assert joined.frames[-1].opcode == peer.DELETION


def test_without_values_only_keys_come() -> None:
    rig = node(100)
    write(rig, 0, b"a", value=b"x" * 1000)
    joined = Joined(rig, values=False)
    joined.open(0)
    (item,) = peer.items(joined.drain())
    assert (item.key, item.value) == (b"a", b"")


def test_a_dead_vbucket_is_refused_and_the_connection_goes_on() -> None:
    rig = node(100)
    rig.bucket.set_state(1, DEAD)
    joined = Joined(rig)
    assert joined.open(1)[0][0] == Status.NOT_MY_VBUCKET
    assert joined.open(0)[0][0] == Status.SUCCESS


def test_a_history_that_has_branched_is_told_with_its_seqno() -> None:
    first, second = node(100), standby(300)
    write(first, 0, b"a", b"b")
    replicate(first, second)
    uuid = first.bucket.vbuckets[0].failover_log[0].uuid
    write(first, 0, b"lost")
    fail_over(first, second)
    joined = Joined(second)
    ((status, value),) = joined.open(0, start=3, uuid=uuid)
    assert (status, value) == (Status.ROLLBACK, struct.pack(">Q", 2))


@pytest.mark.parametrize("buffer_bytes", [1_000, 4_000, 1_000_000])
def test_a_stream_flows_on_however_small_the_buffer(buffer_bytes: int) -> None:
    rig = node(100)
    write(rig, 0, *(b"k%d" % n for n in range(300)), value=b"x" * 100)
    joined = Joined(rig, buffer_bytes=buffer_bytes)
    joined.open(0)
    assert len(peer.items(joined.drain())) == 300


def test_what_nobody_acknowledges_is_bounded_by_the_buffer() -> None:
    rig = node(100)
    write(rig, 0, *(b"k%d" % n for n in range(300)), value=b"x" * 1000)
    joined = Joined(rig, buffer_bytes=20_000)
    joined.open(0)
    received = joined.pull(1 << 30)
    assert 20_000 <= sum(each.size for each in received) < 22_000
    joined.settle()
    assert joined.pull() == []
    joined.upstream.acknowledged(sum(each.size for each in received))
    joined.settle()
    assert joined.pull()


def test_a_closed_stream_gives_nothing_more_and_its_bytes_are_acknowledged() -> None:
    rig = node(100)
    write(rig, 0, *(b"k%d" % n for n in range(100)), value=b"x" * 1000)
    write(rig, 1, *(b"k%d" % n for n in range(100)), value=b"x" * 1000)
    joined = Joined(rig, buffer_bytes=20_000)
    joined.open(0)
    joined.upstream.close_stream(0)
    joined.settle()
    assert joined.pull() == []
    joined.open(1, opaque=8)
    assert len(peer.items(joined.drain(), 1)) == 100
    assert peer.items(joined.frames, 0) == []


def test_a_stream_is_opened_again_where_it_was() -> None:
    rig = node(100)
    write(rig, 0, b"a", b"b")
    uuid = rig.bucket.vbuckets[0].failover_log[0].uuid
    joined = Joined(rig)
    joined.open(0, opaque=7)
    joined.drain()
    joined.upstream.close_stream(0)
    joined.open(0, opaque=9, start=1, uuid=uuid)
    frames = joined.drain()
    assert peer.seqnos(frames) == [2]
    assert {each.opaque for each in frames} == {9}


def test_an_answer_to_a_stream_that_was_closed_meanwhile_is_not_told() -> None:
    joined = Joined(node(100))
    answers = joined.open(0, settle=False)
    joined.upstream.close_stream(0)
    joined.settle()
    assert answers == []


def test_versions_of_a_node_of_ours_are_fetched_in_order() -> None:
    rig = node(100)
    store(rig, 0, a="1", b="2")
    store(rig, 0, b="")
    joined = Joined(rig)
    found = joined.fetch(0, b"b", b"missing", b"a")
    assert found is not None
    gone, never, there = found
    assert (gone.life, gone.value, gone.seqno) == (Life.DELETED, None, 3)
    assert gone.rev > 0
    assert never == Item(b"missing", None, 0, 0, 0, 0, 0, life=Life.DELETED)
    assert there == table_of(rig.bucket.vbuckets[0])[b"a"]
    assert joined.fetch(0) == []


def test_versions_of_a_vbucket_that_is_not_there_cannot_be_had() -> None:
    assert Joined(node(100)).fetch(9, b"a") is None


def test_a_takeover_is_carried_out_by_answers() -> None:
    rig = node(100)
    write(rig, 0, b"a")
    joined = Joined(rig)
    joined.open(0, flags=peer.TAKEOVER)
    states: list[int] = []
    for _ in range(100):
        joined.settle()
        rig.flush()
        for each in joined.pull():
            asks = each.opcode == peer.SET_STATE
            if asks or (each.opcode == peer.MARKER and each.kind & peer.ACK):
                joined.upstream.answer(each.opcode, each.opaque, 0)
            states += [each.state] if asks else []
            if each.opcode == peer.STREAM_END:
                assert each.reason == 0
                assert states == [3, 1]
                assert rig.bucket.vbuckets[0].state == DEAD
                return
    raise AssertionError("the takeover never ends")


def test_a_newer_connection_of_the_name_ends_the_older_one() -> None:
    rig = node(100)
    older = Joined(rig)
    Joined(rig)
    older.settle()
    assert older.producer.session.closing  # type: ignore[union-attr]
    older.upstream.connection_lost()
    assert "upstream:1 ended" in older.upstream.closed
    assert older.lost == [older.upstream.closed]


@given(chop=st.integers(1, 200))
def test_frames_are_the_same_however_the_bytes_are_cut(chop: int) -> None:
    rig = node(100)
    write(rig, 0, b"a", b"bb", value=b"x" * 150)
    store(rig, 0, a="")
    whole, cut = Joined(rig), Joined(rig, name=b"eq_tapq:other", chop=chop)
    for each in (whole, cut):
        each.open(0, end=3)
    assert whole.drain() == cut.drain()


# --- names ----------------------------------------------------------------------------------------


def test_names_of_connections_are_those_that_statistics_of_old_tools_show() -> None:
    assert connection_name(b"replica1") == b"eq_tapq:replica1"
    assert connection_name(b"anon_1", b"@host") == b"eq_tapq:anon_1@host"


def test_a_long_name_is_shortened_and_stays_its_own() -> None:
    longest = connection_name(b"x" * (NAME_MAX_BYTES - 8))
    assert longest == b"eq_tapq:" + b"x" * (NAME_MAX_BYTES - 8)
    one, other = (connection_name(b"x" * 250 + end) for end in (b"", b"y"))
    assert len(one) == len(other) == NAME_MAX_BYTES
    assert one != other


# --- old producers --------------------------------------------------------------------------------


class OldProducer(FakeProducer):
    """Knows what UPR 3.0 knew: no seqnos of all vBuckets, no flags but "producer", few controls."""

    def __init__(self, *, statistics: bool = True) -> None:
        super().__init__(accepted)
        self._statistics = statistics

    def _answer(self, asked: Frame) -> bytes:
        opcode, opaque = asked.opcode, asked.opaque
        if opcode == peer.OPEN and struct.unpack(">II", asked.extras)[1] != peer.PRODUCER:
            return response(opcode, peer.INVALID, opaque=opaque)
        if opcode in (peer.HELLO, 0x48):
            return response(opcode, peer.UNKNOWN, opaque=opaque)
        if opcode == STAT and self._statistics:
            rows = {
                b"vbucket": {"vb_0": "active", "vb_1": "replica", "vb_2": "dead", "vb_": "x"},
                b"vbucket-seqno": {
                    "vb_0:high_seqno": "12",
                    "vb_1:high_seqno": "5",
                    "vb_2:high_seqno": "5",
                    "vb_0:uuid": "7",
                    "vb_9:high_seqno": "none",
                },
            }[asked.key]
            return b"".join(
                frame(STAT, key=k.encode(), value=v.encode(), opaque=opaque, magic=peer.RESPONSE)
                for k, v in [*rows.items(), ("", "")]
            )
        return super()._answer(asked)


def test_an_old_producer_is_surveyed_by_its_statistics() -> None:
    joined = Joined(OldProducer())
    assert joined.survey() == {0: UpstreamVBucket(ACTIVE, 12, 7), 1: UpstreamVBucket(REPLICA, 5, 7)}
    assert sorted(joined.survey([0])) == [0]


def test_a_producer_that_knows_no_flag_for_keys_is_opened_without_it() -> None:
    producer = OldProducer()
    joined = Joined(producer, values=False)
    assert joined.open(0)[0][0] == Status.SUCCESS
    assert len(producer.asked(peer.OPEN)) == 2


def test_a_producer_without_our_commands_is_not_asked_for_versions() -> None:
    producer = OldProducer()
    joined = Joined(producer)
    assert joined.fetch(0, b"a") is None
    assert producer.asked(VERSION) == []


def test_a_producer_that_tells_nothing_of_its_vbuckets_is_given_up() -> None:
    joined = Joined(OldProducer(statistics=False))
    joined.upstream.survey(None, lambda _: None)
    joined.settle()
    assert "does not tell its vBuckets" in joined.upstream.closed


def test_a_producer_that_takes_no_connection_is_told() -> None:
    class Refusing(FakeProducer):
        def _answer(self, asked: Frame) -> bytes:
            if asked.opcode == peer.OPEN:
                return response(peer.OPEN, 0x20, opaque=asked.opaque)
            return super()._answer(asked)

    joined = Joined(Refusing(accepted))
    assert "refuses a UPR connection: Auth failure." in joined.upstream.closed
    assert joined.call.abandoned


# --- bad producers --------------------------------------------------------------------------------


def said(*frames: bytes) -> Joined:
    """A stream of vBucket 0 with opaque 7 that says these frames and is pulled."""
    producer = FakeProducer(lambda asked: accepted(asked, then=b"".join(frames)))
    joined = Joined(producer)
    joined.open(0, opaque=7)
    joined.pull()
    return joined


M = marker(0, 7, 0, 10)

#: Beside what `tests.contracts` has for every face.
BAD = {
    "before a marker": [mutation(0, 7, 1, b"k")],
    "falling after a deletion": [
        M,
        frame(peer.DELETION, key=b"k", extras=struct.pack(">QQH", 3, 1, 0), opaque=7),
        mutation(0, 7, 3, b"k"),
    ],
    "of another vBucket": [M, mutation(1, 7, 1, b"k")],
    "of another vBucket behind a good one": [M + mutation(0, 7, 1, b"k") + mutation(1, 7, 2, b"k")],
    "with other extras": [
        M,
        frame(peer.MUTATION, key=b"k" * 9, extras=struct.pack(">QQ", 1, 1) + bytes(14), opaque=7),
    ],
    "without a key": [M, mutation(0, 7, 1, b"")],
    "with more metadata than value": [M, mutation(0, 7, 1, b"k", b"v", nmeta=2)],
    "torn mutation": [M, frame(peer.MUTATION, key=b"k", extras=b"x" * 30, opaque=7)],
    "torn deletion": [M, frame(peer.DELETION, key=b"k", extras=b"x" * 17, opaque=7)],
    "torn marker": [frame(peer.MARKER, extras=b"x" * 19, opaque=7)],
    "torn end": [frame(peer.STREAM_END, extras=b"x", opaque=7)],
    "torn state": [frame(peer.SET_STATE, extras=b"", opaque=7)],
}


@pytest.mark.parametrize("frames", [pytest.param(v, id=k) for k, v in BAD.items()])
def test_a_producer_that_breaks_the_rules_is_hung_up_on(frames: list[bytes]) -> None:
    joined = said(*frames)
    assert "nonsense" in joined.upstream.closed
    assert joined.upstream.closing
    assert joined.call.abandoned
    assert joined.pull() == []


@pytest.mark.parametrize(
    ("status", "value", "words"),
    [(0, b"x" * 15, "nonsense"), (peer.ROLLBACK, b"x", "rollback of 1 bytes")],
    ids=["failover log", "rollback"],
)
def test_a_torn_answer_to_a_request_for_a_stream_is_hung_up_on(
    status: int, value: bytes, words: str
) -> None:
    torn = FakeProducer(
        lambda asked: response(peer.STREAM_REQUEST, status, opaque=asked.opaque, value=value)
    )
    joined = Joined(torn)
    assert joined.open(0) == []
    assert words in joined.upstream.closed


def test_what_speaks_no_upr_is_hung_up_on() -> None:
    joined = Joined(FakeProducer(rollback), connect=False)
    joined.call.connect()
    joined.upstream.receive_data(b"220 mail.example ESMTP ready, say HELO\r\n")
    assert "no UPR" in joined.upstream.closed


def test_frames_of_a_stream_that_nobody_has_are_dropped_and_acknowledged() -> None:
    producer = FakeProducer(lambda asked: accepted(asked, then=M))
    joined = Joined(producer, buffer_bytes=1_000)
    joined.open(0)
    joined.pull()
    joined.upstream.receive_data(mutation(0, 99, 1, b"k", b"x" * 2_000))
    joined.settle()
    assert joined.pull() == []
    (acked,) = producer.asked(peer.BUFFER_ACK)
    assert struct.unpack(">I", acked.extras)[0] > 2_000


def test_keep_alives_are_answered_and_not_passed_on() -> None:
    joined = said(M)
    joined.upstream.receive_data(frame(peer.NOOP, opaque=5))
    (answer,), _ = peer.split(b"".join(joined.upstream.data_to_send(1 << 16)))
    assert (answer.opcode, answer.opaque, answer.is_reply) == (peer.NOOP, 5, True)
    assert joined.pull() == []


def test_a_producer_without_flow_control_is_read_no_further_than_twice_the_buffer() -> None:
    class Floods(FakeProducer):
        def _answer(self, asked: Frame) -> bytes:
            if asked.opcode == peer.CONTROL:
                return response(peer.CONTROL, peer.INVALID, opaque=asked.opaque)
            return super()._answer(asked)

    joined = Joined(Floods(lambda asked: accepted(asked, then=M)), buffer_bytes=1_000)
    joined.open(0)
    seqno = 0
    while not joined.upstream.input_full:
        seqno += 1
        assert seqno < 10
        joined.upstream.receive_data(mutation(0, 7, seqno, b"k%d" % seqno, b"x" * 500))
    held = sum(each.size for each in joined.pull())
    assert 2_000 < held < 3_500
    assert not joined.upstream.input_full


class Lively(FakeProducer):
    """Grants every control, keep-alives too."""

    def _answer(self, asked: Frame) -> bytes:
        if asked.opcode == peer.CONTROL:
            return response(peer.CONTROL, opaque=asked.opaque)
        return super()._answer(asked)


def test_a_producer_that_falls_silent_is_given_up() -> None:
    joined = Joined(Lively(accepted))
    joined.upstream.tick(100.0)
    joined.upstream.tick(142.0)
    assert joined.upstream.closed == ""
    joined.upstream.tick(142.1)
    assert "silent for 42 s" in joined.upstream.closed


def test_one_that_is_heard_is_not() -> None:
    joined = Joined(Lively(accepted))
    for second in range(200):
        joined.upstream.receive_data(frame(peer.NOOP, opaque=5))
        joined.upstream.tick(100.0 + second)
    assert joined.upstream.closed == ""


def test_one_whom_we_do_not_read_is_not_silent() -> None:
    flood = M + b"".join(mutation(0, 7, n, b"k", b"x" * 1000) for n in range(1, 6))
    joined = Joined(Lively(lambda asked: accepted(asked, then=flood)), buffer_bytes=1_000)
    joined.open(0)
    assert joined.upstream.input_full
    for second in range(200):
        joined.upstream.tick(100.0 + second)
    assert joined.upstream.closed == ""


def test_nobody_at_the_place_is_told() -> None:
    joined = Joined(FakeProducer(rollback), connect=False)
    joined.call.failed("connection refused")
    assert joined.upstream.closed == "the upstream at upstream:1: connection refused"
    assert joined.woken == 1
    assert joined.pull() == []


def test_a_dial_that_fails_at_once_is_told_too() -> None:
    class AtOnce:
        def abandon(self) -> None:
            raise AssertionError("there is nothing to abandon")

    def dial(place: str, make: object, failed: object) -> AtOnce:
        failed("no")  # type: ignore[operator]
        return AtOnce()

    upstream = RemoteUpstream(dial, "upstream:1", b"n", True, lambda: None)
    assert upstream.closed.endswith(": no")
    upstream.close()


def test_after_close_nothing_is_told_any_more() -> None:
    rig = node(100)
    write(rig, 0, b"a")
    joined = Joined(rig)
    answers = joined.open(0, settle=False)
    found: list[object] = []
    joined.upstream.survey(None, found.append)
    joined.upstream.fetch(0, [b"a"], found.append)
    woken = joined.woken
    joined.upstream.close()
    joined.upstream.close()
    joined.upstream.receive_data(response(peer.STREAM_REQUEST, opaque=7, value=pairs((7, 0))))
    joined.upstream.survey(None, found.append)
    joined.open(0, settle=False)
    joined.upstream.close_stream(0)
    joined.upstream.answer(Opcode.UPR_SNAPSHOT_MARKER, 7, 0)
    joined.upstream.acknowledged(1 << 30)
    joined.upstream.tick(1e9)
    joined.upstream.connection_lost()
    assert (answers, found, joined.woken, joined.lost) == ([], [], woken, [])
    assert joined.call.abandoned
    assert joined.upstream.closing


def test_a_callback_may_close_the_upstream() -> None:
    joined = Joined(node(100))
    joined.upstream.survey(None, lambda _: joined.upstream.close())
    joined.settle()
    assert joined.upstream.closing
    assert joined.lost == []


# --- frames alone ---------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=20),
    budget=st.integers(1, 2_000),
    chop=st.integers(1, 500),
)
def test_every_byte_that_was_taken_is_held_until_it_is_pulled(
    sizes: list[int], budget: int, chop: int
) -> None:
    passer = FramePasser("p:1")
    stream = StreamState(0, 7, 0, SnapshotRange(0, 0))
    stream.accept((FailoverEntry(7, 0),))
    passer.streams[7] = stream
    data = marker(0, 7, 0, 1000) + b"".join(
        mutation(0, 7, n + 1, b"k", b"v" * size) for n, size in enumerate(sizes)
    )
    for at in range(0, len(data), chop):
        assert list(passer.take(data[at : at + chop])) == []
    assert passer.held_bytes == len(data)
    pulled: list[bytes] = []
    while size := passer.pull(pulled, budget):
        assert size < budget + 24 + 31 + 1 + 300
    assert b"".join(pulled) == data
    assert passer.held_bytes == passer.dropped_bytes == 0
