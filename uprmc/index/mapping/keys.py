"""Keys of rows: sort key and JSON text, made part by part.

Cities and days are few where documents are many, so what the first strings have become is
remembered. Where strings are all different this costs one vain look-up each. Integers are written
faster than they are looked up.
"""

from __future__ import annotations

from typing import Any

from uprmc.index.collation import Collation, array_key, number_key, sort_key
from uprmc.index.json_text import dumps

__all__ = ["Encoded", "Encoder"]

#: Sort key and JSON text.
Encoded = tuple[bytes, bytes]

#: Strings with longer texts, in bytes, are not remembered.
_SHORT = 64
#: Strings that are remembered.
_MOST = 8192


class Encoder:
    """Makes sort keys and texts in one order of strings; for one thread."""

    def __init__(self, collation: Collation) -> None:
        self._collation: Collation = collation
        self._known: dict[str, Encoded] = {}
        self._recall = self._known.get

    def encode(self, value: Any) -> Encoded:
        """Return sort key and text; raise `ValueError` where there is none."""
        kind = type(value)
        if kind is list:
            return self._encode_array(value)
        if kind is str:
            return self._recall(value) or self._learn(value)
        if kind is int:
            return number_key(value), b"%d" % value
        return sort_key(value, self._collation), dumps(value)

    def _encode_array(self, values: list[Any]) -> Encoded:
        recall, sort_keys, texts = self._recall, [], []
        for value in values:
            kind = type(value)
            if kind is str:
                key, text = recall(value) or self._learn(value)
            elif kind is int:
                key, text = number_key(value), b"%d" % value
            else:
                return sort_key(values, self._collation), dumps(values)
            sort_keys.append(key)
            texts.append(text)
        return array_key(sort_keys), b"[" + b",".join(texts) + b"]"

    def _learn(self, value: str) -> Encoded:
        made = sort_key(value, self._collation), dumps(value)
        if len(self._known) < _MOST and len(made[1]) <= _SHORT:
            self._known[value] = made
        return made
