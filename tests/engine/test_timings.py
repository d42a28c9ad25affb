"""Histograms: every duration is in exactly the class that holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.engine.stats import Histogram, Timings


@given(st.lists(st.integers(0, 2**38), max_size=50))
def test_every_duration_is_counted_in_the_class_that_holds_it(durations_us: list[int]) -> None:
    histogram = Histogram()
    for micros in durations_us:
        histogram.add((micros + 0.5) / 1_000_000)
    classes = list(histogram.counts())
    assert classes == sorted(classes)
    for low, high, count in classes:
        assert count == sum(low <= micros < high for micros in durations_us)
    assert sum(count for _, _, count in classes) == len(durations_us)


@pytest.mark.parametrize(
    ("seconds", "low", "high"),
    [
        (0.0, 0, 1),
        (0.000_001_5, 1, 2),
        (0.000_002_5, 2, 4),
        (0.001, 512, 1024),
        (1.0, 524_288, 1_048_576),
        (-5.0, 0, 1),
        (1e9, 2**39, 2**40),
    ],
)
def test_classes_end_at_powers_of_two(seconds: float, low: int, high: int) -> None:
    histogram = Histogram()
    histogram.add(seconds)
    assert list(histogram.counts()) == [(low, high, 1)]


def test_a_reset_forgets_everything() -> None:
    timings = Timings()
    histograms = dict(timings.items())
    assert len(histograms) == 6
    for histogram in histograms.values():
        histogram.add(1.0)
    timings.reset()
    assert not any(list(histogram.counts()) for histogram in histograms.values())
