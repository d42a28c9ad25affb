"""Documents for tests of maps."""

from __future__ import annotations

import json
from typing import Any

from uprmc.index.model import IndexedDocument, Mapped


def document(value: Any, key: bytes = b"k", seqno: int = 1, **fields: Any) -> IndexedDocument:
    """A version of a document; a body of bytes is stored as it is."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    other = {"vbucket": 0, "rev": 1, "cas": 2, "flags": 0, "expiry": 0, **fields}
    return IndexedDocument(key=key, seqno=seqno, value=body, **other)


def rows(mapped: Mapped, view: int = 0) -> list[tuple[Any, Any]]:
    """What a view made of a document, as Python values."""
    assert mapped.error is None, mapped.error
    return [(json.loads(row.key), json.loads(row.value)) for row in mapped.rows[view]]
