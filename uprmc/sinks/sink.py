"""What all sinks have in common: who keeps positions, how waiting ends, and their errors."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import orjson

from uprmc.client.handler import Change, Document, Handler, as_fields
from uprmc.client.state import StateStore
from uprmc.errors import UprmcError
from uprmc.remote.json_fields import exact, text_or_base64

#: A target that takes nothing for this long is given up.
PATIENCE_S = 300.0


class SinkError(UprmcError):
    """A sink cannot take what it is given; the text says why and what to do."""


class SinkRefused(SinkError):
    """A sink cannot be what its arguments say: a path, a URL, a setting. Nothing was changed."""


class SinkStopped(SinkError):
    """It was to stop while it waited for another attempt; nothing is lost."""


class Sink(Handler):
    """A handler that brings changes somewhere else."""

    # Positions that are written together with what it is given: each change takes effect exactly
    # once. ``None`` = give the client a state of its own: at least once.
    state: StateStore | None = None

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def stop(self) -> None:
        """Wait for nothing any more; may be called by a signal handler or another thread."""
        self.stopping.set()

    def close(self) -> None:
        """Let go of files and connections. Closing twice is no error."""

    def wait(self, seconds: float) -> None:
        """Wait before another attempt; raises `SinkStopped` when it is to stop."""
        if self.stopping.wait(seconds):
            raise SinkStopped("stopped while the sink was waited for")


# --- records --------------------------------------------------------------------------------------
# Changes as lines of JSON, as files and receivers get them.
#
# A change is what ``uprmc tail --json`` prints, and an `id`: ``vBucket:vb_uuid:seqno``. One that
# came twice has the same id, so that a receiver can tell. What takes a change back has none, and
# must be applied whenever it comes:
#
# - ``{"op": "rollback", "vbucket": ..., "seqno": ...}``: what came after `seqno` is void, and ids
# above it are to be forgotten. With 0, drop everything of this vBucket. The next lines say what is
#   right;
# - ``{"op": "set" or "delete", "undo": true, ...}``: the document as it is now.


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
