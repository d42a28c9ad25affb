"""Changes as lines of JSON, as files and receivers get them.

A change is what ``uprmc tail --json`` prints, and an `id`: ``vBucket:vb_uuid:seqno``. One that came
twice has the same id, so that a receiver can tell. What takes a change back has none, and must be
applied whenever it comes:

- ``{"op": "rollback", "vbucket": ..., "seqno": ...}``: what came after `seqno` is void, and ids
  above it are to be forgotten. With 0, drop everything of this vBucket. The next lines say what is
  right;
- ``{"op": "set" or "delete", "undo": true, ...}``: the document as it is now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from uprmc.client.change_fields import as_fields
from uprmc.client.handler import Change, Document
from uprmc.remote.json_fields import exact, text_or_base64


def change_line(change: Change) -> bytes:
    """Return a change as a line of JSON."""
    return _line({"id": change_id(change), **as_fields(change)})


def change_id(change: Change) -> str:
    """Return what tells a change from all others."""
    return f"{change.vbucket}:{change.vb_uuid}:{change.seqno}"


def rollback_line(vbucket: int, seqno: int) -> bytes:
    """Return the line that makes void what came after a seqno."""
    return _line({"op": "rollback", "vbucket": vbucket, "seqno": seqno})


def undo_line(vbucket: int, key: bytes, document: Document | None) -> bytes:
    """Return the line that puts a document in a key's place, or removes the key."""
    given: Mapping[str, Any] = {} if document is None else document._asdict()
    value = None if document is None else document.value
    return _line(
        {
            "op": "delete" if document is None else "set",
            "undo": True,
            "vbucket": vbucket,
            **exact(given),
            **text_or_base64("key", key),
            **text_or_base64("value", value),
        }
    )


def _line(fields: Mapping[str, Any]) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
