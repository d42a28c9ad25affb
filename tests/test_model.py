"""The plain values: what makes two items equal, and what a changed copy keeps."""

from __future__ import annotations

from typing import Any

import pytest

from uprmc.model import CAS_LOCKED, SEQNO_MAX, Item, Life, Origin, VBucketState

FIELDS: dict[str, Any] = {
    "key": b"k",
    "value": b"body",
    "flags": 7,
    "expiry": 1_700_000_000,
    "cas": 99,
    "seqno": 5,
    "rev": 3,
    "datatype": 1,
    "life": Life.LIVE,
    "nru": 1,
    "origin": Origin(1, 2),
}


def item(**changes: Any) -> Item:
    return Item(**{**FIELDS, **changes})


def test_every_field_is_kept() -> None:
    made = item()
    assert set(FIELDS) == set(Item.__slots__)
    assert {name: getattr(made, name) for name in FIELDS} == FIELDS


@pytest.mark.parametrize("name", sorted(set(FIELDS) - {"nru"}))
def test_items_that_differ_in_any_field_differ(name: str) -> None:
    others = {"key": b"other", "value": b"other", "origin": None}
    other = others[name] if name in others else FIELDS[name] + 1
    assert item() == item()
    assert hash(item()) == hash(item())
    assert item() != item(**{name: other})


def test_the_memory_pagers_hint_is_no_part_of_the_document() -> None:
    assert item(nru=0) == item(nru=3)


def test_an_item_equals_nothing_else() -> None:
    assert item() != tuple(FIELDS.values())
    assert item() != b"k"


@pytest.mark.parametrize("value", [b"brought in", b"", None])
def test_another_value_leaves_everything_else_and_the_original(value: bytes | None) -> None:
    original = item()
    copy = original.with_value(value)
    assert copy == item(value=value)
    assert copy.nru == original.nru
    assert original == item()


def test_an_item_tells_what_it_is() -> None:
    text = repr(item(life=Life.EXPIRED, value=None))
    for part in ("b'k'", "seqno=5", "rev=3", "cas=99", "life=EXPIRED"):
        assert part in text


def test_an_item_has_no_room_for_more() -> None:
    with pytest.raises(AttributeError):
        item().note = "anything"  # type: ignore[attr-defined]


def test_numbers_on_the_wire() -> None:
    assert [state.value for state in VBucketState] == [1, 2, 3, 4]
    assert [life.value for life in Life] == [0, 1, 2]
    assert CAS_LOCKED == SEQNO_MAX == 0xFFFFFFFFFFFFFFFF
