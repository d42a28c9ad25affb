"""After `uprmc_stream_requests` one frame asks for many streams; each is judged as if alone."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pytest

from tests.kv.harness import Rig
from tests.upr.peer import (
    MARKER,
    MAX,
    MUTATION,
    OK,
    PRODUCER,
    STREAM_REQUEST,
    Frame,
    Peer,
    frame,
    hello,
    kinds,
    opening,
    stream_request,
    upr_rig,
    write,
)
from uprmc.kv.upr_session import ANSWERED_AT_ONCE
from uprmc.model import VBucketState
from uprmc.protocol.upr_many import STREAM_REQUESTS_MAX_BYTES

STREAM_REQUESTS, NEWEST, MORE = 0xDE, 0x01, 0x01
INVALID, UNKNOWN = 0x04, 0x81
TERMS = 0x5501


class Wanted(NamedTuple):
    """A stream in either encoding."""

    vbucket: int = 0
    start: int = 0
    end: int = MAX
    uuid: int = 0
    flags: int = 0
    opaque: int = 0
    snapshot: tuple[int, int] | None = None
    lease: int = 0
    term: int = 0
    versions: tuple[tuple[int, int], ...] = ()

    def row(self) -> bytes:
        low, high = self.snapshot or (self.start, self.start)
        numbers = (self.vbucket, len(self.versions), self.opaque, self.flags, self.start, self.end)
        row = struct.pack(">HHIIQQQQQQQ", *numbers, self.uuid, low, high, self.lease, self.term)
        return row + b"".join(struct.pack(">QQ", *version) for version in self.versions)

    def alone(self) -> bytes:
        value: dict[str, Any] = {}
        if self.versions:
            value["known_versions"] = [{"id": f"{u:016x}", "seq": s} for u, s in self.versions]
        if self.lease:
            value["lease"] = f"{self.lease:016x}"
        if self.term:
            value["term"] = self.term
        return stream_request(
            self.vbucket,
            self.start,
            self.end,
            uuid=self.uuid,
            snapshot=self.snapshot,
            flags=self.flags,
            opaque=self.opaque,
            value=value or None,
        )


class Told(NamedTuple):
    opaque: int
    status: int
    term: int
    value: bytes


def requests(*wanted: Wanted, flags: int = 0, opaque: int = 7) -> bytes:
    value = b"".join(each.row() for each in wanted)
    extras = struct.pack(">I", flags)
    return frame(STREAM_REQUESTS, extras=extras, value=value, opaque=opaque)


def rows_of(answer: Frame) -> list[Told]:
    assert (answer.is_reply, answer.opcode, answer.status) == (True, STREAM_REQUESTS, OK)
    found, rest = [], answer.value
    while rest:
        opaque, status, size, term = struct.unpack_from(">IHHQ", rest)
        found.append(Told(opaque, status, term, rest[16 : 16 + size]))
        rest = rest[16 + size :]
    return found


def goes_on(answer: Frame) -> bool:
    return bool(struct.unpack(">I", answer.extras)[0] & MORE)


def connected(rig: Rig, name: bytes = b"idx:1", *, terms: bool = True) -> Peer:
    peer = Peer(rig)
    peer.say(hello(0x0B, TERMS) if terms else hello(0x0B), opening(name, PRODUCER))
    peer.controls(uprmc_stream_requests=b"true", uprmc_versions=b"true", uprmc_leases=b"true")
    return peer


def test_answers_precede_the_frames_of_the_streams_that_they_accept() -> None:
    rig = upr_rig()
    write(rig, 0, b"a")
    write(rig, 3, b"b")
    frames = connected(rig).say(requests(Wanted(3, opaque=30), Wanted(0, opaque=40)))
    assert kinds(frames) == [STREAM_REQUESTS, MARKER, MUTATION, MARKER, MUTATION]
    assert not goes_on(frames[0])
    told = rows_of(frames[0])
    assert [(each.opaque, each.status) for each in told] == [(30, OK), (40, OK)]
    assert [each.value[:8] for each in told] == [
        rig.bucket.vbuckets[vbucket].failover_log[0].uuid.to_bytes(8, "big") for vbucket in (3, 0)
    ]
    assert [(each.opaque, each.key) for each in frames if each.opcode == MUTATION] == [
        (30, b"b"),
        (40, b"a"),
    ]


def judged(terms: bool) -> tuple[list[tuple[int, bytes, int]], list[tuple[int, bytes, int]]]:
    """Status, value and term of the same requests, one by one and together, on equal nodes."""
    rig = upr_rig()
    for vbucket in range(4):
        write(rig, vbucket, b"a", b"b")
    rig.bucket.set_state(2, VBucketState.REPLICA)
    rig.bucket.set_state(3, VBucketState.DEAD)
    uuids = [vbucket.failover_log[0].uuid for vbucket in rig.bucket.vbuckets.values()]
    lease, _ = rig.services.upr.leases.acquire([1], 60)
    wanted = [
        Wanted(0, 2, uuid=uuids[0], term=1),
        Wanted(0, 0),
        Wanted(1, 2, uuid=99),
        Wanted(1, 2, uuid=99, versions=((99, 1), (uuids[1], 0))),
        Wanted(1, 2, uuid=99, versions=((98, 1), (uuids[1], 0))),
        Wanted(1, 2, 1, uuid=uuids[1]),
        Wanted(1, 1, uuid=uuids[1], snapshot=(2, 3)),
        Wanted(1, 3, uuid=uuids[1]),
        Wanted(1, 0, lease=lease.id + 1),
        Wanted(1, 0, lease=lease.id),
        Wanted(2, 0, flags=0x10),
        Wanted(2, 2, uuid=uuids[2]),
        Wanted(3),
        Wanted(0x7FFF),
    ]
    numbered = [each._replace(opaque=100 + at) for at, each in enumerate(wanted)]
    one = connected(rig, b"one", terms=terms)
    alone = []
    for each in numbered:
        answer = next(a for a in one.say(each.alone()) if a.is_reply)
        assert (answer.opcode, answer.opaque) == (STREAM_REQUEST, each.opaque)
        term = int.from_bytes(answer.extras, "big")
        alone.append(
            (answer.status, b"" if answer.status not in (OK, 0x23) else answer.value, term)
        )
    together = rows_of(connected(rig, b"many", terms=terms).say(requests(*numbered))[0])
    assert [each.opaque for each in together] == [each.opaque for each in numbered]
    return alone, [(each.status, each.value, each.term) for each in together]


@pytest.mark.parametrize("terms", [True, False])
def test_each_stream_is_judged_as_if_it_had_been_asked_for_alone(terms: bool) -> None:
    alone, together = judged(terms)
    assert alone == together
    assert len({status for status, _, _ in together}) >= 6
    assert any(term for _, _, term in together) is terms


def test_only_the_newest_entry_of_each_log_is_told_if_that_is_asked_for() -> None:
    rig = upr_rig()
    write(rig, 0, b"a")
    rig.bucket.set_state(0, VBucketState.REPLICA)
    rig.bucket.set_state(0, VBucketState.ACTIVE)
    log = rig.bucket.vbuckets[0].failover_log
    assert len(log) == 2
    (whole,) = rows_of(connected(rig, b"a").say(requests(Wanted(0)))[0])
    (newest,) = rows_of(connected(rig, b"b").say(requests(Wanted(0), flags=NEWEST))[0])
    assert whole.value == b"".join(struct.pack(">QQ", *entry) for entry in log)
    assert newest.value == whole.value[:16]


def test_many_streams_get_several_answers_and_others_have_their_turn_in_between() -> None:
    rig = upr_rig()
    many = ANSWERED_AT_ONCE + 1
    write(rig, 0, b"a")
    peer = connected(rig)
    peer.send(requests(*[Wanted(0 if at == 0 else 0x7000, opaque=at) for at in range(many)]))
    first = peer.turn()
    assert kinds(first) == [STREAM_REQUESTS, MARKER, MUTATION][: len(first)]
    assert goes_on(first[0])
    rest = peer.drain()
    last = next(each for each in rest if each.opcode == STREAM_REQUESTS)
    assert not goes_on(last)
    assert [each.opaque for each in rows_of(first[0]) + rows_of(last)] == list(range(many))
    assert kinds([*first, *rest]).count(MUTATION) == 1


def test_what_is_asked_behind_the_requests_is_answered_behind_the_answers() -> None:
    rig = upr_rig()
    peer = connected(rig)
    many = [Wanted(0x7000, opaque=at) for at in range(3 * ANSWERED_AT_ONCE)]
    frames = peer.say(requests(*many), frame(0x0A, opaque=9))
    assert kinds(frames) == [STREAM_REQUESTS] * 3 + [0x0A]


def test_a_connection_that_is_lost_in_between_leaves_no_stream_behind() -> None:
    rig = upr_rig()
    peer = connected(rig)
    peer.send(requests(*[Wanted(0, opaque=at) for at in range(2 * ANSWERED_AT_ONCE)]))
    peer.turn()
    peer.lose()
    vbucket = rig.bucket.vbuckets[0]
    assert (list(vbucket.watchers), list(vbucket.waiting)) == ([], [])


_ONE = Wanted(0).row()
_TOO_LONG = _ONE * (STREAM_REQUESTS_MAX_BYTES // len(_ONE) + 1)
_MALFORMED = {
    "half a row": _ONE + _ONE[:-1],
    "versions that are missing": _ONE + struct.pack(">HH", 0, 2) + _ONE[4:] + bytes(16),
    "half a version": _ONE + struct.pack(">HH", 0, 1) + _ONE[4:] + bytes(15),
    "a term that is too high": _ONE + Wanted(1, term=2**63).row(),
    "too long": _TOO_LONG,
}


@pytest.mark.parametrize("name", _MALFORMED)
def test_malformed_requests_are_refused_as_a_whole(name: str) -> None:
    rig = upr_rig()
    peer = connected(rig)
    answer = peer.ask(frame(STREAM_REQUESTS, extras=bytes(4), value=_MALFORMED[name], opaque=7))
    assert (answer.opcode, answer.status, answer.opaque) == (STREAM_REQUESTS, INVALID, 7)
    assert not peer.side.feed.streams
    assert not peer.closed


def test_a_flag_that_is_not_known_is_refused() -> None:
    answer = connected(upr_rig()).ask(requests(Wanted(0), flags=2))
    assert answer.status == INVALID


def test_without_asking_for_it_the_command_is_not_known() -> None:
    rig = upr_rig()
    for peer in (Peer.open(rig), Peer(rig), Peer.open(rig, b"sink", 0)):
        assert peer.ask(requests(Wanted(0))).status == UNKNOWN
