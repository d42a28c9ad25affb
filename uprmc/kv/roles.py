"""Which role each command needs: one table for opcodes and one for words of the text protocol.

Where a command is in the sets of several roles, any of these is enough. The tables are turned round
once: a session knows what its user may *not* use, which is nothing where nobody logs in.

A few commands ask for more by themselves (`door.require`); `FINER` lists them.
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
        Opcode.UPR_OPEN,  # what is opened decides, see `FINER`
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
            *(Opcode.PREPEND, Opcode.TOUCH, Opcode.RETURN_META),
            *(Opcode.UNLOCK, Opcode.EVICT_KEY, Opcode.OBSERVE),
        }
    ),
    Role.STREAM: frozenset(
        {
            *(Opcode.UPR_CLOSE_STREAM, Opcode.UPR_STREAM_REQUEST),
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
            *(Opcode.UPR_CLOSE_STREAM, Opcode.UPR_NOOP, Opcode.UPR_BUFFER_ACK),
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
            # Watermarks of others are changed on a connection that may stream.
            *(Opcode.UPR_CONTROL, Opcode.UPR_NOOP, Opcode.UPR_BUFFER_ACK),
            *(Opcode.HWT_REPORT, Opcode.HWT_REPORTS, Opcode.HWT_READ),
        }
    ),
    Role.MONITOR: frozenset(),
}

#: What needs two roles: it reads, and changes an expiry time, takes a lock or counts.
_BOTH = frozenset({Opcode.GAT, Opcode.GATK, Opcode.GETL, Opcode.INCREMENT, Opcode.DECREMENT})

#: These of them answer no value, so they only write.
_ONLY_WRITE = frozenset({Opcode.INCREMENTQ, Opcode.DECREMENTQ})

#: What goes into the audit log: what only managers may. Other commands get there by themselves.
MANAGEMENT = _OPCODES_OF[Role.MANAGE].difference(
    *(opcodes for role, opcodes in _OPCODES_OF.items() if role is not Role.MANAGE)
)

_WORDS_OF: dict[Role, frozenset[bytes]] = {
    Role.READ: frozenset({b"get", b"gets", b"mg", b"me"}),
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

#: Words that anybody may say; a ``set`` is a login then.
STRANGERS_WORDS = frozenset({b"version", b"quit"})

#: Words that anybody may say who has logged in; what follows may need a role, see `FINER`.
USERS_WORDS = frozenset({b"version", b"quit", b"mn", b"stats", b"lru_crawler"})

#: Commands whose form decides which roles they need, and what else they need then.
FINER: tuple[tuple[str, str], ...] = (
    ("`UPR_OPEN` of a stream to the client", "`stream` or `manage`"),
    ("`UPR_OPEN` of a stream to the node", "`replicate`"),
    ("`UPR_CONTROL` `uprmc_hwt=manage`", "`manage`"),
    ("`XDCR`, all verbs but `list`, `record`, `records`, `purged`", "`manage`"),
    (
        "`STAT` of a group but `settings` and `index`; `stats` likewise",
        "`monitor`, `stream`, `replicate` or `manage`",
    ),
    ("`STAT reset`, `stats reset`", "`manage`"),
    ("`stats cachedump`", "`read`"),
    ("`incr`, `decr` without `noreply`; `ma` with `v`", "`read`, too"),
    ("`mg` with `N`, `R` or `T`; to win the right to renew a stale item", "`write`, too"),
    ("`lru_crawler metadump`, `mgdump`", "`read`"),
    ("`lru_crawler` otherwise", "`manage`"),
)

_ALL = frozenset(range(256))


def role_of(opcode: int) -> frozenset[Role] | None:
    """Return the roles of which an opcode needs one, none if every user may use it.

    ``None`` means that nobody may: the tables do not have it. What needs two roles has both.
    """
    if opcode in _with_quiet(_USERS | OPEN_OPCODES):
        return frozenset()
    if needs_both(opcode):
        return _READ_AND_WRITE
    if opcode in _ONLY_WRITE:
        return frozenset({Role.WRITE})
    found = {role for role, opcodes in _OPCODES_OF.items() if opcode in _with_quiet(opcodes)}
    return frozenset(found) or None


_READ_AND_WRITE = frozenset({Role.READ, Role.WRITE})


def needs_both(opcode: int) -> bool:
    """Tell whether an opcode needs all of its roles, and not any one of them."""
    return opcode in _with_quiet(_BOTH) - _ONLY_WRITE


def role_of_word(word: bytes) -> frozenset[Role]:
    """Return the roles of which a word needs one, none if every user may say it."""
    if word in _BOTH_WORDS:
        return _READ_AND_WRITE
    return frozenset(role for role, words in _WORDS_OF.items() if word in words)


def needs_both_for_word(word: bytes) -> bool:
    """Tell whether a word needs all of its roles, and not any one of them."""
    return word in _BOTH_WORDS


def needs(roles: frozenset[Role] | None, *, both: bool) -> str:
    """Say what a refused command needs."""
    named = [role.value for role in Role if role in (roles or ())]
    return f"needs {(' and ' if both else ' or ').join(named)}" if named else "is for no role"


@cache
def needs_of(opcode: int) -> str:
    """Say what an opcode needs."""
    return needs(role_of(opcode), both=needs_both(opcode))


@cache
def denied_opcodes(roles: frozenset[Role] | None) -> frozenset[int]:
    """Return what a user with these roles may not use; ``None`` = nobody has logged in."""
    if roles is None:
        return _ALL - OPEN_OPCODES
    allowed = _USERS | OPEN_OPCODES
    for role in roles:
        allowed |= _OPCODES_OF[role]
    if roles >= _READ_AND_WRITE:
        allowed |= _BOTH
    codes = _with_quiet(allowed)
    if Role.WRITE in roles:
        codes |= _ONLY_WRITE
    return frozenset(map(int, Opcode)) - codes


@cache
def denied_words(roles: frozenset[Role]) -> frozenset[bytes]:
    """Return the words of the text protocol that a user with these roles may not say."""
    allowed = frozenset().union(*(_WORDS_OF.get(role, frozenset()) for role in roles))
    if roles >= _READ_AND_WRITE:
        allowed |= _BOTH_WORDS
    return (frozenset().union(*_WORDS_OF.values()) | _BOTH_WORDS) - allowed


def _with_quiet(opcodes: frozenset[Opcode] | set[Opcode]) -> frozenset[int]:
    loud = frozenset(map(int, opcodes))
    return loud | {quiet for quiet, same in QUIET.items() if same in loud}
