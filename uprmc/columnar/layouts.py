"""Layouts and numbers of the wire, for workers without construct. Generated; do not edit.

Made from `uprmc.protocol` by ``python -m tools.spark_layouts``; a test runs it and compares. A
struct's comment names its fields in order; fields in brackets are one number, the first named is
its most significant part. ``*_FIELDS`` is the same frame for numpy: name and type, in order, no
gaps.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct

MAGIC_REQUEST = 0x80
MAGIC_RESPONSE = 0x81
HEADER_BYTES = 24
KEY_MAX_BYTES = 250
FRAME_MAX_BYTES = 135266304


class Opcode(IntEnum):
    """What a frame asks for. A response repeats the opcode of its request, quiet ones too."""

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
    VBUCKET_FACTS = 0xD6
    REPLICATE = 0xD7
    TAKEOVER = 0xD8
    FAILOVER = 0xD9
    LEASE_ACQUIRE = 0xE4
    LEASE_RENEW = 0xE5
    LEASE_RELEASE = 0xE6
    GET_VERSION = 0xE7
    BARRIER_ADD = 0xE8
    BARRIER_REACHED = 0xE9
    PARTITION_START = 0xEA
    ROUND_COMPLETE = 0xEB
    SNAPSHOT_END = 0xEC
    SET_SESSION_TOKEN = 0xF4
    GET_SESSION_TOKEN = 0xF5


class Status(IntEnum):
    """How a request went; the third 16-bit field of a response."""

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


class OpenFlag(IntFlag):
    """Bits of a UPR open. Others are for extensions that are not served."""

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
    """Why a stream ended. `TOO_SLOW` and those after it mean something to peers of today only."""

    OK = 0x00
    CLOSED = 0x01
    STATE_CHANGED = 0x02
    DISCONNECTED = 0x03
    TOO_SLOW = 0x04
    BACKFILL_FAILED = 0x05
    ROLLBACK = 0x06
    FILTER_EMPTY = 0x07
    LOST_PRIVILEGES = 0x08


class Feature(IntEnum):
    """What a HELLO may ask for. Numbers that are not here are simply not granted."""

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
    TERMS = 0x5501


class DataType(IntFlag):
    """Bits of the header's datatype byte: how the value is to be understood."""

    RAW = 0x00
    JSON = 0x01
    SNAPPY = 0x02
    XATTR = 0x04


class WithMetaOption(IntFlag):
    """Option bits of today's *_WITH_META. In 2014 bit 0x01 meant what 0x08 means now."""

    ACCEPT_LAST_WRITE_WINS = 0x01
    FORCE_ACCEPT = 0x02
    REGENERATE_CAS = 0x04
    SKIP_CONFLICT_RESOLUTION = 0x08
    IS_EXPIRATION = 0x10


class VBucketState(IntEnum):
    """What a node may do with a vBucket. The numbers are the ones on the wire."""

    ACTIVE = 0x01
    REPLICA = 0x02
    PENDING = 0x03
    DEAD = 0x04


#: Quiet opcode -> the opcode that does the same and always answers.
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

#: What a node says of a status, in words.
STATUS_TEXT: dict[int, str] = {
    Status.SUCCESS: "",
    Status.KEY_NOT_FOUND: "Not found",
    Status.KEY_EXISTS: "Data exists for key.",
    Status.TOO_LARGE: "Too large.",
    Status.INVALID_ARGUMENTS: "Invalid arguments",
    Status.NOT_STORED: "Not stored.",
    Status.DELTA_BAD_VALUE: "Non-numeric server-side value for incr or decr",
    Status.NOT_MY_VBUCKET: "Not my vbucket",
    Status.LOCKED: "Locked",
    Status.STREAM_NOT_FOUND: "Stream not found",
    Status.NOT_LOCKED: "Not locked",
    Status.AUTH_ERROR: "Auth failure.",
    Status.AUTH_CONTINUE: "",
    Status.RANGE_ERROR: "Outside range",
    Status.ROLLBACK: "Rollback",
    Status.ACCESS_DENIED: "Not authorized",
    Status.UNKNOWN_COMMAND: "Unknown command",
    Status.OUT_OF_MEMORY: "Out of memory",
    Status.NOT_SUPPORTED: "Not supported",
    Status.INTERNAL_ERROR: "Internal error",
    Status.BUSY: "Server too busy",
    Status.TEMPORARY_FAILURE: "Temporary failure",
}

#: magic, opcode, key_length, extras_length, datatype, vbucket, body_length, opaque, cas
REQUEST_HEADER = Struct(">BBHBBHLLQ")

#: magic, opcode, key_length, extras_length, datatype, status, body_length, opaque, cas
RESPONSE_HEADER = Struct(">BBHBBHLLQ")

#: sequence, flags
OPEN_EXTRAS = Struct(">LL")

#: flags, reserved, start_seqno, end_seqno, uuid, snapshot_start, snapshot_end
STREAM_REQUEST_EXTRAS = Struct(">LLQQQQQ")

