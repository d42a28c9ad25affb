"""``pytest --acceptance``: which promises of `docs/promises.md` do passing tests show?

A test names the rows it shows: ``@pytest.mark.acceptance("D41", "P13")``. A row counts as shown
when at least one such test passed and no run of that same test failed (a parametrized test is one
test). A row that does not exist is a usage error, so a typing mistake cannot hide one.
"""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from tests.documents import ROOT

_TITLES = {
    "D": "UPR design",
    "P": "UPR protocol",
    "X": "XDCR, purger, high-watermark table",
    "I": "indexing",
    "C": "transitive checkpoints",
}

ROWS: tuple[str, ...] = tuple(
    re.findall(r"(?m)^\| ([DPXIC]\d\d) \|", (ROOT / "docs" / "promises.md").read_text("utf-8"))
)
"""All row ids in the order of the list."""

_PROPERTY = "acceptance"


def rows_of(item: pytest.Item) -> list[str]:
    """The rows a test claims, without repetition; raises `pytest.UsageError` for unknown ones."""
    rows: list[str] = []
    for mark in item.iter_markers("acceptance"):
        for row in mark.args:
            if row not in ROWS:
                raise pytest.UsageError(f"{item.nodeid}: there is no acceptance row {row!r}")
            if row not in rows:
                rows.append(row)
    return rows


class Tally:
    """Outcomes by row and test."""

    def __init__(self) -> None:
        self._passed: defaultdict[str, set[str]] = defaultdict(set)
        self._failed: defaultdict[str, set[str]] = defaultdict(set)
        self._other: defaultdict[str, set[str]] = defaultdict(set)

    def note(self, row: str, test: str, outcome: str) -> None:
        """Count one run; ``outcome`` is pytest's: passed, failed or skipped."""
        kinds = {"passed": self._passed, "failed": self._failed}
        kinds.get(outcome, self._other)[row].add(test)

    def shown_by(self, row: str) -> list[str]:
        """Tests that show the row."""
        return sorted(self._passed[row] - self._failed[row])

    def claimed_by(self, row: str) -> list[str]:
        """Tests that name the row but failed or were skipped."""
        shown = set(self.shown_by(row))
        return sorted((self._failed[row] | self._other[row]) - shown)

    def lines(self) -> list[str]:
        """The report."""
        shown = [row for row in ROWS if self.shown_by(row)]
        missing = [row for row in ROWS if not self.shown_by(row)]
        lines = [f"shown: {len(shown)} of {len(ROWS)}"]
        lines += [f"  {row}  {', '.join(self.shown_by(row))}" for row in shown]
        lines.append(f"not shown: {len(missing)}")
        for letter, title in _TITLES.items():
            rows = [row for row in missing if row[0] == letter]
            if rows:
                lines.append(f"  {title}: {' '.join(rows)}")
        claimed = [row for row in missing if self.claimed_by(row)]
        if claimed:
            lines.append("named by tests that did not pass:")
            lines += [f"  {row}  {', '.join(self.claimed_by(row))}" for row in claimed]
        return lines


_tally_key = pytest.StashKey[Tally]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("acceptance").addoption(
        "--acceptance",
        action="store_true",
        help="list which rows of the acceptance list are shown by passing tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_tally_key] = Tally()
    if config.getoption("--acceptance"):
        config.pluginmanager.register(_Recorder(config.stash[_tally_key]), "acceptance-recorder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        rows = rows_of(item)
        if rows:  # carried by the report, so that it also arrives from xdist's workers
            item.user_properties.append((_PROPERTY, " ".join(rows)))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not config.getoption("--acceptance"):
        return
    terminalreporter.section("acceptance list")
    for line in config.stash[_tally_key].lines():
        terminalreporter.write_line(line)


class _Recorder:
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        test = report.nodeid.partition("[")[0]
        for name, value in report.user_properties:
            if name == _PROPERTY:
                for row in str(value).split():
                    self._tally.note(row, test, report.outcome)
