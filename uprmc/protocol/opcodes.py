"""The binary protocol as tables: commands and their layout, statuses, flags, features, datatypes.

Numbers are the wire's. They are `IntEnum` members, so they index tables and compare with the plain
integers that come out of a header without a conversion. At the end is the rule by which a request
is answered at all, from its header alone.
"""

from __future__ import annotations

from enum import Flag, IntEnum, IntFlag, auto
from typing import NamedTuple

from uprmc import config

MAGIC_REQUEST = 0x80
MAGIC_RESPONSE = 0x81

HEADER_BYTES = 24

#: All readers of frames accept bodies up to this size, so that each document can be read
#: everywhere.
FRAME_MAX_BYTES = config.FRAME_MAX_BYTES

#: Longest key of any command, in bytes.
KEY_MAX_BYTES = 250

#: Expiration of increment and decrement that means "do not create a missing key".
DO_NOT_CREATE = 0xFFFFFFFF


class Part(IntEnum):
    """Whether a request may, must or must not have a key or value.

    Bit 1 allows it to be empty, bit 2 to be present, so that the check is one AND.
    """

    NONE = 1
    REQUIRED = 2
    OPTIONAL = 3


class Who(Flag):
    """Who may use a command where users log in: those who have any of these roles."""

    READ = auto()
    WRITE = auto()
    STREAM = auto()
    REPLICATE = auto()
    MANAGE = auto()
    BOTH = auto()  # read and write: it reads, and changes an expiry time, takes a lock or counts
    USERS = auto()  # any user: it finds the right node, and learns how far histories have come
    ANYBODY = auto()  # also before a login


class Shape(NamedTuple):
    """What a request's body must consist of."""

    extras: frozenset[int]  # lengths in bytes that they may have
    key: Part
    value: Part


_Row = tuple[int, int | tuple[int, ...] | None, Part, Part, Who]
_QuietRow = tuple[int, int | tuple[int, ...] | None, Part, Part, Who, int]


def _quiet(number: int, loud: _Row, who: Who | None = None) -> _QuietRow:
    """Return the row of the quiet form of a command; `who` may use it, if not the same."""
    return (number, *loud[1:4], who or loud[4], loud[0])


_NONE, _MUST, _MAY = Part.NONE, Part.REQUIRED, Part.OPTIONAL
_READ, _WRITE, _BOTH = Who.READ, Who.WRITE, Who.BOTH
_STREAM, _REPLICATE, _MANAGE = Who.STREAM, Who.REPLICATE, Who.MANAGE
_USERS, _ANYBODY = Who.USERS, Who.ANYBODY


