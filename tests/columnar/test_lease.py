"""Leases over all nodes: acquired together, named by a token, renewed, released."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from interop.server_process import ServerProcess, start_uprmc
from tests.codec.frames import Frame
from tests.columnar.read_peer import UUID, FakeNode, refused
from uprmc.client.kv import KvClient
from uprmc.columnar.access import Access
from uprmc.columnar.errors import BadOption, LeaseEnded, NoVBucket
from uprmc.columnar.lease import (
    BulkLease,
    KeptLease,
    acquire,
    of_token,
)
from uprmc.columnar.nodes import BulkNodes
from uprmc.protocol.header import encode_response
from uprmc.protocol.management import encode_vbucket_seqnos
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr_extensions import LEASE_GRANT_EXTRAS, LeasedVBucket, encode_lease_grant
from uprmc.remote.errors import LeaseRefused, NodeNonsense, NodeUnreachable


def access(*places: str, **more: float) -> Access:
    return Access(places, **{"read_timeout_s": 5, "retries": 2, "retry_backoff_s": 0.001} | more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def one_lease_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node that grants one lease at a time, for at most 40 s."""
    config = tmp_path_factory.mktemp("config") / "uprmc.toml"
    config.write_text("[upr]\nleases = 1\nlease_max_s = 40\n")
    data = tmp_path_factory.mktemp("data")
    with start_uprmc(data, "--vbuckets", "4", "--config", str(config)) as found:
        yield found


# --- a real node ----------------------------------------------------------------------------------


def test_a_lease_tells_what_it_holds(servers: str) -> None:
    with KvClient([servers]) as kv:
        kv.set_many({b"k%d" % n: b"v" for n in range(100)})
    with BulkNodes(access(servers)) as nodes:
        standings = nodes.standings()
    lease = acquire(access(servers), None, 30)
    try:
        assert list(lease.held) == list(range(64))
        for number, held in lease.held.items():
            standing = standings[number]
            assert (held.high_seqno, held.place) == (standing.high_seqno, servers)
            assert held.uuid == standing.log[0][0]
            assert held.purge_seqno == 0
        assert lease.renew() == 30
        assert lease.renew(10) == 10
    finally:
        lease.release()


def test_a_lease_of_some_vbuckets(servers: str) -> None:
    lease = acquire(access(servers), [5, 3], 30)
    assert list(lease.held) == [3, 5]
    assert lease.place_of(3).vbuckets == (3, 5)
    with pytest.raises(LeaseEnded, match="vb=4 is not in the lease"):
        lease.place_of(4)
    lease.release()


def test_who_has_the_token_has_the_lease(servers: str) -> None:
    lease = acquire(access(servers), [5], 30)
    other = of_token(access(servers), lease.token)
    assert (other.seconds, other.grants, other.held) == (30, lease.grants, {})
    assert other.renew() == 30
    other.release()
    with pytest.raises(LeaseEnded, match=r"has no lease .* any more"):
        lease.renew()
    lease.release()  # one that has ended is no error


def test_a_vbucket_that_there_is_not_gets_no_lease(servers: str) -> None:
    with pytest.raises(NoVBucket, match="vBucket 99: there are only 64"):
        acquire(access(servers), [5, 99], 30)


def test_a_lease_is_waited_for_while_others_are_held(one_lease_node: ServerProcess) -> None:
    place = str(one_lease_node.upr)
    first = acquire(access(place), None, 30)
    found: list[BulkLease] = []
    waiting = threading.Thread(target=lambda: found.append(acquire(access(place), None, 30)))
    waiting.start()
    with KvClient([place]) as kv:  # the one that waits has been refused meanwhile, or will be soon
        kv.set(b"k", b"v")
    first.release()
    waiting.join(20)
    assert found[0].renew() == 30
    found[0].release()


def test_a_lease_that_never_becomes_free_is_refused(one_lease_node: ServerProcess) -> None:
    place = str(one_lease_node.upr)
    first = acquire(access(place), None, 30)
    with pytest.raises(LeaseRefused, match=r"Temporary failure .0086. for 0\.3 s; see `stats"):
        acquire(access(place, read_timeout_s=0.3), None, 30)
    first.release()


