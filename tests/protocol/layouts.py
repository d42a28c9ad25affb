"""The layouts that there are, and frames of both directions as values."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import struct
from dataclasses import asdict
from types import ModuleType
from typing import Any

import construct

from uprmc import protocol
from uprmc.protocol.header import Frame, Request, RequestFrame, Response, decode_frame

_MODULES = [
    importlib.import_module(f"uprmc.protocol.{each.name}")
    for each in pkgutil.iter_modules(protocol.__path__)
]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _made_in(module: ModuleType, name: str) -> bool:
    return re.search(rf"^{name}\b.*=", inspect.getsource(module), re.M) is not None


STRUCTS: dict[str, struct.Struct] = {}
#: Name of a layout -> it and its struct, where that has the same fields.
PAIRS: dict[str, tuple[construct.Struct, struct.Struct]] = {}
for _module in _MODULES:
    _layouts = {
        _plain(name): (name, value)
        for name, value in vars(_module).items()
        if isinstance(value, construct.Struct)
    }
    for _name, _value in vars(_module).items():
        if not isinstance(_value, struct.Struct) or _name.startswith("_"):
            continue
        if _made_in(_module, _name):
            STRUCTS[f"{_module.__name__.rpartition('.')[2]}.{_name}"] = _value
            _found, _layout = _layouts.get(_plain(_name), ("", construct.Struct()))
            if len(_layout.subcons) == len(_value.unpack(bytes(_value.size))):
                PAIRS[_found] = (_layout, _value)


def fields_of(frame: Frame) -> dict[str, Any]:
    """Return the fields of a frame by name."""
    return frame._asdict() if isinstance(frame, RequestFrame) else asdict(frame)


def changed(frame: Frame, **fields: Any) -> Frame:
    """Return the frame with some fields changed."""
    return type(frame)(**{**fields_of(frame), **fields})


def plain(value: Any) -> Any:
    """Return what construct parsed without its own containers."""
    if isinstance(value, construct.Container):
        return {name: plain(each) for name, each in value.items() if not name.startswith("_")}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def check_vector(
    packet: bytes,
    frame: Frame,
    part: str = "",
    layout: construct.Struct | None = None,
    derived: struct.Struct | None = None,
    fields: dict[str, Any] | None = None,
) -> None:
    """A packet is the frame, in whose `part` stand the fields: both codecs read and write it so."""
    read = decode_frame(packet)
    assert read.encode() == packet
    whole = Request if isinstance(frame, RequestFrame) else Response
    parsed = whole.parse(packet)
    assert (parsed.header.opcode, parsed.header.opaque) == (frame.opcode, frame.opaque)
    assert whole.build(parsed) == packet
    if not part or layout is None or fields is None:
        assert read == frame
        return
    assert changed(read, **{part: b""}) == frame
    body = getattr(read, part)
    assert plain(layout.parse(body)) == fields
    assert layout.build(fields) == body
    if derived is not None:
        assert derived.unpack(body) == tuple(fields.values())
        assert derived.pack(*fields.values()) == body
