"""What the rows of an Arrow batch ask for, and which rows cannot be written.

Note: an expiry of at most 30 days counts from the moment the node gets it, as memcached
has it. So a time to live is sent as it is up to there and as Unix time above, and an absolute time
that small is an error.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from uprmc.columnar.error_rows import VALUE_SHOWN_BYTES, ErrorRow
from uprmc.columnar.write_columns import (
    Array,
    Bytes,
    Numbers,
    bytes_of,
    column_of,
    no_bytes,
    numbers_of,
    required,
    texts_of,
)
from uprmc.columnar.write_options import WriteOptions
from uprmc.protocol.opcodes import KEY_MAX_BYTES, DataType

#: Expiries up to this count from now.
RELATIVE_EXPIRY_MAX_S = 30 * 24 * 3600

#: Column of a restore: extended metadata that says where each version was first accepted.
ORIGIN_COLUMN = "_origin"

SET, DELETE, EXPIRE, SKIP = range(4)
_OPERATIONS = {None: SET, "set": SET, "delete": DELETE, "expire": EXPIRE}

_CAS_LOCKED = 2**64 - 1


class RequestRows:
    """The rows of a batch by columns.

    Attributes:
        count: how many rows there are.
        keys, values: their bytes.
        metas: their extended metadata.
        kinds: what is to be done with each: SET, DELETE, EXPIRE or SKIP.
    """

    def __init__(
        self,
        options: WriteOptions,
        batch: pa.RecordBatch,
        first_row: int,
        now: float,
        item_limit_bytes: int | None,
    ) -> None:
        self._options = options
        self._item_limit_bytes = item_limit_bytes
        self._batch = batch
        self._first_row = first_row
        self._now = now
        self.count = batch.num_rows
        self._faults: dict[int, tuple[str, str]] = {}
        self.keys = bytes_of(required(batch, options.key_column, "the keys"), options.key_column)
        self.kinds = self._operations()
        self.values = self._read_values()
        self.metas = self._read_metas()
        self._check_keys()
        self._check_values()

    def good(self) -> Array:
        """Return the numbers of the rows that can be written; call `fields` before."""
        good = self.kinds != SKIP
        if self._faults:
            good[list(self._faults)] = False
        return np.flatnonzero(good)

    def check_types(self) -> None:
        """Raise `BadSchema` also for columns that are looked at only if a row needs them."""
        options = self._options
        values = column_of(self._batch, options.value_column)
        if values is not None and options.mode != "delete":
            bytes_of(values, options.value_column)
        self.fields()

    def _operations(self) -> Array:
        mode = self._options.mode
        if mode == "delete":
            return np.full(self.count, DELETE, np.uint8)
        column = column_of(self._batch, "_op")
        if column is None:
            return np.full(self.count, SET, np.uint8)
        words, places = texts_of(column, "_op")
        kinds = np.array([_OPERATIONS.get(word, SKIP) for word in words], np.uint8)[places]
        for place, word in enumerate(words):
            if word not in _OPERATIONS:
                why = f"_op is {word!r}, not set, delete or expire"
                self._fault(places == place, "BAD_OPERATION", why)
        if mode == "insert":
            deleting = (kinds == DELETE) | (kinds == EXPIRE)
            self._fault(deleting, "BAD_OPERATION", "mode insert deletes nothing")
        return kinds

    def _read_values(self) -> Bytes:
        name = self._options.value_column
        if self._options.mode == "delete":
            return no_bytes(self.count)
        if not (self.kinds == SET).any():
            return no_bytes(self.count)
        return bytes_of(required(self._batch, name, "the values"), name)

    def _read_metas(self) -> Bytes:
        if self._options.mode != "append-meta" or not self._has(ORIGIN_COLUMN):
            return no_bytes(self.count)
        return bytes_of(required(self._batch, ORIGIN_COLUMN, "origins"), ORIGIN_COLUMN)

    def _check_keys(self) -> None:
        sizes = self.keys.sizes
        self._fault(self.keys.null, "NO_KEY", "the key is NULL")
        self._fault(sizes == 0, "EMPTY_KEY", "the key is empty")
        long = sizes > KEY_MAX_BYTES
        self._fault(long, "KEY_TOO_LONG", f"a key has {KEY_MAX_BYTES} bytes at most")

    def _check_values(self) -> None:
        options = self._options
        sets = self.kinds == SET
        without = sets & self.values.null
        if options.ignore_null == "fail":
            self._fault(without, "NO_VALUE", "the value is NULL")
        else:
            self.kinds[without] = DELETE if options.ignore_null == "delete" else SKIP
        large = sets & (self.values.sizes > options.value_limit_bytes)
        limit = f"a value has {options.value_limit_bytes} bytes at most"
        self._fault(large, "VALUE_TOO_LARGE", limit)
        most = self._item_limit_bytes
        if most is not None:
            large = sets & (self.values.sizes + self.keys.sizes > most)
            self._fault(large, "VALUE_TOO_LARGE", f"the nodes' kv.max_item_bytes is {most}")

    def fields(self) -> dict[str, Array]:
        """Return what goes into the extras, by the layouts' names."""
        options = self._options
        compared = {} if options.cas_column is None else {"cas": self._compared_cas()}
        if options.mode == "delete":
            return compared
        datatype = self._numbers("_datatype", 8, default=0)
        alien = datatype > DataType.JSON
        self._fault(alien, "BAD_NUMBER", "_datatype: a node takes none but 0 and 1")
        if options.mode == "append-meta":
            return {"datatype": datatype, **self._meta()}
        flags = self._numbers(options.flags_column or "_flags", 32, default=0)
        return {"datatype": datatype, "flags": flags, "expiration": self._expiry(), **compared}

    def _compared_cas(self) -> Array:
        """Return the CAS that documents must have, 0 = any."""
        name = self._options.cas_column
        assert name is not None
        column = required(self._batch, name, "the CAS")
        found = numbers_of(column, name, 64)
        self._fault(
            found.wrong & self._sent, "BAD_NUMBER", f"{name}: not between 0 and {2**64 - 1}"
        )
        locked = (found.values == _CAS_LOCKED) & ~found.null
        self._fault(locked & self._sent, "BAD_NUMBER", f"{name}: no version has this CAS")
        return np.where(found.null, 0, found.values)

    def _meta(self) -> dict[str, Array]:
        cas = self._numbers("_cas", 64)
        none = (cas == 0) | (cas == _CAS_LOCKED)
        self._fault(none & self._sent, "BAD_NUMBER", "_cas: no version has this CAS")
        return {
            "flags": self._numbers("_flags", 32, default=0),
            "exptime": self._numbers("_exp", 32, default=0),
            "rev": self._numbers("_rev", 64),
            "document_cas": cas,
        }

    def _expiry(self) -> Array:
        if self._options.ttl_s is not None:
            whole = np.full(self.count, int(self._options.ttl_s), np.uint64)
            return self._from_now(whole, "ttl")
        ttl, exp = self._options.ttl_column, self._options.exp_column
        if ttl is None and exp is None:
            ttl = "_ttl" if self._has("_ttl") else None
        if ttl is not None:
            return self._from_ttl(ttl)
        name = exp or "_exp"
        times = self._numbers(name, 32, default=0)
        early = (times > 0) & (times <= RELATIVE_EXPIRY_MAX_S)
        why = f"{name}: no Unix time but seconds from now: use a ttl column"
        self._fault(early & self._sent, "BAD_NUMBER", why)
        return times

    def _from_ttl(self, name: str) -> Array:
        return self._from_now(self._numbers(name, 32, default=0), name)

    def _from_now(self, times: Array, name: str) -> Array:
        absolute = np.where(times > RELATIVE_EXPIRY_MAX_S, times + np.uint64(self._now), times)
        late = absolute >= 2**32
        why = f"{name}: more seconds than an expiry can have"
        self._fault(late & self._sent, "BAD_NUMBER", why)
        return np.where(late, 0, absolute)

    def _numbers(self, name: str, bits: int, default: int | None = None) -> Array:
        """Return a column's numbers; without a default none may be NULL.

        A column that the user named must be there; one of ours, with an underscore, only if there
        is no default.
        """
        if default is not None and name.startswith("_") and not self._has(name):
            return np.full(self.count, default, np.uint64)
        found: Numbers = numbers_of(required(self._batch, name, "the metadata"), name, bits)
        why = f"{name}: not between 0 and {2**bits - 1}"
        self._fault(found.wrong & self._sent, "BAD_NUMBER", why)
        if default is None:
            self._fault(found.null & self._sent, "BAD_NUMBER", f"{name} is NULL")
        return found.values

    def _has(self, name: str) -> bool:
        return name in self._batch.schema.names

    @property
    def _sent(self) -> Array:
        return self.kinds != SKIP

    # --- faults ---------------------------------------------------------------------------------

    def _fault(self, where: Array, code: str, reason: str) -> None:
        """Note rows that cannot be written; the first fault of a row is the one that counts."""
        if where.any():
            for row in np.flatnonzero(where).tolist():
                self._faults.setdefault(row, (code, reason))

    def errors(self) -> list[ErrorRow]:
        """Return the rows that cannot be written, with the reasons."""
        first, keys, values = self._first_row, self.keys, self.values
        return [
            ErrorRow(first + row, code, reason, keys.at(row), values.at(row, VALUE_SHOWN_BYTES))
            for row, (code, reason) in sorted(self._faults.items())
        ]
