"""The columns of a read, as one constant schema that every batch of it has.

Spark checks the first batch only: a later one that differs dies with a low-level error. So there is
one place where names become types, and everything else asks here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from uprmc import units
from uprmc.columnar.errors import BadOption
from uprmc.columnar.option import check, choice, option

#: Columns that a read has unless it says otherwise, in order.
DEFAULT = ("key", "value", "_op", "_vb", "_seq", "_rev", "_cas", "_flags", "_exp", "_lock",
           "_vbuuid")  # fmt: skip

#: Columns that have to be asked for.
OPTIONAL = ("_datatype", "_snap_start", "_snap_end", "_backfill", "_meta", "_time")

KEY_TYPES = ("string", "binary")
U64_FORMS = ("signed", "decimal")

#: What happens to a key that is no UTF-8 where keys are strings: see `Columns`.
FAIL, PERMISSIVE, DROP = MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")

_TYPES: dict[str, tuple[Any, str]] = {
    "key": (pa.string(), "STRING"),
    "value": (pa.binary(), "BINARY"),
    "_op": (pa.string(), "STRING"),
    "_vb": (pa.int32(), "INT"),
    "_seq": (pa.int64(), "BIGINT"),
    "_rev": (pa.int64(), "BIGINT"),
    "_cas": (pa.int64(), "BIGINT"),
    "_flags": (pa.int64(), "BIGINT"),
    "_exp": (pa.int64(), "BIGINT"),
    "_lock": (pa.int64(), "BIGINT"),
    "_vbuuid": (pa.string(), "STRING"),
    "_datatype": (pa.int32(), "INT"),
    "_snap_start": (pa.int64(), "BIGINT"),
    "_snap_end": (pa.int64(), "BIGINT"),
    "_backfill": (pa.bool_(), "BOOLEAN"),
    "_meta": (pa.binary(), "BINARY"),
    "_time": (pa.timestamp("us", tz="UTC"), "TIMESTAMP"),
}
_BINARY = (pa.binary(), "BINARY")
_DECIMAL = (pa.decimal128(20, 0), "DECIMAL(20,0)")

#: Numbers of 64 bits without sign.
_U64 = frozenset(("_rev", "_cas"))


@dataclass(frozen=True)
class Columns:
    """The columns of one read.

    Raises:
        BadOption: there is no such column, type, form or mode, or a column is named twice.
    """

    names: tuple[str, ...] = option(
        "columns",
        units.names,
        "",
        "Names of the columns to read. Other columns are not made.",
        absent=DEFAULT,
    )
    key_type: str = choice("keyType", KEY_TYPES, "Type of the column key.")
    u64: str = choice(
        "u64",
        U64_FORMS,
        "Type of _cas and _rev. signed: bigint, which may be negative. decimal: decimal(20,0).",
    )
    mode: str = choice(
        "mode",
        MODES,
        "What to do with a key that is not UTF-8 if keys are strings. FAILFAST: fail. "
        "PERMISSIVE: show its bytes as \\xNN. DROPMALFORMED: leave the row out.",
    )

    def __post_init__(self) -> None:
        check(self)
        for name in self.names:
            if name not in _TYPES:
                raise BadOption(f"columns: there is no column {name!r}; see {', '.join(_TYPES)}")
        if not self.names or len(set(self.names)) < len(self.names):
            raise BadOption(f"columns={','.join(self.names)}: name each column once, at least one")

    def type_of(self, name: str) -> Any:
        """Return a column's Arrow type."""
        return self._types(name)[0]

    @property
    def schema(self) -> Any:
        """The Arrow schema."""
        return pa.schema([(name, self.type_of(name)) for name in self.names])

    @property
    def ddl(self) -> str:
        """The same as Spark writes it."""
        return ", ".join(f"{name} {self._types(name)[1]}" for name in self.names)

    @property
    def wants_key(self) -> bool:
        """Whether keys are among them."""
        return "key" in self.names

    @property
    def wants_value(self) -> bool:
        """Whether values are among them."""
        return "value" in self.names

    def _types(self, name: str) -> tuple[Any, str]:
        if name == "key" and self.key_type == "binary":
            return _BINARY
        if name in _U64 and self.u64 == "decimal":
            return _DECIMAL
        return _TYPES[name]
