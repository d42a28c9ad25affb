"""CONTROL as a table: one row for each key that a producer knows.

A peer says by CONTROLs how it wants to be served. A key that is not understood is refused with
"invalid arguments", as every generation of servers does, and the peer goes on without it.

See `docs/extensions.md`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from uprmc.errors import InvalidArguments, NotSupported

FLOW_CONTROL = b"connection_buffer_size"
KEEP_ALIVES = b"enable_noop"
KEEP_ALIVE_INTERVAL = b"set_noop_interval"
EXPIRATIONS = b"enable_expiry_opcode"
MARKERS = b"max_marker_version"
END_ON_CLOSE = b"send_stream_end_on_client_close_stream"
BACKFILL_ORDER = b"backfill_order"

# Ours: keys that only a node like this one knows begin with `OURS`.
OURS = b"uprmc_"
VERSIONS = b"uprmc_versions"
BARRIERS = b"uprmc_barrier"
ROUNDS = b"uprmc_rounds"
SNAPSHOT_ENDS = b"uprmc_snapshot_end"
LEASES = b"uprmc_leases"
PERSISTED = b"uprmc_persisted"
HEALS = b"uprmc_heals"
FACTS = b"uprmc_vbucket_facts"
ORIGINS = b"uprmc_origins"
TERMS = b"uprmc_terms"
SNAPSHOTS = b"uprmc_snapshots"
STREAM_REQUESTS = b"uprmc_stream_requests"
WATERMARKS = b"uprmc_hwt"
REPORTS = b"uprmc_hwt_reports"
FLOORS = b"uprmc_hwt_floors"

#: The value of `WATERMARKS` that asks for the rows of others, too.
MANAGE = b"manage"

_BUFFER_MAX_BYTES = 2**32 - 1

#: Bounds of the keep-alive interval that a peer may ask for, in seconds.
_NOOP_MIN_S, _NOOP_MAX_S = 0.1, 10_800.0

_NUMBER = re.compile(r"\d+(\.\d+)?")


class ControlKey(NamedTuple):
    """What a producer makes of a key."""

    option: str  # the field of its `Options` that it sets; empty = it asks for nothing
    read: Callable[[str], object]  # from the value's text to that of the option


# --- values --------------------------------------------------------------------------------------


def _choice(text: str, *choices: str) -> str:
    if text not in choices:
        raise InvalidArguments(text)
    return text


def _switch(text: str) -> bool:
    return _choice(text, "true", "false") == "true"


def _old_switch(text: str) -> bool:
    return text == "true"


def _bytes(text: str) -> int:
    if not text.isdecimal() or int(text) > _BUFFER_MAX_BYTES:
        raise InvalidArguments(text)
    return int(text)


def _interval(text: str) -> float:
    seconds = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(seconds) or not _NOOP_MIN_S <= seconds <= _NOOP_MAX_S:
        raise InvalidArguments(text)
    return seconds


def _priority(text: str) -> str:
    return _choice(text, "high", "medium", "low")


def _sequential(text: str) -> bool:
    return _choice(text, "round-robin", "sequential") == "sequential"


def _marker_version(text: str) -> bool:
    return _choice(text, "2.2") == "2.2"


def _watermarks(text: str) -> str:
    found = _choice(text, "true", "false", MANAGE.decode())
    return "" if found == "false" else found


def _unsupported(text: str) -> None:
    raise NotSupported("a name that no server has ever implemented")


def _any(text: str) -> None:
    """Accept what allows us something that we do not do."""


# --- the table -----------------------------------------------------------------------------------

CONTROLS: dict[bytes, ControlKey] = {
    FLOW_CONTROL: ControlKey("buffer_bytes", _bytes),
    b"stream_buffer_size": ControlKey("", _unsupported),
    KEEP_ALIVES: ControlKey("noop", _old_switch),
    KEEP_ALIVE_INTERVAL: ControlKey("noop_interval_s", _interval),
    b"set_priority": ControlKey("priority", _priority),
    b"supports_cursor_dropping": ControlKey("", _any),
    b"supports_cursor_dropping_vulcan": ControlKey("", _any),
    b"supports_hifi_MFU": ControlKey("", _any),
    b"enable_out_of_order_snapshots": ControlKey("", _any),
    b"consumer_name": ControlKey("", _any),
    END_ON_CLOSE: ControlKey("end_on_close", _switch),
    EXPIRATIONS: ControlKey("expirations", _switch),
    b"v7_dcp_status_codes": ControlKey("new_statuses", _switch),
    BACKFILL_ORDER: ControlKey("sequential", _sequential),
    MARKERS: ControlKey("versioned_markers", _marker_version),
    VERSIONS: ControlKey("versions", _switch),
    BARRIERS: ControlKey("barriers", _switch),
    ROUNDS: ControlKey("rounds", _switch),
    SNAPSHOT_ENDS: ControlKey("snapshot_ends", _switch),
    LEASES: ControlKey("leases", _switch),
    PERSISTED: ControlKey("persisted", _switch),
    HEALS: ControlKey("heals", _switch),
    FACTS: ControlKey("facts", _switch),
    ORIGINS: ControlKey("origins", _switch),
    TERMS: ControlKey("terms", _switch),
    SNAPSHOTS: ControlKey("snapshots", _switch),
    WATERMARKS: ControlKey("watermarks", _watermarks),
    REPORTS: ControlKey("reports", _switch),
    FLOORS: ControlKey("floors", _switch),
    STREAM_REQUESTS: ControlKey("stream_requests", _switch),
}
