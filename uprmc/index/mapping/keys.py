"""Keys of rows: sort key and JSON text, made of parts that come again and again.

Cities, ages and days are few where documents are many, so what they become is remembered. That is
done for strings and integers only: equal ones are the same key and the same text, which 0.0 and
-0.0 are not.
"""

from __future__ import annotations

from typing import Any

from uprmc.index.collation import Collation, array_key, sort_key
from uprmc.index.json_text import dumps

__all__ = ["Encoded", "Encoder"]

#: Sort key and JSON text.
Encoded = tuple[bytes, bytes]

#: Parts with longer texts, in bytes, are not remembered.
_SHORT = 64
#: Parts that are remembered at a time.
_MOST = 8192


class Encoder:
    """Makes sort keys and texts in one order of strings; for one thread."""

    def __init__(self, collation: Collation) -> None:
        self._collation: Collation = collation
        self._known: dict[str | int, Encoded] = {}
        self._recall = self._known.get

    def encode(self, value: Any) -> Encoded:
        """Return sort key and text; raise `ValueError` where there is none."""
        kind = type(value)
        if kind is list:
            return self._encode_array(value)
        if kind is str or kind is int:
            return self._recall(value) or self._learn(value)
        return sort_key(value, self._collation), dumps(value)

    def _encode_array(self, values: list[Any]) -> Encoded:
        recall, sort_keys, texts = self._recall, [], []
        for value in values:
            kind = type(value)
            if kind is not str and kind is not int:
                return sort_key(values, self._collation), dumps(values)
            key, text = recall(value) or self._learn(value)
            sort_keys.append(key)
            texts.append(text)
        return array_key(sort_keys), b"[" + b",".join(texts) + b"]"

    def _learn(self, value: str | int) -> Encoded:
        made = sort_key(value, self._collation), dumps(value)
        if len(made[1]) <= _SHORT:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[value] = made
        return made
