"""Stale documents and the right to recompute them: one client is told to, the others are not."""

from __future__ import annotations

import pytest

from tests.kv.harness import Rig, talk
from uprmc.engine.bucket import STALE, WON, MetaMarks
from uprmc.model import Item


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    talk(rig.text(), b"set m 3 0 2\r\nhi\r\n")
    return rig


def cas_of(rig: Rig, key: bytes) -> int:
    item = rig.item(key)
    assert item is not None
    return item.cas


# --- the table ----------------------------------------------------------------------------------


def item(key: bytes, cas: int) -> Item:
    return Item(key, b"", 0, 0, cas, 1, 1)


def test_a_mark_belongs_to_one_version() -> None:
    marks = MetaMarks()
    marks.put(item(b"a", 5), STALE)
    assert marks.of(item(b"a", 5)) == STALE
    assert marks.of(item(b"b", 5)) == 0
    assert marks.of(item(b"a", 6)) == 0
    assert len(marks) == 0


def test_a_mark_can_be_taken_away() -> None:
    marks = MetaMarks()
    marks.put(item(b"a", 5), STALE | WON)
    marks.put(item(b"a", 5), 0)
    assert marks.of(item(b"a", 5)) == 0
    assert len(marks) == 0


def test_the_oldest_mark_makes_room() -> None:
    marks = MetaMarks(limit=2)
    for key in (b"a", b"b", b"a", b"c"):
        marks.put(item(key, 1), WON)
    assert len(marks) == 2
    assert [marks.of(item(key, 1)) for key in (b"a", b"b", b"c")] == [WON, 0, WON]


def test_marks_can_be_cleared() -> None:
    marks = MetaMarks()
    marks.put(item(b"a", 1), WON)
    marks.clear()
    assert marks.of(item(b"a", 1)) == 0


# --- stale --------------------------------------------------------------------------------------


def test_an_invalidated_document_is_served_as_stale_and_one_client_wins(rig: Rig) -> None:
    session = rig.text()
    old = cas_of(rig, b"m")
    assert talk(session, b"md m I T30 k O3\r\n") == b"HD km O3\r\n"
    new = cas_of(rig, b"m")
    assert new > old
    assert talk(session, b"mg m c t f v\r\nmg m c t f v\r\n") == (
        b"VA 2 c%d t30 f3 X W\r\nhi\r\nVA 2 c%d t30 f3 Z X\r\nhi\r\n" % (new, new)
    )
    assert talk(session, b"get m\r\n") == b"VALUE m 3 2\r\nhi\r\nEND\r\n"


def test_invalidating_again_lets_another_client_win(rig: Rig) -> None:
    replies = talk(rig.text(), b"md m I q\r\nmg m\r\nmg m\r\nmd m I\r\nmg m\r\n")
    assert replies == b"HD X W\r\nHD Z X\r\nHD\r\nHD X W\r\n"


def test_invalidating_keeps_the_expiry_time_unless_told_otherwise(rig: Rig) -> None:
    talk(rig.text(), b"touch m 50\r\nmd m I\r\n")
    assert talk(rig.text(), b"mg m t\r\n") == b"HD t50 X W\r\n"
    assert talk(rig.text(), b"md m I T0\r\nmg m t\r\n") == b"HD\r\nHD t-1 X W\r\n"


@pytest.mark.parametrize(
    "write",
    [
        b"set m 0 0 1\r\nx\r\n",
        b"ms m 1\r\nx\r\n",
        b"append m 0 0 1\r\nx\r\n",
        b"delete m\r\nset m 0 0 1\r\nx\r\n",
        b"flush_all noreply\r\nset m 0 0 1\r\nx\r\n",
    ],
)
def test_a_write_makes_the_document_fresh(rig: Rig, write: bytes) -> None:
    session = rig.text()
    talk(session, b"md m I\r\n" + write)
    assert talk(session, b"mg m\r\n") == b"HD\r\n"


def test_a_touch_leaves_a_document_stale(rig: Rig) -> None:
    assert talk(rig.text(), b"md m I\r\ntouch m 99\r\nmg m t\r\nmg m T50 t\r\n") == (
        b"HD\r\nTOUCHED\r\nHD t99 X W\r\nHD t50 Z X\r\n"
    )


