"""Offsets as text: equal places, equal text; what is no offset is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.columnar.errors import BackupDamaged, BadFile, BadOption
from uprmc.spark.offsets import (
    BEGINNING,
    BOUNDARIES_MAX,
    Offset,
    OffsetPosition,
    parsed,
    starting_at,
    thinned,
)

seqnos = st.integers(0, 2**63 - 1)


@st.composite
def positions(draw: st.DrawFn) -> OffsetPosition:
    first, seqno, last = sorted(draw(st.lists(seqnos, min_size=3, max_size=3)))
    older = draw(st.lists(st.integers(1, 1000), max_size=BOUNDARIES_MAX, unique=True))
    return OffsetPosition(
        uuid=draw(st.integers(0, 2**64 - 1)),
        seqno=seqno,
        snapshot=draw(st.sampled_from([None, (first, last)])),
        boundaries=tuple(sorted(older, reverse=True)),
        rewound_to=draw(st.none() | seqnos),
        origin=draw(seqnos),
        moved=draw(st.booleans()),
    )


offsets = st.builds(
    Offset, st.just(64), st.dictionaries(st.integers(0, 63), positions()), st.none() | st.text()
)


@given(offsets)
def test_an_offset_comes_back_from_its_text(offset: Offset) -> None:
    found = parsed(offset.to_json())
    assert found.to_json() == offset.to_json()
    assert [found.at(n) for n in range(64)] == [offset.at(n) for n in range(64)]
    assert json.loads(offset.to_json()) == offset.to_dict()


@given(offsets, st.randoms())
def test_equal_offsets_have_equal_text(offset: Offset, chance: random.Random) -> None:
    shuffled = list(offset.positions.items())
    chance.shuffle(shuffled)
    beginnings = {n: BEGINNING for n in range(64) if n not in offset.positions}
    same = replace(offset, positions={**beginnings, **dict(shuffled)})
    assert same.to_json() == offset.to_json()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "null",
        '{"v":1}',
        '{"v":2,"n":8,"vb":{}}',
        '{"v":1,"n":0,"vb":{}}',
        '{"v":1,"n":8,"vb":[]}',
        '{"v":1,"n":8,"vb":{"8":{"u":"1","s":1}}}',
        '{"v":1,"n":8,"vb":{"x":{"u":"1","s":1}}}',
        '{"v":1,"n":8,"vb":{"1":{"s":1}}}',
        '{"v":1,"n":8,"vb":{"1":{"u":"-1","s":1}}}',
        '{"v":1,"n":8,"vb":{"1":{"u":"1","s":-1}}}',
        '{"v":1,"n":8,"vb":{"1":{"u":"1","s":true}}}',
        '{"v":1,"n":8,"vb":{"1":{"u":"1","s":5,"a":6,"e":7}}}',
        '{"v":1,"n":8,"vb":{"1":{"u":"1","s":5,"b":[1,2]}}}',
        '{"v":1,"n":8,"vb":{"1":{"u":"1","s":9,"b":[8,7,6,5,4,3,2]}}}',
        '{"v":1,"n":8,"vb":{"1":{"u":"1","s":9,"z":1}}}',
        '{"v":1,"n":8,"lease":3,"vb":{}}',
    ],
)
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(BadFile, match="UPRMC_FILE offset"):
        parsed(text)


@given(st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.integers()))
def test_anything_else_is_refused_with_our_error(found: Any) -> None:
    with pytest.raises(BadFile):
        parsed(found)


# --- where to begin -------------------------------------------------------------------------------


def test_words_name_the_beginning_and_the_present() -> None:
    assert starting_at(" Earliest ", 8) == Offset(8)
    assert starting_at("latest", 8) is None


def test_short_json_names_places_and_leaves_the_others_at_the_beginning() -> None:
    found = starting_at('{"5": {"u": "0a", "s": 7}}', 8)
    assert found == Offset(8, {5: OffsetPosition(10, 7)})


def test_an_offset_without_its_lease_is_a_place_to_begin() -> None:
    offset = Offset(8, {5: OffsetPosition(10, 7, (3, 9))}, "token")
    assert starting_at(offset.to_json(), 8) == replace(offset, lease=None)


@pytest.mark.parametrize(
    "text", ["{", '{"5": 7}', '{"9": {"u": "a", "s": 1}}', '{"5": {"s": 7}}', "no/such/file"]
)
def test_other_beginnings_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="startingOffsets"):
        starting_at(text, 8)


def test_a_torn_manifest_is_no_beginning(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(BackupDamaged):
        starting_at(str(tmp_path), 8)


# --- boundaries -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1000)))
def test_few_boundaries_stay_the_newest_and_the_oldest_among_them(found: list[int]) -> None:
    kept = thinned(found)
    real = {each for each in found if each}
    assert set(kept) <= real
    assert list(kept) == sorted(kept, reverse=True)
    assert len(kept) == min(len(real), BOUNDARIES_MAX)
    if real:
        assert kept[0] == max(real)
        assert kept[-1] == min(real)


def test_the_gaps_between_boundaries_grow_with_their_age() -> None:
    kept: tuple[int, ...] = ()
    for seqno in range(10, 10_010, 10):
        kept = thinned((seqno, *kept))
    assert kept[0] == 10_000
    assert kept[1] >= 9_900
    assert kept[-1] == 10
    gaps = [newer - older for newer, older in pairwise(kept)]
    assert gaps[0] < gaps[2] < gaps[-1]
