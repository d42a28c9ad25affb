"""GET_VERSION: the question, and what every kind of answer says of a key."""

from __future__ import annotations

import struct

import pytest

from uprmc.consume import undo
from uprmc.errors import RemoteProtocolError
from uprmc.model import Life
from uprmc.protocol.header import ResponseFrame

GET_VERSION = 0xE7
OK, NOT_FOUND, UNKNOWN, LATER = 0x00, 0x01, 0x81, 0x86


def answer(
    seqno: int = 7, life: int = 0, status: int = OK, value: bytes = b"v", datatype: int = 0
) -> ResponseFrame:
    extras = struct.pack(">QQIIB", seqno, 3, 4, 5, life)
    return ResponseFrame(GET_VERSION, status, extras=extras, value=value, cas=9, datatype=datatype)


def test_the_question_names_the_seqno_up_to_which_it_asks() -> None:
    frame = undo.question(12, b"key", 600)
    assert (frame.opcode, frame.vbucket, frame.key) == (GET_VERSION, 12, b"key")
    assert frame.extras == struct.pack(">Q", 600)
    assert undo.question(12, b"key").extras == b"\xff" * 8


def test_a_document_comes_with_all_that_it_has() -> None:
    found = undo.version(b"key", answer(datatype=0x03))
    assert found is not None
    assert found.item is not None
    assert found.seqno == 7
    assert found.item._fields() == (b"key", b"v", 4, 5, 9, 7, 3, 0x03, Life.LIVE)


def test_only_wanted_bits_of_the_datatype_are_kept() -> None:
    found = undo.version(b"key", answer(datatype=0x03), datatypes=0x01)
    assert found is not None
    assert found.item is not None
    assert found.item.datatype == 0x01


@pytest.mark.parametrize("life", [Life.DELETED, Life.EXPIRED])
def test_a_deletion_has_no_value(life: Life) -> None:
    found = undo.version(b"key", answer(life=life))
    assert found is not None
    assert found.item is not None
    assert (found.item.life, found.item.value) == (life, None)


@pytest.mark.parametrize(("extras", "seqno"), [(b"", 0), (struct.pack(">Q", 44), 44), (b"abc", 0)])
def test_of_a_key_that_never_was_the_newest_dropped_deletion_is_told(
    extras: bytes, seqno: int
) -> None:
    found = undo.version(b"key", ResponseFrame(GET_VERSION, NOT_FOUND, extras=extras))
    assert found == undo.Version(seqno, None)


@pytest.mark.parametrize("status", [UNKNOWN, LATER])
def test_a_refusal_says_nothing_of_a_version(status: int) -> None:
    assert undo.version(b"key", ResponseFrame(GET_VERSION, status)) is None


@pytest.mark.parametrize(
    "torn",
    [
        ResponseFrame(GET_VERSION),
        answer(life=9),
        answer(seqno=0),
        answer(seqno=2**63),
    ],
)
def test_what_is_no_answer_is_refused(torn: ResponseFrame) -> None:
    with pytest.raises(RemoteProtocolError):
        undo.version(b"key", torn)