def test_what_was_made_from_an_older_version_may_be_stored_as_stale(rig: Rig) -> None:
    session = rig.text()
    old = cas_of(rig, b"m")
    talk(session, b"set m 0 0 1\r\nn\r\n")
    assert talk(session, b"ms m 1 C%d\r\no\r\n" % old) == b"EX\r\n"
    assert talk(session, b"ms m 1 C%d I\r\no\r\n" % old) == b"HD\r\n"
    assert talk(session, b"mg m v\r\nmg m v\r\n") == b"VA 1 X W\r\no\r\nVA 1 Z X\r\no\r\n"


def test_what_was_made_from_the_present_version_is_stored_as_fresh(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"ms m 1 C%d I\r\nn\r\n" % cas_of(rig, b"m")) == b"HD\r\n"
    assert talk(session, b"mg m v\r\n") == b"VA 1\r\nn\r\n"


def test_a_stale_store_does_not_let_a_second_client_win(rig: Rig) -> None:
    session = rig.text()
    old = cas_of(rig, b"m")
    replies = talk(session, b"md m I\r\nmg m\r\nms m 1 MR C%d I\r\no\r\nmg m\r\n" % old)
    assert replies == b"HD\r\nHD X W\r\nHD\r\nHD Z X\r\n"


@pytest.mark.parametrize(
    ("flags", "reply"),
    [(b"MA I C1", b"EX"), (b"ME I C1", b"NS"), (b"I", b"HD"), (b"I C99999999999999999999", None)],
)
def test_invalidate_on_other_stores_changes_nothing(
    rig: Rig, flags: bytes, reply: bytes | None
) -> None:
    session = rig.text()
    answer = talk(session, b"ms m 1 " + flags + b"\r\nx\r\n")
    assert answer == (reply or b"CLIENT_ERROR bad token in command line format") + b"\r\n"
    assert talk(session, b"mg m\r\n") == b"HD\r\n"


def test_a_stale_store_of_a_missing_document_is_not_found(rig: Rig) -> None:
    assert talk(rig.text(), b"ms nk 1 I C1\r\nx\r\n") == b"NF\r\n"


# --- recache and vivify -------------------------------------------------------------------------


def test_when_a_document_ends_soon_one_client_wins(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"touch m 10\r\n")
    assert talk(session, b"mg m R10 t\r\nmg m R5 t\r\n") == b"HD t10\r\n" * 2
    assert talk(session, b"mg m R11 t\r\nmg m R11 t\r\nmg m\r\n") == (
        b"HD t10 W\r\nHD t10 Z\r\nHD Z\r\n"
    )


def test_what_never_ends_is_not_recached(rig: Rig) -> None:
    assert talk(rig.text(), b"mg m R30 t\r\n") == b"HD t-1\r\n"


def test_a_miss_may_make_an_empty_document_and_one_client_fills_it(rig: Rig) -> None:
    session = rig.text()
    assert talk(session, b"mg v N30 v t f s\r\nmg v N30 v t f s\r\n") == (
        b"VA 0 t30 f0 s0 W\r\n\r\nVA 0 t30 f0 s0 Z\r\n\r\n"
    )
    assert talk(session, b"get v\r\n") == b"VALUE v 0 0\r\n\r\nEND\r\n"
    assert talk(session, b"ms v 2\r\nhi\r\nmg v N30 v t\r\n") == b"HD\r\nVA 2 t-1\r\nhi\r\n"


def test_a_vivified_document_is_answered_even_when_quiet(rig: Rig) -> None:
    assert talk(rig.text(), b"mg v N0 q v k t\r\n") == b"VA 0 kv t-1 W\r\n\r\n"


def test_the_winner_that_never_comes_back_is_forgotten_with_the_document(rig: Rig) -> None:
    session = rig.text()
    talk(session, b"mg v N30\r\n")
    rig.clock.time += 30
    assert talk(session, b"mg v\r\nmg v N30\r\n") == b"EN\r\nHD W\r\n"
