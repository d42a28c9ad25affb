"""Records for numpy hold the fields of the declared layouts, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from construct import Struct as Layout

from uprmc.columnar import records
from uprmc.protocol.binary import STORE_EXTRAS, StoreExtras
from uprmc.protocol.header import REQUEST_HEADER
from uprmc.protocol.management import (
    WITH_META_EXTRAS,
    WITH_META_OPTIONS_EXTRAS,
    WithMetaExtras,
    WithMetaOptionsExtras,
)
from uprmc.protocol.upr import MUTATION_EXTRAS, MutationExtras

CASES: list[tuple[Any, Layout, Any]] = [
    (records.BARE, Layout(), None),
    (records.MUTATION, MutationExtras, MUTATION_EXTRAS),
    (records.STORE, StoreExtras, STORE_EXTRAS),
    (records.WITH_META, WithMetaExtras, WITH_META_EXTRAS),
    (records.WITH_META_OPTIONS, WithMetaOptionsExtras, WITH_META_OPTIONS_EXTRAS),
]


@pytest.mark.parametrize(("record", "layout", "extras"), CASES)
def test_a_record_reads_what_the_structs_of_header_and_extras_read(
    record: Any, layout: Layout, extras: Any
) -> None:
    sample = bytes(range(1, record.itemsize + 1))
    values = [int(value) for value in np.frombuffer(sample, record)[0]]
    assert record.itemsize == REQUEST_HEADER.size + (extras.size if extras else 0)
    assert values[:9] == list(REQUEST_HEADER.unpack_from(sample))
    assert values[9:] == (list(extras.unpack_from(sample, REQUEST_HEADER.size)) if extras else [])
    names = list(record.names)[9:]
    told = [f"document_{each.name}" if each.name == "cas" else each.name for each in layout.subcons]
    assert names == told
