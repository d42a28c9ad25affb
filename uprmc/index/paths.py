"""Paths of designs over HTTP, and the names that fit into them.

Source: contracts section 4.
"""

from __future__ import annotations

from urllib.parse import quote

#: The one bucket.
BUCKET = "default"

#: Where all designs are.
DESIGNS = f"/{BUCKET}/_design"

#: Longest name of a design or a view, in UTF-8.
NAME_MAX_BYTES = 200

#: What names must be, for messages.
NAME_RULE = (
    f"printable characters of 1 to {NAME_MAX_BYTES} bytes together, no slash or backslash, "
    "and neither . nor .."
)


def design_path(name: str, *more: str) -> str:
    """Return the path of a design, or of something below it."""
    return "/".join([DESIGNS, *(quote(part, safe="") for part in (name, *more))])


def is_name(name: str) -> bool:
    """Return whether a design or a view can have a name: what could not be asked for cannot."""
    if not name.isprintable() or "/" in name or "\\" in name or name in (".", ".."):
        return False  # half of a character is not printable either, so that it can be encoded
    return 0 < len(name.encode()) <= NAME_MAX_BYTES
