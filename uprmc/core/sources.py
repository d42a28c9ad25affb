"""The fingerprint of the compiled form's sources, for `setup.py` and for whoever imports it.

It uses nothing but the standard library, because `setup.py` runs it by its path.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
#: Written before each build and compiled with the rest: it tells what the rest was made from.
STAMP = NATIVE / "stamp.py"


def native_sources() -> list[Path]:
    """Return the modules that are compiled, without the stamp."""
    return sorted(path for path in NATIVE.glob("[a-z]*.py") if path != STAMP)


def fingerprint() -> str:
    """Return what changes with any source."""
    total = sha256()
    for path in native_sources():
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def write_stamp() -> None:
    """Note the present sources in the stamp."""
    lines = [
        '"""What the compiled form was made from; written by `setup.py`."""',
        "from typing import Final",
        f'FINGERPRINT: Final = "{fingerprint()}"',
    ]
    STAMP.write_text("\n".join(lines) + "\n", encoding="utf-8")
