"""What a load makes of a row: a key, a value, a time to live, flags. Reading rows: `input_rows`.

A key, and a value too, is a column or a template such as ``user:{id}``; ``{{`` and ``}}`` stand for
braces. A value may also be the JSON document of the row's other columns. Nothing is made up: a row
that lacks a column, or has NULL where a key needs text, is a `BadLine`.

Note: numbers of JSON keep their value but, apart from decimals, not their spelling (``1.50``
becomes ``1.5``), unless the document is a whole line (``json:all`` of JSON lines), which is kept
byte by byte.
"""

from __future__ import annotations

import json
import math
import re
import string
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import IO, Any

import pyarrow as pa

from uprmc import units
from uprmc.columnar.errors import BadOption
from uprmc.load.inputs import EXCERPT_BYTES, BadLine, InputRow, LoadTask, rows_of

#: Columns of a batch that a load gives to a writer.
KEY, VALUE, TTL, FLAGS = "key", "value", "_ttl", "_flags"

#: What `--value` says for documents.
JSON_OTHERS, JSON_ALL = "json", "json:all"

#: Columns of the source's own schema that writers know, and their types.
_META_TYPES = {
    "_op": pa.string(),
    "_flags": pa.int64(),
    "_exp": pa.int64(),
    "_datatype": pa.int64(),
    "_rev": pa.int64(),
    "_cas": pa.int64(),
}

BATCH_ROWS = 2000
BATCH_BYTES = 4 * 1024 * 1024

_U32_MAX = 0xFFFF_FFFF
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,300})(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?\Z")
#: Where a decimal goes in a text of JSON: no document has this half of a character, because it has
#: no UTF-8.
_MARK = "\ud800"
_MARKED = re.compile(f'"{_MARK}([0-9]{{1,9}}){_MARK}"')
_JSON_WORDS = {"true": True, "false": False, "null": None}


class BadValue(ValueError):
    """A row's value cannot be used; the text says which and why."""


@dataclass(frozen=True)
class Template:
    """Text with columns in it; a name without braces is that column alone."""

    parts: tuple[tuple[str, str | None], ...]  # (text, column after it or ``None``)
    text: str  # as it was given

    @classmethod
    def of(cls, text: str) -> Template:
        """Raises `BadOption` for something that is neither a column nor a template."""
        if not text:
            raise BadOption("a key or value needs the name of a column, or text with {column}")
        if "{" not in text and "}" not in text:
            return cls((("", text),), text)
        try:
            parts = tuple(string.Formatter().parse(text))
        except ValueError as error:
            raise BadOption(f"{text!r} is no template: {error}") from None
        for _, column, form, conversion in parts:
            if column == "" or form or conversion:
                raise BadOption(f"{text!r} is no template: say {{column}}, like user:{{id}}")
        return cls(tuple((before, column) for before, column, _, _ in parts), text)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for _, column in self.parts if column is not None)

    @property
    def plain(self) -> bool:
        """It is one column and no other text."""
        return len(self.parts) == 1 and not self.parts[0][0] and self.parts[0][1] is not None

    def fill(self, fields: dict[str, Any]) -> bytes | None:
        """Return the text of a row; ``None`` when it is one column and that is NULL.

        Raises:
            BadValue: the row has no such column, or NULL within other text.
        """
        if self.plain:
            return as_bytes(_field(fields, self.columns[0]))
        filled = []
        for before, column in self.parts:
            filled.append(before.encode())
            if column is not None:
                value = as_bytes(_field(fields, column))
                if value is None:
                    raise BadValue(f"column {column!r} is NULL")
                filled.append(value)
        return b"".join(filled)


def _field(fields: dict[str, Any], column: str) -> Any:
    try:
        value = fields[column]
    except KeyError:
        raise BadValue(f"no column {column!r}") from None
    if fields.get(f"{column}_encoding") != "base64" or not isinstance(value, str):
        return value
    try:  # as this package's JSON lines have what is no text
        return b64decode(value, validate=True)
    except ValueError:
        raise BadValue(f"column {column!r} is no Base64") from None


