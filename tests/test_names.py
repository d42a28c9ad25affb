"""A public class name means one thing in the whole package."""

from __future__ import annotations

from tools.code_map import class_names

#: Names that still mean several things. The list may only become shorter.
SEVERAL = "Ahead Document Line Registration Segment Serving"


def test_no_public_class_name_gets_a_second_meaning() -> None:
    double = {name: where for name, where in class_names().items() if len(where) > 1}
    assert {name: double[name] for name in double.keys() - set(SEVERAL.split())} == {}
