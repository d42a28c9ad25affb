"""Commands that manage a node: persistence, traffic, parameters, cluster map, TAP clients, links.

Commands that manage a node: persistence, traffic, parameters, cluster map.

None of them needs documents, so all but the traffic switch work during warm-up too.

SET_PARAM: settings that may change while the node runs, under the names that tools know.

A parameter is one of our settings with another name and another unit, so its range is that
setting's, and `Bucket.settings` always contains the value in force. Names that tools know but that
have no meaning here (checkpoints, TAP throttles, access log) are unknown: accepting them would be
an empty promise.

Commands of managers from the time of TAP: clients by name, and checkpoints.

A node keeps no checkpoints: it presents a vBucket's changes as one checkpoint that is always open,
in ``stats checkpoint`` and here. Its id is 1, or one above the last checkpoint that a pushing
master has closed. No checkpoint is ever persisted as such, and none can be created: a command that
asks for one gets the present ids.

XDCR: verbs about links to other clusters, on any binary connection.

The key is the verb, the value a JSON object with what it takes, the answer a JSON value. A refusal
contains a text that says what to do. The bytes are our own, see ``docs/extensions.md``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from uprmc import units
from uprmc.config import Settings, build, values_of
from uprmc.engine.bucket import Bucket
from uprmc.errors import (
    CommandError,
    ConfigError,
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    NotMyVBucket,
    NotSupported,
    TemporaryFailure,
    UnknownCommand,
)
from uprmc.kv.cluster_map import BUCKET_NAME, terms_of
from uprmc.kv.refusals import REFUSALS, refusal_of
from uprmc.kv.roles import require
from uprmc.kv.services import Control, TapGuest
from uprmc.login.users import Role
from uprmc.protocol.management import SESSION_TOKEN_EXTRAS, SET_PARAM_EXTRAS, ParamGroup
from uprmc.protocol.opcodes import DataType, Opcode, Status
from uprmc.protocol.tap import TAP_CHECKPOINT_VALUE, decode_filter

if TYPE_CHECKING:
    from uprmc.kv.binary import BinarySession, Handler
    from uprmc.protocol.header import RequestFrame

# --- parameters ---------------------------------------------------------------------------------


#: Longest name and value, in bytes, as in ep-engine.
NAME_MAX_BYTES = 31
VALUE_MAX_BYTES = 511


def _as_it_is(text: str, _settings: Settings) -> str:
    return text


def _percent(text: str, _settings: Settings) -> float:
    return float(text.removesuffix("%")) / 100


def _share(text: str, settings: Settings) -> float:
    """Turn bytes, or a percentage, into a share of the quota that gives the same bytes again."""
    if text.endswith("%"):
        return _percent(text, settings)
    return (units.size(text) + 0.5) / settings.memory.quota


class _Parameter(NamedTuple):
    setting: str
    convert: Callable[[str, Settings], Any] = _as_it_is


_PARAMETERS = {
    "max_size": _Parameter("memory.quota"),
    "mem_low_wat": _Parameter("memory.low_mark", _share),
    "mem_high_wat": _Parameter("memory.high_mark", _share),
    "mutation_mem_threshold": _Parameter("memory.mutation_limit", _percent),
    "exp_pager_stime": _Parameter("engine.expiry_interval_s"),
    "min_data_age": _Parameter("flush.min_delay_s"),
    "queue_age_cap": _Parameter("flush.max_delay_s"),
    "max_txn_size": _Parameter("flush.batch_items"),
}


def set_parameter(bucket: Bucket, control: Control, group: int, name: str, text: str) -> None:
    """Change a parameter of the running node, at once and until it stops.

    Raises:
        KeyNotFound: no parameter of that group has this name.
        InvalidArguments: there is no such group, or the value is malformed or out of range; the
            text says why.
    """
    try:
        in_group = ParamGroup(group) is ParamGroup.FLUSH
    except ValueError:
        raise InvalidArguments(f"there is no group {group} of parameters") from None
    parameter = _PARAMETERS.get(name) if in_group else None
    if parameter is None:
        raise KeyNotFound(f"there is no parameter {name!r} in this group")
    before = bucket.settings
    try:
        value = parameter.convert(text, before)
        after = build({**dict(values_of(before)), parameter.setting: value})
    except (ConfigError, ValueError, OverflowError) as error:
        raise InvalidArguments(f"{name}: {error}") from None
    bucket.settings = after
    _apply(bucket, control, before, after)


def _apply(bucket: Bucket, control: Control, before: Settings, after: Settings) -> None:
    if after.memory != before.memory:
        bucket.account.set_quota(after.memory.quota, after.memory)
        bucket.account.exhausted = False  # it was a share of the old quota
    if after.flush != before.flush:
        bucket.flusher.configure(after.flush)
    if after.engine.expiry_interval_s != before.engine.expiry_interval_s:
        control.expire_every(after.engine.expiry_interval_s)


# --- the node -----------------------------------------------------------------------------------


def stop_persistence(session: BinarySession, request: RequestFrame) -> None:
    """Begin no commit from now on. Changes are accepted as long as memory lasts."""
    session.bucket.flusher.pause()
    session.reply(request)


def start_persistence(session: BinarySession, request: RequestFrame) -> None:
    """Commit again."""
    session.bucket.flusher.resume()
    session.reply(request)


def enable_traffic(session: BinarySession, request: RequestFrame) -> None:
    """Admit clients."""
    if not session.bucket.warm:
        raise TemporaryFailure("warming up")
    session.bucket.let_traffic_in()
    session.reply(request)


def disable_traffic(session: BinarySession, request: RequestFrame) -> None:
    """Refuse clients: their commands get temporary failure."""
    if not session.bucket.warm:
        raise TemporaryFailure("warming up")
    session.bucket.shut_traffic_out()
    session.reply(request)


def set_param(session: BinarySession, request: RequestFrame) -> None:
    """Change a setting of the running node; a refusal contains the reason."""
    control = session.services.control
    control.check_token(request.cas)
    (group,) = SET_PARAM_EXTRAS.unpack(request.extras)
    if len(request.key) > NAME_MAX_BYTES or len(request.value) > VALUE_MAX_BYTES:
        raise InvalidArguments("the name or the value is too long")
    name, text = request.key.decode("latin-1"), request.value.decode("latin-1")
    try:
        set_parameter(session.bucket, control, group, name, text)
    except KeyNotFound as error:
        session.reply(request, Status.KEY_NOT_FOUND, value=str(error).encode())
    except InvalidArguments as error:
        session.reply(request, Status.INVALID_ARGUMENTS, value=str(error).encode())
    else:
        session.reply(request, value=b"Updated")


def set_token(session: BinarySession, request: RequestFrame) -> None:
    """Begin a manager's session: commands of other managers are refused from now on."""
    control = session.services.control
    (token,) = SESSION_TOKEN_EXTRAS.unpack(request.extras)
    if not token:
        raise InvalidArguments("0 is not a token")
    control.check_token(request.cas)
    control.token = token
    session.reply(request, cas=token)