#: seqno
ROLLBACK_VALUE = Struct(">Q")

#: uuid, seqno
FAILOVER_ENTRY = Struct(">QQ")

#: term
TERM_EXTRAS = Struct(">Q")

#: bytes
BUFFER_ACK_EXTRAS = Struct(">L")

#: reason
STREAM_END_EXTRAS = Struct(">L")

#: start_seqno, end_seqno, kind
SNAPSHOT_MARKER_EXTRAS = Struct(">QQL")

#: version
VERSIONED_MARKER_EXTRAS = Struct(">B")

VERSIONED_MARKER_VERSION = 2

#: start_seqno, end_seqno, kind, max_visible_seqno, high_completed_seqno, purge_seqno,
#: high_prepared_seqno
VERSIONED_MARKER_VALUE = Struct(">QQLQQQQ")

#: by_seqno, rev_seqno, flags, expiration, lock_time, nmeta, nru
MUTATION_EXTRAS = Struct(">QQLLLHB")

#: by_seqno, rev_seqno, nmeta
DELETION_EXTRAS = Struct(">QQH")

#: by_seqno, rev_seqno, delete_time, unused
TIMED_DELETION_EXTRAS = Struct(">QQLB")

TIMED_DELETION_UNUSED = 0

#: by_seqno, rev_seqno, delete_time
EXPIRATION_EXTRAS = Struct(">QQL")

#: purge_seqno, rev_floor
VBUCKET_FACTS_EXTRAS = Struct(">QQ")

#: lifetime_s
LEASE_ACQUIRE_EXTRAS = Struct(">L")

#: lease, lifetime_s
LEASE_RENEW_EXTRAS = Struct(">QL")

#: lease
LEASE_RELEASE_EXTRAS = Struct(">Q")

#: lease, lifetime_s
LEASE_GRANT_EXTRAS = Struct(">QL")

#: vbucket, uuid, high_seqno, purge_seqno
LEASED_VBUCKET = Struct(">HQQQ")

#: flags, expiration
STORE_EXTRAS = Struct(">LL")

#: expiration
TOUCH_EXTRAS = Struct(">L")

#: flags
GET_REPLY_EXTRAS = Struct(">L")

#: uuid, seqno
MUTATION_SEQNO_EXTRAS = Struct(">QQ")

#: uuid
OBSERVE_SEQNO_REQUEST = Struct(">Q")

#: format, vbucket, uuid, persisted_seqno, current_seqno
OBSERVE_SEQNO_REPLY = Struct(">BHQQQ")

OBSERVE_SEQNO_REPLY_FORMAT = 0

#: format, vbucket, uuid, persisted_seqno, current_seqno, old_uuid, last_old_seqno
OBSERVE_SEQNO_FAILOVER_REPLY = Struct(">BHQQQQQ")

OBSERVE_SEQNO_FAILOVER_REPLY_FORMAT = 1

#: state
VBUCKET_SEQNOS_EXTRAS = Struct(">L")

#: vbucket, seqno
VBUCKET_SEQNO = Struct(">HQ")

#: vbucket, seqno, term
VBUCKET_SEQNO_TERM = Struct(">HQQ")

#: seqno
SEQNO_PERSISTENCE_EXTRAS = Struct(">Q")

#: flags, exptime, rev, cas
WITH_META_EXTRAS = Struct(">LLQQ")

#: flags, exptime, rev, cas, nmeta
WITH_META_NMETA_EXTRAS = Struct(">LLQQH")

#: flags, exptime, rev, cas, options
WITH_META_OPTIONS_EXTRAS = Struct(">LLQQL")

#: flags, exptime, rev, cas, options, nmeta
WITH_META_OPTIONS_NMETA_EXTRAS = Struct(">LLQQLH")

#: version
GET_META_EXTRAS = Struct(">B")

#: deleted, flags, exptime, rev
GET_META_REPLY_EXTRAS = Struct(">LLLQ")

#: deleted, flags, exptime, rev, datatype
GET_META_DATATYPE_REPLY_EXTRAS = Struct(">LLLQB")

#: vbucket
LEASE_VBUCKET = Struct(">H")

#: feature
HELLO_FEATURE = Struct(">H")

#: (magic, opcode), body_length
FRAME_SCAN = Struct(">H2x4xL4x8x")

#: (magic, opcode), key_length, (extras_length, datatype, vbucket), body_length, opaque, cas,
#: by_seqno, rev_seqno, flags, expiration, lock_time, nmeta, nru
MUTATION_FRAME = Struct(">HHLLLQQQLLLHB")

MUTATION_FIELDS = (
    ("magic", "u1"),
    ("opcode", "u1"),
    ("key_length", ">u2"),
    ("extras_length", "u1"),
    ("datatype", "u1"),
    ("vbucket", ">u2"),
    ("body_length", ">u4"),
    ("opaque", ">u4"),
    ("cas", ">u8"),
    ("by_seqno", ">u8"),
    ("rev_seqno", ">u8"),
    ("flags", ">u4"),
    ("expiration", ">u4"),
    ("lock_time", ">u4"),
    ("nmeta", ">u2"),
    ("nru", "u1"),
)

