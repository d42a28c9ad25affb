"""What a connection has been told about itself: by the flags of its OPEN, and by CONTROL.

A CONTROL that is not understood is refused with "invalid arguments", as every generation of servers
does, and the peer goes on without it.

Source: UPR reference 2.1, 2.11, 7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from uprmc.errors import InvalidArguments, NotSupported
from uprmc.protocol.opcodes import OpenFlag
from uprmc.protocol.origins import ORIGINS_KEY
from uprmc.protocol.upr_extensions import FACTS_KEY
from uprmc.protocol.upr_many import SNAPSHOTS_KEY, STREAM_REQUESTS_KEY
from uprmc.protocol.watermarks import FLOORS_KEY, MANAGE, WATERMARKS_KEY
from uprmc.protocol.watermarks_many import REPORTS_KEY
from uprmc.upr.frames import Form

#: Bounds of the keep-alive interval that a peer may ask for, in seconds.
_NOOP_MIN_S, _NOOP_MAX_S = 0.1, 10_800.0

_NO_VALUES = int(OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_KEEP_DATATYPE)
_DELETE_TIMES = int(OpenFlag.DELETE_TIMES)

_NUMBER = re.compile(r"\d+(\.\d+)?")

_BUFFER_MAX_BYTES = 2**32 - 1


@dataclass(slots=True)
class Options:
    """One connection's options.

    Attributes:
        buffer_bytes: flow control: pause while this many bytes are unacknowledged; 0 = never.
        noop: whether keep-alives are sent.
        noop_interval_s: after this long without a frame; ``None`` = the server's default.
        end_on_close: whether a closed stream is also ended by a frame.
        expirations: whether expired documents come as such.
        new_statuses: whether an unknown stream has a status of its own.
        sequential: one backfill after the other.
        priority: for statistics.
        versioned_markers: snapshot markers come in the form of version 2.2.
        heals: whether the peer may be asked for versions that are damaged here.
        versions, barriers, rounds, snapshot_ends, leases, persisted, facts, origins, terms,
            snapshots, stream_requests: our extensions; HELLO also grants origins and terms.
        watermarks: whether the peer may register.
        manages: whether it may also change rows of others.
        reports: whether it may report for many vBuckets at once.
        floors: whether rows are shown with their floors.
    """

    buffer_bytes: int = 0
    noop: bool = False
    noop_interval_s: float | None = None
    end_on_close: bool = False
    expirations: bool = False
    new_statuses: bool = False
    sequential: bool = False
    priority: str = "medium"
    heals: bool = False
    versions: bool = False
    barriers: bool = False
    rounds: bool = False
    snapshot_ends: bool = False
    leases: bool = False
    persisted: bool = False
    facts: bool = False
    origins: bool = False
    terms: bool = False
    snapshots: bool = False
    watermarks: bool = False
    manages: bool = False
    reports: bool = False
    floors: bool = False
    stream_requests: bool = False
    versioned_markers: bool = False


def form_of(flags: int, datatypes: int, options: Options) -> Form:
    """Return how a connection with these flags wants its items."""
    return Form(
        datatypes=datatypes,
        values=not flags & _NO_VALUES,
        delete_times=bool(flags & _DELETE_TIMES),
        expirations=options.expirations,
        versioned_markers=options.versioned_markers,
        facts=options.facts,
        origins=options.origins,
    )


def set_option(options: Options, name: bytes, value: bytes) -> None:
    """Carry out a CONTROL.

    Raises:
        InvalidArguments: the name is unknown, or the value makes no sense.
        NotSupported: a name that was never implemented by anybody.
    """
    setter = _SETTERS.get(name)
    if setter is None:
        raise InvalidArguments(name)
    try:
        setter(options, value.decode("ascii"))
    except ValueError:
        raise InvalidArguments(name) from None


def _buffer_size(options: Options, text: str) -> None:
    if not text.isdecimal() or int(text) > _BUFFER_MAX_BYTES:
        raise InvalidArguments(text)
    options.buffer_bytes = int(text)


def _noop_interval(options: Options, text: str) -> None:
    seconds = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(seconds) or not _NOOP_MIN_S <= seconds <= _NOOP_MAX_S:
        raise InvalidArguments(text)
    options.noop_interval_s = seconds


def _noop(options: Options, text: str) -> None:
    options.noop = text == "true"


def _priority(options: Options, text: str) -> None:
    options.priority = _one_of(text, "high", "medium", "low")


def _order(options: Options, text: str) -> None:
    options.sequential = _one_of(text, "round-robin", "sequential") == "sequential"


def _marker_version(options: Options, text: str) -> None:
    _one_of(text, "2.2")
    options.versioned_markers = True


def _unsupported(options: Options, text: str) -> None:
    raise NotSupported("stream_buffer_size")


def _one_of(text: str, *choices: str) -> str:
    if text not in choices:
        raise InvalidArguments(text)
    return text


def _switch(attribute: str) -> Callable[[Options, str], None]:
    def switch(options: Options, text: str) -> None:
        setattr(options, attribute, _one_of(text, "true", "false") == "true")

    return switch


def _watermarks(options: Options, text: str) -> None:
    options.manages = _one_of(text, "true", "false", MANAGE.decode()) == MANAGE.decode()
    options.watermarks = text != "false"


def _welcome(options: Options, text: str) -> None:
    """Accept what asks for nothing: it allows us something that we do not do."""


_SETTERS: dict[bytes, Callable[[Options, str], None]] = {
    b"connection_buffer_size": _buffer_size,
    b"stream_buffer_size": _unsupported,
    b"enable_noop": _noop,
    b"set_noop_interval": _noop_interval,
    b"set_priority": _priority,
    b"supports_cursor_dropping": _welcome,
    b"supports_cursor_dropping_vulcan": _welcome,
    b"supports_hifi_MFU": _welcome,
    b"enable_out_of_order_snapshots": _welcome,
    b"consumer_name": _welcome,
    b"send_stream_end_on_client_close_stream": _switch("end_on_close"),
    b"enable_expiry_opcode": _switch("expirations"),
    b"v7_dcp_status_codes": _switch("new_statuses"),
    b"backfill_order": _order,
    b"max_marker_version": _marker_version,
    b"uprmc_versions": _switch("versions"),
    b"uprmc_barrier": _switch("barriers"),
    b"uprmc_rounds": _switch("rounds"),
    b"uprmc_snapshot_end": _switch("snapshot_ends"),
    b"uprmc_leases": _switch("leases"),
    b"uprmc_persisted": _switch("persisted"),
    b"uprmc_heals": _switch("heals"),
    FACTS_KEY: _switch("facts"),
    ORIGINS_KEY: _switch("origins"),
    b"uprmc_terms": _switch("terms"),
    SNAPSHOTS_KEY: _switch("snapshots"),
    WATERMARKS_KEY: _watermarks,
    REPORTS_KEY: _switch("reports"),
    FLOORS_KEY: _switch("floors"),
    STREAM_REQUESTS_KEY: _switch("stream_requests"),
}

#: Every name that CONTROL knows.
OPTION_NAMES = tuple(_SETTERS)
