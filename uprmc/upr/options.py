"""What a peer has asked of its connection: by the flags of its OPEN, and by CONTROL."""

from __future__ import annotations

from dataclasses import dataclass

from uprmc.errors import InvalidArguments
from uprmc.protocol.control import CONTROLS
from uprmc.protocol.opcodes import OpenFlag
from uprmc.upr.frames import Form

_NO_VALUES = int(OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_KEEP_DATATYPE)
_DELETE_TIMES = int(OpenFlag.DELETE_TIMES)


@dataclass(slots=True)
class UprOptions:
    """One connection's options; `protocol.control` tells which key sets which."""

    buffer_bytes: int = 0  # flow control: pause while so many are unacknowledged; 0 = never
    noop: bool = False  # keep-alives are sent
    noop_interval_s: float | None = None  # after this long without a frame; None = our default
    end_on_close: bool = False  # a closed stream is also ended by a frame
    expirations: bool = False  # expired documents come as such
    new_statuses: bool = False  # an unknown stream has a status of its own
    sequential: bool = False  # one backfill after the other
    priority: str = "medium"  # for statistics
    versioned_markers: bool = False  # snapshot markers come in the form of version 2.2

    # Our extensions. HELLO also grants origins and terms.
    versions: bool = False
    barriers: bool = False
    rounds: bool = False
    snapshot_ends: bool = False
    leases: bool = False
    persisted: bool = False
    heals: bool = False  # the peer may be asked for versions that are damaged here
    facts: bool = False
    origins: bool = False
    terms: bool = False
    snapshots: bool = False
    stream_requests: bool = False
    watermarks: str = ""  # "true": the peer may register; "manage": and change rows of others
    reports: bool = False  # it may report for many vBuckets at once
    floors: bool = False  # rows are shown with their floors

    @property
    def manages(self) -> bool:
        """Whether the peer may change watermark rows of others."""
        return self.watermarks == "manage"


def form_of(flags: int, datatypes: int, options: UprOptions) -> Form:
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


def set_option(options: UprOptions, name: bytes, value: bytes) -> None:
    """Carry out a CONTROL.

    Raises:
        InvalidArguments: the name is unknown, or the value makes no sense.
        NotSupported: a name that was never implemented by anybody.
    """
    control = CONTROLS.get(name)
    if control is None:
        raise InvalidArguments(name)
    try:
        found = control.read(value.decode("ascii"))
    except ValueError:
        raise InvalidArguments(name) from None
    if control.option:
        setattr(options, control.option, found)
