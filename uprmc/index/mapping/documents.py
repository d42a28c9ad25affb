"""How a document is shown to a map: its value, and `meta`.

What is no JSON is shown as text in base64, and ``meta.type`` says so. Source: systems reference
c.2.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from uprmc.index.json_text import Unreadable, dumps, loads, portable
from uprmc.index.mapping.limits import MapError
from uprmc.index.model import Document
from uprmc.index.rows import id_text

__all__ = ["meta", "request", "revision", "value"]

_REQUEST = (
    b'[%s,{"id":%s,"rev":"%d-%016x%08x%08x","seq":%d,"vb":%d,'
    b'"expiration":%d,"flags":%d,"type":"%s"}]'
)


def value(document: Document) -> tuple[Any, bool]:
    """Return the value, and whether it was JSON; raise `MapError` if the index cannot hold it."""
    try:
        return loads(document.value), True
    except Unreadable as error:
        raise MapError(f"its body cannot be read: {error}") from None
    except ValueError:
        return b64encode(document.value).decode(), False


def meta(document: Document, is_json: bool) -> dict[str, Any]:
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


def revision(document: Document) -> str:
    """Return the revision as Couchbase writes it: number of changes, CAS, expiry, flags."""
    return f"{document.rev}-{document.cas:016x}{document.expiry:08x}{document.flags:08x}"


def request(document: Document) -> bytes:
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