class Opcode(IntEnum):
    """The command of a frame: one row for each.

    A row is its number, the lengths that its extras may have, whether there is a key and a value,
    and who may use it. What has no extras here is judged by who speaks TAP. A quiet command has the
    row of its loud form, which always answers: quiet gets do not answer a miss, the others do not
    answer success; all of them answer errors. A response repeats the opcode of its request, even a
    quiet one.
    """

    shape: Shape | None
    who: Who
    loud: int | None

    def __new__(
        cls,
        number: int,
        extras: int | tuple[int, ...] | None = None,
        key: Part = Part.OPTIONAL,
        value: Part = Part.OPTIONAL,
        who: Who = Who.USERS,
        loud: int | None = None,
    ) -> Opcode:
        """Make the member of a row."""
        self = int.__new__(cls, number)
        self._value_ = number
        lengths = (extras,) if isinstance(extras, int) else extras
        self.shape = None if lengths is None else Shape(frozenset(lengths), key, value)
        self.who = who
        self.loud = loud
        return self

    GET = 0x00, 0, _MUST, _NONE, _READ
    SET = 0x01, 8, _MUST, _MAY, _WRITE
    ADD = 0x02, 8, _MUST, _MAY, _WRITE
    REPLACE = 0x03, 8, _MUST, _MAY, _WRITE
    DELETE = 0x04, 0, _MUST, _NONE, _WRITE
    INCREMENT = 0x05, 20, _MUST, _NONE, _BOTH
    DECREMENT = 0x06, 20, _MUST, _NONE, _BOTH
    QUIT = 0x07, 0, _NONE, _NONE, _ANYBODY
    FLUSH = 0x08, (0, 4), _NONE, _NONE, _MANAGE
    GETQ = _quiet(0x09, GET)
    NOOP = 0x0A, 0, _NONE, _NONE, _ANYBODY
    VERSION = 0x0B, 0, _NONE, _NONE, _ANYBODY
    GETK = 0x0C, 0, _MUST, _NONE, _READ
    GETKQ = _quiet(0x0D, GETK)
    APPEND = 0x0E, 0, _MUST, _MAY, _WRITE
    PREPEND = 0x0F, 0, _MUST, _MAY, _WRITE
    STAT = 0x10, 0, _MAY, _NONE, _USERS
    SETQ = _quiet(0x11, SET)
    ADDQ = _quiet(0x12, ADD)
    REPLACEQ = _quiet(0x13, REPLACE)
    DELETEQ = _quiet(0x14, DELETE)
    INCREMENTQ = _quiet(0x15, INCREMENT, _WRITE)
    DECREMENTQ = _quiet(0x16, DECREMENT, _WRITE)
    QUITQ = _quiet(0x17, QUIT)
    FLUSHQ = _quiet(0x18, FLUSH)
    APPENDQ = _quiet(0x19, APPEND)
    PREPENDQ = _quiet(0x1A, PREPEND)
    VERBOSITY = 0x1B, 4, _NONE, _NONE, _MANAGE
    TOUCH = 0x1C, 4, _MUST, _NONE, _WRITE
    GAT = 0x1D, 4, _MUST, _NONE, _BOTH
    GATQ = _quiet(0x1E, GAT)
    HELLO = 0x1F, 0, _MAY, _MAY, _ANYBODY
    SASL_LIST_MECHS = 0x20, 0, _NONE, _NONE, _ANYBODY
    SASL_AUTH = 0x21, 0, _MUST, _MAY, _ANYBODY
    SASL_STEP = 0x22, 0, _MUST, _MAY, _ANYBODY
    GATK = 0x23, 4, _MUST, _NONE, _BOTH
    GATKQ = _quiet(0x24, GATK)

    SET_VBUCKET = 0x3D, (0, 1, 4), _NONE, _MAY, _MANAGE
    GET_VBUCKET = 0x3E, 0, _MAY, _NONE, _USERS
    DEL_VBUCKET = 0x3F, 0, _NONE, _MAY, _MANAGE
    TAP_CONNECT = 0x40, None, _MAY, _MAY, _STREAM
    TAP_MUTATION = 0x41, None, _MAY, _MAY, _REPLICATE
    TAP_DELETE = 0x42, None, _MAY, _MAY, _REPLICATE
    TAP_FLUSH = 0x43, None, _MAY, _MAY, _REPLICATE
    TAP_OPAQUE = 0x44, None, _MAY, _MAY, _REPLICATE
    TAP_VBUCKET_SET = 0x45, None, _MAY, _MAY, _REPLICATE
    TAP_CHECKPOINT_START = 0x46, None, _MAY, _MAY, _REPLICATE
    TAP_CHECKPOINT_END = 0x47, None, _MAY, _MAY, _REPLICATE
    GET_ALL_VB_SEQNOS = 0x48, (0, 4, 8), _NONE, _NONE, _USERS

    UPR_OPEN = 0x50, 8, _MUST, _MAY, _USERS
    UPR_ADD_STREAM = 0x51, 4, _NONE, _NONE, _REPLICATE
    UPR_CLOSE_STREAM = 0x52, 0, _NONE, _NONE, _STREAM | _REPLICATE
    UPR_STREAM_REQUEST = 0x53, (40, 48), _NONE, _MAY, _STREAM
    UPR_GET_FAILOVER_LOG = 0x54, 0, _NONE, _NONE, _STREAM
    UPR_STREAM_END = 0x55, 4, _NONE, _NONE, _REPLICATE
    UPR_SNAPSHOT_MARKER = 0x56, (1, 20), _NONE, _MAY, _REPLICATE
    UPR_MUTATION = 0x57, 31, _MUST, _MAY, _REPLICATE
    UPR_DELETION = 0x58, (18, 21), _MUST, _MAY, _REPLICATE
    UPR_EXPIRATION = 0x59, (18, 20), _MUST, _MAY, _REPLICATE
    UPR_FLUSH = 0x5A, 0, _NONE, _NONE, _REPLICATE
    UPR_SET_VBUCKET_STATE = 0x5B, 1, _NONE, _NONE, _REPLICATE
    UPR_NOOP = 0x5C, 0, _NONE, _NONE, _STREAM | _REPLICATE | _MANAGE
    UPR_BUFFER_ACK = 0x5D, 4, _NONE, _NONE, _STREAM | _REPLICATE | _MANAGE
    UPR_CONTROL = 0x5E, 0, _MUST, _MUST, _STREAM | _REPLICATE | _MANAGE
    UPR_SEQNO_ACKNOWLEDGED = 0x61, 8, _NONE, _NONE, _STREAM

    STOP_PERSISTENCE = 0x80, 0, _NONE, _NONE, _MANAGE
    START_PERSISTENCE = 0x81, 0, _NONE, _NONE, _MANAGE
    SET_PARAM = 0x82, 4, _MUST, _MUST, _MANAGE
    GET_REPLICA = 0x83, 0, _MUST, _NONE, _READ
    SELECT_BUCKET = 0x89, 0, _MAY, _NONE, _USERS
    OBSERVE_SEQNO = 0x91, 0, _NONE, _MUST, _USERS
    OBSERVE = 0x92, 0, _NONE, _MUST, _READ | _WRITE
    EVICT_KEY = 0x93, 0, _MUST, _NONE, _WRITE
    GETL = 0x94, (0, 4), _MUST, _NONE, _BOTH
    UNLOCK = 0x95, 0, _MUST, _NONE, _WRITE
    GET_FAILOVER_LOG = 0x96, 0, _NONE, _NONE, _USERS
    LAST_CLOSED_CHECKPOINT = 0x97, 0, _NONE, _NONE, _STREAM
    DEREGISTER_TAP_CLIENT = 0x9E, 0, _MUST, _NONE, _MANAGE
    RESET_REPLICATION_CHAIN = 0x9F, 0, _NONE, _NONE, _MANAGE
    GET_META = 0xA0, (0, 1), _MUST, _NONE, _READ | _STREAM | _REPLICATE
    GETQ_META = _quiet(0xA1, GET_META)
    SET_WITH_META = 0xA2, (24, 26, 28, 30), _MUST, _MAY, _REPLICATE
    SETQ_WITH_META = _quiet(0xA3, SET_WITH_META)
    ADD_WITH_META = 0xA4, (24, 26, 28, 30), _MUST, _MAY, _REPLICATE
    ADDQ_WITH_META = _quiet(0xA5, ADD_WITH_META)
    DEL_WITH_META = 0xA8, (24, 26, 28, 30), _MUST, _MAY, _REPLICATE
    DELQ_WITH_META = _quiet(0xA9, DEL_WITH_META)
    CREATE_CHECKPOINT = 0xAA, 0, _NONE, _NONE, _MANAGE
    ENABLE_TRAFFIC = 0xAD, 0, _NONE, _NONE, _MANAGE
    DISABLE_TRAFFIC = 0xAE, 0, _NONE, _NONE, _MANAGE
    CHANGE_VB_FILTER = 0xB0, 0, _MUST, _MAY, _MANAGE
    RETURN_META = 0xB2, 12, _MUST, _MAY, _WRITE
    COMPACT_DB = 0xB3, 24, _NONE, _NONE, _MANAGE
    SET_CLUSTER_CONFIG = 0xB4, 0, _NONE, _MUST, _MANAGE
    GET_CLUSTER_CONFIG = 0xB5, 0, _NONE, _NONE, _USERS
    GET_RANDOM_KEY = 0xB6, 0, _NONE, _NONE, _READ
    SEQNO_PERSISTENCE = 0xB7, 8, _NONE, _NONE, _USERS
    GET_KEYS = 0xB8, (0, 4), _MUST, _NONE, _READ | _STREAM

    # Ours, at the far ends of gaps that no other server has used (UPR reference, section 7).
    XDCR = 0xD5, 0, _MUST, _MAY, _REPLICATE | _MANAGE
    VBUCKET_FACTS = 0xD6, 16, _NONE, _NONE, _STREAM | _REPLICATE
    REPLICATE = 0xD7, 4, _MAY, _MAY, _MANAGE
    TAKEOVER = 0xD8, 0, _MUST, _MUST, _MANAGE
    FAILOVER = 0xD9, 0, _NONE, _MUST, _MANAGE
    TELL_TERMS = 0xDB, 0, _NONE, _MUST, _STREAM | _REPLICATE | _MANAGE
    LEASE_ROWS = 0xDC, 20, _NONE, _NONE, _STREAM
    HWT_REPORTS = 0xDD, 8, _MUST, _MUST, _STREAM | _MANAGE
    STREAM_REQUESTS = 0xDE, 4, _NONE, _MUST, _STREAM
    SNAPSHOTS = 0xDF, 8, _NONE, _MUST, _STREAM
    LEASE_ACQUIRE = 0xE4, (4, 8), _MAY, _MAY, _STREAM
    LEASE_RENEW = 0xE5, 12, _NONE, _NONE, _STREAM
    LEASE_RELEASE = 0xE6, 8, _NONE, _NONE, _STREAM
    GET_VERSION = 0xE7, 8, _MUST, _NONE, _READ | _STREAM
    BARRIER_ADD = 0xE8, 0, _MUST, _NONE, _STREAM
    BARRIER_REACHED = 0xE9, 8, _MUST, _NONE, _STREAM
    PARTITION_START = 0xEA, 20, _NONE, _NONE, _STREAM
    ROUND_COMPLETE = 0xEB, 12, _NONE, _NONE, _STREAM
    SNAPSHOT_END = 0xEC, 12, _NONE, _NONE, _STREAM
    HWT_REPORT = 0xED, (16, 24), _MUST, _MAY, _STREAM | _MANAGE
    HWT_READ = 0xEE, 0, _MAY, _NONE, _STREAM | _MANAGE
    HWT_REPLICATE = 0xEF, 12, _NONE, _MAY, _REPLICATE

    SET_SESSION_TOKEN = 0xF4, 8, _NONE, _NONE, _MANAGE
    GET_SESSION_TOKEN = 0xF5, 0, _NONE, _NONE, _USERS
    GET_ERROR_MAP = 0xFE, 0, _NONE, _MUST, _ANYBODY


