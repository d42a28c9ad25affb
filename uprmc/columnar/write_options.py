"""How rows are written: plain values that travel to the workers.

`options` turns what a user says into these; `requests`, `rounds` and `writing` obey. Secrets are
not in here but behind `Access`, which says where they are.

What surprises: `retries` counts rounds that brought nothing. Its default does not bite before
`retry_deadline_s` does, because ten tries of at most half a second would be over before a node that
was restarted answers again.

Source: reference spark, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from uprmc.columnar.access import Access
from uprmc.columnar.errors import BadOption

Mode = Literal["upsert", "insert", "append-meta", "delete"]
OnError = Literal["fail", "skip", "file"]
NullValue = Literal["fail", "skip", "delete"]
Durability = Literal["none", "persist"]

MODES: tuple[Mode, ...] = ("upsert", "insert", "append-meta", "delete")
ON_ERROR: tuple[OnError, ...] = ("fail", "skip", "file")
NULL_VALUES: tuple[NullValue, ...] = ("fail", "skip", "delete")
DURABILITIES: tuple[Durability, ...] = ("none", "persist")

#: Requests are held in memory until they are answered: a window is no place for a whole data set.
WINDOW_MAX = 100_000
WINDOW_BYTES_MAX = 1024 * 1024 * 1024

#: Values above this are taken for a mistake, unless the option says otherwise.
VALUE_LIMIT_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True)
class WriteOptions:
    """See the module docstring.

    Attributes:
        access: the nodes.
        mode: upsert; insert (only what is not there); append-meta (versions made elsewhere with
            their own metadata: a replay applies nothing); delete.
        key_column, value_column: where key and value are; text or binary.
        flags_column: flags of upsert and insert; ``None`` = `_flags` if there is such a column,
            otherwise 0.
        ttl_column: seconds that a document lives; NULL or 0 = for ever. ``None`` = `_ttl`.
        exp_column: Unix time that a document dies; not with `ttl_column`. ``None`` = `_exp`, if
            there is no `_ttl`.
        window: requests to a node before it is asked whether all went well.
        window_bytes: the same in bytes; one request may be larger.
        retries: rounds without any progress before it is given up.
        retry_backoff_s: pause after the first of them; it doubles.
        retry_backoff_max_s: up to this.
        retry_deadline_s: seconds without any progress before it is given up.
        on_error: what a row that cannot be written does: ends the task, is counted, or is counted
            and put into a file.
        errors_path: directory of those files.
        max_errors: so many are borne by one task; ``None`` = any number.
        ignore_null: what a row does whose value is NULL.
        rate: rows a second of one task; ``None`` = as fast as it goes.
        dry_run: check and count, send nothing.
        force: append-meta without conflict resolution: what is written wins.
        durability: persist = `finish` returns when the nodes have all of it on disk, and what a
            killed node had lost was sent again.
        value_limit_bytes: longer values are not sent.

    Raises:
        BadOption: a value makes no sense.
    """

    access: Access
    mode: Mode = "upsert"
    key_column: str = "key"
    value_column: str = "value"
    flags_column: str | None = None
    ttl_column: str | None = None
    exp_column: str | None = None
    window: int = 1000
    window_bytes: int = 1024 * 1024
    retries: int = 300
    retry_backoff_s: float = 0.005
    retry_backoff_max_s: float = 0.5
    retry_deadline_s: float = 120.0
    on_error: OnError = "fail"
    errors_path: str | None = None
    max_errors: int | None = None
    ignore_null: NullValue = "fail"
    rate: float | None = None
    dry_run: bool = False
    force: bool = False
    durability: Durability = "none"
    value_limit_bytes: int = VALUE_LIMIT_BYTES

    def __post_init__(self) -> None:
        _among("mode", self.mode, MODES)
        _among("on_error", self.on_error, ON_ERROR)
        _among("ignore_null", self.ignore_null, NULL_VALUES)
        _among("durability", self.durability, DURABILITIES)
        _between("window", self.window, 1, WINDOW_MAX)
        _between("window_bytes", self.window_bytes, 1, WINDOW_BYTES_MAX)
        _between("retries", self.retries, 0, 1_000_000)
        _between("retry_backoff_s", self.retry_backoff_s, 0, 60)
        _between("retry_backoff_max_s", self.retry_backoff_max_s, 0, 600)
        _between("retry_deadline_s", self.retry_deadline_s, 0, 86_400)
        _between("value_limit_bytes", self.value_limit_bytes, 0, 2**31)
        if self.max_errors is not None:
            _between("max_errors", self.max_errors, 0, 2**62)
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise BadOption(f"rate is {self.rate}, not a number of rows a second above 0")
        self._check_together()

    def _check_together(self) -> None:
        if self.on_error == "file" and not self.errors_path:
            raise BadOption("on_error is file: say with errors_path in which directory")
        if self.ttl_column and self.exp_column:
            raise BadOption("a document has a ttl_column or an exp_column, not both")
        if self.mode == "insert" and self.ignore_null == "delete":
            raise BadOption("mode insert deletes nothing: ignore_null cannot be delete")
        if self.force and self.mode != "append-meta":
            raise BadOption(f"force is for mode append-meta, not {self.mode}")
        if self.mode in ("append-meta", "delete"):
            given = self.flags_column or self.ttl_column or self.exp_column
            if given:
                raise BadOption(
                    f"column {given!r} of flags or expiry is for upsert and insert, not {self.mode}"
                )


def _among(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadOption(f"{name} is {value!r}, not one of {', '.join(allowed)}")


def _between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadOption(f"{name} is {value}, not between {least:g} and {most:g}")
