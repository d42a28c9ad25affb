"""Write the layouts on the pages about the protocol from their declarations in ``uprmc/protocol``.

A page names a declaration and its length, and behind that the fields in their order, each with its
bytes: **OpenExtras**, 8 bytes: `sequence 4, flags 4`. ``python -m tools.layouts`` rewrites lengths
and fields; a test holds that the pages say the same as the code.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import construct

from uprmc import protocol

DOCS = Path(__file__).resolve().parents[1] / "docs"

_SHOWN = re.compile(r"\*\*(\w+)\*\*, \d+ bytes?:\s`[^`]*`")


def _declared() -> dict[str, construct.Struct]:
    """Return the layouts that have a length of their own, by their names without underscores."""
    found: dict[str, construct.Struct] = {}
    for module in pkgutil.iter_modules(protocol.__path__):
        names = vars(importlib.import_module(f"uprmc.protocol.{module.name}"))
        for name, layout in names.items():
            if isinstance(layout, construct.Struct) and _size(layout):
                found[_plain(name)] = layout
    return found


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _size(layout: construct.Construct) -> int:
    try:
        size: int = layout.sizeof()
    except construct.SizeofError:
        return 0
    return size


LAYOUTS = _declared()


def shown(name: str) -> str:
    """Return how a page shows a layout."""
    layout = LAYOUTS[_plain(name)]
    fields = ", ".join(f"{field.name} {field.sizeof()}" for field in layout.subcons)
    return f"**{name}**, {_bytes(layout)}: `{fields}`"


def _bytes(layout: construct.Struct) -> str:
    return "1 byte" if layout.sizeof() == 1 else f"{layout.sizeof()} bytes"


def names(page: str) -> list[str]:
    """Return the layouts that a page shows."""
    return _SHOWN.findall(page)


def written(page: str) -> str:
    """Return a page with its layouts as the code has them."""
    return _SHOWN.sub(lambda found: shown(found[1]), page)


def main() -> None:
    """See the module docstring."""
    for path in DOCS.glob("*.md"):
        page = path.read_text(encoding="utf-8")
        if names(page):
            path.write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    main()