#: Layout of every known request, including quiet forms.
SHAPES: dict[int, Shape] = {each: each.shape for each in Opcode if each.shape is not None}

#: Quiet opcode -> the opcode that does the same and always answers.
QUIET: dict[int, int] = {each: each.loud for each in Opcode if each.loud is not None}


class Status(IntEnum):
    """The result of a request; the third 16-bit field of a response."""

    SUCCESS = 0x00
    KEY_NOT_FOUND = 0x01
    KEY_EXISTS = 0x02
    TOO_LARGE = 0x03
    INVALID_ARGUMENTS = 0x04
    NOT_STORED = 0x05
    DELTA_BAD_VALUE = 0x06
    NOT_MY_VBUCKET = 0x07
    LOCKED = 0x09
    STREAM_NOT_FOUND = 0x0A
    NOT_LOCKED = 0x0E
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    RANGE_ERROR = 0x22
    ROLLBACK = 0x23
    ACCESS_DENIED = 0x24
    UNKNOWN_COMMAND = 0x81
    OUT_OF_MEMORY = 0x82
    NOT_SUPPORTED = 0x83
    INTERNAL_ERROR = 0x84
    BUSY = 0x85
    TEMPORARY_FAILURE = 0x86


#: Body of an error reply. The texts up to DELTA_BAD_VALUE, AUTH_ERROR, UNKNOWN_COMMAND and
#: OUT_OF_MEMORY are memcached's own, byte for byte; clients compare them.
STATUS_TEXT: dict[int, bytes] = {
    Status.SUCCESS: b"",
    Status.KEY_NOT_FOUND: b"Not found",
    Status.KEY_EXISTS: b"Data exists for key.",
    Status.TOO_LARGE: b"Too large.",
    Status.INVALID_ARGUMENTS: b"Invalid arguments",
    Status.NOT_STORED: b"Not stored.",
    Status.DELTA_BAD_VALUE: b"Non-numeric server-side value for incr or decr",
    Status.NOT_MY_VBUCKET: b"Not my vbucket",
    Status.LOCKED: b"Locked",
    Status.STREAM_NOT_FOUND: b"Stream not found",
    Status.NOT_LOCKED: b"Not locked",
    Status.AUTH_ERROR: b"Auth failure.",
    Status.AUTH_CONTINUE: b"",
    Status.RANGE_ERROR: b"Outside range",
    Status.ROLLBACK: b"Rollback",
    Status.ACCESS_DENIED: b"Not authorized",
    Status.UNKNOWN_COMMAND: b"Unknown command",
    Status.OUT_OF_MEMORY: b"Out of memory",
    Status.NOT_SUPPORTED: b"Not supported",
    Status.INTERNAL_ERROR: b"Internal error",
    Status.BUSY: b"Server too busy",
    Status.TEMPORARY_FAILURE: b"Temporary failure",
}


