"""Every layout has the form of the tables, and construct and the derived struct say the same."""

from __future__ import annotations

from random import Random

import pytest

from tests.golden.layouts import FORMS
from tests.protocol.layouts import PAIRS, STRUCTS


def test_every_layout_has_the_form_of_the_tables() -> None:
    assert {name: each.format for name, each in STRUCTS.items()} == dict(
        line.split() for line in FORMS.splitlines() if line
    )
    assert len(PAIRS) > 80


@pytest.mark.parametrize("name", PAIRS)
def test_construct_and_the_struct_make_the_same_of_any_numbers(name: str) -> None:
    layout, derived = PAIRS[name]
    random = Random(name)
    for _ in range(20):
        numbers = derived.unpack(random.randbytes(derived.size))
        fields = {
            str(each.name): getattr(each.subcon, "value", number)  # constants have one
            for each, number in zip(layout.subcons, numbers, strict=True)
        }
        packed = derived.pack(*fields.values())
        assert packed == layout.build(fields)
        parsed = layout.parse(packed)
        assert {each: parsed[each] for each in fields} == fields
        assert derived.unpack(packed) == tuple(fields.values())