def test_a_node_may_grant_less_than_was_asked_for(one_lease_node: ServerProcess) -> None:
    lease = acquire(access(str(one_lease_node.upr)), None, 600)
    assert lease.seconds == 40  # so it is renewed in time, by whoever has the token, too
    assert of_token(access(str(one_lease_node.upr)), lease.token).seconds == 40
    assert lease.renew() == 40
    lease.release()


# --- kept leases ----------------------------------------------------------------------------------


class _Renewals:
    """Answers LEASE_RENEW; tells when it was asked so often."""

    def __init__(self, node: FakeNode, *, known: int) -> None:
        self.asked = threading.Semaphore(0)
        self._known = known
        node.instead[Opcode.LEASE_RENEW] = self._answer

    def _answer(self, frame: Frame) -> bytes:
        self.asked.release()
        self._known -= 1
        if self._known < 0:
            return refused(frame, Status.KEY_NOT_FOUND)
        extras = LEASE_GRANT_EXTRAS.pack(7, 1)
        return encode_response(frame.opcode, extras=extras, opaque=frame.opaque)


def test_a_kept_lease_is_renewed_until_it_is_left_and_then_released() -> None:
    with FakeNode({0: 1}) as node:
        renewals = _Renewals(node, known=100)
        with KeptLease(access(node.place), [0], 1) as kept:
            assert kept.token.startswith("lease1;1;")
            for _ in range(3):
                assert renewals.asked.acquire(timeout=10)
            assert not kept.ended
        assert node.count(Opcode.LEASE_RELEASE) == 1


def test_a_kept_lease_that_is_lost_says_so() -> None:
    with FakeNode({0: 1}) as node:
        renewals = _Renewals(node, known=1)
        with KeptLease(access(node.place), [0], 1) as kept:
            assert renewals.asked.acquire(timeout=10)
            assert renewals.asked.acquire(timeout=10)
            kept.join(10)
            assert kept.ended
        assert node.count(Opcode.LEASE_RELEASE) == 0


def test_a_lease_of_somebody_else_is_kept_and_not_released() -> None:
    with FakeNode({0: 1}) as node:
        lease = acquire(access(node.place), [0], 1)
        renewals = _Renewals(node, known=100)
        with KeptLease(access(node.place), lease=lease, release=False):
            assert renewals.asked.acquire(timeout=10)
        assert node.count(Opcode.LEASE_RELEASE) == 0


def test_a_lease_of_somebody_else_is_renewed_at_once() -> None:
    with FakeNode({0: 1}) as node:
        lease = acquire(access(node.place), [0], 600)  # of which 599 seconds may be over
        renewals = _Renewals(node, known=100)
        with KeptLease(access(node.place), lease=lease, release=False):
            assert renewals.asked.acquire(timeout=10)


def test_a_kept_lease_is_left_although_its_node_hangs() -> None:
    with FakeNode({0: 1}) as node:
        hangs, over = threading.Event(), threading.Event()

        def hang(frame: Frame) -> bytes:
            hangs.set()
            over.wait(30)
            return refused(frame, Status.KEY_NOT_FOUND)

        quick = access(node.place, connect_timeout_s=0.1, read_timeout_s=20)
        lease = acquire(quick, [0], 600)
        node.instead[Opcode.LEASE_RENEW] = hang
        began = time.monotonic()
        with KeptLease(quick, lease=lease, release=False):
            assert hangs.wait(10)
        assert time.monotonic() - began < 10
        over.set()


# --- several nodes, bad ones ----------------------------------------------------------------------


def test_a_lease_spans_nodes_and_one_refusal_releases_the_rest() -> None:
    with FakeNode({0: 1, 2: 5}) as one, FakeNode({1: 3}) as two:
        both = access(one.place, two.place)
        lease = acquire(both, None, 60)
        assert [grant.vbuckets for grant in lease.grants] == [(0, 2), (1,)]
        assert {number: each.high_seqno for number, each in lease.held.items()} == {
            0: 1, 1: 3, 2: 5,
        }  # fmt: skip
        two.instead[Opcode.LEASE_RENEW] = lambda frame: encode_response(
            frame.opcode, extras=LEASE_GRANT_EXTRAS.pack(7, 20), opaque=frame.opaque
        )
        assert lease.renew() == 20, "the least that a node grants"
        two.instead[Opcode.LEASE_ACQUIRE] = lambda frame: refused(frame, Status.UNKNOWN_COMMAND)
        with pytest.raises(LeaseRefused, match=f"{two.place} has no leases"):
            acquire(both, None, 60)
        assert one.count(Opcode.LEASE_RELEASE) == 1


