"""The generated module is the declarations of `uprmc.protocol`, and nothing else."""

from __future__ import annotations

import ast
import struct
from pathlib import Path

import numpy as np
import pytest

from tools import spark_layouts
from uprmc.columnar import layouts
from uprmc.protocol import binary, header, management, opcodes, upr, upr_extensions
from uprmc.protocol.derive import derive

SPARK = Path(layouts.__file__).parent


def test_the_module_is_what_the_generator_makes_of_the_declarations() -> None:
    assert spark_layouts.TARGET.read_text() == spark_layouts.generated()


@pytest.mark.parametrize("name", spark_layouts.LAYOUTS)
def test_each_struct_has_the_format_of_its_declaration(name: str) -> None:
    found: struct.Struct = getattr(layouts, name)
    assert found.format == derive(spark_layouts.LAYOUTS[name]).format


@pytest.mark.parametrize("module", [binary, header, management, upr, upr_extensions])
def test_a_struct_of_the_same_name_in_the_protocol_is_the_same(module: object) -> None:
    shared = [name for name in vars(module) if name.isupper() and hasattr(layouts, name)]
    for name in shared:
        ours, theirs = getattr(layouts, name), getattr(module, name)
        if isinstance(theirs, struct.Struct):
            assert (name, ours.format) == (name, theirs.format)


@pytest.mark.parametrize("name", spark_layouts.FRAMES)
def test_a_frame_for_numpy_has_the_same_bytes_as_its_struct(name: str) -> None:
    frame: struct.Struct = getattr(layouts, f"{name}_FRAME")
    fields = np.dtype(list(getattr(layouts, f"{name}_FIELDS")))
    assert fields.itemsize == frame.size
    sample = bytes(range(1, frame.size + 1))
    values = [int(value) for value in np.frombuffer(sample, fields)[0]]
    extras = getattr(layouts, f"{name}_FRAME").unpack(sample)[6:]
    assert values[9:] == list(extras)
    assert values[:9] == list(layouts.REQUEST_HEADER.unpack_from(sample))


def test_the_scan_sees_opcode_and_length() -> None:
    frame = header.encode_request(opcodes.Opcode.UPR_MUTATION, key=b"key", value=b"value")
    assert layouts.FRAME_SCAN.size == layouts.HEADER_BYTES == 24
    assert layouts.FRAME_SCAN.unpack_from(frame) == (0x8057, 8)


@pytest.mark.parametrize("kind", spark_layouts.ENUMS, ids=lambda kind: kind.__name__)
def test_names_have_the_numbers_of_the_protocol(kind: type) -> None:
    ours = getattr(layouts, kind.__name__)
    assert {each.name: int(each) for each in ours} == {each.name: int(each) for each in kind}  # type: ignore[var-annotated]


def test_statuses_have_the_words_of_the_protocol() -> None:
    assert {int(k): v.encode() for k, v in layouts.STATUS_TEXT.items()} == opcodes.STATUS_TEXT
    assert {int(k): int(v) for k, v in layouts.QUIET.items()} == opcodes.QUIET


def test_nobody_else_on_the_spark_side_writes_down_a_layout() -> None:
    """`struct.Struct`, `pack` and `unpack` with a format of one's own are for the generator."""
    guilty = []
    for path in SPARK.glob("*.py"):
        if path.name == "layouts.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module, name = node.value.id, node.attr
                if module == "struct" and name != "error":
                    guilty.append(f"{path.name}:{node.lineno}: struct.{name}")
            if isinstance(node, ast.ImportFrom) and node.module == "struct":
                guilty.append(f"{path.name}:{node.lineno}: from struct")
    assert guilty == []
