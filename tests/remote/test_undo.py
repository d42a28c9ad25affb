"""GET_VERSION and what its answers say of a key; the procedure that undoes by it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from uprmc.errors import RemoteProtocolError
from uprmc.model import FailoverEntry, FailoverLog, Life
from uprmc.protocol.header import ResponseFrame
from uprmc.remote import undo

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
    assert found.item is not None
    assert found.seqno == 7
    assert found.item._fields() == (b"key", b"v", 4, 5, 9, 7, 3, 0x03, Life.LIVE, None)


def test_only_wanted_bits_of_the_datatype_are_kept() -> None:
    found = undo.version(b"key", answer(datatype=0x03), datatypes=0x01)
    assert found.item is not None
    assert found.item.datatype == 0x01


@pytest.mark.parametrize("life", [Life.DELETED, Life.EXPIRED])
def test_a_deletion_has_no_value(life: Life) -> None:
    found = undo.version(b"key", answer(life=life))
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
    with pytest.raises(undo.UndoRefused):
        undo.version(b"key", ResponseFrame(GET_VERSION, status))


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


# --- the procedure --------------------------------------------------------------------------------

LOG = (FailoverEntry(0xA, 0),)
BRANCHED = (FailoverEntry(0xB, 3), FailoverEntry(0xA, 0))


class Source:
    """Answers with these logs, one after the other, and notes what it is asked."""

    def __init__(self, *logs: FailoverLog) -> None:
        self.logs = list(logs)
        self.heard: list[str] = []

    def log(self) -> undo.Task:
        self.heard.append("log")
        yield
        return self.logs.pop(0)

    def put_back(self, keys: Sequence[bytes]) -> undo.Task:
        self.heard.append(b" ".join(keys).decode())
        yield

    def run(self, keys: list[bytes], attempts: int = 1) -> undo.Undone | None:
        task = undo.undo(
            self.log,
            lambda log: keys if log == LOG else None,
            self.put_back,
            portion=2,
            attempts=attempts,
        )
        try:
            while True:
                next(task)
        except StopIteration as end:
            result: undo.Undone | None = end.value
            return result


def test_log_keys_above_their_versions_log_again() -> None:
    source = Source(LOG, LOG)
    assert source.run([b"a", b"b", b"c"]) == undo.Undone(LOG, 3)
    assert source.heard == ["log", "a b", "c", "log"]


def test_without_keys_there_is_nothing_to_make_sure_of() -> None:
    source = Source(LOG)
    assert source.run([]) == undo.Undone(LOG, 0)
    assert source.heard == ["log"]


def test_a_log_that_changes_meanwhile_makes_it_begin_again_while_there_are_attempts() -> None:
    source = Source(LOG, BRANCHED, LOG, LOG)
    assert source.run([b"a"], attempts=2) == undo.Undone(LOG, 1)
    assert source.heard == ["log", "a", "log"] * 2
    assert Source(LOG, BRANCHED).run([b"a"]) is None


def test_a_log_of_another_history_than_that_of_the_rollback_puts_nothing_back() -> None:
    source = Source(BRANCHED)
    assert source.run([b"a"], attempts=2) is None
    assert source.heard == ["log"]
