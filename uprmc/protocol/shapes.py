"""Which requests are answered at all: the layout of each opcode's body, as seen in the header.

Source: memcached reference 2.2, 2.3 and 2.7; UPR reference 2 and 6.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from uprmc.protocol.opcodes import KEY_MAX_BYTES, QUIET, Opcode, Status


class Part(IntEnum):
    """Whether a command may, must or must not have a key or value.

    Bit 1 allows it to be empty, bit 2 to be present, so that the check is one AND.
    """

    NONE = 1
    REQUIRED = 2
    OPTIONAL = 3


class Shape(NamedTuple):
    """What a request's body must consist of.

    Attributes:
        extras: the lengths in bytes that the extras may have.
        key: whether there is a key.
        value: whether there is a value.
    """

    extras: frozenset[int]
    key: Part
    value: Part


class Refusal(NamedTuple):
    """Why a frame is not carried out, and whether the connection ends after that reply."""

    status: Status
    closes: bool


def _shape(*extras: int, key: Part = Part.NONE, value: Part = Part.NONE) -> Shape:
    return Shape(frozenset(extras), key, value)


_BARE = _shape(0)
_KEY = _shape(0, key=Part.REQUIRED)
_STORE = _shape(8, key=Part.REQUIRED, value=Part.OPTIONAL)
_EXTEND = _shape(0, key=Part.REQUIRED, value=Part.OPTIONAL)
_ARITHMETIC = _shape(20, key=Part.REQUIRED)
_TOUCH = _shape(4, key=Part.REQUIRED)
_VALUE = _shape(0, value=Part.REQUIRED)
_WITH_META = _shape(24, 26, 28, 30, key=Part.REQUIRED, value=Part.OPTIONAL)

#: Layout of every known request, including quiet forms.
SHAPES: dict[int, Shape] = {
    Opcode.GET: _KEY,
    Opcode.SET: _STORE,
    Opcode.ADD: _STORE,
    Opcode.REPLACE: _STORE,
    Opcode.DELETE: _KEY,
    Opcode.INCREMENT: _ARITHMETIC,
    Opcode.DECREMENT: _ARITHMETIC,
    Opcode.QUIT: _BARE,
    Opcode.FLUSH: _shape(0, 4),
    Opcode.NOOP: _BARE,
    Opcode.VERSION: _BARE,
    Opcode.GETK: _KEY,
    Opcode.APPEND: _EXTEND,
    Opcode.PREPEND: _EXTEND,
    Opcode.STAT: _shape(0, key=Part.OPTIONAL),
    Opcode.VERBOSITY: _shape(4),
    Opcode.TOUCH: _TOUCH,
    Opcode.GAT: _TOUCH,
    Opcode.HELLO: _shape(0, key=Part.OPTIONAL, value=Part.OPTIONAL),
    Opcode.GET_ERROR_MAP: _VALUE,
    Opcode.SASL_LIST_MECHS: _BARE,
    Opcode.SASL_AUTH: _EXTEND,
    Opcode.SASL_STEP: _EXTEND,
    Opcode.GATK: _TOUCH,
    Opcode.SET_VBUCKET: _shape(0, 1, 4, value=Part.OPTIONAL),
    Opcode.GET_VBUCKET: _shape(0, key=Part.OPTIONAL),
    Opcode.DEL_VBUCKET: _shape(0, value=Part.OPTIONAL),
    Opcode.GET_ALL_VB_SEQNOS: _shape(0, 4, 8),
    Opcode.UPR_OPEN: _shape(8, key=Part.REQUIRED, value=Part.OPTIONAL),
    Opcode.UPR_ADD_STREAM: _shape(4),
    Opcode.UPR_CLOSE_STREAM: _BARE,
    Opcode.UPR_STREAM_REQUEST: _shape(40, 48, value=Part.OPTIONAL),
    Opcode.UPR_GET_FAILOVER_LOG: _BARE,
    Opcode.UPR_STREAM_END: _shape(4),
    Opcode.UPR_SNAPSHOT_MARKER: _shape(1, 20, value=Part.OPTIONAL),
    Opcode.UPR_MUTATION: _shape(31, key=Part.REQUIRED, value=Part.OPTIONAL),
    Opcode.UPR_DELETION: _shape(18, 21, key=Part.REQUIRED, value=Part.OPTIONAL),
    Opcode.UPR_EXPIRATION: _shape(18, 20, key=Part.REQUIRED, value=Part.OPTIONAL),
    Opcode.UPR_FLUSH: _BARE,
    Opcode.UPR_SET_VBUCKET_STATE: _shape(1),
    Opcode.UPR_NOOP: _BARE,
    Opcode.UPR_BUFFER_ACK: _shape(4),
    Opcode.UPR_CONTROL: _shape(0, key=Part.REQUIRED, value=Part.REQUIRED),
    Opcode.UPR_SEQNO_ACKNOWLEDGED: _shape(8),
    Opcode.STOP_PERSISTENCE: _BARE,
    Opcode.START_PERSISTENCE: _BARE,
    Opcode.SET_PARAM: _shape(4, key=Part.REQUIRED, value=Part.REQUIRED),
    Opcode.GET_REPLICA: _KEY,
    Opcode.SELECT_BUCKET: _shape(0, key=Part.OPTIONAL),
    Opcode.OBSERVE_SEQNO: _VALUE,
    Opcode.OBSERVE: _VALUE,
    Opcode.EVICT_KEY: _KEY,
    Opcode.GETL: _shape(0, 4, key=Part.REQUIRED),
    Opcode.UNLOCK: _KEY,
    Opcode.GET_FAILOVER_LOG: _BARE,
    Opcode.LAST_CLOSED_CHECKPOINT: _BARE,
    Opcode.DEREGISTER_TAP_CLIENT: _KEY,
    Opcode.RESET_REPLICATION_CHAIN: _BARE,
    Opcode.GET_META: _shape(0, 1, key=Part.REQUIRED),
    Opcode.SET_WITH_META: _WITH_META,
    Opcode.ADD_WITH_META: _WITH_META,
    Opcode.DEL_WITH_META: _WITH_META,
    Opcode.CREATE_CHECKPOINT: _BARE,
    Opcode.ENABLE_TRAFFIC: _BARE,
    Opcode.DISABLE_TRAFFIC: _BARE,
    Opcode.CHANGE_VB_FILTER: _EXTEND,
    Opcode.RETURN_META: _shape(12, key=Part.REQUIRED, value=Part.OPTIONAL),
    Opcode.COMPACT_DB: _shape(24),
    Opcode.SET_CLUSTER_CONFIG: _VALUE,
    Opcode.GET_CLUSTER_CONFIG: _BARE,
    Opcode.GET_RANDOM_KEY: _BARE,
    Opcode.SEQNO_PERSISTENCE: _shape(8),
    Opcode.GET_KEYS: _shape(0, 4, key=Part.REQUIRED),
    Opcode.VBUCKET_FACTS: _shape(16),
    Opcode.XDCR: _shape(0, key=Part.REQUIRED, value=Part.OPTIONAL),
    Opcode.REPLICATE: _shape(4, key=Part.OPTIONAL, value=Part.OPTIONAL),
    Opcode.TAKEOVER: _shape(0, key=Part.REQUIRED, value=Part.REQUIRED),
    Opcode.FAILOVER: _shape(0, value=Part.REQUIRED),
    Opcode.LEASE_ACQUIRE: _shape(4, 8, key=Part.OPTIONAL, value=Part.OPTIONAL),
    Opcode.LEASE_RENEW: _shape(12),
    Opcode.LEASE_RELEASE: _shape(8),
    Opcode.LEASE_ROWS: _shape(20),
    Opcode.TELL_TERMS: _VALUE,
    Opcode.GET_VERSION: _shape(8, key=Part.REQUIRED),
    Opcode.BARRIER_ADD: _KEY,
    Opcode.BARRIER_REACHED: _shape(8, key=Part.REQUIRED),
    Opcode.PARTITION_START: _shape(20),
    Opcode.ROUND_COMPLETE: _shape(12),
    Opcode.SNAPSHOT_END: _shape(12),
    Opcode.HWT_REPORT: _shape(16, 24, key=Part.REQUIRED, value=Part.OPTIONAL),
    Opcode.HWT_REPORTS: _shape(8, key=Part.REQUIRED, value=Part.REQUIRED),
    Opcode.HWT_READ: _shape(0, key=Part.OPTIONAL),
    Opcode.HWT_REPLICATE: _shape(12, value=Part.OPTIONAL),
    Opcode.STREAM_REQUESTS: _shape(4, value=Part.REQUIRED),
    Opcode.SNAPSHOTS: _shape(8, value=Part.REQUIRED),
    Opcode.SET_SESSION_TOKEN: _shape(8),
    Opcode.GET_SESSION_TOKEN: _BARE,
}
SHAPES.update({quiet: SHAPES[loud] for quiet, loud in QUIET.items()})

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

    Source: memcached reference, sections 2.2, 2.3 and 2.7.
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