def get_token(session: BinarySession, request: RequestFrame) -> None:
    """Return the session token as CAS, 0 = none was set."""
    session.reply(request, cas=session.services.control.token)


def set_cluster_config(session: BinarySession, request: RequestFrame) -> None:
    """Store a cluster map for clients, and learn its terms."""
    control, bucket = session.services.control, session.bucket
    control.check_token(request.cas)
    terms = terms_of(request.value)
    if terms and not bucket.warm:
        raise TemporaryFailure("warming up")
    control.cluster_map.replace(request.value)
    for number, term in enumerate(terms):
        if number in bucket.vbuckets:
            bucket.learn_term(bucket.vbuckets[number], term)
    session.reply(request)


def get_cluster_config(session: BinarySession, request: RequestFrame) -> None:
    """Answer the cluster map."""
    text = session.services.control.cluster_map.text(session.bucket)
    if text is None:
        session.reply(request, Status.KEY_NOT_FOUND)
    else:
        session.reply(request, value=text, datatype=DataType.JSON)


def select_bucket(session: BinarySession, request: RequestFrame) -> None:
    """Accept the only bucket there is."""
    if request.key not in (b"", BUCKET_NAME.encode()):
        raise KeyNotFound(request.key)
    session.reply(request)


NODE_COMMANDS: dict[int, Handler] = {
    Opcode.STOP_PERSISTENCE: stop_persistence,
    Opcode.START_PERSISTENCE: start_persistence,
    Opcode.ENABLE_TRAFFIC: enable_traffic,
    Opcode.DISABLE_TRAFFIC: disable_traffic,
    Opcode.SET_PARAM: set_param,
    Opcode.SET_SESSION_TOKEN: set_token,
    Opcode.GET_SESSION_TOKEN: get_token,
    Opcode.SET_CLUSTER_CONFIG: set_cluster_config,
    Opcode.GET_CLUSTER_CONFIG: get_cluster_config,
    Opcode.SELECT_BUCKET: select_bucket,
}


