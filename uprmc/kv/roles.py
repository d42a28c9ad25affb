"""Which role each command needs: one table for opcodes and one for words of the text protocol.

Where a command is in the sets of several roles, any of these is enough. The tables are turned round
once: a session knows what its user may *not* use, which is nothing where nobody logs in.

A few commands ask for more by themselves (`door.require`): ``mg`` that changes an expiry time,
groups of statistics, their reset, a list of keys among them, and XDCR's verbs for managers.
"""

from __future__ import annotations

from functools import cache

from uprmc.login.users import Role
from uprmc.protocol.opcodes import QUIET, Opcode

#: What every peer may do, also before a login.
OPEN_OPCODES = frozenset(
    {
        *(Opcode.HELLO, Opcode.VERSION, Opcode.NOOP, Opcode.QUIT, Opcode.QUITQ),
        *(Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP),
        Opcode.GET_ERROR_MAP,  # clients of Couchbase send it together with their login
    }
)

#: What every user may do: find the right node, and learn how far histories have come.
_USERS = frozenset(
    {
        *(Opcode.SELECT_BUCKET, Opcode.GET_CLUSTER_CONFIG, Opcode.GET_VBUCKET),
        *(Opcode.GET_SESSION_TOKEN, Opcode.GET_FAILOVER_LOG, Opcode.GET_ALL_VB_SEQNOS),
        *(Opcode.OBSERVE_SEQNO, Opcode.SEQNO_PERSISTENCE, Opcode.STAT),
    }
)

_OPCODES_OF: dict[Role, frozenset[Opcode]] = {
    Role.READ: frozenset(
        {
            *(Opcode.GET, Opcode.GETK, Opcode.GET_REPLICA, Opcode.GET_RANDOM_KEY, Opcode.GET_KEYS),
            *(Opcode.GET_META, Opcode.GET_VERSION, Opcode.OBSERVE),
        }
    ),
    Role.WRITE: frozenset(
        {
            *(Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.DELETE, Opcode.APPEND),
            *(Opcode.PREPEND, Opcode.INCREMENT, Opcode.DECREMENT, Opcode.TOUCH, Opcode.RETURN_META),
            *(Opcode.UNLOCK, Opcode.EVICT_KEY, Opcode.OBSERVE),
        }
    ),
    Role.STREAM: frozenset(
        {
            *(Opcode.UPR_OPEN, Opcode.UPR_CLOSE_STREAM, Opcode.UPR_STREAM_REQUEST),
            *(Opcode.UPR_GET_FAILOVER_LOG, Opcode.UPR_NOOP, Opcode.UPR_BUFFER_ACK),
            *(Opcode.UPR_CONTROL, Opcode.TAP_CONNECT),
            *(Opcode.LAST_CLOSED_CHECKPOINT, Opcode.VBUCKET_FACTS, Opcode.STREAM_REQUESTS),
            *(Opcode.SNAPSHOTS, Opcode.LEASE_ACQUIRE, Opcode.LEASE_RENEW, Opcode.LEASE_RELEASE),
            Opcode.LEASE_ROWS,
            *(Opcode.BARRIER_ADD, Opcode.BARRIER_REACHED, Opcode.HWT_REPORT, Opcode.HWT_REPORTS),
            *(Opcode.HWT_READ, Opcode.UPR_SEQNO_ACKNOWLEDGED),
            *(Opcode.PARTITION_START, Opcode.ROUND_COMPLETE, Opcode.SNAPSHOT_END),
            Opcode.TELL_TERMS,
            # Undoing needs the present versions of keys, which the stream has shown, too.
            *(Opcode.GET_KEYS, Opcode.GET_VERSION, Opcode.GET_META),
        }
    ),
    Role.REPLICATE: frozenset(
        {
            *(Opcode.SET_WITH_META, Opcode.ADD_WITH_META, Opcode.DEL_WITH_META),
            *(Opcode.GET_META, Opcode.XDCR, Opcode.TELL_TERMS),
            *(Opcode.UPR_OPEN, Opcode.UPR_CLOSE_STREAM, Opcode.UPR_NOOP, Opcode.UPR_BUFFER_ACK),
            *(Opcode.UPR_CONTROL, Opcode.VBUCKET_FACTS),
            *(Opcode.UPR_ADD_STREAM, Opcode.UPR_STREAM_END, Opcode.UPR_SNAPSHOT_MARKER),
            *(Opcode.UPR_MUTATION, Opcode.UPR_DELETION, Opcode.UPR_EXPIRATION, Opcode.UPR_FLUSH),
            *(Opcode.UPR_SET_VBUCKET_STATE, Opcode.HWT_REPLICATE),
            *(Opcode.TAP_MUTATION, Opcode.TAP_DELETE, Opcode.TAP_FLUSH, Opcode.TAP_OPAQUE),
            *(Opcode.TAP_VBUCKET_SET, Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END),
        }
    ),
    Role.MANAGE: frozenset(
        {
            *(Opcode.FLUSH, Opcode.SET_VBUCKET, Opcode.DEL_VBUCKET, Opcode.STOP_PERSISTENCE),
            *(Opcode.START_PERSISTENCE, Opcode.SET_PARAM, Opcode.CREATE_CHECKPOINT),
            *(Opcode.ENABLE_TRAFFIC, Opcode.DISABLE_TRAFFIC, Opcode.CHANGE_VB_FILTER),
            *(Opcode.COMPACT_DB, Opcode.SET_CLUSTER_CONFIG, Opcode.DEREGISTER_TAP_CLIENT),
            *(Opcode.RESET_REPLICATION_CHAIN, Opcode.XDCR, Opcode.REPLICATE, Opcode.TAKEOVER),
            *(Opcode.FAILOVER, Opcode.SET_SESSION_TOKEN, Opcode.VERBOSITY, Opcode.TELL_TERMS),
        }
    ),
    Role.MONITOR: frozenset(),
}