@dataclass(frozen=True)
class RowRules:
    """How rows become documents; plain values."""

    key: str = KEY  # column or template
    # column, template, `JSON_OTHERS` or `JSON_ALL`; ``None`` = there is none (deletions).
    value: str | None = VALUE
    # a column, or a time such as ``300`` or ``5m`` that holds for all rows; ``None`` = no expiry.
    ttl: str | None = None
    flags: str | None = None  # a column, or a number that holds for all rows; ``None`` = 0
    # pass on the columns ``_op _flags _exp _datatype _rev _cas``. Those of Parquet files are passed
    # on always: that is where copies made by Spark are.
    meta: bool = False

    def __post_init__(self) -> None:
        if self.ttl is not None:
            object.__setattr__(self, "ttl", _seconds_or_column(self.ttl))

    def check(self) -> None:
        """Raise `BadOption` for a rule that no row could follow."""
        Template.of(self.key)
        if self.value is not None and not self.value_is_json:
            Template.of(self.value)
        for name, text in (("ttl", self.ttl), ("flags", self.flags)):
            if text is not None and text.lstrip("-").isdecimal() and not _is_u32(text):
                raise BadOption(f"{name}: {text} is not within 0..{_U32_MAX}")

    @property
    def value_is_json(self) -> bool:
        return self.value in (JSON_OTHERS, JSON_ALL)

    def needed(self) -> list[str] | None:
        """Return the columns that are needed; ``None`` = all."""
        if self.value_is_json:
            return None
        named = self.named()
        return [*named, *(f"{name}_encoding" for name in named), *_META_TYPES]

    def named(self) -> list[str]:
        """Return the columns that the rules name: every row must have them."""
        names = list(Template.of(self.key).columns)
        if self.value is not None and not self.value_is_json:
            names += Template.of(self.value).columns
        return names + [text for text in (self.ttl, self.flags) if text and not text.isdecimal()]


def _seconds_or_column(text: str) -> str:
    """Return ``300`` for ``5m``; what is no time in whole seconds names a column."""
    try:
        found = units.seconds(text)
    except ValueError:
        return text
    return str(int(found)) if found == int(found) else text


def _is_u32(text: str) -> bool:
    return text.isdecimal() and int(text) <= _U32_MAX


# --- rows to batches ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadRun:
    """Some rows of a task, ready to be written, and the lines among them that are none."""

    batch: pa.RecordBatch  # the rows
    numbers: list[int]  # of each of them, as `InputRow` has it
    bad: list[BadLine]  # the other lines


def runs(
    task: LoadTask,
    rules: RowRules,
    *,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    stream: IO[bytes] | None = None,
) -> Iterator[LoadRun]:
    """Yield all rows of a task, in order, in batches of one schema; `stream` as for `rows_of`.

    Raises:
        BadFile: as `rows_of`.
    """
    maker = _Maker(rules, task)
    made: list[tuple[Any, ...]] = []
    numbers: list[int] = []
    bad: list[BadLine] = []
    size = 0
    for row in rows_of(task, rules.needed(), stream):
        if isinstance(row, BadLine):
            bad.append(row)
        else:
            try:
                document = maker.make(row)
            except (BadValue, ValueError, RecursionError) as error:
                bad.append(BadLine(row.number, _reason(error), _excerpt(row)))
            else:
                made.append(document)
                numbers.append(row.number)
                size += len(document[0] or b"") + len(document[1] or b"")
        if len(made) >= batch_rows or size >= batch_bytes or len(bad) >= batch_rows:
            yield LoadRun(maker.batch(made), numbers, bad)
            made, numbers, bad, size = [], [], [], 0
    if made or bad:
        yield LoadRun(maker.batch(made), numbers, bad)


def _reason(error: Exception) -> str:
    if isinstance(error, BadValue):
        return str(error)
    if isinstance(error, UnicodeError):
        return "no UTF-8 in a JSON document"
    return f"no JSON document: {error}"


def _excerpt(row: InputRow) -> bytes:
    text = row.text or repr(row.fields).encode("utf-8", "surrogateescape")
    return text[:EXCERPT_BYTES]