# --- TAP's managers -----------------------------------------------------------------------------


#: Id of the last checkpoint on disk: there is never one.
PERSISTED_CHECKPOINT = 0


def last_closed(guest: TapGuest | None, number: int) -> int:
    """Return the id of a vBucket's last closed checkpoint; the open one is the next."""
    return guest.last_closed(number) if guest is not None else 0


def deregister(session: BinarySession, request: RequestFrame) -> None:
    """Forget a TAP client; it is no error if there was none."""
    _guest(session).deregister(request.key)
    session.reply(request)


def change_filter(session: BinarySession, request: RequestFrame) -> None:
    """Change the vBuckets of a TAP client from now on."""
    guest = _guest(session)
    if not request.value:
        raise InvalidArguments("a filter without vBuckets")
    guest.change_filter(request.key, decode_filter(request.value))
    session.reply(request)


def reset_chain(session: BinarySession, request: RequestFrame) -> None:
    """Make every TAP client start over."""
    _guest(session).reset_chain()
    session.reply(request)


def last_closed_checkpoint(session: BinarySession, request: RequestFrame) -> None:
    """Answer the id of a vBucket's last closed checkpoint."""
    if not session.bucket.traffic:
        raise TemporaryFailure("warming up")
    if request.vbucket not in session.bucket.vbuckets:
        raise NotMyVBucket(request.vbucket)
    closed = last_closed(session.services.tap, request.vbucket)
    session.reply(request, value=TAP_CHECKPOINT_VALUE.pack(closed))


def create_checkpoint(session: BinarySession, request: RequestFrame) -> None:
    """Return the ids of an active vBucket's open checkpoint and of its last persisted one."""
    session.locate(request)
    opened = last_closed(session.services.tap, request.vbucket) + 1
    ids = [TAP_CHECKPOINT_VALUE.pack(number) for number in (opened, PERSISTED_CHECKPOINT)]
    session.reply(request, value=b"".join(ids))


def _guest(session: BinarySession) -> TapGuest:
    guest = session.services.tap
    if guest is None:
        raise UnknownCommand("TAP is off")
    return guest


TAP_COMMANDS: dict[int, Handler] = {
    Opcode.DEREGISTER_TAP_CLIENT: deregister,
    Opcode.CHANGE_VB_FILTER: change_filter,
    Opcode.RESET_REPLICATION_CHAIN: reset_chain,
    Opcode.LAST_CLOSED_CHECKPOINT: last_closed_checkpoint,
    Opcode.CREATE_CHECKPOINT: create_checkpoint,
}


# --- links --------------------------------------------------------------------------------------


#: Longest value of a request.
_VALUE_MAX_BYTES = 1_048_576

#: A verb is not longer in the audit log.
_WORD_MAX_BYTES = 32

#: What the source of a link says to its target; all other verbs are a manager's.
_OF_SOURCES = frozenset({b"list", b"record", b"records", b"purged"})


def xdcr(session: BinarySession, request: RequestFrame) -> None:
    """Carry out a verb; commands behind it wait for its answer."""
    if request.key not in _OF_SOURCES:
        word = request.key[:_WORD_MAX_BYTES].decode("latin-1")
        require(session.services.door, Role.MANAGE, f"XDCR {word}")
    try:
        session.services.control.check_token(request.cas)
    except KeyExists:
        raise KeyExists("another manager has set a session token: use that one") from None
    links = session.services.xdcr
    if links is None:
        raise NotSupported("this node opens no connections")
    given = _given(request.value)
    resume = session.suspend()

    def answered(value: Any) -> None:
        session.reply(request, value=json.dumps(value).encode(), datatype=DataType.JSON)
        resume()

    def refused(error: CommandError) -> None:
        status, text = refusal_of(
            error, request.opcode, with_lock_errors=session.negotiated.lock_errors
        )
        session.reply(request, status, value=text)
        resume()

    try:
        links.command(request.key.decode("latin-1"), given, answered, refused)
    except REFUSALS:
        resume()
        raise


def _given(value: bytes) -> dict[str, Any]:
    if len(value) > _VALUE_MAX_BYTES:
        raise InvalidArguments(f"the request is longer than {_VALUE_MAX_BYTES} bytes")
    try:
        found = json.loads(value) if value else {}
    except (ValueError, RecursionError):
        raise InvalidArguments("the request is no JSON") from None
    if not isinstance(found, dict):
        raise InvalidArguments("the request is no JSON object")
    return found


XDCR_COMMANDS: dict[int, Handler] = {Opcode.XDCR: xdcr}
