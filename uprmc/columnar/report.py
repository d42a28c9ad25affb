"""What came of a write: counts of one task, and of all tasks together.

A task's report is its commit message (`sink`), is kept by resumable loads (`load`) and compared by
`restore`: plain values only, and the same through JSON.

Every row is in exactly one of `OUTCOMES`. Note: after a task was tried again its earlier
attempt has written already; those rows are `applied` once more (upsert), `conflicts` (append-meta),
`existed` (insert) or `missing` (delete) in the report of the later one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from uprmc.columnar.errors import BadFile

#: Texts of errors that are kept; the error files have all.
FIRST_ERRORS_MAX = 5

#: The counters that each row is in one of.
OUTCOMES = ("applied", "conflicts", "existed", "missing", "skipped", "errors")


class JsonReport:
    """A dataclass that says what work came to, for programs."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self.to_dict(), sort_keys=True)


@dataclass
class Counts(JsonReport):
    """What tasks and whole writes count."""

    rows: int = 0  # rows seen
    applied: int = 0  # the node took them; in a dry run: it would be asked to
    # append-meta: the version that the node has wins, or is the same one; casColumn: the document
    # has another CAS, or is gone.
    conflicts: int = 0
    existed: int = 0  # insert, casColumn: the same document is there already
    missing: int = 0  # a document to be deleted or replaced is not there
    skipped: int = 0  # no value, and such rows are to be left out
    errors: int = 0  # could not be written
    # requests sent once more: temporary failures, moved vBuckets, lost connections.
    retried: int = 0
    resent: int = 0  # requests sent once more because a node lost what it had answered for
    bytes: int = 0  # of keys and values, of all rows that were not errors in themselves
    seconds: float = 0.0  # from the first row to the end; summed up over tasks
    dry_run: bool = False  # nothing was sent
    first_errors: list[str] = field(default_factory=list)  # what was wrong with the first ones

    @property
    def balanced(self) -> bool:
        """Tell whether each row has come to something."""
        return self.rows == sum(int(getattr(self, name)) for name in OUTCOMES)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave; raises `BadFile` when it is something else."""
        try:
            return cls(**values)
        except TypeError as error:
            raise BadFile(f"that is no {cls.__name__}: {error}") from None

    def summary(self) -> str:
        """Return one line for people; what is nought is left out."""
        verb = "would be written" if self.dry_run else "written"
        words = [f"{self.rows:,} rows, {self.applied:,} {verb}"]
        for name, text in _SUMMARY.items():
            number = getattr(self, name)
            if number:
                words.append(f"{number:,} {text}")
        return ", ".join(words)


_SUMMARY = {
    "conflicts": "the same as what is there, or older",
    "existed": "there already",
    "missing": "not there to delete",
    "skipped": "without value passed over",
    "errors": "with errors",
    "retried": "requests tried again",
    "resent": "requests sent again after a node lost them",
}


@dataclass
class TaskReport(Counts):
    """One task's counts."""

    partition: int = 0  # which task
    attempt: int = 0  # which attempt at it, from 0
    error_file: str | None = None  # where its error rows are; ``None`` if it has no such file


@dataclass
class Report(Counts):
    """The counts of all tasks."""

    tasks: int = 0  # how many there were
    error_files: list[str] = field(default_factory=list)  # where error rows are


_ADDED = tuple(each.name for each in fields(Counts) if each.name not in ("dry_run", "first_errors"))


def merge(reports: Iterable[TaskReport]) -> Report:
    """Return what all tasks did together."""
    whole = Report()
    for each in sorted(reports, key=lambda report: report.partition):
        whole.tasks += 1
        for name in _ADDED:
            setattr(whole, name, getattr(whole, name) + getattr(each, name))
        whole.dry_run = whole.dry_run or each.dry_run
        room = FIRST_ERRORS_MAX - len(whole.first_errors)
        whole.first_errors += each.first_errors[:room]
        if each.error_file:
            whole.error_files.append(each.error_file)
    return whole
