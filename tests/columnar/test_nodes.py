"""Which node has what, and how far it is, as the nodes themselves tell."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from tests.codec.frames import Frame
from tests.columnar.read_peer import FakeNode, refused
from uprmc.client.kv import KvClient
from uprmc.columnar.access import Access
from uprmc.columnar.errors import BadOption, NoVBucket, VBucketsChanged
from uprmc.columnar.nodes import BulkNodes
from uprmc.model import FailoverEntry
from uprmc.protocol.header import encode_response
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr import encode_failover_log
from uprmc.remote.errors import Busy, NodeNonsense, NodeUnreachable


def access(*places: str) -> Access:
    return Access(places, read_timeout_s=5, retries=2, retry_backoff_s=0.001)


@pytest.fixture(scope="module")
def documents(servers: str) -> dict[bytes, int]:
    """Keys and their vBuckets, stored on the node."""
    with KvClient([servers]) as kv:
        stored = {b"document-%d" % n: kv.vbucket_of(b"document-%d" % n) for n in range(500)}
        kv.set_many(dict.fromkeys(stored, b"value"))
        for number in range(50):
            kv.delete(b"document-%d" % number)
    return stored


def test_standings_are_those_of_the_node(servers: str, documents: dict[bytes, int]) -> None:
    with BulkNodes(access(servers)) as nodes:
        found = nodes.standings(items=True)
        assert nodes.vbuckets == 64
        assert nodes.owners == dict.fromkeys(range(64), servers)
        assert sum(each.items for each in found.values()) == 450
        for number in (0, 63):
            in_it = [key for key, vbucket in documents.items() if vbucket == number]
            standing = found[number]
            assert (standing.vbucket, standing.place) == (number, servers)
            assert standing.high_seqno >= len(in_it) > 0
            assert len(standing.log) == 1
        assert nodes.seqnos() == {number: each.high_seqno for number, each in found.items()}


def test_standings_of_some(servers: str) -> None:
    with BulkNodes(access(servers)) as nodes:
        found = nodes.standings([5, 3, 5])
    assert list(found) == [3, 5]
    assert found[3].items == 0


def test_what_was_stored_is_persisted_in_the_end(servers: str, documents: dict[bytes, int]) -> None:
    with BulkNodes(access(servers)) as nodes:
        standing = nodes.standings([5])[5]
        assert 0 <= nodes.persisted(5, standing.log[0][0]) <= standing.high_seqno


def test_a_vbucket_that_there_is_not_is_named(servers: str) -> None:
    with (
        BulkNodes(access(servers)) as nodes,
        pytest.raises(NoVBucket, match="vBucket 64: there are only 64"),
    ):
        nodes.standings([64])
    with (
        FakeNode({0: 1}) as node,
        BulkNodes(access(node.place)) as nodes,
        pytest.raises(NoVBucket, match=f"vBucket 1 is active at none of {node.place}"),
    ):
        nodes.by_place([0, 1])


# --- several --------------------------------------------------------------------------------------


def _log_of(node: FakeNode, *uuids: int) -> None:
    def answer(frame: Frame) -> bytes:
        log = [FailoverEntry(uuid, 0) for uuid in uuids]
        return encode_response(frame.opcode, value=encode_failover_log(log), opaque=frame.opaque)

    node.instead[Opcode.GET_FAILOVER_LOG] = answer


def test_of_two_claims_the_higher_term_is_followed_however_often_the_other_crashed() -> None:
    with FakeNode({0: 9, 1: 1}) as old, FakeNode({0: 5, 2: 1}) as new:
        old.term, new.term = 1, 2
        told: list[tuple[int, ...]] = []

        def hear(frame: Frame) -> bytes:
            told.extend(struct.iter_unpack(">HQQ", frame.value))
            return encode_response(frame.opcode, opaque=frame.opaque)

        old.instead[Opcode.TELL_TERMS] = hear
        _log_of(old, 5, 4, 3, 1)
        _log_of(new, 2, 1)
        for servers in ((old.place, new.place), (new.place, old.place)):
            with BulkNodes(access(*servers)) as nodes:
                assert nodes.owners == {0: new.place, 1: old.place, 2: new.place}
                assert nodes.standings()[0].term == 2
        assert set(told) == {(0, 2, 2), (0, 2, 1)}


def test_a_kept_connection_that_fails_is_no_silent_node() -> None:
    """The right node has restarted; the other one was deposed and has come back."""
    with FakeNode({}) as deposed, FakeNode({0: 5}) as right:
        deposed.term, right.term = 1, 2
        with BulkNodes(access(deposed.place, right.place)) as nodes:
            deposed.high = {0: 9}
            for _ in range(8):
                right.hang_up()
                nodes.refresh()
                assert nodes.owners == {0: right.place}
                assert not nodes.directory.silent
            assert right.connections == 9


def test_a_lower_term_than_is_known_is_not_read_when_the_right_node_is_down() -> None:
    with FakeNode({0: 9}) as deposed, FakeNode({0: 5}) as right:
        deposed.term, right.term = 1, 2
        place = right.place
        with BulkNodes(access(deposed.place, place)) as nodes:
            right.__exit__(None, None, None)
            nodes.refresh()
            assert nodes.owners == {}
            with pytest.raises(NoVBucket, match="term 1, and there is a term 2") as told:
                nodes.by_place([0])
            assert f"no node answers at {place}" in str(told.value)
        remembered = replace(access(deposed.place), terms={0: 2})
        with BulkNodes(remembered) as nodes:
            assert nodes.owners == {}


def test_all_that_are_missing_are_listed() -> None:
    with (
        FakeNode({1: 1}, vbuckets=8) as node,
        BulkNodes(access(node.place)) as nodes,
        pytest.raises(NoVBucket, match=f"vBuckets 0,2-7 are active at none of {node.place}"),
    ):
        nodes.by_place(range(8))


def test_the_map_of_one_node_leads_to_the_others() -> None:
    with FakeNode({0: 1}) as first, FakeNode({1: 1}) as second:
        first.others = [second.place]
        with BulkNodes(access(first.place)) as nodes:
            assert nodes.owners == {0: first.place, 1: second.place}


def test_a_node_that_is_away_has_nothing_and_is_mentioned() -> None:
    with FakeNode({0: 1}) as here, FakeNode({1: 1}) as gone:
        place = gone.place
        here.others = [place]
    with FakeNode({0: 1}) as here, BulkNodes(access(here.place, place)) as nodes:
        assert nodes.owners == {0: here.place}
        with pytest.raises(NoVBucket, match=f"no node answers at {place}"):
            nodes.by_place([1])


def test_nodes_of_two_buckets_are_refused() -> None:
    with (
        FakeNode({0: 1}, vbuckets=4) as one,
        FakeNode({0: 1}, vbuckets=8) as other,
        pytest.raises(VBucketsChanged, match="has 8 vBuckets, not 4"),
    ):
        BulkNodes(access(one.place, other.place))


# --- bad ends -------------------------------------------------------------------------------------


def test_no_node_at_all_is_one_line() -> None:
    with FakeNode({0: 1}) as gone:
        place = gone.place
    with pytest.raises(NodeUnreachable, match=f"no node answers at {place}"):
        BulkNodes(access(place))
    with pytest.raises(BadOption, match="name at least one node"):
        BulkNodes(Access(()))


def test_a_node_that_warms_up_is_asked_again() -> None:
    with FakeNode({0: 1}) as node:
        right = node.instead
        busy = [Status.TEMPORARY_FAILURE, Status.BUSY]

        def answer(frame: Frame) -> bytes:
            if len(busy) == 1:
                del right[Opcode.GET_ALL_VB_SEQNOS]
            return refused(frame, busy.pop())

        right[Opcode.GET_ALL_VB_SEQNOS] = answer
        with BulkNodes(access(node.place)) as nodes:
            assert nodes.owners == {0: node.place}


def test_a_node_that_warms_up_for_ever_is_given_up() -> None:
    with FakeNode({0: 1}) as node:
        node.instead[Opcode.GET_ALL_VB_SEQNOS] = lambda frame: refused(frame, Status.BUSY)
        with pytest.raises(Busy, match="Server too busy"):
            BulkNodes(access(node.place))
        assert node.count(Opcode.GET_ALL_VB_SEQNOS) == 3


def test_a_lost_connection_is_made_again() -> None:
    with FakeNode({0: 1}) as node, BulkNodes(access(node.place)) as nodes:
        answers = node.instead

        def hang_up(frame: Frame) -> None:
            del answers[Opcode.GET_FAILOVER_LOG]

        answers[Opcode.GET_FAILOVER_LOG] = hang_up
        assert nodes.standings()[0].high_seqno == 1
        assert node.connections == 2


@pytest.mark.parametrize(
    ("opcode", "value", "words"),
    [
        (Opcode.GET_ALL_VB_SEQNOS, b"123", "a torn list of seqnos"),
        (Opcode.GET_FAILOVER_LOG, b"123", "a failover log of 3 bytes"),
        (Opcode.GET_FAILOVER_LOG, b"", "a failover log of 0 bytes"),
    ],
)
def test_a_torn_answer_is_protocol_error(opcode: int, value: bytes, words: str) -> None:
    with FakeNode({0: 1}) as node:
        node.instead[opcode] = lambda frame: encode_response(
            frame.opcode, value=value, opaque=frame.opaque
        )
        with pytest.raises(NodeNonsense, match=words), BulkNodes(access(node.place)) as nodes:
            nodes.standings()


def test_a_node_that_speaks_nonsense_is_not_passed_over_for_another() -> None:
    with FakeNode({0: 1}) as good, FakeNode({1: 3}) as bad:
        bad.instead[Opcode.HELLO] = lambda frame: b"HTTP/1.1 400 Bad Request\r\n\r\n"
        with pytest.raises(NodeNonsense, match=f"an HTTP server answers at {bad.place}"):
            BulkNodes(access(good.place, bad.place))