#: (magic, opcode), key_length, (extras_length, datatype, vbucket), body_length, opaque, cas,
#: by_seqno, rev_seqno, nmeta
DELETION_FRAME = Struct(">HHLLLQQQH")

DELETION_FIELDS = (
    ("magic", "u1"),
    ("opcode", "u1"),
    ("key_length", ">u2"),
    ("extras_length", "u1"),
    ("datatype", "u1"),
    ("vbucket", ">u2"),
    ("body_length", ">u4"),
    ("opaque", ">u4"),
    ("cas", ">u8"),
    ("by_seqno", ">u8"),
    ("rev_seqno", ">u8"),
    ("nmeta", ">u2"),
)

#: (magic, opcode), key_length, (extras_length, datatype, vbucket), body_length, opaque, cas,
#: by_seqno, rev_seqno, delete_time, unused
TIMED_DELETION_FRAME = Struct(">HHLLLQQQLB")

TIMED_DELETION_FIELDS = (
    ("magic", "u1"),
    ("opcode", "u1"),
    ("key_length", ">u2"),
    ("extras_length", "u1"),
    ("datatype", "u1"),
    ("vbucket", ">u2"),
    ("body_length", ">u4"),
    ("opaque", ">u4"),
    ("cas", ">u8"),
    ("by_seqno", ">u8"),
    ("rev_seqno", ">u8"),
    ("delete_time", ">u4"),
    ("unused", "u1"),
)

#: (magic, opcode), key_length, (extras_length, datatype, vbucket), body_length, opaque, cas,
#: by_seqno, rev_seqno, delete_time
EXPIRATION_FRAME = Struct(">HHLLLQQQL")

EXPIRATION_FIELDS = (
    ("magic", "u1"),
    ("opcode", "u1"),
    ("key_length", ">u2"),
    ("extras_length", "u1"),
    ("datatype", "u1"),
    ("vbucket", ">u2"),
    ("body_length", ">u4"),
    ("opaque", ">u4"),
    ("cas", ">u8"),
    ("by_seqno", ">u8"),
    ("rev_seqno", ">u8"),
    ("delete_time", ">u4"),
)

#: (magic, opcode), key_length, (extras_length, datatype, vbucket), body_length, opaque, cas
BARE_FRAME = Struct(">HHLLLQ")

BARE_FIELDS = (
    ("magic", "u1"),
    ("opcode", "u1"),
    ("key_length", ">u2"),
    ("extras_length", "u1"),
    ("datatype", "u1"),
    ("vbucket", ">u2"),
    ("body_length", ">u4"),
    ("opaque", ">u4"),
    ("cas", ">u8"),
)

#: (magic, opcode), key_length, (extras_length, datatype, vbucket), body_length, opaque, cas,
#: flags, expiration
STORE_FRAME = Struct(">HHLLLQLL")

STORE_FIELDS = (
    ("magic", "u1"),
    ("opcode", "u1"),
    ("key_length", ">u2"),
    ("extras_length", "u1"),
    ("datatype", "u1"),
    ("vbucket", ">u2"),
    ("body_length", ">u4"),
    ("opaque", ">u4"),
    ("cas", ">u8"),
    ("flags", ">u4"),
    ("expiration", ">u4"),
)

#: (magic, opcode), key_length, (extras_length, datatype, vbucket), body_length, opaque, cas,
#: flags, exptime, rev, document_cas
WITH_META_FRAME = Struct(">HHLLLQLLQQ")

WITH_META_FIELDS = (
    ("magic", "u1"),
    ("opcode", "u1"),
    ("key_length", ">u2"),
    ("extras_length", "u1"),
    ("datatype", "u1"),
    ("vbucket", ">u2"),
    ("body_length", ">u4"),
    ("opaque", ">u4"),
    ("cas", ">u8"),
    ("flags", ">u4"),
    ("exptime", ">u4"),
    ("rev", ">u8"),
    ("document_cas", ">u8"),
)

#: (magic, opcode), key_length, (extras_length, datatype, vbucket), body_length, opaque, cas,
#: flags, exptime, rev, document_cas, options
WITH_META_OPTIONS_FRAME = Struct(">HHLLLQLLQQL")

WITH_META_OPTIONS_FIELDS = (
    ("magic", "u1"),
    ("opcode", "u1"),
    ("key_length", ">u2"),
    ("extras_length", "u1"),
    ("datatype", "u1"),
    ("vbucket", ">u2"),
    ("body_length", ">u4"),
    ("opaque", ">u4"),
    ("cas", ">u8"),
    ("flags", ">u4"),
    ("exptime", ">u4"),
    ("rev", ">u8"),
    ("document_cas", ">u8"),
    ("options", ">u4"),
)
