"""Names and numbers."""

from __future__ import annotations

import pytest

from uprmc.protocol.opcodes import (
    QUIET,
    STATUS_TEXT,
    EndReason,
    MarkerFlag,
    Opcode,
    OpenFlag,
    Status,
    StreamFlag,
)


def test_every_status_has_a_body_text() -> None:
    assert set(STATUS_TEXT) == set(Status)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0x0001, b"Not found"),
        (0x0002, b"Data exists for key."),
        (0x0003, b"Too large."),
        (0x0004, b"Invalid arguments"),
        (0x0005, b"Not stored."),
        (0x0006, b"Non-numeric server-side value for incr or decr"),
        (0x0020, b"Auth failure."),
        (0x0081, b"Unknown command"),
        (0x0082, b"Out of memory"),
    ],
)
def test_error_texts_are_memcacheds_own(status: int, text: bytes) -> None:
    assert STATUS_TEXT[status] == text


def test_all_memcached_opcodes_are_there_without_a_gap() -> None:
    assert [opcode for opcode in Opcode if opcode < 0x30] == list(range(0x25))


def test_quiet_names_point_to_the_same_name_without_q() -> None:
    quiet_names = {Opcode(quiet).name: Opcode(loud).name for quiet, loud in QUIET.items()}
    assert all(_without_q(quiet) == loud for quiet, loud in quiet_names.items())
    assert set(quiet_names) == {each.name for each in Opcode if _without_q(each.name) != each.name}


def _without_q(name: str) -> str:
    """The Q stands behind the verb: GETQ, GETQ_META; SEQNO has none."""
    verb, *rest = name.split("_")
    return "_".join((verb.removesuffix("Q"), *rest))


@pytest.mark.parametrize(
    ("member", "number"),
    [
        (Opcode.UPR_OPEN, 0x50),
        (Opcode.UPR_CONTROL, 0x5E),
        (Opcode.BARRIER_ADD, 0xE8),
        (Opcode.SNAPSHOT_END, 0xEC),
        (Status.RANGE_ERROR, 0x22),
        (Status.ROLLBACK, 0x23),
        (EndReason.OK, 0),
        (EndReason.STATE_CHANGED, 2),
        (EndReason.LOST_PRIVILEGES, 8),
        (OpenFlag.DELETE_TIMES, 0x20),
        (StreamFlag.IGNORE_PURGED, 0x80),
        (MarkerFlag.ACK, 0x08),
    ],
)
def test_uprs_numbers_are_the_references(member: int, number: int) -> None:
    assert member == number


def test_the_fifteen_messages_of_upr_have_no_gap() -> None:
    """0x61 is younger; what lies between is of servers with collections and synchronous writes."""
    uprs = [opcode for opcode in Opcode if opcode.name.startswith("UPR_")]
    assert uprs == [*range(0x50, 0x5F), 0x61]
