"""How rows are written: plain values that travel to the workers.

`options` turns what a user says into these; `requests`, `rounds` and `writing` obey. Secrets are
not in here but behind `Access`, which says where they are.

Note: `retries` counts rounds that brought nothing. Its default does not bite before
`retry_deadline_s` does, because ten tries of at most half a second would be over before a node that
was restarted answers again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from uprmc import units
from uprmc.columnar.access import Access
from uprmc.columnar.errors import BadOption
from uprmc.columnar.option import check, choice, option

Mode = Literal["upsert", "insert", "replace", "append-meta", "delete"]
OnError = Literal["fail", "skip", "file"]
OnConflict = Literal["count", "error"]
NullValue = Literal["fail", "skip", "delete"]
Durability = Literal["none", "persist"]

#: Requests are held in memory until they are answered: a window is no place for a whole data set.
WINDOW_MAX = 100_000
WINDOW_BYTES_MAX = 1024 * 1024 * 1024


@dataclass(frozen=True)
class WriteOptions:
    """How rows are written.

    Raises:
        BadOption: a value makes no sense.
    """

    access: Access
    mode: Mode = choice(
        "writeMode",
        ("upsert", "insert", "replace", "append-meta", "delete"),
        "upsert: store documents. insert: store only new ones. replace: store only those that "
        "exist. append-meta: store them with the _rev and _cas of their rows, so that a repeat "
        "changes nothing. delete: remove them.",
        former={"meta": "append-meta"},
    )
    key_column: str = option("keyColumn", units.text, "key", "Name of the column with the keys.")
    value_column: str = option(
        "valueColumn", units.text, "value", "Name of the column with the values."
    )
    flags_column: str | None = option(
        "flagsColumn",
        units.text,
        "",
        "Name of the column with the flags. By default _flags, if there is one.",
    )
    ttl_column: str | None = option(
        "ttlColumn",
        units.text,
        "",
        "Name of the column with the seconds to live; NULL or 0 means no expiry. By default "
        "_ttl, if there is one.",
    )
    exp_column: str | None = option(
        "expColumn",
        units.text,
        "",
        "Name of the column with the time of expiry in seconds since 1970. By default _exp, "
        "if there is one.",
    )
    ttl_s: float | None = option(
        "ttl",
        units.seconds,
        "",
        "Time to live of all documents, such as 300 or 5m, instead of a column.",
        least=1,
        most=2**32 - 1,
    )
    cas_column: str | None = option(
        "casColumn",
        units.text,
        "",
        "Name of a column with the CAS that a document must still have (compare and swap); NULL "
        "or 0 means any. Rows whose document has another CAS count as conflicts.",
    )
    on_conflict: OnConflict = choice(
        "onConflict",
        ("count", "error"),
        "What to do with a row whose document does not have the CAS of casColumn. count: count "
        "it as a conflict. error: treat it as a row that cannot be written.",
    )
    window: int = option(
        "window",
        units.whole,
        "1000",
        "Number of requests to send before waiting for their answers.",
        least=1,
        most=WINDOW_MAX,
    )
    window_bytes: int = option(
        "windowBytes",
        units.size,
        "1m",
        "The same limit in bytes. A single request may be larger.",
        least=1,
        most=WINDOW_BYTES_MAX,
    )
    retries: int = option(
        "retries",
        units.whole,
        "300",
        "Maximum number of consecutive retries without progress.",
        least=0,
        most=1_000_000,
    )
    retry_backoff_s: float = option(
        "retryBackoff",
        units.seconds,
        "0.005",
        "Wait before the first of these retries. It doubles each time, up to 0.5 s.",
        least=0,
        most=60,
    )
    retry_backoff_max_s: float = 0.5
    retry_deadline_s: float = option(
        "retryDeadline",
        units.seconds,
        "120",
        "Stop when no request has succeeded for this long.",
        least=0,
        most=86_400,
    )
    on_error: OnError = choice(
        "onError",
        ("fail", "skip", "file"),
        "What to do with rows that cannot be written. fail: stop the task. skip: count "
        "them. file: count them and write them to errorsPath.",
    )
    errors_path: str | None = option(
        "errorsPath",
        units.text,
        "",
        "Directory for such rows. Workers must be able to write to it.",
    )
    max_errors: int | None = option(
        "maxErrors",
        units.whole,
        "",
        "Stop when more than this many rows could not be written.",
        least=0,
    )
    ignore_null: NullValue = choice(
        "ignoreNullValue",
        ("fail", "skip", "delete"),
        "What to do with rows that have no value. fail: treat them as errors. skip: leave "
        "them out. delete: delete the document.",
    )
    rate: float | None = option(
        "rateLimit",
        units.whole,
        "",
        "Maximum number of rows per second in each task.",
        aliases=("rate",),
    )
    dry_run: bool = option(
        "dryRun", units.switch, "false", "Check and count the rows, but send nothing."
    )
    force: bool = option(
        "force",
        units.switch,
        "false",
        "With append-meta, also overwrite newer versions, at these nodes only: linked clusters "
        "keep theirs.",
    )
    durability: Durability = choice(
        "durability",
        ("persist", "none"),
        "When a task ends. persist: when its documents are on the nodes' disks. none: when "
        "the nodes have accepted them.",
    )
    value_limit_bytes: int = option(
        "valueLimit", units.size, "20m", "Values larger than this are errors.", least=0, most=2**30
    )

    def __post_init__(self) -> None:
        check(self)
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise BadOption(f"rateLimit={self.rate}: say a number of rows a second above 0")
        self._check_together()

    def patient(self) -> WriteOptions:
        """Return the same for tasks that wait for a node which restarts, see `Access`."""
        return replace(self, access=replace(self.access, patience_s=self.retry_deadline_s))

    def _check_together(self) -> None:
        if self.on_error == "file" and not self.errors_path:
            raise BadOption("on_error is file: say with errors_path in which directory")
        if self.ttl_column and self.exp_column:
            raise BadOption("a document has a ttl_column or an exp_column, not both")
        if self.mode == "insert" and self.ignore_null == "delete":
            raise BadOption("mode insert deletes nothing: ignore_null cannot be delete")
        if self.force and self.mode != "append-meta":
            raise BadOption(f"force is for mode append-meta, not {self.mode}")
        if self.ttl_s is not None:
            self._check_ttl(self.ttl_s)
        if self.cas_column and self.mode in ("insert", "append-meta"):
            raise BadOption(f"casColumn is for upsert, replace and delete, not {self.mode}")
        if self.on_conflict == "error" and not self.cas_column:
            raise BadOption("onConflict=error needs casColumn")
        if self.mode in ("append-meta", "delete"):
            given = self.flags_column or self.ttl_column or self.exp_column
            if given:
                raise BadOption(
                    f"column {given!r} of flags or expiry is for upsert, insert and replace, "
                    f"not {self.mode}"
                )

    def _check_ttl(self, ttl_s: float) -> None:
        if ttl_s != int(ttl_s):
            raise BadOption(f"ttl={ttl_s:g}: say seconds without a fraction")
        if self.ttl_column or self.exp_column:
            raise BadOption(f"ttl and {self.ttl_column or self.exp_column} contradict each other")
        if self.mode in ("append-meta", "delete"):
            raise BadOption(f"ttl is for upsert, insert and replace, not {self.mode}")
