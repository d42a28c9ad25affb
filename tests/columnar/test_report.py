"""Counts of tasks become those of the whole, and survive JSON."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.columnar.errors import BadFile
from uprmc.columnar.report import FIRST_ERRORS_MAX, OUTCOMES, Counts, Report, TaskReport, merge

COUNTERS = [each.name for each in fields(Counts) if each.type == "int"]
REPORTS = st.lists(
    st.builds(
        TaskReport,
        partition=st.integers(0, 99),
        first_errors=st.lists(st.text(max_size=3), max_size=FIRST_ERRORS_MAX),
        error_file=st.one_of(st.none(), st.text(min_size=1, max_size=5)),
        dry_run=st.booleans(),
        **{name: st.integers(0, 10**9) for name in COUNTERS},
    ),
    max_size=6,
)


@given(REPORTS)
def test_the_whole_is_the_sum_of_the_tasks(reports: list[TaskReport]) -> None:
    whole = merge(reports)
    for name in COUNTERS:
        assert getattr(whole, name) == sum(getattr(each, name) for each in reports)
    assert whole.tasks == len(reports)
    assert sorted(whole.error_files) == sorted(r.error_file for r in reports if r.error_file)
    assert len(whole.first_errors) == min(
        FIRST_ERRORS_MAX, sum(len(each.first_errors) for each in reports)
    )
    assert Report.from_dict(json.loads(whole.to_json())) == whole


@given(REPORTS)
def test_a_task_s_report_travels(reports: list[TaskReport]) -> None:
    for each in reports:
        assert pickle.loads(pickle.dumps(each)) == each
        assert TaskReport.from_dict(each.to_dict()) == each


def test_a_report_is_balanced_when_every_row_has_come_to_something() -> None:
    counts = {name: number for number, name in enumerate(OUTCOMES, 1)}
    assert TaskReport(rows=sum(counts.values()), **counts).balanced  # type: ignore[arg-type]
    assert not TaskReport(rows=sum(counts.values()) + 1, **counts).balanced  # type: ignore[arg-type]


def test_what_is_no_report_is_told() -> None:
    with pytest.raises(BadFile, match="TaskReport"):
        TaskReport.from_dict({"rows": 1, "cows": 2})


def test_a_summary_leaves_out_what_is_nought() -> None:
    assert TaskReport(rows=1234, applied=1234).summary() == "1,234 rows, 1,234 written"
    assert "7 with errors" in TaskReport(rows=8, applied=1, errors=7).summary()
