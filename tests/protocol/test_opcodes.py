"""Names and numbers."""

from __future__ import annotations

import pytest

from uprmc.protocol.opcodes import QUIET, STATUS_TEXT, Opcode, Status


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
    assert all(quiet == loud + "Q" for quiet, loud in quiet_names.items())
    assert set(quiet_names) == {each.name for each in Opcode if each.name.endswith("Q")}
