"""What meta commands do beside their replies, which are in ``interop/dialects.txt``."""

from __future__ import annotations

import pytest

from tests.kv.harness import Rig, talk
from uprmc.engine.bucket import STALE, WON, MetaMarks
from uprmc.model import Item


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    talk(rig.text(), b"set m 3 0 2\r\nhi\r\nset n 0 0 2\r\n10\r\n")
    return rig


def cas_of(rig: Rig, key: bytes) -> int:
    item = rig.item(key)
    assert item is not None
    return item.cas


# --- mg -----------------------------------------------------------------------------------------


def test_mg_shows_the_cas(rig: Rig) -> None:
    assert talk(rig.text(), b"mg m c\r\n") == b"HD c%d\r\n" % cas_of(rig, b"m")


# --- ms -----------------------------------------------------------------------------------------


def test_ms_append_too_large_leaves_the_document(rig: Rig) -> None:
    session = rig.text()
    huge = b"ms m 2000000 MA\r\n" + b"x" * 2_000_000 + b"\r\n"
    assert talk(session, huge) == b"SERVER_ERROR object too large for cache\r\n"
    most = rig.settings.kv.max_item_bytes - 50 - 1
    assert talk(session, b"ms m %d MA\r\n%b\r\n" % (most, b"x" * most)) == b"NS\r\n"
    assert talk(session, b"mg m v\r\n") == b"VA 2\r\nhi\r\n"


# --- ma -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "changes"), [(b"T60 N30", 1), (b"N30 T60", 1)])
def test_making_a_counter_is_one_change(rig: Rig, flags: bytes, changes: int) -> None:
    vbucket = rig.bucket.of_key(b"nk")
    before = vbucket.high_seqno
    talk(rig.text(), b"ma nk %b\r\n" % flags)
    assert vbucket.high_seqno - before == changes


# --- me -----------------------------------------------------------------------------------------


def test_me_describes_an_item_without_counting_as_a_use(rig: Rig) -> None:
    session = rig.text()
    line = b"ME m exp=%d la=-1 cas=%d fetch=%b cls=1 size=53\r\n"
    cas = cas_of(rig, b"m")
    assert talk(session, b"me m\r\nme m\r\nme nk\r\n") == line % (-1, cas, b"no") * 2 + b"EN\r\n"
    talk(session, b"gat 60 m\r\n")
    assert talk(session, b"me bQ== b\r\n") == (line % (60, cas, b"yes")).replace(
        b"ME m", b"ME bQ=="
    )


def test_me_of_a_value_on_disk_waits_for_it(rig: Rig) -> None:
    rig.eject(b"m")
    rig.fetch_at_once()
    assert b"size=53" in talk(rig.text(), b"me m\r\n")


# --- marks --------------------------------------------------------------------------------------


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
