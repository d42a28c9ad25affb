"""Commands that manage a node: persistence, traffic, parameters, cluster map.

None of them needs documents, so all but the traffic switch work during warm-up too.

Source: UPR reference, section 6; Couchbase SDK reference, sections 1 and 2.
"""

from __future__ import annotations

from uprmc.errors import InvalidArguments, KeyNotFound, TemporaryFailure
from uprmc.kv.binary_conversation import BinaryConversation, Handler, Request
from uprmc.kv.cluster_map import BUCKET_NAME, terms_of
from uprmc.kv.parameters import NAME_MAX_BYTES, VALUE_MAX_BYTES, set_parameter
from uprmc.protocol.management import SESSION_TOKEN_EXTRAS, SET_PARAM_EXTRAS
from uprmc.protocol.opcodes import DataType, Opcode, Status


def stop_persistence(session: BinaryConversation, request: Request) -> None:
    """Begin no commit from now on. Changes are accepted as long as memory lasts."""
    session.bucket.flusher.pause()
    session.reply(request)


def start_persistence(session: BinaryConversation, request: Request) -> None:
    """Commit again."""
    session.bucket.flusher.resume()
    session.reply(request)


def enable_traffic(session: BinaryConversation, request: Request) -> None:
    """Admit clients."""
    if not session.bucket.warm:
        raise TemporaryFailure("warming up")
    session.bucket.let_traffic_in()
    session.reply(request)


def disable_traffic(session: BinaryConversation, request: Request) -> None:
    """Refuse clients: their commands get temporary failure."""
    if not session.bucket.warm:
        raise TemporaryFailure("warming up")
    session.bucket.shut_traffic_out()
    session.reply(request)


def set_param(session: BinaryConversation, request: Request) -> None:
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


def set_token(session: BinaryConversation, request: Request) -> None:
    """Begin a manager's session: commands of other managers are refused from now on."""
    control = session.services.control
    (token,) = SESSION_TOKEN_EXTRAS.unpack(request.extras)
    if not token:
        raise InvalidArguments("0 is not a token")
    control.check_token(request.cas)
    control.token = token
    session.reply(request, cas=token)


def get_token(session: BinaryConversation, request: Request) -> None:
    """Return the session token as CAS, 0 = none was set."""
    session.reply(request, cas=session.services.control.token)


def set_cluster_config(session: BinaryConversation, request: Request) -> None:
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


def get_cluster_config(session: BinaryConversation, request: Request) -> None:
    """Answer the cluster map."""
    text = session.services.control.cluster_map.text(session.bucket)
    if text is None:
        session.reply(request, Status.KEY_NOT_FOUND)
    else:
        session.reply(request, value=text, datatype=DataType.JSON)


def select_bucket(session: BinaryConversation, request: Request) -> None:
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