class _Maker:
    """Makes (key, value, further columns ...) of rows by the rules."""

    def __init__(self, rules: RowRules, task: LoadTask) -> None:
        self._rules = rules
        self._key = Template.of(rules.key)
        self._value: Template | None = None
        if rules.value is not None and not rules.value_is_json:
            self._value = Template.of(rules.value)
        self._infer = task.format == "csv" and task.dialect.infer
        self._whole_line = rules.value == JSON_ALL and not task.constants
        self._numbers = [
            (name, text)
            for name, text in ((TTL, rules.ttl), (FLAGS, rules.flags))
            if text is not None
        ]
        taken = {name for name, _ in self._numbers}
        there = _META_TYPES if rules.meta else task.columns if task.format == "parquet" else ()
        self._meta = [name for name in _META_TYPES if name in there and name not in taken]
        self._left_out = self._columns_of_their_own()
        fields = [(KEY, pa.binary()), (VALUE, pa.binary())]
        fields += [(name, pa.int64()) for name, _ in self._numbers]
        fields += [(name, _META_TYPES[name]) for name in self._meta]
        self.schema = pa.schema(fields)

    def _columns_of_their_own(self) -> frozenset[str]:
        rules = self._rules
        if rules.value == JSON_ALL:
            return frozenset()
        own = set(self._key.columns) if self._key.plain else set()
        own |= {text for text in (rules.ttl, rules.flags) if text is not None}
        return frozenset(own) | frozenset(self._meta)

    def make(self, row: InputRow) -> tuple[Any, ...]:
        fields = row.fields
        try:
            key = self._key.fill(fields)
        except BadValue as error:
            raise BadValue(f"no key: {error}") from None
        if key is None:
            raise BadValue(f"no key: column {self._rules.key!r} is NULL")
        numbers = [_number(name, text, fields) for name, text in self._numbers]
        return key, self._value_of(row), *numbers, *(_meta(fields, name) for name in self._meta)

    def _value_of(self, row: InputRow) -> bytes | None:
        if self._value is not None:
            return self._value.fill(row.fields)
        if self._rules.value is None:
            return None
        if self._whole_line and row.text is not None:
            return row.text
        document = {n: v for n, v in row.fields.items() if n not in self._left_out}
        if self._infer:
            document = {name: inferred(text) for name, text in document.items()}
        return to_json(document)

    def batch(self, made: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = zip(*made, strict=True) if made else [()] * len(self.schema)
        arrays = [
            pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _number(name: str, text: str, fields: dict[str, Any]) -> int:
    if text.isdecimal():
        return int(text)
    value = _field(fields, text)
    if value is None or value == "":
        return 0
    try:
        number = int(value) if not isinstance(value, float) or value.is_integer() else -1
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or not 0 <= number <= _U32_MAX:
        raise BadValue(f"column {text!r} is {value!r}, no number within 0..{_U32_MAX}")
    return number


def _meta(fields: dict[str, Any], name: str) -> Any:
    value = fields.get(name)
    if value is None or (name == "_op" and isinstance(value, str)):
        return value
    try:
        number = int(value)
        wrong = isinstance(value, bool) or (isinstance(value, float) and number != value)
    except (TypeError, ValueError):
        wrong, number = True, 0
    if wrong or name == "_op" or not -(2**63) <= number < 2**64:
        raise BadValue(f"column {name!r} is {value!r}")
    # Spark has no unsigned numbers: a large one travels as the negative one with the same bits.
    return number - 2**64 if number >= 2**63 else number


# --- values as bytes ------------------------------------------------------------------------------


def as_bytes(value: Any) -> bytes | None:
    """Return what a value is as text or bytes: documents as JSON, moments in ISO 8601."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, (date, time)):
        return value.isoformat().encode()
    if isinstance(value, (Decimal, timedelta)):
        return str(value).encode()
    return to_json(value)


def to_json(document: Any) -> bytes:
    """Return a JSON text without spaces; raises `ValueError` for what JSON does not have.

    A decimal is a number with all its digits, in each row: whether a column has numbers may not
    depend on how well a value fits a float.
    """
    decimals: list[str] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Decimal):
            decimals.append(_number_text(value))
            return f"{_MARK}{len(decimals) - 1}{_MARK}"
        return _plain(value)

    text = json.dumps(
        document, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain
    )
    if decimals:
        if len(_MARKED.findall(text)) != len(decimals):
            raise BadValue("a text has half a character of UTF-16")
        text = _MARKED.sub(lambda match: decimals[int(match[1])], text)
    return text.encode()


def _number_text(value: Decimal) -> str:
    if not value.is_finite():
        raise BadValue(f"{value} is no number of JSON")
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    raise BadValue(f"a {type(value).__name__} has no JSON")


def inferred(text: Any) -> Any:
    """Return the number, truth or null that a text of CSV reads as; else the text."""
    if not isinstance(text, str):
        return text
    if text in _JSON_WORDS:
        return _JSON_WORDS[text]
    if not _JSON_NUMBER.match(text):
        return text
    number = json.loads(text)
    return number if math.isfinite(number) else text
