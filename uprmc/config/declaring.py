"""How a setting is declared: default, unit, range and one line of help."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(
    default: Any, unit: str, doc: str, low: float | None = None, high: float | None = None
) -> Any:
    return field(default=default, metadata={"unit": unit, "low": low, "high": high, "doc": doc})


def lifetime(default_s: int, whose: str) -> Any:
    doc = f"Forget a registered client {whose} after this long without a report; 0 = never."
    return setting(default_s, "seconds", doc, 0, 315_360_000)
