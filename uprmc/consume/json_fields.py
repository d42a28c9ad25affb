"""Bytes of clients as fields of JSON: text where they are UTF-8, Base64 where they are not."""

from __future__ import annotations

from base64 import b64encode


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as a field of JSON; what is no UTF-8 as Base64, and a second field says so."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: b64encode(data).decode(), f"{name}_encoding": "base64"}
