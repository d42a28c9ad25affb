"""Bytes and large numbers as fields of JSON that every reader understands alike."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

#: Numbers above 2**53, which many readers round, JavaScript's among them: JSON has them as text.
_WIDE = frozenset({"cas", "vb_uuid"})


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as a field of JSON; what is no UTF-8 as Base64, and a second field says so."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: b64encode(data).decode(), f"{name}_encoding": "base64"}


def exact(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of JSON in which no number is rounded: a CAS and a vb_uuid are digits."""
    return {name: str(value) if name in _WIDE else value for name, value in fields.items()}