def test_a_node_that_does_not_ask_who_reads_is_not_told() -> None:
    with FakeNode({0: 1}) as new, FakeNode({1: 3}) as old:
        old.instead[Opcode.LEASE_ACQUIRE] = lambda frame: (
            refused(frame, Status.INVALID_ARGUMENTS) if frame.key else _granted(frame)
        )
        assert len(acquire(access(new.place, old.place), None, 60, b"me").grants) == 2
        assert [each.key for each in new.requests(Opcode.LEASE_ACQUIRE)] == [b"me"]
        assert [each.key for each in old.requests(Opcode.LEASE_ACQUIRE)] == [b"me", b""]


def _granted(frame: Frame) -> bytes:
    extras = LEASE_GRANT_EXTRAS.pack(7, 60)
    value = encode_lease_grant([LeasedVBucket(1, UUID, 3, 0)])
    return encode_response(frame.opcode, extras=extras, value=value, opaque=frame.opaque)


def test_a_vbucket_that_moves_meanwhile_is_looked_for_again() -> None:
    with FakeNode({0: 1}) as old, FakeNode({}) as new:

        def moved(frame: Frame) -> bytes:
            old.high.clear()
            new.high[0] = 1
            return refused(frame, Status.NOT_MY_VBUCKET)

        old.instead[Opcode.LEASE_ACQUIRE] = moved
        lease = acquire(access(old.place, new.place), [0], 60)
        assert [grant.place for grant in lease.grants] == [new.place]


def test_a_node_that_is_away_keeps_nobody_from_renewing_at_the_others() -> None:
    with FakeNode({0: 1}) as one, FakeNode({1: 3}) as two:
        lease = acquire(access(one.place, two.place), None, 60)
        one.instead[Opcode.LEASE_RENEW] = lambda frame: None  # it hangs up
        with pytest.raises(NodeUnreachable):
            lease.renew()
        assert two.count(Opcode.LEASE_RENEW) == 1
        two.instead[Opcode.LEASE_RENEW] = lambda frame: refused(frame, Status.KEY_NOT_FOUND)
        with pytest.raises(LeaseEnded, match=two.place):  # that is for good
            lease.renew()
        assert lease.only([0]).grants == lease.grants[:1]


def test_a_vbucket_whose_node_restarts_is_waited_for() -> None:
    with FakeNode({0: 1}) as one, FakeNode({1: 3}) as two:
        warming = iter([True, True, True, True])

        def seqnos(frame: Frame) -> bytes:
            if next(warming, False):
                return refused(frame, Status.TEMPORARY_FAILURE)
            return encode_response(
                frame.opcode, value=encode_vbucket_seqnos([(1, 3)]), opaque=frame.opaque
            )

        two.instead[Opcode.GET_ALL_VB_SEQNOS] = seqnos
        lease = acquire(access(one.place, two.place, retries=10), [0, 1], 60)
        assert [grant.place for grant in lease.grants] == [one.place, two.place]


@pytest.mark.parametrize("value", [b"123", b""])
def test_a_torn_lease_is_protocol_error(value: bytes) -> None:
    with FakeNode({0: 1}) as node:
        node.instead[Opcode.LEASE_ACQUIRE] = lambda frame: encode_response(
            frame.opcode, extras=LEASE_GRANT_EXTRAS.pack(7, 60), value=value, opaque=frame.opaque
        )
        with pytest.raises(NodeNonsense, match=r"a lease of other|a torn lease"):
            acquire(access(node.place), [0], 60)


def test_renewing_where_nobody_is_is_unreachable() -> None:
    with FakeNode({0: 1}) as node:
        lease = acquire(access(node.place), [0], 60)
    with pytest.raises(NodeUnreachable):
        lease.renew()
    lease.release()


def test_what_is_no_token_of_a_lease_is_said() -> None:
    with pytest.raises(BadOption, match="is no token"):
        of_token(access(), "lease1;60;a")


@pytest.mark.parametrize("seconds", [0, -1, 2**32, float("nan")])
def test_a_lifetime_that_makes_no_sense_is_said(seconds: float) -> None:
    with pytest.raises(BadOption, match="leaseSeconds="):
        acquire(access("a:1"), None, seconds)
