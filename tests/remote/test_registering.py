"""The asking side of registration: which reports are built when, and what answers mean."""

from __future__ import annotations

import struct

import pytest

from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.remote import features
from uprmc.remote.registering import Instance, Purged, Registering, kind_number, removal

UUID = 0xABC


def registering(*, granted: bool = True, interval_s: float = 1.0) -> Registering:
    found = Registering(Instance(b"me", kind_number("backup"), 60, b"meta"), interval_s)
    found.granted = granted
    return found


def told(frame: RequestFrame) -> tuple[int, int, int | None]:
    """Return vBucket, watermark and history of a report, checking the rest."""
    assert (frame.opcode, frame.key, frame.value) == (Opcode.HWT_REPORT, b"me", b"meta")
    watermark, lifetime, kind, op, unused = struct.unpack(">QIBBH", frame.extras[:16])
    assert (lifetime, kind, op, unused) == (60, 5, 0, 0)
    uuid = struct.unpack(">Q", frame.extras[16:])[0] if len(frame.extras) > 16 else None
    return frame.vbucket, watermark, uuid


def answer(status: int = 0, extras: bytes = b"") -> ResponseFrame:
    return ResponseFrame(Opcode.HWT_REPORT, status=status, extras=extras)


def ok(lifetime_s: int = 60) -> ResponseFrame:
    return answer(extras=struct.pack(">QQI", 0, 9, lifetime_s))


def begun(one: Registering, vbucket: int = 0, watermark: int = 5) -> None:
    (frame,) = one.register(vbucket, watermark, UUID)
    one.answered(frame, ok())


def test_the_handshake_of_a_registered_consumer_asks_for_watermarks_last() -> None:
    asked = features.PROGRAM.registering().controls()[-2:]
    assert [(each.key, each.value) for each in asked] == [
        (b"uprmc_hwt", b"true"),
        (b"uprmc_hwt_reports", b"true"),
    ]
    assert b"uprmc_hwt" not in features.PROGRAM.asks


def test_a_registration_tells_the_position_with_its_history() -> None:
    (frame,) = registering().register(3, 5, UUID)
    assert told(frame) == (3, 5, UUID)


def test_a_client_without_anything_names_no_history() -> None:
    (frame,) = registering().register(3, 0)
    assert told(frame) == (3, 0, None)


def test_a_node_without_watermarks_is_sent_nothing() -> None:
    one = registering(granted=False)
    assert one.register(0, 5, UUID) == []
    one.reached(0, 9, UUID)
    assert one.due(0.0) == one.rest() == one.remove(0) == []


def test_only_what_has_moved_is_reported_and_only_at_intervals() -> None:
    one = registering()
    for vbucket in (0, 1, 2):
        begun(one, vbucket)
    assert one.due(0.0) == []
    one.reached(2, 9, UUID)
    one.reached(1, 5, UUID)  # where it was
    assert [told(each) for each in one.due(0.1)] == [(2, 9, UUID)]
    one.reached(2, 10, UUID)
    one.reached(2, 11, UUID)
    assert one.due(1.0) == []
    assert [told(each) for each in one.due(1.1)] == [(2, 11, UUID)]


def test_at_the_end_everything_that_moved_is_reported_at_once() -> None:
    one = registering(interval_s=60)
    begun(one)
    one.reached(0, 9, UUID)
    assert len(one.due(0.0)) == 1
    one.reached(0, 10, UUID)
    (frame,) = one.rest()
    assert told(frame) == (0, 10, UUID)
    assert one.unanswered == 2


def test_a_row_that_does_not_move_is_renewed_before_it_expires() -> None:
    one = registering()
    begun(one)
    at = [float(now) for now in range(0, 60, 4) if one.due(float(now))]
    assert at
    assert max(later - sooner for sooner, later in zip([0.0, *at], at, strict=False)) < 30


def test_a_row_without_a_lifetime_is_never_renewed() -> None:
    one = registering()
    (frame,) = one.register(0, 5, UUID)
    one.answered(frame, ok(lifetime_s=0))
    assert not any(one.due(float(now)) for now in range(0, 100_000, 100))


@pytest.mark.parametrize("status", [Status.KEY_EXISTS, Status.OUT_OF_MEMORY, Status.ROLLBACK])
def test_a_refused_report_is_repeated_now_and_then(status: int) -> None:
    one = registering()
    (frame,) = one.register(0, 5, UUID)
    one.answered(frame, answer(status))
    assert 0 not in one.registered
    found = [told(each) for now in range(0, 30, 3) for each in one.due(float(now))]
    assert 1 <= len(found) <= 3
    assert set(found) == {(0, 5, UUID)}


@pytest.mark.parametrize("status", [Status.UNKNOWN_COMMAND, Status.INVALID_ARGUMENTS])
def test_a_node_that_does_not_know_reports_is_sent_no_more(status: int) -> None:
    one = registering()
    (frame,) = one.register(0, 5, UUID)
    one.answered(frame, answer(status))
    one.reached(0, 9, UUID)
    assert one.rest() == one.due(99.0) == []
    assert one.unanswered == 0


