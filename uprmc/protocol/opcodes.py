"""Names and numbers of the binary protocol in one place: opcodes, statuses, features, datatypes.

Numbers are the wire's. They are `IntEnum` members, so they index tables and compare with the plain
integers that come out of a header without a conversion.

Source: memcached reference, sections 2.1 to 2.4; UPR reference, sections 1.2, 2, 6 and 7.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

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


class Opcode(IntEnum):
    """The command of a frame. A response repeats the opcode of its request, even a quiet one."""

    GET = 0x00
    SET = 0x01
    ADD = 0x02
    REPLACE = 0x03
    DELETE = 0x04
    INCREMENT = 0x05
    DECREMENT = 0x06
    QUIT = 0x07
    FLUSH = 0x08
    GETQ = 0x09
    NOOP = 0x0A
    VERSION = 0x0B
    GETK = 0x0C
    GETKQ = 0x0D
    APPEND = 0x0E
    PREPEND = 0x0F
    STAT = 0x10
    SETQ = 0x11
    ADDQ = 0x12
    REPLACEQ = 0x13
    DELETEQ = 0x14
    INCREMENTQ = 0x15
    DECREMENTQ = 0x16
    QUITQ = 0x17
    FLUSHQ = 0x18
    APPENDQ = 0x19
    PREPENDQ = 0x1A
    VERBOSITY = 0x1B
    TOUCH = 0x1C
    GAT = 0x1D
    GATQ = 0x1E
    HELLO = 0x1F
    SASL_LIST_MECHS = 0x20
    SASL_AUTH = 0x21
    SASL_STEP = 0x22
    GATK = 0x23
    GATKQ = 0x24

    SET_VBUCKET = 0x3D
    GET_VBUCKET = 0x3E
    DEL_VBUCKET = 0x3F
    TAP_CONNECT = 0x40
    TAP_MUTATION = 0x41
    TAP_DELETE = 0x42
    TAP_FLUSH = 0x43
    TAP_OPAQUE = 0x44
    TAP_VBUCKET_SET = 0x45
    TAP_CHECKPOINT_START = 0x46
    TAP_CHECKPOINT_END = 0x47
    GET_ALL_VB_SEQNOS = 0x48

    UPR_OPEN = 0x50
    UPR_ADD_STREAM = 0x51
    UPR_CLOSE_STREAM = 0x52
    UPR_STREAM_REQUEST = 0x53
    UPR_GET_FAILOVER_LOG = 0x54
    UPR_STREAM_END = 0x55
    UPR_SNAPSHOT_MARKER = 0x56
    UPR_MUTATION = 0x57
    UPR_DELETION = 0x58
    UPR_EXPIRATION = 0x59
    UPR_FLUSH = 0x5A
    UPR_SET_VBUCKET_STATE = 0x5B
    UPR_NOOP = 0x5C
    UPR_BUFFER_ACK = 0x5D
    UPR_CONTROL = 0x5E
    UPR_SEQNO_ACKNOWLEDGED = 0x61

    STOP_PERSISTENCE = 0x80
    START_PERSISTENCE = 0x81
    SET_PARAM = 0x82
    GET_REPLICA = 0x83
    SELECT_BUCKET = 0x89
    OBSERVE_SEQNO = 0x91
    OBSERVE = 0x92
    EVICT_KEY = 0x93
    GETL = 0x94
    UNLOCK = 0x95
    GET_FAILOVER_LOG = 0x96
    LAST_CLOSED_CHECKPOINT = 0x97
    DEREGISTER_TAP_CLIENT = 0x9E
    RESET_REPLICATION_CHAIN = 0x9F
    GET_META = 0xA0
    GETQ_META = 0xA1
    SET_WITH_META = 0xA2
    SETQ_WITH_META = 0xA3
    ADD_WITH_META = 0xA4
    ADDQ_WITH_META = 0xA5
    DEL_WITH_META = 0xA8
    DELQ_WITH_META = 0xA9
    CREATE_CHECKPOINT = 0xAA
    ENABLE_TRAFFIC = 0xAD
    DISABLE_TRAFFIC = 0xAE
    CHANGE_VB_FILTER = 0xB0
    RETURN_META = 0xB2
    COMPACT_DB = 0xB3
    SET_CLUSTER_CONFIG = 0xB4
    GET_CLUSTER_CONFIG = 0xB5
    GET_RANDOM_KEY = 0xB6
    SEQNO_PERSISTENCE = 0xB7
    GET_KEYS = 0xB8

    # Ours, at the far ends of gaps that no other server has used (UPR reference, section 7).
    XDCR = 0xD5
    VBUCKET_FACTS = 0xD6
    REPLICATE = 0xD7
    TAKEOVER = 0xD8
    FAILOVER = 0xD9
    TELL_TERMS = 0xDB
    LEASE_ROWS = 0xDC
    HWT_REPORTS = 0xDD
    STREAM_REQUESTS = 0xDE
    SNAPSHOTS = 0xDF
    LEASE_ACQUIRE = 0xE4
    LEASE_RENEW = 0xE5
    LEASE_RELEASE = 0xE6
    GET_VERSION = 0xE7
    BARRIER_ADD = 0xE8
    BARRIER_REACHED = 0xE9
    PARTITION_START = 0xEA
    ROUND_COMPLETE = 0xEB
    SNAPSHOT_END = 0xEC
    HWT_REPORT = 0xED
    HWT_READ = 0xEE
    HWT_REPLICATE = 0xEF

    SET_SESSION_TOKEN = 0xF4
    GET_SESSION_TOKEN = 0xF5
    GET_ERROR_MAP = 0xFE


#: Quiet opcode -> the opcode that does the same and always answers. Quiet gets do not answer a
#: miss, the others do not answer success; all of them answer errors.
QUIET: dict[int, int] = {
    Opcode.GETQ: Opcode.GET,
    Opcode.GETKQ: Opcode.GETK,
    Opcode.SETQ: Opcode.SET,
    Opcode.ADDQ: Opcode.ADD,
    Opcode.REPLACEQ: Opcode.REPLACE,
    Opcode.DELETEQ: Opcode.DELETE,
    Opcode.INCREMENTQ: Opcode.INCREMENT,
    Opcode.DECREMENTQ: Opcode.DECREMENT,
    Opcode.QUITQ: Opcode.QUIT,
    Opcode.FLUSHQ: Opcode.FLUSH,
    Opcode.APPENDQ: Opcode.APPEND,
    Opcode.PREPENDQ: Opcode.PREPEND,
    Opcode.GATQ: Opcode.GAT,
    Opcode.GATKQ: Opcode.GATK,
    Opcode.GETQ_META: Opcode.GET_META,
    Opcode.SETQ_WITH_META: Opcode.SET_WITH_META,
    Opcode.ADDQ_WITH_META: Opcode.ADD_WITH_META,
    Opcode.DELQ_WITH_META: Opcode.DEL_WITH_META,
}


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
