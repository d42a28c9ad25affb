"""Names and numbers of the binary protocol in one place: opcodes, statuses, features, datatypes.

Numbers are the wire's. They are `IntEnum` members, so they index tables and compare with the plain
integers that come out of a header without a conversion.

Source: memcached reference, sections 2.1 to 2.4; UPR reference, sections 1.2, 2.13 and 6.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

MAGIC_REQUEST = 0x80
MAGIC_RESPONSE = 0x81

HEADER_BYTES = 24

#: Longest key of any command, in bytes.
KEY_MAX_BYTES = 250

#: Expiration of increment and decrement that means "do not create a missing key".
DO_NOT_CREATE = 0xFFFFFFFF


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

    OBSERVE_SEQNO = 0x91
    OBSERVE = 0x92
    GETL = 0x94
    UNLOCK = 0x95


#: Quiet opcode -> the opcode that does the same and always answers. The gets among the keys are
#: silent about a miss, all others about success; none is silent about an error.
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
}


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