def test_a_vbucket_that_has_moved_away_is_reported_no_more() -> None:
    one = registering()
    begun(one)
    one.reached(0, 9, UUID)
    (frame,) = one.due(0.0)
    one.answered(frame, answer(Status.NOT_MY_VBUCKET))
    one.reached(0, 10, UUID)
    assert one.rest() == one.due(99.0) == []


@pytest.mark.acceptance("X19")
def test_the_reason_of_a_refusal_is_kept_until_it_is_registered_again() -> None:
    one = registering()
    (frame,) = one.register(0, 500, UUID)
    one.answered(frame, answer(Status.ROLLBACK, struct.pack(">QQQ", 980, 500, 1_700_000_000)))
    assert one.purged == {0: Purged(980, 500, 1_700_000_000)}
    begun(one, 0, 0)
    assert one.purged == {}


@pytest.mark.parametrize("extras", [b"", b"x", bytes(20), bytes(25)])
def test_extras_that_say_nothing_break_nothing(extras: bytes) -> None:
    one = registering()
    for status in (Status.SUCCESS, Status.ROLLBACK):
        (frame,) = one.register(0, 500, UUID)
        one.answered(frame, answer(status, extras))
    assert one.purged == {}


def test_a_removal_names_the_row_and_nothing_else() -> None:
    (frame,) = registering().remove(7)
    assert frame == removal(b"me", 7)
    assert (frame.vbucket, frame.extras) == (7, struct.pack(">QIBBH", 0, 0, 0, 1, 0))


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no kind 'x': say other, xdcr"):
        kind_number("x")


# --- many vBuckets in one frame -------------------------------------------------------------------


def many(*vbuckets: int) -> tuple[Registering, RequestFrame]:
    one = registering()
    one.many = True
    (frame,) = one.register_all(dict.fromkeys(vbuckets, (5, UUID)))
    return one, frame


def answer_to_many(
    *rows: tuple[int, ...], lifetime_s: int = 60, follows: bool = False
) -> ResponseFrame:
    value = b"".join(struct.pack(">HHQQQQ", *row) for row in rows)
    extras = struct.pack(">II", 60, follows)
    return ResponseFrame(Opcode.HWT_REPORTS, extras=extras, value=value)


def test_many_vbuckets_are_reported_in_one_frame() -> None:
    _, frame = many(1, 2)
    assert (frame.opcode, frame.key) == (Opcode.HWT_REPORTS, b"me")
    assert struct.unpack(">IBBH", frame.extras) == (60, 5, 0, 0)
    row = struct.Struct(">HHQQ4s")
    assert list(row.iter_unpack(frame.value)) == [
        (1, 4, 5, UUID, b"meta"),
        (2, 4, 5, UUID, b"meta"),
    ]


def test_frames_for_many_vbuckets_are_not_longer_than_a_node_reads() -> None:
    one = Registering(Instance(b"me", meta=bytes(4096)))
    one.granted = one.many = True
    frames = one.register_all(dict.fromkeys(range(100), (5, UUID)))
    assert sum(len(frame.value) for frame in frames) == 100 * (20 + 4096)
    assert max(len(frame.value) for frame in frames) <= 131_072


def test_all_that_is_not_refused_is_accepted_once_the_rows_are_on_disk() -> None:
    one, frame = many(1, 2, 3)
    early = answer_to_many((2, Status.ROLLBACK, 0, 980, 500, 1_400_000_000), follows=True)
    assert not one.answered(frame, early)
    assert (one.registered, one.unanswered) == (set(), 1)
    assert one.purged == {2: Purged(980, 500, 1_400_000_000)}
    assert one.answered(frame, answer_to_many())
    assert (one.registered, one.unanswered) == ({1, 3}, 0)
    assert 2 in one.purged


def test_a_node_that_refuses_the_frame_gets_a_frame_for_each_vbucket() -> None:
    one, frame = many(1, 2)
    assert one.answered(frame, ResponseFrame(Opcode.HWT_REPORTS, status=Status.UNKNOWN_COMMAND))
    one.reached(1, 9, UUID)
    one.reached(2, 9, UUID)
    assert [told(each) for each in one.due(1.0)] == [(1, 9, UUID), (2, 9, UUID)]


def test_a_torn_answer_breaks_the_protocol() -> None:
    one, frame = many(1, 2)
    with pytest.raises(RemoteProtocolError):
        one.answered(frame, ResponseFrame(Opcode.HWT_REPORTS, extras=b"x"))
    with pytest.raises(RemoteProtocolError):
        one.answered(frame, ResponseFrame(Opcode.HWT_REPORTS, extras=bytes(8), value=b"x"))


def test_why_deletions_are_gone_is_said_in_words() -> None:
    assert str(Purged(980, 500, 1_400_000_000)) == (
        "purged up to 980, registered at 500, expired at 2014-05-13T16:53:20Z"
    )
    assert str(Purged(980)) == "purged up to 980 (no registration of yours is known)"
