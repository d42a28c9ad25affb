"""What a client can pin at most, and what hostile reports change: nothing of others."""

from __future__ import annotations

import struct
from random import Random

import pytest

from tests.upr.peer import EXISTS, INVALID, OK, Peer, Rig, fill, frame, upr_rig
from tests.upr.test_watermarks_on_the_wire import (
    HWT_READ,
    HWT_REPORT,
    REMOVE,
    accepted,
    connected,
    read,
    records,
    report,
    told,
)
from uprmc.upr import registration

#: Lifetimes by kind on the wire: other, xdcr, index, replica, rebalance, backup, spark.
LIFETIMES = (3_600, 3_600, 86_400, 3_600, 900, 691_200, 86_400)


@pytest.fixture(name="rig")
def _rig() -> Rig:
    rig = upr_rig()
    fill(rig, 0, 10)
    return rig


def rows(peer: Peer) -> list[tuple[int | bytes, ...]]:
    answer = peer.ask(read())
    assert answer.status == OK
    return records(answer.value)


@pytest.mark.parametrize(
    ("name", "meta", "status"),
    [
        (b"", b"", INVALID),
        (b"n", b"", OK),
        (b"n" * 64, b"", OK),
        (b"n" * 65, b"", INVALID),
        (b"\x00\xff", b"", OK),
        (b"n", b"m" * 4_096, OK),
        (b"n", b"m" * 4_097, INVALID),
    ],
)
def test_ids_and_meta_logs_have_limits(rig: Rig, name: bytes, meta: bytes, status: int) -> None:
    peer = connected(rig)
    peer.send(report(1, name, meta=meta))
    rig.flush()
    (answer,) = peer.drain()
    assert answer.status == status
    assert [(row[0], row[5]) for row in rows(peer)] == ([(name, meta)] if status == OK else [])
    assert not peer.closed


@pytest.mark.acceptance("X18")
@pytest.mark.parametrize(("kind", "lifetime"), [*enumerate(LIFETIMES)])
def test_a_lifetime_above_that_of_the_kind_is_capped_and_told(
    rig: Rig, kind: int, lifetime: int
) -> None:
    peer = connected(rig)
    assert accepted(peer, report(1, kind=kind, lifetime=lifetime + 1))[2] == lifetime
    assert accepted(peer, report(1, kind=kind, lifetime=2**32 - 1))[2] == lifetime
    assert accepted(peer, report(1, kind=kind, lifetime=lifetime - 1))[2] == lifetime - 1
    assert len(rows(peer)) == 1, "the same id again is the same row"


@pytest.mark.acceptance("X14")
@pytest.mark.parametrize("kind", range(7))
def test_a_stream_client_changes_no_row_of_another_whatever_its_kind(rig: Rig, kind: int) -> None:
    owner, other = connected(rig, b"a"), connected(rig, b"b")
    accepted(owner, report(5, kind=kind))
    before = rows(owner)
    for request in (
        report(4, kind=kind),
        report(6, kind=kind),
        report(5, kind=(kind + 1) % 7),
        report(0, kind=kind, lifetime=1),
        report(5, kind=kind, meta=b"mine"),
        report(0, op=REMOVE),
    ):
        assert told(other, request).status == EXISTS
    assert rows(owner) == before


def test_a_connection_remembers_its_rows_and_none_that_are_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_OWNED_MIN", 20)
    peer = connected(rig)
    for number in range(100):
        for again in range(2):
            accepted(peer, report(5, b"row%d.%d" % (number, again), lifetime=1))
        assert told(peer, report(0, b"row%d.0" % number, op=REMOVE)).status == OK
        rig.clock.time += 2
    (producer,) = rig.services.upr.producers.values()
    assert len(producer.registration._owned) <= 20


def test_bodies_at_random_change_no_row_of_another(rig: Rig) -> None:
    owner = connected(rig, b"a")
    accepted(owner, report(5, b"owned"))
    before = rows(owner)
    for seed in range(300):
        random = Random(seed)
        other = connected(rig, b"b%d" % seed)
        shape = random.choice((0, 1, 15, 16, 17, 23, 24, 25, 40))
        extras = random.randbytes(shape)
        if random.random() < 0.5:
            numbers = random.choice((0, 4, 6, 2**64 - 1)), random.getrandbits(32)
            extras = struct.pack(">QIBBH", *numbers, random.randrange(9), random.randrange(3), 0)
        opcode = random.choice((HWT_REPORT, HWT_REPORT, HWT_READ))
        value = random.randbytes(random.choice((0, 1, 4_096, 4_097)))
        other.send(frame(opcode, key=b"owned", value=value, extras=extras, opaque=7))
        rig.flush()
        other.drain()
        other.lose()
        assert rows(owner) == before, seed
    accepted(owner, report(6, b"owned"))