#: What needs two roles: it reads, and changes an expiry time or takes a lock.
_BOTH = frozenset({Opcode.GAT, Opcode.GATK, Opcode.GETL})

#: What goes into the audit log; XDCR's verbs get there by themselves.
MANAGEMENT = _OPCODES_OF[Role.MANAGE] - {Opcode.XDCR}

_WORDS_OF: dict[Role, frozenset[bytes]] = {
    Role.READ: frozenset({b"get", b"gets", b"mg", b"me", b"lru_crawler"}),
    Role.WRITE: frozenset(
        {
            *(b"set", b"add", b"replace", b"append", b"prepend", b"cas", b"ms", b"md", b"ma"),
            *(b"delete", b"incr", b"decr", b"touch"),
        }
    ),
    Role.MANAGE: frozenset({b"flush_all", b"cache_memlimit", b"verbosity", b"shutdown"}),
}
MANAGEMENT_WORDS = _WORDS_OF[Role.MANAGE]
_BOTH_WORDS = frozenset({b"gat", b"gats"})

#: Words that anybody may say who has logged in.
USERS_WORDS = frozenset({b"version", b"quit", b"mn", b"stats"})

_ALL = frozenset(range(256))


def role_of(opcode: int) -> frozenset[Role] | None:
    """Return the roles of which an opcode needs one, none if every user may use it.

    ``None`` means that nobody may: the tables do not have it.
    """
    if opcode in _with_quiet(_USERS | OPEN_OPCODES | _BOTH):
        return frozenset()
    found = {role for role, opcodes in _OPCODES_OF.items() if opcode in _with_quiet(opcodes)}
    return frozenset(found) or None


@cache
def denied_opcodes(roles: frozenset[Role] | None) -> frozenset[int]:
    """Return what a user with these roles may not use; ``None`` = nobody has logged in."""
    if roles is None:
        return _ALL - OPEN_OPCODES
    allowed = _USERS | OPEN_OPCODES
    for role in roles:
        allowed |= _OPCODES_OF[role]
    if {Role.READ, Role.WRITE} <= roles:
        allowed |= _BOTH
    return frozenset(map(int, Opcode)) - _with_quiet(allowed)


@cache
def denied_words(roles: frozenset[Role]) -> frozenset[bytes]:
    """Return the words of the text protocol that a user with these roles may not say."""
    allowed = frozenset().union(*(_WORDS_OF.get(role, frozenset()) for role in roles))
    if {Role.READ, Role.WRITE} <= roles:
        allowed |= _BOTH_WORDS
    return (frozenset().union(*_WORDS_OF.values()) | _BOTH_WORDS) - allowed


def _with_quiet(opcodes: frozenset[Opcode] | set[Opcode]) -> frozenset[int]:
    loud = frozenset(map(int, opcodes))
    return loud | {quiet for quiet, same in QUIET.items() if same in loud}