def opcode_name(opcode: int) -> str:
    """Return the usual name of an opcode."""
    try:
        return Opcode(opcode).name
    except ValueError:
        return f"opcode {opcode:#04x}"


def status_name(status: int) -> str:
    """Return the usual name of a status."""
    try:
        return Status(status).name
    except ValueError:
        return f"{status:#06x}"


def status_text(status: int) -> str:
    """Return a status as text and number."""
    return f"{STATUS_TEXT.get(status, b'unknown status').decode()} ({status:04x})"


class OpenFlag(IntFlag):
    """Bits of a UPR open. Others are for extensions that are not supported."""

    PRODUCER = 0x01
    NOTIFIER = 0x02
    XATTRS = 0x04
    NO_VALUE = 0x08
    DELETE_TIMES = 0x20
    NO_VALUE_KEEP_DATATYPE = 0x40


class StreamFlag(IntFlag):
    """Bits of a stream request."""

    TAKEOVER = 0x01
    DISK_ONLY = 0x02
    LATEST = 0x04
    NO_VALUE = 0x08
    ACTIVE_ONLY = 0x10
    STRICT_UUID = 0x20
    FROM_LATEST = 0x40
    IGNORE_PURGED = 0x80


class MarkerFlag(IntFlag):
    """Type bits of a snapshot marker."""

    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACK = 0x08


