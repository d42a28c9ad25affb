"""How a document is shown to a map: its value, and `meta`.

What is no JSON is shown as text in base64, and ``meta.type`` says so.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from uprmc.config import IndexSettings
from uprmc.index.collation import Collation, array_key, number_key, sort_key
from uprmc.index.json_text import Unreadable, dumps, loads, portable
from uprmc.index.model import Emission, IndexedDocument
from uprmc.index.rows import id_text

__all__ = ["Encoded", "Encoder", "Limits", "MapError", "meta", "request", "revision", "value"]

# --- limits ---------------------------------------------------------------------------------------
# What one document may put into a view, and the errors of maps that put more.


class MapError(ValueError):
    """A document has no rows in a view; the text says why, without naming either."""


class Limits:
    """The limits for one document in one view."""

    def __init__(self, settings: IndexSettings) -> None:
        self.key = settings.max_key_bytes
        self.value = settings.max_row_bytes
        self.rows = settings.max_document_rows
        self.document = settings.max_document_bytes

    def check_row(self, key: bytes, value: bytes) -> None:
        """Refuse a key or value that is too large, by `MapError`."""
        if len(key) > self.key:
            raise MapError(f"it emitted a key of {len(key)} bytes; the most are {self.key}")
        if len(value) > self.value:
            raise MapError(f"it emitted a value of {len(value)} bytes; the most are {self.value}")

    def check(self, rows: Sequence[Emission]) -> None:
        """Refuse rows that are too many or too large together, by `MapError`."""
        if len(rows) > self.rows:
            raise MapError(f"it emitted {len(rows)} rows; the most are {self.rows}")
        size = sum(len(row.key) + len(row.value) for row in rows)
        if size > self.document:
            raise MapError(f"its rows have {size} bytes; the most are {self.document}")


# --- documents ------------------------------------------------------------------------------------


_REQUEST = (
    b'[%s,{"id":%s,"rev":"%d-%016x%08x%08x","seq":%d,"vb":%d,'
    b'"expiration":%d,"flags":%d,"type":"%s"}]'
)


def value(document: IndexedDocument) -> tuple[Any, bool]:
    """Return the value, and whether it was JSON; raise `MapError` if the index cannot hold it."""
    try:
        return loads(document.value), True
    except Unreadable as error:
        raise MapError(f"its body cannot be read: {error}") from None
    except ValueError:
        return b64encode(document.value).decode(), False


def meta(document: IndexedDocument, is_json: bool) -> dict[str, Any]:
    """Return what is known of a document beside its value."""
    return {
        "id": id_text(document.key),
        "rev": revision(document),
        "seq": document.seqno,
        "vb": document.vbucket,
        "expiration": document.expiry,
        "flags": document.flags,
        "type": "json" if is_json else "base64",
    }


def revision(document: IndexedDocument) -> str:
    """Return the revision as Couchbase writes it: number of changes, CAS, expiry, flags."""
    return f"{document.rev}-{document.cas:016x}{document.expiry:08x}{document.flags:08x}"


def request(document: IndexedDocument) -> bytes:
    """Return value and `meta` as one JSON array; raise `MapError` if the index cannot hold it."""
    body, is_json = document.value, True
    try:
        body = portable(body)
    except Unreadable as error:
        raise MapError(f"its body cannot be read: {error}") from None
    except ValueError:
        body, is_json = b'"' + b64encode(body) + b'"', False
    return _REQUEST % (
        body,
        dumps(id_text(document.key)),
        document.rev,
        document.cas,
        document.expiry,
        document.flags,
        document.seqno,
        document.vbucket,
        document.expiry,
        document.flags,
        b"json" if is_json else b"base64",
    )


# --- keys -----------------------------------------------------------------------------------------
# Keys of rows: sort key and JSON text, made part by part.
#
# Cities and days are few where documents are many, so what the first strings have become is
# remembered. Where strings are all different this costs one vain look-up each. Integers are written
# faster than they are looked up.


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
