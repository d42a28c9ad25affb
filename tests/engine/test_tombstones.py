"""Which records are tombstones, and which of them a compaction picks: the same in both forms."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.core import form
from uprmc.model import SEQNO_MAX
from uprmc.record import build, cas_of


@pytest.fixture(scope="module", params=[form.INTERPRETED, form.COMPILED])
def functions(request: pytest.FixtureRequest) -> Any:
    """The module in each form."""
    if request.param == form.COMPILED and form.FORM != form.COMPILED:
        pytest.skip("the compiled core is not in use: no C compiler, or UPRMC_CORE")
    spec = importlib.util.find_spec("uprmc.engine.tombstones")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "FORM", request.param)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pick(functions: Any) -> Any:
    """What picks, in each form."""
    return functions.pick


seqnos = st.integers(1, 9) | st.integers(SEQNO_MAX - 9, SEQNO_MAX)
times = st.integers(0, 9) | st.integers(2**31 - 2, 2**32 - 1)
records = st.lists(st.tuples(seqnos, st.integers(0, 2), times), unique_by=lambda each: each[0]).map(
    sorted
)


@given(
    given=records,
    limit=seqnos,
    before_s=times | st.just(1 << 32),
    upto=seqnos,
    most=st.integers(1, 5),
)
def test_old_tombstones_up_to_the_bounds_are_picked_and_the_others_remembered(
    pick: Any, given: list[tuple[int, int, int]], limit: int, before_s: int, upto: int, most: int
) -> None:
    stored = [
        build((life, 0, at, 3, 1, seqno), b"k-%d" % life, 1, 0, b"") for seqno, life, at in given
    ]
    found: list[tuple[bytes, int]] = []
    start = (0, SEQNO_MAX, SEQNO_MAX)
    after, first_left, oldest_left, above = pick(
        stored, (limit, before_s, upto), most, found, start
    )
    low = [each for each in given if each[0] <= limit]
    dropped = [each for each in low if each[1] and each[2] < before_s and each[0] <= upto][:most]
    end = dropped[-1][0] if len(dropped) == most else SEQNO_MAX
    looked = [each for each in low if each[0] <= end]
    left = [each for each in looked if each[1] and each not in dropped]
    assert found == [(b"k-%d" % life, seqno) for seqno, life, _ in dropped]
    assert after == max((seqno for seqno, _, _ in looked), default=0)
    assert first_left == min((seqno for seqno, _, _ in left), default=SEQNO_MAX)
    assert oldest_left == min((at for _, _, at in left), default=SEQNO_MAX)
    assert above == (len(dropped) < most and len(low) < len(given))


numbers = st.integers(0, 9) | st.integers(2**63 - 2, 2**63 + 2) | st.integers(2**64 - 9, 2**64 - 1)


@given(st.lists(st.tuples(st.integers(0, 2), numbers, st.binary(max_size=9))))
def test_tombstones_and_the_highest_cas_are_found_among_records(
    functions: Any, given: list[tuple[int, int, bytes]]
) -> None:
    stored = [
        build((life, 0, 0, len(key), 1, seqno), key, cas, 0, b"", (1, 2) if seqno % 2 else None)
        for seqno, (life, cas, key) in enumerate(given, 1)
    ]
    assert functions.dead_among(stored) == [
        record for record, (life, _, _) in zip(stored, given, strict=True) if life
    ]
    assert functions.highest_cas(stored) == max(map(cas_of, stored), default=0)