class EndReason(IntEnum):
    """Why a stream ended. Only modern peers know `TOO_SLOW` and later ones."""

    OK = 0
    CLOSED = 1
    STATE_CHANGED = 2
    DISCONNECTED = 3
    TOO_SLOW = 4
    BACKFILL_FAILED = 5
    ROLLBACK = 6
    FILTER_EMPTY = 7
    LOST_PRIVILEGES = 8


class Feature(IntEnum):
    """Features of HELLO. Numbers that are not listed here are not granted."""

    DATATYPE = 0x01
    TLS = 0x02
    TCP_NODELAY = 0x03
    MUTATION_SEQNO = 0x04
    TCP_DELAY = 0x05
    XATTR = 0x06
    XERROR = 0x07
    SELECT_BUCKET = 0x08
    SNAPPY = 0x0A
    JSON = 0x0B
    DUPLEX = 0x0C
    CLUSTER_MAP_NOTIFICATION = 0x0D
    UNORDERED_EXECUTION = 0x0E
    TRACING = 0x0F
    ALT_REQUEST = 0x10
    SYNC_REPLICATION = 0x11
    COLLECTIONS = 0x12

    # Ours (UPR reference, section 7).
    TERMS = 0x5501
    ORIGINS = 0x5502
    CHECKPOINTS = 0x5503


class DataType(IntFlag):
    """Bits of the header's datatype byte: how the value is to be understood."""

    RAW = 0x00
    JSON = 0x01
    SNAPPY = 0x02
    XATTR = 0x04


class ObservedState(IntEnum):
    """State of one key in the reply to OBSERVE."""

    NOT_PERSISTED = 0x00
    PERSISTED = 0x01
    NOT_FOUND = 0x80
    LOGICALLY_DELETED = 0x81


# --- which requests are answered at all -----------------------------------------------------------


class Refusal(NamedTuple):
    """Why a frame is not carried out, and whether the connection ends after that reply."""

    status: Status
    closes: bool


_TORN = Refusal(Status.UNKNOWN_COMMAND, closes=True)
_UNKNOWN = Refusal(Status.UNKNOWN_COMMAND, closes=False)
_MISSHAPEN = Refusal(Status.INVALID_ARGUMENTS, closes=True)
_MISSHAPEN_ELSEWHERE = Refusal(Status.INVALID_ARGUMENTS, closes=False)

#: memcached's own commands are below; it closes the connection if the layout is wrong. ep-engine,
#: from which the others come, only refuses the command.
_FIRST_ENGINE_OPCODE = Opcode.SET_VBUCKET


def shape_error(
    opcode: int, extras_length: int, key_length: int, body_length: int
) -> Refusal | None:
    """Check a request by its header alone; ``None`` means it may be carried out.

    The checks are in memcached's order: lengths that contradict each other, a key that is too long
    (for any opcode), an unknown opcode, a body of the wrong layout. After an unknown command
    exactly its body must be dropped.
    """
    value_length = body_length - extras_length - key_length
    if value_length < 0:
        return _TORN
    if key_length > KEY_MAX_BYTES:
        return _MISSHAPEN
    shape = SHAPES.get(opcode)
    if shape is None:
        return _UNKNOWN
    extras, key, value = shape
    if (
        extras_length in extras
        and key & (2 if key_length else 1)
        and value & (2 if value_length else 1)
    ):
        return None
    return _MISSHAPEN if opcode < _FIRST_ENGINE_OPCODE else _MISSHAPEN_ELSEWHERE
